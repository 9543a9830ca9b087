//! Parsing of an exporter's text to one reading a GPU. Pure.
//!
//! What DCGM marks as "no value" is absent, never a number. The first of several series for one reading holds, as
//! in Prometheus. Readings of single MIG instances do not describe the GPU and are left out, except the activity of each, by
//! which the GPU's power is attributed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use eadt_recordings::ReadingField;
use eadt_recordings::absent::is_dcgm_blank;
use eadt_recordings::prometheus_text::{ExpositionSample, is_open_metrics, parse_samples};
pub use eadt_recordings::series::AttributionRules;
use eadt_recordings::series::{
    BoardHolders, DeviceMetric, ExporterPods, SeriesAttribution, SeriesBoard, attribute_series, board, device_metric,
    is_of_board, mig_instance,
};
use eadt_schemas::EventTime;
use eadt_schemas::latest::{GpuTelemetry, Origin};

use crate::plausible;
use crate::tenancy::BoardTenant;

/// One GPU of an exporter. The event lacks its time, unless the exporter gave one, its collector and its workload.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReading {
    pub event: GpuTelemetry,
    /// The workloads that the labels name.
    pub tenants: Vec<BoardTenant>,
}

/// Content of a scrape.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DcgmScrape {
    /// Readings by device.
    pub devices: Vec<DeviceReading>,
    /// Well-formed sample lines of an exporter of GPUs.
    pub samples: u64,
    /// Well-formed lines of other metrics.
    pub foreign: u64,
    /// Names of the series, of the first few that differ.
    pub names: BTreeSet<String>,
    pub skipped: SkipCounts,
    /// The first malformed line.
    pub complaint: Option<String>,
    /// The first name of a workload that could not be used, and why.
    pub unnamed: Option<String>,
}

/// Most names that are kept for a message.
const MAX_NAMES: usize = 50;

/// Counts of lines and values that were not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SkipCounts {
    /// Lines that are no samples.
    pub malformed: u64,
    /// Values that mean "no value".
    pub sentinel: u64,
    /// Series that came before.
    pub duplicate: u64,
    /// Readings with an impossible value.
    pub implausible: u64,
    /// Series that name no device.
    pub no_device: u64,
    /// Series of a single MIG instance.
    pub mig_instance: u64,
    /// Series with a label that names no workload: without a namespace, or none at all.
    pub no_workload: u64,
}

