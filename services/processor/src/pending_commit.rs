//! The outputs of the next commit, and when it is due. Pure: the caller gives the time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use eadt_bus::ProducerRecord;

use crate::partition_task::FoldCounts;
use crate::settings::ProcessorSettings;

/// Longest wait for the next record; it bounds how late a commit that waits for company is made.
const POLL_TIMEOUT: Duration = Duration::from_millis(5);
/// Dead letters are committed once there are so many, or so many bytes of them: each has its record's value, which is as large as
/// its sender likes.
const MAX_DEAD_LETTERS: usize = 1_000;
pub const MAX_DEAD_LETTER_BYTES: usize = 1 << 20;
/// Number of new sources that causes a commit at once. The state entry of each takes memory, too, and a sender of invented GPUs
/// causes no other commit.
const MAX_NEW_SOURCES: usize = 1_024;
/// An output that waits for a commit takes memory: this many are committed at once.
pub const MAX_OUTPUTS: usize = 8_192;
/// Limits state writes to 5 % of the input bytes: every input byte adds a twentieth of a byte of credit, every commit spends its
/// state. A commit without credit waits, at most [`MAX_LINGER`]; state below this size never waits.
const LARGE_STATE_BYTES: usize = 4 << 20;
const INPUT_BYTES_PER_STATE_BYTE: usize = 20;
/// Largest credit: between the ends of two windows nothing is committed, and at an end every workload is.
const MAX_STATE_WRITE_CREDIT: usize = 64 << 20;
const MAX_LINGER: Duration = Duration::from_secs(5);
/// During a backlog more records share the fixed cost of a step. An output waits up to so many times as long as otherwise, but at
/// most [`MAX_LINGER`] and this part of its lateness. What is read live is a moment late, and waits for nothing.
const BACKLOG_LINGER_FACTOR: u32 = 200;
const LATENESS_PER_LINGER: u32 = 20;

/// Partitions that a commit writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitScope {
    /// Partitions with outputs.
    WithOutput,
    /// Every partition that folded a record.
    Everything,
}

/// Outputs and counts since the last commit.
#[derive(Debug, Default)]
pub struct PendingCommit {
    pub outputs: Vec<ProducerRecord>,
    /// Partitions with outputs: each is consistent in itself, so the others' state need not be written with theirs.
    pub partitions_with_output: BTreeSet<i32>,
    /// The first window or decision.
    first_output: Option<Instant>,
    dead_letters: usize,
    dead_letter_bytes: usize,
    first_dead_letter: Option<Instant>,
    new_sources: usize,
    /// The partitions that have some of them.
    partitions_with_new_sources: BTreeSet<i32>,
    /// The first record that was folded.
    pub first_folded: Option<Instant>,
    pub input_bytes: usize,
}

impl PendingCommit {
    /// Adds bytes that were read.
    pub fn add_input_bytes(&mut self, bytes: usize) {
        self.input_bytes += bytes;
    }

    /// Adds the counts of a fold.
    pub fn add_fold(&mut self, number: i32, folded: FoldCounts, now: Instant) {
        if folded.records > 0 {
            self.first_folded.get_or_insert(now);
        }
        if folded.outputs > 0 {
            self.partitions_with_output.insert(number);
            self.first_output.get_or_insert(now);
        }
        if folded.dead_letters > 0 {
            self.partitions_with_output.insert(number);
            self.dead_letters += folded.dead_letters;
            self.dead_letter_bytes += folded.dead_letter_bytes;
            self.first_dead_letter.get_or_insert(now);
        }
        if folded.new_sources > 0 {
            self.partitions_with_new_sources.insert(number);
            self.new_sources += folded.new_sources;
        }
        if self.has_many_new_sources() {
            self.partitions_with_output.append(&mut self.partitions_with_new_sources);
        }
    }

    /// Returns whether it takes so much memory that it is committed before anything else is folded.
    pub fn is_full(&self) -> bool {
        self.outputs.len() >= MAX_OUTPUTS || self.has_many_letters() || self.has_many_new_sources()
    }

    fn has_many_new_sources(&self) -> bool {
        self.new_sources >= MAX_NEW_SOURCES
    }

    fn has_many_letters(&self) -> bool {
        self.dead_letters >= MAX_DEAD_LETTERS || self.dead_letter_bytes >= MAX_DEAD_LETTER_BYTES
    }

