//! The commit path of the joint stage of GPU sharing under random faults, as `power_budget_simulation.rs` has it for the power
//! budget.

use crate::simulation::{bus, joint, story};

use bus::{Chance, ScheduledRecord};
use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_gpu_sharing::GpuSharingFold;
use eadt_processor::{GPU_SHARING_STAGE, ProcessorSettings};
use eadt_schemas::Topic;
use eadt_schemas::v1::{Actuation, ActuationOutcome, EfficiencyWindow, Layout, UpdateMode, Workload};
use joint::{Story, at, coming, json, one};
use story::{mend, run_stories, tear};

const JOBS: usize = 4;
const MINUTES: i64 = 40;

fn settings() -> ProcessorSettings {
    ProcessorSettings {
        prefix: "eadt.".into(),
        // Nothing may depend on how fast this machine is: a step is made when there is output, never because of time.
        commit_seconds: 3_600.0,
        retry_seconds: 0.001,
        gpu_sharing: GpuSharingSettings {
            enabled: true,
            windows_min: 1,
            validation_windows: 1,
            hold_seconds: 120.0,
            restarts_per_day_max: 1_000,
            // A first start passes over nothing, whenever it is.
            decision_expiry_seconds: 7_200.0,
            ..GpuSharingSettings::default()
        },
        ..ProcessorSettings::default()
    }
}

fn name(job: usize) -> String {
    format!("team/job-{job}")
}

fn window(minute: i64, workload: &Workload, with: &[usize], chance: &mut Chance) -> EfficiencyWindow {
    let share = f64::from(workload.layout.mps_thread_percentage.unwrap_or(100)) / 100.0;
    let end = at(minute * 60 + 60);
    EfficiencyWindow {
        id: format!("{}/{end}", workload.workload),
        workload: workload.workload.clone(),
        window_start: end.plus_seconds(-60.0),
        window_end: end,
        energy_coverage_ratio: 1.0,
        progress_coverage_ratio: if chance.one_in(8) { 0.5 } else { 1.0 },
        samples_per_second: Some(10.0 * share.powf(0.1 + chance.below(80) as f64 / 100.0)),
        mean_power_watts: Some(50.0 + 100.0 * share),
        mean_power_per_gpu_watts: Some(50.0 + 100.0 * share),
        restarted: workload.ready_time.is_none(),
        layout: Some(workload.layout.clone()),
        gpus: 1,
        tenants: (with.len() > 1).then_some(with.len() as u32),
        shared_devices: if with.len() > 1 { vec!["GPU-0".to_owned()] } else { vec![] },
        ..EfficiencyWindow::default()
    }
}

/// Forty minutes of jobs that come to a GPU and go, and whose shares are changed from outside; the last job has another
/// controller.
fn history(chance: &mut Chance) -> Vec<ScheduledRecord> {
    let mut all = Vec::new();
    let mut workloads: Vec<Workload> = (0..JOBS)
        .map(|job| Workload {
            workload: name(job),
            controller: Some(if job == 3 { "hybrid" } else { "sm-partition" }.into()),
            mode: UpdateMode::Enforce,
            gpus: Some(1),
            gpu_model: Some("board".to_owned()),
            ..Workload::default()
        })
        .collect();
    let mut here: Vec<usize> = vec![0];
    for minute in 0..MINUTES {
        let mut seconds = minute * 60 + 1;
        for (job, workload) in workloads.iter_mut().enumerate() {
            seconds += 1 + chance.below(10) as i64;
            if minute > 0 && !chance.one_in(2) {
                continue;
            }
            workload.time = at(seconds);
            workload.generation += 1;
            workload.ready_time = (!chance.one_in(5)).then_some(at(seconds));
            let share = [20, 30, 50, 50, 100][chance.below(5)];
            workload.layout = Layout { replicas: Some(1), mps_thread_percentage: Some(share), ..Layout::default() };
            workload.decision_id = chance.one_in(2).then(|| format!("{}@{}/sm-partition", name(job), at(minute * 60)));
            let value = if minute > 0 && chance.one_in(15) { None } else { Some(json(workload)) };
            all.push(coming(Topic::Workloads, at(seconds), &name(job), value));
            if chance.one_in(4) {
                let refused = Actuation {
                    id: format!("{seconds}"),
                    decision_id: format!("{}@{}/sm-partition", name(job), at(minute * 60)),
                    workload: name(job),
                    time: at(seconds),
                    outcome: if chance.one_in(2) { ActuationOutcome::Refused } else { ActuationOutcome::RolledBack },
                    ..Actuation::default()
                };
                all.push(coming(Topic::Actuations, at(seconds), &name(job), Some(json(&refused))));
            }
        }
        if chance.one_in(6) {
            here = (0..JOBS).filter(|_| chance.one_in(2)).collect();
        }
        let end = at(minute * 60 + 60);
        for job in here.clone() {
            let value = json(&window(minute, &workloads[job], &here, chance));
            let value = if chance.one_in(30) { b"{not json".to_vec() } else { value };
            all.push(coming(Topic::EfficiencyWindows, end, &name(job), Some(value)));
        }
    }
    all
}

/// Returns the next window of every workload.
fn next() -> Vec<EfficiencyWindow> {
    let window = |job| EfficiencyWindow {
        workload: name(job),
        window_end: at((MINUTES + 1) * 60),
        tenants: Some(2),
        shared_devices: vec!["GPU-0".to_owned()],
        ..EfficiencyWindow::default()
    };
    (0..JOBS).map(window).collect()
}

fn stage() -> Story<GpuSharingFold> {
    Story { part: "gpu-sharing", settings: settings(), new: GpuSharingFold::new, run: GPU_SHARING_STAGE.run, history, next }
}

#[test]
fn however_the_story_goes_every_decision_is_written_once_and_the_state_is_the_same() {
    run_stories("gpu_sharing_simulation", |seed| one(&stage(), seed, None));
}

#[test]
fn however_a_step_loses_its_state_or_its_positions_nothing_is_lost_or_written_twice() {
    mend("gpu_sharing_simulation", |seed, flaw| one(&stage(), seed, Some(flaw)));
}

#[test]
fn a_log_that_tears_its_steps_is_found_out() {
    tear(|seed, flaw| one(&stage(), seed, Some(flaw)));
}
