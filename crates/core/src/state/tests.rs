use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{CounterScope, Meter, Origin};

use super::wire;
use crate::window::coarse_counter::CoarseCounter;
use crate::window::counter::CounterCheck;
use crate::window::energy::{EnergyBasis, EnergySample, GAUGES, Gauges, GpuSums, LastCounterSample, PendingStep, PowerSegment};
use crate::window::progress::{COUNTERS, CounterState, RankSums, TimedValue};
use crate::workload::source::{GpuSource, Liveness, LivenessState, RankSource};

fn at(seconds: i64) -> EventTime {
    EventTime::from_micros((1_700_000_040 + seconds) * 1_000_000)
}

fn sample(seconds: i64) -> EnergySample {
    EnergySample { time: at(seconds), energy: Some(1.5), power: None, average: Some(2.5), share: 0.25, tenure: Some(7) }
}

fn gpu() -> GpuSource {
    let step = |from, to, flow, gauges: Option<[Option<f64>; GAUGES]>| {
        let gauges = gauges.map(Gauges::from);
        let contradicted = to == 20;
        PendingStep { from: at(from), to: at(to), power: flow, origin: Origin::Imported, gauges, contradicted }
    };
    let flow = PowerSegment { kind: EnergyBasis::Average, from: 1.0, to: 3.0, start: at(5), duration: 20_000_000 };
    GpuSource {
        device: "GPU-1".into(),
        collector: "nvml/node-1".into(),
        meter: Meter::Node,
        liveness: Liveness { life: LivenessState::Lagging, lagging_since: Some(4), ..Liveness::new(at(30), at(29), 5) },
        sample: sample(30),
        slices: VecDeque::new(),
        pending: [
            step(10, 20, Some(flow), Some(std::array::from_fn(|i| (i % 2 == 1).then_some(i as f64)))),
            step(20, 30, None, Some([Some(0.0); GAUGES])),
            step(30, 30, None, None),
        ]
        .into(),
        last_counter_sample: Some(LastCounterSample { sample: sample(10), summed: 4.5, idle: true }),
        last_power_sample: Some(EnergySample { power: Some(3.5), ..sample(20) }),
        check: CounterCheck {
            counted: 5.5,
            integral: 6.25,
            steps: 7,
            waiting_steps: 2,
            power_unknown: true,
            coarse: CoarseCounter {
                stalled_seconds: 20.5,
                counts_by_power: true,
                rise_after_stall: 7.25,
                sooner_rises: 4,
                balance: -8.5,
                still_seconds: 9.75,
                expected: 10.5,
                withheld_since: Some(at(1)),
                begins_anew: true,
            },
        },
        unassigned: 6.5,
        primary: true,
    }
}

/// Returns a source with these gauges in one slice.
fn gauged(sums: [f64; GAUGES], counts: [u32; GAUGES]) -> GpuSource {
    let slice = GpuSums {
        joules: 1.5,
        covered: [1, 2, 3],
        from: at(1),
        to: at(2),
        largest: 4,
        events: 5,
        origin: Origin::Simulated,
        sums,
        counts,
        hottest: Some(50.5),
        unassigned: 6.5,
        contradicted: 3,
        counter_difference: -2.25,
    };
    GpuSource { slices: [GpuSums::default(), slice].into(), ..gpu() }
}

fn rank(unassigned: [f64; COUNTERS], redone: [f64; COUNTERS]) -> RankSource {
    RankSource {
        rank: 3,
        collector: "http/node-1".into(),
        scope: CounterScope::Rank,
        liveness: Liveness { silence: Some((at(1), at(2))), ..Liveness::new(at(30), at(30), 5) },
        counters: std::array::from_fn(|i| CounterState {
            total: Some(TimedValue { time: at(i as i64), value: 1.0 }),
            idle: i == 1,
            ..CounterState::default()
        }),
        stepped: at(20),
        done: [1.0, 2.0, 3.0],
        slices: [
            RankSums {
                amounts: [1.5, 0.0, 2.5],
                redone,
                covered: [1, 2, 3],
                from: at(-2),
                to: at(-1),
                largest: 4,
                events: 5,
                origin: Origin::Imported,
                loss: 0.5,
                losses: 6,
                fell: true,
                unassigned,
            },
            RankSums::default(),
        ]
        .into(),
        unassigned,
        span: Some("epoch 1".into()),
        names_spans: true,
        remaining_seconds: Some(9.0),
        checkpoint: Some(at(-4)),
    }
}

