//! Tests the refusals of an import, which its caller learns, and the skipped parts, which are no loss.

use std::time::Duration;

use eadt_recordings::{ImportOptions, RecordingFile, RecordingFormat, import};

use crate::support::{maps, read_texts as read};

const SMI: RecordingFormat = RecordingFormat::NvidiaSmi;
const CSV: RecordingFormat = RecordingFormat::Csv;

/// Rows of a table, one every 5 s, and other lines before the row of that number.
fn table(header: &str, row: &str, rows: u32, others: &[(u32, &str)]) -> String {
    let before = |number: u32| others.iter().filter(move |(at, _)| *at == number).map(|(_, line)| format!("{line}\n"));
    let row = |number: u32| format!("2025-02-03T10:{:02}:{:02}Z,{row}\n", number / 12, number % 12 * 5);
    let rows = (0..rows).flat_map(|number| before(number).chain([row(number)]));
    format!("time,{header}\n{}", rows.collect::<String>())
}

/// What it is, how it is read, the file, and how many lines are refused with the reason of the first.
type Case<'a> = (&'a str, RecordingFormat, &'a ImportOptions, String, Option<(u64, &'a str)>);

#[test]
fn refused_lines_are_an_error_and_lines_without_figures_are_none() {
    let power = maps(&["power_watts=w"]);
    let counted = maps(&["power_watts=w:W", "energy_joules_total=j:J"]);
    let interval = ImportOptions { interval: Some(Duration::from_secs(1)), ..ImportOptions::default() };
    let plain = ImportOptions::default();
    let w = |others: &[(u32, &str)]| table("w", "100", 20, others);
    let smi = |line: &str| {
        let rows = (0..9).map(|second| format!("2025/02/03 10:00:0{second}.000, GPU-1, 100.00 W, P0\n"));
        format!("timestamp, uuid, power.draw [W], pstate\n{}{line}\n", rows.collect::<String>())
    };
    let dmon = |line: &str| format!("# Entity  POWER  SACLK\n      Id      W\n{}{line}\n", "   GPU 0  100.5  1410\n".repeat(5));
    let entry = |second: u64, key: &str, value: &str| {
        format!(":::MLLOG {{\"time_ms\": {}, \"key\": \"{key}\", \"value\": {value}}}\n", 1_700_000_000_000 + 1000 * second)
    };
    let mllog = |line: &str| (0..9).map(|second| entry(second, "power_reading", "5000")).collect::<String>() + line;
    let spl = |line: &str| {
        let row = |second: u32| format!("Time,01-02-2026 10:00:{second:02}.000,Watts,900.5,Volts,230\n");
        format!("{}{line}\n", (0..9).map(row).collect::<String>())
    };
    let samples = |line: &str| {
        let row = |second: u64| format!("DCGM_FI_DEV_POWER_USAGE{{UUID=\"GPU-a\"}} 250 {}\n", 1_700_000_000_000 + 1000 * second);
        format!("# TYPE x gauge\n{}{line}\n", (0..9).map(row).collect::<String>())
    };
    let stuck = table("w,j", "300,4742.776", 13, &[]);
    let cases: Vec<Case<'_>> = vec![
        ("nothing", CSV, &power, w(&[]), None),
        ("no values", CSV, &power, w(&[(3, "2025-02-03T10:00:12Z,[N/A]"), (5, "2025-02-03T10:00:22Z,")]), None),
        ("comments and headers", CSV, &power, format!("title\n{}", w(&[(3, "# comment"), (5, "time,w"), (7, "")])), None),
        ("units below the header", CSV, &power, w(&[(0, ",W")]), None),
        ("repeated rows", CSV, &power, w(&[(3, "2025-02-03T10:00:10Z,100")]), None),
        ("rows out of order", CSV, &power, w(&[(3, "2025-02-03T10:00:02Z,100")]), None),
        ("columns without a field", CSV, &power, table("w,note", "100,idle", 20, &[]), None),
        ("a torn row", CSV, &power, w(&[(3, "2025-02-03T10:00")]), Some((1, "t:5: row has 1 cell, its header 2"))),
        ("a number", CSV, &power, w(&[(3, "2025-02-03T10:00:12Z,x")]), Some((1, "t:5: column \"w\": \"x\" is not a number"))),
        (
            "two",
            CSV,
            &power,
            w(&[(3, "2025-02-03T10:00:12Z,x"), (4, "2025-02-03T10:00:17Z,y")]),
            Some((2, "(the first of 2 lines)")),
        ),
        ("a time", CSV, &power, w(&[(3, "yesterday,100")]), Some((1, "\"yesterday\" is not a time"))),
        (
            "an impossible value",
            CSV,
            &power,
            w(&[(3, "2025-02-03T10:00:12Z,65535")]),
            Some((1, "more than one GPU board can draw")),
        ),
        ("a negative value", CSV, &power, w(&[(3, "2025-02-03T10:00:12Z,-5")]), Some((1, "-5 is not between"))),
        ("a last row that is cut", CSV, &power, w(&[]) + "2025-02-03T10:03:00Z,1", Some((1, "it may be cut off"))),
        ("a counter that does not move", CSV, &counted, stuck, Some((13, "stays at"))),
        ("no values of nvidia-smi", SMI, &plain, smi("2025/02/03 10:00:09.000, GPU-1, [N/A], P0"), None),
        ("a repeated header", SMI, &plain, smi("timestamp, uuid, power.draw [W], pstate"), None),
        ("a unit", SMI, &plain, smi("2025/02/03 10:00:09.000, GPU-1, 100 V, P0"), Some((1, "has an unknown unit"))),
        ("no board", SMI, &plain, smi("2025/02/03 10:00:09.000, [N/A], 100 W, P0"), Some((1, "row has no id of a board"))),
        ("MIG instances", RecordingFormat::Dcgmi, &interval, dmon("   GPU-I 0  100.5  1410"), None),
        ("a switch", RecordingFormat::Dcgmi, &interval, dmon("Switch 0  1  2"), None),
        ("an absent value", RecordingFormat::Dcgmi, &interval, dmon("   GPU 0  N/A  1410"), None),
        (
            "a torn row of dcgmi",
            RecordingFormat::Dcgmi,
            &interval,
            dmon("   GPU 0  100"),
            Some((1, "t:8: row has 1 value, its header 2")),
        ),
        ("a row without its GPU", RecordingFormat::Dcgmi, &interval, dmon("   GPU"), Some((1, "t:8: \"GPU\" names no GPU"))),
        ("console lines", RecordingFormat::Mlperf, &plain, mllog("+ shell trace\nepoch 1 loss 2.5\n"), None),
        ("entries of other things", RecordingFormat::Mlperf, &plain, mllog(&entry(20, "submission_org", "\"x\"")), None),
        ("no reading", RecordingFormat::Mlperf, &plain, mllog(&entry(20, "power_reading", "-1")), None),
        (
            "a torn entry",
            RecordingFormat::Mlperf,
            &plain,
            mllog(":::MLLOG {\"time_ms\": 17"),
            Some((1, "t:10: damaged log entry")),
        ),
        (
            "an impossible reading",
            RecordingFormat::Mlperf,
            &plain,
            mllog(&entry(20, "power_reading", "-40")),
            Some((1, "damaged log entry")),
        ),
        ("a note of the analyser", RecordingFormat::MlperfInference, &plain, spl("Notes: range 5 A"), None),
        (
            "no reading of the analyser",
            RecordingFormat::MlperfInference,
            &plain,
            spl("Time,01-02-2026 10:00:09.000,Watts,-1,Volts,230"),
            None,
        ),
        (
            "a torn reading",
            RecordingFormat::MlperfInference,
            &plain,
            spl("Time,01-02-2026 10:0"),
            Some((1, "t:10: column \"Time\"")),
        ),
        ("a series of others", RecordingFormat::Prometheus, &plain, samples("node_load1 0.5 1700000000000"), None),
        (
            "an absent sample",
            RecordingFormat::Prometheus,
            &plain,
            samples("DCGM_FI_DEV_POWER_USAGE{UUID=\"GPU-a\"} NaN 1700000020000"),
            None,
        ),
        (
            "a torn sample",
            RecordingFormat::Prometheus,
            &plain,
            samples("DCGM_FI_DEV_POWER_USAGE{UUID=\"GP"),
            Some((1, "is not a sample")),
        ),
        (
            "no time",
            RecordingFormat::Prometheus,
            &plain,
            samples("DCGM_FI_DEV_POWER_USAGE{UUID=\"GPU-a\"} 250"),
            Some((1, "has no time stamp")),
        ),
    ];
    for (what, format, options, text, expected) in cases {
        let report = read(format, &[("t", &text)], options).unwrap_or_else(|error| panic!("{what}: {error}")).report;
        match (report.check_refused(), expected) {
            (Ok(()), None) => assert!(report.refused.is_empty(), "{what}: {report}"),
            (Err(refused), Some((lines, part))) => {
                let text = refused.to_string();
                let counted = if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
                assert!(text.starts_with(&format!("the events lack what was refused, {counted}: t:")), "{what}: {text}");
                assert!(text.contains(part), "{what}: {text}");
            }
            (got, expected) => panic!("{what}: {got:?} instead of {expected:?}: {report}"),
        }
    }
}

