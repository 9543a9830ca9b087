//! Two reports on workloads, side by side.

use eadt_schemas::figures::format_percent;
use eadt_schemas::v1::Origin;
use serde::Serialize;

use crate::WorkloadReport;
use crate::figures::divide_known;
use crate::render::meter_word;
use crate::units::format_duration;
use crate::words::origin_word;

/// A figure of this one and of the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FigurePair {
    pub this: Option<f64>,
    pub other: Option<f64>,
    /// `this` over `other`, less 1; absent if one is unknown, if the other is not above zero, or if the change is refused.
    pub change_ratio: Option<f64>,
}

impl FigurePair {
    pub(crate) fn of(this: Option<f64>, other: Option<f64>, refused: bool) -> Self {
        let change_ratio = divide_known(this, other).filter(|_| !refused).map(|ratio| ratio - 1.0);
        Self { this, other, change_ratio }
    }
}

/// Comparison of two reports for `eadt report --compare` and the web page. Whole runs are compared, restarts and trials included.
/// That they did the same work is not checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportComparison {
    pub joules_per_sample: FigurePair,
    /// Over the whole duration.
    pub samples_per_second: FigurePair,
    pub mean_power_watts: FigurePair,
    pub energy_joules: FigurePair,
    pub samples: FigurePair,
    pub duration_seconds: FigurePair,
    pub cost: FigurePair,
    pub co2_grams: FigurePair,
    /// Reasons why changes are refused; empty if none is.
    pub refusals: Vec<String>,
    /// The only reason is that the two did different work.
    #[serde(skip)]
    pub(crate) is_refused_by_work: bool,
    /// The only reason is that the two have the same figures.
    #[serde(skip)]
    pub(crate) is_refused_as_equal: bool,
}

impl ReportComparison {
    /// Compares this one with the other. Refuses every change between a simulated and a real run, and between equal figures; between
    /// different meters only those of energy and power; between different coverages or different work only those of sums of energy.
    pub fn of(this: &WorkloadReport, other: &WorkloadReport) -> Self {
        let origin_refusal = refuse_origins(this, other);
        let equal_refusal = refuse_equal_figures(this, other).filter(|_| origin_refusal.is_none());
        let meter_refusal = refuse_meters(this, other);
        let pair = |figure: fn(&WorkloadReport) -> Option<f64>, refused| FigurePair::of(figure(this), figure(other), refused);
        let is_any_refused = origin_refusal.is_some() || equal_refusal.is_some();
        let is_energy_refused = is_any_refused || meter_refusal.is_some();
        let coverage_refusal = refuse_coverages(this, other).filter(|_| !is_energy_refused);
        let is_covered_alike = !is_energy_refused && coverage_refusal.is_none();
        let work_refusal = refuse_work(this, other).filter(|_| is_covered_alike);
        let is_sum_refused = !is_covered_alike || work_refusal.is_some();
        Self {
            joules_per_sample: pair(|report| report.joules_per_sample, is_energy_refused),
            samples_per_second: pair(|report| divide_known(report.samples, report.duration_seconds), is_any_refused),
            mean_power_watts: pair(|report| report.mean_power_watts, is_energy_refused),
            energy_joules: pair(|report| report.energy_joules, is_sum_refused),
            samples: pair(|report| report.samples, is_any_refused),
            duration_seconds: pair(|report| report.duration_seconds, is_any_refused),
            cost: pair(|report| report.cost, is_sum_refused),
            co2_grams: pair(|report| report.co2_grams, is_sum_refused),
            is_refused_by_work: work_refusal.is_some(),
            is_refused_as_equal: equal_refusal.is_some() && meter_refusal.is_none(),
            refusals: [origin_refusal, equal_refusal, meter_refusal, coverage_refusal, work_refusal]
                .into_iter()
                .flatten()
                .collect(),
        }
    }
}

