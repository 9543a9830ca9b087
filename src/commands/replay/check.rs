//! The outputs of a replay beside the record's own.

use std::collections::{BTreeMap, BTreeSet};

use eadt_core::joint::LATE_SECONDS;
use eadt_core::partition::device_name;
use eadt_lake::count_type;
use eadt_processor::{INPUTS, JOINT_STAGES, PartitionOffsets, ProcessorSettings};
use eadt_schemas::counts::counted;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{DeadLetterReason, Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, Topic};
use serde_json::Value;

use super::claims::BoardClaims;
use super::ranks::ImportedTotals;

/// Comparison of the outputs with the record's own.
#[derive(Debug, Default, serde::Serialize)]
pub struct ComparisonReport {
    pub windows_same: u64,
    pub decisions_same: u64,
    /// Number of equal windows that count another number of repeated events. Such an event may be taken before or after a window
    /// is closed, as the inputs came to their ends. It adds nothing in either case: only this number differs.
    pub other_duplicates: u64,
    /// Workloads that are not compared from a time on, with the reason: their events did not come in the order of their times.
    pub excused: Vec<String>,
    pub differences: Vec<String>,
    /// Windows of the replay behind the record's last one, which may have ended before: they are not compared.
    pub windows_beyond_record: u64,
    /// Decisions of the record behind its last window of their workload: nothing could be compared with them.
    pub decisions_beyond_windows: u64,
    /// Offsets of the record whose files were removed from its archive: without them nothing is proved.
    #[serde(skip)]
    pub removed_offsets: u64,
    /// The controllers that decided the record, if the replay decided by another.
    pub decided_by: Option<String>,
    /// The reason why no window could be compared: nothing is checked then.
    pub not_compared: Option<String>,
}

impl ComparisonReport {
    /// Returns the fault in one sentence; `None` if the outputs agree.
    pub fn failure(&self) -> Option<String> {
        if let Some(why) = &self.not_compared {
            return Some(format!("nothing could be compared: {why}"));
        }
        let (count, removed) = (self.differences.len(), self.removed_offsets);
        let why = self.decided_by.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        let differs = (count > 0).then(|| format!("the replay differs from the record in {}{why}", counted(count, "place")));
        let lacks = (removed > 0)
            .then(|| format!("the record lacks {}, whose file was removed from the archive", counted(removed, "offset")));
        let faults: Vec<String> = differs.into_iter().chain(lacks).collect();
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    /// Returns an error if decisions of the record were compared with nothing, though all others agree.
    pub fn check_uncompared(&self) -> Result<(), UncomparedDecisions> {
        match self.decisions_beyond_windows {
            0 => Ok(()),
            count => Err(UncomparedDecisions(counted(count, "decision"))),
        }
    }
}

/// Decisions of a record without the windows that they were made by.
#[derive(Debug, thiserror::Error)]
#[error(
    "the record has {0} behind the last window of their workload, and they were compared with nothing: put removed files of \
     windows back from a copy, or check again once the archiver has written the next ones"
)]
pub struct UncomparedDecisions(String);

impl ComparisonReport {
    /// Takes the differences that were found from a time on. `disturbed`: the end of the first window that may differ, and why.
    fn add_differences(
        &mut self,
        disturbed: Option<(EventTime, &str)>,
        from: Option<EventTime>,
        what: &str,
        mut found: Vec<String>,
    ) {
        match (disturbed, from) {
            (Some((end, why)), Some(from)) if from >= end => self.excused.push(format!("{what} from {from} on: {why}")),
            _ => self.differences.append(&mut found),
        }
    }

    /// Takes the windows of a workload that the replay closed behind the record's last one. They differ if the record had windows
    /// there, and otherwise the record may just have ended.
    fn add_windows_beyond(
        &mut self,
        ends: &RecordEnds<'_>,
        disturbed: Option<(EventTime, &str)>,
        key: &str,
        beyond: &[&WindowOutput],
    ) {
        let lacking: Vec<&WindowOutput> = beyond.iter().copied().filter(|window| ends.had_windows_behind(window)).collect();
        self.windows_beyond_record += (beyond.len() - lacking.len()) as u64;
        if let Some(first) = lacking.first() {
            let what = format!("{} of {key}", counted(lacking.len(), "window"));
            let found = format!("the record lacks {what} that the replay closed, the first {}", first.event.id);
            let end = first.event.window_end;
            let disturbed = disturbed.or_else(|| ends.own.has_late(key, end).then_some((end, CAME_LATE)));
            self.add_differences(disturbed, Some(end), &what, vec![found]);
        }
    }
}

/// A window, and the positions of the inputs when it closed, if they are known.
#[derive(Debug)]
pub struct WindowOutput {
    pub event: EfficiencyWindow,
    pub positions: Option<PartitionOffsets>,
    /// [`settings_hash`] of the settings that its header names.
    pub settings: Option<u64>,
}

/// Headers of an output that a check reads.
#[derive(Debug, Default, Clone, Copy)]
pub struct OutputHeaders<'a> {
    pub positions: Option<&'a str>,
    pub reason: Option<&'a str>,
    pub settings: Option<&'a str>,
}

/// Returns a hash that represents the settings of a processor, which are long and mostly the same.
pub fn settings_hash(settings: &str) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(ProcessorSettings::with_present_names(settings).as_bytes());
    hasher.finish()
}

