//! The status of a policy, written by the actuator. People read it with kubectl, so figures are rounded.

use eadt_schemas::EventTime;
use eadt_schemas::v1::Precision;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Entries of [`EnergyPolicyStatus::history`].
pub const HISTORY_MAX: usize = 10;
/// The longest message of a condition, and other texts, in characters: the API server refuses longer ones, and all of the status
/// with them.
const CONDITION_MAX: usize = 32_768;
const TEXT_MAX: usize = 4096;
const WORDS_MAX: usize = 1024;

/// The present state and the results of the policy.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnergyPolicyStatus {
    /// The generation of the policy that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `TargetFound`, `TelemetryFresh`, `RecommendationAvailable`, `Progressing`, `Degraded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// The workload as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<CurrentState>,
    /// The recommended change. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommendation: Option<Recommendation>,
    /// The last decision, also one that changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<LastDecision>,
    /// Saving of the changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<SavingEffect>,
    /// The last changes, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub history: Vec<PastChange>,
}

/// A condition, as Kubernetes has them.
#[derive(KubeSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub kind: String,
    pub status: ConditionStatus,
    /// Reason, in one word.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// Why, for people.
    #[schemars(length(max = 32_768))]
    pub message: String,
    /// Time since which it has this status.
    pub last_transition_time: EventTime,
    /// The generation of the policy that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Whether a condition holds.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// The conditions of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// The policy is in force.
    Ready,
    /// Its workload exists.
    TargetFound,
    /// Current telemetry and progress of the workload are known.
    TelemetryFresh,
    /// There is a recommended change.
    RecommendationAvailable,
    /// A change is being rolled out.
    Progressing,
    /// Something does not work.
    Degraded,
}

impl ConditionType {
    pub const ALL: [Self; 6] =
        [Self::Ready, Self::TargetFound, Self::TelemetryFresh, Self::RecommendationAvailable, Self::Progressing, Self::Degraded];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::TargetFound => "TargetFound",
            Self::TelemetryFresh => "TelemetryFresh",
            Self::RecommendationAvailable => "RecommendationAvailable",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
        }
    }
}

/// Layout of a workload.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LayoutSettings {
    /// Number of training processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// MPS thread percentage of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_thread_percentage: Option<u32>,
    /// `WORLD_SIZE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// `LOCAL_WORLD_SIZE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_world_size: Option<u32>,
    /// Power cap of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// Upper limit of a GPU's SM clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_megahertz: Option<f64>,
    /// Precision that is requested from the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Frozen layers that are requested, counted from the input side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers: Option<u32>,
}

impl From<&eadt_schemas::v1::Layout> for LayoutSettings {
    fn from(layout: &eadt_schemas::v1::Layout) -> Self {
        Self {
            replicas: layout.replicas,
            mps_thread_percentage: layout.mps_thread_percentage,
            world_size: layout.world_size,
            local_world_size: layout.local_world_size,
            power_limit_watts: layout.power_limit_watts,
            sm_clock_megahertz: layout.sm_clock_mhz,
            precision: layout.precision,
            frozen_prefix_layers: layout.frozen_prefix_layers,
        }
    }
}

/// A workload as it is now.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrentState {
    /// End of the window of these figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<EventTime>,
    /// Its layout.
    #[serde(default)]
    pub settings: LayoutSettings,
    /// `simulated` or `imported` if the figures are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub origin: Option<String>,
    /// Energy per sample, in joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_sample: Option<f64>,
    /// Throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Mean power of all its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
}

/// The recommended change.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    /// The decision; `eadt policy approve` has it applied once.
    #[schemars(length(max = 1024))]
    pub decision_id: String,
    /// Its event time.
    pub time: EventTime,
    /// Time of its expiry.
    pub expires: EventTime,
    /// Short text: `threads 50 % → 40 %`.
    #[schemars(length(max = 1024))]
    pub summary: String,
    /// Reason, as text.
    #[schemars(length(max = 4096))]
    pub reason: String,
    /// Layout before the change.
    pub from: LayoutSettings,
    /// Layout after the change.
    pub to: LayoutSettings,
    /// Whether it restarts processes.
    pub restarts: bool,
}

/// A decision and its outcome.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastDecision {
    /// The decision.
    #[schemars(length(max = 1024))]
    pub decision_id: String,
    /// Its event time.
    pub time: EventTime,
    /// Action of the decision: `maintain`, `decrease`, `scale_replicas`, `increase`, `revert`, `set_power_limit`, `set_clocks`,
    /// `set_precision`, `freeze_layers`.
    #[schemars(length(max = 63))]
    pub action: String,
    /// Reason, as text.
    #[schemars(length(max = 4096))]
    pub reason: String,
    /// Its outcome. Absent: it changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ChangeOutcome>,
    /// Reason of the outcome, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

/// Outcome of a decision.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeOutcome {
    /// It was recommended, not applied.
    Recommended,
    /// It may not or cannot be applied.
    Refused,
    /// It is being rolled out.
    Progressing,
    /// It is in force.
    Applied,
    /// It helped, and is kept.
    Kept,
    /// It was rolled back or reverted.
    RolledBack,
}

/// Saving of the changes.
#[derive(KubeSchema, Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavingEffect {
    /// Short text: `12.3 %`, or `12.3 % (simulated)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub summary: Option<String>,
    /// Energy per sample saved by the changes in force that were verified, in percent of what it was before the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving_percent: Option<f64>,
    /// Energy per sample before the first of them, in joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_per_sample_before: Option<f64>,
    /// Time of the last verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_time: Option<EventTime>,
}

