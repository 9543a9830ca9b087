//! Sources: one device's telemetry from one collector, or one rank's progress from one collector.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{CounterScope, JobLifecycle, Meter, Origin, TrainingProgress};
use serde::Deserialize;

use super::LogPosition;
use crate::settings::FoldSettings;
use crate::window::counter::{CounterCheck, CounterRules, CounterStep, EnergyCounterVerdict, MeteredBoard, is_evidence};
use crate::window::energy::{EnergySample, GpuSums, LastCounterSample, PendingStep, PowerSegment, add_step};
use crate::window::progress::{COUNTERS, CounterState, ProgressCounters, ProgressStep, RankSums, add_time, awaited_from};
use crate::window::{SliceEdges, slice_at, slice_mut};

/// Whether a workload waits for a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum LivenessState {
    Live,
    /// Silent for longer than the grace, in log time.
    Idle,
    /// Its events have lagged their stamps for longer than the grace.
    Lagging,
    /// Its last event was marked so.
    Ended,
}

/// Times at which events of a source were received, and whether it is live.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Liveness {
    /// Time of its newest event.
    pub last: EventTime,
    /// The same, not ahead of the log.
    #[serde(rename = "capped")]
    pub merge_time: EventTime,
    /// Log clock at its newest event.
    pub clock: i64,
    /// Log clock since which each event lagged its stamp by more than the grace.
    pub lagging_since: Option<i64>,
    pub life: LivenessState,
    /// The source is not expected back: it ended, or the job got another layout while it was silent.
    #[serde(rename = "gone")]
    pub is_retired: bool,
    /// Time from which it is not expected back, if it did not end.
    #[serde(default)]
    #[serde(rename = "gone_at")]
    pub retired_at: Option<EventTime>,
    /// Its newest gap, from its last event to the first one after it, or to the time at which it was no longer waited for.
    #[serde(default)]
    pub silence: Option<(EventTime, EventTime)>,
}

/// Copy of a source's liveness as the workload counts it. A copy of all of [`Liveness`] would wait for fields that were just
/// written: each sample would take two copies.
#[derive(Debug, Clone, Copy)]
pub struct LivenessSummary {
    pub merge_time: EventTime,
    pub is_live: bool,
    pub is_missing: bool,
    /// As of [`Liveness::next_change_clock`].
    pub next_change_clock: Option<i64>,
}

impl Liveness {
    pub fn summary(&self, settings: &FoldSettings) -> LivenessSummary {
        LivenessSummary {
            merge_time: self.merge_time,
            is_live: self.is_live(),
            is_missing: self.is_missing(),
            next_change_clock: self.next_change_clock(settings),
        }
    }

    pub fn new(last: EventTime, merge_time: EventTime, clock: i64) -> Self {
        Self {
            last,
            merge_time,
            clock,
            lagging_since: None,
            life: LivenessState::Live,
            is_retired: false,
            retired_at: None,
            silence: None,
        }
    }

    /// Takes a new event.
    pub fn record_event(
        &mut self,
        time: EventTime,
        merge_time: EventTime,
        stamp: EventTime,
        clock: i64,
        settings: &FoldSettings,
    ) {
        if self.life == LivenessState::Idle {
            self.silence = Some((self.last, self.retired_at.unwrap_or(time)));
        }
        self.last = time;
        self.merge_time = self.merge_time.max(merge_time);
        self.clock = clock;
        (self.is_retired, self.retired_at) = (false, None);
        let lags =
            settings.max_future.is_some() && settings.idle_grace.is_some_and(|grace| stamp.micros() - time.micros() > grace);
        self.lagging_since = lags.then(|| self.lagging_since.unwrap_or(clock));
        self.life = if self.lagged_out(clock, settings) { LivenessState::Lagging } else { LivenessState::Live };
    }

    fn lagged_out(&self, clock: i64, settings: &FoldSettings) -> bool {
        matches!((self.lagging_since, settings.idle_grace), (Some(since), Some(grace)) if clock - since >= grace)
    }

    /// Brings `life` up to the log clock.
    pub fn advance_clock(&mut self, clock: i64, settings: &FoldSettings) {
        if self.life == LivenessState::Ended || self.life == LivenessState::Idle {
            return;
        }
        if settings.idle_grace.is_some_and(|grace| clock - self.clock >= grace) {
            self.life = LivenessState::Idle;
        } else if self.lagged_out(clock, settings) {
            self.life = LivenessState::Lagging;
        }
    }

    /// Returns the log clock at which `life` changes if no event is received.
    pub fn next_change_clock(&self, settings: &FoldSettings) -> Option<i64> {
        let grace = settings.idle_grace?;
        match self.life {
            LivenessState::Live => Some(self.lagging_since.unwrap_or(self.clock).min(self.clock) + grace),
            LivenessState::Lagging => Some(self.clock + grace),
            LivenessState::Idle | LivenessState::Ended => None,
        }
    }

    /// Returns its life as far as the time before an event at `time` is concerned: across a silence for which no windows are
    /// opened, what its counters rose by belongs to none of them.
    pub fn life_at(&self, time: EventTime, settings: &FoldSettings) -> LivenessState {
        let silent = time.micros() - self.last.micros() > settings.longest_silence();
        if silent && self.life != LivenessState::Ended { LivenessState::Idle } else { self.life }
    }

    pub fn is_live(&self) -> bool {
        self.life == LivenessState::Live
    }

    /// Returns true if it is silent, and expected to report.
    pub fn is_missing(&self) -> bool {
        self.life == LivenessState::Idle && !self.is_retired
    }

    /// Returns whether it was silent, and expected to report, at the end of a window in which it sent no event. Whether it has
    /// come back since makes no difference, or the figures would depend on whose event of one instant comes first.
    pub fn is_missing_at(&self, end: EventTime) -> bool {
        let expected = self.retired_at.map_or(!self.is_retired, |since| end <= since);
        let now = self.life == LivenessState::Idle && self.last < end && expected;
        now || self.silence.is_some_and(|(from, to)| from < end && end <= to)
    }

    /// Stops expecting the source from this time on, if it is silent.
    pub fn give_up(&mut self, time: EventTime) {
        if self.is_missing() {
            (self.is_retired, self.retired_at) = (true, Some(time));
        }
    }

    pub fn mark_ended(&mut self) {
        self.life = LivenessState::Ended;
        self.is_retired = true;
    }
}

