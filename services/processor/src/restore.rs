//! Restores a stage: its state, the offsets at which its inputs resume, and the outputs that are in the log beyond that state.
//!
//! A step is atomic, so state, outputs and positions are of one step, unless a broker forgot a part of it. The state goes before
//! the others: every step writes some, and records in it the offsets of its inputs. A start goes on there, whatever the group's
//! positions are. It does not repeat outputs whose own offsets are beyond the state's: their step lost its state, and is done
//! again. A step that has its state and lost its outputs cannot be recognised.
//!
//! A broker may also forget to mark a part of a step: it hangs, and nothing after it is readable. State that hangs is aborted, since
//! its step is done again. Outputs that hang are read as uncommitted: if the state knows of any, its step was committed, and they are
//! committed; if all are beyond the state, they are aborted. Then everything is read again as committed, to its end, so that what was
//! beyond and is readable now is not repeated.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::{
    Bus, BusError, ConsumerRecord, GroupMember, HangingEnds, IsolationLevel, ProducerRecord, Remedy, Result, StartOffset,
    TopicPartition, TransactionEnd, UnreadEnd, WatermarkOffsets, chaos, partition_for_key, read_within, warn_of_waiting,
};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;
use eadt_schemas::{EventTime, Topic};
use eadt_service::Shutdown;

use crate::outputs::OutputTopics;

/// Newest records of a partition that are searched first for the last output of a stage, and the factor by which the search grows
/// each time that they are not enough. Dead letters are as large as what was refused, and an eighth of them is looked at.
const SCAN_RECORDS: i64 = 256;
const SCAN_FACTOR: i64 = 8;
/// Number of partitions above which the search begins with an eighth, too.
const MANY_PARTITIONS: usize = 16;
/// If there is no state, the search goes no further back: the one step that there was emitted no more than half of it.
const MAX_SCAN_RECORDS: i64 = SCAN_RECORDS * SCAN_FACTOR * SCAN_FACTOR;
/// Two brokers' clocks may be so far apart, in seconds: an output stamped earlier than this before the state was emitted before
/// it.
const BROKER_SKEW_SECONDS: f64 = 10.0;
/// Shorter if a test waits for it.
const STALL: Duration = if cfg!(test) { Duration::from_millis(300) } else { HangingEnds::STALL };
/// The same of outputs if state was hanging.
const SHORT_STALL: Duration = if cfg!(test) { STALL } else { Duration::from_secs(5) };

/// Offsets at which the inputs of a stage resume, as its state and its outputs record them.
pub trait InputOffsets {
    /// Returns the offset of the first record that is not folded; `None` if the input is unknown.
    fn offset(&self, topic: Topic, partition: i32) -> Option<i64>;

    /// Returns whether any input is further than in `other`.
    fn is_beyond(&self, other: &Self) -> bool;
}

/// Identifies a stage's records among others'.
pub trait StageRecords {
    type Offsets: InputOffsets;

    /// The name in its dead letters of the service that refused them.
    const SERVICE: &'static str;
    const INPUTS: &'static [Topic];
    /// Output topics beside dead letters and state.
    const OUTPUTS: &'static [Topic];
    /// Keys under which outputs of all partitions come together in one.
    const SHARED_KEYS: &'static [(Topic, &'static str)];

    /// The key in the state topic that every step writes, before its others.
    const HEAD_KEY: &'static str;

    /// Returns whether a key of the state topic belongs to this stage.
    fn is_state_key(key: &str) -> bool;

    /// Parses the [`header::INPUT_POSITIONS`] of a state record in this partition.
    fn parse_state_offsets(number: i32, text: &str) -> Option<Self::Offsets>;

    /// Returns the state partition of a window or decision, and its input offsets; `None` if it is another stage's.
    fn emitted(record: &ConsumerRecord) -> Option<(i32, Self::Offsets)>;

    /// Returns the state partition of an input partition; outputs are in the partition of the same number.
    fn state_partition(partition: i32) -> i32;
}

/// The content of a state partition, and the outputs in the log beyond it.
#[derive(Debug)]
pub struct RestoredState<P> {
    /// The newest record of every key.
    pub records: Vec<(String, Option<Bytes>)>,
    offsets: RestoredOffsets<P>,
    /// The consumer group that wrote the newest step; `None` if an older release did.
    writer: Option<String>,
    /// Inputs that were deleted and made anew since the newest step: its offsets are of another log.
    recreated: BTreeSet<String>,
    pub emitted: EmittedIds,
    /// More was emitted than a first step emits, but there is no state: it was deleted.
    pub was_given_up: bool,
}

/// Ids of outputs that are in the log already.
#[derive(Debug, Default)]
pub struct EmittedIds(BTreeSet<String>);

impl EmittedIds {
    /// Removes an id; returns whether it was there, so that the output is not repeated.
    pub fn remove(&mut self, id: &str) -> bool {
        self.0.remove(id)
    }

    /// Removes the id of this record's dead letter; returns whether it was there.
    pub fn remove_dead_letter(&mut self, record: &ConsumerRecord) -> bool {
        !self.0.is_empty() && self.remove(&record.location())
    }
}

/// Writes the input offsets and the consumer group into a step's state: in its first record, which has [`StageRecords::HEAD_KEY`] as
/// its key. A later one may be a tombstone, which compaction forgets.
pub fn write_head_headers(names: &OutputTopics, state: &mut [ProducerRecord], positions: impl FnOnce() -> Bytes) {
    if let Some(first) = state.first_mut() {
        first.headers.push((Arc::from(header::INPUT_POSITIONS), positions()));
        if !names.group.is_empty() {
            first.headers.push((Arc::from(header::GROUP), names.group.clone()));
        }
        if !names.input_ids.is_empty()
            && let Ok(ids) = serde_json::to_vec(&names.input_ids)
        {
            first.headers.push((Arc::from(header::INPUT_TOPIC_IDS), ids.into()));
        }
    }
}

#[derive(Debug)]
enum RestoredOffsets<P> {
    /// Offsets of the newest step whose state is there, and when it was written.
    Known(P, EventTime),
    /// There is state of a release that did not record them.
    Unrecorded,
    /// There is no state.
    NoState,
}

impl<P> Default for RestoredState<P> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            offsets: RestoredOffsets::NoState,
            writer: None,
            recreated: BTreeSet::new(),
            emitted: EmittedIds::default(),
            was_given_up: false,
        }
    }
}

impl<P> RestoredState<P> {
    /// Returns whether there is no state.
    pub fn is_new(&self) -> bool {
        matches!(self.offsets, RestoredOffsets::NoState)
    }
}

impl<P: InputOffsets> RestoredState<P> {
    /// Returns whether an input was deleted and made anew since the state was written.
    pub fn is_recreated(&self, at: &TopicPartition) -> bool {
        self.recreated.contains(&*at.topic)
    }

