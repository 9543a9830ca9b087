//! Tables as they are met: whose rows are whose, in which zone, in which writing, and what costs a row or stops an import.

use std::time::Duration;

use eadt_recordings::{
    AcceptedFinding, FileSetKind, ImportOptions, ImportedRecording, NamedTimeZone, RecordingFile, RecordingFormat, SameTimeRule,
    TimeFormat, import,
};
use eadt_schemas::v1::Meter;

use crate::support::{maps, near, progress, read_texts as read, telemetry, without_fingerprint};

const SMI: RecordingFormat = RecordingFormat::NvidiaSmi;
const CSV: RecordingFormat = RecordingFormat::Csv;
/// As `Europe/Berlin`.
const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

fn plain() -> ImportOptions {
    ImportOptions::default()
}

/// Joules of each device, by the trapezoid over its readings.
fn joules(imported: &ImportedRecording) -> Vec<(String, f64)> {
    let rows = telemetry(imported);
    let mut devices: Vec<String> = rows.iter().map(|row| row.device.clone()).collect();
    devices.sort();
    devices.dedup();
    let of = |device: &String| {
        let own = rows.iter().filter(|row| row.device == *device);
        let points: Vec<(f64, f64)> = own
            .filter_map(|row| {
                let watts = row.power_watts.or(row.power_average_watts)?;
                Some((row.time.seconds_since(eadt_schemas::EventTime::from_micros(0)), watts))
            })
            .collect();
        points.windows(2).map(|pair| f64::midpoint(pair[0].1, pair[1].1) * (pair[1].0 - pair[0].0)).sum()
    };
    devices.iter().map(|device| (device.clone(), of(device))).collect()
}

fn total(imported: &ImportedRecording) -> f64 {
    joules(imported).iter().map(|(_, joules)| joules).sum()
}

/// Rows of some boards at each second: the cells before the power are `id(board)`.
fn smi(header: &str, boards: &[f64], seconds: std::ops::RangeInclusive<u32>, id: impl Fn(usize) -> String) -> String {
    let mut text = format!("{header}\n");
    for second in seconds {
        for (board, watts) in boards.iter().enumerate() {
            text.extend([format!("2025/02/03 10:{:02}:{:02}.{board:03}, {}{watts:.2} W\n", second / 60, second % 60, id(board))]);
        }
    }
    text
}

#[test]
fn one_board_has_one_identity() {
    let index = |boards: &[f64], seconds| smi("timestamp, index, power.draw [W]", boards, seconds, |board| format!("{board}, "));
    let unique = |boards: &[f64], seconds| {
        smi("timestamp, uuid, power.draw [W]", boards, seconds, |board| format!("GPU-{board}{}, ", "0123-4567"))
    };
    let bus = smi("timestamp, pci.bus_id, power.draw [W]", &[100.0, 300.0], 0..=10, |board| format!("0000:{board}7:00.0, "));
    let serial = smi("timestamp, serial, index, power.draw [W]", &[100.0, 300.0], 0..=10, |board| format!("16{board}, 0, "));
    let (a, b) = (index(&[100.0, 110.0], 0..=10), index(&[300.0, 310.0], 0..=10));
    let later = index(&[100.0, 110.0], 11..=20);
    for (what, files, boards, expected) in [
        ("pci.bus_id", vec![("smi.csv", bus.as_str())], 2, 4000.0),
        ("serial", vec![("smi.csv", &serial)], 2, 4000.0),
        ("two nodes with the same indices", vec![("n1.csv", &a), ("n2.csv", &b)], 4, 8200.0),
        ("two nodes, files of one name", vec![("n1/smi.csv", &a), ("n2/smi.csv", &b)], 4, 8200.0),
        ("a rotated log", vec![("smi.csv.1", &a), ("smi.csv", &later)], 2, 4200.0),
        ("a rotated log, newest first", vec![("smi.csv", &later), ("smi.csv.1", &a)], 2, 4200.0),
        ("one board in two files", vec![("a.csv", &unique(&[100.0], 0..=5)), ("b.csv", &unique(&[100.0], 5..=10))], 1, 1000.0),
    ] {
        let imported = read(SMI, &files, &plain()).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(joules(&imported).len(), boards, "{what}: {:?}", joules(&imported));
        near(total(&imported), expected, what);
        let ids: std::collections::BTreeSet<String> = imported.events().map(|event| event.id).collect();
        assert_eq!(ids.len() as u64, imported.report.events, "{what}");
    }
    let copies = read(SMI, &[("n1.csv", &a), ("n2.csv", &a)], &plain()).unwrap_err();
    assert!(
        copies.starts_with("n2.csv: has the same rows of gpu-0 as n1.csv") && copies.contains("--files-are nodes"),
        "{copies}"
    );
    // A copy of every fifth row; two boards at the same idle power are two.
    let part = |every: usize, watts: fn(usize) -> usize| {
        let rows =
            (0..=60).step_by(every).map(|second| format!("2025/02/03 10:00:{:02}.000, 0, {} W\n", second % 60, watts(second)));
        format!("timestamp, index, power.draw [W]\n{}", rows.take(60 / every).collect::<String>())
    };
    let both = |watts: fn(usize) -> usize| {
        let (whole, thinned) = (part(1, watts), part(5, watts));
        read(SMI, &[("n1.csv", &whole), ("thin.csv", &thinned)], &plain()).map(|imported| imported.report.boards.len())
    };
    assert!(both(|second| 300 + second).unwrap_err().contains("has the same rows of gpu-0 as"));
    assert_eq!(both(|_| 60), Ok(2));
    for (files_are, boards, expected) in [(FileSetKind::Nodes, 4, 4200.0), (FileSetKind::Parts, 2, 2100.0)] {
        let options = ImportOptions { files_are: Some(files_are), ..plain() };
        let imported = read(SMI, &[("n1.csv", &a), ("n2.csv", &a)], &options).unwrap();
        assert_eq!(joules(&imported).len(), boards);
        near(total(&imported), expected, "copies");
    }
}

