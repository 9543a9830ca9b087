//! Boards beside their total, their mean or their twin, and boards without an id in turn: energy counts once, or the import stops.

use eadt_recordings::{AcceptedFinding, ImportOptions, ImportedRecording, RecordingFormat, SameTimeRule};
use eadt_schemas::v1::{GpuTelemetry, Meter};

use crate::support::{maps, near, read_texts, telemetry};

const ROWS: u32 = 121;

/// Joules of all devices, the trapezoid over power.
fn joules(imported: &ImportedRecording) -> f64 {
    let rows = telemetry(imported);
    let mut devices: Vec<&str> = rows.iter().map(|row| row.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let step = |pair: &[&GpuTelemetry]| {
        let watts = pair[0].power_watts.zip(pair[1].power_watts).map_or(0.0, |(a, b)| f64::midpoint(a, b));
        watts * pair[1].time.seconds_since(pair[0].time)
    };
    let of_device = |device: &&str| {
        let own: Vec<&GpuTelemetry> = rows.iter().filter(|row| row.device == *device).collect();
        own.windows(2).map(step).sum::<f64>()
    };
    devices.iter().map(of_device).sum()
}

fn clock(milliseconds: u32) -> String {
    let seconds = milliseconds / 1000;
    format!("2025-02-03T10:{:02}:{:02}.{:03}Z", seconds / 60, seconds % 60, milliseconds % 1000)
}

/// Power of a board of a job, in watts: phases that all boards have, and a noise of its own.
fn board(own: u32, row: u32) -> f64 {
    let noise = (row * (7 * own + 13) + row * row * (own + 3)) % 31;
    200.0 + 10.0 * f64::from(own) + 150.0 * f64::from(row / 10 % 2) + f64::from(noise)
}

/// A table with a column for each of four boards, and one of another figure.
fn wide(figure: impl Fn(u32) -> String) -> String {
    let row = |row: u32| {
        let boards: Vec<String> = (0..4).map(|own| format!("{:.1}", board(own, row))).collect();
        format!("{},{},{}\n", clock(1000 * row), boards.join(","), figure(row))
    };
    format!("time,p_a,p_b,p_c,p_d,p_e\n{}", (0..ROWS).map(row).collect::<String>())
}

fn sum(parts: &[u32], row: u32) -> f64 {
    parts.iter().map(|own| board(*own, row)).sum()
}

fn import(text: &str, options: &ImportOptions) -> Result<ImportedRecording, String> {
    read_texts(RecordingFormat::Csv, &[("t.csv", text)], options)
}

fn has_note(imported: &ImportedRecording, part: &str) -> bool {
    imported.report.notes.iter().any(|note| note.contains(part))
}

const ALL: [u32; 4] = [0, 1, 2, 3];

/// What it is, the column beside those of four boards, and the note of it.
type Totals<'a> = (&'a str, &'a dyn Fn(u32) -> String, &'a str);

#[test]
fn totals_beside_their_boards_count_once() {
    let power = maps(&["power_watts=p_{x}:W"]);
    let boards = import(&wide(|_| String::new()), &power).unwrap();
    let alone = joules(&boards);
    let cases: [Totals<'_>; 4] = [
        ("one row late", &|row| format!("{:.1}", sum(&ALL, row.saturating_sub(1))), ":d, one reading later, in 120 of 121 rows"),
        ("every second board", &|row| format!("{:.1}", sum(&[0, 2], row)), "is the sum of that of"),
        ("the mean", &|row| format!("{:.2}", sum(&ALL, row) / 4.0), "is the mean of that of"),
        ("in tenths of a kilowatt", &|row| format!("{:.0}00", sum(&ALL, 7 * row % ROWS) / 100.0), ""),
    ];
    for (what, figure, note) in cases {
        let imported = import(&wide(figure), &power).unwrap();
        let is_total = !note.is_empty();
        assert_eq!(has_note(&imported, "it is left out"), is_total, "{what}: {:?}", imported.report.notes);
        assert!(has_note(&imported, note) || !is_total, "{what}: {:?}", imported.report.notes);
        assert_eq!((joules(&imported) - alone).abs() < 1e-6 * alone, is_total, "{what}");
    }
    // Rows of devices whose times differ by milliseconds.
    let row = |row: u32| {
        let boards = ALL.map(|own| format!("{},b{own},{:.1}\n", clock(1000 * row + 13 * own), board(own, row)));
        format!("{}{},rest,{:.1}\n", boards.concat(), clock(1000 * row + 60), sum(&ALL, row))
    };
    let long = format!("time,dev,w\n{}", (0..ROWS).map(row).collect::<String>());
    let imported = import(&long, &maps(&["device=dev", "power_watts=w:W"])).unwrap();
    near(joules(&imported), alone, "one after the other");
}

