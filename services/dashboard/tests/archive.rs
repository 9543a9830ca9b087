//! An archive as the page reads it: what was refused, and earlier moments.

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, BusError, ProducerRecord, StartOffset, TopicPartition, TopicSpec, read_to_end};
use eadt_dashboard::{
    AsOfReader, DashboardModel, HistorySource, ReadingProgress, RecordIdentity, ReplayCheck, ReplayVerdict, RetentionLimits,
    SourceFacts, SourceKind, load_archive, load_log,
};
use eadt_lake::{Archive, ArchiveRow, ArchiveWriter};
use eadt_schemas::v1::{Layout, dead_letter_header};
use eadt_schemas::{EventTime, Topic};

use crate::support::{at, facts, model, serve, serve_past, serve_reading, window};

/// The window of each of 20 minutes, and events that were refused after five and after fifteen.
fn write(folder: &Path) {
    write_to(Archive::folder(folder).unwrap());
}

fn write_to(archive: Archive) {
    let mut writer = ArchiveWriter::new(archive, eadt_lake::RollLimits::default());
    let row = |topic, offset, stamp, value: Vec<u8>| ArchiveRow {
        topic,
        partition: 0,
        offset,
        stamp,
        key: Some(Bytes::from_static(b"team/a")),
        value: Some(value.into()),
        headers: Vec::new(),
    };
    for minute in 0..20 {
        let event = serde_json::to_vec(&window("team/a", minute, 600.0, &Layout::default())).unwrap();
        writer.push(&row(Topic::EfficiencyWindows, minute, at(minute + 1), event), at(0)).unwrap();
    }
    for (offset, minute, reason) in [(0, 5, "malformed"), (1, 15, "late")] {
        let reason = (Arc::from(dead_letter_header::REASON), Bytes::from_static(reason.as_bytes()));
        let letter = ArchiveRow { headers: vec![reason], ..row(Topic::DeadLetters, offset, at(minute), b"{".to_vec()) };
        writer.push(&letter, at(0)).unwrap();
    }
    for topic in [Topic::EfficiencyWindows, Topic::DeadLetters] {
        assert!(writer.roll(topic, 0).unwrap().is_some());
    }
}

fn load(folder: &Path, until: Option<EventTime>) -> DashboardModel {
    let empty = DashboardModel::new(SourceFacts { kind: SourceKind::Archive, ..facts() }, RetentionLimits::default());
    let mut model = match until {
        Some(time) => empty.as_of(time),
        None => empty,
    };
    load_archive(&Archive::find(folder).unwrap(), &mut model).unwrap();
    model
}

#[test]
fn an_archive_counts_what_was_refused_as_the_log_does() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let overview = load(folder.path(), None).overview();
    assert_eq!((overview.counts.windows, overview.counts.dead_letters), (20, 2));
    assert_eq!(overview.dead_letters, [("late".to_owned(), 1), ("malformed".to_owned(), 1)]);
    let then = load(folder.path(), Some(at(10))).overview();
    assert_eq!((then.now_ms, then.counts.windows, then.counts.dead_letters), (Some(at(10).millis()), 10, 1));
    assert_eq!((overview.first_ms, then.first_ms), (Some(at(0).millis()), Some(at(0).millis())));
    let mut earlier = load(folder.path(), Some(at(10)));
    earlier.stamp(at(20));
    assert_eq!(earlier.newest_record(), Some(at(10)), "of a log beside it, too");
}

#[tokio::test]
async fn a_question_about_an_earlier_moment_is_answered_as_of_then() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let place: PathBuf = folder.path().to_owned();
    let mut newest = load(&place, None);
    newest.set_replay(ReplayCheck { verdict: ReplayVerdict::Identical, text: "20 windows".to_owned() });
    let loads = Arc::new(AtomicUsize::new(0));
    let counted = loads.clone();
    let past = AsOfReader::new(move |time| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(load(&place, Some(time)))
    });
    let served = serve_past(newest, past).await;
    let moment = at(10).millis().to_string();
    for path in ["/api/v1/overview", "/api/v1/pipeline"] {
        let now = served.get(path).await.json();
        let then = served.ask("GET", path, &[("eadt-at-ms", &moment)], "").await.json();
        assert_eq!((&now["counts"]["windows"], &then["counts"]["windows"]), (&20.into(), &10.into()), "{path}");
    }
    assert_eq!(served.get("/api/v1/overview").await.json()["replay"]["verdict"], "identical");
    let series = "/api/v1/workloads/team/a/series";
    assert_eq!(served.get(series).await.json()["time_ms"].as_array().unwrap().len(), 20);
    let then = served.ask("GET", series, &[("eadt-at-ms", &moment)], "").await.json();
    assert_eq!((then["time_ms"].as_array().unwrap().len(), &then["last_ms"]), (10, &at(10).millis().into()));
    assert_eq!(served.ask("GET", series, &[("eadt-at-ms", "noon")], "").await.status, 400);
    // A question that is refused reads nothing.
    let begun = loads.load(Ordering::SeqCst);
    let other = at(11).millis().to_string();
    for path in ["/api/v1/fleet?colour=red", "/api/v1/power?from=0", "/api/v1/workloads/team/a/series?colour=red"] {
        assert_eq!(served.ask("GET", path, &[("eadt-at-ms", &other)], "").await.status, 400, "{path}");
    }
    assert_eq!((begun, loads.load(Ordering::SeqCst)), (1, 1), "one moment, once for all of its questions");
    let live = serve(model(), eadt_dashboard::DashboardSettings::default()).await;
    let refused = live.ask("GET", "/api/v1/overview", &[("eadt-at-ms", &moment)], "").await;
    assert!(refused.status == 400 && String::from_utf8_lossy(&refused.body).contains("archive"), "a log grows");
}

