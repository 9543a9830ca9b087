use eadt_bus::RecordHeaders;
use eadt_schemas::v1::{ChangeValidation, ControllerAction};

use super::*;

fn at(minute: i64) -> EventTime {
    EventTime::from_micros(1_700_000_040_000_000 + minute * 60_000_000)
}

fn window(name: &str, minute: i64) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{name}/{minute}"),
        workload: name.into(),
        window_start: at(minute),
        window_end: at(minute + 1),
        energy_joules: Some(6000.0),
        energy_coverage_ratio: 1.0,
        run_seconds: 60.0,
        run_energy_joules: Some(6000.0),
        run_coverage_ratio: 1.0,
        samples: Some(100.0),
        progress_coverage_ratio: 1.0,
        mean_power_watts: Some(100.0),
        ..EfficiencyWindow::default()
    }
}

#[test]
fn energy_that_is_not_known_is_no_zero_and_its_samples_are_counted_apart() {
    let metrics = MetricsRegistry::default();
    let exporter = Exporter::new(&metrics, MetricsSettings::default());
    let unknown = EfficiencyWindow {
        energy_joules: None,
        run_energy_joules: None,
        energy_coverage_ratio: 0.0,
        run_coverage_ratio: 0.0,
        mean_power_watts: None,
        ..window("a/x", 0)
    };
    let counted = |name: &str| {
        let line = format!("eadt_workload_{name}_total{{namespace=\"a\",workload=\"x\",origin=\"measured\"}} ");
        metrics.text().lines().find_map(|shown| shown.strip_prefix(&*line).map(str::to_owned))
    };
    exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&unknown).unwrap());
    let pair = || (counted("progress_energy_joules"), counted("samples"));
    assert_eq!((counted("energy_joules"), pair()), (None, (None, None)));
    assert_eq!(counted("samples_without_energy").as_deref(), Some("100.0"));
    // Energy and samples of J/sample begin together. As in a report, that of a window without samples counts.
    let loading = EfficiencyWindow { samples: None, progress_coverage_ratio: 0.0, ..window("a/x", 1) };
    let shown = |joules: &str, samples: &str| (Some(joules.to_owned()), Some(samples.to_owned()));
    for (window, expected) in
        [(loading, shown("6000.0", "0.0")), (unknown, shown("6000.0", "0.0")), (window("a/x", 2), shown("12000.0", "100.0"))]
    {
        exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window).unwrap());
        assert_eq!(pair(), expected);
    }
    assert_eq!(counted("samples_without_energy").as_deref(), Some("200.0"));
    exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window("a/x", 3)).unwrap());
    assert_eq!(pair(), shown("18000.0", "200.0"));
}

#[test]
fn gpus_without_a_workload_are_no_workload_and_their_energy_has_a_counter_of_its_own() {
    let metrics = MetricsRegistry::default();
    let exporter = Exporter::new(&metrics, MetricsSettings { workloads_max: 1, ..MetricsSettings::default() });
    assert_eq!(shown(&metrics, IDLE), None, "not known is no 0");
    let idle = |device: &str| EfficiencyWindow { id: device.into(), samples: None, ..window("gpus", 0) };
    for window in [idle("GPU-1"), idle("GPU-2"), window("a/x", 0)] {
        exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window).unwrap());
    }
    while exporter.refresh() {}
    let text = metrics.text();
    assert!(text.contains("workload=\"x\"") && !text.contains("gpus\""), "{text}");
    assert_eq!((shown(&metrics, IDLE), shown(&metrics, RECORD)), (Some(12_000.0), Some(6000.0)));
    assert_eq!((shown(&metrics, "eadt_workload_capped"), exporter.state().windows), (Some(0.0), 1));
}

