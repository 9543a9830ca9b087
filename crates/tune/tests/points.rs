//! Tables in, choices out; and every way in which a table can be wrong.

use std::fmt::Write;

use eadt_models::choose::{ChoiceMethod, ChoiceObjective, RobustSettings, TuningKnob, TuningKnobs};
use eadt_tune::points::{self, GroupKey};
use eadt_tune::{NoteKind, TuningRequest, TuningResult, tune};

fn request(knob: TuningKnob, by: &[&str], maps: &[&str]) -> TuningRequest {
    TuningRequest {
        maps: maps.iter().map(|map| map.parse().unwrap()).collect(),
        decimal: None,
        by: by.iter().map(|&by| by.to_owned()).collect(),
        knobs: knob.into(),
        reference_second_setting: None,
        max_slowdown_ratio: Some(0.05),
        min_ratio: None,
        preset: None,
        objective: ChoiceObjective::Energy,
        method: ChoiceMethod::Measured,
        min_settings: 3,
        max_power_watts: 3000.0,
    }
}

fn tuned(text: &str, request: &TuningRequest) -> TuningResult {
    let groups = points::read("points.csv", text.as_bytes(), request).unwrap_or_else(|error| panic!("{error}"));
    tune("points.csv", &groups, request)
}

fn refused(text: &str, request: &TuningRequest) -> String {
    points::read("points.csv", text.as_bytes(), request).unwrap_err().to_string()
}

const GOOD: &str = "\
workload,gpu_model,sm_clock_mhz,duration_seconds,energy_joules
bert,A100,1410,100,30000
bert,A100,1200,104,26000
bert,A100,1000,115,25000
vit,A100,1410,50,15000
vit,A100,1200,56,12000
vit,A100,1000,60,11000
";

fn clocks() -> TuningRequest {
    request(TuningKnob::SmClockMhz, &["workload", "gpu_model"], &[])
}

#[test]
fn every_group_gets_its_choices() {
    let tuning = tuned(GOOD, &clocks());
    let json = serde_json::to_value(&tuning).unwrap();
    let bert = &json["groups"][0];
    assert_eq!(bert["by"], serde_json::json!({"workload": "bert", "gpu_model": "A100"}));
    assert_eq!(bert["reference"]["setting"], 1410.0);
    assert_eq!(bert["constrained"]["setting"], 1200.0);
    assert!((bert["constrained"]["saving_ratio"].as_f64().unwrap() - (1.0 - 26.0 / 30.0)).abs() < 1e-12);
    assert!((bert["constrained"]["slowdown_ratio"].as_f64().unwrap() - 0.04).abs() < 1e-12);
    assert_eq!(bert["min_energy"]["setting"], 1000.0);
    assert_eq!(bert["feasible"], true);
    for choice in ["min_edp", "min_ed2p", "knee"] {
        assert!(bert[choice]["setting"].is_number(), "{choice}");
    }
    assert_eq!(bert["pareto"].as_array().unwrap().len(), 3);
    let vit = &json["groups"][1];
    assert_eq!((vit["feasible"].as_bool(), &vit["constrained"]["setting"]), (Some(false), &serde_json::json!(1410.0)));
    assert!(vit["reason"].as_str().unwrap().contains("infeasible"), "{vit}");
    // A result can be read again.
    assert_eq!(serde_json::from_value::<TuningResult>(json).unwrap(), tuning);
}

#[test]
fn maps_units_sums_and_runs() {
    let table = "\u{feff}app,cap [kW],run,t,gpu0,gpu1\n\
        a,0.25,1,10000,1000000,1200000\na,0.25,2,10200,1000000,1200000\na,0.25,3,30000,3000000,4000000\n\
        a,0.2,1,10400,900000,1000000\na,0.15,1,12000,800000,900000\n";
    let request = request(
        TuningKnob::PowerLimitWatts,
        &["workload"],
        &["workload=app", "power_limit_watts=cap [kW]", "duration_seconds=t:ms", "energy_joules=gpu0+gpu1:mJ"],
    );
    let tuning = tuned(table, &request);
    let group = &tuning.groups[0];
    assert_eq!(group.by, GroupKey::from([("workload".to_owned(), "a".to_owned())]));
    assert_eq!(group.choices.reference.setting, 250.0);
    assert_eq!(group.choices.reference.duration_seconds, 10.2, "the median of three runs");
    assert_eq!(group.choices.reference.energy_joules, 2200.0);
    assert_eq!(group.choices.constrained.setting, 200.0);
    assert!(group.cap_curve.is_some());
}

#[test]
fn wrong_tables_are_named_by_file_row_column_and_remedy() {
    let with = |from: &str, to: &str| GOOD.replacen(from, to, 1);
    let power =
        |watts: &str| GOOD.replace("energy_joules", "mean_power_watts").replacen("30000", watts, 1).replace("26000", "250");
    for (what, text, parts) in [
        (
            "no column",
            with("duration_seconds", "seconds"),
            &["points.csv: there is no column \"duration_seconds\"", "--map duration_seconds="][..],
        ),
        ("near column", with("sm_clock_mhz", "sm_clock_mhx"), &["did you mean \"sm_clock_mhx\"?"]),
        ("no energy", with("energy_joules", "joules"), &["neither energy_joules nor mean_power_watts", "--map"]),
        ("no group", with("gpu_model", "gpu"), &["there is no column \"gpu_model\"", "--by"]),
        ("not a number", with("104", "fast"), &["points.csv:3: column \"duration_seconds\": \"fast\" is not a number"]),
        ("NaN", with("104", "nan"), &["points.csv:3: column \"duration_seconds\": there is no value"]),
        ("infinite", with("104", "1e999"), &["is not a number"]),
        ("zero", with("104", "0"), &["points.csv:3: column \"duration_seconds\": 0 is not above 0"]),
        ("negative", with("26000", "-1"), &["points.csv:3: column \"energy_joules\": -1 is not above 0"]),
        ("mJ read as J", with("30000", "30000000"), &["points.csv:2", "300000 W", "mJ", "--max-power-watts"]),
        ("mW read as W", power("350000"), &["points.csv:2: column \"mean_power_watts\": 350000 W", "mW"]),
        ("kW read as W", power("0.35"), &["0.3500 W", "kW"]),
        ("GHz read as MHz", with("1410", "1.41"), &["points.csv:2: column \"sm_clock_mhz\": 1.41 MHz cannot be", "GHz"]),
        ("Hz read as MHz", with("1410", "1410000000"), &["cannot be a sm_clock_mhz"]),
        (
            "short row",
            with("bert,A100,1200,104,26000", "bert,A100,1200,104"),
            &["points.csv:3: the row has 4 cells, its header 5"],
        ),
        (
            "twice",
            with("1000,115", "1200,115"),
            &["points.csv:4: column \"sm_clock_mhz\"", "is there twice", "first in line 3", "run"],
        ),
        ("empty group", with("bert,A100,1200", "bert,,1200"), &["points.csv:3: column \"gpu_model\": the cell is empty"]),
        ("no rows", GOOD.lines().next().unwrap().to_owned(), &["there is no row below the header"]),
        ("nothing", String::new(), &["points.csv: the file is empty"]),
    ] {
        let message = refused(&text, &clocks());
        for part in parts {
            assert!(message.contains(part), "{what}: {message:?} lacks {part:?}");
        }
        assert!(message.contains("; "), "{what}: a remedy: {message}");
    }
    let unit = request(TuningKnob::SmClockMhz, &[], &["duration_seconds=duration_seconds:W"]);
    assert!(refused(GOOD, &unit).contains("\"W\" is no unit of duration_seconds; use one of s, ms"));
    let field = request(TuningKnob::SmClockMhz, &[], &["durations=duration_seconds"]);
    assert!(refused(GOOD, &field).contains("unknown field \"durations\""));
    let both = "sm_clock_mhz,duration_seconds,energy_joules,mean_power_watts\n1410,10,3000,1500\n";
    let message = refused(both, &request(TuningKnob::SmClockMhz, &[], &[]));
    assert!(message.contains("do not agree"), "{message}");
    assert!("power".parse::<eadt_tune::FieldMap>().unwrap_err().to_string().contains("FIELD=COLUMN"));
}

