//! Reported savings against true ones, in short: `eadt backtest --calibrate` is the long form.

use eadt_backtest::{Calibration, Subject, calibration_text};
use eadt_core::controller::{ControllerName, ControllerSettings};

#[test]
#[ignore = "long"]
fn long() {
    let env = |name: &str, other: &str| std::env::var(name).unwrap_or_else(|_| other.into());
    let all = vec![
        Subject::Scenario { name: "default".into(), scenario: Box::default() },
        Subject::RandomDays,
        Subject::ComeAndGo,
        Subject::EvenPhases { minutes: 60 },
        Subject::EvenPhases { minutes: 5 },
    ];
    let wanted = env("SUBJECTS", "01234");
    let subjects = all.into_iter().enumerate().filter(|(i, _)| wanted.contains(&i.to_string())).map(|(_, s)| s).collect();
    let calibration = Calibration {
        subjects,
        controllers: env("CONTROLLERS", "matrix,matrix-literal,power-cap,frequency,hybrid")
            .split(',')
            .map(|name| name.parse::<ControllerName>().unwrap())
            .collect(),
        days: env("DAYS", "1").parse().unwrap(),
        seeds: env("SEEDS", "3").parse().unwrap(),
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
    };
    let report = calibration.run(&|| ()).unwrap();
    println!("{}", calibration_text(&report));
    for run in &report.runs {
        let p = |v: Option<f64>| v.map_or("-".into(), |v| format!("{:+.1}", 100.0 * v));
        println!(
            "{:<12} {:<24} {:<14} {} rep {} [{} {}] true {} run {:+.1} compared {} thr {:.3} {}",
            run.scenario,
            run.workload,
            run.controller.as_str(),
            run.seed,
            p(run.reported_ratio),
            p(run.reported_ratio_low),
            p(run.reported_ratio_high),
            p(run.true_ratio),
            100.0 * run.true_run_ratio,
            p(run.compared_energy_ratio),
            run.true_throughput_ratio,
            p(run.reported_throughput_ratio)
        );
    }
}

/// Throughput of `hybrid` in each hour and energy over the day, against the untouched run.
#[test]
#[ignore = "long"]
fn hours() {
    use eadt_backtest::{Contender, Contest, Oversubscription, trace};
    use std::collections::BTreeMap;
    let seeds: u64 = std::env::var("SEEDS").map_or(10, |s| s.parse().unwrap());
    let mut scenario = eadt_simulator::Scenario::default();
    for job in &mut scenario.workloads {
        if std::env::var("ALLOWED").is_err() {
            job.bounds.oversubscription_percentage_max = Some(100);
        }
    }
    let subject = Subject::Scenario { name: "default".into(), scenario: Box::new(scenario) };
    let contest = Contest {
        subjects: vec![subject.clone()],
        contenders: vec![],
        oversubscription: vec![Oversubscription::Allowed],
        days: 1.0,
        seeds,
        settings: ControllerSettings {
            power_limit_min_ratio: 1.0,
            hybrid_restarts_per_day_max: 0,
            ..ControllerSettings::default()
        },
        delay_seconds: 10.0,
        power_budget_watts: None,
    };
    let show = std::env::var("SHOW").ok();
    for seed in 0..seeds {
        let mut runs = Vec::new();
        for settings in [contest.settings.clone(), ControllerSettings::default()] {
            let contest = Contest { settings, ..contest.clone() };
            let mut hours: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
            let hybrid = Contender::Controller(ControllerName::Hybrid);
            let mut minute = 0;
            trace(&contest, &subject, hybrid, seed, &mut |decision, window| {
                let of = hours.entry(window.workload.clone()).or_default();
                of.push((window.run_energy_joules.unwrap(), window.samples.unwrap()));
                minute = of.len();
                if show.as_deref().is_some_and(|s| {
                    s == format!("{seed}")
                        && decision.action != eadt_schemas::v1::Action::Maintain
                        && contest.settings.hybrid_restarts_per_day_max > 0
                }) {
                    println!("{minute} {} {:?} {}", window.workload, decision.action, decision.reason);
                }
            })
            .unwrap();
            runs.push(hours);
        }
        for (workload, fixed) in &runs[0] {
            let run = &runs[1][workload];
            let sum = |of: &[(f64, f64)]| of.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let (fe, fs) = sum(fixed);
            let (e, s) = sum(run);
            let buckets: Vec<f64> =
                (1..24).map(|h| sum(&run[h * 60..(h + 1) * 60]).1 / sum(&fixed[h * 60..(h + 1) * 60]).1).collect();
            let rolling = (60..=1380).map(|m| sum(&run[m..m + 60]).1 / sum(&fixed[m..m + 60]).1).fold(f64::INFINITY, f64::min);
            let worst = buckets.iter().copied().fold(f64::INFINITY, f64::min);
            println!(
                "seed {seed} {workload}: J/sample {:+.1} % energy {:+.1} % throughput {:.3} worst hour {worst:.3} rolling {rolling:.3} {:?}",
                100.0 * (e / s / (fe / fs) - 1.0),
                100.0 * (e / fe - 1.0),
                s / fs,
                buckets.iter().map(|b| (b * 100.0).round() as i32).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
#[ignore = "long"]
fn rows() {
    let env = |name: &str, other: &str| std::env::var(name).unwrap_or_else(|_| other.into());
    let subject = match env("SUBJECTS", "0").as_str() {
        "0" => Subject::Scenario { name: "default".into(), scenario: Box::default() },
        "1" => Subject::RandomDays,
        "2" => Subject::ComeAndGo,
        "3" => Subject::EvenPhases { minutes: 60 },
        _ => Subject::EvenPhases { minutes: 5 },
    };
    let calibration = Calibration {
        subjects: vec![],
        controllers: vec![],
        days: env("DAYS", "0.5").parse().unwrap(),
        seeds: 1,
        settings: ControllerSettings::default(),
        delay_seconds: 10.0,
    };
    for (name, report) in
        calibration.reports(&subject, env("CONTROLLERS", "hybrid").parse().unwrap(), env("SEED", "0").parse().unwrap()).unwrap()
    {
        println!("== {name} {:?} {:?}", report.saving_ratio, report.notes);
        for (i, row) in report.by_window.unwrap().iter().enumerate() {
            let p = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2}"));
            println!(
                "{i} phase {:?} J/sample {} base {} rate {:.1} watts {:.0} {:?} {}",
                row.phase,
                p(row.joules_per_sample),
                p(row.baseline_energy_joules.zip(row.baseline_samples).map(|(a, b)| a / b)),
                row.samples.unwrap_or(0.0) / 60.0,
                row.energy_joules.unwrap_or(0.0) / 60.0,
                row.action,
                row.reason.clone().unwrap_or_default()
            );
        }
    }
}
