//! The cluster's stage of a replay: what concerns it, in the order in which the log had it.

use std::collections::{BTreeMap, HashMap};

use eadt_core::{Cluster, FoldSettings, cluster};
use eadt_schemas::v1::{Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, Topic};

use super::Fed;
use crate::codec::Decoded;

/// When something came: its stamp, tables before windows, partition, and a number.
type Arrival = (EventTime, bool, i32, u64);

enum Kept {
    Table(Box<Fed>),
    Window(Box<EfficiencyWindow>),
}

pub struct Second {
    settings: FoldSettings,
    kept: BTreeMap<Arrival, Kept>,
    count: u64,
    /// Of each partition the newest stamp of what the first stage folded: a window came when it was closed.
    stamps: HashMap<i32, EventTime>,
    /// Partitions of the workloads that ever shared the budget: where their windows and decisions belong.
    members: HashMap<String, i32>,
}

impl Second {
    /// `None`: there is no budget to share.
    pub fn new(settings: &FoldSettings) -> Option<Self> {
        settings.power_budget?;
        Some(Self {
            settings: settings.clone(),
            kept: BTreeMap::new(),
            count: 0,
            stamps: HashMap::new(),
            members: HashMap::new(),
        })
    }

    fn keep(&mut self, stamp: EventTime, partition: i32, kept: Kept) {
        let window = matches!(kept, Kept::Window(_));
        self.kept.insert((stamp, window, partition, self.count), kept);
        self.count += 1;
    }

    /// Takes a record that the first stage folds.
    pub fn take(&mut self, fed: &Fed) {
        let newest = self.stamps.entry(fed.partition).or_insert(fed.stamp);
        *newest = fed.stamp.max(*newest);
        let concerns = match (&fed.event, fed.topic) {
            (Decoded::Workload(workload), _) => {
                if self.settings.shares_budget(workload) {
                    self.members.insert(workload.workload.clone(), fed.partition);
                }
                self.members.contains_key(&workload.workload)
            }
            (Decoded::Actuation(actuation), _) => self.members.contains_key(&actuation.workload),
            (Decoded::WorkloadGone, _) => self.members.contains_key(&fed.key),
            // Every partition has all models, and one is enough.
            (_, Topic::Models) => fed.partition == 0,
            _ => false,
        };
        if concerns {
            self.keep(fed.stamp, fed.partition, Kept::Table(Box::new(fed.clone())));
        }
    }

    /// Takes a window that the first stage said.
    pub fn take_window(&mut self, window: &EfficiencyWindow, partition: i32) {
        if self.members.contains_key(&window.workload) {
            let stamp = self.stamps.get(&partition).copied().unwrap_or(window.window_end);
            self.keep(stamp, partition, Kept::Window(Box::new(window.clone())));
        }
    }

    /// Folds everything; `say` gets each decision with its partition. Returns how many events came after their look.
    pub fn fold<E>(self, mut say: impl FnMut(i32, Decision) -> Result<(), E>) -> Result<u64, E> {
        let mut cluster = Cluster::new(self.settings);
        let mut said = Vec::new();
        for ((stamp, ..), kept) in self.kept {
            let folded = match &kept {
                Kept::Table(fed) => cluster.fold(cluster::Event::Input(fed.event.event()), fed.key(), stamp, &mut said),
                Kept::Window(window) => cluster.fold(cluster::Event::Window(window), Some(&window.workload), stamp, &mut said),
            };
            if let Err(refusal) = folded {
                tracing::warn!("refused by the cluster's stage: {refusal}");
            }
            for decision in said.drain(..) {
                let partition = self.members.get(&decision.workload).copied().unwrap_or_default();
                say(partition, decision)?;
            }
        }
        Ok(cluster.tally().late)
    }
}
