//! Time of one steady state of the GPU model: uncapped, under a power cap, and with processes of two kinds.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures with the wall clock")]

use std::hint::black_box;
use std::time::Instant;

use eadt_simulator::gpu::{BoardModel, GpuProcess, OperatingLimits, WorkloadProfile, solve};

const ROUNDS: u32 = 20_000;

fn main() {
    let board = BoardModel::A100.board();
    let of = |profile, count| vec![GpuProcess { profile, share: 0.35 }; count];
    let mixed = [of(WorkloadProfile::COMPUTE, 2), of(WorkloadProfile::MEMORY, 1)].concat();
    let cases = [
        ("uncapped, 3 alike", of(WorkloadProfile::HOST, 3), None),
        ("capped, 3 alike", of(WorkloadProfile::COMPUTE, 3), Some(250.0)),
        ("capped, 2 kinds", mixed, Some(250.0)),
    ];
    for (name, runners, cap) in cases {
        let started = Instant::now();
        for round in 0..ROUNDS {
            let power_watts = cap.map(|cap| cap + f64::from(round % 100));
            black_box(solve(board, black_box(&runners), OperatingLimits { power_watts, clock_mhz: None }, 60.0));
        }
        let micros = started.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
        println!("{name}: {micros:.1} µs a solution");
    }
}