/// Windows and decisions, the record's own or the replay's.
#[derive(Debug, Default)]
pub struct ProcessorOutputs {
    pub windows: Vec<WindowOutput>,
    pub decisions: Vec<Decision>,
    /// Least time of each workload's events that came too late for their windows.
    late: BTreeMap<String, EventTime>,
    tables: TableOffsets,
    /// [`settings_hash`] of the settings that the replay goes by.
    pub settings: Option<u64>,
    /// Events of types that are not known here and that no input takes, by type.
    pub passed_over: BTreeMap<String, u64>,
    /// Topics and partitions of which the archive had offsets that no file has now.
    pub holes: BTreeSet<(Topic, i32)>,
    pub left_out: LeftOut,
    /// Totals of imports, if they are compared.
    pub imported_totals: ImportedTotals,
    /// Board claims of logs without stamps.
    pub board_claims: BoardClaims,
}

/// Content of the logs that could not be read.
#[derive(Debug, Default, serde::Serialize)]
pub struct LeftOut {
    /// Lines that are no events.
    pub damaged_lines: u64,
    /// The first of them, with its error.
    pub first_damage: Option<String>,
    /// Logs that end in the middle of an event, and where.
    pub cut: Vec<String>,
    /// Offsets that an archive had and no file has now: of inputs, and of outputs if they are compared.
    pub removed_offsets: u64,
    /// Partitions of an archive without a record of the archived range: it is unknown whether their first or last file is
    /// missing.
    pub unrecorded_partitions: u64,
}

impl LeftOut {
    fn append(&mut self, other: &mut Self) {
        self.damaged_lines += other.damaged_lines;
        let first = other.first_damage.take();
        self.first_damage = self.first_damage.take().or(first);
        self.cut.append(&mut other.cut);
        self.removed_offsets += other.removed_offsets;
        self.unrecorded_partitions += other.unrecorded_partitions;
    }
}

/// Positions of the records that set what is in force for a workload: by workload and input, the partition and offset of each.
#[derive(Debug, Default)]
struct TableOffsets(BTreeMap<(String, usize), Vec<(i32, i64)>>);

impl TableOffsets {
    /// Topics whose events are in force until the next one.
    const TOPICS: [Topic; 3] = [Topic::Workloads, Topic::Actuations, Topic::Models];
    /// Models are of all workloads.
    const EVERYBODY: &str = "";

    fn add(&mut self, topic: Topic, key: &[u8], partition: i32, offset: i64) {
        if let Some(input) = INPUTS.iter().position(|input| *input == topic).filter(|_| Self::TOPICS.contains(&topic)) {
            let key = if topic == Topic::Models { Self::EVERYBODY.into() } else { String::from_utf8_lossy(key) };
            self.0.entry((key.into_owned(), input)).or_default().push((partition, offset));
        }
    }

    fn append(&mut self, other: &mut Self) {
        for (key, mut places) in std::mem::take(&mut other.0) {
            self.0.entry(key).or_default().append(&mut places);
        }
    }

    fn sort(&mut self) {
        self.0.values_mut().for_each(|places| places.sort_unstable());
    }

    /// Returns whether one of two folds at these positions had taken a table of the workload that the other had not.
    fn differ(&self, workload: &str, one: &PartitionOffsets, other: &PartitionOffsets) -> bool {
        [workload, Self::EVERYBODY].iter().any(|key| {
            (0..INPUTS.len()).any(|input| {
                let Some(places) = self.0.get(&((*key).to_owned(), input)) else { return false };
                let before = |at: &PartitionOffsets| places.partition_point(|place| *place < (at.partition, at.offsets[input]));
                before(one) != before(other)
            })
        })
    }
}

impl ProcessorOutputs {
    /// Topics that [`Self::read`] reads.
    pub const TOPICS: [Topic; 3] = [Topic::EfficiencyWindows, Topic::Decisions, Topic::DeadLetters];

    /// Takes one of the record's events, if it is an output.
    pub fn read(&mut self, topic: Option<Topic>, value: Option<&[u8]>, headers: OutputHeaders<'_>) -> Result<(), DecodeError> {
        let reason = headers.reason;
        match (topic, value) {
            (Some(Topic::EfficiencyWindows), Some(value)) => {
                let positions = headers.positions.and_then(PartitionOffsets::from_json);
                let settings = headers.settings.map(settings_hash);
                self.windows.push(WindowOutput { event: eadt_schemas::decode(value)?, positions, settings });
            }
            (Some(Topic::Decisions), Some(value)) => self.decisions.push(eadt_schemas::decode(value)?),
            (Some(Topic::DeadLetters), Some(value)) if reason == Some(DeadLetterReason::Late.name()) => self.came_late(value),
            _ => {}
        }
        Ok(())
    }

    /// Returns whether [`Self::pass`] notes events of this topic.
    pub fn is_table(topic: Topic) -> bool {
        TableOffsets::TOPICS.contains(&topic)
    }

    /// Takes note of an input.
    pub fn pass(&mut self, topic: Topic, key: &[u8], partition: Option<i32>, offset: Option<i64>) {
        if let Some(offset) = offset {
            self.tables.add(topic, key, partition.unwrap_or(0), offset);
        }
    }

