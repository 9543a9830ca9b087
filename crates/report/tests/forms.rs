//! Forms of a report for readers: units, total rows, charts, and two runs side by side.

use eadt_report::{EnergyReport, RenderFormat, ReportBreakdown, ReportSettings, RunComparison, report};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Origin};

fn at(minute: i64) -> EventTime {
    EventTime::from_micros(1_700_000_000_000_000 + minute * 60_000_000)
}

fn window(workload: &str, minute: i64, joules: f64, samples: Option<f64>) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{workload}/{minute}"),
        workload: workload.to_owned(),
        window_start: at(minute),
        window_end: at(minute + 1),
        origin: Origin::Simulated,
        energy_joules: Some(joules),
        energy_coverage_ratio: 1.0,
        run_seconds: 60.0,
        run_energy_joules: Some(joules),
        run_coverage_ratio: 1.0,
        samples,
        progress_coverage_ratio: if samples.is_some() { 1.0 } else { 0.0 },
        ..EfficiencyWindow::default()
    }
}

/// Returns a decision and its application.
fn change(workload: &str, minute: i64, action: ControllerAction) -> (Decision, Actuation) {
    let (id, workload) = (format!("d{minute}"), workload.to_owned());
    let actuation = Actuation {
        id: format!("a{minute}"),
        decision_id: id.clone(),
        workload: workload.clone(),
        time: at(minute),
        outcome: ActuationOutcome::Applied,
        ..Actuation::default()
    };
    let reason = format!("decided at {minute}");
    let validation = if action == ControllerAction::Revert { ChangeValidation::Failed } else { ChangeValidation::None };
    let decision = Decision { id, workload, time: at(minute), action, validation, reason, ..Decision::default() };
    (Decision { origin: Origin::Simulated, ..decision }, actuation)
}

fn verdict(workload: &str, minute: i64, on: i64, validation: ChangeValidation) -> Decision {
    let id = format!("v{minute}");
    Decision { id, concerns: Some(format!("d{on}")), validation, ..change(workload, minute, ControllerAction::Maintain).0 }
}

fn priced() -> ReportSettings {
    ReportSettings {
        price_per_kwh: Some(0.25),
        carbon_grams_per_kwh: Some(380.0),
        currency: Some("EUR".to_owned()),
        ..ReportSettings::default()
    }
}

fn two_workloads() -> EnergyReport {
    let windows = [window("lab/big", 0, 8_737_536.4, Some(926_306.6)), window("lab/small", 0, 1_310_181.9, Some(870_301.9))];
    report(&windows, [], [], &priced())
}

