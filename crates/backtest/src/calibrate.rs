//! Reported savings against true ones: how far the estimate of `crates/report` is to be believed.
//!
//! In a simulation the truth is known: the same scenario and seed without any change. Each controller's run is reported on as a
//! user's would be, and the report's figure is held against the energy and samples of the untouched run in the same windows.

use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_html::END;
use eadt_report::{ReportBreakdown, ReportSettings, WorkloadReport};
use eadt_schemas::counts::counted;
use eadt_schemas::figures::{format_percent, format_signed};
use rayon::prelude::*;
use serde::Serialize;

use crate::simulated::{ReportedRun, record};
use crate::{BacktestError, BacktestPlan, Contender, Oversubscription, ScenarioSource};

/// Backtests whose reported savings are compared with the truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    pub subjects: Vec<ScenarioSource>,
    pub controllers: Vec<ControllerName>,
    pub days: f64,
    /// Seeds 0 up to this.
    pub seeds: u64,
    /// Settings of workloads that declare none.
    pub settings: ControllerSettings,
    /// Time from a decision to its effect, in seconds.
    pub delay_seconds: f64,
}

/// One report beside the truth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalibrationRun {
    pub scenario: String,
    pub workload: String,
    pub controller: ControllerName,
    pub seed: u64,
    /// Saving of the report; absent if it gives none.
    pub reported_ratio: Option<f64>,
    /// Ends of its 90 % interval.
    pub reported_ratio_low: Option<f64>,
    pub reported_ratio_high: Option<f64>,
    /// Part of the energy that the report compares.
    pub compared_energy_ratio: Option<f64>,
    /// Saving against the untouched run in the windows that the report compares.
    pub true_ratio: Option<f64>,
    /// Saving against the untouched run in all windows; absent if one of the two runs did nothing.
    pub true_run_ratio: Option<f64>,
    /// Throughput against the untouched run in all windows; absent as above.
    pub true_throughput_ratio: Option<f64>,
    pub reported_throughput_ratio: Option<f64>,
    /// The controller changed something.
    pub changed: bool,
}

/// Compares the reports of one controller on one scenario, or of all of them, with the truth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalibrationRow {
    /// Absent: all.
    pub scenario: Option<String>,
    /// Absent: all.
    pub controller: Option<ControllerName>,
    /// Runs in which something was changed.
    pub runs: usize,
    /// Number of reports with a saving.
    pub reported: usize,
    /// Part of the reported intervals that hold the truth of the compared windows.
    pub coverage_ratio: Option<f64>,
    /// The same for the truth of all windows.
    pub coverage_of_run_ratio: Option<f64>,
    /// Median half width of the intervals.
    pub half_width_median: Option<f64>,
    /// Mean of reported less true.
    pub bias_mean: Option<f64>,
    /// The same against the truth of all windows.
    pub bias_of_run_mean: Option<f64>,
    /// Mean part of the energy that is compared.
    pub compared_energy_ratio_mean: Option<f64>,
    /// Mean saving against the untouched runs in all windows; absent if nothing was changed in any run.
    pub true_ratio_mean: Option<f64>,
}

/// A requirement on the calibration and the value that it reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CalibrationTarget {
    pub what: &'static str,
    /// Absent if no run gives it.
    pub reached: Option<f64>,
    #[serde(rename = "asked")]
    pub limit: f64,
    /// False also if no run was compared.
    #[serde(rename = "kept")]
    pub is_met: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CalibrationReport {
    /// `simulated`: nothing of it was measured.
    pub origin: &'static str,
    pub days: f64,
    pub seeds: u64,
    #[serde(rename = "asked")]
    pub targets: Vec<CalibrationTarget>,
    /// Pairs of controllers with one seed whose true savings differ by 3 points or more.
    pub pairs: usize,
    /// Part of them that the reports rank as the truth does.
    pub ranking_ratio: Option<f64>,
    /// The same with the truth of all windows.
    pub pairs_of_run: usize,
    pub ranking_of_run_ratio: Option<f64>,
    /// All first, then by scenario and controller.
    pub rows: Vec<CalibrationRow>,
    pub runs: Vec<CalibrationRun>,
}