    /// Returns whether a partition's inputs lack offsets that they had: positions in it mean nothing to a replay.
    fn is_behind_hole(&self, partition: i32) -> bool {
        let is_read = |(topic, of): &(Topic, i32)| *of == partition || *topic == Topic::Models;
        self.holes.iter().any(|hole| INPUTS.contains(&hole.0) && is_read(hole))
    }

    /// Drops the positions of the windows. Without them nothing is reported to have come in another order.
    pub fn forget_positions(&mut self) {
        self.windows.iter_mut().for_each(|window| window.positions = None);
    }

    /// Returns whether events of a workload before this time were refused because they came late.
    fn has_late(&self, key: &str, before: EventTime) -> bool {
        self.late.get(key).is_some_and(|late| *late < before)
    }

    fn came_late(&mut self, value: &[u8]) {
        /// Fields of a telemetry or progress event.
        #[derive(serde::Deserialize)]
        struct LateEvent {
            time: EventTime,
            workload: Option<String>,
            device: Option<String>,
        }
        let Ok(event) = serde_json::from_slice::<LateEvent>(value) else { return };
        if let Some(name) = event.workload.or_else(|| event.device.as_deref().map(device_name)) {
            let least = self.late.entry(name).or_insert(event.time);
            *least = event.time.min(*least);
        }
    }

    /// Counts an event of an unknown type.
    pub fn pass_over(&mut self, kind: &str) {
        count_type(&mut self.passed_over, kind, 1);
    }

    pub fn append(&mut self, other: &mut Self) {
        self.windows.append(&mut other.windows);
        self.decisions.append(&mut other.decisions);
        self.tables.append(&mut other.tables);
        self.holes.append(&mut other.holes);
        self.left_out.append(&mut other.left_out);
        self.imported_totals.append(&mut other.imported_totals);
        self.board_claims.append(&mut other.board_claims);
        for (name, time) in std::mem::take(&mut other.late) {
            let least = self.late.entry(name).or_insert(time);
            *least = time.min(*least);
        }
        for (kind, events) in std::mem::take(&mut other.passed_over) {
            count_type(&mut self.passed_over, &kind, events);
        }
    }
}

/// The same sequence of ids and values for each key. A difference is excused from the first window on that the live fold may have
/// made of other events than the replay, because they did not come in the order of their times.
///
/// Where the record ends its last windows were still open, so the replay may go on if the record has no more; but a record that
/// has windows of a workload has the decisions of these windows, too, and one that has none of a workload lacks them.
pub fn compare(own: &mut ProcessorOutputs, produced: &ProcessorOutputs) -> ComparisonReport {
    own.tables.sort();
    let own = &*own;
    let mut checked = ComparisonReport { removed_offsets: own.left_out.removed_offsets, ..ComparisonReport::default() };
    let windows = (groups(&own.windows, window_key), groups(&produced.windows, window_key));
    let decisions = (groups(&own.decisions, decision_key), groups(&produced.decisions, decision_key));
    // Once something came in another order, differences no longer count; equal windows still do.
    let disturbed: BTreeMap<&str, (EventTime, &'static str)> = windows
        .1
        .iter()
        .filter_map(|(key, mine)| {
            let first = windows.0.get(key)?.iter().enumerate().find_map(|(index, window)| {
                Some((window.event.window_end, disturbance(own, key, window, mine.get(index).copied())?))
            });
            Some((*key, first?))
        })
        .collect();
    let ends = RecordEnds::of(own);
    let stages = JOINT_STAGES.map(|stage| RecordedStage::of(stage.controller, &decisions.0, &disturbed));
    let together = |decision: &Decision| stages.iter().any(|stage| stage.controller == decision.controller);
    let mut together_same = 0;
    for (key, mine) in &windows.1 {
        let recorded = windows.0.get(key).map_or(&[][..], Vec::as_slice);
        let disturbed = disturbed.get(key).copied();
        let json = |window: &WindowOutput| serde_json::to_string(&EfficiencyWindow { duplicates: 0, ..window.event.clone() });
        let mut found = Vec::new();
        let equal = compare_events("window", key, recorded, mine, |w| &w.event.id, json, &mut found);
        checked.windows_same += equal as u64;
        let pairs = recorded.iter().zip(mine).take(equal);
        checked.other_duplicates += pairs.filter(|(one, other)| one.event.duplicates != other.event.duplicates).count() as u64;
        let from = recorded.get(equal).map(|window| window.event.window_end);
        checked.add_differences(disturbed, from, &format!("{} of {key}", counted(recorded.len() - equal, "window")), found);
        let sure = &recorded[..equal];
        let is_whole = equal == recorded.len();
        if is_whole && equal > 0 {
            checked.add_windows_beyond(&ends, disturbed, key, &mine[equal..]);
        }
        if recorded.is_empty() {
            checked.differences.push(format!("the record has no windows of {key}, the replay {}", mine.len()));
        }
        let mine = decisions.1.get(key).map_or(&[][..], Vec::as_slice);
        let recorded = decisions.0.get(key).map_or(&[][..], Vec::as_slice);
        let end = sure.iter().map(|w| w.event.window_end).max().unwrap_or(EventTime::MIN);
        let due = mine.partition_point(|d| d.time <= end && stages.iter().all(|stage| stage.expects_decision(d)));
        let deciding = stages.iter().filter(|stage| mine.iter().chain(recorded).any(|d| d.controller == stage.controller));
        let disturbed = deciding.filter_map(|stage| stage.disturbed).chain(disturbed).min();
        let (sure, beyond) = recorded.split_at(recorded.partition_point(|d| d.time <= end));
        // A stage that decides about several workloads goes on behind the last window of each.
        checked.decisions_beyond_windows += beyond.iter().filter(|d| is_whole && !together(d)).count() as u64;
        let mut found = Vec::new();
        let equal = compare_events("decision", key, sure, mine, |d| &d.id, serde_json::to_string, &mut found);
        checked.decisions_same += equal as u64;
        together_same += sure[..equal].iter().filter(|decision| together(decision)).count();
        if sure.len() < due {
            let at = mine[sure.len()].time;
            found.push(format!("the record lacks {} of {key}, the first at {at}", counted(due - sure.len(), "decision")));
        }
        let first = sure.get(equal).or_else(|| mine.get(sure.len()).filter(|_| sure.len() < due));
        // If one is missing, the replay's decision gives the time from which they differ.
        let from = first.map(|decision| mine.get(equal).map_or(decision.time, |mine| mine.time.min(decision.time)));
        checked.add_differences(
            disturbed,
            from,
            &format!("{} of {key}", counted(sure.len().max(due) - equal, "decision")),
            found,
        );
    }
    for (key, recorded) in &windows.0 {
        if !windows.1.contains_key(key) {
            checked.differences.push(format!("the replay has no windows of {key}, the record {}", recorded.len()));
        }
    }
    let any_together = decisions.0.values().flatten().any(|decision| together(decision));
    checked.decided_by = decided_by(&decisions.0, &decisions.1);
    checked.not_compared = match () {
        () if own.windows.is_empty() => Some("the record holds no windows".to_owned()),
        () if checked.windows_same == 0 && checked.differences.is_empty() => {
            Some("every window of the record had late events or tables, or came after one that had".to_owned())
        }
        () if any_together && together_same == 0 && checked.differences.is_empty() => {
            Some("every decision about several workloads came after a window that had late events or tables".to_owned())
        }
        () => None,
    };
    checked
}

/// The ends of a record's windows, by partition.
struct RecordEnds<'a> {
    own: &'a ProcessorOutputs,
    /// Partitions of which a file of windows was removed.
    removed: BTreeSet<i32>,
    /// Positions of the inputs when the last window closed.
    last: BTreeMap<i32, PartitionOffsets>,
}

