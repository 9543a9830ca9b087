//! A model of a few dozen lines against the fold, on random histories: sources that are slow, dead, skewed, restarted;
//! duplicates; a crash at any commit; GPUs that are moved between workloads. And: how the sources' events are interleaved changes
//! nothing.

use crate::support;

use std::collections::BTreeMap;

use eadt_core::clock::LogClock;
use eadt_core::settings::SECOND;
use eadt_core::{FoldSettings, InputMerge};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeadLetterReason, EfficiencyWindow, GpuTelemetry, TrainingProgress};
use eadt_testing::cases;
use proptest::prelude::*;
use support::{Bench, Item, at, gpu, rank, round};

/// One source's life.
#[derive(Debug, Clone)]
struct Life {
    progress: bool,
    begins: i64,
    beat: i64,
    events: usize,
    /// Its clock against the log's, in seconds.
    skew: i64,
    /// Its events reach the log so many seconds late.
    delay: i64,
    /// Events that never reach the log: a silence.
    silent: std::ops::Range<usize>,
    /// Before this event its counter starts again.
    restart: usize,
    /// These events leave the counter out.
    blank: std::ops::Range<usize>,
    ends: bool,
}

fn blank(item: Item) -> Item {
    match item {
        Item::Gpu(event) => GpuTelemetry { energy_joules_total: None, power_watts: None, ..event }.into(),
        Item::Rank(event) => TrainingProgress { samples_total: None, loss: Some(1.0), ..event }.into(),
        other => other,
    }
}

/// Returns a GPU's sample with power instead of the counter.
fn with_power(item: Item) -> Item {
    match item {
        Item::Gpu(event) => {
            let watts = 100.0 + event.energy_joules_total.unwrap_or(0.0) % 300.0;
            GpuTelemetry { energy_joules_total: None, power_watts: Some(watts), ..event }.into()
        }
        other => other,
    }
}

/// Returns the log with more events: half a second after some that have a successor in time, the same without counter and
/// power.
fn with_blanks(log: &[(i64, Item)], seed: u64) -> Vec<(i64, Item)> {
    let mut more = Vec::new();
    for (i, (stamp, item)) in log.iter().enumerate() {
        more.push((*stamp, item.clone()));
        let source = |item: &Item| match item {
            Item::Gpu(event) => Some((event.device.clone(), event.time, event.last)),
            Item::Rank(event) => Some((event.rank.to_string(), event.time, event.last)),
            _ => None,
        };
        let Some((name, time, false)) = source(item) else { continue };
        let next = log[i + 1..].iter().filter_map(|(_, item)| source(item)).find(|(other, ..)| *other == name);
        if next.is_some_and(|(_, next, _)| next.seconds_since(time) < 60.0) && (seed >> (i % 64)) & 1 == 1 {
            let mut item = blank(item.clone());
            match &mut item {
                Item::Gpu(event) => event.time = event.time.plus_seconds(0.5),
                Item::Rank(event) => event.time = event.time.plus_seconds(0.5),
                _ => {}
            }
            more.push((*stamp, item));
        }
    }
    more
}

/// Returns energy and progress of each window.
fn figures(bench: &Bench) -> Vec<String> {
    let of = |w: &EfficiencyWindow| {
        let energy = [w.energy_joules.unwrap_or(-1.0), w.unassigned_energy_joules, w.energy_coverage_ratio];
        let progress = [w.samples.unwrap_or(-1.0), w.samples_redone, w.unassigned_samples, w.progress_coverage_ratio];
        let rounded = energy.into_iter().chain(progress).map(round).collect::<Vec<_>>();
        format!("{} {rounded:?} {}", w.window_start, w.restarted)
    };
    bench.windows.iter().map(of).collect()
}

