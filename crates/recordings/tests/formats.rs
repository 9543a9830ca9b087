//! Each format on small recordings made for the purpose.

use eadt_recordings::{
    DroppedLines, ImportOptions, ImportedRecording, NamedTimeZone, RecordingFile, RecordingFormat, SameTimeRule, TimeFormat,
    import,
};
use eadt_schemas::v1::{GpuTelemetry, JobLifecycle, Meter, Origin, TrainingProgress};
use eadt_schemas::{EventTime, LoggedEvent, Topic, decode};

use crate::support::{maps, read_texts as read, without_fingerprint};

fn telemetry(events: &[LoggedEvent]) -> Vec<GpuTelemetry> {
    events.iter().filter(|event| event.topic() == Some(Topic::GpuTelemetry)).map(data).collect()
}

fn progress(events: &[LoggedEvent]) -> Vec<TrainingProgress> {
    events.iter().filter(|event| event.topic() == Some(Topic::TrainingProgress)).map(data).collect()
}

fn data<T: decode::DecodableEvent>(event: &LoggedEvent) -> T {
    eadt_schemas::decode(event.data.as_ref().unwrap().get().as_bytes()).unwrap()
}

fn micros(text: &str) -> EventTime {
    text.parse().unwrap()
}

fn mllog(rank: &str, time_ms: u64, key: &str, value: &str, metadata: &str) -> String {
    format!(
        "{rank}:::MLLOG {{\"namespace\": \"\", \"time_ms\": {time_ms}, \"key\": \"{key}\", \"value\": {value}, \"metadata\": {metadata}}}\n"
    )
}

const T0: u64 = 1_700_000_000_000;

fn power_log() -> String {
    (0..20).map(|i| mllog("", T0 - 4000 + 2000 * i, "power_reading", &(6000 + i).to_string(), "\"\"")).collect()
}

#[test]
fn mlperf_has_phases_blocks_evaluations_and_samples() {
    let log = [
        "+ shell trace\n".to_owned(),
        mllog("0: ", T0 - 2000, "submission_benchmark", "\"llama2_70b_lora\"", "{}"),
        mllog("0: ", T0 - 1999, "global_batch_size", "8", "{}"),
        mllog("1: ", T0, "run_start", "null", "{}"),
        mllog("0: ", T0, "run_start", "null", "{}"),
        mllog("0: ", T0, "block_start", "null", "{\"samples_count\": 0}"),
        mllog("0: ", T0 + 10_000, "block_stop", "null", "{\"samples_count\": 100}"),
        mllog("0: ", T0 + 10_000, "eval_start", "null", "{\"samples_count\": 100}"),
        mllog("0: ", T0 + 12_000, "eval_stop", "null", "{\"samples_count\": 100}"),
        mllog("0: ", T0 + 12_001, "block_start", "null", "{\"samples_count\": 100}"),
        mllog("0: ", T0 + 20_000, "block_stop", "null", "{\"samples_count\": 180}"),
        mllog("0: ", T0 + 20_500, "run_stop", "null", "{\"samples_count\": 180}"),
    ]
    .concat();
    let options = ImportOptions { workload: Some("lab/llama".to_owned()), ..ImportOptions::default() };
    let imported =
        read(RecordingFormat::Mlperf, &[("runs/result.txt", &log), ("power/node_0.txt", &power_log())], &options).unwrap();
    let events: Vec<LoggedEvent> = imported.events().collect();
    assert!(events.is_sorted_by_key(|event| event.time));
    assert_eq!(events.len() as u64, imported.report.events);

    let power = telemetry(&events);
    assert_eq!(power.len(), 20);
    assert_eq!(power[3].power_watts, Some(6003.0));
    assert_eq!((power[0].device.as_str(), power[0].meter, power[0].origin), ("node_0", Meter::Node, Origin::Imported));
    assert_eq!(power.iter().filter(|event| event.last).count(), 1);
    assert!(power[19].last);

    let progress = progress(&events);
    let found: Vec<_> = progress
        .iter()
        .map(|event| ((event.time.millis() - T0 as i64), event.phase, event.span.as_deref(), event.samples_total))
        .collect();
    assert_eq!(
        found,
        [
            (0, JobLifecycle::Started, Some("block 1"), Some(0.0)),
            (10_000, JobLifecycle::Progress, Some("evaluation 1"), Some(100.0)),
            (12_000, JobLifecycle::Progress, Some(""), Some(100.0)),
            (12_001, JobLifecycle::Progress, Some("block 2"), Some(100.0)),
            (20_000, JobLifecycle::Progress, Some(""), Some(180.0)),
            (20_500, JobLifecycle::Finished, Some(""), Some(180.0)),
        ]
    );
    assert!(progress.last().unwrap().last);
    assert_eq!(progress[0].global_batch_size, Some(8));
    let skipped: Vec<_> = imported.report.skipped.iter().map(|skipped| (skipped.reason.as_str(), skipped.lines)).collect();
    assert!(
        skipped.contains(&("not an MLLOG entry", 1)) && skipped.contains(&("written by another rank, too", 1)),
        "{skipped:?}"
    );
    assert_eq!(imported.report.same_stamp, 0, "entries of one time are no equal rows");
}

#[test]
fn power_of_a_node_in_kilowatts_is_noted() {
    let run = mllog("", T0, "run_start", "null", "{}")
        + &mllog("", T0, "block_start", "null", "{\"samples_count\": 0}")
        + &mllog("", T0 + 30_000, "block_stop", "null", "{\"samples_count\": 100}")
        + &mllog("", T0 + 30_000, "run_stop", "null", "{\"samples_count\": 100}");
    let power = |factor: f64| -> String {
        let row =
            |i: u32| mllog("", T0 + 2000 * u64::from(i), "power_reading", &(factor * f64::from(6000 + i)).to_string(), "{}");
        (0..20).map(row).collect()
    };
    for (factor, noted) in [(1.0, false), (0.001, true)] {
        let log = power(factor);
        let files = [("result_0.txt", run.as_str()), ("node_0.txt", log.as_str())];
        let imported = read(RecordingFormat::Mlperf, &files, &ImportOptions::default()).unwrap();
        let is_note = |note: &String| note.contains("little for one node") && note.contains("kW");
        assert_eq!(imported.report.notes.iter().any(is_note), noted, "{:?}", imported.report.notes);
    }
}