/// Savings that differ by less are not ranked.
const APART: f64 = 0.03;

impl Calibration {
    fn contest(&self) -> BacktestPlan {
        BacktestPlan {
            subjects: self.subjects.clone(),
            contenders: Vec::new(),
            oversubscription: vec![Oversubscription::Allowed],
            days: self.days,
            seeds: self.seeds,
            settings: self.settings.clone(),
            delay_seconds: self.delay_seconds,
            power_budget_watts: None,
        }
    }

    /// Returns the first thing that is wrong with it.
    pub fn check(&self) -> Result<(), BacktestError> {
        self.contest().check()
    }

    /// Returns how many groups of runs it takes; [`Self::run`] reports each one that is done.
    pub fn len(&self) -> usize {
        self.subjects.len() * self.seeds as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the user's report of one run for each workload, with its figures window by window.
    pub fn reports(
        &self,
        subject: &ScenarioSource,
        controller: ControllerName,
        seed: u64,
    ) -> Result<Vec<(String, WorkloadReport)>, BacktestError> {
        let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
        let recordings = record(&self.contest(), subject, Contender::Controller(controller), seed)?;
        let report = |run: &ReportedRun| run.reporter.build_report(&settings).workloads.into_iter().next().unwrap_or_default();
        Ok(recordings.iter().map(|run| (run.workload.clone(), report(run))).collect())
    }

    /// Simulates everything and compares; calls `done` after each group. The result does not depend on the number of cores.
    pub fn run(&self, done: &(dyn Fn() + Sync)) -> Result<CalibrationReport, BacktestError> {
        self.check()?;
        let contest = self.contest();
        let tasks: Vec<(&ScenarioSource, u64)> =
            self.subjects.iter().flat_map(|subject| (0..self.seeds).map(move |seed| (subject, seed))).collect();
        let runs: Result<Vec<Vec<CalibrationRun>>, BacktestError> = tasks
            .par_iter()
            .map(|(subject, seed)| {
                let fixed = record(&contest, subject, Contender::Fixed, *seed)?;
                let mut runs = Vec::new();
                for controller in &self.controllers {
                    let changed = record(&contest, subject, Contender::Controller(*controller), *seed)?;
                    let pairs = changed.iter().zip(&fixed);
                    runs.extend(pairs.map(|(run, fixed)| estimated(subject.name(), *controller, *seed, run, fixed)));
                }
                done();
                Ok(runs)
            })
            .collect();
        Ok(CalibrationReport::of(runs?.into_iter().flatten().collect(), self.days, self.seeds))
    }
}

fn estimated(scenario: &str, controller: ControllerName, seed: u64, run: &ReportedRun, fixed: &ReportedRun) -> CalibrationRun {
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let report = run.reporter.build_report(&settings).workloads.into_iter().next().unwrap_or_default();
    let truth = |compared_only: bool| {
        let rows = report.by_window.as_deref().unwrap_or_default();
        let mut sums = [0.0; 4];
        for ((row, (_, joules, samples)), (_, fixed_joules, fixed_samples)) in rows.iter().zip(&run.windows).zip(&fixed.windows) {
            if !compared_only || row.baseline_energy_joules.is_some() {
                for (sum, value) in sums.iter_mut().zip([joules, samples, fixed_joules, fixed_samples]) {
                    *sum += value;
                }
            }
        }
        let [joules, samples, fixed_joules, fixed_samples] = sums;
        (samples > 0.0 && fixed_samples > 0.0)
            .then(|| (1.0 - joules / samples / (fixed_joules / fixed_samples), samples / fixed_samples))
    };
    let WorkloadReport { saving_ratio, saving_ratio_low, saving_ratio_high, compared_energy_ratio, .. } = report;
    let (true_run_ratio, true_throughput_ratio) = truth(false).unzip();
    CalibrationRun {
        scenario: scenario.to_owned(),
        workload: run.workload.clone(),
        controller,
        seed,
        reported_ratio: saving_ratio,
        reported_ratio_low: saving_ratio_low,
        reported_ratio_high: saving_ratio_high,
        compared_energy_ratio,
        true_ratio: truth(true).filter(|_| saving_ratio.is_some()).map(|(ratio, _)| ratio),
        true_run_ratio,
        true_throughput_ratio,
        reported_throughput_ratio: report.throughput_kept_ratio,
        changed: report.changes > 0,
    }
}

impl CalibrationReport {
    fn of(runs: Vec<CalibrationRun>, days: f64, seeds: u64) -> Self {
        let mut rows = vec![CalibrationRow::of(None, None, &runs)];
        let mut seen: Vec<(&str, ControllerName)> = Vec::new();
        for run in &runs {
            if !seen.contains(&(&run.scenario, run.controller)) {
                seen.push((&run.scenario, run.controller));
            }
        }
        seen.sort_by_key(|(scenario, _)| runs.iter().position(|run| run.scenario == *scenario));
        rows.extend(seen.iter().map(|(scenario, controller)| CalibrationRow::of(Some(scenario), Some(*controller), &runs)));
        let (pairs, ranking_ratio) = ranking(&runs, |run| run.true_ratio);
        let (pairs_of_run, ranking_of_run_ratio) = ranking(&runs, |run| run.true_run_ratio);
        let all = &rows[0];
        let at_least = |what, reached: Option<f64>, limit: f64| {
            let met = reached.is_some_and(|reached| reached >= limit);
            CalibrationTarget { what, reached, limit, is_met: met }
        };
        let at_most = |what, reached: Option<f64>, limit: f64| {
            let met = reached.is_some_and(|reached| reached.abs() <= limit);
            CalibrationTarget { what, reached, limit, is_met: met }
        };
        let targets = vec![
            at_least("part of the 90 % intervals that hold the truth, at least", all.coverage_ratio, 0.85),
            at_most("half width of the intervals, median, at most", all.half_width_median, 0.04),
            at_most("mean bias, at most", all.bias_mean, 0.01),
            at_least("pairs of controllers ranked as in truth, at least", ranking_ratio, 0.95),
        ];
        Self { origin: "simulated", days, seeds, targets, pairs, ranking_ratio, pairs_of_run, ranking_of_run_ratio, rows, runs }
    }
}

impl CalibrationRow {
    fn of(scenario: Option<&str>, controller: Option<ControllerName>, runs: &[CalibrationRun]) -> Self {
        let of_row = |run: &&CalibrationRun| {
            run.changed
                && scenario.is_none_or(|scenario| run.scenario == scenario)
                && controller.is_none_or(|controller| run.controller == controller)
        };
        let runs: Vec<&CalibrationRun> = runs.iter().filter(of_row).collect();
        let mean = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        let of =
            |figure: &dyn Fn(&CalibrationRun) -> Option<f64>| runs.iter().filter_map(|run| figure(run)).collect::<Vec<f64>>();
        let holds = |run: &CalibrationRun, truth: Option<f64>| {
            let (low, high) = run.reported_ratio_low.zip(run.reported_ratio_high)?;
            Some(f64::from(u8::from((low..=high).contains(&truth?))))
        };
        let mut widths = of(&|run| Some(0.5 * (run.reported_ratio_high? - run.reported_ratio_low?)));
        widths.sort_by(f64::total_cmp);
        let apart = |run: &CalibrationRun, truth: Option<f64>| Some(run.reported_ratio? - truth?);
        Self {
            scenario: scenario.map(str::to_owned),
            controller,
            runs: runs.len(),
            reported: runs.iter().filter(|run| run.reported_ratio.is_some()).count(),
            coverage_ratio: mean(of(&|run| holds(run, run.true_ratio))),
            coverage_of_run_ratio: mean(of(&|run| holds(run, run.true_run_ratio))),
            half_width_median: widths.get(widths.len() / 2).copied(),
            bias_mean: mean(of(&|run| apart(run, run.true_ratio))),
            bias_of_run_mean: mean(of(&|run| apart(run, run.true_run_ratio))),
            compared_energy_ratio_mean: mean(of(&|run| run.compared_energy_ratio)),
            true_ratio_mean: mean(of(&|run| run.true_run_ratio)),
        }
    }
}

/// Pairs of controllers whose truths differ, and the part of them that the reports rank alike.
fn ranking(runs: &[CalibrationRun], truth: fn(&CalibrationRun) -> Option<f64>) -> (usize, Option<f64>) {
    let (mut pairs, mut alike) = (0_usize, 0_usize);
    for (index, one) in runs.iter().enumerate() {
        let others = runs[index + 1..]
            .iter()
            .filter(|other| (&other.scenario, &other.workload, other.seed) == (&one.scenario, &one.workload, one.seed));
        for other in others {
            let (Some(a), Some(b)) = (one.reported_ratio, other.reported_ratio) else { continue };
            let (Some(true_a), Some(true_b)) = (truth(one), truth(other)) else { continue };
            if (true_a - true_b).abs() >= APART {
                pairs += 1;
                alike += usize::from((a > b) == (true_a > true_b));
            }
        }
    }
    (pairs, (pairs > 0).then(|| alike as f64 / pairs as f64))
}

macro_rules! put {
    ($out:expr, $($argument:tt)*) => { $out.push_str(&format!($($argument)*)) };
}

fn percent(ratio: Option<f64>, digits: usize) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format_percent(ratio, digits))
}

