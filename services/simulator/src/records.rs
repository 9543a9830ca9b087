//! Events and state as records of the bus.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use eadt_bus::ProducerRecord;
use eadt_schemas::decode::MAX_VALUE_BYTES;
use eadt_schemas::{Envelope, EventTime, EventType};
use eadt_simulator::SimulatedEvent;
use serde::{Deserialize, Serialize};

const SOURCE: &str = "/simulator";
/// Key of the state record.
pub const STATE_KEY: &str = "simulator";

/// Returns a reported event. Key: the workload, or the device if it has none.
pub fn event(telemetry: &Arc<str>, progress: &Arc<str>, event: &SimulatedEvent) -> ProducerRecord {
    match event {
        SimulatedEvent::Telemetry(t) => {
            let key = t.workload.as_deref().unwrap_or(&t.device);
            let id = format!("{key}/{}/{}", t.device, t.time.micros());
            record(telemetry, key, id, EventType::GpuTelemetry, t.time, &**t)
        }
        SimulatedEvent::Progress(p) => {
            let id = format!("{}/{}/{}", p.workload, p.rank, p.time.micros());
            record(progress, &p.workload, id, EventType::TrainingProgress, p.time, &**p)
        }
    }
}

/// First byte of a state in one record, which is JSON.
const WHOLE: u8 = b'{';
/// First byte of a state in several records: the rest is [`StatePieces`] as JSON, and the pieces are under keys of their own.
const IN_PIECES: u8 = 1;
const PIECE_BYTES: usize = MAX_VALUE_BYTES / 2;

/// The parts of a state that is larger than a record.
#[derive(Debug, Serialize, Deserialize)]
struct StatePieces {
    pieces: u32,
    bytes: usize,
}

/// Returns the driver's state at `now`: one record, or the pieces of a state that is larger than a record, and then what names
/// them. They go to one partition and are committed together, so that the newest of each belong together.
pub fn state(topic: &Arc<str>, partition: i32, now: EventTime, state: &impl Serialize) -> Vec<ProducerRecord> {
    let whole = record(topic, STATE_KEY, state_id(STATE_KEY, now), EventType::SimulatorState, now, state);
    let value = whole.value.clone().unwrap_or_default();
    if value.len() <= MAX_VALUE_BYTES {
        return vec![whole];
    }
    let of = |key: &str, value: Bytes| {
        let envelope = envelope(key, state_id(key, now), EventType::SimulatorState, now);
        ProducerRecord { partition: Some(partition), ..ProducerRecord::enveloped(topic, key, &envelope, Some(value)) }
    };
    let starts = (0..value.len()).step_by(PIECE_BYTES);
    let pieces = starts.map(|start| value.slice(start..value.len().min(start + PIECE_BYTES)));
    let mut records: Vec<_> = pieces.zip(1..).map(|(piece, number)| of(&piece_key(number), piece)).collect();
    let head = StatePieces { pieces: u32::try_from(records.len()).expect("fewer than 2^32 pieces"), bytes: value.len() };
    let mut named = vec![IN_PIECES];
    serde_json::to_writer(&mut named, &head).expect("numbers have no failing serialiser");
    records.push(of(STATE_KEY, named.into()));
    records
}

fn state_id(key: &str, now: EventTime) -> String {
    format!("{key}/{}", now.micros())
}

fn piece_key(number: u32) -> String {
    format!("{STATE_KEY}/{number}")
}

/// The reason why there is no state.
#[derive(Debug, PartialEq, Eq)]
pub enum StateReadError {
    Damaged(String),
    /// Its first byte names a form that this release does not know.
    Newer(u8),
}

