//! A real GPU: settings through the node agent, which alone may change devices and puts them back; readings through NVML.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use eadt_models::energy::{IntegrationRule, PowerSample, PowerSeries};
use eadt_nvml::{GpuDriver, GpuLost, NvmlDriver};
use eadt_schemas::latest::GpuTelemetry;
use eadt_service::tasks::{GPU_READER, ORDER};
use eadt_tune::plan::SweepStep;

use super::{ProfileArgs, ProfileKnob, ProfileRunner, RunMeasurement};

/// Ten readings a second: as often as the energy counter is refreshed.
const READING: Duration = Duration::from_millis(100);
/// Calls that take longer than this are repeated before and after a run, if shorter ones are usual.
const QUICK_SECONDS: f64 = 0.01;
/// Calls that are tried for a quick one.
const ATTEMPTS: usize = 10;
/// Share of a run that the call may take that reads its counter.
const UNKNOWN_SHARE: f64 = 0.02;
/// The agent puts everything back this long after the last order, should this process be killed.
const TIME_TO_LIVE: Duration = Duration::from_mins(1);
/// The order is prolonged this often.
const PROLONG: Duration = Duration::from_secs(15);
/// Time that the agent may take beyond the time to settle.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(30);
/// A clock this far above its bound was not bounded.
const CLOCK_TOLERANCE: f64 = 1.03;

pub struct AgentRunner {
    driver: Arc<NvmlDriver>,
    gpu: u32,
    uuid: String,
    model: String,
    knob: ProfileKnob,
    settle: Duration,
    command: Vec<String>,
    order: Option<IntentFile>,
}

/// The intents file while it holds an order; dropped, it is taken away, and the agent puts the device back.
struct IntentFile {
    path: PathBuf,
    text: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl AgentRunner {
    pub fn new(args: &ProfileArgs) -> anyhow::Result<Self> {
        if args.command.is_empty() {
            let why = "no command to run: put it after --, or try a simulated job with --simulate A100:compute";
            return Err(crate::usage_error::impossible(why));
        }
        let settle = args.settle;
        let driver =
            NvmlDriver::load(args.library.as_deref(), "--library").context("cannot read GPUs: is NVIDIA's driver there?")?;
        let mut identity_read = None;
        driver
            .with_gpu(args.gpu, &mut |gpu| identity_read = Some(gpu.identity().clone()))
            .with_context(|| format!("cannot open GPU {}", args.gpu))?;
        let identity = identity_read.with_context(|| format!("GPU {} does not answer", args.gpu))?;
        let order = match (&args.intents_file, args.knob) {
            (_, ProfileKnob::MpsThreadPercentage) => None,
            (None, knob) => bail!(
                "{} is set through the node agent: run it with `intents_file` in its settings and name that file with --intents-file",
                knob.name()
            ),
            (Some(path), _) => Some(IntentFile::new(path)?),
        };
        Ok(Self {
            driver: Arc::new(driver),
            gpu: args.gpu,
            uuid: identity.uuid,
            model: identity.model.unwrap_or_else(|| "unknown".to_owned()),
            knob: args.knob,
            settle,
            command: args.command.clone(),
            order,
        })
    }

    fn read(&self) -> anyhow::Result<GpuTelemetry> {
        let mut reading = GpuTelemetry::default();
        self.driver.with_gpu(self.gpu, &mut |gpu| {
            // A value that fails or is not supported stays absent, and absent is dealt with below.
            let mut failed = Vec::new();
            if let Err(error) = gpu.read(true, &mut reading, &mut failed) {
                tracing::warn!(%error, "the GPU does not answer");
            }
        })?;
        Ok(reading)
    }

    /// Orders the setting and waits until it is in force, as far as the device reports it.
    fn set(&mut self, setting: f64) -> anyhow::Result<()> {
        let Some(order) = &self.order else {
            std::thread::sleep(self.settle);
            return Ok(());
        };
        let key = self.knob.name();
        let intent = serde_json::json!({
            "time_to_live_seconds": TIME_TO_LIVE.as_secs(),
            "decision_id": "profile",
            "devices": [{ "device": self.uuid, key: setting }],
        });
        order.write(&intent.to_string())?;
        let began = Instant::now();
        std::thread::sleep(self.settle);
        loop {
            let (now, in_force, unit) = if self.knob == ProfileKnob::PowerLimitWatts {
                let now = self.read()?.power_limit_watts;
                (now, now.is_some_and(|watts| (watts - setting).abs() < 0.5), "W")
            } else {
                // A GPU that waits may run slower than it is allowed to, and reports the lower clock.
                let now = self.read()?.sm_clock_mhz;
                (now, now.is_none_or(|mhz| mhz <= CLOCK_TOLERANCE * setting), "MHz")
            };
            if in_force {
                return Ok(());
            }
            if began.elapsed() > self.settle + IN_FORCE_WITHIN {
                let now = now.map_or("unknown".to_owned(), |now| format!("{now} {unit}"));
                bail!(
                    "the device is at {now}, not at {setting} {unit}: does the node agent run, follow this file, and does the device take this setting?"
                );
            }
            std::thread::sleep(READING);
        }
    }
}

impl ProfileRunner for AgentRunner {
    fn gpu_model(&self) -> &str {
        &self.model
    }