#[test]
fn what_has_not_happened_is_zero_and_what_is_beyond_the_limit_is_counted() {
    let metrics = MetricsRegistry::default();
    let limits = MetricsSettings { workloads_max: 2, gpus_max: 1, ..MetricsSettings::default() };
    let exporter = Exporter::new(&metrics, limits);
    let take = |topic, event: &dyn erased::Event| exporter.take(topic, &event.bytes());
    for name in ["a/x", "a/y", "a/z", "b/z"] {
        for minute in 0..2 {
            take(Topic::EfficiencyWindows, &window(name, minute));
        }
    }
    let revert = Decision { validation: ChangeValidation::Failed, ..decision("a/x", "d", ControllerAction::Revert) };
    take(Topic::Decisions, &revert);
    // The counter of GPU-1 goes on by 150 J and is reset, whatever another collector reports and in whatever order its tenants'
    // samples come.
    for (device, workload, share, second, collector, joules) in [
        ("GPU-1", "a/x", 0.25, 0.0, "c", 1e6),
        ("GPU-1", "a/x", 0.25, 0.5, "dcgm", 1e6 - 10.0),
        ("GPU-1", "a/x", 0.25, 1.0, "c", 1e6 + 100.0),
        ("GPU-1", "a/y", 0.75, 0.0, "c", 1e6),
        ("GPU-1", "a/y", 0.75, 1.0, "c", 1e6 + 100.0),
        ("GPU-1", "a/y", 0.75, 1.5, "dcgm", 1e6 + 90.0),
        ("GPU-1", "a/y", 0.75, 2.0, "c", 1e6 + 150.0),
        ("GPU-1", "a/y", 0.75, 3.0, "c", 3.0),
        ("GPU-2", "a/y", 1.0, 3.0, "c", 0.0),
    ] {
        let sample = GpuTelemetry {
            energy_joules_total: Some(joules),
            time: at(2).plus_seconds(second),
            device: device.into(),
            workload: Some(workload.into()),
            collector: collector.into(),
            power_watts: Some(300.0),
            share: Some(share),
            ..GpuTelemetry::default()
        };
        take(Topic::GpuTelemetry, &sample);
    }
    exporter.take(Topic::Decisions, b"{}");
    take(Topic::Actuations, &applied("a/x", "d"));
    while exporter.refresh() {}
    let text = metrics.text();
    for line in [
        "eadt_workload_energy_joules_total{namespace=\"a\",workload=\"x\",origin=\"measured\"} 12000.0",
        "eadt_workload_samples_total{namespace=\"a\",workload=\"y\",origin=\"measured\"} 200.0",
        "eadt_workload_outcomes_total{namespace=\"a\",workload=\"x\",origin=\"measured\",outcome=\"reverted\"} 1",
        "eadt_workload_outcomes_total{namespace=\"a\",workload=\"y\",origin=\"measured\",outcome=\"reverted\"} 0",
        "eadt_workload_capped 2.0",
        "eadt_workload_unreadable_events_total 1",
        "eadt_gpu_power_watts{device=\"GPU-1\",node=\"\",model=\"\",origin=\"measured\"} 300.0",
        "eadt_gpu_energy_joules_total{device=\"GPU-1\",node=\"\",model=\"\",origin=\"measured\"} 150.0",
        "eadt_gpu_share_ratio{device=\"GPU-1\",node=\"\",origin=\"measured\",namespace=\"a\",workload=\"y\"} 0.75",
        "eadt_gpu_capped 1.0",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
    }
    assert!(!text.contains("\"b\""), "{text}");
}

fn applied(workload: &str, decision_id: &str) -> Actuation {
    Actuation {
        id: format!("{decision_id}/applied"),
        decision_id: decision_id.into(),
        workload: workload.into(),
        time: at(2),
        outcome: ActuationOutcome::Applied,
        ..Actuation::default()
    }
}

fn decision(workload: &str, id: &str, action: ControllerAction) -> Decision {
    Decision { id: id.into(), workload: workload.into(), time: at(2), action, ..Decision::default() }
}