fn points(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format_signed(100.0 * ratio, 2))
}

const HEAD: [&str; 10] = [
    "scenario",
    "controller",
    "runs",
    "reported",
    "true saving",
    "compared",
    "interval holds truth",
    "half width, points",
    "bias, points",
    "bias of whole run",
];

fn cells(row: &CalibrationRow) -> [String; 10] {
    [
        row.scenario.clone().unwrap_or_else(|| "all".to_owned()),
        row.controller.map_or_else(|| "all".to_owned(), |controller| controller.as_str().to_owned()),
        row.runs.to_string(),
        row.reported.to_string(),
        percent(row.true_ratio_mean, 1),
        percent(row.compared_energy_ratio_mean, 0),
        percent(row.coverage_ratio, 0),
        row.half_width_median.map_or_else(|| "-".to_owned(), |half| format!("{:.2}", 100.0 * half)),
        points(row.bias_mean),
        points(row.bias_of_run_mean),
    ]
}

fn asked_line(target: &CalibrationTarget) -> String {
    let reached = target.reached.map_or_else(|| "-".to_owned(), |reached| format!("{:.2} %", 100.0 * reached));
    let verdict = match (target.reached, target.is_met) {
        (None, _) => "not known",
        (Some(_), true) => "kept",
        (Some(_), false) => "missed",
    };
    format!("{} {:.0} %: {reached} ({verdict})", target.what, 100.0 * target.limit)
}

