//! The archiver on the embedded log: every offset in exactly one file, whatever happens to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_archiver::{ArchiverDependencies, ArchiverError, ArchiverSettings, ServiceClock, run};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, FreeSpaceSource, StampSource};
use eadt_bus::{
    Bus, CommitStep, ConsumerRecord, IsolationLevel, MemberOptions, Membership, PollEvent, ProducerRecord, StartOffset,
    TopicPartition, topics,
};
use eadt_lake::{Archive, ArchiveFileName, ArchiveRow};
use eadt_schemas::v1::GpuTelemetry;
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};

const PARTITIONS: i32 = 2;
/// 2026-01-02T00:00:00Z.
const START: i64 = 1_767_312_000_000_000;

fn log(dir: &Path, stamps: StampSource) -> EmbeddedLog {
    log_with(dir, EmbeddedOptions { stamps, reserve_bytes: 0, ..EmbeddedOptions::default() })
}

fn log_with(dir: &Path, options: EmbeddedOptions) -> EmbeddedLog {
    let log = EmbeddedLog::open(dir, options).unwrap();
    if log.topics("eadt.").unwrap().is_empty() {
        for topic in topics::desired("eadt.", PARTITIONS, 1) {
            log.create_topic(&topic).unwrap();
        }
    }
    log
}

fn stamps(at: &Arc<AtomicI64>) -> StampSource {
    let at = at.clone();
    StampSource::Injected(Arc::new(move || EventTime::from_micros(at.load(Ordering::Relaxed))))
}