/// (stamp, item) of one source, in order.
fn history(name: usize, life: &Life) -> Vec<(i64, Item)> {
    let mut items = Vec::new();
    let mut total = 0.0;
    for i in 0..life.events {
        let second = life.begins + life.beat * i as i64;
        total = if i == life.restart { 7.0 } else { total + (life.beat as f64) * (10.0 + name as f64) };
        if life.silent.contains(&i) {
            continue;
        }
        let time = (second + life.skew) as f64;
        let last = life.ends && i + 1 == life.events;
        let item = if life.progress {
            TrainingProgress { last, scope: eadt_schemas::v1::CounterScope::Rank, ..rank(name as u32, time, total) }.into()
        } else {
            GpuTelemetry { last, ..gpu(&format!("GPU-{name}"), time, total) }.into()
        };
        let item = if life.blank.contains(&i) { blank(item) } else { item };
        items.push((second + life.delay, item));
    }
    items
}

fn life() -> impl Strategy<Value = Life> {
    (
        any::<bool>(),
        0..8_i64,
        1..15_i64,
        5..60_usize,
        -20..20_i64,
        0..10_i64,
        (0..60_usize, 0..30_usize),
        1..120_usize,
        (0..90_usize, 0..20_usize),
        any::<bool>(),
    )
        .prop_map(|(progress, begins, beat, events, skew, delay, (from, len), restart, (hidden, hides), ends)| Life {
            progress,
            begins,
            beat,
            events,
            skew,
            delay,
            silent: from..from + len,
            restart,
            blank: hidden..hidden + hides,
            ends,
        })
}

/// After this record everything comes so many seconds later: nothing runs meanwhile, and neither does the log. About a day, the
/// longest time whose empty windows are emitted, or far more.
fn outage() -> impl Strategy<Value = (usize, i64)> {
    (0..120_usize, prop_oneof![14 => Just(0_i64), 1 => 0..9_000_i64, 1 => 86_100..86_700_i64, 2 => 90_000..9_000_000_i64])
}

/// Returns all sources' records in the order of their stamps, with heartbeats until all are idle.
fn log(lives: &[Life], (outage_at, outage): (usize, i64)) -> Vec<(i64, Item)> {
    let mut log: Vec<(i64, Item)> = lives.iter().enumerate().flat_map(|(i, life)| history(i, life)).collect();
    log.sort_by_key(|(stamp, _)| *stamp);
    for (stamp, item) in log.iter_mut().skip(outage_at) {
        *stamp += outage;
        match item {
            Item::Gpu(event) => event.time = event.time.plus_micros(outage * SECOND),
            Item::Rank(event) => event.time = event.time.plus_micros(outage * SECOND),
            _ => {}
        }
    }
    let end = log.last().map_or(0, |(stamp, _)| *stamp);
    log.extend((1..20).map(|i| (end + 10 * i, Item::Heartbeat)));
    log
}

/// Returns the rises of each counter that reached the log, by kind.
fn whole(log: &[(i64, Item)]) -> (f64, f64) {
    let mut last: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let (mut joules, mut samples) = (0.0, 0.0);
    for (_, item) in log {
        match item {
            Item::Gpu(event) => {
                let Some(now) = event.energy_joules_total else { continue };
                let (before, _) = last.insert(event.device.clone(), (now, 0.0)).unwrap_or((now, 0.0));
                joules += (now - before).max(0.0);
            }
            Item::Rank(event) => {
                let Some(now) = event.samples_total else { continue };
                let key = format!("rank {}", event.rank);
                let (before, most) = last.get(&key).copied().unwrap_or((now, now));
                if now >= before {
                    samples += (now - most.max(before)).max(0.0);
                }
                last.insert(key, (now, most.max(now)));
            }
            _ => {}
        }
    }
    (joules, samples)
}

/// Open windows by start and end; one that is longer is a silence and is not emitted.
type Open = Vec<(i64, i64)>;

