//! What waits for the next commit, and when that is due. Nothing here reads a clock.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use eadt_bus::Outgoing;

use crate::owned::Folded;
use crate::settings::Settings;

/// Longest wait for the next record; it bounds how late a commit that waits for company is made.
const POLL: Duration = Duration::from_millis(5);
/// Dead letters are committed once there are so many, or so many bytes of them: each has its record's value, which is as large as its
/// sender likes.
const MAX_DEAD_LETTERS: usize = 1_000;
pub const MAX_DEAD_LETTER_BYTES: usize = 1 << 20;
/// As many sources that were not there before are committed at once: what is written of each takes memory, too, and whoever invents GPUs
/// says nothing else for which a commit is made.
const MAX_NEW_SOURCES: usize = 1_024;
/// An output that waits for a commit takes memory: this many are committed at once.
pub const MAX_OUTPUTS: usize = 8_192;
/// State may be a twentieth of what is read: every byte read earns a twentieth of a byte of state, every commit spends its own.
/// A commit that cannot be paid for waits, but never longer than [`MAX_LINGER`]; state below this size is never waited for.
const LARGE_STATE: usize = 4 << 20;
const STATE_SHARE: usize = 20;
/// What may be earned ahead: between the ends of two windows nothing is committed, and at an end every workload is.
const MOST_EARNED: usize = 64 << 20;
const MAX_LINGER: Duration = Duration::from_secs(5);
/// While a backlog is worked through, what a step costs beyond its records is shared by more of them: an output waits up to so many
/// times as long as otherwise, but at most this part of how late it is anyway. What is read live is a moment late, and waits for nothing.
const CATCHING_UP: u32 = 50;
const LATE_SHARE: u32 = 20;

/// Which partitions a commit writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that have something to say.
    Speakers,
    /// All that folded anything.
    Everything,
}

/// What waits for the next commit, and since when.
#[derive(Debug, Default)]
pub struct Waiting {
    pub outputs: Vec<Outgoing>,
    /// The partitions that said them: each is consistent in itself, so the others' state need not be written with theirs.
    pub speakers: BTreeSet<i32>,
    /// The first window or decision.
    output: Option<Instant>,
    dead_letters: usize,
    dead_letter_bytes: usize,
    dead_letter: Option<Instant>,
    new_sources: usize,
    /// The partitions that have some of them.
    with_new_sources: BTreeSet<i32>,
    /// The first record that was folded.
    pub folded: Option<Instant>,
    pub input_bytes: usize,
}

impl Waiting {
    /// So many bytes were read.
    pub fn read(&mut self, bytes: usize) {
        self.input_bytes += bytes;
    }

    /// A partition folded this, and its outputs are there.
    pub fn note(&mut self, number: i32, folded: Folded, now: Instant) {
        if folded.records > 0 {
            self.folded.get_or_insert(now);
        }
        if folded.outputs > 0 {
            self.speakers.insert(number);
            self.output.get_or_insert(now);
        }
        if folded.dead_letters > 0 {
            self.speakers.insert(number);
            self.dead_letters += folded.dead_letters;
            self.dead_letter_bytes += folded.dead_letter_bytes;
            self.dead_letter.get_or_insert(now);
        }
        if folded.new_sources > 0 {
            self.with_new_sources.insert(number);
            self.new_sources += folded.new_sources;
        }
        if self.has_many_new_sources() {
            self.speakers.append(&mut self.with_new_sources);
        }
    }

    /// Whether it takes so much memory that it is committed before anything else is folded.
    pub fn is_full(&self) -> bool {
        self.outputs.len() >= MAX_OUTPUTS || self.has_many_letters() || self.has_many_new_sources()
    }

    fn has_many_new_sources(&self) -> bool {
        self.new_sources >= MAX_NEW_SOURCES
    }

    fn has_many_letters(&self) -> bool {
        self.dead_letters >= MAX_DEAD_LETTERS || self.dead_letter_bytes >= MAX_DEAD_LETTER_BYTES
    }

    /// How long the next record may be waited for: no output waits for it longer than it lingers.
    pub fn patience(&self, now: Instant, linger: Duration) -> Duration {
        self.output.map_or(POLL, |since| linger.saturating_sub(now.duration_since(since)).min(POLL))
    }

    /// The commit that is due; an output waits so long for company.
    pub fn due(&self, now: Instant, linger: Duration, settings: &Settings) -> Option<Scope> {
        let since = |at: Option<Instant>, limit: Duration| at.is_some_and(|at| now.duration_since(at) >= limit);
        if since(self.folded, Duration::from_secs_f64(settings.commit_seconds)) {
            return Some(Scope::Everything);
        }
        let said = since(self.output, linger)
            || self.has_many_letters()
            || since(self.dead_letter, Duration::from_secs_f64(settings.dead_letter_seconds));
        said.then_some(Scope::Speakers)
    }
}

/// How long an output waits for company whose commit writes so many bytes of state, at least `least`; `late`: how long ago the newest
/// record that was read came into the log.
pub fn linger(state_bytes: usize, earned: usize, least: Duration, late: Duration) -> Duration {
    if state_bytes < LARGE_STATE || earned >= state_bytes {
        least.max((least * CATCHING_UP).min(late / LATE_SHARE))
    } else {
        MAX_LINGER
    }
}