/// One atomic step with a few records of several topics; steps burn offsets.
fn step(log: &EmbeddedLog, n: i64) {
    let options = MemberOptions {
        group: "tests".to_owned(),
        membership: Membership::Transactional("tests".to_owned()),
        topics: Vec::new(),
    };
    let mut member = log.member(options).unwrap();
    let telemetry = |gpu: i64| {
        let event = GpuTelemetry {
            time: EventTime::from_micros(START + n * 100_000 - gpu),
            device: format!("GPU-{gpu}"),
            collector: "c".to_owned(),
            power_watts: Some(200.0 + n as f64 / 3.0),
            ..GpuTelemetry::default()
        };
        serde_json::to_vec(&event).unwrap()
    };
    let mut outputs: Vec<ProducerRecord> =
        (0..8).map(|gpu| outgoing(Topic::GpuTelemetry, &format!("ns/job-{}", gpu % 4), Some(telemetry(gpu)))).collect();
    outputs.push(outgoing(Topic::ProcessorState, "ns/job-1", Some(vec![0, 159, n as u8])));
    outputs.push(outgoing(
        Topic::Workloads,
        "ns/job-1",
        (n % 3 > 0).then(|| br#"{"workload":"ns/job-1","layout":{},"bounds":{},"odd":[1]}"#.to_vec()),
    ));
    outputs.push(outgoing(Topic::DeadLetters, "x", Some(b"not json".to_vec())));
    member.commit(&CommitStep { outputs, positions: Vec::new() }).unwrap();
}

fn outgoing(topic: Topic, key: &str, value: Option<Vec<u8>>) -> ProducerRecord {
    ProducerRecord {
        topic: format!("eadt.{topic}").into(),
        partition: None,
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: value.map(Bytes::from),
        headers: vec![(Arc::from("ce_specversion"), Bytes::from_static(b"1.0")), (Arc::from("trace"), Bytes::from_static(b"t"))],
    }
}

struct Running {
    thread: JoinHandle<Result<(), ArchiverError>>,
    shutdown: Shutdown,
    metrics: MetricsRegistry,
    health: HealthRegistry,
}

impl Running {
    fn stop(self) -> Result<(), ArchiverError> {
        self.shutdown.cancel();
        self.thread.join().unwrap()
    }
}

fn settings(place: &Path) -> ArchiverSettings {
    ArchiverSettings {
        location: place.to_str().unwrap().to_owned(),
        roll_rows: 100,
        retry_max_seconds: 0.05,
        ..ArchiverSettings::default()
    }
}

fn start(log: &EmbeddedLog, settings: ArchiverSettings, clock: ServiceClock) -> Running {
    let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
    let service = ArchiverDependencies {
        settings,
        prefix: "eadt.".to_owned(),
        bus: Arc::new(log.clone()),
        clock,
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        new_archive_id: 1,
        ready: health.part("archiver"),
    };
    Running { thread: std::thread::spawn(move || run(&service)), shutdown, metrics, health }
}

fn until(what: &str, mut true_yet: impl FnMut() -> bool) {
    let began = Instant::now();
    while !true_yet() {
        assert!(began.elapsed() < Duration::from_mins(1), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns everything the log holds, by topic and partition, and where each partition ends.
fn records(log: &EmbeddedLog) -> BTreeMap<(Topic, i32), (Vec<ConsumerRecord>, i64)> {
    let mut found = BTreeMap::new();
    for topic in Topic::ALL {
        for partition in 0..PARTITIONS {
            let at = TopicPartition::new(format!("eadt.{topic}"), partition);
            let mut reader = log.reader(&[(at, StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
            let (mut records, mut end) = (Vec::new(), None);
            while end.is_none() {
                let mut polled = Vec::new();
                reader.poll(1_000, Duration::from_secs(5), &mut polled).unwrap();
                for item in polled {
                    match item {
                        PollEvent::Record(record) => records.push(record),
                        PollEvent::End { position, .. } => end = Some(position),
                        other => panic!("{other:?}"),
                    }
                }
            }
            found.insert((topic, partition), (records, end.unwrap()));
        }
    }
    found
}

/// The archive holds exactly the log, ranges adjoin, and every range ends where the log does.
fn check(log: &EmbeddedLog, place: &Path) {
    let archive = Archive::folder(place).unwrap();
    let listing = archive.files().unwrap();
    assert_eq!((listing.gaps.len(), listing.superseded.len()), (0, 0));
    let mut total = 0;
    for ((topic, partition), (records, end)) in records(log) {
        let rows: Vec<ArchiveRow> = archive.rows(&listing, topic, partition).map(Result::unwrap).collect();
        assert_eq!(rows.len(), records.len(), "{topic} {partition}");
        for (row, record) in rows.iter().zip(&records) {
            assert_eq!((row.offset, row.stamp, &row.key), (record.offset, record.stamp, &record.key));
            assert_eq!(row.header("trace"), record.header("trace"));
            assert_eq!(row.value, record.value, "{topic} {partition} {}", record.offset);
        }
        total += rows.len();
        if !records.is_empty() {
            let (first, last) = listing.partitions()[&(topic, partition)];
            assert_eq!((first, last), (0, end - 1), "{topic} {partition}: burnt offsets are part of the last range");
        }
    }
    assert!(total > 0);
}

#[test]
fn everything_is_archived_and_a_restart_goes_on_from_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let log = log(&dir.path().join("log"), StampSource::Wall);
    for round in 0..3 {
        for n in 0..40 {
            step(&log, round * 40 + n);
        }
        let running = start(&log, settings(&place), ServiceClock::machine());
        until("ready", || running.health.waiting().is_empty());
        step(&log, round * 40 + 39);
        running.stop().unwrap();
        check(&log, &place);
    }
    let telemetry = TopicPartition::new("eadt.gpu.telemetry.v1", 0);
    let end = records(&log)[&(Topic::GpuTelemetry, 0)].1;
    assert_eq!(log.committed("archiver", &[telemetry]).unwrap(), [Some(end)], "others can see how far the archive is");
    // The group's position is not what counts: without its files everything is archived again.
    fs::remove_dir_all(&place).unwrap();
    start(&log, settings(&place), ServiceClock::machine()).stop().unwrap();
    check(&log, &place);
}

#[test]
fn files_are_completed_by_age_on_the_given_clock() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let log = log(&dir.path().join("log"), StampSource::Wall);
    let now = Arc::new(AtomicI64::new(START));
    let clock = {
        let now = now.clone();
        ServiceClock::new(move || EventTime::from_micros(now.load(Ordering::Relaxed)))
    };
    let running = start(&log, ArchiverSettings { roll_rows: 1_000_000, roll_seconds: 600.0, ..settings(&place) }, clock);
    step(&log, 0);
    until("rows wait", || running.metrics.text().contains("eadt_archiver_waiting_rows 11"));
    assert!(Archive::folder(&place).unwrap().files().unwrap().files.is_empty());
    now.fetch_add(601_000_000, Ordering::Relaxed);
    until("files are there", || running.metrics.text().contains("eadt_archiver_waiting_rows 0"));
    assert!(running.metrics.text().contains("eadt_archiver_files_total{topic=\"workloads.v1\"} 1"));
    running.stop().unwrap();
    check(&log, &place);
}

#[test]
fn a_store_that_refuses_stops_it_and_nothing_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let log = log(&dir.path().join("log"), StampSource::Wall);
    // A file has the place of a topic's folder.
    fs::create_dir(&place).unwrap();
    let obstacle = place.join("topic=gpu.telemetry.v1");
    fs::write(&obstacle, "x").unwrap();
    let running = start(&log, settings(&place), ServiceClock::machine());
    for n in 0..60 {
        step(&log, n);
    }
    until("stalled", || running.metrics.text().contains("eadt_archiver_stalled 1"));
    until("it reports that it waits", || running.health.waiting() == ["archiver"]);
    for n in 60..90 {
        step(&log, n);
    }
    until("it tried again", || running.metrics.text().contains("eadt_archiver_failures_total{part=\"store\"} 3"));
    fs::remove_file(&obstacle).unwrap();
    until("goes on", || running.health.waiting().is_empty());
    assert!(running.metrics.text().contains("eadt_archiver_stalled 0"));
    running.stop().unwrap();
    check(&log, &place);
}

#[test]
fn a_store_that_refuses_to_the_end_is_an_error_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let log = log(&dir.path().join("log"), StampSource::Wall);
    fs::create_dir(&place).unwrap();
    fs::write(place.join("topic=gpu.telemetry.v1"), "x").unwrap();
    for n in 0..30 {
        step(&log, n);
    }
    let running = start(&log, ArchiverSettings { drain_seconds: 0.3, ..settings(&place) }, ServiceClock::machine());
    until("stalled", || running.metrics.text().contains("eadt_archiver_stalled 1"));
    let error = running.stop().unwrap_err();
    assert!(matches!(error, ArchiverError::Unwritten(_)) && error.to_string().contains("next start"), "{error}");
    fs::remove_file(place.join("topic=gpu.telemetry.v1")).unwrap();
    start(&log, settings(&place), ServiceClock::machine()).stop().unwrap();
    check(&log, &place);
}

#[test]
fn a_log_on_a_full_disk_stalls_it_and_it_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let free = Arc::new(AtomicU64::new(1 << 40));
    let space = {
        let free = free.clone();
        FreeSpaceSource::Injected(Arc::new(move || free.load(Ordering::Relaxed)))
    };
    let log = log_with(&dir.path().join("log"), EmbeddedOptions { free_space: space, ..EmbeddedOptions::default() });
    for n in 0..40 {
        step(&log, n);
    }
    free.store(0, Ordering::Relaxed);
    // The last lookup holds for a moment.
    let options =
        MemberOptions { group: "full".to_owned(), membership: Membership::Transactional("full".to_owned()), topics: Vec::new() };
    let mut other = log.member(options).unwrap();
    until("the disk is full", || {
        other
            .commit(&CommitStep { outputs: vec![outgoing(Topic::Models, "m", Some(b"{}".to_vec()))], positions: Vec::new() })
            .is_err()
    });
    let running = start(&log, settings(&place), ServiceClock::machine());
    until("stalled", || running.metrics.text().contains("eadt_archiver_stalled 1"));
    until("not ready", || running.health.waiting() == ["archiver"]);
    until("it tried again", || running.metrics.text().contains("eadt_archiver_failures_total{part=\"log\"} 3"));
    free.store(1 << 40, Ordering::Relaxed);
    until("goes on", || running.health.waiting().is_empty());
    for n in 40..60 {
        step(&log, n);
    }
    running.stop().unwrap();
    check(&log, &place);
}

#[test]
fn an_archive_of_a_shorter_log_is_not_continued_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let at = Arc::new(AtomicI64::new(START));
    let first = log(&dir.path().join("log"), stamps(&at));
    for n in 0..5 {
        step(&first, n);
    }
    start(&first, settings(&place), ServiceClock::machine()).stop().unwrap();
    let before = listed(&place);
    at.fetch_add(3_600_000_000, Ordering::Relaxed);
    let second = log(&dir.path().join("another"), stamps(&at));
    for n in 0..20 {
        step(&second, n);
    }
    let refused = eadt_archiver::check(&settings(&place), "eadt.", &second).unwrap_err();
    let error = start(&second, settings(&place), ServiceClock::machine()).thread.join().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), error.to_string(), "reported before anything starts, too");
    assert!(matches!(error, ArchiverError::Another { .. }), "{error}");
    assert!(error.to_string().contains("of another log") && error.to_string().contains("archiver.location"), "{error}");
    assert_eq!(listed(&place), before, "nothing was written");
    // The log that it belongs to goes on.
    eadt_archiver::check(&settings(&place), "eadt.", &first).unwrap();
    step(&first, 5);
    start(&first, settings(&place), ServiceClock::machine()).stop().unwrap();
    check(&first, &place);
}