impl<'a> RecordEnds<'a> {
    fn of(own: &'a ProcessorOutputs) -> Self {
        let of_windows = own.holes.iter().filter(|(topic, _)| *topic == Topic::EfficiencyWindows);
        let positions = own.windows.iter().filter_map(|window| window.positions.as_ref());
        Self {
            own,
            removed: of_windows.map(|(_, partition)| *partition).collect(),
            last: positions.map(|at| (at.partition, *at)).collect(),
        }
    }

    /// Returns whether the record had windows of this one's partition after it: a file of them was removed, or one that closed
    /// when the inputs were further on is there.
    fn had_windows_behind(&self, window: &WindowOutput) -> bool {
        let Some(at) = &window.positions else { return false };
        let is_before =
            |last: &PartitionOffsets| at != last && at.offsets.iter().zip(last.offsets).all(|(offset, last)| *offset <= last);
        self.removed.contains(&at.partition) || self.last.get(&at.partition).is_some_and(is_before)
    }
}

/// The record of a stage that decides about several workloads together.
struct RecordedStage {
    /// Its controller.
    controller: &'static str,
    /// Time of its last look.
    last: Option<EventTime>,
    /// Time from which an evaluation may have had other inputs than the replay's, and the reason.
    disturbed: Option<(EventTime, &'static str)>,
}

impl RecordedStage {
    fn of(
        controller: &'static str,
        recorded: &BTreeMap<&str, Vec<&Decision>>,
        windows: &BTreeMap<&str, (EventTime, &'static str)>,
    ) -> Self {
        let own = || recorded.values().flatten().filter(|decision| decision.controller == controller);
        let late = own().filter_map(|decision| {
            let seconds = decision.evidence.get(LATE_SECONDS)?;
            Some((decision.time.plus_seconds(-seconds), "something came after the look at all workloads that it belonged to"))
        });
        let members = windows.iter().filter(|(key, _)| {
            recorded.get(*key).is_some_and(|decisions| decisions.iter().any(|decision| decision.controller == controller))
        });
        let last = own().map(|decision| decision.time).max();
        // The next look would have reported the events that came too late for the last one.
        let end = last.map(|last| (last, "the record ends with this look at all workloads"));
        Self { controller, last, disturbed: late.chain(members.map(|(_, disturbed)| *disturbed)).chain(end).min() }
    }

    /// Returns whether a window's decision is due. A window and the stage's decision about it are not one step: a record may end
    /// between the two.
    fn expects_decision(&self, decision: &Decision) -> bool {
        decision.controller != self.controller || self.last.is_some_and(|last| decision.time < last)
    }
}

/// The reason of windows whose events the live fold refused.
const CAME_LATE: &str = "events or tables came late";

/// Returns the reason why a window may differ from the replay's in its place.
fn disturbance(own: &ProcessorOutputs, key: &str, window: &WindowOutput, mine: Option<&WindowOutput>) -> Option<&'static str> {
    let event = &window.event;
    if event.late > 0 || event.late_tables > 0 || own.has_late(key, event.window_end) {
        return Some(CAME_LATE);
    }
    if window.settings.is_some_and(|settings| own.settings.is_some_and(|first| first != settings)) {
        return Some("it was made by other settings of the processor than the first of the record");
    }
    let (one, other) = (window.positions.as_ref()?, mine.filter(|mine| mine.event.id == event.id)?.positions.as_ref()?);
    if own.is_behind_hole(one.partition) {
        return None;
    }
    own.tables.differ(key, one, other).then_some("a change came in another order than its times")
}

/// Returns the remedy if other controllers made the record than the replay. Only workloads that have decisions in both count.
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

/// Returns the workload; of a device without one, its name, because all of them are under `gpus`.
fn window_key(window: &WindowOutput) -> &str {
    let window = &window.event;
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

/// Error text of an event that the record has more than once. Each is written in one step with the state.
const AGAIN: &str = "is in the record again: a second processor wrote to these topics, such as one of another consumer group";

fn compare_events<T>(
    what: &str,
    workload: &str,
    recorded: &[&T],
    mine: &[&T],
    id: impl Fn(&T) -> &String,
    json: impl Fn(&T) -> serde_json::Result<String>,
    differences: &mut Vec<String>,
) -> usize {
    let text = |event: &T| json(event).unwrap_or_default();
    for (index, record) in recorded.iter().enumerate() {
        let rest = &mine[index.min(mine.len())..];
        let place = rest.iter().position(|event| id(event) == id(record));
        let is_again = place.is_none() && recorded.iter().take(index).any(|earlier| id(earlier) == id(record));
        let difference = match (place, rest.first()) {
            _ if is_again => format!(" {AGAIN}"),
            (Some(0), Some(event)) => {
                let (record, event) = (text(record), text(event));
                if record == event {
                    continue;
                }
                format!(": {}", describe_difference(&record, &event))
            }
            (Some(count), Some(first)) => {
                format!(": the record lacks {} before it, the first {}", counted(count, what), id(first))
            }
            (None, Some(first)) => format!(" is missing from the replay, which has {} in its place", id(first)),
            (_, None) => " is missing from the replay".to_owned(),
        };
        differences.push(format!("{what} {} of {workload}{difference}", id(record)));
        return index;
    }
    recorded.len()
}

/// Characters of a value that are shown if it differs.
const VALUE_CHARS: usize = 200;

/// Returns the first field that differs between two events in JSON, with its value in each.
fn describe_difference(record: &str, replay: &str) -> String {
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let (record, replay) = (parse(record), parse(replay));
    let (field, one, other) = differing_field(String::new(), &record, &replay);
    let field = if field.is_empty() { "the event".to_owned() } else { field };
    let shown = |value: &Value| {
        let text = value.to_string();
        let cut: String = text.chars().take(VALUE_CHARS).collect();
        if cut.len() < text.len() { format!("{cut}…") } else { cut }
    };
    format!("{field} is {} in the record and {} in the replay", shown(one), shown(other))
}

/// Returns the path of the first field that differs, and both values. A field that one of them lacks is null there.
fn differing_field<'a>(path: String, one: &'a Value, other: &'a Value) -> (String, &'a Value, &'a Value) {
    if let (Value::Object(fields), Value::Object(others)) = (one, other) {
        for key in fields.keys().chain(others.keys()) {
            let (one, other) = (fields.get(key).unwrap_or(&Value::Null), others.get(key).unwrap_or(&Value::Null));
            if one != other {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                return differing_field(path, one, other);
            }
        }
    }
    (path, one, other)
}

#[cfg(test)]
mod tests {
    use eadt_core::power_budget::allocation;

