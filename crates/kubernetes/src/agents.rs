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
/// A higher MPS default that a decision needed is asked for so long, for a later one that needs it, too.
const RAISE_SECONDS: f64 = 600.0;
/// Between two looks, however much news there is.
const BREATH: Duration = Duration::from_millis(200);

/// A wish, and what it is addressed to.
#[derive(Debug, Clone, PartialEq)]
struct Addressed {
    wish: Wish,
    place: Place,
}

/// A higher MPS default that a decision needed.
#[derive(Debug, Clone, PartialEq)]
struct Raise {
    percentage: u32,
    decision_id: String,
    /// What is in force while it waits; with another one it waits no more.
    generation: u64,
    /// It is asked for until then.
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
    /// Higher MPS defaults that decisions needed.
    raising: BTreeMap<Key, Raise>,
    /// One of them is new.
    raised_anew: bool,
    /// Workloads that allow another MPS default, as the last look found them.
    parties: BTreeMap<Key, Party>,
    /// `None` until the first look of this leadership.
    defaults: Option<BTreeMap<String, NodeDefault>>,
    /// It is known what agents and collectors said before this leadership.
    met: bool,
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

    pub fn wanted(&self) -> Option<Arc<Vec<DeviceIntent>>> {
        self.wanted.clone()
    }

    /// Another one leads.
    fn stand_by(&mut self) {
        self.addressed.clear();
        self.raising.clear();
        self.parties.clear();
        self.defaults = None;
        self.met = false;
        self.wanted = None;
    }

    pub fn met(&mut self) {
        self.met = true;
    }

