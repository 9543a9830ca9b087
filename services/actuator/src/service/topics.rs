//! Full names of the topics that the actuator reads and writes, and reading a compacted one.

use std::sync::Arc;

use eadt_bus::{BusError, Remedy};
use eadt_schemas::Topic;

use super::ActuatorDependencies;

#[derive(Debug, Clone)]
pub struct ActuatorTopics {
    pub decisions: Arc<str>,
    pub workloads: Arc<str>,
    pub actuations: Arc<str>,
    pub dead_letters: Arc<str>,
    pub device_intents: Arc<str>,
    pub device_states: Arc<str>,
    pub device_holders: Arc<str>,
    pub directives: Arc<str>,
    pub progress: Arc<str>,
}

impl ActuatorTopics {
    pub fn new(prefix: &str) -> Self {
        let full = |topic: Topic| -> Arc<str> { format!("{prefix}{topic}").into() };
        Self {
            decisions: full(Topic::Decisions),
            workloads: full(Topic::Workloads),
            actuations: full(Topic::Actuations),
            dead_letters: full(Topic::DeadLetters),
            device_intents: full(Topic::DeviceIntents),
            device_states: full(Topic::DeviceStates),
            device_holders: full(Topic::DeviceHolders),
            directives: full(Topic::Directives),
            progress: full(Topic::TrainingProgress),
        }
    }
}

/// Returns the number of partitions of a topic; without the topic the actuator stops.
pub fn partition_count(deps: &ActuatorDependencies, topic: &Arc<str>) -> Result<i32, BusError> {
    let specs = deps.bus.topics(&deps.settings.prefix)?;
    specs.into_iter().find(|spec| spec.name == *topic).map(|spec| spec.partitions).ok_or_else(|| {
        let detail = "the topic does not exist; create the topics with eadt topics apply";
        BusError::new(Remedy::Stop, format!("reading topic {topic}"), detail)
    })
}