fn written(gpus: &[GpuSource], ranks: &[RankSource]) -> Vec<u8> {
    let block = wire::WireBlock {
        workload: "team/job",
        number: 0,
        of: 1,
        head: None,
        gpus: gpus.iter().map(wire::WireGpu::of).collect(),
        ranks: ranks.iter().map(wire::WireRank::of).collect(),
    };
    let checked = wire::CheckedBlock { block, checks: gpus.iter().map(wire::WireCounterCheck::of).collect() };
    let bridged = wire::BridgedBlock { checked, power: wire::WireLastPower::of_gpus(gpus) };
    wire::CoarseBlock { bridged, coarse: wire::WireCoarseCounter::of_gpus(gpus) }.write()
}

fn is_read_as_written(gpus: &[GpuSource], ranks: &[RankSource]) {
    let bytes = written(gpus, ranks);
    let wire::CoarseBlock { bridged, coarse } = wire::CoarseBlock::read(&bytes[1..]).unwrap();
    let wire::BridgedBlock { checked: wire::CheckedBlock { block, checks }, power } = bridged;
    let read = block.gpus.iter().zip(&checks).map(|(gpu, check)| {
        let mut gpu = gpu.read().unwrap();
        check.restore(&mut gpu);
        gpu
    });
    let mut read: Vec<GpuSource> = read.collect();
    for reading in &power {
        reading.restore(&mut read);
    }
    for counter in &coarse {
        counter.restore(&mut read);
    }
    assert_eq!(read, gpus);
    assert_eq!(block.ranks.iter().map(|rank| rank.read().unwrap()).collect::<Vec<_>>(), ranks);
}

#[test]
fn gauges_are_read_as_they_were_also_those_that_were_zero() {
    let some = [0.5, 0.0, 3.0, 0.0, 0.0, 6.0, 0.0, 8.0];
    for (sums, counts) in
        [([0.0; GAUGES], [0; GAUGES]), ([0.0; GAUGES], [1; GAUGES]), (some, [1, 2, 3, 0, 5, 6, 0, 8]), (some, [9; GAUGES])]
    {
        is_read_as_written(&[gauged(sums, counts)], &[]);
    }
}

#[test]
fn gauges_that_no_sample_had_take_no_room() {
    let bytes = |gauges: usize| {
        let mut counts = [0; GAUGES];
        counts[..gauges].fill(1);
        written(&[gauged([0.0; GAUGES], counts)], &[]).len()
    };
    // Each sum has eight bytes, its count of one has one.
    assert_eq!([1, 5, 8].map(|gauges| bytes(gauges) - bytes(0)), [9, 45, 72]);
}

#[test]
fn a_power_reading_that_waits_is_read_into_its_own_gpu() {
    let without = GpuSource { last_power_sample: None, ..gpu() };
    is_read_as_written(&[without.clone(), gpu(), without.clone()], &[]);
    is_read_as_written(&[without], &[]);
}

#[test]
fn a_coarse_counter_is_read_into_its_own_gpu_and_none_takes_no_room() {
    let fine = GpuSource { check: CounterCheck { counted: 1.5, ..CounterCheck::default() }, ..gpu() };
    is_read_as_written(&[fine.clone(), gpu(), fine.clone()], &[]);
    let of = |coarse| GpuSource { check: CounterCheck { coarse, ..fine.check }, ..fine.clone() };
    let coarse = CoarseCounter { rise_after_stall: 36_000.0, ..CoarseCounter::default() };
    assert_eq!(written(&[of(coarse)], &[]).len() - written(&[of(CoarseCounter::default())], &[]).len(), 46);
    // Each of its fields alone.
    for coarse in [
        CoarseCounter { stalled_seconds: 12.5, ..CoarseCounter::default() },
        CoarseCounter { counts_by_power: true, ..CoarseCounter::default() },
        CoarseCounter { sooner_rises: 7, ..CoarseCounter::default() },
        CoarseCounter { balance: -0.5, ..CoarseCounter::default() },
        CoarseCounter { still_seconds: 30.0, ..CoarseCounter::default() },
        CoarseCounter { expected: 8.5, ..CoarseCounter::default() },
        CoarseCounter { withheld_since: Some(at(7)), ..CoarseCounter::default() },
        CoarseCounter { begins_anew: true, ..CoarseCounter::default() },
        coarse,
    ] {
        is_read_as_written(&[of(coarse)], &[]);
    }
}

#[test]
fn amounts_are_read_as_they_were_whether_all_some_or_none_are_there() {
    for unassigned in [[0.0; COUNTERS], [1.0, 2.0, 3.0], [0.0, 2.0, 0.0]] {
        for redone in [[0.0; COUNTERS], [4.0, 5.0, 6.0], [0.0, 0.0, 7.0]] {
            is_read_as_written(&[], &[rank(unassigned, redone)]);
        }
    }
    let bytes = |amounts| written(&[], &[rank([0.0; COUNTERS], amounts)]).len();
    assert_eq!(bytes([0.0, 0.0, 7.0]) - bytes([0.0; COUNTERS]), 24, "nothing takes no room");
}