    fn plan(&mut self) {
        // Half of what is known would withdraw the other half.
        let Some(defaults) = &self.defaults else { return };
        let intents = devices::intents(self.addressed.values().map(|addressed| (&addressed.wish, &addressed.place)));
        let mut by_node: BTreeMap<_, _> = intents.into_iter().map(|intent| (intent.node.clone(), intent)).collect();
        for (node, default) in defaults {
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
        let (met, first) = {
            let agents = shared.agents();
            (agents.met, agents.wanted.is_none())
        };
        if met && shared.all_synced() {
            look(&shared, all || first).await;
            if all || first || shared.agents().raised_anew {
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

/// Finds where MPS defaults have to be other than they are, and who there allows it. Where nobody needs one nothing is looked up.
async fn look_at_defaults(shared: &Shared) {
    let now = shared.now();
    let allowing: BTreeMap<Key, Seen> = shared.with_state_quietly(allowing).into_iter().collect();
    let (before, asked, raising) = {
        let mut agents = shared.agents();
        agents.raised_anew = false;
        let waits = |raise: &Raise, seen: &Seen| raise.until > now && raise.generation == seen.layout_generation();
        agents.raising.retain(|key, raise| allowing.get(key).is_some_and(|seen| waits(raise, seen)));
        (agents.parties.clone(), agents.defaults.clone().unwrap_or_default(), agents.raising.clone())
    };
    let needs = |key: &Key, seen: &Seen| {
        let asked = raising.get(key).map(|raise| (raise.percentage, raise.decision_id.clone()));
        Party::need(seen).into_iter().chain(asked).max_by_key(|(percentage, _)| *percentage)
    };
    let (mut parties, mut defaults) = (BTreeMap::new(), BTreeMap::new());
    if allowing.iter().any(|(key, seen)| needs(key, seen).is_some()) {
        let mut found = own_pods(shared, &allowing, &before).await;
        let needing = found.iter().filter(|(key, _)| allowing.get(*key).is_some_and(|seen| needs(key, seen).is_some()));
        let nodes: BTreeSet<String> = needing.flat_map(|(_, pods)| mps::nodes(pods)).chain(asked.keys().cloned()).collect();
        let tenants: Vec<_> = stream::iter(nodes)
            .map(|node| async move { (node.clone(), shared.server.tenants(&node).await) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let ours: BTreeSet<&str> = found.values().flatten().map(|pod| pod.uid.as_str()).collect();
        let there = tenants.iter().filter_map(|(_, tenants)| tenants.as_ref().ok()).flatten();
        if there.into_iter().any(|tenant| !ours.contains(tenant.uid.as_str())) {
            // It may be a pod of ours that came between the two looks.
            for (key, pods) in own_pods(shared, &allowing, &before).await {
                found.entry(key).or_default().extend(pods);
            }
        }
        for (key, pods) in found {
            let Some(seen) = allowing.get(&key) else { continue };
            let (needs, moving) = (needs(&key, seen), !seen.progress.complete());
            parties.insert(key, Party { workload: seen.workload(), pods, needs, moving });
        }
        let all: Vec<_> = parties.values().cloned().collect();
        let (known, unknown): (Vec<_>, Vec<_>) = tenants.into_iter().partition(|(_, tenants)| tenants.is_ok());
        let known = known.into_iter().filter_map(|(node, tenants)| Some((node, tenants.ok()?))).collect();
        defaults = mps::defaults(&all, &known, &shared.agents().board, &asked);
        for (node, _) in unknown {
            tracing::warn!(node, "it is not known who else is there: its MPS default is left as it is asked for");
            defaults.extend(asked.get(&node).map(|default| (node, default.clone())));
        }
    }
    // What is not allowed any more must not come back.
    let present = shared.with_state_quietly(self::allowing).into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>();
    let withdrawn = allowing.keys().any(|key| !present.contains(key));
    let mut agents = shared.agents();
    agents.raised_anew |= withdrawn;
    (agents.parties, agents.defaults) = (parties, Some(defaults));
    agents.plan();
}

/// Workloads whose policies allow another MPS default.
fn allowing(state: &mut State) -> Vec<(Key, Seen)> {
    let may = |entry: &&Entry| entry.terms.mps_default_may_change && devices::may_ask(entry);
    state.entries().filter(|(_, entry)| may(entry)).map(|(key, entry)| (key.clone(), entry.seen.clone())).collect()
}

/// The pods of these workloads. What was known of them holds where it cannot be known better.
async fn own_pods(shared: &Shared, of: &BTreeMap<Key, Seen>, before: &BTreeMap<Key, Party>) -> BTreeMap<Key, Vec<Pod>> {
    let known = |key: &Key| before.get(key).map(|party| party.pods.clone());
    let each: Vec<_> = of.iter().map(|(key, seen)| (key.clone(), seen.clone(), known(key))).collect();
    stream::iter(each)
        .map(|(key, seen, known)| async move {
            let pods = shared.server.pods(&seen).await.ok().or(known).unwrap_or_default();
            (key, pods)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await
}

/// Whether the MPS defaults of a workload's nodes allow a thread percentage. Where its policy and those of all others there let them be
/// raised, their agents are asked: waiting for it here would hold up the decisions for other workloads, so that a later one finds it done.
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
    let now = shared.now();
    if let Some(why) = lower.iter().find_map(|(node, state)| devices::answers(node, Some(state), now).err()) {
        return refuse(&format!(", and {why}"));
    }
    let mut ours: BTreeSet<String> = own.into_iter().map(|pod| pod.uid).collect();
    for node in lower.keys() {
        let tenants = shared.server.tenants(node).await?;
        if tenants.iter().any(|tenant| !ours.contains(&tenant.uid)) {
            let allowing: BTreeMap<Key, Seen> = shared.with_state_quietly(allowing).into_iter().collect();
            ours.extend(own_pods(shared, &allowing, &BTreeMap::new()).await.into_values().flatten().map(|pod| pod.uid));
        }
        if let Some(Tenant { namespace, name, .. }) = tenants.iter().find(|tenant| !ours.contains(&tenant.uid)) {
            return refuse(&format!(", and no policy of pod {namespace}/{name} there lets it be raised"));
        }
    }
    let mut agents = shared.agents();
    let is_asked = |node: &String| agents.defaults.as_ref().is_some_and(|defaults| defaults.contains_key(node));
    if let Some(why) = lower.iter().filter(|(node, _)| is_asked(node)).find_map(|(node, state)| mps::refusal(node, state)) {
        agents.raising.remove(key);
        return refuse(&format!(", and {why}"));
    }
    let (generation, until) = (seen.layout_generation(), now.plus_seconds(RAISE_SECONDS));
    let raise = Raise { percentage, decision_id: decision_id.to_owned(), generation, until };
    agents.raising.insert(key.clone(), raise);
    agents.raised_anew = true;
    drop(agents);
    shared.wishes.notify_one();
    let nodes: Vec<_> = lower.keys().map(String::as_str).collect();
    refuse(&format!(": the agents of {} are asked to raise it, for a later decision", nodes.join(", ")))
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
