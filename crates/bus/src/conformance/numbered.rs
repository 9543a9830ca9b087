//! Numbered steps of a process that is killed, and what a log has of them.

use std::sync::Arc;

use super::{outgoing, read_all};
use crate::{Bus, Isolation, MemberOptions, Membership, Outgoing, Record, Result, Step, TopicPartition, TopicSpec};

const INPUT: &str = "input";
const OUTPUT: &str = "output";
const STATE: &str = "state";
const PARTITIONS: i32 = 2;
const GROUP: &str = "g";
/// What is said once steps begin.
pub const READY: &str = "ready";

/// Makes the topics of the steps, where they are not there.
pub fn topics(bus: &dyn Bus) -> Result<()> {
    for name in [INPUT, OUTPUT, STATE] {
        if bus.topics(name)?.is_empty() {
            let settings = std::collections::BTreeMap::default();
            bus.create_topic(&TopicSpec { name: name.into(), partitions: PARTITIONS, replication: 1, settings })?;
        }
    }
    Ok(())
}

/// Steps n, n + 1, …: each writes n, with so many bytes more, to three partitions, commits n as position, and says so once it is
/// acknowledged. Beside them a plain producer, which says what it knows to be acknowledged. Ends where a step fails.
pub fn commit_for_ever(bus: &dyn Bus, filler: usize, say: impl Fn(&str)) -> Result<()> {
    let mut member = bus.member(MemberOptions {
        group: GROUP.into(),
        membership: Membership::Transactional("i".into()),
        topics: vec![INPUT.into()],
    })?;
    let at = TopicPartition::new(INPUT, 0);
    let mut producer = bus.producer("plain")?;
    let (output, state, input): (Arc<str>, Arc<str>, Arc<str>) = (OUTPUT.into(), STATE.into(), INPUT.into());
    let mut sent = read_all(bus, &input, PARTITIONS, Isolation::ReadCommitted).len() as u64;
    let before = sent;
    let mut n = member.committed(std::slice::from_ref(&at))?[0].unwrap_or(0) as u64;
    let filler = "x".repeat(filler);
    say(READY);
    loop {
        n += 1;
        let text = format!("{n} {filler}");
        let to = |topic: &Arc<str>, partition| Outgoing { partition: Some(partition), ..outgoing(topic, "k", &text) };
        let outputs = vec![to(&output, 0), to(&output, 1), to(&state, 0)];
        member.commit(&Step { outputs, positions: vec![(at.clone(), n as i64)] })?;
        for _ in 0..5 {
            producer.send(Outgoing { partition: Some(1), ..outgoing(&input, "k", &format!("{sent} {filler}")) })?;
            sent += 1;
        }
        say(&format!("step {n} plain {}", before + producer.counts().acknowledged));
    }
}

/// Steps and plain records that were said to be acknowledged.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    pub step: u64,
    pub plain: u64,
}

impl Said {
    /// What a line says; one that was cut off by a kill has fewer words.
    pub fn of(line: &str) -> Option<Self> {
        let ["step", step, "plain", plain] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Self { step: step.parse().ok()?, plain: plain.parse().ok()? })
    }
}

/// What a log has of the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The last step, by the group's position.
    pub step: u64,
    /// Numbers in the three partitions that each step writes to, in their order.
    pub written: [Vec<u64>; 3],
    /// Plain records, which count from 0 on.
    pub plain: Vec<u64>,
}

impl Found {
    pub fn read(bus: &dyn Bus) -> Result<Self> {
        let step = bus.committed(GROUP, &[TopicPartition::new(INPUT, 0)])?[0].unwrap_or(0) as u64;
        let all = |topic: &str| read_all(bus, &topic.into(), PARTITIONS, Isolation::ReadCommitted);
        let (outputs, states) = (all(OUTPUT), all(STATE));
        let written = [(&outputs, 0), (&outputs, 1), (&states, 0)]
            .map(|(records, partition)| records.iter().filter(|record| record.at.partition == partition).map(number).collect());
        Ok(Self { step, written, plain: all(INPUT).iter().map(number).collect() })
    }
}

/// What a record was written as.
pub fn number(record: &Record) -> u64 {
    let text = std::str::from_utf8(record.value.as_deref().unwrap_or_default()).unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("records of the steps begin with a number")
}
