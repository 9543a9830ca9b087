//! Tables in, choices out; and every way in which a table can be wrong.

use eadt_models::choose::{Knob, Method, Objective, Robust};
use eadt_tune::points::{self, Key};
use eadt_tune::{Request, Tuning, tune};

fn request(knob: Knob, by: &[&str], maps: &[&str]) -> Request {
    Request {
        maps: maps.iter().map(|map| map.parse().unwrap()).collect(),
        by: by.iter().map(|&by| by.to_owned()).collect(),
        knob,
        max_slowdown_ratio: Some(0.05),
        min_ratio: None,
        preset: None,
        objective: Objective::Energy,
        method: Method::Measured,
        min_settings: 3,
        max_power_watts: 3000.0,
    }
}

fn tuned(text: &str, request: &Request) -> Tuning {
    let groups = points::read("points.csv", text.as_bytes(), request).unwrap_or_else(|error| panic!("{error}"));
    tune("points.csv", &groups, request)
}

fn refused(text: &str, request: &Request) -> String {
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

fn clocks() -> Request {
    request(Knob::SmClockMhz, &["workload", "gpu_model"], &[])
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
    assert_eq!(serde_json::from_value::<Tuning>(json).unwrap(), tuning);
}

#[test]
fn maps_units_sums_and_runs() {
    let table = "\u{feff}app,cap [kW],run,t,gpu0,gpu1\n\
        a,0.25,1,10000,1000000,1200000\na,0.25,2,10200,1000000,1200000\na,0.25,3,30000,3000000,4000000\n\
        a,0.2,1,10400,900000,1000000\na,0.15,1,12000,800000,900000\n";
    let request = request(
        Knob::PowerLimitWatts,
        &["workload"],
        &["workload=app", "power_limit_watts=cap [kW]", "duration_seconds=t:ms", "energy_joules=gpu0+gpu1:mJ"],
    );
    let tuning = tuned(table, &request);
    let group = &tuning.groups[0];
    assert_eq!(group.by, Key::from([("workload".to_owned(), "a".to_owned())]));
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
            &["points.csv:3: the row has 4 cell(s), its header 5"],
        ),
        (
            "twice",
            with("1000,115", "1200,115"),
            &["points.csv:4: column \"sm_clock_mhz\"", "stands there twice", "first in line 3", "run"],
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
    let unit = request(Knob::SmClockMhz, &[], &["duration_seconds=duration_seconds:W"]);
    assert!(refused(GOOD, &unit).contains("\"W\" is no unit of duration_seconds; use one of s, ms"));
    let field = request(Knob::SmClockMhz, &[], &["durations=duration_seconds"]);
    assert!(refused(GOOD, &field).contains("unknown field \"durations\""));
    let both = "sm_clock_mhz,duration_seconds,energy_joules,mean_power_watts\n1410,10,3000,1500\n";
    let message = refused(both, &request(Knob::SmClockMhz, &[], &[]));
    assert!(message.contains("do not agree"), "{message}");
    assert!("power".parse::<eadt_tune::FieldMap>().unwrap_err().to_string().contains("FIELD=COLUMN"));
}

#[test]
fn a_group_that_cannot_be_told_says_so_beside_those_that_can() {
    let text = format!("{GOOD}lstm,A100,1410,10,2000\nllm,A100,1410,10,2000\nllm,A100,1200,11,2000\n");
    let tuning = tuned(&text, &clocks());
    assert_eq!(tuning.groups.len(), 2);
    let reasons: Vec<_> = tuning.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert!(reasons[0].starts_with("cannot tell: 2 setting(s) only (1410 MHz, 1200 MHz), 3 are needed"), "{reasons:?}");
    assert!(reasons[1].contains("1 setting(s) only (1410 MHz)"), "{reasons:?}");
    let robust = Request { method: Method::Robust(Robust::default()), ..clocks() };
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
    let request = Request { max_slowdown_ratio: None, preset: Some(preset), ..clocks() };
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
    let request = Request { by: vec!["dataset".to_owned(), "batch_size".to_owned()], ..request(Knob::PowerLimitWatts, &[], &[]) };
    let groups = points::read("points.csv", table.as_bytes(), &request).unwrap();
    let mut tuning = tune("points.csv", &groups, &request);
    let runs = eadt_tune::epochs::read("train.csv", runs.as_bytes(), &request).unwrap();
    assert!(tuning.add_energy_to_accuracy(&groups, &runs, &[(None, 0.6)]).is_empty());
    let found = &tuning.energy_to_accuracy[0].result;
    let best = found.min_energy.unwrap();
    assert_eq!((best.batch_size, best.setting, best.epochs), (32, 150.0, 11.0));
    assert_eq!(found.excluded[0].reason, "1 of 2 run(s) never reached the target");
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
    assert!(!html.contains("://"), "it loads nothing");
    assert!(html.contains("Source: points.csv: 3 row(s) in lines 2 to 4"), "every figure has its source");
    let plain = tuning.text();
    assert!(plain.contains("within the limits") && plain.contains("1200 MHz") && plain.contains("13.3 %"), "{plain}");
    assert!(plain.contains("unverified"), "{plain}");
}