    /// Returns how long to poll: no output waits longer than it lingers.
    pub fn poll_timeout(&self, now: Instant, linger: Duration) -> Duration {
        self.first_output.map_or(POLL_TIMEOUT, |since| linger.saturating_sub(now.duration_since(since)).min(POLL_TIMEOUT))
    }

    /// Returns the scope of the commit that is due, if any. `linger`: how long an output waits for others.
    pub fn due_scope(&self, now: Instant, linger: Duration, settings: &ProcessorSettings) -> Option<CommitScope> {
        let since = |at: Option<Instant>, limit: Duration| at.is_some_and(|at| now.duration_since(at) >= limit);
        if since(self.first_folded, Duration::from_secs_f64(settings.commit_seconds)) {
            return Some(CommitScope::Everything);
        }
        let is_output_due = since(self.first_output, linger)
            || self.has_many_letters()
            || since(self.first_dead_letter, Duration::from_secs_f64(settings.dead_letter_seconds));
        is_output_due.then_some(CommitScope::WithOutput)
    }
}

/// Returns how long an output waits for others to be committed with it. The commit writes `state_bytes` of state; the wait is at
/// least `least`. `late` is the age of the newest record that was read.
pub fn output_linger(state_bytes: usize, credit: usize, least: Duration, late: Duration) -> Duration {
    if state_bytes < LARGE_STATE_BYTES || credit >= state_bytes {
        least.max((least * BACKLOG_LINGER_FACTOR).min(MAX_LINGER).min(late / LATENESS_PER_LINGER))
    } else {
        MAX_LINGER
    }
}

