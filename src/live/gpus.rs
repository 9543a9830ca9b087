//! GPUs, as their newest samples have them.

use std::collections::{BTreeMap, BTreeSet};

use eadt_report::liveness::{ABSENT_SECONDS, SILENT_SECONDS};
use eadt_schemas::v1::GpuTelemetry;
use eadt_schemas::{EventTime, Topic, decode};

/// A smaller part of a GPU is a rounding error.
const LEAST_SHARE: f64 = 1e-6;

/// The newest samples of a GPU: one for each workload, and one for what is nobody's.
pub type TenantSamples = BTreeMap<Option<String>, GpuTelemetry>;

/// Returns the workloads that are on a GPU, and the part of its power that is attributed to each; `None` for all of it.
///
/// A workload has left, though no event reports so, if its sample is a minute older than the newest one, or if newer samples by
/// the same collector leave it nothing of the GPU. If they leave it a part, it has no more than that.
pub fn present_tenants(samples: &TenantSamples) -> Vec<(&str, Option<f64>)> {
    let Some(newest) = samples.values().map(|sample| sample.time).max() else { return Vec::new() };
    let is_present = |sample: &GpuTelemetry| !sample.last && newest.seconds_since(sample.time) < ABSENT_SECONDS;
    let part = |sample: &GpuTelemetry| sample.share.unwrap_or(1.0);
    let tenants = samples.values().filter(|sample| is_present(sample)).filter_map(|sample| {
        let workload = sample.workload.as_deref()?;
        let is_newer = |other: &&GpuTelemetry| !other.last && other.time > sample.time && other.collector == sample.collector;
        let taken: f64 = samples.values().filter(is_newer).map(part).sum();
        let left = (1.0 - taken).max(0.0);
        if part(sample) <= left {
            return Some((workload, sample.share));
        }
        (left >= LEAST_SHARE).then_some((workload, Some(left)))
    });
    tenants.collect()
}

/// The newest sample of each GPU, by workload that it works for.
#[derive(Debug, Default)]
pub struct GpuSamples {
    devices: BTreeMap<String, TenantSamples>,
    newest: Option<EventTime>,
}

/// A GPU and its workloads.
#[derive(Debug)]
pub struct GpuSnapshot<'a> {
    /// The newest sample of any of its workloads: the readings of the whole GPU.
    pub newest: &'a GpuTelemetry,
    /// Workloads and the part of the power that is attributed to each.
    pub tenants: Vec<(&'a str, Option<f64>)>,
    pub is_silent: bool,
}

impl GpuSamples {
    pub fn take(&mut self, topic: Topic, value: &[u8]) {
        if topic != Topic::GpuTelemetry {
            return;
        }
        let Ok(sample) = decode::<GpuTelemetry>(value) else { return };
        self.newest = self.newest.max(Some(sample.time));
        let of_device = self.devices.entry(sample.device.clone()).or_default();
        let known = of_device.entry(sample.workload.clone()).or_default();
        if known.device.is_empty() || sample.time >= known.time {
            *known = sample;
        }
    }

    /// Returns the names of the GPUs and their nodes.
    pub fn names(&self) -> BTreeSet<String> {
        self.iter().flat_map(|gpu| gpu.newest.node.clone().into_iter().chain([gpu.newest.device.clone()])).collect()
    }

