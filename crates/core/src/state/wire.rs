//! The second, fourth, sixth and eighth form of a state record: compact, because state is what most bytes of a step are.
//!
//! A byte that names the form, then the block in postcard's encoding. Times are microseconds, most of them as the difference to
//! one nearby; what nearly always has one value is left out if it has it. The head changes often and is one a workload, so it
//! stays JSON. These types are the form: a field is never added, removed or moved, a new form gets a byte of its own.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{CounterScope, Meter, Origin};
use serde::{Deserialize, Serialize};

use super::{decode, encode};
use crate::window::coarse_counter::CoarseCounter;
use crate::window::counter::CounterCheck;
use crate::window::energy::{EnergyBasis, EnergySample, GAUGES, Gauges, GpuSums, LastCounterSample, PendingStep, PowerSegment};
use crate::window::progress::{COUNTERS, CounterState, RankSums, TimedValue};
use crate::workload::source::{GpuSource, Liveness, LivenessState, RankSource};

/// First byte of a [`WireBlock`]; the first form is a JSON object.
pub const BLOCK_FORM: u8 = 2;
/// First byte of a [`CheckedBlock`].
pub const CHECKED_FORM: u8 = 4;
/// First byte of the form before the present one, a [`BridgedBlock`].
pub const BRIDGED_FORM: u8 = 6;
/// First byte of the present form, a [`CoarseBlock`].
pub const FORM: u8 = 8;

/// A block with the counters of its GPUs whose rises may be far apart.
#[derive(Serialize, Deserialize)]
pub struct CoarseBlock<'a> {
    #[serde(borrow)]
    pub bridged: BridgedBlock<'a>,
    /// Of the GPUs that have such a counter.
    pub coarse: Vec<WireCoarseCounter>,
}

impl CoarseBlock<'_> {
    pub fn write(&self) -> Vec<u8> {
        let block = &self.bridged.checked.block;
        encode(FORM, self, 64 + block.head.map_or(0, <[u8]>::len) + 512 * (block.gpus.len() + block.ranks.len()))
    }
}

impl<'a> CoarseBlock<'a> {
    /// Reads the bytes that follow the first byte.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let Self { bridged, coarse } = decode(bytes)?;
        Ok(Self { bridged: bridged.with_equal_counts()?, coarse })
    }
}

/// The energy counter of one GPU whose rises may be far apart.
#[derive(Serialize, Deserialize)]
pub struct WireCoarseCounter {
    /// Number of the GPU in the block.
    gpu: u32,
    stalled_seconds: f64,
    counts_by_power: bool,
    rise_after_stall: f64,
    /// 1: yes.
    begins_anew: u32,
    sooner_rises: u32,
    balance: f64,
    still_seconds: f64,
    expected: f64,
    /// Microseconds since the epoch; 0: `None`.
    withheld_since: i64,
    /// Slices with joules of the counter less those of power, and how many.
    differences: Vec<(u32, f64)>,
}

impl WireCoarseCounter {
    /// Returns those of a block's GPUs.
    pub fn of_gpus(gpus: &[GpuSource]) -> Vec<Self> {
        let of = |(gpu, number): (&GpuSource, u32)| {
            let coarse = gpu.check.coarse;
            let differences = gpu.slices.iter().map(|sums| sums.counter_difference);
            let counter = Self {
                gpu: number,
                stalled_seconds: coarse.stalled_seconds,
                counts_by_power: coarse.counts_by_power,
                rise_after_stall: coarse.rise_after_stall,
                begins_anew: u32::from(coarse.begins_anew),
                sooner_rises: coarse.sooner_rises,
                balance: coarse.balance,
                still_seconds: coarse.still_seconds,
                expected: coarse.expected,
                withheld_since: coarse.withheld_since.map_or(0, EventTime::micros),
                differences: (0..).zip(differences).filter(|(_, joules)| *joules != 0.0).collect(),
            };
            (coarse != CoarseCounter::default() || !counter.differences.is_empty()).then_some(counter)
        };
        gpus.iter().zip(0..).filter_map(of).collect()
    }