/// Puts the newest state together from the newest value of each key. `None` if there is none.
pub fn whole_state(values: &BTreeMap<Bytes, Bytes>) -> Result<Option<Bytes>, StateReadError> {
    let Some(head) = values.get(STATE_KEY.as_bytes()) else { return Ok(None) };
    match head.first() {
        Some(&WHOLE) => Ok(Some(head.clone())),
        Some(&IN_PIECES) => {
            let named: StatePieces =
                serde_json::from_slice(&head[1..]).map_err(|error| StateReadError::Damaged(error.to_string()))?;
            let mut whole = Vec::new();
            for number in 1..=named.pieces {
                let piece = values.get(piece_key(number).as_bytes());
                whole.extend(
                    piece.ok_or_else(|| StateReadError::Damaged(format!("piece {number} of {} is missing", named.pieces)))?,
                );
            }
            if whole.len() != named.bytes {
                return Err(StateReadError::Damaged(format!("its pieces have {} bytes instead of {}", whole.len(), named.bytes)));
            }
            Ok(Some(whole.into()))
        }
        Some(form) => Err(StateReadError::Newer(*form)),
        None => Err(StateReadError::Damaged("it is empty".to_owned())),
    }
}

fn envelope(key: &str, id: String, kind: EventType, time: EventTime) -> Envelope {
    Envelope { id, source: SOURCE.into(), kind, time, subject: key.to_owned() }
}

fn record(topic: &Arc<str>, key: &str, id: String, kind: EventType, time: EventTime, value: &impl Serialize) -> ProducerRecord {
    ProducerRecord::event(topic, key, &envelope(key, id, kind, time), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(records: Vec<ProducerRecord>) -> BTreeMap<Bytes, Bytes> {
        records.into_iter().map(|record| (record.key.unwrap(), record.value.unwrap())).collect()
    }

    #[test]
    fn a_state_of_any_size_is_read_as_it_was_written() {
        let (topic, now) = ("t".into(), EventTime::from_micros(7));
        for (bytes, records) in [(10, 1), (MAX_VALUE_BYTES - 100, 1), (MAX_VALUE_BYTES + 1, 4), (5 * PIECE_BYTES, 7)] {
            let written = serde_json::json!({"text": "x".repeat(bytes)});
            let sent = state(&topic, 3, now, &written);
            assert_eq!(sent.len(), records, "{bytes}");
            assert!(sent.iter().all(|record| record.size() <= MAX_VALUE_BYTES + 400), "{bytes}");
            assert!(records == 1 || sent.iter().all(|record| record.partition == Some(3)), "{bytes}");
            let whole = whole_state(&values(sent)).unwrap().unwrap();
            assert!(serde_json::from_slice::<serde_json::Value>(&whole).unwrap() == written, "{bytes}");
        }
        assert_eq!(whole_state(&BTreeMap::new()), Ok(None));
    }

    #[test]
    fn a_smaller_state_after_a_larger_one_is_the_newest() {
        let (topic, now) = ("t".into(), EventTime::from_micros(7));
        let mut all = BTreeMap::new();
        for pieces in [9, 4, 1] {
            let written = serde_json::json!({"text": pieces.to_string().repeat(pieces * PIECE_BYTES)});
            all.extend(values(state(&topic, 0, now, &written)));
            let whole = whole_state(&all).unwrap().unwrap();
            assert!(serde_json::from_slice::<serde_json::Value>(&whole).unwrap() == written, "{pieces}");
        }
    }

    #[test]
    fn a_piece_that_is_missing_or_cut_off_is_named() {
        let written = serde_json::json!({"text": "x".repeat(3 * PIECE_BYTES)});
        let sent = values(state(&"t".into(), 0, EventTime::from_micros(7), &written));
        let mut lost = sent.clone();
        lost.remove(piece_key(2).as_bytes());
        assert_eq!(whole_state(&lost), Err(StateReadError::Damaged("piece 2 of 4 is missing".to_owned())));
        let mut cut = sent;
        cut.insert(piece_key(1).into(), Bytes::from_static(b"{"));
        assert!(matches!(whole_state(&cut), Err(StateReadError::Damaged(why)) if why.starts_with("its pieces have")));
    }
}
