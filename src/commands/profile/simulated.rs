//! A simulated GPU with a simulated job: to try `eadt profile` and `eadt tune` without one. Its figures are marked as simulated.

use anyhow::bail;
use eadt_simulator::gpu::{
    BoardModel, BoardParameters, GpuProcess, NoiseChannel, OperatingLimits, SimulationNoise, WorkloadProfile, solve,
};
use eadt_tune::plan::{SweepSettings, SweepStep};

use super::{ProfileKnob, ProfileRunner, RunMeasurement};
use crate::usage_error;

/// Work of a run: so many seconds at the highest setting.
const SECONDS: f64 = 600.0;
const CELSIUS: f64 = 60.0;
/// A cold run takes this many times as long: loading, compiling, warming up (assumed).
const COLD: f64 = 1.5;

pub struct SimulatedRunner {
    board: &'static BoardParameters,
    profile: WorkloadProfile,
    knob: ProfileKnob,
    noise: SimulationNoise,
    samples: f64,
    /// Simulated time in microseconds.
    micros: i64,
}

impl SimulatedRunner {
    pub fn new(text: &str, knob: ProfileKnob, seed: u64) -> anyhow::Result<Self> {
        let (board, job) = text.split_once(':').unwrap_or((text, "mid"));
        let model = match board.to_ascii_uppercase().as_str() {
            "V100" => BoardModel::V100,
            "A100" => BoardModel::A100,
            "H100" => BoardModel::H100,
            "H200" => BoardModel::H200,
            _ => {
                let why = format!("unknown board {board:?}; there are V100, A100, H100, H200");
                return Err(usage_error::invalid("--simulate <BOARD:JOB>", text, why));
            }
        };
        let profile = WorkloadProfile::named(job).ok_or_else(|| {
            let why = format!("unknown job {job:?}; there are compute, memory, host, mid");
            usage_error::invalid("--simulate <BOARD:JOB>", text, why)
        })?;
        let mut new = Self {
            board: model.board(),
            profile,
            knob,
            noise: SimulationNoise { seed, ..SimulationNoise::default() },
            samples: 0.0,
            micros: 0,
        };
        let highest = new.settings().0[0];
        new.samples = SECONDS * new.steady(highest).0;
        Ok(new)
    }

    /// Returns settings from half to all of the board's range, in its own steps.
    pub fn settings(&self) -> SweepSettings {
        let board = self.board;
        let (low, high, step) = match self.knob {
            ProfileKnob::SmClockMhz => (0.5 * board.clock_max_mhz, board.clock_max_mhz, 4.0 * board.clock_step_mhz),
            ProfileKnob::PowerLimitWatts => {
                (board.power_limit_min_watts.max(0.4 * board.power_limit_watts), board.power_limit_watts, 25.0)
            }
            ProfileKnob::MpsThreadPercentage => (10.0, 100.0, 10.0),
        };
        let count = ((high - low) / step + 1e-9).floor() as u32;
        SweepSettings((0..=count).map(|i| high - step * f64::from(i)).collect())
    }

    /// Returns samples per second, watts and MHz.
    fn steady(&self, setting: f64) -> (f64, f64, f64) {
        let limits = match self.knob {
            ProfileKnob::SmClockMhz => OperatingLimits { clock_mhz: Some(setting), power_watts: None },
            ProfileKnob::PowerLimitWatts => OperatingLimits { clock_mhz: None, power_watts: Some(setting) },
            ProfileKnob::MpsThreadPercentage => OperatingLimits::default(),
        };
        let share = if self.knob == ProfileKnob::MpsThreadPercentage { setting / 100.0 } else { 1.0 };
        let steady = solve(self.board, &[GpuProcess { profile: self.profile, share }], limits, CELSIUS);
        (steady.samples_per_second.first().copied().unwrap_or(0.0), steady.power_watts, steady.clock_mhz)
    }
}

impl ProfileRunner for SimulatedRunner {
    fn gpu_model(&self) -> &str {
        self.board.name
    }

    fn origin(&self) -> &'static str {
        "simulated"
    }

    fn run(&mut self, step: SweepStep) -> anyhow::Result<RunMeasurement> {
        let (rate, watts, clock) = self.steady(step.setting);
        if rate <= 0.0 {
            bail!("the simulated job makes no progress");
        }
        let rate = if step.run == 0 { rate / COLD } else { rate };
        // The speed's own unevenness over the run, and readings of the power every ten seconds.
        let mean = |every_seconds: f64, of: &dyn Fn(i64) -> f64| {
            let draws = (self.samples / rate / every_seconds).ceil().max(1.0) as i64;
            let at = |draw: i64| of(self.micros + (draw as f64 * every_seconds * 1e6) as i64);
            (0..draws).map(at).sum::<f64>() / draws as f64
        };
        let speed = mean(self.noise.throughput_seconds, &|micros| self.noise.throughput(0, micros));
        let readings = mean(10.0, &|micros| self.noise.reading(NoiseChannel::Power, 0, micros));
        let duration_seconds = self.samples / (rate * speed);
        let watts = watts * self.noise.gain(0) * readings;
        // At least a new draw of every noise for the next run.
        self.micros += ((duration_seconds + self.noise.throughput_seconds) * 1e6) as i64;
        Ok(RunMeasurement {
            duration_seconds,
            energy_joules: watts * duration_seconds,
            sm_clock_mhz: Some(clock),
            temperature_celsius: Some(CELSIUS),
        })
    }
}