#[test]
fn a_row_of_all_boards_is_refused_by_its_name() {
    let watts = |own: u32, row: u32| 100 + 40 * own + (row * (7 + own)) % 23;
    let table = |rows: u32, total: Option<&str>, watts: &dyn Fn(u32, u32) -> u32| {
        let of_row = |row: u32| {
            let time = clock(5000 * row);
            let total = total.map_or_else(String::new, |name| format!("{time},{name},{}\n", watts(0, row) + watts(1, row)));
            format!("{total}{time},0,{}\n{time},1,{}\n", watts(0, row), watts(1, row))
        };
        format!("time,dev,w\n{}", (0..rows).map(of_row).collect::<String>())
    };
    let power = ImportOptions { meter: Some(Meter::Node), ..maps(&["device=dev", "power_watts=w:W"]) };
    let totals = ["-", "--", "*", "None", "NA", "Total", "grand total", "combined", "Summe", "gesamt", "合計", "合计"];
    let boards = ["alloy", "combiner", "none-1", "grand", "rack"];
    let steady = |own: u32, _: u32| watts(own, 0);
    let kinds = [("few rows", 6, &watts as &dyn Fn(u32, u32) -> u32), ("steady power", 60, &steady)];
    for (what, rows, watts) in kinds {
        let alone = joules(&import(&table(rows, None, watts), &power).unwrap());
        for (name, is_total) in totals.map(|name| (name, true)).into_iter().chain(boards.map(|name| (name, false))) {
            let imported = import(&table(rows, Some(name), watts), &power).unwrap();
            let refused: u64 = imported.report.refused.iter().map(|refused| refused.lines).sum();
            near(joules(&imported), if is_total { alone } else { 2.0 * alone }, &format!("{what}, {name}"));
            assert_eq!(refused, if is_total { u64::from(rows) } else { 0 }, "{what}, {name}");
        }
    }
}

#[test]
fn a_meter_with_losses_beside_its_boards_stops_the_import() {
    let text = wide(|row| format!("{:.1}", 1.04 * sum(&ALL, row) + 37.0));
    let power = maps(&["power_watts=p_{x}:W"]);
    let error = import(&text, &power).map(|imported| joules(&imported)).unwrap_err();
    assert!(error.contains(":e: power_watts follows the sum of that of") && error.contains("(× 1.04 + 37 W)"), "{error}");
    let meant = ImportOptions { accept: vec![AcceptedFinding::Sums], ..power };
    assert_eq!(import(&text, &meant).unwrap().report.boards.len(), 5);
}

#[test]
fn boards_of_one_job_and_idle_boards_all_count() {
    let power = maps(&["power_watts=p_{x}:W"]);
    let cases: [Totals<'_>; 3] = [
        ("one that draws what two others do", &|row| format!("{:.1}", 2.0 * board(5, row) - 100.0), ""),
        ("one that idles", &|_| "55".to_owned(), ""),
        ("one that draws as much", &|row| format!("{:.1}", board(1, row + 40)), ""),
    ];
    for (what, figure, _) in cases {
        let imported = import(&wide(figure), &power).unwrap();
        assert_eq!(imported.report.boards.len(), 5, "{what}");
        assert!(imported.report.notes.is_empty(), "{what}: {:?}", imported.report.notes);
    }
}

