//! Has the agents of the nodes hold what changes ask for, and follows what they say; the acting side of [`crate::devices`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use eadt_cluster::{Applied, ClusterError, ClusterRemedy};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceHolders, DeviceIntent, DeviceState};
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::cluster::Shared;
use crate::devices::{self, Gpus, Place, Standing, Tenant, Wish};
use crate::mps::{self, NodeDefault, Party};
use crate::object::Seen;
use crate::rollout::Pod;
use crate::state::{Entry, Key, State};

/// Nodes that are asked about at once.
const AT_ONCE: usize = 8;
/// Where the pods of held wishes run is looked up this often.
const ROUND: Duration = Duration::from_secs(15);
/// A higher MPS default that a change waits for is asked for so long, unless the change is tried again.
const RAISE_SECONDS: f64 = 120.0;
/// Between two looks, however much news there is.
const BREATH: Duration = Duration::from_millis(200);

/// A wish, and what it is addressed to.
#[derive(Debug, Clone, PartialEq)]
struct Addressed {
    wish: Wish,
    place: Place,
}

/// A change that waits for its nodes' MPS defaults.
#[derive(Debug, Clone, PartialEq)]
struct Raise {
    percentage: u32,
    decision_id: String,
    /// What is in force while it waits; with another one it waits no more.
    generation: u64,
    /// It is asked for until then, unless it is asked again.
    until: EventTime,
}

/// What is asked of agents and what they say.
#[derive(Debug, Default)]
pub struct Agents {
    /// The last report of every node.
    board: BTreeMap<String, DeviceState>,
    /// Who holds the GPUs of every node.
    holders: BTreeMap<String, DeviceHolders>,
    addressed: BTreeMap<Key, Addressed>,
    /// Changes that wait for a higher MPS default.
    raising: BTreeMap<Key, Raise>,
    /// Workloads that allow another MPS default, as the last look found them.
    parties: BTreeMap<Key, Party>,
    defaults: BTreeMap<String, NodeDefault>,
    /// `None` until the first look of this leadership.
    wanted: Option<Arc<Vec<DeviceIntent>>>,
}

impl Agents {
    pub fn said(&mut self, state: DeviceState) {
        self.board.insert(state.node.clone(), state);
    }

    pub fn held(&mut self, holders: DeviceHolders) {
        self.holders.insert(holders.node.clone(), holders);
    }

    fn raises(&self) -> bool {
        !self.raising.is_empty()
    }

    pub fn wanted(&self) -> Option<Arc<Vec<DeviceIntent>>> {
        self.wanted.clone()
    }

    /// Another one leads.
    fn stand_by(&mut self) {
        self.addressed.clear();
        self.raising.clear();
        self.parties.clear();
        self.defaults.clear();
        self.wanted = None;
    }

    fn plan(&mut self) {
        let intents = devices::intents(self.addressed.values().map(|addressed| (&addressed.wish, &addressed.place)));
        let mut by_node: BTreeMap<_, _> = intents.into_iter().map(|intent| (intent.node.clone(), intent)).collect();
        for (node, default) in &self.defaults {
            let of_node = || DeviceIntent { node: node.clone(), ..DeviceIntent::default() };
            default.put(by_node.entry(node.clone()).or_insert_with(of_node));
        }
        let intents: Vec<_> = by_node.into_values().collect();
        if self.wanted.as_ref().is_none_or(|wanted| **wanted != intents) {
            self.wanted = Some(Arc::new(intents));
        }
    }
}

/// Runs for ever.
pub async fn run(shared: Arc<Shared>) {
    let mut leading = shared.leadership.changes();
    let mut round = tokio::time::Instant::now();
    loop {
        if shared.leadership.term().is_none() {
            // What is wanted is the leader's to say.
            shared.agents().stand_by();
            if leading.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            continue;
        }
        let all = tokio::time::Instant::now() >= round;
        if all {
            round = tokio::time::Instant::now() + ROUND;
        }
        if shared.all_synced() {
            let raises = shared.agents().raises();
            look(&shared, all).await;
            if all || raises {
                look_at_defaults(&shared).await;
            }
        }
        tokio::time::sleep(BREATH).await;
        tokio::select! {
            () = shared.wishes.notified() => {}
            _ = leading.changed() => {}
            () = tokio::time::sleep_until(round) => {}
        }
    }
}

