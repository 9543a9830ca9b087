//! What is in the log against what must be there.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_bus::{Bus, Isolation, Polled, Record, Start, TopicPartition};
use eadt_core::{FoldSettings, Input, Output, Partition};
use eadt_processor::codec::Decoded;
use eadt_schemas::v1::{Action, Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, Topic};

use crate::story::{BASE_SECONDS, Expected, Story, Told, WINDOW_SECONDS};

/// What is wrong.
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

/// Where a partition ends; waits for a leader that is on its way.
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
pub fn read_committed(bus: &dyn Bus, topic: &str, partitions: i32) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    each_committed(bus, topic, partitions, |record| records.push(record))?;
    Ok(records)
}

/// The same for more than memory holds.
pub fn each_committed(bus: &dyn Bus, topic: &str, partitions: i32, mut each: impl FnMut(Record)) -> Result<()> {
    for partition in 0..partitions {
        let at = TopicPartition::new(topic, partition);
        let high = high(bus, &at, Duration::from_mins(1))?;
        let mut reader = bus.reader(&[(at.clone(), Start::Earliest)], Isolation::ReadCommitted)?;
        let (mut polled, mut heard, mut complete) = (Vec::new(), Instant::now(), false);
        while !complete {
            ensure!(heard.elapsed() < Duration::from_mins(2), "{at} could not be read to its end at {high}");
            reader.poll(4096, Duration::from_millis(200), &mut polled)?;
            for item in polled.drain(..) {
                match item {
                    Polled::Record(record) => {
                        heard = Instant::now();
                        each(record);
                    }
                    Polled::End { position, .. } => complete |= position >= high,
                    Polled::Assigned(_) | Polled::Revoked(_) | Polled::Lost(_) => {}
                }
            }
        }
    }
    Ok(())
}

