//! The verdict on a run, first thing of every report and view: what was saved, and of how much of the energy that is known.
//!
//! A saving of a part is never worded as one of the whole: if more than [`REST`] of the energy has nothing to be compared with,
//! the sentence begins with that.

use eadt_schemas::counts::{counted, counted_as};
use eadt_schemas::v1::Origin;
use serde::Serialize;

use crate::figures::{GPUS_WITHOUT_WORKLOAD, compared_part};
use crate::words::origin_word;
use crate::{EnergyReport, WorkloadReport, units};

/// Part of the energy that may stay outside of the comparison of a saving that is called the run's.
const REST: f64 = 0.05;

/// Sums of one workload or of several, and the verdict that follows from them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SavingSummary {
    /// GPUs without a workload are none: their energy is in `energy_joules`, and in no figure of the saving.
    pub workloads: usize,
    /// Workloads with unknown energy; they are in no sum.
    pub without_energy: usize,
    pub energy_joules: Option<f64>,
    /// Energy of the windows that are compared. Beside workloads with a saving, the energy of those that nothing changed is in it:
    /// they would have taken the same.
    pub compared_joules: f64,
    /// Energy that the starting layouts would have taken for their samples; `None` if nothing is compared.
    pub expected_joules: Option<f64>,
    /// Half of the width of the 90 % interval of the saving. Errors of different workloads are taken as independent. 0 if a
    /// workload was compared with a given baseline: that saving has no interval, and neither has a sum with it.
    pub error_joules: f64,
    /// Least and greatest part of the throughput that was kept; `None` if that of a compared workload is unknown.
    pub throughput: Option<(f64, f64)>,
    /// Reports that were summed up, that of GPUs without a workload included.
    reports: usize,
    /// Energy without that of GPUs without a workload.
    workloads_joules: f64,
    /// Energy of the workloads that nothing changed.
    unchanged_joules: f64,
    /// The setting of a workload without a saving was changed, by the controller or from outside.
    lacks_baseline: bool,
    /// Compared workloads with an interval, and those without: these are compared with a given baseline.
    with_interval: usize,
    without_interval: usize,
    /// A compared workload has no throughput to compare with.
    lacks_throughput: bool,
    /// Changes that were applied, and the reverts among them.
    pub changes: u64,
    pub reverts: u64,
    /// Changes that were decided, applied or not.
    pub decided_changes: u64,
    /// Number of these changes that were written as recommendations and not applied.
    pub recommendations: u64,
    /// Cost of the energy; `None` if one workload's cost is unknown, or if their currencies differ.
    pub cost: Option<f64>,
    pub currency: Option<String>,
    /// Emissions of the energy; `None` if one workload's emissions are unknown.
    pub co2_grams: Option<f64>,
    /// The origin of all; `None` if they differ.
    pub origin: Option<Origin>,
}

/// The verdict on the saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SavingVerdict {
    /// Less energy than without the changes.
    Saved,
    /// More energy than without the changes.
    Lost,
    /// The interval holds zero.
    Unclear,
    /// There was nothing to compare with.
    Unknown,
    /// No change was made, so no saving: none was decided, or none of those that were was applied.
    Unchanged,
}