#[test]
fn boards_of_one_table_with_the_same_readings_are_noted() {
    let note = "has the same readings of power as";
    let power = maps(&["device=gpu", "power_watts=w:W"]);
    let rows = |boards: u32, watts: &dyn Fn(u32, u32) -> f64| -> String {
        let row = |row: u32| {
            (0..boards).map(|own| format!("{},{own},{:.1}\n", clock(1000 * row), watts(own, row))).collect::<Vec<_>>().concat()
        };
        format!("time,gpu,w\n{}", (0..ROWS).map(row).collect::<String>())
    };
    let twins = import(&rows(2, &|_, row| board(0, row)), &power).unwrap();
    assert!(has_note(&twins, note) && has_note(&twins, "in 121 rows"), "{:?}", twins.report.notes);
    assert_eq!(twins.report.boards.len(), 2);
    for (what, text) in [
        ("other boards", rows(2, &board)),
        ("idle boards", rows(8, &|_, _| 55.0)),
        ("square waves", rows(8, &|_, row| [100.0, 300.0][(row / 4 % 2) as usize])),
    ] {
        let imported = import(&text, &power).unwrap();
        assert!(!has_note(&imported, note), "{what}: {:?}", imported.report.notes);
    }
}

#[test]
fn boards_in_turn_are_found_and_kept_apart_over_blank_doubled_and_lost_rows() {
    let power = |same_time| ImportOptions { same_time, ..maps(&["power_watts=w:W"]) };
    let watts = |row: u32| [300.0, 100.0][(row % 2) as usize] + f64::from(row / 2 * 37 % 13);
    let lines: Vec<String> = (0..2 * ROWS).map(|row| format!("{},{:.1}\n", clock(500 * row), watts(row))).collect();
    let table = |change: fn(&mut Vec<String>)| {
        let mut lines = lines.clone();
        change(&mut lines);
        format!("time,w\n{}", lines.concat())
    };
    for (what, text) in [
        ("a blank cell", table(|lines| lines[101] = format!("{},\n", clock(50_500)))),
        ("a row twice", table(|lines| lines.insert(102, lines[101].clone()))),
        ("a row of the first board lost", table(|lines| drop(lines.remove(100)))),
        ("a row of the second board lost", table(|lines| drop(lines.remove(101)))),
        ("three rows lost", table(|lines| drop(lines.drain(100..103)))),
    ] {
        let error = import(&text, &power(None)).map(|imported| joules(&imported)).unwrap_err();
        assert!(error.contains("take turns between 2 boards"), "{what}: {error}");
        let imported = import(&text, &power(Some(SameTimeRule::Boards))).unwrap_or_else(|error| panic!("{what}: {error}"));
        let rows = telemetry(&imported);
        for (board, levels) in [(":gpu-0", 300.0..320.0), (":gpu-1", 100.0..120.0)] {
            let own: Vec<f64> =
                rows.iter().filter(|row| row.device.as_str().ends_with(board)).filter_map(|row| row.power_watts).collect();
            assert!(own.len() >= 118 && own.iter().all(|watts| levels.contains(watts)), "{what}, {board}: {own:?}");
        }
    }
    // Behind a pause a single row may be of either board.
    let text = table(|lines| {
        let behind = [170, 175, 176].map(|half: u32| format!("{},110.0\n", clock(500 * half)));
        lines.truncate(120);
        lines.extend(behind);
    });
    let error = import(&text, &power(Some(SameTimeRule::Boards))).map(|imported| joules(&imported)).unwrap_err();
    assert!(error.starts_with("t.csv:122: ") && error.contains("neither time nor power shows"), "{error}");
}

#[test]
fn rows_that_repeat_the_reading_of_their_time_are_of_one_board() {
    let power = ImportOptions { meter: Some(Meter::Node), ..maps(&["power_watts=PkgWatt:W"]) };
    let table = |rows: u32, microseconds: u32, watts: &dyn Fn(u32, u32) -> u32| {
        let of_row = |row: u32| {
            let second = 1_738_576_800 + 5 * row;
            let all = format!("{second}.000000\t-\t{}\n", watts(0, row));
            format!("{all}{second}.{microseconds:06}\t0\t{}\n", watts(1, row))
        };
        format!("time\tCore\tPkgWatt\n{}", (0..rows).map(of_row).collect::<String>())
    };
    let unix = ImportOptions { time_format: Some("unix".parse().unwrap()), ..power };
    let wave = |row: u32| 150 + row * 7 % 23;
    let expected: f64 = (0..59).map(|row| 2.5 * f64::from(wave(row) + wave(row + 1))).sum();
    for microseconds in [0, 100] {
        let imported = import(&table(60, microseconds, &|_, row| wave(row)), &unix).unwrap();
        let whole = joules(&imported);
        assert!((whole / expected - 1.0).abs() < 1e-3, "{microseconds} µs apart: {whole} instead of {expected}");
        assert_eq!(imported.report.boards.len(), 1);
    }
    for (what, text) in [
        ("other power", table(60, 0, &|own, row| wave(row) + own)),
        ("steady power", table(60, 0, &|_, _| 55)),
        ("two levels", table(60, 100, &|_, row| [100, 300][(row / 4 % 2) as usize])),
        ("few rows", table(8, 100, &|_, row| wave(row))),
    ] {
        let error = import(&text, &unix).map(|imported| joules(&imported)).unwrap_err();
        assert!(error.contains("come close together"), "{what}: {error}");
    }
}