#[test]
fn a_setting_is_read_at_the_end_of_the_name_of_a_window() {
    let rows = [(250, 9.99, 1900.3), (225, 10.70, 1832.9), (200, 10.24, 1672.2), (175, 10.36, 1551.8), (150, 10.41, 1449.6)];
    let row = |(cap, seconds, joules): &(u32, f64, f64)| format!("1.0,__GlobalPowerLimitOptimizer_{cap},{seconds},{joules}\n");
    let text = format!("start_time,window_name,elapsed_time,gpu0_energy\n{}", rows.iter().map(row).collect::<String>());
    let maps = ["power_limit_watts=window_name", "duration_seconds=elapsed_time", "energy_joules=gpu0_energy"];
    let zeus = TuningRequest { max_slowdown_ratio: Some(0.1), ..request(TuningKnob::PowerLimitWatts, &[], &maps) };
    let tuning = tuned(&text, &zeus);
    let choices = &tuning.groups[0].choices;
    assert_eq!((choices.reference.setting, choices.constrained.setting), (250.0, 150.0));
    for name in ["epoch", "250x", "-250", "2025-02-30"] {
        let odd = text.replace("__GlobalPowerLimitOptimizer_250", name);
        assert!(refused(&odd, &zeus).contains("; "), "{name}");
    }
}

#[test]
fn a_group_that_cannot_be_recommended_for_is_reported_beside_those_that_can() {
    let text = format!("{GOOD}lstm,A100,1410,10,2000\nllm,A100,1410,10,2000\nllm,A100,1200,11,2000\n");
    let tuning = tuned(&text, &clocks());
    assert_eq!(tuning.groups.len(), 2);
    let reasons: Vec<_> = tuning.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert!(reasons[0].starts_with("not known: 2 settings only (1410 MHz, 1200 MHz), 3 are needed"), "{reasons:?}");
    assert!(reasons[1].contains("1 setting only (1410 MHz)"), "{reasons:?}");
    let robust = TuningRequest { method: ChoiceMethod::Robust(RobustSettings::default()), ..clocks() };
    let tuning = tuned(GOOD, &robust);
    assert!(tuning.groups.is_empty());
    assert!(tuning.skipped[0].reason.contains("5 are needed") && tuning.skipped[0].reason.contains("--method measured"));
}

#[test]
fn a_preset_gives_each_workload_its_own_limit() {
    let preset = eadt_tune::presets::read("plan", eadt_tune::presets::FREQUENCY_PLAN).unwrap();
    let limits: Vec<_> = preset.workloads.iter().map(|w| (w.workload.as_str(), w.max_slowdown, w.min_ratio)).collect();
    assert_eq!(
        limits,
        [
            ("LLAMA", 0.05, Some(0.85)),
            ("VIT", 0.20, Some(0.70)),
            ("STABLEDIFFUSION", 0.10, Some(0.80)),
            ("WHISPER", 0.15, Some(0.75)),
            ("LSTM", 0.15, Some(0.75)),
        ]
    );
    let request = TuningRequest { max_slowdown_ratio: None, preset: Some(preset), ..clocks() };
    let tuning = tuned(GOOD, &request);
    assert_eq!((tuning.groups.len(), tuning.groups[0].max_slowdown_ratio, tuning.groups[0].min_ratio), (1, 0.20, Some(0.70)));
    assert_eq!(tuning.groups[0].choices.constrained.setting, 1000.0);
    assert!(tuning.skipped[0].reason.contains("preset does not name"), "{:?}", tuning.skipped);
    for (text, part) in [
        ("[[workloads]]\nworkload = \"a\"\nmax_slowdon = 1", "max_slowdon"),
        ("[[workloads]]\nworkload = \"a\"\nmax_slowdown = -1", "max slowdown -1"),
        ("[[workloads]]\nworkload = \"a\"\nmax_slowdown = 0.1\n[[workloads]]\nworkload = \"A\"\nmax_slowdown = 0.1", "twice"),
    ] {
        let message = eadt_tune::presets::read("p.toml", text).unwrap_err().to_string();
        assert!(message.starts_with("p.toml: ") && message.contains(part), "{message}");
    }
}

#[test]
fn batch_size_is_chosen_by_energy_to_accuracy() {
    let table = "dataset,batch_size,power_limit_watts,duration_seconds,mean_power_watts\n\
        a,32,250,10,200\na,32,200,10.2,180\na,32,150,12,140\na,64,250,8,220\na,64,200,8.2,190\na,64,150,10,145\n";
    let runs = "dataset,batch_size,run,target_metric,target_epoch\na,32,1,0.6,10\na,32,2,0.6,12\na,64,1,0.6,11\na,64,2,0.6,nan\n\
        a,64,1,0.7,20\n";
    let request = TuningRequest {
        by: vec!["dataset".to_owned(), "batch_size".to_owned()],
        ..request(TuningKnob::PowerLimitWatts, &[], &[])
    };
    let groups = points::read("points.csv", table.as_bytes(), &request).unwrap();
    let mut tuning = tune("points.csv", &groups, &request);
    let runs = eadt_tune::epochs::read("train.csv", runs.as_bytes(), &request).unwrap();
    assert!(tuning.add_energy_to_accuracy(&groups, &runs, &[(None, 0.6)]).is_empty());
    let found = &tuning.energy_to_accuracy[0].result;
    let best = found.min_energy.unwrap();
    assert_eq!((best.batch_size, best.setting, best.epochs), (32, 150.0, 11.0));
    assert_eq!(found.excluded[0].reason, "1 of 2 training runs never reached the target");
    let untold = tuning.add_energy_to_accuracy(&groups, &runs, &[(None, 0.9)]);
    assert!(untold[0].reason.contains("known targets: 0.6, 0.7"), "{untold:?}");
    let wrong = eadt_tune::epochs::read("train.csv", "batch_size,target_metric,target_epoch\n32,x,1\n".as_bytes(), &request);
    assert!(wrong.unwrap_err().to_string().starts_with("train.csv:2: column \"target_metric\": \"x\" is not a target"));
}

#[test]
fn reports_hold_every_group_and_escape_what_users_wrote() {
    let text = GOOD.replace("bert", "<b>&x");
    let tuning = tuned(&text, &clocks());
    let html = tuning.html();
    assert!(html.contains("&lt;b&gt;&amp;x") && !html.contains("<b>&x"));
    assert_eq!(html.matches("<svg ").count(), 2);
    for tick in ["text-anchor=\"middle\">0 %</text>", "text-anchor=\"end\">100 %</text>"] {
        assert!(html.contains(tick), "{tick}: {html}");
    }
    assert!(!html.contains("://"), "it loads nothing");
    assert!(html.contains("Source: points.csv: 3 rows in lines 2 to 4"), "every figure has its source");
    let plain = tuning.text();
    assert!(plain.contains("within the limits") && plain.contains("1200 MHz") && plain.contains("13.3 %"), "{plain}");
    assert!(plain.contains("unverified"), "{plain}");
}

/// Setting, seconds and watts.
type Row = (f64, f64, f64);

fn sweep(workload: &str, knob: &str, rows: &[Row]) -> String {
    let row = |(setting, seconds, watts): &(f64, f64, f64)| format!("{workload},{setting},{seconds},{watts}");
    let rows: Vec<String> = rows.iter().map(row).collect();
    format!("workload,{knob},duration_seconds,mean_power_watts\n{}\n", rows.join("\n"))
}