    /// Puts it back into its GPU, one of those that the block describes.
    pub fn restore(&self, gpus: &mut [GpuSource]) {
        if let Some(gpu) = gpus.get_mut(self.gpu as usize) {
            gpu.check.coarse = CoarseCounter {
                stalled_seconds: self.stalled_seconds,
                counts_by_power: self.counts_by_power,
                rise_after_stall: self.rise_after_stall,
                sooner_rises: self.sooner_rises,
                balance: self.balance,
                still_seconds: self.still_seconds,
                expected: self.expected,
                withheld_since: (self.withheld_since != 0).then(|| EventTime::from_micros(self.withheld_since)),
                begins_anew: self.begins_anew == 1,
            };
            for (i, joules) in &self.differences {
                if let Some(sums) = gpu.slices.get_mut(*i as usize) {
                    sums.counter_difference = *joules;
                }
            }
        }
    }
}

/// A block with the checks of its counters, and the power readings that wait for the next one.
#[derive(Serialize, Deserialize)]
pub struct BridgedBlock<'a> {
    #[serde(borrow)]
    pub checked: CheckedBlock<'a>,
    /// Of the GPUs that have such a reading.
    pub power: Vec<WireLastPower>,
}

impl<'a> BridgedBlock<'a> {
    /// Reads the bytes that follow the first byte.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        decode::<Self>(bytes)?.with_equal_counts()
    }

    fn with_equal_counts(self) -> Result<Self, String> {
        Ok(Self { checked: self.checked.with_equal_counts()?, ..self })
    }
}

/// The last sample with power of one GPU, while the energy since it is unknown.
#[derive(Serialize, Deserialize)]
pub struct WireLastPower {
    /// Number of the GPU in the block.
    gpu: u32,
    sample: WireSample,
}

impl WireLastPower {
    /// Returns those of a block's GPUs.
    pub fn of_gpus(gpus: &[GpuSource]) -> Vec<Self> {
        let of = |(gpu, number): (&GpuSource, u32)| {
            let sample = WireSample::of(gpu.last_power_sample.as_ref()?, gpu.liveness.last);
            Some(Self { gpu: number, sample })
        };
        gpus.iter().zip(0..).filter_map(of).collect()
    }

    /// Puts it back into its GPU, one of those that the block describes.
    pub fn restore(&self, gpus: &mut [GpuSource]) {
        if let Some(gpu) = gpus.get_mut(self.gpu as usize) {
            gpu.last_power_sample = Some(self.sample.read(gpu.liveness.last));
        }
    }
}

/// A block, and the check of each GPU's energy counter.
#[derive(Serialize, Deserialize)]
pub struct CheckedBlock<'a> {
    #[serde(borrow)]
    pub block: WireBlock<'a>,
    /// Counter checks in the order of the block's GPUs.
    pub checks: Vec<WireCounterCheck>,
}

impl<'a> CheckedBlock<'a> {
    /// Reads the bytes that follow the first byte.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        decode::<Self>(bytes)?.with_equal_counts()
    }

    /// Returns an error unless each GPU has its check.
    fn with_equal_counts(self) -> Result<Self, String> {
        let (checks, gpus) = (self.checks.len(), self.block.gpus.len());
        if checks == gpus { Ok(self) } else { Err(format!("it holds the counters of {checks} GPUs, but {gpus} GPUs")) }
    }
}

/// State of the check of one GPU's energy counter.
#[derive(Serialize, Deserialize)]
pub struct WireCounterCheck {
    counted: f64,
    integral: f64,
    steps: u32,
    waiting_steps: u32,
    power_unknown: bool,
    /// Slices with contradicted time, and how much.
    contradicted_slices: Vec<(u32, i64)>,
    /// Steps not summed yet that are contradicted.
    pending: Vec<u32>,
}

impl WireCounterCheck {
    pub fn of(gpu: &GpuSource) -> Self {
        let CounterCheck { counted, integral, steps, waiting_steps, power_unknown, .. } = gpu.check;
        let contradicted = gpu.slices.iter().map(|sums| sums.contradicted);
        let pending = gpu.pending.iter().zip(0..).filter(|(step, _)| step.contradicted);
        Self {
            counted,
            integral,
            steps,
            waiting_steps,
            power_unknown,
            contradicted_slices: (0..).zip(contradicted).filter(|(_, micros)| *micros != 0).collect(),
            pending: pending.map(|(_, i)| i).collect(),
        }
    }