impl SkipCounts {
    pub(crate) fn by_kind(self) -> [(&'static str, u64); 7] {
        [
            ("malformed", self.malformed),
            ("sentinel", self.sentinel),
            ("duplicate", self.duplicate),
            ("implausible", self.implausible),
            ("no_device", self.no_device),
            ("mig_instance", self.mig_instance),
            ("no_workload", self.no_workload),
        ]
    }
}

#[derive(Debug, Default)]
struct DeviceReadingBuilder {
    event: GpuTelemetry,
    memory_free: Option<f64>,
    holders: BoardHolders,
    filled: BTreeSet<ReadingField>,
}

/// Reads an exporter's answer.
pub fn read(text: &str, rules: &AttributionRules) -> DcgmScrape {
    let mut scraped = DcgmScrape::default();
    let mut devices: BTreeMap<String, DeviceReadingBuilder> = BTreeMap::new();
    let mut seen_series = HashSet::new();
    let mut read = Vec::new();
    let mut exporters = ExporterPods::default();
    for line in parse_samples(text) {
        match line {
            Ok(sample) => {
                let metric = device_metric(&sample.name);
                if scraped.names.len() < MAX_NAMES && !scraped.names.contains(&*sample.name) {
                    scraped.names.insert(sample.name.to_string());
                }
                if metric.is_none() && !sample.name.starts_with("DCGM_FI_") {
                    scraped.foreign += 1;
                    continue;
                }
                scraped.samples += 1;
                if seen_series.insert(sample.series) {
                    exporters.add_exporter(&sample);
                    read.push((metric, sample));
                } else {
                    scraped.skipped.duplicate += 1;
                }
            }
            Err(malformed) => {
                scraped.skipped.malformed += 1;
                scraped.complaint.get_or_insert_with(|| malformed.to_string());
            }
        }
    }
    let open_metrics = is_open_metrics(text);
    for (metric, sample) in read {
        let Some(board) = board(&sample) else {
            scraped.skipped.no_device += 1;
            continue;
        };
        let device = devices.entry(board.device.clone()).or_insert_with(|| DeviceReadingBuilder::new(board));
        if let Some(time) = sample.time(open_metrics) {
            device.event.time = device.event.time.max(time);
        }
        let attribution = attribute_series(&sample, rules, &exporters);
        device.place(&sample, &attribution);
        if let SeriesAttribution::NoNamespace(_) | SeriesAttribution::NotAWorkload(_) = &attribution {
            scraped.skipped.no_workload += 1;
            scraped.unnamed.get_or_insert_with(|| why_unnamed(&attribution));
        }
        let is_blank = metric.map_or_else(|| is_dcgm_blank(sample.value), |metric| metric.is_blank(sample.value));
        if sample.value.is_nan() || is_blank {
            scraped.skipped.sentinel += 1;
        } else {
            device.fill(metric, &sample, &mut scraped.skipped);
        }
    }
    scraped.devices = devices.into_values().map(|device| device.finish(&mut scraped.skipped)).collect();
    scraped
}

fn why_unnamed(attribution: &SeriesAttribution) -> String {
    match attribution {
        SeriesAttribution::NoNamespace(name) => {
            format!("{name:?} names a workload without a namespace: set workload_namespace of this collector.dcgm")
        }
        SeriesAttribution::NotAWorkload(name) => format!("{name:?} is not namespace/name"),
        SeriesAttribution::Workload { .. } | SeriesAttribution::Unattributed => String::new(),
    }
}

impl DeviceReadingBuilder {
    fn new(board: SeriesBoard) -> Self {
        let SeriesBoard { device, node, gpu_index, gpu_model } = board;
        let event = GpuTelemetry { device, origin: Origin::Measured, node, gpu_index, gpu_model, ..GpuTelemetry::default() };
        Self { event, ..Self::default() }
    }

    fn place(&mut self, sample: &ExpositionSample<'_>, attribution: &SeriesAttribution) {
        let instance = mig_instance(sample);
        if instance.is_some() {
            self.event.mig_enabled = Some(true);
        }
        self.holders.add(attribution, instance.as_ref());
    }

    fn fill(&mut self, metric: Option<DeviceMetric>, sample: &ExpositionSample<'_>, skipped: &mut SkipCounts) {
        let event = &mut self.event;
        let instance = sample.label("GPU_I_ID");
        let value = sample.value;
        let Some(metric) = metric else {
            match &*sample.name {
                "DCGM_FI_DEV_FB_FREE" if instance.is_none() => {
                    self.memory_free.get_or_insert(value);
                }
                "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" | "DCGM_FI_DEV_CLOCKS_EVENT_REASONS" => {
                    event.throttle_reasons.get_or_insert_with(|| throttle_reasons(value));
                }
                "DCGM_FI_DEV_MIG_MODE" => event.mig_enabled = event.mig_enabled.or(Some(value != 0.0)),
                // A metric that events have no field for.
                _ if instance.is_some() => skipped.mig_instance += 1,
                _ => {}
            }
            return;
        };
        let field = metric.field_of(event.gpu_model.as_deref());
        if let Some(instance) = instance.filter(|_| !is_of_board(field)) {
            match field {
                ReadingField::GraphicsActiveRatio if !self.holders.set_activity(instance, value) => skipped.implausible += 1,
                ReadingField::GraphicsActiveRatio => {}
                _ => skipped.mig_instance += 1,
            }
            return;
        }
        // The same reading under another pod or instance is a repetition; a second name for it gives way.
        if !self.filled.insert(field) {
            return;
        }
        let value = metric.to_base_unit(value);
        // A board has less than a petabyte.
        if matches!(field, ReadingField::MemoryUsedBytes | ReadingField::MemoryTotalBytes) && !(0.0..1e15).contains(&value) {
            skipped.implausible += 1;
        } else {
            field.set_telemetry(event, value);
        }
    }