/// Reason why no change of a sum of energy, cost or CO₂ is computed if the two did different work.
pub const DIFFERENT_WORK: &str =
    "the runs did different numbers of samples: their J/sample compare, and sums of energy, cost and CO₂ do not";

impl ReportComparison {
    /// Returns whether the two did different numbers of samples: they differ by more than 1 %.
    pub fn has_different_samples(&self) -> bool {
        is_apart([self.samples.this, self.samples.other])
    }
}

/// Most by which the samples of the same work differ, or its durations, as a part of them.
const WORK_APART: f64 = 0.01;

fn is_apart([this, other]: [Option<f64>; 2]) -> bool {
    this.zip(other).is_some_and(|(this, other)| (this - other).abs() > WORK_APART * this.max(other))
}

/// Returns whether two did different work. Without samples the time is the only measure of work.
fn is_of_different_work(samples: [Option<f64>; 2], durations: [Option<f64>; 2]) -> bool {
    let has_samples = samples.iter().all(Option::is_some);
    is_apart(if has_samples { samples } else { durations })
}

/// Returns the reason why no change of a sum of energy is computed if the two did different work.
fn refuse_work(this: &WorkloadReport, other: &WorkloadReport) -> Option<String> {
    let (samples, durations) = ([this.samples, other.samples], [this.duration_seconds, other.duration_seconds]);
    if !is_of_different_work(samples, durations) {
        return None;
    }
    if is_apart(samples) {
        return Some(DIFFERENT_WORK.to_owned());
    }
    let [here, there] = durations.map(|seconds| format_duration(seconds.unwrap_or(0.0)));
    Some(format!(
        "the other run lasted {there}, this one {here}, and not all of their samples are known: mean power compares, and sums of energy, cost \
         and CO₂ do not"
    ))
}

/// Returns why no change is computed if one of the two is simulated and the other is not.
fn refuse_origins(this: &WorkloadReport, other: &WorkloadReport) -> Option<String> {
    let is_simulated = |report: &WorkloadReport| report.origin == Origin::Simulated;
    (is_simulated(this) != is_simulated(other)).then(|| {
        let (here, there) = (origin_word(this.origin), origin_word(other.origin));
        format!("the figures of the other are {there}, here {here}; no change is computed: it would not be a saving")
    })
}

/// Difference of two sums over the same windows, as a part of them: by the order in which they were summed.
const ROUNDING: f64 = 1e-9;

/// Returns the reason why no change is computed if both have the same figures, as a record and its replay have. A replay with
/// another controller decides anew on recorded power, and "+0.0 %" would look as if that controller used as much. Whether they
/// are one record is not known: two runs of one seed are equal, too. Samples and durations are equal if neither is known.
fn refuse_equal_figures(this: &WorkloadReport, other: &WorkloadReport) -> Option<String> {
    this.energy_joules?;
    let figures = |report: &WorkloadReport| [report.energy_joules, report.samples, report.duration_seconds];
    let is_equal = |pair: (Option<f64>, Option<f64>)| match pair {
        (Some(this), Some(other)) => (this - other).abs() <= ROUNDING * this.abs().max(other.abs()),
        (this, other) => this == other,
    };
    let names = match (this.samples, this.duration_seconds) {
        (Some(_), Some(_)) => "energy, samples and duration",
        (Some(_), None) => "energy and samples",
        (None, Some(_)) => "energy and duration",
        (None, None) => "energy",
    };
    figures(this).into_iter().zip(figures(other)).all(is_equal).then(|| {
        format!(
            "both have the same {names}, as a record and its replay have; no change is computed: if one is the other's replay, what its \
             decisions would have taken is in neither"
        )
    })
}

/// Returns why no change of energy is computed if the energy of the two is of different meters.
fn refuse_meters(this: &WorkloadReport, other: &WorkloadReport) -> Option<String> {
    let (here, there) = this.meter.zip(other.meter).filter(|(here, there)| here != there)?;
    let (here, there) = (meter_word(here), meter_word(there));
    Some(format!(
        "the energy of the other is of the {there}, here of the {here}; no change of energy is computed: it would not be a saving"
    ))
}