/// Returns the bytes of state that may be written: the credit before, and what these input bytes add.
pub fn state_write_credit(before: usize, input_bytes: usize) -> usize {
    (before + input_bytes / INPUT_BYTES_PER_STATE_BYTE).min(MAX_STATE_WRITE_CREDIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn folded(records: usize, outputs: usize, dead_letters: usize) -> FoldCounts {
        FoldCounts { outputs, dead_letters, records, ..FoldCounts::default() }
    }

    fn settings() -> ProcessorSettings {
        ProcessorSettings { commit_seconds: 10.0, dead_letter_seconds: 3.0, ..ProcessorSettings::default() }
    }

    #[test]
    fn partitions_without_output_wait_for_the_commit_of_everything() {
        let (mut waiting, begin) = (PendingCommit::default(), Instant::now());
        let due = |waiting: &PendingCommit, seconds| waiting.due_scope(begin + seconds * SECOND, SECOND, &settings());
        waiting.add_fold(3, folded(0, 0, 0), begin);
        assert_eq!((waiting.first_folded, due(&waiting, 1_000)), (None, None), "nothing was folded");
        waiting.add_fold(3, folded(1, 0, 0), begin + SECOND);
        waiting.add_fold(4, folded(7, 0, 0), begin + 5 * SECOND);
        assert_eq!(waiting.first_folded, Some(begin + SECOND), "the first one sets since when");
        assert!(waiting.partitions_with_output.is_empty());
        assert_eq!(due(&waiting, 10), None);
        assert_eq!(due(&waiting, 11), Some(CommitScope::Everything));
    }

    #[test]
    fn outputs_linger_and_dead_letters_wait_for_their_own_time() {
        let begin = Instant::now();
        for (outputs, linger, limit) in
            [(folded(1, 1, 0), 2, 2), (folded(1, 0, 1), 2, 3), (folded(1, 1, 1), 2, 2), (folded(1, 1, 1), 9, 3)]
        {
            let mut waiting = PendingCommit::default();
            let due =
                |waiting: &PendingCommit, seconds| waiting.due_scope(begin + seconds * SECOND, linger * SECOND, &settings());
            waiting.add_fold(5, outputs, begin);
            // A later fold does not extend the wait.
            waiting.add_fold(6, outputs, begin + SECOND);
            assert_eq!(waiting.partitions_with_output, BTreeSet::from([5, 6]), "{outputs:?}");
            assert_eq!(due(&waiting, limit - 1), None, "{outputs:?}");
            assert_eq!(due(&waiting, limit), Some(CommitScope::WithOutput), "{outputs:?}");
            assert_eq!(due(&waiting, 10), Some(CommitScope::Everything), "{outputs:?}");
        }
    }

    #[test]
    fn so_many_dead_letters_or_outputs_wait_for_nothing() {
        let now = Instant::now();
        let mut waiting = PendingCommit::default();
        waiting.add_fold(0, folded(600, 0, 600), now);
        waiting.add_fold(1, folded(399, 0, 399), now);
        assert_eq!((waiting.is_full(), waiting.due_scope(now, SECOND, &settings())), (false, None));
        waiting.add_fold(1, folded(1, 0, 1), now);
        assert_eq!((waiting.is_full(), waiting.due_scope(now, SECOND, &settings())), (true, Some(CommitScope::WithOutput)));

        let mut waiting = PendingCommit::default();
        let output = ProducerRecord { topic: "topic".into(), partition: None, key: None, value: None, headers: vec![] };
        waiting.outputs = vec![output; 8_191];
        assert!(!waiting.is_full());
        waiting.outputs.extend_from_within(..1);
        assert!(waiting.is_full());
    }

    #[test]
    fn so_many_new_sources_wait_for_nothing_and_fewer_for_the_commit_of_everything() {
        let now = Instant::now();
        let mut waiting = PendingCommit::default();
        let new = |new_sources| FoldCounts { new_sources, ..folded(1, 0, 0) };
        waiting.add_fold(0, new(1_000), now);
        waiting.add_fold(1, new(23), now);
        waiting.add_fold(2, new(0), now);
        assert_eq!((waiting.is_full(), waiting.due_scope(now + 9 * SECOND, SECOND, &settings())), (false, None));
        assert!(waiting.partitions_with_output.is_empty());
        waiting.add_fold(1, new(1), now);
        assert!(waiting.is_full());
        assert_eq!(waiting.partitions_with_output, BTreeSet::from([0, 1]), "who has some writes them");
    }

    #[test]
    fn nothing_is_waited_for_longer_than_an_output_lingers() {
        let (mut waiting, begin) = (PendingCommit::default(), Instant::now());
        let millis = Duration::from_millis;
        let patience = |waiting: &PendingCommit, after| waiting.poll_timeout(begin + millis(after), millis(20)).as_millis();
        waiting.add_fold(0, folded(1, 0, 1), begin);
        assert_eq!(patience(&waiting, 0), 5, "dead letters are in no hurry");
        waiting.add_fold(0, folded(1, 1, 0), begin);
        for (after, waits) in [(0, 5), (15, 5), (17, 3), (20, 0), (99, 0)] {
            assert_eq!(patience(&waiting, after), waits, "after {after} ms");
        }
    }

    #[test]
    fn large_state_is_waited_for_until_input_has_paid_for_it() {
        const MIB: usize = 1 << 20;
        for (state_bytes, earned, waits) in [
            (4 * MIB - 1, 0, false),
            (4 * MIB, 0, true),
            (4 * MIB, 4 * MIB - 1, true),
            (4 * MIB, 4 * MIB, false),
            (9 * MIB, 4 * MIB, true),
            (9 * MIB, 10 * MIB, false),
        ] {
            let expected = if waits { 5 * SECOND } else { SECOND };
            assert_eq!(output_linger(state_bytes, earned, SECOND, Duration::ZERO), expected, "{state_bytes} of {earned}");
        }
    }

    #[test]
    fn what_is_late_anyway_waits_for_a_twentieth_of_that_but_not_for_long() {
        let millis = Duration::from_millis;
        for (least, late, waits) in [
            (1, 0, 1),
            (1, 20, 1),
            (1, 40, 2),
            (1, 1_000, 50),
            (1, 3_600_000, 200),
            (20, 100, 20),
            (1_000, 3_600_000, 5_000),
            (0, 1_000, 0),
        ] {
            assert_eq!(output_linger(0, 0, millis(least), millis(late)), millis(waits), "{late} ms late");
        }
    }

    #[test]
    fn a_twentieth_of_the_input_is_earned_but_not_without_end() {
        let mut waiting = PendingCommit::default();
        waiting.add_input_bytes(70);
        waiting.add_input_bytes(35);
        assert_eq!(state_write_credit(7, waiting.input_bytes), 12);
        assert_eq!(state_write_credit(0, 19), 0);
        assert_eq!(state_write_credit(64 << 20, 0), 64 << 20);
        assert_eq!(state_write_credit((64 << 20) - 1, 40), 64 << 20);
    }
}
