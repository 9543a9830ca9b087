//! GPUs as a dcgm-exporter shows them.
//!
//! An exporter refreshes less often than it may be asked (every 30 s by default) and gives no times. An answer whose
//! readings, energy counter included, are all those of the last one has not been refreshed: it gives no sample, else
//! old power would be reported at new times.

pub mod reading;

use std::collections::HashMap;

use eadt_recordings::series::{KNOWN_DEVICE_SERIES, list_names};
use eadt_schemas::EventTime;
use eadt_schemas::latest::GpuTelemetry;
use eadt_service::tasks::{self, TaskEntry};
use eadt_service::{ServiceClock, Shutdown};

pub use reading::{AttributionRules, DcgmScrape, DeviceReading, SkipCounts, read};

use crate::assignments::AssignmentTable;
use crate::metrics::CollectorMetrics;
use crate::plausible;
use crate::scrape::{Scraper, ticks};
use crate::settings::DcgmSettings;
use crate::sink::EventSink;
use crate::source::{BoxFuture, CollectorSource, SourceError};
use crate::tenancy::DeviceTenancy;

pub(crate) const KIND: &str = "dcgm";

/// Answers without a change for so long, or for longer if the exporter refreshes that seldom, are no longer those of an exporter
/// that refreshes: a warning is logged.
const UNCHANGED_SECONDS: f64 = 120.0;
/// The same, in refreshes of the exporter, as far as it has shown how seldom these are.
const UNCHANGED_REFRESHES: f64 = 3.0;
/// A longer time between two refreshes is taken as one in which the exporter had stopped.
const LONGEST_REFRESH_SECONDS: f64 = 600.0;

/// An exporter speaks for the GPUs of one node, a Prometheus server for those of a cluster.
const MAX_DEVICES: usize = 10_000;

#[derive(Debug, Default)]
struct DcgmDevice {
    tenancy: DeviceTenancy,
    last: Option<GpuTelemetry>,
    /// Time of the first answer without a change; `None` if the last answer had one.
    unchanged_since: Option<EventTime>,
    /// The longest time in which answers had no change and after which they had one, at most [`LONGEST_REFRESH_SECONDS`].
    longest_refresh_seconds: f64,
    /// That it does not change was logged.
    is_stuck: bool,
}

impl DcgmDevice {
    /// Notes an answer without a change. If a warning is due, returns for how many seconds there has been none.
    fn note_unchanged(&mut self, now: EventTime) -> Option<f64> {
        let since = *self.unchanged_since.get_or_insert(now);
        let seconds = now.seconds_since(since);
        let limit = UNCHANGED_SECONDS.max(UNCHANGED_REFRESHES * self.longest_refresh_seconds);
        let is_due = !self.is_stuck && seconds >= limit;
        self.is_stuck |= is_due;
        is_due.then_some(seconds)
    }

    /// Notes an answer with a change. Returns true if a warning was logged before it.
    fn note_changed(&mut self, now: EventTime) -> bool {
        if let Some(since) = self.unchanged_since.take() {
            let seconds = now.seconds_since(since).min(LONGEST_REFRESH_SECONDS);
            self.longest_refresh_seconds = self.longest_refresh_seconds.max(seconds);
        }
        std::mem::take(&mut self.is_stuck)
    }
}

/// The source.
#[derive(Debug)]
pub(crate) struct DcgmSource {
    scraper: Scraper,
    rules: AttributionRules,
    devices: DcgmDevices,
    clock: ServiceClock,
}

/// Known GPUs of the exporter, and the sink of their samples.
#[derive(Debug)]
struct DcgmDevices {
    known: HashMap<String, DcgmDevice>,
    sink: EventSink,
    metrics: CollectorMetrics,
    assignments: AssignmentTable,
    collector: String,
    target: String,
    complained: bool,
    /// The log has a workload's name that could not be used.
    unnamed: bool,
    /// The last answer had no reading of power or energy.
    useless: bool,
}

impl DcgmSource {
    pub fn new(
        settings: DcgmSettings,
        sink: EventSink,
        metrics: CollectorMetrics,
        assignments: AssignmentTable,
        clock: ServiceClock,
        collector: String,
    ) -> Result<Self, SourceError> {
        let scraper = Scraper::new(settings.target, metrics.clone())
            .map_err(|error| SourceError::new(KIND, format!("cannot make an HTTP client: {error}")))?;
        let target = scraper.shown().to_owned();
        let known = HashMap::new();
        let (complained, unnamed, useless) = (false, false, false);
        let devices = DcgmDevices { known, sink, metrics, assignments, collector, target, complained, unnamed, useless };
        Ok(Self { scraper, rules: settings.rules, devices, clock })
    }
}