#[test]
fn two_boards_without_an_id_in_turn_are_no_board_of_their_mean() {
    let power = |same_time| ImportOptions { same_time, ..maps(&["power_watts=w:W"]) };
    let table = |offset: u32, watts: &dyn Fn(u32, u32) -> f64| -> String {
        let row = |row: u32| [0, 1].map(|own| format!("{},{:.1}\n", clock(1000 * row + offset * own), watts(own, row))).concat();
        format!("time,w\n{}", (0..ROWS).map(row).collect::<String>())
    };
    let wave = |row: u32, rows: f64| 300.0 + 80.0 * (f64::from(row) / rows * std::f64::consts::TAU).sin();
    for (what, text) in [
        ("every half second", table(500, &|own, row| [300.0, 100.0][own as usize] + f64::from(row * 37 % 13))),
        ("0.4 s and 0.6 s apart", table(400, &|own, row| wave(row, [13.0, 14.0][own as usize]))),
    ] {
        let error = import(&text, &power(None)).map(|imported| joules(&imported)).unwrap_err();
        assert!(error.contains("t.csv:3: rows without the id of a board take turns between 2 boards"), "{what}: {error}");
        assert_eq!(import(&text, &power(Some(SameTimeRule::Boards))).unwrap().report.boards.len(), 2, "{what}");
        assert_eq!(import(&text, &power(Some(SameTimeRule::Mean))).unwrap().report.boards.len(), 1, "{what}");
    }
    // Something else may take turns, as a column shows that is not used.
    let text = table(500, &|own, row| [300.0, 100.0][own as usize] + f64::from(row * 37 % 13));
    let lines = text
        .lines()
        .enumerate()
        .map(|(at, line)| format!("{line},{}\n", if at == 0 { "it".to_owned() } else { (at % 2).to_string() }));
    let noted = import(&lines.collect::<Vec<_>>().concat(), &power(None)).unwrap().report;
    assert!(
        noted.boards.len() == 1 && noted.notes.iter().any(|note| note.contains("may be those of 2 boards")),
        "{:?}",
        noted.notes
    );
    let phases = table(500, &|own, row| [300.0, 100.0][((row + own / 2) % 2) as usize]);
    assert_eq!(import(&phases, &power(None)).unwrap().report.boards.len(), 1, "phases of two rows");
}

/// A board, the column of its counter, and what that counts in a row, in kWh.
type Register<'a> = (&'a str, &'a str, &'a dyn Fn(f64) -> f64);
/// What it is, its registers, the note of it, and the boards that count.
type Registers<'a> = (&'a str, [Register<'a>; 3], &'a str, usize);

