//! Energy counters in coarse steps beside power: the sum stays between both, whichever of them counts when.

use eadt_testing::cases;
use proptest::prelude::*;

use super::*;
use crate::settings::SECOND;

fn at(seconds: usize) -> EventTime {
    EventTime::from_micros(seconds as i64 * SECOND)
}

/// A source as a workload feeds it, whose windows of a minute close as soon as they can.
struct Metered {
    gpu: GpuSource,
    board: MeteredBoard,
    edges: SliceEdges,
    settings: FoldSettings,
}

impl Metered {
    fn new(meter: Meter, seconds: usize, sample: EnergySample) -> Self {
        let gpu = GpuSource::new("a", "import-csv", meter, Liveness::new(sample.time, sample.time, 0), sample);
        let edges = (0..=seconds / 60 + 1).map(|minute| at(minute * 60)).collect();
        Self { gpu, board: MeteredBoard { meter, limit_watts: None }, edges, settings: FoldSettings::default() }
    }

    fn take(&mut self, mut sample: EnergySample, life: LivenessState) {
        let Self { gpu, board, edges, settings } = self;
        let contradicted = gpu.check_counter(&mut sample, life, board, edges, settings);
        let power = gpu.segment_since_last(&sample, life, edges, settings);
        let mut step = PendingStep { power, contradicted, ..PendingStep::without_step(sample.time, Origin::Measured, None) };
        if life == LivenessState::Live {
            step.from = gpu.sample.time;
        }
        gpu.sample = sample;
        gpu.add_step(&mut step, edges, EventTime::MIN, settings.power_gap);
        let end = gpu.awaited_from(settings.power_gap).unwrap_or(sample.time).micros();
        gpu.sum_through(edges, EventTime::from_micros(end - end % (60 * SECOND)));
    }

    /// Returns the joules of each window, and those in none.
    fn finish(mut self) -> (Vec<f64>, f64) {
        let end = self.edges.back().copied().unwrap_or_default();
        self.gpu.sum_through(&self.edges, end);
        let windows = self.gpu.slices.iter().map(|sums| sums.joules).collect();
        (windows, self.gpu.unassigned_of_first_slices(self.edges.len()))
    }
}

/// When a reading is missing.
#[derive(Debug, Clone, Copy)]
enum Blanks {
    Never,
    /// For so many seconds of so many, from this second on.
    Holes(usize, usize, usize),
    /// Except in each row of so many.
    Most(usize),
    /// In this part of the rows.
    Random(f64, u64),
    /// From this part of the record on.
    From(f64),
}