const CLOCKS: [(f64, f64, f64); 5] =
    [(1400.0, 11.137, 275.0), (1300.0, 12.274, 250.0), (1200.0, 13.411, 225.0), (1100.0, 14.548, 200.0), (1000.0, 15.685, 175.0)];
const CAPS: [(f64, f64, f64); 9] = [
    (100.0, 26.1, 101.0),
    (125.0, 14.7, 121.0),
    (150.0, 11.5, 143.0),
    (175.0, 10.9, 154.0),
    (200.0, 10.6, 177.0),
    (225.0, 10.8, 188.0),
    (250.0, 10.8, 192.0),
    (275.0, 10.8, 190.0),
    (300.0, 10.7, 188.0),
];

fn robust(knob: TuningKnob, max: f64) -> TuningRequest {
    let method = ChoiceMethod::Robust(RobustSettings { resamples: 100, ..RobustSettings::default() });
    TuningRequest { method, max_slowdown_ratio: Some(max), ..request(knob, &["workload"], &[]) }
}

fn kinds(tuning: &TuningResult) -> Vec<NoteKind> {
    tuning.notes.iter().map(|note| note.kind).collect()
}

#[test]
fn every_figure_of_the_robust_method_is_one_of_the_table() {
    let tuning = tuned(&sweep("a", "power_limit_watts", &CAPS), &robust(TuningKnob::PowerLimitWatts, 0.10));
    let group = &tuning.groups[0];
    let chosen = &group.choices.constrained;
    assert_eq!((chosen.setting, chosen.duration_seconds, chosen.energy_joules), (150.0, 11.5, 11.5 * 143.0));
    assert!((chosen.saving_ratio - (1.0 - 11.5 * 143.0 / (10.7 * 188.0))).abs() < 1e-12, "{chosen:?}");
    assert!(chosen.fitted_saving_ratio.is_some() && chosen.saving_lower_ratio.unwrap() <= chosen.saving_ratio);
    assert!(
        group.choices.reason.contains("150 W saves 18.2 % of the energy at 7.5 % more time as measured"),
        "{}",
        group.choices.reason
    );
    let pareto: Vec<f64> = group.choices.pareto.iter().map(|choice| choice.setting).collect();
    assert_eq!(pareto, [200.0, 175.0, 150.0]);
    let [least, within] = tuning.mean_savings().unwrap();
    assert_eq!((least, within), (chosen.saving_ratio, chosen.saving_ratio));
    let table = |setting: f64| CAPS.iter().find(|row| row.0 == setting).unwrap();
    for choice in group.choices.pareto.iter().chain([&group.choices.min_edp, &group.choices.min_ed2p, &group.choices.knee]) {
        let (_, seconds, watts) = table(choice.setting);
        assert_eq!((choice.duration_seconds, choice.energy_joules), (*seconds, seconds * watts), "{choice:?}");
    }
}

#[test]
fn one_glitch_in_any_row_changes_no_choice_by_either_method() {
    let caps: Vec<(f64, f64, f64)> = CAPS.into_iter().rev().collect();
    for (knob, name, rows, max) in [
        (TuningKnob::SmClockMhz, "sm_clock_mhz", CLOCKS.to_vec(), 0.5),
        (TuningKnob::PowerLimitWatts, "power_limit_watts", caps, 0.1),
    ] {
        for method in
            [ChoiceMethod::Measured, ChoiceMethod::Robust(RobustSettings { resamples: 60, ..RobustSettings::default() })]
        {
            let request = TuningRequest { method, ..robust(knob, max) };
            let clean = tuned(&sweep("a", name, &rows), &request);
            assert!(clean.notes.is_empty(), "{:?}", clean.notes);
            let clean = clean.groups[0].choices.constrained.setting;
            for index in 0..rows.len() {
                for (time, power) in [(1.0, 0.2), (1.0, 0.5), (1.0, 3.0), (0.3, 1.0)] {
                    let mut wrong = rows.clone();
                    wrong[index].1 *= time;
                    wrong[index].2 *= power;
                    let tuning = tuned(&sweep("a", name, &wrong), &request);
                    let what = format!("{name} {} times {time}, {power} {method:?}: {tuning:?}", rows[index].0);
                    assert!(kinds(&tuning).contains(&NoteKind::Glitch), "{what}");
                    match tuning.groups.first() {
                        // The reference is off, or too few settings are left: refused, not believed.
                        None => assert!(index == 0 || rows.len() == 5, "{what}"),
                        Some(group) if rows[index].0 != clean => {
                            assert_eq!(group.choices.constrained.setting, clean, "{what}");
                        }
                        Some(group) => assert_ne!(group.choices.constrained.setting, clean, "{what}"),
                    }
                }
            }
        }
    }
}

/// A sweep of clocks with 0.5 % of noise.
const SMOOTH_CLOCKS: [Row; 12] = [
    (1410.0, 100.4709, 347.556),
    (1335.0, 103.2994, 316.141),
    (1260.0, 107.1906, 283.971),
    (1185.0, 112.4424, 254.390),
    (1110.0, 116.7981, 229.809),
    (1035.0, 124.1643, 205.704),
    (960.0, 130.2511, 187.227),
    (885.0, 138.1721, 167.026),
    (810.0, 149.9290, 150.367),
    (735.0, 160.3298, 136.411),
    (660.0, 173.3447, 127.074),
    (585.0, 192.8372, 115.876),
];

#[test]
fn one_glitch_of_a_smooth_sweep_of_clocks_changes_no_choice_also_at_its_ends() {
    for (method, max) in [
        (ChoiceMethod::Measured, 0.1),
        (ChoiceMethod::Measured, 1.0),
        (ChoiceMethod::Robust(RobustSettings::default()), 0.1),
        (ChoiceMethod::Robust(RobustSettings::default()), 1.0),
    ] {
        let request = TuningRequest { method, ..robust(TuningKnob::SmClockMhz, max) };
        let choice = |rows: &[Row]| {
            let tuning = tuned(&sweep("a", "sm_clock_mhz", rows), &request);
            tuning.groups.first().map(|group| (group.choices.constrained.setting, group.choices.constrained.saving_ratio))
        };
        let clean = choice(&SMOOTH_CLOCKS).unwrap();
        for (index, (time, power)) in [0, 4, 9, 11].into_iter().flat_map(|index| {
            let factors = [0.7, 0.8, 0.88, 1.12, 1.2, 1.3];
            factors.into_iter().flat_map(move |factor| [(index, (factor, 1.0)), (index, (1.0, factor))])
        }) {
            let mut rows = SMOOTH_CLOCKS.to_vec();
            rows[index].1 *= time;
            rows[index].2 *= power;
            let got = choice(&rows);
            let what = format!("{method:?} {max}: row {index} times {time}, {power}: {got:?}, clean {clean:?}");
            if index == 0 {
                // Every saving is against it: the group is skipped, or claims no more.
                assert!(got.is_none_or(|(setting, saving)| setting == clean.0 && saving <= clean.1), "{what}");
                continue;
            }
            rows.remove(index);
            assert!(got == Some(clean) || got == choice(&rows), "{what}, without it {:?}", choice(&rows));
        }
    }
}

/// Caps with 0.3 % of noise, one run each. The time of the lowest one is 20 % too low.
const CAPS_WITH_A_FAST_ONE: [Row; 12] = [
    (400.0, 8.017, 238.4),
    (375.0, 7.978, 237.2),
    (355.0, 7.987, 238.9),
    (330.0, 8.019, 239.1),
    (305.0, 8.011, 238.6),
    (280.0, 8.011, 239.3),
    (260.0, 8.030, 238.3),
    (235.0, 8.010, 235.4),
    (210.0, 7.986, 209.8),
    (185.0, 8.004, 183.2),
    (165.0, 8.363, 164.6),
    (140.0, 7.996, 139.0),
];