#[test]
fn files_that_an_archive_lacks_are_in_the_sentence_above_the_totals() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let status = || load(folder.path(), None).overview().status;
    assert!(!status().contains("archive"), "{}", status());
    std::fs::remove_dir_all(folder.path().join(format!("topic={}", Topic::EfficiencyWindows))).unwrap();
    assert!(
        status().ends_with(". Files with 20 offsets were removed from the archive, and figures may lack what they held"),
        "{}",
        status()
    );
    write(folder.path());
    std::fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    assert!(status().contains(". Nothing in _archived records what was archived of "), "{}", status());
}

#[tokio::test]
async fn a_folder_that_was_written_anew_under_the_page_is_named_and_its_moments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with_id = |id: u128| write_to(Archive::folder(folder.path()).unwrap().with_new_id(id));
    with_id(1);
    let place: PathBuf = folder.path().to_owned();
    let identity = RecordIdentity::of(&Archive::find(&place).unwrap());
    let known = Arc::new(OnceLock::from(identity.clone()));
    let history = HistorySource::Folder { path: place.clone(), prefix: String::new(), identity: known };
    let newest = load(&place, None);
    let past = AsOfReader::new(move |time| {
        identity.check(&RecordIdentity::of(&Archive::find(&place).unwrap()))?;
        Ok(load(&place, Some(time)))
    });
    let served = serve_past(newest, past).await;
    let ask = async |minute: i64| {
        let answer = served.ask("GET", "/api/v1/overview", &[("eadt-at-ms", &at(minute).millis().to_string())], "").await;
        (answer.status, answer.json()["error"].as_str().map(str::to_owned))
    };
    let status = async || served.get("/api/v1/overview").await.json()["status"].as_str().unwrap().to_owned();
    assert_eq!((ask(10).await, history.read("team/a").unwrap().windows.len()), ((200, None), 20));
    assert!(!status().await.contains("was rewritten"));
    for topic in [Topic::EfficiencyWindows, Topic::DeadLetters] {
        std::fs::remove_dir_all(folder.path().join(format!("topic={topic}"))).unwrap();
    }
    std::fs::remove_dir_all(folder.path().join("_archived")).unwrap();
    with_id(2);
    let (code, error) = ask(11).await;
    assert!(code == 409 && error.as_ref().is_some_and(|text| text.contains("restart `eadt dashboard`")), "{code} {error:?}");
    assert!(status().await.ends_with(". The folder was rewritten since this page read it: restart `eadt dashboard`"));
    assert!(history.read("team/a").unwrap_err().to_string().contains("was rewritten"));
    // It grew.
    let (known, more) = (RecordIdentity::of(&Archive::find(folder.path()).unwrap()), RecordIdentity::default());
    assert_eq!((known.check(&known), known.check(&more), more.check(&known)), (Ok(()), Ok(()), Ok(())));
}

/// Returns a log with the windows of so many minutes.
fn log_of(folder: &Path, minutes: Range<i64>) -> EmbeddedLog {
    let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
    let bus = EmbeddedLog::open(folder, options).unwrap();
    let topics = [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::DeadLetters];
    for topic in topics {
        let spec = TopicSpec { name: format!("eadt.{topic}").into(), partitions: 1, replication: 1, settings: [].into() };
        bus.create_topic(&spec).unwrap();
    }
    let mut producer = bus.producer("test").unwrap();
    for minute in minutes {
        let value = serde_json::to_vec(&window("team/a", minute, 600.0, &Layout::default())).unwrap();
        let record = ProducerRecord {
            topic: format!("eadt.{}", Topic::EfficiencyWindows).into(),
            partition: Some(0),
            key: Some(Bytes::from_static(b"team/a")),
            value: Some(value.into()),
            headers: Vec::new(),
        };
        producer.send(record).unwrap();
    }
    assert!(producer.flush(Duration::from_secs(30)).unwrap());
    bus
}

