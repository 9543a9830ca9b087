//! Events and state as records of the bus.

use std::sync::Arc;

use eadt_bus::Outgoing;
use eadt_schemas::{Envelope, EventTime, EventType};
use eadt_simulator::Event;
use serde::Serialize;

const SOURCE: &str = "/simulator";
/// Key of the state record.
pub const STATE_KEY: &str = "simulator";

/// A reported event. Key: the workload, or the device where it has none.
pub fn event(telemetry: &Arc<str>, progress: &Arc<str>, event: &Event) -> Outgoing {
    match event {
        Event::Telemetry(t) => {
            let key = t.workload.as_deref().unwrap_or(&t.device);
            let id = format!("{key}/{}/{}", t.device, t.time.micros());
            record(telemetry, key, id, EventType::GpuTelemetry, t.time, &**t)
        }
        Event::Progress(p) => {
            let id = format!("{}/{}/{}", p.workload, p.rank, p.time.micros());
            record(progress, &p.workload, id, EventType::TrainingProgress, p.time, &**p)
        }
    }
}

/// The driver's state at `now`.
pub fn state(topic: &Arc<str>, now: EventTime, state: &impl Serialize) -> Outgoing {
    record(topic, STATE_KEY, format!("{STATE_KEY}/{}", now.micros()), EventType::SimulatorState, now, state)
}

fn record(topic: &Arc<str>, key: &str, id: String, kind: EventType, time: EventTime, value: &impl Serialize) -> Outgoing {
    let envelope = Envelope { id, source: SOURCE.into(), kind, time, subject: key.to_owned() };
    Outgoing::event(topic, key, &envelope, value)
}
