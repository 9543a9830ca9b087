//! Closes windows: decides when a window closes and which sources count in it, and writes it.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{CounterScope, EfficiencyWindow, Meter, WindowKind, source_rank};

use super::WorkloadState;
use super::source::{GpuSource, LivenessState, RankSource};
use crate::controller;
use crate::partition::{FoldOutput, device_of};
use crate::settings::FoldSettings;
use crate::window::energy::GpuSums;
use crate::window::progress::{COUNTERS, RankSums};
use crate::window::summary::{EnergySums, IntervalContext, IntervalTotals, WindowSlice, build_window_event};

/// The key and workload under which devices without a workload are reported.
pub const UNASSIGNED: &str = "gpus";

/// Shared devices that a window names.
const MAX_SHARED_NAMED: usize = 64;

/// Sources whose figures count in one window: one of energy for each device, one of progress for the job or for each rank.
struct SourceChoice {
    /// Number of the window's slices.
    slices: usize,
    meter: Meter,
    /// Source and the time up to which it is expected, by device name.
    gpus: Vec<(usize, EventTime)>,
    /// Chosen source of each rank.
    ranks: Vec<usize>,
    /// Whether each of them is silent at the end of the window, and expected.
    is_silent: Vec<bool>,
}

/// Returns the best of several sources of the same figure, among those that cover at least 95 % of the best coverage.
fn pick<K: Ord>(sources: &[usize], known: impl Fn(usize) -> i64, rank: impl Fn(usize) -> K) -> usize {
    let most = sources.iter().map(|i| known(*i)).max().unwrap_or(0);
    let enough = |i: &&usize| known(**i) * 100 >= most * 95;
    *sources.iter().filter(enough).min_by_key(|i| rank(**i)).unwrap_or(&sources[0])
}

fn best_known_basis(known: [i64; 3]) -> usize {
    (0..known.len()).max_by_key(|i| (known[*i], usize::MAX - i)).unwrap_or(0)
}

impl WorkloadState {
    /// Closes the windows that are due at this log clock.
    pub fn close(&mut self, clock: i64, settings: &FoldSettings, out: &mut Vec<FoldOutput>) {
        if self.head.slice_edges.is_empty() || self.behind > 0 {
            return;
        }
        let held = self.held_until(settings);
        if clock < held {
            self.due = self.due.min(held);
            return;
        }
        if self.live == 0 {
            while !self.head.slice_edges.is_empty() && clock >= self.held_until(settings) {
                self.close_oldest(settings, out);
            }
            self.recount();
            if !self.head.slice_edges.is_empty() {
                self.due = self.due.min(self.held_until(settings));
            }
            return;
        }
        let time = self.source_liveness().filter(|liveness| liveness.is_live()).map(|liveness| liveness.merge_time).min();
        while let (Some(edge), Some(time)) = (self.oldest_edge(), time)
            && time >= edge
        {
            // The window that holds the newest events stays open, or a gap in them would open it anew.
            self.close_oldest(settings, out);
        }
        self.recount();
    }

    /// Closes every open window: nothing is waited for any more.
    pub fn close_all(&mut self, settings: &FoldSettings, out: &mut Vec<FoldOutput>) {
        while !self.head.slice_edges.is_empty() {
            self.close_oldest(settings, out);
        }
        self.recount();
    }

    fn slice_span(&self, i: usize) -> WindowSlice {
        let (from, to) = (self.head.slice_edges[i], self.head.slice_edges[i + 1]);
        WindowSlice { from, to, in_run: self.head.runs.contains_slice(from, to) }
    }

    fn close_oldest(&mut self, settings: &FoldSettings, out: &mut Vec<FoldOutput>) {
        let start = self.head.slice_edges[0];
        let Some(end) = self.oldest_edge() else { return };
        let gap = self.is_gap(start, end);
        let n = self.head.slice_edges.iter().position(|edge| *edge == end).expect("window edges are cuts");
        for gpu in &mut self.gpus {
            gpu.sum_through(&self.head.slice_edges, end);
        }
        let choice = self.choose(n, end);
        if let Some(training) = &mut self.head.training {
            training.close(end);
        }
        self.head.closed_through = Some(end);
        let window = (!gap).then(|| {
            let totals = self.sum_slices(&choice, 0..n);
            self.build_window(start, end, &totals, &choice, settings.window_rules)
        });
        self.feed_spans(&choice, n);
        if gap {
            self.unassign(n);
        }
        for gpu in &mut self.gpus {
            gpu.slices.drain(..n.min(gpu.slices.len()));
        }
        for rank in &mut self.ranks {
            rank.slices.drain(..n.min(rank.slices.len()));
        }
        self.head.slice_edges.drain(..n);
        if self.head.slice_edges.len() == 1 {
            self.head.slice_edges.clear();
        }
        let device = device_of(&self.head.name).is_some();
        let decision = window.as_ref().filter(|_| !device).and_then(|window| self.decide(window, settings));
        out.extend(window.map(|window| FoldOutput::Window(Box::new(window))));
        self.close_spans(end, settings.window_rules, out);
        out.extend(decision.map(|decision| FoldOutput::Decision(Box::new(decision))));
        self.head.tables.prune(end);
        self.head.runs.prune(end);
        if self.head.gap_until.is_some_and(|until| until <= end) {
            self.head.gap_until = None;
        }
    }

