//! Times in several columns, times of day without a date, rows with names of their own, and energy of rows in several files.

use eadt_recordings::{ImportOptions, ImportedRecording, NamedTimeZone, RecordingFormat};

use crate::support::{maps, near, read_texts as read, telemetry};

const CSV: RecordingFormat = RecordingFormat::Csv;

/// The first and the last time of the readings, and the joules by the trapezoid over them.
fn span_and_joules(imported: &ImportedRecording) -> (String, String, f64) {
    let rows = telemetry(imported);
    let points: Vec<_> = rows.iter().map(|row| (row.time, row.power_watts.or(row.power_average_watts).unwrap())).collect();
    let joules = points.windows(2).map(|pair| f64::midpoint(pair[0].1, pair[1].1) * pair[1].0.seconds_since(pair[0].0)).sum();
    (points[0].0.to_string(), points[points.len() - 1].0.to_string(), joules)
}

fn imported(text: &str, options: &ImportOptions) -> ImportedRecording {
    let imported = read(CSV, &[("t.csv", text)], options).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(imported.report.refused.is_empty(), "{text}: {:?}", imported.report.refused);
    imported
}

#[test]
fn a_time_in_several_columns_is_one_time() {
    for (what, text, begin, seconds) in [
        ("an hour", "date,hour,w\n2025-02-03,10,100\n2025-02-03,11,300\n", "2025-02-03T10:00:00", 3600.0),
        ("over midnight", "date,hour,w\n2025-02-03,23,100\n2025-02-04,0,300\n", "2025-02-03T23:00:00", 3600.0),
        ("hours to 24", "Datum;Date;Hour;w\nx;03.02.2025;23;100\nx;03.02.2025;24;300\n", "2025-02-03T22:00:00", 3600.0),
        ("hours to 24 over midnight", "date,hour,w\n2025-02-03,24,100\n2025-02-04,1,300\n", "2025-02-03T23:00:00", 3600.0),
        ("minutes", "date,hour,minute,w\n2025-02-03,10,0,100\n2025-02-03,10,5,300\n", "2025-02-03T10:00:00", 300.0),
        ("year to hour", "year,month,day,hour,w\n2025,2,3,9,100\n2025,2,3,10,300\n", "2025-02-03T09:00:00", 3600.0),
        (
            "year to second",
            "Year,Month,Day,Hour,Minute,Second,w\n2025,12,31,23,59,58,100\n2026,1,1,0,0,3,300\n",
            "2025-12-31T23:59:58",
            5.0,
        ),
        (
            "year to time of day",
            "year,month,day,time,w\n2025,2,3,10:00,100\n2025,2,3,10:00:10,300\n",
            "2025-02-03T10:00:00",
            10.0,
        ),
        ("days", "year,month,day,w\n2025,2,3,100\n2025,2,4,300\n", "2025-02-03T00:00:00", 86_400.0),
    ] {
        let (first, _, joules) = span_and_joules(&imported(text, &maps(&["power_watts=w"])));
        assert!(first.starts_with(begin), "{what}: {first}");
        near(joules, 200.0 * seconds, what);
    }
}

