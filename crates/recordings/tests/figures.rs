//! Figures that were wrong once: what an import makes of a file, against what is right.

use eadt_recordings::{
    AcceptedFinding, FileSetKind, ImportOptions, ImportedRecording, NamedTimeZone, RecordingFile, RecordingFormat, SameTimeRule,
    import,
};
use eadt_schemas::v1::{CounterScope, GpuTelemetry, Meter};

use crate::support::{maps, near, progress, read_texts as read, telemetry};

const SMI: RecordingFormat = RecordingFormat::NvidiaSmi;
const CSV: RecordingFormat = RecordingFormat::Csv;

/// Joules of each device: the counter's difference, else the trapezoid over power of one kind, as the fold has it.
fn joules(imported: &ImportedRecording) -> Vec<(String, f64)> {
    let rows = telemetry(imported);
    let mut devices: Vec<String> = rows.iter().map(|row| row.device.clone()).collect();
    devices.sort();
    devices.dedup();
    let step = |pair: &[&GpuTelemetry]| -> f64 {
        let (a, b) = (pair[0], pair[1]);
        let seconds = b.time.seconds_since(a.time);
        let mean = |a: f64, b: f64| f64::midpoint(a, b) * seconds;
        let counted = a.energy_joules_total.zip(b.energy_joules_total).map(|(a, b)| b - a);
        let instant = || a.power_watts.zip(b.power_watts).map(|(a, b)| mean(a, b));
        let average = || a.power_average_watts.zip(b.power_average_watts).map(|(a, b)| mean(a, b));
        counted.or_else(instant).or_else(average).unwrap_or(0.0)
    };
    let of = |device: &String| {
        let own: Vec<&GpuTelemetry> = rows.iter().filter(|row| row.device == *device).collect();
        own.windows(2).map(step).sum()
    };
    devices.iter().map(|device| (device.clone(), of(device))).collect()
}

fn total(imported: &ImportedRecording) -> f64 {
    joules(imported).iter().map(|(_, joules)| joules).sum()
}

/// Samples from the first count to the last.
fn samples(imported: &ImportedRecording) -> f64 {
    let totals: Vec<f64> = progress(imported).iter().filter_map(|row| row.samples_total).collect();
    totals.last().zip(totals.first()).map_or(0.0, |(last, first)| last - first)
}

/// A header, and a row for each number from 0.
fn table(header: &str, rows: u32, row: impl Fn(u32) -> String) -> String {
    let rows: Vec<String> = (0..rows).map(row).collect();
    format!("{header}\n{}\n", rows.join("\n"))
}

/// The time of a second after ten, in hours, minutes and seconds.
fn clock(second: u32) -> String {
    format!("2025-02-03T{:02}:{:02}:{:02}", 10 + second / 3600, second / 60 % 60, second % 60)
}

fn smi_clock(second: u32) -> String {
    clock(second).replace('-', "/").replace('T', " ")
}

#[test]
fn a_column_of_nvidia_smi_counts_in_the_rows_that_have_it() {
    const H100: &str = "NVIDIA H100 PCIe";
    const V100: &str = "Tesla V100-SXM2-16GB";
    // Of each row: board, model, power.draw, power.draw.instant.
    let two = |second| {
        [format!("GPU-1, {V100}, 100 W, [N/A]"), format!("GPU-2, {H100}, 300 W, 300 W")]
            .map(|cells| format!("{}.000, {cells}", smi_clock(second)))
            .join("\n")
    };
    let one = |model: &'static str, draw: &'static str, instant: fn(u32) -> &'static str| {
        move |second| format!("{}.000, GPU-1, {model}, {draw}, {}", smi_clock(second), instant(second))
    };
    let header = "timestamp, uuid, name, power.draw [W], power.draw.instant [W]";
    let turned = "timestamp, uuid, name, power.draw.instant [W], power.draw [W]";
    for (what, text, expected) in [
        ("a V100 beside an H100", table(header, 21, two), 8000.0),
        ("never an instant value", table(header, 21, one(H100, "100 W", |_| "[N/A]")), 2000.0),
        ("an old board without one", table(header, 21, one(V100, "100 W", |_| "[Not Supported]")), 2000.0),
        (
            "a value now and then",
            table(header, 21, one(H100, "100 W", |second| if second % 4 == 0 { "100 W" } else { "[N/A]" })),
            2000.0,
        ),
        (
            "a value from the tenth row on",
            table(header, 21, one(V100, "100 W", |second| if second < 10 { "[N/A]" } else { "100 W" })),
            2000.0,
        ),
        ("the present value first", table(header, 21, one(H100, "100 W", |_| "300 W")), 6000.0),
        ("the same of an old board", table(header, 21, one(V100, "100 W", |_| "300 W")), 6000.0),
        ("the columns the other way round", table(turned, 21, one(V100, "[N/A]", |_| "100 W")), 2000.0),
        (
            "an average beside",
            table("timestamp, uuid, name, power.draw [W], power.draw.average [W]", 21, one(H100, "100 W", |_| "[N/A]")),
            2000.0,
        ),
    ] {
        let imported =
            read(SMI, &[("a.csv", &text)], &ImportOptions::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(total(&imported), expected, what);
        assert!(!imported.report.notes.iter().any(|note| note.contains("left out")), "{what}: {:?}", imported.report.notes);
    }
    let limits = table("timestamp, uuid, power.draw [W], enforced.power.limit [W], power.limit [W]", 3, |second| {
        let enforced = if second == 0 { "250 W" } else { "[N/A]" };
        format!("{}.000, GPU-1, 100 W, {enforced}, 300 W", smi_clock(second))
    });
    let imported = read(SMI, &[("a.csv", &limits)], &ImportOptions::default()).unwrap();
    let limits: Vec<Option<f64>> = telemetry(&imported).iter().map(|row| row.power_limit_watts).collect();
    assert_eq!(limits, [Some(250.0), Some(300.0), Some(300.0)]);
}