    /// Adds the sums of slices for which no window is emitted to the next window's unassigned sums.
    fn unassign(&mut self, n: usize) {
        for gpu in &mut self.gpus {
            gpu.unassigned += gpu.slices.iter().take(n).map(|sums| sums.joules + sums.unassigned).sum::<f64>();
        }
        for rank in &mut self.ranks {
            for sums in rank.slices.iter().take(n) {
                (0..COUNTERS).for_each(|c| rank.unassigned[c] += sums.amounts[c] + sums.unassigned[c]);
            }
        }
    }

    /// Chooses the sources for the first `n` slices.
    fn choose(&self, n: usize, end: EventTime) -> SourceChoice {
        let part = |gpu: &GpuSource| -> (i64, [i64; 3], bool) {
            let mut covered = [0; 3];
            let mut touched = false;
            for sums in gpu.slices.iter().take(n) {
                (0..3).for_each(|k| covered[k] += sums.covered[k]);
                touched |= sums.has_data();
            }
            (covered.iter().sum(), covered, touched)
        };
        // Devices, each with its chosen source; sources of one device are neighbours in the order.
        let mut devices: Vec<(usize, i64)> = Vec::new();
        let mut group: Vec<usize> = Vec::new();
        let parts: Vec<_> = self.gpus.iter().map(part).collect();
        let choose = |group: &mut Vec<usize>, devices: &mut Vec<(usize, i64)>| {
            if group.is_empty() {
                return;
            }
            let rank = |i: usize| {
                let gpu = &self.gpus[i];
                (best_known_basis(parts[i].1), source_rank(&gpu.collector), &gpu.collector)
            };
            let chosen = pick(group, |i| parts[i].0, rank);
            devices.push((chosen, parts[chosen].0));
            group.clear();
        };
        for i in self.gpu_order.iter().map(|i| *i as usize) {
            if group.first().is_some_and(|first| self.gpus[*first].device != self.gpus[i].device) {
                choose(&mut group, &mut devices);
            }
            if parts[i].2 || self.gpus[i].liveness.is_missing_at(end) {
                group.push(i);
            }
        }
        choose(&mut group, &mut devices);
        // Power at the wall holds that of the GPUs: one kind of meter counts, the narrowest that knows anything.
        let narrowest = |known: bool| devices.iter().filter(|(_, k)| *k > 0 || !known).map(|(i, _)| self.gpus[*i].meter).min();
        let meter = narrowest(true).or_else(|| narrowest(false)).unwrap_or_default();
        devices.retain(|(i, _)| self.gpus[*i].meter == meter);
        let reaches_end = |i: usize| {
            let sums = self.gpus[i].slices.get(n - 1);
            sums.is_some_and(|sums| sums.from < sums.to && sums.to >= end)
        };
        let anybody = devices.iter().any(|(i, _)| reaches_end(*i));
        let gpus = devices
            .into_iter()
            .map(|(i, _)| {
                // A device that left is not missed as long as another stays.
                let left = anybody && !reaches_end(i) && self.gpus[i].liveness.life == LivenessState::Ended;
                (i, if left { self.gpus[i].liveness.last } else { end })
            })
            .collect();
        let ranks = self.choose_ranks(n, end);
        let is_silent = ranks.iter().map(|i| self.ranks[*i].liveness.is_missing_at(end)).collect();
        SourceChoice { slices: n, meter, gpus, ranks, is_silent }
    }