    fn finish(mut self, skipped: &mut SkipCounts) -> DeviceReading {
        if let (None, Some(used), Some(free)) = (self.event.memory_total_bytes, self.event.memory_used_bytes, self.memory_free) {
            // Memory that the driver reserves is in neither, so the sum is a little less than the board has.
            if (0.0..1e9).contains(&free) {
                self.event.memory_total_bytes = Some(used + (free * MIB) as u64);
            }
        }
        let time = self.event.time;
        // Names and times are not judged here, readings are: both are stood in for meanwhile.
        let collector = std::mem::replace(&mut self.event.collector, "dcgm".to_owned());
        self.event.time = EventTime::from_micros(1);
        skipped.implausible += plausible::leave_out_impossible(&mut self.event).len() as u64;
        (self.event.time, self.event.collector) = (time, collector);
        DeviceReading { event: self.event, tenants: self.holders.tenants() }
    }
}

const MIB: f64 = 1_048_576.0;

fn throttle_reasons(value: f64) -> String {
    const NAMES: [(u64, &str); 9] = [
        (0x1, "gpu_idle"),
        (0x2, "applications_clocks_setting"),
        (0x4, "sw_power_cap"),
        (0x8, "hw_slowdown"),
        (0x10, "sync_boost"),
        (0x20, "sw_thermal_slowdown"),
        (0x40, "hw_thermal_slowdown"),
        (0x80, "hw_power_brake_slowdown"),
        (0x100, "display_clock_setting"),
    ];
    let bits = value.max(0.0) as u64;
    let names: Vec<_> = NAMES.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| name).collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::ShareMethod;
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    fn labels(extra: &str) -> String {
        format!("gpu=\"0\",UUID=\"GPU-a\",device=\"nvidia0\",modelName=\"NVIDIA A100-SXM4-80GB\",Hostname=\"n1\"{extra}")
    }

    fn line(metric: &str, extra: &str, value: &str) -> String {
        format!("DCGM_FI_{metric}{{{}}} {value}\n", labels(extra))
    }

    fn only(scraped: &DcgmScrape) -> &DeviceReading {
        assert_eq!(scraped.devices.len(), 1);
        &scraped.devices[0]
    }

    #[test]
    fn units_become_ours() {
        let text = [
            line("DEV_POWER_USAGE", "", "251.5"),
            line("DEV_TOTAL_ENERGY_CONSUMPTION", "", "15152422938"),
            line("DEV_GPU_UTIL", "", "91"),
            line("DEV_FB_USED", "", "1024"),
            line("DEV_FB_FREE", "", "1024"),
            line("PROF_SM_ACTIVE", "", "0.5"),
            line("PROF_PCIE_TX_BYTES", "", "1e6"),
            line("DEV_CLOCK_THROTTLE_REASONS", "", "36"),
        ]
        .concat();
        let scraped = read(&text, &AttributionRules::default());
        let event = &only(&scraped).event;
        assert_eq!((event.power_watts, event.power_average_watts), (Some(251.5), None));
        assert_eq!(event.energy_joules_total, Some(15_152_422.938));
        assert_eq!((event.utilization_ratio, event.sm_active_ratio), (Some(0.91), Some(0.5)));
        assert_eq!((event.memory_used_bytes, event.memory_total_bytes), (Some(1 << 30), Some(1 << 31)));
        assert_eq!(event.throttle_reasons.as_deref(), Some("sw_power_cap,sw_thermal_slowdown"));
        assert_eq!((event.node.as_deref(), event.gpu_index), (Some("n1"), Some(0)));
        assert_eq!((scraped.samples, scraped.skipped), (8, SkipCounts::default()));
    }

