//! Reads this machine's GPUs through NVML and prints, as JSON lines, what each supports, 20 samples at 10 Hz, and how
//! its energy counter compares with integrated power. Reads only; needs the driver, not CUDA.
//!
//! `cargo run -p eadt-collector --example nvml_probe -- [--library PATH] [--samples N]`

use std::io::Write;
use std::time::{Duration, Instant};

use eadt_collector::nvml::counter_check::{CounterCheck, CounterVerdict};
use eadt_collector::nvml::{GpuDriver, NvmlDriver, ReadableGpu};
use eadt_collector::plausible;
use eadt_schemas::latest::GpuTelemetry;
use eadt_service::ServiceClock;
use serde_json::json;

const PERIOD: Duration = Duration::from_millis(100);
const CHECK_SECONDS: f64 = 5.0;

fn main() -> std::process::ExitCode {
    if let Err(error) = run() {
        eprintln!("{error}");
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (mut library, mut samples) = (None, 20_u32);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--library" => library = Some(value),
            "--samples" => samples = value.parse()?,
            _ => return Err(format!("unknown argument {argument}; known are --library and --samples").into()),
        }
    }
    let driver = NvmlDriver::load(library.as_deref().map(std::path::Path::new), "the argument of this program")?;
    let count = driver.gpu_count()?;
    print_json(&json!({"nvml": driver.version(), "gpus": count}))?;
    for index in 0..count {
        let mut result = Ok(());
        driver.with_gpu(index, &mut |gpu| result = probe(gpu, samples))?;
        result?;
    }
    Ok(())
}

fn print_json(line: &serde_json::Value) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}

fn probe(gpu: &mut dyn ReadableGpu, samples: u32) -> Result<(), Box<dyn std::error::Error>> {
    let identity = gpu.identity().clone();
    let (supported, unsupported) = gpu.features();
    print_json(&json!({"device": identity.uuid, "gpu_index": identity.index, "gpu_model": identity.model,
        "supported": supported, "unsupported": unsupported}))?;
    let mut check = CounterCheck::new(CHECK_SECONDS, 0.2);
    let mut verdict = None;
    let (started, mut busy) = (Instant::now(), Duration::ZERO);
    let enough = |number: u32, settled: bool| number >= samples && (settled || started.elapsed() > Duration::from_secs(10));
    for number in 0.. {
        let mut sample = GpuTelemetry {
            time: ServiceClock::machine().now(),
            device: identity.uuid.clone(),
            collector: "probe".into(),
            ..GpuTelemetry::default()
        };
        let (mut failed, before) = (Vec::new(), Instant::now());
        gpu.read(number % 10 == 0, &mut sample, &mut failed)?;
        busy += before.elapsed();
        let implausible = plausible::leave_out_impossible(&mut sample);
        let power = sample.power_watts.or(sample.power_average_watts);
        verdict = verdict.or(check.observe(sample.time, power, sample.energy_joules_total));
        if number < samples {
            let failed: Vec<_> = failed.iter().map(|f| format!("{}: {}", f.call, f.detail)).collect();
            print_json(
                &json!({"sample": sample, "read_microseconds": before.elapsed().as_micros(), "failed": failed, "implausible": implausible}),
            )?;
        }
        if enough(number + 1, verdict.is_some()) {
            let mean = busy.as_secs_f64() / f64::from(number + 1);
            print_json(&json!({"device": identity.uuid, "mean_read_seconds": mean,
                "counter": verdict.map_or("no verdict: no counter, or it fell".to_owned(), |v| format!("{v:?}")),
                "counter_trusted": verdict.map(CounterVerdict::trusted), "counter_error_ratio": verdict.and_then(CounterVerdict::error_ratio)}))?;
            return Ok(());
        }
        std::thread::sleep((started + PERIOD * (number + 1)).saturating_duration_since(Instant::now()));
    }
    Ok(())
}
