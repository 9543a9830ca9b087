//! GPUs as a dcgm-exporter shows them.
//!
//! An exporter refreshes less often than it may be asked (every 30 s by default) and gives no times. An answer whose
//! readings, energy counter included, are all those of the last one has not been refreshed: it gives no sample, else
//! old power would be reported at new times.

pub mod reading;
pub mod workload;

use std::collections::HashMap;

use eadt_schemas::EventTime;
use eadt_schemas::latest::GpuTelemetry;
use eadt_service::tasks::{self, Task};
use eadt_service::{Clock, Shutdown};

pub use reading::{DeviceReading, Rules, Scraped, Skipped, read};

use crate::assignments::Assignments;
use crate::metrics::CollectorMetrics;
use crate::outlet::Outlet;
use crate::plausible;
use crate::scrape::{Scraper, ticks};
use crate::settings::Dcgm;
use crate::source::{Boxed, Source, SourceError};
use crate::tenancy::Tenancy;

const KIND: &str = "dcgm";

/// An exporter speaks for the GPUs of one node, a Prometheus server for those of a cluster.
const MAX_DEVICES: usize = 10_000;

#[derive(Debug, Default)]
struct Device {
    tenancy: Tenancy,
    last: Option<GpuTelemetry>,
}

/// The source.
#[derive(Debug)]
pub(crate) struct DcgmSource {
    scraper: Scraper,
    rules: Rules,
    devices: Devices,
    clock: Clock,
}

/// What is known of the exporter's GPUs, and where their samples go.
#[derive(Debug)]
struct Devices {
    known: HashMap<String, Device>,
    outlet: Outlet,
    metrics: CollectorMetrics,
    assignments: Assignments,
    collector: String,
    target: String,
    complained: bool,
}

impl DcgmSource {
    pub fn new(
        settings: Dcgm,
        outlet: Outlet,
        metrics: CollectorMetrics,
        assignments: Assignments,
        clock: Clock,
        collector: String,
    ) -> Result<Self, SourceError> {
        let scraper = Scraper::new(settings.target, metrics.clone())
            .map_err(|error| SourceError::new(KIND, format!("cannot make an HTTP client: {error}")))?;
        let target = scraper.shown().to_owned();
        let rules = Rules { workload_label: settings.workload_label, pods: settings.pods };
        let devices = Devices { known: HashMap::new(), outlet, metrics, assignments, collector, target, complained: false };
        Ok(Self { scraper, rules, devices, clock })
    }
}

impl Devices {
    /// Takes an answer that was complete at `now`.
    fn take(&mut self, text: &str, rules: &Rules, now: EventTime) {
        let scraped = reading::read(text, rules);
        for (kind, count) in scraped.skipped.by_kind() {
            self.metrics.skip(&self.target, kind, count);
        }
        if let Some(complaint) = scraped.complaint.filter(|_| !self.complained) {
            self.complained = true;
            tracing::warn!(
                target_url = self.target,
                complaint,
                "a line of the exporter was skipped; further ones are only counted"
            );
        }
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
                continue;
            }
            if !device.tenancy.accepts(event.time) {
                self.metrics.skip(&self.target, "out_of_order", 1);
                continue;
            }
            let assigned = self.assignments.of(&event.device, event.gpu_index);
            let events = device.tenancy.observe(&event, assigned.as_deref().unwrap_or(&tenants));
            device.last = Some(event);
            publish(&self.outlet, &events);
        }
    }

    fn end(&mut self) {
        for device in self.known.values_mut() {
            publish(&self.outlet, &device.tenancy.end());
        }
    }
}

fn publish(outlet: &Outlet, events: &[GpuTelemetry]) {
    for event in events {
        if let Err(refusal) = outlet.telemetry(KIND, event) {
            tracing::warn!(device = event.device, %refusal, "a sample was refused");
        }
    }
}

impl Source for DcgmSource {
    fn task(&self) -> &'static Task {
        &tasks::DCGM
    }

    fn open(&mut self) -> Boxed<'_, Result<(), SourceError>> {
        // An exporter that is away now may come later: not an error at start.
        Box::pin(async { Ok(()) })
    }

    fn run(self: Box<Self>, shutdown: Shutdown) -> Boxed<'static, Result<(), SourceError>> {
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
    use crate::outlet::tests::{outlet, telemetry};

    fn text(power: f64, energy: u64, pod: &str) -> String {
        let labels = format!("gpu=\"0\",UUID=\"GPU-a\",modelName=\"Tesla T4\",Hostname=\"n1\",namespace=\"n\",pod=\"{pod}\"");
        format!("DCGM_FI_DEV_POWER_USAGE{{{labels}}} {power}\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\n")
    }

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    fn devices(outlet: Outlet, metrics: &CollectorMetrics) -> Devices {
        Devices {
            known: HashMap::new(),
            outlet,
            metrics: metrics.clone(),
            assignments: Assignments::new(&[]),
            collector: "dcgm/h".into(),
            target: "t".into(),
            complained: false,
        }
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
        let rules = Rules::default();
        devices.take(&answer(0..MAX_DEVICES + 3, 70), &rules, at(1));
        assert_eq!((telemetry(&buffer).len(), devices.known.len(), skipped()), (MAX_DEVICES, MAX_DEVICES, 3));
        // Invented ones put nobody out.
        devices.take(&answer(MAX_DEVICES + 3..2 * MAX_DEVICES, 70), &rules, at(2));
        assert_eq!((telemetry(&buffer).len(), devices.known.len()), (0, MAX_DEVICES));
        devices.take(&answer(0..MAX_DEVICES, 80), &rules, at(3));
        assert_eq!((telemetry(&buffer).len(), devices.known.len()), (MAX_DEVICES, MAX_DEVICES));
        assert_eq!(skipped(), MAX_DEVICES as u64);
    }

    #[test]
    fn an_answer_that_was_not_refreshed_gives_no_sample() {
        let (outlet, buffer, metrics) = outlet();
        let mut devices = devices(outlet, &metrics);
        let rules = Rules::default();
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