/// Archives windows of a log with stamps that are so many seconds earlier: a file for each range of offsets.
fn archive_log(folder: &Path, bus: &EmbeddedLog, ranges: &[RangeInclusive<i64>], seconds: f64) {
    let topic = Topic::EfficiencyWindows;
    let from = [(TopicPartition::new(format!("eadt.{topic}"), 0), StartOffset::Earliest)];
    let mut records = Vec::new();
    let read = read_to_end(
        bus,
        &from,
        || false,
        |record| {
            records.push(record);
            Ok::<_, BusError>(())
        },
    );
    assert!(read.unwrap().is_some());
    let mut writer = ArchiveWriter::new(Archive::folder(folder).unwrap(), eadt_lake::RollLimits::default());
    for range in ranges {
        for record in records.iter().filter(|record| range.contains(&record.offset)) {
            let row = ArchiveRow {
                topic,
                partition: 0,
                offset: record.offset,
                stamp: record.stamp.plus_seconds(-seconds),
                key: record.key.clone(),
                value: record.value.clone(),
                headers: Vec::new(),
            };
            writer.push(&row, at(0)).unwrap();
        }
        assert!(writer.roll(topic, 0).unwrap().is_some());
    }
}

/// Returns the windows in the report of an archive and the log beside it, and how many events were read from the log.
fn load_both(folder: &Path, bus: &EmbeddedLog) -> (u64, u64) {
    let mut model = DashboardModel::new(SourceFacts { kind: SourceKind::Archive, ..facts() }, RetentionLimits::default());
    let ranges = load_archive(&Archive::find(folder).unwrap(), &mut model).unwrap();
    let read = load_log(bus, "eadt.", &ranges, &mut model).unwrap();
    (model.workload_detail("team/a").unwrap().report.unwrap().windows, read)
}

#[test]
fn what_an_archive_lacks_is_read_from_its_log() {
    let (archive, log) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let bus = log_of(log.path(), 0..8);
    archive_log(archive.path(), &bus, &[0..=1, 2..=3, 4..=5], 0.0);
    assert_eq!(load_both(archive.path(), &bus), (8, 2));
    // The log still has what a removed file held.
    let topic = archive.path().join(format!("topic={}", Topic::EfficiencyWindows));
    let dates = std::fs::read_dir(topic).unwrap().map(|date| date.unwrap().path());
    let files = dates.flat_map(|date| std::fs::read_dir(date).unwrap()).map(|file| file.unwrap().path());
    let mut files = files.filter(|file| file.to_string_lossy().ends_with(&format!("+{:020}-{:020}.parquet", 2, 3)));
    std::fs::remove_file(files.next().unwrap()).unwrap();
    assert_eq!(load_both(archive.path(), &bus), (8, 4));
}

#[test]
fn a_log_that_is_not_the_archives_is_read_as_a_whole() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [archive, first, second] = folders.each_ref().map(tempfile::TempDir::path);
    archive_log(archive, &log_of(first, 0..8), &[0..=3, 4..=7], 60.0);
    // One that ends before the archive does, and one that does not.
    for (minutes, count) in [(100..104, 4), (100..110, 10)] {
        let folder = second.join(count.to_string());
        assert_eq!(load_both(archive, &log_of(&folder, minutes)), (8 + count, count));
    }
}

#[tokio::test]
async fn until_the_record_is_read_the_page_shows_how_far_that_is() {
    let progress = ReadingProgress::default();
    let served = serve_reading(model(), progress.clone()).await;
    let page = async || {
        let answer = served.get("/").await;
        assert!(answer.status == 200 || answer.head.contains("retry-after: 1"), "{}", answer.head);
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let (status, text) = page().await;
    assert!(status == 503 && text.contains(">The record is being read.<") && text.contains("/reading.js"), "{text}");
    progress.describe_by(|| "1 MB of <3 MB> read".to_owned());
    assert!(page().await.1.contains("The record is being read: 1 MB of &lt;3 MB> read."));
    let refused = served.get("/api/v1/overview").await;
    let error = refused.json()["error"].as_str().unwrap().to_owned();
    assert_eq!((refused.status, &*error), (503, "The record is being read: 1 MB of <3 MB> read"));
    assert_eq!((served.get("/app.css").await.status, served.get("/api/v1/fleet").await.status), (200, 503));
    progress.finish();
    assert!(page().await.1.contains("/app.js"));
    for path in ["/api/v1/overview", "/reading.js"] {
        assert_eq!(served.get(path).await.status, 200, "{path}");
    }
}
