//! Batches that are in memory as long as one of their rows is.

use std::sync::{Arc, Weak};

/// Number of batches up to which they are not searched again.
const FEW: usize = 16;

/// Counts the memory of batches that others hold. Those that are let go are found when it matters: when all that came take too
/// much, or are twice as many as were there the last time.
#[derive(Debug)]
pub(crate) struct HeldBatches<T> {
    batches: Vec<(Weak<T>, u64)>,
    /// Bytes of `batches`, including batches that were released since the last check.
    bytes: u64,
    /// Batches that were there at the last look.
    found: usize,
}

impl<T> HeldBatches<T> {
    pub(crate) fn new() -> Self {
        Self { batches: Vec::new(), bytes: 0, found: 0 }
    }

    /// Adds a batch of this size. Returns whether those that are still held take more than `limit` bytes.
    pub(crate) fn exceed(&mut self, limit: u64, batch: &Arc<T>, bytes: u64) -> bool {
        self.batches.push((Arc::downgrade(batch), bytes));
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > limit || self.batches.len() >= 2 * self.found.max(FEW) {
            self.batches.retain(|(batch, _)| batch.strong_count() > 0);
            self.bytes = self.batches.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
            self.found = self.batches.len();
        }
        self.bytes > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_that_are_let_go_do_not_count() {
        let mut held = HeldBatches::new();
        for _ in 0..1000 {
            assert!(!held.exceed(100, &Arc::new(()), 60));
        }
        let kept: Vec<Arc<()>> = (0..11).map(|_| Arc::new(())).collect();
        let exceeds: Vec<bool> = kept.iter().map(|batch| held.exceed(100, batch, 10)).collect();
        assert_eq!((exceeds[..10].contains(&true), exceeds[10]), (false, true));
        drop(kept);
        assert!(!held.exceed(100, &Arc::new(()), 100));
    }

    #[test]
    fn places_of_batches_that_are_let_go_are_used_again() {
        let mut held = HeldBatches::new();
        for _ in 0..1000 {
            assert!(!held.exceed(u64::MAX, &Arc::new(()), 1));
            assert!(held.batches.len() < 2 * FEW);
        }
    }
}