/// Returns the model: which windows are closed, and by which record, from each source's newest time and the log clock alone.
fn model(log: &[(i64, Item)]) -> Vec<(i64, usize)> {
    let (mut clock, mut stamp) = (0, None);
    // Time of each source's newest counter: events without it move nothing until it has been away for two minutes.
    let mut counted: BTreeMap<String, i64> = BTreeMap::new();
    // Newest capped time and log clock by source; `None`: ended.
    let mut sources: BTreeMap<String, Option<(i64, i64)>> = BTreeMap::new();
    let (mut open, mut closed, mut joined): (Open, Option<i64>, i64) = (Vec::new(), None, 0);
    let mut windows = Vec::new();
    for (i, (now, item)) in log.iter().enumerate() {
        clock += stamp.map_or(0, |before: i64| (now - before).clamp(0, 20));
        stamp = stamp.max(Some(*now));
        let live = |sources: &BTreeMap<String, Option<(i64, i64)>>, clock: i64| -> Vec<i64> {
            sources.values().flatten().filter(|(_, last_clock)| clock - last_clock < 120).map(|(time, _)| *time).collect()
        };
        let mut close =
            |sources: &BTreeMap<String, Option<(i64, i64)>>, open: &mut Open, closed: &mut Option<i64>, joined: i64| {
                let least = live(sources, clock).into_iter().min().unwrap_or(i64::MAX);
                while let Some((start, end)) = open.first().copied()
                    && least >= end
                    && clock >= joined + 10
                {
                    open.remove(0);
                    windows.extend((end - start == 60).then_some((start, i)));
                    *closed = Some(end);
                }
            };
        close(&sources, &mut open, &mut closed, joined);
        let (key, time, last, counts) = match item {
            Item::Gpu(event) => (event.device.clone(), event.time, event.last, event.energy_joules_total.is_some()),
            Item::Rank(event) => (format!("rank {}", event.rank), event.time, event.last, event.samples_total.is_some()),
            _ => continue,
        };
        let time = time.seconds_since(at(0.0)).round() as i64;
        if live(&sources, clock).is_empty() {
            joined = clock;
        }
        if counts {
            counted.insert(key.clone(), time);
        }
        let known = counted.get(&key).copied().filter(|known| time - known < 120 && !last).unwrap_or(time);
        let newest = sources.get(&key).copied().flatten().map_or(i64::MIN, |(time, _)| time);
        sources.insert(key, (!last).then_some((known.min(*now).max(newest), clock)));
        if closed.is_none_or(|closed| time >= closed) {
            let start = time.div_euclid(60) * 60;
            let held = open.iter().position(|(from, to)| *from <= time && time < *to);
            if held.is_none_or(|i| open[i].1 - open[i].0 > 60) {
                let between = held.map(|i| open.remove(i));
                let (first, last) = (open.first().copied(), open.last().copied());
                let from = between.map_or_else(|| last.map_or(start, |(_, end)| end.min(start)), |(from, _)| from);
                let to = between.map_or_else(|| first.map_or(start + 60, |(first, _)| first.max(start + 60)), |(_, to)| to);
                open.push((start, start + 60));
                for (a, b) in [(from, start), (start + 60, to)] {
                    // Past the last window everything lies before it, before the first one behind it.
                    let step = if b - a <= 86_400 { 60 } else { b - a };
                    open.extend((a..b).step_by(step as usize).map(|start| (start, start + step)));
                }
                open.sort_unstable();
            }
        }
        close(&sources, &mut open, &mut closed, joined);
    }
    windows
}

fn run(log: &[(i64, Item)], crashes: &[usize]) -> Bench {
    let mut bench = Bench::default();
    let mut committed = Vec::new();
    for (i, (stamp, item)) in log.iter().enumerate() {
        bench.stamped(*stamp as f64, item.clone());
        if crashes.contains(&i) {
            bench.crash(&mut committed);
        }
    }
    bench
}

/// Starts of the windows, each with the record that closed it.
fn closings(log: &[(i64, Item)]) -> Vec<(i64, usize)> {
    let mut bench = Bench::default();
    let mut closings = Vec::new();
    for (i, (stamp, item)) in log.iter().enumerate() {
        bench.stamped(*stamp as f64, item.clone());
        let new = bench.windows[closings.len()..].iter().map(|w| w.window_start.seconds_since(at(0.0)) as i64);
        let new: Vec<i64> = new.collect();
        closings.extend(new.into_iter().map(|start| (start, i)));
    }
    closings
}

fn without_counts(mut window: EfficiencyWindow) -> EfficiencyWindow {
    window.duplicates = 0;
    window.stale = 0;
    window
}

