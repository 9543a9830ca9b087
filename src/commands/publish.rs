//! `eadt collector --recording`: an event log's telemetry and progress onto the bus, once.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use eadt_bus::{Bus, Producer, ProducerRecord, Remedy};
use eadt_recordings::LogReader;
use eadt_schemas::counts::counted;
use eadt_schemas::{Envelope, Topic};
use eadt_service::Shutdown;

use crate::output::print_line;
use crate::progress::{MeteredReader, ProgressMeter};
use crate::settings::TopicSettings;

/// Checks that all of these files can be read, before any wait for a broker.
pub fn readable(logs: &[PathBuf]) -> anyhow::Result<()> {
    logs.iter().try_for_each(|path| File::open(path).map(drop).with_context(|| format!("cannot read {}", path.display())))
}

/// Publishes the input events of `logs` in their order; events that only a pipeline makes (windows, decisions, …) are left out
/// and counted.
pub fn run(logs: &[PathBuf], bus: &dyn Bus, names: &TopicSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let mut producer = bus.producer("eadt-recording")?;
    let (mut left_out, mut unusable, mut damaged) = (0_u64, 0_u64, 0_u64);
    let meter = ProgressMeter::over_files(logs);
    for path in logs {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = MeteredReader::new(file, &meter);
        let mut log = LogReader::new(path.display().to_string(), file)?;
        loop {
            let event = match log.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) if error.cut => {
                    crate::output::note!("warning: {error}; published up to there");
                    break;
                }
                Err(error) if error.can_go_on && error.good > 0 => {
                    damaged += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let topic = match event.topic() {
                Some(topic @ (Topic::GpuTelemetry | Topic::TrainingProgress | Topic::Workloads)) => topic,
                Some(_) => {
                    left_out += 1;
                    continue;
                }
                None => {
                    unusable += 1;
                    continue;
                }
            };
            let envelope = Envelope {
                id: event.id.to_string(),
                source: event.source.to_string(),
                kind: topic.event_type(),
                time: event.time,
                subject: event.subject.to_string(),
            };
            let key = event.key.as_deref().unwrap_or(&event.subject);
            let name = format!("{}{topic}", names.prefix).into();
            let record = ProducerRecord::enveloped(&name, key, &envelope, event.value().map(Bytes::copy_from_slice));
            send(&mut *producer, &record, shutdown)?;
            if shutdown.is_cancelled() {
                bail!("interrupted after {} of {}", counted(log.events(), "event"), path.display());
            }
        }
    }
    while !producer.flush(Duration::from_secs(1))? {
        if shutdown.is_cancelled() {
            bail!("interrupted while events were on their way: {:?}", producer.counts());
        }
    }
    meter.finish();
    let counts = producer.counts();
    print_line!(
        "{} events published, {} failed, {left_out} outputs left out, {unusable} of unknown type, {damaged} damaged lines",
        counts.acknowledged,
        counts.failed
    );
    if counts.failed > 0 {
        bail!("{} events were not taken by the log: see its errors above, and publish into fresh topics", counts.failed);
    }
    Ok(())
}

/// Waits while the buffer is full, so that order is kept and nothing is dropped.
fn send(producer: &mut dyn Producer, record: &ProducerRecord, shutdown: &Shutdown) -> anyhow::Result<()> {
    loop {
        match producer.send(record.clone()) {
            Ok(()) => return Ok(()),
            Err(error) if error.remedy == Remedy::Retry && !shutdown.is_cancelled() => {
                producer.flush(Duration::from_millis(50))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
