//! One workload: its figures as the report has them, and its windows as a series of bounded length.

use eadt_report::{ReportBreakdown, ReportSettings, SavingSummary, WindowRow, WorkloadReport};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{LayoutBounds, Origin, UpdateMode};
use serde::{Deserialize, Serialize};

use super::DashboardModel;
use super::fleet::FleetRow;
use super::saving_parts::SavingParts;

const DEFAULT_POINTS: usize = 240;
const MOST_POINTS: usize = 2_000;

/// Part of a workload's windows, and the number of points.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SeriesQuery {
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
    pub points: Option<usize>,
}

/// One workload's page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadDetail {
    pub row: FleetRow,
    /// The report's figures; without a saving, cost and CO₂ if its record is too long for its windows to be kept here.
    pub report: Option<WorkloadReport>,
    /// The reason why no energy of its run is known, with the setting or option that changes that, as in the report; absent if
    /// some is known.
    pub why_no_energy: Option<String>,
    /// Saving by cause; absent if no saving is known.
    pub saving_parts: Option<SavingParts>,
    pub declaration: Option<DeclarationFacts>,
    pub max_temperature_celsius: Option<f64>,
    pub coverage_ratio: Option<f64>,
}

/// The settings in its object or policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeclarationFacts {
    pub kind: String,
    pub mode: UpdateMode,
    pub paused: bool,
    /// The user who set the mode, and the one who paused or resumed it, if known.
    pub mode_set_by: Option<String>,
    pub pause_set_by: Option<String>,
    pub controller: Option<String>,
    pub bounds: LayoutBounds,
    pub generation: u64,
    pub gpus: Option<u32>,
    pub gpu_model: Option<String>,
    pub gpu_power_limit_watts: Option<f64>,
    pub global_batch_size: Option<u32>,
    pub price_per_kwh: Option<f64>,
    pub carbon_grams_per_kwh: Option<f64>,
}

/// Windows as columns, several in one point if there are more than were asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WindowSeries {
    /// Middle of each point.
    pub time_ms: Vec<i64>,
    pub power_watts: Vec<Option<f64>>,
    pub power_watts_min: Vec<Option<f64>>,
    pub power_watts_max: Vec<Option<f64>>,
    pub joules_per_sample: Vec<Option<f64>>,
    pub joules_per_sample_min: Vec<Option<f64>>,
    pub joules_per_sample_max: Vec<Option<f64>>,
    /// Joules per sample that the starting layout would have taken.
    pub baseline_joules_per_sample: Vec<Option<f64>>,
    pub samples_per_second: Vec<Option<f64>>,
    pub phase: Vec<Option<u64>>,
    pub restarted: Vec<bool>,
    /// Windows in one point.
    pub windows_per_point: usize,
    /// The whole record, for the scrubber.
    pub first_ms: Option<i64>,
    pub last_ms: Option<i64>,
    /// Made of intervals of the trace, because the record is too long for its windows to be kept.
    pub coarse: bool,
    pub origin: Option<Origin>,
}

impl DashboardModel {
    /// Returns one workload's figures; `None` if it is not known.
    pub fn workload_detail(&self, name: &str) -> Option<WorkloadDetail> {
        let (key, state) = self.workloads.get_key_value(name)?;
        let declaration = state.declaration.as_deref().map(|declared| DeclarationFacts {
            kind: declared.kind.clone(),
            mode: declared.mode,
            paused: declared.paused,
            mode_set_by: declared.mode_set_by.clone(),
            pause_set_by: declared.pause_set_by.clone(),
            controller: declared.controller.clone(),
            bounds: declared.bounds.clone(),
            generation: declared.generation,
            gpus: declared.gpus,
            gpu_model: declared.gpu_model.clone(),
            gpu_power_limit_watts: declared.gpu_power_limit_watts,
            global_batch_size: declared.global_batch_size,
            price_per_kwh: declared.price_per_kwh,
            carbon_grams_per_kwh: declared.carbon_grams_per_kwh,
        });
        // The report must be of this moment, so that the figures at the top are of the same windows as the chart.
        let mut report = self.reporter.workload_report(name, &by_window()).map(|report| state.counted(report));
        let windows = report.as_mut().and_then(|report| report.by_window.take()).unwrap_or_default();
        let mut row = self.row(key, state);
        if let Some(report) = &report {
            (row.saving_joules, row.saving_ratio, row.energy_joules) =
                (report.saving_joules, report.saving_ratio, report.energy_joules);
            (row.saving_ratio_low, row.saving_ratio_high) = (report.saving_ratio_low, report.saving_ratio_high);
            row.compared_energy_ratio = report.compared_energy_ratio;
            let summary = SavingSummary::of([report]);
            (row.saving_verdict, row.saving_is_whole) = (summary.verdict(), summary.is_whole());
            row.throughput_kept_ratio = report.throughput_kept_ratio;
            row.run_joules_per_sample = report.joules_per_sample;
        }
        let report = report.filter(|report| report.windows > 0);
        let why_no_energy = report.as_ref().and_then(|report| report.why_no_energy.clone());
        let saving_parts =
            report.as_ref().filter(|_| state.is_exact()).and_then(|report| SavingParts::of(report, &windows, state));
        Some(WorkloadDetail {
            row,
            report,
            why_no_energy,
            saving_parts,
            declaration,
            max_temperature_celsius: state.latest.as_ref().and_then(|latest| latest.temperature_celsius),
            coverage_ratio: state.latest.as_ref().map(|latest| latest.coverage_ratio),
        })
    }