/// Windows and decisions by their id, as the code under test writes them when nothing ever happens to it.
pub fn straight(told: &[Told], settings: &FoldSettings, partitions: i32) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let (mut windows, mut decisions, mut out) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for number in 0..partitions {
        let mut partition = Partition::new(settings.clone());
        for (i, told) in told.iter().enumerate().filter(|(_, told)| told.partition(partitions) == number) {
            let decoded = Decoded::of(told.topic, Some(told.kind.name()), Some(&told.value));
            let stamp = EventTime::from_micros((BASE_SECONDS + 1_000_000) * 1_000_000 + i as i64 * 1000);
            let input = Input { topic: told.topic, stamp, key: Some(&told.key), event: decoded.event() };
            partition.fold(&input, &mut out);
            for output in out.drain(..) {
                match output {
                    Output::Window(window) => {
                        windows.insert(window.id.clone(), json(&*window));
                    }
                    Output::Decision(decision) => {
                        decisions.insert(decision.id.clone(), json(&*decision));
                    }
                    Output::Refused(_) => {}
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
fn text(record: &Record, known: &impl serde::Serialize) -> String {
    let text = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default());
    if text.contains(eadt_faults::OF_THE_NEXT_VERSION) { json(known) } else { text.into_owned() }
}

/// Each id of `wanted` once with its value, and nothing else.
pub fn once(what: &str, wanted: &BTreeMap<String, String>, found: &[(String, String)], findings: &mut Findings) {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, value) in found {
        let count = seen.entry(id).or_default();
        *count += 1;
        match wanted.get(id) {
            _ if *count > 1 => {
                findings.duplicated += 1;
                findings.example(|| format!("{what} {id} is there {count} times"));
            }
            None => {
                findings.wrong += 1;
                findings.example(|| format!("{what} {id} should not be there"));
            }
            Some(wanted) if wanted != value => {
                findings.wrong += 1;
                findings.example(|| format!("{what} {id} is {value} and should be {wanted}"));
            }
            Some(_) => {}
        }
    }
    for id in wanted.keys().filter(|id| !seen.contains_key(id.as_str())) {
        findings.lost += 1;
        findings.example(|| format!("{what} {id} is missing"));
    }
    findings.compared += wanted.len() as u64;
}

/// What the processor wrote.
#[derive(Debug, Default)]
struct Written {
    windows: Vec<(String, String)>,
    /// By workload and begin.
    by_begin: BTreeMap<(String, i64), EfficiencyWindow>,
    decisions: Vec<(String, String)>,
    /// By workload and time.
    actions: BTreeMap<(String, i64), Action>,
}

impl Written {
    fn read(bus: &dyn Bus, prefix: &str, partitions: i32) -> Result<Self> {
        let mut written = Self::default();
        for record in read_committed(bus, &format!("{prefix}{}", Topic::EfficiencyWindows), partitions)? {
            let window: EfficiencyWindow =
                serde_json::from_slice(record.value.as_deref().unwrap_or_default()).context("a window")?;
            written.windows.push((window.id.clone(), text(&record, &window)));
            written.by_begin.insert((window.workload.clone(), window.window_start.micros() / 1_000_000), window);
        }
        for record in read_committed(bus, &format!("{prefix}{}", Topic::Decisions), partitions)? {
            let decision: Decision = serde_json::from_slice(record.value.as_deref().unwrap_or_default()).context("a decision")?;
            written.decisions.push((decision.id.clone(), text(&record, &decision)));
            written.actions.insert((decision.workload.clone(), decision.time.micros() / 1_000_000), decision.action);
        }
        Ok(written)
    }
}

/// Everything that the processor wrote for a story that has ended.
pub fn processor(bus: &dyn Bus, prefix: &str, story: &Story, settings: &FoldSettings, partitions: i32) -> Result<Findings> {
    let mut findings = Findings::default();
    let logged = Logged::read(bus, prefix, story, partitions)?;
    let (windows, decisions) = straight(&logged.told, settings, partitions);
    let written = Written::read(bus, prefix, partitions)?;
    once("window", &windows, &written.windows, &mut findings);
    once("decision", &decisions, &written.decisions, &mut findings);
    model(&story.expected(), &written.by_begin, &written.actions, &logged.repeated, &mut findings);
    Ok(findings)
}

/// A story as it stands in the log. Where a broker dies before it has answered, its sender begins anew and says again what it had
/// said: then an event is there twice, and windows are to say so.
struct Logged {
    told: Vec<Told>,
    /// Windows, by workload and begin, that may count an event as one that was there.
    repeated: BTreeSet<(String, i64)>,
}

impl Logged {
    fn read(bus: &dyn Bus, prefix: &str, story: &Story, partitions: i32) -> Result<Self> {
        let mut logged: BTreeMap<i32, Vec<(EventTime, &Told)>> = BTreeMap::new();
        let mut repeated = BTreeSet::new();
        let topics: BTreeSet<Topic> = story.told.iter().map(|told| told.topic).collect();
        for topic in topics {
            let of_topic = story.told.iter().filter(|told| told.topic == topic);
            let told: HashMap<(&[u8], &[u8]), &Told> =
                of_topic.map(|told| ((told.key.as_bytes(), told.value.as_slice()), told)).collect();
            let (mut seen, mut newest) = (HashSet::new(), BTreeMap::new());
            for record in read_committed(bus, &format!("{prefix}{topic}"), partitions)? {
                let what = (record.key.as_deref().unwrap_or_default(), record.value.as_deref().unwrap_or_default());
                // Heartbeats are the processor's own.
                let Some(told) = told.get(&what) else { continue };
                if !seen.insert((told.key.as_str(), told.value.as_slice())) {
                    let begin = told.time.micros() / 1_000_000 / WINDOW_SECONDS * WINDOW_SECONDS;
                    let around = [begin - WINDOW_SECONDS, begin, begin + WINDOW_SECONDS];
                    repeated.extend(around.map(|begin| (told.key.clone(), begin)));
                }
                let newest = newest.entry(record.at.partition).or_insert(told.time);
                *newest = told.time.max(*newest);
                logged.entry(record.at.partition).or_default().push((*newest, told));
            }
        }
        if repeated.is_empty() {
            return Ok(Self { told: story.told.clone(), repeated });
        }
        // Inputs meet by time, each in its own order.
        let mut told = Vec::new();
        for mut events in logged.into_values() {
            events.sort_by_key(|(time, _)| *time);
            told.extend(events.into_iter().map(|(_, told)| told.clone()));
        }
        Ok(Self { told, repeated })
    }
}

/// The same by the model alone, where what is written depends on when something was told.
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
    actions: &BTreeMap<(String, i64), Action>,
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
        let action = actions.get(&(wanted.workload.clone(), window.window_end.micros() / 1_000_000));
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

    /// The model and the fold have nothing in common but what the design says, and agree on every seed.
    #[test]
    fn the_model_agrees_with_the_fold() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut story = Story::new(seed, 3);
            for _ in 0..45 + seed {
                story.tick();
            }
            story.end();
            let (windows, decisions) = straight(&story.told, &processor_settings("").fold(), 2);
            let windows = windows.values().map(|text| serde_json::from_str::<EfficiencyWindow>(text).unwrap());
            let windows = windows.map(|w| ((w.workload.clone(), w.window_start.micros() / 1_000_000), w)).collect();
            let decisions = decisions.values().map(|text| serde_json::from_str::<Decision>(text).unwrap());
            let actions: BTreeMap<_, _> =
                decisions.map(|d| ((d.workload.clone(), d.time.micros() / 1_000_000), d.action)).collect();
            kinds.extend(actions.values().copied());
            let mut findings = Findings::default();
            model(&story.expected(), &windows, &actions, &BTreeSet::new(), &mut findings);
            assert_eq!(findings.violations(), 0, "seed {seed}: {:#?}", findings.examples);
        }
        assert_eq!(kinds.len(), 4, "every cell of the matrix occurs: {kinds:?}");
    }

    /// Clocks that are wrong by up to an hour, and one that falls back.
    #[test]
    fn the_model_agrees_with_the_fold_whatever_the_clocks_say() {
        for seed in 0..20 {
            let mut story = crate::rows::clocks::story(seed, BASE_SECONDS);
            crate::rows::clocks::tell(&mut story, 100, |_| Ok(())).unwrap();
            let (windows, decisions) = straight(&story.told, &processor_settings("").fold(), 2);
            let windows = windows.values().map(|text| serde_json::from_str::<EfficiencyWindow>(text).unwrap());
            // Without a limit nothing of the future is refused; it is not in the model.
            let windows: BTreeMap<_, _> = windows
                .map(|w| ((w.workload.clone(), w.window_start.micros() / 1_000_000), w))
                .filter(|((workload, _), _)| *workload != Story::name(crate::rows::clocks::HOUR_AHEAD))
                .collect();
            let decisions = decisions.values().map(|text| serde_json::from_str::<Decision>(text).unwrap());
            let actions = decisions.map(|d| ((d.workload.clone(), d.time.micros() / 1_000_000), d.action)).collect();
            let mut findings = Findings::default();
            model(&story.expected(), &windows, &actions, &BTreeSet::new(), &mut findings);
            assert_eq!(findings.violations(), 0, "seed {seed}: {:#?}", findings.examples);
        }
    }

    #[test]
    fn what_is_missing_doubled_or_other_is_found() {
        let wanted = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
        let found = [("a", "1"), ("a", "1"), ("c", "3")].map(|(id, value)| (id.to_owned(), value.to_owned()));
        let mut findings = Findings::default();
        once("window", &wanted, &found, &mut findings);
        assert_eq!((findings.lost, findings.duplicated, findings.wrong), (1, 1, 1));
    }
}