    /// Returns the offset at which an input resumes: at the state's offset, or at the group's position if the state has none.
    /// `None` if it resumes at its beginning. `high`: the end of the input.
    pub fn resume_offset(&self, topic: Topic, at: &TopicPartition, committed: Option<i64>, high: i64) -> Option<i64> {
        if self.is_recreated(at) {
            tracing::warn!(
                %at,
                "the topic was deleted and recreated since the state was written: reading it from its beginning; what was not folded of \
                 the former one is lost"
            );
            return None;
        }
        let of_state = match &self.offsets {
            RestoredOffsets::Known(offsets, _) => offsets.offset(topic, at.partition).filter(|offset| *offset <= high),
            RestoredOffsets::Unrecorded => None,
            RestoredOffsets::NoState => return None,
        };
        if let (Some(of_state), Some(committed)) = (of_state, committed)
            && let Some(words) = describe_mismatch(of_state, committed)
        {
            tracing::warn!(
                %at,
                committed,
                of_state,
                "the state is {words} the group's position: a part of a step was lost, as where a broker lost it; reading continues at the state's offset"
            );
        }
        of_state.or(committed)
    }
}

/// Describes the state's offset relative to the group's position, in words; `None` if they are equal.
fn describe_mismatch(of_state: i64, committed: i64) -> Option<&'static str> {
    match of_state.cmp(&committed) {
        Ordering::Less => Some("behind"),
        Ordering::Equal => None,
        Ordering::Greater => Some("ahead of"),
    }
}

/// Reads these partitions of the state to their ends, and the outputs beyond it. All at once: what a client takes to begin to
/// read, a tenth of a second, is taken once.
pub fn read_states_and_outputs<S: StageRecords>(
    bus: &dyn Bus,
    member: &mut dyn GroupMember,
    names: &OutputTopics,
    numbers: &[i32],
    shutdown: &Shutdown,
) -> Result<BTreeMap<i32, RestoredState<S::Offsets>>> {
    let mut hanging = HangingEnds::after(STALL);
    let mut states = read_states::<S>(bus, member, names, numbers, &mut hanging, shutdown)?;
    chaos::reach("restore.state");
    refuse_living_writers(bus, names, &states)?;
    if !chaos::is_off("atomic-steps") {
        let places = output_partitions::<S>(bus, names, numbers)?;
        find_outputs_beyond_state::<S>(bus, member, names, &mut states, &places, &mut hanging, shutdown)?;
    }
    Ok(states)
}

/// Returns an error if another consumer group wrote the newest state and still has members. Positions belong to a group, and
/// transactional ids fence instances of one name: processors of two groups would make every window and decision twice.
fn refuse_living_writers<P>(bus: &dyn Bus, names: &OutputTopics, states: &BTreeMap<i32, RestoredState<P>>) -> Result<()> {
    let own = std::str::from_utf8(&names.group).unwrap_or_default();
    let writers: BTreeSet<&str> = states.values().filter_map(|state| state.writer.as_deref()).collect();
    for writer in writers.into_iter().filter(|writer| !own.is_empty() && *writer != own) {
        if let Some(member) = bus.group_members(writer)?.first() {
            let detail = format!(
                "consumer group {writer} wrote it and still has the member {}; beside it, group {own} would make every window and \
                 decision twice: stop the processors of {writer}, whose session then runs out within 30 s, or set processor.group as \
                 it was",
                member.name
            );
            return Err(BusError::new(Remedy::Restart, format!("taking over {}", names.state), detail));
        }
        tracing::info!(
            writer,
            group = own,
            "the state was written by a consumer group without members: processing continues from it"
        );
    }
    Ok(())
}

/// The newest step of a state partition, as far as it is read.
#[derive(Debug)]
struct NewestStep<P> {
    records: BTreeMap<String, Option<Bytes>>,
    /// Its input offsets, and when it was written.
    offsets: Option<(P, EventTime)>,
    writer: Option<String>,
    input_ids: BTreeMap<String, String>,
}

impl<P> Default for NewestStep<P> {
    fn default() -> Self {
        Self { records: BTreeMap::new(), offsets: None, writer: None, input_ids: BTreeMap::new() }
    }
}

impl<P> NewestStep<P> {
    /// Returns the inputs that had another id when the step was written.
    fn recreated_inputs(&self, present: &BTreeMap<String, String>) -> BTreeSet<String> {
        let is_other = |(topic, id): &(&String, &String)| present.get(*topic).is_some_and(|present| present != *id);
        self.input_ids.iter().filter(is_other).map(|(topic, _)| topic.clone()).collect()
    }
}

fn read_states<S: StageRecords>(
    bus: &dyn Bus,
    member: &mut dyn GroupMember,
    names: &OutputTopics,
    numbers: &[i32],
    hanging: &mut HangingEnds,
    shutdown: &Shutdown,
) -> Result<BTreeMap<i32, RestoredState<S::Offsets>>> {
    let mut newest: BTreeMap<i32, NewestStep<S::Offsets>> =
        numbers.iter().map(|number| (*number, NewestStep::default())).collect();
    let from: Vec<_> =
        numbers.iter().map(|number| (TopicPartition::new(names.state.clone(), *number), StartOffset::Earliest)).collect();
    let each = |record: ConsumerRecord| {
        let number = record.at.partition;
        let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
        if let Some(step) = newest.get_mut(&number).filter(|_| S::is_state_key(&key)) {
            if key == S::HEAD_KEY {
                // Another step; a state of an older release may not record its offsets.
                step.offsets = None;
                step.writer = record.header(header::GROUP).map(str::to_owned);
                let ids = record.header(header::INPUT_TOPIC_IDS).and_then(|text| serde_json::from_str(text).ok());
                step.input_ids = ids.unwrap_or_default();
            }
            if let Some(newer) = record.header(header::INPUT_POSITIONS).and_then(|text| S::parse_state_offsets(number, text)) {
                step.offsets = Some((newer, record.stamp));
            }
            step.records.insert(key, record.value);
        }
        Ok::<_, BusError>(())
    };
    // The state of a hanging transaction is aborted here. Its outputs are examined when the outputs are read.
    if hanging.read_to_end(bus, member, &from, TransactionEnd::Abort, || shutdown.is_cancelled(), each)?.is_none() {
        let what = format!("restoring {}", names.state);
        return Err(BusError::new(Remedy::Retry, what, "stopped before the state was read"));
    }
    let state = |(number, step): (i32, NewestStep<S::Offsets>)| {
        let recreated = step.recreated_inputs(&names.input_ids);
        let NewestStep { records, offsets, writer, .. } = step;
        let offsets = match offsets {
            // A state that is deleted on purpose leaves tombstones.
            _ if records.values().all(Option::is_none) => RestoredOffsets::NoState,
            Some((offsets, written)) => RestoredOffsets::Known(offsets, written),
            None => RestoredOffsets::Unrecorded,
        };
        let records = records.into_iter().collect();
        (number, RestoredState { records, offsets, writer, recreated, ..RestoredState::default() })
    };
    Ok(newest.into_iter().map(state).collect())
}