#[test]
fn mlperf_counts_epochs_where_nothing_else_counts() {
    let mut log = mllog("", T0, "run_start", "null", "{}") + &mllog("", T0, "train_samples", "1000", "{}");
    for epoch in 1..=3 {
        log += &mllog("", T0 + epoch * 1000, "epoch_start", "null", &format!("{{\"epoch_num\": {epoch}}}"));
        log += &mllog("", T0 + epoch * 1000 + 900, "epoch_stop", "null", &format!("{{\"epoch_num\": {epoch}}}"));
    }
    log += &mllog("", T0 + 3950, "run_stop", "null", "{}");
    let imported = read(RecordingFormat::Mlperf, &[("result.txt", &log)], &ImportOptions::default()).unwrap();
    let events: Vec<LoggedEvent> = imported.events().collect();
    let progress = progress(&events);
    let samples: Vec<_> = progress.iter().map(|event| event.samples_total.unwrap()).collect();
    assert_eq!(samples, [0.0, 0.0, 1000.0, 1000.0, 2000.0, 2000.0, 3000.0, 3000.0]);
    assert_eq!(progress[3].span.as_deref(), Some("epoch 2"));
    assert_eq!(progress[0].workload, "imported/result");
}

#[test]
fn mlperf_entries_between_colours_of_a_terminal_are_read() {
    let log = mllog("", T0, "run_start", "null", "{}")
        + &mllog("", T0 + 10_000, "eval_stop", "null", "{\"samples_count\": 100}")
        + &mllog("", T0 + 11_000, "run_stop", "null", "{\"samples_count\": 100}");
    let coloured: Vec<String> = log.lines().map(|line| format!("\u{1b}[32m{line}\u{1b}[0m\n")).collect();
    let coloured = coloured.concat();
    let imported = read(RecordingFormat::Mlperf, &[("r.txt", &coloured)], &ImportOptions::default()).unwrap();
    let events: Vec<LoggedEvent> = imported.events().collect();
    assert_eq!(progress(&events).last().unwrap().samples_total, Some(100.0));
    assert!(imported.report.refused.is_empty());
}

#[test]
fn mlperf_errors_report_where_and_what() {
    let start = mllog("", T0, "run_start", "null", "{}");
    let error = |files: &[(&str, &str)]| read(RecordingFormat::Mlperf, files, &ImportOptions::default()).unwrap_err();
    let cut = ":::MLLOG {\"time_ms\": 17000000, \"key\": \"run_st";
    let stop = mllog("", T0 + 9, "run_stop", "null", "{}");
    let damaged = error(&[("a.txt", &format!("{cut}\n{stop}"))]);
    assert!(damaged.contains("no run_start; 1 damaged line, the first at 1"), "{damaged}");
    let twice = [start.clone(), mllog("", T0 + 9, "run_start", "null", "{}")].concat();
    assert!(error(&[("a.txt", &twice)]).contains("a.txt:2: a second run"));
    assert!(error(&[("a.txt", &start), ("b.txt", &start)]).contains("one call imports one run"));
    let huge = mllog("", T0, "power_reading", "6781000", "\"\"");
    assert!(error(&[("p.txt", &huge)]).contains("p.txt:1: column \"value\": 6781000 W is more than one node can draw"));
    assert!(error(&[("p.txt", "hello\n")]).contains("no reading found"));
}

#[test]
fn mlperf_inference_joins_both_files_by_their_clock() {
    let spl: Vec<String> = (0..10)
        .map(|i| format!("Time,07-12-2024 23:12:{:02}.500,Watts,{}.5,Volts,239.1,Ch1,Watts,800.0\n", i, 2000 + i))
        .collect();
    let spl = spl.concat();
    let detail = [
        mllog("", 1, "effective_samples_per_query", "500", "{}"),
        mllog("", 2, "result_query_count", "3", "{}"),
        mllog("", 3, "power_begin", "\"07-12-2024 23:12:02.000\"", "{}"),
        mllog("", 3, "power_end", "\"07-12-2024 23:12:07.000\"", "{}"),
    ]
    .concat();
    let imported = read(
        RecordingFormat::MlperfInference,
        &[("spl.txt", &spl), ("mlperf_log_detail.txt", &detail)],
        &ImportOptions::default(),
    )
    .unwrap();
    let events: Vec<LoggedEvent> = imported.events().collect();
    let power = telemetry(&events);
    assert_eq!((power[1].power_watts, power[1].meter), (Some(2001.5), Meter::Wall));
    let progress = progress(&events);
    assert_eq!(progress.iter().map(|event| event.phase).collect::<Vec<_>>(), [JobLifecycle::Started, JobLifecycle::Finished]);
    assert_eq!(progress[1].samples_total, Some(1500.0));
    assert_eq!(progress[0].time, micros("2024-07-12T23:12:02Z"));
    // A line that the analyser did not finish is left out and counted; a file of nothing else is another format.
    let cut = format!("{spl}Time,07-12-2024 23:1");
    let imported = read(RecordingFormat::MlperfInference, &[("spl.txt", &cut)], &ImportOptions::default()).unwrap();
    let refused = &imported.report.refused[0];
    assert_eq!((refused.lines, refused.first_line), (1, 11));
    assert!(refused.reason.starts_with("column \"Time\"") && imported.report.skipped.is_empty(), "{refused:?}");
    let error =
        read(RecordingFormat::MlperfInference, &[("spl.txt", "Time,07-12-2024 23:1\n")], &ImportOptions::default()).unwrap_err();
    assert!(error.starts_with("spl.txt:1: column \"Time\""), "{error}");
}

/// A detail log of these entries, run from second 2 to second 12, and power of 500 W every second but where `watts` gives another.
fn inference(entries: &[(&str, &str)], watts: &[(usize, &str)], summary: &str) -> Result<ImportedRecording, String> {
    let watts = |i: usize| watts.iter().find(|(at, _)| *at == i).map_or("500.0", |(_, text)| text);
    let line = |i: usize| format!("Time,01-10-2025 13:00:{i:02}.000,Watts,{},Volts,230.1\n", watts(i));
    let spl = (0..15).map(line).collect::<Vec<_>>().concat();
    let mut detail = mllog("", 1, "power_begin", "\"01-10-2025 13:00:02.000\"", "{}");
    detail += &mllog("", 1, "power_end", "\"01-10-2025 13:00:12.000\"", "{}");
    detail.extend(entries.iter().map(|(key, value)| mllog("", 2, key, value, "{}")));
    let files = [("spl.txt", spl.as_str()), ("mlperf_log_detail.txt", &detail), ("mlperf_log_summary.txt", summary)];
    read(RecordingFormat::MlperfInference, &files, &ImportOptions::default())
}

fn totals(imported: &ImportedRecording) -> (Option<f64>, Option<f64>) {
    let progress = progress(&imported.events().collect::<Vec<_>>());
    let last = progress.last().unwrap();
    (last.samples_total, last.tokens_total)
}

/// Entries, summary, samples, tokens, a part of a note.
type InferenceCase<'a> = (&'a [(&'a str, &'a str)], &'a str, Option<f64>, Option<f64>, &'a str);