fn listed(place: &Path) -> Vec<String> {
    Archive::folder(place).unwrap().files().unwrap().files.iter().map(|file| file.name.path()).collect()
}

#[test]
fn a_renamed_file_stops_it_before_anything_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let log = log(&dir.path().join("log"), StampSource::Wall);
    for n in 0..5 {
        step(&log, n);
    }
    start(&log, settings(&place), ServiceClock::machine()).stop().unwrap();
    for n in 5..30 {
        step(&log, n);
    }
    // Makes the file's name cover records that are not archived yet.
    let own = Archive::folder(&place).unwrap().files().unwrap().files.remove(0).name;
    let wrong = ArchiveFileName { last: own.last + 3, ..own.clone() };
    fs::rename(place.join(own.path()), place.join(wrong.path())).unwrap();
    let error = start(&log, settings(&place), ServiceClock::machine()).thread.join().unwrap().unwrap_err().to_string();
    assert!(error.contains(&wrong.path()) && error.contains(&own.path()) && error.contains("its own name back"), "{error}");
    fs::rename(place.join(wrong.path()), place.join(own.path())).unwrap();
    start(&log, settings(&place), ServiceClock::machine()).stop().unwrap();
    check(&log, &place);
}

#[test]
fn a_record_of_the_id_that_is_gone_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let log = log(&dir.path().join("log"), StampSource::Wall);
    step(&log, 0);
    start(&log, settings(&place), ServiceClock::machine()).stop().unwrap();
    let record = place.join(format!("_archived/id+{:032x}", 1));
    fs::remove_file(&record).unwrap();
    let running = start(&log, settings(&place), ServiceClock::machine());
    until("it is recorded", || record.exists());
    running.stop().unwrap();
}

