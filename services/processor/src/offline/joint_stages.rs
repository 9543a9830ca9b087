//! A stage of a replay that decides about several workloads together: what concerns it, in the order in which the log had it.

use std::collections::{BTreeMap, HashMap};

use eadt_core::joint::JointEvent;
use eadt_core::partition::merge_key;
use eadt_core::{FoldSettings, JointFold, PowerBudgetFold};
use eadt_gpu_sharing::GpuSharingFold;
use eadt_schemas::v1::{Decision, EfficiencyWindow, Workload};
use eadt_schemas::{EventTime, Topic};

use super::record::{ReplayError, ReplayRecord};
use crate::codec::DecodedRecord;
use crate::joint::STAGE_INPUTS;

/// Order of arrival: by stamp; of one stamp as [`eadt_core::InputMerge`] takes what is there, by time and then by input; and a
/// number.
type ArrivalOrder = (EventTime, EventTime, StageInput, u64);
/// An input of the stage, in the order of ties: topic, by its place in [`STAGE_INPUTS`], and partition.
type StageInput = (usize, i32);

enum OfflineInput {
    Table(Box<ReplayRecord>),
    Window(Box<EfficiencyWindow>),
}

/// The stage that folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JointStageChoice {
    PowerBudget,
    GpuSharing,
}

pub struct OfflineJointStage {
    which: JointStageChoice,
    settings: FoldSettings,
    inputs: BTreeMap<ArrivalOrder, OfflineInput>,
    count: u64,
    /// Newest stamp that the first stage folded, by partition: a window came when it was closed.
    stamps: HashMap<i32, EventTime>,
    /// Stamp and time of the newest record, by input.
    newest: HashMap<StageInput, (EventTime, EventTime)>,
    /// Partitions of the workloads that were ever members: where their windows and decisions belong.
    members: HashMap<String, i32>,
}

impl OfflineJointStage {
    /// Returns the stages that these settings ask for.
    pub fn enabled_stages(settings: &FoldSettings) -> Vec<Self> {
        let of = |which| Self {
            which,
            settings: settings.clone(),
            inputs: BTreeMap::new(),
            count: 0,
            stamps: HashMap::new(),
            newest: HashMap::new(),
            members: HashMap::new(),
        };
        let power_budget = settings.power_budget.is_some().then(|| of(JointStageChoice::PowerBudget));
        power_budget.into_iter().chain(settings.gpu_sharing.is_some().then(|| of(JointStageChoice::GpuSharing))).collect()
    }

    fn is_member(&self, workload: &Workload) -> bool {
        match self.which {
            JointStageChoice::PowerBudget => self.settings.shares_budget(workload),
            JointStageChoice::GpuSharing => self.settings.shares_gpus(workload),
        }
    }

    fn keep(&mut self, stamp: EventTime, topic: Topic, partition: i32, input: OfflineInput) {
        let event_time = match &input {
            OfflineInput::Table(fed) => fed.event.event().time(),
            OfflineInput::Window(window) => Some(window.window_end),
        };
        // A record without a time moves no clock: it goes first.
        let mut time = event_time.map_or(EventTime::MIN, |time| merge_key(time, stamp, self.settings.max_future));
        let place = (STAGE_INPUTS.iter().position(|other| *other == topic).unwrap_or(STAGE_INPUTS.len()), partition);
        // Records of one input stay in their order.
        if let Some((last_stamp, last_time)) = self.newest.get(&place)
            && *last_stamp == stamp
        {
            time = time.max(*last_time);
        }
        self.newest.insert(place, (stamp, time));
        self.inputs.insert((stamp, time, place, self.count), input);
        self.count += 1;
    }

    /// Takes a record that the first stage folds.
    pub fn add_record(&mut self, fed: &ReplayRecord) {
        let newest = self.stamps.entry(fed.partition).or_insert(fed.stamp);
        *newest = fed.stamp.max(*newest);
        let concerns = match (&fed.event, fed.topic) {
            (DecodedRecord::Workload(workload), _) => {
                if self.is_member(workload) {
                    self.members.insert(workload.workload.clone(), fed.partition);
                }
                self.members.contains_key(&workload.workload)
            }
            (DecodedRecord::Actuation(actuation), _) => self.members.contains_key(&actuation.workload),
            (DecodedRecord::WorkloadGone, _) => self.members.contains_key(&fed.key),
            // Every partition has all models, and one is enough.
            (_, Topic::Models) => fed.partition == 0,
            _ => false,
        };
        if concerns {
            self.keep(fed.stamp, fed.topic, fed.partition, OfflineInput::Table(Box::new(fed.clone())));
        }
    }

    /// Takes a window that the first stage emitted.
    pub fn take_window(&mut self, window: &EfficiencyWindow, partition: i32) {
        // On a shared GPU those of others count, too.
        if self.members.contains_key(&window.workload)
            || (self.which == JointStageChoice::GpuSharing && !window.shared_devices.is_empty())
        {
            let stamp = self.stamps.get(&partition).copied().unwrap_or(window.window_end);
            self.keep(stamp, Topic::EfficiencyWindows, partition, OfflineInput::Window(Box::new(window.clone())));
        }
    }

    /// Folds everything; the callback gets each decision with its partition. Returns how many events came after their evaluation.
    pub fn fold(self, emit: impl FnMut(i32, Decision) -> Result<(), ReplayError>) -> Result<u64, ReplayError> {
        match self.which {
            JointStageChoice::PowerBudget => {
                let mut power_budget = PowerBudgetFold::new(self.settings.clone());
                self.fold_in(&mut power_budget, emit)?;
                Ok(power_budget.tally().late)
            }
            JointStageChoice::GpuSharing => {
                let mut gpus = GpuSharingFold::new(self.settings.clone());
                self.fold_in(&mut gpus, emit)?;
                Ok(gpus.tally().late)
            }
        }
    }

    fn fold_in(
        self,
        stage: &mut impl JointFold,
        mut emit: impl FnMut(i32, Decision) -> Result<(), ReplayError>,
    ) -> Result<(), ReplayError> {
        let mut decisions = Vec::new();
        for ((stamp, ..), input) in self.inputs {
            let folded = match &input {
                OfflineInput::Table(fed) => stage.fold(JointEvent::Input(fed.event.event()), fed.key(), stamp, &mut decisions),
                OfflineInput::Window(window) => {
                    stage.fold(JointEvent::Window(window), Some(&window.workload), stamp, &mut decisions)
                }
            };
            if let Err(refusal) = folded {
                tracing::warn!(%refusal, "record refused by a joint stage");
            }
            for decision in decisions.drain(..) {
                let partition = self.members.get(&decision.workload).copied().unwrap_or_default();
                emit(partition, decision)?;
            }
        }
        Ok(())
    }
}