    fn choose_ranks(&self, n: usize, end: EventTime) -> Vec<usize> {
        let known = |i: usize| self.ranks[i].slices.iter().take(n).map(RankSums::known_micros).sum::<i64>();
        let touched = |rank: &RankSource| rank.slices.iter().take(n).any(RankSums::has_data);
        let here: Vec<usize> = self
            .rank_order
            .iter()
            .map(|i| *i as usize)
            .filter(|i| touched(&self.ranks[*i]) || self.ranks[*i].liveness.is_missing_at(end))
            .collect();
        let name = |i: usize| (self.ranks[i].rank, &self.ranks[i].collector);
        let global: Vec<usize> = here.iter().copied().filter(|i| self.ranks[*i].scope == CounterScope::Global).collect();
        if global.len() == here.len() || global.iter().any(|i| known(*i) > 0) {
            return if global.is_empty() { global } else { vec![pick(&global, known, name)] };
        }
        let mut chosen = Vec::new();
        let ranks: Vec<usize> = here.into_iter().filter(|i| self.ranks[*i].scope == CounterScope::Rank).collect();
        for group in ranks.chunk_by(|a, b| self.ranks[*a].rank == self.ranks[*b].rank) {
            chosen.push(pick(group, known, name));
        }
        chosen
    }

    /// Totals of some slices, sources in the order of their names.
    fn sum_slices(&self, choice: &SourceChoice, slices: impl IntoIterator<Item = usize>) -> IntervalTotals {
        let mut totals = IntervalTotals {
            meter: choice.meter,
            devices: choice.gpus.len() as u32,
            ranks: choice.ranks.len() as u32,
            ..IntervalTotals::default()
        };
        let mut any = false;
        let mut devices = vec![<[EnergySums; 2]>::default(); choice.gpus.len()];
        let mut known = vec![0; choice.ranks.len()];
        for s in slices {
            let slice = self.slice_span(s);
            totals.add_slice(slice);
            for ((i, until), device) in choice.gpus.iter().zip(&mut devices) {
                totals.add_device(slice, self.gpus[*i].slices.get(s), *until, device);
            }
            for (i, known) in choice.ranks.iter().zip(&mut known) {
                let sums = self.ranks[*i].slices.get(s);
                totals.add_rank(slice, sums);
                *known += sums.map_or(0, RankSums::known_micros);
            }
            let gpus = self.gpus.iter().filter_map(|gpu| gpu.slices.get(s)).filter(|sums| sums.has_data());
            let ranks = self.ranks.iter().filter_map(|rank| rank.slices.get(s)).filter(|sums| sums.has_data());
            let gpus = gpus.map(|sums| (sums.events, sums.origin, sums.from, sums.to));
            let ranks = ranks.map(|sums| (sums.events, sums.origin, sums.from, sums.to));
            for (events, origin, from, to) in gpus.chain(ranks) {
                any = true;
                totals.events += events;
                totals.origin = totals.origin.max(origin);
                let (from, to) = (from.max(slice.from), to.min(slice.to));
                if from <= to {
                    totals.mark_observed(from, to);
                }
            }
        }
        totals.add_devices(&devices);
        // While no rank reports, none is silent beside others: the job may be down.
        let most = known.iter().copied().max().unwrap_or(0);
        let silent = choice.is_silent.iter().zip(&known).filter(|(is_silent, _)| **is_silent);
        totals.progress_silent = silent.map(|(_, known)| most - known).sum();
        if !any {
            totals.origin = self.head.origin;
        }
        totals
    }

    fn build_window(
        &mut self,
        start: EventTime,
        end: EventTime,
        totals: &IntervalTotals,
        choice: &SourceChoice,
        rules: u32,
    ) -> EfficiencyWindow {
        let head = &self.head;
        let interval = IntervalContext {
            id_prefix: &head.name,
            workload: if device_of(&head.name).is_some() { UNASSIGNED } else { &head.name },
            kind: WindowKind::Tumbling,
            span: None,
            start,
            end,
            table: head.tables.at(end),
            run_declared: head.runs.is_declared(),
            rules,
        };
        let mut window = build_window_event(&interval, totals);
        window.restarted = totals.fell || head.tables.was_restarted_between(start, end);
        window.only_settings_changed =
            rules >= 3 && window.restarted && !totals.fell && head.tables.only_settings_changed(start, end);
        window.gap = head.gap_next || head.gap_until.is_some_and(|until| end <= until);
        let counts = std::mem::take(&mut self.head.counts);
        window.late = counts.late;
        window.stale = counts.stale;
        window.duplicates = counts.duplicates;
        window.late_tables = counts.late_tables;
        let still_open = self.head.shared.split_off(&end.plus_micros(1));
        for (device, tenants) in std::mem::replace(&mut self.head.shared, still_open).into_values().flatten() {
            window.tenants = window.tenants.max(Some(tenants));
            window.shared_devices.push(device.into());
        }
        window.shared_devices.sort_unstable();
        window.shared_devices.dedup();
        if window.shared_devices.len() > MAX_SHARED_NAMED {
            window.shared_devices.clear();
        }
        window.unassigned_energy_joules = self.take_unassigned_energy(choice);
        let progress = self.take_unassigned_progress(choice);
        [window.unassigned_samples, window.unassigned_tokens, window.unassigned_steps] = progress;
        window
    }