/// A change in the past.
#[derive(KubeSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastChange {
    /// The decision.
    #[schemars(length(max = 1024))]
    pub decision_id: String,
    /// Time at which it took effect, or was refused.
    pub time: EventTime,
    /// Short text: `threads 50 % → 40 %`.
    #[schemars(length(max = 1024))]
    pub summary: String,
    pub outcome: ChangeOutcome,
    /// Reason of the outcome, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
}

/// Sets a condition; its transition time moves only when its status does.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: ConditionType,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: EventTime,
) {
    let place = conditions.iter().position(|condition| condition.kind == kind.as_str());
    let since = place.map(|i| &conditions[i]).filter(|before| before.status == status).map(|before| before.last_transition_time);
    let condition = Condition {
        kind: kind.as_str().to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or(now),
        observed_generation: generation,
    };
    match place {
        Some(i) => conditions[i] = condition,
        None => conditions.push(condition),
    }
}

impl EnergyPolicyStatus {
    /// Returns the condition of this type.
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind.as_str())
    }

    /// Cuts texts that are longer than the API server takes; texts of others (an API server, a job) may be of any length. Ids are
    /// never too long: events with longer ones are refused.
    pub fn fit(&mut self) {
        for condition in &mut self.conditions {
            truncate_text(&mut condition.message, CONDITION_MAX);
        }
        if let Some(recommendation) = &mut self.recommendation {
            truncate_text(&mut recommendation.summary, WORDS_MAX);
            truncate_text(&mut recommendation.reason, TEXT_MAX);
        }
        if let Some(last) = &mut self.last_decision {
            truncate_text(&mut last.reason, TEXT_MAX);
            last.message.iter_mut().for_each(|message| truncate_text(message, TEXT_MAX));
        }
        for past in &mut self.history {
            truncate_text(&mut past.summary, WORDS_MAX);
            past.message.iter_mut().for_each(|message| truncate_text(message, TEXT_MAX));
        }
    }

    /// Notes a change; the oldest are forgotten.
    pub fn remember(&mut self, past: PastChange) {
        self.history.retain(|known| known.decision_id != past.decision_id);
        self.history.insert(0, past);
        self.history.truncate(HISTORY_MAX);
    }
}

fn truncate_text(text: &mut String, most: usize) {
    if text.chars().count() > most {
        *text = text.chars().take(most - 1).chain(['…']).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let mut all = vec![];
        let mut set = |status, reason: &str, now| {
            set_condition(&mut all, ConditionType::Ready, status, reason, "because", Some(1), at(now));
            all.clone()
        };
        set(ConditionStatus::True, "InForce", 1.0);
        let same = set(ConditionStatus::True, "StillInForce", 2.0);
        assert_eq!((same.len(), same[0].reason.as_str(), same[0].last_transition_time), (1, "StillInForce", at(1.0)));
        assert_eq!(set(ConditionStatus::False, "TargetNotFound", 3.0)[0].last_transition_time, at(3.0));
    }

    #[test]
    fn a_status_fits_whatever_others_write() {
        let long = "ü".repeat(40_000);
        let mut all = vec![];
        set_condition(&mut all, ConditionType::Degraded, ConditionStatus::True, "CannotChange", &long, Some(1), at(0.0));
        let mut status: EnergyPolicyStatus = serde_json::from_value(serde_json::json!({
            "conditions": all,
            "recommendation": {"decisionId": "d", "time": at(0.0), "expires": at(1.0), "summary": long, "reason": long,
                "from": {}, "to": {}, "restarts": true},
            "lastDecision": {"decisionId": "d", "time": at(0.0), "action": "decrease", "reason": long, "message": long},
            "history": [{"decisionId": "d", "time": at(0.0), "summary": long, "outcome": "Refused", "message": long}],
        }))
        .unwrap();
        status.fit();
        let schema = crate::policy::definition::spec_schema()["properties"]["status"].clone();
        let value = serde_json::to_value(&status).unwrap();
        let texts = [
            ("/conditions/0/message", "/properties/conditions/items/properties/message"),
            ("/recommendation/summary", "/properties/recommendation/properties/summary"),
            ("/recommendation/reason", "/properties/recommendation/properties/reason"),
            ("/lastDecision/reason", "/properties/lastDecision/properties/reason"),
            ("/lastDecision/message", "/properties/lastDecision/properties/message"),
            ("/history/0/summary", "/properties/history/items/properties/summary"),
            ("/history/0/message", "/properties/history/items/properties/message"),
        ];
        for (at, of) in texts {
            let length = value.pointer(at).unwrap().as_str().unwrap().chars().count();
            let most = schema.pointer(of).unwrap()["maxLength"].as_u64().unwrap();
            assert_eq!(length as u64, most, "{at}");
        }
    }

    #[test]
    fn history_is_bounded_and_has_a_change_once() {
        let mut status = EnergyPolicyStatus::default();
        let past = |number: usize, outcome| PastChange {
            decision_id: format!("d{number}"),
            time: at(number as f64),
            summary: "threads 50 % → 40 %".into(),
            outcome,
            message: None,
        };
        for number in 0..25 {
            status.remember(past(number, ChangeOutcome::Applied));
        }
        status.remember(past(24, ChangeOutcome::Kept));
        assert_eq!(status.history.len(), HISTORY_MAX);
        assert_eq!((status.history[0].decision_id.as_str(), status.history[0].outcome), ("d24", ChangeOutcome::Kept));
        assert_eq!(status.history[9].decision_id, "d15");
    }
}