#[test]
fn a_choice_does_not_rest_on_one_run_that_contradicts_its_neighbours() {
    for method in [ChoiceMethod::Measured, ChoiceMethod::Robust(RobustSettings { resamples: 100, ..RobustSettings::default() })] {
        let request = TuningRequest { method, ..robust(TuningKnob::PowerLimitWatts, 0.05) };
        let tuning = tuned(&sweep("a", "power_limit_watts", &CAPS_WITH_A_FAST_ONE), &request);
        let choices = &tuning.groups[0].choices;
        assert!(choices.constrained.setting > 140.0 && choices.min_energy.setting == 165.0, "{method:?}: {choices:?}");
        assert!(choices.pareto.iter().all(|choice| choice.setting > 140.0), "{method:?}: {choices:?}");
        assert_eq!(kinds(&tuning), [NoteKind::SingleRun]);
        assert_eq!(
            (tuning.notes[0].rows.as_slice(), tuning.notes[0].text.as_str()),
            (
                &[13][..],
                "line 13: 140 W would be chosen, but it took 7.996 s; the settings beside it leave 8.630 s or more, and no other run \
                 confirms it; left out of every choice: measure it again"
            )
        );
        // The open range can be read again.
        let again: TuningResult = serde_json::from_str(&serde_json::to_string(&tuning).unwrap()).unwrap();
        assert_eq!(again, tuning);
    }
}

#[test]
fn a_reference_that_the_next_settings_contradict_is_refused_or_in_doubt() {
    for method in [ChoiceMethod::Measured, ChoiceMethod::Robust(RobustSettings { resamples: 100, ..RobustSettings::default() })] {
        let caps = TuningRequest { method, ..robust(TuningKnob::PowerLimitWatts, 0.05) };
        let mut rows = CAPS_WITH_A_FAST_ONE[..11].to_vec();
        assert!(tuned(&sweep("a", "power_limit_watts", &rows), &caps).notes.is_empty());
        rows[0].1 *= 1.12;
        let tuning = tuned(&sweep("a", "power_limit_watts", &rows), &caps);
        assert!(tuning.groups.is_empty(), "{method:?}: {:?}", tuning.groups);
        assert_eq!(
            tuning.skipped[0].reason,
            "not known: row 2: the reference 400 W contradicts its neighbours (it took 8.979 s; the settings beside it leave 7.978 s or \
             less), and every saving is measured against it: measure it again"
        );
        // Of few clocks, the voltage may rise between the two highest.
        let clocks = TuningRequest { method, ..robust(TuningKnob::SmClockMhz, 0.2) };
        let mut rows = SMOOTH_CLOCKS[..7].to_vec();
        let clean = tuned(&sweep("a", "sm_clock_mhz", &rows), &clocks);
        assert!(clean.notes.is_empty(), "{:?}", clean.notes);
        rows[0].2 *= 1.1;
        let tuning = tuned(&sweep("a", "sm_clock_mhz", &rows), &clocks);
        assert_eq!(tuning.groups[0].choices.constrained.setting, clean.groups[0].choices.constrained.setting, "{method:?}");
        assert_eq!(kinds(&tuning), [NoteKind::SingleRun]);
        assert_eq!(
            (tuning.notes[0].rows.as_slice(), tuning.notes[0].text.as_str()),
            (
                &[2][..],
                "line 2: 1410 MHz is the reference, but it drew 382 W; the settings beside it leave 351 W or less, and no other run \
                 confirms it; a knee may lie between them, so it counts; every saving is measured against it: measure it again"
            )
        );
    }
}

#[test]
fn a_knee_in_a_wide_step_of_caps_refuses_no_reference() {
    let request = TuningRequest { method: ChoiceMethod::Measured, ..robust(TuningKnob::PowerLimitWatts, 0.3) };
    // Each board draws its cap: one is smooth, and one is bound by its memory above 300 W.
    let smooth =
        [(700.0, 110.2, 700.0), (500.0, 136.5, 500.0), (400.0, 163.5, 400.0), (350.0, 191.1, 350.0), (300.0, 259.5, 300.0)];
    let bound =
        [(400.0, 100.0, 400.0), (300.0, 100.4, 300.0), (250.0, 114.0, 250.0), (200.0, 138.0, 200.0), (150.0, 190.0, 150.0)];
    for (rows, chosen) in [(smooth, 500.0), (bound, 250.0)] {
        let tuning = tuned(&sweep("a", "power_limit_watts", &rows), &request);
        assert!(tuning.skipped.is_empty(), "{:?}", tuning.skipped);
        assert_eq!(tuning.groups[0].choices.constrained.setting, chosen);
        assert_eq!((kinds(&tuning), tuning.notes[0].rows.as_slice()), (vec![NoteKind::SingleRun], &[2][..]));
        assert!(tuning.notes[0].text.contains("a knee may lie between them, so it counts"), "{}", tuning.notes[0].text);
    }
    // A reference that took 12 % longer than the next cap is refused however wide the step is.
    let mut slow = bound;
    slow[0].1 = 112.5;
    let tuning = tuned(&sweep("a", "power_limit_watts", &slow), &request);
    assert!(tuning.groups.is_empty(), "{:?}", tuning.groups);
}

#[test]
fn two_glitches_beside_each_other_change_no_choice() {
    let row = |index: u32| {
        let clock = 1400.0 - 50.0 * f64::from(index);
        (clock, 10.0 * (1400.0 / clock).powf(0.9), 300.0 * (clock / 1400.0).powf(1.8))
    };
    let rows: Vec<(f64, f64, f64)> = (0..12).map(row).collect();
    let request = TuningRequest { method: ChoiceMethod::Measured, ..robust(TuningKnob::SmClockMhz, 0.2) };
    let choice = |rows: &[(f64, f64, f64)]| tuned(&sweep("a", "sm_clock_mhz", rows), &request);
    let clean = choice(&rows).groups[0].choices.constrained.setting;
    for first in 6..10 {
        let mut wrong = rows.clone();
        for row in &mut wrong[first..first + 2] {
            row.1 *= 0.5;
        }
        let tuning = choice(&wrong);
        assert_eq!(kinds(&tuning), [NoteKind::Glitch, NoteKind::Glitch], "{first}");
        assert_eq!(tuning.groups[0].choices.constrained.setting, clean, "{first}");
    }
    // Of five settings, two are too many to be left out: the note reports that something is wrong.
    let few: Vec<(f64, f64, f64)> =
        rows[..5].iter().enumerate().map(|(at, row)| (row.0, row.1, if at < 2 { 0.4 } else { 1.0 } * row.2)).collect();
    assert_eq!(kinds(&choice(&few)), [NoteKind::Irregular]);
}

#[test]
fn a_bad_fit_of_the_power_is_refused_as_one_of_the_times_is() {
    let mut rows = CLOCKS.to_vec();
    rows.extend([(900.0, 17.0, 150.0), (800.0, 18.9, 130.0)]);
    for (index, factor) in [1.17, 0.86, 1.17, 0.86, 1.17, 0.86, 1.17].into_iter().enumerate() {
        rows[index].2 *= factor;
    }
    let tuning = tuned(&sweep("a", "sm_clock_mhz", &rows), &robust(TuningKnob::SmClockMhz, 0.5));
    assert!(tuning.groups.is_empty() && tuning.skipped[0].reason.contains("no curve describes these powers"), "{tuning:?}");
}