impl DcgmDevices {
    /// Takes an answer that was complete at `now`.
    fn take(&mut self, text: &str, rules: &AttributionRules, now: EventTime) {
        let scraped = reading::read(text, rules);
        for (kind, count) in scraped.skipped.by_kind() {
            self.metrics.skip(&self.target, kind, count);
        }
        if let Some(complaint) = scraped.complaint.as_ref().filter(|_| !self.complained) {
            self.complained = true;
            tracing::warn!(
                target_url = self.target,
                complaint,
                "a line of the exporter was skipped; further ones are only counted"
            );
        }
        if let Some(why) = scraped.unnamed.as_ref().filter(|_| !self.unnamed) {
            self.unnamed = true;
            tracing::warn!(target_url = self.target, why, "a label names no workload: its GPUs are reported without one");
        }
        self.note_usefulness(&scraped);
        for DeviceReading { mut event, tenants } in scraped.devices {
            if !self.known.contains_key(&event.device) && self.known.len() >= MAX_DEVICES {
                self.metrics.skip(&self.target, "device_limit", 1);
                continue;
            }
            let device = self.known.entry(event.device.clone()).or_default();
            if event.time == EventTime::default() {
                event.time = now;
            }
            event.collector.clone_from(&self.collector);
            if !plausible::has_reading(&event) {
                continue;
            }
            if device.last.as_ref().is_some_and(|last| {
                event.energy_joules_total.is_some() && GpuTelemetry { time: event.time, ..last.clone() } == event
            }) {
                self.metrics.skip(&self.target, "unchanged", 1);
                if let Some(unchanged_seconds) = device.note_unchanged(now) {
                    warn_unchanged(&self.target, &event, unchanged_seconds);
                }
                continue;
            }
            if device.note_changed(now) {
                tracing::info!(target_url = self.target, device = event.device, "the readings of a GPU change again");
            }
            if !device.tenancy.accepts(event.time) {
                self.metrics.skip(&self.target, "out_of_order", 1);
                continue;
            }
            let assigned = self.assignments.of(&event.device, event.gpu_index);
            let events = device.tenancy.observe(&event, assigned.as_deref().unwrap_or(&tenants));
            device.last = Some(event);
            publish(&self.sink, &events);
        }
    }

    /// Counts an answer without any power or energy, and logs it once until one has some again.
    fn note_usefulness(&mut self, scraped: &DcgmScrape) {
        let has_energy = |device: &DeviceReading| {
            let event = &device.event;
            event.power_watts.or(event.power_average_watts).or(event.energy_joules_total).is_some()
        };
        let useless = !scraped.devices.iter().any(has_energy);
        if useless {
            self.metrics.skip(&self.target, "no_usable_series", 1);
        }
        match (self.useless, useless) {
            (false, true) => tracing::warn!(
                target_url = self.target,
                found = list_names(&scraped.names),
                known = KNOWN_DEVICE_SERIES,
                "the answer has no power or energy of a GPU; check the URL and the exporter's list of metrics"
            ),
            (true, false) => tracing::info!(target_url = self.target, "the answer has power or energy of a GPU now"),
            _ => {}
        }
        self.useless = useless;
    }

    fn end(&mut self) {
        for device in self.known.values_mut() {
            publish(&self.sink, &device.tenancy.end());
        }
    }
}

fn warn_unchanged(target_url: &str, event: &GpuTelemetry, unchanged_seconds: f64) {
    tracing::warn!(
        target_url,
        device = event.device,
        unchanged_seconds,
        power_watts = event.power_watts,
        energy_joules_total = event.energy_joules_total,
        "the readings of a GPU have not changed for long, its energy counter included: the exporter no longer reads it, or the \
         counter has stopped. Its energy is unknown until one of them changes; if the counter has stopped, remove its metric from \
         the exporter's list, and energy is the integral of power"
    );
}

fn publish(sink: &EventSink, events: &[GpuTelemetry]) {
    for event in events {
        if let Err(refusal) = sink.telemetry(KIND, event) {
            tracing::warn!(device = event.device, %refusal, "a sample was refused");
        }
    }
}

