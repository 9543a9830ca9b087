//! The work of the last hour against what the starting layout would have done: what `max_slowdown_ratio` promises.
//!
//! A restart costs throughput as a cap does. Both draw on the same hour. If a restart would bring it below the floor, `hybrid`
//! first runs without a limit until the hour allows it. After a restart it does so until the hour is made up.

use eadt_schemas::EventTime;
use serde::{Deserialize, Serialize};

/// Length that the floor is kept over.
pub(super) const HOUR_SECONDS: f64 = 3600.0;
/// Part of the hour that one entry sums up.
const PART_SECONDS: f64 = 300.0;

/// Sums over five minutes, oldest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HourlyThroughput {
    /// Start, samples done and samples due.
    parts: Vec<(EventTime, f64, f64)>,
    /// Throughput of the starting layout in the present phase, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_rate: Option<f64>,
}

impl HourlyThroughput {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.due_rate.is_none()
    }

    /// Adds a window's samples and those that the starting layout would have done in it.
    pub fn add(&mut self, start: EventTime, end: EventTime, done: f64, due: f64) {
        match self.parts.last_mut().filter(|(from, ..)| start.seconds_since(*from) < PART_SECONDS) {
            Some((_, sum, sum_due)) => (*sum, *sum_due) = (*sum + done, *sum_due + due),
            None => self.parts.push((start, done, due)),
        }
        self.parts.retain(|(from, ..)| end.seconds_since(*from) <= HOUR_SECONDS);
    }

    /// Returns samples done beyond a part of those due; negative: less.
    pub fn spare_samples(&self, part: f64) -> f64 {
        self.parts.iter().map(|(_, done, due)| done - part * due).sum()
    }

    /// Returns samples done over samples due; `None` before there are any.
    pub fn ratio(&self) -> Option<f64> {
        let (done, due) = self.parts.iter().fold((0.0, 0.0), |(a, b), (_, done, due)| (a + done, b + due));
        (due > 0.0).then(|| done / due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_holds_the_windows_of_the_last_sixty_minutes() {
        let at = |minute: u32| EventTime::from_seconds(f64::from(minute) * 60.0);
        let mut hour = HourlyThroughput::default();
        assert_eq!(hour.ratio(), None);
        for minute in 0..60 {
            hour.add(at(minute), at(minute + 1), if minute < 3 { 0.0 } else { 100.0 }, 100.0);
        }
        assert!((hour.ratio().unwrap() - 0.95).abs() < 1e-12, "three minutes of sixty are lost: {:?}", hour.ratio());
        assert!((hour.spare_samples(0.92) - 180.0).abs() < 1e-9);
        for minute in 60..66 {
            hour.add(at(minute), at(minute + 1), 93.0, 100.0);
        }
        assert!(hour.ratio().unwrap() > 0.99, "the restart is over: {:?}", hour.ratio());
    }
}