/// Partitions of outputs, each with a state whose outputs it may hold.
fn output_partitions<S: StageRecords>(
    bus: &dyn Bus,
    names: &OutputTopics,
    numbers: &[i32],
) -> Result<BTreeSet<(TopicPartition, i32)>> {
    let counts = bus.partition_counts(&names.prefix)?;
    let count = |name: &str| {
        // A broker that has just started may not know of it yet.
        let unknown = || BusError::new(Remedy::Retry, format!("restoring from {name}"), "the topic does not exist");
        counts.get(name).copied().ok_or_else(unknown)
    };
    let mut places = BTreeSet::new();
    for output in S::OUTPUTS {
        let topic: Arc<str> = format!("{}{output}", names.prefix).into();
        let all =
            (0..count(&topic)?).map(|partition| (TopicPartition::new(topic.clone(), partition), S::state_partition(partition)));
        places.extend(all.filter(|(_, number)| numbers.contains(number)));
    }
    // Dead letters have their origin's name as key.
    let letters = S::INPUTS.iter().map(|input| (Topic::DeadLetters, format!("{}{input}", names.prefix)));
    let shared = S::SHARED_KEYS.iter().map(|(topic, key)| (*topic, (*key).to_owned()));
    for (topic, key) in letters.chain(shared) {
        let topic: Arc<str> = format!("{}{topic}", names.prefix).into();
        let at = TopicPartition::new(topic.clone(), partition_for_key(key.as_bytes(), count(&topic)?));
        places.extend(numbers.iter().map(|number| (at.clone(), *number)));
    }
    Ok(places)
}

/// The range of a partition of outputs that is searched.
#[derive(Debug)]
struct OutputScan {
    start: i64,
    /// The offset after the last record that was read.
    next: i64,
    is_whole: bool,
    /// The offset at which its newer half begins.
    half: i64,
    /// Stamp of its first record.
    oldest: Option<EventTime>,
}

impl OutputScan {
    /// Builds the scan of a partition's newest records: `depth` of them, or all.
    fn from_watermarks(WatermarkOffsets { low, high }: WatermarkOffsets, depth: i64) -> Self {
        let start = low.max(high - depth);
        Self { start, next: start, is_whole: start == low, half: start.midpoint(high), oldest: None }
    }

    /// Returns whether an offset lies in the older half of the range.
    fn is_early(&self, offset: i64) -> bool {
        offset < self.half
    }

    /// Returns whether all outputs in the range may have been emitted after a state that was written then.
    fn is_all_after(&self, written: EventTime) -> bool {
        self.oldest.is_none_or(|oldest| written.seconds_since(oldest) <= BROKER_SKEW_SECONDS)
    }
}

/// Returns how many of the newest records are searched first, of each of so many partitions.
fn first_depth(partitions: usize) -> i64 {
    if partitions > MANY_PARTITIONS { SCAN_RECORDS / SCAN_FACTOR } else { SCAN_RECORDS }
}

/// Returns whether the search goes further back than so many records if there is no state. `spoke_early`: the stage has outputs
/// in their older half.
fn must_scan_further(depth: i64, spoke_early: bool) -> bool {
    // Others may have written much since.
    depth < MAX_SCAN_RECORDS && (spoke_early || depth < MAX_SCAN_RECORDS / SCAN_FACTOR)
}

/// Returns whether more was emitted than a first step emits, if there is no state. For dead letters that number is unknown.
fn is_state_given_up(depth: i64, spoke_early: bool, is_letters: bool) -> bool {
    spoke_early && depth >= MAX_SCAN_RECORDS && !is_letters
}

/// Partitions that cannot be read to their ends, by their records of this stage.
#[derive(Debug, Default, PartialEq, Eq)]
struct StalledOutputs {
    /// Partitions with some outputs that the state includes, or whose state is not among the restored ones.
    known: BTreeSet<TopicPartition>,
    /// Partitions with outputs beyond the state only.
    beyond: BTreeSet<TopicPartition>,
}

/// Reads uncommitted records from these offsets on. Returns `None` if not all of them could be read.
fn read_stalled_outputs<S: StageRecords>(
    bus: &dyn Bus,
    names: &OutputTopics,
    states: &BTreeMap<i32, RestoredState<S::Offsets>>,
    from: &[(TopicPartition, StartOffset)],
    shutdown: &Shutdown,
) -> Result<Option<StalledOutputs>> {
    let mut stalled = StalledOutputs::default();
    let each = |record: ConsumerRecord| {
        match classify_output::<S>(names, states, &record) {
            OutputOwner::State { is_beyond: true, .. } => stalled.beyond.insert(record.at),
            // The partition may belong to another member now, which does not repeat readable outputs.
            OutputOwner::State { .. } | OutputOwner::OtherState => stalled.known.insert(record.at),
            OutputOwner::OtherStage => false,
        };
        Ok::<_, BusError>(())
    };
    let read = read_within(bus, from, IsolationLevel::ReadUncommitted, SHORT_STALL, || shutdown.is_cancelled(), each)?;
    stalled.beyond.retain(|at| !stalled.known.contains(at));
    Ok(read.is_ok().then_some(stalled))
}