    use super::*;

    fn window(minute: i64, late: u64) -> WindowOutput {
        let start = EventTime::from_micros(minute * 60_000_000);
        let event = EfficiencyWindow {
            id: format!("lab/job/tumbling/{start}"),
            workload: "lab/job".to_owned(),
            window_start: start,
            window_end: start.plus_micros(60_000_000),
            late,
            ..EfficiencyWindow::default()
        };
        WindowOutput { event, positions: None, settings: None }
    }

    fn own(windows: Vec<WindowOutput>) -> ProcessorOutputs {
        ProcessorOutputs { windows, ..ProcessorOutputs::default() }
    }

    #[test]
    fn nothing_compared_is_no_success() {
        let checked = compare(&mut ProcessorOutputs::default(), &ProcessorOutputs::default());
        assert_eq!((checked.windows_same, checked.not_compared.as_deref()), (0, Some("the record holds no windows")));
        assert_eq!(checked.failure().as_deref(), Some("nothing could be compared: the record holds no windows"));
        let checked = compare(&mut ProcessorOutputs::default(), &own(vec![window(0, 0)]));
        assert!(checked.failure().unwrap().starts_with("nothing could be compared"));
        let mut late = own(vec![window(0, 3)]);
        assert_eq!(compare(&mut late, &own(vec![window(0, 3)])).failure(), None, "the same all the same");
        assert!(compare(&mut late, &own(vec![window(0, 0)])).failure().unwrap().contains("had late events"));
    }