#[test]
fn records_deleted_before_archiving_are_reported_and_ranges_still_adjoin() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let at = Arc::new(AtomicI64::new(START));
    let log = log(&dir.path().join("log"), stamps(&at));
    step(&log, 0);
    start(&log, settings(&place), ServiceClock::machine()).stop().unwrap();
    for n in 1..20 {
        step(&log, n);
    }
    at.fetch_add(30 * 86_400_000_000, Ordering::Relaxed);
    step(&log, 20);
    log.maintain(EventTime::from_micros(at.load(Ordering::Relaxed))).unwrap();
    let low = log.watermarks(&TopicPartition::new("eadt.gpu.telemetry.v1", 0)).unwrap().low;
    let archive = Archive::folder(&place).unwrap();
    let archived = archive.next_offsets().unwrap()[&(Topic::GpuTelemetry, 0)];
    assert!(low > archived, "the log deleted {archived} to {low}");
    let running = start(&log, settings(&place), ServiceClock::machine());
    until("ready", || running.health.waiting().is_empty());
    assert!(!running.metrics.text().contains("eadt_archiver_deleted_offsets_total 0"));
    running.stop().unwrap();
    let listing = archive.files().unwrap();
    assert_eq!(listing.gaps, []);
    let rows: Vec<ArchiveRow> = archive.rows(&listing, Topic::GpuTelemetry, 0).map(Result::unwrap).collect();
    assert!(rows.iter().any(|row| row.offset < archived) && rows.iter().any(|row| row.offset >= low));
    assert!(!rows.iter().any(|row| (archived..low).contains(&row.offset)));
}