#[test]
fn caps_that_are_not_kept_are_noted() {
    let measured = TuningRequest { max_slowdown_ratio: Some(1.0), ..request(TuningKnob::PowerLimitWatts, &["workload"], &[]) };
    let of = |rows: &[(f64, f64, f64)]| {
        let tuning = tuned(&sweep("a", "power_limit_watts", rows), &measured);
        tuning.notes.iter().filter(|note| note.kind == NoteKind::CapNotKept).map(|note| note.text.clone()).collect::<Vec<_>>()
    };
    let rows = [(130.0, 10.0, 95.0), (100.0, 10.2, 80.0), (70.0, 12.0, 66.0), (40.0, 15.5, 52.0), (30.0, 15.6, 46.0)];
    assert_eq!(
        of(&rows),
        ["the cap was not kept: the board drew 52 W at 40 W, 46 W at 30 W; these settings were not in force (lines 5, 6)"]
    );
    assert!(of(&rows[..3]).is_empty());
    assert_eq!(of(&[(250.0, 10.0, 240.0), (200.0, 11.0, 198.0), (100.0, 14.0, 118.0)]).len(), 1, "the lowest alone");
    assert!(of(&[(250.0, 10.0, 254.0), (200.0, 11.0, 203.0), (100.0, 14.0, 102.0)]).is_empty(), "within 5 %");
    let all = of(&[(250.0, 10.0, 480.0), (200.0, 11.0, 390.0), (150.0, 14.0, 298.0)]);
    assert!(all[0].contains("at every setting") && all[0].contains("several GPUs"), "{all:?}");
    // Two boards whose energies are added up have a cap each; so has a table in kW.
    let two = "w,cap [kW],t,gpu0,gpu1\na,0.25,10,2400,2400\na,0.2,11,2150,2150\na,0.15,14,2050,2050\n";
    let maps = ["workload=w", "power_limit_watts=cap [kW]", "duration_seconds=t", "energy_joules=gpu0+gpu1"];
    assert!(tuned(two, &request(TuningKnob::PowerLimitWatts, &["workload"], &maps)).notes.is_empty());
    let off = two.replace("2050,2050", "2650,2650");
    assert_eq!(kinds(&tuned(&off, &request(TuningKnob::PowerLimitWatts, &["workload"], &maps))), [NoteKind::CapNotKept]);
}

#[test]
fn groups_with_the_same_times_are_noted() {
    let of = |tables: &[(&str, &[Row])]| {
        let text: String = tables
            .iter()
            .enumerate()
            .map(|(index, (name, rows))| {
                let table = sweep(name, "sm_clock_mhz", rows);
                if index == 0 { table } else { table.split_once('\n').unwrap().1.to_owned() }
            })
            .collect();
        let measured = TuningRequest { max_slowdown_ratio: Some(0.5), ..request(TuningKnob::SmClockMhz, &["workload"], &[]) };
        let tuning = tuned(&text, &measured);
        let same = tuning.notes.iter().filter(|note| note.kind == NoteKind::SameTimes);
        same.map(|note| note.groups.iter().map(|key| key["workload"].clone()).collect::<String>()).collect::<Vec<_>>()
    };
    let more = |factor: f64| CLOCKS.map(|(setting, seconds, watts)| (setting, seconds * factor, watts + 10.0));
    let powers = CLOCKS.map(|(setting, seconds, watts)| (setting, seconds, watts + 13.0));
    assert_eq!(of(&[("a", &CLOCKS), ("b", &powers), ("c", &CLOCKS)]), ["abc"]);
    assert_eq!(of(&[("a", &CLOCKS), ("b", &more(1.1)), ("c", &CLOCKS), ("d", &more(1.1))]), ["ac", "bd"], "in pairs");
    assert_eq!(of(&[("a", &CLOCKS), ("b", &CLOCKS[1..])]), ["ab"], "the settings that both have");
    assert!(of(&[("a", &CLOCKS), ("b", &more(1.1))]).is_empty());
    let mut one = CLOCKS;
    one[2].1 += 0.001;
    assert!(of(&[("a", &CLOCKS), ("b", &one)]).is_empty(), "one digit of one setting");
    let coarse = [(1400.0, 5.0, 275.0), (1300.0, 6.0, 250.0), (1200.0, 7.0, 225.0)];
    assert!(of(&[("a", &coarse), ("b", &coarse)]).is_empty(), "few digits may be chance");
    let constant = CLOCKS.map(|(setting, _, watts)| (setting, 60.0, watts));
    let tuning = tuned(&sweep("a", "sm_clock_mhz", &constant), &request(TuningKnob::SmClockMhz, &["workload"], &[]));
    assert_eq!(kinds(&tuning), [NoteKind::ConstantTimes]);
}

#[test]
fn one_measurement_at_several_settings_is_noted() {
    let of = |rows: &[(f64, f64, f64)]| {
        let tuning = tuned(&sweep("a", "sm_clock_mhz", rows), &request(TuningKnob::SmClockMhz, &["workload"], &[]));
        let same = tuning.notes.into_iter().filter(|note| note.kind == NoteKind::SamePoints);
        same.map(|note| note.text).collect::<Vec<_>>()
    };
    assert!(of(&CLOCKS).is_empty());
    // A clock that was not kept above 1200 MHz.
    let mut kept = CLOCKS;
    kept[0] = (1400.0, 13.411, 225.5);
    kept[1] = (1300.0, 13.411, 225.5);
    kept[2].2 = 225.5;
    assert_eq!(
        of(&kept),
        [
            "the same time and energy to the last digit at 1400 MHz, 1300 MHz, 1200 MHz: one measurement, copied, or settings that were not \
          in force (lines 2, 3, 4)"
        ]
    );
    let coarse = [(1400.0, 10.0, 275.0), (1300.0, 10.0, 275.0), (1200.0, 11.0, 250.0)];
    assert!(of(&coarse).is_empty(), "few digits of two settings may be chance");
    assert_eq!(of(&coarse.map(|(setting, ..)| (setting, 10.0, 275.0))).len(), 1, "three settings are none");
    let runs = "workload,sm_clock_mhz,run,duration_seconds,mean_power_watts\na,1400,1,10,275\na,1400,2,10,275\na,1300,1,10,275\n\
                a,1200,1,11,250\n";
    let notes = tuned(runs, &request(TuningKnob::SmClockMhz, &["workload"], &[])).notes;
    assert!(!notes.iter().any(|note| note.kind == NoteKind::SamePoints), "runs of two settings");
}

