//! Power now on the page, in terminals and in metrics, of jobs that end without a report of it.

use eadt_core::{FoldOutput, FoldSettings, InputEvent, InputRecord, PartitionFold};
use eadt_dashboard::{DashboardModel, FleetQuery, RetentionLimits, SourceFacts, SourceKind};
use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};
use eadt_schemas::{EventTime, Topic};
use eadt_service::MetricsRegistry;

use super::exporter::Exporter;
use super::frame::rows;
use super::tally::LiveTally;
use crate::settings::MetricsSettings;

/// Power of the only GPU in watts.
const WATTS: f64 = 300.0;

fn at(second: i64) -> EventTime {
    EventTime::from_micros((1_700_000_040 + second) * 1_000_000)
}

/// A processor's fold, and all that show its windows.
struct Views {
    fold: PartitionFold,
    page: DashboardModel,
    tally: LiveTally,
    metrics: MetricsRegistry,
    exporter: Exporter,
}

impl Views {
    fn new() -> Self {
        let source = SourceFacts {
            kind: SourceKind::Live,
            place: "a test".to_owned(),
            window_seconds: Some(60.0),
            version: "0".to_owned(),
        };
        let metrics = MetricsRegistry::default();
        let exporter = Exporter::new(&metrics, MetricsSettings::default());
        Self {
            fold: PartitionFold::new(FoldSettings::default()),
            page: DashboardModel::new(source, RetentionLimits::default()),
            tally: LiveTally::default(),
            metrics,
            exporter,
        }
    }

    fn fold(&mut self, topic: Topic, time: EventTime, event: InputEvent<'_>) {
        let mut out = Vec::new();
        self.fold.fold(&InputRecord { topic, stamp: time, key: None, is_sent_again: false, event }, &mut out);
        for output in out {
            let FoldOutput::Window(window) = output else { continue };
            self.page.window(&window);
            self.tally.window(&window);
            self.exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&*window).unwrap());
        }
    }

    fn sample(&mut self, second: i64, workload: &str, last: bool) {
        let sample = GpuTelemetry {
            time: at(second),
            workload: Some(workload.to_owned()),
            device: "GPU-A".into(),
            collector: "nvml/n".into(),
            power_watts: Some(WATTS),
            energy_joules_total: Some(WATTS * second as f64),
            last,
            ..GpuTelemetry::default()
        };
        self.page.telemetry(&sample);
        self.exporter.take(Topic::GpuTelemetry, &serde_json::to_vec(&sample).unwrap());
        self.fold(Topic::GpuTelemetry, sample.time, InputEvent::Telemetry(&sample));
    }

    fn progress(&mut self, second: i64, workload: &str, samples: f64) {
        let progress = TrainingProgress {
            time: at(second),
            workload: workload.to_owned(),
            collector: "http/n".into(),
            samples_total: Some(samples),
            ..TrainingProgress::default()
        };
        self.fold(Topic::TrainingProgress, progress.time, InputEvent::Progress(&progress));
    }

    /// Returns the power now of all workloads in terminals, on the page, and in metrics.
    fn power_watts(&self) -> [f64; 3] {
        let listed: f64 = rows(&self.tally).iter().filter_map(|row| row.power_watts).sum();
        assert_eq!(self.tally.power().unwrap_or(0.0), listed);
        let fleet = self.page.fleet(&FleetQuery::default()).unwrap();
        let shown: f64 = fleet.rows.iter().filter_map(|row| row.power_watts).sum();
        assert_eq!(self.page.overview().power_watts.unwrap_or(0.0), shown);
        let text = self.metrics.text();
        let series = text.lines().filter(|line| line.starts_with("eadt_workload_power_watts{"));
        let exported = series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        [listed, shown, exported]
    }
}

#[test]
fn pods_one_after_the_other_take_the_power_of_their_gpu() {
    let mut views = Views::new();
    let name = |pod: i64| format!("queue/pod-{pod:03}");
    let mut is_known = [false; 3];
    for second in (0..1800).step_by(10) {
        let pod = second / 130;
        if second % 130 == 0 && pod > 0 {
            views.sample(second, &name(pod - 1), true);
        }
        views.sample(second, &name(pod), false);
        let power = views.power_watts();
        assert!(power.iter().all(|watts| *watts <= WATTS + 1e-6), "{second} s: {power:?}");
        is_known = std::array::from_fn(|view| is_known[view] || power[view] > 0.0);
    }
    assert_eq!(is_known, [true; 3]);
    assert!(views.tally.workloads.len() > 10);
}

#[test]
fn a_job_that_is_killed_leaves_its_power_to_its_successor() {
    let mut views = Views::new();
    for second in (0..1800).step_by(10) {
        let (name, since) = if second < 600 { ("k/a", 0) } else { ("k/b", 600) };
        views.sample(second, name, false);
        views.progress(second + 1, name, 2.0 * (second - since) as f64);
        let power = views.power_watts();
        let [listed, others @ ..] = power;
        assert!(others.iter().all(|watts| *watts <= WATTS + 1e-6), "{second} s: {power:?}");
        // Terminals have no samples of GPUs: the first job's next window is overdue after three minutes.
        assert!(listed <= WATTS + 1e-6 || (600..780).contains(&second), "{second} s: {power:?}");
    }
    assert!(views.power_watts().iter().all(|watts| (watts - WATTS).abs() < 1e-6), "{:?}", views.power_watts());
    assert_eq!(views.page.overview().power_known, 1);
}