#[test]
fn mlperf_inference_counts_by_the_logs_own_rates_in_every_scenario() {
    let offline = ("effective_scenario", "\"Offline\"");
    let cases: [InferenceCase<'_>; 18] = [
        (
            &[offline, ("effective_samples_per_query", "900"), ("result_query_count", "1"), ("result_samples_per_second", "100")],
            "",
            Some(1000.0),
            None,
            "which of the two is right",
        ),
        (
            &[
                offline,
                ("effective_samples_per_query", "900"),
                ("result_query_count", "1"),
                ("qsl_reported_performance_count", "500"),
                ("result_samples_per_second", "100"),
                ("result_tokens_per_second", "3000"),
            ],
            "",
            Some(1000.0),
            Some(30_000.0),
            "LoadGen padded them to 1000, a multiple of the performance set of 500",
        ),
        (
            &[("effective_samples_per_query", "990"), ("result_query_count", "1"), ("result_samples_per_second", "100")],
            "",
            Some(1000.0),
            None,
            "",
        ),
        (
            &[
                ("effective_scenario", "\"Server\""),
                ("effective_samples_per_query", "1"),
                ("result_query_count", "995"),
                ("result_scheduled_samples_per_sec", "700"),
                ("result_completed_samples_per_sec", "99.5"),
                ("result_completed_tokens_per_second", "2000"),
            ],
            "",
            Some(995.0),
            Some(20_000.0),
            "",
        ),
        (
            &[("effective_scenario", "\"MultiStream\""), ("effective_samples_per_query", "8"), ("result_query_count", "60")],
            "",
            Some(480.0),
            None,
            "",
        ),
        (
            &[
                ("effective_scenario", "\"SingleStream\""),
                ("effective_samples_per_query", "1"),
                ("result_query_count", "50"),
                ("result_qps_with_loadgen_overhead", "5.0"),
            ],
            "",
            Some(50.0),
            None,
            "",
        ),
        (
            &[
                ("effective_scenario", "\"SingleStream\""),
                ("effective_samples_per_query", "1"),
                ("result_query_count", "20"),
                ("result_qps_with_loadgen_overhead", "5.0"),
                ("result_tokens_per_second", "100"),
            ],
            "",
            Some(20.0),
            Some(400.0),
            "makes 50 samples, the queries 20: counted are the queries",
        ),
        (
            &[("effective_scenario", "\"Server\""), ("result_query_count", "930"), ("result_completed_samples_per_sec", "99.5")],
            "",
            Some(930.0),
            None,
            "makes 995 samples, the queries 930",
        ),
        (
            &[offline, ("effective_samples_per_query", "900"), ("result_query_count", "1")],
            "",
            Some(900.0),
            None,
            "without LoadGen's padding",
        ),
        // Twice as long under power as the run took.
        (
            &[
                offline,
                ("result_samples_per_second", "100"),
                ("result_tokens_per_second", "10"),
                ("result_max_latency_ns", "5000000000"),
            ],
            "",
            Some(500.0),
            Some(50.0),
            "the run took 5.000 s",
        ),
        (&[], "Scenario : Offline\nSamples per second: 42.5\nTokens per second: 85\n", Some(425.0), Some(850.0), ""),
        (
            &[("result_samples_per_second", "100")],
            "Samples per second: 130\n",
            Some(1000.0),
            None,
            "the summary may be of another run",
        ),
        (&[], "", None, None, "does not state how many samples"),
        // What LoadGen reports of its own result.
        (&[("result_samples_per_second", "1"), ("result_validity", "\"VALID\"")], "Result is : VALID\n", Some(10.0), None, ""),
        (&[("result_samples_per_second", "1"), ("result_validity", "\"INVALID\"")], "", Some(10.0), None, "is \"INVALID\""),
        (&[("result_samples_per_second", "1")], "Result is : INVALID\n", Some(10.0), None, "is \"INVALID\""),
        (&[("result_samples_per_second", "1"), ("num_errors", "3")], "", Some(10.0), None, "counted 3 errors"),
        (&[("result_samples_per_second", "1"), ("num_errors", "0")], "", Some(10.0), None, ""),
    ];
    for (entries, summary, samples, tokens, note) in cases {
        let imported = inference(entries, &[], summary).unwrap();
        assert_eq!(totals(&imported), (samples, tokens), "{entries:?} {:?}", imported.report.notes);
        let noted = imported.report.notes.iter().any(|text| text.contains(note));
        assert!(
            if note.is_empty() { imported.report.notes.is_empty() } else { noted },
            "{entries:?}: {:?}",
            imported.report.notes
        );
    }
}

#[test]
fn mlperf_inference_power_that_was_not_read_is_absent_and_damage_is_left_out() {
    for (watts, absent, damaged) in
        [("-1.000000", 1, 0), ("-1", 1, 0), ("nan", 1, 0), ("", 1, 0), ("N/A", 1, 0), ("-7", 0, 1), ("high", 0, 1)]
    {
        let imported = inference(&[("result_samples_per_second", "1")], &[(5, watts)], "").unwrap();
        let power = telemetry(&imported.events().collect::<Vec<_>>());
        assert_eq!((power.len(), imported.report.absent_values), (14, absent), "{watts:?}");
        assert!(power.iter().all(|reading| reading.power_watts == Some(500.0)), "{watts:?}");
        let refused: u64 = imported.report.refused.iter().map(|refused| refused.lines).sum();
        assert_eq!(refused, damaged, "{watts:?}: {:?}", imported.report.refused);
    }
    // A number that JSON does not have, in an entry that reports nothing of progress; a cut entry.
    let lines = ":::MLLOG {\"key\": \"x\", \"value\": NaN, \"time_ms\": 1}\n:::MLLOG {\"key\": \"result_tok\n";
    let imported = inference(&[("result_samples_per_second", "1")], &[], lines).unwrap();
    let counts = |lines: &[DroppedLines]| lines.iter().map(|some| (some.reason.clone(), some.lines)).collect::<Vec<_>>();
    assert_eq!(counts(&imported.report.skipped), [("log entry about neither progress nor power".to_owned(), 1)]);
    let damaged = "damaged log entry: \":::MLLOG {\\\"key\\\": \\\"result_tok\"";
    assert_eq!(counts(&imported.report.refused), [(damaged.to_owned(), 1)]);
}

