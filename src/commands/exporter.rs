//! `eadt exporter`: follows the log for metrics by workload and GPU.

use std::time::Duration;

use eadt_bus::{Bus, IsolationLevel, PollEvent, StartOffset};
use eadt_schemas::Topic;
use eadt_service::Shutdown;
use eadt_service::http::ReadinessFlag;

use super::{partitions, topic_of};
use crate::live::exporter::{Exporter, HISTORY};
use crate::settings::TopicSettings;

/// Feeds the exporter with the log, and with telemetry from now on. Ready once every partition was read to its end; it
/// stays so if one cannot be reached later.
pub fn follow(
    bus: &dyn Bus,
    names: &TopicSettings,
    exporter: &Exporter,
    ready: &ReadinessFlag,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let mut from = partitions(bus, names, &HISTORY, StartOffset::Earliest)?;
    from.extend(partitions(bus, names, &[Topic::GpuTelemetry], StartOffset::Latest)?);
    exporter.announce(&from, &names.prefix);
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let mut batch = Vec::new();
    while !shutdown.is_cancelled() {
        reader.poll(4096, Duration::from_millis(200), &mut batch)?;
        for polled in batch.drain(..) {
            match polled {
                PollEvent::Record(record) => {
                    if let Some(topic) = topic_of(&record, &names.prefix) {
                        exporter.on_record(topic, &record);
                    }
                }
                PollEvent::End { at, .. } => exporter.on_end(&at, &names.prefix),
                _ => {}
            }
        }
        exporter.refresh();
        if exporter.has_caught_up() {
            ready.set(true);
        }
    }
    Ok(())
}
