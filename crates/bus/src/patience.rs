//! What is tried again until it works: growing pauses, and one line for a trouble instead of one for each attempt.

use std::fmt::Display;
use std::time::Duration;

/// Pauses between attempts. They double from the least to the most, and begin anew once something worked.
#[derive(Debug, Clone)]
pub struct Patience {
    least: Duration,
    most: Duration,
    failures: u32,
    /// What was told last, without its figures.
    told: String,
}

impl Patience {
    pub fn new(least: Duration, most: Duration) -> Self {
        Self { least, most: most.max(least), failures: 0, told: String::new() }
    }

    /// An attempt failed: the pause before the next one. A failure is a warning unless the last one told was the same but for its
    /// figures: repetitions are there for debugging.
    pub fn failed(&mut self, what: &str, error: &dyn Display) -> Duration {
        let doubled = self.least.saturating_mul(1 << self.failures.min(20));
        let wait = doubled.min(self.most);
        self.failures = self.failures.saturating_add(1);
        let told: String = error.to_string().chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.failures == 1 || told != self.told {
            self.told = told;
            tracing::warn!(%error, "{what}: tried again until it works, at least every {} s", self.most.as_secs_f64());
        } else {
            tracing::debug!(%error, attempts = self.failures, "{what}");
        }
        wait
    }

    /// An attempt succeeded; says so where one had failed before.
    pub fn worked(&mut self, what: &str) {
        if self.failures > 0 {
            tracing::info!(attempts = self.failures, "{what}: it works again");
        }
        self.failures = 0;
    }

    /// Whether the last attempt failed.
    pub fn is_tried(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span;
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Keeps the levels and messages of this thread's lines.
    #[derive(Default, Clone)]
    struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Text(String);
            impl Visit for Text {
                fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                    use std::fmt::Write as _;
                    write!(self.0, "{field}={value:?} ").unwrap();
                }
            }
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn pauses_grow_and_one_line_tells_of_many_attempts() {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            let mut patience = Patience::new(Duration::from_millis(100), Duration::from_secs(2));
            for _ in 0..2 {
                let full = |n| format!("the disk is full: {n} MiB are free");
                let pauses: Vec<u128> = (0..7).map(|n| patience.failed("writing", &full(n)).as_millis()).collect();
                assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
                assert!(patience.is_tried());
                patience.worked("writing");
                patience.worked("writing");
            }
        });
        let lines = lines.0.lock().unwrap();
        let told: Vec<_> = lines.iter().filter(|(level, _)| *level <= Level::INFO).collect();
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[0].0 == Level::WARN && told[0].1.contains("the disk is full") && told[0].1.contains("every 2 s"));
        assert!(told[1].0 == Level::INFO && told[1].1.contains("attempts=7"), "{told:?}");
    }

    #[test]
    fn another_trouble_is_told_too() {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            let mut patience = Patience::new(Duration::ZERO, Duration::ZERO);
            for error in ["no route 1", "no route 2", "no leader", "no leader"] {
                assert_eq!(patience.failed("asking", &error), Duration::ZERO);
            }
        });
        let lines = lines.0.lock().unwrap();
        let told: Vec<_> = lines.iter().filter(|(level, _)| *level == Level::WARN).collect();
        assert_eq!(told.len(), 2, "{told:?}");
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut patience = Patience::new(Duration::from_hours(24 * 365 * 1000), Duration::MAX);
        for _ in 0..100 {
            assert!(patience.failed("x", &"y") > Duration::ZERO);
        }
    }
}
