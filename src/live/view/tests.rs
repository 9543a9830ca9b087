use eadt_report::WorkloadReport;
use eadt_schemas::v1::{Actuation, ActuationOutcome, Decision, EfficiencyWindow, Layout, Workload};
use eadt_schemas::{EventTime, Topic};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::live::frame::{RunProgress, WorkloadRow};
use crate::live::keys::SortKey;
use crate::live::tally::{LiveTally, WorkloadSaving};

const NAME: &str = "eadt/llm-training";

fn at(minute: i64) -> EventTime {
    EventTime::from_micros(1_700_000_040_000_000 + minute * 60_000_000)
}

fn take(tally: &mut LiveTally, topic: Topic, event: &impl serde::Serialize) {
    tally.take(topic, &serde_json::to_vec(event).unwrap());
}

fn window(minute: i64, joules: f64) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{NAME}/{minute}"),
        workload: NAME.into(),
        window_start: at(minute),
        window_end: at(minute + 1),
        origin: Origin::Simulated,
        energy_joules: Some(joules),
        energy_coverage_ratio: 1.0,
        run_seconds: 60.0,
        run_energy_joules: Some(joules),
        run_coverage_ratio: 1.0,
        samples: Some(6000.0),
        progress_coverage_ratio: 1.0,
        mean_power_watts: Some(joules / 60.0),
        samples_per_second: Some(100.0),
        joules_per_sample: Some(joules / 6000.0),
        ..EfficiencyWindow::default()
    }
}

/// Returns the lines of a screen.
fn screen(picture: &ViewFrame, state: &mut ViewState, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, picture, state)).unwrap();
    let buffer = terminal.backend().buffer();
    buffer.content().chunks(width.into()).map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
}

/// Returns the lines of what a tally shows, with the only workload selected.
fn shown(tally: &LiveTally) -> Vec<String> {
    let selected = tally.workloads.keys().next().cloned();
    screen(&ViewFrame::of(tally, selected.as_deref()), &mut ViewState::default(), 140, 40)
}

#[test]
fn power_that_no_workload_knows_is_called_unknown() {
    let mut tally = LiveTally::default();
    take(
        &mut tally,
        Topic::EfficiencyWindows,
        &EfficiencyWindow { mean_power_watts: None, energy_joules: None, ..window(0, 6000.0) },
    );
    assert!(shown(&tally).join("\n").contains(" 1 workload · power unknown · "), "{:?}", shown(&tally));
    take(&mut tally, Topic::EfficiencyWindows, &window(1, 6000.0));
    assert!(shown(&tally).join("\n").contains(" 1 workload · 100 W · "), "{:?}", shown(&tally));
}

#[test]
fn an_address_is_whole_or_not_there() {
    let mut picture = ViewFrame::of(&LiveTally::default(), None);
    picture.headline = "http://127.0.0.1:9580/ · simulated cluster · speed 120 · embedded log in eadt-data".to_owned();
    for (width, shown) in [
        (45, "http://127.0.0.1:9580/ · speed 120"),
        (80, "http://127.0.0.1:9580/ · simulated cluster · speed 120"),
        (100, "http://127.0.0.1:9580/ · simulated cluster · speed 120 · embedded log in eadt-data"),
    ] {
        let head = &screen(&picture, &mut ViewState::default(), width, 24)[0];
        assert!(head.trim_end().ends_with(shown), "{width}: {head}");
    }
    // A run of a given length: its progress makes way.
    picture.now = Some(at(0));
    picture.progress = Some(RunProgress { part: 0.41, left_seconds: Some(192.0) });
    for (width, shown) in [(70, "left  http://127.0.0.1:9580/"), (80, "left  http://127.0.0.1:9580/"), (100, "█░░░░░░ 41 % ")]
    {
        let head = &screen(&picture, &mut ViewState::default(), width, 24)[0];
        assert!(head.contains(shown) && head.contains("http://127.0.0.1:9580/"), "{width}: {head}");
    }
    // The rest of an address is not shown.
    let head = &screen(&picture, &mut ViewState::default(), 60, 24)[0];
    assert!(head.contains("██░░░ 41 % 3 min 12 s left") && !head.contains("http"), "{head}");
    (picture.headline, picture.now, picture.progress) = ("k".repeat(90), None, None);
    let head = &screen(&picture, &mut ViewState::default(), 80, 24)[0];
    assert!(head.contains("kkk…kkk"), "{head}");
}