/// Returns a record of a topic under the default prefix.
fn record(topic: Topic, partition: i32, offset: i64, event: &dyn erased::Event) -> ConsumerRecord {
    ConsumerRecord {
        at: TopicPartition { topic: format!("eadt.{topic}").into(), partition },
        offset,
        stamp: at(0),
        key: None,
        value: Some(event.bytes().into()),
        headers: RecordHeaders::default(),
    }
}

/// Returns an exporter to which both partitions of every topic with a history are announced.
fn announced(metrics: &MetricsRegistry) -> (Exporter, Vec<TopicPartition>) {
    let exporter = Exporter::new(metrics, MetricsSettings::default());
    let of = |topic: Topic| {
        let topic: Arc<str> = format!("eadt.{topic}").into();
        [0, 1].map(|partition| TopicPartition { topic: topic.clone(), partition })
    };
    let all: Vec<TopicPartition> = HISTORY.into_iter().flat_map(of).collect();
    let from: Vec<_> = all.iter().map(|at| (at.clone(), StartOffset::Earliest)).collect();
    exporter.announce(&from, "eadt.");
    (exporter, all)
}

fn shown(metrics: &MetricsRegistry, series: &str) -> Option<f64> {
    metrics.text().lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

const ENERGY: &str = "eadt_workload_energy_joules_total{namespace=\"a\",workload=\"x\",origin=\"measured\"}";
const RECORD: &str = "eadt_workload_record_energy_joules{namespace=\"a\",workload=\"x\",origin=\"measured\"}";
const IDLE: &str = "eadt_gpu_idle_energy_joules_total";
const SAVING: &str = "eadt_workload_saving_joules{namespace=\"a\",workload=\"x\",origin=\"measured\"}";

#[test]
fn no_scrape_shows_a_part_of_the_history() {
    // From the first record on the counters continue; without the oldest ones they begin at 0.
    for (oldest, counted) in [(0, [18_000.0, 24_000.0]), (700, [0.0, 6000.0])] {
        let metrics = MetricsRegistry::default();
        let (exporter, partitions) = announced(&metrics);
        let window = |minute| record(Topic::EfficiencyWindows, 0, oldest + minute, &window("a/x", minute));
        for minute in 0..3 {
            exporter.on_record(Topic::EfficiencyWindows, &window(minute));
            assert!(!exporter.refresh());
            assert!(!metrics.text().contains("namespace="), "{minute}: {}", metrics.text());
            assert!(exporter.read_series(|series| series.workloads.is_empty()));
        }
        // Partition 1 cannot be reached: that is nothing to the workloads of partition 0.
        let mut ends = partitions.iter().filter(|at| at.partition == 0);
        for at in ends.by_ref().take(2) {
            exporter.on_end(at, "eadt.");
        }
        exporter.refresh();
        assert_eq!(shown(&metrics, ENERGY), None, "a topic is missing");
        ends.for_each(|at| exporter.on_end(at, "eadt."));
        assert_eq!(shown(&metrics, ENERGY), None, "its saving is missing");
        while exporter.refresh() {}
        let all = || [ENERGY, RECORD, SAVING].map(|series| shown(&metrics, series));
        assert_eq!(all(), [Some(counted[0]), Some(18_000.0), Some(0.0)], "{oldest}");
        assert_eq!((shown(&metrics, "eadt_workload_unread_partitions"), exporter.has_caught_up()), (Some(3.0), false));
        let since = exporter.read_series(|series| series.workloads[0].series.counted_since());
        assert_eq!(since, (oldest == 0).then(|| at(0)));
        exporter.on_record(Topic::EfficiencyWindows, &window(3));
        while exporter.refresh() {}
        assert_eq!(all(), [Some(counted[1]), Some(24_000.0), Some(0.0)], "{oldest}");
        // A new workload is news.
        exporter
            .on_record(Topic::Decisions, &record(Topic::Decisions, 0, 9, &decision("a/new", "n", ControllerAction::Maintain)));
        assert!(metrics.text().contains("workload=\"new\""));
        for at in &partitions {
            exporter.on_end(at, "eadt.");
        }
        assert!(exporter.has_caught_up());
    }
}

#[test]
fn a_heartbeat_is_no_event_and_history_that_cannot_be_read_is_no_news() {
    let metrics = MetricsRegistry::default();
    let (exporter, partitions) = announced(&metrics);
    let unreadable = || shown(&metrics, "eadt_workload_unreadable_events_total");
    let broken = record(Topic::Decisions, 0, 0, &"no decision");
    exporter.on_record(Topic::Decisions, &broken);
    assert_eq!(unreadable(), Some(0.0));
    for at in &partitions {
        exporter.on_end(at, "eadt.");
    }
    exporter.on_record(Topic::Decisions, &broken);
    assert_eq!(unreadable(), Some(1.0));
    let mut sample = record(Topic::GpuTelemetry, 0, 0, &EventTime::from_micros(0));
    exporter.on_record(Topic::GpuTelemetry, &sample);
    assert_eq!(unreadable(), Some(2.0));
    sample.headers = RecordHeaders::from(vec![(header::TYPE.into(), EventType::Heartbeat.name().into())]);
    exporter.on_record(Topic::GpuTelemetry, &sample);
    assert_eq!(unreadable(), Some(2.0));
}

#[test]
fn a_change_counts_once_it_is_applied_in_whatever_order_that_is_read() {
    let recommended = Actuation { outcome: ActuationOutcome::Recommended, ..applied("a/x", "r") };
    let (change, revert) = (ControllerAction::ScaleReplicas, ControllerAction::Revert);
    let takes_back = Decision { validation: ChangeValidation::Failed, ..decision("a/x", "b", revert) };
    let events: [(Topic, Box<dyn erased::Event>); 8] = [
        (Topic::Decisions, Box::new(decision("a/x", "r", revert))),
        (Topic::Actuations, Box::new(recommended)),
        (Topic::Decisions, Box::new(decision("a/x", "c", change))),
        (Topic::Actuations, Box::new(applied("a/x", "c"))),
        (Topic::Decisions, Box::new(takes_back)),
        (Topic::Actuations, Box::new(applied("a/x", "b"))),
        // As in a hold-out, nothing has failed.
        (Topic::Decisions, Box::new(decision("a/x", "h", revert))),
        (Topic::Actuations, Box::new(applied("a/x", "h"))),
    ];
    for is_backwards in [false, true] {
        let exporter = Exporter::new(&MetricsRegistry::default(), MetricsSettings::default());
        let mut order: Vec<_> = events.iter().collect();
        if is_backwards {
            order.reverse();
        }
        for (topic, event) in order {
            exporter.take(*topic, &event.bytes());
        }
        let counted: Vec<_> =
            exporter.read_series(|series| series.workloads[0].series.outcomes().filter(|(_, count)| *count > 0).collect());
        assert_eq!(counted, [("changed", 2), ("decided", 4), ("recommended", 1), ("reverted", 1)], "{is_backwards}");
    }
}

#[test]
fn a_workload_that_is_gone_takes_no_power_and_no_place() {
    let metrics = MetricsRegistry::default();
    let limits = MetricsSettings { workloads_max: 1, gpus_max: 1, ..MetricsSettings::default() };
    let exporter = Exporter::new(&metrics, limits);
    let take = |name: &str, minute| {
        exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window(name, minute)).unwrap());
    };
    let names = |later: u64| {
        let mut state = exporter.state();
        state.settle(Instant::now() + Duration::from_secs(later));
        let table = state.workload_table();
        let names: Vec<_> = table.rows.iter().map(|row| (row.name.to_owned(), row.series.power_watts)).collect();
        (names, table.capped)
    };
    let only = |name: &str, watts: Option<f64>, capped| (vec![(name.to_owned(), watts)], capped);
    take("a/old", 0);
    take("a/other", 0);
    take("b/new", 10);
    // A simulated one at another time does not count as the newest.
    let simulated = EfficiencyWindow { origin: Origin::Simulated, ..window("c/simulated", 100_000) };
    exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&simulated).unwrap());
    assert_eq!(names(0), only("old", None, 3), "its next window is overdue");
    // As soon as the others are a quarter of an hour ahead.
    take("b/new", 20);
    assert_eq!(names(0), only("new", Some(100.0), 1));
    // It comes back behind those who are there, and continues its counters.
    take("a/old", 20);
    assert_eq!(names(0), only("new", Some(100.0), 2));
    assert_eq!(exporter.state().workloads["a/old"].counters.windows, 2);
    // Nothing comes any more.
    assert_eq!(names(1000), only("simulated", None, 0));
    let sample = |device: &str, second| GpuTelemetry {
        time: at(0).plus_seconds(second),
        device: device.into(),
        collector: "node-a".into(),
        power_watts: Some(100.0),
        ..GpuTelemetry::default()
    };
    for (device, second, expected) in
        [("GPU-1", 0.0, "GPU-1 0"), ("GPU-2", 1.0, "GPU-1 1"), ("GPU-2", 400.0, " 1"), ("GPU-2", 401.0, "GPU-2 0")]
    {
        exporter.take(Topic::GpuTelemetry, &serde_json::to_vec(&sample(device, second)).unwrap());
        let devices = exporter.read_series(|series| series.gpus.iter().map(|row| row.newest.device.clone()).collect::<String>());
        assert_eq!(format!("{devices} {}", exporter.state().capped_gpus.len()), expected, "{device} {second}");
    }
    assert_eq!(exporter.state().gpu_rows(Instant::now() + Duration::from_secs(400)).count(), 0);
}

