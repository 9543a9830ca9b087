//! Progress of the records that have been on their way for longest. Pure.
//!
//! Records are acknowledged in order within a partition, and in any order between partitions. So the number of acknowledgements does
//! not show that one broker is silent while others answer. Records are sent in two epochs: a new one begins as soon as the one
//! before the present one is complete. The records of the oldest epoch come first, and those that a silent broker keeps stay in it.

/// Counts of records on their way, by epoch.
#[derive(Debug, Default)]
pub struct DeliveryEpochs {
    in_flight: [u64; 2],
    /// Index of the epoch that records are sent in now; the other one is older.
    present: usize,
    /// Number of records of the oldest epoch that were acknowledged or failed.
    progress: u64,
}

impl DeliveryEpochs {
    /// Counts a record that is sent now. Returns its epoch.
    pub const fn send(&mut self) -> usize {
        let older = 1 - self.present;
        if self.in_flight[older] == 0 && self.in_flight[self.present] > 0 {
            self.present = older;
        }
        self.in_flight[self.present] += 1;
        self.present
    }

    /// Takes a record out that was not sent after all, or that a producer gave back.
    pub fn give_back(&mut self, epoch: usize) {
        if let Some(count) = self.in_flight.get_mut(epoch) {
            *count = count.saturating_sub(1);
        }
    }

    /// Counts a record of this epoch that was acknowledged or failed.
    pub fn complete(&mut self, epoch: usize) {
        let older = 1 - self.present;
        let oldest = if self.in_flight[older] > 0 { older } else { self.present };
        self.give_back(epoch);
        self.progress += u64::from(epoch == oldest);
    }

    /// Forgets messages in flight, for which no delivery report will come.
    pub const fn clear(&mut self) {
        self.in_flight = [0; 2];
    }

    pub const fn is_empty(&self) -> bool {
        self.in_flight[0] == 0 && self.in_flight[1] == 0
    }

    /// Returns a number that grows while records of the oldest epoch are acknowledged or fail.
    pub const fn progress(&self) -> u64 {
        self.progress
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::{Duration, Instant};

    use super::super::silence_watchdog::SilenceWatchdog;
    use super::*;

    #[test]
    fn one_queue_that_does_not_move_is_noticed_though_another_one_does() {
        // Every second each of two partitions is sent a record, and acknowledges the one before, the second one only for so long.
        let renewal_at = |silent_from: u64| {
            let begun = Instant::now();
            let (mut epochs, mut watchdog) = (DeliveryEpochs::default(), SilenceWatchdog::new(begun));
            let mut partitions = [VecDeque::new(), VecDeque::new()];
            (0..100).find(|second| {
                for (number, partition) in partitions.iter_mut().enumerate() {
                    partition.push_back(epochs.send());
                    if partition.len() > 1 && (number == 0 || *second < silent_from) {
                        epochs.complete(partition.pop_front().unwrap());
                    }
                }
                let now = begun + Duration::from_secs(*second);
                let waits_for = if epochs.is_empty() { epochs.progress() } else { u64::MAX };
                watchdog.is_probe_due(now, epochs.progress(), waits_for) && watchdog.is_renewal_due(now, true)
            })
        };
        assert_eq!(renewal_at(u64::MAX), None);
        let second = renewal_at(30).expect("one partition is silent");
        assert!((50..60).contains(&second), "{second}");
    }

    #[test]
    fn a_slow_answer_is_progress() {
        let mut epochs = DeliveryEpochs::default();
        let sent: Vec<_> = (0..100).map(|_| epochs.send()).collect();
        let mut before = epochs.progress();
        for epoch in sent {
            assert!(!epochs.is_empty());
            epochs.complete(epoch);
            assert!(epochs.progress() > before);
            before = epochs.progress();
        }
        assert!(epochs.is_empty());
    }

    #[test]
    fn what_is_given_back_or_forgotten_is_no_progress() {
        let mut epochs = DeliveryEpochs::default();
        let first = epochs.send();
        epochs.send();
        epochs.give_back(first);
        assert_eq!((epochs.progress(), epochs.is_empty()), (0, false));
        epochs.clear();
        assert_eq!((epochs.progress(), epochs.is_empty()), (0, true));
    }
}