    /// Puts it back into the source that the block describes.
    pub fn restore(&self, gpu: &mut GpuSource) {
        let Self { counted, integral, steps, waiting_steps, power_unknown, .. } = *self;
        gpu.check = CounterCheck { counted, integral, steps, waiting_steps, power_unknown, ..CounterCheck::default() };
        for (i, micros) in &self.contradicted_slices {
            if let Some(sums) = gpu.slices.get_mut(*i as usize) {
                sums.contradicted = *micros;
            }
        }
        for i in &self.pending {
            if let Some(step) = gpu.pending.get_mut(*i as usize) {
                step.contradicted = true;
            }
        }
    }
}

/// Some of a workload's sources, and its head in the first block.
#[derive(Serialize, Deserialize)]
pub struct WireBlock<'a> {
    pub workload: &'a str,
    pub number: u32,
    /// Blocks of the workload.
    pub of: u32,
    /// JSON.
    #[serde(borrow)]
    pub head: Option<&'a [u8]>,
    pub gpus: Vec<WireGpu<'a>>,
    pub ranks: Vec<WireRank<'a>>,
}

impl<'a> WireBlock<'a> {
    /// Reads the bytes that follow the first byte.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

/// A value that this release does not know.
#[derive(Debug, thiserror::Error)]
#[error("{0} is no {1} of this release")]
pub struct UnknownCode(u8, &'static str);

/// Numbers of the variants: fixed for good, whatever order the types have.
macro_rules! codes {
    ($to:ident, $from:ident, $type:ident { $($variant:ident = $code:literal),* }) => {
        fn $to(value: $type) -> u8 {
            match value { $($type::$variant => $code),* }
        }

        fn $from(code: u8) -> Result<$type, UnknownCode> {
            match code { $($code => Ok($type::$variant),)* _ => Err(UnknownCode(code, stringify!($type))) }
        }
    };
}

codes!(meter_code, meter_of, Meter { Gpu = 0, Module = 1, Node = 2, Wall = 3 });
codes!(origin_code, origin_of, Origin { Measured = 0, Imported = 1, Simulated = 2 });
codes!(scope_code, scope_of, CounterScope { Global = 0, Rank = 1 });
codes!(kind_code, kind_of, EnergyBasis { Counter = 0, Instant = 1, Average = 2 });
codes!(life_code, life_of, LivenessState { Live = 0, Idle = 1, Lagging = 2, Ended = 3 });

fn micros_since(time: EventTime, base: EventTime) -> i64 {
    time.micros() - base.micros()
}

fn some_unless(value: f64, usual: f64) -> Option<f64> {
    (value.to_bits() != usual.to_bits()).then_some(value)
}

#[derive(Serialize, Deserialize)]
struct WireLiveness {
    last: i64,
    capped: i64,
    clock: i64,
    lagging_since: Option<i64>,
    life: u8,
    is_retired: bool,
    retired_at: Option<i64>,
    silence: Option<(i64, i64)>,
}

impl WireLiveness {
    fn of(liveness: &Liveness) -> Self {
        let base = liveness.last;
        Self {
            last: base.micros(),
            capped: micros_since(liveness.merge_time, base),
            clock: liveness.clock,
            lagging_since: liveness.lagging_since,
            life: life_code(liveness.life),
            is_retired: liveness.is_retired,
            retired_at: liveness.retired_at.map(|time| micros_since(time, base)),
            silence: liveness.silence.map(|(from, to)| (micros_since(from, base), micros_since(to, base))),
        }
    }

    fn read(&self) -> Result<Liveness, UnknownCode> {
        let last = EventTime::from_micros(self.last);
        let time = |micros: i64| last.plus_micros(micros);
        Ok(Liveness {
            last,
            merge_time: time(self.capped),
            clock: self.clock,
            lagging_since: self.lagging_since,
            life: life_of(self.life)?,
            is_retired: self.is_retired,
            retired_at: self.retired_at.map(time),
            silence: self.silence.map(|(from, to)| (time(from), time(to))),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WireSample {
    time: i64,
    energy: Option<f64>,
    power: Option<f64>,
    average: Option<f64>,
    share: Option<f64>,
    tenure: Option<u64>,
}

impl WireSample {
    fn of(sample: &EnergySample, base: EventTime) -> Self {
        Self {
            time: micros_since(sample.time, base),
            energy: sample.energy,
            power: sample.power,
            average: sample.average,
            share: some_unless(sample.share, 1.0),
            tenure: sample.tenure,
        }
    }

    fn read(&self, base: EventTime) -> EnergySample {
        EnergySample {
            time: base.plus_micros(self.time),
            energy: self.energy,
            power: self.power,
            average: self.average,
            share: self.share.unwrap_or(1.0),
            tenure: self.tenure,
        }
    }
}

/// The part of a slice between a source's first and last event, against a time nearby; `None` if both times are 0.
type WireExtent = Option<(i64, i64)>;

fn extent(from: EventTime, to: EventTime, base: EventTime) -> WireExtent {
    let zero = EventTime::default();
    ((from, to) != (zero, zero)).then(|| (micros_since(from, base), micros_since(to, base)))
}

fn extent_of(extent: WireExtent, base: EventTime) -> (EventTime, EventTime) {
    extent.map_or_else(Default::default, |(from, to)| (base.plus_micros(from), base.plus_micros(to)))
}

#[derive(Serialize, Deserialize)]
struct WireGpuSums {
    joules: f64,
    covered: [i64; 3],
    extent: WireExtent,
    largest: i64,
    events: u64,
    origin: u8,
    /// Bit `i`: gauge `i` is in `gauges`.
    mask: u8,
    gauges: Vec<(f64, u32)>,
    hottest: Option<f64>,
    unassigned: Option<f64>,
}

impl WireGpuSums {
    fn of(sums: &GpuSums, base: EventTime) -> Self {
        let used = |i: &usize| sums.counts[*i] > 0 || sums.sums[*i].to_bits() != 0;
        Self {
            joules: sums.joules,
            covered: sums.covered,
            extent: extent(sums.from, sums.to, base),
            largest: sums.largest,
            events: sums.events,
            origin: origin_code(sums.origin),
            mask: (0..GAUGES).filter(used).fold(0, |mask, i| mask | 1 << i),
            gauges: (0..GAUGES).filter(used).map(|i| (sums.sums[i], sums.counts[i])).collect(),
            hottest: sums.hottest,
            unassigned: some_unless(sums.unassigned, 0.0),
        }
    }

    fn read(&self, base: EventTime) -> Result<GpuSums, UnknownCode> {
        let (from, to) = extent_of(self.extent, base);
        let mut read = GpuSums {
            joules: self.joules,
            covered: self.covered,
            from,
            to,
            largest: self.largest,
            events: self.events,
            origin: origin_of(self.origin)?,
            hottest: self.hottest,
            unassigned: self.unassigned.unwrap_or(0.0),
            ..GpuSums::default()
        };
        for (i, (sum, count)) in (0..GAUGES).filter(|i| self.mask & 1 << i != 0).zip(&self.gauges) {
            (read.sums[i], read.counts[i]) = (*sum, *count);
        }
        Ok(read)
    }
}

#[derive(Serialize, Deserialize)]
struct WirePowerSegment {
    kind: u8,
    from: f64,
    /// `None` if it equals `from`.
    to: Option<f64>,
    /// Start, relative to the step's start.
    start: i64,
    /// Length, relative to the step's length.
    duration: i64,
}

#[derive(Serialize, Deserialize)]
struct WirePending {
    /// Start, relative to the end of the step before it.
    from: i64,
    /// End, relative to `from`.
    to: i64,
    power: Option<WirePowerSegment>,
    origin: u8,
    /// Bits of the gauges that are present, and their values.
    gauges: Option<(u8, Vec<f64>)>,
}

impl WirePending {
    fn of(step: &PendingStep, before: EventTime) -> Self {
        let length = micros_since(step.to, step.from);
        Self {
            from: micros_since(step.from, before),
            to: length,
            power: step.power.map(|segment| WirePowerSegment {
                kind: kind_code(segment.kind),
                from: segment.from,
                to: some_unless(segment.to, segment.from),
                start: micros_since(segment.start, step.from),
                duration: segment.duration.saturating_sub(length),
            }),
            origin: origin_code(step.origin),
            gauges: step.gauges.map(|gauges| (gauges.present(), gauges.iter().map(|(_, value)| value).collect())),
        }
    }

    fn read(&self, before: EventTime) -> Result<PendingStep, UnknownCode> {
        let from = before.plus_micros(self.from);
        let segment = |segment: &WirePowerSegment| {
            Ok(PowerSegment {
                kind: kind_of(segment.kind)?,
                from: segment.from,
                to: segment.to.unwrap_or(segment.from),
                start: from.plus_micros(segment.start),
                duration: segment.duration.saturating_add(self.to),
            })
        };
        let gauges = self.gauges.as_ref().map(|(mask, values)| {
            let mut gauges = [None; GAUGES];
            (0..GAUGES).filter(|i| mask & 1 << i != 0).zip(values).for_each(|(i, value)| gauges[i] = Some(*value));
            Gauges::from(gauges)
        });
        Ok(PendingStep {
            from,
            to: from.plus_micros(self.to),
            power: self.power.as_ref().map(segment).transpose()?,
            origin: origin_of(self.origin)?,
            gauges,
            contradicted: false,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WireLastCounterSample {
    sample: WireSample,
    summed: f64,
    idle: bool,
}

#[derive(Serialize, Deserialize)]
pub struct WireGpu<'a> {
    device: &'a str,
    collector: &'a str,
    meter: u8,
    liveness: WireLiveness,
    sample: WireSample,
    slices: Vec<WireGpuSums>,
    pending: Vec<WirePending>,
    lost: Option<WireLastCounterSample>,
    unassigned: Option<f64>,
    primary: bool,
}

impl<'a> WireGpu<'a> {
    pub fn of(gpu: &'a GpuSource) -> Self {
        let base = gpu.liveness.last;
        let ends = std::iter::once(base).chain(gpu.pending.iter().map(|step| step.to));
        Self {
            device: &gpu.device,
            collector: &gpu.collector,
            meter: meter_code(gpu.meter),
            liveness: WireLiveness::of(&gpu.liveness),
            sample: WireSample::of(&gpu.sample, base),
            slices: gpu.slices.iter().map(|sums| WireGpuSums::of(sums, base)).collect(),
            pending: gpu.pending.iter().zip(ends).map(|(step, before)| WirePending::of(step, before)).collect(),
            lost: gpu.last_counter_sample.map(|lost| WireLastCounterSample {
                sample: WireSample::of(&lost.sample, base),
                summed: lost.summed,
                idle: lost.idle,
            }),
            unassigned: some_unless(gpu.unassigned, 0.0),
            primary: gpu.primary,
        }
    }

    pub fn read(&self) -> Result<GpuSource, UnknownCode> {
        let liveness = self.liveness.read()?;
        let base = liveness.last;
        let mut pending: VecDeque<PendingStep> = VecDeque::with_capacity(self.pending.len());
        for step in &self.pending {
            let before = pending.back().map_or(base, |step| step.to);
            pending.push_back(step.read(before)?);
        }
        Ok(GpuSource {
            device: self.device.into(),
            collector: self.collector.into(),
            meter: meter_of(self.meter)?,
            liveness,
            sample: self.sample.read(base),
            slices: self.slices.iter().map(|sums| sums.read(base)).collect::<Result<_, _>>()?,
            pending,
            last_counter_sample: self.lost.as_ref().map(|lost| LastCounterSample {
                sample: lost.sample.read(base),
                summed: lost.summed,
                idle: lost.idle,
            }),
            last_power_sample: None,
            check: CounterCheck::default(),
            unassigned: self.unassigned.unwrap_or(0.0),
            primary: self.primary,
        })
    }
}

/// Time and value.
type WireTimedValue = Option<(i64, f64)>;

#[derive(Serialize, Deserialize)]
struct WireCounterState {
    total: WireTimedValue,
    rate: WireTimedValue,
    added: WireTimedValue,
    idle: bool,
}

impl WireCounterState {
    fn of(memory: &CounterState, base: EventTime) -> Self {
        let known = |known: Option<TimedValue>| known.map(|known| (micros_since(known.time, base), known.value));
        Self { total: known(memory.total), rate: known(memory.rate), added: known(memory.added), idle: memory.idle }
    }

    fn read(&self, base: EventTime) -> CounterState {
        let known = |known: WireTimedValue| known.map(|(time, value)| TimedValue { time: base.plus_micros(time), value });
        CounterState { total: known(self.total), rate: known(self.rate), added: known(self.added), idle: self.idle }
    }
}

#[derive(Serialize, Deserialize)]
struct WireRankSums {
    amounts: [f64; COUNTERS],
    redone: Option<[f64; COUNTERS]>,
    covered: [i64; COUNTERS],
    extent: WireExtent,
    largest: i64,
    events: u64,
    origin: u8,
    loss: f64,
    losses: u32,
    fell: bool,
    unassigned: Option<[f64; COUNTERS]>,
}

fn unless_nothing(amounts: [f64; COUNTERS]) -> Option<[f64; COUNTERS]> {
    amounts.iter().any(|amount| amount.to_bits() != 0).then_some(amounts)
}

impl WireRankSums {
    fn of(sums: &RankSums, base: EventTime) -> Self {
        Self {
            amounts: sums.amounts,
            redone: unless_nothing(sums.redone),
            covered: sums.covered,
            extent: extent(sums.from, sums.to, base),
            largest: sums.largest,
            events: sums.events,
            origin: origin_code(sums.origin),
            loss: sums.loss,
            losses: sums.losses,
            fell: sums.fell,
            unassigned: unless_nothing(sums.unassigned),
        }
    }

    fn read(&self, base: EventTime) -> Result<RankSums, UnknownCode> {
        let (from, to) = extent_of(self.extent, base);
        Ok(RankSums {
            amounts: self.amounts,
            redone: self.redone.unwrap_or_default(),
            covered: self.covered,
            from,
            to,
            largest: self.largest,
            events: self.events,
            origin: origin_of(self.origin)?,
            loss: self.loss,
            losses: self.losses,
            fell: self.fell,
            unassigned: self.unassigned.unwrap_or_default(),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub struct WireRank<'a> {
    number: u32,
    collector: &'a str,
    scope: u8,
    liveness: WireLiveness,
    counters: [WireCounterState; COUNTERS],
    stepped: i64,
    done: [f64; COUNTERS],
    slices: Vec<WireRankSums>,
    unassigned: Option<[f64; COUNTERS]>,
    #[serde(borrow)]
    span: Option<&'a str>,
    names_spans: bool,
    remaining_seconds: Option<f64>,
    checkpoint: Option<i64>,
}

impl<'a> WireRank<'a> {
    pub fn of(rank: &'a RankSource) -> Self {
        let base = rank.liveness.last;
        Self {
            number: rank.rank,
            collector: &rank.collector,
            scope: scope_code(rank.scope),
            liveness: WireLiveness::of(&rank.liveness),
            counters: std::array::from_fn(|i| WireCounterState::of(&rank.counters[i], base)),
            stepped: micros_since(rank.stepped, base),
            done: rank.done,
            slices: rank.slices.iter().map(|sums| WireRankSums::of(sums, base)).collect(),
            unassigned: unless_nothing(rank.unassigned),
            span: rank.span.as_deref(),
            names_spans: rank.names_spans,
            remaining_seconds: rank.remaining_seconds,
            checkpoint: rank.checkpoint.map(|time| micros_since(time, base)),
        }
    }

    pub fn read(&self) -> Result<RankSource, UnknownCode> {
        let liveness = self.liveness.read()?;
        let base = liveness.last;
        Ok(RankSource {
            rank: self.number,
            collector: self.collector.into(),
            scope: scope_of(self.scope)?,
            liveness,
            counters: std::array::from_fn(|i| self.counters[i].read(base)),
            stepped: base.plus_micros(self.stepped),
            done: self.done,
            slices: self.slices.iter().map(|sums| sums.read(base)).collect::<Result<_, _>>()?,
            unassigned: self.unassigned.unwrap_or_default(),
            span: self.span.map(Into::into),
            names_spans: self.names_spans,
            remaining_seconds: self.remaining_seconds,
            checkpoint: self.checkpoint.map(|time| base.plus_micros(time)),
        })
    }
}
