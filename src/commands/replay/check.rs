//! The outputs of a replay beside the record's own.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The controllers that decided the record, where the replay decided by another.
    pub decided_by: Option<String>,
    /// Why no window could be compared: nothing is checked then.
    pub not_compared: Option<String>,
}

impl Checked {
    /// What is wrong, in one sentence.
    pub fn failure(&self) -> Option<String> {
        if let Some(why) = &self.not_compared {
            return Some(format!("nothing could be compared: {why}"));
        }
        let count = self.differences.len();
        let why = self.decided_by.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        (count > 0).then(|| format!("the replay differs from the record in {count} place(s){why}"))
    }
}

/// Windows and decisions, the record's own or the replay's.
#[derive(Debug, Default)]
pub struct Own {
    pub windows: Vec<EfficiencyWindow>,
    pub decisions: Vec<Decision>,
    /// Events of types that are not known here and that no input takes, by type.
    pub passed_over: BTreeMap<String, u64>,
}

/// Types that are told apart in [`Own::passed_over`]; a log of nothing but nonsense must not fill the memory.
const MOST_TYPES: usize = 100;
const MORE_TYPES: &str = "(other types)";

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

    /// Counts an event of an unknown type.
    pub fn pass_over(&mut self, kind: &str) {
        let kind: String = kind.chars().take(100).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        self.count(kind, 1);
    }

    fn count(&mut self, kind: String, events: u64) {
        let known = self.passed_over.contains_key(&kind) || self.passed_over.len() < MOST_TYPES;
        *self.passed_over.entry(if known { kind } else { MORE_TYPES.to_owned() }).or_default() += events;
    }

    pub fn append(&mut self, other: &mut Self) {
        self.windows.append(&mut other.windows);
        self.decisions.append(&mut other.decisions);
        for (kind, events) in std::mem::take(&mut other.passed_over) {
            self.count(kind, events);
        }
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
    checked.decided_by = decided_by(&decisions.0, &decisions.1);
    checked.not_compared = match () {
        () if own.windows.is_empty() => Some("the record holds no windows".to_owned()),
        () if checked.windows_same == 0 && checked.differences.is_empty() => {
            Some("every window of the record had late events or tables, or came after one that had".to_owned())
        }
        () => None,
    };
    checked
}

/// What to do where the record was decided by other controllers than the replay. Only workloads that have decisions in both count.
fn decided_by(recorded: &BTreeMap<&str, Vec<&Decision>>, mine: &BTreeMap<&str, Vec<&Decision>>) -> Option<String> {
    let names = |decisions: &[&Decision]| -> BTreeSet<String> { decisions.iter().map(|d| d.controller.clone()).collect() };
    let words = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
    let both = recorded.iter().filter_map(|(key, recorded)| Some((names(recorded), names(mine.get(key)?))));
    let other = both.filter(|(recorded, mine)| recorded != mine);
    let (recorded, mine) = other.reduce(|(a, b), (c, d)| (&a | &c, &b | &d))?;
    let remedy = match recorded.iter().collect::<Vec<_>>()[..] {
        [one] => format!("replay it with --controller {one}"),
        _ => "no replay decides by several, so that only the windows can be compared".to_owned(),
    };
    Some(format!("the record was decided by {}, the replay by {}: {remedy}", words(&recorded), words(&mine)))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn window(minute: i64, late: u64) -> EfficiencyWindow {
        let start = EventTime::from_micros(minute * 60_000_000);
        EfficiencyWindow {
            id: format!("lab/job/tumbling/{start}"),
            workload: "lab/job".to_owned(),
            window_start: start,
            window_end: start.plus_micros(60_000_000),
            late,
            ..EfficiencyWindow::default()
        }
    }

    fn own(windows: Vec<EfficiencyWindow>) -> Own {
        Own { windows, ..Own::default() }
    }

    #[test]
    fn nothing_compared_is_no_success() {
        let checked = compare(&Own::default(), &Own::default());
        assert_eq!((checked.windows_same, checked.not_compared.as_deref()), (0, Some("the record holds no windows")));
        assert_eq!(checked.failure().as_deref(), Some("nothing could be compared: the record holds no windows"));
        let checked = compare(&Own::default(), &own(vec![window(0, 0)]));
        assert!(checked.failure().unwrap().starts_with("nothing could be compared"));
        let late = own(vec![window(0, 3)]);
        assert!(compare(&late, &own(vec![window(0, 3)])).failure().unwrap().contains("had late events"));
    }

    #[test]
    fn the_same_is_a_success_and_another_value_is_not() {
        let checked = compare(&own(vec![window(0, 0), window(1, 0)]), &own(vec![window(0, 0), window(1, 0), window(2, 0)]));
        assert_eq!((checked.windows_same, checked.failure()), (2, None));
        let other = EfficiencyWindow { samples: Some(1.0), ..window(0, 0) };
        let checked = compare(&own(vec![window(0, 0)]), &own(vec![other]));
        assert_eq!((checked.windows_same, checked.not_compared.as_deref()), (0, None));
        assert_eq!(checked.failure().as_deref(), Some("the replay differs from the record in 1 place(s)"));
    }

    #[test]
    fn a_record_of_another_controller_is_told() {
        let decisions = |names: &[&str]| -> Vec<Decision> {
            let of =
                |name: &&str| Decision { workload: "lab/job".to_owned(), controller: (*name).to_owned(), ..Decision::default() };
            names.iter().map(of).collect()
        };
        let told = |recorded: &[&str]| {
            let (recorded, mine) = (decisions(recorded), decisions(&["hybrid"]));
            decided_by(&groups(&recorded, decision_key), &groups(&mine, decision_key))
        };
        assert_eq!(told(&["hybrid", "hybrid"]), None);
        assert!(told(&["matrix"]).unwrap().contains("--controller matrix"));
        assert!(told(&["matrix", "hybrid"]).unwrap().contains("hybrid and matrix"));
        let other = Own { decisions: decisions(&["matrix"]), ..own(vec![window(0, 0)]) };
        let checked = compare(&other, &Own { decisions: decisions(&["hybrid"]), ..own(vec![window(0, 0)]) });
        assert!(checked.failure().is_some_and(|why| why.contains("--controller matrix")), "{checked:?}");
    }

    #[test]
    fn unknown_types_are_counted_and_not_hoarded() {
        let mut own = Own::default();
        for number in 0..1000 {
            own.pass_over(&format!("com.example.{number}\n"));
        }
        own.pass_over("com.example.0\n");
        assert_eq!(own.passed_over.len(), MOST_TYPES + 1);
        assert_eq!(own.passed_over.values().sum::<u64>(), 1001);
        assert_eq!(own.passed_over["com.example.0\u{fffd}"], 2);
    }
}
