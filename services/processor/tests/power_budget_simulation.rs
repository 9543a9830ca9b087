//! The commit path of the joint stage of the power budget under random faults, as `simulation.rs` has it for the first stage:
//! however the story goes, what is in the log at its end is what a fold without a story gives.
//!
//! A failing seed prints how to repeat it; `EADT_TEST_SEEDS` sets how many are played (`simulation.rs`).

use crate::simulation::{bus, joint, story};

use bus::{Chance, ScheduledRecord};
use eadt_core::PowerBudgetFold;
use eadt_core::power_budget::allocation::BudgetSettings;
use eadt_processor::{POWER_BUDGET_STAGE, ProcessorSettings};
use eadt_schemas::Topic;
use eadt_schemas::v1::{Actuation, ActuationOutcome, EfficiencyWindow, Layout, UpdateMode, Workload};
use joint::{Story, at, coming, json, one};
use story::{mend, run_stories, tear};

const MEMBERS: usize = 4;

fn settings() -> ProcessorSettings {
    ProcessorSettings {
        prefix: "eadt.".into(),
        // Nothing may depend on how fast this machine is: a step is made when there is output, never because of time.
        commit_seconds: 3_600.0,
        retry_seconds: 0.001,
        // A first start passes over nothing, whenever it is.
        power_budget: BudgetSettings {
            budget_watts: Some(1_500.0),
            decision_expiry_seconds: 3_600.0,
            ..BudgetSettings::default()
        },
        ..ProcessorSettings::default()
    }
}

fn name(member: usize) -> String {
    format!("team/job-{member}")
}

/// Twenty minutes of jobs whose layouts are changed from outside, in the order of the times, which are the stamps, too.
fn history(chance: &mut Chance) -> Vec<ScheduledRecord> {
    let mut all = Vec::new();
    let mut workloads: Vec<Workload> = (0..MEMBERS)
        .map(|member| Workload {
            workload: name(member),
            controller: Some(if member == 3 { "hybrid" } else { "power-budget" }.into()),
            mode: UpdateMode::Enforce,
            gpus: Some(1 + chance.below(3) as u32),
            gpu_power_limit_watts: Some(400.0),
            ..Workload::default()
        })
        .collect();
    for minute in 0..20_i64 {
        let mut seconds = minute * 60 + 1;
        for (member, workload) in workloads.iter_mut().enumerate() {
            seconds += 1 + chance.below(10) as i64;
            if minute > 0 && !chance.one_in(3) {
                continue;
            }
            workload.time = at(seconds);
            workload.generation += 1;
            workload.ready_time = (!chance.one_in(4)).then_some(at(seconds));
            workload.layout = Layout { power_limit_watts: Some(150.0 + chance.below(250) as f64), ..Layout::default() };
            let value = if minute > 0 && chance.one_in(10) { None } else { Some(json(workload)) };
            all.push(coming(Topic::Workloads, at(seconds), &name(member), value));
            let refused = Actuation {
                id: format!("{seconds}"),
                decision_id: format!("{}@{}/power-budget", name(member), at(minute * 60)),
                workload: name(member),
                time: at(seconds),
                outcome: if chance.one_in(2) { ActuationOutcome::Refused } else { ActuationOutcome::Applied },
                ..Actuation::default()
            };
            all.push(coming(Topic::Actuations, at(seconds), &name(member), Some(json(&refused))));
        }
        let end = at(minute * 60 + 60);
        for (member, workload) in workloads.iter().enumerate().filter(|_| !chance.one_in(8)).collect::<Vec<_>>() {
            let watts = workload.layout.power_limit_watts.unwrap_or(400.0);
            let window = EfficiencyWindow {
                id: format!("{}/{end}", name(member)),
                workload: name(member),
                window_start: end.plus_seconds(-60.0),
                window_end: end,
                energy_coverage_ratio: if chance.one_in(6) { 0.5 } else { 1.0 },
                progress_coverage_ratio: 1.0,
                samples_per_second: Some(watts.powf(0.1 + chance.below(80) as f64 / 100.0)),
                mean_power_watts: Some(watts),
                mean_power_per_gpu_watts: Some(watts),
                layout: Some(workload.layout.clone()),
                gpus: 1,
                ..EfficiencyWindow::default()
            };
            let value = if chance.one_in(30) { b"{not json".to_vec() } else { json(&window) };
            all.push(coming(Topic::EfficiencyWindows, end, &name(member), Some(value)));
        }
    }
    all
}

/// Returns the next window of every workload.
fn next() -> Vec<EfficiencyWindow> {
    let window = |member| EfficiencyWindow { workload: name(member), window_end: at(21 * 60), ..EfficiencyWindow::default() };
    (0..MEMBERS).map(window).collect()
}

fn stage() -> Story<PowerBudgetFold> {
    Story { part: "power-budget", settings: settings(), new: PowerBudgetFold::new, run: POWER_BUDGET_STAGE.run, history, next }
}

#[test]
fn however_the_story_goes_every_decision_is_written_once_and_the_state_is_the_same() {
    run_stories("power_budget_simulation", |seed| one(&stage(), seed, None));
}

#[test]
fn however_a_step_loses_its_state_or_its_positions_nothing_is_lost_or_written_twice() {
    mend("power_budget_simulation", |seed, flaw| one(&stage(), seed, Some(flaw)));
}

#[test]
fn a_log_that_tears_its_steps_is_found_out() {
    tear(|seed, flaw| one(&stage(), seed, Some(flaw)));
}