/// Returns the tables as Markdown, which a terminal shows as well.
pub fn render_calibration_report(report: &CalibrationReport) -> String {
    let mut out = format!(
        "simulated: {}, {}; reported saving against the untouched run of the same seed\n\n",
        counted(report.days, "day"),
        counted(report.seeds, "seed")
    );
    for target in &report.targets {
        put!(out, "- {}\n", asked_line(target));
    }
    put!(
        out,
        "- against the truth of the whole run, windows included that the report does not compare: {} of the intervals hold it, {} of {} \
         pairs are ranked alike\n\n",
        percent(report.rows.first().and_then(|all| all.coverage_of_run_ratio), 0),
        percent(report.ranking_of_run_ratio, 0),
        report.pairs_of_run
    );
    put!(out, "| {} |\n|---|---|{}\n", HEAD.join(" | "), "---:|".repeat(HEAD.len() - 2));
    for row in &report.rows {
        put!(out, "| {} |\n", cells(row).join(" | "));
    }
    out
}

const COLOURS: [&str; 6] = ["#2da44e", "#0969da", "#cf222e", "#8250df", "#bf8700", "#57606a"];

/// Returns one HTML file without anything from outside: each report beside its truth, and the tables.
pub fn calibration_html(report: &CalibrationReport) -> String {
    let title = "Calibration of savings (simulated)";
    let mut out = eadt_html::begin(title, "Reported against true savings (simulated)", "");
    let met = report.targets.iter().filter(|target| target.is_met).count();
    let length = format!("{}, {}", counted(report.days, "day"), counted(report.seeds, "seed"));
    put!(out, "<p class=\"verdict\">simulated: {met} of {} kept; {length}</p>\n<ul>", counted(report.targets.len(), "target"));
    for target in &report.targets {
        put!(out, "<li>{}</li>", asked_line(target));
    }
    out.push_str("</ul>\n");
    plot(&mut out, report);
    out.push_str(&eadt_html::table("Runs by controller and scenario", &HEAD, 2, report.rows.iter().map(cells)));
    out.push_str(END);
    out
}