    #[test]
    fn power_usage_is_an_average_if_the_model_averages() {
        let models = ["NVIDIA A100X", "NVIDIA H100 80GB HBM3"];
        for (model, instant, average) in [(models[0], Some(300.0), None), (models[1], None, Some(300.0))] {
            let text = line("DEV_POWER_USAGE", "", "300").replace("NVIDIA A100-SXM4-80GB", model);
            let scraped = read(&text, &AttributionRules::default());
            let event = &only(&scraped).event;
            assert_eq!((event.power_watts, event.power_average_watts), (instant, average), "{model}");
        }
    }

    #[test]
    fn sentinels_in_every_form_are_no_value() {
        for sentinel in [
            "9223372036854775794",
            "9223372036854775792",
            "9.223372036854775794e+18",
            "9.223372036854776e+18",
            "2147483632",
            "2147483634",
            "2.147483634e+09",
            "140737488355328",
            "140737488355330.000000",
            "NaN",
        ] {
            let text = line("DEV_POWER_USAGE", "", sentinel) + &line("DEV_GPU_TEMP", "", "30");
            let scraped = read(&text, &AttributionRules::default());
            assert_eq!(only(&scraped).event.power_watts, None, "{sentinel}");
            assert_eq!((scraped.skipped.sentinel, scraped.skipped.implausible), (1, 0), "{sentinel}");
        }
        let energy = read(&line("DEV_TOTAL_ENERGY_CONSUMPTION", "", "2147483634"), &AttributionRules::default());
        assert_eq!(only(&energy).event.energy_joules_total, Some(2_147_483.634));
    }

    #[test]
    fn a_zero_that_means_not_supported_is_no_value() {
        let text = line("DEV_MEMORY_TEMP", "", "0") + &line("DEV_POWER_USAGE", "", "0") + &line("DEV_GPU_UTIL", "", "0");
        let scraped = read(&text, &AttributionRules::default());
        let event = &only(&scraped).event;
        assert_eq!((event.memory_temperature_celsius, event.power_watts, event.utilization_ratio), (None, None, Some(0.0)));
        assert_eq!(scraped.skipped.implausible, 2);
    }

    #[test]
    fn the_first_of_duplicate_series_holds_and_malformed_lines_cost_themselves() {
        let text = line("DEV_POWER_USAGE", "", "100")
            + &line("DEV_POWER_USAGE", "", "200")
            + "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-a} 1\n"
            + "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 55\n"
            + "go_goroutines 5\n"
            + &line("DEV_SM_CLOCK", "", "1410");
        let scraped = read(&text, &AttributionRules::default());
        let event = &only(&scraped).event;
        assert_eq!((event.power_watts, event.sm_clock_mhz, event.temperature_celsius), (Some(100.0), Some(1410.0), None));
        let SkipCounts { malformed, duplicate, no_device, .. } = scraped.skipped;
        assert_eq!((malformed, duplicate, no_device, scraped.foreign), (1, 1, 1, 1));
        assert!(scraped.complaint.unwrap().starts_with("line 3:"));
    }

    #[test]
    fn a_gpu_shared_by_pods_has_a_tenant_for_each_workload() {
        let pod = |namespace: &str, pod: &str| {
            line("DEV_POWER_USAGE", &format!(",namespace=\"{namespace}\",pod=\"{pod}\",container=\"c\""), "100")
        };
        let text = pod("eadt", "llm-training-0") + &pod("eadt", "llm-training-1") + &pod("other", "serve-0");
        let scraped = read(&text, &AttributionRules::default());
        let shares: Vec<_> = only(&scraped).tenants.iter().map(|t| (t.workload.as_str(), t.share)).collect();
        assert_eq!(shares, [("eadt/llm-training", Some(2.0 / 3.0)), ("other/serve", Some(1.0 / 3.0))]);
        let alone = read(&(pod("eadt", "llm-training-0") + &pod("eadt", "llm-training-1")), &AttributionRules::default());
        assert_eq!(only(&alone).tenants, [BoardTenant { workload: "eadt/llm-training".into(), share: None, method: None }]);
        assert_eq!((scraped.skipped.duplicate, only(&scraped).event.power_watts), (0, Some(100.0)));
    }