/// A device seen by a collector.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct GpuSource {
    pub device: Box<str>,
    pub collector: Box<str>,
    pub meter: Meter,
    #[serde(rename = "pulse")]
    pub liveness: Liveness,
    pub sample: EnergySample,
    /// Sums by open slice; fewer than the workload's slices if no event came yet.
    #[serde(rename = "stretches")]
    pub slices: VecDeque<GpuSums>,
    /// Steps that are not in `slices` yet, in order.
    #[serde(default)]
    pub pending: VecDeque<PendingStep>,
    /// The last sample with the energy counter, while those after it have none.
    #[serde(default, rename = "lost")]
    pub last_counter_sample: Option<LastCounterSample>,
    /// The last sample with power, while the energy since it is unknown and the next reading of power may show it.
    #[serde(default)]
    pub last_power_sample: Option<EnergySample>,
    /// Evidence for or against its counter.
    #[serde(default)]
    pub check: CounterCheck,
    /// Joules that no open slice can take, for the next window that closes.
    pub unassigned: f64,
    /// The device's energy of the newest closed window that has any came from here.
    pub primary: bool,
}

/// Most steps of one source that wait; beyond it the oldest are summed, and a run or span that begins within them later is
/// divided by time and counted.
const MAX_PENDING: usize = 1_024;

/// A counter that has stood still for no longer has not moved yet: NVML's move every 20 to 100 ms. In microseconds.
const COUNTER_PAUSE: i64 = crate::settings::SECOND;

impl GpuSource {
    /// Returns a source with its first sample.
    pub fn new(device: &str, collector: &str, meter: Meter, liveness: Liveness, sample: EnergySample) -> Self {
        Self {
            device: device.into(),
            collector: collector.into(),
            meter,
            liveness,
            sample,
            slices: VecDeque::new(),
            pending: VecDeque::new(),
            last_counter_sample: None,
            last_power_sample: None,
            check: CounterCheck::default(),
            unassigned: 0.0,
            primary: false,
        }
    }

    /// Adds joules of unknown or closed time, reported by a sample at `time`. They belong to the sample's window, whichever
    /// others are open. Otherwise they would depend on the order of events of one instant.
    fn add_unassigned(&mut self, joules: f64, time: EventTime, slice_edges: &SliceEdges) {
        match slice_at(slice_edges, time).filter(|_| joules != 0.0) {
            Some(i) => slice_mut(&mut self.slices, i).unassigned += joules,
            None => self.unassigned += joules,
        }
    }

    /// Returns the unassigned amount for the window of the first `n` slices.
    pub fn unassigned_of_first_slices(&self, n: usize) -> f64 {
        self.unassigned + self.slices.iter().take(n).map(|sums| sums.unassigned).sum::<f64>()
    }

    /// Tests the counter of a new sample against power and the board, and removes it from the sample if it has not
    /// moved, or from the sample before if it is contradicted. Returns whether power counts instead of it.
    pub fn check_counter(
        &mut self,
        sample: &mut EnergySample,
        life: LivenessState,
        board: &MeteredBoard,
        slice_edges: &SliceEdges,
        settings: &FoldSettings,
    ) -> bool {
        if life == LivenessState::Ended || self.sample.tenure != sample.tenure {
            if settings.counts_coarse_counters_by_power() {
                self.check.begin_anew();
            } else {
                self.check.reset();
            }
            return false;
        }
        let is_live = life != LivenessState::Idle;
        let by_power = PowerSegment::of_power(&self.sample, sample, if is_live { settings.power_gap } else { 0 });
        let is_sought = by_power.is_none() && settings.counts_coarse_counters_by_power() && is_live;
        let near = if is_sought { self.near_power_reading(sample, settings.power_gap) } else { None };
        let power_known = by_power.is_some() || near.is_some();
        let step = self.counter_step(sample, by_power.as_ref(), is_live, settings);
        // A rise that power may replace is compared with it once power is known up to it. If readings came since and none of them
        // beside the counter, as in rows by turns, none will.
        let may_be_replaced = |step: &CounterStep| self.check.may_be_replaced(step, settings.power_gap as f64 / 1e6);
        let comes_apart = near.zip(self.check.coarse.withheld_since).is_some_and(|(reading, since)| reading.time > since);
        let is_early = near.is_some() && !comes_apart && !sample.has_power() && step.as_ref().is_some_and(may_be_replaced);
        if is_early {
            self.check.coarse.withheld_since.get_or_insert(sample.time);
            sample.energy = None;
        } else if sample.energy.is_some() {
            self.check.coarse.withheld_since = None;
        }
        let step = step.filter(|_| !is_early);
        let verdict = step.map(|step| self.check.check_step(&step, board));
        let is_usual = settings.counts_coarse_counters_by_power()
            && step
                .zip(verdict)
                .is_some_and(|(step, verdict)| self.take_coarse_step(sample, &step, verdict, power_known, slice_edges, settings));
        match verdict {
            Some(EnergyCounterVerdict::Stalled) => sample.energy = None,
            Some(EnergyCounterVerdict::FirstRise | EnergyCounterVerdict::Contradicted) => {
                (self.sample.energy, self.last_counter_sample) = (None, None);
            }
            Some(EnergyCounterVerdict::Believed) | None => {}
        }
        // As in `segment_since_last`: a sample without a counter after one with it.
        let waits = sample.energy.is_none() && (self.last_counter_sample.is_some() || self.sample.energy.is_some());
        if waits {
            self.check.count_waiting_step(power_known);
        } else {
            self.check.reset();
        }
        !is_usual && !matches!(verdict, Some(EnergyCounterVerdict::Believed) | None)
    }

    /// Takes the step of a counter whose rises may be far apart: at such a rise, power counts for the time before it. Returns whether
    /// power counts without a contradiction: the counter has not risen for no longer than its steps explain, or rose for the first time.
    fn take_coarse_step(
        &mut self,
        sample: &EnergySample,
        step: &CounterStep,
        verdict: EnergyCounterVerdict,
        power_known: bool,
        slice_edges: &SliceEdges,
        settings: &FoldSettings,
    ) -> bool {
        let base = self.counter_base();
        let raw = sample.energy.zip(base.energy).map_or(0.0, |(now, before)| now - before);
        let share = (base.share + sample.share) * 0.5;
        let power_known = power_known && !self.check.power_unknown;
        self.check.note_standstill(step, verdict);
        if self.check.coarse.take_step(step, raw, verdict, power_known, settings.power_gap as f64 / 1e6) {
            // The counter goes on from here, as if it had been away before.
            (self.sample.energy, self.last_counter_sample) = (None, None);
            if let Some((i, joules)) = slice_at(slice_edges, sample.time).zip(step.evidence()) {
                slice_mut(&mut self.slices, i).counter_difference += step.joules - joules;
            }
        } else if verdict == EnergyCounterVerdict::Believed
            && step.joules > 0.0
            && !self.is_apart(sample, step, settings.power_gap)
        {
            let less = self.check.coarse.take_off(step.joules) / share;
            let base = self.last_counter_sample.as_mut().map_or(&mut self.sample, |lost| &mut lost.sample);
            base.energy = base.energy.map(|before| before + less);
        }
        let explains = |by_power| self.check.coarse.explains_standstill(by_power, share, self.check.steps > 0);
        match verdict {
            EnergyCounterVerdict::Stalled => step.integral.is_none_or(explains),
            EnergyCounterVerdict::FirstRise => true,
            EnergyCounterVerdict::Believed | EnergyCounterVerdict::Contradicted => false,
        }
    }

