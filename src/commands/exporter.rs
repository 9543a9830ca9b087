//! `eadt exporter`: follows the log for metrics by workload and GPU.

use std::time::Duration;

use eadt_bus::{Bus, IsolationLevel, PollEvent, StartOffset};
use eadt_schemas::Topic;
use eadt_service::Shutdown;

use super::{partitions, topic_of};
use crate::live::exporter::{Exporter, TOPICS};
use crate::settings::TopicSettings;

/// Gives the exporter what the log holds and gets; of telemetry only what comes from now on.
pub fn follow(bus: &dyn Bus, names: &TopicSettings, exporter: &Exporter, shutdown: &Shutdown) -> anyhow::Result<()> {
    let state_topics: Vec<Topic> = TOPICS.into_iter().filter(|topic| *topic != Topic::GpuTelemetry).collect();
    let mut from = partitions(bus, names, &state_topics, StartOffset::Earliest)?;
    from.extend(partitions(bus, names, &[Topic::GpuTelemetry], StartOffset::Latest)?);
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let mut batch = Vec::new();
    while !shutdown.is_cancelled() {
        reader.poll(4096, Duration::from_millis(200), &mut batch)?;
        for polled in batch.drain(..) {
            let PollEvent::Record(record) = polled else { continue };
            if let (Some(topic), Some(value)) = (topic_of(&record, &names.prefix), &record.value) {
                exporter.take(topic, value);
            }
        }
        exporter.refresh_one();
    }
    Ok(())
}