impl CollectorSource for DcgmSource {
    fn task(&self) -> &'static TaskEntry {
        &tasks::DCGM
    }

    fn open(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        // An exporter that is away now may come later: not an error at start.
        Box::pin(async { Ok(()) })
    }

    fn run(self: Box<Self>, shutdown: Shutdown) -> BoxFuture<'static, Result<(), SourceError>> {
        let Self { mut scraper, rules, mut devices, clock } = *self;
        Box::pin(async move {
            let mut ticks = ticks(scraper.interval());
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    _ = ticks.tick() => {}
                }
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    text = scraper.text() => if let Some(text) = text {
                        devices.take(&text, &rules, clock.now());
                    }
                }
            }
            devices.end();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::SkippedLabel;
    use crate::sink::tests::{outlet, telemetry};

    fn text(power: f64, energy: u64, pod: &str) -> String {
        let labels = format!("gpu=\"0\",UUID=\"GPU-a\",modelName=\"Tesla T4\",Hostname=\"n1\",namespace=\"n\",pod=\"{pod}\"");
        format!("DCGM_FI_DEV_POWER_USAGE{{{labels}}} {power}\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\n")
    }

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    fn devices(outlet: EventSink, metrics: &CollectorMetrics) -> DcgmDevices {
        DcgmDevices {
            known: HashMap::new(),
            sink: outlet,
            metrics: metrics.clone(),
            assignments: AssignmentTable::new(&[]),
            collector: "dcgm/h".into(),
            target: "t".into(),
            complained: false,
            unnamed: false,
            useless: false,
        }
    }

    #[test]
    fn an_answer_without_power_or_energy_is_counted_and_logged_once() {
        let (outlet, buffer, metrics) = outlet();
        let mut devices = devices(outlet, &metrics);
        let rules = AttributionRules::default();
        let useful = "dcgm_power_usage{gpu=\"0\",uuid=\"GPU-a\"} 90\n";
        let mut states = Vec::new();
        for (second, text) in
            ["", "up 1\n", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-a\"} 1\n", useful, "<html>\n"].into_iter().enumerate()
        {
            let before = devices.useless;
            devices.take(text, &rules, at(1 + second as i64));
            states.push((before, devices.useless));
        }
        let label = SkippedLabel { target: "t".into(), kind: "no_usable_series" };
        assert_eq!(metrics.scrape_skipped.get_or_create(&label).get(), 4);
        assert_eq!(states, [(false, true), (true, true), (true, true), (true, false), (false, true)]);
        assert_eq!(telemetry(&buffer).len(), 2);
    }

    #[test]
    fn a_federation_names_pods_and_not_exporters() {
        let (outlet, buffer, metrics) = outlet();
        let mut devices = devices(outlet, &metrics);
        let own = "namespace=\"gpu-operator\",pod=\"nvidia-dcgm-exporter-x7k2p\",service=\"nvidia-dcgm-exporter\"";
        let line = |gpu: u32, more: &str, power: u32| {
            format!("DCGM_FI_DEV_POWER_USAGE{{gpu=\"{gpu}\",UUID=\"GPU-fed{gpu}\",{more}{own}}} {power} 1700000000000\n")
        };
        let text = line(0, "exported_namespace=\"lab\",exported_pod=\"llama-0\",", 500) + &line(1, "", 70);
        devices.take(&text, &AttributionRules::default(), at(1));
        let seen: Vec<_> = telemetry(&buffer).into_iter().map(|e| (e.device, e.workload, e.share)).collect();
        assert_eq!(seen, [("GPU-fed0".into(), Some("lab/llama".into()), None), ("GPU-fed1".into(), None, None)]);
    }

    #[test]
    fn one_exporter_speaks_for_so_many_gpus_and_no_more() {
        let (outlet, buffer, metrics) = outlet();
        let mut devices = devices(outlet, &metrics);
        let answer = |numbers: std::ops::Range<usize>, power: usize| -> String {
            numbers
                .map(|gpu| format!("DCGM_FI_DEV_POWER_USAGE{{gpu=\"0\",UUID=\"GPU-{gpu:06}\"}} {power}\n"))
                .collect::<Vec<_>>()
                .concat()
        };
        let skipped = || {
            let label = SkippedLabel { target: "t".into(), kind: "device_limit" };
            metrics.scrape_skipped.get_or_create(&label).get()
        };
        let rules = AttributionRules::default();
        devices.take(&answer(0..MAX_DEVICES + 3, 70), &rules, at(1));
        assert_eq!((telemetry(&buffer).len(), devices.known.len(), skipped()), (MAX_DEVICES, MAX_DEVICES, 3));
        // Invented GPUs displace no known one.
        devices.take(&answer(MAX_DEVICES + 3..2 * MAX_DEVICES, 70), &rules, at(2));
        assert_eq!((telemetry(&buffer).len(), devices.known.len()), (0, MAX_DEVICES));
        devices.take(&answer(0..MAX_DEVICES, 80), &rules, at(3));
        assert_eq!((telemetry(&buffer).len(), devices.known.len()), (MAX_DEVICES, MAX_DEVICES));
        assert_eq!(skipped(), MAX_DEVICES as u64);
    }

    #[test]
    fn a_gpu_whose_readings_stopped_is_reported_once_until_they_change() {
        let (outlet, buffer, metrics) = outlet();
        let mut devices = devices(outlet, &metrics);
        let rules = AttributionRules::default();
        let mut stuck = Vec::new();
        for second in 0..=130 {
            devices.take(&text(300.0, 1000, "a-0"), &rules, at(second));
            stuck.push(devices.known["GPU-a"].is_stuck);
        }
        assert_eq!((telemetry(&buffer).len(), stuck.iter().position(|stuck| *stuck)), (1, Some(121)));
        let device = devices.known.get_mut("GPU-a").unwrap();
        assert_eq!(device.note_unchanged(at(500)), None, "it was logged");
        devices.take(&text(300.0, 2000, "a-0"), &rules, at(501));
        let device = devices.known.get_mut("GPU-a").unwrap();
        assert_eq!((device.is_stuck, device.unchanged_since), (false, None));
        // It was away for 500 s: that may be how seldom the exporter refreshes.
        let again: Vec<i64> = (502..3_000).filter(|second| device.note_unchanged(at(*second)).is_some()).collect();
        assert_eq!(again, [502 + 1_500], "it stopped again");
    }

    #[test]
    fn an_exporter_that_refreshes_seldom_is_warned_of_once_at_most() {
        let (outlet, buffer, metrics) = outlet();
        // Every five minutes, asked every 15 s.
        let mut devices = devices(outlet, &metrics);
        let mut stuck = Vec::new();
        for second in (0..3_000).step_by(15) {
            let refreshes = second / 300;
            devices.take(&text(300.0, 1000 * (refreshes + 1), "a-0"), &AttributionRules::default(), at(second as i64));
            stuck.push(devices.known["GPU-a"].is_stuck);
        }
        let warnings = stuck.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        assert_eq!((telemetry(&buffer).len(), warnings), (10, 1), "before it has shown how seldom it refreshes");
    }

    #[test]
    fn a_warning_waits_no_longer_than_three_of_the_longest_refreshes() {
        // Seconds of a first silence that ended, and after how many of a second one a warning is due.
        for (before, due) in [(0, 120), (30, 120), (50, 150), (290, 870), (600, 1_800), (40_000, 1_800)] {
            let mut device = DcgmDevice::default();
            device.note_unchanged(at(0));
            device.note_changed(at(before));
            let warned = (before..before + 3_000).find(|second| device.note_unchanged(at(*second)).is_some());
            assert_eq!(warned, Some(before + due), "after a silence of {before} s");
        }
    }

    #[test]
    fn an_answer_that_was_not_refreshed_gives_no_sample() {
        let (outlet, buffer, metrics) = outlet();
        let mut devices = devices(outlet, &metrics);
        let rules = AttributionRules::default();
        devices.take(&text(70.0, 1000, "a-0"), &rules, at(1));
        devices.take(&text(70.0, 1000, "a-0"), &rules, at(2));
        devices.take(&text(70.0, 2000, "a-0"), &rules, at(3));
        devices.take(&text(70.0, 3000, "b-0"), &rules, at(4));
        devices.take(&text(70.0, 4000, "b-0"), &rules, at(4));
        devices.end();
        let seen: Vec<_> = telemetry(&buffer)
            .into_iter()
            .map(|e| (e.time.micros() / 1_000_000, e.workload.unwrap(), e.last, e.energy_joules_total.unwrap()))
            .collect();
        let (a, b) = ("n/a".to_owned(), "n/b".to_owned());
        assert_eq!(
            seen,
            [
                (1, a.clone(), false, 1.0),
                (3, a.clone(), false, 2.0),
                // Marks are kept apart from samples, but leave in order.
                (4, a, true, 3.0),
                (4, b.clone(), false, 3.0),
                (4, b, true, 3.0)
            ]
        );
        let skipped = |kind| metrics.scrape_skipped.get_or_create(&SkippedLabel { target: "t".into(), kind }).get();
        assert_eq!((skipped("unchanged"), skipped("out_of_order")), (1, 1));
    }
}