/// Returns the log as two inputs of the merge, and back as one.
fn merged(log: &[(i64, Item)], settings: &FoldSettings, batches: &[usize]) -> Vec<(EventTime, Item)> {
    let mut merge = InputMerge::new(&[0, 0], settings.max_future);
    let (mut out, mut rest, mut turn) = (Vec::new(), log, 0);
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(batches[turn % batches.len()].min(rest.len()));
        (rest, turn) = (later, turn + 1);
        for (stamp, item) in batch {
            merge.push(usize::from(matches!(item, Item::Rank(_))), 0, at(*stamp as f64), 1, item.clone());
        }
        while let Some(next) = merge.next(|_, item: &Item| item.event().time()) {
            out.push((next.stamp, next.record));
        }
    }
    merge.end(0, 0);
    merge.end(1, 0);
    while let Some(next) = merge.next(|_, item: &Item| item.event().time()) {
        out.push((next.stamp, next.record));
    }
    out
}

/// Returns events that end a silence of their source, by the log's clock as the merge shows it.
fn wakings(merged: &[(EventTime, Item)]) -> Vec<(String, EventTime)> {
    let (mut clock, mut last_clocks, mut wakings) = (LogClock::default(), BTreeMap::new(), Vec::new());
    for (stamp, item) in merged {
        clock.observe(*stamp);
        let (name, time) = match item {
            Item::Gpu(event) => (event.device.clone(), event.time),
            Item::Rank(event) => (format!("rank {}", event.rank), event.time),
            _ => continue,
        };
        if last_clocks.insert(name.clone(), clock.elapsed()).is_some_and(|last| clock.elapsed() - last >= 120 * SECOND) {
            wakings.push((name, time));
        }
    }
    wakings.sort_unstable();
    wakings
}

/// However records are batched, and in whatever order records of one stamp come, the windows are the same.
fn batched_and_interleaved(lives: &[Life], outage: (usize, i64), batches: &[usize], seed: u64) {
    let settings = FoldSettings::default();
    let log = log(lives, outage);
    // Sources in another order wherever their stamps are the same; each source's own order stays.
    let mut shuffled = log.clone();
    let mark = |item: &Item| match item {
        Item::Gpu(event) => event.device.bytes().map(u64::from).sum::<u64>(),
        Item::Rank(event) => u64::from(event.rank) + 1_000,
        _ => 0,
    };
    shuffled.sort_by_key(|(stamp, item)| (*stamp, mark(item).wrapping_mul(seed | 1)));
    let fold = |records: Vec<(EventTime, Item)>| {
        let mut bench = Bench::new(settings.clone());
        for (stamp, item) in records {
            bench.stamped(stamp.seconds_since(at(0.0)), item);
        }
        bench
    };
    let whole = [usize::MAX];
    let one = fold(merged(&log, &settings, &whole));
    let split = fold(merged(&log, &settings, batches));
    assert_eq!(serde_json::to_string(&one.windows).unwrap(), serde_json::to_string(&split.windows).unwrap());
    assert_eq!(&one.decisions, &split.decisions);
    let other = fold(merged(&shuffled, &settings, &whole));
    // The merge takes a record with a lagging clock before older ones of another input, and with it its stamp: who is silent for
    // nearly as long as the grace may be idle in one order and not in the other.
    let same_silences = wakings(&merged(&log, &settings, &whole)) == wakings(&merged(&shuffled, &settings, &whole));
    if one.refused.is_empty() && other.refused.is_empty() && same_silences {
        assert_eq!(serde_json::to_string(&one.windows).unwrap(), serde_json::to_string(&other.windows).unwrap());
    }
}

/// Three ranks; the first one's counter is away around an outage of two minutes, and starts again.
#[test]
fn interleaved_around_an_outage() {
    let life = Life {
        progress: true,
        begins: 0,
        beat: 1,
        events: 12,
        skew: -3,
        delay: 8,
        silent: 2..2,
        restart: 12,
        blank: 5..11,
        ends: false,
    };
    let second = Life { begins: 1, beat: 6, events: 5, skew: 0, delay: 6, silent: 3..3, restart: 1, blank: 0..0, ..life.clone() };
    let third = Life { begins: 4, beat: 4, delay: 1, ..second.clone() };
    batched_and_interleaved(&[life, second, third], (10, 114), &[1], 4_256_940_940_086_819_604);
}

