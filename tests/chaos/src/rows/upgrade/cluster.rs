//! Two actuators on a control plane of their own, and the agent of its node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_lake::Archive;
use eadt_nvml::fake::FakeSettings;
use eadt_schemas::v1::{ActuationOutcome, Decision, DeviceState, Layout};
use eadt_schemas::{Topic, decode};
use eadt_tests::kubernetes::training::{energy_policy, training};
use serde_json::{Value, json};

use crate::chance::Chance;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::rows::agent::{GPUS, Node, wait};
use crate::rows::archive::{self, await_archived};
use crate::site::{FIRST, Site};
use crate::verify::read_committed;
use crate::world::{LIMIT, PARTITIONS, explain};

pub const ROW: Row = Row {
    name: "upgrade-cluster",
    fault: "rolling restarts (SIGTERM) of two actuators and a node agent between this minor version and the next, over each decision about caps and clocks, which are of either version, under a policy of the next; an archiver of this one",
    promise: "each decision is applied once and held by the GPUs, no pod is touched, and in the end everything is as before; each offset in exactly one readable file, with what is not known",
    without: "taking events whose fields are not all known",
    full: 60,
    batch: 10,
    short: 2,
    off: 2,
    run,
};

const NAMES: [&str; 2] = [FIRST, "b"];
/// The only node of the control plane.
const NODE: &str = "gpu-0";
/// Outputs of decider and agent; those of actuators are in transactions, after which the log has no records.
const TOPICS: [Topic; 2] = [Topic::Decisions, Topic::DeviceStates];
/// How long something is waited for that, without the mitigation, may never come.
const IN_VAIN: Duration = Duration::from_secs(20);

fn run(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let mut site = Site::alone_with(&training(), run.bites.then_some("unknown-fields"))?;
    site.sees_all = true;
    govern(&site)?;
    let node = Node::new(site.world.off)?;
    let place = site.world.dir().join("archive");
    let mut files = site.world.part(Service::Archiver(Box::new(archive::settings(&place))), None)?;
    let mut agent = node.follower_as(NODE, &site.world)?;
    explain(await_device_state(&site, &mut agent), &agent)?;
    let mut parts = [site.actuator(NAMES[0], None)?, site.actuator(NAMES[1], None)?];
    site.wait(&mut parts[0], "somebody leads", |_| Ok(!site.leader()?.is_empty()))?;
    let (object, generation) = (site.object()?, present(&site)?.generation);
    let limit = if run.bites { IN_VAIN } else { LIMIT };
    let mut ids = Vec::new();
    for round in 0..run.rounds {
        site.world.next.set(round % 2 == 0);
        let wish = Wish { watts: 300 + 10 * (round % 20), mhz: 1200 + 15 * (round % 7) };
        let decision = wish.decision(&site, &format!("d-{round}"))?;
        ids.push(decision.id.clone());
        let leads = usize::from(site.leader()? == NAMES[1]);
        let (asked, early) = (Instant::now(), chance.below(2) == 0);
        if early {
            site.decide(&decision)?;
        }
        replace(&site, &mut parts, leads)?;
        if !early {
            // No instance leads.
            site.decide(&decision)?;
        }
        let applied = |_: &Part| Ok(site.became(&decision.id).contains(&ActuationOutcome::Applied));
        let there = site.wait_within(limit, &mut parts[leads], &format!("{} is applied", decision.id), applied);
        if broken(there, run.bites, &mut outcome)? {
            return Ok(outcome);
        }
        agent.stop(LIMIT)?;
        outcome.check(node.as_before(None), || "an agent that was stopped has not put everything back".to_owned());
        agent = node.follower_as(NODE, &site.world)?;
        replace(&site, &mut parts, 1 - leads)?;
        let in_force = |_: &Part| {
            let published = present(&site)?;
            Ok(site.is_ready(&decision.id)
                && published.layout == decision.to
                && published.ready_time.is_some()
                && wish.is_held(&node))
        };
        let there = site.wait_within(limit, &mut parts[1 - leads], &format!("{} is in force", decision.id), in_force);
        if broken(explain(there, &agent), run.bites, &mut outcome)? {
            return Ok(outcome);
        }
        outcome.took("from the decision until it is in force, and everything restarted", asked.elapsed().as_secs_f64());
        explain(await_device_state(&site, &mut agent), &agent)?;
        outcome.rounds += 1;
    }
    judge(&site, &ids, generation, &object, &mut outcome)?;
    site.kubernetes().kubectl(&["-n", site.namespace(), "delete", "epol", "llm"])?;
    wait(&mut agent, "everything is put back", || node.as_before(None) && node.records().is_ok_and(|records| records == 0))?;
    node.judge(&mut outcome, None, "without a policy")?;
    agent.stop(LIMIT)?;
    for part in parts {
        part.stop(LIMIT)?;
    }
    let archive = Archive::folder(&place)?;
    let reached = await_archived(&site.world, &archive, &TOPICS, &mut files, LIMIT)?;
    outcome.check(reached, || format!("not everything was archived: {}", files.tail()));
    archive::judge(&site.world, &place, &archive, &TOPICS, &mut outcome)?;
    Ok(outcome)
}