    /// Returns the newest reading of power before a sample, if it is no older than the gap: between two such readings power is known,
    /// and the next one may still come.
    fn near_power_reading(&self, sample: &EnergySample, power_gap: i64) -> Option<EnergySample> {
        let reading = [Some(self.sample), self.last_power_sample].into_iter().flatten().find(EnergySample::has_power)?;
        let is_near = reading.tenure == sample.tenure && sample.time.micros() - reading.time.micros() <= power_gap;
        is_near.then_some(reading)
    }

    /// Returns whether the counter was away for too long before a step, or across a silence, to replace power.
    fn is_apart(&self, sample: &EnergySample, step: &CounterStep, power_gap: i64) -> bool {
        !step.is_live || self.last_counter_sample.is_some_and(|lost| sample.time.micros() - lost.sample.time.micros() > power_gap)
    }

    /// Returns the newest sample whose counter was believed.
    fn counter_base(&self) -> EnergySample {
        self.last_counter_sample.map_or(self.sample, |lost| lost.sample)
    }

    /// Returns the change of the counter since it was last believed; `None` if there is no step to test.
    fn counter_step(
        &self,
        sample: &EnergySample,
        by_power: Option<&PowerSegment>,
        is_live: bool,
        settings: &FoldSettings,
    ) -> Option<CounterStep> {
        let base = self.counter_base();
        let share = (base.share + sample.share) * 0.5;
        let joules = (sample.energy? - base.energy?) * share;
        let seconds = sample.time.seconds_since(base.time);
        let measured = self.power_since_counter(sample, by_power, is_live, settings);
        let held = match measured {
            None if settings.holds_power_for_counters() => self.held_watts(sample, settings.power_gap),
            _ => None,
        };
        let held = held.map(|(watts, time)| (watts * share * seconds, time >= base.time));
        // A rise is of all the time since the one before. A reading of power shows none of it beyond the gap.
        let still = if joules > 0.0 { self.check.coarse.still_seconds } else { 0.0 };
        let is_measured = measured.is_some_and(|joules| is_evidence(joules, seconds));
        let is_long = joules > 0.0
            && settings.counts_coarse_counters_by_power()
            && sample.time.micros() - base.time.micros() > settings.power_gap;
        let (seconds, measured, held) = match (is_measured, still > 0.0, is_long) {
            (false, true, _) => (seconds + still, None, None),
            (false, false, true) => (seconds, measured, None),
            _ => (seconds, measured, held),
        };
        Some(CounterStep {
            // A falling counter is a reset, even without a share in it.
            joules: if sample.energy < base.energy { -1.0 } else { joules },
            seconds,
            integral: measured.or(held.map(|(joules, _)| joules)),
            // However many samples there were, it is one reading, and none if it was counted with an earlier step.
            steps: held.map_or(self.check.waiting_steps + 1, |(_, is_new)| u32::from(is_new)),
            waiting: self.last_counter_sample.is_some(),
            is_live: is_live && !self.last_counter_sample.is_some_and(|lost| lost.idle),
            is_held: held.is_some(),
            rules: CounterRules {
                starts_at_a_rise: settings.starts_coarse_counters_at_a_rise(),
                // Without a share, a rise is no standstill.
                counts_by_power: settings.counts_coarse_counters_by_power() && base.share + sample.share > 0.0,
            },
        })
    }

    /// Returns the joules by power since the newest sample whose counter was believed, if it is known up to this sample. `by_power`:
    /// since the sample before. By rules 7 readings without power may lie between.
    fn power_since_counter(
        &self,
        sample: &EnergySample,
        by_power: Option<&PowerSegment>,
        is_live: bool,
        settings: &FoldSettings,
    ) -> Option<f64> {
        let is_bridged = settings.counts_coarse_counters_by_power() && is_live;
        let since = self.counter_base().time;
        let bridge = || {
            let reading = self.last_power_sample.filter(|reading| is_bridged && since <= reading.time)?;
            PowerSegment::of_power(&reading, sample, settings.power_gap)
        };
        let newest = by_power.copied().or_else(bridge).filter(|_| !self.check.power_unknown)?;
        Some(self.joules_since_counter() + newest.total_joules())
    }

    /// Returns the joules by power since the newest sample whose counter was believed.
    fn joules_since_counter(&self) -> f64 {
        self.last_counter_sample.map_or(0.0, |lost| {
            let waiting = self.pending.iter().filter(|step| step.to > lost.sample.time);
            lost.summed + waiting.map(PendingStep::joules).sum::<f64>()
        })
    }

    /// Returns the newest reading of power that is no older than the gap, in watts of the whole device, and its time.
    fn held_watts(&self, sample: &EnergySample, power_gap: i64) -> Option<(f64, EventTime)> {
        let newest = if sample.has_power() { Some(*sample) } else { self.near_power_reading(sample, power_gap) }?;
        Some((newest.power.or(newest.average)?, newest.time))
    }

    /// Returns the energy between the newest sample and this one, which came while the source was so alive.
    ///
    /// If power is missing in some samples, it goes straight from the last reading before them to the first one after them.
    pub fn segment_since_last(
        &mut self,
        sample: &EnergySample,
        life: LivenessState,
        slice_edges: &SliceEdges,
        settings: &FoldSettings,
    ) -> Option<PowerSegment> {
        let idle = life == LivenessState::Idle;
        let bridges = settings.bridges_missing_power() && !idle;
        let waiting = self.last_power_sample.filter(|_| bridges);
        if life == LivenessState::Ended || self.sample.tenure != sample.tenure {
            (self.last_counter_sample, self.last_power_sample) = (None, None);
            return None;
        }
        let between = PowerSegment::between(&self.sample, sample, if idle { 0 } else { settings.power_gap });
        let bridge = waiting.and_then(|reading| PowerSegment::of_power(&reading, sample, settings.power_gap));
        if let Some(bridge) = &bridge {
            self.fill_unknown_steps(bridge, sample.time, slice_edges);
        }
        let by_power = between.or(bridge);
        let segment = self.segment_by_counter(sample, by_power, idle, slice_edges, settings);
        self.last_power_sample = None;
        if segment.is_none() && bridges {
            let reading = waiting.unwrap_or(self.sample);
            let may_end = sample.time.micros() - reading.time.micros() < settings.power_gap;
            self.last_power_sample = (reading.has_power() && may_end).then_some(reading);
        }
        if self.last_power_sample.is_none() {
            self.check.coarse.settle_expected(by_power.is_some());
        }
        segment
    }