/// Returns a number from 0 to 1 that depends on both.
fn random(seed: u64, i: usize) -> f64 {
    let mut x = (seed ^ (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

impl Blanks {
    fn is_missing(self, second: usize, case: &Case) -> bool {
        let row = second / case.row;
        match self {
            _ if second == 0 || second == case.seconds => false,
            Self::Never => false,
            Self::Holes(length, of, from) => (second + from) % of < length,
            Self::Most(n) => !row.is_multiple_of(n),
            Self::Random(part, seed) => random(seed, row) < part,
            Self::From(part) => second as f64 > part * case.seconds as f64,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Load {
    Constant,
    TwoLevels,
    Ramp,
    Jobs(u64),
}

#[derive(Debug, Clone)]
struct Case {
    meter: Meter,
    watts: (f64, f64),
    load: Load,
    period: usize,
    row: usize,
    step: f64,
    phase: f64,
    seconds: usize,
    /// Power reads this part of what is drawn.
    factor: f64,
    power: Blanks,
    counter: Blanks,
}

impl Case {
    fn watts_at(&self, second: usize) -> f64 {
        let (low, high) = self.watts;
        match self.load {
            Load::Constant => high,
            Load::TwoLevels => {
                if second % self.period * 5 < self.period * 3 {
                    high
                } else {
                    low
                }
            }
            Load::Ramp => {
                let turn = second as f64 / (3 * self.period) as f64 * std::f64::consts::TAU;
                low + (high - low) * (0.5 - 0.5 * turn.cos())
            }
            Load::Jobs(seed) => low + (high - low) * (random(seed, second / self.period) * 3.0).floor() / 2.0,
        }
    }

    /// Returns the samples, and the joules drawn up to each.
    fn samples(&self) -> Vec<(EnergySample, f64)> {
        let mut drawn = 0.0;
        let mut samples = Vec::new();
        for second in 0..=self.seconds {
            if second % self.row == 0 {
                let energy = ((drawn / self.step + self.phase + 1e-9).floor()) * self.step;
                let sample = EnergySample {
                    time: at(second),
                    energy: (!self.counter.is_missing(second, self)).then_some(energy),
                    power: (!self.power.is_missing(second, self)).then_some(self.watts_at(second) * self.factor),
                    average: None,
                    share: 1.0,
                    tenure: None,
                };
                samples.push((sample, drawn));
            }
            // Straight from row to row.
            let row = second - second % self.row;
            let part = ((second - row) as f64 + 0.5) / self.row as f64;
            drawn += self.watts_at(row) + (self.watts_at(row + self.row) - self.watts_at(row)) * part;
        }
        samples
    }

    /// Returns whether it rises in steps that show, or is always there: one that rises in each row is as good as a fine one, and lags by
    /// up to a step at each end of a hole.
    fn is_coarse(&self) -> bool {
        matches!(self.counter, Blanks::Never) || self.watts.1 * self.row as f64 <= self.step
    }

    /// Returns whether power is known at times: readings that are further apart than the gap show nothing.
    fn has_power(&self) -> bool {
        match self.power {
            Blanks::Most(rows) => rows * self.row <= 120,
            Blanks::Holes(length, of, _) => length < of,
            _ => true,
        }
    }

    /// Returns joules in windows and beside them, and the bounds for them: two steps and 5 % below the smaller, and above the larger, of
    /// what was drawn and what power shows, between any two readings of it. Holes that are in step with the load lose or gain up to a
    /// step in a dozen of them, and up to half a step in each if readings of the counter are missing, too.
    fn sums(&self) -> (f64, f64, f64) {
        let samples = self.samples();
        let of_source: Vec<_> = samples.iter().map(|(sample, _)| *sample).collect();
        let (windows, beside) = sums_of(self.meter, &of_source, FoldSettings::default());
        let readings: Vec<_> = samples.iter().filter(|(sample, _)| sample.power.is_some()).collect();
        // Where both are missing, two more may be drawn.
        let is_unknown = !matches!((self.power, self.counter), (Blanks::Never, _) | (_, Blanks::Never));
        let holes =
            readings.windows(2).filter(|pair| PowerSegment::of_power(&pair[0].0, &pair[1].0, 120 * SECOND).is_none()).count();
        let allowed = self.step * if is_unknown { 4.0 + holes as f64 / 2.0 } else { 2.0 } + 1.0;
        let (mut least, mut most) = (-allowed, allowed);
        for pair in readings.windows(2) {
            let drawn = pair[1].1 - pair[0].1;
            let by_power = PowerSegment::of_power(&pair[0].0, &pair[1].0, 120 * SECOND);
            let by_power = by_power.map_or(drawn, |known| known.total_joules());
            (least, most) = (least + drawn.min(by_power), most + drawn.max(by_power));
        }
        (windows.iter().sum::<f64>() + beside, least * 0.95, most * 1.05)
    }
}

fn blanks() -> impl Strategy<Value = Blanks> {
    let length = prop::sample::select(vec![60_usize, 130, 180, 200, 300, 900]);
    let of = prop::sample::select(vec![600_usize, 1_300, 1_500, 3_700]);
    prop_oneof![
        2 => Just(Blanks::Never),
        2 => (length, of, 0..3_600_usize).prop_map(|(length, of, from)| Blanks::Holes(length, of, from)),
        1 => (2..6_usize).prop_map(Blanks::Most),
        1 => (0.2..0.7, any::<u64>()).prop_map(|(part, seed)| Blanks::Random(part, seed)),
        1 => (0.2..0.8).prop_map(Blanks::From),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let meters = prop_oneof![
        2 => (Just(Meter::Gpu), Just(40.0), prop::sample::select(vec![200.0, 400.0, 700.0])),
        1 => (Just(Meter::Node), Just(150.0), prop::sample::select(vec![600.0, 1_300.0, 2_000.0])),
    ];
    let loads = prop_oneof![Just(Load::Constant), Just(Load::TwoLevels), Just(Load::Ramp), any::<u64>().prop_map(Load::Jobs)];
    let shape = (
        loads,
        prop::sample::select(vec![300_usize, 900, 1_500, 3_000]),
        prop::sample::select(vec![5_usize, 10, 30, 60]),
        prop::sample::select(vec![3_600.0, 36e3, 36e3, 100e3, 360e3]),
        0.0..1.0,
        1..7_usize,
    );
    (meters, shape, prop::sample::select(vec![0.9, 1.0, 1.0, 1.1]), blanks(), blanks()).prop_map(
        |((meter, low, high), (load, period, row, step, phase, hours), factor, power, counter)| Case {
            meter,
            watts: (low, high),
            load,
            period,
            row,
            step,
            phase,
            seconds: hours * 3_600,
            factor,
            power,
            counter,
        },
    )
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn energy_beside_a_coarse_counter_is_between_counter_and_power_whatever_is_missing(
        case in case().prop_filter("coarse, beside power", |case| case.is_coarse() && case.has_power()),
    ) {
        let (energy, least, most) = case.sums();
        prop_assert!((least..=most).contains(&energy), "{energy} J, not within {least} and {most}");
    }
}

/// Returns the samples of a device that draws so much, and the joules drawn: power and counter where these have readings.
fn samples(
    (seconds, row, step): (usize, usize, f64),
    watts: impl Fn(usize) -> f64,
    has_power: impl Fn(usize) -> bool,
) -> (Vec<EnergySample>, f64) {
    let mut drawn = step * 0.4;
    let mut samples = Vec::new();
    for second in 0..=seconds {
        if second % row == 0 {
            let is_end = second == 0 || second == seconds;
            samples.push(EnergySample {
                time: at(second),
                energy: Some((drawn / step + 1e-9).floor() * step),
                power: (is_end || has_power(second)).then(|| watts(second)),
                average: None,
                share: 1.0,
                tenure: None,
            });
        }
        drawn += if second < seconds { watts(second) } else { 0.0 };
    }
    (samples, drawn - step * 0.4)
}

/// Returns the joules of all windows, and those in none, of a source that is live.
fn sums_of(meter: Meter, samples: &[EnergySample], settings: FoldSettings) -> (Vec<f64>, f64) {
    let seconds = samples[samples.len() - 1].time.micros() / SECOND;
    let mut metered = Metered { settings, ..Metered::new(meter, seconds as usize, samples[0]) };
    for sample in &samples[1..] {
        metered.take(*sample, LivenessState::Live);
    }
    metered.finish()
}

#[test]
fn a_rise_while_power_is_missing_counts_for_the_time_that_power_does_not_show() {
    let watts = |second: usize| if second % 1_500 < 300 { 100.0 } else { 420.0 };
    for hole in [130, 150, 200, 300] {
        for row in [2, 5, 10, 30] {
            let has_power = |second: usize| ![400, 900].iter().any(|from| (*from..from + hole).contains(&(second % 1_500)));
            let (samples, drawn) = samples((21_600, row, 36e3), watts, has_power);
            let (windows, beside) = sums_of(Meter::Gpu, &samples, FoldSettings::default());
            let energy = windows.iter().sum::<f64>() + beside;
            assert!((energy - drawn).abs() <= 72e3, "{hole} s, each {row} s: {energy} J of {drawn}");
        }
    }
}

#[test]
fn a_machines_counter_without_power_gives_all_of_its_energy_whatever_its_steps_and_rows() {
    for meter in [Meter::Node, Meter::Wall] {
        for step in [360e3, 3.6e6, 360e6] {
            for row in [1, 5, 10, 30, 60] {
                for power_each in [usize::MAX, 600] {
                    let watts = if step > 1e8 { 100e3 } else { 1_300.0 };
                    let (samples, drawn) = samples((21_600, row, step), |_| watts, |second| second % power_each == 0);
                    let samples: Vec<_> = samples
                        .into_iter()
                        .map(|sample| EnergySample { power: sample.power.filter(|_| power_each < usize::MAX), ..sample })
                        .collect();
                    let (windows, beside) = sums_of(meter, &samples, FoldSettings::default());
                    let energy = windows.iter().sum::<f64>() + beside;
                    let what = format!("{meter:?}, steps of {step} J, each {row} s, power each {power_each} s");
                    assert!((energy - drawn).abs() <= step * 1.01, "{what}: {energy} J of {drawn}");
                    assert!(power_each == 600 || beside == 0.0, "{what}: {beside} J in no window");
                }
            }
        }
    }
}

/// 36 jobs of 570 s on one device, each its own tenure, or ended.
#[test]
fn the_first_rise_of_each_stretch_counts_by_power() {
    // At 10 kW a step is little more than a row.
    for (watts, allowed) in [(1_300.0, 0.005), (3_200.0, 0.005), (10e3, 0.01)] {
        let (samples, _) = samples((21_600, 30, 360e3), |_| watts, |_| true);
        let joules = |has_counter: bool, has_tenures: bool| {
            let mut metered = Metered::new(Meter::Node, 21_600, samples[0]);
            for (i, sample) in samples.iter().enumerate().skip(1).filter(|(i, _)| i % 20 != 0) {
                let tenure = has_tenures.then_some(i as u64 / 20);
                let life = if !has_tenures && i % 20 == 1 { LivenessState::Ended } else { LivenessState::Live };
                metered.take(EnergySample { tenure, energy: sample.energy.filter(|_| has_counter), ..*sample }, life);
            }
            let (windows, beside) = metered.finish();
            windows.iter().sum::<f64>() + beside
        };
        for has_tenures in [false, true] {
            let (with, by_power) = (joules(true, has_tenures), joules(false, has_tenures));
            assert!((with / by_power - 1.0).abs() < allowed, "{watts} W, {has_tenures}: {with} J, by power {by_power}");
        }
    }
}

#[test]
fn loads_that_change_between_fast_and_slow_rises_count_once() {
    for (meter, row, of, high, low, each) in [
        (Meter::Node, 60, 3_000, 600.0, 150.0, 60),
        (Meter::Gpu, 60, 3_600, 500.0, 100.0, 60),
        (Meter::Gpu, 30, 2_400, 700.0, 40.0, 30),
        (Meter::Gpu, 30, 900, 700.0, 40.0, 90),
    ] {
        for offset in (0..of).step_by(150) {
            let watts = |second: usize| if (second + offset) % of * 5 < of * 3 { high } else { low };
            let (samples, drawn) = samples((21_600, row, 36e3), watts, |second| second % each == 0);
            let (windows, beside) = sums_of(meter, &samples, FoldSettings::default());
            let alone: Vec<_> = samples.iter().map(|sample| EnergySample { energy: None, ..*sample }).collect();
            let by_power: f64 = sums_of(meter, &alone, FoldSettings::default()).0.iter().sum();
            let energy = windows.iter().sum::<f64>() + beside;
            let what = format!("{high} and {low} W of {of} s, each {row} s, from {offset} s on");
            let (least, most) = (drawn.min(by_power) - 72e3, drawn.max(by_power) + 72e3);
            assert!((least..=most).contains(&energy), "{what}: {energy} J, drawn {drawn}, by power {by_power}");
        }
    }
}

#[test]
fn a_fine_counter_counts_as_it_did_before_coarse_ones_were_looked_at() {
    for (row, step) in [(1, 1e-3), (1, 1.0), (5, 1e-3), (10, 4.0), (30, 1.0)] {
        for seed in 0..20 {
            let watts = |second: usize| 60.0 + 640.0 * random(seed, second / 20);
            let (samples, _) = samples((3_600, row, step), watts, |_| true);
            let by = |window_rules| {
                let settings = FoldSettings { window_rules, ..FoldSettings::default() };
                sums_of(Meter::Node, &samples, settings)
            };
            assert_eq!(by(6), by(7), "each {row} s, {step} J, {seed}");
        }
    }
}

#[test]
fn windows_have_what_a_counter_gives_beyond_the_power_that_counts_instead_of_it() {
    for factor in [0.5, 0.9, 1.0, 1.25] {
        let (samples, drawn) = samples((21_600, 10, 360e3), |_| 1_000.0, |_| true);
        let mut metered = Metered::new(Meter::Node, 21_600, samples[0]);
        for sample in &samples[1..] {
            metered.take(EnergySample { power: sample.power.map(|watts| watts * factor), ..*sample }, LivenessState::Live);
        }
        let difference: f64 = metered.gpu.slices.iter().map(|sums| sums.counter_difference).sum();
        let expected = drawn * (1.0 - factor);
        assert!((difference - expected).abs() <= 2.0 * 360e3 * (1.0 - factor).abs() + 10e3, "{factor}: {difference}, {expected}");
    }
}

#[test]
fn power_and_counter_in_rows_by_turns_count_as_they_come() {
    // Power ends an hour before the counter. At the begin the counter shows one value twice.
    for (step, factor) in [(1.0, 0.9), (1.0, 1.1), (36e3, 0.9), (36e3, 1.0), (36e3, 1.25)] {
        let (samples, drawn) = samples((21_600, 5, step), |_| 400.0, |_| true);
        let first = samples[0].energy;
        let of_row = |(i, sample): (usize, &EnergySample)| EnergySample {
            power: sample.power.filter(|_| i % 2 == 0 && i < 3_600).map(|watts| watts * factor),
            energy: if i <= 3 { first } else { sample.energy }.filter(|_| i == 0 || i % 2 == 1 || i >= 3_600),
            ..*sample
        };
        let by_turns: Vec<EnergySample> = samples.iter().enumerate().map(of_row).collect();
        let (windows, beside) = sums_of(Meter::Gpu, &by_turns, FoldSettings::default());
        let energy = windows.iter().sum::<f64>() + beside;
        let by_power = drawn * (5.0 + factor) / 6.0;
        let (least, most) =
            (drawn.min(by_power.min(drawn * factor)) - 2.0 * step - 4e3, drawn.max(drawn * factor) + 2.0 * step + 4e3);
        assert!((least..=most).contains(&energy), "{step} J, power × {factor}: {energy} J of {drawn}");
        if step <= 1.0 {
            let highest = windows.iter().fold(0.0, |most: f64, joules| most.max(*joules));
            assert!(highest < 24e3 * 1.3, "power × {factor}: {highest} J in one window");
        }
    }
}

#[test]
fn each_job_on_a_fine_counter_has_all_of_its_energy() {
    // Power is read low in the first row of each job of a minute.
    let (samples, drawn) = samples((7_200, 10, 1e-3), |_| 300.0, |_| true);
    let mut metered = Metered::new(Meter::Gpu, 7_200, samples[0]);
    for (i, sample) in samples.iter().enumerate().skip(1) {
        let watts = if i % 6 < 2 { 75.0 } else { 400.0 };
        metered.take(EnergySample { tenure: Some(i as u64 / 6), power: Some(watts), ..*sample }, LivenessState::Live);
    }
    let (windows, beside) = metered.finish();
    // The first of the six rows of a tenure begins it.
    let energy = windows.iter().sum::<f64>() + beside;
    assert!((energy / drawn - 5.0 / 6.0).abs() < 0.002, "{energy} J of {drawn}");
}

#[test]
fn a_fine_counter_that_repeats_a_value_before_a_hole_counts_itself() {
    let (samples, drawn) = samples((3_600, 1, 1e-3), |_| 400.0, |_| true);
    let mut of_hole = samples.clone();
    of_hole[1_000].energy = of_hole[999].energy;
    for (second, sample) in of_hole.iter_mut().enumerate() {
        sample.power = Some(360.0);
        sample.energy = sample.energy.filter(|_| !(1_001..1_151).contains(&second));
    }
    let (windows, beside) = sums_of(Meter::Gpu, &of_hole, FoldSettings::default());
    let energy = windows.iter().sum::<f64>() + beside;
    assert!((energy - drawn).abs() < 500.0, "{energy} J of {drawn}");
}
