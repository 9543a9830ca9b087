use eadt_schemas::v1::{Layout, Meter, Workload};
use eadt_testing::cases;
use proptest::prelude::*;

use super::*;
use crate::settings::SECOND;

/// Event times lie here, at a window's edge.
const BASE: i64 = 1_700_000_040;

pub fn at(seconds: i64) -> EventTime {
    EventTime::from_micros((BASE + seconds) * SECOND)
}

pub fn gpu(device: &str, seconds: i64) -> GpuTelemetry {
    GpuTelemetry {
        time: at(seconds),
        workload: Some("team/job".to_owned()),
        device: device.to_owned(),
        collector: "nvml/node-1".to_owned(),
        energy_joules_total: Some(100.0 * seconds as f64),
        ..GpuTelemetry::default()
    }
}

pub fn rank(number: u32, seconds: i64) -> TrainingProgress {
    TrainingProgress {
        time: at(seconds),
        workload: "team/job".to_owned(),
        rank: number,
        collector: "http/node-1".to_owned(),
        samples_total: Some(10.0 * seconds as f64),
        ..TrainingProgress::default()
    }
}

pub fn by(collector: &str, event: GpuTelemetry) -> GpuTelemetry {
    GpuTelemetry { collector: collector.to_owned(), ..event }
}

/// One workload without the partition around it: what is folded is neither closed nor aged by itself.
pub struct Fold {
    pub state: WorkloadState,
    settings: FoldSettings,
    tenants: UsageByOwner,
    taken: FoldOutcome,
}

impl Default for Fold {
    fn default() -> Self {
        Self::new(FoldSettings { max_future: None, ..FoldSettings::default() })
    }
}

impl Fold {
    fn new(settings: FoldSettings) -> Self {
        let windows = TumblingWindows { size: settings.window, origin: EventTime::from_micros(0) };
        Self {
            state: WorkloadState::new("team/job", windows, 0),
            settings,
            tenants: UsageByOwner::default(),
            taken: FoldOutcome::Folded,
        }
    }

    fn place(time: EventTime, clock: i64) -> LogPosition {
        LogPosition { stamp: time, merge_time: time, clock: clock * SECOND, is_sent_again: false }
    }

    /// Folds a sample at this second of the log clock.
    pub fn gpu(&mut self, clock: i64, event: &GpuTelemetry) -> &mut Self {
        let room = PartitionUsage { sources: 0, by_owner: &self.tenants };
        self.taken = self.state.fold_telemetry(event, Self::place(event.time, clock), room, &self.settings);
        self
    }

    /// Folds a progress event at this second of the log clock.
    pub fn rank(&mut self, clock: i64, event: &TrainingProgress) -> &mut Self {
        let room = PartitionUsage { sources: 0, by_owner: &self.tenants };
        self.taken = self.state.fold_progress(event, Self::place(event.time, clock), room, &self.settings);
        self
    }

    fn age(&mut self, clock: i64) -> &mut Self {
        self.state.advance_clock(clock * SECOND, &self.settings);
        self
    }

    fn close(&mut self, clock: i64) -> &mut Self {
        self.state.close(clock * SECOND, &self.settings, &mut Vec::new());
        self
    }

    fn open(&mut self, seconds: i64) -> Result<(), DecodeError> {
        self.state.open(at(seconds), PartitionUsage { sources: 0, by_owner: &self.tenants }, &self.settings)
    }

    fn cuts(&self) -> Vec<i64> {
        self.state.head.slice_edges.iter().map(|cut| cut.micros() / SECOND - BASE).collect()
    }

    fn due(&self) -> Option<i64> {
        (self.state.due < i64::MAX).then_some(self.state.due / SECOND)
    }

    fn devices(&self) -> Vec<&str> {
        self.state.gpus.iter().map(|gpu| &*gpu.device).collect()
    }
}

#[test]
fn windows_between_are_opened_each_once_and_none_over_a_long_silence() {
    let mut fold = Fold::new(FoldSettings { max_open_windows: 10, ..FoldSettings::default() });
    let mut cuts = |seconds| {
        fold.open(seconds).unwrap();
        fold.cuts()
    };
    assert_eq!(cuts(70), [60, 120]);
    assert_eq!(cuts(119), [60, 120], "it is open");
    assert_eq!(cuts(250), [60, 120, 180, 240, 300]);
    assert_eq!(cuts(-60), [-60, 0, 60, 120, 180, 240, 300]);
    let silence = |next| {
        let mut fold = Fold::new(FoldSettings { max_open_windows: 10, ..FoldSettings::default() });
        fold.open(0).and_then(|()| fold.open(next)).map(|()| fold)
    };
    // Ten minutes are ten windows: one more than may be open with those at both ends.
    assert_eq!(silence(540).unwrap().cuts().len(), 11);
    assert_eq!(silence(660).map(drop).map_err(|refusal| refusal.reason), Err(DeadLetterReason::StateLimit));
    assert_eq!(silence(720).unwrap().cuts(), [0, 60, 720, 780]);
    let mut fold = silence(1800).unwrap();
    fold.open(900).unwrap();
    assert_eq!(fold.cuts(), [0, 60, 900, 960, 1800, 1860], "far from either end");
    fold.open(1740).unwrap();
    assert_eq!(fold.cuts(), [0, 60, 900, 960, 1740, 1800, 1860], "next to one");
}