/// Columns of the row that begins with this name, without its texts.
fn row(text: &str, table: &str, name: &str) -> String {
    let table = text.split("\n\n").find(|part| part.contains(table)).unwrap_or_else(|| panic!("{table}: {text}"));
    let row = table.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"));
    row.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn tables_have_units_separators_and_a_total() {
    let text = two_workloads().render(RenderFormat::Text);
    let energy = |name: &str| row(&text, "Energy by workload", name);
    assert_eq!(energy("lab/big"), "lab/big simulated gpu 1 min 8.74 MJ 2.427 926,307 9.433 0.1060 145.6 kW 100.00 %");
    assert_eq!(energy("lab/small"), "lab/small simulated gpu 1 min 1.31 MJ 0.364 870,302 1.505 0.6643 21.8 kW 100.00 %");
    assert_eq!(energy("total"), "total simulated gpu 10.05 MJ 2.791");
    let cost = |name: &str| row(&text, "Saving, cost and carbon", name);
    assert_eq!(cost("lab/big"), "lab/big simulated - - - - - - - 0.6068 0.922 kg -");
    assert!(cost("total").ends_with("0.6978 1.061 kg -"), "{}", cost("total"));
    assert_eq!(row(&text, "Windows and decisions", "total"), "total simulated 2 0 0 0");
    // Decimal points are below each other.
    let rows = text.lines().filter(|line| line.starts_with("  ") && line.contains(" MJ "));
    let points: Vec<Option<usize>> = rows.map(|line| line.find(" MJ ")).collect();
    assert!(points.len() == 3 && points.iter().all(|point| *point == points[0]), "{text}");
    let (markdown, html) = (two_workloads().render(RenderFormat::Markdown), two_workloads().render(RenderFormat::Html));
    assert!(markdown.contains("| **total** | **simulated** | **gpu** |  | **10.05 MJ** |"), "{markdown}");
    assert!(html.contains("<tfoot><tr><td>total</td>") && html.contains("<td class=\"n\">10.05 MJ</td>"), "{html}");
    // One workload is its own total, and a total of a part names the part.
    let one = report([&window("lab/big", 0, 1.0, None)], [], [], &ReportSettings::default()).render(RenderFormat::Text);
    assert!(!one.contains("total "), "{one}");
    let dark = EfficiencyWindow { energy_joules: None, run_energy_joules: None, ..window("lab/dark", 0, 0.0, None) };
    let part = report([&window("lab/big", 0, 1.0, None), &dark], [], [], &priced()).render(RenderFormat::Text);
    assert!(row(&part, "Energy by workload", "total").starts_with("total of 1 of 2 simulated"), "{part}");
}

#[test]
fn rows_of_windows_have_units_and_short_times() {
    let windows = [window("lab/a", 0, 48_000.0, Some(1200.4)), window("lab/a", 1, 4_800.0, Some(0.0))];
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let text = report(&windows, [], [], &settings).render(RenderFormat::Text);
    let of = |time: &str| row(&text, "Windows of lab/a", time);
    assert!(of("2023-11-14T22:13:20Z").starts_with("2023-11-14T22:13:20Z simulated - 1 min 48.00 kJ 1,200"), "{text}");
    assert!(of("2023-11-14T22:14:20Z").starts_with("2023-11-14T22:14:20Z simulated - 1 min 4.80 kJ 0 "), "{text}");
}

#[test]
fn json_has_the_verdict_and_raw_sums() {
    let document: serde_json::Value = serde_json::from_str(&two_workloads().render(RenderFormat::Json)).unwrap();
    let totals = &document["totals"];
    let verdict = document["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("simulated: 2 workloads: nothing was changed"), "{verdict}");
    assert_eq!(totals["energy_joules"].as_f64(), Some(8_737_536.4 + 1_310_181.9));
    assert_eq!((&totals["saving_verdict"], &totals["currency"]), (&"unchanged".into(), &"EUR".into()));
    let near = |name: &str, wanted: f64| {
        let figure = totals[name].as_f64().unwrap_or_else(|| panic!("{name}: {totals}"));
        assert!((figure - wanted).abs() < 1e-9 * wanted, "{name}: {figure} instead of {wanted}");
    };
    near("cost", 10_047_718.3 / 3.6e6 * 0.25);
    near("co2_grams", 10_047_718.3 / 3.6e6 * 380.0);
    for unknown in ["saving_joules", "saving_ratio", "saving_ratio_low", "throughput_kept_ratio_least"] {
        assert!(totals.get(unknown).is_some_and(serde_json::Value::is_null), "{unknown}: {totals}");
    }
    assert_eq!(document["workloads"].as_array().map(Vec::len), Some(2));
}

/// Points of each line of a class.
fn lines(html: &str, class: &str) -> Vec<usize> {
    let begin = format!("<polyline{class} points=\"");
    html.split(begin.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap().split(' ').count()).collect()
}

#[test]
fn no_line_is_drawn_over_a_time_of_which_nothing_is_known() {
    let known = |minutes: &[i64]| -> Vec<EfficiencyWindow> {
        minutes.iter().map(|minute| window("lab/a", *minute, 600.0, Some(60.0))).collect()
    };
    for (minutes, power, joules) in [
        (&[0, 1, 2, 3][..], vec![4], vec![4]),
        (&[0, 1, 60, 61, 62], vec![2, 3], vec![2, 3]),
        // One window alone: its power over its time, its J/sample as a point.
        (&[0, 1, 60], vec![2, 2], vec![2]),
    ] {
        let html = report(&known(minutes), [], [], &ReportSettings::default()).render(RenderFormat::Html);
        assert_eq!((lines(&html, " class=\"power\""), lines(&html, "")), (power, joules), "{minutes:?}: {html}");
    }
}

#[test]
fn power_alone_is_drawn_and_decisions_are_listed_without_a_chart() {
    let power: Vec<EfficiencyWindow> = (0..4).map(|minute| window("lab/a", minute, 600.0, None)).collect();
    let (decision, actuation) = change("lab/a", 2, ControllerAction::SetPowerLimit);
    let html = report(&power, [&decision], [&actuation], &ReportSettings::default()).render(RenderFormat::Html);
    assert!(html.contains("<h3>Power of lab/a over time (simulated)</h3>") && html.contains("J/sample not known"), "{html}");
    assert_eq!((lines(&html, " class=\"power\""), lines(&html, "")), (vec![4], vec![]), "{html}");
    assert!(html.contains("<strong>set power limit</strong>: decided at 2."), "{html}");
    let dark: Vec<EfficiencyWindow> = power
        .into_iter()
        .map(|window| EfficiencyWindow { energy_joules: None, run_energy_joules: None, run_coverage_ratio: 0.0, ..window })
        .collect();
    let html = report(&dark, [&decision], [&actuation], &ReportSettings::default()).render(RenderFormat::Html);
    assert!(!html.contains("over time") && html.contains("<strong>set power limit</strong>: decided at 2."), "{html}");
}

#[test]
fn a_change_without_a_verdict_of_its_own_names_the_one_that_it_was_judged_with() {
    let windows: Vec<EfficiencyWindow> = (0..12).map(|minute| window("lab/a", minute, 600.0, Some(60.0))).collect();
    let changes = [
        change("lab/a", 2, ControllerAction::Increase),
        change("lab/a", 4, ControllerAction::SetPowerLimit),
        change("lab/a", 7, ControllerAction::Revert),
    ];
    let (mut decisions, actuations): (Vec<Decision>, Vec<Actuation>) = changes.into_iter().unzip();
    decisions.push(verdict("lab/a", 6, 2, ChangeValidation::Kept));
    let html = report(&windows, &decisions, &actuations, &ReportSettings::default()).render(RenderFormat::Html);
    for part in [
        "<strong>Kept</strong> at 2023-11-14T22:19:20Z, together with decision 2: decided at 6",
        "decided at 4. <strong>No verdict of its own</strong>: judged together with decision 1.",
        "decided at 7. <strong>No verdict of its own</strong>.",
        ">3←</text>",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
}

#[test]
fn two_runs_are_compared_with_sums_in_every_form() {
    let run = |joules: f64, names: &[&str]| {
        let windows: Vec<EfficiencyWindow> = names.iter().map(|name| window(name, 0, joules, Some(100.0))).collect();
        report(&windows, [], [], &priced())
    };
    let (this, other) = (run(3e6, &["a/both", "b/both", "c/new"]), run(4e6, &["a/both", "b/both", "d/old", "e/old"]));
    let comparison = RunComparison::of(&this, &other);
    let text = comparison.render_text(None);
    assert!(
        text.starts_with("simulated: 2 workloads in both runs: energy 6 MJ instead of 8 MJ (-25.0 %); cost 0.417 EUR"),
        "{text}"
    );
    assert!(text.contains("cost 0.417 EUR instead of 0.556 EUR (-25.0 %); CO₂ 633 g instead of 844 g (-25.0 %)\n"), "{text}");
    assert_eq!(
        row(&text, "Workloads in both runs", "a/both"),
        "a/both simulated 40,000 30,000 -25.00 % 1.667 1.667 0.00 % 4.00 MJ 3.00 MJ -25.00 %"
    );
    assert_eq!(row(&text, "Workloads in both runs", "total"), "total 8.00 MJ 6.00 MJ -25.00 %");
    assert!(text.contains("note: c/new is only in this run\n"), "{text}");
    assert!(text.contains("note: 2 workloads are only in the other run: d/old, e/old\n"), "{text}");
    assert!(text.ends_with("is not checked\n"), "{text}");
    assert!(comparison.render_markdown().contains("| **total** |  |"), "{}", comparison.render_markdown());
    let html = comparison.render_html();
    assert!(html.contains("<p class=\"verdict\">simulated: 2 workloads in both runs") && html.ends_with("</html>\n"), "{html}");

    // Less energy for less work is no saving.
    let less = {
        let windows = ["a/both", "b/both"].map(|name| window(name, 0, 3.5e6, Some(80.0)));
        report(&windows, [], [], &priced())
    };
    let different = RunComparison::of(&less, &other);
    let text = different.render_text(None);
    let (start, note) = (
        "at the J/sample of each run, the samples of this one take 7 MJ instead of 6.40 MJ (+9.4 %); energy 7 MJ instead of 8 MJ; cost",
        "did different numbers",
    );
    assert!(text.contains(start) && text.contains(note), "{text}");
    assert!(row(&text, "Workloads in both runs", "a/both").ends_with("4.00 MJ 3.50 MJ -"), "{text}");
    // One without J/sample is in no sum of the same work.
    let idle = |joules: f64, samples| {
        let windows = [window("a/both", 0, joules, Some(samples)), window("gpus", 0, 1e6, None)];
        report(&windows, [], [], &priced())
    };
    let text = RunComparison::of(&idle(3.5e6, 80.0), &idle(4e6, 100.0)).render_text(None);
    assert!(
        text.contains("at the J/sample of each run, the samples of 1 of them take 3.50 MJ instead of 3.20 MJ (+9.4 %)"),
        "{text}"
    );

    // One without known energy hides no sum of the others.
    let unmetered = |joules: f64| {
        let windows = [
            window("a/both", 0, joules, Some(100.0)),
            EfficiencyWindow {
                energy_joules: None,
                run_energy_joules: None,
                run_coverage_ratio: 0.0,
                ..window("u/dark", 0, 0.0, Some(9.0))
            },
        ];
        report(&windows, [], [], &ReportSettings::default())
    };
    let (this_part, other_part) = (unmetered(3e6), unmetered(4e6));
    let comparison = RunComparison::of(&this_part, &other_part);
    let text = comparison.render_text(None);
    assert!(text.contains("2 workloads in both runs: energy of 1 of them 3 MJ instead of 4 MJ (-25.0 %)\n"), "{text}");
    assert!(
        text.contains("the energy of 1 of 2 workloads is not known in one of the runs") && text.contains(": u/dark"),
        "{text}"
    );
    assert_eq!(row(&text, "Workloads in both runs", "total"), "total 4.00 MJ 3.00 MJ -25.00 %");
    assert_eq!(comparison.totals().energy_workloads, 1);

    // GPUs without work for a longer time refuse their own sum, and are in none of the others.
    let with_idle = |joules: f64, minutes: i64| {
        let idle = (0..minutes).map(|minute| window("gpus", minute, 1e6, None));
        let windows: Vec<EfficiencyWindow> = idle.chain([window("a/both", 0, joules, Some(100.0))]).collect();
        report(&windows, [], [], &ReportSettings::default())
    };
    let (longer, shorter) = (with_idle(3e6, 4), with_idle(4e6, 2));
    let comparison = RunComparison::of(&longer, &shorter);
    let totals = comparison.totals();
    assert_eq!((totals.energy_joules.change_ratio, totals.energy_workloads), (Some(-0.25), 1));
    let text = comparison.render_text(None);
    assert!(text.contains("energy of 1 of them 3 MJ instead of 4 MJ (-25.0 %)"), "{text}");
    assert!(text.contains("no sum of energy, cost or CO₂ has the energy of gpus"), "{text}");
    assert!(row(&text, "Workloads in both runs", "gpus").ends_with("2.00 MJ 4.00 MJ -"), "{text}");
    assert!(text.contains("mean power compares"), "{text}");
    let same_time = with_idle(4e6, 4);
    let comparison = RunComparison::of(&longer, &same_time);
    assert_eq!((comparison.totals().energy_joules.other, comparison.energy_note()), (Some(8e6), None));
    // The same energy of GPUs without work beside a workload that took less is no replay's.
    assert_eq!(comparison.totals().energy_joules.change_ratio, Some(-0.125));
    assert!(row(&comparison.render_text(None), "Workloads in both runs", "gpus").ends_with("4.00 MJ 4.00 MJ -"));
    let only_idle = |minutes: i64| {
        let windows: Vec<EfficiencyWindow> = (0..minutes).map(|minute| window("gpus", minute, 1e6, None)).collect();
        report(&windows, [], [], &ReportSettings::default())
    };
    let (longer, shorter) = (only_idle(4), only_idle(2));
    assert_eq!(RunComparison::of(&longer, &only_idle(4)).totals().energy_joules.change_ratio, None, "a record and its replay");
    let totals = RunComparison::of(&longer, &shorter).totals();
    assert_eq!((totals.energy_joules.this, totals.energy_joules.change_ratio), (Some(4e6), None));

    // Every form has the notes on unreadable parts of a run.
    let part = other.clone().with_source_notes(vec!["the archive lacks a file".to_owned()]);
    let comparison = RunComparison::of(&this, &part);
    for text in [comparison.render_text(None), comparison.render_markdown(), comparison.render_html()] {
        assert!(text.contains("the other run: the archive lacks a file"), "{text}");
    }
    assert_eq!(comparison.notes()[0], "the other run: the archive lacks a file");

    // No name in common: no table, and two lines that name them.
    let strangers = run(4e6, &["x/1", "x/2", "x/3", "x/4", "x/5"]);
    let text = RunComparison::of(&this, &strangers).render_text(None);
    assert!(text.starts_with("no workload is in both runs: nothing can be compared\n"), "{text}");
    assert!(!text.contains("J/sample") && text.contains("only in the other run: x/1, x/2, x/3 and 2 more\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("note: ")).count(), 3, "{text}");
}