#[test]
fn rows_without_an_id_are_refused_or_distinguished_by_their_order() {
    let boards = [100.0, 200.0, 300.0, 400.0];
    let interleaved = smi("timestamp, power.draw [W]", &boards, 0..=5, |_| String::new());
    let one_stamp = interleaved.replace(".001,", ".000,").replace(".002,", ".000,").replace(".003,", ".000,");
    let equal = one_stamp.replace("200.00", "100.00").replace("300.00", "100.00").replace("400.00", "100.00");
    let table = "time,w\n2025-02-03 10:00:00,100\n2025-02-03 10:00:00,300\n2025-02-03 10:00:01,100\n2025-02-03 10:00:01,300\n\
                 2025-02-03 10:00:02,100\n2025-02-03 10:00:02,300\n";
    let power = maps(&["power_watts=w"]);
    for (what, format, text, options, expected) in [
        ("milliseconds apart", SMI, interleaved.as_str(), plain(), 5000.0),
        ("one stamp", SMI, &one_stamp, plain(), 5000.0),
        ("equal rows", SMI, &equal, plain(), 2000.0),
        ("a table", CSV, table, power, 800.0),
    ] {
        let error = read(format, &[("log.csv", text)], &options).unwrap_err();
        assert!(error.starts_with("log.csv:3: ") && error.contains("--same-time boards"), "{what}: {error}");
        let options = ImportOptions { same_time: Some(SameTimeRule::Boards), ..options };
        let imported = read(format, &[("log.csv", text)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(total(&imported), expected, what);
        let options = ImportOptions { same_time: Some(SameTimeRule::Mean), ..options };
        assert_eq!(joules(&read(format, &[("log.csv", text)], &options).unwrap()).len(), 1, "{what}");
    }
    let nodes =
        (0..6).map(|second| format!("10:00:0{second}.000,0,100\n10:00:0{second}.070,0,300\n")).collect::<Vec<_>>().concat();
    let nodes = format!("time,gpu,w\n{}", nodes.replace("10:00:0", "2025-02-03 10:00:0"));
    let error = read(CSV, &[("n.csv", &nodes)], &maps(&["device=gpu", "power_watts=w"])).unwrap_err();
    assert!(error.starts_with("n.csv:3: 2 rows of n-") && error.contains(":0 come close together"), "{error}");
    assert!(error.contains("--map node=COLUMN"), "{error}");
    // Two nodes' logs in one file.
    let index = "timestamp, index, power.draw [W]\n2025/02/03 10:00:00.000, 0, 100 W\n2025/02/03 10:00:00.000, 0, 300 W\n";
    let error = read(SMI, &[("log.csv", index)], &plain()).unwrap_err();
    assert!(error.starts_with("log.csv:3: 2 rows of log-") && error.contains(":gpu-0 have the time"), "{error}");
    assert!(error.contains("several nodes"), "{error}");
}

#[test]
fn columns_of_a_table_name_their_boards() {
    let nodes = "time,host,gpu,w\n2025-02-03T10:00:00Z,c1,0,100\n2025-02-03T10:00:00Z,c1,1,110\n2025-02-03T10:00:00Z,c2,0,300\n\
                 2025-02-03T10:00:00Z,c2,1,310\n2025-02-03T10:00:09Z,c1,0,100\n2025-02-03T10:00:09Z,c1,1,110\n\
                 2025-02-03T10:00:09Z,c2,0,300\n2025-02-03T10:00:09Z,c2,1,310\n";
    let imported = read(CSV, &[("p.csv", nodes)], &maps(&["node=host", "device=gpu", "power_watts=w:W"])).unwrap();
    near(total(&imported), 7380.0, "node and device");
    let named: Vec<String> = joules(&imported).into_iter().map(|(device, _)| device).collect();
    assert_eq!(named, ["c1:0", "c1:1", "c2:0", "c2:1"]);
    let row = &telemetry(&imported)[0];
    assert_eq!((row.node.as_deref(), row.gpu_index), (Some("c1"), Some(0)));
    let gpu = "time,gpu,w\n2025-02-03T10:00:00Z,0,100\n2025-02-03T10:00:10Z,0,100\n";
    let other = gpu.replace(",100", ",300");
    let imported = read(CSV, &[("n1.csv", gpu), ("n2.csv", &other)], &maps(&["device=gpu", "power_watts=w"])).unwrap();
    near(total(&imported), 4000.0, "two files by device");

    // One import a column, replayed together later.
    let wide = "time,a,b\n2025-02-03T10:00:00Z,100,300\n2025-02-03T10:00:10Z,100,300\n";
    let ids = |map: &str| -> Vec<String> {
        read(CSV, &[("w.csv", wide)], &maps(&[map])).unwrap().events().map(|event| event.id).collect()
    };
    let (a, b) = (ids("power_watts=a"), ids("power_watts=b"));
    assert!(a.iter().all(|id| !b.contains(id)), "{a:?} {b:?}");
}

#[test]
fn wide_tables_are_mapped_whole() {
    let text = ",_timestamp,system.gpu.0.powerWatts,system.gpu.1.powerWatts,system.gpu.0.temp,system.gpu.1.temp\n\
                0,1738576800,100,300,60,61\n1,1738576815,100,300,61,61\n2,1738576950,100,300,62,\n";
    let wide = |texts: &[&str]| {
        let options = ImportOptions { time_format: Some(TimeFormat::Unix), ..maps(texts) };
        read(CSV, &[("wandb.csv", text)], &options)
    };
    let (first, second) = ("system.gpu.0.powerWatts", "system.gpu.1.powerWatts");
    for texts in [
        vec![format!("gpu0={first}"), format!("gpu1={second}")],
        vec![format!("power_watts[a]={first}"), format!("power_watts[b]={second}:W")],
        vec!["power_watts=system.gpu.{n}.powerWatts".to_owned(), "temperature_celsius=system.gpu.{n}.temp".to_owned()],
        vec!["power_watts=system.gpu.{n}.powerWatts: W".to_owned()],
        vec!["power_watts=system.{board}.powerWatts".to_owned()],
    ] {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let imported = wide(&texts).unwrap_or_else(|error| panic!("{texts:?}: {error}"));
        let joules: Vec<f64> = joules(&imported).into_iter().map(|(_, joules)| joules).collect();
        assert_eq!(joules, [15_000.0, 45_000.0], "{texts:?}");
    }
    let imported = wide(&["power_watts=system.gpu.{n}.powerWatts", "temperature_celsius=system.gpu.{n}.temp"]).unwrap();
    let rows = telemetry(&imported);
    assert_eq!((rows[0].gpu_index, rows[0].temperature_celsius), (Some(0), Some(60.0)));
    assert_eq!(without_fingerprint(&rows[0].device), "wandb:gpu0");
    assert_eq!(imported.report.absent_values, 1);
    assert_eq!(imported.report.tables[0].left_out, ["#1"]);
    let sum = wide(&[&format!("power_watts={first}+{second}")]).unwrap();
    assert_eq!(joules(&sum).iter().map(|(_, joules)| *joules).collect::<Vec<_>>(), [60_000.0]);
    let sum = wide(&[&format!("power_watts={first} + {second}:mW")]).unwrap();
    near(total(&sum), 60.0, "a unit of all parts");

    let error = |texts: &[&str]| wide(texts).unwrap_err();
    let twice = error(&[&format!("power_watts={first}"), &format!("power_watts={second}")]);
    assert!(twice.contains("power_watts is filled by two --map") && twice.contains("'power_watts[gpu0]="), "{twice}");
    assert!(twice.contains(&format!("power_watts={first}+{second}")), "{twice}");
    let loose = error(&[&format!("gpu0={first}"), "temperature_celsius=system.gpu.0.temp"]);
    assert!(loose.contains("temperature_celsius is of no board"), "{loose}");
    assert!(error(&[&format!("gpu0={first}"), &format!("gpu1={first}")]).contains("mapped to two boards"));
    let of_numbers = error(&["power_watts=gpu{n}.watts"]);
    assert!(of_numbers.contains("has no column \"gpu{n}.watts\"; the columns are"), "{of_numbers}");
    assert!(of_numbers.ends_with("; {n} matches digits only, {x} any text"), "{of_numbers}");
    assert!(!error(&["power_watts=gpu{x}.watts"]).contains("matches digits"));
    assert!(error(&["time=_timestamp", "time=#1", "power_watts=#3"]).contains("time is mapped twice"));
    let doubled = read(CSV, &[("w.csv", "time,w,w\n2025-02-03T10:00:00Z,1,2\n")], &maps(&["power_watts=w"])).unwrap_err();
    assert!(doubled.contains("2 columns are called \"w\"") && doubled.contains("#2, #3"), "{doubled}");
}

#[test]
fn an_interval_counts_the_rows_of_each_device() {
    let rows: String = (0..11).map(|_| "card0,100\ncard1,200\n").collect();
    let text = format!("device,Power (W)\n{rows}");
    let options = ImportOptions { interval: Some(Duration::from_secs(1)), ..maps(&["device=device", "power_watts=Power (W)"]) };
    near(total(&read(CSV, &[("rocm.csv", &text)], &options).unwrap()), 3000.0, "each card");
    // A row that is refused has taken its time.
    let damaged = text.replacen("card0,100\ncard1,200\n", "card0,1x0\ncard1,200\n", 2).replacen("card0,1x0", "card0,100", 1);
    let imported = read(CSV, &[("rocm.csv", &damaged)], &options).unwrap();
    near(total(&imported), 3000.0, "a damaged row");
    assert_eq!(imported.report.refused[0].first_line, 4);
    let wide = "a,b\n100,200\n100,200\n100,200\n";
    let options = ImportOptions { interval: Some(Duration::from_secs(1)), ..maps(&["gpu0=a", "gpu1=b"]) };
    near(total(&read(CSV, &[("w.csv", wide)], &options).unwrap()), 600.0, "a wide table");
    // A table that has times: they are not left out in silence.
    let timed = "Timestamp,a\n2025-02-03T10:00:00Z,100\n2025-02-03T10:00:10Z,100\n";
    let of = |map: &[&str]| ImportOptions { interval: Some(Duration::from_secs(1)), ..maps(map) };
    let notes = read(CSV, &[("t.csv", timed)], &of(&["power_watts=a"])).unwrap().report.notes.join("\n");
    assert!(notes.contains("times are made by --interval; leave it out, or map time=Timestamp"), "{notes}");
    let notes = read(CSV, &[("t.csv", timed)], &of(&["power_watts=a", "time=Timestamp"])).unwrap().report.notes.join("\n");
    assert!(notes.contains("--interval is not used: time is mapped to Timestamp"), "{notes}");
}

#[test]
fn the_first_row_is_no_header_if_it_has_readings() {
    let rows = (0..11).map(|second| format!("2025/02/03 10:00:{second:02}.000, 0, 120.00\n")).collect::<Vec<_>>().concat();
    let imported = read(CSV, &[("smi.csv", &rows)], &maps(&["time=#1", "power_watts=#3:W"])).unwrap();
    near(total(&imported), 1200.0, "without a header");
    assert_eq!((imported.report.rows, imported.report.tables[0].header_line), (11, None));
    let headed = format!("when,gpu,watts\n{rows}");
    let imported = read(CSV, &[("smi.csv", &headed)], &maps(&["time=#1", "power_watts=#3:W"])).unwrap();
    assert_eq!((imported.report.rows, imported.report.tables[0].header_line), (11, Some(1)));
    let error = read(CSV, &[("smi.csv", &rows)], &maps(&["power_watts=power"])).unwrap_err();
    assert!(error.contains("there is no header") && error.contains("#2"), "{error}");
    let error = read(SMI, &[("smi.csv", &rows)], &plain()).unwrap_err();
    assert!(error.contains("not noheader") && error.contains("--map time=#1"), "{error}");
}

#[test]
fn a_clock_that_goes_back_is_a_zone_or_stops() {
    let mut text = "timestamp, uuid, power.draw.instant [W]\n".to_owned();
    for minute in (40..60).step_by(2) {
        text.extend([format!("2024/10/27 02:{minute}:00.000, GPU-1, 100.00 W\n")]);
    }
    for minute in (0..60).step_by(2) {
        text.extend([format!("2024/10/27 02:{minute:02}:00.000, GPU-1, 400.00 W\n")]);
    }
    let error = read(SMI, &[("smi.csv", &text)], &plain()).unwrap_err();
    assert!(error.starts_with("smi.csv:12: the clock goes back by 3480 s here") && error.contains("--time-zone"), "{error}");
    let zone = |zone: &str| ImportOptions { time_zone: Some(NamedTimeZone::new(zone, |_| None).unwrap()), ..plain() };
    let imported = read(SMI, &[("smi.csv", &text)], &zone(BERLIN)).unwrap();
    near(total(&imported), 1_530_000.0, "the hour that comes twice");
    assert!(imported.report.notes.iter().any(|note| note.contains(BERLIN)), "{:?}", imported.report.notes);
    let error = read(SMI, &[("smi.csv", &text)], &zone("+02:00")).unwrap_err();
    assert!(error.contains("in this zone no clock is set back here"), "{error}");
    let sorted = ImportOptions { accept: vec![AcceptedFinding::Unordered], same_time: Some(SameTimeRule::Mean), ..plain() };
    assert!(read(SMI, &[("smi.csv", &text)], &sorted).unwrap().report.out_of_order > 0);
    // The same in a table with several boards.
    let rows = text.lines().skip(1).map(|line| line.replace(" W", "").replace(", ", ","));
    let boards = rows.map(|row| format!("{row}\n{}\n", row.replace("GPU-1", "GPU-2"))).collect::<Vec<_>>().concat();
    let options = ImportOptions { ..maps(&["time=#1", "device=#2", "power_watts=#3"]) };
    assert!(read(CSV, &[("b.csv", &boards)], &options).unwrap_err().starts_with("b.csv:21: the clock goes back"));
    let options = ImportOptions { maps: options.maps, ..zone(BERLIN) };
    near(total(&read(CSV, &[("b.csv", &boards)], &options).unwrap()), 3_060_000.0, "several boards");
    // An hour of even load is no repeat; hourly rows have one time.
    let even = text.replace("400.00", "100.00");
    assert!(read(SMI, &[("smi.csv", &even)], &plain()).unwrap_err().contains("the clock goes back"));
    near(total(&read(SMI, &[("smi.csv", &even)], &zone(BERLIN)).unwrap()), 468_000.0, "even load");
    let hourly = "time,w\n2024-10-27 01:00,100\n2024-10-27 02:00,100\n2024-10-27 02:00,400\n2024-10-27 03:00,400\n";
    let error = read(CSV, &[("h.csv", hourly)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.contains("if summer time ends here, give the zone"), "{error}");
    let options = ImportOptions { time_zone: Some(NamedTimeZone::new(BERLIN, |_| None).unwrap()), ..maps(&["power_watts=w"]) };
    near(total(&read(CSV, &[("h.csv", hourly)], &options).unwrap()), 2_700_000.0, "hourly rows");
    // A record that begins within the hour that comes twice, and ends before it comes again to its first row.
    let minutes = (50..60).chain(0..11);
    let inside: Vec<String> = minutes.map(|minute| format!("2024-10-27 02:{minute:02}:00,100\n")).collect();
    let inside = format!("time,w\n{}", inside.concat());
    let error = read(CSV, &[("i.csv", &inside)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.starts_with("i.csv:12: the clock goes back by 3540 s here") && error.contains("--time-zone"), "{error}");
    let options = ImportOptions { maps: maps(&["power_watts=w"]).maps, ..zone(BERLIN) };
    near(total(&read(CSV, &[("i.csv", &inside)], &options).unwrap()), 120_000.0, "within the hour");
    let utc = ImportOptions { maps: maps(&["power_watts=w"]).maps, ..zone("UTC") };
    assert!(read(CSV, &[("i.csv", &inside)], &utc).is_ok(), "in UTC no clock is set back");
    let note = read(SMI, &[("smi.csv", &text.replace("2024/10/27", "2024/10/26")[..200])], &plain()).unwrap().report.notes;
    assert!(note.iter().any(|note| note.contains("read as UTC") && note.contains("--time-zone")), "{note:?}");
}

#[test]
fn absent_values_are_absent_in_every_table() {
    let absent = [
        "",
        "-1",
        "nan",
        "N/A",
        "[N/A]",
        "[Not Supported]",
        "ERR!",
        "-",
        "0",
        "18446744073709551614",
        "4294967294",
        "2147483632",
    ];
    for text in absent {
        let table =
            format!("time,w,u\n2025-02-03T10:00:00Z,100,50\n2025-02-03T10:00:05Z,{text},50\n2025-02-03T10:00:10Z,100,50\n");
        let imported = read(CSV, &[("a.csv", &table)], &maps(&["power_watts=w", "utilization_ratio=u:%"])).unwrap();
        assert_eq!((imported.report.absent_values, imported.report.refused.len()), (1, 0), "csv {text:?}");
        near(total(&imported), 1000.0, text);
        let smi = format!(
            "timestamp, uuid, power.draw [W], utilization.gpu [%]\n2025/02/03 10:00:00.000, GPU-1, 100, 5\n\
             2025/02/03 10:00:05.000, GPU-1, {text}, 5\n2025/02/03 10:00:10.000, GPU-1, 100, 5\n"
        );
        let imported = read(SMI, &[("a.csv", &smi)], &plain()).unwrap();
        assert_eq!((imported.report.absent_values, imported.report.refused.len()), (1, 0), "nvidia-smi {text:?}");
    }
    let sacct = "JobID,End,ConsumedEnergyRaw\n101,2025-02-03T10:10:00,600000\n102,2025-02-03T10:20:00,18446744073709551614\n\
                 103,2025-02-03T10:30:00,600000\n104,2025-02-03T10:40:00,4294967294\n";
    let imported = read(CSV, &[("sacct.csv", sacct)], &maps(&["time=End", "energy_joules=ConsumedEnergyRaw"])).unwrap();
    assert_eq!(telemetry(&imported).last().unwrap().energy_joules_total, Some(1_200_000.0));
    assert_eq!(imported.report.absent_values, 2);
    let found: Vec<_> = telemetry(&imported).iter().map(|event| (event.time.to_string(), event.energy_joules_total)).collect();
    let expected = [("09:50", 0.0), ("10:10", 600_000.0), ("10:30", 1_200_000.0)];
    let expected = expected.map(|(clock, joules)| (format!("2025-02-03T{clock}:00.000000Z"), Some(joules)));
    assert_eq!(found, expected, "each row's energy was used since the row before it");
    // The row of a job has what its steps have; a rule lies below sacct's header.
    let steps = "JobID     End                 ConsumedEnergyRaw\n--------- ------------------- -----------------\n\
                 101       2025-02-03T10:10:00            180000\n101.batch 2025-02-03T10:10:00            180000\n\
                 101.0     2025-02-03T10:10:00            180000\n102       2025-02-03T10:30:00\n\
                 103.0     2025-02-03T10:40:00             50000\n";
    for text in [steps.to_owned(), steps.replace("10:30:00\n", "10:30:00            180000\n")] {
        let imported = read(CSV, &[("sacct.txt", &text)], &maps(&["time=End", "energy_joules=ConsumedEnergyRaw"])).unwrap();
        let expected = if text == steps { 230_000.0 } else { 410_000.0 };
        assert_eq!(telemetry(&imported).last().unwrap().energy_joules_total, Some(expected));
        let skipped =
            |reason: &str| imported.report.skipped.iter().find(|skipped| skipped.reason == reason).map(|found| found.lines);
        assert_eq!((skipped("step of a job that has a row of its own"), skipped("rule between rows")), (Some(2), Some(1)));
    }
    // A job's row without energy leaves it to its steps.
    for none in ["0", "4294967294", "18446744073709551614"] {
        let text = format!(
            "JobID,End,ConsumedEnergyRaw\n101,2025-02-03T10:10:00,{none}\n101.0,2025-02-03T10:10:00,180000\n\
             102,2025-02-03T10:20:00,50000\n"
        );
        let imported = read(CSV, &[("sacct.csv", &text)], &maps(&["time=End", "energy_joules=ConsumedEnergyRaw"])).unwrap();
        assert_eq!(telemetry(&imported).last().unwrap().energy_joules_total, Some(230_000.0), "{none}");
    }
    // What sacct shortens is refused with the column that has it whole.
    for (cell, problem) in [("600K", "is not in a unit of"), ("1.20M", "has an unknown unit")] {
        let short = format!("JobID,End,ConsumedEnergy\n101,2025-02-03T10:10:00,{cell}\n102,2025-02-03T10:20:00,{cell}\n");
        let error = read(CSV, &[("sacct.csv", &short)], &maps(&["time=End", "energy_joules=ConsumedEnergy"])).unwrap_err();
        assert!(error.contains(problem) && error.contains("take its column ConsumedEnergyRaw"), "{error}");
    }
}

#[test]
fn energy_of_rows_is_a_counter_beside_the_other_figures_of_the_board() {
    let rows = "time,j,w\n2025-02-03T10:01:00Z,18000,300\n2025-02-03T10:02:00Z,18000,300\n2025-02-03T10:03:00Z,18000,300\n";
    let imported = read(CSV, &[("e.csv", rows)], &maps(&["energy_joules=j", "power_watts=w"])).unwrap();
    let found: Vec<_> = telemetry(&imported).iter().map(|event| (event.energy_joules_total, event.power_watts)).collect();
    assert_eq!(found, [(Some(0.0), None), (Some(18e3), Some(300.0)), (Some(36e3), Some(300.0)), (Some(54e3), Some(300.0))]);
    assert_eq!(imported.report.gaps.len(), 0);
    // Out of order, and at equal times.
    let mixed = "time,j\n2025-02-03T10:02:00Z,3000\n2025-02-03T10:01:00Z,1000\n2025-02-03T10:02:00Z,4000\n";
    let imported =
        read(CSV, &[("m.csv", mixed)], &ImportOptions { accept: vec![AcceptedFinding::Unordered], ..maps(&["energy_joules=j"]) })
            .unwrap();
    let found: Vec<_> = telemetry(&imported).iter().map(|event| event.energy_joules_total.unwrap()).collect();
    assert_eq!(found, [0.0, 1000.0, 8000.0]);
}

#[test]
fn a_bad_line_costs_that_line() {
    let good: Vec<String> = (0..20).map(|second| format!("2025/02/03 10:00:{second:02}.000, GPU-1, 100.00 W")).collect();
    for (bad, kind) in [
        ("Unable to determine the device handle for GPU 0000:CA:00.0: Unknown Error", "row has 1 cell"),
        ("2025/02/03 10:00:05.500, GPU-1", "row has 2 cells"),
        ("2025/02/03 10:00:05.500, GPU-1, 1x0 W", "is not a number"),
        ("2025/02/03 10:00:05.500, GPU-1, 100 V", "has an unknown unit"),
        ("2025/02/03 10:00:05.500, GPU-1, 100 MHz", "is not in a unit of"),
        ("yesterday, GPU-1, 100 W", "is not a time"),
        ("2025/02/03 10:00:05.500, GPU-1, 183000 W", "is more than one GPU board can draw"),
        ("2025/02/03 10:00:05.500, GPU-1, -5 W", "is not between"),
        ("2025/02/03 10:00:05.500, GPU-1, \"100 W", "row"),
        ("\u{0}\u{0}\u{0}\u{1}", "row has 1 cell"),
    ] {
        for at in [0, 7, 20] {
            let mut lines = good.clone();
            lines.insert(at, bad.to_owned());
            let text = format!("timestamp, uuid, power.draw [W]\n{}\n", lines.join("\n"));
            let imported = read(SMI, &[("a.csv", &text)], &plain()).unwrap_or_else(|error| panic!("{bad}: {error}"));
            near(total(&imported), 1900.0, bad);
            if kind != "row" {
                let refused = &imported.report.refused[0];
                assert_eq!((refused.first_line, refused.lines), (at as u64 + 2, 1), "{bad}");
                assert!(refused.reason.contains(kind), "{bad}: {refused:?}");
            }
        }
    }
    // The next of a table of any columns: half of the rows may be damaged, no more.
    let text = "time,w\n2025-02-03T10:00:00Z,100\n2025-02-03T10:00:05Z,x\n2025-02-03T10:00:10Z,100\n";
    assert_eq!(read(CSV, &[("a.csv", text)], &maps(&["power_watts=w"])).unwrap().report.refused[0].lines, 1);
    let text = text.replace(",100", ",y");
    assert!(read(CSV, &[("a.csv", &text)], &maps(&["power_watts=w"])).unwrap_err().starts_with("a.csv:2: column \"w\": \"y\""));
}

#[test]
fn tables_are_read_in_any_writing() {
    let semicolons =
        "Zeit;Leistung [W];Last [%]\n03.02.2025 10:00:00;\"200,5\";\"0,0\"\n03.02.2025 10:00:10;\"200,5\";\"10,0\"\n";
    let power = |column: &str| maps(&["time=Zeit", &format!("power_watts={column}")]);
    for (what, text, map, expected) in [
        ("decimal commas", semicolons.to_owned(), "Leistung [W]", 2005.0),
        ("unquoted", semicolons.replace('"', ""), "Leistung", 2005.0),
        ("tabs", semicolons.replace(';', "\t"), "Leistung", 2005.0),
        ("bars", semicolons.replace(';', "|"), "Leistung", 2005.0),
        ("units in cells", semicolons.replace("200,5", "200,5 W"), "Leistung", 2005.0),
        ("kilowatts in cells", semicolons.replace("200,5", "0,2005 kW"), "Leistung", 2005.0),
        ("thousands", semicolons.replace("200,5", "1.200,5"), "Leistung", 12_005.0),
        ("thousands with blanks", semicolons.replace("200,5", "1 200,5"), "Leistung", 12_005.0),
        (
            "a title and units below",
            format!("Zähler 5\n\n{}", semicolons.replace(" [W]", "").replacen('\n', "\n;kW;%\n", 1).replace("200,5", "0,2005")),
            "Leistung",
            2005.0,
        ),
        ("comments", format!("# from 3.2.\n{}", semicolons.replacen('\n', "\n# one\n", 1)), "Leistung", 2005.0),
        ("a header as a comment", format!("# {semicolons}"), "Leistung", 2005.0),
        ("repeated headers", format!("{semicolons}{}", semicolons.replace("10:00:", "10:01:")), "Leistung", 14_035.0),
        ("sep=", format!("sep=;\n{semicolons}"), "Leistung", 2005.0),
        ("carriage returns", semicolons.replace('\n', "\r\n"), "Leistung", 2005.0),
        ("a mark", format!("\u{feff}{semicolons}"), "Leistung", 2005.0),
    ] {
        let imported = read(CSV, &[("m.csv", &text)], &power(map)).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(total(&imported), expected, what);
        assert!(imported.report.refused.is_empty(), "{what}: {:?}", imported.report.refused);
    }
    let smi = "timestamp, uuid, power.draw [W]\r\n2025/02/03 10:00:00.000, GPU-1, 100.00 W\r\n2025/02/03 10:00:10.000, GPU-1, 100.00 W\r\n";
    for big in [false, true] {
        for mark in ["", "\u{feff}"] {
            let units = format!("{mark}{smi}").encode_utf16().collect::<Vec<u16>>();
            let bytes: Vec<u8> =
                units.iter().flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect();
            for (format, options) in [(SMI, plain()), (CSV, maps(&["power_watts=power.draw [W]"]))] {
                let imported = import(format, vec![RecordingFile::new("smi.csv", bytes.as_slice())], &options).unwrap();
                near(total(&imported), 1000.0, "UTF-16");
            }
        }
    }
    let two = "Datum;Uhrzeit;Leistung (kW)\n03.02.2025;10:00:00;0,2\n03.02.2025;10:00:10;0,2\n";
    let imported = read(CSV, &[("two.csv", two)], &maps(&["time=Datum+Uhrzeit", "power_watts=Leistung"])).unwrap();
    near(total(&imported), 2000.0, "date and time of day");
    let latin = b"time,Power \xb5\n2025-02-03T10:00:00Z,1\n2025-02-03T10:00:10Z,3\n";
    let imported = import(CSV, vec![RecordingFile::new("l.csv", &latin[..])], &maps(&["power_watts=Power µ:kW"])).unwrap();
    near(total(&imported), 20_000.0, "Windows-1252");
    let either = "time;w\n2025-02-03T10:00:00Z;1,234\n2025-02-03T10:00:10Z;1.234\n";
    let error = read(CSV, &[("e.csv", either)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.starts_with("e.csv:2: column \"w\": \"1,234\" may be") && error.contains("--decimal"), "{error}");
}

#[test]
fn a_decimal_comma_in_another_column_makes_a_dot_a_thousands_separator() {
    let table = "time;last;leistung\n2025-02-03T10:00:00Z;85,5;1.200\n2025-02-03T10:00:10Z;85,0;1.200\n";
    let imported = read(CSV, &[("t.csv", table)], &maps(&["power_watts=leistung"])).unwrap();
    assert_eq!(telemetry(&imported)[0].power_watts, Some(1200.0));
    let point = ImportOptions { decimal: Some(eadt_recordings::DecimalMark::Point), ..maps(&["power_watts=leistung"]) };
    assert_eq!(telemetry(&read(CSV, &[("t.csv", table)], &point).unwrap())[0].power_watts, Some(1.2));
}

#[test]
fn early_ends_constant_counters_and_contradicting_power_are_noted() {
    let notes = |table: &str, mapped: &[&str]| read(CSV, &[("t.csv", table)], &maps(mapped)).unwrap().report.notes.join("; ");
    let rows = |value: fn(u32) -> String| -> String {
        let row = |second: u32| format!("2025-02-03T10:{:02}:{:02}Z,{}\n", second / 60, second % 60, value(second));
        (0..=30).map(|step| row(10 * step)).collect()
    };
    let boards = format!("time,a,b\n{}", rows(|second| if second <= 200 { "300,300".into() } else { "300,ERR!".into() }));
    let noted = notes(&boards, &["power_watts[a]=a", "power_watts[b]=b"]);
    assert!(noted.contains("no energy is known after 2025-02-03T10:03:20.000000Z, 100 s before"), "{noted}");
    let stuck = format!("time,e\n{}", rows(|_| "5000".into()));
    assert!(notes(&stuck, &["energy_joules_total=e"]).contains("is constant over its 300 s: 0 J"));
    let half = format!("time,e,w\n{}", rows(|second| format!("{},300", 5000 + 150 * second)));
    assert!(notes(&half, &["energy_joules_total=e", "power_watts=w"]).contains("contradict each other"));
    let sound = format!("time,e,w\n{}", rows(|second| format!("{},300", 5000 + 280 * second)));
    assert_eq!(notes(&sound, &["energy_joules_total=e", "power_watts=w"]), "");
}

#[test]
fn units_are_the_cells_the_users_or_the_headers() {
    let energy = "time,GPU Energy (J)\n2026-01-01T00:00:00Z,900000\n2026-01-01T00:00:01Z,900000\n2026-01-01T00:00:02Z,900000\n";
    let error = read(CSV, &[("t.csv", energy)], &maps(&["energy_joules=GPU Energy (J)"])).unwrap_err();
    assert!(error.contains("grows by") && error.contains("--map 'energy_joules=GPU Energy (J):mJ'"), "{error}");
    let imported = read(CSV, &[("t.csv", energy)], &maps(&["energy_joules=GPU Energy (J):mJ"])).unwrap();
    assert_eq!(telemetry(&imported).last().unwrap().energy_joules_total, Some(2700.0));
    assert!(imported.report.notes.iter().any(|note| note.contains("the header gives J, --map gives mJ")));
    let cells = "time,w\n2026-01-01T00:00:00Z,1.2 kW\n2026-01-01T00:00:10Z,900 W\n";
    near(total(&read(CSV, &[("t.csv", cells)], &maps(&["power_watts=w"])).unwrap()), 10_500.0, "each cell's own");
    let error = read(CSV, &[("t.csv", cells)], &maps(&["power_watts=w:W"])).unwrap_err();
    assert!(error.contains("--map gives W, the cell gives \"1.2 kW\"") && error.contains("leave the unit out"), "{error}");
    let suffix = "time,power_mW,util_pct\n2026-01-01T00:00:00Z,100000,50\n2026-01-01T00:00:10Z,100000,50\n";
    let imported = read(CSV, &[("t.csv", suffix)], &maps(&["power_watts=power_mW", "utilization_ratio=util_pct"])).unwrap();
    near(total(&imported), 1000.0, "the header's end");
    let ipmi = "time,watts\n2025-02-03T10:00:00Z,9800 Watts\n2025-02-03T10:03:00Z,9830 Watts\n";
    let error = read(CSV, &[("i.csv", ipmi)], &maps(&["power_watts=watts"])).unwrap_err();
    assert!(error.contains("--meter module, node or wall"), "{error}");
    let imported =
        read(CSV, &[("i.csv", ipmi)], &ImportOptions { meter: Some(Meter::Node), ..maps(&["power_watts=watts"]) }).unwrap();
    near(total(&imported), 1_766_700.0, "a node");
    assert_eq!(telemetry(&imported)[0].meter, Meter::Node);
}

#[test]
fn a_unit_of_the_header_counts_wherever_it_is_and_one_that_cannot_be_read_is_refused() {
    let rows =
        |power: &str| (0..6).map(|row| format!("2025-02-03T10:00:{:02}Z,{power}\n", row * 10)).collect::<Vec<_>>().concat();
    let options = |column: &str| maps(&[&format!("power_watts={column}")]);
    // 3 W of a small board: no figure is impossible, so that only the header shows it.
    let omega = format!("time,omega_watts\n{}", rows("3"));
    assert_eq!(total(&read(CSV, &[("t.csv", &omega)], &options("omega_watts")).unwrap()), 150.0, "a node called omega");
    for column in [
        "milliwatts",
        "power (in mW)",
        "power mW avg",
        "mW_total",
        "powerMilliwatts",
        "power (mW) [GPU]",
        "powermW",
        "powermilliwatts",
    ] {
        let imported = read(CSV, &[("t.csv", &format!("time,{column}\n{}", rows("3000")))], &options(column)).unwrap();
        assert_eq!(total(&imported), 150.0, "{column}");
    }
    for (column, unit) in [
        ("power_in_mw", "mw"),
        ("Power(mw)", "mw"),
        ("powerMw", "Mw"),
        ("power_dW", "dW"),
        ("power (W x10)", "W x10"),
        ("power [0.1W]", "0.1W"),
        ("power (W/10)", "W/10"),
        ("deciwatts", "deciwatts"),
    ] {
        let text = format!("time,{column}\n{}", rows("3000"));
        let error = read(CSV, &[("t.csv", &text)], &options(column)).unwrap_err();
        assert!(error.contains(&format!("the header gives {unit}, which is not a unit of power_watts")), "{column}: {error}");
        let imported = read(CSV, &[("t.csv", &text)], &options(&format!("{column}:mW"))).unwrap();
        assert!((total(&imported) - 150.0).abs() < 1e-9, "{column}");
    }
}

#[test]
fn a_cells_unit_counts_where_the_header_leaves_it_open_and_one_that_contradicts_the_header_is_refused() {
    let import = |column: &str, cell: &str| {
        let rows: Vec<String> = (0..6).map(|row| format!("2025-02-03T10:00:{:02}Z,{cell}\n", row * 10)).collect();
        read(CSV, &[("t.csv", &format!("time,{column}\n{}", rows.concat()))], &maps(&[&format!("power_watts={column}")]))
            .map(|imported| total(&imported))
    };
    for (column, cell, joules) in [
        ("power_mw", "250000 mW", 12_500.0),
        ("powerMw", "250000 mW", 12_500.0),
        ("power_mw", "0.00025 MW", 12_500.0),
        ("chipkW", "250 W", 12_500.0),
        ("chipkW", "0.25 kW", 12_500.0),
        ("power [W]", "250 Watts", 12_500.0),
        ("power", "0.25 kW", 12_500.0),
        ("power_kW", "0.25 kW", 12_500.0),
        ("power (W)", "0.25 kW", 12_500.0),
        ("powerKW", "0.25", 12_500.0),
    ] {
        let found = import(column, cell).unwrap_or_else(|error| panic!("{column} {cell}: {error}"));
        assert!((found - joules).abs() < 1e-6, "{column} {cell}: {found}");
    }
    for (column, cell, unit) in [
        ("power_mw", "250 W", "mw"),
        ("power [mW]", "250 W", "mW"),
        ("power_kW", "250 W", "kW"),
        ("powerKW", "250 W", "kW"),
        ("energy_free_power_mW", "250 W", "mW"),
        ("chipkW", "250000 mW", "kW"),
    ] {
        let error = import(column, cell).unwrap_err();
        assert!(error.contains(&format!("the header gives {unit}, the cell gives \"{cell}\"")), "{column}: {error}");
    }
    let units = |header: &str, unit: &str| {
        let text = format!("time,{header}\n,{unit}\n2025-02-03T10:00:00Z,250000\n2025-02-03T10:00:10Z,250000\n");
        read(CSV, &[("t.csv", &text)], &maps(&[&format!("power_watts={header}")])).map(|imported| total(&imported))
    };
    assert_eq!(units("power_mw", "mW"), Ok(2500.0));
    let error = units("power_mW", "W").unwrap_err();
    assert!(error.contains("the header gives mW, the row of units below it W"), "{error}");
}

#[test]
fn rows_and_columns_of_all_boards_together_do_not_count_beside_those_of_each() {
    let table = |sum: &str| {
        let row = |second: u32| {
            let time = format!("2025-02-03T10:00:{second:02}Z");
            format!("{time},0,300\n{time},1,200\n{time},{sum},500\n")
        };
        format!("time,device,power_W\n{}", (0..=60).step_by(10).filter(|second| *second < 60).map(row).collect::<String>())
    };
    let options = maps(&["power_watts=power_W", "device=device"]);
    for sum in ["total", "All GPUs", "gpu_sum", "Average", "AllGPUs", "GPUTotal", "gpusum", "MeanOfGPUs"] {
        let imported = read(CSV, &[("t.csv", &table(sum))], &options).unwrap();
        let refused = &imported.report.refused[0];
        assert_eq!((total(&imported), refused.lines), (25_000.0, 6), "{sum}");
        assert!(refused.reason.contains("is of all boards together"), "{sum}: {}", refused.reason);
    }
    assert_eq!(total(&read(CSV, &[("t.csv", &table("gpu-all-2"))], &options).unwrap()), 50_000.0, "the name of a board");
    // A table of nothing but the sum is a meter.
    let sum = table("total");
    let only = sum.lines().filter(|line| line.contains("time") || line.contains("total")).collect::<Vec<_>>().join("\n");
    assert_eq!(total(&read(CSV, &[("t.csv", &only)], &options).unwrap()), 25_000.0);
    let options = maps(&["power_watts=power_W", "device=device", "node=node"]);
    for (what, cells, joules, lines) in [
        ("one node's, beside boards of another", &["n1,all,500", "n2,0,300", "n2,1,200"][..], 50_000.0, 0),
        ("its own node's", &["n1,all,500", "n1,0,500", "n2,0,200"], 35_000.0, 6),
        ("of all nodes", &["all,total,500", "n1,0,300", "n2,0,200"], 25_000.0, 6),
        ("of no node", &[",total,500", "n1,0,300", "n2,0,200"], 25_000.0, 6),
        ("beside blank cells", &["n1,total,500", "n1,,500", "n2,total,200"], 35_000.0, 6),
        ("a blank cell on another node than its sum", &["n1,total,500", "n2,,200"], 35_000.0, 0),
        ("blank cells beside boards of another node", &["n1,0,300", "n1,1,200", "n2,,500"], 25_000.0, 6),
    ] {
        let mut text = "time,node,device,power_W\n".to_owned();
        for second in 0..6 {
            for cells in cells {
                text.extend(["2025-02-03T10:00:", &second.to_string(), "0Z,", cells, "\n"]);
            }
        }
        let imported = read(CSV, &[("t.csv", &text)], &options).unwrap();
        let refused: u64 = imported.report.refused.iter().map(|refused| refused.lines).sum();
        assert_eq!((total(&imported), refused), (joules, lines), "{what}");
    }

    let wide = "time,gpu0_power,gpu1_power,total_power\n2025-02-03T10:00:00Z,300,200,500\n2025-02-03T10:00:10Z,300,200,500\n";
    let map = |pattern: &str| maps(&[&format!("power_watts={pattern}")]);
    let error = read(CSV, &[("t.csv", wide)], &map("{board}_power")).unwrap_err();
    assert!(error.contains("column \"total_power\" is of \"total\", by its name what the other boards have together"), "{error}");
    assert_eq!(total(&read(CSV, &[("t.csv", wide)], &map("gpu{n}_power")).unwrap()), 5_000.0);
}

#[test]
fn totals_and_what_rows_add_are_not_mixed_up() {
    let table = |values: &[u32]| -> String {
        let rows = values.iter().enumerate().map(|(row, value)| format!("2025-02-03T10:00:{row:02}Z,{value}\n"));
        "time,n\n".to_owned() + &rows.collect::<String>()
    };
    let total = table(&[0, 10, 20, 30, 40, 50]);
    let error = read(CSV, &[("t.csv", &total)], &maps(&["samples=n"])).unwrap_err();
    assert!(error.starts_with("t.csv:2: column \"n\": grows from 0 to 50") && error.contains("--map samples_total=n"), "{error}");
    assert_eq!(progress(&read(CSV, &[("t.csv", &total)], &maps(&["samples_total=n"])).unwrap())[5].samples_total, Some(50.0));
    let kilo = read(CSV, &[("t.csv", &total)], &maps(&["energy_joules=n:kWh"])).unwrap_err();
    assert!(kilo.contains("--map energy_joules_total=n:kWh"), "{kilo}");
    let accepted = ImportOptions { accept: vec![AcceptedFinding::GrowingSteps], ..maps(&["samples=n"]) };
    assert_eq!(progress(&read(CSV, &[("t.csv", &total)], &accepted).unwrap()).last().unwrap().samples_total, Some(150.0));
    let each = table(&[32, 30, 33, 31, 32, 29]);
    let error = read(CSV, &[("t.csv", &each)], &maps(&["samples_total=n"])).unwrap_err();
    assert!(error.contains("falls 3 times in 6 rows") && error.contains("--map samples=n"), "{error}");
    assert!(
        read(
            CSV,
            &[("t.csv", &each)],
            &ImportOptions { accept: vec![AcceptedFinding::FallingTotals], ..maps(&["samples_total=n"]) }
        )
        .is_ok()
    );
    assert_eq!(
        progress(&read(CSV, &[("t.csv", &each)], &maps(&["samples=n"])).unwrap()).last().unwrap().samples_total,
        Some(187.0)
    );
    let same = read(CSV, &[("t.csv", &table(&[32; 6]))], &maps(&["samples_total=n"])).unwrap();
    assert!(same.report.notes.iter().any(|note| note.contains("nothing got done") && note.contains("--map samples=n")));
}

#[test]
fn a_counter_that_contradicts_the_power_is_left_out() {
    // Each row: watts, and joules of the counter.
    let table = |rows: &[(f64, f64)]| -> String {
        let line = |(row, (watts, joules)): (usize, &(f64, f64))| {
            format!("2026-01-01T00:{:02}:{:02}Z,{watts},{joules}\n", row * 5 / 60, row * 5 % 60)
        };
        "time,w,j\n".to_owned() + &rows.iter().enumerate().map(line).collect::<String>()
    };
    let counts = |row: u32| (300.0, 1e6 + 1500.0 * f64::from(row));
    let power = maps(&["power_watts=w:W", "energy_joules_total=j:J"]);
    let import = |rows: &[(f64, f64)]| read(CSV, &[("g.csv", &table(rows))], &power);
    let has_counter = |imported: &ImportedRecording| telemetry(imported).iter().any(|row| row.energy_joules_total.is_some());
    let stuck_after: Vec<_> = (0..40).map(|row| counts(row.min(15))).collect();
    let mut leap: Vec<_> = (0..40).map(counts).collect();
    leap[20..].iter_mut().for_each(|(_, joules)| *joules += 915_000.0);
    let creeps: Vec<_> = (0..13).map(|row| (300.0, 1000.0 + 1e-5 * f64::from(row))).collect();
    let watts = |row: u32| if row.is_multiple_of(2) { 299.0 } else { 301.0 };
    let steps_of = |rows: u32, joules: f64| -> Vec<(f64, f64)> {
        (0..rows).map(|row| (watts(row), joules * (1500.0 * f64::from(row) / joules).floor())).collect()
    };
    // Counter and power of a query with a step of 5 s over scrapes further apart.
    let held = |rows: u32, every: u32| -> Vec<(f64, f64)> {
        (0..rows).map(|row| row / every).map(|scrape| (watts(scrape), 1500.0 * f64::from(every * scrape))).collect()
    };
    for (what, rows, expected) in [
        ("never moves", vec![(300.0, 4742.776); 13], "stays at 4742.776 J from line 2 on for 60.000 s"),
        ("stops", stuck_after, "stays at 1022500 J from line 17 on for 120.000 s"),
        ("leaps", leap, "grows by 183300 W here, more than one GPU board can draw (5000 W), at line 22"),
        ("creeps", creeps, "gives 0.000 J, power over the same 60.000 s 18000.000 J, and no unit would fit"),
        // Two steps of 36 kJ: what was used before the first and after the last is not known.
        ("few large steps", steps_of(60, 36_000.0), "moves in steps of up to 36000.000 J, of 72000.000 J in all"),
        ("many large steps", steps_of(600, 36_000.0), "moves in steps of up to 36000.000 J, of 864000.000 J in all"),
    ] {
        let imported = import(&rows).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!has_counter(&imported), "{what}");
        near(total(&imported), 300.0 * 5.0 * (rows.len() - 1) as f64, what);
        assert!(
            imported.report.notes.iter().any(|note| note.contains(expected) && note.contains("left out")),
            "{what}: {:?}",
            imported.report.notes
        );
        // Nothing is lost with a coarse counter that agrees with the power.
        assert_eq!(imported.report.refused.is_empty(), what.ends_with("large steps"), "{what}: {:?}", imported.report.refused);
    }
    // Small steps of a coarse counter, and a pause without load, are none of that; a reading that leaps and comes back costs
    // itself.
    let coarse = steps_of(60, 4_000.0);
    let idle: Vec<_> = (0..40).map(|row| if row < 20 { counts(row) } else { (0.5, counts(20).1) }).collect();
    let mut glitch: Vec<_> = (0..40).map(counts).collect();
    glitch[7].1 = 9e12;
    for (what, rows) in [
        ("coarse", coarse),
        ("idle", idle),
        ("glitch", glitch),
        ("held for 30 s", held(108, 6)),
        ("held for 60 s", held(216, 12)),
    ] {
        let imported = import(&rows).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(has_counter(&imported), "{what}: {:?}", imported.report.notes);
        assert_eq!(imported.report.refused.len(), usize::from(what == "glitch"), "{what}");
    }
    // A counter in kWh, without a unit: of the wall, whose power is that of one board.
    let line = |row: u32| format!("2026-01-01T00:{row:02}:00Z,300,{:.6}\n", 1000.0 + 0.7 * f64::from(row) / 60.0);
    let kilowatt_hours = format!("time,w,e\n{}", (0..13).map(line).collect::<String>());
    let unnamed = maps(&["power_watts=w", "energy_joules_total=e"]);
    let error = read(CSV, &[("k.csv", &kilowatt_hours)], &unnamed).unwrap_err();
    assert!(error.contains("--map energy_joules_total=e:kWh"), "{error}");
    let wrong_interval = "w,j\n300,1000\n300,2500\n300,4000\n300,5500\n";
    let options = ImportOptions { interval: Some(Duration::from_secs(1)), ..power };
    let error = read(CSV, &[("g.csv", wrong_interval)], &options).unwrap_err();
    assert!(error.contains("the time between rows seems to be 5.000 s") && error.contains("check --interval"), "{error}");
}

#[test]
fn a_shift_between_two_clocks_is_named() {
    let text =
        "time,w,n\n2025-07-03T12:00:00Z,300,\n2025-07-03T12:05:00Z,300,\n2025-07-03T10:00:00Z,,0\n2025-07-03T10:05:00Z,,300\n";
    let imported = read(CSV, &[("a.csv", text)], &maps(&["power_watts=w", "samples_total=n"])).unwrap();
    assert!(
        imported.report.notes.iter().any(|note| note.contains("no time in common") && note.contains("-2 h")),
        "{:?}",
        imported.report.notes
    );
}

#[test]
fn left_out_columns_and_merges_are_named() {
    let text = "time,w,fan,note\n2025-02-03T10:00:00Z,100,3,x\n2025-02-03T10:00:10Z,100,3,x\n2025-02-03T10:00:10Z,100,3,x\n";
    let report = read(CSV, &[("a.csv", text)], &maps(&["power_watts=w"])).unwrap().report;
    assert!(report.notes.contains(&"columns left out: fan, note".to_owned()), "{:?}", report.notes);
    assert_eq!((report.merges.len(), report.merges[0].first_line, report.merges[0].duplicates), (1, 4, 1));
    let shown = eadt_recordings::DetailedImportReport(&report).to_string();
    for part in
        ["a.csv: UTF-8 text", "separator: ','", "header: line 1", "column \"w\": power_watts", "left out: fan, note", "boards: 1"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// A few kilobytes of zstd can be gigabytes of line ends.
#[test]
fn an_endless_run_of_blank_lines_and_an_endless_line_are_errors_soon() {
    use std::io::Read;

    for format in [CSV, SMI, RecordingFormat::Mlperf] {
        for byte in [b'\n', b'a'] {
            let options = if format == CSV { maps(&["time=time"]) } else { plain() };
            let endless = std::io::repeat(byte).take(300 << 20);
            let error = import(format, vec![RecordingFile::new("endless", endless)], &options).unwrap_err().to_string();
            let expected = if byte == b'\n' { "4 MiB of blank lines" } else { "longer than" };
            assert!(error.contains(expected), "{format}: {error}");
        }
    }
}

/// A line again and again after a text.
fn endless(text: &'static str, line: &'static str) -> impl std::io::Read {
    use std::io::Read;

    let lines = line.repeat(1 << 10);
    let many = std::iter::repeat_with(move || lines.clone());
    text.as_bytes().chain(Repeated { lines: Box::new(many), rest: Vec::new().into_iter() })
}

struct Repeated {
    lines: Box<dyn Iterator<Item = String>>,
    rest: std::vec::IntoIter<u8>,
}

impl std::io::Read for Repeated {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.len() == 0 {
            self.rest = self.lines.next().unwrap_or_default().into_bytes().into_iter();
        }
        let count = into.len().min(self.rest.len());
        into.iter_mut().zip(&mut self.rest).for_each(|(place, byte)| *place = byte);
        Ok(count)
    }
}

#[test]
fn lines_that_never_hold_a_value_are_errors_soon() {
    const EMPTY: &str = "no value in 16 MiB of comments and empty rows";

    let most_refused_rows = Some(10_000);
    let header = "time,w\n2025-02-03T10:00:00Z,100\n";
    for (line, expected) in [
        ("# a comment of some length, so that there are not so many of them in as many bytes\n", EMPTY),
        ("// a comment of some length, so that there are not so many of them in as many bytes\n", EMPTY),
        (",,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\n", EMPTY),
        // Rows that are refused.
        ("x\n", "endless:3: row has 1 cell, its header 2"),
        ("N/A,N/A\n", "endless:3: "),
    ] {
        let files = vec![RecordingFile::new("endless", endless(header, line))];
        // Empty rows are refused ones, too.
        let most_refused_rows = most_refused_rows.filter(|_| expected != EMPTY);
        let error = import(CSV, files, &ImportOptions { most_refused_rows, ..maps(&["power_watts=w"]) }).unwrap_err().to_string();
        assert!(error.contains(expected), "{line:?}: {error}");
    }
    for format in [SMI, RecordingFormat::Mlperf] {
        let files = vec![RecordingFile::new("endless", endless("x\n", "-,-;-\n"))];
        let error = import(format, files, &ImportOptions { most_refused_rows, ..plain() }).unwrap_err().to_string();
        assert!(error.contains("endless:"), "{format}: {error}");
    }
}

#[test]
fn a_recording_of_more_boards_than_an_import_takes_is_an_error() {
    let boards = |row: &dyn Fn(u32, u32) -> String| -> String {
        (0..3).flat_map(|second| (0..11).map(move |board| (second, board))).map(|(second, board)| row(second, board)).collect()
    };
    let rows = boards(&|second, board| format!("2025-02-03T10:00:0{second}Z,gpu-{board},100\n"));
    let table = format!("time,device,w\n{rows}");
    let dmon = format!("#Entity   POWER\n{}", boards(&|_, board| format!("GPU {board}  100\n")));
    for (most_boards, expected) in [(Some(11), None), (Some(10), Some("has more than 10 boards"))] {
        let options = ImportOptions { most_boards, ..maps(&["power_watts=w", "device=device"]) };
        let of_table = read(CSV, &[("a.csv", &table)], &options).err();
        let interval = Some(std::time::Duration::from_secs(1));
        let options = ImportOptions { most_boards, interval, ..plain() };
        let of_dmon = read(RecordingFormat::Dcgmi, &[("a.txt", &dmon)], &options).err();
        for error in [of_table, of_dmon] {
            assert!(
                expected.map_or(error.is_none(), |text| error.as_ref().is_some_and(|error| error.contains(text))),
                "{error:?}"
            );
        }
    }
}

#[test]
fn a_table_may_begin_with_rows_without_figures() {
    let good = |second: u32| format!("2025-02-03T10:{:02}:{:02}Z,100\n", second / 60, second % 60);
    let rows = (1..150).fold(String::new(), |rows, second| rows + &good(second));
    let text = format!("time,w\n{}{}{rows}", good(0), "N/A,N/A\n".repeat(90));
    for (most_refused_rows, is_read) in [(None, true), (Some(100), true), (Some(50), false)] {
        let read = read(CSV, &[("a.csv", &text)], &ImportOptions { most_refused_rows, ..maps(&["power_watts=w"]) });
        assert_eq!(read.is_ok(), is_read, "{most_refused_rows:?}");
    }
}

#[test]
fn comments_below_a_table_are_passed_over() {
    let rows = (0..10).fold(String::new(), |rows, second| rows + &format!("2025-02-03T10:00:{second:02}Z,100\n"));
    let text = format!("time,w\n{rows}{}", "# a note\n".repeat(10_000));
    let imported = read(CSV, &[("a.csv", &text)], &maps(&["power_watts=w"])).unwrap();
    near(total(&imported), 900.0, "comments");
}

#[test]
fn a_mark_that_nothing_settles_is_asked_for() {
    let open = "time;w\n2025-02-03T10:00:00Z;1.200\n2025-02-03T10:00:10Z;1.300\n";
    let error = read(CSV, &[("o.csv", open)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.starts_with("o.csv:2: column \"w\": \"1.200\" may be a thousand and more, or one and a fraction"), "{error}");
    assert!(error.ends_with("use --decimal point or --decimal comma"), "{error}");
    for (decimal, joules) in [(eadt_recordings::DecimalMark::Point, 12.5), (eadt_recordings::DecimalMark::Comma, 12_500.0)] {
        let options = ImportOptions { decimal: Some(decimal), ..maps(&["power_watts=w"]) };
        near(total(&read(CSV, &[("o.csv", open)], &options).unwrap()), joules, "as is mapped");
    }
    // Any number that can be read in one way only settles it, in any column; and who separates with a comma has no decimal comma.
    for (what, text, joules) in [
        ("another row", open.replace("1.300", "950.5"), 4_758.5),
        ("another column", open.replace("time;w", "time;w;u").replace(".200", ".200;0.5").replace(".300", ".300;0.25"), 12.5),
        (
            "a comma in another",
            open.replace("time;w", "time;w;u").replace(".200", ".200;0,5").replace(".300", ".300;0,25"),
            12_500.0,
        ),
        ("commas between columns", open.replace(';', ","), 12.5),
        ("tabs between columns", open.replace(';', "\t"), 12.5),
        ("no fraction at all", open.replace("1.200", "120").replace("1.300", "130"), 1_250.0),
    ] {
        near(total(&read(CSV, &[("o.csv", &text)], &maps(&["power_watts=w"])).unwrap()), joules, what);
    }
}

#[test]
fn lines_that_end_with_a_carriage_return_alone_are_lines() {
    let text = "time,w\r2025-02-03T10:00:00Z,100\r2025-02-03T10:00:10Z,300\r";
    let imported = read(CSV, &[("mac.csv", text)], &maps(&["power_watts=w"])).unwrap();
    near(total(&imported), 2000.0, "old Mac");
    assert_eq!(imported.report.rows, 2);
    let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let imported = import(CSV, vec![RecordingFile::new("mac.csv", units.as_slice())], &maps(&["power_watts=w"])).unwrap();
    near(total(&imported), 2000.0, "old Mac in UTF-16");
    let smi =
        "timestamp, uuid, power.draw [W]\r2025/02/03 10:00:00.000, GPU-1, 100.00 W\r2025/02/03 10:00:10.000, GPU-1, 100.00 W";
    near(total(&read(SMI, &[("smi.csv", smi)], &plain()).unwrap()), 1000.0, "nvidia-smi");
    let damaged = read(CSV, &[("mac.csv", &text.replace("300", "x"))], &maps(&["power_watts=w"])).unwrap();
    assert_eq!((damaged.report.refused[0].first_line, damaged.report.refused[0].lines), (3, 1));
}

#[test]
fn a_last_cell_that_is_cut_off_is_no_reading() {
    let row = |second: u32, watts: &str| format!("2025-02-03T10:00:{second:02}Z,{watts}\n");
    let rows: String = ["251.5", "250.0", "249.75", "250.25"].iter().zip(0..).map(|(watts, second)| row(second, watts)).collect();
    let table = format!("time,w\n{rows}2025-02-03T10:00:04Z,2");
    let imported = read(CSV, &[("t.csv", &table)], &maps(&["power_watts=w"])).unwrap();
    assert_eq!(telemetry(&imported).len(), 4);
    let refused = &imported.report.refused[0];
    assert!((refused.first_line, refused.lines) == (6, 1) && refused.reason.contains("it may be cut off"), "{refused:?}");
    for (what, table) in [
        ("it has its end", format!("{table}\n")),
        ("it is as long as another", format!("{table}51.5")),
        ("too few rows show it", "time,w\n2025-02-03T10:00:00Z,100\n2025-02-03T10:00:10Z,9".to_owned()),
    ] {
        assert!(read(CSV, &[("t.csv", &table)], &maps(&["power_watts=w"])).unwrap().report.refused.is_empty(), "{what}");
    }
    let smi: Vec<String> = (0..5).map(|second| format!("2025/02/03 10:00:0{second}.000, GPU-1, 250.00 W\n")).collect();
    let smi = smi.concat();
    let smi = format!("timestamp, uuid, power.draw [W]\n{smi}2025/02/03 10:00:05.000, GPU-1, 25");
    let imported = read(SMI, &[("smi.csv", &smi)], &plain()).unwrap();
    assert_eq!((telemetry(&imported).len(), imported.report.refused[0].lines), (5, 1));
}

#[test]
fn a_date_and_a_time_of_day_in_columns_of_their_own_are_one_time() {
    let joules = |text: &str, mapped: &[&str]| read(CSV, &[("t.csv", text)], &maps(mapped)).map(|imported| total(&imported));
    for (what, text) in [
        ("date and clock", "date,clock,w\n2025-02-03,10:00:00,100\n2025-02-03,10:00:10,300\n"),
        ("date and time", "date,time,w\n2025-02-03,10:00:00,100\n2025-02-03,10:00:10,300\n"),
        ("clock first", "Uhrzeit;Date;w\n10:00:00;03.02.2025;100,5\n10:00:10;03.02.2025;299,5\n"),
        ("minutes", "date,at,w\n2025-02-03,10:00,100\n2025-02-03,10:01,300\n"),
    ] {
        let expected = if what == "minutes" { 12_000.0 } else { 2000.0 };
        near(joules(text, &["power_watts=w"]).unwrap_or_else(|error| panic!("{what}: {error}")), expected, what);
    }
    let table = "day,clock,w\n2025-02-03,10:00:00,100\n2025-02-03,10:00:10,300\n";
    let error = joules(table, &["time=day", "power_watts=w"]).unwrap_err();
    assert!(error.contains("dates without a time of day") && error.ends_with("give both: --map time=day+clock"), "{error}");
    near(joules(table, &["time=day+clock", "power_watts=w"]).unwrap(), 2000.0, "as the remedy proposes");
    let slashes = table.replace("2025-02-03", "03/02/2025");
    let options =
        |form: &str, mapped: &str| ImportOptions { time_format: Some(form.parse().unwrap()), ..maps(&[mapped, "power_watts=w"]) };
    let error = read(CSV, &[("t.csv", &slashes)], &options("%d/%m/%Y", "time=day")).unwrap_err();
    assert!(error.ends_with("--map time=day+clock --time-format '%d/%m/%Y %H:%M:%S'"), "{error}");
    near(total(&read(CSV, &[("t.csv", &slashes)], &options("%d/%m/%Y %H:%M:%S", "time=day+clock")).unwrap()), 2000.0, "remedy");
    let error = joules("clock,w\n10:00:00,100\n10:00:10,300\n", &["time=clock", "power_watts=w"]).unwrap_err();
    assert!(error.contains("a time of day without a date") && error.contains("--map 'time=DATE+CLOCK'"), "{error}");
    // A date alone is a time where nothing else is: a row a day.
    assert!(joules("date,note,w\n2025-02-03,a,100\n2025-02-04,b,300\n", &["power_watts=w"]).is_ok());
}

#[test]
fn times_with_and_without_an_offset_need_a_zone() {
    let table = "time,w\n2025-07-03T10:00:00+02:00,100\n2025-07-03 10:00:10,300\n";
    let error = read(CSV, &[("t.csv", table)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(
        error.starts_with("t.csv:3: column \"time\": the time has no offset, unlike that of line 2; give the zone"),
        "{error}"
    );
    let zone =
        |name: &str| ImportOptions { time_zone: Some(NamedTimeZone::new(name, |_| None).unwrap()), ..maps(&["power_watts=w"]) };
    near(total(&read(CSV, &[("t.csv", table)], &zone(BERLIN)).unwrap()), 2000.0, "the zone is given");
    let turned = "time,w\n2025-07-03 10:00:00,100\n2025-07-03T10:00:10Z,300\n";
    assert!(read(CSV, &[("t.csv", turned)], &maps(&["power_watts=w"])).unwrap_err().contains("t.csv:3"));
    let offsets = "time,w\n2025-07-03T10:00:00+02:00,100\n2025-07-03T08:00:10Z,300\n";
    near(total(&read(CSV, &[("t.csv", offsets)], &maps(&["power_watts=w"])).unwrap()), 2000.0, "all have one");
}

#[test]
fn a_record_that_begins_in_the_hour_that_comes_twice_is_refused_unless_its_rows_show_which() {
    let zone =
        |name: &str| ImportOptions { time_zone: Some(NamedTimeZone::new(name, |_| None).unwrap()), ..maps(&["power_watts=w"]) };
    let row = |time: &str, watts: u32| format!("2024-10-27 {time},{watts}\n");
    let minutes =
        |from: u32, to: u32, watts: u32| -> String { (from..to).map(|m| row(&format!("02:{m:02}:00"), watts)).collect() };
    let table = format!("time,w\n{}{}", minutes(30, 60, 100), row("03:00:00", 100));
    let error = read(CSV, &[("f.csv", &table)], &zone(BERLIN)).unwrap_err();
    assert!(
        error.starts_with("f.csv:2: the time comes twice, as 2024-10-27T00:30:00.000000Z and as 2024-10-27T01:30"),
        "{error}"
    );
    assert!(error.contains("--time-zone +02:00"), "{error}");
    near(total(&read(CSV, &[("f.csv", &table)], &zone("+01:00")).unwrap()), 180_000.0, "as the remedy proposes");
    let both = format!("time,w\n{}{}{}", minutes(30, 60, 100), minutes(0, 60, 100), row("03:00:00", 100));
    near(total(&read(CSV, &[("f.csv", &both)], &zone(BERLIN)).unwrap()), 540_000.0, "the clock is set back within it");
    // Repeated rows are no clock that is set back.
    let doubled: String = (0..5).map(|s| row(&format!("02:00:0{s}"), 100).repeat(if s == 2 { 2 } else { 1 })).collect();
    let doubled = format!("time,w\n{}{}{doubled}", row("01:59:58", 100), row("01:59:59", 100));
    let imported = read(CSV, &[("d.csv", &doubled)], &zone(BERLIN)).unwrap();
    near(total(&imported), 600.0, "repeated rows");
    assert_eq!(imported.report.duplicates, 1);
}

#[test]
fn bursts_a_day_apart_are_measurements_of_one_board() {
    let burst = |day: u32| {
        let rows = (0..5).map(|second| format!("2025-02-{:02}T{:02}:00:{second:02}Z,300\n", 3 + day, 10 + day % 5));
        rows.collect::<Vec<String>>().concat()
    };
    let table = format!("time,w\n{}", (0..6).map(burst).collect::<String>());
    let imported = read(CSV, &[("nightly.csv", &table)], &maps(&["power_watts=w"])).unwrap();
    assert_eq!((telemetry(&imported).len(), imported.report.boards.len()), (30, 1));
    let ticks: String = (0..6).flat_map(|tick| (0..5).map(move |ms| format!("2025-02-03T10:0{tick}:00.00{ms}Z,300\n"))).collect();
    let error = read(CSV, &[("t.csv", &format!("time,w\n{ticks}"))], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.contains("5 rows without the id of a board come close together again and again"), "{error}");
}

#[test]
fn power_that_is_read_more_rarely_than_it_counts_is_noted_with_the_setting() {
    let table = |step: u32| -> String {
        let rows = (0..6).map(|row| {
            let minute = row * step;
            format!("2025-02-{:02}T{:02}:{:02}:00Z,300\n", 3 + minute / 1440, minute / 60 % 24, minute % 60)
        });
        format!("time,w\n{}", rows.collect::<String>())
    };
    let notes = |text: &str, mapped: &[&str]| read(CSV, &[("t.csv", text)], &maps(mapped)).unwrap().report.notes.join("; ");
    let noted = notes(&table(10), &["power_watts=w"]);
    assert!(noted.contains("power readings are 600 s apart") && noted.contains("processor.power_gap_seconds, 120 by"), "{noted}");
    let way = "to count a straight line from each reading to the next, replay with EADT_PROCESSOR__POWER_GAP_SECONDS=600";
    assert!(noted.ends_with(way) && noted.contains("repeat the former value"), "{noted}");
    assert_eq!(notes(&table(2), &["power_watts=w"]), "");
    assert!(notes(&table(2000), &["power_watts=w"]).contains("86400 is the most"));
    let counter = table(10).replace("time,w", "time,e").replace(",300", ",5000");
    assert!(!notes(&counter, &["energy_joules_total=e"]).contains("power_gap_seconds"), "a counter shows it");
}

#[test]
fn a_single_reading_far_above_its_neighbours_is_a_glitch() {
    let table = |glitch: &str| {
        let rows = (0..30).map(|s| format!("2025-02-03T10:00:{s:02}Z,{}\n", if s == 17 { glitch } else { "412.5" }));
        format!("time,w\n{}", rows.collect::<Vec<String>>().concat())
    };
    let wall = |text: &str, meter| {
        read(CSV, &[("wall.csv", text)], &ImportOptions { meter: Some(meter), ..maps(&["power_watts=w"]) }).unwrap()
    };
    for (meter, glitch, refused) in [
        (Meter::Wall, "999999", true),
        (Meter::Node, "99999.9", true),
        (Meter::Gpu, "65535", true),
        (Meter::Wall, "3000", false),
        (Meter::Node, "6000", false),
        (Meter::Gpu, "700", false),
    ] {
        let imported = wall(&table(glitch), meter);
        let found = imported.report.refused.iter().find(|refused| refused.first_line == 19);
        assert_eq!(found.is_some(), refused, "{meter:?} {glitch}: {:?}", imported.report.refused);
        if refused {
            near(total(&imported), 412.5 * 29.0, glitch);
        }
    }
    // A load that comes and goes is none.
    let bursts =
        (0..30).map(|s| format!("2025-02-03T10:00:{s:02}Z,{}\n", if s % 3 == 0 { "700" } else { "20" })).collect::<Vec<String>>();
    let imported = wall(&format!("time,w\n{}", bursts.concat()), Meter::Gpu);
    assert!(imported.report.refused.is_empty(), "{:?}", imported.report.refused);
}

#[test]
fn what_other_programs_print_is_read() {
    let seconds = |row: &dyn Fn(u32) -> String| (0..=10).map(row).collect::<String>();
    let monitor = "GPU  POWER   GPU_T   GFX_CLK   GFX%\n".to_owned()
        + &seconds(&|_| "  0  100 W   40 °C   1300 MHz  90 %\n  1  300 W   N/A   1300 MHz  90 %\n".to_owned());
    let dmon = "#Date       Time        gpu    pwr  gtemp\n#YYYYMMDD   HH:MM:SS    Idx      W      C\n".to_owned()
        + &seconds(&|second| {
            let time = format!(" 20250203   10:00:{second:02}");
            format!("{time}      0    100     40\n{time}      1    300      -\n")
        });
    let plain_dmon = "# gpu    pwr  gtemp\n# Idx      W      C\n".to_owned()
        + &seconds(&|_| "    0    100     40\n    1    300      -\n".to_owned());
    let half_days = "Date,Time,W\n".to_owned() + &seconds(&|second| format!("2025-02-03,1:05:{second:02} PM,400\n"));
    let interval = Some(Duration::from_secs(1));
    for (what, text, options) in [
        (
            "amd-smi monitor",
            &monitor,
            ImportOptions { interval, ..maps(&["device=GPU", "power_watts=POWER", "temperature_celsius=GPU_T"]) },
        ),
        (
            "amd-smi monitor, a row without values",
            &(monitor.clone() + "  2  N/A     N/A     N/A        N/A\n"),
            ImportOptions { interval, ..maps(&["device=GPU", "power_watts=POWER", "temperature_celsius=GPU_T"]) },
        ),
        ("nvidia-smi dmon -o DT", &dmon, maps(&["device=gpu", "power_watts=pwr"])),
        ("nvidia-smi dmon", &plain_dmon, ImportOptions { interval, ..maps(&["device=gpu", "power_watts=pwr"]) }),
        ("half days", &half_days, maps(&["power_watts=W"])),
    ] {
        let imported = read(CSV, &[("t.txt", text)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(total(&imported), 4000.0, what);
        assert!(imported.report.refused.is_empty(), "{what}: {:?}", imported.report.refused);
    }
    // A header in other letters, and a bus id in two spellings.
    let smi = "Timestamp, PCI.Bus_ID, Power.Draw [W]\n".to_owned()
        + &seconds(&|second| {
            let bus = if second < 5 { "00000000:0F:00.0" } else { "0000:0f:00.0" };
            format!("2025/02/03 10:00:{second:02}.000, {bus}, 400.00 W\n")
        });
    near(total(&read(SMI, &[("smi.csv", &smi)], &plain()).unwrap()), 4000.0, "one bus id");
}

#[test]
fn what_would_be_misread_stops_with_the_way_out() {
    let rows = |row: fn(u32) -> String| "time,key,value\n".to_owned() + &(0..11).map(row).collect::<String>();
    let as_device = maps(&["device=key", "power_watts=value"]);
    // Readings of several kinds in one column.
    let mixed = rows(|second| {
        let time = format!("2025-02-03T10:00:{second:02}Z");
        format!("{time},gpu_0_power_watts,300\n{time},gpu_0_utilization_percentage,97\n")
    });
    let error = read(CSV, &[("m.csv", &mixed)], &as_device).unwrap_err();
    assert!(error.starts_with("m.csv:3: the column of the boards names readings of several kinds"), "{error}");
    let power = mixed.lines().filter(|line| !line.contains("utilization")).collect::<Vec<_>>().join("\n");
    near(total(&read(CSV, &[("m.csv", &power)], &as_device).unwrap()), 3000.0, "power only");
    // A share of the power is none, beside power or alone.
    for text in [mixed.replace("_utilization_", "_power_usage_"), mixed.replace("_power_watts", "_power_usage_percentage")] {
        let error = read(CSV, &[("s.csv", &text)], &as_device).unwrap_err();
        assert!(error.contains("power_usage_percentage"), "{error}");
    }
    // Names of hosts are none of readings, and W, if mapped, is believed.
    let hosts = mixed.replace("gpu_0_utilization_percentage", "mem01");
    near(total(&read(CSV, &[("h.csv", &hosts)], &as_device).unwrap()), 3970.0, "hosts");
    let parts = mixed.replace("gpu_0_power_watts", "total_power").replace("gpu_0_utilization_percentage", "fan");
    assert!(read(CSV, &[("p.csv", &parts)], &as_device).is_err());
    let in_watts = maps(&["device=key", "power_watts=value:W"]);
    near(total(&read(CSV, &[("p.csv", &parts)], &in_watts).unwrap()), 3000.0, "the whole, and not the fan in it");

    // Seconds that are mapped as milliseconds; counts that may be so are noted.
    let milliseconds = |rows: String| {
        let format = Some(TimeFormat::UnixMs);
        read(CSV, &[("u.csv", &rows)], &ImportOptions { time_format: format, ..maps(&["device=key", "power_watts=value"]) })
    };
    let error = milliseconds(rows(|second| format!("{},gpu0,300\n", 1_738_576_800 + second))).unwrap_err();
    assert!(error.contains("of 1970-01-21; as unix it would be of 2025-02-03; if so, use --time-format unix"), "{error}");
    let since_start = milliseconds(rows(|second| format!("{},gpu0,300\n", 1_738_576_800 + 1000 * second))).unwrap();
    near(total(&since_start), 3000.0, "since the machine's start");
    assert!(
        since_start.report.notes.iter().any(|note| note.contains("use --time-format unix")),
        "{:?}",
        since_start.report.notes
    );
    // Rows of many boards come at one time: the interval is that of one board.
    let of_boards = |step: u32| -> String {
        let rows: Vec<String> = (0..20).map(|board| format!("{},gpu{board},300\n", 1_738_576_800 + 20 * step)).collect();
        rows.concat()
    };
    near(total(&milliseconds(rows(of_boards)).unwrap()), 1200.0, "twenty boards every 20 ms");

    // Apparent power is not power.
    let apparent = "time,Power (VA)\n2025-02-03T10:00:00Z,300\n2025-02-03T10:00:10Z,300\n";
    for column in ["power_limit", "gpu0_power_cap", "voltage", "gpu_util", "memTemperature", "powerPercent"] {
        let text = format!("time,{column}\n2025-02-03T10:00:00Z,12\n2025-02-03T10:00:10Z,12\n");
        let error = read(CSV, &[("v.csv", &text)], &maps(&[&format!("power_watts={column}")])).unwrap_err();
        assert!(error.contains(&format!("column \"{column}\": by its name it is no power_watts")), "{error}");
        near(
            total(&read(CSV, &[("v.csv", &text)], &maps(&[&format!("power_watts={column}:W")])).unwrap()),
            120.0,
            "as is mapped",
        );
    }
    let (power, energy) = ("power_watts", "energy_joules");
    for (field, column, is_unit) in [
        (power, "energy_j", true),
        (power, "gpu_energy_kWh", true),
        (energy, "power_w", true),
        (energy, "gpu_watts", true),
        (power, "sm_freq", false),
        (power, "input_current", false),
        (power, "rpm", false),
        (power, "fan_speed", false),
        (energy, "duration_s", false),
        (energy, "emissions_kg", false),
        (energy, "cost_eur", false),
    ] {
        let text = format!("time,{column}\n2025-02-03T10:00:00Z,300\n2025-02-03T10:00:10Z,300\n");
        let error = read(CSV, &[("v.csv", &text)], &maps(&[&format!("{field}={column}")])).map(|_| ()).unwrap_err();
        assert_eq!(error.contains("the header gives"), is_unit, "{error}");
        assert!(error.contains("map another column, or give the unit after a colon"), "{error}");
        let unit = if field == power { "W" } else { "J" };
        assert!(read(CSV, &[("v.csv", &text)], &maps(&[&format!("{field}={column}:{unit}")])).is_ok(), "{column}: as is mapped");
    }
    for (field, column) in [
        (power, "current"),
        (power, "current_power"),
        (power, "power_A"),
        (power, "power_min"),
        (power, "speed_test_power_w"),
        (power, "speed_w"),
        (power, "joules_per_second"),
        (power, "energy_joules_per_second"),
        (power, "power_per_kwh"),
        (power, "avg_power_over_kwh"),
        (power, "ampere"),
        (power, "Ampere A100"),
        (energy, "energy_per_step"),
        (energy, "joules_at_cost"),
        (energy, "step_energy (W cap 250)"),
    ] {
        let text = format!("time,{column}\n2025-02-03T10:00:00Z,300\n2025-02-03T10:00:10Z,300\n");
        let imported = read(CSV, &[("v.csv", &text)], &maps(&[&format!("{field}=#2")]));
        assert!(imported.is_ok(), "{column}: {:?}", imported.err());
    }
    for column in ["usage", "gpu_usage", "memory", "fan", "power (cap 250) [W]"] {
        let text = format!("time,{column}\n2025-02-03T10:00:00Z,12\n2025-02-03T10:00:10Z,12\n");
        near(total(&read(CSV, &[("v.csv", &text)], &maps(&["power_watts=#2"])).unwrap()), 120.0, column);
    }
    let error = read(CSV, &[("a.csv", apparent)], &maps(&["power_watts=Power"])).unwrap_err();
    assert!(error.contains("the header gives VA, which is not a unit of power_watts"), "{error}");
    near(total(&read(CSV, &[("a.csv", apparent)], &maps(&["power_watts=Power:W"])).unwrap()), 3000.0, "as is mapped");
    let suffix = apparent.replace("Power (VA)", "apparent_power_VA");
    let error = read(CSV, &[("a.csv", &suffix)], &maps(&["power_watts=apparent_power_VA"])).unwrap_err();
    assert!(error.contains("the header gives VA, which is not a unit of power_watts"), "{error}");
    let variance = "time,w,grad (var)\n2025-02-03T10:00:00Z,300,0.5\n2025-02-03T10:00:10Z,300,0.5\n";
    let options = maps(&["power_watts=w", "gradient_norm=grad (var)"]);
    assert!(read(CSV, &[("v.csv", variance)], &options).is_ok(), "a variance is none of power");

    // Files that are not text.
    for (bytes, what) in [
        (&[0x1f, 0x8b, 8, 0, 0][..], "gzip"),
        (b"PK\x03\x04\x14", "workbooks"),
        (b"\xfd7zXZ\0", "xz"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"ARROW1\0\0", "Arrow"),
        (b"SQLite format 3\0", "SQLite"),
        (b"<?xml version=\"1.0\" ?>\n<nvidia_smi_log>\n", "XML"),
        (b"<!DOCTYPE html>\n", "web page"),
    ] {
        let error = import(SMI, vec![RecordingFile::new("s", bytes)], &plain()).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("unpack it"), "{error}");
    }
    // Texts that are not tables.
    for (text, what, way) in [
        (
            "\n==============NVSMI LOG==============\n\nTimestamp : Mon Feb  3 10:00:00 2025\n",
            "nvidia-smi -q",
            "--query-gpu=timestamp",
        ),
        (
            "Mon Feb  3\n+-----+\n| NVIDIA-SMI 535.104.05  Driver Version: 535.104.05 |\n",
            "on a terminal",
            "--query-gpu=timestamp",
        ),
        ("smi,host=n1,index=0 power_draw=300 1738576800000000000\n", "line protocol", "a column for each field"),
        ("power,host=n1 value=300 1738576800000000000\n", "line protocol", "a column for each field"),
    ] {
        for format in [SMI, CSV] {
            let options = if format == CSV { maps(&["power_watts=power"]) } else { plain() };
            let error = read(format, &[("s", text)], &options).unwrap_err();
            assert!(error.contains(what) && error.contains(way), "{error}");
        }
    }
    // Above a table, any line may be.
    for above in ["run lr=0.1,bs=64 1738576800", "config,lr=0.1 bs=64", "| NVIDIA-SMI 535 |", "HTTP/1.1 200 OK"] {
        let text = format!("{above}\ntime,power\n2025-02-03T10:00:00Z,300\n2025-02-03T10:00:10Z,300\n");
        near(total(&read(CSV, &[("t.csv", &text)], &maps(&["power_watts=power"])).unwrap()), 3_000.0, above);
    }
    for label in ["node01: ", "[1,0]<stdout>:", "smi-1  | ", "2025-02-03T10:00:00.1Z "] {
        let text = format!("{label}timestamp, index, power.draw [W]\n{label}2025/02/03 10:00:00.000, 0, 300.00 W\n");
        let error = read(SMI, &[("s.csv", &text)], &plain()).unwrap_err();
        assert!(error.starts_with("s.csv:1: each line begins with ") && error.contains("without the label"), "{error}");
    }
    let error = read(CSV, &[("o.json", "{\"resourceMetrics\":[{\"resource\":{}}]}\n")], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.contains("OpenTelemetry's JSON"), "{error}");
    for json in ["{\"time\": \"2025-02-03T10:00:00Z\", \"w\": 300}\n", "[{\"time\": 1, \"w\": 300}]", "[\n  {\n"] {
        let error = read(CSV, &[("t.jsonl", json)], &maps(&["power_watts=w"])).unwrap_err();
        assert!(error.starts_with("t.jsonl:1: it is JSON, and no table") && error.contains("@csv"), "{error}");
    }
    // Tables whose first column has the name of another format's mark.
    for (header, column) in
        [("PAR1_power,time", "PAR1_power"), ("SQLite,time", "SQLite"), (r#""{""dcgm.power"", gpu=""0""}",time"#, "#1")]
    {
        let text = format!("{header}\n300,2025-02-03T10:00:00Z\n300,2025-02-03T10:00:10Z\n");
        near(total(&read(CSV, &[("t.csv", &text)], &maps(&[&format!("power_watts={column}")])).unwrap()), 3_000.0, header);
    }
}

/// Ten seconds of rows, one a second; each of the given cells is a row of its own.
fn ten_seconds(header: &str, rows: &[&str]) -> String {
    let of_second = |second: u32| rows.iter().map(move |row| format!("2025-02-03T10:00:{second:02}Z,{row}\n"));
    format!("{header}\n{}", (0..=10).flat_map(of_second).collect::<String>())
}

#[test]
fn names_of_other_figures_and_of_other_parts_do_not_count_beside_boards() {
    let options = maps(&["device=device", "power_watts=w"]);
    for (rows, joules, refused) in [
        (&["gpu0,300", "gpu1,200"][..], 5_000.0, 0),
        (&["gpu0,300", "gpu1,200", "gpu0_max,400"], 5_000.0, 11),
        (&["gpu0,300", "gpu1,200", "cpu0,100"], 5_000.0, 11),
        (&["gpu0,300", "gpu1,200", "gpu2,200", "node,900", "dram,20"], 7_000.0, 22),
        (&["node1,300", "node2,200"], 5_000.0, 0),
        (&["gpu0,300", "gpu0_max,400", "gpu0_min,200"], 3_000.0, 22),
        (&["P01,300", "P02,200"], 5_000.0, 0),
        (&["default/gpu0,300", "gpu0,200"], 5_000.0, 0),
        (&["1.0,300", "1,200", "1.1,100"], 6_000.0, 0),
        (&["gpu0,300", "gpu1,200", "Total power,500"], 5_000.0, 11),
        (&["SystemInputPower,900", "TotalGPUPower,500", "TotalCPUPower,200"], 5_000.0, 22),
        (&["Total Power,500", "PSU1,300", "PSU2,200"], 5_000.0, 22),
        (&["node1,500", "node2,500", "cpu,100"], 10_000.0, 11),
    ] {
        let imported = read(CSV, &[("t.csv", &ten_seconds("time,device,w", rows))], &options);
        let imported = imported.unwrap_or_else(|error| panic!("{rows:?}: {error}"));
        near(total(&imported), joules, rows[rows.len() - 1]);
        let lines: u64 = imported.report.refused.iter().map(|refused| refused.lines).sum();
        assert_eq!(lines, refused, "{rows:?}");
    }
    for (rows, joules, refused) in [
        (&["PSU1 Input Power,300", "PSU2 Input Power,290"][..], 5_900.0, 0),
        (&["PSU1 Input Power,300", "PSU2 Input Power,290", "Pwr Consumption,590"], 5_900.0, 22),
        (&["PS1 Input Power,300", "PS2 Input Power,290", "SYS_POWER,590", "CPU_Power,200"], 5_900.0, 33),
        (&["SystemInputPower,900", "TotalGPUPower,500", "TotalCPUPower,200"], 9_000.0, 22),
        (&["cpu,100", "gpu,300", "dram,20", "node,600"], 6_000.0, 33),
        (&["cpu,100", "gpu,300", "dram,20"], 4_200.0, 0),
        (&["gpu01,900", "gpu02,900", "node01,500"], 23_000.0, 0),
        (&["average,200", "cpu,100", "gpu,300"], 4_000.0, 11),
        (&["mean power,295", "psu1,300", "psu2,290"], 5_900.0, 11),
    ] {
        let options = ImportOptions { meter: Some(Meter::Node), ..options.clone() };
        let imported = read(CSV, &[("t.csv", &ten_seconds("time,device,w", rows))], &options).unwrap();
        near(total(&imported), joules, rows[rows.len() - 1]);
        let lines: u64 = imported.report.refused.iter().map(|refused| refused.lines).sum();
        assert_eq!(lines, refused, "{rows:?}");
    }
    let wide = "time,gpu0_power,gpu0_power_max,gpu1_power,gpu1_util,cpu_power\n2025-02-03T10:00:00Z,300,400,200,97,100\n\
                2025-02-03T10:00:10Z,300,400,200,97,100\n";
    let wide = |pattern: &str| read(CSV, &[("w.csv", wide)], &maps(&[&format!("power_watts={pattern}")]));
    near(total(&wide("gpu{n}_power").unwrap()), 5_000.0, "numbers");
    for (pattern, problem) in [
        ("gpu{board}", "column \"gpu0_power_max\" is by its name another figure of what \"0_power\" is of"),
        ("gpu1_{figure}", "column \"gpu1_util\" is by its name no power, as \"power\" is"),
        ("{board}_power", "column \"cpu_power\" is by its name of another part of the machine than \"gpu0\""),
    ] {
        let error = wide(pattern).map(|imported| total(&imported)).unwrap_err();
        assert!(error.contains(problem) && error.contains("use {n} in place"), "{pattern}: {error}");
    }
    // W&B has the power of the process beside that of the board, which is the same.
    let wandb = "_timestamp,system.gpu.0.powerWatts,system.gpu.0.powerPercent,system.gpu.process.0.powerWatts\n\
                 2025-02-03T10:00:00Z,300,75,300\n2025-02-03T10:00:10Z,300,75,300\n";
    let wandb = |pattern: &str| read(CSV, &[("w.csv", wandb)], &maps(&[&format!("power_watts={pattern}")]));
    assert!(wandb("system.gpu.{board}.powerWatts").unwrap_err().contains("\"system.gpu.process.0.powerWatts\" is by its name"));
    assert!(wandb("system.gpu.0.{figure}").unwrap_err().contains("no power, as \"powerWatts\" is"));
    near(total(&wandb("system.gpu.{n}.powerWatts").unwrap()), 3_000.0, "the board");
}

#[test]
fn spellings_of_one_board_are_one_board() {
    for (what, spellings) in [
        ("capitals", ["gpu0", "GPU0"]),
        ("blanks", ["GPU 0", "GPU  0"]),
        ("decimals", ["0", "0.0"]),
        ("capitals of a bus id", ["00000000:0f:00.0", "00000000:0F:00.0"]),
        ("domains of a bus id", ["0000:17:00.0", "00000000:17:00.0"]),
        ("a bus id without its domain", ["17:00.0", "0000:17:00.0"]),
        ("prefixes of a UUID", ["6d5c0ac5-74d7-3130-46f1-e93ed57f469a", "GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a"]),
    ] {
        let rows = (0..=10)
            .map(|second| format!("2025-02-03T10:00:{second:02}Z,{},{},300\n", ["n1", "N1"][second % 2], spellings[second % 2]));
        let text = format!("time,node,gpu,w\n{}", rows.collect::<String>());
        for mapped in [&["device=gpu", "power_watts=w"][..], &["node=node", "device=gpu", "power_watts=w"]] {
            let imported = read(CSV, &[("t.csv", &text)], &maps(mapped)).unwrap();
            assert_eq!((imported.report.boards.len(), total(&imported)), (1, 3_000.0), "{what} {mapped:?}");
        }
    }
    // Nor are they two in a record of two parts.
    let part = |spelling: &str, minute: u32| {
        let rows = (0..=10).map(|second| format!("2025-02-03T10:{minute:02}:{second:02}Z,{spelling},300\n"));
        format!("time,gpu,w\n{}", rows.collect::<String>())
    };
    let files = [("a.csv", part("GPU0", 0)), ("b.csv", part("gpu0", 1))];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    assert_eq!(read(CSV, &files, &maps(&["device=gpu", "power_watts=w"])).unwrap().report.boards.len(), 1);
    // A bus id is one of its node, however long it is.
    let nodes = ["100", "300"].map(|watts| ten_seconds("time,bus,w", &[&format!("00000000:17:00.0,{watts}")]));
    let options = maps(&["device=bus", "power_watts=w"]);
    let imported = read(CSV, &[("n1.csv", &nodes[0]), ("n2.csv", &nodes[1])], &options).unwrap();
    assert_eq!((imported.report.boards.len(), total(&imported)), (2, 4_000.0));
    let at_once = ten_seconds("time,gpu,w", &["gpu0,300", "GPU0,200"]);
    let error = read(CSV, &[("t.csv", &at_once)], &maps(&["device=gpu", "power_watts=w"])).unwrap_err();
    assert!(error.contains("2 rows of"), "{error}");
}

#[test]
fn a_column_of_units_gives_them_row_by_row() {
    let joules = |header: &str, rows: &[&str], mapped: &str| {
        read(CSV, &[("t.csv", &ten_seconds(header, rows))], &maps(&[mapped])).map(|imported| total(&imported))
    };
    assert_eq!(joules("time,power,unit", &["3000,mW"], "power_watts=power"), Ok(30.0));
    assert_eq!(joules("time,power,Units", &["0.3,kW"], "power_watts=power"), Ok(3000.0));
    assert_eq!(joules("time,power,power_unit,unit", &["0.3,kW,°C"], "power_watts=power"), Ok(3000.0));
    assert_eq!(joules("time,power,unit", &["300 W,mW"], "power_watts=power"), Ok(3000.0), "a cell's own goes before");
    assert_eq!(joules("time,power,unit", &["300,mW"], "power_watts=power:W"), Ok(3000.0), "--map goes before");
    assert_eq!(joules("time,power,unit", &["300,A7"], "power_watts=power"), Ok(3000.0), "another kind of unit");
    let error = joules("time,power,unit", &["3000,dW"], "power_watts=power").unwrap_err();
    assert!(error.contains("its unit, \"dW\", is not one of power_watts"), "{error}");
    let error = joules("time,power [mW],unit", &["3000,kW"], "power_watts=power").unwrap_err();
    assert!(error.contains("the header gives mW"), "{error}");
    // A unit of another figure than the one that it is beside, and a column that is mapped as something else.
    let both = |unit: &str| {
        let row = |second: u32| format!("2025-02-03T10:00:{second:02}Z,300,{},{unit}\n", f64::from(second) * 300.0 / 3.6e6 + 1.0);
        let text = format!("time,power,energy_kwh,unit\n{}", (0..=10).map(row).collect::<String>());
        let options = maps(&["power_watts=power", "energy_joules_total=energy_kwh"]);
        let imported = read(CSV, &[("t.csv", &text)], &options).unwrap_or_else(|error| panic!("{unit}: {error}"));
        let last = telemetry(&imported).pop().unwrap();
        near(last.energy_joules_total.unwrap(), 3.603e6, unit);
        near(last.power_watts.unwrap(), 300.0, unit);
    };
    both("W");
    both("kWh");
    assert_eq!(joules("time,power,unit", &["300,kWh"], "power_watts=power"), Ok(3000.0), "of a column that is not mapped");
    let mapped =
        read(CSV, &[("t.csv", &ten_seconds("time,power,unit", &["300,mW"]))], &maps(&["power_watts=power", "device=unit"]));
    near(total(&mapped.unwrap()), 3000.0, "the unit is the board");
    assert!(joules("time,value,unit", &["300,kWh"], "power_watts=value").unwrap_err().contains("is not one of power_watts"));
    // Rows of other quantities are left out by their unit.
    let mixed = ten_seconds("time,value,unit", &["300,W"]).replacen("300,W\n", "300,W\n2025-02-03T10:00:00.5Z,60,C\n", 3);
    let imported = read(CSV, &[("t.csv", &mixed)], &maps(&["power_watts=value"])).unwrap();
    near(total(&imported), 3000.0, "temperatures are left out");
    assert_eq!(imported.report.refused[0].lines, 3);
}

#[test]
fn rows_of_several_kinds_are_named_by_the_column_that_distinguishes_them() {
    let long = ten_seconds("time,gpu,metric,value", &["0,power,300", "0,temperature,60"]);
    let error = read(CSV, &[("t.csv", &long)], &maps(&["device=gpu", "power_watts=value"])).unwrap_err();
    assert!(
        error.contains("column \"metric\": names readings of several kinds, such as \"power\" and \"temperature\"")
            && error.contains("keep the rows of power only"),
        "{error}"
    );
    // Also where those of another kind have times of their own, or are of a limit.
    for other in ["temperature_gpu,60", "power_limit,400", "procClk,1410"] {
        let text = format!("{}2025-02-03T10:01:00Z,{other}\n", ten_seconds("time,_field,v", &["power_draw,300"]));
        let error = read(CSV, &[("t.csv", &text)], &maps(&["power_watts=v"])).map(|imported| total(&imported)).unwrap_err();
        assert!(error.starts_with("t.csv:13: column \"_field\": names readings of several kinds"), "{error}");
        assert!(read(CSV, &[("t.csv", &text)], &maps(&["power_watts=v:W"])).is_ok(), "{other}: as is mapped");
    }
    for (header, rows) in [
        ("time,note,v", &["power cap set,300", "loss spike,300"][..1]),
        ("time,phase,v", &["training,300"]),
        ("time,sensor,v", &["board power,300"]),
        ("time,job,v", &["power-sweep,300"]),
        ("time,experiment_key,v", &["power-sweep,300"]),
    ] {
        near(total(&read(CSV, &[("t.csv", &ten_seconds(header, rows))], &maps(&["power_watts=v"])).unwrap()), 3_000.0, header);
    }
    let events = ten_seconds("time,event,v", &[",300"]).replacen(",,", ",power capped,", 1).replacen(",,", ",checkpoint,", 1);
    near(total(&read(CSV, &[("t.csv", &events)], &maps(&["power_watts=v"])).unwrap()), 3_000.0, "what happens");
    let modes = ten_seconds("time,mode,v", &["low power,300"]).replacen("low power", "high clock", 4);
    near(total(&read(CSV, &[("t.csv", &modes)], &maps(&["power_watts=v"])).unwrap()), 3_000.0, "modes of a board");
    for column in ["experiment_key", "measurement", "sensor", ""] {
        let text = ten_seconds(&format!("time,{column},v"), &["power-sweep,300"]).replacen("power-sweep", "memory-bound", 4);
        near(total(&read(CSV, &[("t.csv", &text)], &maps(&["power_watts=v"])).unwrap()), 3_000.0, column);
    }
}

#[test]
fn a_counter_that_is_read_as_zero_once_is_not_reset() {
    let table = |dip: &[(usize, u32)]| {
        let joules = |row: usize| {
            let known = dip.iter().find(|(at, _)| *at == row);
            known.map_or(100_000 + 3_000 * row as u32, |(_, joules)| *joules)
        };
        let rows = (0..=30).map(|row| format!("2025-02-03T10:{:02}:{:02}Z,{}\n", row / 6, row % 6 * 10, joules(row)));
        format!("time,j\n{}", rows.collect::<String>())
    };
    for (what, dip, refused) in [("zero", &[(7, 0)][..], 1), ("an old count", &[(7, 20_000)], 1), ("none", &[], 0)] {
        let imported = read(CSV, &[("t.csv", &table(dip))], &maps(&["energy_joules_total=j"])).unwrap();
        let counts: Vec<f64> = telemetry(&imported).iter().filter_map(|event| event.energy_joules_total).collect();
        assert!(counts.is_sorted() && counts[counts.len() - 1] - counts[0] == 90_000.0, "{what}: {counts:?}");
        assert_eq!(imported.report.refused.len(), refused, "{what}: {:?}", imported.report.refused);
    }
    let short = |rows: usize, zeros: &[usize]| {
        let joules = |row: usize| if zeros.contains(&row) { 0 } else { 22_000 + 300 * row };
        let rows = (0..rows).map(|row| format!("2025-02-03T10:00:{row:02}Z,{}\n", joules(row)));
        format!("time,j\n{}", rows.collect::<String>())
    };
    for (rows, zeros) in [(15, &[7][..]), (30, &[7, 20]), (60, &[7, 8]), (20, &[7, 8])] {
        let imported = read(CSV, &[("t.csv", &short(rows, zeros))], &maps(&["energy_joules_total=j"])).unwrap();
        let counts: Vec<f64> = telemetry(&imported).iter().filter_map(|event| event.energy_joules_total).collect();
        near(counts[counts.len() - 1] - counts[0], 300.0 * (rows - 1) as f64, &format!("{zeros:?} of {rows}"));
        assert_eq!(imported.report.refused[0].lines, zeros.len() as u64, "{zeros:?} of {rows}");
    }
    let reset = (7..=30).map(|row| (row, 3_000 * (row as u32 - 7))).collect::<Vec<_>>();
    assert!(read(CSV, &[("t.csv", &table(&reset))], &maps(&["energy_joules_total=j"])).unwrap().report.refused.is_empty());
}

#[test]
fn a_total_that_begins_anew_in_each_epoch_is_added_up_if_it_is_meant() {
    let table = |value: &dyn Fn(u32) -> u32| {
        let rows = (0..60).map(|row| format!("2025-02-03T10:{:02}:{:02}Z,{}\n", row / 6, row % 6 * 10, value(row)));
        format!("time,n\n{}", rows.collect::<String>())
    };
    let last = |text: &str, accept: &[AcceptedFinding]| {
        let options = ImportOptions { accept: accept.to_vec(), ..maps(&["samples_total=n"]) };
        let read = read(CSV, &[("t.csv", text)], &options);
        read.map(|imported| progress(&imported).last().unwrap().samples_total)
    };
    let epochs = table(&|row| 100 * (row % 20));
    let error = last(&epochs, &[]).unwrap_err();
    assert!(error.starts_with("t.csv:22: ") && error.contains("begins anew 2 times, each time after about 1900"), "{error}");
    assert!(error.ends_with("or use --accept falling-totals to have what each counts added"), "{error}");
    assert_eq!(last(&epochs, &[AcceptedFinding::FallingTotals]), Ok(Some(5700.0)));
    // What a job counts again after a restart is no more work.
    let restarted = table(&|row| if row < 20 { 100 * row } else { 100 * (row - 20) });
    assert_eq!(last(&restarted, &[]), Ok(Some(3900.0)));
    let resumed = table(&|row| if row < 20 { 100 * row } else { 100 * (row - 5) });
    assert_eq!(last(&resumed, &[AcceptedFinding::FallingTotals]), Ok(Some(5400.0)), "from a checkpoint");
}

#[test]
fn totals_of_several_ranks_are_not_one() {
    let table = |samples: &dyn Fn(u32, u32) -> u32| {
        let row = |second: u32, rank: u32| format!("2025-02-03T10:00:{second:02}.{rank}Z,{rank},{}\n", samples(second, rank));
        let rows = (0..10).flat_map(|second| (0..4).map(move |rank| row(second, rank)));
        format!("time,global_rank,n\n{}", rows.collect::<String>())
    };
    let own = table(&|second, rank| 10 * second + 100 * rank);
    let error = read(CSV, &[("r.csv", &own)], &maps(&["samples_total=n"])).unwrap_err();
    assert!(error.starts_with("r.csv:3: column \"global_rank\": rows of 4 ranks take turns"), "{error}");
    let added = read(CSV, &[("r.csv", &table(&|_, _| 32))], &maps(&["samples=n"])).unwrap();
    assert_eq!(progress(&added).last().unwrap().samples_total, Some(1280.0), "rows add");
    let at_once = table(&|second, _| 10 * second).replace(".1Z", ".0Z").replace(".2Z", ".0Z").replace(".3Z", ".0Z");
    let imported = read(CSV, &[("r.csv", &at_once)], &maps(&["samples_total=n"])).unwrap();
    assert_eq!(progress(&imported).last().unwrap().samples_total, Some(90.0));
    assert!(
        imported.report.notes.iter().any(|note| note.contains("all ranks have the same figures")),
        "{:?}",
        imported.report.notes
    );
    let one = ten_seconds("time,rank,n", &["0,5"]);
    assert!(read(CSV, &[("r.csv", &one)], &maps(&["samples_total=n"])).is_ok());
    // One counter with several writers, and columns that are named like ranks.
    let in_turn = table(&|second, rank| 40 * second + 10 * rank);
    let imported = read(CSV, &[("r.csv", &in_turn)], &maps(&["samples_total=n"])).unwrap();
    assert_eq!(progress(&imported).last().unwrap().samples_total, Some(390.0));
    for column in ["slowest_rank", "worker_count", "straggler_worker_host"] {
        let text = in_turn.replace("global_rank", column);
        assert!(read(CSV, &[("r.csv", &text)], &maps(&["samples_total=n"])).is_ok(), "{column}");
    }
}

#[test]
fn of_several_columns_of_times_the_one_with_times_is_taken() {
    for (what, header, cells, format) in [
        ("seconds since the start", "time,timestamp,w", ["0,1738576800,300", "10,1738576810,300"], Some(TimeFormat::Unix)),
        ("times", "time,timestamp,w", ["0,2025-02-03T10:00:00Z,300", "10,2025-02-03T10:00:10Z,300"], None),
        ("the first of both", "time,timestamp,w", ["2025-02-03T10:00:00Z,1,300", "2025-02-03T10:00:10Z,2,300"], None),
        ("none", "time,ts,w", ["0,0,300", "10,5,300"], Some(TimeFormat::Unix)),
        (
            "dates beside times",
            "timestamp,date,w",
            ["1738576800000,2025-02-03,300", "1738576810000,2025-02-03,300"],
            Some(TimeFormat::UnixMs),
        ),
    ] {
        let text = format!("{header}\n{}\n", cells.join("\n"));
        let options = ImportOptions { time_format: format, ..maps(&["power_watts=w"]) };
        let imported = read(CSV, &[("t.csv", &text)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(total(&imported), 3_000.0, what);
        assert_eq!(telemetry(&imported)[0].time.to_string().starts_with("2025-02-03T10:00:00"), what != "none", "{what}");
    }
    // Bare dates are no times: the column that cannot be read is named.
    for (header, cells) in [
        ("timestamp,date,w", ["1738576800000,2025-02-03,300", "1738576801000,2025-02-03,300"]),
        ("date,time,w", ["2025-02-03,10h00m07,300", "2025-02-03,10h00m08,300"]),
        ("date,time,w", ["2025-02-03,-,300", "2025-02-03,-,300"]),
    ] {
        let text = format!("{header}\n{}\n", cells.join("\n"));
        let error = read(CSV, &[("t.csv", &text)], &maps(&["power_watts=w"])).map(|imported| total(&imported)).unwrap_err();
        assert!(error.starts_with("t.csv:2: column \"time"), "{error}");
    }
    // The choice holds below a changed header.
    let changed = "time,timestamp,w\n0,2025-02-03T10:00:00Z,300\n10,2025-02-03T10:00:10Z,300\n\
                   time,timestamp,w,more\n20,2025-02-03T10:00:20Z,300,1\n";
    near(total(&read(CSV, &[("t.csv", changed)], &maps(&["power_watts=w"])).unwrap()), 6_000.0, "a changed header");
}

#[test]
fn the_power_of_a_module_is_read_where_it_is_asked_for() {
    let header = "timestamp, uuid, power.draw.instant [W], module.power.draw.instant [W], module.power.draw.average [W]";
    let rows = (0..=10).map(|second| format!("2025/02/03 10:00:{second:02}.000, GPU-1, 300.00 W, 500.00 W, 490.00 W\n"));
    let text = format!("{header}\n{}", rows.collect::<String>());
    let metered = |text: &str, meter| read(SMI, &[("s.csv", text)], &ImportOptions { meter, ..plain() });
    near(total(&metered(&text, None).unwrap()), 3_000.0, "the GPU");
    near(total(&metered(&text, Some(Meter::Module)).unwrap()), 5_000.0, "the module");
    let without = text.replacen("power.draw.instant [W], module", "fan.speed [%], module", 1);
    let error = metered(&without, None).unwrap_err();
    assert!(error.starts_with("s.csv:1: the power in it is that of modules") && error.ends_with("use --meter module"), "{error}");
    near(total(&metered(&without, Some(Meter::Module)).unwrap()), 5_000.0, "the module");
}

#[test]
fn a_uuid_in_capitals_is_the_board_of_the_one_in_small_letters() {
    let row = |uuid: &str, second: u32| format!("2025/02/03 10:00:{second:02}.000, {uuid}, 300.00 W\n");
    let header = "timestamp, uuid, power.draw [W]\n";
    let uuid = "6d5c0ac5-74d7-3130-46f1-e93ed57f469a";
    let file = |uuid: String, seconds: std::ops::Range<u32>| {
        let rows: Vec<String> = seconds.map(|second| row(&uuid, second)).collect();
        format!("{header}{}", rows.concat())
    };
    for capitals in [format!("GPU-{}", uuid.to_uppercase()), format!("gpu-{uuid}")] {
        let files = [("a.csv", file(capitals, 0..30)), ("b.csv", file(format!("GPU-{uuid}"), 30..60))];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let imported = read(SMI, &files, &plain()).unwrap();
        let devices: std::collections::BTreeSet<String> = telemetry(&imported).into_iter().map(|event| event.device).collect();
        assert_eq!(devices.into_iter().collect::<Vec<_>>(), [format!("GPU-{uuid}")]);
    }
}

#[test]
fn an_error_names_a_number_that_may_be_a_day_of_a_spreadsheet() {
    let text = "time,w\n45691.4166666667,300\n45691.4167824074,300\n";
    let error = read(CSV, &[("a.csv", text)], &maps(&["power_watts=w:W"])).unwrap_err();
    assert!(error.contains("as a day of a spreadsheet it is 2025-02-03T10:00:00"), "{error}");
    for seconds in ["0.5", "1738576800.5", "45691"] {
        let text = format!("time,w\n{seconds},300\n");
        let error = read(CSV, &[("a.csv", &text)], &maps(&["power_watts=w:W"])).unwrap_err();
        assert!(error.contains("use --time-format unix if") && !error.contains("spreadsheet"), "{seconds}: {error}");
    }
}

#[test]
fn rules_between_rows_cost_nothing() {
    let rows: Vec<String> = (0..10).map(|second| format!("| 2025-02-03T10:00:{second:02}Z | 300 |\n")).collect();
    let rows = rows.concat();
    for rule in ["|---|---|", "|:---|---:|", "+------+-----+", "|======|=====|"] {
        let text = format!("| time | w |\n{rule}\n{rows}{rule}\n");
        let imported = read(CSV, &[("a.md", &text)], &maps(&["power_watts=w:W"])).unwrap();
        assert_eq!((telemetry(&imported).len(), imported.report.refused.len()), (10, 0), "{rule}");
    }
}

#[test]
fn the_sum_of_the_rows_above_is_no_row() {
    let options = |map: &str| maps(&[map]);
    let steps = |values: &[f64]| {
        let rows = values.iter().enumerate().map(|(row, value)| format!("2025-02-03T10:00:{row:02}Z,{value}\n"));
        format!("time,n\n{}", rows.collect::<String>())
    };
    let last = |text: &str, options: &ImportOptions| {
        let imported = read(CSV, &[("t.csv", text)], options).unwrap();
        (progress(&imported).last().unwrap().samples_total.unwrap(), imported.report.refused.len())
    };
    let plain = &[32.0, 32.0, 20.0, 32.0, 32.0][..];
    assert_eq!(last(&steps(plain), &options("samples=n")), (148.0, 0));
    let summed = steps(&[plain, &[148.0]].concat());
    assert_eq!(last(&summed, &options("samples=n")), (148.0, 1));
    let meant = ImportOptions { accept: vec![AcceptedFinding::NestedRows], ..options("samples=n") };
    assert_eq!(last(&summed, &meant), (296.0, 0));

    for (values, total) in [
        (&[64.0, 64.0, 64.0, 64.0, 256.0].repeat(5)[..], 2560.0),
        (&[512.0, 512.0, 512.0, 512.0, 2048.0], 4096.0),
        (&[1.0, 2.0, 1.0, 2.0, 6.0], 12.0),
    ] {
        assert_eq!(last(&steps(values), &options("samples=n")), (total, 0), "{values:?}");
    }
    let unfinished = [100.0, 110.0, 120.0, 330.0, 105.0, 99.0, 100.0, 304.0, 101.0, 102.0];
    for map in [&["samples=n"][..], &["samples=n", "steps=*"]] {
        assert_eq!(last(&steps(&unfinished), &maps(map)), (837.0, 1), "{map:?}");
    }

    // A window of an epoch beside those of its steps.
    let epochs = steps(&[3000.0, 3000.0, 2990.0, 8990.0, 3000.0, 3010.0, 3000.0, 9010.0]);
    let imported = read(CSV, &[("t.csv", &epochs)], &options("energy_joules=n:J")).unwrap();
    assert_eq!(telemetry(&imported).last().unwrap().energy_joules_total, Some(18_000.0));
    assert_eq!(imported.report.refused[0].lines, 2);

    let power = steps(&[300.0, 290.0, 310.0, 300.0, 300.0, 300.0, 300.0, 300.0, 2400.0]);
    let imported = read(CSV, &[("t.csv", &power)], &options("power_watts=n")).unwrap();
    near(total(&imported), 2_100.0, "power");
    assert_eq!(
        imported.report.refused[0].reason,
        "column \"n\": 2400 W is the sum of the rows above, and no reading: the row is left out"
    );
    for jump in [
        &[60.0, 60.0, 60.0, 60.0, 60.0, 300.0][..],
        &[60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 490.0],
        &[50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 400.0],
        &[30.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0, 300.0],
    ] {
        let imported = read(CSV, &[("t.csv", &steps(jump))], &options("power_watts=n")).unwrap();
        assert!(imported.report.refused.is_empty(), "{jump:?}");
    }
}

#[test]
fn steps_of_a_job_do_not_count_beside_the_job_wherever_its_row_is() {
    let rows = ["101.batch", "101.extern", "101"].map(|job| format!("{job}|1200000|1500|2025-02-03T11:00:00"));
    for order in [[0, 1, 2], [2, 0, 1], [0, 2, 1]] {
        let text = format!("JobID|ConsumedEnergyRaw|ElapsedRaw|End\n{}\n", order.map(|row| &*rows[row]).join("\n"));
        let options = ImportOptions { meter: Some(Meter::Node), ..maps(&["time=End", "energy_joules=ConsumedEnergyRaw"]) };
        let imported = read(CSV, &[("s.txt", &text)], &options).unwrap();
        assert_eq!(telemetry(&imported).last().unwrap().energy_joules_total, Some(1_200_000.0), "{order:?}");
        let skipped: u64 = imported.report.skipped.iter().map(|skipped| skipped.lines).sum();
        assert_eq!(skipped, 2, "{order:?}");
    }
}

#[test]
fn a_flag_of_a_row_marks_its_value_as_none() {
    let row = |second: u32, flag: &str, value: &str| format!("run,gpu_power,{value},2025-02-03T10:00:{second:02}Z,{flag}\n");
    for (yes, no) in [("1", "0"), ("True", "False"), ("t", "f")] {
        let rows = (0..=10).map(|second| if second == 5 { row(second, yes, "0") } else { row(second, no, "300") });
        let text = format!("run_uuid,key,value,timestamp,is_nan\n{}", rows.collect::<String>());
        let imported =
            read(CSV, &[("m.csv", &text)], &ImportOptions { meter: Some(Meter::Node), ..maps(&["power_watts=value"]) });
        let imported = imported.unwrap();
        assert_eq!((total(&imported), imported.report.absent_values), (3_000.0, 1), "{yes}");
    }
}

#[test]
fn empty_rows_cost_nothing() {
    let rows: Vec<String> = (0..=10).map(|second| format!("2025-02-03T10:00:{second:02}Z,300,\n")).collect();
    let rows = rows.concat();
    for text in [format!("time,power,\n{rows},,\n,,\n"), format!("time,power,note\n{rows}\n,,\n")] {
        let imported = read(CSV, &[("t.csv", &text)], &maps(&["power_watts=power"])).unwrap();
        near(total(&imported), 3_000.0, &text);
        assert!(imported.report.refused.is_empty(), "{:?}", imported.report.refused);
    }
}

#[test]
fn a_counter_that_leaps_once_is_not_in_another_unit() {
    let row = |second: u32| {
        let joules = 300 * second + if second >= 30 { 1_000_000 } else { 0 };
        format!("2025-02-03T10:00:{second:02}Z,300,{joules}\n")
    };
    let text = format!("time,w,j\n{}", (0..60).map(row).collect::<String>());
    let imported = read(CSV, &[("t.csv", &text)], &maps(&["power_watts=w", "energy_joules_total=j"])).unwrap();
    near(total(&imported), 17_700.0, "power");
    assert!(
        imported.report.notes.iter().any(|note| note.contains("at line 32: the counter is left out")),
        "{:?}",
        imported.report.notes
    );
    let error = read(CSV, &[("t.csv", &text)], &maps(&["energy_joules_total=j"])).unwrap_err();
    assert!(error.starts_with("t.csv:32: ") && error.contains("grows by 1000300 W here"), "{error}");
}

#[test]
fn multiples_of_counts_are_refused_and_rates_that_contradict_a_total_are_noted() {
    let table = |header: &str| {
        let rows = (0..=10).map(|row| format!("2025-02-03T10:{:02}:{:02}Z,{},51.2\n", row / 6, row % 6 * 10, row * 100));
        format!("{header}\n{}", rows.collect::<String>())
    };
    let error = read(CSV, &[("t.csv", &table("time,tokens (M),rate"))], &maps(&["tokens_total=#2"])).unwrap_err();
    assert!(error.starts_with("t.csv:1: column \"tokens (M)\": the header gives M, a multiple"), "{error}");
    for (columns, is_noted) in [(&["samples_total=n", "samples_per_second=rate"][..], true), (&["samples_total=n"], false)] {
        let imported = read(CSV, &[("t.csv", &table("time,n,rate"))], &maps(columns)).unwrap();
        let notes = &imported.report.notes;
        let is_shown = notes.iter().any(|note| note.contains("grows by 1000 in 100 s, samples_per_second gives 5120"));
        assert_eq!(is_shown, is_noted, "{notes:?}");
    }
    // A pause of ten hours, of which a rate shows nothing.
    let row = |row: u32| format!("2025-02-03T{:02}:{:02}:{:02}Z,{},10\n", 8 + row / 8 * 10, row / 6, row % 6 * 10, row * 100);
    let paused = format!("time,n,rate\n{}", (0..=15).map(row).collect::<String>());
    let imported = read(CSV, &[("t.csv", &paused)], &maps(&["samples_total=n", "samples_per_second=rate"])).unwrap();
    let notes = &imported.report.notes;
    assert!(!notes.iter().any(|note| note.contains("contradict")), "{notes:?}");
}

/// A table of one value a second, which goes up and down from `least` on.
fn varying(header: &str, seconds: std::ops::Range<u32>, least: u32) -> String {
    let row = |second: u32| format!("2025-02-03T10:{:02}:{:02}Z,{}\n", second / 60, second % 60, least + second * 7 % 11);
    format!("{header}\n{}", seconds.map(row).collect::<String>())
}

#[test]
fn files_without_an_id_are_compared_and_joined_as_those_with_one() {
    let power = |seconds, least| varying("time,w", seconds, least);
    let smi = |seconds: std::ops::RangeInclusive<u32>| {
        let row = |second: u32| format!("2025/02/03 10:00:{second:02}.000, {}.00 W\n", 100 + second * 7 % 11);
        format!("timestamp, power.draw [W]\n{}", seconds.map(row).collect::<String>())
    };
    let of = |format: RecordingFormat, files_are| {
        let options = if format == CSV { maps(&["power_watts=w"]) } else { plain() };
        ImportOptions { files_are, ..options }
    };
    for (what, format, a, b, whole) in [
        ("a copy", CSV, power(0..30, 300), power(0..30, 300), power(0..30, 300)),
        ("half of it", CSV, power(0..30, 300), power(15..45, 300), power(0..45, 300)),
        ("a copy of a log", SMI, smi(0..=10), smi(0..=10), smi(0..=10)),
        ("half of a log", SMI, smi(0..=10), smi(5..=20), smi(0..=20)),
    ] {
        let files = [("a.csv", a.as_str()), ("b.csv", &b)];
        let error = read(format, &files, &of(format, None)).unwrap_err();
        assert!(error.starts_with("b.csv: has the same rows as a.csv") && error.contains("--files-are parts"), "{what}: {error}");
        let joined = read(format, &files, &of(format, Some(FileSetKind::Parts))).unwrap();
        let expected = total(&read(format, &[("w.csv", &whole)], &of(format, None)).unwrap());
        assert_eq!(joules(&joined).len(), 1, "{what}");
        near(total(&joined), expected, what);
        let apart = read(format, &files, &of(format, Some(FileSetKind::Nodes))).unwrap();
        assert_eq!(joules(&apart).len(), 2, "{what}");
    }
    let whole_of = |text: &str| total(&read(SMI, &[("w.csv", text)], &plain()).unwrap());
    for (what, format, a, b, boards, expected) in [
        ("rotated", SMI, smi(0..=10), smi(11..=20), 1, whole_of(&smi(0..=20))),
        ("newest first", SMI, smi(11..=20), smi(0..=10), 1, whole_of(&smi(0..=20))),
        ("two boards", CSV, power(0..12, 300), power(0..12, 100), 2, 0.0),
    ] {
        let imported =
            read(format, &[("a.csv", &a), ("b.csv", &b)], &of(format, None)).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(joules(&imported).len(), boards, "{what}");
        if expected > 0.0 {
            near(total(&imported), expected, what);
        }
    }
}

#[test]
fn what_rows_of_two_files_add_at_the_same_times_counts_once_or_stops() {
    let (a, b) = (varying("time,n", 0..20, 30), varying("time,n", 10..30, 30));
    let samples = |files: &[(&str, &str)], files_are| -> Result<f64, String> {
        let imported = read(CSV, files, &ImportOptions { files_are, ..maps(&["samples=n"]) })?;
        Ok(progress(&imported).iter().filter_map(|row| row.samples_total).fold(0.0, f64::max))
    };
    let one = samples(&[("a.csv", &a)], None).unwrap();
    let whole = samples(&[("w.csv", &varying("time,n", 0..30, 30))], None).unwrap();
    let other = samples(&[("b.csv", &b)], None).unwrap();
    for (what, second, parts, nodes) in [("a copy", &a, one, 2.0 * one), ("half of it", &b, whole, one + other)] {
        let files = [("a.csv", a.as_str()), ("b.csv", second)];
        let error = samples(&files, None).unwrap_err();
        assert!(error.starts_with("b.csv: adds the same at the same times as a.csv"), "{what}: {error}");
        near(samples(&files, Some(FileSetKind::Parts)).unwrap(), parts, what);
        near(samples(&files, Some(FileSetKind::Nodes)).unwrap(), nodes, what);
    }
}

/// What a row adds, by its number.
type Amount<'a> = &'a dyn Fn(u32) -> u32;

#[test]
fn what_rows_of_two_files_add_at_about_the_same_times_is_noted_or_stops() {
    let table = |milliseconds: u32, amount: Amount<'_>| {
        let row = |row: u32| {
            let at = 5000 * row + milliseconds;
            format!("2025-02-03T10:{:02}:{:02}.{:03}Z,{}\n", at / 60_000, at / 1000 % 60, at % 1000, amount(row))
        };
        format!("time,n\n{}", (0..61).map(row).collect::<String>())
    };
    let samples = |files: &[(&str, &str)], files_are| -> Result<(f64, bool), String> {
        let imported = read(CSV, files, &ImportOptions { files_are, ..maps(&["samples=n"]) })?;
        let is_noted = imported.report.notes.iter().any(|note| note.contains("2 files add the same, row by row"));
        Ok((progress(&imported).iter().filter_map(|row| row.samples_total).fold(0.0, f64::max), is_noted))
    };
    let amounts: [(&str, Amount<'_>, bool); 3] = [
        ("constant", &|_| 32, false),
        ("a schedule", &|row| 16 << (row / 13), false),
        ("varying", &|row| 30 + 7 * row % 5, true),
    ];
    for (what, amount, is_sure) in amounts {
        let a = table(0, amount);
        let one = samples(&[("a.csv", &a)], None).unwrap().0;
        for milliseconds in [1, 200, 1300] {
            let b = table(milliseconds, amount);
            let files = [("a.csv", a.as_str()), ("b.csv", b.as_str())];
            match samples(&files, None) {
                Err(error) if is_sure => {
                    assert!(error.starts_with("b.csv: adds the same at about the same times as a.csv"), "{what}: {error}");
                }
                counted => assert_eq!(counted, Ok((2.0 * one, true)), "{what}, {milliseconds}"),
            }
            assert_eq!(samples(&files, Some(FileSetKind::Parts)), Ok((one, false)), "{what}, {milliseconds}");
            assert_eq!(samples(&files, Some(FileSetKind::Nodes)), Ok((2.0 * one, false)), "{what}, {milliseconds}");
        }
    }
    let (a, b) = (table(0, &|row| 30 + 7 * row % 5), table(200, &|row| 30 + 3 * row % 5));
    assert!(!samples(&[("a.csv", &a), ("b.csv", &b)], None).unwrap().1, "amounts of their own");
    let (a, b) = (table(0, &|_| 32), table(2500, &|_| 32));
    assert!(!samples(&[("a.csv", &a), ("b.csv", &b)], None).unwrap().1, "in turn");
}

#[test]
fn rates_that_are_far_apart_give_no_samples_and_are_noted() {
    for (every, is_noted) in [(60, false), (120, false), (130, true), (300, true), (600, true)] {
        let row = |second: u32| {
            let rate = if second.is_multiple_of(every) { "100" } else { "" };
            format!("2025-02-03T{:02}:{:02}:{:02}Z,300,{rate},{second}\n", 10 + second / 3600, second / 60 % 60, second % 60)
        };
        let text = format!("time,w,rate,n\n{}", (0..=360).map(|at| row(10 * at)).collect::<String>());
        for field in ["samples", "tokens"] {
            let rate = format!("{field}_per_second=rate");
            let imported = read(CSV, &[("t.csv", &text)], &maps(&["power_watts=w:W", &rate])).unwrap();
            let noted = |note: &String| note.contains(&format!("{every} s apart, and no {field} are known"));
            assert_eq!(imported.report.notes.iter().any(noted), is_noted, "{every}: {:?}", imported.report.notes);
            let total = format!("{field}_total=n");
            let imported = read(CSV, &[("t.csv", &text)], &maps(&["power_watts=w:W", &rate, &total])).unwrap();
            assert!(!imported.report.notes.iter().any(noted), "{every}: the total counts");
        }
    }
    // Rows do not come at even distances, and there is a pause.
    let times = [0, 200, 460, 650, 910, 1100, 5000, 5200];
    let row = |second: u32| format!("2025-02-03T{:02}:{:02}:{:02}Z,100\n", 10 + second / 3600, second / 60 % 60, second % 60);
    let text = format!("time,rate\n{}", times.map(row).concat());
    let notes = read(CSV, &[("t.csv", &text)], &maps(&["samples_per_second=rate"])).unwrap().report.notes.join("; ");
    assert!(notes.contains("POWER_GAP_SECONDS=260"), "{notes}");
}

#[test]
fn a_copy_of_a_board_under_another_id_is_refused() {
    let log = |id: &str| varying("time,w", 0..20, 300).replace('\n', &format!(",{id}\n")).replacen(id, "gpu", 1);
    let (a, b) = (log("GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a"), log("0"));
    let of = |files_are| ImportOptions { files_are, ..maps(&["device=gpu", "power_watts=w"]) };
    let files = [("a.csv", a.as_str()), ("b.csv", &b)];
    let error = read(CSV, &files, &of(None)).unwrap_err();
    assert!(error.starts_with("b.csv: has the same readings of b-") && error.contains("--files-are nodes"), "{error}");
    assert!(error.contains("use --files-are parts"), "{error}");
    assert_eq!(joules(&read(CSV, &files, &of(Some(FileSetKind::Nodes))).unwrap()).len(), 2);
    let parts = read(CSV, &files, &of(Some(FileSetKind::Parts))).unwrap();
    assert_eq!((joules(&parts).len(), parts.report.duplicates), (1, 20));
    assert!(parts.report.notes.iter().any(|note| note.contains("it is left out")), "{:?}", parts.report.notes);
}

#[test]
fn boards_that_idle_or_are_capped_alike_are_several() {
    let table = |header: &str, rows: std::ops::Range<u32>, cells: &dyn Fn(u32) -> String| -> String {
        let row = |second: u32| format!("2025-02-03T10:00:{second:02}Z,{}\n", cells(second));
        format!("{header}\n{}", rows.map(row).collect::<String>())
    };
    let idle = table("time,w", 0..30, &|_: u32| "60".to_owned());
    let quantised = table("time,w", 0..30, &|second: u32| (60 + second / 15).to_string());
    let ends_idle = table("time,w", 0..30, &|second: u32| if second < 28 { (200 + second).to_string() } else { "60".to_owned() });
    let begins_idle =
        |first: u32| table("time,w", first..first + 20, &|second: u32| if second < 30 { "60" } else { "300" }.to_owned());
    let count = table("time,e", 0..30, &|second: u32| (60 * second).to_string());
    let named = |name: &str, watts: fn(u32) -> u32| -> String {
        table("time,id,w", 0..40, &|second: u32| format!("{name},{}", watts(second)))
    };
    let (one, two) = ("GPU-12345678-1234-1234-1234-123456789abc", "GPU-22345678-1234-1234-1234-123456789abc");
    let (power, device) = (&["power_watts=w"][..], &["power_watts=w", "device=id"][..]);
    let capped: fn(u32) -> u32 = |second| if second / 5 % 2 == 0 { 250 } else { 300 };
    let varied: fn(u32) -> u32 = |second| 300 + second * 7 % 11;
    for (what, maps_to, a, b, noted) in [
        ("idle", power, idle.clone(), idle, false),
        ("idle, in whole watts", power, quantised.clone(), quantised, false),
        ("two rows of overlap", power, ends_idle.clone(), begins_idle(28), false),
        ("one row of overlap", power, ends_idle, begins_idle(29), false),
        ("counters from zero", &["energy_joules_total=e"][..], count.clone(), count, false),
        ("UUIDs, capped", device, named(one, capped), named(two, capped), false),
        ("short ids, capped", device, named("1", capped), named("2", capped), false),
        ("UUIDs, the same all the time", device, named(one, varied), named(two, varied), true),
        ("nodes", &["power_watts=w", "node=id"][..], named("n1", varied), named("n2", varied), true),
    ] {
        let imported =
            read(CSV, &[("a.csv", &a), ("b.csv", &b)], &maps(maps_to)).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(imported.report.boards.len(), 2, "{what}");
        let notes = &imported.report.notes;
        assert_eq!(notes.iter().any(|note| note.contains("has the same readings of")), noted, "{what}: {notes:?}");
    }
    let smi = smi("timestamp, power.draw [W]", &[60.0], 0..=20, |_| String::new());
    let imported = read(SMI, &[("a.csv", &smi), ("b.csv", &smi)], &plain()).unwrap();
    assert_eq!(imported.report.boards.len(), 2);
}

#[test]
fn counters_of_files_without_an_id_are_joined_if_they_go_on() {
    let count = |first: u32, start: u32, watts: u32| -> String {
        let row = |row: u32| {
            let second = first + row;
            format!("2025-02-03T10:{:02}:{:02}Z,{}\n", second / 60, second % 60, start + watts * row)
        };
        format!("time,e\n{}", (0..60).map(row).collect::<String>())
    };
    let a = count(0, 1_000_000, 300);
    for (what, b, boards) in [
        ("goes on", count(120, 1_030_000, 200), 1),
        ("falls", count(120, 5_000, 200), 2),
        ("leaps", count(120, 9_000_000, 200), 2),
    ] {
        for files in [[("a.csv", a.as_str()), ("b.csv", b.as_str())], [("b.csv", b.as_str()), ("a.csv", a.as_str())]] {
            let imported = read(CSV, &files, &maps(&["energy_joules_total=e"])).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(imported.report.boards.len(), boards, "{what}");
            assert!(!imported.report.notes.iter().any(|note| note.contains("overlap are")), "{:?}", imported.report.notes);
        }
    }
}

#[test]
fn a_uuid_of_zeros_is_none() {
    let zeros = "GPU-00000000-0000-0000-0000-000000000000";
    let log = smi("timestamp, index, uuid, power.draw [W]", &[300.0, 100.0], 0..=10, |board| format!("{board}, {zeros}, "));
    let imported = read(SMI, &[("log.csv", &log)], &plain()).unwrap();
    assert_eq!(joules(&imported).len(), 2);
    near(total(&imported), 4000.0, "by index");
    // Without an index, they are one board of their file.
    let real = "GPU-12345678-1234-1234-1234-123456789abc";
    let alone = |boards: &[f64], seconds| {
        let id = |board: usize| format!("{}, ", [zeros, real][board]);
        smi("timestamp, name, uuid, power.draw [W]", boards, seconds, |board| format!("NVIDIA H200, {}", id(board)))
    };
    let (one, both, later) = (alone(&[300.0], 0..=10), alone(&[300.0, 100.0], 0..=10), alone(&[300.0], 11..=20));
    let as_csv = maps(&["device=uuid", "power_watts=power.draw"]);
    for (what, files, boards, expected) in [
        ("alone", vec![("log.csv", one.as_str())], 1, 3000.0),
        ("beside another", vec![("log.csv", &both)], 2, 4000.0),
        ("rotated", vec![("log.csv", &one), ("log.csv.1", &later)], 1, 6000.0),
        ("two nodes", vec![("n1.csv", &one), ("n2.csv", &one)], 2, 6000.0),
    ] {
        for (format, options) in [(SMI, plain()), (CSV, as_csv.clone())] {
            let imported = read(format, &files, &options).unwrap_or_else(|error| panic!("{what}, {format}: {error}"));
            assert_eq!(joules(&imported).len(), boards, "{what}, {format}");
            near(total(&imported), expected, what);
            assert!(imported.report.check_refused().is_ok(), "{what}, {format}");
        }
    }
    let sample = |gpu: u32, watts: u32, at: u32| {
        let stamp = 1_738_576_800_000 + 15_000 * u64::from(at);
        format!("DCGM_FI_DEV_POWER_USAGE{{gpu=\"{gpu}\",UUID=\"{zeros}\",Hostname=\"n1\"}} {watts} {stamp}\n")
    };
    let text: String = (0..=10).flat_map(|at| [sample(0, 300, at), sample(1, 100, at)]).collect();
    let options = ImportOptions { workload: Some("lab/a".to_owned()), ..plain() };
    let imported = read(RecordingFormat::Prometheus, &[("p.prom", &text)], &options).unwrap();
    assert_eq!(joules(&imported).len(), 2);
    near(total(&imported), 60_000.0, "by host and index");
}

#[test]
fn a_known_series_that_makes_next_to_nothing_or_too_much_is_refused_without_a_map() {
    let text = |name: &str, first: f64, step: f64| -> String {
        let row = |at: u32| {
            let stamp = 1_738_576_800_000 + 10_000 * u64::from(at);
            format!("{name}{{gpu=\"0\",UUID=\"GPU-1\"}} {} {stamp}\n", first + step * f64::from(at))
        };
        (0..=12).map(row).collect()
    };
    let options = ImportOptions { workload: Some("lab/a".to_owned()), ..plain() };
    let energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION";
    for (what, name, first, step, expected, unit) in [
        ("joules", energy, 1000.0, 3000.0, "never grows by 1 W", "J"),
        ("milliwatts", "DCGM_FI_DEV_POWER_USAGE", 300_000.0, 0.0, "more than one GPU board can draw", "mW"),
    ] {
        let error = read(RecordingFormat::Prometheus, &[("p.prom", &text(name, first, step))], &options).unwrap_err();
        assert!(
            error.contains(expected) && error.contains(&format!("if it is in {unit}, write the readings as a table")),
            "{what}: {error}"
        );
        assert!(!error.contains("give the unit"), "{what}: {error}");
    }
    let right = read(RecordingFormat::Prometheus, &[("p.prom", &text(energy, 1e6, 3e6))], &options);
    assert!(right.is_ok(), "{:?}", right.err());
    // Beside boards in range, it is the counter of one.
    let of_board = |board: &str, step: f64| text(energy, 1e6, step).replace("GPU-1", board);
    for (what, step, boards, noted) in [("next to nothing", 3000.0, 2, true), ("still", 0.0, 3, false)] {
        let both = [of_board("GPU-1", 3e6), of_board("GPU-2", step), of_board("GPU-3", 1e6)].concat();
        let imported = read(RecordingFormat::Prometheus, &[("p.prom", &both)], &options).unwrap();
        assert_eq!(imported.report.boards.len(), boards, "{what}");
        let notes = &imported.report.notes;
        let has_note =
            |note: &String| note.contains("GPU-2: the energy counter never grows by 1 W") && note.contains("not known");
        assert_eq!(notes.iter().any(has_note), noted, "{what}: {notes:?}");
    }
}

#[test]
fn a_clock_of_twelve_hours_without_its_half_of_the_day_stops() {
    let rows = |first: u32| -> String {
        let row = |minute: u32| format!("2025-02-03 {:02}:{:02}:00,300\n", (minute / 60 + 11) % 12 + 1, minute % 60);
        (first..first + 40).map(row).collect()
    };
    let options = maps(&["power_watts=w"]);
    let error = read(CSV, &[("w.csv", &format!("time,w\n{}", rows(760)))], &options).unwrap_err();
    assert!(error.contains("counts to 12 without AM and PM") && error.contains("--accept unordered"), "{error}");
    assert!(read(CSV, &[("w.csv", &format!("time,w\n{}", rows(600)))], &options).is_ok());
    let berlin = ImportOptions { time_zone: Some(NamedTimeZone::new(BERLIN, |_| None).unwrap()), ..options.clone() };
    assert!(read(CSV, &[("w.csv", &format!("time,w\n{}", rows(760)))], &berlin).unwrap_err().contains("counts to 12"));
    // An afternoon before its morning is sorted.
    let row = |minute: u32| format!("2025-02-03 {:02}:{:02}:00,300\n", minute / 60, minute % 60);
    let text: String = (13 * 60..20 * 60).chain(8 * 60..12 * 60).map(row).collect();
    let imported = read(CSV, &[("w.csv", &format!("time,w\n{text}"))], &options).unwrap();
    assert_eq!(imported.report.events, 660);
}

#[test]
fn a_word_that_begins_as_a_multiple_is_no_unit() {
    for name in ["power_microvm", "power_microwave", "power.megavision", "power_micro", "power_giga", "Leistung Mega"] {
        let text = varying(&format!("time,{name}"), 0..20, 300);
        let map = format!("power_watts={name}");
        let imported = read(CSV, &[("w.csv", &text)], &maps(&[map.as_str()]));
        assert!(imported.is_ok(), "{name}: {:?}", imported.err());
    }
    let text = varying("time,power (kilo)", 0..20, 300);
    assert!(read(CSV, &[("w.csv", &text)], &maps(&["power_watts=power (kilo)"])).is_err());
}

#[test]
fn what_rows_add_goes_beside_every_other_figure_of_the_job() {
    let row = |row: u32| {
        let time = format!("2025-02-03T10:{:02}:{:02}Z", row / 6, row % 6 * 10);
        format!("{time},{},{},{},3.2,300\n", 30 + row % 5, 100 * row, 3.0 - 0.01 * f64::from(row))
    };
    let text = format!("time,n,s,loss,rate,w\n{}", (0..40).map(row).collect::<String>());
    let totals = |step: &str, beside: &[&str]| {
        let own = format!("{step}=n");
        let mut mapped = vec![own.as_str()];
        mapped.extend(beside);
        let imported = read(CSV, &[("t.csv", &text)], &maps(&mapped)).unwrap_or_else(|error| panic!("{mapped:?}: {error}"));
        let of_step = |event: &eadt_schemas::v1::TrainingProgress| match step {
            "samples" => event.samples_total,
            "tokens" => event.tokens_total,
            _ => event.steps_total,
        };
        let known: Vec<_> = progress(&imported).iter().filter_map(|event| Some((event.time, of_step(event)?))).collect();
        (known, imported.report.out_of_order)
    };
    for step in ["samples", "tokens", "steps"] {
        let alone = totals(step, &[]);
        assert_eq!(alone.0.last().unwrap().1, 1280.0, "{step}");
        for other in ["loss=loss", "samples_per_second=rate", "steps_total=s", "tokens_total=s", "samples_total=s"] {
            if other.starts_with(&format!("{step}_total")) {
                continue;
            }
            for beside in [&[other][..], &[other, "power_watts=w"]] {
                assert_eq!(totals(step, beside), alone, "{step} beside {beside:?}");
            }
        }
    }
    // Each file has a total of its own; what rows add is of both.
    let node = |first: u32| {
        let row = |row: u32| format!("2025-02-03T10:00:{row:02}.{first:03}Z,32,{}\n", first + 10 * row);
        format!("time,n,s\n{}", (0..10).map(row).collect::<String>())
    };
    let options = ImportOptions { files_are: Some(FileSetKind::Nodes), ..maps(&["samples=n", "steps_total=s"]) };
    let imported = read(CSV, &[("a.csv", &node(0)), ("b.csv", &node(300))], &options).unwrap();
    let rows = progress(&imported);
    let ranks: std::collections::BTreeSet<u32> =
        rows.iter().filter(|row| row.samples_total.is_some()).map(|row| row.rank).collect();
    assert_eq!((ranks.len(), rows.iter().filter_map(|row| row.samples_total).fold(0.0, f64::max)), (1, 640.0));
}

/// A figure of each row.
type Count<'c> = &'c dyn Fn(u32) -> u32;
/// A counter, another one beside it, the samples of all, and the note.
type TotalsCase<'c> = (&'c str, Count<'c>, Option<Count<'c>>, f64, Option<&'c str>);
/// Power, its limit, the energy, the readings refused, and the note.
type LimitCase<'c> = (&'c str, Count<'c>, Count<'c>, f64, u64, Option<&'c str>);

#[test]
fn a_total_that_begins_anew_once_is_noted_or_added_up_if_another_goes_on() {
    let table = |samples: Count<'_>, steps: Count<'_>| {
        let row = |row: u32| format!("2025-02-03T10:{:02}:{:02}Z,{},{}\n", row / 6, row % 6 * 10, samples(row), steps(row));
        format!("time,n,s\n{}", (0..60).map(row).collect::<String>())
    };
    let anew = |row: u32| if row < 20 { 100 * row } else { 100 * (row - 20) };
    let resumed = |row: u32| if row < 20 { 100 * row } else { 100 * (row - 5) };
    let goes_on = |row: u32| 5 + row;
    let stays = |_: u32| 7;
    let cases: [TotalsCase<'_>; 5] = [
        ("alone", &anew, None, 3900.0, Some("counts once, 3900 in all")),
        ("beside a total that goes on", &anew, Some(&goes_on), 5800.0, Some("steps_total goes on")),
        ("beside one that begins anew", &anew, Some(&anew), 3900.0, Some("--accept falling-totals, which counts 5800")),
        ("beside one that stays", &anew, Some(&stays), 3900.0, Some("counts once, 3900 in all")),
        ("from a checkpoint", &resumed, None, 5400.0, None),
    ];
    for (what, samples, steps, total, note) in cases {
        let mapped = if steps.is_some() { &["samples_total=n", "steps_total=s"][..] } else { &["samples_total=n"] };
        let imported = read(CSV, &[("t.csv", &table(samples, steps.unwrap_or(&stays)))], &maps(mapped)).unwrap();
        near(progress(&imported).last().unwrap().samples_total.unwrap(), total, what);
        let notes = &imported.report.notes;
        let found = notes.iter().find(|note| note.starts_with("samples_total begins anew 1 time, at 2025-02-03T10:03:20"));
        assert_eq!(found.map(|found| found.contains(note.unwrap_or_default())), note.map(|_| true), "{what}: {notes:?}");
    }
    let row = |row: u32| {
        format!("training_samples_total{{job=\"x\"}} {} {}\n", anew(row), 1_738_576_800_000_u64 + 15_000 * u64::from(row))
    };
    let text: String = (0..40).map(row).collect();
    for (accept, total, note) in
        [(vec![], 1900.0, "which counts 3800"), (vec![AcceptedFinding::FallingTotals], 3800.0, "as --accept sets")]
    {
        let options = ImportOptions { accept, workload: Some("lab/a".to_owned()), ..plain() };
        let imported = read(RecordingFormat::Prometheus, &[("p.prom", &text)], &options).unwrap();
        near(progress(&imported).last().unwrap().samples_total.unwrap(), total, note);
        assert!(imported.report.notes.iter().any(|found| found.contains(note)), "{:?}", imported.report.notes);
    }
}

#[test]
fn power_far_above_the_limit_of_its_device_is_no_reading() {
    let table = |watts: Count<'_>, limit: Count<'_>| {
        let row = |second: u32| format!("2025/02/03 10:00:{second:02}.000, 0, {} W, {} W\n", watts(second), limit(second));
        format!("timestamp, index, power.draw.instant [W], enforced.power.limit [W]\n{}", (0..30).map(row).collect::<String>())
    };
    let even = |_: u32| 300;
    let spike = |second: u32| if second == 17 { 4200 } else { 300 };
    let peak = |second: u32| if second == 17 { 700 } else { 300 };
    let (high, low) = (|_: u32| 400, |_: u32| 100);
    let lowered = |second: u32| if second < 15 { 400 } else { 100 };
    let cases: [LimitCase<'_>; 4] = [
        ("a spike", &spike, &high, 8_700.0, 1, None),
        ("a peak", &peak, &high, 9_100.0, 0, None),
        ("a limit that was lowered", &even, &lowered, 8_700.0, 0, None),
        ("the limit of something else", &even, &low, 8_700.0, 0, Some("limit of 100 W in 30 of 30 rows")),
    ];
    for (what, watts, limit, joules, refused, note) in cases {
        let imported =
            read(SMI, &[("smi.csv", &table(watts, limit))], &plain()).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(total(&imported), joules, what);
        assert_eq!(imported.report.refused.iter().map(|refused| refused.lines).sum::<u64>(), refused, "{what}");
        let notes = &imported.report.notes;
        assert_eq!(notes.iter().any(|found| found.contains("times the limit")), note.is_some(), "{what}: {notes:?}");
        assert!(note.is_none_or(|note| notes.iter().any(|found| found.contains(note))), "{what}: {notes:?}");
    }
}

#[test]
fn a_pattern_may_have_several_braces() {
    let pivot =
        "time,h1:gpu0,h1:gpu1,h2:gpu0,h2:cpu0\n2025-02-03T10:00:00Z,100,200,300,90\n2025-02-03T10:00:10Z,100,200,300,90\n";
    let columns = [
        "train/cuda:0 (gpu:2)/power_usage (W)/mean",
        "train/cuda:1 (gpu:3)/power_usage (W)/mean",
        "train/cuda:1 (gpu:3)/power_usage (W)/max",
    ];
    let nvitop = format!("time,{}\n2025-02-03T10:00:00Z,100,200,400\n2025-02-03T10:00:10Z,100,200,400\n", columns.join(","));
    for (text, pattern, boards, energy) in [
        (pivot, "{h}:gpu{n}", &["w:h1:0", "w:h1:1", "w:h2:0"][..], 6_000.0),
        (pivot, "{h}:gpu{n}:W", &["w:h1:0", "w:h1:1", "w:h2:0"], 6_000.0),
        (pivot, "h1:gpu{n}", &["w:gpu0", "w:gpu1"], 3_000.0),
        (nvitop.as_str(), "train/cuda:{n} (gpu:{m})/power_usage (W)/mean:W", &["w:0:2", "w:1:3"], 3_000.0),
    ] {
        let imported = read(CSV, &[("w.csv", text)], &maps(&[&format!("power_watts={pattern}")]))
            .unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let names: Vec<String> = joules(&imported).iter().map(|(device, _)| without_fingerprint(device)).collect();
        assert_eq!(names, boards, "{pattern}");
        near(total(&imported), energy, pattern);
    }
    let error = read(CSV, &[("w.csv", pivot)], &maps(&["power_watts={h}:tpu{n}"])).unwrap_err();
    assert!(error.contains("has no column \"{h}:tpu{n}\""), "{error}");
}

#[test]
fn ranks_that_are_the_devices_are_ranks_all_the_same() {
    let table = |samples: &dyn Fn(u32, u32) -> u32| {
        let row = |second: u32, rank: u32| format!("2025-02-03T10:00:{second:02}Z,{rank},{},300\n", samples(second, rank));
        let rows = (0..10).flat_map(|second| (0..4).map(move |rank| row(second, rank)));
        format!("time,rank,n,w\n{}", rows.collect::<String>())
    };
    let options = maps(&["device=rank", "power_watts=w", "samples_total=n"]);
    let imported = read(CSV, &[("r.csv", &table(&|second, _| 80 * second))], &options).unwrap();
    near(total(&imported), 4.0 * 9.0 * 300.0, "each device");
    assert_eq!(progress(&imported).last().unwrap().samples_total, Some(720.0));
    let notes = &imported.report.notes;
    assert!(notes.iter().any(|note| note.starts_with("rank: all ranks have the same figures")), "{notes:?}");
    let error = read(CSV, &[("r.csv", &table(&|second, rank| 80 * second + 1000 * rank))], &options).unwrap_err();
    assert!(error.contains("rows of 4 ranks") && error.contains("is mapped as that of the devices"), "{error}");
}

#[test]
fn energy_may_be_in_megawatt_hours() {
    let row = |minute: u32| format!("2025-02-03T10:{minute:02}:00Z,{:.4}\n", 100.0 + 0.0025 * f64::from(minute));
    let text = format!("time,Energy (MWh)\n{}", (0..6).map(row).collect::<String>());
    let options = ImportOptions { meter: Some(Meter::Wall), ..maps(&["energy_joules_total=Energy (MWh)"]) };
    let imported = read(CSV, &[("m.csv", &text)], &options).unwrap();
    let counts: Vec<f64> = telemetry(&imported).iter().filter_map(|row| row.energy_joules_total).collect();
    near(counts[5] - counts[0], 0.0125 * 3.6e9, "MWh");
}