#[test]
fn sums_over_the_record_lack_no_workload_whatever_the_limit() {
    for (workloads_max, held_max, with_series, forgotten) in [(6, HELD, 6, 0), (3, HELD, 3, 0), (1, HELD, 1, 0), (2, 3, 2, 3)] {
        let metrics = MetricsRegistry::default();
        let exporter = Exporter::new(&metrics, MetricsSettings { workloads_max, ..MetricsSettings::default() });
        exporter.state().held_max = held_max;
        // Two run, and four have ended one after the other, twenty minutes before the next.
        for minute in 0..160 {
            let ended = (minute % 40 < 20).then(|| format!("old/{}", minute / 40));
            for name in ["live/a", "live/b"].into_iter().chain(ended.as_deref()) {
                exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window(name, minute)).unwrap());
            }
            if minute % 40 == 39 {
                while exporter.refresh() {}
                exporter.state().settle(Instant::now());
            }
        }
        for name in ["live/a", "live/b"] {
            exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window(name, 200)).unwrap());
        }
        while exporter.refresh() {}
        let series = |figure: &str| -> Vec<(bool, f64)> {
            let of = format!("eadt_workload_{figure}{{");
            let text = metrics.text();
            let lines = text.lines().filter_map(|line| line.strip_prefix(&*of)?.split_once("} "));
            lines.map(|(labels, value)| (labels.contains("namespace"), value.parse().unwrap())).collect()
        };
        let place = format!("{workloads_max} {held_max}");
        for (figure, sum) in
            [("record_energy_joules", 402.0 * 6000.0), ("compared_joules", 402.0 * 6000.0), ("saving_joules", 0.0)]
        {
            let values = series(figure);
            assert_eq!(Some(values.iter().map(|(_, joules)| joules).sum()), Some(sum), "{place}: {figure}: {values:?}");
            let own = values.iter().filter(|(is_own, _)| *is_own).count();
            assert_eq!((own, values.len()), (with_series, with_series + usize::from(with_series < 6)), "{place}: {figure}");
        }
        assert!(series("power_watts").iter().all(|(is_own, _)| *is_own), "{place}");
        assert_eq!(exporter.state().forgotten_workloads.len(), forgotten, "{place}");
        let counted = ["capped", "capped_ended"].map(|name| shown(&metrics, &format!("eadt_workload_{name}")));
        let running = 2_usize.saturating_sub(workloads_max);
        assert_eq!(counted, [Some(running as f64), Some((6 - with_series - running) as f64)], "{place}");
    }
}