/// Draws a dot for each run with its interval, true across and reported upwards; on the line both are the same.
fn plot(out: &mut String, report: &CalibrationReport) {
    const SIZE: f64 = 560.0;
    const LEFT: f64 = 60.0;
    let known = || report.runs.iter().filter_map(|run| Some((run, run.true_ratio?, run.reported_ratio?)));
    let values = || known().flat_map(|(_, truth, reported)| [truth, reported]);
    let low = values().fold(-0.02, f64::min) - 0.02;
    let high = values().fold(0.02, f64::max) + 0.02;
    let along = |value: f64| SIZE * (value - low) / (high - low);
    let (x, y) = (|value: f64| LEFT + along(value), |value: f64| SIZE - along(value));
    put!(
        out,
        "<svg viewBox=\"0 0 800 600\" role=\"img\" aria-label=\"reported against true saving\">\
         <line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"axis\"/>\n",
        x(low),
        y(low),
        x(high),
        y(high)
    );
    let mut controllers: Vec<ControllerName> = Vec::new();
    for (run, truth, reported) in known() {
        if !controllers.contains(&run.controller) {
            controllers.push(run.controller);
        }
        let place = controllers.iter().position(|known| *known == run.controller).unwrap_or(0);
        let colour = COLOURS[place % COLOURS.len()];
        let (from, to) = (run.reported_ratio_low.unwrap_or(reported), run.reported_ratio_high.unwrap_or(reported));
        put!(
            out,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" stroke=\"{colour}\" stroke-opacity=\".3\"/>\
             <circle cx=\"{0:.1}\" cy=\"{3:.1}\" r=\"2.2\" fill=\"{colour}\"/>\n",
            x(truth),
            y(from.clamp(low, high)),
            y(to.clamp(low, high)),
            y(reported)
        );
    }
    for (place, controller) in controllers.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let at = 30.0 + 20.0 * place as f64;
        put!(
            out,
            "<circle cx=\"650\" cy=\"{at}\" r=\"5\" fill=\"{colour}\"/><text x=\"662\" y=\"{}\">{controller}</text>",
            at + 4.0
        );
    }
    for (value, label) in eadt_html::percent_ticks(low, high, 6) {
        put!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text><text x=\"50\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            x(value),
            SIZE + 16.0,
            y(value) + 4.0
        );
    }
    put!(
        out,
        "<text x=\"{}\" y=\"592\" text-anchor=\"middle\">true saving across, reported upwards, simulated</text></svg>\n",
        LEFT + SIZE / 2.0
    );
}