    fn origin(&self) -> &'static str {
        "measured"
    }

    fn run(&mut self, step: SweepStep) -> anyhow::Result<RunMeasurement> {
        self.set(step.setting)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (driver, gpu, stopped) = (self.driver.clone(), self.gpu, stop.clone());
        let began = Instant::now();
        let (sender, reads) = sync_channel(1);
        let sampler = GPU_READER.thread(move || sample(&driver, gpu, began, &stopped, &sender))?;
        // The whole run lies between two readings. If there is none, joining returns the reason.
        let reading = reads.recv().is_ok();
        let mut command = Command::new(&self.command[0]);
        // The command's output is not part of the result, and the reader of the result may have ended.
        command
            .args(&self.command[1..])
            .stdin(Stdio::null())
            .stdout(std::io::stderr())
            .env("EADT_PROFILE_SETTING", step.setting.to_string());
        if self.knob == ProfileKnob::MpsThreadPercentage {
            command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", step.setting.to_string());
        }
        let from = began.elapsed();
        let status = reading.then(|| command.status());
        let to = began.elapsed();
        stop.store(true, Ordering::Relaxed);
        let readings = sampler.join().map_err(|_| anyhow::anyhow!("reading the GPU failed: the thread panicked"))??;
        let status = status.context("the GPU gave no reading")?.with_context(|| format!("cannot run {:?}", self.command[0]))?;
        if !status.success() {
            bail!("the command failed with {status}: its figures are no measurement");
        }
        let measured = measure(&readings, from.as_secs_f64(), to.as_secs_f64())?;
        if self.knob == ProfileKnob::SmClockMhz
            && let Some(mhz) = measured.sm_clock_mhz.filter(|mhz| *mhz > CLOCK_TOLERANCE * step.setting)
        {
            bail!("the SM clock was {mhz:.0} MHz on average: it was not bounded; does the node agent run and follow this file?");
        }
        Ok(measured)
    }
}

/// A reading of the GPU, with when it was made.
#[derive(Debug)]
struct TimedTelemetry {
    /// Begin of the call, in seconds since the readings began: energy and power are read first.
    seconds: f64,
    /// Duration of the call in seconds. Energy and power are of a moment within it.
    took_seconds: f64,
    telemetry: GpuTelemetry,
}