    #[test]
    fn the_place_of_an_event_that_came_again_is_no_difference_and_is_counted() {
        let with = |duplicates: [u64; 2]| {
            let mut windows = vec![window(0, 0), window(1, 0)];
            windows.iter_mut().zip(duplicates).for_each(|(window, duplicates)| window.event.duplicates = duplicates);
            own(windows)
        };
        let checked = compare(&mut with([0, 1]), &with([1, 0]));
        assert_eq!((checked.windows_same, checked.other_duplicates, checked.failure()), (2, 2, None));
        assert_eq!(compare(&mut with([0, 1]), &with([0, 1])).other_duplicates, 0);
        let mut other = with([1, 0]);
        other.windows[0].event.energy_joules = Some(1.0);
        assert!(compare(&mut with([0, 1]), &other).failure().is_some(), "any other field is");
    }

    #[test]
    fn from_the_first_window_by_other_settings_on_a_difference_is_excused() {
        let by = |minute, settings| WindowOutput { settings: Some(settings_hash(settings)), ..window(minute, 0) };
        let record = || ProcessorOutputs {
            settings: Some(settings_hash("first")),
            ..own(vec![by(0, "first"), by(1, "first"), by(2, "second")])
        };
        let replay = |changed: usize| {
            let mut windows: Vec<_> = (0..3).map(|minute| window(minute, 0)).collect();
            windows[changed].event.joules_per_sample = Some(1.0);
            own(windows)
        };
        let checked = compare(&mut record(), &replay(2));
        assert_eq!((checked.windows_same, checked.failure()), (2, None));
        assert!(checked.excused[0].ends_with("it was made by other settings of the processor than the first of the record"));
        assert!(compare(&mut record(), &replay(1)).failure().is_some(), "that one was made by the first");
    }

    #[test]
    fn the_same_is_a_success_and_another_value_is_not() {
        let checked = compare(&mut own(vec![window(0, 0), window(1, 0)]), &own(vec![window(0, 0), window(1, 0), window(2, 0)]));
        assert_eq!((checked.windows_same, checked.failure()), (2, None));
        let mut other = window(0, 0);
        other.event.samples = Some(1.0);
        let checked = compare(&mut own(vec![window(0, 0)]), &own(vec![other]));
        assert_eq!((checked.windows_same, checked.not_compared.as_deref()), (0, None));
        assert_eq!(checked.failure().as_deref(), Some("the replay differs from the record in 1 place"));
    }

    /// Returns a window that closed when so many tables had been taken.
    fn closed(minute: i64, tables: i64) -> WindowOutput {
        let mut positions = PartitionOffsets::start(0);
        positions.offsets[0] = tables;
        WindowOutput { positions: Some(positions), ..window(minute, 0) }
    }

    #[test]
    fn a_change_that_came_in_another_order_ends_the_comparison_of_its_workload_only() {
        let mut recorded = own(vec![closed(0, 1), closed(1, 1), closed(2, 3)]);
        recorded.pass(Topic::Workloads, b"lab/job", None, Some(0));
        recorded.pass(Topic::Workloads, b"lab/other", Some(0), Some(1));
        recorded.pass(Topic::Workloads, b"lab/job", Some(0), Some(2));
        recorded.pass(Topic::GpuTelemetry, b"lab/job", Some(0), Some(2));
        // Only the other workload's change is between.
        let checked = compare(&mut recorded, &own(vec![closed(0, 1), closed(1, 2), closed(2, 3)]));
        assert_eq!((checked.windows_same, checked.excused.len(), checked.failure()), (3, 0, None));
        let mut second = closed(1, 3);
        second.event.samples = Some(1.0);
        let checked = compare(&mut recorded, &own(vec![closed(0, 1), second, closed(2, 3)]));
        assert_eq!((checked.windows_same, checked.failure()), (1, None));
        assert!(
            checked.excused[0].contains("2 windows of lab/job") && checked.excused[0].contains("in another order"),
            "{checked:?}"
        );
        // Earlier differences count, and without a difference nothing is excused.
        let mut first = closed(0, 1);
        first.event.samples = Some(1.0);
        let checked = compare(&mut recorded, &own(vec![first, closed(1, 3), closed(2, 3)]));
        assert_eq!((checked.differences.len(), checked.excused.len()), (1, 0));
        let checked = compare(&mut recorded, &own(vec![closed(0, 1), closed(1, 3), closed(2, 3)]));
        assert_eq!((checked.windows_same, checked.excused.len()), (3, 0));
    }

    #[test]
    fn decisions_without_their_windows_are_no_full_success() {
        let decision = |minute: i64| {
            let time = EventTime::from_micros(minute * 60_000_000);
            Decision { id: format!("lab/job@{time}/hybrid"), workload: "lab/job".to_owned(), time, ..Decision::default() }
        };
        let record = |windows: i64| ProcessorOutputs {
            decisions: (1..4).map(decision).collect(),
            ..own((0..windows).map(|minute| window(minute, 0)).collect())
        };
        for (windows, beyond) in [(3, 0), (2, 1), (1, 2)] {
            let checked = compare(&mut record(windows), &record(3));
            assert_eq!((checked.decisions_same, checked.decisions_beyond_windows), (3 - beyond, beyond), "{checked:?}");
            let uncompared = checked.check_uncompared().map_err(|error| error.to_string());
            assert_eq!((checked.failure(), uncompared.is_err()), (None, beyond > 0), "{uncompared:?}");
        }
        // Windows that differ are the fault themselves.
        let mut other = record(2);
        other.windows[1].event.samples = Some(1.0);
        let checked = compare(&mut other, &record(3));
        assert_eq!((checked.decisions_beyond_windows, checked.differences.len()), (0, 1), "{checked:?}");
    }

