//! Energy counters beside power that is not in each of their rows, or of another scale.

use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFormat};

use crate::support::{maps, near, read_texts, telemetry};

const CSV: RecordingFormat = RecordingFormat::Csv;

/// A time in tenths of a second after ten o'clock.
fn clock(tenths: u32) -> String {
    let seconds = tenths / 10;
    format!("2025-02-03T10:{:02}:{:02}.{}Z", seconds / 60, seconds % 60, tenths % 10)
}

fn both() -> ImportOptions {
    maps(&["power_watts=w:W", "energy_joules_total=j:J"])
}

/// A table of two minutes at 300 W, and the counter of a row by its second. Power is blank where `is_blank`.
fn two_minutes(counter: &dyn Fn(f64) -> f64, is_blank: fn(u32) -> bool) -> String {
    let row = |second: u32| {
        let watts = if is_blank(second) { "" } else { "300" };
        format!("{},{watts},{}\n", clock(10 * second), counter(f64::from(second)))
    };
    "time,w,j\n".to_owned() + &(0..=120).map(row).collect::<String>()
}

/// The same, with the counter in rows of its own between those of power.
fn two_minutes_apart(counter: &dyn Fn(f64) -> f64) -> String {
    let row = |second: u32| {
        let between = counter(f64::from(second) + 0.5);
        format!("{},300,\n{},,{between}\n", clock(10 * second), clock(10 * second + 5))
    };
    "time,w,j\n".to_owned() + &(0..=120).map(row).collect::<String>()
}

fn has_counter(imported: &ImportedRecording) -> bool {
    telemetry(imported).iter().any(|row| row.energy_joules_total.is_some())
}

fn joules_of_power(imported: &ImportedRecording) -> f64 {
    let power: Vec<_> = telemetry(imported).iter().filter_map(|row| Some((row.time, row.power_watts?))).collect();
    power.windows(2).map(|pair| f64::midpoint(pair[0].1, pair[1].1) * pair[1].0.seconds_since(pair[0].0)).sum()
}

/// Returns the import's verdict on counter and power.
fn verdict(text: &str, options: &ImportOptions) -> &'static str {
    let imported = match read_texts(CSV, &[("t.csv", text)], options) {
        Ok(imported) => imported,
        Err(error) if error.contains("one of the two is in another unit") => return "in another unit",
        Err(error) => panic!("{error}"),
    };
    let notes = imported.report.notes.join("\n");
    let is_left_out = notes.contains("the counter is left out, energy is that of the power");
    assert_eq!(is_left_out, !has_counter(&imported), "{notes}");
    match (is_left_out, notes.contains("contradict each other")) {
        (true, _) => "left out",
        (false, true) => "noted",
        (false, false) => "agrees",
    }
}

#[test]
fn power_in_other_rows_than_the_counter_gives_the_same_verdict() {
    for (ratio, expected) in [
        (1.0, "agrees"),
        (0.5, "noted"),
        (2.0, "noted"),
        (0.001, "in another unit"),
        (0.0, "left out"),
        (4.0, "left out"),
        (10.0, "left out"),
        (0.1, "left out"),
    ] {
        let counter = |seconds: f64| 5000.0 + 300.0 * ratio * seconds;
        for (what, text) in [
            ("in all rows", two_minutes(&counter, |_| false)),
            ("but the first", two_minutes(&counter, |second| second == 0)),
            ("but one", two_minutes(&counter, |second| second == 60)),
            ("but the last", two_minutes(&counter, |second| second == 120)),
            ("but every third", two_minutes(&counter, |second| second % 3 == 1)),
            ("in every third", two_minutes(&counter, |second| !second.is_multiple_of(3))),
            ("in rows of its own", two_minutes_apart(&counter)),
        ] {
            assert_eq!(verdict(&text, &both()), expected, "counter × {ratio}, power {what}");
        }
    }
}

#[test]
fn a_hole_of_the_log_is_no_step_of_the_counter() {
    // Two minutes at 300 W, ten without rows, and two more.
    let table = |ratio: f64, is_blank: fn(u32) -> bool| {
        let row = |second: u32| {
            let watts = if is_blank(second) { "" } else { "300" };
            format!("{},{watts},{}\n", clock(10 * second), 5000.0 + 300.0 * ratio * f64::from(second))
        };
        "time,w,j\n".to_owned() + &(0..=120).chain(720..=840).map(row).collect::<String>()
    };
    for (ratio, expected) in [(1.0, "agrees"), (0.5, "noted"), (2.0, "noted"), (10.0, "noted")] {
        for (what, is_blank) in [
            ("in all rows", (|_| false) as fn(u32) -> bool),
            ("but the first", |second| second == 0),
            ("but the last before the hole", |second| second == 120),
            ("but the first after the hole", |second| second == 720),
        ] {
            assert_eq!(verdict(&table(ratio, is_blank), &both()), expected, "counter × {ratio}, power {what}");
        }
    }
}