    /// Returns the energy of closed time, of one source a device: of the one whose figures the windows had, if they had any.
    fn take_unassigned_energy(&mut self, choice: &SourceChoice) -> f64 {
        let mut sum = 0.0;
        let mut order = self.gpu_order.as_slice();
        // Both are in the order of the devices.
        let mut choices = choice.gpus.iter().map(|(i, _)| *i).peekable();
        while let Some(first) = order.first() {
            let device = &self.gpus[*first as usize].device;
            let n = order.iter().take_while(|i| self.gpus[**i as usize].device == *device).count();
            let (group, rest) = order.split_at(n);
            order = rest;
            let group = || group.iter().map(|i| *i as usize);
            let chosen = choices.next_if(|chosen| self.gpus[*chosen].device == *device);
            let primary = group().find(|i| self.gpus[*i].primary);
            let aside = |i: usize| self.gpus[i].unassigned_of_first_slices(choice.slices);
            let counted = primary.or(chosen).or_else(|| group().find(|i| aside(*i) != 0.0));
            sum += counted.map_or(0.0, aside);
            let covers =
                |i: &usize| self.gpus[*i].slices.iter().take(choice.slices).any(|sums: &GpuSums| sums.known_micros() > 0);
            let covering = chosen.filter(covers);
            for i in group() {
                self.gpus[i].unassigned = 0.0;
                if let Some(covering) = covering {
                    self.gpus[i].primary = i == covering;
                }
            }
        }
        sum
    }

    /// Progress of closed time, of one source for the job or for each rank.
    fn take_unassigned_progress(&mut self, choice: &SourceChoice) -> [f64; COUNTERS] {
        let mut sum = [0.0; COUNTERS];
        let ranks = &self.ranks;
        let aside = |i: usize| ranks[i].unassigned_of_first_slices(choice.slices);
        let global = ranks.iter().any(|rank| rank.scope == CounterScope::Global);
        // If a source reports for the whole job, single ranks report the same again.
        let same = |a: usize, b: usize| if global { ranks[a].scope == ranks[b].scope } else { ranks[a].rank == ranks[b].rank };
        let mut left: Vec<usize> = self.rank_order.iter().map(|i| *i as usize).collect();
        left.sort_by_key(|i| ranks[*i].scope);
        let mut is_chosen = vec![false; ranks.len()];
        choice.ranks.iter().for_each(|i| is_chosen[*i] = true);
        for group in left.chunk_by(|a, b| same(*a, *b)) {
            if global && ranks[group[0]].scope == CounterScope::Rank {
                continue;
            }
            let chosen = group.iter().find(|i| is_chosen[**i]);
            let counted = chosen.or_else(|| group.iter().find(|i| aside(**i) != [0.0; COUNTERS]));
            if let Some(i) = counted {
                let aside = aside(*i);
                (0..COUNTERS).for_each(|c| sum[c] += aside[c]);
            }
        }
        self.ranks.iter_mut().for_each(|rank| rank.unassigned = [0.0; COUNTERS]);
        sum
    }

    /// Returns the value of the rank with the newest last event, among those that have one; of several the first.
    fn newest<T>(&self, value_of: impl Fn(&RankSource) -> Option<T>) -> Option<T> {
        let order = self.rank_order.iter().map(|i| &self.ranks[*i as usize]);
        let values = order.filter_map(|rank| Some((rank.liveness.last, value_of(rank)?)));
        values.reduce(|best, rank| if rank.0 > best.0 { rank } else { best }).map(|(_, value)| value)
    }