#[test]
fn a_simulated_run_shows_its_bar_and_the_time_left_in_60_columns_and_more_and_nothing_of_it_is_cut() {
    let mut picture = ViewFrame { simulated: true, now: Some(at(0)), ..ViewFrame::of(&LiveTally::default(), None) };
    picture.headline = "http://127.0.0.1:44167/ · speed 60 · embedded log in eadt-data".to_owned();
    // The text of the time left grows and shrinks: what is beside it stays.
    for seconds in [5.0, 59.0, 60.0, 192.0, 3599.0, 3600.0, 10_740.0] {
        picture.progress = Some(RunProgress { part: 0.4, left_seconds: Some(seconds) });
        for (width, bar, whole, has_address) in
            [(60, "██░░░ 40 %", " left", false), (80, "██░░░ 40 %", " left", true), (120, "████░░░░░░ 40 %", " left", true)]
        {
            let head = &screen(&picture, &mut ViewState::default(), width, 24)[0];
            assert!(head.contains(bar) && head.contains(whole) && head.contains(" simulated "), "{width} {seconds}: {head}");
            assert_eq!(head.contains("http://127.0.0.1:44167/"), has_address, "{width} {seconds}: {head}");
        }
        for width in 17..=130 {
            let head = &screen(&picture, &mut ViewState::default(), width, 24)[0];
            let has = |text: &str| head.contains(text);
            // The time, the part and the time left are whole or not there.
            assert!(!has("Z") || has(":14Z") || has("22:14:00Z"), "{width}: {head}");
            assert!(!has("40") || has("40 %"), "{width}: {head}");
            assert!(width < 50 || has(" left"), "{width}: {head}");
            assert!(!has("http") || has("http://127.0.0.1:44167/"), "{width}: {head}");
        }
    }
}

#[test]
fn a_record_that_is_being_read_shows_it_in_every_width() {
    let picture = ViewFrame { is_reading: true, ..many(3) };
    for width in [40, 80, 200] {
        let head = &screen(&picture, &mut ViewState::default(), width, 24)[0];
        assert!(head.contains(" reading the record "), "{width}: {head}");
    }
    assert!(!screen(&many(3), &mut ViewState::default(), 200, 24)[0].contains("reading"));
}

#[test]
fn decisions_of_several_days_have_dates() {
    for (minutes, times) in [(60, ["22:15:00", "23:15:00"]), (25 * 60, ["11-14 22:15", "11-15 23:15"])] {
        let mut tally = LiveTally::default();
        take(&mut tally, Topic::EfficiencyWindows, &window(0, 36_000.0));
        for minute in [1, 1 + minutes] {
            let (id, reason) = (format!("d{minute}"), format!("reason {minute}"));
            let (time, action) = (at(minute), ControllerAction::SetPowerLimit);
            let decision = Decision { id, workload: NAME.into(), time, action, reason, ..Decision::default() };
            take(&mut tally, Topic::Decisions, &decision);
        }
        tally.refresh();
        let lines = shown(&tally);
        for time in times {
            assert!(lines.iter().any(|line| line.contains(time) && line.contains("reason")), "{time}: {lines:#?}");
        }
    }
}

#[test]
fn a_run_that_is_being_ended_shows_it() {
    let mut state = ViewState::default();
    let picture = many(3);
    assert!(screen(&picture, &mut state, 80, 24)[23].contains("q end"));
    state.on_key(crossterm::event::KeyCode::Char('q').into());
    let foot = &screen(&picture, &mut state, 80, 24)[23];
    assert!(foot.contains("ending: what is under way is finished first"), "{foot}");
}