#[test]
fn mlperf_inference_without_power_between_begin_and_end_is_refused_with_the_shift_that_would_match() {
    for (begin, end, hint, zone) in [
        ("01-10-2025 20:00:02.000", "01-10-2025 20:00:12.000", "shifted by +7 h", Some("-07:00")),
        ("01-10-2025 04:00:02.000", "01-10-2025 04:00:12.000", "shifted by -9 h", Some("+09:00")),
        ("01-10-2025 18:30:02.000", "01-10-2025 18:30:12.000", "shifted by +5.5 h", Some("-05:30")),
        ("01-11-2025 03:00:02.000", "01-11-2025 03:00:12.000", "shifted by +14 h", Some("-14:00")),
        ("01-14-2025 13:00:02.000", "01-14-2025 13:00:12.000", "no difference of time zones explains it", None),
        ("01-10-2025 13:04:00.000", "01-10-2025 13:05:00.000", "no difference of time zones explains it", None),
    ] {
        let line = |i: usize| format!("Time,01-10-2025 13:00:{i:02}.000,Watts,500,Volts,230\n");
        let spl = (0..15).map(line).collect::<Vec<_>>().concat();
        let detail =
            mllog("", 1, "power_begin", &format!("\"{begin}\""), "{}") + &mllog("", 1, "power_end", &format!("\"{end}\""), "{}");
        let files = [("spl.txt", &*spl), ("d.txt", &*detail)];
        let error = read(RecordingFormat::MlperfInference, &files, &ImportOptions::default()).unwrap_err();
        if let Some(zone) = zone {
            assert!(error.contains(&format!("--time-zone {zone}")), "{error}");
            let options =
                ImportOptions { time_zone: Some(NamedTimeZone::new(zone, |_| None).unwrap()), ..ImportOptions::default() };
            let power =
                telemetry(&read(RecordingFormat::MlperfInference, &files, &options).unwrap().events().collect::<Vec<_>>());
            assert_eq!(power[2].time.to_string()[11..19], begin[11..19], "{zone}");
        }
        for part in ["no power reading lies between power_begin and power_end", "2025-01-10T13:00:00", hint] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn mlperf_inference_reports_which_analysers_readings_lie_outside_the_run_or_are_another_ones() {
    let spl = |hour: u32, milliseconds: u32, watts: fn(u32) -> u32| {
        let line = |i: u32| format!("Time,01-10-2025 {hour:02}:00:{i:02}.{milliseconds:03},Watts,{},Volts,230\n", watts(i));
        (0..15).map(line).collect::<String>()
    };
    let detail = mllog("", 1, "power_begin", "\"01-10-2025 13:00:02.000\"", "{}")
        + &mllog("", 1, "power_end", "\"01-10-2025 13:00:12.000\"", "{}")
        + &mllog("", 1, "result_samples_per_second", "1", "{}");
    let first = spl(13, 0, |i| 500 + i % 3);
    for (second, note) in [
        (
            spl(6, 0, |i| 700 + i),
            "no reading of b/spl.txt lies between power_begin and power_end: none of its energy is in the run",
        ),
        (spl(13, 250, |i| 500 + i % 3), "a/spl.txt and b/spl.txt have the same 15 readings at other times"),
        (spl(13, 250, |i| 500 + i % 5), ""),
    ] {
        let files = [("a/spl.txt", &*first), ("b/spl.txt", &*second), ("d.txt", &*detail)];
        let imported = read(RecordingFormat::MlperfInference, &files, &ImportOptions::default()).unwrap();
        let notes: Vec<&String> = imported.report.notes.iter().collect();
        let is_noted = if note.is_empty() { notes.is_empty() } else { notes.iter().any(|text| text.contains(note)) };
        assert!(is_noted, "{note}: {notes:?}");
    }
}

/// A training log: `run_start` at 0 s, these entries, `run_stop` with this metadata.
fn training(batch: Option<f64>, entries: &[(u64, &str, &str, &str)], stop: (u64, &str)) -> String {
    let mut log = batch.map(|batch| mllog("", T0 - 1, "global_batch_size", &batch.to_string(), "{}")).unwrap_or_default();
    log += &mllog("", T0, "run_start", "null", "{}");
    log.extend(entries.iter().map(|(second, key, value, metadata)| mllog("", T0 + second * 1000, key, value, metadata)));
    log + &mllog("", T0 + stop.0 * 1000, "run_stop", "null", stop.1)
}

#[test]
fn mlperf_counts_the_steps_at_the_stop_and_reports_which_rate_contradicts() {
    let epochs: &[(u64, &str, &str, &str)] = &[
        (0, "train_samples", "1000", "{}"),
        (1, "epoch_start", "null", "{\"epoch_num\": 1}"),
        (51, "epoch_stop", "null", "{\"epoch_num\": 1}"),
        (51, "epoch_start", "null", "{\"epoch_num\": 2}"),
        (101, "epoch_stop", "null", "{\"epoch_num\": 2}"),
    ];
    let with = |throughput: &'static str| [epochs, &[(60, "tracked_stats", throughput, "{}")]].concat();
    let blocks: &[(u64, &str, &str, &str)] = &[
        (0, "block_start", "null", "{\"samples_count\": 0}"),
        (60, "block_stop", "null", "{\"samples_count\": 600}"),
        (70, "block_start", "null", "{\"samples_count\": 600}"),
    ];
    let counted: &[(u64, &str, &str, &str)] = &[(80, "eval_accuracy", "0.9", "{\"samples_count\": 153600}")];
    // What was a quarter of the samples went missing between the last count and the stop.
    for (log, samples, note) in [
        (training(Some(8.0), blocks, (90, "{\"step_num\": 100}")), Some(800.0), ""),
        (training(Some(8.0), blocks, (90, "{\"samples_count\": 790}")), Some(790.0), ""),
        (training(Some(8.0), blocks, (90, "{\"samples_count\": 790, \"step_num\": 99}")), Some(792.0), ""),
        (
            training(Some(8.0), blocks, (90, "{\"samples_count\": 800, \"step_num\": 10}")),
            Some(800.0),
            "run_stop counts steps that make 80 samples",
        ),
        (training(None, blocks, (90, "{\"step_num\": 100}")), None, "no global_batch_size"),
        // Counted in evaluations only, and beyond the steps of the stop.
        (training(Some(256.0), counted, (90, "{}")), Some(153_600.0), ""),
        (
            training(Some(256.0), counted, (90, "{\"step_num\": 300}")),
            Some(153_600.0),
            "run_stop counts steps that make 76800 samples",
        ),
        (training(Some(4.0), epochs, (120, "{\"step_num\": 530}")), Some(2120.0), ""),
        // Nothing was trained after the last count.
        (
            training(Some(10.0), epochs, (101, "{\"step_num\": 250}")),
            Some(2500.0),
            "run_stop counts steps that make 2500 samples, the log's other entries 2000; counted are 2500",
        ),
        (training(Some(10.0), epochs, (101, "{\"status\": \"success\"}")), Some(2000.0), ""),
        (
            training(Some(10.0), epochs, (101, "{\"status\": \"aborted\"}")),
            Some(2000.0),
            "run_stop is \"aborted\": the run did not reach its target",
        ),
        (training(Some(256.0), epochs, (102, "{\"step_num\": 2000}")), Some(512_000.0), "train_samples 1000 counts batches"),
        (training(Some(256.0), &[], (100, "{\"step_num\": 50}")), Some(12_800.0), ""),
        (
            training(Some(256.0), &with("{\"throughput\": 5120.0}"), (102, "{}")),
            Some(2000.0),
            "the log seems to count batches of 256",
        ),
        (training(Some(256.0), &with("{\"throughput\": 20.2}"), (102, "{}")), Some(2000.0), ""),
        (
            training(Some(256.0), &with("{\"throughput\": 30}"), (102, "{}")),
            Some(2000.0),
            "throughput of 30.000000 samples/s contradicts",
        ),
        (training(Some(256.0), &with("{\"throughput\": NaN}"), (102, "{}")), Some(2000.0), ""),
        // Evaluations within an epoch that the run does not complete.
        (
            in_parts(["0.05", "0.6000000000000001"], "{}"),
            Some(60_000.0),
            "in parts of an epoch of 100000 (train_samples), up to 0.600000",
        ),
        (in_parts(["0.5", "1"], "{}"), Some(100_000.0), "up to 1.000000"),
        (in_parts(["0.5", "0.5"], "{\"step_num\": 300}"), Some(76_800.0), ""),
        (in_parts(["1", "2"], "{}"), None, "does not state how many samples"),
        (in_parts(["1.5", "2"], "{}"), None, "does not state how many samples"),
        // BERT counts sequences as epoch_num, but for logs that number epochs by it.
        (bert(Some(100.0), [0, 150_000], "null"), Some(150_000.0), ""),
        (bert(Some(100.0), [1, 150_000], "null"), Some(150_000.0), ""),
        (bert(None, [0, 150_000], "null"), Some(150_000.0), ""),
        (bert(Some(448.0), [100, 300], "null"), Some(300.0), ""),
        (bert(Some(100.0), [1, 1], "null"), None, "it numbers epochs"),
        (bert(None, [1, 2], "null"), None, "does not state how many samples"),
        (bert(Some(100.0), [1, 1], "150000"), Some(150_000.0), ""),
    ] {
        let imported = read(RecordingFormat::Mlperf, &[("result.txt", &log)], &ImportOptions::default()).unwrap();
        assert_eq!(totals(&imported).0, samples, "{log}{:?}", imported.report.notes);
        let notes = &imported.report.notes;
        assert!(if note.is_empty() { notes.is_empty() } else { notes.iter().any(|text| text.contains(note)) }, "{log}{notes:?}");
    }
}

/// A log without the ends of epochs, with evaluations at these numbers of an epoch of 100,000 samples.
fn in_parts(epochs: [&str; 2], stop: &str) -> String {
    let [first, last] = epochs.map(|epochs| format!("{{\"epoch_num\": {epochs}}}"));
    let entries = [
        (0, "train_samples", "100000", "{}"),
        (0, "epoch_start", "null", "{\"epoch_num\": 1}"),
        (20, "eval_start", "null", first.as_str()),
        (22, "eval_accuracy", "0.7", first.as_str()),
        (23, "eval_stop", "null", first.as_str()),
        (90, "eval_start", "null", last.as_str()),
        (92, "eval_accuracy", "0.8", last.as_str()),
        (93, "eval_stop", "null", last.as_str()),
    ];
    training(Some(256.0), &entries, (102, stop))
}

/// A log of BERT with these numbers of an epoch at its start and at its end, and the samples of the whole run behind.
fn bert(batch: Option<f64>, [first, last]: [u32; 2], samples: &str) -> String {
    let number = |number: u32| format!("{{\"epoch_num\": {number}}}");
    let (first, last) = (number(first), number(last));
    let entries = [
        (0, "epoch_start", "null", first.as_str()),
        (0, "block_start", "null", "{\"first_epoch_num\": 1, \"epoch_count\": 1}"),
        (50, "block_stop", "null", "{\"first_epoch_num\": 1}"),
        (50, "epoch_stop", "null", last.as_str()),
        (60, "train_samples", samples, "{}"),
    ];
    mllog("", T0 - 2, "submission_benchmark", "\"bert\"", "{}") + &training(batch, &entries, (60, "{}"))
}

/// Twenty power readings from a second on, of this host.
fn host_log(second: i64, watts: u32, host: &str) -> String {
    let at = |i: i64| (T0 as i64 + (second + 2 * i) * 1000) as u64;
    (0..20)
        .map(|i| {
            mllog("", at(i), "power_reading", &(watts + 10 * (i as u32 % 3)).to_string(), &format!("{{\"host\": \"{host}\"}}"))
        })
        .collect()
}

/// Names and texts of power logs, workloads, device names, parts of notes.
type PowerCase<'a> = (&'a [(&'a str, String)], &'a [&'a str], &'a [&'a str], &'a [&'a str]);

#[test]
fn mlperf_keeps_switches_apart_and_reports_what_lies_outside_the_run() {
    let run = training(Some(8.0), &[], (30, "{\"step_num\": 10}"));
    let hours = 3600;
    let cases: [PowerCase<'_>; 9] = [
        (
            &[("p/node_0.txt", host_log(-2, 6000, "node_0")), ("p/node_1.txt", host_log(-2, 6500, "node_1"))],
            &["lab/run"],
            &["node_0", "node_1"],
            &[],
        ),
        (
            &[("p/node_0.txt", host_log(-2, 6000, "node_0")), ("p/sw_0.txt", host_log(-2, 300, "sw_0"))],
            &["lab/run", "lab/run-interconnect"],
            &["node_0", "sw_0"],
            &["sw_0 is a switch: its 9"],
        ),
        (
            &[("p/node_0.txt", host_log(-2, 6000, "node_0")), ("p/switch-0.txt", host_log(-7 * hours - 2, 300, "node_0"))],
            &["lab/run", "lab/run-interconnect"],
            &["node_0", "switch-0"],
            &[
                "no reading of switch-0 lies in the run (p/switch-0.txt): the interconnect's energy in the run is not known",
                "shifted by +7 h",
                "name the same host \"node_0\"",
            ],
        ),
        (
            &[("p/node_0.txt", host_log(-2, 6000, "node_0")), ("p/node_9.txt", host_log(-2, 300, "leaf-1"))],
            &["lab/run", "lab/run-interconnect"],
            &["node_0", "node_9"],
            &["node_9 is a switch"],
        ),
        (
            &[("p/node_0.txt", host_log(-2, 6000, "node_0")), ("p/node_1.txt", host_log(2 * hours, 6500, "node_1"))],
            &["lab/run"],
            &["node_0", "node_1"],
            &["no reading of node_1 lies in the run (p/node_1.txt): none of its energy is in the run", "shifted by -2 h"],
        ),
        (
            &[("p/node_0.txt", host_log(-2, 6000, "node_0")), ("p/node_1.txt", host_log(-2, 6000, "node_1"))],
            &["lab/run"],
            &["node_0", "node_1"],
            &["p/node_0.txt and p/node_1.txt have the same 20 readings: one may be a copy"],
        ),
        (
            &[("p/node_0.txt", host_log(-2, 6000, "node_0")), ("p/node_1.txt", host_log(-4, 6000, "node_1"))],
            &["lab/run"],
            &["node_0", "node_1"],
            &["the same 20 readings at other times"],
        ),
        (
            &[("a/node_0.txt", host_log(-2, 6000, "node_0")), ("b/node_0.txt", host_log(-2, 6500, "node_0"))],
            &["lab/run"],
            &["node_0", "b-node_0"],
            &[],
        ),
        (&[("p/power.txt", host_log(-2, 6000, "n1") + &host_log(-2, 6500, "n2"))], &["lab/run"], &["power", "power-n2"], &[]),
    ];
    for (logs, workloads, devices, notes) in cases {
        let mut files = vec![("result.txt", run.as_str())];
        files.extend(logs.iter().map(|(name, text)| (*name, text.as_str())));
        let options = ImportOptions { workload: Some("lab/run".to_owned()), ..ImportOptions::default() };
        let imported = read(RecordingFormat::Mlperf, &files, &options).unwrap();
        assert_eq!(imported.report.workloads, workloads, "{devices:?}");
        let power = telemetry(&imported.events().collect::<Vec<_>>());
        let mut names: Vec<&str> = devices.to_vec();
        names.sort_unstable();
        let mut found: Vec<&str> = power.iter().map(|reading| reading.device.as_str()).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, names);
        assert_eq!(power.len(), 20 * devices.len());
        for note in notes {
            assert!(imported.report.notes.iter().any(|text| text.contains(note)), "{note}: {:?}", imported.report.notes);
        }
        assert!(!notes.is_empty() || imported.report.notes.is_empty(), "{:?}", imported.report.notes);
    }
    // No node at all in the run: energy of 0 J would be wrong in silence.
    let away = host_log(-5 * hours, 6000, "node_0");
    let error =
        read(RecordingFormat::Mlperf, &[("result.txt", &run), ("node_0.txt", &away)], &ImportOptions::default()).unwrap_err();
    assert!(
        error.contains("no power reading of a node lies between run_start and run_stop") && error.contains("shifted by +5 h"),
        "{error}"
    );
    // Readings that are none, and a line that was not finished.
    let odd = host_log(0, 6000, "n")
        + &["-1", "-1.0", "null", "NaN", "\"N/A\""].map(|value| mllog("", T0 + 900, "power_reading", value, "{}")).concat()
        + &["\"high\"", "-40"].map(|value| mllog("", T0 + 900, "power_reading", value, "{}")).concat()
        + ":::MLLOG {\"time_ms\": 17";
    let imported =
        read(RecordingFormat::Mlperf, &[("result.txt", &run), ("node_0.txt", &odd)], &ImportOptions::default()).unwrap();
    assert_eq!(imported.report.absent_values, 5);
    let [damaged] = imported.report.refused.as_slice() else { panic!("{:?}", imported.report.refused) };
    assert_eq!((damaged.file.as_str(), damaged.lines, damaged.first_line), ("node_0.txt", 3, 26));
    assert_eq!(damaged.reason, "damaged log entry: \"power_reading \\\"high\\\"\"");
}

const DMON: &str = "\
# Entity  POWER  TOTEC  SMCLK  SACLK  GPUTL
      Id      W     mJ                     
   GPU 0  100.5  1000000  1410  1410  50
   GPU 1  N/A    2000000  1410  1410  51

# Entity  POWER  TOTEC  SMCLK  SACLK  GPUTL
      Id      W     mJ                     
   GPU 0  101.5  1002000  1400  1410  52
   GPU 1  90.0   9223372036854775794  1410  1410  53
Switch 0  1 2 3 4 5
";

#[test]
fn dcgmi_makes_times_from_the_interval_and_keeps_absent_apart_from_zero() {
    let options = ImportOptions { interval: Some(std::time::Duration::from_millis(20)), ..ImportOptions::default() };
    let imported = read(RecordingFormat::Dcgmi, &[("a.txt", DMON)], &options).unwrap();
    let events: Vec<LoggedEvent> = imported.events().collect();
    let rows = telemetry(&events);
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0].energy_joules_total, Some(1000.0));
    assert_eq!(rows[2].time.micros() - rows[0].time.micros(), 20_000);
    assert_eq!((rows[1].power_watts, rows[3].energy_joules_total), (None, None));
    assert_eq!(rows[2].utilization_ratio, Some(0.52));
    assert_eq!(imported.report.absent_values, 2);
    assert!(imported.report.notes.iter().any(|note| note.contains("SACLK")));
    assert!(imported.report.skipped.iter().any(|skipped| skipped.first_line == 10));
    let cut = DMON.replace("1410  53\nSwitch 0  1 2 3 4 5\n", "");
    let refused = read(RecordingFormat::Dcgmi, &[("a.txt", &cut)], &options).unwrap().report.refused;
    assert_eq!((refused[0].first_line, refused[0].lines), (9, 1));
    assert!(refused[0].reason.contains("row has 3 values, its header 5"), "{refused:?}");
    let two = read(RecordingFormat::Dcgmi, &[("a.txt", DMON), ("b.txt", DMON)], &options).unwrap();
    let devices: std::collections::BTreeSet<String> =
        telemetry(&two.events().collect::<Vec<_>>()).into_iter().map(|row| without_fingerprint(&row.device)).collect();
    assert_eq!(devices.into_iter().collect::<Vec<_>>(), ["a:gpu-0", "a:gpu-1", "b:gpu-0", "b:gpu-1"]);
    let torn = DMON.replace("Switch 0  1 2 3 4 5", "   GPU");
    let refused = read(RecordingFormat::Dcgmi, &[("a.txt", &torn)], &options).unwrap().report.refused;
    assert_eq!((refused[0].first_line, refused[0].reason.as_str()), (10, "\"GPU\" names no GPU"));
}

#[test]
fn nvidia_smi_with_and_without_units() {
    let with = "timestamp, index, uuid, name, power.draw [W], utilization.gpu [%], memory.used [MiB], temperature.gpu, pstate\n\
                2023/11/16 18:17:03.979, 0, GPU-a, NVIDIA H100 80GB HBM3, 62.35 W, 87 %, 1024 MiB, 45, P0\n\
                2023/11/16 18:17:04.979, 0, GPU-a, NVIDIA H100 80GB HBM3, [N/A], 88 %, 1024 MiB, 46, P0\n";
    let without = with.replace(" W,", ",").replace(" %,", ",").replace(" MiB,", ",");
    for text in [with, without.as_str()] {
        let imported = read(RecordingFormat::NvidiaSmi, &[("smi.csv", text)], &ImportOptions::default()).unwrap();
        let rows = telemetry(&imported.events().collect::<Vec<_>>());
        assert_eq!((rows[0].power_average_watts, rows[0].power_watts), (Some(62.35), None), "an average on this board");
        assert_eq!((rows[0].utilization_ratio, rows[0].memory_used_bytes), (Some(0.87), Some(1 << 30)));
        assert_eq!((rows[1].power_average_watts, rows[1].temperature_celsius), (None, Some(46.0)));
        assert_eq!((rows[0].device.as_str(), rows[0].gpu_index), ("GPU-a", Some(0)));
        assert_eq!(imported.report.absent_values, 1);
    }
    let a100 =
        read(RecordingFormat::NvidiaSmi, &[("smi.csv", &with.replace("H100", "A100"))], &ImportOptions::default()).unwrap();
    assert_eq!(telemetry(&a100.events().collect::<Vec<_>>())[0].power_watts, Some(62.35));
    let bad = with.replace("62.35 W", "62.35 V");
    let refused = read(RecordingFormat::NvidiaSmi, &[("smi.csv", &bad)], &ImportOptions::default()).unwrap().report.refused;
    assert_eq!(
        (refused[0].first_line, refused[0].reason.as_str()),
        (2, "column \"power.draw\": \"62.35 V\" has an unknown unit")
    );
    let headless = with.split_once('\n').unwrap().1;
    assert!(
        read(RecordingFormat::NvidiaSmi, &[("smi.csv", headless)], &ImportOptions::default()).unwrap_err().contains("noheader")
    );
}

#[test]
fn prometheus_in_all_three_writings() {
    let json = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"DCGM_FI_DEV_POWER_USAGE","UUID":"GPU-a","gpu":"0","Hostname":"n1","namespace":"lab","pod":"bert-0"},
         "values":[[1700000000,"300.5"],[1700000001.5,"301"]]},
        {"metric":{"__name__":"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION","UUID":"GPU-a","gpu":"0","namespace":"lab","pod":"bert-0"},
         "values":[[1700000000,"5000"],[1700000001.5,"455000"]]},
        {"metric":{"__name__":"training_samples_per_second","namespace":"lab","pod":"bert-0"},"values":[[1700000000,"12.5"]]}]}}"#;
    let text = "# HELP DCGM_FI_DEV_POWER_USAGE power\n\
        DCGM_FI_DEV_POWER_USAGE{UUID=\"GPU-a\",gpu=\"0\",Hostname=\"n1\",namespace=\"lab\",pod=\"bert-0\"} 300.5 1700000000000\n\
        DCGM_FI_DEV_POWER_USAGE{UUID=\"GPU-a\",gpu=\"0\",namespace=\"lab\",pod=\"bert-0\"} 301 1700000001500\n\
        {__name__=\"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION\",UUID=\"GPU-a\",namespace=\"lab\",pod=\"bert-0\"} 5000 1700000000000\n\
        DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"GPU-a\",namespace=\"lab\",pod=\"bert-0\"} 455000 1700000001500\n\
        training_samples_per_second{namespace=\"lab\",pod=\"bert-0\"} 12.5 1700000000000\n";
    let open = text.replace("1700000000000\n", "1700000000\n").replace("1700000001500\n", "1700000001.5\n") + "# EOF\n";
    for text in [json, text, open.as_str()] {
        let imported = read(RecordingFormat::Prometheus, &[("p", text)], &ImportOptions::default()).unwrap();
        let events: Vec<LoggedEvent> = imported.events().collect();
        let rows = telemetry(&events);
        assert_eq!(rows.len(), 2, "{text}");
        assert_eq!((rows[0].power_average_watts, rows[0].energy_joules_total), (Some(300.5), Some(5.0)));
        assert_eq!((rows[1].power_average_watts, rows[1].energy_joules_total), (Some(301.0), Some(455.0)));
        assert_eq!(rows[0].workload.as_deref(), Some("lab/bert-0"));
        assert_eq!(rows[1].time.seconds_since(rows[0].time), 1.5);
        assert_eq!(progress(&events)[0].samples_per_second, Some(12.5));
        assert_eq!((imported.report.duplicates, imported.report.same_stamp), (0, 0));
    }
    let error = |text: &str| read(RecordingFormat::Prometheus, &[("p", text)], &ImportOptions::default()).unwrap_err();
    assert!(error("DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 5\n").contains("no time stamp"));
    assert!(error(&json[..json.len() - 9]).contains("truncated"));
    assert!(error("DCGM_FI_DEV_GPU_UTIL{gpu=\"0} 5 1\n").contains("p:1: "));
}

