//! From an exporter's text to one reading a GPU. Pure.
//!
//! What DCGM marks as "no value" is absent, never a number. The first of several series for one reading holds, as
//! in Prometheus. Readings of single MIG instances say nothing of the GPU: but for how active each is, which tells whose its power
//! is, they are left out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use eadt_schemas::EventTime;
use eadt_schemas::latest::{GpuTelemetry, Origin};

use super::workload::{PodRule, of_labels};
use crate::plausible;
use crate::prometheus_text::{Sample, samples};
use crate::tenancy::Tenant;
use eadt_schemas::v1::ShareMethod;

/// How labels are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    pub workload_label: Option<String>,
    pub pods: PodRule,
}

/// One GPU of an exporter. The event lacks its time, unless the exporter gave one, its collector and its workload.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReading {
    pub event: GpuTelemetry,
    /// The workloads that the labels name.
    pub tenants: Vec<Tenant>,
}

/// What an answer held.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scraped {
    /// By device.
    pub devices: Vec<DeviceReading>,
    /// Well-formed `DCGM_` sample lines.
    pub samples: u64,
    /// Well-formed lines of other metrics.
    pub foreign: u64,
    pub skipped: Skipped,
    /// The first malformed line.
    pub complaint: Option<String>,
}

/// What was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    /// Lines that are no samples.
    pub malformed: u64,
    /// Values that say "no value".
    pub sentinel: u64,
    /// Series that came before.
    pub duplicate: u64,
    /// Readings with an impossible value.
    pub implausible: u64,
    /// Series that name no device.
    pub no_device: u64,
    /// Series of a single MIG instance.
    pub mig_instance: u64,
}

impl Skipped {
    pub(crate) fn by_kind(self) -> [(&'static str, u64); 6] {
        [
            ("malformed", self.malformed),
            ("sentinel", self.sentinel),
            ("duplicate", self.duplicate),
            ("implausible", self.implausible),
            ("no_device", self.no_device),
            ("mig_instance", self.mig_instance),
        ]
    }
}

#[derive(Debug, Default)]
struct Device {
    event: GpuTelemetry,
    memory_free: Option<f64>,
    /// (workload, pod, MIG instance); without an instance the whole GPU.
    pods: BTreeSet<(String, String, String)>,
    instances: BTreeMap<String, Instance>,
    filled: BTreeSet<&'static str>,
}

/// A MIG instance.
#[derive(Debug, Default)]
struct Instance {
    slices: f64,
    /// Part of the time in which its compute engine was busy, 0 to 1.
    active_ratio: Option<f64>,
}

/// DCGM's blank values: "blank", "not found", "not supported", "no permission" of each width.
fn is_sentinel(name: &str, value: f64) -> bool {
    const INT32: std::ops::RangeInclusive<f64> = 2_147_483_632.0..=2_147_483_635.0;
    const FLOAT: std::ops::RangeInclusive<f64> = 140_737_488_355_328.0..=140_737_488_355_331.0;
    // As floats all four of the 64-bit ones are 2^63; nothing that is measured comes near.
    value.is_nan()
        || value >= 9.223_372_036_854_7e18
        || FLOAT.contains(&value)
        // The energy counter is 64 bits wide and may pass that value: two megajoules.
        || (INT32.contains(&value) && !name.ends_with("_ENERGY_CONSUMPTION"))
}

/// Reads an exporter's answer.
pub fn read(text: &str, rules: &Rules) -> Scraped {
    let mut scraped = Scraped::default();
    let mut devices: BTreeMap<String, Device> = BTreeMap::new();
    let mut seen = HashSet::new();
    for line in samples(text) {
        let sample = match line {
            Ok(sample) => sample,
            Err(malformed) => {
                scraped.skipped.malformed += 1;
                scraped.complaint.get_or_insert_with(|| malformed.to_string());
                continue;
            }
        };
        let Some(metric) = sample.name.strip_prefix("DCGM_FI_") else {
            scraped.foreign += 1;
            continue;
        };
        scraped.samples += 1;
        if !seen.insert(sample.series) {
            scraped.skipped.duplicate += 1;
            continue;
        }
        let Some(name) = device_name(&sample) else {
            scraped.skipped.no_device += 1;
            continue;
        };
        let device = devices.entry(name.clone()).or_insert_with(|| Device::new(name, &sample));
        device.place(&sample, rules);
        if is_sentinel(sample.name, sample.value) {
            scraped.skipped.sentinel += 1;
        } else {
            device.fill(metric, &sample, &mut scraped.skipped);
        }
    }
    scraped.devices = devices.into_values().map(|device| device.finish(&mut scraped.skipped)).collect();
    scraped
}

fn device_name(sample: &Sample<'_>) -> Option<String> {
    if let Some(uuid) = sample.label("UUID").or_else(|| sample.label("uuid")) {
        return Some(uuid.to_owned());
    }
    let host = sample.label("Hostname").or_else(|| sample.label("hostname"))?;
    Some(format!("{host}/gpu{}", sample.label("gpu")?))
}

impl Device {
    fn new(name: String, sample: &Sample<'_>) -> Self {
        let text = |label: &str| sample.label(label).map(str::to_owned);
        let event = GpuTelemetry {
            device: name,
            origin: Origin::Measured,
            node: text("Hostname").or_else(|| text("hostname")),
            gpu_index: sample.label("gpu").and_then(|index| index.parse().ok()),
            gpu_model: text("modelName").or_else(|| text("model_name")),
            ..GpuTelemetry::default()
        };
        Self { event, ..Self::default() }
    }

