//! Has the agents of the nodes hold what changes ask for, and follows what they say; the acting side of [`crate::devices`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_cluster::{Applied, ClusterError, ClusterRemedy};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceHolders, DeviceIntent, DeviceState};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::watch;

use crate::cluster::Shared;
use crate::defaults::{self, Agreed, Asked, Outcome};
use crate::devices::{self, Gpus, Place, Standing, Wish};
use crate::lease;
use crate::nodes::{Nodes, Own};
use crate::object::Seen;
use crate::state::{Key, RuleKey, State};

/// Nodes or workloads that are asked about at once.
const AT_ONCE: usize = 8;
/// How often it is asked for one look whose pods are: others come meanwhile.
const ASKED: u32 = 3;
/// Without a picture of the nodes for so long what is held is no longer asked for: it goes back where agents hear nothing more.
const BLIND: Duration = Duration::from_mins(3);
/// A watch that does not work fails again within this time.
const FAILS_AGAIN: Duration = Duration::from_secs(90);
/// A new leader waits so long until it is known of every workload where its pods run.
const FIRST_LOOK: Duration = Duration::from_mins(1);
/// Everything that is held is judged anew this often: what collectors say grows old.
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
    /// Where pods run, as their watch has it.
    pub nodes: Nodes,
    /// Whether that is to be watched.
    watched: watch::Sender<bool>,
    addressed: BTreeMap<Key, Addressed>,
    /// MPS defaults by node.
    mps_defaults: BTreeMap<String, Agreed>,
    /// What was said of policies' MPS defaults.
    told: BTreeMap<RuleKey, String>,
    /// When the watch of pods failed last.
    failed: Option<Instant>,
    /// Since when something is wished for, and where pods run is not known.
    blind: Option<Instant>,
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

    /// `standing`: what nodes are asked for, by the log.
    pub fn met(&mut self, standing: &[DeviceIntent]) {
        self.met = true;
        if self.wanted.is_none() {
            let defaults = standing.iter().filter_map(|intent| Some((intent.node.clone(), Agreed::read(intent)?)));
            self.mps_defaults = defaults.collect();
        }
    }

    pub fn wanted(&self) -> Option<Arc<Vec<DeviceIntent>>> {
        self.wanted.clone()
    }

    /// Tells when pods are to be watched, and when no more.
    pub fn watched(&self) -> watch::Receiver<bool> {
        self.watched.subscribe()
    }

    /// Pods are watched while anything is wished for.
    fn watch(&self, wanted: bool) {
        self.watched.send_if_modified(|watched| std::mem::replace(watched, wanted) != wanted);
    }

    pub fn watch_failed(&mut self) {
        self.failed = Some(Instant::now());
    }

    /// Since when where pods run is not known, although it should be.
    fn blind(&mut self, followed: &BTreeSet<&Key>, now: EventTime) -> Option<Duration> {
        let failing = self.failed.is_some_and(|failed| failed.elapsed() < FAILS_AGAIN);
        // What the leader before asked for stands until it is known where its pods run.
        let first = self.wanted.is_none() && self.blind.is_none_or(|since| since.elapsed() < FIRST_LOOK);
        let unknown = || followed.iter().any(|key| self.nodes.place(key, &self.holders, now).is_none());
        let blind = !followed.is_empty() && (failing || !self.nodes.is_complete() || first && unknown());
        if blind {
            return Some(self.blind.get_or_insert_with(Instant::now).elapsed());
        }
        self.blind = None;
        None
    }

    /// Another one leads.
    fn stand_by(&mut self) {
        (self.failed, self.blind) = (None, None);
        self.watch(false);
        self.addressed.clear();
        self.wanted = None;
    }

    fn withdraw(&mut self) {
        self.addressed.clear();
        self.mps_defaults.clear();
    }

    /// What is to be said to policies of their MPS defaults, `None` being nothing, where this is why some have not what they ask for.
    fn say(&mut self, asked: &BTreeMap<Key, Asked>, why: BTreeMap<RuleKey, String>) -> BTreeMap<RuleKey, Option<String>> {
        let mut said: BTreeMap<RuleKey, Option<String>> =
            std::mem::take(&mut self.told).into_keys().map(|name| (name, None)).collect();
        said.extend(asked.values().map(|asked| (asked.policy.clone(), None)));
        said.extend(why.iter().map(|(name, why)| (name.clone(), Some(why.clone()))));
        self.told = why;
        said
    }

    /// What is to be said where pods run is not known for so long that nothing is asked for.
    fn say_blind(&mut self, asked: &BTreeMap<Key, Asked>) -> BTreeMap<RuleKey, Option<String>> {
        let reason = if self.failed.is_some_and(|failed| failed.elapsed() < FAILS_AGAIN) {
            "the pods of all namespaces cannot be watched (see the actuator's log and its rights; actuator.onlyNamespace leaves them out)"
        } else {
            "it is not known where pods run"
        };
        let why = format!("the MPS default is not asked for: {reason}");
        self.say(asked, asked.values().map(|asked| (asked.policy.clone(), why.clone())).collect())
    }

    /// Asks nodes for what is agreed, and gives what is to be said of it to policies; `None`: nothing any more.
    fn agree(&mut self, asked: &BTreeMap<Key, Asked>, now: EventTime) -> BTreeMap<RuleKey, Option<String>> {
        let Some(parties) = self.nodes.parties() else {
            // What stands, stands until it is known better.
            self.mps_defaults.retain(|_, agreed| agreed.is_asked(asked));
            return BTreeMap::new();
        };
        let Outcome { agreed, mut disputes, open } = defaults::agree(asked, &parties, &self.mps_defaults);
        for (node, agreed) in &agreed {
            let Some(trouble) = defaults::trouble(node, agreed, self.board.get(node), now) else { continue };
            for (key, _) in asked.iter().filter(|(_, asked)| agreed.is_for(asked)) {
                disputes.entry(key.clone()).or_insert_with(|| trouble.clone());
            }
        }
        self.mps_defaults = agreed;
        let open = open.into_iter().map(|key| &asked[&key].policy);
        let mut why: BTreeMap<RuleKey, String> =
            open.filter_map(|policy| Some((policy.clone(), self.told.get(policy)?.clone()))).collect();
        why.extend(disputes.into_iter().map(|(key, why)| (asked[&key].policy.clone(), why)));
        self.say(asked, why)
    }

    fn plan(&mut self) {
        let addressed = self.addressed.values().map(|addressed| (&addressed.wish, &addressed.place));
        let intents = devices::intents(addressed, &self.mps_defaults);
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

/// What is wished for now, for workloads and of the nodes where they run.
fn wishes(state: &mut State) -> (BTreeMap<Key, Wish>, BTreeMap<Key, Asked>) {
    let wishes = state.entries().filter_map(|(key, entry)| Some((key.clone(), Wish::of(entry)?))).collect();
    (wishes, state.entries().filter_map(|(key, entry)| Some((key.clone(), Asked::of(entry)?))).collect())
}

/// Addresses what is wished for and withdraws the rest. `all`: judges anew what stands where nothing happened, too.
async fn look(shared: &Shared, all: bool) {
    let followed: BTreeMap<Key, Own> = shared.with_state_quietly(|state| {
        let wished = state.entries().filter(|(_, entry)| Wish::of(entry).is_some() || Asked::of(entry).is_some());
        wished.map(|(key, entry)| (key.clone(), Own::of(&entry.seen))).collect()
    });
    let complete = {
        let mut agents = shared.agents();
        agents.watch(!followed.is_empty());
        agents.nodes.follow(followed);
        agents.nodes.is_complete()
    };
    if complete {
        for _ in 0..ASKED {
            if !learn(shared).await {
                break;
            }
        }
    }
    let now = shared.now();
    let mut agents = shared.agents();
    // Read while nobody can ask for anything: what was withdrawn meanwhile must not come back, and what was asked must not go.
    let (wishes, asked) = shared.with_state_quietly(wishes);
    if let Some(lasts) = agents.blind(&wishes.keys().chain(asked.keys()).collect(), now) {
        if lasts >= BLIND && agents.wanted.take().is_some() {
            agents.withdraw();
            tracing::warn!(
                seconds = lasts.as_secs(),
                "where pods run is not known, and so not whose their GPUs are: power caps, clocks and MPS defaults are not asked for any more"
            );
        }
        if agents.wanted.is_none() {
            if lasts >= FIRST_LOOK {
                let said = agents.say_blind(&asked);
                drop(agents);
                tell(shared, said);
            }
            return;
        }
    }
    let changed = agents.nodes.take_changed();
    let mut before = std::mem::take(&mut agents.addressed);
    let judge = |(key, wish): (Key, Wish)| {
        let known = before.remove(&key);
        let undisturbed = |place: &Place| !place.is_empty() && place.keys().all(|node| !changed.contains(node));
        let known = match known {
            Some(known) if !all && known.wish == wish && undisturbed(&known.place) => return Some((key, known)),
            known => known.map(|known| known.place),
        };
        let place = match agents.nodes.place(&key, &agents.holders, now) {
            Some(Ok(place)) => place,
            Some(Err(reason)) => {
                if all || known.is_some() {
                    tracing::warn!(%key, decision = wish.decision_id, reason, "power caps and clocks are withdrawn");
                }
                return None;
            }
            // What stands, stands until it is known better.
            None => known?,
        };
        Some((key, Addressed { wish, place }))
    };
    let addressed = wishes.into_iter().filter_map(judge).collect();
    agents.addressed = addressed;
    let said = agents.agree(&asked, now);
    agents.plan();
    drop(agents);
    tell(shared, said);
}

fn tell(shared: &Shared, said: BTreeMap<RuleKey, Option<String>>) {
    let mut statuses = shared.statuses();
    for (policy, why) in said {
        statuses.mps_default(policy, why);
    }
}

/// Asks which pods are whose, where that is not known; false where it is.
async fn learn(shared: &Shared) -> bool {
    let unknown = shared.agents().nodes.ask();
    let any = !unknown.is_empty();
    let asked = stream::iter(unknown).map(|key| async move {
        let seen = shared.with_state_quietly(|state| state.entry(&key).map(|entry| entry.seen.clone()));
        let pods = match seen {
            Some(seen) => match shared.server.pods(&seen).await {
                Ok(pods) => Some(pods.into_iter().map(|pod| pod.uid).collect()),
                Err(error) => {
                    tracing::warn!(%key, %error, "it is not known where its pods run");
                    None
                }
            },
            None => None,
        };
        shared.agents().nodes.answer(&key, pods);
    });
    asked.buffer_unordered(AT_ONCE).collect::<()>().await;
    any
}

/// What a workload has for itself, or who else is there, by what the API server says now.
async fn place(shared: &Shared, seen: &Seen) -> Result<Result<Place, String>, ClusterError> {
    let own = shared.server.pods(seen).await?;
    let nodes = devices::nodes(&own);
    let tenants: BTreeMap<_, _> = stream::iter(nodes)
        .map(|node| async move { Ok::<_, ClusterError>((node.clone(), shared.server.tenants(&node).await?)) })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let own = own.into_iter().map(|pod| pod.uid).collect();
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
    let mut agents = shared.agents();
    match shared.with_state_quietly(|state| state.entry(key).and_then(Wish::of)) {
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
