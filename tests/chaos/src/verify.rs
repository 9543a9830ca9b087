//! Compares the log with its required content.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_bus::{Bus, ConsumerRecord, IsolationLevel, PollEvent, StartOffset, TopicPartition};
use eadt_core::{FoldOutput, FoldSettings, InputRecord, PartitionFold};
use eadt_processor::codec::DecodedRecord;
use eadt_schemas::v1::{ControllerAction, Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, Topic};

use crate::story::{BASE_SECONDS, Expected, Story, StoryEvent, WINDOW_SECONDS};

/// Errors found.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    pub lost: u64,
    pub duplicated: u64,
    /// There, but not what it should be, or nothing that should be there at all.
    pub wrong: u64,
    /// Windows and decisions that were compared.
    pub compared: u64,
    /// The first few, in words.
    pub examples: Vec<String>,
}

impl Findings {
    pub fn violations(&self) -> u64 {
        self.lost + self.duplicated + self.wrong
    }

    pub fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < 5 {
            self.examples.push(text());
        }
    }

    pub fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.wrong += other.wrong;
        self.compared += other.compared;
        self.examples.extend(other.examples);
        self.examples.truncate(5);
    }
}

/// Returns the end of a partition; waits for a leader if there is none yet.
pub fn high(bus: &dyn Bus, at: &TopicPartition, limit: Duration) -> Result<i64> {
    let begun = Instant::now();
    loop {
        match bus.watermarks(at) {
            Ok(ends) => return Ok(ends.high),
            Err(error) if begun.elapsed() > limit => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Every committed record of a topic, partition by partition.
pub fn read_committed(bus: &dyn Bus, topic: &str, partitions: i32) -> Result<Vec<ConsumerRecord>> {
    let mut records = Vec::new();
    each_committed(bus, topic, partitions, |record| records.push(record))?;
    Ok(records)
}

/// The same for more than memory holds.
pub fn each_committed(bus: &dyn Bus, topic: &str, partitions: i32, mut each: impl FnMut(ConsumerRecord)) -> Result<()> {
    for partition in 0..partitions {
        let at = TopicPartition::new(topic, partition);
        let high = high(bus, &at, Duration::from_mins(1))?;
        let mut reader = bus.reader(&[(at.clone(), StartOffset::Earliest)], IsolationLevel::ReadCommitted)?;
        let (mut polled, mut last_record, mut complete) = (Vec::new(), Instant::now(), false);
        while !complete {
            ensure!(last_record.elapsed() < Duration::from_mins(2), "{at} could not be read to its end at {high}");
            reader.poll(4096, Duration::from_millis(200), &mut polled)?;
            for item in polled.drain(..) {
                match item {
                    PollEvent::Record(record) => {
                        last_record = Instant::now();
                        each(record);
                    }
                    PollEvent::End { position, .. } => complete |= position >= high,
                    PollEvent::Batch(_) | PollEvent::Assigned(_) | PollEvent::Revoked(_) | PollEvent::Lost(_) => {}
                }
            }
        }
    }
    Ok(())
}

/// A window or a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputText {
    pub id: String,
    pub workload: String,
    /// When the window begins, or the one that is decided about, in seconds.
    pub begin: i64,
    pub text: String,
}

impl OutputText {
    pub fn window(window: &EfficiencyWindow, text: String) -> Self {
        let (id, workload) = (window.id.clone(), window.workload.clone());
        Self { id, workload, begin: window.window_start.micros() / 1_000_000, text }
    }

    fn decision(decision: &Decision, text: String) -> Self {
        let (id, workload) = (decision.id.clone(), decision.workload.clone());
        Self { id, workload, begin: decision.time.micros() / 1_000_000 - WINDOW_SECONDS, text }
    }
}

/// Windows and decisions, as the code under test writes them when nothing ever happens to it.
pub fn straight(events: &[StoryEvent], settings: &FoldSettings, partitions: i32) -> (Vec<OutputText>, Vec<OutputText>) {
    let (mut windows, mut decisions, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..partitions {
        let mut partition = PartitionFold::new(settings.clone());
        for (i, event) in events.iter().enumerate().filter(|(_, event)| event.partition(partitions) == number) {
            let decoded = DecodedRecord::decode(event.topic, Some(event.kind.name()), Some(&event.value));
            let stamp = EventTime::from_micros((BASE_SECONDS + 1_000_000) * 1_000_000 + i as i64 * 1000);
            let (topic, key) = (event.topic, Some(event.key.as_str()));
            let input = InputRecord { topic, stamp, key, is_sent_again: false, event: decoded.event() };
            partition.fold(&input, &mut out);
            for output in out.drain(..) {
                match output {
                    FoldOutput::Window(window) => windows.push(OutputText::window(&window, json(&*window))),
                    FoldOutput::Decision(decision) => decisions.push(OutputText::decision(&decision, json(&*decision))),
                    FoldOutput::Refused(_) => {}
                }
            }
        }
    }
    (windows, decisions)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("events have string keys")
}

/// An event as it was written; of one by the next minor version what this one knows of it.
fn text(record: &ConsumerRecord, known: &impl serde::Serialize) -> String {
    let text = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default());
    if text.contains(eadt_faults::OF_THE_NEXT_VERSION) { json(known) } else { text.into_owned() }
}

/// Each id of `wanted` once with its text, and nothing else.
pub fn once(what: &str, wanted: &[OutputText], found: &[OutputText], findings: &mut Findings) {
    let wanted: BTreeMap<&str, &str> = wanted.iter().map(|output| (output.id.as_str(), output.text.as_str())).collect();
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for OutputText { id, text, .. } in found {
        let count = seen.entry(id).or_default();
        *count += 1;
        match wanted.get(id.as_str()) {
            _ if *count > 1 => {
                findings.duplicated += 1;
                findings.example(|| format!("{what} {id} is there {count} times"));
            }
            None => {
                findings.wrong += 1;
                findings.example(|| format!("{what} {id} should not be there"));
            }
            Some(wanted) if wanted != text => {
                findings.wrong += 1;
                findings.example(|| format!("{what} {id} is {text} and should be {wanted}"));
            }
            Some(_) => {}
        }
    }
    for id in wanted.keys().filter(|id| !seen.contains_key(*id)) {
        findings.lost += 1;
        findings.example(|| format!("{what} {id} is missing"));
    }
    findings.compared += wanted.len() as u64;
}

/// Outputs of the processor.
#[derive(Debug, Default)]
struct Written {
    windows: Vec<OutputText>,
    /// By workload and begin.
    by_begin: BTreeMap<(String, i64), EfficiencyWindow>,
    decisions: Vec<OutputText>,
    /// By workload and begin of the window that is decided about.
    actions: BTreeMap<(String, i64), ControllerAction>,
}

impl Written {
    fn read(bus: &dyn Bus, prefix: &str, partitions: i32) -> Result<Self> {
        let mut written = Self::default();
        for record in read_committed(bus, &format!("{prefix}{}", Topic::EfficiencyWindows), partitions)? {
            let window: EfficiencyWindow =
                serde_json::from_slice(record.value.as_deref().unwrap_or_default()).context("a window")?;
            written.take_window(text(&record, &window), window);
        }
        for record in read_committed(bus, &format!("{prefix}{}", Topic::Decisions), partitions)? {
            let decision: Decision = serde_json::from_slice(record.value.as_deref().unwrap_or_default()).context("a decision")?;
            written.take_decision(text(&record, &decision), &decision);
        }
        Ok(written)
    }

    fn take_window(&mut self, text: String, window: EfficiencyWindow) {
        let output = OutputText::window(&window, text);
        self.by_begin.insert((window.workload.clone(), output.begin), window);
        self.windows.push(output);
    }

    fn take_decision(&mut self, text: String, decision: &Decision) {
        let output = OutputText::decision(decision, text);
        self.actions.insert((decision.workload.clone(), output.begin), decision.action);
        self.decisions.push(output);
    }

    /// Returns the outputs of these windows, by workload and begin.
    fn of(&self, these: impl Fn(&str, i64) -> bool) -> Self {
        let of = |all: &[OutputText]| all.iter().filter(|output| these(&output.workload, output.begin)).cloned().collect();
        let (mut by_begin, mut actions) = (self.by_begin.clone(), self.actions.clone());
        by_begin.retain(|(workload, begin), _| these(workload, *begin));
        actions.retain(|(workload, begin), _| these(workload, *begin));
        Self { windows: of(&self.windows), by_begin, decisions: of(&self.decisions), actions }
    }
}

/// Everything that the processor wrote for a story that has ended.
pub fn processor(bus: &dyn Bus, prefix: &str, story: &Story, settings: &FoldSettings, partitions: i32) -> Result<Findings> {
    processor_except(bus, prefix, story, settings, partitions, |_| false)
}

/// The same, without the windows of some workloads and their decisions.
pub fn processor_except(
    bus: &dyn Bus,
    prefix: &str,
    story: &Story,
    settings: &FoldSettings,
    partitions: i32,
    is_left_out: impl Fn(&str) -> bool,
) -> Result<Findings> {
    let logged = Logged::read(bus, prefix, story, partitions)?;
    let wanted = Wanted::new(story, &logged, settings, partitions);
    let written = Written::read(bus, prefix, partitions)?;
    Ok(wanted.compare(&written, |workload, _| !is_left_out(workload)))
}

/// Required outputs.
#[derive(Debug)]
struct Wanted {
    windows: Vec<OutputText>,
    decisions: Vec<OutputText>,
    model: Vec<Expected>,
    repeated: BTreeSet<(String, i64)>,
}

impl Wanted {
    fn new(story: &Story, logged: &Logged, settings: &FoldSettings, partitions: i32) -> Self {
        let (windows, decisions) = straight(&logged.events, settings, partitions);
        Self { windows, decisions, model: story.expected(), repeated: logged.repeated.clone() }
    }

    /// Against what was written, as far as it is of these windows, by workload and begin.
    fn compare(&self, written: &Written, these: impl Fn(&str, i64) -> bool) -> Findings {
        let of =
            |all: &[OutputText]| all.iter().filter(|output| these(&output.workload, output.begin)).cloned().collect::<Vec<_>>();
        let (written, mut findings) = (written.of(&these), Findings::default());
        once("window", &of(&self.windows), &written.windows, &mut findings);
        once("decision", &of(&self.decisions), &written.decisions, &mut findings);
        let expected: Vec<Expected> = self.model.iter().filter(|wanted| these(&wanted.workload, wanted.start)).cloned().collect();
        model(&expected, &written.by_begin, &written.actions, &self.repeated, &mut findings);
        findings
    }
}

/// A story as it is in the log. If a broker dies before it has answered, its sender begins anew and sends again what it had
/// sent: then an event is there twice, and windows are to show it.
struct Logged {
    events: Vec<StoryEvent>,
    /// Windows, by workload and begin, that may count an event as one that was there.
    repeated: BTreeSet<(String, i64)>,
}

impl Logged {
    fn read(bus: &dyn Bus, prefix: &str, story: &Story, partitions: i32) -> Result<Self> {
        let mut logged: BTreeMap<i32, Vec<(EventTime, &StoryEvent)>> = BTreeMap::new();
        let mut repeated = BTreeSet::new();
        let topics: BTreeSet<Topic> = story.events.iter().map(|event| event.topic).collect();
        for topic in topics {
            let of_topic = story.events.iter().filter(|event| event.topic == topic);
            let by_content: HashMap<(&[u8], &[u8]), &StoryEvent> =
                of_topic.map(|event| ((event.key.as_bytes(), event.value.as_slice()), event)).collect();
            let (mut seen, mut newest) = (HashSet::new(), BTreeMap::new());
            for record in read_committed(bus, &format!("{prefix}{topic}"), partitions)? {
                let what = (record.key.as_deref().unwrap_or_default(), record.value.as_deref().unwrap_or_default());
                // Heartbeats are the processor's own.
                let Some(event) = by_content.get(&what) else { continue };
                if !seen.insert((event.key.as_str(), event.value.as_slice())) {
                    let begin = event.time.micros() / 1_000_000 / WINDOW_SECONDS * WINDOW_SECONDS;
                    let around = [begin - WINDOW_SECONDS, begin, begin + WINDOW_SECONDS];
                    repeated.extend(around.map(|begin| (event.key.clone(), begin)));
                }
                let newest = newest.entry(record.at.partition).or_insert(event.time);
                *newest = event.time.max(*newest);
                logged.entry(record.at.partition).or_default().push((*newest, event));
            }
        }
        if repeated.is_empty() {
            return Ok(Self { events: story.events.clone(), repeated });
        }
        // Inputs meet by time, each in its own order.
        let mut merged = Vec::new();
        for mut events in logged.into_values() {
            events.sort_by_key(|(time, _)| *time);
            merged.extend(events.into_iter().map(|(_, event)| event.clone()));
        }
        Ok(Self { events: merged, repeated })
    }
}

/// The same by the model alone, if what is written depends on when something was sent.
pub fn by_model(bus: &dyn Bus, prefix: &str, story: &Story, partitions: i32) -> Result<Findings> {
    let mut findings = Findings::default();
    let written = Written::read(bus, prefix, partitions)?;
    findings.duplicated += (written.windows.len() - written.by_begin.len()) as u64;
    findings.duplicated += (written.decisions.len() - written.actions.len()) as u64;
    let expected = story.expected();
    findings.compared += expected.len() as u64;
    model(&expected, &written.by_begin, &written.actions, &BTreeSet::new(), &mut findings);
    Ok(findings)
}

/// The windows and decisions of the model, whatever the code under test thinks.
fn model(
    expected: &[Expected],
    windows: &BTreeMap<(String, i64), EfficiencyWindow>,
    actions: &BTreeMap<(String, i64), ControllerAction>,
    repeated: &BTreeSet<(String, i64)>,
    findings: &mut Findings,
) {
    for wanted in expected {
        let Some(window) = windows.get(&(wanted.workload.clone(), wanted.start)) else {
            findings.lost += 1;
            findings.example(|| format!("the model's window {} of {} is missing", wanted.start, wanted.workload));
            continue;
        };
        let near = |found: Option<f64>, wanted: f64| (found.unwrap_or(0.0) - wanted).abs() <= 1e-6 * wanted.abs().max(1.0);
        let whole = near(window.energy_joules, wanted.energy_joules) && near(window.samples, wanted.samples);
        let again = repeated.contains(&(wanted.workload.clone(), wanted.start));
        let counted = window.late == 0 && (window.duplicates == 0 || again) && (window.stale == 0 || wanted.fell_back || again);
        let action = actions.get(&(wanted.workload.clone(), wanted.start));
        if !whole || !counted || action != Some(&wanted.action) {
            findings.wrong += 1;
            findings.example(|| {
                format!(
                    "the model wants {wanted:?}; found {:?} J, {:?} samples, late {}, stale {}, duplicates {}, {action:?}",
                    window.energy_joules, window.samples, window.late, window.stale, window.duplicates
                )
            });
        }
    }
    if windows.len() != expected.len() {
        findings.wrong += 1;
        findings.example(|| format!("{} windows instead of the model's {}", windows.len(), expected.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::processor_settings;

    /// Returns the outputs of a run without faults.
    fn written(story: &Story) -> Written {
        let (windows, decisions) = straight(&story.events, &processor_settings("").fold_settings(), 2);
        let mut written = Written::default();
        for OutputText { text, .. } in windows {
            let window = serde_json::from_str(&text).unwrap();
            written.take_window(text, window);
        }
        for OutputText { text, .. } in decisions {
            let decision = serde_json::from_str(&text).unwrap();
            written.take_decision(text, &decision);
        }
        written
    }

    fn story(seed: u64) -> Story {
        let mut story = Story::new(seed, 3);
        for _ in 0..45 + seed {
            story.tick();
        }
        story.end();
        story
    }

    /// The model and the fold have nothing in common but the design, and agree on every seed.
    #[test]
    fn the_model_agrees_with_the_fold() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let story = story(seed);
            let written = written(&story);
            kinds.extend(written.actions.values().copied());
            let mut findings = Findings::default();
            model(&story.expected(), &written.by_begin, &written.actions, &BTreeSet::new(), &mut findings);
            assert_eq!(findings.violations(), 0, "seed {seed}: {:#?}", findings.examples);
        }
        assert_eq!(kinds.len(), 4, "every cell of the matrix occurs: {kinds:?}");
    }

    /// Clocks that are wrong by up to an hour, and one that falls back.
    #[test]
    fn the_model_agrees_with_the_fold_whatever_the_clocks_show() {
        for seed in 0..20 {
            let mut story = crate::rows::clocks::story(seed, BASE_SECONDS);
            crate::rows::clocks::send_story(&mut story, 100, |_| Ok(())).unwrap();
            let mut written = written(&story);
            // Without a limit nothing of the future is refused; it is not in the model.
            written.by_begin.retain(|(workload, _), _| *workload != Story::name(crate::rows::clocks::HOUR_AHEAD));
            let mut findings = Findings::default();
            model(&story.expected(), &written.by_begin, &written.actions, &BTreeSet::new(), &mut findings);
            assert_eq!(findings.violations(), 0, "seed {seed}: {:#?}", findings.examples);
        }
    }

    #[test]
    fn what_is_missing_doubled_or_other_is_found() {
        let output = |(id, text): (&str, &str)| OutputText { id: id.into(), workload: "w".into(), begin: 0, text: text.into() };
        let wanted = [("a", "1"), ("b", "2")].map(output);
        let found = [("a", "1"), ("a", "1"), ("c", "3")].map(output);
        let mut findings = Findings::default();
        once("window", &wanted, &found, &mut findings);
        assert_eq!((findings.lost, findings.duplicated, findings.wrong), (1, 1, 1));
    }

    /// Errors in windows that are judged separately do not excuse others.
    #[test]
    fn windows_that_are_judged_apart_are_left_out_and_no_others() {
        let story = story(1);
        let logged = Logged { events: story.events.clone(), repeated: BTreeSet::new() };
        let wanted = Wanted::new(&story, &logged, &processor_settings("").fold_settings(), 2);
        let (one, other) = (Story::name(0), Story::name(1));
        let apart = |workload: &str, begin| workload == one && (BASE_SECONDS + 10..=BASE_SECONDS + 19).contains(&begin);
        let without = |workload: &str, begin: i64| {
            let mut written = written(&story);
            written.windows.retain(|output| output.workload != workload || output.begin != begin);
            written.by_begin.retain(|(of, at), _| of != workload || *at != begin);
            (wanted.compare(&written, |workload, begin| !apart(workload, begin)), wanted.compare(&written, apart))
        };
        let (rest, these) = without(&one, BASE_SECONDS + 10);
        assert_eq!((rest.violations(), rest.compared), (0, 28), "{:#?}", rest.examples);
        assert!(these.violations() > 0 && these.compared == 2, "{these:#?}");
        for (workload, begin) in [(&one, BASE_SECONDS + 20), (&other, BASE_SECONDS + 10)] {
            let (rest, these) = without(workload, begin);
            assert!(rest.violations() > 0 && these.violations() == 0, "{workload} {begin}: {rest:#?}");
        }
    }
}