/// A GPU's time with one workload, or with none.
#[derive(Debug, Clone)]
struct Stay {
    workload: Option<usize>,
    beat: i64,
    samples: usize,
    watts: f64,
    /// Before this sample its counter starts again.
    restart: usize,
    /// These samples leave the counter out.
    blank: std::ops::Range<usize>,
    /// How it ends.
    then: Then,
}

#[derive(Debug, Clone, Copy)]
enum Then {
    /// The reading goes to the next workload as well.
    HandedOver,
    /// Its end is reported; so many seconds later the GPU is seen again.
    Away(i64),
    /// Nothing is reported: its collector died, and sees the GPU again so many seconds later.
    Lost(i64),
}

fn stay() -> impl Strategy<Value = Stay> {
    let then = prop_oneof![
        3 => Just(Then::HandedOver),
        1 => (1..400_i64).prop_map(Then::Away),
        1 => (1..400_i64).prop_map(Then::Lost),
    ];
    (
        prop_oneof![4 => (0..3_usize).prop_map(Some), 1 => Just(None)],
        1..20_i64,
        1..30_usize,
        0..400_u32,
        1..60_usize,
        (0..60_usize, 0..10_usize),
        then,
    )
        .prop_map(|(workload, beat, samples, watts, restart, (hidden, hides), then)| {
            let blank = hidden..hidden + hides;
            Stay { workload, beat, samples, watts: f64::from(watts), restart, blank, then }
        })
}

/// Joules that a counter shows for a workload between two of its readings.
#[derive(Debug)]
struct CounterRise {
    workload: String,
    seconds: (i64, i64),
    joules: f64,
}

impl CounterRise {
    /// Returns its part in the minute that begins at `start`.
    fn within(&self, start: i64) -> f64 {
        let (from, to) = self.seconds;
        self.joules * (to.min(start + 60) - from.max(start)).max(0) as f64 / (to - from) as f64
    }
}

/// Returns a GPU's records as a collector writes them, and the rise of its counter within each of its tenures. Between two of
/// them its counter rises for an unknown workload.
fn moved(name: usize, begins: i64, stays: &[Stay]) -> (Vec<(i64, Item)>, Vec<CounterRise>) {
    let (mut items, mut rises) = (Vec::new(), Vec::new());
    let (mut now, mut total, mut begins_handed_over) = (begins, 1_000.0, false);
    let device = format!("GPU-{name}");
    for (i, stay) in stays.iter().enumerate() {
        let workload = stay.workload.map(|workload| format!("team/{workload}"));
        // A workload that goes on with it has one stay, not two.
        let next = stays.get(i + 1).filter(|next| next.workload != stay.workload);
        let then = if matches!(stay.then, Then::HandedOver) && next.is_none() { Then::Away(1) } else { stay.then };
        let handed_over = matches!(then, Then::HandedOver);
        // The reading after the one that it came with is the first that it can leave with.
        let samples = if handed_over || begins_handed_over { stay.samples.max(2) } else { stay.samples };
        let (tenure, mut known) = (now, None);
        for sample in 0..samples {
            if sample > 0 {
                now += stay.beat;
                total = if sample == stay.restart { 7.0 } else { total + stay.beat as f64 * stay.watts };
            }
            let seen = (!stay.blank.contains(&sample)).then_some(total);
            let event = GpuTelemetry {
                workload: workload.clone(),
                tenure: Some(tenure as u64),
                energy_joules_total: seen,
                last: sample + 1 == samples && !matches!(then, Then::Lost(_)),
                ..gpu(&device, now as f64, 0.0)
            };
            items.push((now, event.into()));
            if let (Some((second, before)), Some(after)) = (known, seen)
                && after >= before
            {
                let workload = workload.clone().unwrap_or_else(|| format!("gpus//{device}"));
                rises.push(CounterRise { workload, seconds: (second, now), joules: after - before });
            }
            // Without power, the energy of a standstill shows at the next rise.
            let is_unchanged = |seen: f64| known.is_some_and(|(_, before)| before == seen);
            known = seen.filter(|seen| !is_unchanged(*seen)).map(|seen| (now, seen)).or(known);
        }
        if let Then::Away(seconds) | Then::Lost(seconds) = then {
            now += seconds;
            total += seconds as f64 * 100.0;
        }
        begins_handed_over = handed_over;
    }
    (items, rises)
}

