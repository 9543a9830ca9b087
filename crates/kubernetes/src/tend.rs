//! Looks after workloads while this process leads: takes over the fields of the enabled knobs, follows rollouts to their end, and
//! gives everything back once a policy is gone. Driven by what the watches see; nothing is polled while nothing is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_cluster::{ClusterError, ClusterRemedy, RollBack};
use futures::stream::{self, StreamExt};

use crate::agents;
use crate::change::{self, Planned};
use crate::client;
use crate::cluster::{Shared, is_stale, read};
use crate::devices::Standing;
use crate::lease;
use crate::object::Seen;
use crate::record::Field;
use crate::rollout::{Due, due};
use crate::state::{Entry, Key};
use crate::terms::Terms;
use crate::watch::Source;

/// Workloads that are looked after at once.
const AT_ONCE: usize = 16;
/// Between two rounds, so that a burst of news of one workload is one round.
const BREATH: Duration = Duration::from_millis(20);
/// Until what failed is tried again; it doubles with every failure in a row.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// What is in motion is looked at so often even without news: the end of a pod is no news of its workload.
const MOTION: Duration = Duration::from_secs(1);

/// How one round for a workload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Done,
    /// Something is on its way: it is looked at again.
    Moving,
    Failed,
}

/// Workloads that could not be looked after: news of them does not bring the next attempt forward, which may well have caused them.
#[derive(Debug, Default)]
struct Failing(BTreeMap<Key, (u32, Instant)>);

impl Failing {
    fn is_due(&self, key: &Key, now: Instant) -> bool {
        self.0.get(key).is_none_or(|(_, at)| *at <= now)
    }

    fn failed(&mut self, key: Key, now: Instant) {
        let (failures, at) = self.0.entry(key).or_insert((0, now));
        *at = now + RETRY.saturating_mul(1 << (*failures).min(8)).min(LONGEST_RETRY);
        *failures += 1;
    }

    fn next(&self, now: Instant) -> Option<Duration> {
        self.0.values().map(|(_, at)| at.saturating_duration_since(now)).min()
    }
}