    #[test]
    fn mig_instances_share_by_slices_and_do_not_speak_for_the_gpu() {
        let instance = |id: &str, profile: &str, pod: &str| {
            let extra = format!(",GPU_I_ID=\"{id}\",GPU_I_PROFILE=\"{profile}\",namespace=\"n\",pod=\"{pod}\"");
            line("DEV_POWER_USAGE", &extra, "300") + &line("PROF_SM_ACTIVE", &extra, "0.9")
        };
        let text = instance("1", "3g.40gb", "a-0") + &instance("2", "1g.10gb", "b-0") + &instance("3", "3g.40gb", "");
        let scraped = read(&text, &AttributionRules::default());
        let device = only(&scraped);
        assert_eq!((device.event.mig_enabled, device.event.sm_active_ratio), (Some(true), None));
        assert_eq!((device.event.power_watts, scraped.skipped.mig_instance), (Some(300.0), 3));
        let shares: Vec<_> = device.tenants.iter().map(|t| (t.workload.as_str(), t.share)).collect();
        assert_eq!(shares, [("n/a", Some(3.0 / 7.0)), ("n/b", Some(1.0 / 7.0))]);
    }

    #[test]
    fn instance_activity_divides_the_power_if_it_is_known_of_all() {
        let instance = |id: &str, profile: &str, pod: &str, active: &str| {
            let extra = format!(",GPU_I_ID=\"{id}\",GPU_I_PROFILE=\"{profile}\",namespace=\"n\",pod=\"{pod}\"");
            line("DEV_POWER_USAGE", &extra, "300") + &line("PROF_GR_ENGINE_ACTIVE", &extra, active)
        };
        let shares = |active: [&str; 3]| {
            let [a, b, idle] = active;
            let text =
                instance("1", "3g.40gb", "a-0", a) + &instance("2", "1g.10gb", "b-0", b) + &instance("3", "3g.40gb", "", idle);
            let scraped = read(&text, &AttributionRules::default());
            let device = only(&scraped);
            assert_eq!(device.event.graphics_active_ratio, None, "an instance does not speak for the GPU");
            let tenants: Vec<_> = device.tenants.iter().map(|t| (t.share.unwrap(), t.method.unwrap())).collect();
            (tenants, scraped.skipped.implausible)
        };
        // Three slices half busy, one wholly; three unused ones half.
        let profiled = ShareMethod::Profiling;
        assert_eq!(shares(["0.5", "1", "0.5"]).0, [(0.375, profiled), (0.25, profiled)]);
        let by_slices = vec![(3.0 / 7.0, ShareMethod::MigSlices), (1.0 / 7.0, ShareMethod::MigSlices)];
        // No process computes; one ratio is unknown; one is impossible.
        assert_eq!(shares(["0", "0", "0"]), (by_slices.clone(), 0));
        assert_eq!(shares(["0.5", "140737488355328", "0"]).0, by_slices);
        assert_eq!(shares(["0.5", "1.5", "0"]), (by_slices, 1));
    }

    #[test]
    fn exporters_of_other_names_are_read_and_what_is_none_is_named() {
        let old = "dcgm_power_usage{gpu=\"0\",uuid=\"GPU-o\",pod_name=\"train-0\",pod_namespace=\"lab\"} 90\n\
                   dcgm_total_energy_consumption{gpu=\"0\",uuid=\"GPU-o\",pod_name=\"train-0\",pod_namespace=\"lab\"} 9000\n";
        let smi = "nvidia_smi_power_draw_watts{uuid=\"6d5c0ac5-74d7-3130-46f1-e93ed57f469a\"} 87.5\n";
        let tiny = "nvidia_gpu_power_usage_milliwatts{minor_number=\"1\",name=\"Tesla T4\",uuid=\"GPU-m\"} 13240\n";
        let triton = "nv_gpu_power_usage{gpu_uuid=\"GPU-t\"} 70\nnv_energy_consumption{gpu_uuid=\"GPU-t\"} 12.5\n";
        for (text, device, watts, joules, workload) in [
            (old, "GPU-o", 90.0, Some(9.0), Some("lab/train")),
            (smi, "GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a", 87.5, None, None),
            (tiny, "GPU-m", 13.24, None, None),
            (triton, "GPU-t", 70.0, Some(12.5), None),
        ] {
            let scraped = read(text, &AttributionRules::default());
            let DeviceReading { event, tenants } = only(&scraped);
            assert_eq!((event.device.as_str(), event.energy_joules_total), (device, joules), "{text}");
            assert_eq!(event.power_watts.or(event.power_average_watts), Some(watts), "{text}");
            assert_eq!(tenants.first().map(|tenant| tenant.workload.as_str()), workload, "{text}");
        }
        let foreign = read("up 1\nnode_load1 0.5\nnode_load1{cpu=\"1\"} 0.5\n", &AttributionRules::default());
        assert_eq!((foreign.devices.len(), foreign.foreign), (0, 3));
        assert_eq!(foreign.names.into_iter().collect::<Vec<_>>(), ["node_load1", "up"]);
    }

