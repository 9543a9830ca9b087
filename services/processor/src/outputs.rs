//! Records to be written: windows, decisions, dead letters, state.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use eadt_bus::{ConsumerRecord, ProducerRecord, RecordHeader, headers};
use eadt_core::StateRecord;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Decision, EfficiencyWindow};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

const SOURCE: &str = "/processor";

/// Full names of the topics that are written.
#[derive(Debug)]
pub struct OutputTopics {
    pub prefix: String,
    windows: Arc<str>,
    decisions: Arc<str>,
    pub dead_letters: Arc<str>,
    pub state: Arc<str>,
    /// Headers of every record of the state: one step may write thousands.
    of_state: Vec<RecordHeader>,
    settings: Bytes,
    /// The consumer group that writes; empty in a replay.
    pub group: Bytes,
    /// Ids of the topics that are read, by name; empty if they are unknown.
    pub input_ids: BTreeMap<String, String>,
}

impl OutputTopics {
    /// Builds it. `settings`: the header value that names the settings by which the outputs were made.
    pub fn new(prefix: &str, settings: String) -> Self {
        let name = |topic: Topic| Arc::from(format!("{prefix}{topic}"));
        let mut of_state = headers(&envelope("", EventType::ProcessorState, EventTime::from_micros(0), ""));
        of_state.retain(|(name, _)| &**name == header::TYPE || &**name == header::SPEC_VERSION);
        Self {
            prefix: prefix.to_owned(),
            windows: name(Topic::EfficiencyWindows),
            decisions: name(Topic::Decisions),
            dead_letters: name(Topic::DeadLetters),
            state: name(Topic::ProcessorState),
            of_state,
            settings: settings.into(),
            group: Bytes::new(),
            input_ids: BTreeMap::new(),
        }
    }

    /// Names the consumer group that writes.
    #[must_use]
    pub fn for_group(self, group: &str) -> Self {
        Self { group: Bytes::copy_from_slice(group.as_bytes()), ..self }
    }

    /// Sets the ids of the topics that are read.
    #[must_use]
    pub fn with_input_ids(self, input_ids: BTreeMap<String, String>) -> Self {
        Self { input_ids, ..self }
    }

    pub fn window(&self, window: &EfficiencyWindow, positions: &Bytes) -> ProducerRecord {
        let envelope = envelope(&window.id, EventType::EfficiencyWindow, window.window_end, &window.workload);
        self.with_positions(ProducerRecord::event(&self.windows, &window.workload, &envelope, window), positions)
    }

    pub fn decision(&self, decision: &Decision, positions: &Bytes) -> ProducerRecord {
        let envelope = envelope(&decision.id, EventType::Decision, decision.time, &decision.workload);
        self.with_positions(ProducerRecord::event(&self.decisions, &decision.workload, &envelope, decision), positions)
    }

    /// Adds headers with the positions of the inputs and with the settings by which this was made.
    fn with_positions(&self, mut output: ProducerRecord, positions: &Bytes) -> ProducerRecord {
        output.headers.push((Arc::from(header::INPUT_POSITIONS), positions.clone()));
        output.headers.push((Arc::from(header::SETTINGS), self.settings.clone()));
        output
    }

    /// Returns a refused record: its own bytes, and in the headers why, where from, and by which stage (`processor`,
    /// `processor/cluster`).
    pub fn dead_letter(&self, record: &ConsumerRecord, refusal: &DecodeError, stage: &'static str) -> ProducerRecord {
        ProducerRecord::dead_letter(&self.dead_letters, record, refusal, stage)
    }

    /// Returns a state record. State goes to the partition that it is the state of, whatever its key.
    pub fn state(&self, partition: i32, record: StateRecord) -> ProducerRecord {
        ProducerRecord {
            topic: Arc::clone(&self.state),
            partition: Some(partition),
            key: Some(record.key.into()),
            value: record.value.map(Bytes::from),
            headers: self.of_state.clone(),
        }
    }
}

fn envelope(id: &str, kind: EventType, time: EventTime, subject: &str) -> Envelope {
    Envelope { id: id.to_owned(), source: SOURCE.to_owned(), kind, time, subject: subject.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(output: &ProducerRecord) -> Vec<(&str, &str)> {
        output.headers.iter().map(|(name, value)| (&**name, std::str::from_utf8(value).unwrap())).collect()
    }

    fn names() -> OutputTopics {
        OutputTopics::new("site.", "{\"settings\":1}".to_owned())
    }

    #[test]
    fn state_goes_to_its_partition_under_its_key_with_no_header_but_its_type() {
        for (value, expected) in [(Some(vec![1, 2]), Some(&[1, 2][..])), (None, None)] {
            let state = names().state(3, StateRecord { key: "team/one#0".to_owned(), value });
            assert_eq!((&*state.topic, state.partition), ("site.processor-state.v1", Some(3)));
            assert_eq!((state.key.as_deref(), state.value.as_deref()), (Some(&b"team/one#0"[..]), expected));
            let mut headers = headers(&state);
            headers.sort_unstable();
            assert_eq!(headers, [(header::SPEC_VERSION, "1.0"), (header::TYPE, EventType::ProcessorState.name())]);
        }
    }

    #[test]
    fn windows_and_decisions_go_where_their_workload_belongs_and_name_what_they_were_made_by() {
        let (time, positions) = (EventTime::from_millis(5), Bytes::from_static(b"{\"partition\":0}"));
        let window =
            EfficiencyWindow { id: "w".into(), workload: "team/one".into(), window_end: time, ..EfficiencyWindow::default() };
        let decision = Decision { id: "d".into(), workload: "team/one".into(), time, ..Decision::default() };
        for (output, topic, id, kind) in [
            (names().window(&window, &positions), "site.efficiency.windows.v1", "w", EventType::EfficiencyWindow),
            (names().decision(&decision, &positions), "site.decisions.v1", "d", EventType::Decision),
        ] {
            assert_eq!((&*output.topic, output.partition, output.key.as_deref()), (topic, None, Some(&b"team/one"[..])));
            let found = headers(&output);
            for header in [
                (header::ID, id),
                (header::TYPE, kind.name()),
                (header::SOURCE, "/processor"),
                (header::TIME, &*time.to_string()),
                (header::SUBJECT, "team/one"),
                (header::INPUT_POSITIONS, "{\"partition\":0}"),
                (header::SETTINGS, "{\"settings\":1}"),
            ] {
                assert!(found.contains(&header), "{header:?} in {found:?}");
            }
        }
    }
}