    /// Returns the energy since the newest sample, `between` as the readings show it, with what the counter adds: it may be lost,
    /// or back.
    fn segment_by_counter(
        &mut self,
        sample: &EnergySample,
        between: Option<PowerSegment>,
        idle: bool,
        slice_edges: &SliceEdges,
        settings: &FoldSettings,
    ) -> Option<PowerSegment> {
        if self.last_counter_sample.is_none() && self.sample.energy.is_some() && sample.energy.is_none() {
            self.last_counter_sample = Some(LastCounterSample { sample: self.sample, summed: 0.0, idle });
        } else if let Some(lost) = &mut self.last_counter_sample {
            lost.idle |= idle;
            if sample.energy.is_some() {
                return self.on_counter_back(sample, between, slice_edges, settings);
            }
        } else if idle {
            // The counter gives the energy of the gap, but not its time within the gap.
            let rise = between.map_or(0.0, |segment| segment.total_joules());
            let is_coarse = settings.counts_coarse_counters_by_power() && rise > 0.0;
            let excess = if is_coarse { self.check.coarse.take_excess(rise, 0.0) } else { rise };
            self.add_unassigned(excess, sample.time, slice_edges);
        }
        between.filter(|_| !idle)
    }

    /// Gives power to the steps since its start whose energy is unknown; a sample at `time` reports it. What lies in closed time is
    /// unassigned.
    fn fill_unknown_steps(&mut self, power: &PowerSegment, time: EventTime, slice_edges: &SliceEdges) {
        let newest = self.sample.time;
        let closed_since = |since: EventTime| {
            let open = || self.pending.iter().filter(move |step| step.to > since);
            // Sums of parts are not exact to the last bit: without closed time there are none of its joules.
            if newest.micros() - since.micros() <= open().map(PendingStep::micros).sum::<i64>() {
                return 0.0;
            }
            let joules: f64 = open().map(|step| power.joules_between(step.from, step.to)).sum();
            (power.joules_between(since, newest) - joules).max(0.0)
        };
        let closed = closed_since(power.start);
        let closed_for_counter = self.last_counter_sample.map(|lost| closed_since(lost.sample.time.max(power.start)));
        for step in self.pending.iter_mut().filter(|step| step.to > power.start && step.power.is_none()) {
            step.power = Some(*power);
        }
        self.add_unassigned(closed, time, slice_edges);
        if let (Some(lost), Some(joules)) = (&mut self.last_counter_sample, closed_for_counter) {
            lost.summed += joules;
        }
    }

    /// Applies a counter that is back: its energy replaces that of power in open time, and its excess over that in
    /// closed time is unassigned. Across a silence, or after more than the gap, the energy of power is kept, and the
    /// excess is unassigned.
    fn on_counter_back(
        &mut self,
        sample: &EnergySample,
        between: Option<PowerSegment>,
        slice_edges: &SliceEdges,
        settings: &FoldSettings,
    ) -> Option<PowerSegment> {
        let lost = self.last_counter_sample.take()?;
        let Some(whole) = PowerSegment::between(&lost.sample, sample, 0) else { return between };
        let since = lost.sample.time;
        let open = self.pending.iter().position(|step| step.to > since).unwrap_or(self.pending.len());
        let waiting: f64 = self.pending.range(open..).map(PendingStep::joules).sum();
        let newest = between.map_or(0.0, |segment| segment.joules_since(self.sample.time));
        if lost.idle || sample.time.micros() - since.micros() > settings.power_gap {
            let known = lost.summed + waiting + newest;
            let excess = if settings.counts_coarse_counters_by_power() {
                // The next reading of power will show the time since the newest one, too.
                let held = self.held_watts(sample, settings.power_gap).filter(|_| between.is_none() && !lost.idle);
                let share = (lost.sample.share + sample.share) * 0.5;
                let expected = held.map_or(0.0, |(watts, time)| watts * share * sample.time.seconds_since(time));
                self.check.coarse.expected = expected;
                self.check.coarse.take_excess(whole.total_joules(), known + expected)
            } else {
                (whole.total_joules() - known).max(0.0)
            };
            self.add_unassigned(excess, sample.time, slice_edges);
            return between;
        }
        // Steps in closed time are cut to nothing, wherever between the others they lie: of a steady flow only their
        // length matters.
        let waiting: i64 = self.pending.range(open..).map(PendingStep::micros).sum();
        let from = self.sample.time.plus_micros(-waiting);
        let closed = whole.joules_between(since, from).max(lost.summed);
        self.add_unassigned(closed - lost.summed, sample.time, slice_edges);
        let watts = (whole.total_joules() - closed).max(0.0) / sample.time.seconds_since(from);
        for step in self.pending.range_mut(open..) {
            step.power = Some(PowerSegment::constant(watts, step.from, step.to));
            step.contradicted = false;
        }
        Some(PowerSegment::constant(watts, self.sample.time, sample.time))
    }

    /// Returns the time up to which the counter, or power, is known, if the next sample may extend it.
    pub fn awaited_from(&self, power_gap: i64) -> Option<EventTime> {
        let counter = self.last_counter_sample.filter(|lost| !lost.idle).map(|lost| lost.sample.time);
        let power = self.last_power_sample.map(|reading| reading.time);
        let may_extend = |since: &EventTime| self.sample.time.micros() - since.micros() < power_gap;
        counter.into_iter().chain(power).filter(may_extend).min()
    }

    /// Takes a step; what lies in closed time is unassigned.
    pub fn add_step(&mut self, step: &mut PendingStep, slice_edges: &SliceEdges, settled: EventTime, power_gap: i64) {
        let open = slice_edges.front().map_or(step.to, |first| (*first).clamp(step.from, step.to));
        if open > step.from {
            let joules = step.power.map_or(0.0, |segment| segment.joules_between(step.from, open));
            self.add_unassigned(joules, step.to, slice_edges);
            note_summed(&mut self.last_counter_sample, step.to, joules);
            step.from = open;
        }
        if self.pending.is_empty() {
            // As in `slice_mut`.
            self.pending.reserve_exact(1);
        }
        self.pending.push_back(*step);
        let settled = self.awaited_from(power_gap).map_or(settled, |known| settled.min(known.plus_micros(1)));
        let Self { slices, pending, last_counter_sample: lost, .. } = self;
        let mut waiting = pending.len();
        // Summed where it lies: a step is large, and each passes here.
        while let Some(step) = pending.front().filter(|step| step.to < settled || waiting > MAX_PENDING) {
            add_to_slices(slices, lost, slice_edges, step);
            pending.pop_front();
            waiting -= 1;
        }
    }

    /// Believes a counter that has not moved for a moment when its window closes: its final value is exact.
    fn believe_pause(&mut self, end: EventTime) {
        let Some(since) = self.last_counter_sample.map(|lost| lost.sample.time) else { return };
        if self.sample.time.micros() - since.micros() > COUNTER_PAUSE {
            return;
        }
        for step in self.pending.iter_mut().filter(|step| step.contradicted && step.to > since && step.from < end) {
            step.power = Some(PowerSegment::constant(0.0, step.from, step.to));
            step.contradicted = false;
        }
    }