#[test]
fn ends_of_runs_and_spans_are_no_windows_to_the_cap() {
    let mut fold = Fold::new(FoldSettings { max_open_windows: 3, ..FoldSettings::default() });
    fold.open(0).unwrap();
    fold.state.insert_edge(at(30));
    fold.state.insert_edge(at(40));
    fold.open(60).unwrap();
    fold.open(120).unwrap();
    assert_eq!(fold.cuts(), [0, 30, 40, 60, 120, 180]);
    let refusal = fold.open(180).unwrap_err();
    assert_eq!((refusal.reason, refusal.field), (DeadLetterReason::StateLimit, Some("time")));
    assert!(refusal.detail.contains("opens the 4th window of the workload, at most 3 may be open"), "{}", refusal.detail);
    assert_eq!(fold.cuts(), [0, 30, 40, 60, 120, 180]);
}

#[test]
fn open_time_is_cut_within_and_once() {
    let mut fold = Fold::default();
    fold.state.insert_edge(at(5));
    assert_eq!(fold.cuts(), [] as [i64; 0], "nothing is open");
    fold.open(0).unwrap();
    fold.open(60).unwrap();
    for (second, cuts) in [
        (-1, &[0, 60, 120][..]),
        (0, &[0, 60, 120]),
        (60, &[0, 60, 120]),
        (120, &[0, 60, 120]),
        (130, &[0, 60, 120]),
        (30, &[0, 30, 60, 120]),
        (30, &[0, 30, 60, 120]),
        (119, &[0, 30, 60, 119, 120]),
    ] {
        fold.state.insert_edge(at(second));
        assert_eq!(fold.cuts(), cuts, "cut at {second}");
    }
}

#[test]
fn windows_of_another_length_cut_open_time_anew_and_of_a_silence_only_the_ends() {
    let windows = |cuts: &[i64], size: i64| {
        let mut fold = Fold::default();
        fold.state.head.slice_edges = cuts.iter().map(|cut| at(*cut)).collect();
        fold.state.set_windows(TumblingWindows { size: size * SECOND, origin: at(0) });
        fold.cuts()
    };
    assert_eq!(windows(&[0, 60, 120], 20), [0, 20, 40, 60, 80, 100, 120]);
    assert_eq!(windows(&[0, 60, 120], 120), [0, 60, 120], "what is open stays whole");
    assert_eq!(windows(&[0, 60, 120], 90), [0, 60, 90, 120, 180], "it goes on to the end of the last one");
    assert_eq!(windows(&[], 20), [] as [i64; 0]);
    // From 60 to 1200 nothing came.
    assert_eq!(windows(&[0, 60, 1200, 1260], 100), [0, 60, 100, 1100, 1200, 1260, 1300]);
    assert_eq!(windows(&[0, 60, 1200, 1260], 20), [0, 20, 40, 60, 80, 1180, 1200, 1220, 1240, 1260]);
}

#[test]
fn other_windows_divide_what_is_summed_and_count_no_late_table() {
    let mut fold = Fold::default();
    // No job reports, so after a minute of it steps are summed as they come.
    fold.gpu(0, &gpu("a", 0)).gpu(61, &gpu("a", 30));
    assert_eq!(fold.state.gpus[0].slices.iter().map(|sums| sums.joules).collect::<Vec<_>>(), [3_000.0]);
    fold.state.set_windows(TumblingWindows { size: 20 * SECOND, origin: at(0) });
    let joules: Vec<f64> = fold.state.gpus[0].slices.iter().map(|sums| sums.joules.round()).collect();
    assert_eq!((joules, fold.state.head.counts.late_tables), (vec![2_000.0, 1_000.0, 0.0], 0));
}