/// Returns the records and the rises of all. At the end each workload has a GPU without power, so that pending figures come
/// into its window.
fn moves(gpus: &[(i64, Vec<Stay>)]) -> (Vec<(i64, Item)>, Vec<CounterRise>) {
    let (items, rises): (Vec<_>, Vec<_>) = gpus.iter().enumerate().map(|(i, (begins, stays))| moved(i, *begins, stays)).unzip();
    let mut log: Vec<(i64, Item)> = items.into_iter().flatten().collect();
    log.sort_by_key(|(stamp, _)| *stamp);
    let end = log.last().map_or(0, |(stamp, _)| *stamp);
    log.extend((1..20).map(|i| (end + 10 * i, Item::Heartbeat)));
    for seconds in [300, 330] {
        let of = |device: String, workload| {
            let event = gpu(&device, (end + seconds) as f64, 0.0);
            (end + seconds, GpuTelemetry { workload, tenure: Some((end + 300) as u64), ..event }.into())
        };
        log.extend((0..3).map(|i| of(format!("GPU-of-{i}"), Some(format!("team/{i}")))));
        log.extend((0..gpus.len()).map(|i| of(format!("GPU-{i}"), None)));
    }
    log.extend((1..20).map(|i| (end + 330 + 10 * i, Item::Heartbeat)));
    (log, rises.into_iter().flatten().collect())
}

