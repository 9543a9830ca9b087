//! Two actuators: one is stopped right before it deletes a broken pod, the other takes over, then the first one wakes up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use eadt_schemas::v1::ActuationOutcome;
use eadt_tests::kubernetes::Component;
use eadt_tests::kubernetes::training::training;
use serde_json::{Value, json};

use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::site::{FIRST, Site};
use crate::world::LIMIT;

pub const ROW: Row = Row {
    name: "paused-deletion",
    fault: "SIGSTOP of the leading actuator right before it deletes the pod that a roll-back cannot use; the pod becomes ready, or the next leader deletes it and another one of its name runs; SIGCONT",
    promise: "the late deletion does nothing: the pod that runs is another one, or not the one that was seen",
    without: "the condition of a deletion (uid, resource version)",
    full: 20,
    batch: 4,
    short: 1,
    off: 1,
    run,
};

const NAMES: [&str; 2] = [FIRST, "b"];
/// A deletion that is sent on waking up has been answered after this time.
const LATE: Duration = Duration::from_secs(3);
/// The percentage that never becomes ready, and the one that continues.
const BROKEN: u32 = 40;
const BEFORE: &str = "50";
/// The pod that a rolling change takes first.
const POD: &str = "llm-training-5";

fn run(run: Run) -> Result<Outcome> {
    let mut workload = training();
    // In this order the controller waits for a pod that is not ready before it comes to what is to be replaced.
    workload["spec"]["podManagementPolicy"] = json!("OrderedReady");
    workload["spec"]["template"]["metadata"]["annotations"] =
        json!({"test.eadt.dev/never-ready-when": format!("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={BROKEN}")});
    let mut site = Site::alone_with(&workload, run.bites.then_some("pod-fence"))?;
    let mut outcome = Outcome::default();
    for round in 0..run.rounds {
        let leads = (round % 2) as usize;
        let (old, new) = (NAMES[leads], NAMES[1 - leads]);
        // Whether it gets well by itself; else the next leader deletes it.
        let recovers = round % 2 == 0;
        let mut first = actuator(&site, old, Some(("pod.delete", 1)))?;
        site.wait(&mut first, &format!("{old} leads"), |_| Ok(site.leader()? == old))?;
        site.wait(&mut first, "all pods run as before", |_| all_run(&site))?;
        let id = format!("d-{round}");
        let decision = site.decision(&id, BROKEN)?;
        site.decide(&decision)?;
        first.await_phase(LIMIT)?;
        first.freeze(true)?;
        let stopped = Instant::now();
        let doomed = uid(&pod(&site)?)?;
        if recovers {
            // The controllers have not come to it yet: they would replace it.
            site.kubernetes().part(Component::ControllerManager).freeze(true)?;
            get_well(&site)?;
        }
        let mut second = actuator(&site, new, None)?;
        site.wait(&mut second, &format!("{new} leads"), |_| Ok(site.leader()? == new))?;
        if !recovers {
            site.wait(&mut second, "all pods run as before", |_| all_run(&site))?;
        }
        outcome.took("from the stop until another one leads", stopped.elapsed().as_secs_f64());
        let healthy = uid(&pod(&site)?)?;
        outcome.check((healthy == doomed) == recovers, || format!("{POD} is {healthy} and was {doomed}"));

        first.freeze(false)?;
        first.go_on()?;
        std::thread::sleep(LATE);
        outcome.rounds += 1;
        let stays = || {
            pod(&site)
                .is_ok_and(|now| now["metadata"]["deletionTimestamp"].is_null() && uid(&now).is_ok_and(|uid| uid == healthy))
        };
        // Without its condition the deletion is made, on a busy machine later.
        let awake = Instant::now();
        while run.bites && stays() && awake.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(100));
        }
        let how = if recovers { "that had become ready" } else { "of the same name" };
        outcome.check(stays(), || format!("the late deletion took the pod {how}"));
        if recovers {
            site.kubernetes().part(Component::ControllerManager).freeze(false)?;
        }
        site.wait(&mut second, "all pods run as before", |_| all_run(&site))?;
        let over = || site.became(&id).contains(&ActuationOutcome::RolledBack);
        site.wait(&mut second, &format!("{id} is rolled back"), |_| Ok(over()))?;
        let became = site.became(&id);
        outcome.check(became == [ActuationOutcome::Applied, ActuationOutcome::RolledBack], || {
            format!("{id} was to be rolled back, and became {became:?}")
        });
        first.kill()?;
        second.kill()?;
    }
    Ok(outcome)
}

/// One that gives a rollout five seconds.
fn actuator(site: &Site, identity: &str, wait: Option<(&'static str, u64)>) -> Result<Part> {
    let settings = eadt_actuator::ActuatorSettings {
        rollout_deadline_seconds: 5.0,
        change_interval_seconds: 0.0,
        ..eadt_actuator::ActuatorSettings::default()
    };
    site.actuator_set(identity, wait, settings)
}

fn pod(site: &Site) -> Result<Value> {
    let namespace = site.workload().split('/').next().unwrap_or_default().to_owned();
    let text = site.kubernetes().kubectl(&["-n", &namespace, "get", "pod", POD, "-o", "json"])?;
    serde_json::from_str(&text).context("kubectl prints JSON")
}

fn uid(pod: &Value) -> Result<String> {
    pod["metadata"]["uid"].as_str().map(str::to_owned).context("a pod has a uid")
}

/// Every pod is ready, and of the template that was there before; the layout that is published shows it.
fn all_run(site: &Site) -> Result<bool> {
    let object = site.object()?;
    let status = &object["status"];
    let all = ["readyReplicas", "updatedReplicas"].iter().all(|count| status[count] == object["spec"]["replicas"]);
    let seen =
        status["observedGeneration"] == object["metadata"]["generation"] && status["currentRevision"] == status["updateRevision"];
    let published = site.published().is_some_and(|workload| workload.ready_time.is_some());
    Ok(all && seen && published && crate::site::percentage_of(&object) == BEFORE)
}

/// The pod is ready after all.
fn get_well(site: &Site) -> Result<()> {
    let namespace = site.workload().split('/').next().unwrap_or_default().to_owned();
    let ready = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = json!({"status": {"conditions": [ready("Ready"), ready("ContainersReady")]}}).to_string();
    site.kubernetes().kubectl(&[
        "-n",
        &namespace,
        "patch",
        "pod",
        POD,
        "--subresource=status",
        "--type=strategic",
        "-p",
        &patch,
    ])?;
    Ok(())
}