/// Records the ids of outputs whose own offsets are beyond those of their state.
fn find_outputs_beyond_state<S: StageRecords>(
    bus: &dyn Bus,
    member: &mut dyn GroupMember,
    names: &OutputTopics,
    states: &mut BTreeMap<i32, RestoredState<S::Offsets>>,
    places: &BTreeSet<(TopicPartition, i32)>,
    hanging: &mut HangingEnds,
    shutdown: &Shutdown,
) -> Result<()> {
    let is_known = |number| states.get(number).is_some_and(|state| !matches!(state.offsets, RestoredOffsets::Unrecorded));
    let mut open: BTreeSet<_> = places.iter().filter(|(_, number)| is_known(number)).cloned().collect();
    let mut depth = first_depth(open.len());
    let stall = if hanging.has_ended_any() { SHORT_STALL } else { STALL };
    // The newest ones first; if all of them came after the state, further back.
    while !open.is_empty() {
        let mut scans: BTreeMap<TopicPartition, OutputScan> = BTreeMap::new();
        for (at, _) in &open {
            if !scans.contains_key(at) {
                let depth = if at.topic == names.dead_letters { depth / SCAN_FACTOR } else { depth };
                scans.insert(at.clone(), OutputScan::from_watermarks(bus.watermarks(at)?, depth));
            }
        }
        let before = open.clone();
        // Partitions with outputs in the older half of the records that were read.
        let mut spoke_early = BTreeSet::new();
        let from: Vec<_> = scans.iter().map(|(at, scan)| (at.clone(), StartOffset::At(scan.start))).collect();
        let each = |record: ConsumerRecord| {
            let Some(scan) = scans.get_mut(&record.at) else { return Ok(()) };
            scan.oldest.get_or_insert(record.stamp);
            scan.next = record.offset + 1;
            if let OutputOwner::State { number, is_beyond } = classify_output::<S>(names, states, &record) {
                if !is_beyond {
                    open.remove(&(record.at, number));
                } else if let (Some(state), Some(id)) = (states.get_mut(&number), record.header(header::ID)) {
                    state.emitted.0.insert(id.to_owned());
                    if scan.is_early(record.offset) {
                        spoke_early.insert((record.at, number));
                    }
                }
            }
            Ok::<_, BusError>(())
        };
        match read_within(bus, &from, IsolationLevel::ReadCommitted, stall, || shutdown.is_cancelled(), each)? {
            Ok(_) => {}
            Err(UnreadEnd::Stopped) => {
                return Err(BusError::new(Remedy::Retry, "restoring", "stopped before the newest outputs were read"));
            }
            Err(UnreadEnd::Stalled(partitions)) => {
                // Once more with all of them: records readable by then count.
                open = before;
                // The hanging transaction may have begun before the first record that was read.
                let is_cut = |scan: &OutputScan| scan.next == scan.start && !scan.is_whole;
                if depth < MAX_SCAN_RECORDS && partitions.iter().any(|at| scans.get(at).is_some_and(is_cut)) {
                    tracing::info!(?partitions, "partitions are not readable to their ends: reading further back");
                    depth = MAX_SCAN_RECORDS;
                    continue;
                }
                let from = |scan: &OutputScan| if is_cut(scan) { StartOffset::Earliest } else { StartOffset::At(scan.next) };
                let rest: Vec<_> =
                    partitions.iter().filter_map(|at| scans.get(at).map(|scan| (at.clone(), from(scan)))).collect();
                let Some(StalledOutputs { known, beyond }) = read_stalled_outputs::<S>(bus, names, states, &rest, shutdown)?
                else {
                    warn_of_waiting(&partitions);
                    continue;
                };
                let is_others = |at: &TopicPartition| !known.contains(at) && !beyond.contains(at);
                warn_of_waiting(&partitions.into_iter().filter(is_others).collect::<Vec<_>>());
                hanging.end(member, known.into_iter().collect(), TransactionEnd::Commit)?;
                hanging.end(member, beyond.into_iter().collect(), TransactionEnd::Abort)?;
                continue;
            }
        }
        open.retain(|place| {
            let scan = &scans[&place.0];
            let Some(state) = states.get_mut(&place.1).filter(|_| !scan.is_whole) else { return false };
            if let RestoredOffsets::Known(_, written) = &state.offsets {
                return scan.is_all_after(*written);
            }
            let spoke_early = spoke_early.contains(place);
            state.was_given_up |= is_state_given_up(depth, spoke_early, place.0.topic == names.dead_letters);
            must_scan_further(depth, spoke_early)
        });
        depth = depth.saturating_mul(SCAN_FACTOR);
    }
    for (number, state) in states.iter().filter(|(_, state)| !state.emitted.0.is_empty() && !state.was_given_up) {
        tracing::warn!(
            state = number,
            service = S::SERVICE,
            outputs = state.emitted.0.len(),
            "the state is behind what was published: a part of a step was lost, as where a broker lost it; its events are folded again, and published outputs are not repeated"
        );
    }
    Ok(())
}

/// Owner of a record in an output topic. For this stage: whether its state includes the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputOwner {
    /// This stage, and the state with this number.
    State {
        number: i32,
        is_beyond: bool,
    },
    /// This stage, and a state that is not restored here or does not record its offsets.
    OtherState,
    OtherStage,
}

fn classify_output<S: StageRecords>(
    names: &OutputTopics,
    states: &BTreeMap<i32, RestoredState<S::Offsets>>,
    record: &ConsumerRecord,
) -> OutputOwner {
    let of_state = |number: i32, is_beyond: &dyn Fn(&S::Offsets) -> bool| {
        let is_beyond = states.get(&number).and_then(|state| match &state.offsets {
            RestoredOffsets::Known(offsets, _) => Some(is_beyond(offsets)),
            RestoredOffsets::Unrecorded => None,
            RestoredOffsets::NoState => Some(true),
        });
        is_beyond.map_or(OutputOwner::OtherState, |is_beyond| OutputOwner::State { number, is_beyond })
    };
    if record.at.topic != names.dead_letters {
        let emitted = S::emitted(record);
        return emitted
            .map_or(OutputOwner::OtherStage, |(number, emitted)| of_state(number, &|offsets| emitted.is_beyond(offsets)));
    }
    if record.header(dead_letter_header::REFUSED_BY) != Some(S::SERVICE) {
        return OutputOwner::OtherStage;
    }
    let Some((topic, partition, offset)) = parse_letter_origin::<S>(names, record) else { return OutputOwner::OtherState };
    let is_folded = |offsets: &S::Offsets| offsets.offset(topic, partition).is_some_and(|next| offset < next);
    of_state(S::state_partition(partition), &|offsets| !is_folded(offsets))
}