    /// Returns the decision; `None` if a joint stage decides.
    fn decide(&mut self, window: &EfficiencyWindow, settings: &FoldSettings) -> Option<eadt_schemas::v1::Decision> {
        let remaining = self.newest(|rank| rank.remaining_seconds);
        let checkpoint = self.newest(|rank| rank.checkpoint);
        let workload = self.head.tables.newest();
        if workload.is_some_and(|workload| settings.decided_together(workload)) {
            return None;
        }
        let name = settings.controller_of(workload);
        let context = controller::ControllerContext {
            workload,
            last_actuation: self.head.tables.last_actuation(),
            remaining_seconds: remaining,
            checkpoint_time: checkpoint,
            training: self.head.training.as_ref().map(|reports| &reports.newest),
            settings: self.head.tables.settings().unwrap_or(&settings.controller_settings),
            models: Some(&self.models),
        };
        let gpu_model = workload.and_then(|workload| workload.gpu_model.as_deref());
        self.of_another_gpu += u64::from(matches!(self.models.cap_curve(&self.head.name, gpu_model), Some(Err(_))));
        Some(controller::decide(name, self.head.controller.get_or_insert_default(), window, &context))
    }

    /// Adds the first `n` slices to the spans that they lie in.
    fn feed_spans(&mut self, choice: &SourceChoice, n: usize) {
        if self.head.spans.is_empty() {
            return;
        }
        let mut spans = std::mem::take(&mut self.head.spans);
        let gap = self.head.gap_next || self.head.gap_until.is_some();
        for span in &mut spans {
            let inside = |i: &usize| {
                let (from, to) = (self.head.slice_edges[*i], self.head.slice_edges[*i + 1]);
                span.start <= from && span.end.is_none_or(|end| to <= end)
            };
            let slices: Vec<usize> = (0..n).filter(inside).collect();
            if !slices.is_empty() {
                span.totals.merge(&self.sum_slices(choice, slices));
                span.gap |= gap;
            }
        }
        self.head.spans = spans;
    }