impl SavingSummary {
    /// Sums up some workloads.
    pub fn of<'a>(workloads: impl IntoIterator<Item = &'a WorkloadReport>) -> Self {
        let mut all = Self::default();
        for workload in workloads {
            all.add(workload);
        }
        all.error_joules = if all.without_interval > 0 { 0.0 } else { all.error_joules.sqrt() };
        all.throughput = all.throughput.filter(|_| !all.lacks_throughput);
        // Beside a saving, the energy that nothing changed counts with a saving of zero.
        if let Some(expected) = all.expected_joules.as_mut() {
            *expected += all.unchanged_joules;
            all.compared_joules += all.unchanged_joules;
        }
        all
    }

    /// Adds a workload; the error is summed as its square.
    fn add(&mut self, workload: &WorkloadReport) {
        let first = self.reports == 0;
        let is_workload = workload.workload != GPUS_WITHOUT_WORKLOAD;
        self.origin = if first { Some(workload.origin) } else { self.origin.filter(|origin| *origin == workload.origin) };
        let sum = |sum: Option<f64>, own: Option<f64>| if first { own } else { sum.zip(own).map(|(sum, own)| sum + own) };
        self.cost = sum(self.cost, workload.cost);
        self.co2_grams = sum(self.co2_grams, workload.co2_grams);
        if first {
            self.currency.clone_from(&workload.currency);
        } else if self.currency != workload.currency {
            (self.cost, self.currency) = (None, None);
        }
        self.reports += 1;
        self.workloads += usize::from(is_workload);
        self.changes += workload.changes;
        self.reverts += workload.reverts;
        self.decided_changes += workload.decided_changes;
        self.recommendations += workload.recommendations;
        self.lacks_baseline |= workload.lacks_baseline;
        let Some(energy) = workload.energy_joules else {
            self.without_energy += usize::from(is_workload);
            return;
        };
        self.energy_joules = Some(self.energy_joules.unwrap_or(0.0) + energy);
        if !is_workload {
            return;
        }
        self.workloads_joules += energy;
        let (Some(expected), Some(compared)) = (workload.expected_energy_joules, workload.compared_energy_joules) else {
            if workload.changes == 0 && !workload.lacks_baseline {
                self.unchanged_joules += energy;
            }
            return;
        };
        self.compared_joules += compared;
        self.expected_joules = Some(self.expected_joules.unwrap_or(0.0) + expected);
        match workload.saving_ratio_low.zip(workload.saving_ratio_high) {
            Some((low, high)) => {
                self.error_joules += (0.5 * (high - low) * expected).powi(2);
                self.with_interval += 1;
            }
            None => self.without_interval += 1,
        }
        match workload.throughput_kept_ratio {
            Some(throughput_ratio) => {
                let (least, most) = self.throughput.unwrap_or((throughput_ratio, throughput_ratio));
                self.throughput = Some((least.min(throughput_ratio), most.max(throughput_ratio)));
            }
            None => self.lacks_throughput = true,
        }
    }

    /// Returns the energy saved in the compared windows; negative: lost.
    pub fn saving_joules(&self) -> Option<f64> {
        self.expected_joules.map(|expected| expected - self.compared_joules)
    }

    /// Returns the saving over the energy of the starting layouts.
    pub fn saving_ratio(&self) -> Option<f64> {
        let expected = self.expected_joules.filter(|expected| *expected > 0.0)?;
        Some(self.saving_joules()? / expected)
    }

    /// Returns the half of the width of the 90 % interval of the ratio; `None` if it has none.
    pub fn ratio_error(&self) -> Option<f64> {
        let expected = self.expected_joules.filter(|expected| *expected > 0.0)?;
        Some(self.error_joules / expected).filter(|error| *error > 0.0)
    }

    /// Returns the part of the workloads' energy that is compared.
    pub fn compared_ratio(&self) -> Option<f64> {
        compared_part(self.expected_joules.map(|_| self.compared_joules), Some(self.workloads_joules))
    }

    /// Returns whether the saving may be called that of the whole run.
    pub fn is_whole(&self) -> bool {
        self.without_energy == 0 && self.compared_ratio().is_some_and(|part| part >= 1.0 - REST)
    }

    /// Returns the verdict on the compared part.
    pub fn verdict(&self) -> SavingVerdict {
        let Some(saving) = self.saving_joules().filter(|_| self.saving_ratio().is_some()) else {
            let is_unchanged = self.changes == 0 && !self.lacks_baseline;
            return if is_unchanged { SavingVerdict::Unchanged } else { SavingVerdict::Unknown };
        };
        match saving {
            _ if saving.abs() <= self.error_joules => SavingVerdict::Unclear,
            _ if saving > 0.0 => SavingVerdict::Saved,
            _ => SavingVerdict::Lost,
        }
    }

    /// Returns the verdict as a sentence, without its subject.
    pub fn sentence(&self) -> String {
        let Some(energy) = self.energy_joules else { return "the energy is not known".to_owned() };
        if self.without_energy > 0 {
            let rest = Self { without_energy: 0, ..self.clone() };
            return format!(
                "what all of them saved is not known: the energy of {} of {} workloads is not known. Of the others: {}",
                self.without_energy,
                self.workloads,
                rest.sentence()
            );
        }
        let used = format!("{} ({}) used", units::format_joules(energy), units::kilowatt_hours(energy));
        let compared = match self.verdict() {
            SavingVerdict::Unchanged => {
                return format!("nothing was changed, so nothing was saved{}; {used}", self.unapplied_changes());
            }
            SavingVerdict::Unknown => {
                return format!("what the changes saved is not known: the starting layout was not measured; {used}");
            }
            verdict => self.compared_sentence(verdict, energy),
        };
        let part = self.compared_ratio().unwrap_or(0.0);
        if self.is_whole() {
            let of =
                if part < 0.995 { format!(" ({:.0} % of the energy could be compared)", 100.0 * part) } else { String::new() };
            return format!("{compared}{of}; {used}");
        }
        let rest = self.workloads_joules - self.compared_joules;
        format!(
            "what the whole run saved is not known: {:.0} % of its energy ({}) has nothing to be compared with. Only of the other {:.0} %: {compared}; \
             {used}",
            100.0 * (1.0 - part),
            units::format_joules(rest),
            100.0 * part,
        )
    }

    /// Returns a text on decided changes if none was applied; empty if none was decided.
    fn unapplied_changes(&self) -> String {
        let changes = |count: u64| counted_as(count, "change was", "changes were");
        match (self.decided_changes, self.recommendations) {
            (0, _) => String::new(),
            (decided, recommended) if recommended >= decided => {
                format!(": {} recommended, and none was made", changes(recommended))
            }
            (decided, 0) => format!(": {} decided, and the record shows none of them made", changes(decided)),
            (decided, recommended) => {
                format!(": {} decided, {recommended} of them recommended, and none was made", changes(decided))
            }
        }
    }

    fn compared_sentence(&self, verdict: SavingVerdict, energy: f64) -> String {
        let (saving, ratio) = (self.saving_joules().unwrap_or(0.0), self.saving_ratio().unwrap_or(0.0));
        let error = self.ratio_error().map_or_else(String::new, |error| format!(" ± {:.1}", 100.0 * error));
        let percent = format!("{:.1} %{error}", 100.0 * ratio.abs());
        let mut amounts = format!("{}, {}", units::format_joules(saving.abs()), units::kilowatt_hours(saving.abs()));
        if let (Some(cost), Some(currency)) = (self.cost.filter(|_| energy > 0.0), &self.currency) {
            // At the mean price of the run.
            let share = cost * saving.abs() / energy;
            amounts = format!("{amounts}, {share:.2} {currency}");
        }
        // A saving without an interval is one against a figure that was given.
        let than = match (self.with_interval, self.without_interval) {
            (_, 0) => "the starting layout",
            (0, 1) => "the given baseline",
            (0, _) => "the given baselines",
            _ => "the given baselines and starting layouts",
        };
        let words = match verdict {
            SavingVerdict::Saved => format!("saved {percent} of the energy ({amounts})"),
            SavingVerdict::Lost => format!("used {percent} more energy than {than} ({amounts})"),
            _ if ratio >= 0.0 => format!("no clear saving: {percent} less energy than {than} ({amounts})"),
            _ => format!("no clear saving: {percent} more energy than {than} ({amounts})"),
        };
        let throughput = self.throughput.map_or_else(String::new, |(least, most)| {
            let (least, most) = (format!("{:.0}", 100.0 * least), format!("{:.0}", 100.0 * most));
            if least == most { format!("; throughput {least} %") } else { format!("; throughput {least} to {most} %") }
        });
        format!("{words}{throughput}")
    }
}