#[test]
fn it_shows_power_samples_energy_a_sample_layout_savings_and_the_reasons_of_decisions() {
    let mut tally = LiveTally::default();
    let layout = Layout { replicas: Some(6), mps_thread_percentage: Some(50), ..Layout::default() };
    let declared = Workload {
        time: at(0),
        workload: NAME.into(),
        origin: Origin::Simulated,
        kind: "StatefulSet".into(),
        layout,
        ..Workload::default()
    };
    take(&mut tally, Topic::Workloads, &declared);
    let before = shown(&tally).join("\n");
    assert!(before.contains("no decision yet"), "{before}");

    // 600 W, then 480 W for as many samples.
    for minute in 0..3 {
        take(&mut tally, Topic::EfficiencyWindows, &window(minute, 36_000.0));
    }
    let decision = Decision {
        id: "d3".into(),
        workload: NAME.into(),
        time: at(3),
        origin: Origin::Simulated,
        action: ControllerAction::SetPowerLimit,
        reason: "a lower cap costs no throughput".into(),
        ..Decision::default()
    };
    take(&mut tally, Topic::Decisions, &decision);
    let applied = Actuation {
        id: "a3".into(),
        decision_id: "d3".into(),
        workload: NAME.into(),
        time: at(3),
        outcome: ActuationOutcome::Applied,
        ..Actuation::default()
    };
    take(&mut tally, Topic::Actuations, &applied);
    for minute in 4..6 {
        take(&mut tally, Topic::EfficiencyWindows, &window(minute, 28_800.0));
    }
    assert_eq!(tally.unreadable, 0);
    tally.refresh();
    let lines = shown(&tally);
    let all = lines.join("\n");
    assert!(lines[0].starts_with(" EADT  simulated  2023-11-14T22:20:00Z"), "{all}");
    assert!(lines[1].contains("1 workload · 480 W · saved +8.0 %") && lines[1].contains("1 change 0 reverts"), "{all}");
    let row = lines.iter().find(|line| line.contains(NAME)).unwrap_or_else(|| panic!("{all}"));
    let figures: Vec<&str> = row.split_whitespace().collect();
    // 14.4 kJ of the 180 that as many samples would have taken, with an error.
    assert_eq!(figures[..6], [NAME, "480", "W", "4.800", "+8.0", "%"], "{all}");
    assert!(row.contains("of 100 %") && row.contains("6×50 %"), "{all}");
    assert!(lines.iter().any(|line| line.contains("set power limit a lower cap costs no throughput")), "{all}");
    assert!(lines.iter().any(|line| line.contains("UTC 22:14:00")), "{all}");
    // Alone on the page: the verdict, and the layouts.
    let mut state = ViewState::default();
    state.page = ViewPage::Details;
    let alone = screen(&ViewFrame::of(&tally, Some(NAME)), &mut state, 80, 24).join("\n");
    assert!(alone.contains("saved 8.0 %") && alone.contains("layout 6×50 %"), "{alone}");
}

fn many(count: usize) -> ViewFrame {
    let saving = WorkloadSaving { joules: 33e3, ratio: 0.169, ratio_error: Some(0.012), compared_ratio: Some(0.98) };
    let row = |number: usize| WorkloadRow {
        name: format!("team-{}/train-{number:04}", number % 7),
        power_watts: Some(950.0 + number as f64),
        joules_per_sample: Some(5.0 + number as f64 / 1000.0),
        energy_joules: Some(1e6 + number as f64),
        saving: Some(saving),
        state: "steady",
        origin: Some(Origin::Simulated),
        ..WorkloadRow::default()
    };
    let report = serde_json::json!({"energy_joules": 1e9, "compared_energy_joules": 5.9e8, "expected_energy_joules": 5.7e8});
    let report: WorkloadReport = serde_json::from_value(report).unwrap();
    ViewFrame {
        rows: (0..count).map(row).collect(),
        power_watts: Some(1e6),
        summary: eadt_report::SavingSummary::of([&report]),
        origin: Some(Origin::Simulated),
        now: Some(at(0)),
        since: Some(at(-60)),
        headline: "Kafka a-broker-with-a-long-name.example:9092 · topics eadt.*".into(),
        progress: Some(RunProgress { part: 0.41, left_seconds: Some(192.0) }),
        ..ViewFrame::default()
    }
}

