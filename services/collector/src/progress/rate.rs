//! Rate limit of requests. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Full buckets are forgotten once there are so many.
const SENDERS: usize = 1024;

/// A bucket for each sender: full it allows a second's worth at once, and it fills up evenly.
#[derive(Debug)]
pub struct RateLimiter {
    /// Time that one request takes out.
    each: Duration,
    /// Capacity of a full bucket.
    burst: Duration,
    /// Time at which each sender's bucket is full again. A full one is as good as none, so this is as large as there were senders
    /// lately.
    full_at: HashMap<String, Instant>,
    /// Full ones are looked for again when there are so many.
    look_at: usize,
}

impl RateLimiter {
    pub fn new(per_second: f64) -> Self {
        let each = Duration::from_secs_f64(1.0 / per_second);
        Self { each, burst: each.max(Duration::from_secs(1)), full_at: HashMap::new(), look_at: SENDERS }
    }

    /// Takes one request out of a sender's bucket; the error is how long to wait until there is room.
    pub fn admit(&mut self, sender: &str, now: Instant) -> Result<(), Duration> {
        let full_at = self.full_at.get(sender).copied().unwrap_or(now).max(now) + self.each;
        let missing = full_at.saturating_duration_since(now).saturating_sub(self.burst);
        if !missing.is_zero() {
            return Err(missing);
        }
        if let Some(known) = self.full_at.get_mut(sender) {
            *known = full_at;
            return Ok(());
        }
        if self.full_at.len() >= self.look_at {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.look_at = SENDERS.max(2 * self.full_at.len());
        }
        self.full_at.insert(sender.to_owned(), full_at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_a_second_then_the_rate_for_each_sender_alone() {
        let (mut rate, start) = (RateLimiter::new(10.0), Instant::now());
        let admitted = |rate: &mut RateLimiter, sender: &str, at: Duration| {
            (0..100).filter(|_| rate.admit(sender, start + at).is_ok()).count()
        };
        assert_eq!(admitted(&mut rate, "a", Duration::ZERO), 10);
        assert_eq!(rate.admit("a", start), Err(Duration::from_millis(100)));
        assert_eq!(admitted(&mut rate, "b", Duration::ZERO), 10);
        assert_eq!(admitted(&mut rate, "a", Duration::from_millis(300)), 3);
        assert_eq!(admitted(&mut rate, "a", Duration::from_mins(1)), 10);
    }

    #[test]
    fn senders_of_former_times_are_forgotten_and_those_of_now_are_not() {
        let (mut rate, start) = (RateLimiter::new(1.0), Instant::now());
        for second in 0..10 * SENDERS as u64 {
            assert_eq!(rate.admit(&format!("account {second}"), start + Duration::from_secs(second)), Ok(()));
        }
        assert!(rate.full_at.len() <= SENDERS);
        let now = start + Duration::from_secs(20 * SENDERS as u64);
        for sender in 0..2 * SENDERS {
            assert_eq!(rate.admit(&format!("sender {sender}"), now), Ok(()));
        }
        for sender in 0..2 * SENDERS {
            assert!(rate.admit(&format!("sender {sender}"), now).is_err(), "{sender} had its one");
        }
    }

    #[test]
    fn a_rate_below_one_a_second_admits_one() {
        let (mut rate, start) = (RateLimiter::new(0.5), Instant::now());
        assert_eq!(rate.admit("a", start), Ok(()));
        assert!(rate.admit("a", start + Duration::from_secs(1)).is_err());
        assert_eq!(rate.admit("a", start + Duration::from_secs(2)), Ok(()));
    }
}