#[test]
fn a_gpu_is_given_to_its_workloads_once_and_is_there_without_power() {
    let metrics = MetricsRegistry::default();
    let exporter = Exporter::new(&metrics, MetricsSettings::default());
    for second in (0..690).step_by(10) {
        let time = at(0).plus_seconds(f64::from(second));
        let sample = |device: &str, workload: Option<&str>, power_watts| GpuTelemetry {
            time,
            device: device.into(),
            workload: workload.map(str::to_owned),
            collector: "c".into(),
            power_watts,
            ..GpuTelemetry::default()
        };
        // The first job is killed, and no event reports that it left the GPU.
        let (owner, label) = if second < 600 { ("k/a", "workload=\"a\"") } else { ("k/b", "workload=\"b\"") };
        for sample in
            [sample("GPU-A", Some(owner), Some(300.0)), sample("GPU-Z", Some("k/z"), Some(0.0)), sample("GPU-N", None, None)]
        {
            exporter.take(Topic::GpuTelemetry, &serde_json::to_vec(&sample).unwrap());
        }
        let text = metrics.text();
        let shares: Vec<&str> = text.lines().filter(|line| line.starts_with("eadt_gpu_share_ratio{device=\"GPU-A\"")).collect();
        assert_eq!(shares.len(), 1, "{second}: {shares:?}");
        assert!(shares[0].contains(label) && shares[0].ends_with(" 1.0"), "{second}: {shares:?}");
        let count = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!([count("eadt_gpu_last_sample_timestamp_seconds{"), count("eadt_gpu_power_watts{")], [3, 1], "{second}");
    }
}