#[test]
fn while_a_job_may_be_about_to_start_nothing_is_settled_and_then_what_its_slowest_rank_passed() {
    let mut fold = Fold::default();
    fold.gpu(100, &gpu("a", 0));
    let settled = |fold: &Fold, clock: i64| fold.state.settled_through(clock * SECOND);
    assert_eq!([100, 159].map(|clock| settled(&fold, clock)), [EventTime::MIN; 2]);
    assert_eq!(settled(&fold, 160), EventTime::MAX, "a minute after its first event");
    fold.rank(170, &rank(0, 30)).rank(170, &rank(1, 20)).rank(170, &rank(0, 50));
    assert_eq!([100, 160, 900].map(|clock| settled(&fold, clock)), [at(20); 3]);
    fold.rank(170, &TrainingProgress { last: true, ..rank(1, 40) });
    assert_eq!(settled(&fold, 900), at(50), "who has ended is not waited for");
}

#[test]
fn the_grace_for_those_who_join_begins_anew_when_nobody_is_live() {
    let mut fold = Fold::default();
    fold.gpu(5, &gpu("a", 0)).gpu(20, &gpu("a", 10)).gpu(30, &gpu("b", 10)).rank(40, &rank(0, 10));
    assert_eq!(fold.state.head.joined, 5 * SECOND);
    fold.age(130).gpu(140, &gpu("a", 20));
    assert_eq!(fold.state.head.joined, 5 * SECOND, "b and the rank are live");
    fold.age(300).rank(310, &rank(0, 30)).gpu(320, &gpu("a", 30));
    assert_eq!(fold.state.head.joined, 310 * SECOND, "all were silent");
    fold.age(500).gpu(510, &gpu("b", 40));
    assert_eq!(fold.state.head.joined, 510 * SECOND);
}

#[test]
fn a_window_closes_when_the_grace_for_those_who_join_is_over() {
    let mut fold = Fold::default();
    fold.gpu(0, &gpu("a", 0)).gpu(9, &gpu("a", 60)).close(9);
    assert_eq!((fold.cuts(), fold.due()), (vec![0, 60, 120], Some(0)));
    fold.age(9);
    assert_eq!(fold.due(), Some(10));
    assert_eq!(fold.close(10).cuts(), [60, 120]);
}