/// Returns the readings until `stop` is set; signals the first one by `first`.
fn sample(
    driver: &NvmlDriver,
    gpu: u32,
    began: Instant,
    stop: &AtomicBool,
    first: &SyncSender<()>,
) -> anyhow::Result<Vec<TimedTelemetry>> {
    let mut readings: Vec<TimedTelemetry> = Vec::new();
    let mut lost = None;
    driver.with_gpu(gpu, &mut |gpu| {
        let mut read = || -> Result<TimedTelemetry, GpuLost> {
            let seconds = began.elapsed().as_secs_f64();
            let mut telemetry = GpuTelemetry::default();
            gpu.read(false, &mut telemetry, &mut Vec::new())?;
            Ok(TimedTelemetry { seconds, took_seconds: began.elapsed().as_secs_f64() - seconds, telemetry })
        };
        loop {
            let ending = stop.load(Ordering::Relaxed);
            let at_an_end = ending || readings.is_empty();
            let result = if at_an_end {
                let least_seconds = readings.iter().map(|reading| reading.took_seconds).reduce(f64::min);
                read_quickly(&mut read, least_seconds.map_or(QUICK_SECONDS, |least| QUICK_SECONDS.max(2.0 * least)))
            } else {
                read()
            };
            match result {
                Ok(reading) => readings.push(reading),
                Err(error) => {
                    lost = Some(error);
                    return;
                }
            }
            if readings.len() == 1 {
                // The receiver is gone only if the run was given up, which ends this thread by itself.
                first.send(()).ok();
            }
            // One reading after the end, so that the whole run is between two.
            if ending {
                return;
            }
            std::thread::sleep(READING);
        }
    })?;
    match lost {
        Some(error) => Err(error).context("the GPU was lost during the run"),
        None => Ok(readings),
    }
}

/// Reads until a call takes no longer than is usual, and returns the quickest reading.
///
/// The energy of a run is the difference of its first and its last reading. If the thread is suspended within one of the two
/// calls, the time of that reading is unknown.
fn read_quickly<E>(read: &mut impl FnMut() -> Result<TimedTelemetry, E>, usual_seconds: f64) -> Result<TimedTelemetry, E> {
    let mut quickest = read()?;
    for _ in 1..ATTEMPTS {
        if quickest.took_seconds <= usual_seconds {
            break;
        }
        let reading = read()?;
        if reading.took_seconds < quickest.took_seconds {
            quickest = reading;
        }
    }
    Ok(quickest)
}