#[test]
fn a_counter_of_another_scale_is_left_out_where_power_is_steady() {
    for ratio in [4.0, 10.0, 0.1] {
        let text = two_minutes(&|seconds| 300.0 * ratio * seconds, |_| false);
        let imported = read_texts(CSV, &[("t.csv", &text)], &both()).unwrap();
        assert!(!has_counter(&imported), "{ratio}");
        near(joules_of_power(&imported), 36_000.0, "power");
        let notes = imported.report.notes.join("\n");
        let steps = "as much in 120 of 120 steps, while power hardly changes (if the power is wrong, import without it)";
        assert!(notes.contains(steps), "{ratio}: {notes}");
        assert!(imported.report.check_refused().is_err(), "{ratio}: the log lacks the counter");
    }
    // Readings may have met the board idle; a counter that is right at first; few rows.
    let rows = |watts: fn(u32) -> u32, counter: fn(u32) -> u32, seconds: u32| {
        let row = |second: u32| format!("{},{},{}\n", clock(10 * second), watts(second), counter(second));
        "time,w,j\n".to_owned() + &(0..=seconds).map(row).collect::<String>()
    };
    for (what, text) in [
        ("work and idle in turn", rows(|second| if second % 10 < 2 { 300 } else { 30 }, |second| 300 * second, 120)),
        ("later", rows(|_| 300, |second| 300 * second + second.saturating_sub(40) * 1200, 120)),
        ("seven steps", rows(|_| 300, |second| 1200 * second, 7)),
    ] {
        assert_eq!(verdict(&text, &both()), "noted", "{what}");
    }
    // Amounts of rows are of the time of their row.
    let amounts = rows(|_| 300, |_| 60, 120);
    assert_eq!(verdict(&amounts, &maps(&["power_watts=w:W", "energy_joules=j:J"])), "agrees");
}

#[test]
fn a_leap_of_the_counter_in_a_row_without_power_is_left_out_if_power_is_known_elsewhere() {
    let leaps = |seconds: f64| 300.0 * seconds + if seconds >= 70.0 { 1e5 } else { 0.0 };
    let imported = read_texts(CSV, &[("t.csv", &two_minutes(&leaps, |second| (60..=80).contains(&second)))], &both()).unwrap();
    assert!(!has_counter(&imported));
    near(joules_of_power(&imported), 36_000.0, "power");
    let error = read_texts(CSV, &[("t.csv", &two_minutes(&leaps, |second| second >= 40))], &both()).unwrap_err();
    assert!(error.starts_with("t.csv:72: ") && error.contains("more than one GPU board can draw"), "{error}");
}

#[test]
fn a_counter_that_is_constant_where_power_is_not_read_is_noted() {
    fn from_20_on(second: u32) -> bool {
        (20..=100).contains(&second)
    }
    let stays = |from: f64, to: f64| move |seconds: f64| 300.0 * (seconds - (seconds.min(to) - from).max(0.0));
    for (what, text, is_noted) in [
        ("eighty seconds", two_minutes(&stays(20.0, 100.0), from_20_on), true),
        ("thirty seconds", two_minutes(&stays(20.0, 50.0), from_20_on), false),
        ("never", two_minutes(&|seconds| 300.0 * seconds, from_20_on), false),
        ("coarse", two_minutes(&|seconds| 30_000.0 * (seconds / 100.0).floor(), from_20_on), false),
    ] {
        let imported = read_texts(CSV, &[("t.csv", &text)], &both()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let notes = &imported.report.notes;
        let note = "the energy counter stays at 6000 J from line 22 on for 80 s in which power is not read";
        assert_eq!(notes.iter().any(|found| found.contains(note)), is_noted, "{what}: {notes:?}");
        assert_eq!(notes.iter().any(|found| found.contains("power is not read")), is_noted, "{what}: {notes:?}");
    }
}

#[test]
fn a_step_of_a_coarse_counter_soon_after_a_hole_is_no_leap() {
    // 420 W for four hours, a row each 5 s but for a hole, in which a step of the counter was reached.
    for (step, hole_seconds) in [(36_000.0, 600_u32), (36_000.0, 3_000), (360_000.0, 3_000)] {
        for phase in 0..9 {
            let start = 3600 + phase * (step / 420.0 / 9.0) as u32 / 5 * 5;
            let row = |with_power: bool| {
                move |second: u32| {
                    let time = format!("2025-02-03T{:02}:{:02}:{:02}Z", 10 + second / 3600, second / 60 % 60, second % 60);
                    let counter = (420.0 * f64::from(second) / step).floor() * step;
                    format!("{time},{},{counter}\n", if with_power { "420" } else { "" })
                }
            };
            for with_power in [true, false] {
                let rows = (0..14_400).step_by(5).filter(|second| !(start..start + hole_seconds).contains(second));
                let table = "time,w,j\n".to_owned() + &rows.map(row(with_power)).collect::<String>();
                let options = if with_power { both() } else { maps(&["energy_joules_total=j:J"]) };
                let what = format!("{step} J, {hole_seconds} s, phase {phase}, power {with_power}");
                let imported = read_texts(CSV, &[("t.csv", &table)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(has_counter(&imported), "{what}: {:?}", imported.report.notes);
                imported.report.check_refused().unwrap();
            }
        }
    }
}
