//! Schedule of samples. Pure.

use std::time::{Duration, Instant};

/// A fixed grid of due times: a late sample does not move the ones after it, and due times passed over are counted.
#[derive(Debug, Clone, Copy)]
pub struct SampleSchedule {
    due: Instant,
    period: Duration,
}

impl SampleSchedule {
    /// Builds the schedule. The first sample is due at `first`.
    pub fn new(first: Instant, period: Duration) -> Self {
        Self { due: first, period: period.max(Duration::from_micros(1)) }
    }

    pub fn due(&self) -> Instant {
        self.due
    }

    /// Notes that the due sample was taken, or missed: the next one is due a period later.
    pub fn advance(&mut self) {
        self.due += self.period;
    }

    /// Passes over every due time that lies a full period or more before `now`; returns how many.
    pub fn pass_over(&mut self, now: Instant) -> u64 {
        let late = now.saturating_duration_since(self.due);
        let missed = (late.as_nanos() / self.period.as_nanos()) as u64;
        self.due += self.period.saturating_mul(u32::try_from(missed).unwrap_or(u32::MAX));
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_within_a_period_misses_nothing_and_more_misses_whole_periods() {
        let start = Instant::now();
        let period = Duration::from_millis(100);
        let mut schedule = SampleSchedule::new(start, period);
        assert_eq!(schedule.pass_over(start + Duration::from_millis(99)), 0);
        assert_eq!(schedule.due(), start);
        schedule.advance();
        assert_eq!(schedule.pass_over(start + Duration::from_millis(350)), 2);
        assert_eq!(schedule.due(), start + Duration::from_millis(300));
        assert_eq!(schedule.pass_over(start), 0);
    }
}