/// Returns the figures of a run from `from` to `to`, in seconds since the readings began.
///
/// Errors: neither an energy counter nor readings of the power that cover the run; the moment of the first or the last reading is
/// not known well enough.
fn measure(readings: &[TimedTelemetry], from: f64, to: f64) -> anyhow::Result<RunMeasurement> {
    let during = || readings.iter().filter(|reading| (from..=to).contains(&reading.seconds));
    let mean = |of: fn(&GpuTelemetry) -> Option<f64>| {
        let values: Vec<f64> = during().filter_map(|reading| of(&reading.telemetry)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let sample = |reading: &TimedTelemetry| Some(PowerSample { seconds: reading.seconds, watts: reading.telemetry.power_watts? });
    let series = PowerSeries::new(readings.iter().filter_map(sample))?;
    let integral = series.energy_between(from, to, IntegrationRule::Trapezoid, None);
    // The counter is more exact than readings of the power, but is refreshed every 100 ms only: for runs that are longer.
    let mut counters = readings.iter().filter_map(|reading| Some((reading, reading.telemetry.energy_joules_total?)));
    let first = counters.next();
    let energy_joules = match (first, counters.next_back()) {
        (Some((first, before)), Some((last, after)))
            if after > before && last.seconds - first.seconds > 20.0 * READING.as_secs_f64() =>
        {
            let between_seconds = last.seconds - first.seconds;
            let unknown_seconds = first.took_seconds.max(last.took_seconds);
            if unknown_seconds > UNKNOWN_SHARE * between_seconds {
                bail!(
                    "reading the GPU took {:.0} ms before the run and {:.0} ms after it, so that its energy is known to no better than \
                     {:.0} %: the machine is too busy, or the run too short",
                    1e3 * first.took_seconds,
                    1e3 * last.took_seconds,
                    100.0 * unknown_seconds / between_seconds
                );
            }
            (after - before) / between_seconds * (to - from)
        }
        _ if integral.covered_ratio > 0.9 => integral.joules,
        _ => bail!("neither energy counter nor enough readings of the power: the run is too short, or the GPU reports none"),
    };
    Ok(RunMeasurement {
        duration_seconds: to - from,
        energy_joules,
        sm_clock_mhz: mean(|telemetry| telemetry.sm_clock_mhz),
        temperature_celsius: mean(|telemetry| telemetry.temperature_celsius),
    })
}

impl IntentFile {
    fn new(path: &Path) -> anyhow::Result<Self> {
        if path.exists() {
            bail!(
                "{} is there already: an intent of another program is in force for the device; remove it first",
                path.display()
            );
        }
        let (text, stop) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
        let (own, last, stopped) = (path.to_owned(), text.clone(), stop.clone());
        let prolong = move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::park_timeout(PROLONG);
                let text = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if !stopped.load(Ordering::Relaxed)
                    && !text.is_empty()
                    && let Err(error) = replace(&own, &text)
                {
                    tracing::warn!(path = %own.display(), %error, "the intent file cannot be renewed; the agent restores the settings once its time to live is over");
                }
            }
        };
        let thread = ORDER.thread(move || ORDER.until_it_returns(Duration::from_secs(1), prolong))?;
        Ok(Self { path: path.to_owned(), text, stop, thread: Some(thread) })
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let mut last = self.text.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        text.clone_into(&mut last);
        replace(&self.path, text).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Replaces the order, so that the agent sees the old one or the new one, never half of one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let next = path.with_extension("next");
    std::fs::write(&next, text)?;
    std::fs::rename(&next, path)
}

impl Drop for IntentFile {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot fail while it is being stopped; and if it did, the order below still goes.
            thread.join().ok();
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                crate::output::note!(
                    "warning: {} cannot be taken away ({error}): do it, else the device is put back after {} s only",
                    self.path.display(),
                    TIME_TO_LIVE.as_secs()
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATTS: f64 = 300.0;

    /// Returns a reading of a GPU at 300 W, made at the end of a call that took so long.
    fn reading(seconds: f64, took_seconds: f64) -> TimedTelemetry {
        let telemetry = GpuTelemetry { energy_joules_total: Some(WATTS * seconds), ..GpuTelemetry::default() };
        TimedTelemetry { seconds: seconds - took_seconds, took_seconds, telemetry }
    }

    #[test]
    fn a_run_whose_counter_was_read_at_an_unknown_moment_is_no_measurement() {
        let run = |took: f64| measure(&[reading(0.0, 0.001), reading(1.0, 0.5), reading(3.0, took)], 0.1, 2.9);
        let measured = run(0.02).unwrap();
        assert!((measured.energy_joules / measured.duration_seconds / WATTS - 1.0).abs() < 0.01, "{measured:?}");
        let error = run(0.4).unwrap_err().to_string();
        assert!(error.contains("1 ms before the run and 400 ms after it") && error.contains("15 %"), "{error}");
    }

    #[test]
    fn a_slow_reading_is_repeated_and_a_machine_that_is_always_slow_is_not_asked_for_ever() {
        let quickest = |took: &[f64], usual| {
            let mut calls = took.iter().map(|took| reading(1.0, *took));
            let mut asked = 0;
            let read = &mut || {
                asked += 1;
                calls.next().ok_or(())
            };
            let quickest = read_quickly(read, usual).unwrap().took_seconds;
            (quickest, asked)
        };
        assert_eq!(quickest(&[0.3, 0.002, 0.001], QUICK_SECONDS), (0.002, 2));
        assert_eq!(quickest(&[0.04, 0.001], 0.05), (0.04, 1));
        let slow: Vec<f64> = (0..20).map(|n| 0.5 - f64::from(n) / 100.0).collect();
        assert_eq!(quickest(&slow, QUICK_SECONDS), (slow[ATTEMPTS - 1], ATTEMPTS));
    }
}