/// Returns the workload of a window, or the GPU that has none.
fn whose(window: &EfficiencyWindow) -> &str {
    window.id.split_once("/tumbling/").expect("an id names its window").0
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(400) })]

    #[test]
    fn windows_close_as_in_the_model_and_nothing_is_lost(lives in prop::collection::vec(life(), 1..6), outage in outage()) {
        let log = log(&lives, outage);
        let bench = run(&log, &[]);
        let starts: Vec<i64> = bench.starts().into_iter().map(|start| start as i64).collect();
        prop_assert_eq!(&closings(&log), &model(&log));
        prop_assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "each window closes once, in order: {:?}", starts);
        // Events that came while late may still wait for a window that will take them.
        if bench.refused.is_empty() {
            let (joules, samples) = whole(&log);
            let found: f64 = bench.windows.iter().map(|w| w.energy_joules.unwrap_or(0.0) + w.unassigned_energy_joules).sum();
            prop_assert!((found - joules).abs() < 1e-6 * joules.max(1.0), "{found} J of {joules} J");
            let found: f64 = bench.windows.iter().map(|w| w.samples.unwrap_or(0.0) + w.unassigned_samples).sum();
            prop_assert!((found - samples).abs() < 1e-6 * samples.max(1.0), "{found} samples of {samples}");
        }
        let late: u64 = bench.windows.iter().map(|w| w.late).sum();
        prop_assert!(late as usize <= bench.refused.len());
        for window in &bench.windows {
            prop_assert!((0.0..=1.0).contains(&window.energy_coverage_ratio));
            prop_assert!(window.energy_joules.is_none_or(|joules| joules >= 0.0));
        }
    }

    #[test]
    fn a_crash_at_any_commit_changes_nothing(
        lives in prop::collection::vec(life(), 1..5),
        outage in outage(),
        crashes in prop::collection::vec(0..400_usize, 1..8),
    ) {
        let log = log(&lives, outage);
        let (straight, crashed) = (run(&log, &[]), run(&log, &crashes));
        prop_assert_eq!(
            serde_json::to_string(&straight.windows).unwrap(),
            serde_json::to_string(&crashed.windows).unwrap()
        );
        prop_assert_eq!(straight.decisions, crashed.decisions);
        prop_assert_eq!(straight.refused, crashed.refused);
    }

    #[test]
    fn what_a_gpu_that_is_moved_draws_is_its_workloads_while_it_is_theirs_and_nobodys_between(
        gpus in prop::collection::vec((0..100_i64, prop::collection::vec(stay(), 1..6)), 1..4),
        crashes in prop::collection::vec(0..400_usize, 0..4),
    ) {
        let (log, rises) = moves(&gpus);
        let bench = run(&log, &crashes);
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-6 * expected.max(1.0);
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for window in &bench.windows {
            sums.entry(whose(window)).or_default().0 += window.energy_joules.unwrap_or(0.0) + window.unassigned_energy_joules;
        }
        for rise in &rises {
            sums.entry(&rise.workload).or_default().1 += rise.joules;
        }
        for (workload, (found, expected)) in sums {
            prop_assert!(near(found, expected), "{workload}: {found} J of {expected} J");
        }
        // Sources are late if their workload's windows closed because all sources had left.
        let late = bench.refused.iter().any(|refusal| refusal.reason != DeadLetterReason::Late);
        prop_assert!(!late, "{:?}", bench.refused);
        // Nor is it in other windows than in those in which it was drawn, if the counter is not away for long.
        if bench.refused.is_empty() && rises.iter().all(|rise| rise.seconds.1 - rise.seconds.0 <= 120) {
            for window in &bench.windows {
                let start = window.window_start.seconds_since(at(0.0)) as i64;
                let expected: f64 =
                    rises.iter().filter(|rise| rise.workload == whose(window)).map(|rise| rise.within(start)).sum();
                let found = window.energy_joules.unwrap_or(0.0);
                prop_assert!(near(found, expected), "{} at {start} s: {found} J of {expected} J", whose(window));
                prop_assert_eq!(window.unassigned_energy_joules, 0.0);
            }
        }
    }

    #[test]
    fn duplicates_change_no_figure(
        lives in prop::collection::vec(life(), 1..5),
        outage in outage(),
        again in prop::collection::vec(0..200_usize, 1..20),
    ) {
        let log = log(&lives, outage);
        let mut doubled = Vec::new();
        for (i, record) in log.iter().enumerate() {
            doubled.push(record.clone());
            if again.contains(&i) && !matches!(record.1, Item::Heartbeat) {
                doubled.push(record.clone());
            }
        }
        let plain: Vec<_> = run(&log, &[]).windows.into_iter().map(without_counts).collect();
        let twice: Vec<_> = run(&doubled, &[]).windows.into_iter().map(without_counts).collect();
        prop_assert_eq!(plain, twice);
    }

    #[test]
    fn events_without_a_counter_change_no_figure(
        lives in prop::collection::vec(life(), 1..5),
        outage in outage(),
        seed in any::<u64>(),
    ) {
        let log = log(&lives, outage);
        let (plain, more) = (run(&log, &[]), run(&with_blanks(&log, seed), &[]));
        if plain.refused.is_empty() && more.refused.is_empty() {
            prop_assert_eq!(figures(&plain), figures(&more));
        }
    }

    #[test]
    fn samples_without_power_change_no_figure(
        lives in prop::collection::vec(life(), 1..5),
        outage in outage(),
        seed in any::<u64>(),
        crashes in prop::collection::vec(0..400_usize, 0..4),
    ) {
        let log: Vec<_> = log(&lives, outage).into_iter().map(|(stamp, item)| (stamp, with_power(item))).collect();
        let (plain, more) = (run(&log, &[]), run(&with_blanks(&log, seed), &crashes));
        if plain.refused.is_empty() && more.refused.is_empty() {
            prop_assert_eq!(figures(&plain), figures(&more));
        }
    }

    #[test]
    fn how_records_are_batched_and_events_of_one_stamp_are_interleaved_changes_nothing(
        lives in prop::collection::vec(life(), 1..5),
        outage in outage(),
        batches in prop::collection::vec(1..40_usize, 1..6),
        seed in any::<u64>(),
    ) {
        batched_and_interleaved(&lives, outage, &batches, seed);
    }
}
