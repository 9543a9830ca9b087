//! Has the agents of the nodes hold what changes ask for, and follows what they say; the acting side of [`crate::devices`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eadt_cluster::{Applied, ClusterError, ClusterRemedy};
use eadt_schemas::v1::{DeviceHolders, DeviceIntent, DeviceState};
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::cluster::Shared;
use crate::devices::{self, Gpus, Place, Standing, Wish};
use crate::lease;
use crate::object::Seen;
use crate::state::Key;

/// Nodes that are asked about at once.
const AT_ONCE: usize = 8;
/// Where the pods of held wishes run is looked up this often.
const ROUND: Duration = Duration::from_secs(15);
/// Between two looks, however much news there is.
const BREATH: Duration = Duration::from_millis(200);

/// A wish, and what it is addressed to.
#[derive(Debug, Clone, PartialEq)]
struct Addressed {
    wish: Wish,
    place: Place,
}

/// What is asked of agents and what they say.
#[derive(Debug, Default)]
pub struct Agents {
    /// The last report of every node.
    board: BTreeMap<String, DeviceState>,
    /// Who holds the GPUs of every node.
    holders: BTreeMap<String, DeviceHolders>,
    addressed: BTreeMap<Key, Addressed>,
    /// It is known what agents and collectors said before this process led.
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

    /// The MPS default that a node's agent reports.
    pub fn mps_default(&self, node: &str) -> Option<u32> {
        self.board.get(node)?.mps_default_thread_percentage
    }

    pub fn met(&mut self) {
        self.met = true;
    }

    pub fn wanted(&self) -> Option<Arc<Vec<DeviceIntent>>> {
        self.wanted.clone()
    }

    /// Another one leads.
    fn stand_by(&mut self) {
        self.addressed.clear();
        self.wanted = None;
    }

    fn plan(&mut self) {
        let intents = devices::intents(self.addressed.values().map(|addressed| (&addressed.wish, &addressed.place)));
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
            lease::other_term(&mut leading).await;
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