#[test]
fn csv_reads_units_and_refuses_impossible_ones() {
    let text = "Time,Power,Energy [mJ],Util\n2022-07-13 02:07:36.5,350000,1000,50\n2022-07-13 02:07:37.5,351000,351000,n/a\n";
    let options = maps(&["power_watts=Power:mW", "energy_joules_total=Energy", "utilization_ratio=Util:%"]);
    let imported = read(RecordingFormat::Csv, &[("board.csv", text)], &options).unwrap();
    let rows = telemetry(&imported.events().collect::<Vec<_>>());
    assert_eq!(
        (rows[0].power_watts, rows[0].energy_joules_total, rows[0].utilization_ratio),
        (Some(350.0), Some(1.0), Some(0.5))
    );
    assert_eq!((rows[1].utilization_ratio, rows[1].last), (None, true));
    assert_eq!(imported.report.counters[0].counter_joules, 350.0);
    assert_eq!(imported.report.counters[0].integral_joules, 350.5);

    let error = |texts: &[&str]| read(RecordingFormat::Csv, &[("board.csv", text)], &maps(texts)).unwrap_err();
    assert_eq!(
        error(&["power_watts=Power"]),
        "board.csv:2: column \"Power\": 350000 W is more than one GPU board can draw (5000 W); give the unit, for example \
         --map power_watts=Power:mW, or what the meter covers if it is more than one GPU, --meter module, node or wall"
    );
    assert!(error(&["power_watts=Watt"]).contains("has no column \"Watt\"; the columns are: \"Time\", \"Power\""));
    assert!(error(&["power_watts=Power:bananas"]).contains("unknown unit \"bananas\""));
    assert!(error(&["power_watts=Power:MHz"]).contains("MHz is not a unit of power_watts; units of power_watts: W, mW"));
    assert!(error(&["power_watts=Energy"]).contains("the header gives mJ, which is not a unit of power_watts"));
    assert!(error(&["utilization_ratio=Util"]).contains("board.csv:2: column \"Util\": field utilization_ratio: 50 is not"));
    assert!(error(&["power_watts=Power:mW", "time=#9"]).contains("has no column \"#9\""));
    let counter = text.replace("[mJ]", "");
    let error = read(RecordingFormat::Csv, &[("board.csv", &counter)], &maps(&["energy_joules_total=Energy"])).unwrap_err();
    assert!(error.contains("grows by 350000 W on average") && error.contains("--map energy_joules_total=Energy:mJ"), "{error}");
}