/// Workloads that have a sentence of their own; the others are counted.
const SENTENCES: usize = 10;

impl EnergyReport {
    /// Returns the workloads, those that used most energy first.
    pub fn by_energy(&self) -> Vec<&WorkloadReport> {
        let mut workloads: Vec<&WorkloadReport> = self.workloads.iter().collect();
        let energy = |workload: &WorkloadReport| workload.energy_joules.unwrap_or(-1.0);
        workloads.sort_by(|a, b| energy(b).total_cmp(&energy(a)).then_with(|| a.workload.cmp(&b.workload)));
        workloads
    }

    /// Returns the report's first lines: the verdict on all workloads, then on each, those that used most energy first.
    pub fn headline(&self) -> Vec<String> {
        if self.workloads.is_empty() {
            return Vec::new();
        }
        let all = SavingSummary::of(&self.workloads);
        let mark = |origin: Option<Origin>| match origin {
            Some(Origin::Measured) => String::new(),
            Some(origin) => format!("{}: ", origin_word(origin)),
            None => "origins differ: ".to_owned(),
        };
        let ordered = self.by_energy();
        if let [one] = ordered.as_slice() {
            return vec![format!("{}{}: {}", mark(all.origin), one.workload, all.sentence())];
        }
        let mut lines = vec![format!("{}{}: {}", mark(all.origin), counted(all.workloads, "workload"), all.sentence())];
        for workload in ordered.iter().take(SENTENCES) {
            let own = if all.origin.is_none() { mark(Some(workload.origin)) } else { String::new() };
            lines.push(format!("{}: {own}{}", workload.workload, SavingSummary::of([*workload]).sentence()));
        }
        if ordered.len() > SENTENCES {
            let known = ordered[SENTENCES..].iter().any(|workload| workload.energy_joules.is_some());
            let less = if known { ", which used less" } else { "" };
            lines.push(format!("{}{less}: in the tables", counted(ordered.len() - SENTENCES, "more workload")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(energy: f64, compared: f64, ratio: f64, error: f64) -> WorkloadReport {
        let expected = compared * energy / (1.0 - ratio);
        WorkloadReport {
            workload: "team/job".into(),
            energy_joules: Some(energy),
            compared_energy_joules: Some(compared * energy),
            expected_energy_joules: Some(expected),
            compared_energy_ratio: Some(compared),
            saving_joules: Some(expected * ratio),
            saving_ratio: Some(ratio),
            saving_ratio_low: Some(ratio - error),
            saving_ratio_high: Some(ratio + error),
            throughput_kept_ratio: Some(0.97),
            changes: 2,
            ..WorkloadReport::default()
        }
    }

    fn without_saving(workload: WorkloadReport) -> WorkloadReport {
        WorkloadReport {
            saving_joules: None,
            compared_energy_joules: None,
            expected_energy_joules: None,
            compared_energy_ratio: None,
            ..workload
        }
    }

    fn sentence(workload: &WorkloadReport) -> String {
        SavingSummary::of([workload]).sentence()
    }

    #[test]
    fn a_saving_of_nearly_all_energy_is_that_of_the_run() {
        let text = sentence(&workload(2_504_000.0, 1.0, 0.241, 0.012));
        assert_eq!(text, "saved 24.1 % ± 1.2 of the energy (795 kJ, 0.221 kWh); throughput 97 %; 2.50 MJ (0.696 kWh) used");
        let text = sentence(&workload(1e6, 0.97, 0.1, 0.01));
        assert!(text.starts_with("saved 10.0 % ± 1.0") && text.contains("(97 % of the energy could be compared)"), "{text}");
    }

    /// 41 % of the energy ran in phases that were never measured at the starting layout. In truth the run saved 16.9 %.
    #[test]
    fn a_part_is_never_worded_as_the_whole() {
        let text = sentence(&workload(1e6, 0.59, -0.04, 0.019));
        assert!(text.starts_with("what the whole run saved is not known: 41 % of its energy (410 kJ) has nothing"), "{text}");
        assert!(text.contains("Only of the other 59 %: used 4.0 % ± 1.9 more energy"), "{text}");
    }

    #[test]
    fn what_may_be_nothing_is_not_called_a_saving() {
        let text = sentence(&workload(1e6, 1.0, 0.004, 0.012));
        assert!(text.starts_with("no clear saving: 0.4 % ± 1.2 less energy"), "{text}");
        let unknown = without_saving(workload(1e6, 1.0, 0.1, 0.01));
        assert!(sentence(&unknown).contains("is not known: the starting layout was not measured"), "{}", sentence(&unknown));
        let unchanged = WorkloadReport { changes: 0, ..unknown };
        assert!(sentence(&unchanged).starts_with("nothing was changed"), "{}", sentence(&unchanged));
        assert_eq!(sentence(&WorkloadReport::default()), "the energy is not known");
    }

    #[test]
    fn several_workloads_are_summed_in_joules() {
        let both = [workload(1e6, 1.0, 0.2, 0.03), workload(3e6, 1.0, -0.1, 0.04)];
        let all = SavingSummary::of(&both);
        let (expected, error) = (1.25e6 + 3e6 / 1.1, f64::hypot(0.03 * 1.25e6, 0.04 * 3e6 / 1.1));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6 * b.abs(), "{a} instead of {b}");
        near(all.expected_joules.unwrap(), expected);
        near(all.ratio_error().unwrap(), error / expected);
        near(all.saving_ratio().unwrap(), 1.0 - 4e6 / expected);
        assert_eq!(all.verdict(), SavingVerdict::Unclear);
        // A workload without a comparison counts as unknown.
        let third = without_saving(workload(4e6, 1.0, 0.0, 0.0));
        let all = SavingSummary::of(both.iter().chain([&third]));
        near(all.compared_ratio().unwrap(), 0.5);
        assert!(!all.is_whole());
    }

    /// Checks that energy without a change is compared, with a saving of zero.
    #[test]
    fn energy_that_nothing_changed_counts_with_a_saving_of_zero() {
        let changed = workload(1e6, 1.0, 0.2, 0.03);
        let without = |changes: u64, lacks_baseline: bool| WorkloadReport {
            changes,
            lacks_baseline,
            ..without_saving(workload(3e6, 1.0, 0.0, 0.0))
        };
        for (other, compared, expected) in [
            (without(0, false), Some(1.0), "saved 5.9 % ± 0.9 of the energy (250 kJ, 0.0694 kWh); throughput 97 %; 4 MJ"),
            (without(0, true), Some(0.25), "what the whole run saved is not known: 75 % of its energy (3 MJ) has nothing"),
            (without(2, false), Some(0.25), "what the whole run saved is not known: 75 % of its energy (3 MJ) has nothing"),
        ] {
            for both in [[&changed, &other], [&other, &changed]] {
                let all = SavingSummary::of(both);
                assert_eq!(all.compared_ratio(), compared, "{all:?}");
                assert!(all.saving_joules().is_some_and(|joules| (joules - 250e3).abs() < 1e-3), "{all:?}");
                assert!(all.sentence().starts_with(expected), "{}", all.sentence());
            }
        }
        // Without any saving, there is no saving of zero either.
        let all = SavingSummary::of([&without(0, false), &without(0, false)]);
        assert_eq!((all.expected_joules, all.verdict()), (None, SavingVerdict::Unchanged));
        let all = SavingSummary::of([&without(0, false), &without(1, false)]);
        assert_eq!((all.expected_joules, all.verdict()), (None, SavingVerdict::Unknown));
        assert_eq!(SavingSummary::of([&without(0, true)]).verdict(), SavingVerdict::Unknown);
    }

    /// A given baseline is a fixed figure without an interval: ± of the other workload alone would be too narrow.
    #[test]
    fn a_sum_with_a_given_baseline_has_no_interval() {
        let estimated = workload(1e6, 1.0, 0.2, 0.03);
        let given = WorkloadReport {
            saving_ratio_low: None,
            saving_ratio_high: None,
            throughput_kept_ratio: None,
            ..workload(3e6, 1.0, 0.1, 0.0)
        };
        for both in [[&estimated, &given], [&given, &estimated]] {
            let all = SavingSummary::of(both);
            assert_eq!((all.ratio_error(), all.error_joules, all.throughput), (None, 0.0, None));
            assert_eq!(all.verdict(), SavingVerdict::Saved);
            let text = all.sentence();
            assert!(text.starts_with("saved 12.7 % of the energy (583 kJ") && !text.contains("throughput"), "{text}");
        }
        let worse =
            WorkloadReport { saving_joules: Some(-1e6), saving_ratio: Some(-0.5), expected_energy_joules: Some(2e6), ..given };
        for (workloads, than) in [
            (vec![&worse], "the given baseline ("),
            (vec![&worse, &worse], "the given baselines ("),
            (vec![&worse, &estimated], "the given baselines and starting layouts ("),
        ] {
            let text = SavingSummary::of(workloads).sentence();
            assert!(text.contains(&format!("more energy than {than}")), "{text}");
        }
    }

    /// Checks that idle GPUs are in no saving, since no decision could have changed their energy. Their energy counts as used
    /// all the same.
    #[test]
    fn gpus_without_a_workload_are_no_workload_and_in_no_saving() {
        let job = workload(1e6, 0.8, 0.2, 0.03);
        let idle = |energy: Option<f64>| WorkloadReport {
            workload: GPUS_WITHOUT_WORKLOAD.into(),
            energy_joules: energy,
            changes: 0,
            ..without_saving(workload(3e6, 1.0, 0.0, 0.0))
        };
        let alone = SavingSummary::of([&job]);
        for (energy, used) in [(Some(3e6), 4e6), (None, 1e6)] {
            let idle = idle(energy);
            for both in [[&job, &idle], [&idle, &job]] {
                let all = SavingSummary::of(both);
                assert_eq!((all.workloads, all.without_energy, all.energy_joules), (1, 0, Some(used)));
                assert_eq!((all.compared_joules, all.expected_joules), (alone.compared_joules, alone.expected_joules));
                assert_eq!((all.saving_ratio(), all.compared_ratio()), (alone.saving_ratio(), Some(0.8)));
                assert!(all.sentence().contains(" 20 % of its energy (200 kJ) has nothing"), "{}", all.sentence());
            }
        }
        let lines = EnergyReport { workloads: vec![idle(Some(3e6)), job], ..EnergyReport::default() }.headline();
        assert!(lines[0].starts_with("1 workload: ") && lines[1].starts_with("gpus: nothing was changed"), "{lines:?}");
        let all = SavingSummary::of([&idle(Some(3e6))]);
        assert_eq!((all.verdict(), all.compared_ratio(), all.energy_joules), (SavingVerdict::Unchanged, None, Some(3e6)));
    }

    #[test]
    fn workloads_of_unknown_energy_are_not_reported_to_have_used_less() {
        let last = |workload: WorkloadReport| {
            let report = EnergyReport { workloads: vec![workload; SENTENCES + 1], ..EnergyReport::default() };
            report.headline().pop().unwrap()
        };
        assert_eq!(last(workload(1e6, 1.0, 0.2, 0.01)), "1 more workload, which used less: in the tables");
        assert_eq!(last(WorkloadReport::default()), "1 more workload: in the tables");
    }

    #[test]
    fn the_verdict_names_the_origin() {
        let one = WorkloadReport { origin: Origin::Simulated, ..workload(1e6, 1.0, 0.2, 0.01) };
        let report = EnergyReport {
            workloads: vec![one.clone(), WorkloadReport { workload: "a/b".into(), ..workload(2e6, 1.0, 0.2, 0.01) }],
            ..EnergyReport::default()
        };
        let lines = report.headline();
        assert!(lines[0].starts_with("origins differ: 2 workloads: saved 20.0 %"), "{lines:?}");
        assert!(lines[1].starts_with("a/b: saved") && lines[2].starts_with("team/job: simulated: saved"), "{lines:?}");
        let report = EnergyReport { workloads: vec![one], ..EnergyReport::default() };
        assert!(report.headline()[0].starts_with("simulated: team/job: saved 20.0 %"));
    }
}
