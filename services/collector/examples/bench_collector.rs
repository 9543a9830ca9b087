//! Measures the cost of the collector: eight GPUs at 10 Hz into the embedded log, for a minute; prints one JSON line
//! with CPU and memory of this process. The GPUs are in this process and answer at once: the cost of NVML itself comes
//! on top.
//!
//! `cargo xtask bench collector -- [SECONDS]`

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::Bus;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_collector::nvml::{FailedReading, GpuDriver, GpuIdentity, GpuLost, ReadableGpu};
use eadt_collector::{CollectorDependencies, RawSettings};
use eadt_schemas::Topic;
use eadt_schemas::latest::GpuTelemetry;
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};

#[derive(Debug)]
struct Machine;

struct Steady(GpuIdentity, Instant);

impl ReadableGpu for Steady {
    fn identity(&self) -> &GpuIdentity {
        &self.0
    }
    fn features(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        (Vec::new(), Vec::new())
    }
    fn read(&mut self, slow: bool, into: &mut GpuTelemetry, _: &mut Vec<FailedReading>) -> Result<(), GpuLost> {
        let seconds = self.1.elapsed().as_secs_f64();
        let some = |value: f64| Some(value);
        (into.power_watts, into.power_average_watts) = (some(412.3), some(411.9));
        into.energy_joules_total = some(1e6 + 412.3 * seconds);
        (into.utilization_ratio, into.memory_utilization_ratio) = (some(0.93), some(0.41));
        (into.sm_active_ratio, into.dram_active_ratio, into.tensor_active_ratio) = (some(0.71), some(0.33), some(0.44));
        (into.sm_clock_mhz, into.memory_clock_mhz) = (some(1755.0), some(2619.0));
        (into.temperature_celsius, into.memory_temperature_celsius) = (some(61.0), some(70.0));
        if slow {
            (into.power_limit_watts, into.throttle_reasons) = (some(700.0), Some("sw_power_cap".to_owned()));
            (into.memory_used_bytes, into.memory_total_bytes) = (Some(60 << 30), Some(80 << 30));
            (into.processes, into.mig_enabled, into.mps_enabled) = (Some(2), Some(false), Some(false));
        }
        Ok(())
    }
}

impl GpuDriver for Machine {
    fn gpu_count(&self) -> Result<u32, GpuLost> {
        Ok(8)
    }
    fn with_gpu(&self, index: u32, body: &mut dyn FnMut(&mut dyn ReadableGpu)) -> Result<(), GpuLost> {
        let identity = GpuIdentity {
            uuid: format!("GPU-00000000-0000-0000-0000-{index:012}"),
            index,
            model: Some("Steady".into()),
            default_power_limit_milliwatts: None,
        };
        body(&mut Steady(identity, Instant::now()));
        Ok(())
    }
}

/// Returns seconds that each thread of this process was on a processor, by thread name without its number. From the
/// scheduler's own account, which counts nanoseconds; no thread ends while this measures.
fn cpu_seconds() -> std::io::Result<BTreeMap<String, f64>> {
    let mut threads = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let folder = thread?.path();
        let name = std::fs::read_to_string(folder.join("comm"))?;
        let name = name.trim_end().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
        let spent = std::fs::read_to_string(folder.join("schedstat"))?;
        let nanoseconds: f64 = spent.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
        *threads.entry(name).or_default() += nanoseconds / 1e9;
    }
    Ok(threads)
}

fn resident_bytes(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(60), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default())?;
    for topic in [Topic::GpuTelemetry, Topic::TrainingProgress] {
        let spec = eadt_bus::TopicSpec {
            name: format!("eadt.{topic}").into(),
            partitions: 4,
            replication: 1,
            settings: std::collections::BTreeMap::default(),
        };
        log.create_topic(&spec)?;
    }
    let raw: RawSettings =
        toml::from_str("[nvml]\nenabled = true\n[[assignments]]\ndevice = \"*\"\nworkload = \"eadt/llm-training\"\n")?;
    let mut settings = raw;
    settings.progress.listen.set_port(0);
    let settings = settings.validate("host")?;
    let shutdown = Shutdown::new();
    let mut environment = CollectorDependencies::new(
        Arc::new(log),
        "eadt.",
        MetricsRegistry::default(),
        HealthRegistry::default(),
        shutdown.clone(),
    );
    environment.driver = Some(Arc::new(Machine));
    let collector = tokio::spawn(eadt_collector::run(settings, environment));
    // Start-up and the counter check are not what is measured.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (started, before) = (Instant::now(), cpu_seconds()?);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (took, after) = (started.elapsed().as_secs_f64(), cpu_seconds()?);
    let by_thread: BTreeMap<_, _> =
        after.iter().map(|(name, spent)| (name, (spent - before.get(name).unwrap_or(&0.0)) / took)).collect();
    let resident = (resident_bytes("VmRSS:"), resident_bytes("VmHWM:"));
    shutdown.cancel();
    let summary = collector.await??;
    println!(
        "{}",
        serde_json::json!({
            "gpus": 8, "rate_hertz": 10, "seconds": took, "cpu_of_a_core_ratio": by_thread.values().sum::<f64>(), "by_thread": by_thread,
            "resident_bytes": resident.0, "peak_resident_bytes": resident.1,
            "sampled": summary.sampled, "sent": summary.sent, "dropped": summary.dropped.total(),
        })
    );
    Ok(())
}