/// Returns which record of which input a dead letter is about; `None` if its headers do not name one.
fn parse_letter_origin<S: StageRecords>(names: &OutputTopics, letter: &ConsumerRecord) -> Option<(Topic, i32, i64)> {
    let name = letter.header(dead_letter_header::ORIGIN_TOPIC)?.strip_prefix(&*names.prefix)?;
    let topic = *S::INPUTS.iter().find(|topic| topic.base_name() == name)?;
    let number = |header| letter.header(header)?.parse::<i64>().ok();
    let partition = i32::try_from(number(dead_letter_header::ORIGIN_PARTITION)?).ok()?;
    Some((topic, partition, number(dead_letter_header::ORIGIN_OFFSET)?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicI64, Ordering};

    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
    use eadt_bus::simulation::ForgetfulBus;
    use eadt_bus::{CommitStep, MemberOptions, Membership, PartitionReader, PollEvent, topics};
    use eadt_testing::lines;

    use super::*;
    use crate::PartitionOffsets;
    use crate::partition_task::PartitionTask;
    use crate::scripted::{ScriptedBus, place, seconds};

    const HOUR: i64 = 3_600_000_000;

    #[derive(Debug)]
    struct Log {
        inner: ForgetfulBus<EmbeddedLog>,
        now: Arc<AtomicI64>,
        _dir: tempfile::TempDir,
    }

    /// A member of a group whose positions hang, too.
    #[derive(Debug)]
    struct Member<'a> {
        log: &'a Log,
        has_positions: bool,
        /// So often no broker ends anything.
        refusals: usize,
        ends: Vec<(TopicPartition, TransactionEnd)>,
    }

    impl PartitionReader for Member<'_> {
        fn poll(&mut self, _: usize, _: Duration, _: &mut Vec<PollEvent>) -> Result<()> {
            Ok(())
        }
        fn pause(&mut self, _: &[TopicPartition]) -> Result<()> {
            Ok(())
        }
        fn resume(&mut self, _: &[TopicPartition]) -> Result<()> {
            Ok(())
        }
    }

    impl GroupMember for Member<'_> {
        fn start(&mut self, _: &TopicPartition, _: i64) -> Result<()> {
            Ok(())
        }
        fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
            if !self.has_positions {
                return Err(BusError::new(Remedy::Retry, "fetching positions", "a transaction is open in them"));
            }
            Ok(vec![Some(7); of.len()])
        }
        fn commit(&mut self, _: &CommitStep) -> Result<()> {
            Ok(())
        }
        fn end_hanging(&mut self, outputs: &[TopicPartition], with_positions: bool, end: TransactionEnd) -> Result<()> {
            if self.refusals > 0 {
                self.refusals -= 1;
                return Err(BusError::new(Remedy::Retry, "ending", "no broker"));
            }
            self.has_positions |= with_positions && end == TransactionEnd::Abort;
            self.ends.extend(outputs.iter().map(|at| (at.clone(), end)));
            self.log.inner.end_own(outputs, end);
            Ok(())
        }
    }

    impl Log {
        fn open() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let now = Arc::new(AtomicI64::new(HOUR));
            let clock = now.clone();
            let stamps = StampSource::Injected(Arc::new(move || EventTime::from_micros(clock.load(Ordering::SeqCst))));
            let log = EmbeddedLog::open(dir.path(), EmbeddedOptions { stamps, ..EmbeddedOptions::default() }).unwrap();
            for topic in topics::desired("eadt.", 1, 1) {
                log.create_topic(&topic).unwrap();
            }
            Self { inner: ForgetfulBus::new(log), now, _dir: dir }
        }

        fn send(&self, topic: Topic, records: impl IntoIterator<Item = (String, String)>) {
            let mut producer = self.inner.producer("test").unwrap();
            for (id, positions) in records {
                let headers =
                    vec![(Arc::from(header::ID), Bytes::from(id)), (Arc::from(header::INPUT_POSITIONS), Bytes::from(positions))];
                let topic = Arc::from(format!("eadt.{topic}"));
                producer
                    .send(ProducerRecord { topic, partition: Some(0), key: Some("#".into()), value: Some("{}".into()), headers })
                    .unwrap();
            }
            assert!(producer.flush(Duration::from_mins(1)).unwrap());
        }

        fn state(&self, position: i64) {
            self.send(Topic::ProcessorState, [(String::new(), first(position))]);
        }

        fn start(&self) -> RestoredState<PartitionOffsets> {
            self.start_with(&mut self.member(), &Shutdown::new()).unwrap()
        }

        fn start_with(&self, member: &mut Member<'_>, shutdown: &Shutdown) -> Result<RestoredState<PartitionOffsets>> {
            let names = OutputTopics::new("eadt.", String::new());
            self.inner.asked.store(0, Ordering::SeqCst);
            read_states_and_outputs::<PartitionTask>(&self.inner, member, &names, &[0], shutdown)
                .map(|mut states| states.remove(&0).unwrap())
        }

        /// Appends a step's state that a group wrote.
        fn state_of(&self, group: &str, position: i64) {
            self.state_under(&OutputTopics::new("eadt.", String::new()).for_group(group), position);
        }

        fn state_under(&self, names: &OutputTopics, position: i64) {
            let head = eadt_core::StateRecord { key: PartitionTask::HEAD_KEY.to_owned(), value: Some(b"{}".to_vec()) };
            let mut step = [names.state(0, head)];
            write_head_headers(names, &mut step, || first(position).into());
            let mut producer = self.inner.producer("test").unwrap();
            for record in step {
                producer.send(record).unwrap();
            }
            assert!(producer.flush(Duration::from_mins(1)).unwrap());
        }

        /// Restores as a processor of this group does.
        fn start_as(&self, group: &str) -> Result<RestoredState<PartitionOffsets>> {
            self.start_under(&OutputTopics::new("eadt.", String::new()).for_group(group))
        }

        fn start_under(&self, names: &OutputTopics) -> Result<RestoredState<PartitionOffsets>> {
            read_states_and_outputs::<PartitionTask>(&self.inner, &mut self.member(), names, &[0], &Shutdown::new())
                .map(|mut states| states.remove(&0).unwrap())
        }

        fn member(&self) -> Member<'_> {
            Member { log: self, has_positions: true, refusals: 0, ends: Vec::new() }
        }

        fn hang(&self, topics: &[Topic], is_own: bool, append: impl FnOnce()) {
            self.inner.hang(&topics.iter().map(|topic| place(*topic, 0)).collect::<Vec<_>>(), is_own, append);
        }

        fn asked(&self) -> i64 {
            self.inner.asked.load(Ordering::SeqCst)
        }
    }

    fn first(telemetry: i64) -> String {
        let mut positions = PartitionOffsets::start(0);
        positions.advance(Topic::GpuTelemetry, telemetry - 1);
        positions.to_json()
    }

    fn windows(telemetry: std::ops::Range<i64>) -> impl Iterator<Item = (String, String)> {
        telemetry.map(|n| (format!("w/{n}"), first(n)))
    }

    /// Outputs of the joint stage of the power budget.
    fn of_others(count: i64) -> impl Iterator<Item = (String, String)> {
        (0..count).map(|n| (format!("d@{n}/power-budget"), format!("{{\"efficiency.windows.v1\":[{n}]}}")))
    }

    #[test]
    fn all_output_beyond_the_state_is_found_however_much_it_is() {
        let log = Log::open();
        log.send(Topic::EfficiencyWindows, windows(1..5_001));
        log.state(2_000);
        let state = log.start();
        assert!(!state.is_new() && !state.was_given_up);
        assert_eq!(state.emitted.0, (2_001..5_001).map(|n| format!("w/{n}")).collect());
        log.state(5_000);
        assert!(log.start().emitted.0.is_empty());
        assert!(log.asked() <= SCAN_RECORDS, "{}", log.asked());
    }

    #[test]
    fn beside_a_group_that_lives_no_other_one_begins_and_its_state_is_taken_over_once_it_is_gone() {
        let log = Log::open();
        log.state_of("processor", 2_000);
        let membership = Membership::Transactional("processor-0".into());
        let options = MemberOptions { group: "processor".into(), membership, topics: Vec::new() };
        let living = log.inner.member(options).unwrap();
        let error = log.start_as("processor-v2").unwrap_err();
        assert_eq!(error.remedy, Remedy::Restart);
        assert!(error.detail.contains("group processor wrote it") && error.detail.contains("processor-0"), "{error}");
        log.start_as("processor").unwrap();
        drop(living);
        let at = place(Topic::GpuTelemetry, 0);
        let state = log.start_as("processor-v2").unwrap();
        assert_eq!(state.resume_offset(Topic::GpuTelemetry, &at, None, 4_000), Some(2_000), "it has no positions of its own");
        // Of a release that does not name it.
        log.state(3_000);
        assert_eq!(log.start_as("processor-v2").unwrap().writer, None);
    }

    #[test]
    fn an_input_that_was_made_anew_is_read_from_its_beginning() {
        let log = Log::open();
        let at = place(Topic::GpuTelemetry, 0);
        let names = |id: Option<&str>| {
            let ids = id.map(|id| (at.topic.to_string(), id.to_owned())).into_iter().collect();
            OutputTopics::new("eadt.", String::new()).with_input_ids(ids)
        };
        // As an older release writes it, or with an id; then as the log is found.
        for (written, found, resumes) in [
            (None, Some("b"), Some(2_000)),
            (Some("a"), None, Some(2_000)),
            (Some("a"), Some("a"), Some(2_000)),
            (Some("a"), Some("b"), None),
        ] {
            log.state_under(&names(written), 2_000);
            let state = log.start_under(&names(found)).unwrap();
            assert_eq!(state.resume_offset(Topic::GpuTelemetry, &at, Some(2_000), 4_000), resumes, "{written:?} {found:?}");
            let other = place(Topic::TrainingProgress, 0);
            assert!(!state.is_recreated(&other), "{written:?} {found:?}");
        }
    }

    const STATE: Topic = Topic::ProcessorState;
    const WINDOWS: Topic = Topic::EfficiencyWindows;

    /// Returns the transactions that a start ends, in order, and the state that it restores.
    fn restart(log: &Log) -> (Vec<(TopicPartition, TransactionEnd)>, RestoredState<PartitionOffsets>) {
        let mut member = log.member();
        let state = log.start_with(&mut member, &Shutdown::new()).unwrap();
        (member.ends, state)
    }

    /// Returns the transactions that a waiting start ends, until it is stopped.
    fn wait(log: &Log) -> Vec<(TopicPartition, TransactionEnd)> {
        let (shutdown, mut member) = (Shutdown::new(), log.member());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(8 * STALL);
                shutdown.cancel();
            });
            assert_eq!(log.start_with(&mut member, &shutdown).unwrap_err().remedy, Remedy::Retry);
        });
        member.ends
    }

    #[test]
    fn a_step_that_hangs_whole_is_aborted() {
        let log = Log::open();
        log.send(WINDOWS, windows(1..2_001));
        log.state(2_000);
        log.hang(&[WINDOWS, STATE], true, || {
            log.send(WINDOWS, windows(2_001..3_001));
            log.state(3_000);
        });
        let (ends, state) = restart(&log);
        assert_eq!(ends, [(place(STATE, 0), TransactionEnd::Abort), (place(WINDOWS, 0), TransactionEnd::Abort)]);
        let at = place(Topic::GpuTelemetry, 0);
        assert_eq!(state.resume_offset(Topic::GpuTelemetry, &at, Some(3_000), 4_000), Some(2_000));
        assert!(state.emitted.0.is_empty(), "they are emitted again");
    }

    #[test]
    fn outputs_whose_state_hangs_are_not_repeated() {
        let log = Log::open();
        log.state(2_000);
        log.send(WINDOWS, windows(2_001..2_004));
        log.hang(&[STATE], true, || log.state(3_000));
        let (ends, state) = restart(&log);
        assert_eq!(ends, [(place(STATE, 0), TransactionEnd::Abort)]);
        assert_eq!(state.emitted.0.len(), 3);
    }

    #[test]
    fn outputs_that_hang_are_committed_if_the_state_knows_of_any() {
        let log = Log::open();
        log.hang(&[WINDOWS], true, || log.send(WINDOWS, windows(1..2_001)));
        log.state(2_000);
        let (ends, state) = restart(&log);
        assert_eq!(ends, [(place(WINDOWS, 0), TransactionEnd::Commit)]);
        assert!(!state.is_new() && state.emitted.0.is_empty());
        // Of two steps, the second one's state is lost. The first scan does not find the first one.
        let log = Log::open();
        log.hang(&[WINDOWS], true, || log.send(WINDOWS, windows(1..3_001)));
        log.state(2_000);
        let (ends, state) = restart(&log);
        assert_eq!(ends, [(place(WINDOWS, 0), TransactionEnd::Commit)]);
        assert_eq!(state.emitted.0, (2_001..3_001).map(|n| format!("w/{n}")).collect());
    }

    #[test]
    fn outputs_whose_state_somebody_else_restores_are_committed() {
        let log = Log::open();
        log.state(2_000);
        let mut positions = PartitionOffsets::start(1);
        positions.advance(Topic::GpuTelemetry, 8);
        log.hang(&[WINDOWS], true, || {
            log.send(WINDOWS, windows(2_001..2_003));
            log.send(WINDOWS, [("unassigned/1".to_owned(), positions.to_json())]);
        });
        let (ends, state) = restart(&log);
        assert_eq!(ends, [(place(WINDOWS, 0), TransactionEnd::Commit)]);
        assert_eq!(state.emitted.0, (2_001..2_003).map(|n| format!("w/{n}")).collect());
    }

    #[test]
    fn what_is_readable_behind_a_hang_is_not_repeated() {
        let log = Log::open();
        log.send(WINDOWS, windows(1_900..2_001));
        log.state(2_000);
        // Another process's decision hangs before windows of a step whose state was lost.
        log.hang(&[WINDOWS], true, || log.send(WINDOWS, windows(2_001..2_011)));
        log.send(WINDOWS, windows(2_011..2_021));
        let (ends, state) = restart(&log);
        assert_eq!(ends, [(place(WINDOWS, 0), TransactionEnd::Abort)]);
        assert_eq!(state.emitted.0, (2_011..2_021).map(|n| format!("w/{n}")).collect());
    }

    #[test]
    fn what_another_process_has_left_open_is_waited_for() {
        let log = Log::open();
        log.state(2_000);
        log.hang(&[Topic::Decisions], false, || log.send(Topic::Decisions, of_others(3)));
        assert_eq!(wait(&log), []);
        // As a former owner of the partition: it is tried once.
        let log = Log::open();
        log.state(2_000);
        log.hang(&[WINDOWS], false, || log.send(WINDOWS, windows(1_990..2_001)));
        assert_eq!(wait(&log), [(place(WINDOWS, 0), TransactionEnd::Commit)]);
        let log = Log::open();
        log.state(2_000);
        log.hang(&[STATE], false, || log.state(3_000));
        assert_eq!(wait(&log), [(place(STATE, 0), TransactionEnd::Abort)]);
    }

    #[test]
    fn ending_is_tried_again_where_no_broker_does_it() {
        let log = Log::open();
        log.state(2_000);
        log.hang(&[STATE], true, || log.state(3_000));
        let mut member = Member { refusals: 2, ..log.member() };
        assert!(!log.start_with(&mut member, &Shutdown::new()).unwrap().is_new());
        assert_eq!((member.refusals, member.ends), (0, vec![(place(STATE, 0), TransactionEnd::Abort)]));
    }

    #[test]
    fn positions_in_which_a_transaction_hangs_are_fetched_once_it_is_ended() {
        let log = Log::open();
        let inputs = [place(Topic::GpuTelemetry, 0), place(Topic::GpuTelemetry, 1)];
        let mut member = Member { has_positions: false, ..log.member() };
        let mut hanging = HangingEnds::default();
        assert_eq!(hanging.fetch_positions(&mut member, &inputs).unwrap(), [Some(7), Some(7)]);
        assert!(hanging.has_ended_any());
        assert_eq!(member.ends, []);
    }

    #[test]
    fn the_positions_count_if_the_newest_state_has_no_offsets() {
        let log = Log::open();
        log.state(2_000);
        // As an older release, after which a newer one is back.
        log.send(Topic::ProcessorState, [(String::new(), String::new())]);
        let state = log.start();
        let at = TopicPartition::new("eadt.gpu.telemetry.v1", 0);
        assert!(!state.is_new());
        assert_eq!(state.resume_offset(Topic::GpuTelemetry, &at, Some(3_000), 4_000), Some(3_000));
        log.state(3_500);
        assert_eq!(log.start().resume_offset(Topic::GpuTelemetry, &at, Some(3_600), 4_000), Some(3_500));
        assert_eq!(log.start().resume_offset(Topic::GpuTelemetry, &at, Some(3_000), 3_100), Some(3_000), "the input is another");
    }

    #[test]
    fn of_the_output_of_others_little_is_read() {
        let log = Log::open();
        log.send(Topic::Decisions, of_others(30_000));
        let state = log.start();
        assert!(state.is_new() && state.emitted.0.is_empty());
        let without_state = log.asked();
        assert!(without_state <= SCAN_RECORDS * (1 + SCAN_FACTOR), "{without_state}");
        log.now.fetch_add(HOUR, Ordering::SeqCst);
        log.state(7);
        assert!(log.start().emitted.0.is_empty());
        assert!(log.asked() <= SCAN_RECORDS, "all of it is older than the state: {}", log.asked());
    }

    #[test]
    fn without_state_a_first_step_is_found_and_not_everything_is_read() {
        let is_logged = |lines: &[String]| lines.iter().any(|line| line.contains("published outputs are not repeated"));
        let log = Log::open();
        log.send(Topic::EfficiencyWindows, windows(1..4_001));
        let (logged, state) = lines(|| log.start());
        assert!(state.is_new() && !state.was_given_up);
        assert_eq!(state.emitted.0.len(), 4_000);
        assert!(is_logged(&logged) && logged.iter().any(|line| line.contains("outputs=4000")), "{logged:?}");
        // No step writes so much.
        log.send(Topic::EfficiencyWindows, windows(4_001..30_001));
        let (logged, state) = lines(|| log.start());
        assert!(state.was_given_up && !is_logged(&logged), "{logged:?}");
        assert!(log.asked() <= MAX_SCAN_RECORDS * 2, "{}", log.asked());
    }

    #[test]
    fn of_dead_letters_an_eighth_is_looked_at() {
        let log = Log::open();
        log.send(Topic::DeadLetters, of_others(3_000));
        log.now.fetch_add(HOUR, Ordering::SeqCst);
        log.state(7);
        let (logged, state) = lines(|| log.start());
        assert!(state.emitted.0.is_empty() && logged.is_empty(), "{logged:?}");
        assert_eq!(log.asked(), 32);
        log.send(Topic::Decisions, of_others(3_000));
        log.now.fetch_add(HOUR, Ordering::SeqCst);
        log.state(8);
        log.start();
        assert_eq!(log.asked(), 32 + 256);
    }

    #[test]
    fn state_that_was_deleted_on_purpose_is_none() {
        let log = Log::open();
        log.state(7);
        assert!(!log.start().is_new());
        let mut producer = log.inner.producer("test").unwrap();
        let tombstone =
            ProducerRecord { partition: Some(0), ..ProducerRecord::tombstone(&"eadt.processor-state.v1".into(), "#") };
        producer.send(tombstone).unwrap();
        assert!(producer.flush(Duration::from_mins(1)).unwrap());
        let state = log.start();
        assert!(state.is_new());
        assert_eq!(state.records, [("#".to_owned(), None)]);
        let at = place(Topic::GpuTelemetry, 0);
        assert_eq!(state.resume_offset(Topic::GpuTelemetry, &at, Some(3), 9), None, "from the beginning, whatever was committed");
    }

    #[test]
    fn an_emitted_id_is_removed_once() {
        let letter = ScriptedBus::default().put(Topic::GpuTelemetry, 3, 0, "key", "value");
        let mut emitted = EmittedIds::default();
        assert!(!emitted.remove("a") && !emitted.remove_dead_letter(&letter));
        emitted.0.extend(["a".to_owned(), letter.location()]);
        assert!(!emitted.remove("b") && emitted.remove("a") && !emitted.remove("a"));
        assert!(emitted.remove_dead_letter(&letter) && !emitted.remove_dead_letter(&letter));
        emitted.0.insert("c".to_owned());
        assert!(!emitted.remove_dead_letter(&letter), "of another record");
    }

    #[test]
    fn a_state_with_other_offsets_than_the_positions_is_logged() {
        let state = |offsets| RestoredState { offsets, ..RestoredState::default() };
        let mut offsets = PartitionOffsets::start(3);
        offsets.advance(Topic::GpuTelemetry, 6);
        let at = place(Topic::GpuTelemetry, 3);
        for (committed, high, position, words) in [
            (Some(9), 20, 7, Some("behind")),
            (Some(7), 20, 7, None),
            (Some(5), 20, 7, Some("ahead of")),
            (Some(5), 7, 7, Some("ahead of")),
            (Some(5), 6, 5, None),
            (None, 20, 7, None),
        ] {
            let state = state(RestoredOffsets::Known(offsets, seconds(0)));
            let (logged, found) = lines(|| state.resume_offset(Topic::GpuTelemetry, &at, committed, high));
            assert_eq!(found, Some(position), "{committed:?} of {high}");
            assert_eq!(logged.len(), usize::from(words.is_some()), "{logged:?}");
            assert!(
                words.is_none_or(|words| logged[0].contains(&format!("the state is {words} the group's position"))),
                "{logged:?}"
            );
        }
        assert_eq!(state(RestoredOffsets::Unrecorded).resume_offset(Topic::GpuTelemetry, &at, Some(5), 20), Some(5));
        assert_eq!(state(RestoredOffsets::NoState).resume_offset(Topic::GpuTelemetry, &at, Some(5), 20), None);
    }

    #[test]
    fn a_look_is_at_the_newest_records_and_knows_their_older_half() {
        for (low, high, depth, start, is_whole, half) in [
            (0, 100, 30, 70, false, 85),
            (0, 30, 30, 0, true, 15),
            (4, 30, 256, 4, true, 17),
            (0, 31, 30, 1, false, 16),
            (0, 0, 9, 0, true, 0),
        ] {
            let scan = OutputScan::from_watermarks(WatermarkOffsets { low, high }, depth);
            assert_eq!((scan.start, scan.is_whole, scan.half), (start, is_whole, half), "{low} {high} {depth}");
            assert_eq!((scan.is_early(half - 1), scan.is_early(half)), (true, false));
        }
    }

    #[test]
    fn output_stamped_ten_seconds_before_the_state_was_written_before_it() {
        let scan = |oldest| OutputScan { oldest, ..OutputScan::from_watermarks(WatermarkOffsets { low: 0, high: 9 }, 3) };
        let at = |millis| EventTime::from_millis(millis);
        for (oldest, all_after) in [(None, true), (Some(at(60_000)), true), (Some(at(20_000)), true), (Some(at(19_999)), false)] {
            assert_eq!(scan(oldest).is_all_after(at(30_000)), all_after, "{oldest:?}");
        }
    }

    #[test]
    fn without_state_the_search_goes_as_far_back_as_one_step_can_have_written() {
        assert_eq!([0, 16, 17, 1_000].map(first_depth), [256, 256, 32, 32]);
        for (depth, spoke_early, further) in [
            (256, false, true),
            (2_047, false, true),
            (2_048, false, false),
            (2_048, true, true),
            (16_383, true, true),
            (16_384, true, false),
            (16_385, true, false),
            (16_384, false, false),
        ] {
            assert_eq!(must_scan_further(depth, spoke_early), further, "{depth} {spoke_early}");
        }
        for (depth, spoke_early, is_letters, given_up) in [
            (16_384, true, false, true),
            (16_385, true, false, true),
            (16_383, true, false, false),
            (16_384, false, false, false),
            (16_384, true, true, false),
            (16_384, false, true, false),
        ] {
            assert_eq!(is_state_given_up(depth, spoke_early, is_letters), given_up, "{depth} {spoke_early} {is_letters}");
        }
    }

    #[test]
    fn outputs_are_looked_for_where_they_are_of_the_partition_and_where_all_come_together() {
        let bus = ScriptedBus::default();
        let names = OutputTopics::new("eadt.", String::new());
        bus.script().partitions.extend([(Topic::EfficiencyWindows, 7), (Topic::Decisions, 7), (Topic::DeadLetters, 5)]);
        let shared = |topic, key: &str, partitions| place(topic, partition_for_key(key.as_bytes(), partitions));
        for number in 0..7 {
            let mut at = BTreeSet::from([place(Topic::EfficiencyWindows, number), place(Topic::Decisions, number)]);
            at.insert(shared(Topic::EfficiencyWindows, "gpus", 7));
            at.extend(PartitionTask::INPUTS.iter().map(|input| shared(Topic::DeadLetters, &format!("eadt.{input}"), 5)));
            let expected: BTreeSet<_> = at.into_iter().map(|at| (at, number)).collect();
            assert_eq!(output_partitions::<PartitionTask>(&bus, &names, &[number]).unwrap(), expected);
        }
        bus.script().partitions.insert(Topic::Decisions, 0);
        assert_eq!(
            output_partitions::<PartitionTask>(&bus, &names, &[0]).unwrap_err().remedy,
            Remedy::Retry,
            "no such topic, yet"
        );
    }

    #[test]
    fn an_output_shows_whose_it_is_and_whether_its_state_is_there() {
        let bus = ScriptedBus::default();
        let names = OutputTopics::new("eadt.", String::new());
        let mut offsets = PartitionOffsets::start(3);
        offsets.advance(Topic::GpuTelemetry, 6);
        let states = |offsets| BTreeMap::from([(3, RestoredState { offsets, ..RestoredState::default() })]);
        let all =
            [RestoredOffsets::Known(offsets, seconds(0)), RestoredOffsets::Unrecorded, RestoredOffsets::NoState].map(states);
        let classify =
            |record: &ConsumerRecord| all.each_ref().map(|states| classify_output::<PartitionTask>(&names, states, record));
        let owners = |is_beyond: [Option<bool>; 3]| {
            is_beyond.map(|is_beyond| match is_beyond {
                Some(is_beyond) => OutputOwner::State { number: 3, is_beyond },
                None => OutputOwner::OtherState,
            })
        };
        let (beyond, folded) = (owners([Some(true), None, Some(true)]), owners([Some(false), None, Some(true)]));
        let (other_state, other_stage) = ([OutputOwner::OtherState; 3], [OutputOwner::OtherStage; 3]);
        let window = |partition, telemetry: i64| {
            let mut positions = PartitionOffsets::start(partition);
            positions.advance(Topic::GpuTelemetry, telemetry - 1);
            bus.append(Topic::EfficiencyWindows, 3, 0, "", None, &[(header::INPUT_POSITIONS, &positions.to_json())])
        };
        for (record, expected) in [
            (window(3, 8), beyond),
            (window(3, 7), folded),
            (window(2, 8), other_state),
            (bus.put(Topic::EfficiencyWindows, 3, 0, "", ""), other_stage),
        ] {
            assert_eq!(classify(&record), expected, "{record:?}");
        }
        let letter = |service, topic, partition, offset| {
            let headers = [
                (dead_letter_header::REFUSED_BY, service),
                (dead_letter_header::ORIGIN_TOPIC, topic),
                (dead_letter_header::ORIGIN_PARTITION, partition),
                (dead_letter_header::ORIGIN_OFFSET, offset),
            ];
            bus.append(Topic::DeadLetters, 0, 0, topic, None, &headers)
        };
        let telemetry = "eadt.gpu.telemetry.v1";
        for (record, expected) in [
            (letter("processor", telemetry, "3", "7"), beyond),
            (letter("processor", telemetry, "3", "6"), folded),
            (letter("processor", "eadt.training.progress.v1", "3", "0"), beyond),
            (letter("processor/cluster", telemetry, "3", "7"), other_stage),
            (letter("processor", "eadt.decisions.v1", "3", "7"), other_state),
            (letter("processor", "other.gpu.telemetry.v1", "3", "7"), other_state),
            (letter("processor", telemetry, "2", "7"), other_state),
            (letter("processor", telemetry, "x", "7"), other_state),
        ] {
            assert_eq!(classify(&record), expected, "{record:?}");
        }
    }
}