#[test]
fn a_map_of_the_time_names_all_its_columns() {
    let hours = "day,hour,w\n03/02/2025,10,100\n03/02/2025,11,300\n";
    let options =
        |form: &str, mapped: &str| ImportOptions { time_format: Some(form.parse().unwrap()), ..maps(&[mapped, "power_watts=w"]) };
    let error = read(CSV, &[("t.csv", hours)], &options("%d/%m/%Y", "time=day")).unwrap_err();
    assert!(error.ends_with("give both: --map time=day+hour --time-format '%d/%m/%Y %H'"), "{error}");
    near(span_and_joules(&imported(hours, &options("%d/%m/%Y %H", "time=day+hour"))).2, 720_000.0, "as the remedy proposes");
    let plain = hours.replace("03/02/2025", "2025-02-03");
    let error = read(CSV, &[("t.csv", &plain)], &maps(&["time=day", "power_watts=w"])).unwrap_err();
    assert!(error.contains("dates without a time of day") && error.ends_with("give both: --map time=day+hour"), "{error}");
    near(span_and_joules(&imported(&plain, &maps(&["time=day+hour", "power_watts=w"]))).2, 720_000.0, "a date and an hour");
    let parts = "when,year,month,day,hour,w\na,2025,2,3,10,100\nb,2025,2,3,11,300\n";
    near(span_and_joules(&imported(parts, &maps(&["time=year+month+day+hour", "power_watts=w"]))).2, 720_000.0, "year to hour");
    let clock = "year,month,day,at,w\n2025,2,3,10:00,100\n2025,2,3,11:00,300\n";
    let error = read(CSV, &[("t.csv", clock)], &maps(&["time=at", "power_watts=w"])).unwrap_err();
    assert!(error.ends_with("give both: --map time=year+month+day+at"), "{error}");
    near(span_and_joules(&imported(clock, &maps(&["time=year+month+day+at", "power_watts=w"]))).2, 720_000.0, "year to clock");
    let error = read(CSV, &[("t.csv", parts)], &maps(&["time=when+month+day", "power_watts=w"])).unwrap_err();
    assert!(error.contains("time=year+month+day+hour"), "{error}");
    for (text, part) in [
        ("date,hour,w\n2025-02-03,0,100\n2025-02-03,24,300\n", "an hour 0 where there is an hour 24"),
        ("date,hour,w\n2025-02-03,10,100\n2025-02-03,10,300\n", "have the time 2025-02-03T10:00:00"),
    ] {
        let error = read(CSV, &[("t.csv", text)], &maps(&["power_watts=w"])).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_changed_header_keeps_the_columns_of_the_time() {
    let text = "date,hour,w\n2025-02-03,10,100\nnote,date,hour,w\nx,2025-02-03,11,300\n";
    near(span_and_joules(&imported(text, &maps(&["time=date+hour", "power_watts=w"]))).2, 720_000.0, "mapped");
    near(span_and_joules(&imported(text, &maps(&["power_watts=w"]))).2, 720_000.0, "found");
}

#[test]
fn times_of_day_are_of_the_day_that_is_given_and_the_days_after() {
    let dated = |options: ImportOptions| ImportOptions { date: Some("2025-02-03".parse().unwrap()), ..options };
    let power = || dated(maps(&["power_watts=w"]));
    let text = "time;w\n23:59:50,500;100\n00:00:00,500;300\n";
    let read_rows = imported(text, &power());
    let (first, last, joules) = span_and_joules(&read_rows);
    assert!(first.starts_with("2025-02-03T23:59:50.5") && last.starts_with("2025-02-04T00:00:00.5"), "{first} {last}");
    near(joules, 2000.0, "over midnight");
    assert!(read_rows.report.notes.iter().any(|note| note.contains("taken from 2025-02-03 to 2025-02-04")));
    let berlin = Some(NamedTimeZone::new("CET-1CEST,M3.5.0,M10.5.0/3", |_| None).unwrap());
    let (first, ..) = span_and_joules(&imported(text, &ImportOptions { time_zone: berlin, ..power() }));
    assert!(first.starts_with("2025-02-03T22:59:50.5"), "{first}");
    let half = "time,w\n11:59:50 PM,100\n12:00:00 AM,300\n";
    near(span_and_joules(&imported(half, &power())).2, 2000.0, "AM and PM");
    let form = |form: &str| ImportOptions { time_format: Some(form.parse().unwrap()), ..power() };
    near(span_and_joules(&imported("time,w\n23-59-50,100\n00-00-00,300\n", &form("%H-%M-%S"))).2, 2000.0, "a pattern");
    let boards = "time,gpu,w\n23:59:50,0,100\n23:59:50,1,100\n00:00:00,0,300\n00:00:00,1,300\n";
    let options = dated(maps(&["power_watts=w", "device=gpu"]));
    assert_eq!(
        telemetry(&imported(boards, &options)).iter().filter(|row| row.time.to_string().starts_with("2025-02-04")).count(),
        2
    );
    let whole = imported("time,w\n2025-01-01 10:00:00,100\n2025-01-01 10:00:10,300\n", &power());
    assert!(whole.report.notes.iter().any(|note| note.contains("--date is not used")), "{:?}", whole.report.notes);
    let error = read(CSV, &[("t.csv", text)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.contains("--date 2025-02-03"), "{error}");
    let error = read(CSV, &[("a.csv", text), ("b.csv", text)], &power()).unwrap_err();
    assert!(error.contains("import the files one by one"), "{error}");
}

#[test]
fn times_of_day_that_may_be_of_the_next_day_are_refused() {
    let power = ImportOptions { date: Some("2025-02-03".parse().unwrap()), ..maps(&["power_watts=w"]) };
    for (what, rows) in [
        ("working days", ["08:00", "08:30", "17:59", "08:00", "08:30"]),
        ("a late part", ["09:00", "09:01", "12:59", "08:00", "08:01"]),
        ("days apart", ["16:00", "19:59", "10:00", "13:59", "04:00"]),
        ("minutes a day", ["08:00", "08:01", "08:02", "08:00", "08:01"]),
    ] {
        let text = format!("time,w\n{}", rows.map(|time| format!("{time}:00,100\n")).concat());
        let error = read(CSV, &[("t.csv", &text)], &power).unwrap_err();
        assert!(error.contains("may be of the next day, or out of order; write whole times"), "{what}: {error}");
    }
    let swapped = "time,w\n08:00:00,100\n08:00:02,100\n08:00:01,100\n08:00:03,100\n";
    near(span_and_joules(&imported(swapped, &power)).2, 300.0, "one row out of order");
}

#[test]
fn a_number_called_hour_is_no_time_where_it_may_be_a_duration() {
    let power = maps(&["power_watts=w"]);
    let durations = "date,hour,w\n2025-02-01,2,100\n2025-02-02,24,100\n2025-02-03,1,100\n2025-02-04,5,100\n";
    let (first, _, joules) = span_and_joules(&imported(durations, &power));
    assert!(first.starts_with("2025-02-01T00:00:00"), "{first}");
    near(joules, 100.0 * 3.0 * 86_400.0, "a row a day");
    let days: String = (1..4).flat_map(|day| (0..24).map(move |hour| format!("2025-02-0{day},{hour},100\n"))).collect();
    near(span_and_joules(&imported(&format!("date,hour,w\n{days}"), &power)).2, 100.0 * 71.0 * 3600.0, "hours of days");
}

#[test]
fn hours_from_1_to_23_of_a_day_in_spring_are_counted() {
    let berlin = Some(NamedTimeZone::new("CET-1CEST,M3.5.0,M10.5.0/3", |_| None).unwrap());
    let options = ImportOptions { time_zone: berlin, ..maps(&["power_watts=w"]) };
    let hours = |date: &str, last: u32| {
        let rows: Vec<String> = (1..=last).map(|hour| format!("{date},{hour},100\n")).collect();
        rows.concat()
    };
    let (before, day) = (hours("2025-03-29", 24), hours("2025-03-30", 23));
    let (first, last, joules) = span_and_joules(&imported(&format!("date,hour,w\n{before}{day}"), &options));
    assert!(first.starts_with("2025-03-28T23:00:00") && last.starts_with("2025-03-30T21:00:00"), "{first} {last}");
    near(joules, 100.0 * 46.0 * 3600.0, "1 to 23 after 1 to 24");
    for (what, text) in [
        ("that day only", format!("date,hour,w\n{day}")),
        ("24 hours on a day of 23", format!("date,hour,w\n{before}{}", hours("2025-03-30", 24))),
    ] {
        let error = read(CSV, &[("t.csv", &text)], &options).unwrap_err();
        assert!(error.contains("no hour of that day, on which clocks were set forward"), "{what}: {error}");
    }
}

#[test]
fn a_clock_that_was_not_set_is_noted() {
    let rows = |day: &str, count: u32| {
        let row = |second: u32| format!("{day}T10:00:0{second}Z,{}\n", 300 + second % 3);
        (0..count).map(row).collect::<String>()
    };
    let set = rows("2025-02-03", 8);
    for (what, text, part) in [
        ("before", [rows("1970-01-01", 3), set.clone()].concat(), "the 3 rows before"),
        ("after", [set.clone(), rows("2080-02-03", 2)].concat(), "the 2 rows after"),
    ] {
        let imported = imported(&format!("time,w\n{text}"), &maps(&["power_watts=w"]));
        let is_noted = |note: &String| note.contains("the times leap by 55.") && note.contains(part);
        assert!(imported.report.notes.iter().any(is_noted), "{what}: {:?}", imported.report.notes);
    }
    let count = |row: u64| format!("{},300\n", if row < 4 { 1_738_576_800 + row } else { 1_738_576_800_000 + 1000 * row });
    let counts: String = (0..8).map(count).collect();
    let options = ImportOptions { time_format: Some("unix_ms".parse().unwrap()), ..maps(&["power_watts=w"]) };
    let mixed = imported(&format!("time,w\n{counts}"), &options);
    assert!(mixed.report.notes.iter().any(|note| note.contains("in two units")), "{:?}", mixed.report.notes);
    let usual = imported(&format!("time,w\n{set}"), &maps(&["power_watts=w"]));
    assert!(!usual.report.notes.iter().any(|note| note.contains("leap")), "{:?}", usual.report.notes);
}

#[test]
fn one_row_shows_a_clock_that_counts_to_twelve() {
    let row = |minute: u32| format!("2025-02-03 12:{minute:02}:00,{}\n", 300 + minute % 7);
    let rows: String = (0..60).map(row).collect();
    let text = format!("time,w\n{rows}2025-02-03 01:00:00,250\n");
    let error = read(CSV, &[("t.csv", &text)], &maps(&["power_watts=w"])).unwrap_err();
    assert!(error.contains("counts to 12 without AM and PM"), "{error}");
}

#[test]
fn tables_as_r_writes_them_are_read() {
    let rows = [("2025-02-03 10:00:00", "100"), ("2025-02-03 10:00:05", "NA"), ("2025-02-03 10:00:10", "300")];
    let of = |separator: &str| {
        let line = |(number, (time, watts)): (usize, &(&str, &str))| {
            [format!("\"{}\"", number + 1), format!("\"{time}\""), "\"gpu0\"".to_owned(), (*watts).to_owned()].join(separator)
                + "\n"
        };
        ["\"time\"", "\"gpu\"", "\"power\""].join(separator) + "\n" + &rows.iter().enumerate().map(line).collect::<String>()
    };
    for separator in [" ", "\t", ",", ";"] {
        let imported = imported(&of(separator), &maps(&["power_watts=power", "device=gpu"]));
        let joules: f64 = 200.0 * 10.0;
        let known: Vec<_> = telemetry(&imported)
            .iter()
            .filter_map(|row| Some((row.time, row.power_watts.or(row.power_average_watts)?)))
            .collect();
        assert_eq!(known.len(), 2, "{separator:?}");
        near(f64::midpoint(known[0].1, known[1].1) * known[1].0.seconds_since(known[0].0), joules, separator);
    }
    let indexed = "power temp\n0 252.9 60\n1 251.4 61\n2 255.9 62\n";
    let every_second = |map: &str| ImportOptions { interval: Some(std::time::Duration::from_secs(1)), ..maps(&[map]) };
    near(span_and_joules(&imported(indexed, &every_second("power_watts=power"))).2, 505.8, "numbered rows");
    for (text, map) in [
        ("step\tpower\n0\t257.5\t60.0\n1\t292.2\t60.1\n2\t264.7\t60.2\n", "power_watts=power"),
        ("n power\n0 250 60\n1 251 60\n2 252 60\n", "power_watts=power"),
        ("sec watts\n0 250 0\n1 251 3\n2 252 6\n", "power_watts=watts"),
        ("\"n\",\"w\"\n\"1\",\"250\",5\n\"2\",\"250\",5\n\"3\",\"250\",5\n", "power_watts=w"),
    ] {
        let is_read = read(CSV, &[("t.txt", text)], &every_second(map)).is_ok_and(|imported| imported.report.refused.is_empty());
        assert!(!is_read, "{text}");
    }
    let names = "power\n\"2025-02-03 10:00:00\" 100\n";
    assert!(read(CSV, &[("t.txt", names)], &maps(&["power_watts=power"])).is_err());
}

#[test]
fn the_energy_of_rows_goes_on_in_the_next_part_of_a_record() {
    let part = |from: u32, id: &str| {
        let rows = (from..from + 10).map(|second| format!("2025-02-03T10:00:{second:02}Z,{id}{}\n", 300 + second % 4));
        rows.collect::<String>()
    };
    let total = |imported: &ImportedRecording| -> (usize, f64) {
        let rows = telemetry(imported);
        let mut devices: Vec<&str> = rows.iter().map(|row| row.device.as_str()).collect();
        devices.sort_unstable();
        devices.dedup();
        let of = |device: &&str| {
            let counts = rows.iter().filter(|row| row.device == *device).filter_map(|row| row.energy_joules_total);
            let counts: Vec<f64> = counts.collect();
            counts[counts.len() - 1] - counts[0]
        };
        (devices.len(), devices.iter().map(of).sum())
    };
    let expected: f64 = (10..30).map(|second| f64::from(300 + second % 4)).sum();
    let (a, b) = (format!("time,gpu,joules\n{}", part(10, "gpu0,")), format!("time,gpu,joules\n{}", part(20, "gpu0,")));
    let options = maps(&["energy_joules=joules", "device=gpu"]);
    for files in [[("a.csv", &*a), ("b.csv", &*b)], [("b.csv", &*b), ("a.csv", &*a)]] {
        let (boards, joules) = total(&read(CSV, &files, &options).unwrap());
        assert_eq!(boards, 1);
        near(joules, expected, "parts of one board");
    }
    // Without an id each file is a board of its own; the energy is the same, and a note reports it.
    let (a, b) = (format!("time,joules\n{}", part(10, "")), format!("time,joules\n{}", part(20, "")));
    let imported = read(CSV, &[("a.csv", &a), ("b.csv", &b)], &maps(&["energy_joules=joules"])).unwrap();
    let (boards, joules) = total(&imported);
    assert_eq!(boards, 2);
    near(joules, expected, "files without an id");
    assert!(imported.report.notes.iter().any(|note| note.contains("name no board")), "{:?}", imported.report.notes);
}
