//! Detection of a client that is silent though the cluster is not. Pure: the caller asks the cluster.

use std::time::{Duration, Instant};

/// Time without an acknowledgement after which the cluster is asked, and for which it must answer then. The library itself needs
/// some seconds to find a broker that has come back.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct SilenceWatchdog {
    limit: Duration,
    completed: u64,
    /// Last time at which nothing was in flight, or a record was acknowledged or failed.
    moved: Instant,
    probed_at: Option<Instant>,
    answers_since: Option<Instant>,
    /// Number of times that the client was replaced.
    pub renewals: u64,
}

impl SilenceWatchdog {
    pub fn new(now: Instant) -> Self {
        Self::with_limit(now, LIMIT)
    }

    pub fn with_limit(now: Instant, limit: Duration) -> Self {
        Self { limit, completed: 0, moved: now, probed_at: None, answers_since: None, renewals: 0 }
    }

    /// Records that the client was replaced.
    pub fn renew(&mut self, now: Instant) {
        (self.moved, self.probed_at, self.answers_since) = (now, None, None);
        self.renewals += 1;
    }

    /// Returns whether it is time to ask the cluster whether it answers. `completed` changes with every sign of the brokers; nothing is
    /// waited for while it is `accepted`.
    pub fn is_probe_due(&mut self, now: Instant, completed: u64, accepted: u64) -> bool {
        if completed != self.completed || completed == accepted {
            self.completed = completed;
            (self.moved, self.probed_at, self.answers_since) = (now, None, None);
            return false;
        }
        let waited = self.probed_at.map_or_else(|| now - self.moved >= self.limit, |probed| now - probed >= self.limit / 3);
        if waited {
            self.probed_at = Some(now);
        }
        waited
    }

    /// Returns whether the client is to be made anew, after the cluster did or did not answer.
    pub fn is_renewal_due(&mut self, now: Instant, answered: bool) -> bool {
        // Asking takes time, too.
        self.probed_at = Some(now);
        if !answered {
            self.answers_since = None;
            return false;
        }
        now - *self.answers_since.get_or_insert(now) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks each second whether it is due, as long as it is silent; the second in which it is over.
    fn over_at(answers: impl Fn(u64) -> bool, completed: impl Fn(u64) -> u64) -> Option<u64> {
        let begun = Instant::now();
        let mut silence = SilenceWatchdog::new(begun);
        (0..200).find(|second| {
            let now = begun + Duration::from_secs(*second);
            silence.is_probe_due(now, completed(*second), 100) && silence.is_renewal_due(now, answers(*second))
        })
    }

    #[test]
    fn only_a_silence_while_the_cluster_answers_counts() {
        // Asked every third of the limit.
        assert_eq!(over_at(|_| true, |_| 0), Some(22));
        assert_eq!(over_at(|_| false, |_| 0), None);
        // A pause of a minute: the library has its time after it.
        assert_eq!(over_at(|second| second >= 60, |_| 0), Some(74));
        // It answers now and then.
        assert_eq!(over_at(|second| second % 10 < 5, |_| 0), None);
    }

    #[test]
    fn what_moves_or_has_nothing_to_move_is_not_silent() {
        assert_eq!(over_at(|_| true, |second| second / 10), None);
        assert_eq!(over_at(|_| true, |_| 100), None);
        assert_eq!(over_at(|_| true, |second| u64::from(second >= 20)), Some(42));
    }
}
