//! Offsets of a partition's inputs.

use std::collections::BTreeMap;
use std::fmt::Write;

use eadt_schemas::Topic;

use crate::restore::InputOffsets;

/// The inputs, in the order of ties.
pub const INPUTS: [Topic; 5] = Topic::PROCESSOR_INPUTS;

/// The offset of the first record that is not folded, for each of a partition's [`INPUTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOffsets {
    pub partition: i32,
    pub offsets: [i64; INPUTS.len()],
}

impl PartitionOffsets {
    pub fn start(partition: i32) -> Self {
        Self { partition, offsets: [0; INPUTS.len()] }
    }

    /// Advances an input past a folded record.
    pub fn advance(&mut self, topic: Topic, offset: i64) {
        if let Some(input) = INPUTS.iter().position(|input| *input == topic) {
            self.offsets[input] = offset + 1;
        }
    }

    /// Returns the header [`eadt_schemas::envelope::header::INPUT_POSITIONS`].
    pub fn to_json(&self) -> String {
        let mut text = format!("{{\"partition\":{}", self.partition);
        for (topic, offset) in INPUTS.iter().zip(self.offsets) {
            write!(text, ",\"{topic}\":{offset}").expect("writing to a String cannot fail");
        }
        text.push('}');
        text
    }

    /// Parses positions; returns `None` if it is not such a header, or one of a version with other inputs.
    pub fn from_json(text: &str) -> Option<Self> {
        let offsets: BTreeMap<&str, i64> = serde_json::from_str(text).ok()?;
        let mut this = Self::start(i32::try_from(*offsets.get("partition")?).ok()?);
        for (topic, offset) in INPUTS.iter().zip(&mut this.offsets) {
            *offset = *offsets.get(topic.base_name())?;
        }
        Some(this)
    }
}

impl InputOffsets for PartitionOffsets {
    fn offset(&self, topic: Topic, partition: i32) -> Option<i64> {
        let input = INPUTS.iter().position(|input| *input == topic)?;
        (partition == self.partition).then(|| self.offsets[input])
    }

    fn is_beyond(&self, other: &Self) -> bool {
        self.offsets.iter().zip(other.offsets).any(|(offset, other)| *offset > other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_anything_else_refused() {
        let mut positions = PartitionOffsets::start(3);
        positions.advance(Topic::GpuTelemetry, 41);
        positions.advance(Topic::Workloads, 0);
        // No input.
        positions.advance(Topic::Decisions, 9);
        let text = positions.to_json();
        assert_eq!(PartitionOffsets::from_json(&text), Some(positions), "{text}");
        assert!(text.contains("\"gpu.telemetry.v1\":42"), "{text}");
        for other in ["", "{}", "7", "{\"partition\":0}", "{\"partition\":\"0\"}"] {
            assert_eq!(PartitionOffsets::from_json(other), None, "{other}");
        }
    }

    #[test]
    fn each_input_has_its_own_position_and_other_partitions_have_none() {
        let mut positions = PartitionOffsets::start(3);
        for (n, topic) in INPUTS.into_iter().enumerate() {
            positions.advance(topic, 10 * (1 + n as i64));
        }
        assert_eq!(INPUTS.map(|topic| positions.offset(topic, 3)), [11, 21, 31, 41, 51].map(Some));
        assert_eq!(INPUTS.map(|topic| positions.offset(topic, 2)), [None; 5]);
        assert_eq!(positions.offset(Topic::Decisions, 3), None, "no input");
    }

    #[test]
    fn whoever_has_come_further_in_any_input_is_beyond() {
        let mut state = PartitionOffsets::start(0);
        for topic in INPUTS {
            state.advance(topic, 8);
        }
        assert!(!state.is_beyond(&state));
        for topic in INPUTS {
            let (mut further, mut before) = (state, state);
            further.advance(topic, 9);
            before.advance(topic, 7);
            assert!(further.is_beyond(&state) && !state.is_beyond(&further), "{topic}");
            assert!(!before.is_beyond(&state) && state.is_beyond(&before), "{topic}");
            let other = if topic == INPUTS[0] { INPUTS[1] } else { INPUTS[0] };
            further.advance(other, 3);
            assert!(further.is_beyond(&state), "{topic}: although behind in {other}");
        }
    }
}