    /// Returns the windows of a workload; `None` if it is not known.
    pub fn series(&self, name: &str, query: &SeriesQuery) -> Option<WindowSeries> {
        let state = self.workloads.get(name)?;
        let rows = if state.is_exact() {
            self.reporter.workload_report(name, &by_window()).and_then(|report| report.by_window)
        } else {
            None
        };
        let coarse = rows.is_none();
        let rows = rows.unwrap_or_else(|| trace_rows(state));
        let (first, last) = (rows.first().map(|row| row.window_start), rows.iter().map(|row| row.window_end).max());
        let from = query.from_ms.map_or(EventTime::MIN, EventTime::from_millis);
        let to = query.to_ms.map_or(EventTime::MAX, EventTime::from_millis);
        let shown: Vec<&WindowRow> = rows.iter().filter(|row| row.window_end > from && row.window_start < to).collect();
        let points = query.points.unwrap_or(DEFAULT_POINTS).clamp(1, MOST_POINTS);
        let windows_per_point = shown.len().div_ceil(points).max(1);
        let mut series = WindowSeries {
            windows_per_point,
            first_ms: first.map(EventTime::millis),
            last_ms: last.map(EventTime::millis),
            coarse,
            origin: state.origin(),
            ..WindowSeries::default()
        };
        series.push_parts(&shown, points / 4);
        Some(series)
    }
}

/// Asks for a report with its windows.
fn by_window() -> ReportSettings {
    ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() }
}

impl WindowSeries {
    /// Adds windows, several in one point. A point holds no windows of both sides of a silence, and one without figures lies
    /// between: no line is drawn over it. Only the longest silences are shown if there are more than `most_silences`.
    fn push_parts(&mut self, windows: &[&WindowRow], most_silences: usize) {
        let (shortest, size) = (shortest_silence(windows, most_silences), self.windows_per_point.max(1));
        let mut before: Option<(EventTime, f64)> = None;
        for part in windows.chunk_by(|row, next| next.window_start.seconds_since(row.window_end) < shortest) {
            if let (Some(before), Some(next)) = (before, part.chunks(size).next()) {
                self.push_silence(before, next);
            }
            for point in part.chunks(size) {
                self.push(point);
                before = point_end(point);
            }
        }
    }

    /// Adds points without figures after a point that ends at `before.0` and lasts `before.1` seconds, up to the windows of the
    /// next one: as far from these points as each is long, so that neither seems to last longer.
    fn push_silence(&mut self, before: (EventTime, f64), next: &[&WindowRow]) {
        let Some((start, length)) = next.first().zip(point_end(next)).map(|(row, (_, length))| (row.window_start, length)) else {
            return;
        };
        let (first, last) = (before.0.plus_seconds(before.1 / 2.0), start.plus_seconds(-length / 2.0));
        let middle = before.0.plus_seconds(start.seconds_since(before.0) / 2.0);
        let times = [first, last].into_iter().filter(|_| first < last).chain((first >= last).then_some(middle));
        times.for_each(|time| self.push_unknown(time));
    }