/// Without the mitigation, whether the promise is broken by now.
fn broken(there: Result<Duration>, bites: bool, outcome: &mut Outcome) -> Result<bool> {
    match there {
        Ok(_) => Ok(false),
        Err(error) if bites => {
            outcome.rounds += 1;
            outcome.check(false, || from_its_cause(&error));
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Describes the cause first, then the output of the processes: the page has only the first line of an example.
fn from_its_cause(error: &anyhow::Error) -> String {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// Stops an actuator and starts it again.
fn replace(site: &Site, parts: &mut [Part; 2], number: usize) -> Result<()> {
    let next = || site.actuator(NAMES[number], None);
    parts[number].ask_to_end()?;
    let status = parts[number].await_end(LIMIT)?;
    ensure!(status.success(), "an actuator ended with {status}:\n{}", parts[number].tail());
    parts[number] = next()?;
    Ok(())
}

/// A cap and a clock of every GPU.
#[derive(Debug, Clone, Copy)]
struct Wish {
    watts: u32,
    mhz: u32,
}

impl Wish {
    fn decision(self, site: &Site, id: &str) -> Result<Decision> {
        let decision = site.decision(id, 50)?;
        let to = Layout {
            power_limit_watts: Some(f64::from(self.watts)),
            sm_clock_mhz: Some(f64::from(self.mhz)),
            ..decision.from.clone()
        };
        Ok(Decision { to, restarts: false, ..decision })
    }

    fn is_held(self, node: &Node) -> bool {
        let held = FakeSettings { power_milliwatts: self.watts * 1000, lock_mhz: self.mhz, ..FakeSettings::default() };
        (0..GPUS).all(|gpu| node.fake.settings(gpu) == held)
    }
}

fn present(site: &Site) -> Result<eadt_schemas::v1::Workload> {
    site.published().context("no layout is published")
}

/// Waits until the agent that runs has published what its GPUs take: until then nothing is asked of it.
fn await_device_state(site: &Site, agent: &mut Part) -> Result<()> {
    let topic = site.world.topic(Topic::DeviceStates);
    let speaks = || {
        let newest = read_committed(&site.world.bus, &topic, PARTITIONS).ok().and_then(|mut records| records.pop());
        let state = newest.and_then(|record| decode::<DeviceState>(record.value.as_deref()?).ok());
        state.is_some_and(|state| !state.stopped && !state.devices.is_empty())
    };
    wait(agent, "the agent has spoken", speaks).map(drop)
}

/// A policy of the next minor version, whose definition is there by then, as an upgrade brings it first.
fn govern(site: &Site) -> Result<()> {
    let kubernetes = site.kubernetes();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let open = |at: String| json!({"op": "add", "path": format!("{at}/x-kubernetes-preserve-unknown-fields"), "value": true});
    let patch = json!([open(spec.to_owned()), open(format!("{spec}/properties/bounds"))]).to_string();
    kubernetes.kubectl(&["patch", "crd", "energypolicies.eadt.dev", "--type=json", "-p", &patch])?;
    let mut policy = energy_policy("Enforce");
    policy["spec"]["bounds"]["powerLimitWatts"] = json!({"min": 100, "max": 700});
    policy["spec"]["bounds"]["smClockMegahertz"] = json!({"min": 500, "max": 1900});
    for level in ["/spec", "/spec/bounds"] {
        policy.pointer_mut(level).context("a policy has it")?[eadt_faults::OF_THE_NEXT_VERSION] = json!({"text": "x"});
    }
    let begun = Instant::now();
    loop {
        // Until the API server knows the new definition it refuses what it does not know, or leaves it out.
        let there = kubernetes.apply(site.namespace(), &policy.to_string()).and_then(|_| {
            let text = kubernetes.kubectl(&["-n", site.namespace(), "get", "epol", "llm", "-o", "json"])?;
            Ok(serde_json::from_str::<Value>(&text)?["spec"]["bounds"][eadt_faults::OF_THE_NEXT_VERSION].is_object())
        });
        match there {
            Ok(true) => return Ok(()),
            Err(error) if begun.elapsed() > LIMIT => return Err(error),
            _ => {}
        }
        ensure!(begun.elapsed() < LIMIT, "the policy does not keep what only the next version knows");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Each decision once, and nothing of the object but EADT's marks.
fn judge(site: &Site, ids: &[String], generation: u64, before: &Value, outcome: &mut Outcome) -> Result<()> {
    // A repeated outcome may be published late.
    std::thread::sleep(Duration::from_secs(1));
    for id in ids {
        let became = site.became(id);
        let count = |which: ActuationOutcome| became.iter().filter(|outcome| **outcome == which).count() as u64;
        for which in [ActuationOutcome::Applied, ActuationOutcome::Ready] {
            outcome.compared += 1;
            outcome.lost += u64::from(count(which) == 0);
            outcome.duplicated += count(which).saturating_sub(1);
        }
        outcome.check(became.len() == 2, || format!("{id} was to be applied, and became {became:?}"));
    }
    let is = present(site)?.generation;
    let wanted = generation + ids.len() as u64;
    outcome.check(is == wanted, || format!("layout {is} is published, not {wanted}"));
    let now = site.object()?;
    outcome.check(now["spec"] == before["spec"], || format!("the workload has changed: {}", now["spec"]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_begins_with_what_is_broken() {
        let there: Result<Duration> = Err(anyhow::anyhow!("not within 20s: d-0 is in force")).context("the process wrote:\nmuch");
        let mut outcome = Outcome::default();
        assert!(broken(there, true, &mut outcome).unwrap());
        assert_eq!((outcome.wrong, outcome.rounds), (1, 1));
        assert_eq!(outcome.examples, ["not within 20s: d-0 is in force\nthe process wrote:\nmuch"]);
    }
}
