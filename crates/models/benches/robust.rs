#![allow(clippy::disallowed_methods)] // a benchmark reads the clock
//! `tune --method robust` for 500 groups of 61 clocks in three runs: at most 2 s.

use std::time::Instant;

use eadt_models::choose::{ChoiceLimits, ChoiceMethod, ChoiceObjective, RobustSettings, SettingMeasurement, TuningKnob, choose};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

const GROUPS: u64 = 500;

/// Returns a made-up board with 1.5 % noise.
fn group(seed: u64) -> Vec<SettingMeasurement> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut even = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let (bound, base) = (0.2 + 0.7 * even(), 60.0 + 60.0 * even());
    let mut measurements = Vec::new();
    for run in 0..3 {
        for step in 0..61_u32 {
            let setting = 1410.0 - 15.0 * f64::from(step);
            let phi = setting / 1410.0;
            let noise = 1.0 + 0.05 * (even() + even() + even() - 1.5) / 3.0_f64.sqrt();
            let seconds = 100.0 * (1.0 - bound + bound / phi) * noise;
            let watts = base + 250.0 * phi * (1.0 + 1.5 * (phi - 0.75).max(0.0)).powi(2);
            let row = u64::from(run * 61 + step);
            measurements.push(SettingMeasurement {
                setting,
                second_setting: None,
                duration_seconds: seconds,
                energy_joules: watts * seconds,
                row,
            });
        }
    }
    measurements
}

fn main() {
    let groups: Vec<_> = (0..GROUPS).map(group).collect();
    let limits = ChoiceLimits {
        max_slowdown_ratio: 0.1,
        min_setting_ratio: None,
        objective: ChoiceObjective::Energy,
        reference_second_setting: None,
    };
    let mut times = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        let feasible = groups
            .iter()
            .filter(|group| {
                choose(TuningKnob::SmClockMhz, group, &limits, ChoiceMethod::Robust(RobustSettings::default()))
                    .is_ok_and(|c| c.feasible)
            })
            .count();
        times.push(began.elapsed().as_secs_f64());
        assert!(feasible as u64 > GROUPS / 2, "{feasible}");
    }
    times.sort_by(f64::total_cmp);
    println!(
        "robust choice, {GROUPS} groups of 183 measurements, one thread: median {:.2} s of 5 ({:.2} to {:.2}), asked 2 s",
        times[2], times[0], times[4]
    );
}