/// Addresses what is wished for and withdraws the rest. `all`: also looks where pods of what stands run by now.
async fn look(shared: &Shared, all: bool) {
    let wishes: Vec<(Key, Wish, Seen)> = shared.with_state_quietly(|state| {
        let entries = state.entries().filter_map(|(key, entry)| Some((key.clone(), Wish::of(entry)?, entry.seen.clone())));
        entries.collect()
    });
    let before = shared.agents().addressed.clone();
    let found = stream::iter(wishes)
        .map(|(key, wish, seen)| {
            let known = before.get(&key).cloned();
            async move {
                let place = match known {
                    Some(known) if !all && known.wish == wish => Some(known.place),
                    known => match place(shared, &seen).await {
                        Ok(Ok(place)) => Some(place),
                        Ok(Err(reason)) => {
                            tracing::warn!(%key, decision = wish.decision_id, reason, "power caps and clocks are withdrawn");
                            None
                        }
                        // What stands, stands until it is known better.
                        Err(error) => {
                            tracing::warn!(%key, %error, "it is not known where its pods run");
                            known.map(|known| known.place)
                        }
                    },
                };
                place.map(|place| (key, Addressed { wish, place }))
            }
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(|found| async move { found })
        .collect::<BTreeMap<_, _>>()
        .await;
    // What was withdrawn meanwhile must not come back, and what was asked meanwhile must not go.
    let present: BTreeMap<Key, Wish> = shared
        .with_state_quietly(|state| state.entries().filter_map(|(key, entry)| Some((key.clone(), Wish::of(entry)?))).collect());
    let mut agents = shared.agents();
    let newer = std::mem::take(&mut agents.addressed).into_iter().filter(|(key, asked)| before.get(key) != Some(asked));
    let newer: BTreeMap<_, _> = newer.collect();
    agents.addressed = found.into_iter().chain(newer).filter(|(key, asked)| present.get(key) == Some(&asked.wish)).collect();
    agents.plan();
}

/// Finds where MPS defaults have to be other than they are, and who there allows it.
async fn look_at_defaults(shared: &Shared) {
    let now = shared.now();
    let allowing = |state: &mut State| -> Vec<(Key, Seen)> {
        let may = |entry: &&Entry| entry.terms.mps_default_may_change && devices::may_ask(entry);
        state.entries().filter(|(_, entry)| may(entry)).map(|(key, entry)| (key.clone(), entry.seen.clone())).collect()
    };
    let before = shared.agents().parties.clone();
    let mut found = own_pods(shared, shared.with_state_quietly(allowing), &before).await;
    let nodes: BTreeSet<_> = found.iter().flat_map(|(_, _, pods)| devices::nodes(pods)).collect();
    let tenants: Vec<_> = stream::iter(nodes)
        .map(|node| async move { (node.clone(), shared.server.tenants(&node).await) })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let ours: BTreeSet<&str> = found.iter().flat_map(|(_, _, pods)| pods).map(|pod| pod.uid.as_str()).collect();
    let there = tenants.iter().filter_map(|(_, tenants)| tenants.as_ref().ok()).flatten();
    if there.into_iter().any(|tenant| !ours.contains(tenant.uid.as_str())) {
        // It may be a pod of ours that came between the two looks.
        let again = found.iter().map(|(key, seen, _)| (key.clone(), seen.clone())).collect();
        for (now, (_, _, pods)) in own_pods(shared, again, &before).await.into_iter().zip(&mut found) {
            pods.extend(now.2);
        }
    }
    let present: BTreeMap<Key, Seen> = shared.with_state_quietly(allowing).into_iter().collect();
    let mut agents = shared.agents();
    let waits = |raise: &Raise, seen: &Seen| raise.until > now && raise.generation == seen.layout_generation();
    agents.raising.retain(|key, raise| present.get(key).is_some_and(|seen| waits(raise, seen)));
    let party = |(key, _, pods): (Key, Seen, Vec<Pod>)| {
        let seen = present.get(&key)?;
        let decided = seen.mark.as_ref().and_then(|mark| mark.applied.as_ref()).map(|applied| applied.decision_id.clone());
        let in_force = seen.layout.mps_thread_percentage.zip(decided);
        let asked = agents.raising.get(&key).map(|raise| (raise.percentage, raise.decision_id.clone()));
        let needs = in_force.into_iter().chain(asked).max_by_key(|(percentage, _)| *percentage);
        Some((key, Party { workload: seen.workload(), pods, needs }))
    };
    agents.parties = found.into_iter().filter_map(party).collect();
    let parties: Vec<_> = agents.parties.values().cloned().collect();
    let (known, unknown): (Vec<_>, Vec<_>) = tenants.into_iter().partition(|(_, tenants)| tenants.is_ok());
    let known = known.into_iter().filter_map(|(node, tenants)| Some((node, tenants.ok()?))).collect();
    let mut defaults = mps::defaults(&parties, &known, &agents.board);
    for (node, _) in unknown {
        tracing::warn!(node, "it is not known who else is there: its MPS default is left as it is asked for");
        defaults.extend(agents.defaults.remove(&node).map(|default| (node, default)));
    }
    if agents.defaults != defaults {
        agents.defaults = defaults;
    }
    agents.plan();
}

/// The pods of these workloads, in their order. What was known of them holds where it cannot be known better.
async fn own_pods(shared: &Shared, of: Vec<(Key, Seen)>, before: &BTreeMap<Key, Party>) -> Vec<(Key, Seen, Vec<Pod>)> {
    stream::iter(of)
        .map(|(key, seen)| {
            let known = before.get(&key).map(|party| party.pods.clone());
            async move {
                let pods = shared.server.pods(&seen).await.ok().or(known).unwrap_or_default();
                (key, seen, pods)
            }
        })
        .buffered(AT_ONCE)
        .collect()
        .await
}

/// Whether the MPS defaults of a workload's nodes allow a thread percentage. Where its policy lets them be raised, their agents are asked.
pub async fn raise_defaults(
    shared: &Shared,
    key: &Key,
    seen: &Seen,
    percentage: u32,
    decision_id: &str,
) -> Result<(), ClusterError> {
    let own = shared.server.pods(seen).await?;
    let lower: BTreeMap<String, DeviceState> = {
        let agents = shared.agents();
        let is_lower = |state: &&DeviceState| state.mps_default_thread_percentage.is_some_and(|default| default < percentage);
        let of_node = |node: String| Some((node.clone(), agents.board.get(&node).filter(is_lower)?.clone()));
        devices::nodes(&own).into_iter().filter_map(of_node).collect()
    };
    let Some((node, state)) = lower.first_key_value() else { return Ok(()) };
    let default = state.mps_default_thread_percentage.unwrap_or_default();
    let low = format!("the MPS default of node {node} is {default} %, lower than the {percentage} % asked for");
    let refuse = |why: &str| Err(ClusterError::new(ClusterRemedy::Refused, format!("{low}{why}")));
    if !shared.with_state_quietly(|state| state.entry(key).is_some_and(|entry| entry.terms.mps_default_may_change)) {
        return refuse(", and the policy does not let it be raised (spec.allowMpsDefaultChange)");
    }
    let mut parties: Vec<Party> = shared.agents().parties.values().cloned().collect();
    parties.push(Party { workload: seen.workload(), pods: own, needs: None });
    for node in lower.keys() {
        let tenants = shared.server.tenants(node).await?;
        if let Some(Tenant { namespace, name, .. }) = mps::stranger(&tenants, &parties) {
            return refuse(&format!(
                ", and the policy of pod {namespace}/{name} there does not let it be raised, if there is one"
            ));
        }
    }
    let (generation, until) = (seen.layout_generation(), shared.now().plus_seconds(RAISE_SECONDS));
    let raise = Raise { percentage, decision_id: decision_id.to_owned(), generation, until };
    let mut agents = shared.agents();
    let asked = agents.defaults.keys().any(|node| lower.contains_key(node));
    if asked && let Some(why) = lower.iter().find_map(|(node, state)| mps::refusal(node, state)) {
        agents.raising.remove(key);
        return refuse(&format!(", and {why}"));
    }
    agents.raising.insert(key.clone(), raise);
    drop(agents);
    shared.wishes.notify_one();
    let nodes: Vec<_> = lower.keys().map(String::as_str).collect();
    let detail = format!("{low}: the agents of {} are asked to raise it", nodes.join(", "));
    Err(ClusterError::new(ClusterRemedy::Retry, detail))
}

/// What a workload has for itself, or who else is there.
async fn place(shared: &Shared, seen: &Seen) -> Result<Result<Place, String>, ClusterError> {
    let own = shared.server.pods(seen).await?;
    let nodes = devices::nodes(&own);
    let tenants: BTreeMap<_, _> = stream::iter(nodes)
        .map(|node| async move { Ok::<_, ClusterError>((node.clone(), shared.server.tenants(&node).await?)) })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(devices::place(&own, &tenants, &shared.agents().holders, shared.now()))
}

/// Whether a wish can be held, before anything of it is written; what to ask.
pub async fn ask(shared: &Shared, seen: &Seen, wish: &Wish) -> Result<Place, ClusterError> {
    let refuse = |reason: String| ClusterError::new(ClusterRemedy::Refused, reason);
    let place = place(shared, seen).await?.map_err(refuse)?;
    // Waiting would hold up the decisions for other workloads.
    if let Some(why) = place.values().find_map(|gpus| if let Gpus::NotYet(why) = gpus { Some(why) } else { None }) {
        return Err(refuse(why.clone()));
    }
    if place.is_empty() {
        return Err(refuse("none of its pods runs on a node, so that no agent can be asked".into()));
    }
    let now = shared.now();
    let agents = shared.agents();
    for (node, whose) in &place {
        devices::takes(wish, node, whose, agents.board.get(node), now).map_err(refuse)?;
    }
    Ok(place)
}

/// Has agents hold what was written for a workload just now.
pub fn hold(shared: &Shared, key: &Key, place: Place) {
    let wish = shared.with_state_quietly(|state| state.entry(key).and_then(Wish::of));
    let mut agents = shared.agents();
    match wish {
        Some(wish) => drop(agents.addressed.insert(key.clone(), Addressed { wish, place })),
        None => drop(agents.addressed.remove(key)),
    }
    // Before the first look others are not known, and would be withdrawn.
    if agents.wanted.is_some() {
        agents.plan();
    }
}

/// Whether agents hold what a change that is rolling out asks of them.
pub async fn standing(shared: &Shared, key: &Key, seen: &Seen, applied: &Applied) -> Result<Standing, ClusterError> {
    if devices::settings(&applied.layout) == devices::settings(&applied.before) {
        return Ok(Standing::Held);
    }
    let Some(wish) = shared.with_state_quietly(|state| state.entry(key).and_then(Wish::of)) else {
        let asked = Wish::new("", "", &applied.layout).is_some();
        let paused = "power caps and clocks are withdrawn: the policy does not allow them now";
        return Ok(if asked { Standing::Waiting(paused.into()) } else { Standing::Held });
    };
    let place = match place(shared, seen).await? {
        Ok(place) => place,
        Err(reason) => return Ok(Standing::Refused(reason)),
    };
    let moved = shared.agents().addressed.get(key).is_none_or(|addressed| addressed.place != place);
    if moved {
        hold(shared, key, place.clone());
    }
    Ok(devices::standing(&wish, &place, &shared.agents().board))
}
