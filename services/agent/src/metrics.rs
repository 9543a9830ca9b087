//! The agent's metrics, prefix `eadt_agent_`.

use eadt_schemas::v1::SettingOutcome;
use eadt_service::MetricsRegistry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::apply_setting::{ChangeResult, SettingStatus};

/// UUID of a GPU, `index-N` while it could not be opened, or `mps:` and the pipe folder of an MPS daemon.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DeviceLabel {
    pub device: String,
}

/// A device and its setting: `power_limit`, `sm_clock`, `mps_default`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SettingLabel {
    pub device: String,
    pub setting: &'static str,
}

/// A device, its setting, and the action: `set`, `put_back`, `given_up`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ChangeLabel {
    pub device: String,
    pub setting: &'static str,
    pub action: &'static str,
}

/// Result of an intent: `followed`, `withdrawn`, `invalid`, `other_node`, `stale`, `future`, `expired`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabel {
    pub result: &'static str,
}

/// The kind of record that did not reach the log: `state`, `dead_letter`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabel {
    pub kind: &'static str,
}

/// All metrics of the agent. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AgentMetrics {
    pub device_up: Family<DeviceLabel, Gauge>,
    pub device_stuck: Family<DeviceLabel, Gauge>,
    pub held: Family<SettingLabel, Gauge>,
    pub failing: Family<SettingLabel, Gauge>,
    pub changes: Family<ChangeLabel, Counter>,
    pub records: Gauge,
    pub intents: Family<ResultLabel, Counter>,
    pub intent_live: Gauge,
    pub log_reachable: Gauge,
    pub states_sent: Counter,
    pub unpublished: Family<KindLabel, Counter>,
}

impl AgentMetrics {
    /// Registers all of them.
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("agent", Self::register)
    }

    fn register(registry: &mut Registry) -> Self {
        let all = Self::default();
        registry.register("device_up", "1 while the device is open and answers", all.device_up.clone());
        registry.register("device_stuck", "1 while a call to the device has not returned in time", all.device_stuck.clone());
        registry.register("setting_held", "1 while the requested setting is in force", all.held.clone());
        registry.register("setting_failing", "1 while the setting cannot be set or restored", all.failing.clone());
        registry.register("setting_changes", "Settings set, restored, or left because others changed them", all.changes.clone());
        registry.register("records", "Devices with original settings on disk that are to be restored", all.records.clone());
        registry.register("intents", "Intents, by result", all.intents.clone());
        registry.register(
            "intent_live",
            "1 while an intent is in force; at 0 all original settings are restored",
            all.intent_live.clone(),
        );
        registry.register("log_reachable", "1 while intents can be read from the log", all.log_reachable.clone());
        registry.register("states_sent", "States of this node that the log acknowledged", all.states_sent.clone());
        registry.register("unpublished", "States and dead letters that did not reach the log", all.unpublished.clone());
        registry.register("unsaid", "Old name of eadt_agent_unpublished_total", all.unpublished.clone());
        all
    }

    pub(crate) fn count(&self, device: &str, setting: &'static str, status: &SettingStatus) {
        let label = SettingLabel { device: device.to_owned(), setting };
        self.held.get_or_create(&label).set(i64::from(status.outcome == SettingOutcome::Held));
        self.failing.get_or_create(&label).set(i64::from(status.outcome == SettingOutcome::Failed));
        if let Some(done) = status.done {
            let action = match done {
                ChangeResult::Set => "set",
                ChangeResult::PutBack => "put_back",
                ChangeResult::GaveUp => "given_up",
            };
            let (value, reason) = (status.value, &status.reason);
            tracing::info!(device, setting, action, value, reason, "a setting was changed");
            self.changes.get_or_create(&ChangeLabel { device: device.to_owned(), setting, action }).inc();
        }
    }

    pub(crate) fn intent(&self, result: &'static str) {
        self.intents.get_or_create(&ResultLabel { result }).inc();
    }

    pub(crate) fn count_unpublished(&self, kind: &'static str) {
        self.unpublished.get_or_create(&KindLabel { kind }).inc();
    }
}

#[cfg(test)]
mod tests {
    /// The page names every metric.
    #[test]
    fn the_page_names_every_metric() {
        let page = include_str!("../../../docs/operate/agent.md");
        let source = include_str!("metrics.rs");
        let names: Vec<&str> = source.split("registry.register(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(names.len() > 8, "{names:?}");
        for name in names.into_iter().filter(|name| !name.contains(')')) {
            let is_named = ["", "_total"].iter().any(|end| page.contains(&format!("`eadt_agent_{name}{end}`")));
            assert!(is_named, "docs/operate/agent.md lacks eadt_agent_{name}");
        }
    }
}