/// Runs for ever.
pub async fn run(shared: Arc<Shared>) {
    let mut leading = shared.leadership.changes();
    let mut failing = Failing::default();
    let mut led = None;
    loop {
        let term = shared.leadership.term();
        if term.is_none() {
            // The next leader begins with everything that is due.
            lease::other_term(&mut leading).await;
            continue;
        }
        if term != led {
            // Who led meanwhile may have solved, or met, trouble that no news tells of.
            led = term;
            shared.with_state_quietly(crate::state::State::mark_all_dirty);
        }
        // A kind's first list brings most targets by the hundred.
        let unread = shared.with_state_quietly(|state| state.take_unread(|kind| shared.is_synced(Source::Kind(kind))));
        let failed = stream::iter(unread)
            .map(|key| fetch(&shared, key))
            .buffer_unordered(AT_ONCE)
            .fold(false, |failed, read| async move { failed || !read })
            .await;
        let dirty = shared.with_state_quietly(crate::state::State::take_dirty);
        let (dirty, mut later): (BTreeSet<Key>, BTreeSet<Key>) =
            dirty.into_iter().partition(|key| failing.is_due(key, Instant::now()));
        let idle = dirty.is_empty();
        let rounds = stream::iter(dirty).map(|key| look_after(&shared, key)).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
        let now = Instant::now();
        let mut moving = false;
        for (key, round) in rounds {
            match round {
                Round::Failed => failing.failed(key.clone(), now),
                Round::Done | Round::Moving => drop(failing.0.remove(&key)),
            }
            if round != Round::Done {
                moving |= round == Round::Moving;
                later.insert(key);
            }
        }
        // What is gone, or is not its to look after any more, is not tried again.
        failing.0.retain(|key, _| later.contains(key));
        for key in later {
            shared.with_state_quietly(|state| state.mark_dirty(key));
        }
        let pause = failed.then_some(RETRY).into_iter().chain(moving.then_some(MOTION)).chain(failing.next(now)).min();
        tokio::time::sleep(BREATH).await;
        match pause {
            Some(pause) => {
                tokio::select! {
                    () = shared.due.notified() => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
            None if idle => {
                tokio::select! {
                    () = shared.due.notified() => {}
                    _ = leading.changed() => {}
                }
            }
            None => {}
        }
    }
}

/// Reads the target of a new policy; false where that must be tried again.
async fn fetch(shared: &Shared, key: Key) -> bool {
    let Some(kind) = key.kind() else { return true };
    match shared.server.get(kind, &key.namespace, &key.name).await {
        Ok(Some(object)) => crate::watch::read(shared, kind, &object),
        Ok(None) => shared.with_state(|state, _| state.gone(&key)),
        Err(error) => {
            let again = error.remedy == ClusterRemedy::Retry;
            tracing::warn!(%key, %error, again, "the target of a policy cannot be read");
            if again {
                shared.with_state_quietly(|state| state.mark_unread(key));
                return false;
            }
        }
    }
    true
}

/// One round for one workload.
async fn look_after(shared: &Shared, key: Key) -> (Key, Round) {
    let Some(entry) = shared.with_state_quietly(|state| state.entry(&key).cloned()) else { return (key, Round::Done) };
    let tell = |trouble: Option<&str>| {
        let rules = shared.with_state_quietly(|state| {
            state.rules_for(&key).into_iter().map(|rule| (rule.namespace.clone(), rule.name.clone())).collect::<Vec<_>>()
        });
        for rule in rules {
            let mut statuses = shared.statuses();
            statuses.trouble(rule.clone(), trouble.map(str::to_owned));
            statuses.change(rule);
        }
    };
    let round = match step(shared, &key, &entry).await {
        Ok(again) => {
            tell(None);
            if again { Round::Moving } else { Round::Done }
        }
        // It is no trouble of the workload's, which is looked at again if this process leads again.
        Err(error) if error.remedy == ClusterRemedy::Stopped => Round::Failed,
        Err(error) => {
            tell(Some(&error.detail));
            let again = error.remedy != ClusterRemedy::Refused;
            tracing::warn!(%key, %error, again, "a workload cannot be looked after");
            if again { Round::Failed } else { Round::Done }
        }
    };
    (key, round)
}

/// Does what is due; true where more will be.
async fn step(shared: &Shared, key: &Key, entry: &Entry) -> Result<bool, ClusterError> {
    if entry.restoring() {
        return restore(shared, key, entry).await;
    }
    if entry.wants_take_over() {
        take_over(shared, key, false).await?;
    }
    if !entry.in_motion() {
        return Ok(false);
    }
    if entry.waits_for_job() && shared.with_state_quietly(|state| !state.follows_last(key)) {
        // No pod has to do with it, and its word wakes this task.
        return Ok(false);
    }
    let pods = shared.server.pods(&entry.seen).await?;
    let standing = match entry.managed.rolling_out() {
        Some(applied) => agents::standing(shared, key, &entry.seen, applied).await?,
        None => Standing::Held,
    };
    if let (Standing::Refused(reason), Some(applied)) = (&standing, entry.managed.rolling_out()) {
        let back = RollBack {
            workload: entry.managed.state.workload.clone(),
            decision_id: applied.decision_id.clone(),
            generation: applied.generation,
            reason: reason.clone(),
        };
        tracing::warn!(%key, decision = back.decision_id, reason, "an agent does not hold it: rolling back");
        let plan = |seen: &Seen, _: &Terms, _: bool, term: u64| change::roll_back(seen, &back, reason, shared.now(), term);
        shared.write(key, &format!("rolling back {key}"), plan).await?;
        return Ok(true);
    }
    for step in due(&entry.seen, &pods, false) {
        // It is ready when the agents hold it and the job does it, too.
        let followed = || shared.with_state_quietly(|state| state.follows_last(key));
        if step == Due::Ready && !(standing == Standing::Held && followed()) {
            continue;
        }
        carry_out(shared, key, &entry.seen, step).await?;
    }
    Ok(true)
}

async fn carry_out(shared: &Shared, key: &Key, seen: &Seen, step: Due) -> Result<(), ClusterError> {
    match step {
        Due::Delete { pod, uid, version, why } => {
            shared.term()?;
            tracing::info!(%key, pod, why, "deleting a pod");
            eadt_faults::reach("pod.delete");
            shared.server.delete_pod(seen, &pod, &uid, &version).await
        }
        Due::Resume => {
            tracing::info!(%key, "resuming");
            let plan = |seen: &Seen, _: &Terms, _: bool, term: u64| change::resume(seen, term);
            shared.write(key, &format!("resuming {key}"), plan).await.map(drop)
        }
        Due::Ready => {
            let plan = |seen: &Seen, _: &Terms, _: bool, term: u64| {
                if seen.progress.complete() { change::ready(seen, shared.now(), term) } else { Ok(Planned::Nothing) }
            };
            shared.write(key, &format!("noting that {key} is ready"), plan).await.map(drop)
        }
        Due::LetGo => Ok(()),
    }
}

/// Makes EADT the owner of the enabled knobs' fields and records what they were. `approved`: also in mode `Recommend`.
pub async fn take_over(shared: &Shared, key: &Key, approved: bool) -> Result<(), ClusterError> {
    let Some(kind) = key.kind() else { return Ok(()) };
    let what = format!("taking over the fields of {key}");
    let Some(object) = shared.server.get(kind, &key.namespace, &key.name).await? else { return Ok(()) };
    let seen = read(kind, &object)?;
    let taken = shared.with_state(|state, now| {
        state.saw(seen.clone(), now);
        let entry = state.entry(key).filter(|entry| entry.wants_take_over() || approved && entry.may_take_over())?;
        change::take_over(&seen, &entry.terms, &object["metadata"]["managedFields"], now)
    });
    let Some(taken) = taken else { return Ok(()) };
    shared.term()?;
    let written = shared.server.take_over(&seen, &object, &taken, &wall_time()).await;
    finish(shared, &what, kind, written)?;
    let fields: Vec<_> = taken.fields.iter().map(|former| former.field.to_string()).collect();
    tracing::info!(%key, fields = fields.join(", "), "fields are taken over");
    Ok(())
}

/// Writes back what was there, waits for the pods to follow, and lets go.
async fn restore(shared: &Shared, key: &Key, entry: &Entry) -> Result<bool, ClusterError> {
    let Some(kind) = key.kind() else { return Ok(false) };
    let Some(object) = shared.server.get(kind, &key.namespace, &key.name).await? else { return Ok(false) };
    let seen = read(kind, &object)?;
    let seen = shared.with_state_quietly(|state| state.settled(seen));
    // Only what is new is told: being told is what wakes this task.
    if seen.resource_version != entry.seen.resource_version {
        shared.with_state(|state, now| state.saw(seen.clone(), now));
    }
    if !shared.with_state_quietly(|state| state.entry(key).is_some_and(Entry::restoring)) {
        return Ok(false);
    }
    if seen.mark.as_ref().is_some_and(|mark| mark.resume) {
        let pods = shared.server.pods(&seen).await?;
        for step in due(&seen, &pods, true) {
            carry_out(shared, key, &seen, step).await?;
        }
        return Ok(true);
    }
    let what = format!("giving back the fields of {key}");
    let mut lost: Vec<Field> = Vec::new();
    if let Some(write) = change::restore(&seen, &lost, shared.now(), shared.term()?)? {
        tracing::info!(%key, "its policy is gone: writing back what was there before");
        match shared.server.write(&seen, &object, &write).await {
            Ok(written) => {
                finish(shared, &what, kind, Ok(written))?;
                return Ok(true);
            }
            Err(error) if client::owned_by_others(&error).is_some() => {
                // Somebody took fields back; what they are now is theirs to say.
                lost = lost_fields(&seen, &client::lost(&error));
                tracing::info!(%key, fields = ?lost, "fields that others own by now stay as they are");
                if let Some(write) = change::restore(&seen, &lost, shared.now(), shared.term()?)? {
                    let written = shared.server.write(&seen, &object, &write).await;
                    finish(shared, &what, kind, written)?;
                    return Ok(true);
                }
            }
            Err(kube::Error::Api(status)) if is_stale(&status) => return Ok(true),
            Err(error) => return Err(client::failure(&what, &error)),
        }
    }
    let pods = shared.server.pods(&entry.seen).await?;
    let steps = due(&seen, &pods, true);
    if steps.iter().all(|step| *step == Due::LetGo) && (seen.progress.observed || seen.mark.is_none()) {
        shared.term()?;
        let former: Vec<_> =
            seen.taken.iter().flat_map(|taken| taken.fields.clone()).filter(|f| !lost.contains(&f.field)).collect();
        let written = shared.server.let_go(&seen, &object, &former, &wall_time()).await;
        finish(shared, &what, kind, written)?;
        tracing::info!(%key, "all its fields are given back");
        return Ok(false);
    }
    for step in steps {
        carry_out(shared, key, &seen, step).await?;
    }
    Ok(true)
}

fn lost_fields(seen: &Seen, named: &[String]) -> Vec<Field> {
    let is_named = |field: &Field| match field {
        Field::Replicas => named.iter().any(|name| name.ends_with(".replicas")),
        Field::Variable { container, name, .. } => {
            let (container, variable) = (format!("[name=\"{container}\"]"), format!("[name=\"{name}\"]"));
            named.iter().any(|named| named.contains(&container) && named.contains(&variable))
        }
    };
    let fields = seen.taken.iter().flat_map(|taken| taken.fields.iter().map(|former| former.field.clone()));
    fields.filter(is_named).collect()
}

fn finish(
    shared: &Shared,
    what: &str,
    kind: &'static crate::kinds::Kind,
    written: Result<serde_json::Value, kube::Error>,
) -> Result<(), ClusterError> {
    let written = written.map_err(|error| client::failure(what, &error))?;
    let seen = read(kind, &written)?;
    shared.with_state(|state, now| state.saw(seen, now));
    Ok(())
}

/// The time of entries in `managedFields`, which is the wall's whatever the events' is.
fn wall_time() -> String {
    let now = k8s_openapi::jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_and_again_is_tried_less_and_less() {
        let key = Key { kind: "StatefulSet", namespace: "eadt".into(), name: "llm".into() };
        let (mut failing, now) = (Failing::default(), Instant::now());
        assert!(failing.is_due(&key, now) && failing.next(now).is_none());
        let mut pauses = Vec::new();
        for _ in 0..40 {
            failing.failed(key.clone(), now);
            pauses.push(failing.next(now).unwrap().as_secs());
        }
        assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert!(pauses[7..].iter().all(|pause| *pause == 30));
        assert!(!failing.is_due(&key, now) && failing.is_due(&key, now + LONGEST_RETRY));
    }
}
