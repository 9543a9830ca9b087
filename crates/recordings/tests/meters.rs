//! Meters whose figures contain each other, begin anew, or count in steps of their own: energy counts once, in joules.

use eadt_recordings::{AcceptedFinding, ImportOptions, ImportedRecording, RecordingFormat, SameTimeRule};
use eadt_schemas::v1::{GpuTelemetry, Meter};

use crate::support::{maps, near, progress, read_texts as read, telemetry};

const CSV: RecordingFormat = RecordingFormat::Csv;

/// Joules of all devices: the counter's difference, else the trapezoid over power.
fn joules(imported: &ImportedRecording) -> f64 {
    let rows = telemetry(imported);
    let mut devices: Vec<&str> = rows.iter().map(|row| row.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let step = |a: &GpuTelemetry, b: &GpuTelemetry| {
        let counted = a.energy_joules_total.zip(b.energy_joules_total).map(|(a, b)| b - a);
        let watts = a.power_watts.zip(b.power_watts).map(|(a, b)| f64::midpoint(a, b));
        counted.or(watts.map(|watts| watts * b.time.seconds_since(a.time))).unwrap_or(0.0)
    };
    let of_device = |device: &&str| {
        let own: Vec<&GpuTelemetry> = rows.iter().filter(|row| row.device == *device).collect();
        own.windows(2).map(|pair| step(pair[0], pair[1])).sum::<f64>()
    };
    devices.iter().map(of_device).sum()
}

fn clock(second: u32) -> String {
    format!("2025-02-03T{:02}:{:02}:{:02}Z", 10 + second / 3600, second / 60 % 60, second % 60)
}

/// A header, and a row for each number from 0, behind its time.
fn table(header: &str, rows: u32, seconds: u32, row: impl Fn(u32) -> String) -> String {
    let rows: Vec<String> = (0..rows).map(|number| format!("{},{}\n", clock(number * seconds), row(number))).collect();
    format!("{header}\n{}", rows.concat())
}

fn has_note(imported: &ImportedRecording, part: &str) -> bool {
    imported.report.notes.iter().any(|note| note.contains(part))
}

fn of_node(options: ImportOptions) -> ImportOptions {
    ImportOptions { meter: Some(Meter::Node), ..options }
}

/// Power that changes, in watts.
fn watts(row: u32) -> f64 {
    200.0 + 0.5 * f64::from(row * 37 % 101)
}

#[test]
fn a_window_that_contains_others_has_only_what_they_lack() {
    let header = "start_time,window_name,elapsed_time,gpu0_energy";
    let steps = ["1738576800,step,10.0,3000", "1738576810.1,step,9.5,2900", "1738576819.8,step,10.0,3010"];
    let epoch = "1738576800,epoch,30.0,9000";
    let last = "1738576830,step,10,3000";
    let options = |accept: &[AcceptedFinding]| ImportOptions {
        time_format: Some("unix".parse().unwrap()),
        accept: accept.to_vec(),
        ..maps(&["time=start_time", "energy_joules[gpu0]=gpu0_energy:J"])
    };
    for (what, rows, total) in [
        ("the epoch below", vec![steps[0], steps[1], steps[2], epoch, last], 12_000.0),
        ("the epoch above", vec![epoch, steps[0], steps[1], steps[2], last], 12_000.0),
        ("steps alone", vec![steps[0], steps[1], steps[2], last], 11_910.0),
    ] {
        let text = format!("{header}\n{}\n", rows.join("\n"));
        let imported = read(CSV, &[("z.csv", &text)], &options(&[])).unwrap();
        near(joules(&imported), total, what);
        assert_eq!(has_note(&imported, "is taken off it"), rows.contains(&epoch), "{what}: {:?}", imported.report.notes);
        if rows.contains(&epoch) {
            let meant = options(&[AcceptedFinding::NestedRows]);
            near(joules(&read(CSV, &[("z.csv", &text)], &meant).unwrap()), 20_910.0, what);
        }
    }
    // Rows of two boards contain each other by chance.
    let text = format!(
        "{header},gpu\n1738576800,a,30.0,9000,0\n1738576800,a,10.0,3000,1\n1738576810,a,10.0,3000,1\n1738576840,a,10.0,3000,1\n"
    );
    near(joules(&read(CSV, &[("z.csv", &text)], &options(&[])).unwrap()), 18_000.0, "two boards");
}

#[test]
fn a_counter_is_counted_on_over_the_end_of_its_range_and_a_reset_is_noted() {
    const RAPL: f64 = 262_143_328_850.0;
    let wrapped = |range: f64, from: f64, each: f64| move |row: u32| format!("{:.3}", (from + each * f64::from(row)) % range);
    let with_range = |row: u32| format!("{:.0},1000000000000", (1e12 - 1e9 + 1e8 * f64::from(row)) % 1e12);
    let reset = |row: u32| f64::from(if row < 40 { 68_000 + 100 * row } else { 100 * (row - 40) }).to_string();
    for (what, text, map, total, note) in [
        ("RAPL", table("time,energy_uj", 100, 1, wrapped(RAPL, RAPL - 1e9, 1e8)), "energy_uj", 9_900.0, "at 262143.329 J"),
        (
            "many times",
            table("time,energy_uj", 480, 60, wrapped(RAPL, 0.0, 6e9)),
            "energy_uj",
            2_874_000.0,
            "begins anew 10 times",
        ),
        ("2^16 J", table("time,rapl (J)", 360, 5, wrapped(65_536.0, 64_000.0, 500.0)), "rapl", 179_500.0, "at 65536.000 J"),
        ("2^32 mJ", table("time,e_mJ", 100, 1, wrapped(4_294_967_296.0, 4_294_000_000.0, 2e5)), "e_mJ", 19_800.0, "counted on"),
        (
            "a range of its own",
            table("time,energy_uj,max_energy_range_uj", 100, 1, with_range),
            "energy_uj",
            9_900.0,
            "at 1000000.000 J",
        ),
    ] {
        let map = format!("energy_joules_total={map}");
        let imported = read(CSV, &[("r.csv", &text)], &of_node(maps(&[&map]))).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!((joules(&imported) - total).abs() < 1e-3 * total, "{what}: {} {:?}", joules(&imported), imported.report.notes);
        let counts: Vec<f64> = telemetry(&imported).iter().filter_map(|row| row.energy_joules_total).collect();
        assert!(counts.is_sorted() && has_note(&imported, note), "{what}: {:?}", imported.report.notes);
    }
    let text = table("time,e (J)", 100, 1, reset);
    let imported = read(CSV, &[("r.csv", &text)], &maps(&["energy_joules_total=e"])).unwrap();
    assert!(has_note(&imported, "falls once, first at line 42 from 71900.000 J to 0.000 J"), "{:?}", imported.report.notes);
    assert!(has_note(&imported, "max_energy_range_uj"), "{:?}", imported.report.notes);
    let counts: Vec<f64> = telemetry(&imported).iter().filter_map(|row| row.energy_joules_total).collect();
    near(counts[99], 5_900.0, "as the counter is");
}

#[test]
fn a_fall_that_may_be_a_reset_is_not_counted_on() {
    const RANGE: f64 = 262_143.328_85;
    let named = "time,energy_uj,max_energy_range_uj";
    let microjoules = |joules: f64| format!("{:.0},262143328850", joules * 1e6);
    let after = |reset: u32| {
        move |row: u32| if row < reset { 100e3 + 18e3 * f64::from(row) } else { 500.0 + 18e3 * f64::from(row - reset) }
    };
    let late = table(named, 3, 60, |row| microjoules(after(9)(row)));
    let behind =
        (3..6).map(|row| format!("{},{}\n", clock(600 + 60 * row), microjoules(after(3)(row)))).collect::<Vec<_>>().concat();
    let again = |each: u32, rows: u32| move |row: u32| (each * (row % rows)).to_string();
    let meant = ImportOptions { accept: vec![AcceptedFinding::FallingTotals], ..of_node(ImportOptions::default()) };
    let with = |given: &[&str]| ImportOptions { maps: maps(given).maps, ..meant.clone() };
    let of_counter = with(&["energy_joules_total=energy_uj"]);
    let of_epochs = with(&["energy_joules_total=energy_j"]);
    for (what, text, options) in [
        ("a range that is far", table(named, 11, 60, |row| microjoules(after(8)(row))), &of_counter),
        ("a gap", late + &behind, &of_counter),
        (
            "a range that may pass unseen",
            table(named, 13, 3600, |row| microjoules((1e3 + 72e4 * f64::from(row)) % RANGE)),
            &of_counter,
        ),
        ("every 54 kJ", table("time,energy_j", 40, 60, again(18_000, 4)), &of_epochs),
        ("every 63 kJ", table("time,energy_j", 35, 30, again(9_000, 7)), &of_epochs),
        (
            "beside power",
            table("time,energy_j,w", 40, 60, |row| format!("{},300", again(18_000, 4)(row))),
            &with(&["energy_joules_total=energy_j", "power_watts=w"]),
        ),
    ] {
        let imported = read(CSV, &[("r.csv", &text)], options).unwrap_or_else(|error| panic!("{what}: {error}"));
        let notes = &imported.report.notes;
        assert!(!has_note(&imported, "counted on") && has_note(&imported, "taken for a reset"), "{what}: {notes:?}");
    }
    let hourly = table(named, 13, 3600, |row| microjoules((1e3 + 72e4 * f64::from(row)) % RANGE));
    let options = of_node(maps(&["energy_joules_total=energy_uj"]));
    assert!(read(CSV, &[("h.csv", &hourly)], &options).unwrap_err().contains("no running total"));
}

#[test]
fn rows_that_overlap_are_left_as_they_are_if_a_text_differs() {
    let with = |header: &str, texts: [&str; 3]| {
        format!(
            "{header}\n2025-02-03T10:00:00Z,{},3600,36000,9\n2025-02-03T10:10:00Z,{},600,900,4\n2025-02-03T10:50:00Z,{},600,1800,5\n",
            texts[0], texts[1], texts[2]
        )
    };
    let options = maps(&["time=start", "energy_joules[gpu0]=e:J", "samples=n"]);
    for (what, header, texts, total, note) in [
        ("users", "start,user,duration,e,n", ["alice", "bob", "carol"], 38_700.0, "rows overlap"),
        ("components", "start,component,duration,e,n", ["total", "gpu", "gpu"], 38_700.0, "rows overlap"),
        ("windows", "start,window,duration,e,n", ["epoch", "step", "step"], 36_000.0, "is taken off it"),
    ] {
        let imported = read(CSV, &[("w.csv", &with(header, texts))], &options).unwrap();
        near(joules(&imported), total, what);
        assert!(has_note(&imported, note), "{what}: {:?}", imported.report.notes);
        let samples = progress(&imported).iter().filter_map(|row| row.samples_total).fold(0.0, f64::max);
        near(samples, if what == "windows" { 9.0 } else { 18.0 }, what);
    }
}

#[test]
fn what_is_no_energy_of_ticks_leaves_the_counter_in_joules() {
    let rows = |header: &str, beside: &str| table(header, 60, 60, |row| format!("{},{beside}", 1_000 + 300 * row));
    for (header, beside, map) in [
        ("time,energy_counter,counter_resolution", "32", "energy_counter"),
        ("time,energy_counter,resolution", "1", "energy_counter"),
        ("time,energy_counter,accumulated_energy_kwh", "0.1", "energy_counter:J"),
    ] {
        let text = rows(header, beside);
        let imported = read(CSV, &[("t.csv", &text)], &maps(&[&format!("energy_joules_total={map}")])).unwrap();
        near(joules(&imported), 17_700.0, header);
    }
}

#[test]
fn zones_of_rapl_count_with_a_note() {
    let row = |second: u32| ["intel-rapl:0,100", "intel-rapl:0:0,30"].map(|zone| format!("{},{zone}\n", clock(second))).concat();
    let text = format!("time,zone,w\n{}", (0..=10).map(row).collect::<String>());
    let imported = read(CSV, &[("z.csv", &text)], &of_node(maps(&["device=zone", "power_watts=w"]))).unwrap();
    near(joules(&imported), 1_300.0, "zones");
    assert!(has_note(&imported, "--map device=COLUMN"), "{:?}", imported.report.notes);
}

#[test]
fn ticks_of_a_counter_are_no_joules() {
    let ticks = |row: u32| 1e6 + f64::from(row) * 300.0 / 15.259e-6;
    let smi = table("time,Energy counter,Accumulated Energy (uJ)", 60, 1, |row| {
        format!("{:.0},{:.3}", ticks(row), ticks(row).round() * 15.259)
    });
    let amd = table("time,energy_accumulator,counter_resolution", 60, 1, |row| format!("{:.0},15.259", ticks(row)));
    let alone = table("time,Energy counter", 60, 1, |row| format!("{:.0}", ticks(row)));
    let counted = |text: &str, map: &str| read(CSV, &[("a.csv", text)], &maps(&[&format!("energy_joules_total={map}")]));
    for (what, imported) in [
        ("microjoules", counted(&smi, "Accumulated Energy (uJ)")),
        ("ticks and their resolution", counted(&amd, "energy_accumulator")),
    ] {
        let imported = imported.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!((joules(&imported) - 17_700.0).abs() < 0.01, "{what}: {}", joules(&imported));
    }
    for (text, map, problem) in [
        (&smi, "Energy counter", "counts ticks, and \"Accumulated Energy (uJ)\" has their energy"),
        (&smi, "Energy counter:uJ", "--map 'energy_joules_total=Accumulated Energy (uJ)'"),
        (&amd, "energy_accumulator:mJ", "leave the unit out"),
        (&alone, "Energy counter", "if Energy counter counts ticks"),
    ] {
        let error = counted(text, map).map(|imported| joules(&imported)).unwrap_err();
        assert!(error.contains(problem) && !error.contains(":uJ'"), "{map}: {error}");
    }
    // Other tables call a counter of joules so.
    let plain = table("time,energy_counter", 60, 1, |row| (300 * row).to_string());
    near(joules(&counted(&plain, "energy_counter").unwrap()), 17_700.0, "joules");
}

#[test]
fn domains_of_a_machine_do_not_count_beside_what_contains_them() {
    let rows = |names: &[(&str, u32)]| -> String {
        let of_time = |second: u32| names.iter().map(move |(name, watts)| format!("{},{name},{watts}\n", clock(second)));
        format!("time,device,w\n{}", (0..=10).flat_map(of_time).collect::<String>())
    };
    for (names, total) in [
        (&[("package-0", 100), ("core", 60), ("uncore", 10), ("dram", 30)][..], 1_300.0),
        (&[("package-0", 100), ("package-1", 90), ("psys", 250)], 2_500.0),
        (&[("inlet", 900), ("outlet 1", 400), ("outlet 2", 480), ("L1", 450), ("L2", 450)], 9_000.0),
        (&[("outlet 1", 400), ("outlet 2", 480)], 8_800.0),
        (&[("pdu1 inlet", 900), ("pdu1 outlet 1", 880), ("pdu2 outlet 1", 400)], 13_000.0),
    ] {
        let options = of_node(maps(&["device=device", "power_watts=w"]));
        let imported = read(CSV, &[("m.csv", &rows(names))], &options).unwrap_or_else(|error| panic!("{names:?}: {error}"));
        near(joules(&imported), total, names[0].0);
    }
    let wide = table("time,package-0,core,dram", 11, 1, |_| "100,60,30".to_owned());
    let error = read(CSV, &[("w.csv", &wide)], &of_node(maps(&["power_watts=package-0+core+dram"]))).unwrap_err();
    assert!(error.contains("\"core\" is by its name a part of what \"package-0\" is: the sum has it twice"), "{error}");
    near(joules(&read(CSV, &[("w.csv", &wide)], &of_node(maps(&["power_watts=package-0+dram"]))).unwrap()), 1_300.0, "a sum");
    let both = read(CSV, &[("w.csv", &wide)], &of_node(maps(&["power_watts[p]=package-0", "power_watts[c]=core"]))).unwrap();
    assert!(has_note(&both, "leave one of the two out"), "{:?}", both.report.notes);
}

#[test]
fn steps_of_a_job_that_run_at_one_time_on_a_node_count_once_or_are_noted() {
    let row = |id: &str, nodes: &str, joules: u32, from: u32, to: u32| {
        format!("{id}|{nodes}|{joules}|2025-02-03T10:{from:02}:00|2025-02-03T10:{to:02}:00\n")
    };
    let options = of_node(maps(&["time=End", "energy_joules=ConsumedEnergyRaw"]));
    for (what, rows, total, note) in [
        ("one after the other", [row("7.0", "n1", 90_000, 0, 10), row("7.1", "n1", 80_000, 10, 20)], 170_000.0, ""),
        ("at the same time", [row("7.0", "n1", 90_000, 0, 10), row("7.1", "n1", 89_000, 0, 10)], 90_000.0, ""),
        ("within another", [row("7.batch", "n1", 90_000, 0, 20), row("7.0", "n1", 40_000, 2, 10)], 90_000.0, ""),
        ("on other nodes", [row("7.0", "n1", 90_000, 0, 10), row("7.1", "n2", 89_000, 0, 10)], 179_000.0, ""),
        ("in part", [row("7.0", "n1", 90_000, 0, 10), row("7.1", "n1", 80_000, 5, 15)], 170_000.0, "so that it counts twice"),
        ("two jobs", [row("7", "n[1-2]", 90_000, 0, 10), row("8", "n2", 40_000, 1, 9)], 130_000.0, "so that it counts twice"),
    ] {
        let text = format!("JobID|NodeList|ConsumedEnergyRaw|Start|End\n{}", rows.concat());
        let imported = read(CSV, &[("s.txt", &text)], &options).unwrap();
        near(joules(&imported), total, what);
        assert!(has_note(&imported, "counts twice") != note.is_empty(), "{what}: {:?}", imported.report.notes);
    }
    let rows = [("c1", 60_000), ("c2", 50_000)]
        .map(|(name, joules)| row("7", "n1", joules, 0, 10).trim_end().to_owned() + "|" + name + "\n")
        .concat();
    let text = format!("JobID|NodeList|ConsumedEnergyRaw|Start|End|Cluster\n{rows}");
    let imported = read(CSV, &[("s.txt", &text)], &options).unwrap();
    assert!(!has_note(&imported, "counts twice"), "two clusters: {:?}", imported.report.notes);
    near(joules(&imported), 110_000.0, "two clusters");
    let text = "JobID|ConsumedEnergyRaw|End\n7.0|90000|2025-02-03T10:10:00\n7.1|80000|2025-02-03T10:15:00\n";
    let imported = read(CSV, &[("s.txt", text)], &options).unwrap();
    assert!(has_note(&imported, "add the columns Start, End and NodeList"), "{:?}", imported.report.notes);
}

/// The lines of a power log, of seconds and the watts of its first line.
type PowerLogOf<'a> = &'a dyn Fn(&[f64], f64) -> Vec<String>;

#[test]
fn two_meters_in_one_power_log_are_not_averaged() {
    let training = |seconds: &[f64], watts: f64| -> Vec<String> {
        let entry = |(row, second): (usize, &f64)| {
            let (ms, watts) = (1.7e12 + second * 1e3, watts + row as f64 % 7.0);
            format!(":::MLLOG {{\"time_ms\": {ms}, \"key\": \"power_reading\", \"value\": {watts}, \"metadata\": {{}}}}\n")
        };
        seconds.iter().enumerate().map(entry).collect()
    };
    let analyser = |seconds: &[f64], watts: f64| -> Vec<String> {
        let entry =
            |(row, second): (usize, &f64)| format!("Time,01-02-2026 10:00:{second:06.3},Watts,{}\n", watts + row as f64 % 7.0);
        seconds.iter().enumerate().map(entry).collect()
    };
    let seconds = |offset: f64| -> Vec<f64> { (0..50).map(|second| f64::from(second) + offset).collect() };
    let in_turn = |a: Vec<String>, b: Vec<String>| a.into_iter().zip(b).map(|(a, b)| a + &b).collect::<String>();
    let logs: [(RecordingFormat, PowerLogOf<'_>); 2] =
        [(RecordingFormat::Mlperf, &training), (RecordingFormat::MlperfInference, &analyser)];
    for (format, log) in logs {
        let at = |offset: f64, watts: f64| log(&seconds(offset), watts);
        for (what, text) in [
            ("at the same times", in_turn(at(0.0, 3000.0), at(0.0, 6000.0))),
            ("in bursts", in_turn(at(0.0, 3000.0), at(0.02, 6000.0))),
            ("one behind the other", at(0.0, 3000.0).concat() + &at(0.4, 6000.0).concat()),
        ] {
            let error =
                read(format, &[("p.txt", &text)], &ImportOptions::default()).map(|imported| joules(&imported)).unwrap_err();
            assert!(
                error.contains("write the readings of each into a file of its own") || what == "one behind the other",
                "{error}"
            );
        }
        let twice = in_turn(at(0.0, 3000.0), at(0.0, 3100.0));
        let meant = ImportOptions { same_time: Some(SameTimeRule::Mean), ..ImportOptions::default() };
        assert!(read(format, &[("p.txt", &twice)], &meant).is_ok(), "{format}: readings of one meter");
        // Readings that are close to each other are of one meter, whose stamps are coarse.
        for (what, text) in [("coarse", twice), ("pairs", in_turn(at(0.0, 3000.0), at(0.02, 3010.0)))] {
            let imported = read(format, &[("p.txt", &text)], &ImportOptions::default()).unwrap();
            assert!(has_note(&imported, "for those of one meter"), "{what}: {:?}", imported.report.notes);
        }
        let restarted = at(0.0, 3000.0).concat() + &log(&[46.5, 47.5, 48.5, 49.5, 50.5], 3000.0).concat();
        assert!(read(format, &[("p.txt", &restarted)], &ImportOptions::default()).is_ok(), "{format}: a logger that restarts");
        // One moment of many that was read twice is none of another meter.
        let once = at(0.0, 3000.0).concat() + &log(&[49.0], 3050.0).concat();
        assert!(read(format, &[("p.txt", &once)], &ImportOptions::default()).is_ok(), "{format}: one reading");
        let (a, b) = (at(0.0, 3000.0).concat(), at(0.0, 6000.0).concat());
        let apart = read(format, &[("a.txt", &a), ("b.txt", &b)], &ImportOptions::default()).unwrap();
        assert!((joules(&apart) - 49.0 * 9_006.0).abs() < 100.0, "{format}: {}", joules(&apart));
    }
}

#[test]
fn devices_whose_record_is_shorter_than_that_of_others_are_noted() {
    let text = table("time,a,b,c", 61, 10, |row| {
        let (b, c) = (if row < 30 { "" } else { "300" }, if row > 50 { "" } else { "300" });
        format!("300,{b},{c}")
    });
    let options = maps(&["power_watts[a]=a", "power_watts[b]=b", "power_watts[c]=c"]);
    let imported = read(CSV, &[("t.csv", &text)], &options).unwrap();
    for part in [
        ":b: no energy is known before 2025-02-03T10:05:00.000000Z, 300 s after the record begins",
        ":b from 2025-02-03T10:05:00.000000Z to 2025-02-03T10:10:00.000000Z",
        ":c: no energy is known after 2025-02-03T10:08:20.000000Z, 100 s before the record ends",
    ] {
        assert!(has_note(&imported, part), "{part}: {:?}", imported.report.notes);
    }
    let whole = table("time,a,b", 61, 10, |_| "300,300".to_owned());
    let imported = read(CSV, &[("t.csv", &whole)], &maps(&["power_watts[a]=a", "power_watts[b]=b"])).unwrap();
    assert!(imported.report.notes.is_empty(), "{:?}", imported.report.notes);
}

#[test]
fn a_column_that_is_the_sum_of_others_is_left_out() {
    let (a, b) = (watts, |row: u32| 350.0 - 0.5 * watts(row * 3));
    let wide = |sum: fn(f64, f64) -> f64| {
        table("time,g0,g1,rest", 61, 1, move |row| format!("{:.1},{:.1},{:.1}", a(row), b(row), sum(a(row), b(row))))
    };
    let options = maps(&["power_watts[x]=g0", "power_watts[y]=g1", "power_watts[z]=rest"]);
    let total = |text: &str, options: &ImportOptions| {
        let imported = read(CSV, &[("s.csv", text)], options).unwrap();
        (joules(&imported), has_note(&imported, "is the sum of that of"))
    };
    let (both, is_noted) = total(&wide(|a, b| a + b), &options);
    let (alone, _) = total(&wide(|a, b| a + b), &maps(&["power_watts[x]=g0", "power_watts[y]=g1"]));
    near(both, alone, "the sum");
    assert!(is_noted);
    let with_losses = wide(|a, b| 1.04 * (a + b));
    let error = read(CSV, &[("s.csv", &with_losses)], &options).map(|imported| joules(&imported)).unwrap_err();
    assert!(error.contains(":z: power_watts follows the sum of that of") && error.contains("--accept sums"), "{error}");
    let meant = ImportOptions {
        accept: vec![AcceptedFinding::Sums],
        ..maps(&["power_watts[x]=g0", "power_watts[y]=g1", "power_watts[z]=rest"])
    };
    let (other, is_noted) = total(&with_losses, &meant);
    assert!(!is_noted && other > 1.5 * alone, "what a supply loses is no rounding");
    // Rows of devices, and counters.
    let rows = |second: u32| {
        let (a, b) = (a(second), b(second));
        [("p", a), ("q", b), ("r", a + b)].map(|(name, watts)| format!("{},{name},{watts:.3}\n", clock(second))).concat()
    };
    let long = format!("time,dev,w\n{}", (0..61).map(rows).collect::<String>());
    let (of_rows, is_noted) = total(&long, &maps(&["device=dev", "power_watts=w"]));
    assert!(is_noted && (of_rows - alone).abs() < 0.01 * alone, "{of_rows} of {alone}");
    let counted =
        |row: u32| -> (f64, f64) { (0..row).map(|row| (a(row), b(row))).fold((0.0, 0.0), |sum, w| (sum.0 + w.0, sum.1 + w.1)) };
    let counters = table("time,e0,e1,e2", 61, 1, |row| {
        let (a, b) = counted(row);
        format!("{a:.3},{b:.3},{:.3}", a + b)
    });
    let (of_counters, is_noted) =
        total(&counters, &maps(&["energy_joules_total[x]=e0", "energy_joules_total[y]=e1", "energy_joules_total[z]=e2"]));
    assert!(is_noted && (of_counters - alone).abs() < 0.01 * alone, "{of_counters} of {alone}");
    // A sum whose record is longer than that of its parts is all that is known elsewhere.
    let late = table("time,g0,g1,rest", 200, 1, |row| {
        let part = if row < 5 { String::new() } else { format!("{:.1}", a(row)) };
        format!("{part},{:.1},{:.1}", b(row), a(row) + b(row))
    });
    let imported = read(CSV, &[("s.csv", &late)], &options).unwrap();
    assert!(has_note(&imported, "its record is longer than theirs"), "{:?}", imported.report.notes);
    let levels = table("time,g0,g1,rest", 61, 1, |row| format!("{0},{0},{1}", 200 + row % 9, 400 + 2 * (row % 9)));
    assert!(!total(&levels, &options).1, "two boards that draw the same");
    // Boards that idle may add up by chance.
    let idle = table("time,g0,g1,rest", 61, 1, |_| "50,50,100".to_owned());
    assert_eq!(total(&idle, &options), (12_000.0, false));
}

#[test]
fn a_sum_that_is_rounded_more_coarsely_than_its_parts_is_left_out() {
    let part = |row: u32, factor: u32| 1000.0 + 9.7 * f64::from(row * factor % 200);
    let parts = |row: u32| [37, 53, 71].map(|factor| part(row, factor));
    let options = of_node(maps(&["power_watts[x]=g0", "power_watts[y]=g1", "power_watts[z]=g2", "power_watts[s]=rest"]));
    let import = |step: f64, factor: f64| {
        let text = table("time,g0,g1,g2,rest", 120, 10, |row| {
            let [a, b, c] = parts(row);
            format!("{a:.1},{b:.1},{c:.1},{:.1}", (factor * (a + b + c) / step).round() * step)
        });
        read(CSV, &[("s.csv", &text)], &options).map(|imported| (joules(&imported), has_note(&imported, "is the sum of that of")))
    };
    let error = import(100.0, 1.06).unwrap_err();
    assert!(error.contains("(× 1.06"), "what a supply loses is no rounding: {error}");
    let whole = {
        let text = table("time,g0,g1,g2", 120, 10, |row| parts(row).map(|watts| format!("{watts:.1}")).join(","));
        joules(
            &read(CSV, &[("s.csv", &text)], &of_node(maps(&["power_watts[x]=g0", "power_watts[y]=g1", "power_watts[z]=g2"])))
                .unwrap(),
        )
    };
    for step in [0.1, 1.0, 10.0, 100.0] {
        let (counted, is_noted) = import(step, 1.0).unwrap();
        assert!(is_noted && (counted - whole).abs() < 1e-6 * whole, "in steps of {step} W: {counted} of {whole}");
    }
}