    /// Writes the spans that end by `end`, those of the first rank that names any.
    fn close_spans(&mut self, end: EventTime, rules: u32, out: &mut Vec<FoldOutput>) {
        if self.head.spans.is_empty() {
            return;
        }
        let speaker = self.rank_order.iter().map(|i| &self.ranks[*i as usize]).find(|rank| rank.names_spans);
        let speaker = speaker.map(|rank| (rank.rank, rank.collector.clone()));
        let (closed, open) =
            std::mem::take(&mut self.head.spans).into_iter().partition(|span| span.end.is_some_and(|e| e <= end));
        self.head.spans = open;
        let closed: Vec<super::OpenSpan> = closed;
        for span in closed {
            let until = span.end.unwrap_or(end);
            let spoken = speaker.as_ref().is_none_or(|(rank, collector)| *rank == span.rank && *collector == span.collector);
            if !spoken || until <= span.start || span.totals.energy.time == 0 {
                continue;
            }
            let interval = IntervalContext {
                id_prefix: &self.head.name,
                workload: &self.head.name,
                kind: WindowKind::Span,
                span: Some(&span.name),
                start: span.start,
                end: until,
                table: self.head.tables.at(until),
                run_declared: self.head.runs.is_declared(),
                rules,
            };
            let mut window = build_window_event(&interval, &span.totals);
            window.gap = span.gap;
            window.restarted = span.totals.fell || self.head.tables.was_restarted_between(span.start, until);
            window.only_settings_changed =
                rules >= 3 && window.restarted && !span.totals.fell && self.head.tables.only_settings_changed(span.start, until);
            out.push(FoldOutput::Window(Box::new(window)));
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::TrainingProgress;

    use super::*;
    use crate::workload::tests::{Fold, at, by, gpu, rank};

    /// Makes a workload with two collectors of device a, one of device b, and these unassigned joules.
    fn devices(aside: [f64; 3]) -> WorkloadState {
        let mut fold = Fold::default();
        fold.gpu(0, &by("x", gpu("a", 0))).gpu(0, &by("y", gpu("a", 0))).gpu(0, &by("x", gpu("b", 0)));
        for (gpu, aside) in fold.state.gpus.iter_mut().zip(aside) {
            gpu.unassigned = aside;
        }
        fold.state
    }

    fn chosen(gpus: &[usize]) -> SourceChoice {
        let gpus = gpus.iter().map(|i| (*i, at(60))).collect();
        SourceChoice { slices: 1, meter: Meter::Gpu, gpus, ranks: Vec::new(), is_silent: Vec::new() }
    }

    #[test]
    fn what_a_silence_holds_goes_to_the_next_window_whole() {
        let mut fold = Fold::default();
        fold.gpu(0, &gpu("a", 0)).rank(0, &rank(0, 0));
        let mut state = fold.state;
        state.gpus[0].unassigned = 1.0;
        state.gpus[0].slices =
            [(4.0, 2.0), (100.0, 100.0)].map(|(joules, unassigned)| GpuSums { joules, unassigned, ..GpuSums::default() }).into();
        state.ranks[0].unassigned = [1.0, 10.0, 100.0];
        state.ranks[0].slices =
            [RankSums { amounts: [4.0, 40.0, 400.0], unassigned: [2.0, 20.0, 200.0], ..RankSums::default() }].into();
        state.unassign(1);
        assert_eq!((state.gpus[0].unassigned, state.ranks[0].unassigned), (7.0, [7.0, 70.0, 700.0]));
    }

    #[test]
    fn energy_that_is_set_aside_counts_once_a_device() {
        let mut state = devices([0.0, 5.0, 7.0]);
        assert_eq!(state.take_unassigned_energy(&chosen(&[])), 12.0, "of the first that has any");
        assert!(state.gpus.iter().all(|gpu| gpu.unassigned == 0.0));
        assert_eq!(devices([3.0, 5.0, 7.0]).take_unassigned_energy(&chosen(&[])), 10.0);
        assert_eq!(devices([3.0, 5.0, 7.0]).take_unassigned_energy(&chosen(&[1, 2])), 12.0, "of the one whose figures count");
    }

    #[test]
    fn energy_that_is_set_aside_is_that_of_whom_the_windows_had_before() {
        for covered in [0, 1] {
            let mut state = devices([3.0, 5.0, 0.0]);
            state.gpus[1].primary = true;
            state.gpus[0].slices = [GpuSums { covered: [covered, 0, 0], ..GpuSums::default() }].into();
            assert_eq!(state.take_unassigned_energy(&chosen(&[0])), 5.0);
            let primary: Vec<bool> = state.gpus.iter().map(|gpu| gpu.primary).collect();
            assert_eq!(primary, [covered > 0, covered == 0, false], "who covers nothing takes nobody's place");
        }
    }

    /// Makes a workload with rank 0 of two collectors, rank 1, and these unassigned samples.
    fn ranks(aside: [f64; 3], scopes: [CounterScope; 3]) -> WorkloadState {
        let mut fold = Fold::default();
        for (i, (number, collector)) in [(0, "x"), (0, "y"), (1, "x")].into_iter().enumerate() {
            fold.rank(0, &TrainingProgress { collector: collector.to_owned(), scope: scopes[i], ..rank(number, 0) });
        }
        for (rank, aside) in fold.state.ranks.iter_mut().zip(aside) {
            rank.unassigned = [aside, 0.0, 0.0];
        }
        fold.state
    }

    #[test]
    fn progress_that_is_set_aside_counts_once_a_rank_and_once_where_one_speaks_for_all() {
        let aside = |aside, scopes, counting: &[usize]| {
            let mut state = ranks(aside, scopes);
            let choice = SourceChoice { ranks: counting.to_vec(), ..chosen(&[]) };
            let sum = state.take_unassigned_progress(&choice)[0];
            assert!(state.ranks.iter().all(|rank| rank.unassigned == [0.0; COUNTERS]));
            sum
        };
        let each = [CounterScope::Rank; 3];
        assert_eq!(aside([5.0, 5.0, 7.0], each, &[]), 12.0);
        assert_eq!(aside([0.0, 5.0, 7.0], each, &[]), 12.0, "of the first that has any");
        assert_eq!(aside([4.0, 5.0, 7.0], each, &[1, 2]), 12.0, "of the one whose figures count");
        assert_eq!(aside([4.0, 0.0, 7.0], each, &[1, 2]), 7.0, "who counts and set nothing aside has nothing");
        assert_eq!(aside([4.0, 5.0, 7.0], [CounterScope::Rank, CounterScope::Rank, CounterScope::Global], &[]), 7.0);
        assert_eq!(aside([4.0, 5.0, 7.0], [CounterScope::Global; 3], &[]), 4.0, "whatever their numbers");
    }

    #[test]
    fn the_rank_that_reported_last_decides_how_long_it_takes() {
        let mut fold = Fold::default();
        for (number, second, remaining) in [(0, 10, Some(100.0)), (2, 20, Some(70.0)), (1, 20, Some(50.0)), (3, 30, None)] {
            fold.rank(second, &TrainingProgress { remaining_seconds: remaining, ..rank(number, second) });
        }
        assert_eq!(fold.state.newest(|rank| rank.remaining_seconds), Some(50.0));
        assert_eq!(fold.state.newest(|rank| rank.checkpoint), None);
    }
}