#[test]
fn a_unit_in_the_name_of_a_column_holds() {
    let request = |maps: &[&str]| request(TuningKnob::SmClockMhz, &["workload"], maps);
    for (what, head, maps, row) in [
        (
            "ms and kW",
            "workload,sm_clock_ghz,elapsed_ms,power_kW",
            &["sm_clock_mhz=sm_clock_ghz", "duration_seconds=elapsed_ms", "mean_power_watts=power_kW"][..],
            "a,1.4,10000,0.3",
        ),
        (
            "Wh",
            "workload,clock [MHz],time_s,energy_wh",
            &["sm_clock_mhz=clock", "duration_seconds=time_s", "energy_joules=energy_wh"],
            "a,1400,10,0.83333333333333333",
        ),
        (
            "minutes",
            "workload,clock [MHz],duration_minutes,energy_wh",
            &["sm_clock_mhz=clock", "duration_seconds=duration_minutes", "energy_joules=energy_wh"],
            "a,1400,0.16666666666666666,0.83333333333333333",
        ),
    ] {
        let groups = points::read("points.csv", format!("{head}\n{row}\n").as_bytes(), &request(maps)).unwrap();
        let point = &groups.values().next().unwrap().measurements[0];
        assert_eq!((point.setting.round(), point.duration_seconds), (1400.0, 10.0), "{what}");
        assert!((point.energy_joules - 3000.0).abs() < 1e-6, "{what}: {} J", point.energy_joules);
    }
    let least = "workload,sm_clock_mhz,time_min,power\na,1400,10,300\n";
    let groups =
        points::read("points.csv", least.as_bytes(), &request(&["duration_seconds=time_min", "mean_power_watts=power"])).unwrap();
    assert_eq!(groups.values().next().unwrap().measurements[0].duration_seconds, 10.0, "the least time, or minutes");
    for (heads, map, expected) in [
        ("energy_mJ,idle_nJ", "energy_mJ+idle_nJ", "the header \"idle_nJ\" gives nJ, which is not a unit of energy_joules"),
        ("gpu0_kilojoules,gpu1_terajoules", "gpu0_kilojoules+gpu1_terajoules", "gives terajoules"),
        ("gpu0 [J],gpu1 [kJ]", "gpu0+gpu1", "\"gpu0 [J]\" has J, \"gpu1 [kJ]\" has kJ"),
        ("gpu0_kJ,gpu1", "gpu0_kJ+gpu1", "\"gpu0_kJ\" has kJ, \"gpu1\" has none"),
    ] {
        let sum = format!("workload,sm_clock_mhz,duration_seconds,{heads}\na,1400,10,2,1\n");
        let error = refused(&sum, &request(&[&format!("energy_joules={map}")]));
        assert!(error.contains(expected) && error.contains(&format!("energy_joules={map}:UNIT")), "{heads}: {error}");
    }
    let same = "workload,sm_clock_mhz,duration_seconds,gpu0_kJ,gpu1_kilojoules\na,1400,10,2,1\n";
    let groups = points::read("points.csv", same.as_bytes(), &request(&["energy_joules=gpu0_kJ+gpu1_kilojoules"])).unwrap();
    assert_eq!(groups.values().next().unwrap().measurements[0].energy_joules, 3000.0);
    // The unit that is offered is the one that fits best.
    let watt_hours = "workload,sm_clock_mhz,duration_seconds,e\na,1400,100,8.3333\n";
    let error = refused(watt_hours, &request(&["energy_joules=e"]));
    assert!(error.contains("--map energy_joules=e:Wh"), "{error}");
}

#[test]
fn energy_that_contradicts_power_is_noted() {
    let of = |joules: [f64; 3], maps: &[&str]| {
        let rows = [(1410, 10.0, 300.0), (1200, 11.0, 250.0), (1000, 13.0, 200.0)];
        let row = |((mhz, seconds, watts), factor): (&(u32, f64, f64), f64)| {
            format!("a,{mhz},{seconds},{watts},{}", seconds * watts * factor)
        };
        let rows: Vec<String> = rows.iter().zip(joules).map(row).collect();
        let text = format!("workload,sm_clock_mhz,duration_seconds,mean_power_watts,energy_joules\n{}\n", rows.join("\n"));
        let tuning = tuned(&text, &request(TuningKnob::SmClockMhz, &["workload"], maps));
        tuning.notes.iter().map(|note| note.text.clone()).collect::<Vec<_>>()
    };
    assert!(of([1.0, 1.01, 0.98], &[]).is_empty());
    let all = of([1.27, 1.27, 1.27], &[]);
    assert!(all[0].contains("by up to -21.3 % (3 of 3 rows, lines 2, 3, 4): the energy is used"), "{all:?}");
    assert!(of([1.0, 0.8, 1.0], &[])[0].contains("+25.0 % (1 of 3 rows, line 3)"));
    assert!(of([0.9, 0.9, 0.9], &["mean_power_watts=mean_power_watts"])[0].contains("the power is used"));
    assert!(
        of([0.4, 0.4, 0.4], &["energy_joules=energy_joules"])[0].contains("the energy is used"),
        "noted where only one is meant"
    );
    assert!(of([1.0, 1.0, 1.06], &[])[0].contains("line 4"));
}

/// Core clock × memory clock: the lower memory clock saves if the work is compute-bound.
fn grid() -> String {
    let mut text = String::from("workload,sm_clock_mhz,memory_clock_mhz,duration_seconds,mean_power_watts\n");
    for (memory, slower, less) in [(1215.0, 1.0, 0.0), (810.0, 1.01, 30.0)] {
        for (clock, seconds, watts) in CLOCKS {
            writeln!(text, "a,{clock},{memory},{},{}", seconds * slower, watts - less).unwrap();
        }
    }
    text
}

#[test]
fn two_knobs_are_chosen_together() {
    let knobs = TuningKnobs { first: TuningKnob::SmClockMhz, second: Some(TuningKnob::MemoryClockMhz) };
    for method in [ChoiceMethod::Measured, ChoiceMethod::Robust(RobustSettings { resamples: 100, ..RobustSettings::default() })] {
        let request = TuningRequest {
            knobs,
            method,
            max_slowdown_ratio: Some(0.12),
            ..request(TuningKnob::SmClockMhz, &["workload"], &[])
        };
        let tuning = tuned(&grid(), &request);
        let choices = &tuning.groups[0].choices;
        assert_eq!((choices.reference.setting, choices.reference.second_setting), (1400.0, Some(1215.0)));
        assert_eq!(
            (choices.constrained.setting, choices.constrained.second_setting),
            (1300.0, Some(810.0)),
            "{}",
            choices.reason
        );
        assert!(choices.reason.starts_with("1300 MHz, memory 810 MHz saves 11.0 %"), "{}", choices.reason);
        assert_eq!(choices.settings, 10);
        let ratio = TuningRequest { min_ratio: Some(0.9), ..request.clone() };
        let kept = &tuned(&grid(), &ratio).groups[0].choices.constrained;
        assert_eq!(kept.second_setting, Some(1215.0), "the memory clock has the limit, too");
        assert!(tuning.text().contains("1300 MHz, memory 810 MHz") && tuning.html().contains("memory 810 MHz"));
        let again: TuningResult = serde_json::from_str(&serde_json::to_string(&tuning).unwrap()).unwrap();
        assert_eq!(again.knobs(), knobs);
    }
    // Clock × batch size, per sample; the reference is today's batch size.
    let batches = grid().replace("memory_clock_mhz", "batch_size").replace(",1215,", ",64,").replace(",810,", ",128,");
    let knobs = TuningKnobs { first: TuningKnob::SmClockMhz, second: Some(TuningKnob::BatchSize) };
    let asked =
        TuningRequest { knobs, reference_second_setting: Some(64.0), ..request(TuningKnob::SmClockMhz, &["workload"], &[]) };
    let choices = &tuned(&batches, &asked).groups[0].choices;
    assert_eq!(choices.reference.second_setting, Some(64.0));
    assert_eq!((choices.constrained.setting, choices.constrained.second_setting), (1400.0, Some(128.0)), "{}", choices.reason);
    let absent = TuningRequest { reference_second_setting: Some(32.0), ..asked.clone() };
    assert!(tuned(&batches, &absent).skipped[0].reason.contains("the reference 1400 MHz, batch size 32 was not measured"));
    assert!(refused(&batches.replace(",64,", ",6.5,"), &asked).contains("6.5 is not a batch size"));
    let grouped = TuningRequest { by: vec!["batch_size".to_owned()], ..asked };
    assert!(refused(&batches, &grouped).contains("batch_size is turned, so rows are not grouped by it"));
}