    /// Sums every step up to `end`; a step across it is divided there.
    pub fn sum_through(&mut self, slice_edges: &SliceEdges, end: EventTime) {
        self.believe_pause(end);
        while let Some(step) = self.pending.front().filter(|step| step.from < end).copied() {
            if step.to <= end {
                self.pending.pop_front();
                add_to_slices(&mut self.slices, &mut self.last_counter_sample, slice_edges, &step);
            } else {
                // The summed part counts as ending after the counter was lost, if the whole step does.
                let part = PendingStep { to: end, gauges: None, ..step };
                add_step(&mut self.slices, slice_edges, &part);
                note_summed(&mut self.last_counter_sample, step.to, part.joules());
                self.pending[0].from = end;
                break;
            }
        }
    }
}

/// Sums a step, also for a counter that was lost before it.
fn add_to_slices(
    slices: &mut VecDeque<GpuSums>,
    lost: &mut Option<LastCounterSample>,
    slice_edges: &SliceEdges,
    step: &PendingStep,
) {
    add_step(slices, slice_edges, step);
    if lost.is_some() {
        note_summed(lost, step.to, step.joules());
    }
}

fn note_summed(lost: &mut Option<LastCounterSample>, to: EventTime, joules: f64) {
    if let Some(lost) = lost.as_mut().filter(|lost| to > lost.sample.time) {
        lost.summed += joules;
    }
}

/// A rank seen by a collector.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RankSource {
    pub rank: u32,
    pub collector: Box<str>,
    pub scope: CounterScope,
    #[serde(rename = "pulse")]
    pub liveness: Liveness,
    #[serde(default)]
    pub counters: [CounterState; COUNTERS],
    /// Newest event that was not between two that report more.
    #[serde(default)]
    pub stepped: EventTime,
    /// Largest totals so far: up to these, work is done again.
    pub done: [f64; COUNTERS],
    #[serde(rename = "stretches")]
    pub slices: VecDeque<RankSums>,
    /// Amounts that no open slice can take, for the next window that closes.
    pub unassigned: [f64; COUNTERS],
    /// Its present span.
    pub span: Option<Box<str>>,
    /// It has named a span at least once.
    pub names_spans: bool,
    pub remaining_seconds: Option<f64>,
    pub checkpoint: Option<EventTime>,
}

impl RankSource {
    /// Returns whether an event at `time` is its first one of the job that began at `start`. What another rank reports at that
    /// instant is of the job before.
    pub fn is_first_after(&self, start: EventTime, time: EventTime) -> bool {
        let last = self.liveness.last;
        if self.rank == 0 { last < start && start <= time } else { last <= start && start < time }
    }

    /// Takes the counters of an event that came while the source was so alive; true if one fell.
    pub fn count_progress(
        &mut self,
        count: &ProgressCounters,
        life: LivenessState,
        slice_edges: &SliceEdges,
        origin: Origin,
        settings: &FoldSettings,
    ) -> bool {
        if life == LivenessState::Ended {
            let step = ProgressStep::advance_to(&mut self.counters, count, &mut self.done, false, settings.gaps());
            // Its reports from before it ended lead to nothing any more.
            self.counters = Default::default();
            ProgressStep::advance_to(&mut self.counters, count, &mut self.done, false, settings.gaps());
            self.stepped = count.time;
            return step.fell;
        }
        let idle = life == LivenessState::Idle;
        let step = ProgressStep::advance_to(&mut self.counters, count, &mut self.done, idle, settings.gaps());
        let has_counts = count.totals.iter().chain(&count.rates).any(Option::is_some);
        if idle {
            self.stepped = count.time;
        } else if has_counts || self.awaited_from(count.time, settings).is_none() {
            add_time(&mut self.slices, slice_edges, self.stepped, count.time, origin);
            self.stepped = count.time;
        }
        let elsewhere = step.add_to_slices(&mut self.slices, slice_edges);
        // As energy: it belongs to the window of the event that reported it.
        let aside = match slice_at(slice_edges, count.time).filter(|_| elsewhere != [0.0; COUNTERS]) {
            Some(i) => &mut slice_mut(&mut self.slices, i).unassigned,
            None => &mut self.unassigned,
        };
        (0..COUNTERS).for_each(|c| aside[c] += elsewhere[c]);
        step.fell
    }

    /// Returns the unassigned amount for the window of the first `n` slices.
    pub fn unassigned_of_first_slices(&self, n: usize) -> [f64; COUNTERS] {
        let mut sum = self.unassigned;
        for sums in self.slices.iter().take(n) {
            (0..COUNTERS).for_each(|c| sum[c] += sums.unassigned[c]);
        }
        sum
    }

    /// Returns its time for closing windows after this event: not past the time up to which its counters are known,
    /// while more may come.
    pub fn known_until(&self, event: &TrainingProgress, place: LogPosition, settings: &FoldSettings) -> EventTime {
        let known = self.awaited_from(event.time, settings).filter(|_| event.phase != JobLifecycle::Finished && !event.last);
        known.map_or(place.merge_time, |known| known.min(place.merge_time))
    }

    /// Returns the time up to which its counters are known, if an event at `time` left some out that the next one may have.
    pub fn awaited_from(&self, time: EventTime, settings: &FoldSettings) -> Option<EventTime> {
        awaited_from(&self.counters, time, settings.gaps())
    }
}

/// Sources by name without an allocation per look-up.
#[derive(Clone, Default)]
pub struct NameIndex {
    table: hashbrown::HashTable<u32>,
    hasher: foldhash::fast::FixedState,
}

impl std::fmt::Debug for NameIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NameIndex({})", self.table.len())
    }
}

impl NameIndex {
    fn hash(&self, key: &impl std::hash::Hash) -> u64 {
        use std::hash::BuildHasher;
        self.hasher.hash_one(key)
    }

    /// Returns the place of the item with this key, if `is` confirms it.
    pub fn find(&self, key: &impl std::hash::Hash, is: impl Fn(usize) -> bool) -> Option<usize> {
        self.table.find(self.hash(key), |i| is(*i as usize)).map(|i| *i as usize)
    }

    /// Adds a place under a key; `hash_of` gives the key's hash input of each place for growing.
    pub fn insert<K: std::hash::Hash>(&mut self, place: usize, key_of: impl Fn(usize) -> K) {
        let hasher = self.hasher.clone();
        let hash = |i: &u32| {
            use std::hash::BuildHasher;
            hasher.hash_one(key_of(*i as usize))
        };
        self.table.insert_unique(hash(&(place as u32)), place as u32, hash);
    }

    pub fn remove(&mut self, key: &impl std::hash::Hash, place: usize) {
        let hash = self.hash(key);
        if let Ok(entry) = self.table.find_entry(hash, |i| *i as usize == place) {
            entry.remove();
        }
    }

    pub fn clear(&mut self) {
        self.table.clear();
    }
}