    /// Returns the GPUs by node and index, as `nvidia-smi` lists them on each; those without come last.
    pub fn by_index(&self) -> Vec<GpuSnapshot<'_>> {
        let mut gpus: Vec<GpuSnapshot<'_>> = self.iter().collect();
        gpus.sort_by_key(|gpu| {
            let GpuTelemetry { node, gpu_index, device, .. } = gpu.newest;
            (node.is_none(), node.as_deref(), gpu_index.is_none(), *gpu_index, device.as_str())
        });
        gpus
    }

    fn iter(&self) -> impl Iterator<Item = GpuSnapshot<'_>> {
        self.devices.values().filter_map(|of_device| {
            let newest = of_device.values().max_by_key(|sample| sample.time)?;
            let tenants = present_tenants(of_device);
            let is_silent = self.newest.is_some_and(|now| now.seconds_since(newest.time) > SILENT_SECONDS);
            Some(GpuSnapshot { newest, tenants, is_silent })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_gpu_is_one_with_its_tenants_and_who_left_is_gone() {
        let mut gpus = GpuSamples::default();
        let mut take = |second: i64, device: &str, workload: &str, share: f64, last: bool| {
            let sample = GpuTelemetry {
                time: EventTime::from_micros(1_700_000_000_000_000 + second * 1_000_000),
                workload: Some(workload.into()),
                device: device.into(),
                collector: "c".into(),
                power_watts: Some(300.0),
                share: Some(share),
                last,
                ..GpuTelemetry::default()
            };
            gpus.take(Topic::GpuTelemetry, &serde_json::to_vec(&sample).unwrap());
        };
        take(0, "GPU-1", "a/old", 1.0, true);
        take(1000, "GPU-1", "a/x", 0.25, false);
        take(1000, "GPU-1", "a/y", 0.75, false);
        take(10, "GPU-2", "a/z", 1.0, false);
        gpus.take(Topic::GpuTelemetry, b"{}");
        let shown: Vec<_> = gpus.iter().map(|gpu| (gpu.newest.device.clone(), gpu.tenants.clone(), gpu.is_silent)).collect();
        assert_eq!(
            shown,
            [
                ("GPU-1".to_owned(), vec![("a/x", Some(0.25)), ("a/y", Some(0.75))], false),
                ("GPU-2".to_owned(), vec![("a/z", Some(1.0))], true),
            ]
        );
    }

    #[test]
    fn an_older_sample_has_what_newer_ones_leave_of_the_gpu() {
        let sample = |seconds: f64, workload: Option<&str>, share: Option<f64>, collector: &str| GpuTelemetry {
            time: EventTime::from_seconds(seconds),
            workload: workload.map(str::to_owned),
            device: "GPU-1".into(),
            collector: collector.into(),
            share,
            ..GpuTelemetry::default()
        };
        for (samples, expected) in [
            // Killed: its successor has the whole GPU, or nobody has.
            (vec![sample(1.0, Some("a"), None, "c"), sample(2.0, Some("b"), None, "c")], vec![("b", None)]),
            (vec![sample(1.0, Some("a"), None, "c"), sample(2.0, None, None, "c")], vec![]),
            // The samples of one moment, and those that come apart.
            (vec![sample(2.0, Some("a"), None, "c"), sample(2.0, Some("b"), None, "c")], vec![("a", None), ("b", None)]),
            (
                vec![sample(1.0, Some("a"), Some(0.25), "c"), sample(31.0, Some("b"), Some(0.75), "c")],
                vec![("a", Some(0.25)), ("b", Some(0.75))],
            ),
            (
                vec![sample(1.0, Some("a"), None, "c"), sample(2.0, Some("b"), Some(0.75), "c")],
                vec![("a", Some(0.25)), ("b", Some(0.75))],
            ),
            // One that takes nothing is on the GPU all the same.
            (
                vec![sample(1.0, Some("a"), Some(0.0), "c"), sample(2.0, Some("b"), None, "c")],
                vec![("a", Some(0.0)), ("b", None)],
            ),
            // Shares of two measures cannot be added.
            (vec![sample(1.0, Some("a"), None, "c"), sample(2.0, None, None, "other")], vec![("a", None)]),
            // A minute later it has left.
            (vec![sample(0.0, Some("a"), Some(0.5), "c"), sample(60.0, Some("b"), Some(0.5), "c")], vec![("b", Some(0.5))]),
        ] {
            let samples: TenantSamples = samples.into_iter().map(|sample| (sample.workload.clone(), sample)).collect();
            assert_eq!(present_tenants(&samples), expected, "{samples:?}");
        }
    }

    #[test]
    fn gpus_come_by_node_and_index() {
        let mut gpus = GpuSamples::default();
        for (device, node, index) in [
            ("GPU-a", Some("n-2"), Some(0)),
            ("GPU-b", Some("n-1"), Some(10)),
            ("GPU-c", Some("n-1"), Some(2)),
            ("GPU-d", Some("n-1"), None),
            ("GPU-e", None, Some(1)),
            ("GPU-f", Some("n-1"), Some(0)),
            ("MIG-2", Some("n-1"), Some(2)),
            ("GPU-g", None, None),
        ] {
            let sample = GpuTelemetry {
                time: EventTime::from_micros(1_700_000_000_000_000),
                device: device.into(),
                collector: "c".into(),
                node: node.map(str::to_owned),
                gpu_index: index,
                power_watts: Some(300.0),
                ..GpuTelemetry::default()
            };
            gpus.take(Topic::GpuTelemetry, &serde_json::to_vec(&sample).unwrap());
        }
        let order: Vec<&str> = gpus.by_index().iter().map(|gpu| gpu.newest.device.as_str()).collect();
        assert_eq!(order, ["GPU-f", "GPU-c", "MIG-2", "GPU-b", "GPU-d", "GPU-a", "GPU-e", "GPU-g"]);
    }
}