#[test]
fn errors_read_as_sentences() {
    let error = |text: &str, options: &ImportOptions| read(RecordingFormat::Csv, &[("a.csv", text)], options).unwrap_err();
    assert_eq!(
        error("time,W\n", &ImportOptions::default()),
        "csv needs a map of its columns; for example --map power_watts=Power:mW"
    );
    let power = || maps(&["power_watts=W"]);
    assert_eq!(error("", &power()), "a.csv: is empty: it has no header; check that this is the right file");
    for (format, time, expected) in [
        ("%m-%d-%Y", "noon", "\"noon\" is not of the form --time-format \"%m-%d-%Y\""),
        ("%H:%M", "12:30", "\"12:30\" is no full date and time in the form --time-format \"%H:%M\"; name year"),
        ("unix", "1e300", "\"1e300\" is outside the years 0 to 9999; check --time-format"),
        ("auto", "1700000000", "\"1700000000\" is a number, and its unit is not known; use --time-format unix if"),
        ("auto", "noon", "\"noon\" is not a time of a known form"),
    ] {
        let options = ImportOptions { time_format: Some(format.parse().unwrap()), ..power() };
        let message = error(&format!("time,W\n{time},100\n"), &options);
        assert!(message.starts_with(&format!("a.csv:2: column \"time\": {expected}")), "{message}");
    }
    let folder = std::env::temp_dir();
    let input = RecordingFile::new("folder", std::fs::File::open(&folder).unwrap());
    let message = import(RecordingFormat::Csv, vec![input], &power()).unwrap_err().to_string();
    assert!(message.starts_with("folder: cannot be read: ") && message.ends_with("; name the files in it"), "{message}");
}