/// Most by which the coverages of two compared sums differ.
const COVERAGE_APART: f64 = 0.01;

/// Returns why no change of a sum of energy is computed if energy is known of different parts of the two.
fn refuse_coverages(this: &WorkloadReport, other: &WorkloadReport) -> Option<String> {
    let (here, there) = this.coverage_ratio.zip(other.coverage_ratio)?;
    let [here_percent, there_percent] = [here, there].map(|ratio| format_percent(ratio, 1));
    let figure = if this.joules_per_sample.and(other.joules_per_sample).is_some() { "J/sample" } else { "mean power" };
    ((here - there).abs() > COVERAGE_APART).then(|| {
        format!(
            "the energy of the other is known for {there_percent} of its time, here for {here_percent}; no change of energy, cost or CO₂ \
             is computed: compare {figure}"
        )
    })
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Meter;

    use super::*;

    fn report(origin: Origin, meter: Option<Meter>) -> WorkloadReport {
        WorkloadReport {
            origin,
            meter,
            energy_joules: Some(3000.0),
            samples: Some(1000.0),
            joules_per_sample: Some(3.0),
            duration_seconds: Some(100.0),
            ..WorkloadReport::default()
        }
    }

    #[test]
    fn a_change_between_two_meters_or_from_simulated_to_real_is_refused() {
        let gpu = WorkloadReport { energy_joules: Some(3001.0), ..report(Origin::Measured, Some(Meter::Gpu)) };
        for (other, energy, samples, words) in [
            (report(Origin::Measured, Some(Meter::Gpu)), Some(0.0), Some(0.0), None),
            (report(Origin::Measured, None), Some(0.0), Some(0.0), None),
            (report(Origin::Imported, Some(Meter::Gpu)), Some(0.0), Some(0.0), None),
            (report(Origin::Measured, Some(Meter::Wall)), None, Some(0.0), Some("of the wall, here of the gpu")),
            (report(Origin::Simulated, Some(Meter::Gpu)), None, None, Some("are simulated, here measured")),
        ] {
            let compared = ReportComparison::of(&gpu, &other);
            let changes = (compared.joules_per_sample.change_ratio, compared.samples_per_second.change_ratio);
            assert_eq!(changes, (energy, samples), "{compared:?}");
            assert_eq!((compared.energy_joules.this, compared.energy_joules.other), (Some(3001.0), Some(3000.0)));
            assert_eq!(compared.refusals.len(), usize::from(words.is_some()), "{compared:?}");
            assert!(words.is_none_or(|words| compared.refusals[0].contains(words)), "{compared:?}");
        }
    }

    #[test]
    fn sums_of_energy_that_cover_different_parts_are_not_compared() {
        let covered = |coverage: f64, joules: f64| WorkloadReport {
            coverage_ratio: Some(coverage),
            energy_joules: Some(joules),
            cost: Some(joules / 1000.0),
            ..report(Origin::Measured, Some(Meter::Gpu))
        };
        let part = ReportComparison::of(&covered(0.65, 1950.0), &covered(1.0, 3000.0));
        let changes = [part.energy_joules, part.cost, part.joules_per_sample].map(|pair| pair.change_ratio);
        assert_eq!(changes, [None, None, Some(0.0)]);
        assert!(part.refusals[0].contains("for 100.0 % of its time, here for 65.0 %"), "{part:?}");
        let near = ReportComparison::of(&covered(0.995, 2990.0), &covered(1.0, 3000.0));
        assert!(near.refusals.is_empty() && near.energy_joules.change_ratio.is_some(), "{near:?}");
    }

    #[test]
    fn sums_of_energy_of_different_work_are_refused_with_the_reason() {
        let run = |samples: f64| WorkloadReport { samples: Some(samples), ..report(Origin::Measured, Some(Meter::Gpu)) };
        let compared = ReportComparison::of(&run(500.0), &run(1000.0));
        assert_eq!((compared.energy_joules.change_ratio, compared.refusals), (None, vec![DIFFERENT_WORK.to_owned()]));
        let same = ReportComparison::of(&WorkloadReport { energy_joules: Some(2900.0), ..run(1000.0) }, &run(1001.0));
        assert!(same.energy_joules.change_ratio.is_some() && same.refusals.is_empty(), "{same:?}");
        // Another refusal covers energy already.
        let wall = WorkloadReport { meter: Some(Meter::Wall), ..run(500.0) };
        assert_eq!(ReportComparison::of(&wall, &run(1000.0)).refusals.len(), 1);
    }

    #[test]
    fn without_samples_sums_of_energy_of_unlike_times_are_refused() {
        let run = |joules: f64, seconds: f64, samples: Option<f64>| WorkloadReport {
            energy_joules: Some(joules),
            duration_seconds: Some(seconds),
            samples,
            joules_per_sample: None,
            mean_power_watts: Some(300.0),
            ..report(Origin::Measured, Some(Meter::Gpu))
        };
        for samples in [None, Some(1000.0)] {
            let compared = ReportComparison::of(&run(357_000.0, 1190.0, samples), &run(177_000.0, 590.0, None));
            assert_eq!((compared.energy_joules.change_ratio, compared.mean_power_watts.change_ratio), (None, Some(0.0)));
            assert!(
                compared.is_refused_by_work && compared.refusals[0].contains("the other run lasted 9 min 50 s"),
                "{compared:?}"
            );
        }
        let alike = ReportComparison::of(&run(357_000.0, 1190.0, None), &run(300_000.0, 1195.0, None));
        assert!(alike.energy_joules.change_ratio.is_some() && alike.refusals.is_empty(), "{alike:?}");
    }

    #[test]
    fn a_record_is_not_compared_with_its_replay() {
        let record = report(Origin::Simulated, Some(Meter::Gpu));
        let replayed = WorkloadReport { decided_changes: 7, changes: 0, ..record.clone() };
        let compared = ReportComparison::of(&record, &replayed);
        assert_eq!((compared.joules_per_sample.change_ratio, compared.samples.change_ratio), (None, None), "{compared:?}");
        assert!(compared.refusals[0].starts_with("both have the same energy, samples and duration, as a record"), "{compared:?}");
        // Summed in another order.
        let rounded = WorkloadReport { duration_seconds: Some(0.1 + 0.2), ..record.clone() };
        let exact = WorkloadReport { duration_seconds: Some(0.3), ..record.clone() };
        assert_ne!(rounded.duration_seconds, exact.duration_seconds);
        assert_eq!(ReportComparison::of(&rounded, &exact).refusals, compared.refusals);
        let longer = WorkloadReport { duration_seconds: Some(0.3001), ..record.clone() };
        assert_eq!(ReportComparison::of(&longer, &exact).refusals, Vec::<String>::new());
        // What neither knows is no difference, and what one of them knows is one.
        let without_samples = WorkloadReport { samples: None, joules_per_sample: None, ..record.clone() };
        let energy_alone = WorkloadReport { duration_seconds: None, ..without_samples.clone() };
        for (report, words) in [(&without_samples, "energy and duration, as"), (&energy_alone, "energy, as")] {
            let compared = ReportComparison::of(report, report);
            assert_eq!((compared.energy_joules.change_ratio, compared.refusals.len()), (None, 1), "{compared:?}");
            assert!(compared.refusals[0].contains(words) && compared.is_refused_as_equal, "{compared:?}");
        }
        assert_eq!(ReportComparison::of(&without_samples, &record).refusals, Vec::<String>::new());
        let unknown = WorkloadReport { energy_joules: None, joules_per_sample: None, ..record };
        assert_eq!(ReportComparison::of(&unknown, &unknown).refusals, Vec::<String>::new());
    }
}