#[test]
fn savings_of_workloads_beyond_the_limit_are_given_up_before_those_of_all() {
    let metrics = MetricsRegistry::default();
    let exporter = Exporter::new(&metrics, MetricsSettings { workloads_max: 1, ..MetricsSettings::default() });
    exporter.state().windows_max = 3;
    for (name, minute, given_up, kept) in [
        ("a/x", 0, 0.0, 1),
        ("b/y", 0, 0.0, 2),
        ("b/y", 1, 0.0, 3),
        ("a/x", 1, 0.0, 2),
        ("b/y", 2, 0.0, 2),
        ("a/x", 2, 0.0, 3),
        ("a/x", 3, 1.0, 4),
    ] {
        exporter.take(Topic::EfficiencyWindows, &serde_json::to_vec(&window(name, minute)).unwrap());
        while exporter.refresh() {}
        let state = (shown(&metrics, "eadt_workload_savings_given_up"), exporter.state().windows);
        assert_eq!(state, (Some(given_up), kept), "{name} {minute}");
        assert_eq!(shown(&metrics, SAVING), (given_up == 0.0).then_some(0.0), "{name} {minute}");
    }
    assert_eq!(shown(&metrics, RECORD), Some(24_000.0));
}

#[test]
fn touching_shows_a_series_of_each_metric() {
    let metrics = MetricsRegistry::default();
    Exporter::new(&metrics, MetricsSettings::default()).touch();
    let counters = WORKLOAD_COUNTERS.iter().map(|spec| format!("eadt_workload_{}_total{{", spec.name));
    let gauges = WORKLOAD_GAUGES.iter().map(|spec| format!("eadt_workload_{}{{", spec.name));
    let gpus = GPU_GAUGES.iter().map(|spec| format!("eadt_gpu_{}{{", spec.name));
    let text = metrics.text();
    for series in counters.chain(gauges).chain(gpus) {
        assert!(text.contains(&series), "{series}: {text}");
    }
}

mod erased {
    /// An event as its bytes.
    pub trait Event {
        fn bytes(&self) -> Vec<u8>;
    }

    impl<T: serde::Serialize> Event for T {
        fn bytes(&self) -> Vec<u8> {
            serde_json::to_vec(self).unwrap()
        }
    }
}
