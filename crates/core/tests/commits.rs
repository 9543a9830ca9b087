//! Tests the counts of a partition, the content of commits, and forgetting.

use crate::support;

use eadt_core::partition::ModelsIgnored;
use eadt_core::settings::SECOND;
use eadt_core::{FoldSettings, PartitionTally};
use eadt_schemas::v1::{GpuTelemetry, Model};
use serde_json::json;
use support::{Bench, JOB, at, gpu, last, layout};

fn model(second: f64, format: &str) -> Model {
    let range = [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]];
    let model = json!({
        "base_watts": 50.0, "compute_linear_watts": 100.0, "compute_cubic_watts": 150.0, "memory_watts": 60.0,
        "io_watts_per_gigabyte_per_second": 0.0, "quality": {"r_squared": 0.99, "mape_ratio": 0.01, "count": 100}, "range": range,
    });
    Model {
        time: at(second),
        name: "power/A100".into(),
        version: second.to_string(),
        parameters: json!({"format": format, "clock_max_mhz": 1410.0, "model": model}),
        ..Model::default()
    }
}

const FORMAT: &str = "eadt.power-model.v1";

fn of(workload: &str, event: GpuTelemetry) -> GpuTelemetry {
    GpuTelemetry { workload: Some(workload.to_owned()), ..event }
}

/// Heartbeats every ten seconds.
fn heartbeats(bench: &mut Bench, from: i32, to: i32) {
    for second in (from..=to).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
}

#[test]
fn everything_that_comes_is_counted_as_what_it_is() {
    let mut bench = Bench::default();
    bench.put(layout(0.0, 1)).put(gpu("a", 0.0, 0.0)).put(gpu("a", 30.0, 3.0)).put(gpu("a", 61.0, 6.0));
    assert_eq!(bench.starts(), [0.0]);
    // The same again, an older one, one in closed time.
    bench.put(gpu("a", 61.0, 6.0)).put(gpu("a", 61.0, 6.0)).put(gpu("a", 40.0, 4.0)).put(gpu("b", 50.0, 0.0));
    // Tables of the newest time are in time, others late.
    bench.put(layout(61.0, 2)).put(layout(60.0, 2)).put(layout(20.0, 2));
    bench.put(model(62.0, FORMAT)).put(model(61.0, FORMAT)).put(model(63.0, "eadt.power-model.v9"));
    bench.heartbeat(63.0).heartbeat(64.0);
    let tally = PartitionTally {
        events: 16,
        duplicates: 2,
        late: 1,
        stale: 1,
        late_tables: 3,
        heartbeats: 2,
        models: 1,
        models_ignored: ModelsIgnored { version: 1, older: 1, ..ModelsIgnored::default() },
    };
    assert_eq!(bench.partition.tally(), tally);
}

#[test]
fn the_clock_of_a_partition_is_that_of_its_stamps() {
    let mut bench = Bench::default();
    assert_eq!((bench.partition.clock().elapsed(), bench.partition.clock().stamp()), (0, None));
    bench.heartbeat(5.0).heartbeat(12.0);
    assert_eq!((bench.partition.clock().elapsed(), bench.partition.clock().stamp()), (7 * SECOND, Some(at(12.0))));
}

#[test]
fn a_commit_has_to_write_what_changed_what_was_learned_and_what_is_forgotten() {
    let mut bench = Bench::new(FoldSettings { retention: 1_000 * SECOND, ..FoldSettings::default() });
    assert!(!bench.partition.has_changes());
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("a", 60.0, 60.0));
    // Keys of what is written, and whether it is deleted.
    let written = |bench: &mut Bench| -> Vec<(String, bool)> {
        assert!(bench.partition.has_changes());
        let records = bench.partition.take_changes();
        assert!(!bench.partition.has_changes());
        records.into_iter().skip(1).map(|record| (record.key, record.value.is_none())).collect()
    };
    assert_eq!(written(&mut bench), [(format!("{JOB}#0"), false)]);
    bench.put(model(60.0, FORMAT));
    assert_eq!(written(&mut bench), [("#models//power/A100".to_owned(), false)]);
    // Its silence is noted once; nothing more changes until it is forgotten.
    heartbeats(&mut bench, 70, 180);
    assert_eq!(written(&mut bench), [(format!("{JOB}#0"), false)]);
    heartbeats(&mut bench, 190, 1_050);
    assert!(!bench.partition.has_changes());
    bench.heartbeat(1_060.0);
    assert_eq!(written(&mut bench), [(format!("{JOB}#0"), true)]);
    assert_eq!(bench.partition.workload_and_source_counts(), (0, 0));
}

#[test]
fn a_workload_that_is_managed_only_is_not_written_again_at_every_step() {
    let mut bench = Bench::default();
    bench.put(layout(0.0, 1)).heartbeat(1.0).put(layout(2.0, 1));
    bench.partition.take_changes();
    heartbeats(&mut bench, 10, 500);
    assert!(!bench.partition.has_changes());
}

#[test]
fn what_is_forgotten_takes_no_change_of_another_workload_with_it() {
    let mut bench = Bench::new(FoldSettings { retention: 1_000 * SECOND, ..FoldSettings::default() });
    bench.put(of("team/old", last(gpu("a", 0.0, 0.0))));
    heartbeats(&mut bench, 10, 990);
    bench.partition.take_changes();
    bench.put(gpu("b", 995.0, 0.0)).heartbeat(1_005.0);
    let records: Vec<_> = bench.partition.take_changes().into_iter().map(|r| (r.key, r.value.is_some())).collect();
    assert_eq!(records, [("#".to_owned(), true), ("team/old#0".to_owned(), false), (format!("{JOB}#0"), true)]);
    // Its place is free for another one.
    bench.put(of("team/new", gpu("c", 1_006.0, 0.0))).put(of("team/old", gpu("d", 1_006.0, 0.0)));
    assert_eq!(bench.partition.workload_and_source_counts(), (3, 3));
}