#[test]
fn a_device_is_shared_where_it_has_more_than_one_tenant() {
    let mut fold = Fold::default();
    let on = |device, second, tenants| GpuTelemetry { tenants, ..gpu(device, second) };
    fold.gpu(0, &on("a", 0, Some(1))).gpu(0, &on("b", 0, None)).gpu(0, &on("c", 0, Some(0)));
    assert!(fold.state.head.shared.is_empty());
    fold.gpu(0, &on("b", 10, Some(3))).gpu(0, &on("b", 20, Some(2))).gpu(0, &on("a", 70, Some(2)));
    let shared: Vec<_> = fold.state.head.shared.iter().map(|(end, devices)| (*end, format!("{devices:?}"))).collect();
    assert_eq!(shared, [(at(60), r#"{"b": 3}"#.to_owned()), (at(120), r#"{"a": 2}"#.to_owned())]);
}

#[test]
fn a_device_that_is_new_replaces_one_that_is_silent_and_another_collector_of_a_known_one_does_not() {
    for (event, missing) in [(gpu("d", 200), 0), (by("dcgm/node-1", gpu("b", 200)), 1), (gpu("aa", 200), 0)] {
        let mut fold = Fold::default();
        for device in ["a", "b", "c"] {
            fold.gpu(0, &gpu(device, 0));
        }
        // b and c report, a is silent.
        fold.gpu(100, &gpu("b", 100)).gpu(100, &gpu("c", 100)).age(150);
        assert_eq!(fold.state.missing, 1);
        fold.gpu(200, &event);
        let missed = fold.state.gpus[0].liveness.is_missing_at(at(240));
        assert_eq!((fold.state.missing, missed), (missing, missing > 0), "{} of {}", event.device, event.collector);
    }
}

#[test]
fn of_several_silent_devices_a_new_one_replaces_the_one_that_is_silent_for_longest() {
    let mut fold = Fold::default();
    for (device, second) in [("a", 3), ("b", 1), ("c", 2)] {
        fold.gpu(0, &gpu(device, second));
    }
    fold.gpu(0, &by("dcgm/node-1", gpu("b", 5))).gpu(100, &gpu("d", 100)).age(150);
    assert_eq!(fold.state.missing, 4, "one of them by two collectors");
    let mut missing = |device: &str, second: i64, meter: Meter| {
        fold.gpu(second, &GpuTelemetry { meter, ..gpu(device, second) });
        let expected = fold.state.gpus.iter().filter(|gpu| gpu.liveness.is_missing());
        let mut names: Vec<String> = expected.map(|gpu| gpu.device.to_string()).collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(missing("wall", 200, Meter::Wall), "a b b c", "a meter of another kind replaces no GPU");
    assert_eq!(missing("e", 201, Meter::Gpu), "a b b");
    assert_eq!(missing("f", 202, Meter::Gpu), "b b");
    assert_eq!(missing("g", 203, Meter::Gpu), "");
}

/// Returns the silent devices and ranks that are expected after a change of the layout: of four each, GPU d and rank 3 report.
fn missing_after(before: (Option<u32>, Option<u32>), after: (Option<u32>, Option<u32>)) -> String {
    let mut fold = Fold::default();
    for (number, device) in (0..).zip(["a", "b", "c", "d"]) {
        fold.gpu(0, &gpu(device, i64::from(number))).rank(0, &rank(number, 0));
    }
    fold.gpu(100, &gpu("d", 100)).rank(100, &rank(3, 100)).age(150);
    for (generation, (gpus, replicas)) in [(1, before), (2, after)] {
        let layout = Layout { replicas, power_limit_watts: Some(300.0 - generation as f64), ..Layout::default() };
        fold.state.fold_layout(
            &Workload { time: at(150), generation, gpus, layout, ..Workload::default() },
            None,
            &fold.settings,
        );
    }
    let gpus = fold.state.gpus.iter().filter(|gpu| gpu.liveness.is_missing()).map(|gpu| gpu.device.to_string());
    let ranks = fold.state.ranks.iter().filter(|rank| rank.liveness.is_missing()).map(|rank| rank.rank.to_string());
    gpus.chain(ranks).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_layout_forgets_the_silent_sources_that_it_has_no_place_for() {
    let all = "a b c 0 1 2";
    for (before, after, missing, what) in [
        ((Some(4), Some(4)), (Some(4), Some(4)), all, "another cap"),
        ((Some(4), None), (Some(4), Some(4)), all, "replicas were not known before"),
        ((Some(4), Some(4)), (Some(4), Some(2)), "a b c 0 1", "half of the replicas on the same GPUs"),
        ((Some(4), Some(4)), (Some(8), Some(8)), all, "more of both"),
        ((Some(4), Some(4)), (Some(3), Some(4)), "b c 0 1 2", "three GPUs: d and two silent ones"),
        ((Some(4), Some(4)), (Some(1), Some(1)), "0", "d alone"),
        ((None, Some(4)), (None, Some(2)), "0 1", "half of the replicas, and GPUs are not known"),
        ((None, Some(4)), (Some(4), Some(4)), all, "GPUs were not known before"),
        ((None, None), (None, None), all, "nothing is known"),
    ] {
        assert_eq!(missing_after(before, after), missing, "{what}");
    }
}

/// Returns whether this `started` begins another job after rank 0 counted 500 samples.
fn begins_another_job(rules: u32, event: &TrainingProgress) -> bool {
    let mut fold = Fold::new(FoldSettings { window_rules: rules, max_future: None, ..FoldSettings::default() });
    let precise = TrainingProgress { layers: Some(6), ..rank(0, 50) };
    fold.rank(0, &TrainingProgress { phase: JobLifecycle::Started, samples_total: Some(0.0), ..rank(0, 0) });
    fold.rank(50, &precise).rank(50, &rank(1, 50));
    let runs = fold.state.head.runs.count();
    fold.rank(60, event);
    assert_eq!(fold.state.head.training.is_none(), fold.state.head.runs.count() > runs, "what it reported is forgotten");
    fold.state.head.runs.count() > runs
}

#[test]
fn a_start_of_rank_0_without_a_counter_above_zero_begins_another_job() {
    let start = |number: u32, samples: Option<f64>| TrainingProgress {
        phase: JobLifecycle::Started,
        samples_total: samples,
        ..rank(number, 60)
    };
    for (event, begins, what) in [
        (start(0, Some(0.0)), true, "it begins at 0"),
        (start(0, None), true, "no counter"),
        (TrainingProgress { steps_total: Some(0.0), ..start(0, None) }, true, "another counter at 0"),
        (start(0, Some(480.0)), false, "it goes on from a checkpoint"),
        (TrainingProgress { steps_total: Some(7.0), ..start(0, Some(0.0)) }, false, "one of its counters is above 0"),
        (start(1, Some(0.0)), false, "another rank"),
        (TrainingProgress { collector: "http/node-2".to_owned(), ..start(0, Some(0.0)) }, true, "by another collector"),
        (rank(0, 60), false, "progress"),
    ] {
        assert_eq!((begins_another_job(7, &event), begins_another_job(6, &event)), (begins, false), "{what}");
    }
}

#[test]
fn a_job_that_starts_twice_without_a_step_or_at_one_instant_is_one_job() {
    let start = |second: i64, samples: Option<f64>| TrainingProgress {
        phase: JobLifecycle::Started,
        samples_total: samples,
        ..rank(0, second)
    };
    let mut fold = Fold::default();
    fold.rank(0, &start(0, Some(0.0))).rank(5, &start(5, Some(0.0))).rank(10, &start(10, None));
    assert_eq!(fold.state.head.runs.count(), 1, "no step was counted");
    fold.rank(20, &rank(0, 20)).rank(20, &start(20, None));
    assert_eq!(fold.state.head.runs.count(), 1, "an event of the same time has a counter above 0");
    fold.rank(30, &start(30, Some(0.0))).rank(30, &start(30, Some(0.0)));
    fold.rank(31, &TrainingProgress { collector: "http/node-2".to_owned(), ..start(31, Some(0.0)) });
    assert_eq!(fold.state.head.runs.count(), 2, "by two collectors");
}

#[test]
fn one_that_is_silent_is_missing_also_when_its_last_event_comes_again() {
    let mut fold = Fold::default();
    fold.rank(0, &rank(0, 0)).gpu(0, &gpu("a", 0)).age(120);
    assert_eq!(fold.state.missing, 2);
    fold.rank(130, &rank(0, 0)).gpu(130, &gpu("a", 0));
    assert_eq!((fold.state.missing, fold.state.live, fold.state.head.counts.duplicates), (2, 0, 2));
}

#[test]
fn each_rank_of_each_collector_is_a_source_of_its_own() {
    let mut fold = Fold::default();
    for number in 0..300 {
        fold.rank(0, &rank(number, 0));
        fold.rank(0, &TrainingProgress { collector: format!("http/node-{number}"), ..rank(7_000, 0) });
    }
    for number in 0..300 {
        fold.gpu(0, &gpu(&format!("GPU-{number}"), 0)).gpu(0, &by(&format!("nvml/node-{number}"), gpu("GPU-x", 0)));
    }
    assert_eq!((fold.state.ranks.len(), fold.state.gpus.len()), (600, 600));
    for number in 0..300 {
        fold.rank(1, &rank(number, 1)).gpu(1, &gpu(&format!("GPU-{number}"), 1));
    }
    assert_eq!((fold.state.ranks.len(), fold.state.gpus.len()), (600, 600), "each is found again");
}

#[test]
fn a_job_that_names_ever_new_spans_is_refused_and_can_still_end_the_one_it_is_in() {
    let span = |second: i64, name: &str| TrainingProgress {
        time: EventTime::from_micros(at(0).micros() + second * 1_000),
        span: Some(name.to_owned()),
        ..rank(0, 0)
    };
    let mut fold = Fold::default();
    for n in 0..256 {
        fold.rank(0, &span(n, &n.to_string()));
    }
    assert_eq!((fold.taken.clone(), fold.state.head.spans.len()), (FoldOutcome::Folded, 256));
    let FoldOutcome::Refused(refusal) = fold.rank(0, &span(300, "one more")).taken.clone() else { panic!("{:?}", fold.taken) };
    assert_eq!((refusal.reason, refusal.field), (DeadLetterReason::StateLimit, Some("span")));
    assert!(refusal.detail.contains("256 spans in its open windows"), "{}", refusal.detail);
    assert_eq!(fold.rank(0, &span(305, "255")).taken, FoldOutcome::Folded, "it is in that one already");
    let again = fold.rank(0, &span(305, "one more at one instant")).taken.clone();
    assert!(matches!(again, FoldOutcome::Refused(_)) && fold.state.head.spans.len() == 256, "{again:?}");
    assert_eq!(fold.rank(0, &TrainingProgress { span: None, ..span(310, "") }).taken, FoldOutcome::Folded);
    assert_eq!(fold.rank(0, &span(320, "")).taken, FoldOutcome::Folded);
    assert!(fold.state.head.spans.iter().all(|span| span.end.is_some()) && fold.state.ranks[0].span.is_none());
}

#[test]
fn runs_that_begin_again_and_again_cut_open_time_only_so_often() {
    let mut fold = Fold::new(FoldSettings { max_open_windows: 10, max_future: None, ..FoldSettings::default() });
    let start = |n: i64| TrainingProgress {
        time: EventTime::from_micros(at(0).micros() + n * 1_000),
        phase: JobLifecycle::Started,
        ..rank(0, 0)
    };
    let most = MAX_SLICE_EDGES + 10;
    // The window's edges are two of them, and the first start is one.
    for n in 0..=most as i64 {
        fold.rank(0, &start(n));
    }
    assert_eq!(fold.state.head.slice_edges.len(), most);
    let FoldOutcome::Refused(refusal) = &fold.taken else { panic!("{:?}", fold.taken) };
    assert_eq!((refusal.reason, refusal.field), (DeadLetterReason::StateLimit, Some("time")));
    assert!(refusal.detail.contains("begin and end at 4106 times"), "{}", refusal.detail);
    let later = |n: i64| TrainingProgress { phase: JobLifecycle::Progress, ..start(5_000 + n) };
    assert_eq!(fold.rank(0, &later(0)).taken, FoldOutcome::Folded, "it cuts nothing");
    let again = fold.rank(0, &TrainingProgress { span: Some("at one instant".to_owned()), ..later(0) }).taken.clone();
    assert!(matches!(again, FoldOutcome::Refused(_)) && fold.state.head.slice_edges.len() == most, "{again:?}");
}

#[test]
fn runs_that_begin_and_end_in_one_instant_or_in_closed_time_are_kept_only_so_often() {
    let event =
        |micros: i64, phase| TrainingProgress { time: EventTime::from_micros(at(0).micros() + micros), phase, ..rank(0, 0) };
    for (step, closed) in [(0, false), (1, true)] {
        let mut fold = Fold::default();
        if closed {
            fold.rank(0, &rank(1, 180)).gpu(0, &gpu("a", 180));
            fold.state.head.closed_through = Some(at(120));
        }
        for n in 0..5_000 {
            fold.rank(0, &event(2 * n * step, JobLifecycle::Started)).rank(0, &event((2 * n + 1) * step, JobLifecycle::Finished));
        }
        assert_eq!(fold.state.head.runs.count(), MAX_SLICE_EDGES, "closed: {closed}");
        let FoldOutcome::Refused(refusal) = fold.rank(0, &event(10_000 * step, JobLifecycle::Started)).taken.clone() else {
            panic!()
        };
        assert_eq!((refusal.reason, refusal.field), (DeadLetterReason::StateLimit, Some("phase")));
    }
}

#[test]
fn a_second_event_of_one_instant_counts_where_it_reports_more() {
    let second = |first: &TrainingProgress, second: &TrainingProgress| {
        let mut fold = Fold::default();
        let begin = TrainingProgress { samples_per_second: Some(10.0), ..rank(0, 0) };
        fold.rank(0, &begin).rank(10, first);
        let samples = |fold: &Fold| fold.state.ranks[0].slices.iter().map(|sums| sums.amounts[0]).sum::<f64>();
        let before = samples(&fold);
        let taken = fold.rank(10, second).taken.clone();
        assert_eq!(fold.state.head.counts.duplicates, u64::from(taken == FoldOutcome::Duplicate));
        (taken == FoldOutcome::Duplicate, samples(&fold) - before)
    };
    let whole = rank(0, 10);
    let loss = TrainingProgress { samples_total: None, loss: Some(1.0), ..rank(0, 10) };
    assert_eq!(second(&whole, &whole), (true, 0.0));
    assert_eq!(second(&whole, &loss), (true, 0.0));
    assert_eq!(second(&loss, &whole), (false, 100.0), "the counter that was left out");
    let more = TrainingProgress { samples_total: Some(150.0), ..rank(0, 10) };
    assert_eq!(second(&whole, &more), (true, 0.0), "the first word counts");
    assert_eq!(second(&TrainingProgress { last: true, ..loss.clone() }, &whole), (false, 100.0), "also after the end");
    assert_eq!(second(&whole, &TrainingProgress { span: Some("epoch 1".to_owned()), ..whole.clone() }), (false, 0.0));
    assert_eq!(second(&whole, &TrainingProgress { phase: JobLifecycle::Started, ..whole.clone() }), (false, 0.0));
    assert_eq!(second(&whole, &TrainingProgress { last: true, ..whole.clone() }), (false, 0.0));
}

#[test]
fn a_second_event_of_one_instant_that_comes_after_the_source_fell_silent_counts_the_same() {
    let loss = |second| TrainingProgress { samples_total: None, loss: Some(1.0), ..rank(0, second) };
    let samples = |silent: bool| {
        let mut fold = Fold::default();
        fold.gpu(0, &gpu("a", 0)).rank(0, &rank(0, 0)).rank(10, &loss(10));
        if silent {
            fold.age(130);
        }
        fold.rank(131, &rank(0, 10));
        let rank = &fold.state.ranks[0];
        (fold.taken, rank.slices[0].amounts[0], rank.unassigned_of_first_slices(1)[0])
    };
    assert_eq!(samples(false), (FoldOutcome::Folded, 100.0, 0.0));
    assert_eq!(samples(true), samples(false));
    // The silence before the instant stays one.
    let mut fold = Fold::default();
    fold.rank(0, &rank(0, 0)).age(120).rank(130, &loss(10)).rank(130, &rank(0, 10));
    let rank = &fold.state.ranks[0];
    assert_eq!((rank.slices[0].amounts[0], rank.unassigned_of_first_slices(1)[0]), (0.0, 100.0));
}

#[test]
fn of_a_second_event_of_one_instant_a_rate_counts_where_the_first_had_none() {
    let rate = |second, rate| TrainingProgress { samples_total: None, samples_per_second: rate, ..rank(0, second) };
    let samples = |at_ten: &[Option<f64>]| {
        let mut fold = Fold::default();
        fold.rank(0, &rate(0, Some(10.0)));
        for value in at_ten {
            fold.rank(10, &rate(10, *value));
        }
        fold.rank(20, &rate(20, Some(10.0)));
        fold.state.ranks[0].slices.iter().map(|sums| sums.amounts[0]).sum::<f64>()
    };
    assert_eq!(samples(&[None, Some(20.0)]), 300.0, "15 a second and 15 a second");
    assert_eq!(samples(&[Some(20.0), Some(90.0)]), 300.0);
    assert_eq!(samples(&[None]), 200.0);
}

#[test]
fn a_source_that_is_dead_for_the_retention_is_forgotten_unless_an_open_window_has_figures_of_it() {
    let retention = 1_000 * SECOND;
    let forgetful = || Fold::new(FoldSettings { retention, max_future: None, ..FoldSettings::default() });
    let mut fold = forgetful();
    fold.gpu(0, &gpu("live", 0)).gpu(50, &gpu("dead", 0)).rank(50, &rank(0, 0));
    fold.state.head.slice_edges.clear();
    fold.state.gpus.iter_mut().for_each(|gpu| (gpu.pending, gpu.slices) = Default::default());
    fold.state.ranks.iter_mut().for_each(|rank| rank.slices.clear());
    let after_event_at = |fold: &mut Fold, clock: i64| {
        // A sign of life alone leaves no data.
        fold.gpu(clock, &gpu("live", clock));
        fold.state.gpus.iter_mut().for_each(|gpu| (gpu.pending, gpu.slices) = Default::default());
        fold.age(clock);
        (fold.devices().len(), fold.state.ranks.len())
    };
    assert_eq!([600, 1_049].map(|clock| after_event_at(&mut fold, clock)), [(2, 1); 2]);
    assert_eq!((after_event_at(&mut fold, 1_050), fold.devices()), ((1, 0), vec!["live"]));
    // Steps that wait, steps that are summed, progress.
    let mut fold = forgetful();
    fold.gpu(0, &gpu("waits", 0)).gpu(61, &gpu("summed", 0)).rank(61, &rank(0, 0));
    assert_eq!((fold.state.gpus[0].pending.len(), fold.state.gpus[1].pending.len()), (1, 0));
    fold.age(9_000);
    assert_eq!((fold.devices(), fold.state.ranks.len()), (vec!["waits", "summed"], 1));
    assert_eq!(fold.due(), Some(9_000), "it is looked at again at once");
    assert_eq!(fold.state.due, 9_000 * SECOND + 1);
    fold.close(9_000).age(9_001);
    assert_eq!((fold.state.source_count(), fold.cuts()), (0, vec![]));
}

#[test]
fn a_workload_is_due_when_something_may_change_by_itself() {
    let mut fold = Fold::default();
    let retention = fold.settings.retention / SECOND;
    fold.gpu(5, &gpu("a", 0)).age(6);
    assert_eq!(fold.due(), Some(15), "the grace for those who join is over");
    fold.age(15);
    assert_eq!(fold.due(), Some(125), "the device is silent");
    fold.age(125).close(125).age(126);
    assert_eq!(fold.due(), Some(5 + retention), "the device is forgotten");
    fold.gpu(200, &gpu("a", 200)).close(201).age(201);
    assert_eq!(fold.due(), Some(210), "it joined again");
    // Without sources it waits to be forgotten, as long as it is managed for ever.
    let mut fold = Fold::default();
    fold.state.head.last_event_clock = 7 * SECOND;
    assert_eq!(fold.age(8).due(), Some(7 + retention));
    fold.state.head.tables.put(&Workload::default(), None);
    assert_eq!(fold.age(9).due(), None);
    // Open time alone, all of it beyond the grace, changes nothing.
    let mut fold = Fold::default();
    fold.gpu(5, &gpu("a", 0)).age(100);
    assert_eq!(fold.due(), Some(125));
    fold.state.head.slice_edges.clear();
    fold.state.head.joined = 100 * SECOND;
    assert_eq!(fold.age(101).due(), Some(125), "nothing is open that could close");
}

#[test]
fn a_workload_is_forgotten_when_nothing_is_left_of_it_and_the_retention_is_over() {
    let settings = FoldSettings { retention: 1_000 * SECOND, ..FoldSettings::default() };
    let state = |change: fn(&mut WorkloadState)| {
        let mut state = Fold::default().state;
        state.head.last_event_clock = 100 * SECOND;
        change(&mut state);
        [1_099, 1_100, 9_000].map(|clock| state.is_forgettable(clock * SECOND, &settings))
    };
    assert_eq!(state(|_| {}), [false, true, true]);
    let managed = |state: &mut WorkloadState| {
        state.head.tables.put(&Workload::default(), None);
    };
    assert_eq!(state(managed), [false; 3]);
    assert_eq!(state(|state| state.head.slice_edges = [at(0), at(60)].into()), [false; 3]);
    let source = |state: &mut WorkloadState| {
        let mut fold = Fold::default();
        fold.gpu(0, &gpu("a", 0));
        fold.state.head.slice_edges.clear();
        (*state, state.head.last_event_clock) = (fold.state, 100 * SECOND);
    };
    assert_eq!(state(source), [false; 3]);
}

/// Something that happens to one of a few sources.
#[derive(Debug, Clone)]
enum Happens {
    /// Which one, so many seconds after the newest event of all (or before it), at so many of the log clock.
    Sample {
        of: u8,
        after: i64,
        clock: i64,
        last: bool,
        blank: bool,
    },
    Event {
        of: u8,
        after: i64,
        clock: i64,
        last: bool,
        blank: bool,
        phase: JobLifecycle,
        span: Option<u8>,
    },
    Age {
        clock: i64,
    },
    Layout {
        gpus: u32,
    },
}

fn happens() -> impl Strategy<Value = Happens> {
    let clock = || prop_oneof![8 => 0..15_i64, 1 => 100..200_i64];
    let after = || prop_oneof![3 => Just(0_i64), 6 => 0..40_i64, 2 => -60..0_i64];
    let phase =
        prop_oneof![8 => Just(JobLifecycle::Progress), 1 => Just(JobLifecycle::Started), 1 => Just(JobLifecycle::Finished)];
    let rare = || prop::bool::weighted(0.15);
    prop_oneof![
        4 => (0..4_u8, after(), clock(), rare(), rare())
            .prop_map(|(of, after, clock, last, blank)| Happens::Sample { of, after, clock, last, blank }),
        4 => (0..3_u8, after(), clock(), rare(), rare(), phase, prop::option::weighted(0.2, 0..3_u8)).prop_map(
            |(of, after, clock, last, blank, phase, span)| Happens::Event { of, after, clock, last, blank, phase, span }
        ),
        2 => clock().prop_map(|clock| Happens::Age { clock }),
        1 => (0..3_u32).prop_map(|gpus| Happens::Layout { gpus }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(120) })]

    /// How many sources are live, behind or missing, what the slowest rank has passed, and the order of the names are kept right
    /// as events come; counting all sources gives the same.
    #[test]
    fn what_is_counted_as_it_comes_is_what_counting_anew_finds(steps in prop::collection::vec(happens(), 1..60)) {
        let mut fold = Fold::default();
        let (mut newest, mut clock, mut generation) = (0, 0, 0);
        for step in steps {
            match step {
                Happens::Sample { of, after, clock: later, last, blank } => {
                    (newest, clock) = (newest + after, clock + later);
                    let mut event = by(["x", "y"][usize::from(of % 2)], gpu(["a", "b"][usize::from(of / 2)], newest));
                    event.last = last;
                    event.energy_joules_total = event.energy_joules_total.filter(|_| !blank);
                    fold.gpu(clock, &event);
                }
                Happens::Event { of, after, clock: later, last, blank, phase, span } => {
                    (newest, clock) = (newest + after, clock + later);
                    let mut event = rank(u32::from(of), newest);
                    (event.last, event.phase) = (last, phase);
                    event.span = span.map(|name| if name == 0 { String::new() } else { name.to_string() });
                    event.samples_total = event.samples_total.filter(|_| !blank);
                    fold.rank(clock, &event);
                }
                Happens::Age { clock: later } => {
                    clock += later;
                    fold.age(clock);
                }
                Happens::Layout { gpus } => {
                    generation += 1;
                    let layout = Layout { replicas: Some(gpus), ..Layout::default() };
                    let event = Workload { time: at(newest), generation, gpus: Some(gpus), layout, ..Workload::default() };
                    fold.state.fold_layout(&event, None, &fold.settings);
                }
            }
            fold.close(clock);
            let state = &fold.state;
            let mut anew = state.clone();
            anew.recount();
            let counts = |state: &WorkloadState| (state.live, state.behind, state.missing, state.reached);
            prop_assert_eq!(counts(state), counts(&anew));
            let anew = WorkloadState::from_parts(state.head.clone(), state.gpus.clone(), state.ranks.clone());
            prop_assert_eq!((&state.gpu_order, &state.rank_order), (&anew.gpu_order, &anew.rank_order));
            let first = anew.source_liveness().filter_map(|pulse| pulse.next_change_clock(&fold.settings)).min();
            prop_assert!(first.is_none_or(|first| state.due <= first), "{} {:?}", state.due, first);
        }
    }
}
