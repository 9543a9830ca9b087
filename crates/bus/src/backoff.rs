//! Retries of one operation until it works: growing pauses, and one line for a trouble instead of one for each attempt.

use std::fmt::Display;
use std::time::Duration;

/// Pauses between attempts. They double from the least to the most, and begin anew once something worked.
#[derive(Debug, Clone)]
pub struct RetryBackoff {
    least: Duration,
    most: Duration,
    failures: u32,
    /// The error of the last warning, without its figures.
    warned: String,
}

impl RetryBackoff {
    pub fn new(least: Duration, most: Duration) -> Self {
        Self { least, most: most.max(least), failures: 0, warned: String::new() }
    }

    /// Returns the pause before the next attempt, after one failed. A failure is a warning unless the last warning was the same
    /// but for its figures: repetitions are logged for debugging.
    pub fn on_failure(&mut self, what: &str, error: &dyn Display) -> Duration {
        let doubled = self.least.saturating_mul(1 << self.failures.min(20));
        let wait = doubled.min(self.most);
        self.failures = self.failures.saturating_add(1);
        let text: String = error.to_string().chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.failures == 1 || text != self.warned {
            self.warned = text;
            tracing::warn!(%error, "{what}: retrying until it succeeds, at least every {} s", self.most.as_secs_f64());
        } else {
            tracing::debug!(%error, attempts = self.failures, "{what}");
        }
        wait
    }

    /// Resets the pauses after an attempt that succeeded; logs it if one had failed before.
    pub fn on_success(&mut self, what: &str) {
        if self.failures > 0 {
            tracing::info!(attempts = self.failures, "{what}: it works again");
        }
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use eadt_testing::lines;

    use super::*;

    #[test]
    fn pauses_grow_and_one_line_reports_many_attempts() {
        let (logged, ()) = lines(|| {
            let mut backoff = RetryBackoff::new(Duration::from_millis(100), Duration::from_secs(2));
            for _ in 0..2 {
                let full = |n| format!("the disk is full: {n} MiB are free");
                let pauses: Vec<u128> = (0..7).map(|n| backoff.on_failure("writing", &full(n)).as_millis()).collect();
                assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
                backoff.on_success("writing");
                backoff.on_success("writing");
            }
        });
        let reported: Vec<_> = logged.iter().filter(|line| !line.starts_with("DEBUG")).collect();
        assert_eq!(reported.len(), 4, "{reported:?}");
        assert!(
            reported[0].starts_with("WARN") && reported[0].contains("the disk is full") && reported[0].contains("every 2 s"),
            "{reported:?}"
        );
        assert!(reported[1].starts_with("INFO") && reported[1].contains("attempts=7"), "{reported:?}");
    }

    #[test]
    fn another_error_is_logged_too() {
        let (logged, ()) = lines(|| {
            let mut backoff = RetryBackoff::new(Duration::ZERO, Duration::ZERO);
            for error in ["no route 1", "no route 2", "no leader", "no leader"] {
                assert_eq!(backoff.on_failure("asking", &error), Duration::ZERO);
            }
        });
        let reported: Vec<_> = logged.iter().filter(|line| line.starts_with("WARN")).collect();
        assert_eq!(reported.len(), 2, "{reported:?}");
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut backoff = RetryBackoff::new(Duration::from_hours(24 * 365 * 1000), Duration::MAX);
        for _ in 0..100 {
            assert!(backoff.on_failure("x", &"y") > Duration::ZERO);
        }
    }
}