#[test]
fn tables_are_read_in_any_writing() {
    let semicolons = "\
workload;gpu_model;sm_clock_mhz;duration_seconds;energy_joules
bert;A100;1410;100,5;30.000,5
bert;A100;1200;104,25;26.000,25
bert;A100;1000;115,75;25.000,5
";
    let utf_16 = |text: &str, big: bool| -> Vec<u8> {
        let units = format!("\u{feff}{text}");
        units.encode_utf16().flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    };
    let plain = |text: String| text.into_bytes();
    for (what, bytes) in [
        ("semicolons and decimal commas", plain(semicolons.to_owned())),
        ("tabs", plain(semicolons.replace(';', "\t"))),
        ("bars", plain(semicolons.replace(';', "|"))),
        ("sep=", plain(format!("sep=;\n{semicolons}"))),
        ("UTF-16 of PowerShell", utf_16(semicolons, false)),
        ("UTF-16, the other order", utf_16(semicolons, true)),
        ("a mark and carriage returns", plain(format!("\u{feff}{}", semicolons.replace('\n', "\r\n")))),
        ("carriage returns alone", plain(semicolons.replace('\n', "\r"))),
        ("units in cells", plain(semicolons.replace(",25\n", ",25 J\n").replace(";1410;", ";1,410 GHz;"))),
        ("kilojoules in cells", plain(semicolons.replace("30.000,5", "30,0005 kJ"))),
        ("units in the header", plain(semicolons.replace("duration_seconds", "duration_seconds [s]"))),
        ("units below the header", plain(semicolons.replacen('\n', "\n;;MHz;s;J\n", 1))),
        ("comments, a title and a repeated header", {
            let (head, rows) = semicolons.split_once('\n').unwrap();
            let (first, others) = rows.split_once('\n').unwrap();
            plain(format!("Measured in May\n# by us\n{head}\n{first}\n{head}\n{others}"))
        }),
        ("quoted", plain(semicolons.replace("30.000,5", "\"30.000,5\""))),
        ("empty cells at the end", plain(semicolons.replace(",5\n", ",5;;\n"))),
        ("other letter case", plain(semicolons.replace("energy_joules", "Energy_Joules"))),
    ] {
        let groups = points::read("points.csv", bytes.as_slice(), &clocks()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let group = groups.values().next().unwrap();
        let figures: Vec<_> = group.measurements.iter().map(|m| (m.setting, m.duration_seconds, m.energy_joules)).collect();
        let expected = [(1410.0, 100.5, 30_000.5), (1200.0, 104.25, 26_000.25), (1000.0, 115.75, 25_000.5)];
        assert_eq!(figures, expected, "{what}");
    }
    let runs = "batch_size;target_metric;target_epoch\n32;0,65;10,5\n64;0,65;n/a\n";
    let runs = eadt_tune::epochs::read("train.csv", utf_16(runs, false).as_slice(), &clocks()).unwrap();
    assert_eq!(
        runs.rows.iter().map(|(_, target, epochs)| (*target, epochs.epochs)).collect::<Vec<_>>(),
        [(0.65, Some(10.5)), (0.65, None)]
    );
}

#[test]
fn what_a_table_leaves_open_is_asked_with_the_option_that_settles_it() {
    let open = "sm_clock_mhz;duration_seconds;mean_power_watts\n1410;1.200;300\n1200;1.300;250\n1000;1.400;200\n";
    let message = refused(open, &request(TuningKnob::SmClockMhz, &[], &[]));
    assert!(message.starts_with("points.csv:2: column \"duration_seconds\": \"1.200\" may be a thousand and more"), "{message}");
    assert!(message.ends_with("use --decimal point or --decimal comma"), "{message}");
    for (decimal, seconds) in [(eadt_recordings::DecimalMark::Point, 1.2), (eadt_recordings::DecimalMark::Comma, 1200.0)] {
        let asked = TuningRequest { decimal: Some(decimal), ..request(TuningKnob::SmClockMhz, &[], &[]) };
        let groups = points::read("points.csv", open.as_bytes(), &asked).unwrap();
        assert_eq!(groups.values().next().unwrap().measurements[0].duration_seconds, seconds);
    }
    let cut = "sm_clock_mhz,duration_seconds,energy_joules\n1410,100,30000\n1200,104,26000\n1000,115,25000\n900,130,24";
    assert!(refused(cut, &request(TuningKnob::SmClockMhz, &[], &[])).contains(":5: the last line has no line end"));
    let whole = format!("{cut}500");
    assert_eq!(points::read("p.csv", whole.as_bytes(), &request(TuningKnob::SmClockMhz, &[], &[])).unwrap().len(), 1);
}

#[test]
fn remedies_are_options_that_work() {
    let with = |from: &str, to: &str| GOOD.replacen(from, to, 1);
    let millijoules = GOOD.replace("000\n", "000000\n").replace("energy_joules", "Energy total");
    let in_gigahertz = GOOD.replace(",1410,", ",1.41,").replace(",1200,", ",1.2,").replace(",1000,", ",1,");
    let map = |text: &str| text.parse().unwrap();
    for (what, text, maps, remedy) in [
        ("millijoules", millijoules, &["energy_joules=Energy total"][..], "--map 'energy_joules=Energy total:mJ'"),
        ("gigahertz", in_gigahertz, &[], "--map sm_clock_mhz=sm_clock_mhz:GHz"),
        (
            "milliseconds",
            with(",100,30000", ",100000,30000").replace("duration_seconds", "ms"),
            &["duration_seconds=ms"],
            "--map duration_seconds=ms:ms",
        ),
    ] {
        let mut request = clocks();
        request.maps = maps.iter().map(|text| map(text)).collect();
        let message = refused(&text, &request);
        assert!(message.contains(remedy), "{what}: {message}");
        if what != "milliseconds" {
            request.maps.push(map(remedy.trim_start_matches("--map ").trim_matches('\'')));
            points::read("points.csv", text.as_bytes(), &request).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    let header = GOOD.lines().next().unwrap();
    let doubled = |column: &str| {
        format!("{header},{column}\nbert,A100,1410,100,30000,1\nbert,A100,1410,101,30100,2\nbert,A100,1200,104,26000,1\n")
    };
    assert!(refused(&doubled("Trial no"), &clocks()).ends_with("--map 'run=Trial no'"));
    assert!(refused(&doubled("ecc"), &clocks()).contains("workload,gpu_model,ecc"));
    let equal = GOOD.replacen("bert,A100,1200,104,26000", "bert,A100,1410,100,30000", 1);
    assert!(refused(&equal, &clocks()).contains("keep one of the two rows"));
    let two = "sm_clock_mhz,t,energy_joules,t\n1410,10,3000,10\n";
    let message = refused(two, &request(TuningKnob::SmClockMhz, &[], &["duration_seconds=t"]));
    assert!(message.contains("2 columns are called \"t\"; give the number of the one that is meant: #2, #4"), "{message}");
}

#[test]
fn simulated_rows_are_marked_in_every_output() {
    let with_origin = |bert: &str, vit: &str| {
        let mut lines = GOOD.lines().map(str::to_owned);
        let header = lines.next().map(|line| line + ",origin\n").unwrap();
        lines.fold(header, |table, line| {
            let origin = if line.starts_with("bert") { bert } else { vit };
            table + &format!("{line},{origin}\n")
        })
    };
    let tuning = tuned(&with_origin("simulated", "measured"), &clocks());
    assert_eq!(kinds(&tuning), [NoteKind::Simulated]);
    assert!(tuning.notes[0].text.starts_with("1 of 2 groups are simulated"), "{:?}", tuning.notes);
    let json = serde_json::to_value(&tuning).unwrap();
    assert_eq!((json["groups"][0]["origin"].as_str(), json["groups"][1]["origin"].as_str()), (Some("simulated"), None));
    let text = tuning.text();
    assert!(text.contains("workload=bert (simulated; slowdown at most 5.0 %)"), "{text}");
    assert!(text.contains("medians of the simulated points") && text.contains("medians of the measured points"), "{text}");
    assert!(tuning.html().contains("workload=bert (simulated)</h2>"));
    let measured = tuned(&with_origin("measured", "measured"), &clocks());
    assert!(measured.notes.is_empty() && !measured.text().contains("simulated"), "{}", measured.text());
}

#[test]
fn a_rate_is_no_duration() {
    for head in [
        "samples_per_second",
        "throughput",
        "Throughput [s]",
        "steps_per_s",
        "it/s",
        "speed (it/s)",
        "tokens/s",
        "samplesPerSecond",
        "tokens per min",
        "1/s",
        "steps / s",
        "learning rate",
    ] {
        let text = GOOD.replace("duration_seconds", head);
        let maps = [format!("duration_seconds={head}")];
        let maps: Vec<&str> = maps.iter().map(String::as_str).collect();
        let message = refused(&text, &request(TuningKnob::SmClockMhz, &["workload"], &maps));
        assert!(message.contains("reads as a rate") && message.contains("; write the work over the rate"), "{head}: {message}");
    }
    for head in [
        "time/s",
        "seconds_per_step",
        "s/it",
        "time_per_epoch",
        "run_time",
        "elapsed",
        "iteration time [s]",
        "time per step/s",
        "time_per_epoch/s",
        "time per iteration/s",
        "runtime_1/s",
        "time 1/s",
        "time at fixed rate",
        "time per batch / ms:s",
        "throughput:s",
    ] {
        let text = GOOD.replace("duration_seconds", head.trim_end_matches(":s"));
        let maps = [format!("duration_seconds={head}")];
        let maps: Vec<&str> = maps.iter().map(String::as_str).collect();
        assert_eq!(tuned(&text, &request(TuningKnob::SmClockMhz, &["workload"], &maps)).groups.len(), 2, "{head}");
    }
}

#[test]
fn a_duration_may_be_in_hours_minutes_and_seconds() {
    let with = |head: &str, longest: &str| {
        format!("sm_clock_mhz,{head},mean_power_watts\n1400,00:10:00,300\n1300,0:11:30.500,250\n1200,{longest},230\n")
    };
    let mapped = |map: &str| {
        let found = request(TuningKnob::SmClockMhz, &[], &[map]);
        TuningRequest { max_slowdown_ratio: Some(1000.0), ..found }
    };
    for (longest, seconds) in [("0:12:00", 720.0), ("00:12:00,25", 720.25), ("1-02:30:00", 95_400.0), ("100:00:00", 360_000.0)] {
        let text = with("elapsed", longest).replace("00:12:00,25", "\"00:12:00,25\"");
        let tuning = tuned(&text, &mapped("duration_seconds=elapsed"));
        let times: Vec<f64> = tuning.groups[0].points.iter().map(|point| point[1]).collect();
        assert_eq!(times, [600.0, 690.5, seconds], "{longest}");
    }
    for (head, map, longest) in [
        ("elapsed", "duration_seconds=elapsed", "12:00"),
        ("elapsed", "duration_seconds=elapsed", "00:75:00"),
        ("elapsed", "duration_seconds=elapsed", "00:12:00:00"),
        ("elapsed", "duration_seconds=elapsed", "-00:12:00"),
        ("elapsed", "duration_seconds=elapsed:min", "00:12:00"),
        ("start_time", "duration_seconds=start_time", "00:12:00"),
    ] {
        let message = refused(&with(head, longest), &mapped(map));
        assert!(message.contains("is not a number"), "{map} {longest}: {message}");
    }
}

#[test]
fn a_field_is_mapped_once() {
    let two = GOOD.replace("energy_joules", "gpu0").replace("gpu_model", "gpu1");
    for (maps, parts) in [
        (
            &["energy_joules=gpu0", "energy_joules=gpu1"][..],
            &["--map names energy_joules twice: \"gpu0\" and \"gpu1\"", "energy_joules=gpu0+gpu1"][..],
        ),
        (&["energy_joules=gpu0:mJ", "energy_joules=gpu1:mJ"], &["energy_joules=COLUMN+COLUMN:UNIT"]),
        (&["energy_joules=gpu0:mJ", "energy_joules=gpu0:kJ"], &["--map names energy_joules twice"]),
        (&["energy_joules=gpu0", "run=gpu0", "run=gpu1"], &["--map names run twice", "leave one of the two out"]),
        (&["energy_joules=gpu0", "model=gpu0", "model=gpu1"], &["--map names model twice"]),
    ] {
        let message = refused(&two, &request(TuningKnob::SmClockMhz, &["workload"], maps));
        for part in parts {
            assert!(message.contains(part), "{maps:?}: {message}");
        }
    }
    let refined = ["energy_joules=gpu0", "energy_joules=gpu0:J"];
    assert_eq!(tuned(&two, &request(TuningKnob::SmClockMhz, &["workload"], &refined)).groups.len(), 2);
}

/// Returns rows of two models, or of none, by run: column, and its value and factor on time and energy for each of four
/// runs.
fn by_runs(column: &str, of_run: impl Fn(usize) -> (String, f64)) -> String {
    let mut text = format!("workload,sm_clock_mhz,run,{column},duration_seconds,energy_joules\n");
    for (mhz, seconds, joules) in [(1410, 100.0, 30_000.0), (1200, 104.0, 26_000.0), (1000, 115.0, 25_000.0)] {
        for run in 0..4 {
            let (value, factor) = of_run(run);
            let jitter = 1.0 + 0.002 * run as f64;
            writeln!(text, "a,{mhz},{run},{value},{},{}", seconds * factor * jitter, joules * factor * jitter).unwrap();
        }
    }
    text
}

/// A value and a factor of each run.
type RowOf = fn(usize) -> (String, f64);

#[test]
fn rows_that_differ_in_an_unused_column_and_in_their_figures_are_noted() {
    let notes = |text: &str, by: &[&str]| {
        let notes = tuned(text, &request(TuningKnob::SmClockMhz, by, &[])).notes;
        notes.into_iter().filter(|note| note.kind == NoteKind::MixedRows).map(|note| note.text).collect::<Vec<_>>()
    };
    let model = |run: usize| if run < 2 { ("small".to_owned(), 1.0) } else { ("large".to_owned(), 3.0) };
    let models = by_runs("model", model);
    let found = notes(&models, &["workload"]);
    assert!(found[0].contains("column \"model\" (large, small)") && found[0].contains("workload,model"), "{found:?}");
    assert!(notes(&models, &["workload", "model"]).is_empty(), "it is grouped by");
    let batches = by_runs("batch_size", |run| if run % 2 == 0 { ("32".to_owned(), 1.0) } else { ("64".to_owned(), 1.8) });
    assert_eq!(notes(&batches, &[]).len(), 1);
    let others: [(&str, RowOf); 4] = [
        ("host", |run| (format!("n{}", run % 2), 1.0)),
        ("note", |run| (format!("n{run}"), 1.0 + 0.001 * run as f64)),
        ("comment", |run| (if run % 2 == 0 { String::new() } else { "x".to_owned() }, 1.0 + (run % 2) as f64)),
        ("repeat", |run| (format!("{}", run % 2), 1.0 + (run % 2) as f64)),
    ];
    for (column, of_run) in others {
        assert!(notes(&by_runs(column, of_run), &["workload"]).is_empty(), "{column}");
    }
}

#[test]
fn repetitions_are_not_distinguished_by_what_ran() {
    for (column, proposes_run) in [
        ("gpu", false),
        ("batch_size", false),
        ("memory clock", false),
        ("model", false),
        ("application", false),
        ("app", false),
        ("network", false),
        ("kernel", false),
        ("job", false),
        ("ecc", true),
        ("gpu_util", true),
        ("gpu_temp", true),
        ("active_gpu", true),
        ("gpu usage", true),
        ("trial", true),
    ] {
        let header = GOOD.lines().next().unwrap();
        let text = format!("{header},{column}\nbert,A100,1410,100,30000,1\nbert,A100,1410,101,30100,2\n");
        let message = refused(&text, &clocks());
        assert_eq!(message.contains("run="), proposes_run, "{column}: {message}");
        assert_eq!(message.contains("--by"), column != "trial", "{column}: {message}");
    }
    let header = GOOD.lines().next().unwrap();
    let text = format!("{header},memory clock,application\nbert,A100,1410,100,30000,810,a\nbert,A100,1410,101,30100,850,b\n");
    let message = refused(&text, &clocks());
    assert!(message.contains("application") && !message.contains("memory clock"), "a text goes before a number: {message}");
}