    fn place(&mut self, sample: &Sample<'_>, rules: &Rules) {
        if let Some(millis) = sample.timestamp_millis {
            self.event.time = self.event.time.max(EventTime::from_millis(millis));
        }
        let instance = sample.label("GPU_I_ID").unwrap_or_default();
        // `1g.10gb` is one slice.
        let slices = sample.label("GPU_I_PROFILE").and_then(|p| p.split('g').next()?.parse::<f64>().ok()).unwrap_or(1.0);
        if !instance.is_empty() {
            self.event.mig_enabled = Some(true);
            self.instances.entry(instance.to_owned()).or_default().slices = slices;
        }
        if let Some(workload) = of_labels(sample, rules.workload_label.as_deref(), rules.pods) {
            let pod = sample.label("pod").or_else(|| sample.label("exported_pod")).unwrap_or_default();
            self.pods.insert((workload, pod.to_owned(), instance.to_owned()));
        }
    }

    fn fill(&mut self, metric: &str, sample: &Sample<'_>, skipped: &mut Skipped) {
        let event = &mut self.event;
        let of_instance = sample.label("GPU_I_ID").is_some();
        let value = sample.value;
        // DCGM reads what NVML calls usage: a one-second average on Ampere and later, GA100 apart.
        let averaged = event.gpu_model.as_deref().is_none_or(usage_is_average);
        let (name, slot, value) = match metric {
            "DEV_POWER_USAGE" if averaged => ("power_average_watts", &mut event.power_average_watts, value),
            "DEV_POWER_USAGE" | "DEV_POWER_USAGE_INSTANT" => ("power_watts", &mut event.power_watts, value),
            "DEV_POWER_MGMT_LIMIT" | "DEV_ENFORCED_POWER_LIMIT" => ("power_limit_watts", &mut event.power_limit_watts, value),
            "DEV_TOTAL_ENERGY_CONSUMPTION" => ("energy_joules_total", &mut event.energy_joules_total, value / 1000.0),
            "DEV_SM_CLOCK" => ("sm_clock_mhz", &mut event.sm_clock_mhz, value),
            "DEV_MEM_CLOCK" => ("memory_clock_mhz", &mut event.memory_clock_mhz, value),
            "DEV_GPU_TEMP" => ("temperature_celsius", &mut event.temperature_celsius, value),
            "DEV_MEMORY_TEMP" => ("memory_temperature_celsius", &mut event.memory_temperature_celsius, value),
            "DEV_FB_FREE" if !of_instance => ("memory_free", &mut self.memory_free, value),
            "DEV_FB_USED" if !of_instance => {
                return whole(self.filled.insert("memory_used"), &mut event.memory_used_bytes, value * MIB, skipped);
            }
            "DEV_FB_TOTAL" if !of_instance => {
                return whole(self.filled.insert("memory_total"), &mut event.memory_total_bytes, value * MIB, skipped);
            }
            "DEV_CLOCK_THROTTLE_REASONS" | "DEV_CLOCKS_EVENT_REASONS" => {
                event.throttle_reasons.get_or_insert_with(|| throttle_reasons(value));
                return;
            }
            "DEV_MIG_MODE" => {
                event.mig_enabled = event.mig_enabled.or(Some(value != 0.0));
                return;
            }
            "PROF_GR_ENGINE_ACTIVE" if of_instance => {
                let instance = sample.label("GPU_I_ID").and_then(|id| self.instances.get_mut(id));
                match instance.filter(|_| (0.0..=1.0).contains(&value)) {
                    Some(instance) => {
                        instance.active_ratio.get_or_insert(value);
                    }
                    None => skipped.implausible += 1,
                }
                return;
            }
            _ if of_instance => {
                skipped.mig_instance += 1;
                return;
            }
            "DEV_GPU_UTIL" => ("utilization_ratio", &mut event.utilization_ratio, value / 100.0),
            "DEV_MEM_COPY_UTIL" => ("memory_utilization_ratio", &mut event.memory_utilization_ratio, value / 100.0),
            "PROF_GR_ENGINE_ACTIVE" => ("graphics_active_ratio", &mut event.graphics_active_ratio, value),
            "PROF_SM_ACTIVE" => ("sm_active_ratio", &mut event.sm_active_ratio, value),
            "PROF_SM_OCCUPANCY" => ("sm_occupancy_ratio", &mut event.sm_occupancy_ratio, value),
            "PROF_PIPE_TENSOR_ACTIVE" => ("tensor_active_ratio", &mut event.tensor_active_ratio, value),
            "PROF_PIPE_FP32_ACTIVE" => ("fp32_active_ratio", &mut event.fp32_active_ratio, value),
            "PROF_DRAM_ACTIVE" => ("dram_active_ratio", &mut event.dram_active_ratio, value),
            "PROF_PCIE_TX_BYTES" => ("pcie_transmit_bytes_per_second", &mut event.pcie_transmit_bytes_per_second, value),
            "PROF_PCIE_RX_BYTES" => ("pcie_receive_bytes_per_second", &mut event.pcie_receive_bytes_per_second, value),
            // A metric that events have no field for.
            _ => return,
        };
        // The same reading under another pod or instance says the same; a second name for it gives way.
        if self.filled.insert(name) {
            *slot = Some(value);
        }
    }

