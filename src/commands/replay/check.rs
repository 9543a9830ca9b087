//! The outputs of a replay beside the record's own.

use std::collections::BTreeMap;

use eadt_schemas::decode::Refusal;
use eadt_schemas::v1::{Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, Topic};

/// How the outputs compare with the record's own.
#[derive(Debug, Default, serde::Serialize)]
pub struct Checked {
    pub windows_same: u64,
    pub decisions_same: u64,
    /// Workloads that had late events or tables, for which equality is not promised.
    pub excused: Vec<String>,
    pub differences: Vec<String>,
}

/// Windows and decisions, the record's own or the replay's.
#[derive(Debug, Default)]
pub struct Own {
    pub windows: Vec<EfficiencyWindow>,
    pub decisions: Vec<Decision>,
}

impl Own {
    /// Takes what one of the record's events says, where it is an output.
    pub fn read(&mut self, topic: Option<Topic>, value: Option<&[u8]>) -> Result<(), Refusal> {
        match (topic, value) {
            (Some(Topic::EfficiencyWindows), Some(value)) => self.windows.push(eadt_schemas::decode(value)?),
            (Some(Topic::Decisions), Some(value)) => self.decisions.push(eadt_schemas::decode(value)?),
            _ => {}
        }
        Ok(())
    }

    pub fn append(&mut self, other: &mut Self) {
        self.windows.append(&mut other.windows);
        self.decisions.append(&mut other.decisions);
    }
}

/// The same sequence of ids and values for each key, up to the first window with late events, for which order is not promised.
///
/// Where the record ends its last windows were still open, so the replay may go on where the record has no more; but a record
/// that has windows of a workload has the decisions of these windows, too, and one that has none of a workload lacks them.
pub fn compare(own: &Own, produced: &Own) -> Checked {
    let mut checked = Checked::default();
    let windows = (groups(&own.windows, window_key), groups(&produced.windows, window_key));
    let decisions = (groups(&own.decisions, decision_key), groups(&produced.decisions, decision_key));
    for (key, mine) in &windows.1 {
        let recorded = windows.0.get(key).map_or(&[][..], Vec::as_slice);
        let disturbed = recorded.iter().position(|w| w.late > 0 || w.late_tables > 0);
        if let Some(first) = disturbed {
            checked.excused.push(format!("{key} from {} on", recorded[first].window_start));
        }
        let sure = &recorded[..disturbed.unwrap_or(recorded.len())];
        checked.windows_same += same("window", key, sure, mine, |w| &w.id, &mut checked.differences);
        if recorded.is_empty() {
            checked.differences.push(format!("the record has no windows of {key}, the replay {}", mine.len()));
        }
        let mine = decisions.1.get(key).map_or(&[][..], Vec::as_slice);
        let recorded = decisions.0.get(key).map_or(&[][..], Vec::as_slice);
        let end = sure.iter().map(|w| w.window_end).max().unwrap_or(EventTime::MIN);
        let due = mine.partition_point(|d| d.time <= end);
        let sure = &recorded[..recorded.partition_point(|d| d.time <= end)];
        checked.decisions_same += same("decision", key, sure, mine, |d| &d.id, &mut checked.differences);
        if sure.len() < due {
            let at = mine[sure.len()].time;
            checked.differences.push(format!("the record lacks {} decision(s) of {key}, the first at {at}", due - sure.len()));
        }
    }
    for (key, recorded) in &windows.0 {
        if !windows.1.contains_key(key) {
            checked.differences.push(format!("the replay has no windows of {key}, the record {}", recorded.len()));
        }
    }
    if checked.windows_same == 0 && checked.differences.is_empty() {
        let why = if own.windows.is_empty() { "the record holds no windows" } else { "every window had late events" };
        checked.differences.push(format!("nothing could be compared: {why}"));
    }
    checked
}

/// The workload; of a device without one, its name, because all of them stand under `gpus`.
fn window_key(window: &EfficiencyWindow) -> &str {
    match window.id.find("/tumbling/") {
        Some(end) if !window.workload.contains('/') => &window.id[..end],
        _ => &window.workload,
    }
}

fn decision_key(decision: &Decision) -> &str {
    &decision.workload
}

fn groups<T>(events: &[T], key: impl Fn(&T) -> &str) -> BTreeMap<&str, Vec<&T>> {
    let mut map: BTreeMap<&str, Vec<&T>> = BTreeMap::new();
    for event in events {
        map.entry(key(event)).or_default().push(event);
    }
    map
}

fn same<T: PartialEq + serde::Serialize>(
    what: &str,
    workload: &str,
    recorded: &[&T],
    mine: &[&T],
    id: impl Fn(&T) -> &String,
    differences: &mut Vec<String>,
) -> u64 {
    let bytes = |event: &T| serde_json::to_string(event).unwrap_or_default();
    let mut count = 0;
    for (index, record) in recorded.iter().enumerate() {
        match mine.get(index) {
            Some(event) if bytes(event) == bytes(record) => count += 1,
            Some(event) => {
                differences.push(format!(
                    "{what} {index} of {workload}:\n  record {} {}\n  replay {} {}",
                    id(record),
                    bytes(record),
                    id(event),
                    bytes(event)
                ));
                return count;
            }
            None => {
                differences.push(format!("{what} {index} of {workload} ({}) is missing from the replay", id(record)));
                return count;
            }
        }
    }
    count
}