fn import_registers(registers: &[Register<'_>]) -> ImportedRecording {
    let columns: Vec<&str> = registers.iter().map(|(_, column, _)| *column).collect();
    let row = |row: u32| {
        let counts: Vec<String> = registers.iter().map(|(.., count)| format!("{:.2}", count(f64::from(row)))).collect();
        format!("{},{}\n", clock(60_000 * row), counts.join(","))
    };
    let text = format!("time,{}\n{}", columns.join(","), (0..60).map(row).collect::<String>());
    let mapped: Vec<String> =
        registers.iter().map(|(board, column, _)| format!("energy_joules_total[{board}]={column}:kWh")).collect();
    let mapped: Vec<&str> = mapped.iter().map(String::as_str).collect();
    let options = ImportOptions { meter: Some(Meter::Node), ..maps(&mapped) };
    import(&text, &options).unwrap_or_else(|error| panic!("{mapped:?}: {error}"))
}

#[test]
fn a_total_of_even_rises_is_known_by_its_name_and_numbers() {
    const BY_NAME: &str = "is by its name the total of";
    const BY_NUMBERS: &str = "it may be their total";
    let level = |from: f64, each: f64| move |row: f64| from + each * row;
    let (one, two, all) = (level(100.0, 0.02), level(200.0, 0.01), level(300.0, 0.03));
    let (at_day, at_night) = (|row: f64| 100.0 + 0.03 * row.min(30.0), |row: f64| 200.0 + 0.03 * (row - 30.0).max(0.0));
    let (later, other, constant) = (level(812.5, 0.03), level(300.0, 0.05), level(200.0, 0.0));
    let (low, middle, high) = (level(0.0, 0.01), level(0.0, 0.02), level(0.0, 0.03));
    let cases: [Registers<'_>; 15] = [
        ("a board", [("T1", "a", &one), ("T2", "b", &two), ("import", "c", &all)], BY_NAME, 2),
        ("one letter", [("T", "c", &all), ("T1", "a", &one), ("T2", "b", &two)], BY_NAME, 2),
        ("a column", [("a", "Meter 5 Total", &all), ("b", "Meter 5 T1", &one), ("c", "Meter 5 T2", &two)], BY_NAME, 2),
        ("a column at its end", [("a", "kWh total", &all), ("b", "kWh T1", &one), ("c", "kWh T2", &two)], BY_NAME, 2),
        ("no name", [("a", "Energy", &all), ("b", "Energy T1", &one), ("c", "Energy T2", &two)], BY_NAME, 2),
        ("OBIS", [("a", "1.8.0", &all), ("b", "1.8.1", &one), ("c", "1.8.2", &two)], BY_NAME, 2),
        ("one rises at a time", [("1.8.1", "a", &at_day), ("1.8.2", "b", &at_night), ("1.8.0", "c", &all)], BY_NAME, 2),
        ("one rises", [("T1", "a", &later), ("T2", "b", &constant), ("import", "c", &all)], BY_NAME, 2),
        ("another count", [("import", "c", &later), ("T1", "a", &one), ("T2", "b", &two)], BY_NAME, 2),
        // Boards.
        ("three boards that are capped", [("a", "x", &low), ("b", "y", &middle), ("c", "z", &high)], BY_NUMBERS, 3),
        ("tariffs", [("T1", "a", &one), ("T2", "b", &two), ("T3", "c", &all)], BY_NUMBERS, 3),
        ("other words", [("sumit-3", "a", &low), ("alloy", "b", &middle), ("allreduce-node", "c", &high)], BY_NUMBERS, 3),
        ("running totals", [("a", "a_total", &low), ("b", "b_total", &middle), ("c", "c_total", &high)], BY_NUMBERS, 3),
        ("equal boards", [("a", "x", &low), ("b", "y", &low), ("c", "z", &low)], "", 3),
        ("a name alone", [("import", "c", &other), ("T1", "a", &one), ("T2", "b", &two)], "", 3),
    ];
    for (what, registers, note, boards) in cases {
        let imported = import_registers(&registers);
        let notes = &imported.report.notes;
        for known in [BY_NAME, BY_NUMBERS] {
            assert_eq!(has_note(&imported, known), known == note, "{what}: {notes:?}");
        }
        assert_eq!(imported.report.boards.len(), boards, "{what}: {notes:?}");
    }
    let of_row = |row: u32| {
        let counts = [("1.8.0", all(f64::from(row))), ("1.8.1", one(f64::from(row))), ("1.8.2", two(f64::from(row)))];
        counts.map(|(name, count)| format!("{},{name},{count:.2}\n", clock(60_000 * row))).concat()
    };
    let long = format!("time,register,count\n{}", (0..60).map(of_row).collect::<String>());
    let options = ImportOptions { meter: Some(Meter::Node), ..maps(&["device=register", "energy_joules_total=count:kWh"]) };
    let imported = import(&long, &options).unwrap();
    assert!(has_note(&imported, BY_NAME) && imported.report.boards.len() == 2, "{:?}", imported.report.notes);
    let pair = import_registers(&[("a", "x", &low), ("b", "y", &low)]);
    assert_eq!(pair.report.boards.len(), 2);
    assert!(!has_note(&pair, BY_NAME) && !has_note(&pair, BY_NUMBERS), "{:?}", pair.report.notes);
}

#[test]
fn names_of_boards_and_columns_of_maps_follow_the_rules_of_names() {
    let read = |header: &str, mapped: &[&str], options: ImportOptions| {
        let rows: Vec<String> = (0..12).map(|row| format!("{},300,200,500\n", clock(1000 * row))).collect();
        let rows = rows.concat();
        import(&format!("time,{header}\n{rows}"), &ImportOptions { maps: maps(mapped).maps, ..options })
    };
    let plain = ImportOptions::default;
    let together = "is by its name what the other boards have together";
    for (header, mapped, problem) in [
        ("x,y,z", &["power_watts[n1]=x", "power_watts[n2]=y", "power_watts[total]=z"][..], together),
        ("x,y,z", &["power_watts[n1]=x", "power_watts[n2]=y", "power_watts[All GPUs]=z"], together),
        ("x,y,z", &["power_watts[n1]=x", "power_watts[n2]=y", "power_watts[average]=z"], together),
        ("x,y,z", &["power_watts[n1]=x", "power_watts[n2]=y", "energy_joules_total[sum]=z:J"], together),
        ("x,y,Total [W]", &["power_watts[n1]=x", "power_watts[n2]=y", "power_watts[n3]=Total [W]"], together),
        ("T1 kWh,T2 kWh,Total kWh", &["energy_joules_total[a]=T1 kWh", "energy_joules_total[b]=Total kWh"], together),
        ("x,y,z", &["power_watts[n1]=x", "power_watts[n1 peak]=y"], "is by its name another figure of what \"n1\" is of"),
        ("x,y,z", &["gpu0=x", "power_watts[gpu0_max]=y"], "--map 'power_watts[gpu0_max]=y'"),
        ("x,y,z", &["gpu0=x", "power_watts[cpu]=y"], "use --meter node"),
    ] {
        let error = read(header, mapped, plain()).map(|imported| joules(&imported)).expect_err(mapped[mapped.len() - 1]);
        assert!(error.contains(problem), "{mapped:?}: {error}");
    }
    let node = || ImportOptions { meter: Some(Meter::Node), ..ImportOptions::default() };
    let meant = || ImportOptions { accept: vec![AcceptedFinding::Sums], ..ImportOptions::default() };
    for (header, mapped, options, boards) in [
        ("x,y,z", &["power_watts[n1]=x", "power_watts[n2]=y", "power_watts[allreduce-node]=z"][..], plain(), 3),
        ("x,y,z", &["power_watts[sumit-3]=x", "power_watts[alloy]=y", "power_watts[n1]=z"], plain(), 3),
        ("x,y,z", &["power_watts[peak-0]=x", "power_watts[min-0]=y", "power_watts[gpu-all-2]=z"], plain(), 3),
        ("x,y,z", &["power_watts[total]=z"], plain(), 1),
        ("x,y,z", &["power_watts[sum]=x+y", "power_watts[n3]=z"], plain(), 2),
        ("Power Total,Power Total.1,z", &["power_watts[a]=Power Total", "power_watts[b]=Power Total.1"], plain(), 2),
        ("x,y,Total [W]", &["power_watts[a]=x", "power_watts[b]=Total [W]"], meant(), 2),
        ("x,y,z", &["power_watts[cpu]=x", "power_watts[gpu]=y"], node(), 2),
        ("x,y,z", &["power_watts[package-0]=x", "power_watts[core]=y"], node(), 2),
    ] {
        let imported = read(header, mapped, options).unwrap_or_else(|error| panic!("{mapped:?}: {error}"));
        assert_eq!(imported.report.boards.len(), boards, "{mapped:?}");
        let is_part = mapped.contains(&"power_watts[core]=y");
        assert_eq!(
            has_note(&imported, "board \"core\" is by its name a part of what board \"package-0\" is"),
            is_part,
            "{mapped:?}"
        );
    }
}