    #[test]
    fn a_record_with_a_hole_does_not_pass() {
        let replay = |minutes: &[i64]| own(minutes.iter().map(|minute| closed(*minute, *minute)).collect());
        let with_hole = |topic, removed_offsets| {
            let mut record = replay(&[0, 1]);
            record.holes.insert((topic, 0));
            record.left_out.removed_offsets = removed_offsets;
            record
        };
        // The inputs of a replay end early; nothing that is compared differs.
        let checked = compare(&mut with_hole(Topic::GpuTelemetry, 40), &replay(&[0, 1]));
        let lacks = "the record lacks 40 offsets, whose file was removed from the archive";
        assert_eq!((checked.windows_same, checked.failure().as_deref()), (2, Some(lacks)));
        // The last windows were removed: the replay closes them again.
        let checked = compare(&mut with_hole(Topic::EfficiencyWindows, 3), &replay(&[0, 1, 2, 3]));
        let again = "the record lacks 2 windows of lab/job that the replay closed";
        assert!(checked.differences[0].starts_with(again), "{checked:?}");
        assert!(checked.failure().is_some_and(|why| why.contains("in 1 place; the record lacks 3 offsets")), "{checked:?}");
        // Positions behind a hole of the inputs excuse nothing.
        let mut record = with_hole(Topic::Workloads, 1);
        record.pass(Topic::Workloads, b"lab/job", Some(0), Some(0));
        let mut other = replay(&[0, 1]);
        other.windows[0] = closed(0, 5);
        other.windows[0].event.samples = Some(1.0);
        let checked = compare(&mut record, &other);
        assert_eq!((checked.excused.len(), checked.differences.len()), (0, 1), "{checked:?}");
        record.holes = [(Topic::Workloads, 1)].into();
        let checked = compare(&mut record, &other);
        assert_eq!((checked.excused.len(), checked.differences.len()), (1, 0), "the hole is in another partition: {checked:?}");
    }

    #[test]
    fn a_window_behind_the_record_differs_only_where_the_record_went_on() {
        let of = |workload: &str, minute, tables| {
            let mut window = closed(minute, tables);
            window.event.id = window.event.id.replace("lab/job", workload);
            window.event.workload = workload.to_owned();
            window
        };
        let windows = || vec![of("lab/a", 0, 1), of("lab/b", 0, 2), of("lab/a", 1, 3), of("lab/b", 1, 4)];
        let replay = own(windows());
        for (kept, beyond, differences) in [(4, 0, 0), (3, 1, 0), (2, 2, 0)] {
            let mut record = own(windows());
            record.windows.truncate(kept);
            let checked = compare(&mut record, &replay);
            assert_eq!((checked.windows_beyond_record, checked.differences.len()), (beyond, differences), "{kept}: {checked:?}");
        }
        let mut record = own(windows());
        record.windows.remove(2);
        let checked = compare(&mut record, &replay);
        assert_eq!((checked.windows_same, checked.windows_beyond_record, checked.differences.len()), (3, 0, 1), "{checked:?}");
        // An event of that window was refused live.
        record.late.insert("lab/a".to_owned(), EventTime::from_micros(90_000_000));
        let checked = compare(&mut record, &replay);
        assert_eq!((checked.excused.len(), checked.differences.len()), (1, 0), "{checked:?}");
    }