#[test]
fn files_of_one_name_are_boards_of_their_own() {
    let spl = |watts: u32| -> String {
        (0..=60)
            .map(|second| format!("Time,01-02-2026 10:{:02}:{:02}.000,Watts,{watts},Volts,230\n", second / 60, second % 60))
            .collect::<Vec<_>>()
            .concat()
    };
    let detail = [
        ("power_begin", "\"01-02-2026 10:00:00.000\""),
        ("power_end", "\"01-02-2026 10:01:00.000\""),
        ("result_samples_per_second", "20.0"),
    ]
    .map(|(key, value)| format!(":::MLLOG {{\"key\": \"{key}\", \"value\": {value}, \"time_ms\": 1.0}}\n"))
    .concat();
    let (a, b) = (spl(1000), spl(500));
    for (names, expected) in [
        (["spl.txt", "n2/spl.txt"], 90_000.0),
        (["n1/spl.txt", "n2/spl.txt"], 90_000.0),
        (["r/n1/spl.txt", "r2/n1/spl.txt"], 90_000.0),
        (["spl.txt", "spl.log"], 90_000.0),
        (["spl.txt", "spl2.txt"], 90_000.0),
    ] {
        let files = [("mlperf_log_detail.txt", detail.as_str()), (names[0], &a), (names[1], &b)];
        let imported = read(RecordingFormat::MlperfInference, &files, &ImportOptions::default()).unwrap();
        assert_eq!(joules(&imported).len(), 2, "{names:?}: {:?}", joules(&imported));
        near(total(&imported), expected, names[1]);
        near(samples(&imported), 1200.0, names[1]);
        let ids: std::collections::BTreeSet<String> = imported.events().map(|event| event.id).collect();
        assert_eq!(ids.len() as u64, imported.report.events, "{names:?}");
    }
    let varies = a.replace(":05.000,Watts,1000", ":05.000,Watts,1010");
    let copies = |text: &str| {
        let files = [("mlperf_log_detail.txt", detail.as_str()), ("n1/spl.txt", text), ("n2/spl.txt", text)];
        read(RecordingFormat::MlperfInference, &files, &ImportOptions::default())
    };
    let error = copies(&varies).unwrap_err();
    assert!(error.starts_with("n2/spl.txt: has the same readings as n1/spl.txt") && error.contains("leave one"), "{error}");
    assert!(copies(&a).unwrap().report.notes.iter().any(|note| note.contains("may be a copy of the other")));
}

/// Seconds and a value, as a table of two columns.
fn two_columns(header: &str, values: impl IntoIterator<Item = f64>) -> String {
    let rows = (0..).zip(values).map(|(second, value)| format!("{}Z,{value}\n", clock(second)));
    format!("time,{header}\n{}", rows.collect::<String>())
}