/// Bytes of state that are paid for: what was, and what so many bytes of input have earned since.
pub fn earned(before: usize, input_bytes: usize) -> usize {
    (before + input_bytes / STATE_SHARE).min(MOST_EARNED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn folded(records: usize, outputs: usize, dead_letters: usize) -> Folded {
        Folded { outputs, dead_letters, records, ..Folded::default() }
    }

    fn settings() -> Settings {
        Settings { commit_seconds: 10.0, dead_letter_seconds: 3.0, ..Settings::default() }
    }

    #[test]
    fn who_says_nothing_waits_for_the_commit_of_everything() {
        let (mut waiting, begin) = (Waiting::default(), Instant::now());
        let due = |waiting: &Waiting, seconds| waiting.due(begin + seconds * SECOND, SECOND, &settings());
        waiting.note(3, folded(0, 0, 0), begin);
        assert_eq!((waiting.folded, due(&waiting, 1_000)), (None, None), "nothing was folded");
        waiting.note(3, folded(1, 0, 0), begin + SECOND);
        waiting.note(4, folded(7, 0, 0), begin + 5 * SECOND);
        assert_eq!(waiting.folded, Some(begin + SECOND), "the first one says since when");
        assert!(waiting.speakers.is_empty());
        assert_eq!(due(&waiting, 10), None);
        assert_eq!(due(&waiting, 11), Some(Scope::Everything));
    }

    #[test]
    fn outputs_linger_and_dead_letters_wait_for_their_own_time() {
        let begin = Instant::now();
        for (said, linger, limit) in
            [(folded(1, 1, 0), 2, 2), (folded(1, 0, 1), 2, 3), (folded(1, 1, 1), 2, 2), (folded(1, 1, 1), 9, 3)]
        {
            let mut waiting = Waiting::default();
            let due = |waiting: &Waiting, seconds| waiting.due(begin + seconds * SECOND, linger * SECOND, &settings());
            waiting.note(5, said, begin);
            // What comes later has company already.
            waiting.note(6, said, begin + SECOND);
            assert_eq!(waiting.speakers, BTreeSet::from([5, 6]), "{said:?}");
            assert_eq!(due(&waiting, limit - 1), None, "{said:?}");
            assert_eq!(due(&waiting, limit), Some(Scope::Speakers), "{said:?}");
            assert_eq!(due(&waiting, 10), Some(Scope::Everything), "{said:?}");
        }
    }

    #[test]
    fn so_many_dead_letters_or_outputs_wait_for_nothing() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        waiting.note(0, folded(600, 0, 600), now);
        waiting.note(1, folded(399, 0, 399), now);
        assert_eq!((waiting.is_full(), waiting.due(now, SECOND, &settings())), (false, None));
        waiting.note(1, folded(1, 0, 1), now);
        assert_eq!((waiting.is_full(), waiting.due(now, SECOND, &settings())), (true, Some(Scope::Speakers)));

        let mut waiting = Waiting::default();
        let output = Outgoing { topic: "topic".into(), partition: None, key: None, value: None, headers: vec![] };
        waiting.outputs = vec![output; 8_191];
        assert!(!waiting.is_full());
        waiting.outputs.extend_from_within(..1);
        assert!(waiting.is_full());
    }

    #[test]
    fn so_many_new_sources_wait_for_nothing_and_fewer_for_the_commit_of_everything() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        let new = |new_sources| Folded { new_sources, ..folded(1, 0, 0) };
        waiting.note(0, new(1_000), now);
        waiting.note(1, new(23), now);
        waiting.note(2, new(0), now);
        assert_eq!((waiting.is_full(), waiting.due(now + 9 * SECOND, SECOND, &settings())), (false, None));
        assert!(waiting.speakers.is_empty());
        waiting.note(1, new(1), now);
        assert!(waiting.is_full());
        assert_eq!(waiting.speakers, BTreeSet::from([0, 1]), "who has some writes them");
    }

    #[test]
    fn nothing_is_waited_for_longer_than_an_output_lingers() {
        let (mut waiting, begin) = (Waiting::default(), Instant::now());
        let millis = Duration::from_millis;
        let patience = |waiting: &Waiting, after| waiting.patience(begin + millis(after), millis(20)).as_millis();
        waiting.note(0, folded(1, 0, 1), begin);
        assert_eq!(patience(&waiting, 0), 5, "dead letters are in no hurry");
        waiting.note(0, folded(1, 1, 0), begin);
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
            assert_eq!(linger(state_bytes, earned, SECOND, Duration::ZERO), expected, "{state_bytes} of {earned}");
        }
    }

    #[test]
    fn what_is_late_anyway_waits_for_a_twentieth_of_that_but_not_for_long() {
        let millis = Duration::from_millis;
        for (least, late, waits) in
            [(1, 0, 1), (1, 20, 1), (1, 40, 2), (1, 1_000, 50), (1, 3_600_000, 50), (20, 100, 20), (0, 1_000, 0)]
        {
            assert_eq!(linger(0, 0, millis(least), millis(late)), millis(waits), "{late} ms late");
        }
    }

    #[test]
    fn a_twentieth_of_the_input_is_earned_but_not_without_end() {
        let mut waiting = Waiting::default();
        waiting.read(70);
        waiting.read(35);
        assert_eq!(earned(7, waiting.input_bytes), 12);
        assert_eq!(earned(0, 19), 0);
        assert_eq!(earned(64 << 20, 0), 64 << 20);
        assert_eq!(earned((64 << 20) - 1, 40), 64 << 20);
    }
}