    #[test]
    fn windows_are_compared_by_their_identity_and_the_first_field_that_differs_is_named() {
        let differences = |recorded: &[i64], replayed: &[i64]| {
            let windows = |minutes: &[i64]| own(minutes.iter().map(|minute| window(*minute, 0)).collect());
            compare(&mut windows(recorded), &windows(replayed)).differences
        };
        let id = |minute: i64| window(minute, 0).event.id;
        for (recorded, replayed, expected) in [
            (&[0, 1, 2][..], &[0, 2][..], format!("{} of lab/job is missing from the replay, which has {}", id(1), id(2))),
            (&[0, 0, 1][..], &[0, 1][..], format!("{} of lab/job {AGAIN}", id(0))),
            (&[0, 1, 1][..], &[0, 1][..], format!("{} of lab/job {AGAIN}", id(1))),
            (&[0, 1][..], &[0][..], format!("{} of lab/job is missing from the replay", id(1))),
            (&[0, 3][..], &[0, 1, 2, 3][..], format!("{} of lab/job: the record lacks 2 windows before it", id(3))),
        ] {
            let found = differences(recorded, replayed);
            assert!(found.len() == 1 && found[0].starts_with(&format!("window {expected}")), "{found:?}");
        }
        let mut other = window(0, 0);
        other.event.energy_joules = Some(2.5);
        let found = compare(&mut own(vec![window(0, 0)]), &own(vec![other])).differences;
        let expected = format!("window {} of lab/job: energy_joules is null in the record and 2.5 in the replay", id(0));
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_late_event_after_the_last_window_ends_the_comparison_there() {
        let mut recorded = own(vec![window(0, 0), window(1, 0)]);
        let mut letter = |value: &str, reason| {
            let headers = OutputHeaders { reason: Some(reason), ..OutputHeaders::default() };
            recorded.read(Some(Topic::DeadLetters), Some(value.as_bytes()), headers)
        };
        letter(r#"{"time":"1970-01-01T00:00:30Z","workload":"lab/job"}"#, "stale").unwrap();
        letter(r#"{"time":"1970-01-01T00:00:30Z","workload":"lab/other"}"#, "late").unwrap();
        letter(r#"{"time":"1970-01-01T00:01:30Z","workload":"lab/job"}"#, "late").unwrap();
        letter(r#"{"time":"1970-01-01T00:01:40Z","workload":"lab/job"}"#, "late").unwrap();
        let mut second = window(1, 0);
        second.event.samples = Some(1.0);
        let checked = compare(&mut recorded, &own(vec![window(0, 0), second]));
        assert_eq!((checked.windows_same, checked.failure()), (1, None));
        assert!(checked.excused[0].contains("came late"), "{checked:?}");
    }

    #[test]
    fn a_record_of_another_controller_is_reported() {
        let decisions = |names: &[&str]| -> Vec<Decision> {
            let of =
                |name: &&str| Decision { workload: "lab/job".to_owned(), controller: (*name).to_owned(), ..Decision::default() };
            names.iter().map(of).collect()
        };
        let note = |recorded: &[&str]| {
            let (recorded, mine) = (decisions(recorded), decisions(&["hybrid"]));
            decided_by(&groups(&recorded, decision_key), &groups(&mine, decision_key))
        };
        assert_eq!(note(&["hybrid", "hybrid"]), None);
        assert!(note(&["matrix"]).unwrap().contains("--controller matrix"));
        assert!(note(&["matrix", "hybrid"]).unwrap().contains("hybrid and matrix"));
        let mut other = ProcessorOutputs { decisions: decisions(&["matrix"]), ..own(vec![window(0, 0)]) };
        let checked = compare(&mut other, &ProcessorOutputs { decisions: decisions(&["hybrid"]), ..own(vec![window(0, 0)]) });
        assert!(checked.failure().is_some_and(|why| why.contains("--controller matrix")), "{checked:?}");
    }

    fn shared(minute: i64, watts: f64) -> Decision {
        let time = EventTime::from_micros(minute * 60_000_000);
        let mut decision = Decision {
            id: format!("lab/job@{time}/{}", allocation::CONTROLLER),
            workload: "lab/job".to_owned(),
            controller: allocation::CONTROLLER.to_owned(),
            time,
            ..Decision::default()
        };
        decision.to.power_limit_watts = Some(watts);
        decision
    }

    #[test]
    fn what_the_power_budget_stage_did_not_decide_yet_is_not_missing() {
        let windows = || (0..4).map(|minute| window(minute, 0)).collect();
        let record = |decisions| ProcessorOutputs { decisions, ..own(windows()) };
        let replay = || record((1..5).map(|minute| shared(minute, 300.0)).collect());
        let checked = compare(&mut record(vec![shared(1, 300.0), shared(2, 300.0)]), &replay());
        assert_eq!((checked.windows_same, checked.decisions_same, checked.failure()), (4, 2, None), "{checked:?}");
        // One that it did decide, and one between two others, are.
        let checked = compare(&mut record(vec![shared(1, 310.0), shared(2, 300.0)]), &replay());
        assert!(checked.failure().is_some(), "{checked:?}");
        let checked = compare(&mut record(vec![shared(1, 300.0), shared(3, 300.0)]), &replay());
        assert!(checked.failure().is_some(), "{checked:?}");
    }

    #[test]
    fn a_look_that_something_came_too_late_for_ends_the_comparison_there() {
        let windows = || (0..5).map(|minute| window(minute, 0)).collect();
        let replay = ProcessorOutputs { decisions: (1..6).map(|minute| shared(minute, 300.0)).collect(), ..own(windows()) };
        let mut decisions: Vec<Decision> =
            [300.0, 310.0, 310.0, 300.0, 300.0].into_iter().zip(1..).map(|(watts, minute)| shared(minute, watts)).collect();
        assert!(compare(&mut ProcessorOutputs { decisions: decisions.clone(), ..own(windows()) }, &replay).failure().is_some());
        decisions[2].evidence.insert(LATE_SECONDS.to_owned(), 60.0);
        let checked = compare(&mut ProcessorOutputs { decisions, ..own(windows()) }, &replay);
        assert_eq!((checked.decisions_same, checked.failure()), (1, None), "{checked:?}");
        assert!(checked.excused[0].contains("belonged to"), "{checked:?}");
    }

    #[test]
    fn unknown_types_are_counted_and_not_hoarded() {
        let mut own = ProcessorOutputs::default();
        for number in 0..1000 {
            own.pass_over(&format!("com.example.{number}\n"));
        }
        own.pass_over("com.example.0\n");
        assert_eq!(own.passed_over.len(), 101);
        assert_eq!(own.passed_over.values().sum::<u64>(), 1001);
        assert_eq!(own.passed_over["com.example.0\u{fffd}"], 2);
    }
}