#[test]
fn a_column_in_a_unit_that_makes_next_to_nothing_is_refused_with_the_unit() {
    let total = |step: f64| two_columns("e", (0..30).map(|second| f64::from(second) * step));
    let each = |value: f64| two_columns("e", (0..30).map(|_| value));
    let few = |value: f64| two_columns("e", (0..8).map(|second| value + 0.01 * value * f64::from(second % 2)));
    let codecarbon =
        table("timestamp,energy_consumed", 9, |row| format!("{},{}", clock(15 * (row + 1)), 0.001_458 * f64::from(row + 1)));
    let csv = |meter, map: &str| ImportOptions { meter: Some(meter), ..maps(&[map]) };
    let (gpu, node, wall) = (Meter::Gpu, Meter::Node, Meter::Wall);
    for (what, text, meter, map, unit, expected) in [
        ("kWh of a node, every 15 s", &codecarbon, node, "energy_joules_total=energy_consumed", "kWh", 8.0 * 5248.8),
        ("kWh of a GPU", &total(300.0 / 3.6e6), gpu, "energy_joules_total=e", "kWh", 8_700.0),
        ("kWh a row", &each(300.0 / 3.6e6), gpu, "energy_joules=e", "kWh", 9_000.0),
        ("Wh of a GPU", &total(300.0 / 3600.0), gpu, "energy_joules_total=e", "Wh", 8_700.0),
        ("kJ of a GPU", &total(0.3), gpu, "energy_joules_total=e", "kJ", 8_700.0),
        ("mJ of a GPU", &total(300_000.0), gpu, "energy_joules_total=e", "mJ", 8_700.0),
        ("Wh of a node", &total(3000.0 / 3600.0), node, "energy_joules_total=e", "Wh", 87_000.0),
        ("kW of a node", &each(0.3), node, "power_watts=e", "kW", 8_700.0),
        ("kW of a GPU, in few rows", &few(0.3), gpu, "power_watts=e", "kW", 2_109.0),
        ("kW at the wall", &each(0.9), wall, "power_average_watts=e", "kW", 26_100.0),
        ("mW of a GPU", &each(310_000.0), gpu, "power_watts=e", "mW", 8_990.0),
        ("W that were called mW", &each(310.0), gpu, "power_watts=e:mW", "W", 8_990.0),
        ("J that were called mJ", &total(300.0), gpu, "energy_joules_total=e:mJ", "J", 8_700.0),
        ("W that were called kW", &each(310.0), gpu, "power_watts=e:kW", "W", 8_990.0),
    ] {
        let error = read(CSV, &[("a.csv", text)], &csv(meter, map)).unwrap_err();
        let right = format!("{}:{unit}", map.split(':').next().unwrap());
        assert!(error.contains(&format!("--map {right}")), "{what}: {error}");
        let imported = read(CSV, &[("a.csv", text)], &csv(meter, &right)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let got = self::total(&imported);
        assert!((got / expected - 1.0).abs() < 1e-3, "{what}: {got} instead of {expected}");
    }
    for (what, text, meter, map) in [
        ("a counter that does not move", &total(0.0), gpu, "energy_joules_total=e"),
        ("a small node", &each(12.0), node, "power_watts=e"),
        ("an edge node", &each(4.0), node, "power_watts=e"),
        ("an edge node at the wall", &each(1.2), wall, "power_watts=e"),
        ("a module", &each(4.0), Meter::Module, "power_watts=e"),
        (
            "a counter that idles, then works",
            &two_columns("e", (0..60).map(|second| if second < 50 { 0.1 } else { f64::from(second) * 40.0 })),
            gpu,
            "energy_joules_total=e",
        ),
        ("no reading but 0 W", &each(0.0), node, "power_watts=e"),
    ] {
        if let Err(error) = read(CSV, &[("a.csv", text)], &csv(meter, map)) {
            assert!(what.starts_with("no reading"), "{what}: {error}");
        }
    }
    for (text, map) in [(each(0.3), "power_watts=e"), (total(0.3), "energy_joules_total=e"), (each(0.3), "energy_joules=e")] {
        let unit = if map.starts_with("energy") { "J" } else { "W" };
        let insist = format!("{map}:{unit}");
        let error = read(CSV, &[("a.csv", &text)], &csv(gpu, map)).unwrap_err();
        assert!(error.contains(&format!("if it is so little, use --map {insist}")), "{error}");
        let imported = read(CSV, &[("a.csv", &text)], &csv(gpu, &insist)).unwrap();
        assert!(imported.report.notes.iter().any(|note| note.contains("as --map sets")), "{:?}", imported.report.notes);
        let milli = format!("{map}:m{unit}");
        assert!(read(CSV, &[("a.csv", &text)], &csv(gpu, &milli)).is_err(), "{milli}");
    }
    let counted = read(CSV, &[("a.csv", &total(5000.0 / 3600.0))], &csv(node, "energy_joules_total=e")).unwrap();
    assert!(
        counted.report.notes.iter().any(|note| note.contains("little for one node") && note.contains("energy_joules_total=e:Wh")),
        "{:?}",
        counted.report.notes
    );
    let little = read(CSV, &[("a.csv", &each(10.2))], &csv(node, "power_watts=e")).unwrap();
    assert!(
        little.report.notes.iter().any(|note| note.contains("little for one node") && note.contains("--map power_watts=e:kW")),
        "{:?}",
        little.report.notes
    );
}

#[test]
fn batch_sizes_and_totals_are_distinguished() {
    let batch = |value: fn(u32) -> u32| table("time,w,n", 40, |row| format!("{}Z,100,{}", clock(row), value(row)));
    let total = |text: &str| read(CSV, &[("a.csv", text)], &maps(&["power_watts=w", "samples_total=n"]));
    let each = |text: &str| read(CSV, &[("a.csv", text)], &maps(&["power_watts=w", "samples=n"]));
    let sizes = [
        ("a short last batch", batch(|row| if row == 39 { 20 } else { 32 }), 1268.0),
        ("one short batch of eight", batch(|row| if row % 8 == 0 { 20 } else { 32 }), 1220.0),
        ("one short batch of four", batch(|row| if row % 4 == 3 { 20 } else { 32 }), 1160.0),
        ("a size that was halved", batch(|row| if row < 20 { 64 } else { 32 }), 1920.0),
        ("a size that was raised and lowered", batch(|row| [16, 32, 64, 32][row as usize / 10]), 1440.0),
    ];
    for (what, text, expected) in &sizes {
        let error = total(text).unwrap_err();
        assert!(error.contains("no running total") && error.contains("--map samples=n"), "{what}: {error}");
        let imported = each(text).unwrap_or_else(|error| panic!("{what}: {error}"));
        near(samples(&imported), *expected, what);
    }
    let totals = [
        ("steps of three rows", batch(|row| row / 3 * 32), 416.0),
        ("steps, not from 0 on", batch(|row| 6400 + row / 4 * 32), 288.0),
        ("every row", batch(|row| 32 * row), 1248.0),
    ];
    for (what, text, expected) in &totals {
        let error = each(text).unwrap_err();
        assert!(error.contains("as a running total does") && error.contains("--map samples_total=n"), "{what}: {error}");
        near(samples(&total(text).unwrap_or_else(|error| panic!("{what}: {error}"))), *expected, what);
        let accepted = ImportOptions { accept: vec![AcceptedFinding::GrowingSteps], ..maps(&["power_watts=w", "samples=n"]) };
        assert!(read(CSV, &[("a.csv", text)], &accepted).is_ok(), "{what}");
    }
    for (what, text) in [
        ("a job that begins anew", batch(|row| 32 * (row % 20))),
        ("one that begins anew before it got far", batch(|row| if (10..20).contains(&row) { 32 } else { 0 })),
        ("one that goes back to a checkpoint", batch(|row| if row < 20 { 32 * row } else { 32 * (row - 8) })),
        ("one that got nothing done", batch(|_| 0)),
    ] {
        assert!(total(&text).is_ok(), "{what}: {:?}", total(&text).err());
    }
    // A batch size that is held for so many samples, as Megatron raises it.
    let row_levels = |row: u32| 16 * (1 + (f64::from(row) / 8.0).sqrt() as u32);
    let ramp = table("time,w,n", 1000, |row| format!("{}Z,100,{}", clock(row), row_levels(row)));
    let imported = each(&ramp).unwrap();
    near(samples(&imported), (0..1000).map(|row| f64::from(row_levels(row))).sum(), "a ramp of twelve levels");
    assert!(imported.report.notes.iter().any(|note| note.contains("if it is a running total")), "{:?}", imported.report.notes);
    let even = table("time,w,n", 1000, |row| format!("{}Z,100,{}", clock(row), 640 + 32 * (row / 50)));
    assert!(each(&even).unwrap_err().contains("as a running total does"));
    // A batch size that grows and a total of few steps look alike: both are read, and the other reading is named.
    let ramp = batch(|row| 16 * (1 + row / 10));
    let notes = |imported: ImportedRecording| imported.report.notes.join("\n");
    let (as_total, as_each) = (notes(total(&ramp).unwrap()), notes(each(&ramp).unwrap()));
    assert!(as_total.contains("grows 3 times only") && as_total.contains("--map samples=n"), "{as_total}");
    assert!(as_each.contains("if it is a running total, use --map samples_total=n"), "{as_each}");
}

#[test]
fn rows_of_one_time_that_repeat_one_reading_count_once_and_are_noted() {
    let watts = |tick: u32| 300 + 7 * (tick % 6);
    let text = table("time,w", 40, |at| format!("{},{}", clock(at / 2), watts(at / 2)));
    let imported = read(CSV, &[("a.csv", &text)], &maps(&["power_watts=w"])).unwrap();
    near(total(&imported), (0..19).map(|tick| f64::from(watts(tick) + watts(tick + 1)) / 2.0).sum(), "one board");
    let is_noted = |note: &String| note.contains("repeat one reading each time") && note.contains("--map device=COLUMN");
    assert!(imported.report.notes.iter().any(is_noted), "{:?}", imported.report.notes);
    // A millisecond apart: the time from burst to burst is no gap.
    let text = table("time,w", 40, |at| format!("{}.{:03},{}", clock(5 * (at / 2)), at % 2, watts(at / 2)));
    let imported = read(CSV, &[("a.csv", &text)], &maps(&["power_watts=w"])).unwrap();
    near(total(&imported), (0..19).map(|tick| f64::from(watts(tick) + watts(tick + 1)) * 2.5).sum(), "one board");
    assert!(imported.report.notes.iter().any(is_noted), "{:?}", imported.report.notes);
    let report = &imported.report;
    assert_eq!((report.gaps.len(), report.duplicates, telemetry(&imported).len()), (0, 20, 20), "{report}");
}

#[test]
fn rows_without_an_id_are_refused_if_they_come_in_bursts_or_a_column_distinguishes_them() {
    // Eight boards of 100 to 800 W, some milliseconds apart.
    let bursts = |milliseconds: u32, ticks: u32, second: fn(u32) -> u32, header: &str, slash: bool| {
        let row = |at: u32| {
            let millis = second(at / 8) + at % 8 * milliseconds;
            let time = clock(millis / 1000);
            let time = if slash { time.replace('-', "/").replace('T', " ") } else { time };
            format!("{time}.{:03},{}", millis % 1000, 100 * (at % 8 + 1))
        };
        table(header, ticks * 8, row)
    };
    let half = bursts(12, 21, |tick| tick * 500, "timestamp, power.draw [W]", true);
    let table_of_half = bursts(12, 21, |tick| tick * 500, "time,power", false);
    let slow = bursts(20, 21, |tick| tick * 1000, "timestamp, power.draw [W]", true);
    for (what, format, text, expected) in
        [("2 Hz", SMI, &half, 36_000.0), ("2 Hz, a table", CSV, &table_of_half, 36_000.0), ("20 ms apart", SMI, &slow, 72_000.0)]
    {
        let options = |same_time| ImportOptions {
            same_time,
            ..if format == CSV { maps(&["power_watts=power"]) } else { ImportOptions::default() }
        };
        let error = read(format, &[("a.csv", text)], &options(None)).unwrap_err();
        assert!(
            error.contains("8 rows without the id of a board come close together") && error.contains("--same-time boards"),
            "{what}: {error}"
        );
        let imported = read(format, &[("a.csv", text)], &options(Some(SameTimeRule::Boards))).unwrap();
        near(total(&imported), expected, what);
        assert_eq!(joules(&read(format, &[("a.csv", text)], &options(Some(SameTimeRule::Mean))).unwrap()).len(), 1);
    }

    // Tables of boards that are read in turn: the column that distinguishes them is not mapped.
    let turns = |header: &str, cells: &[&str], milliseconds: u32, rows: u32| {
        let row = |at: u32| {
            let millis = at * milliseconds;
            format!("{}.{:03},{}", clock(millis / 1000), millis % 1000, cells[at as usize % cells.len()])
        };
        table(header, rows, row)
    };
    let by_id = turns("time,gpu_id,power", &["0,100", "1,300"], 500, 22);
    let by_host = turns("time,host,card,power", &["n1,c0,100", "n1,c1,110", "n2,c0,300", "n2,c1,310"], 250, 44);
    let by_uuid = turns("time,which,power", &["GPU-aaaaaaaa-1,100", "GPU-bbbbbbbb-2,300"], 500, 22);
    let by_model = turns("time,name,power", &["NVIDIA L4,100", "NVIDIA A100-PCIE-40GB,300"], 500, 22);
    let one_time = turns("time,gpu,power", &["0,100", "1,100"], 0, 2)
        + &(1..11).map(|second| format!("{},0,100\n{},1,100\n", clock(second), clock(second))).collect::<Vec<_>>().concat();
    let headless = by_id.split_once('\n').unwrap().1.to_owned();
    let on_node = turns("time,host,gpu,power", &["n1,0,100", "n1,1,300"], 500, 22);
    for (what, text, map, right, expected) in [
        ("an id", &by_id, &["power_watts=power"][..], &["device=gpu_id"][..], 4000.0),
        ("a host", &by_host, &["device=card", "power_watts=power"], &["node=host"], 8200.0),
        ("a UUID in a column of another name", &by_uuid, &["power_watts=power"], &["device=which"], 4000.0),
        ("a model", &by_model, &["power_watts=power", "gpu_model=name"], &["device=name"], 4000.0),
        ("equal rows of one time", &one_time, &["power_watts=power"], &["device=gpu"], 2000.0),
        ("the node is mapped, the board is not", &on_node, &["node=host", "power_watts=power"], &["device=gpu"], 4000.0),
        ("no header", &headless, &["time=#1", "power_watts=#3"], &[], 0.0),
    ] {
        let result = read(CSV, &[("a.csv", text)], &maps(map));
        if right.is_empty() {
            continue;
        }
        let error = result.unwrap_err();
        assert!(error.contains(&format!("--map {}", right[0])) && error.contains("--same-time mean"), "{what}: {error}");
        let both: Vec<&str> = map.iter().chain(right).copied().collect();
        near(
            total(&read(CSV, &[("a.csv", text)], &maps(&both)).unwrap_or_else(|error| panic!("{what}: {error}"))),
            expected,
            what,
        );
        assert!(
            read(CSV, &[("a.csv", text)], &ImportOptions { same_time: Some(SameTimeRule::Mean), ..maps(map) }).is_ok(),
            "{what}"
        );
    }
    let models = turns("timestamp, name, power.draw [W]", &["NVIDIA A100-PCIE-40GB, 100 W", "NVIDIA L4, 50 W"], 500, 42);
    let models = models.replace("2025-02-03T", "2025/02/03 ");
    let error = read(SMI, &[("a.csv", &models)], &ImportOptions::default()).unwrap_err();
    assert!(error.contains("take turns between 2 boards") && error.contains("uuid"), "{error}");
    let by_name = maps(&["time=timestamp", "device=name", "power_watts=power.draw"]);
    assert_eq!(joules(&read(CSV, &[("a.csv", &models)], &by_name).unwrap()).len(), 2);

    // Columns that look alike, of one board.
    let row = |cells: fn(u32) -> String| move |at: u32| format!("{},{}", clock(at), cells(at));
    for (what, text, meter) in [
        ("a utilization", table("time,gpu,power", 200, row(|at| format!("{},100", at * at * 7 % 31 % 6 * 20))), Meter::Gpu),
        ("a number of the row", table("time,index,power", 40, row(|at| format!("{at},100"))), Meter::Gpu),
        ("a job that was moved", table("time,host,power", 40, row(|at| format!("n{},100", at / 20))), Meter::Gpu),
        ("one device", table("time,device,power", 40, row(|_| "cuda:0,100".to_owned())), Meter::Gpu),
        ("what the code does", table("time,name,power", 40, row(|at| format!("op{},100", at % 3))), Meter::Gpu),
        ("a temperature", table("time,gpu_temp,power", 40, row(|at| format!("{},100", 40 + at % 2))), Meter::Gpu),
    ] {
        let options = ImportOptions { meter: Some(meter), ..maps(&["power_watts=power"]) };
        assert!(read(CSV, &[("a.csv", &text)], &options).is_ok(), "{what}: {:?}", read(CSV, &[("a.csv", &text)], &options).err());
    }
}

#[test]
fn a_note_shows_where_counter_and_power_contradict_each_other_and_what_windows_do() {
    let rows = |power: fn(u32) -> u32, counter: fn(u32) -> u32| {
        table("time,power,energy", 120, |at| format!("{}Z,{},{}", clock(at), power(at), counter(at)))
    };
    for (what, text, place) in [
        ("power is frozen", rows(|_| 120, |at| 300 * at), "in 119 of 119 steps, from line 2 on to line 121"),
        ("the counter is slow", rows(|_| 300, |at| 120 * at), "in 119 of 119 steps, from line 2 on to line 121"),
        (
            "the counter is fast later",
            rows(|_| 300, |at| 300 * at + at.saturating_sub(40) * 1200),
            "in 79 of 119 steps, from line 42 on to line 121",
        ),
    ] {
        let options = maps(&["power_watts=power:W", "energy_joules_total=energy:J"]);
        let notes = read(CSV, &[("a.csv", &text)], &options).unwrap().report.notes.join("\n");
        assert!(notes.contains("contradict each other") && notes.contains(place), "{what}: {notes}");
        assert!(notes.contains("neither blindly") && !notes.contains("is believed"), "{what}: {notes}");
    }
}

#[test]
fn an_hour_that_comes_twice_is_refused_whatever_rows_show() {
    let hour = |row: u32| format!("2025-10-26 02:{:02}:00", row % 60);
    let maps_of = |map: &str| maps(&[map]);
    let energy = table("time,n", 120, |row| format!("{},{}", hour(row), 6000 + row % 7));
    let even = table("time,n", 120, |row| format!("{},10", hour(row)));
    let total = table("time,n", 120, |row| format!("{},{}", hour(row), 6000 * row));
    let fine = table("time,n", 7200, |row| format!("{}:{:02},5", &hour(row / 60)[..16], row % 60));
    for (what, text, map) in [
        ("energy of a row", &energy, "energy_joules=n"),
        ("samples of a row", &even, "samples=n"),
        ("rows", &even, "steps=*"),
        ("tokens, each second", &fine, "tokens=n"),
        ("a total", &total, "energy_joules_total=n"),
    ] {
        let error = read(CSV, &[("a.csv", text)], &maps_of(map)).unwrap_err();
        assert!(error.contains("the clock goes back by") && error.contains("--time-zone"), "{what}: {error}");
        let zone = NamedTimeZone::new("CET-1CEST,M3.5.0,M10.5.0/3", |_| None).unwrap();
        let imported = read(CSV, &[("a.csv", text)], &ImportOptions { time_zone: Some(zone), ..maps_of(map) }).unwrap();
        let span = imported.report.last_time.seconds_since(imported.report.first_time);
        assert!((7080.0..=7260.0).contains(&span), "{what}: {span}");
    }
    let sorted = ImportOptions { accept: vec![AcceptedFinding::Unordered], ..maps_of("energy_joules=n") };
    assert!(read(CSV, &[("a.csv", &energy)], &sorted).is_ok());
    let shuffled = table("time,n", 60, |row| format!("{},10", hour(row * 7 % 60)));
    assert!(read(CSV, &[("a.csv", &shuffled)], &maps_of("samples=n")).is_ok(), "rows in no order");
}

#[test]
fn lines_in_another_encoding_and_tables_of_other_columns_are_no_single_row() {
    let row = |second| format!("{}.000, GPU-1, 300 W", smi_clock(second));
    let rows = |from: u32, to: u32| (from..to).map(|second| row(second) + "\r\n").collect::<String>();
    let little = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let head = format!("\u{feff}timestamp, uuid, power.draw [W]\r\n{}", rows(0, 10));
    for (what, bytes) in [
        ("UTF-16, then ASCII", [little(&head), rows(10, 21).into_bytes()].concat()),
        ("UTF-16, ASCII, UTF-16", [little(&head), rows(10, 15).into_bytes(), little(&rows(15, 21))].concat()),
        ("UTF-8, then UTF-16", [head.clone().into_bytes(), little(&rows(10, 21))].concat()),
        ("UTF-8, then UTF-16 with a mark", [head.clone().into_bytes(), little(&format!("\u{feff}{}", rows(10, 21)))].concat()),
    ] {
        let imported = import(SMI, vec![RecordingFile::new("a.csv", bytes.as_slice())], &ImportOptions::default()).unwrap();
        near(total(&imported), 6000.0, what);
        assert!(imported.report.refused.is_empty(), "{what}: {:?}", imported.report.refused);
    }

    let first = |header: &str| table(header, 10, |second| format!("{}Z,300", clock(second)));
    let second = |header: &str, value: &str| table(header, 10, |second| format!("{}Z,{value}", clock(second + 10)));
    for header in ["time,temperature", "Time,Temperature (C)", "timestamp,temp"] {
        let error =
            read(CSV, &[("a.csv", &(first("time,power") + &second(header, "40")))], &maps(&["power_watts=power"])).unwrap_err();
        assert!(
            error.starts_with("a.csv:12: another table begins here") && error.contains("split the file"),
            "{header}: {error}"
        );
    }
    for header in ["time,power", "time,power [W]"] {
        let imported =
            read(CSV, &[("a.csv", &(first("time,power") + &second(header, "300")))], &maps(&["power_watts=power"])).unwrap();
        near(total(&imported), 5700.0, header);
    }
    // A row of texts is no header.
    let other = table("time,power,job", 20, |second| format!("{}Z,300,a", clock(second)));
    let torn = other.replacen("Z,300,a\n", "Z,300,a\nlost,connection,power\n", 1);
    near(total(&read(CSV, &[("a.csv", &torn)], &maps(&["power_watts=power"])).unwrap()), 5700.0, "a cell named as a column");
    for torn in ["nvidia-smi,failed to start", "time,[N/A]", "error: no device,", "-,-"] {
        let text = first("time,power") + torn + "\n" + second("x,y", "300").split_once('\n').unwrap().1;
        near(
            total(
                &read(CSV, &[("a.csv", &text)], &maps(&["power_watts=power"])).unwrap_or_else(|error| panic!("{torn}: {error}")),
            ),
            5700.0,
            torn,
        );
    }
}

#[test]
fn what_is_not_known_is_reported_with_what_would_make_it_known() {
    let smi = |header: &str, cells: &str| table(header, 20, |second| format!("{}.000, GPU-1, {cells}", smi_clock(second)));
    let csv = |header: &str, cells: &str| table(header, 20, |second| format!("{},{cells}", clock(10 * second)));
    let one = table("time,power,temp", 20, |second| format!("{},{},40", clock(second), if second == 5 { "100" } else { "" }));
    for (what, format, text, options, expected) in [
        (
            "no column of power",
            SMI,
            smi("timestamp, uuid, utilization.gpu [%]", "50 %"),
            ImportOptions::default(),
            "--query-gpu=timestamp,uuid,name,power.draw",
        ),
        (
            "all absent",
            SMI,
            smi("timestamp, uuid, power.draw [W], temperature.gpu", "[N/A], 40"),
            ImportOptions::default(),
            "power.draw [W] has no value",
        ),
        (
            "not mapped",
            CSV,
            csv("time,temp,n", "40,1"),
            maps(&["temperature_celsius=temp", "samples=n"]),
            "--map power_watts=COLUMN",
        ),
        (
            "not mapped, and there",
            CSV,
            csv("time,temp,GPU Power", "40,1"),
            maps(&["temperature_celsius=temp"]),
            "--map 'power_watts=GPU Power'",
        ),
        ("progress beside power", CSV, csv("time,n,watts", "1,300"), maps(&["samples=n"]), "--map power_watts=watts"),
        ("one reading", CSV, one, maps(&["power_watts=power", "temperature_celsius=temp"]), "energy needs two"),
    ] {
        let notes = read(format, &[("a.csv", &text)], &options).unwrap().report.notes;
        assert!(
            notes.iter().any(|note| note.starts_with("no energy is known: ") && note.contains(expected)),
            "{what}: {notes:?}"
        );
    }
    for (what, text, options) in [
        ("progress alone", csv("time,n,loss", "1,300"), maps(&["samples=n"])),
        ("power", csv("time,power", "300"), maps(&["power_watts=power"])),
        ("energy", table("time,j", 9, |second| format!("{},{}", clock(second), 300 * second)), maps(&["energy_joules_total=j"])),
    ] {
        let notes = read(CSV, &[("a.csv", &text)], &options).unwrap().report.notes;
        assert!(!notes.iter().any(|note| note.contains("no energy is known")), "{what}: {notes:?}");
    }
    let absent = smi("timestamp, uuid, power.draw [W]", "[N/A]");
    let error = read(SMI, &[("a.csv", &absent)], &ImportOptions::default()).unwrap_err();
    assert!(error.contains("no reading found in 20 rows") && error.contains("every value is absent (20 in all)"), "{error}");
}

/// An answer of `query_range`: series of power, each of labels, a value, and when it begins, ends and steps, in seconds.
fn matrix(series: &[(&str, f64, [u32; 3])]) -> String {
    let one = |(labels, watts, [from, to, step]): &(&str, f64, [u32; 3])| {
        let labels: Vec<String> = labels
            .split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| format!(r#""{name}":"{value}""#))
            .collect();
        let values: Vec<String> =
            (*from..=*to).step_by(*step as usize).map(|at| format!(r#"[{},"{watts}"]"#, 1_738_576_800 + at)).collect();
        format!(r#"{{"metric":{{"__name__":"DCGM_FI_DEV_POWER_USAGE",{}}},"values":[{}]}}"#, labels.join(","), values.join(","))
    };
    let series: Vec<String> = series.iter().map(one).collect();
    format!(r#"{{"status":"success","data":{{"resultType":"matrix","result":[{}]}}}}"#, series.join(","))
}

#[test]
fn a_board_that_changes_hands_does_not_end() {
    let pod = |name: &str| format!("gpu=0,UUID=GPU-aa,Hostname=n1,exported_namespace=lab,exported_pod={name}");
    let (a, b) = (pod("a"), pod("b"));
    let nobody = "gpu=0,UUID=GPU-aa,Hostname=n1";
    let other = "gpu=1,UUID=GPU-bb,Hostname=n1,exported_namespace=lab,exported_pod=c";
    let ends = |series: &[(&str, f64, [u32; 3])]| {
        let imported = read(RecordingFormat::Prometheus, &[("p.json", &matrix(series))], &ImportOptions::default()).unwrap();
        imported.report.notes.iter().any(|note| note.contains("no energy is known after"))
    };
    for (what, series, expected) in [
        ("from a to b", vec![(a.as_str(), 300.0, [0, 90, 15]), (&b, 300.0, [105, 300, 15])], false),
        ("from a to nobody", vec![(&a, 300.0, [0, 90, 15]), (nobody, 60.0, [105, 300, 15]), (other, 300.0, [0, 300, 15])], false),
        ("it ends", vec![(&a, 300.0, [0, 90, 15]), (other, 300.0, [0, 300, 15])], true),
    ] {
        assert_eq!(ends(&series), expected, "{what}");
    }
}

#[test]
fn series_of_one_name_in_two_places_are_two_boards() {
    let labels = |place: &str| format!("gpu=0,{place}");
    for (what, a, b, starts, watts, expected) in [
        ("4 s apart", "Hostname=n1,cluster=x", "Hostname=n1,cluster=y", [0, 4], [300.0, 100.0], 60_000.0),
        ("at one time", "Hostname=n1,cluster=x", "Hostname=n1,cluster=y", [0, 0], [300.0, 100.0], 60_000.0),
        ("equal values", "instance=x:1,nodename=n1", "instance=x:1,nodename=n2", [0, 0], [300.0, 300.0], 90_000.0),
        ("equal values, 4 s apart", "Hostname=n1,region=x", "Hostname=n1,region=y", [0, 4], [300.0, 300.0], 90_000.0),
        ("a label that was changed", "Hostname=n1,cluster=x", "Hostname=n1,cluster=y", [0, 165], [300.0, 300.0], 94_500.0),
        (
            "one UUID, 4 s apart",
            "UUID=GPU-1,Hostname=n1,cluster=x",
            "UUID=GPU-1,Hostname=n1,cluster=y",
            [0, 4],
            [300.0, 300.0],
            46_200.0,
        ),
    ] {
        let (a, b) = (labels(a), labels(b));
        let text = matrix(&[(&a, watts[0], [starts[0], starts[0] + 150, 15]), (&b, watts[1], [starts[1], starts[1] + 150, 15])]);
        let imported = read(
            RecordingFormat::Prometheus,
            &[("p.json", &text)],
            &ImportOptions { workload: Some("lab/a".to_owned()), ..ImportOptions::default() },
        )
        .unwrap();
        near(total(&imported), expected, what);
    }
}

#[test]
fn a_board_without_an_id_that_is_scraped_twice_is_one() {
    let scraped = |late: u32, watts: &dyn Fn(u32, bool) -> f64| -> String {
        let of = |job: &str, offset: u32, is_second: bool| {
            let row = |at: u32| {
                let at = 15 * at + offset;
                let (labels, stamp) =
                    (format!("{{gpu=\"0\",Hostname=\"n1\",cluster=\"{job}\"}}"), 1_738_576_800_000 + 1000 * u64::from(at));
                format!(
                    "DCGM_FI_DEV_POWER_USAGE{labels} {} {stamp}\nDCGM_FI_DEV_POWER_MGMT_LIMIT{labels} 300 {stamp}\n\
                     DCGM_FI_DEV_GPU_TEMP{labels} 40 {stamp}\n",
                    watts(at, is_second)
                )
            };
            (0..=40).map(row).collect::<String>()
        };
        of("x", 0, false) + &of("y", late, true)
    };
    let wave = |at: u32| 200.0 + (100.0 * (f64::from(at) / 40.0).sin()).round();
    let options = ImportOptions { workload: Some("lab/a".to_owned()), ..ImportOptions::default() };
    for (what, late, watts, boards, is_unknown) in [
        ("at one time", 0, &(|at, _| wave(at)) as &dyn Fn(u32, bool) -> f64, 1, false),
        ("in between", 4, &|at, _| wave(at), 1, false),
        ("of other power", 0, &|at, second| wave(at) + if second { 1.0 } else { 0.0 }, 2, false),
        ("of other power, in between", 4, &|at, second| if second { 90.0 } else { wave(at) + 100.0 }, 2, false),
        ("constant", 0, &|_, _| 300.0, 2, true),
        ("constant, in between", 4, &|_, _| 300.0, 2, true),
    ] {
        let imported = read(RecordingFormat::Prometheus, &[("p.prom", &scraped(late, watts))], &options).unwrap();
        assert_eq!(joules(&imported).len(), boards, "{what}: {:?}", imported.report.notes);
        let noted = imported.report.notes.iter().any(|note| note.contains("nothing that varies shows"));
        assert_eq!(noted, is_unknown, "{what}: {:?}", imported.report.notes);
    }
}

#[test]
fn boards_with_an_id_may_be_read_in_bursts() {
    let row = |row: u32| format!("{}Z,GPU-0123456789,300", clock(60 * (row / 10) + row % 10));
    let text = table("time,uuid,p", 100, row);
    assert!(read(CSV, &[("a.csv", &text)], &maps(&["power_watts=p", "device=uuid"])).is_ok());
    let smi = table("timestamp, uuid, power.draw [W]", 100, |row| {
        format!("{}.000, GPU-0123456789, 300 W", smi_clock(60 * (row / 10) + row % 10))
    });
    assert!(read(SMI, &[("a.csv", &smi)], &ImportOptions::default()).is_ok());
    assert!(read(CSV, &[("a.csv", &text)], &maps(&["power_watts=p"])).unwrap_err().contains("close together"));
}

#[test]
fn an_hour_that_comes_twice_is_not_resolved_by_the_file_of_another_board() {
    let log = |board: &str, minute: u32| {
        table("time,board,p", 20, |row| format!("2024-10-27 {:02}:{:02}:{:02},{board},300", 1 + minute / 60, minute % 60, row))
    };
    let options = |files_are| ImportOptions {
        time_zone: Some(NamedTimeZone::new("CET-1CEST,M3.5.0,M10.5.0/3", |_| None).unwrap()),
        files_are,
        ..maps(&["power_watts=p", "device=board"])
    };
    // The first ends at 01:59:59, the second begins at 02:00:30, in the hour that comes twice.
    let first = log("GPU-00000001", 59);
    let second = |board: &str| log(board, 60);
    let read = |board: &str, files_are| read(CSV, &[("a.csv", &first), ("b.csv", &second(board))], &options(files_are));
    assert!(read("GPU-00000001", None).is_ok());
    assert!(read("GPU-00000001", Some(FileSetKind::Nodes)).unwrap_err().contains("comes twice"));
    assert!(read("GPU-00000002", None).unwrap_err().contains("comes twice"));
}

#[test]
fn totals_of_several_files_over_one_time_are_not_one_counter() {
    let log = |milliseconds: u32, from: u32, rows: u32, step: u32| {
        table("time,n", rows, |row| format!("{}.{milliseconds:03},{}", clock(from + row), step * (from + row)))
    };
    let read_two = |a: &str, b: &str, files_are| {
        read(CSV, &[("r0.csv", a), ("r1.csv", b)], &ImportOptions { files_are, ..maps(&["samples_total=n"]) })
    };
    for (what, a, b) in [
        ("0.3 s apart", log(0, 0, 11, 10), log(300, 0, 11, 12)),
        ("at one time", log(0, 0, 11, 10), log(0, 0, 11, 12)),
        ("one begins later", log(0, 0, 11, 10), log(0, 5, 6, 12)),
    ] {
        let error = read_two(&a, &b, None).unwrap_err();
        assert!(error.starts_with("r1.csv:2: samples_total is counted over the same time in r0.csv"), "{what}: {error}");
        assert!(error.contains("--files-are nodes") && error.contains("--files-are parts"), "{what}: {error}");
        let ranks = progress(&read_two(&a, &b, Some(FileSetKind::Nodes)).unwrap());
        let of = |rank: u32| -> f64 {
            let own: Vec<f64> = ranks.iter().filter(|row| row.rank == rank).filter_map(|row| row.samples_total).collect();
            own[own.len() - 1] - own[0]
        };
        assert!(ranks.iter().all(|row| row.scope == CounterScope::Rank), "{what}");
        near(of(0) + of(1), if what == "one begins later" { 160.0 } else { 220.0 }, what);
        assert!(read_two(&a, &b, Some(FileSetKind::Parts)).is_ok(), "{what}");
    }
    for (what, a, b, expected) in [
        ("parts of one log", log(0, 0, 11, 10), log(0, 11, 10, 10), 200.0),
        ("parts that share a row", log(0, 0, 11, 10), log(0, 10, 11, 10), 200.0),
        ("parts that share some rows", log(0, 0, 11, 10), log(0, 8, 13, 10), 200.0),
        ("a copy", log(0, 0, 11, 10), log(0, 0, 11, 10), 100.0),
    ] {
        near(samples(&read_two(&a, &b, None).unwrap_or_else(|error| panic!("{what}: {error}"))), expected, what);
    }
    // A total that both report is the whole job's.
    let (a, b) = (log(0, 0, 11, 10), log(300, 0, 11, 10));
    let imported = read_two(&a, &b, Some(FileSetKind::Nodes)).unwrap();
    near(samples(&imported), 100.0, "one total, reported by two");
    assert!(progress(&imported).iter().all(|row| row.scope == CounterScope::Global));
    assert!(imported.report.notes.iter().any(|note| note.contains("the same in r0.csv, r1.csv")), "{:?}", imported.report.notes);
    // What rows add is summed, whosever it is.
    let each = |milliseconds: u32| table("time,n", 10, |row| format!("{}.{milliseconds:03},10", clock(row)));
    near(
        samples(&read(CSV, &[("a.csv", &each(0)), ("b.csv", &each(300))], &maps(&["samples=n"])).unwrap()),
        200.0,
        "what rows add",
    );
}

#[test]
fn small_silences_are_reported() {
    // A batch size that changed.
    let entry = |time: u64, key: &str, value: &str, metadata: &str| {
        format!(
            ":::MLLOG {{\"namespace\": \"\", \"time_ms\": {time}, \"event_type\": \"POINT\", \"key\": \"{key}\", \"value\": {value}, \"metadata\": {metadata}}}\n"
        )
    };
    let log = |second: &str| {
        let t = 1_738_576_800_000;
        entry(t, "global_batch_size", "256", "{}")
            + &entry(t, "run_start", "null", "{}")
            + &entry(t + 300_000, "global_batch_size", second, "{}")
            + &entry(t + 600_000, "run_stop", "null", "{\"step_num\": 200}")
    };
    let notes = |second| {
        read(RecordingFormat::Mlperf, &[("result_0.txt", &log(second))], &ImportOptions::default())
            .unwrap()
            .report
            .notes
            .join("\n")
    };
    assert!(notes("512").contains("global_batch_size is 256, and 512 at line 3"), "{}", notes("512"));
    assert!(!notes("256").contains("global_batch_size is"), "{}", notes("256"));

    // Rows of MIG instances, and boards that have not the same number of rows.
    let dmon = ImportOptions { interval: Some(std::time::Duration::from_secs(1)), ..ImportOptions::default() };
    let instances = "#Entity   POWER  TOTEC\nID          W      mJ\nGPU-I 0/0   100  1000000\nGPU-I 0/1   100  1000000\n";
    let error = read(RecordingFormat::Dcgmi, &[("d.txt", instances)], &dmon).unwrap_err();
    assert!(error.starts_with("d.txt:3: all rows are of MIG instances") && error.contains("dcgmi dmon -i"), "{error}");
    let rows = |second: u32| {
        format!("GPU 0   {}\n{}", 100 + second, if second < 3 { format!("GPU 1   {}\n", 200 + second) } else { String::new() })
    };
    let uneven = format!("#Entity   POWER\nID          W\n{}", (0..5).map(rows).collect::<String>());
    let notes = read(RecordingFormat::Dcgmi, &[("d.txt", &uneven)], &dmon).unwrap().report.notes.join("\n");
    assert!(notes.contains("d.txt: boards have 3 to 5 rows"), "{notes}");

    // A rotated log that goes on within the hour that comes twice.
    let part = |from: u32, to: u32| -> String {
        let row = |ten: u32| format!("2025/10/26 02:{:02}:{:02}.000, 0, 100 W\n", ten / 6 % 60, ten % 6 * 10);
        "timestamp, index, power.draw [W]\n".to_owned() + &(from..to).map(row).collect::<String>()
    };
    let berlin = ImportOptions {
        time_zone: Some(NamedTimeZone::new("CET-1CEST,M3.5.0,M10.5.0/3", |_| None).unwrap()),
        ..ImportOptions::default()
    };
    let (a, b) = (part(0, 540), part(540, 720));
    let imported = read(SMI, &[("a.csv", &a), ("b.csv", &b)], &berlin).unwrap();
    near(imported.report.last_time.seconds_since(imported.report.first_time), 7190.0, "a rotated log");
    near(total(&imported), 719_000.0, "a rotated log");
    let error = read(SMI, &[("b.csv", &b), ("a.csv", &a)], &berlin).unwrap_err();
    assert!(error.contains("give that file before it"), "{error}");
}

/// A log of nvidia-smi of two boards of 100 W and 300 W over ten seconds from `from` on; `ids` are the cells that name a board.
fn two_boards(header: &str, from: u32, ids: impl Fn(u32, u32) -> String) -> String {
    table(&format!("timestamp, {header}, power.draw.instant [W]"), 22, |row| {
        let (second, board) = (row / 2, row % 2);
        format!("{}.000, {}, {} W", smi_clock(from + second), ids(second, board), 100 + 200 * board)
    })
}

#[test]
fn a_board_whose_uuid_comes_later_is_one_board() {
    let uuid = |is_known: bool, board: u32| if is_known { format!("GPU-{board}aaaaaaa-1") } else { "[N/A]".to_owned() };
    let by_index = |second: u32, board: u32| format!("{board}, {}", uuid(second >= 3, board));
    let by_bus = |second: u32, board: u32| format!("0{board}:00.0, {}", uuid(second >= 3, board));
    let gone = |second: u32, board: u32| format!("{board}, {}", uuid(!(3..6).contains(&second), board));
    let third = |second: u32, board: u32| {
        let bus = if second < 3 { "[N/A]".to_owned() } else { format!("0{board}:00.0") };
        format!("{board}, {bus}, {}", uuid(second >= 6, board))
    };
    let always = |_: u32, board: u32| format!("{board}, {}", uuid(true, board));
    let with_uuid = "index, uuid";
    for (what, files, expected) in [
        ("after the index", vec![two_boards(with_uuid, 0, by_index)], 4000.0),
        ("after the bus id", vec![two_boards("pci.bus_id, uuid", 0, by_bus)], 4000.0),
        ("gone for a while", vec![two_boards(with_uuid, 0, gone)], 4000.0),
        ("after the index, then the bus id", vec![two_boards("index, pci.bus_id, uuid", 0, third)], 4000.0),
        ("known from a file before", vec![two_boards(with_uuid, 0, always), two_boards(with_uuid, 11, by_index)], 8400.0),
    ] {
        let names = ["a.csv", "b.csv"];
        let files: Vec<(&str, &str)> = names.into_iter().zip(files.iter().map(String::as_str)).collect();
        let imported = read(SMI, &files, &ImportOptions::default()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let boards: Vec<String> = joules(&imported).into_iter().map(|(board, _)| board).collect();
        assert_eq!(boards, ["GPU-0aaaaaaa-1", "GPU-1aaaaaaa-1"], "{what}");
        near(total(&imported), expected, what);
    }
    // Logs of two nodes behind one another, over the same time: the index of the first is no board of the second.
    let first = two_boards("index", 0, |_, board| board.to_string());
    let both = first + &two_boards(with_uuid, 5, always);
    let imported = read(SMI, &[("a.csv", &both)], &ImportOptions::default()).unwrap();
    assert_eq!(joules(&imported).len(), 4);
    near(total(&imported), 8000.0, "two nodes");
}

#[test]
fn rows_of_a_table_without_the_id_that_others_have_are_refused() {
    let of = |id: &dyn Fn(u32) -> &'static str| table("time,board,p", 11, |row| format!("{}Z,{},300", clock(row), id(row)));
    let options = maps(&["power_watts=p", "device=board"]);
    for (what, id, lines) in [
        ("blank", &(|row: u32| if row < 3 { "" } else { "gpu0" }) as &dyn Fn(u32) -> &'static str, 3_u32),
        ("no UUID", &|row: u32| if row < 3 { "[N/A]" } else { "GPU-0aaaaaaa-1111" }, 3),
        ("none has one", &|_| "N/A", 0),
        ("a name in brackets", &|_| "[0]", 0),
    ] {
        let imported = read(CSV, &[("a.csv", &of(id))], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(joules(&imported).len(), 1, "{what}");
        near(total(&imported), 300.0 * f64::from(10 - lines), what);
        let refused: u64 = imported.report.refused.iter().map(|refused| refused.lines).sum();
        assert_eq!(refused, u64::from(lines), "{what}: {:?}", imported.report.refused);
    }
    // A row that sums the boards up would count them twice.
    let sums = table("time,board,p", 33, |row| {
        let (board, watts) = [("gpu0", 100), ("gpu1", 300), ("", 400)][row as usize % 3];
        format!("{}Z,{board},{watts}", clock(row / 3))
    });
    let imported = read(CSV, &[("a.csv", &sums)], &options).unwrap();
    near(total(&imported), 4000.0, "sums");
    assert_eq!((imported.report.refused[0].lines, imported.report.refused[0].first_line), (11, 4));
}