#[test]
fn an_archive_of_another_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    let first = log(&dir.path().join("log"), StampSource::Wall);
    for n in 0..5 {
        step(&first, n);
    }
    start(&first, settings(&place), ServiceClock::machine()).stop().unwrap();
    let second = log(&dir.path().join("another"), StampSource::Wall);
    step(&second, 0);
    let running = start(&second, settings(&place), ServiceClock::machine());
    let error = running.thread.join().unwrap().unwrap_err();
    assert!(matches!(error, ArchiverError::Ahead { .. }) && error.to_string().contains("another location"), "{error}");
    let running = start(&second, ArchiverSettings { roll_rows: 0, ..settings(&place) }, ServiceClock::machine());
    assert!(matches!(running.thread.join().unwrap(), Err(ArchiverError::Settings(_))));
    fs::write(place.join("data.parquet"), "PAR1").unwrap();
    let error = start(&first, settings(&place), ServiceClock::machine()).thread.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("data.parquet"), "{error}");
}

const CHILD: &str = "EADT_ARCHIVER_TEST_CHILD";

/// Not a test of its own: the process that the next test kills.
#[test]
fn child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let log = log(&dir.join("log"), StampSource::Wall);
    let running = start(&log, ArchiverSettings { roll_rows: 20, ..settings(&dir.join("archive")) }, ServiceClock::machine());
    for n in 0_i64.. {
        step(&log, n);
        assert!(!running.thread.is_finished());
    }
}

#[test]
fn killed_at_any_time_each_offset_is_in_exactly_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("archive");
    drop(log(&dir.path().join("log"), StampSource::Wall));
    let mut files = 0;
    let kills: u64 = std::env::var("EADT_TEST_KILLS").map_or(8, |count| count.parse().expect("EADT_TEST_KILLS is a number"));
    for round in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "archiver::child_that_is_killed", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From one more file on, at a moment that differs from round to round.
        let more = |files| Archive::folder(&place).unwrap().files().is_ok_and(|listing| listing.files.len() > files);
        until("another file", || more(files));
        std::thread::sleep(Duration::from_millis(17 * round % 150));
        child.kill().unwrap();
        child.wait().unwrap();
        let listing = Archive::folder(&place).unwrap().files().unwrap();
        assert_eq!((listing.gaps.len(), listing.superseded.len()), (0, 0), "round {round}");
        files = listing.files.len();
    }
    let log = log(&dir.path().join("log"), StampSource::Wall);
    start(&log, settings(&place), ServiceClock::machine()).stop().unwrap();
    check(&log, &place);
}