#[cfg(test)]
mod coarse_counters;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SECOND;
    use crate::window::energy;

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * SECOND)
    }

    #[test]
    fn idle_once_the_log_is_the_grace_past_its_last_event() {
        let settings = FoldSettings::default();
        let mut pulse = Liveness::new(at(0), at(0), 0);
        pulse.advance_clock(119 * SECOND, &settings);
        assert_eq!((pulse.life, pulse.next_change_clock(&settings)), (LivenessState::Live, Some(120 * SECOND)));
        pulse.advance_clock(120 * SECOND, &settings);
        assert_eq!((pulse.life, pulse.next_change_clock(&settings)), (LivenessState::Idle, None));
    }

    #[test]
    fn a_clock_that_lags_for_long_is_not_waited_for_until_it_recovers() {
        let settings = FoldSettings::default();
        let mut pulse = Liveness::new(at(0), at(0), 0);
        for clock in [0, 60, 119] {
            pulse.record_event(at(clock - 300), at(clock - 300), at(clock), clock * SECOND, &settings);
            assert_eq!(pulse.life, LivenessState::Live, "after {clock} s");
        }
        pulse.record_event(at(-179), at(-179), at(120), 120 * SECOND, &settings);
        assert_eq!(pulse.life, LivenessState::Lagging);
        pulse.record_event(at(121), at(121), at(121), 121 * SECOND, &settings);
        assert_eq!(pulse.life, LivenessState::Live);
        let off = FoldSettings { max_future: None, ..settings };
        let mut pulse = Liveness::new(at(0), at(0), 0);
        pulse.record_event(at(1), at(1), at(9_000), 0, &off);
        pulse.record_event(at(2), at(2), at(9_200), 119 * SECOND, &off);
        assert_eq!(pulse.lagging_since, None);
    }

    #[test]
    fn an_event_that_lags_by_exactly_the_grace_does_not_lag() {
        let settings = FoldSettings::default();
        let mut pulse = Liveness::new(at(0), at(0), 0);
        pulse.record_event(at(0), at(0), at(120), 5 * SECOND, &settings);
        assert_eq!(pulse.lagging_since, None);
        pulse.record_event(at(1), at(1), EventTime::from_micros(121 * SECOND + 1), 6 * SECOND, &settings);
        assert_eq!(pulse.lagging_since, Some(6 * SECOND));
    }

    #[test]
    fn one_that_lags_is_due_to_be_idle_and_one_that_ended_is_due_to_nothing() {
        let settings = FoldSettings::default();
        let mut pulse = Liveness { life: LivenessState::Lagging, ..Liveness::new(at(0), at(0), 7 * SECOND) };
        assert_eq!(pulse.next_change_clock(&settings), Some(127 * SECOND));
        pulse.mark_ended();
        pulse.advance_clock(1_000 * SECOND, &settings);
        assert_eq!((pulse.life, pulse.next_change_clock(&settings), pulse.is_missing()), (LivenessState::Ended, None, false));
    }

    #[test]
    fn across_a_silence_longer_than_the_longest_a_source_was_idle() {
        let settings = FoldSettings { max_open_windows: 10, ..FoldSettings::default() };
        let pulse = Liveness::new(at(0), at(0), 0);
        assert_eq!(pulse.life_at(at(600), &settings), LivenessState::Live);
        assert_eq!(pulse.life_at(EventTime::from_micros(600 * SECOND + 1), &settings), LivenessState::Idle);
        assert_eq!(Liveness { life: LivenessState::Ended, ..pulse }.life_at(at(9_000), &settings), LivenessState::Ended);
    }

    #[test]
    fn a_source_is_missed_from_its_last_event_until_it_comes_back_or_nobody_expects_it() {
        let misses = |pulse: Liveness| [50, 51, 100, 101, 200, 201].map(|end| pulse.is_missing_at(at(end)));
        let live = Liveness::new(at(50), at(50), 0);
        assert_eq!(misses(live), [false; 6]);
        let mut idle = Liveness { life: LivenessState::Idle, ..live };
        assert_eq!(misses(idle), [false, true, true, true, true, true]);
        // It comes back at 200 s.
        let mut back = idle;
        back.record_event(at(200), at(200), at(200), 0, &FoldSettings::default());
        assert_eq!((misses(back), back.life), ([false, true, true, true, true, false], LivenessState::Live));
        // The job's layout changes at 100 s; sources that return later do not change that.
        idle.give_up(at(100));
        assert_eq!(misses(idle), [false, true, true, false, false, false]);
        idle.record_event(at(200), at(200), at(200), 0, &FoldSettings::default());
        assert_eq!(misses(idle), [false, true, true, false, false, false]);
    }

    fn read(seconds: i64, energy: Option<f64>, power: f64) -> EnergySample {
        EnergySample { time: at(seconds), energy, power: Some(power), average: None, share: 1.0, tenure: None }
    }

    fn device(sample: EnergySample) -> GpuSource {
        GpuSource::new("a", "nvml/node-1", Meter::Gpu, Liveness::new(sample.time, sample.time, 0), sample)
    }

    /// Returns one window of ten minutes.
    fn window() -> SliceEdges {
        [0, 600].map(at).into()
    }

    const GAP: i64 = 60 * SECOND;

    /// Takes a sample as a workload does.
    fn take(
        gpu: &mut GpuSource,
        sample: EnergySample,
        life: LivenessState,
        settled: EventTime,
        gap: i64,
    ) -> Option<PowerSegment> {
        let settings = FoldSettings { power_gap: gap, ..FoldSettings::default() };
        let flow = gpu.segment_since_last(&sample, life, &window(), &settings);
        let mut step = PendingStep {
            from: gpu.sample.time,
            to: sample.time,
            power: flow,
            origin: Origin::Measured,
            gauges: None,
            contradicted: false,
        };
        gpu.sample = sample;
        gpu.add_step(&mut step, &window(), settled, gap);
        flow
    }

    #[test]
    fn what_is_set_aside_belongs_to_the_window_of_the_sample_that_reported_it() {
        let edges: SliceEdges = [0, 60, 120].map(at).into();
        let mut gpu = device(read(0, None, 0.0));
        for (joules, seconds) in [(5.0, 70), (2.0, 119), (1.0, 10), (40.0, 120)] {
            gpu.add_unassigned(joules, at(seconds), &edges);
        }
        assert_eq!(gpu.slices.iter().map(|sums| sums.unassigned).collect::<Vec<_>>(), [1.0, 7.0]);
        assert_eq!((gpu.unassigned, gpu.unassigned_of_first_slices(1), gpu.unassigned_of_first_slices(2)), (40.0, 41.0, 48.0));
    }

    #[test]
    fn what_a_device_used_after_its_end_belongs_to_nobody() {
        let mut gpu = device(read(0, Some(0.0), 80.0));
        take(&mut gpu, read(10, None, 80.0), LivenessState::Live, EventTime::MIN, GAP);
        assert!(gpu.last_counter_sample.is_some());
        assert_eq!(take(&mut gpu, read(20, Some(2_000.0), 80.0), LivenessState::Ended, EventTime::MIN, GAP), None);
        assert_eq!((gpu.last_counter_sample, gpu.unassigned, gpu.unassigned_of_first_slices(1)), (None, 0.0, 0.0));
    }

    #[test]
    fn across_a_silence_the_energy_of_power_stays_whether_it_is_summed_or_waits() {
        for settled in [EventTime::MIN, EventTime::MAX] {
            let mut gpu = device(read(0, Some(0.0), 80.0));
            take(&mut gpu, read(10, None, 80.0), LivenessState::Live, settled, 1_000 * SECOND);
            assert_eq!(take(&mut gpu, read(200, None, 80.0), LivenessState::Idle, settled, 1_000 * SECOND), None);
            let flow = take(&mut gpu, read(210, Some(21_000.0), 80.0), LivenessState::Live, settled, 1_000 * SECOND);
            // 800 J before the silence and after it; the counter rose by 21 kJ.
            assert_eq!(
                (flow.map(|flow| flow.total_joules()), gpu.unassigned_of_first_slices(1)),
                (Some(800.0), 19_400.0),
                "{settled}"
            );
        }
    }

    #[test]
    fn a_counter_that_was_away_for_exactly_the_gap_shows_what_was_used() {
        let away = |until: i64| {
            let mut gpu = device(read(0, Some(0.0), 80.0));
            take(&mut gpu, read(30, None, 80.0), LivenessState::Live, EventTime::MIN, GAP);
            let flow = take(&mut gpu, read(until, Some(100.0 * until as f64), 80.0), LivenessState::Live, EventTime::MIN, GAP);
            let steps: Vec<f64> = gpu.pending.iter().map(PendingStep::joules).collect();
            (flow.map(|flow| flow.kind), steps, gpu.unassigned_of_first_slices(1))
        };
        assert_eq!(away(60), (Some(energy::EnergyBasis::Counter), vec![3_000.0, 3_000.0], 0.0));
        assert_eq!(away(61), (Some(energy::EnergyBasis::Instant), vec![2_400.0, 2_480.0], 6_100.0 - 4_880.0));
        // It is waited for while it may still come within the gap.
        let mut gpu = device(read(0, Some(0.0), 80.0));
        let mut awaited = |seconds| {
            take(&mut gpu, read(seconds, None, 80.0), LivenessState::Live, EventTime::MIN, GAP);
            gpu.awaited_from(GAP)
        };
        assert_eq!([30, 59, 60].map(&mut awaited), [Some(at(0)), Some(at(0)), None]);
    }

    #[test]
    fn of_closed_time_the_counter_adds_what_is_missing_and_never_takes_back() {
        // 20 s are closed when the counter comes back: it rose by 5 kJ in 50 s.
        let back = |watts: f64| {
            let mut gpu = device(read(0, Some(0.0), watts));
            take(&mut gpu, read(30, None, watts), LivenessState::Live, EventTime::MIN, GAP);
            gpu.sum_through(&window(), at(20));
            take(&mut gpu, read(50, Some(5_000.0), watts), LivenessState::Live, EventTime::MIN, GAP);
            let steps: Vec<f64> = gpu.pending.iter().map(PendingStep::joules).collect();
            (gpu.slices[0].joules, gpu.slices[0].unassigned, steps)
        };
        // 1,600 J were summed where the counter shows 2,000.
        assert_eq!(back(80.0), (1_600.0, 400.0, vec![1_000.0, 2_000.0]));
        // 2,600 J were summed: 2,400 are left for the other 30 s.
        assert_eq!(back(130.0), (2_600.0, 0.0, vec![800.0, 1_600.0]));
    }

    fn without_power(seconds: i64, energy: Option<f64>) -> EnergySample {
        EnergySample { power: None, ..read(seconds, energy, 0.0) }
    }

    #[test]
    fn missing_power_is_waited_for_no_longer_than_the_gap_and_not_across_a_silence_or_a_change_of_tenure() {
        let mut gpu = device(read(0, None, 80.0));
        let mut awaited = |seconds| {
            take(&mut gpu, without_power(seconds, None), LivenessState::Live, EventTime::MIN, GAP);
            gpu.awaited_from(GAP)
        };
        assert_eq!([30, 59, 60].map(&mut awaited), [Some(at(0)), Some(at(0)), None]);
        assert_eq!(gpu.last_power_sample, None);
        for (life, tenure) in [(LivenessState::Idle, None), (LivenessState::Ended, None), (LivenessState::Live, Some(2))] {
            let mut gpu = device(read(0, None, 80.0));
            take(&mut gpu, without_power(10, None), LivenessState::Live, EventTime::MIN, GAP);
            take(&mut gpu, EnergySample { tenure, ..without_power(20, None) }, life, EventTime::MIN, GAP);
            assert_eq!((gpu.last_power_sample, gpu.awaited_from(GAP)), (None, None), "{life:?}");
            let back = EnergySample { tenure, ..read(30, None, 80.0) };
            assert_eq!(take(&mut gpu, back, LivenessState::Live, EventTime::MIN, GAP), None, "{life:?}");
        }
        let mut never = device(without_power(0, None));
        take(&mut never, without_power(10, None), LivenessState::Live, EventTime::MIN, GAP);
        assert_eq!(never.awaited_from(GAP), None, "power that never was is not waited for");
    }

    #[test]
    fn power_that_is_back_fills_open_time_and_that_of_closed_time_is_set_aside() {
        // 20 s are closed when power is back after 40 s. The counter rose by 4 kJ in them, or there is none.
        let back = |counter: bool| {
            let joules = |joules: f64| counter.then_some(joules);
            let mut gpu = device(read(0, joules(0.0), 80.0));
            take(&mut gpu, without_power(10, None), LivenessState::Live, EventTime::MIN, GAP);
            take(&mut gpu, without_power(30, None), LivenessState::Live, EventTime::MIN, GAP);
            gpu.sum_through(&window(), at(20));
            take(&mut gpu, read(40, joules(4_000.0), 80.0), LivenessState::Live, EventTime::MIN, GAP);
            let steps: Vec<f64> = gpu.pending.iter().map(PendingStep::joules).collect();
            (gpu.slices[0].joules, gpu.unassigned_of_first_slices(1), steps)
        };
        assert_eq!(back(false), (0.0, 1_600.0, vec![800.0, 800.0]));
        assert_eq!(back(true), (0.0, 2_000.0, vec![1_000.0, 1_000.0]));
    }

    #[test]
    fn power_that_comes_and_goes_counts_once_if_the_counter_was_away_for_longer_than_the_gap() {
        let mut gpu = device(read(0, Some(0.0), 80.0));
        for sample in [without_power(30, None), read(50, None, 80.0), without_power(60, None), read(70, Some(10_000.0), 80.0)] {
            take(&mut gpu, sample, LivenessState::Live, EventTime::MIN, GAP);
        }
        let steps: Vec<f64> = gpu.pending.iter().map(PendingStep::joules).collect();
        assert_eq!((steps, gpu.unassigned_of_first_slices(1)), (vec![2_400.0, 1_600.0, 800.0, 800.0], 4_400.0));
    }

    #[test]
    fn a_counter_that_ends_with_a_pause_is_believed_and_one_that_does_not_move_is_not() {
        let board = MeteredBoard { meter: Meter::Gpu, limit_watts: None };
        for (ends, joules) in [(20, 100.0), (21, 100.0), (30, 100.0), (31, 100.0 + 80.0 * 1.1)] {
            let sample = |tenths: i64| EnergySample {
                time: EventTime::from_micros(tenths * 100_000),
                ..read(0, Some(50.0 * (tenths / 10).min(2) as f64), 80.0)
            };
            let mut gpu = device(sample(0));
            for tenths in 1..=ends {
                let mut sample = sample(tenths);
                // By rules 4 its first second would be power's.
                let settings = FoldSettings { power_gap: GAP, window_rules: 3, ..FoldSettings::default() };
                let contradicted = gpu.check_counter(&mut sample, LivenessState::Live, &board, &window(), &settings);
                let flow = gpu.segment_since_last(&sample, LivenessState::Live, &window(), &settings);
                let mut step = PendingStep {
                    power: flow,
                    contradicted,
                    from: gpu.sample.time,
                    ..PendingStep::without_step(sample.time, Origin::Measured, None)
                };
                gpu.sample = sample;
                gpu.add_step(&mut step, &window(), EventTime::MIN, GAP);
            }
            gpu.sum_through(&window(), at(600));
            assert!((gpu.slices[0].joules - joules).abs() < 1e-9, "{ends}: {}", gpu.slices[0].joules);
            assert_eq!(gpu.slices[0].contradicted > 0, joules > 100.0, "{ends}");
        }
    }

    #[test]
    fn steps_wait_until_every_rank_has_passed_them_and_no_more_than_a_thousand_do() {
        let mut gpu = device(read(0, None, 80.0));
        for seconds in [10, 20, 30] {
            take(&mut gpu, read(seconds, None, 80.0), LivenessState::Live, EventTime::MIN, GAP);
        }
        assert_eq!(gpu.pending.len(), 3, "a job may still report that it began");
        take(&mut gpu, read(40, None, 80.0), LivenessState::Live, at(20), GAP);
        let waiting: Vec<EventTime> = gpu.pending.iter().map(|step| step.to).collect();
        assert_eq!((waiting, gpu.slices[0].joules), (vec![at(20), at(30), at(40)], 800.0), "what ends there may be cut there");
        let mut gpu = device(read(0, None, 80.0));
        let mut number = |n: i64| {
            let time = EventTime::from_micros(n * 1_000);
            take(&mut gpu, EnergySample { time, ..read(0, None, 80.0) }, LivenessState::Live, EventTime::MIN, GAP);
            gpu.pending.len()
        };
        let numbers: Vec<usize> = (1..=1_025).map(&mut number).collect();
        assert_eq!(numbers[1_022..], [1_023, 1_024, 1_024]);
        assert_eq!(gpu.slices[0].covered[energy::EnergyBasis::Instant as usize], 1_000, "the oldest is summed");
    }

    #[test]
    fn a_sample_behind_a_windows_edge_counts_once_and_its_energy_on_both_sides() {
        let edges: SliceEdges = [0, 20, 40].map(at).into();
        let mut gpu = device(read(0, None, 80.0));
        let sample = read(30, None, 80.0);
        let settings = FoldSettings { power_gap: GAP, ..FoldSettings::default() };
        let flow = gpu.segment_since_last(&sample, LivenessState::Live, &edges, &settings);
        let gauges = Some(energy::Gauges::from([Some(0.5); energy::GAUGES]));
        let mut step =
            PendingStep { from: at(0), to: at(30), power: flow, origin: Origin::Measured, gauges, contradicted: false };
        gpu.add_step(&mut step, &edges, EventTime::MIN, GAP);
        let sums = |gpu: &GpuSource| gpu.slices.iter().map(|sums| (sums.joules, sums.events)).collect::<Vec<_>>();
        gpu.sum_through(&edges, at(20));
        assert_eq!(sums(&gpu), [(1_600.0, 0)]);
        gpu.sum_through(&edges, at(40));
        assert_eq!((sums(&gpu), gpu.pending.len()), (vec![(1_600.0, 0), (800.0, 1)], 0));
    }

    #[test]
    fn of_a_rank_that_ends_no_more_counters_are_awaited() {
        let settings = FoldSettings::default();
        let event = |seconds, samples| TrainingProgress { time: at(seconds), samples_total: samples, ..Default::default() };
        let mut rank = RankSource {
            rank: 0,
            collector: "http/node-1".into(),
            scope: CounterScope::Global,
            liveness: Liveness::new(at(0), at(0), 0),
            counters: Default::default(),
            stepped: at(0),
            done: [0.0; COUNTERS],
            slices: VecDeque::new(),
            unassigned: [0.0; COUNTERS],
            span: None,
            names_spans: false,
            remaining_seconds: None,
            checkpoint: None,
        };
        rank.count_progress(
            &ProgressCounters::from_event(&event(10, Some(1.0))),
            LivenessState::Live,
            &window(),
            Origin::Measured,
            &settings,
        );
        let place = LogPosition { stamp: at(30), merge_time: at(30), clock: 0, is_sent_again: false };
        let until = |event: &TrainingProgress| rank.known_until(event, place, &settings);
        assert_eq!(until(&event(30, None)), at(10), "its counter is to come");
        assert_eq!(until(&TrainingProgress { phase: JobLifecycle::Finished, ..event(30, None) }), at(30));
        assert_eq!(until(&TrainingProgress { last: true, ..event(30, None) }), at(30));
    }

    #[test]
    fn an_index_finds_what_was_put_in_and_not_what_was_taken_out() {
        let names = ["a", "b", "c"];
        let mut index = NameIndex::default();
        for i in 0..names.len() {
            index.insert(i, |i| names[i]);
        }
        let found = |index: &NameIndex| names.map(|name| index.find(&name, |i| names[i] == name));
        assert_eq!((found(&index), format!("{index:?}")), ([Some(0), Some(1), Some(2)], "NameIndex(3)".to_owned()));
        index.remove(&"b", 1);
        assert_eq!((found(&index), index.find(&"b", |_| true)), ([Some(0), None, Some(2)], None));
        index.remove(&"a", 2);
        assert_eq!(found(&index), [Some(0), None, Some(2)], "that is not its place");
        index.clear();
        assert_eq!(names.map(|name| index.find(&name, |_| true)), [None; 3]);
    }
}