#[test]
fn csv_sorts_and_reports_duplicates_equal_stamps_and_gaps() {
    let mut text = "ts,w\n".to_owned();
    for second in [0, 1, 2, 4, 3, 3, 5, 5, 6, 60] {
        // Second 3 is given twice alike, second 5 with two values.
        let watts = if second == 5 { 100 + text.len() % 7 } else { 100 };
        text += &[(1_700_000_000 + second).to_string(), format!(",{watts}\n")].concat();
    }
    let fives: Vec<f64> =
        text.lines().filter_map(|line| line.strip_prefix("1700000005,")).map(|watts| watts.parse().unwrap()).collect();
    assert_ne!(fives[0], fives[1]);
    let options = ImportOptions { time_format: Some(TimeFormat::Unix), ..maps(&["power_watts=w"]) };
    let error = read(RecordingFormat::Csv, &[("a.csv", &text)], &options).unwrap_err();
    assert!(error.starts_with("a.csv:9: 2 rows without the id of a board have the time"), "{error}");
    assert!(error.contains("--map device=COLUMN") && error.contains("--same-time mean"), "{error}");
    let options = ImportOptions { same_time: Some(SameTimeRule::Mean), ..options };
    let imported = read(RecordingFormat::Csv, &[("a.csv", &text)], &options).unwrap();
    let report = &imported.report;
    let merges: Vec<_> = report.merges.iter().map(|merge| (merge.first_line, merge.duplicates, merge.same_stamp)).collect();
    assert_eq!(merges, [(7, 1, 1)]);
    assert_eq!((report.rows, report.events), (10, 8));
    assert_eq!((report.duplicates, report.same_stamp, report.out_of_order), (1, 1, 2));
    assert_eq!(report.gaps.len(), 1);
    assert_eq!(report.gaps[0].seconds, 54.0);
    let rows = telemetry(&imported.events().collect::<Vec<_>>());
    assert_eq!(rows[5].power_watts, Some(f64::midpoint(fives[0], fives[1])));
    assert!(rows.is_sorted_by_key(|row| row.time));
    let shown = report.to_string();
    for part in ["repeated rows dropped: 1", "put together: 1", "out of order, sorted: 2", "gaps: 1", "54.000 s"] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn csv_counts_requests_and_adds_up_tokens() {
    let text = "TIMESTAMP,Generated\n2023-11-16 18:17:03.5,10\n2023-11-16 18:17:03.5,5\n2023-11-16 18:17:09.0,7\n";
    let imported = read(RecordingFormat::Csv, &[("trace.csv", text)], &maps(&["samples=*", "tokens=Generated"])).unwrap();
    let events = imported.events().collect::<Vec<_>>();
    let totals: Vec<_> =
        progress(&events).iter().map(|event| (event.samples_total.unwrap(), event.tokens_total.unwrap())).collect();
    assert_eq!(totals, [(0.0, 0.0), (2.0, 15.0), (2.0, 15.0), (3.0, 22.0)]);
    assert_eq!(events[1].time.micros() - events[0].time.micros(), 1);
    assert_eq!(events[2].time.to_string(), "2023-11-16T18:17:09.000000Z");
    assert_eq!((imported.report.duplicates, imported.report.same_stamp, imported.report.rows), (0, 0, 3));
    let error =
        read(RecordingFormat::Csv, &[("trace.csv", "time,n\n2023-11-16 18:17:03,-4\n")], &maps(&["tokens=n"])).unwrap_err();
    assert!(error.contains("-4 cannot be added"), "{error}");
}

#[test]
fn csv_names_damage_by_line() {
    let error = |text: &str| read(RecordingFormat::Csv, &[("a.csv", text)], &maps(&["power_watts=w"])).unwrap_err();
    let torn = "time,w\n2022-07-13 02:07:36,1\n2022-07-13 02:0";
    let imported = read(RecordingFormat::Csv, &[("a.csv", torn)], &maps(&["power_watts=w"])).unwrap();
    let refused = &imported.report.refused[0];
    assert_eq!((imported.report.events, refused.first_line, refused.lines), (1, 3, 1));
    assert!(imported.report.to_string().contains("refused: 1 line of a.csv, the first at 3: row has 1 cell"));
    assert!(error("time,w\n2022-07-13 02:0\n2022-07-13 02\n").starts_with("a.csv:2: row has 1 cell"));
    assert!(error("time,w\n2022-07-13 02:07:36,1e999\n").contains("a.csv:2: column \"w\": \"1e999\" is not a number"));
    assert!(error("time,w\n1700000000,5\n").contains("use --time-format unix "));
    assert!(error("x,w\n1,5\n").contains("--map time=COLUMN"));
    assert!(error("time,w\n2022-07-13 02:07:36,-5\n").contains("field power_watts: -5 is not between"));
    assert!(error("").contains("a.csv"));
}

#[test]
fn a_compressed_recording_is_read_and_a_damaged_one_named() {
    let text = "Time,Power\n".to_owned() + &"2022-07-13 02:07:36.5,30\n".repeat(2000);
    let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
    let of =
        |bytes: &[u8]| import(RecordingFormat::Csv, vec![RecordingFile::new("a.csv.zst", bytes)], &maps(&["power_watts=Power"]));
    assert_eq!(of(&packed).unwrap().report.duplicates, 1999);
    assert!(of(&packed[..packed.len() / 2]).unwrap_err().to_string().contains("truncated or damaged"));
}

#[test]
fn an_import_is_the_same_every_time_and_its_ids_are_unique() {
    let options = ImportOptions { workload: Some("lab/run".to_owned()), ..ImportOptions::default() };
    let lines = || {
        let imported = read(RecordingFormat::Mlperf, &[("node_0.txt", &power_log())], &options).unwrap();
        imported.events().map(|event| serde_json::to_string(&event).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(lines(), lines());
    let ids: std::collections::BTreeSet<String> = read(RecordingFormat::Mlperf, &[("node_0.txt", &power_log())], &options)
        .unwrap()
        .events()
        .map(|event| event.id)
        .collect();
    assert_eq!(ids.len(), 20);
}
