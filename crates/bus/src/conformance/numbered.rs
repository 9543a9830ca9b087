//! Numbered steps of a process that is killed, and their part in a log.

use std::sync::Arc;

use super::{outgoing, read_all};
use crate::{
    Bus, CommitStep, ConsumerRecord, IsolationLevel, MemberOptions, Membership, ProducerRecord, Result, TopicPartition, TopicSpec,
};

const INPUT: &str = "input";
const OUTPUT: &str = "output";
const STATE: &str = "state";
const PARTITIONS: i32 = 2;
const GROUP: &str = "g";
/// The line that is printed once steps begin.
pub const READY: &str = "ready";

/// Creates the topics of the steps if they are missing.
pub fn create_missing_topics(bus: &dyn Bus) -> Result<()> {
    for name in [INPUT, OUTPUT, STATE] {
        if bus.topics(name)?.is_empty() {
            let settings = std::collections::BTreeMap::default();
            bus.create_topic(&TopicSpec { name: name.into(), partitions: PARTITIONS, replication: 1, settings })?;
        }
    }
    Ok(())
}

/// Runs steps n, n + 1, … until one fails. Each writes n, with `filler` more bytes, to three partitions, commits n as
/// position, and reports it through the callback once it is acknowledged. A plain producer sends records beside them;
/// each line reports its acknowledged count, too.
pub fn commit_for_ever(bus: &dyn Bus, filler: usize, report: impl Fn(&str)) -> Result<()> {
    let mut member = bus.member(MemberOptions {
        group: GROUP.into(),
        membership: Membership::Transactional("i".into()),
        topics: vec![INPUT.into()],
    })?;
    let at = TopicPartition::new(INPUT, 0);
    let mut producer = bus.producer("plain")?;
    let (output, state, input): (Arc<str>, Arc<str>, Arc<str>) = (OUTPUT.into(), STATE.into(), INPUT.into());
    let mut sent = read_all(bus, &input, PARTITIONS, IsolationLevel::ReadCommitted).len() as u64;
    let before = sent;
    let mut n = member.committed(std::slice::from_ref(&at))?[0].unwrap_or(0) as u64;
    let filler = "x".repeat(filler);
    report(READY);
    loop {
        n += 1;
        let text = format!("{n} {filler}");
        let to = |topic: &Arc<str>, partition| ProducerRecord { partition: Some(partition), ..outgoing(topic, "k", &text) };
        let outputs = vec![to(&output, 0), to(&output, 1), to(&state, 0)];
        member.commit(&CommitStep { outputs, positions: vec![(at.clone(), n as i64)] })?;
        for _ in 0..5 {
            producer.send(ProducerRecord { partition: Some(1), ..outgoing(&input, "k", &format!("{sent} {filler}")) })?;
            sent += 1;
        }
        report(&format!("step {n} plain {}", before + producer.counts().acknowledged));
    }
}

/// Steps and plain records that were reported as acknowledged.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct AcknowledgedSteps {
    pub step: u64,
    pub plain: u64,
}

impl AcknowledgedSteps {
    /// Parses a line; `None` if it has other words, such as one that a kill cut off.
    pub fn of(line: &str) -> Option<Self> {
        let ["step", step, "plain", plain] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Self { step: step.parse().ok()?, plain: plain.parse().ok()? })
    }
}

/// The steps that a log contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedSteps {
    /// The last step, by the group's position.
    pub step: u64,
    /// Numbers in the three partitions that each step writes to, in their order.
    pub written: [Vec<u64>; 3],
    /// Plain records, which count from 0 on.
    pub plain: Vec<u64>,
}

impl LoggedSteps {
    pub fn read(bus: &dyn Bus) -> Result<Self> {
        let step = bus.committed(GROUP, &[TopicPartition::new(INPUT, 0)])?[0].unwrap_or(0) as u64;
        let all = |topic: &str| read_all(bus, &topic.into(), PARTITIONS, IsolationLevel::ReadCommitted);
        let (outputs, states) = (all(OUTPUT), all(STATE));
        let written = [(&outputs, 0), (&outputs, 1), (&states, 0)]
            .map(|(records, partition)| records.iter().filter(|record| record.at.partition == partition).map(number).collect());
        Ok(Self { step, written, plain: all(INPUT).iter().map(number).collect() })
    }
}

/// Returns the number that a record was written as.
pub fn number(record: &ConsumerRecord) -> u64 {
    let text = std::str::from_utf8(record.value.as_deref().unwrap_or_default()).unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("records of the steps begin with a number")
}