    fn finish(mut self, skipped: &mut Skipped) -> DeviceReading {
        if let (None, Some(used), Some(free)) = (self.event.memory_total_bytes, self.event.memory_used_bytes, self.memory_free) {
            // What the driver reserves is in neither, so this is a little less than the board has.
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
        let tenants = tenants(&self.pods, &self.instances);
        DeviceReading { event: self.event, tenants }
    }
}

const MIB: f64 = 1_048_576.0;

fn whole(first: bool, slot: &mut Option<u64>, value: f64, skipped: &mut Skipped) {
    if !first {
        return;
    }
    // A board has less than a petabyte.
    if (0.0..1e15).contains(&value) { *slot = Some(value as u64) } else { skipped.implausible += 1 }
}

/// By name, as exporters give no architecture: boards up to Turing, and those with a GA100.
fn usage_is_average(model: &str) -> bool {
    const INSTANT: [&str; 14] =
        ["A100", "A800", "A30", "V100", "P100", "P40", "P4", "T4", "K80", "M60", "TITAN", "GTX", "RTX 20", "Quadro"];
    let word = |part: &str| {
        model.match_indices(part).any(|(at, _)| {
            let before = model[..at].chars().next_back();
            let after = model[at + part.len()..].chars().next();
            // `RTX 20` begins a number; the other names end with a letter or stand alone: `A30` is not `A3000`.
            !before.is_some_and(char::is_alphanumeric) && (part == "RTX 20" || !after.is_some_and(char::is_alphanumeric))
        })
    };
    !INSTANT.into_iter().any(word)
}

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

/// Pods count equally; MIG instances by their slices, as far as these were busy, where that is known of all of them and any was.
/// Pods of one workload are one tenant.
fn tenants(pods: &BTreeSet<(String, String, String)>, instances: &BTreeMap<String, Instance>) -> Vec<Tenant> {
    let outside = pods.iter().filter(|(_, _, instance)| instance.is_empty()).count() as f64;
    let busy = |instance: &Instance| Some(instance.slices * instance.active_ratio?);
    let all_busy: Option<f64> = instances.values().map(busy).sum();
    // Who holds the GPU as a whole was not measured so.
    let profiled = all_busy.filter(|busy| *busy > 0.0 && outside == 0.0);
    let part = |instance: &Instance| if profiled.is_some() { busy(instance).unwrap_or(0.0) } else { instance.slices };
    let mut weights: BTreeMap<&str, f64> = BTreeMap::new();
    for (workload, _, instance) in pods {
        // Several pods may share an instance.
        let sharing = pods.iter().filter(|(_, _, other)| other == instance).count();
        let weight = instances.get(instance).map_or(1.0, |instance| part(instance) / sharing as f64);
        *weights.entry(workload).or_default() += weight;
    }
    // Instances that nobody uses are part of the whole, too.
    let whole = instances.values().map(part).sum::<f64>() + outside;
    let alone = weights.len() == 1 && instances.is_empty();
    let method = match profiled {
        Some(_) => ShareMethod::Profiling,
        None if instances.is_empty() => ShareMethod::Equal,
        None => ShareMethod::MigSlices,
    };
    weights
        .into_iter()
        .map(|(workload, weight)| Tenant {
            workload: workload.to_owned(),
            share: (!alone).then(|| (weight / whole).clamp(0.0, 1.0)),
            method: (!alone).then_some(method),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    fn labels(extra: &str) -> String {
        format!("gpu=\"0\",UUID=\"GPU-a\",device=\"nvidia0\",modelName=\"NVIDIA A100-SXM4-80GB\",Hostname=\"n1\"{extra}")
    }

    fn line(metric: &str, extra: &str, value: &str) -> String {
        format!("DCGM_FI_{metric}{{{}}} {value}\n", labels(extra))
    }

    fn only(scraped: &Scraped) -> &DeviceReading {
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
        let scraped = read(&text, &Rules::default());
        let event = &only(&scraped).event;
        assert_eq!((event.power_watts, event.power_average_watts), (Some(251.5), None));
        assert_eq!(event.energy_joules_total, Some(15_152_422.938));
        assert_eq!((event.utilization_ratio, event.sm_active_ratio), (Some(0.91), Some(0.5)));
        assert_eq!((event.memory_used_bytes, event.memory_total_bytes), (Some(1 << 30), Some(1 << 31)));
        assert_eq!(event.throttle_reasons.as_deref(), Some("sw_power_cap,sw_thermal_slowdown"));
        assert_eq!((event.node.as_deref(), event.gpu_index), (Some("n1"), Some(0)));
        assert_eq!((scraped.samples, scraped.skipped), (8, Skipped::default()));
    }

    #[test]
    fn power_is_an_average_on_the_boards_where_it_is() {
        for (model, average) in [
            ("NVIDIA A100-SXM4-80GB", false),
            ("Tesla T4", false),
            ("Tesla V100-SXM2-16GB", false),
            ("NVIDIA A30", false),
            ("NVIDIA GeForce RTX 2080 Ti", false),
            ("NVIDIA L40S", true),
            ("NVIDIA H100 80GB HBM3", true),
            ("NVIDIA A40", true),
            ("NVIDIA RTX A3000", true),
            ("NVIDIA L4", true),
        ] {
            assert_eq!(usage_is_average(model), average, "{model}");
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
            let scraped = read(&text, &Rules::default());
            assert_eq!(only(&scraped).event.power_watts, None, "{sentinel}");
            assert_eq!((scraped.skipped.sentinel, scraped.skipped.implausible), (1, 0), "{sentinel}");
        }
        let energy = read(&line("DEV_TOTAL_ENERGY_CONSUMPTION", "", "2147483634"), &Rules::default());
        assert_eq!(only(&energy).event.energy_joules_total, Some(2_147_483.634));
    }

    #[test]
    fn a_zero_that_stands_for_not_supported_is_no_value() {
        let text = line("DEV_MEMORY_TEMP", "", "0") + &line("DEV_POWER_USAGE", "", "0") + &line("DEV_GPU_UTIL", "", "0");
        let scraped = read(&text, &Rules::default());
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
        let scraped = read(&text, &Rules::default());
        let event = &only(&scraped).event;
        assert_eq!((event.power_watts, event.sm_clock_mhz, event.temperature_celsius), (Some(100.0), Some(1410.0), None));
        let Skipped { malformed, duplicate, no_device, .. } = scraped.skipped;
        assert_eq!((malformed, duplicate, no_device, scraped.foreign), (1, 1, 1, 1));
        assert!(scraped.complaint.unwrap().starts_with("line 3:"));
    }

    #[test]
    fn a_gpu_shared_by_pods_has_a_tenant_for_each_workload() {
        let pod = |namespace: &str, pod: &str| {
            line("DEV_POWER_USAGE", &format!(",namespace=\"{namespace}\",pod=\"{pod}\",container=\"c\""), "100")
        };
        let text = pod("eadt", "llm-training-0") + &pod("eadt", "llm-training-1") + &pod("other", "serve-0");
        let scraped = read(&text, &Rules::default());
        let shares: Vec<_> = only(&scraped).tenants.iter().map(|t| (t.workload.as_str(), t.share)).collect();
        assert_eq!(shares, [("eadt/llm-training", Some(2.0 / 3.0)), ("other/serve", Some(1.0 / 3.0))]);
        let alone = read(&(pod("eadt", "llm-training-0") + &pod("eadt", "llm-training-1")), &Rules::default());
        assert_eq!(only(&alone).tenants, [Tenant { workload: "eadt/llm-training".into(), share: None, method: None }]);
        assert_eq!((scraped.skipped.duplicate, only(&scraped).event.power_watts), (0, Some(100.0)));
    }

    #[test]
    fn mig_instances_share_by_slices_and_do_not_speak_for_the_gpu() {
        let instance = |id: &str, profile: &str, pod: &str| {
            let extra = format!(",GPU_I_ID=\"{id}\",GPU_I_PROFILE=\"{profile}\",namespace=\"n\",pod=\"{pod}\"");
            line("DEV_POWER_USAGE", &extra, "300") + &line("PROF_SM_ACTIVE", &extra, "0.9")
        };
        let text = instance("1", "3g.40gb", "a-0") + &instance("2", "1g.10gb", "b-0") + &instance("3", "3g.40gb", "");
        let scraped = read(&text, &Rules::default());
        let device = only(&scraped);
        assert_eq!((device.event.mig_enabled, device.event.sm_active_ratio), (Some(true), None));
        assert_eq!((device.event.power_watts, scraped.skipped.mig_instance), (Some(300.0), 3));
        let shares: Vec<_> = device.tenants.iter().map(|t| (t.workload.as_str(), t.share)).collect();
        assert_eq!(shares, [("n/a", Some(3.0 / 7.0)), ("n/b", Some(1.0 / 7.0))]);
    }

    #[test]
    fn what_instances_did_tells_whose_the_power_is_where_it_is_known_of_all() {
        let instance = |id: &str, profile: &str, pod: &str, active: &str| {
            let extra = format!(",GPU_I_ID=\"{id}\",GPU_I_PROFILE=\"{profile}\",namespace=\"n\",pod=\"{pod}\"");
            line("DEV_POWER_USAGE", &extra, "300") + &line("PROF_GR_ENGINE_ACTIVE", &extra, active)
        };
        let shares = |active: [&str; 3]| {
            let [a, b, idle] = active;
            let text =
                instance("1", "3g.40gb", "a-0", a) + &instance("2", "1g.10gb", "b-0", b) + &instance("3", "3g.40gb", "", idle);
            let scraped = read(&text, &Rules::default());
            let device = only(&scraped);
            assert_eq!(device.event.graphics_active_ratio, None, "an instance does not speak for the GPU");
            let tenants: Vec<_> = device.tenants.iter().map(|t| (t.share.unwrap(), t.method.unwrap())).collect();
            (tenants, scraped.skipped.implausible)
        };
        // Three slices half busy, one wholly, three that nobody holds half.
        let profiled = ShareMethod::Profiling;
        assert_eq!(shares(["0.5", "1", "0.5"]).0, [(0.375, profiled), (0.25, profiled)]);
        let by_slices = vec![(3.0 / 7.0, ShareMethod::MigSlices), (1.0 / 7.0, ShareMethod::MigSlices)];
        // Nobody computes; of one it is not known; it cannot be.
        assert_eq!(shares(["0", "0", "0"]), (by_slices.clone(), 0));
        assert_eq!(shares(["0.5", "140737488355328", "0"]).0, by_slices);
        assert_eq!(shares(["0.5", "1.5", "0"]), (by_slices, 1));
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
            for device in read(&text, &Rules::default()).devices {
                let event = GpuTelemetry { time: EventTime::from_micros(5), collector: "c".into(), ..device.event };
                prop_assert_eq!(eadt_schemas::decode::Check::check(&event), Ok(()));
                let sum: f64 = device.tenants.iter().filter_map(|t| t.share).sum();
                prop_assert!(sum <= 1.0 + 1e-9);
            }
        }
    }
}