    #[test]
    fn an_open_metrics_answer_has_its_times_in_seconds() {
        let at = |text: &str| only(&read(text, &AttributionRules::default())).event.time.micros();
        assert_eq!(at("DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-a\"} 5 1700000000\n# EOF\n"), 1_700_000_000_000_000);
        assert_eq!(at("DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-a\"} 5 1700000000123\n"), 1_700_000_000_123_000);
    }

    #[test]
    fn a_label_without_a_namespace_is_counted_and_reported() {
        let text = line("DEV_POWER_USAGE", ",hpc_job=\"48214\"", "120") + &line("DEV_POWER_USAGE", ",hpc_job=\"48215\"", "120");
        let rules = |namespace: Option<&str>| AttributionRules {
            workload_label: Some("hpc_job".into()),
            workload_namespace: namespace.map(str::to_owned),
            ..AttributionRules::default()
        };
        let without = read(&text, &rules(None));
        assert_eq!((without.skipped.no_workload, only(&without).tenants.len()), (2, 0));
        assert!(without.unnamed.is_some_and(|why| why.contains("48214") && why.contains("workload_namespace")));
        let with = read(&text, &rules(Some("hpc")));
        let shares: Vec<_> = only(&with).tenants.iter().map(|t| (t.workload.as_str(), t.share)).collect();
        assert_eq!((shares, with.unnamed.as_deref()), (vec![("hpc/48214", Some(0.5)), ("hpc/48215", Some(0.5))], None));
    }

    proptest! {
        #![proptest_config(cases(256))]
        #[test]
        fn whatever_comes_readings_are_possible_and_shares_sum_to_at_most_one(
            rows in prop::collection::vec((prop::sample::select(vec!["DEV_POWER_USAGE", "DEV_TOTAL_ENERGY_CONSUMPTION", "PROF_SM_ACTIVE", "PROF_GR_ENGINE_ACTIVE", "DEV_FB_USED", "DEV_GPU_TEMP", "DEV_MIG_MODE"]), prop::num::f64::ANY, "[ab]{0,1}-[0-9]", prop::option::of("[0-3]")), 0..20),
        ) {
            let text: String = rows.iter().map(|(metric, value, pod, instance)| {
                let instance = instance.as_ref().map(|i| format!(",GPU_I_ID=\"{i}\",GPU_I_PROFILE=\"2g.20gb\"")).unwrap_or_default();
                line(metric, &format!(",namespace=\"n\",pod=\"{pod}\"{instance}"), &format!("{value:e}").replace("inf", "+Inf"))
            }).collect();
            for device in read(&text, &AttributionRules::default()).devices {
                let event = GpuTelemetry { time: EventTime::from_micros(5), collector: "c".into(), ..device.event };
                prop_assert_eq!(eadt_schemas::decode::DecodableEvent::check(&event), Ok(()));
                let sum: f64 = device.tenants.iter().filter_map(|t| t.share).sum();
                prop_assert!(sum <= 1.0 + 1e-9);
            }
        }
    }
}
