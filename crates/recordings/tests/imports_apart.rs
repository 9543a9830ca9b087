//! Imports that were made apart and are put together: what differs has names of its own, and what is the same has the same.

use std::collections::BTreeSet;
use std::time::Duration;

use eadt_core::{FoldOutput, FoldSettings, InputEvent, InputRecord, PartitionFold};
use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFile, RecordingFormat, import};
use eadt_schemas::decode::{MAX_ID_BYTES, MAX_NAME_BYTES};
use eadt_schemas::{LoggedEvent, Topic};

use crate::support::{maps, near, progress, read_texts, telemetry};

const SMI: RecordingFormat = RecordingFormat::NvidiaSmi;
const CSV: RecordingFormat = RecordingFormat::Csv;

fn of_job(options: ImportOptions) -> ImportOptions {
    ImportOptions { workload: Some("lab/job".to_owned()), ..options }
}

fn read(format: RecordingFormat, (name, text): (&str, &str), options: &ImportOptions) -> ImportedRecording {
    read_texts(format, &[(name, text)], &of_job(options.clone())).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn ids(imported: &ImportedRecording) -> BTreeSet<String> {
    let ids: BTreeSet<String> = imported.events().map(|event| event.id).collect();
    assert_eq!(ids.len() as u64, imported.report.events, "ids of one import are unique");
    ids
}

/// Rows of a log of one board, one a second, whose power goes up and down from `watts` on.
fn smi(column: &str, id: &str, watts: u32, seconds: u32) -> String {
    let row = |second: u32| {
        let (minute, own) = (second / 60, watts + second % 3);
        format!("2025/02/03 10:{minute:02}:{:02}.000, {id}, {own}.00 W\n", second % 60)
    };
    format!("timestamp, {column}, power.draw [W]\n{}", (0..seconds).map(row).collect::<String>())
}

fn table(header: &str, row: impl Fn(u32) -> String) -> String {
    let rows = (0..60).map(|second| format!("2025-02-03T10:00:{second:02}Z,{}\n", row(second)));
    format!("time,{header}\n{}", rows.collect::<String>())
}

fn dmon(watts: u32) -> String {
    let rows = (0..60).map(|row| format!("   GPU 0  {}.5\n", watts + row % 3));
    format!("# Entity  POWER\n      Id      W\n{}", rows.collect::<String>())
}

fn spl(watts: u32) -> String {
    let row = |second: u32| format!("Time,01-02-2026 10:00:{second:02}.000,Watts,{}.5,Volts,230\n", watts + second % 3);
    (0..60).map(row).collect()
}

fn answer(series: &str, first: u32) -> String {
    let values: Vec<String> = (0..20).map(|i| format!("[{},\"{}\"]", 1_738_576_800 + i, first + 100 * i)).collect();
    format!(
        "{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[{{\"metric\":{{\"__name__\":\"{series}\",\
         \"UUID\":\"GPU-a\"}},\"values\":[{}]}}]}}}}",
        values.join(",")
    )
}

/// Devices of two imports together, and the ids that they share.
fn together(a: &ImportedRecording, b: &ImportedRecording) -> (usize, usize) {
    let devices: BTreeSet<String> = telemetry(a).into_iter().chain(telemetry(b)).map(|event| event.device).collect();
    (devices.len(), ids(a).intersection(&ids(b)).count())
}

#[test]
fn files_that_differ_share_no_id_and_a_file_that_is_read_again_shares_all() {
    let power = maps(&["power_watts=w"]);
    let (a, b) = (table("w", |second| (100 + second % 3).to_string()), table("w", |second| (300 + second % 3).to_string()));
    let by_device = maps(&["device=gpu", "power_watts=w"]);
    let short = |watts: u32| table("gpu,w", |second| format!("0,{}", watts + second % 3));
    let wide = |watts: u32| table(&format!("w,{}", "x".repeat(5000)), |second| format!("{},0", watts + second % 3));
    let samples = |each: u32| table("n", |second| (each * second).to_string());
    let interval = ImportOptions { interval: Some(Duration::from_secs(1)), ..ImportOptions::default() };
    let plain = ImportOptions::default();
    let (index, uuid) = (|watts| smi("index", "0", watts, 60), |watts| smi("uuid", "GPU-a", watts, 60));
    for (what, format, options, first, second, devices, shared) in [
        // A board that is identified only by its file is another one in a file that differs, whatever the two are called.
        ("an index", SMI, &plain, ("smi.csv", index(100)), ("smi.csv", index(300)), 2, 0),
        (
            "a bus id",
            SMI,
            &plain,
            ("smi.csv", smi("pci.bus_id", "1:0", 9, 60)),
            ("smi.csv", smi("pci.bus_id", "1:0", 90, 60)),
            2,
            0,
        ),
        ("no id", SMI, &plain, ("smi.csv", smi("pstate", "P0", 100, 60)), ("smi.csv", smi("pstate", "P0", 300, 60)), 2, 0),
        ("a folder of one name", SMI, &plain, ("a/log/smi.csv", index(100)), ("b/log/smi.csv", index(300)), 2, 0),
        ("no times", RecordingFormat::Dcgmi, &interval, ("dmon.txt", dmon(100)), ("dmon.txt", dmon(300)), 2, 0),
        ("a table", CSV, &power, ("power.csv", a.clone()), ("power.csv", b), 2, 0),
        ("a table with numbers of boards", CSV, &by_device, ("power.csv", short(100)), ("power.csv", short(300)), 2, 0),
        // A header that is longer than what names a file otherwise.
        ("a wide table", CSV, &power, ("power.csv", wide(100)), ("power.csv", wide(300)), 2, 0),
        ("two meters", RecordingFormat::MlperfInference, &plain, ("spl.txt", spl(1000)), ("spl.txt", spl(500)), 2, 0),
        // A board with a name of its own is one board, and a different reading of it is another event.
        ("a UUID", SMI, &plain, ("n1.csv", uuid(100)), ("n1.csv", uuid(300)), 1, 0),
        (
            "other series",
            RecordingFormat::Prometheus,
            &plain,
            ("p.json", answer("DCGM_FI_DEV_POWER_USAGE", 100)),
            ("p.json", answer("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5000)),
            1,
            0,
        ),
        ("progress", CSV, &maps(&["samples_total=n"]), ("job.csv", samples(10)), ("job.csv", samples(20)), 0, 1),
        // The same is the same, wherever it was read.
        ("a copy, by UUID", SMI, &plain, ("n1.csv", uuid(100)), ("copies/n1.csv", uuid(100)), 1, 60),
        ("again, by index", SMI, &plain, ("smi.csv", index(100)), ("smi.csv", index(100)), 1, 60),
        ("again, a table", CSV, &power, ("power.csv", a.clone()), ("power.csv", a), 1, 60),
        ("again, no times", RecordingFormat::Dcgmi, &interval, ("dmon.txt", dmon(100)), ("dmon.txt", dmon(100)), 1, 60),
    ] {
        let (first, second) = (read(format, (first.0, &first.1), options), read(format, (second.0, &second.1), options));
        assert_eq!(together(&first, &second), (devices, shared), "{what}");
    }
}

#[test]
fn a_file_keeps_its_boards_and_ids_as_it_grows_and_in_any_writing() {
    let (whole, begun) = (smi("index", "0", 100, 900), smi("index", "0", 100, 120));
    assert!((4 << 10..5 << 10).contains(&begun.len()) && whole.starts_with(&begun));
    let (whole, begun) =
        (read(SMI, ("smi.csv", &whole), &ImportOptions::default()), read(SMI, ("smi.csv", &begun), &ImportOptions::default()));
    // The last event of the shorter file is marked as the last.
    assert_eq!(together(&whole, &begun), (1, 119));
    let text = smi("index", "0", 100, 60);
    let plain = read(SMI, ("smi.csv", &text), &ImportOptions::default());
    let wide = [vec![0xff, 0xfe], text.encode_utf16().flat_map(u16::to_le_bytes).collect()].concat();
    for (what, bytes) in [("zstd", zstd::encode_all(text.as_bytes(), 3).unwrap()), ("UTF-16", wide)] {
        let other =
            import(SMI, vec![RecordingFile::new("smi.csv", bytes.as_slice())], &of_job(ImportOptions::default())).unwrap();
        assert_eq!(together(&plain, &other), (1, 60), "{what}");
    }
}

#[test]
fn the_longest_names_are_distinguished_and_make_ids_that_are_accepted() {
    let column = |end: &str| format!("{}{end}", "c".repeat(400));
    let text = table(&format!("{},{}", column("a"), column("b")), |second| format!("{},{}", 100 + second, 300 + second));
    let folder = "f".repeat(300);
    let options =
        ImportOptions { workload: Some(format!("{}/{}", "n".repeat(100), "w".repeat(152))), ..ImportOptions::default() };
    let of = |end: &str| {
        let options = ImportOptions { maps: maps(&[&format!("power_watts={}", column(end))]).maps, ..options.clone() };
        read_texts(CSV, &[(&format!("{folder}/{}.csv", "s".repeat(300)), &text)], &options).unwrap()
    };
    let (a, b) = (of("a"), of("b"));
    assert_eq!(together(&a, &b), (2, 0));
    assert!(telemetry(&a).iter().all(|event| event.device.len() <= MAX_NAME_BYTES));
    assert!(ids(&a).iter().all(|id| id.len() <= MAX_ID_BYTES), "{:?}", ids(&a).first());
}

/// Joules and samples of all windows of imports that a replay reads side by side.
fn replay(imports: &[&ImportedRecording]) -> (f64, f64) {
    let mut events: Vec<LoggedEvent> = imports.iter().flat_map(|imported| imported.events()).collect();
    events.sort_by_key(|event| event.time);
    let settings = FoldSettings { max_future: None, idle_grace: None, ..FoldSettings::default() };
    let (mut partition, mut out) = (PartitionFold::new(settings), Vec::new());
    for event in &events {
        let (topic, key, data) = (event.topic().unwrap(), event.key.as_deref(), event.data.as_ref().unwrap().get().as_bytes());
        let stamp = event.time;
        if topic == Topic::GpuTelemetry {
            let sample = eadt_schemas::decode(data).unwrap();
            let event = InputEvent::Telemetry(&sample);
            partition.fold(&InputRecord { topic, stamp, key, is_sent_again: false, event }, &mut out);
        } else {
            let progress = eadt_schemas::decode(data).unwrap();
            let event = InputEvent::Progress(&progress);
            partition.fold(&InputRecord { topic, stamp, key, is_sent_again: false, event }, &mut out);
        }
    }
    partition.finish(&mut out);
    let mut sums = (0.0, 0.0);
    for output in out {
        match output {
            FoldOutput::Window(window) => {
                sums.0 += window.energy_joules.unwrap_or(0.0) + window.unassigned_energy_joules;
                sums.1 += window.samples.unwrap_or(0.0) + window.unassigned_samples;
            }
            FoldOutput::Decision(_) => {}
            FoldOutput::Refused(refusal) => panic!("refused: {refusal}"),
        }
    }
    sums
}

#[test]
fn imports_that_are_replayed_together_count_each_board_once() {
    // 59 seconds, and a counter of 10 samples a second.
    let steady = |watts: u32| table("w", |_| watts.to_string());
    let job = read(CSV, ("job.csv", &table("n", |second| (10 * second).to_string())), &maps(&["samples_total=n"]));
    assert_eq!(progress(&job).len(), 60);
    let by_index =
        |watts: u32| steady(watts).replace("time,w", "time,gpu,w").replace(&format!(",{watts}"), &format!(",0,{watts}"));
    let by_node = |watts: u32, node: &str| by_index(watts).replace("gpu", "host").replace(",0,", &format!(",{node},"));
    let (power, index) = (maps(&["power_watts=w"]), maps(&["device=gpu", "power_watts=w"]));
    let node = maps(&["node=host", "power_watts=w"]);
    for (what, options, first, second, watts) in [
        ("two boards", &power, ("power.csv", steady(100)), ("power.csv", steady(300)), 400.0),
        ("two boards of one index", &index, ("power.csv", by_index(100)), ("power.csv", by_index(300)), 400.0),
        ("two nodes", &node, ("power.csv", by_node(100, "n1")), ("power.csv", by_node(300, "n2")), 400.0),
        ("one file twice", &power, ("power.csv", steady(100)), ("power.csv", steady(100)), 100.0),
        ("one node in two files", &node, ("a.csv", by_node(100, "n1")), ("b.csv", by_node(100, "n1")), 100.0),
    ] {
        let (first, second) = (read(CSV, (first.0, &first.1), options), read(CSV, (second.0, &second.1), options));
        let (joules, samples) = replay(&[&job, &first, &second]);
        near(joules, 59.0 * watts, what);
        near(samples, 590.0, what);
    }
}