#[test]
fn from_one_to_a_thousand_workloads_and_from_80_to_200_columns_nothing_is_cut_and_what_is_not_shown_is_counted() {
    for (width, height) in [(80, 24), (100, 30), (132, 43), (200, 60)] {
        for count in [1, 12, 40, 1000] {
            let lines = screen(&many(count), &mut ViewState::default(), width, height);
            let all = lines.join("\n");
            assert!(
                lines[0].contains(" simulated ") && lines[0].contains("41 %") && lines[0].contains("3 min 12 s left"),
                "{all}"
            );
            assert!(lines[1].contains("used 3.5 % more") && lines[1].contains("of 59 %, rest not known"), "{all}");
            let rows = lines.iter().filter(|line| line.contains("/train-")).count();
            assert!(rows == count || rows >= usize::from(height) / 3, "{rows}: {all}");
            let note = format!("rows 1 to {rows} of {count}");
            assert!(all.contains(&note), "{note}: {all}");
            assert_eq!(all.contains(&format!("{} not shown", count - rows)), rows < count, "{all}");
            assert_eq!(lines.iter().filter(|line| line.contains("+16.9 % ±1.2 of 98 %")).count(), rows, "{all}");
        }
    }
    // The end of a thousand.
    let picture = many(1000);
    let mut state = ViewState::sorted_by(SortKey::Name);
    screen(&picture, &mut state, 80, 24);
    state.on_key(crossterm::event::KeyCode::End.into());
    let all = screen(&picture, &mut state, 80, 24).join("\n");
    assert!(all.contains(" of 1000, ") && all.contains("to 1000 of 1000"), "{all}");
    // A search shows how many it hides; a held view shows that it is held.
    (state.search, state.paused) = ("train-0042".into(), true);
    let all = screen(&picture, &mut state, 80, 24).join("\n");
    assert!(all.contains("/train-0042") && all.contains("hides 999") && all.contains("paused: p resumes"), "{all}");
    // Smaller than any useful terminal: no panic, and the origin is there.
    for (width, height) in [(20, 6), (10, 3), (1, 1), (300, 100)] {
        for page in [ViewPage::Table, ViewPage::Details, ViewPage::Help] {
            state.page = page;
            let lines = screen(&picture, &mut state, width, height);
            assert!(width < 20 || lines[0].contains("simulated"), "{lines:#?}");
        }
    }
    // Some terminals do not report how large they are.
    for (width, height) in [(0, 0), (80, 0), (0, 24)] {
        for page in [ViewPage::Table, ViewPage::Details, ViewPage::Help] {
            state.page = page;
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &picture, &mut state)).unwrap();
        }
    }
}

#[test]
fn the_origin_of_the_rows_decides_what_they_are_called() {
    use Origin::{Imported, Measured, Simulated};

    let workload = |name: &str, origin| Workload { time: at(0), workload: name.into(), origin, ..Workload::default() };
    let of = |name: &str, origin| EfficiencyWindow { workload: name.into(), origin, ..window(0, 36_000.0) };
    for (rows, head, column) in [
        (&[(Measured, Measured)][..], None, false),
        // Declared by a simulation, measured all the same.
        (&[(Simulated, Measured)], None, false),
        (&[(Measured, Simulated)], Some(" simulated "), false),
        (&[(Imported, Imported)], Some(" imported "), false),
        (&[(Measured, Measured), (Simulated, Simulated)], Some(" origins differ "), true),
        (&[(Measured, Measured), (Measured, Measured)], None, false),
    ] {
        let mut tally = LiveTally::default();
        for (number, (declared, windows)) in rows.iter().enumerate() {
            let name = format!("team/job-{number}");
            take(&mut tally, Topic::Workloads, &workload(&name, *declared));
            take(&mut tally, Topic::EfficiencyWindows, &of(&name, *windows));
        }
        let lines = shown(&tally);
        let badges = [" simulated ", " imported ", " origins differ "];
        let found = badges.into_iter().find(|badge| lines[0].contains(badge));
        assert_eq!(found, head, "{rows:?}: {}", lines[0]);
        let measured = lines.iter().find(|line| line.contains("team/job-0")).unwrap();
        assert_eq!(measured.contains("measured"), column, "{rows:?}: {measured}");
        assert!(!measured.contains("simulated"), "{rows:?}: {measured}");
    }
}

#[test]
fn a_hostile_name_does_not_reorder_the_view() {
    let mut tally = LiveTally::default();
    take(&mut tally, Topic::EfficiencyWindows, &EfficiencyWindow { workload: "a/\u{202e}b".into(), ..window(0, 36_000.0) });
    let all = shown(&tally).join("\n");
    assert!(!all.contains('\u{202e}') && all.contains("a/\\u202eb"), "{all}");
}