#[test]
fn the_first_of_a_few_kinds_are_named() {
    let text = table(
        "w",
        "100",
        20,
        &[
            (3, "2025-02-03T10:00"),
            (5, "2025-02-03T10:00:22Z,x"),
            (7, "yesterday,100"),
            (9, "2025-02-03T10:00:42Z,5 GB"),
            (9, "2025-02-03T10:00:43Z,6 GB"),
            (11, "2025-02-03T10:00:52Z,65535"),
        ],
    );
    let inputs = vec![RecordingFile::new("a.csv", text.as_bytes()), RecordingFile::new("b.csv", text.as_bytes())];
    let options = ImportOptions { files_are: Some(eadt_recordings::FileSetKind::Nodes), ..maps(&["power_watts=w"]) };
    let report = import(CSV, inputs, &options).unwrap().report;
    let kinds: Vec<(&str, u64, u64)> =
        report.refused.iter().map(|refused| (refused.file.as_str(), refused.first_line, refused.lines)).collect();
    let of_file = |file| [(file, 5, 1), (file, 8, 1), (file, 11, 1), (file, 14, 2)];
    assert_eq!(kinds, [&of_file("a.csv")[..], &of_file("b.csv"), &[("a.csv", 18, 1), ("b.csv", 18, 1)]].concat());
    let refused = report.check_refused().unwrap_err().to_string();
    assert!(refused.starts_with("the events lack what was refused, 12 lines: a.csv:5: row has 1 cell"), "{refused}");
    assert!(refused.contains("; a.csv:8: ") && refused.contains("; a.csv:11: ") && !refused.contains("a.csv:14"), "{refused}");
    assert!(refused.ends_with("; and 7 more kinds"), "{refused}");
}