    fn push_unknown(&mut self, time: EventTime) {
        self.time_ms.push(time.millis());
        let figures = [
            &mut self.power_watts,
            &mut self.power_watts_min,
            &mut self.power_watts_max,
            &mut self.joules_per_sample,
            &mut self.joules_per_sample_min,
            &mut self.joules_per_sample_max,
            &mut self.baseline_joules_per_sample,
            &mut self.samples_per_second,
        ];
        for figures in figures {
            figures.push(None);
        }
        self.phase.push(None);
        self.restarted.push(false);
    }

    fn push(&mut self, windows: &[&WindowRow]) {
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return };
        let middle = first.window_start.millis() + (last.window_end.millis() - first.window_start.millis()) / 2;
        self.time_ms.push(middle);
        let covered = |row: &WindowRow| row.duration_seconds * row.coverage_ratio;
        let (power, [least, most]) = weighted_mean(windows, |row| row.mean_power_watts, covered);
        self.power_watts.push(power);
        self.power_watts_min.push(least);
        self.power_watts_max.push(most);
        let (energy, [least, most]) = weighted_mean(windows, |row| row.joules_per_sample, |row| row.samples.unwrap_or(1.0));
        self.joules_per_sample.push(energy);
        self.joules_per_sample_min.push(least);
        self.joules_per_sample_max.push(most);
        let samples = |row: &WindowRow| row.baseline_samples.unwrap_or_default();
        let baseline = |row: &WindowRow| {
            let samples = row.baseline_samples.filter(|samples| *samples > 0.0)?;
            Some(row.baseline_energy_joules? / samples)
        };
        self.baseline_joules_per_sample.push(weighted_mean(windows, baseline, samples).0);
        let speed = |row: &WindowRow| row.samples.map(|samples| samples / row.duration_seconds).filter(|speed| speed.is_finite());
        self.samples_per_second.push(weighted_mean(windows, speed, |row| row.duration_seconds).0);
        self.phase.push(last.phase.or(first.phase));
        self.restarted.push(windows.iter().any(|row| row.restarted));
    }
}

/// Returns the end of a point's windows and the seconds from the start of the first; `None` if there are none.
fn point_end(windows: &[&WindowRow]) -> Option<(EventTime, f64)> {
    let (first, last) = windows.first().zip(windows.last())?;
    Some((last.window_end, last.window_end.seconds_since(first.window_start)))
}

/// Returns the least length in seconds of a silence that is shown: any, if there are at most `most` between these windows.
fn shortest_silence(windows: &[&WindowRow], most: usize) -> f64 {
    const ROUNDING_SECONDS: f64 = 1e-3;
    let silences = windows.windows(2).filter_map(|pair| match pair {
        [row, next] => Some(next.window_start.seconds_since(row.window_end)),
        _ => None,
    });
    let mut silences: Vec<f64> = silences.filter(|seconds| *seconds > ROUNDING_SECONDS).collect();
    silences.sort_by(|a, b| b.total_cmp(a));
    // Those of the first length that is too many are left out, all of them.
    silences.get(most).map_or(ROUNDING_SECONDS, |longest| longest + ROUNDING_SECONDS)
}

/// Returns the weighted mean of the known values, with the least and the greatest.
fn weighted_mean(
    windows: &[&WindowRow],
    figure: impl Fn(&WindowRow) -> Option<f64>,
    weight: impl Fn(&WindowRow) -> f64,
) -> (Option<f64>, [Option<f64>; 2]) {
    let known = || windows.iter().filter_map(|row| Some((figure(row)?, weight(row))));
    let (sum, weights) = known().fold((0.0, 0.0), |(sum, weights), (value, weight)| (sum + value * weight, weights + weight));
    let least = known().map(|(value, _)| value).reduce(f64::min);
    let most = known().map(|(value, _)| value).reduce(f64::max);
    // One window is itself, whatever it weighs.
    let mean = if windows.len() == 1 { least } else { (weights > 0.0).then(|| sum / weights) };
    (mean, [least, most])
}

/// Returns the points of the trace in the form of windows.
fn trace_rows(state: &super::WorkloadState) -> Vec<WindowRow> {
    let row = |point: super::trace::TracePoint| WindowRow {
        window_start: point.start,
        window_end: point.end,
        duration_seconds: point.end.seconds_since(point.start),
        mean_power_watts: point.power_watts.map(f64::from),
        joules_per_sample: point.joules_per_sample.map(f64::from),
        coverage_ratio: 1.0,
        restarted: point.restarted,
        ..WindowRow::default()
    };
    state.trace.points().map(row).collect()
}
