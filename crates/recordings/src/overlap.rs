//! Two ranges of time that should overlap, and the shift between two clocks that explains why they do not.

use eadt_schemas::EventTime;

/// First and last moment, both included.
pub(crate) type TimeRange = (EventTime, EventTime);

const MINUTE: i64 = 60_000_000;
/// No two time zones are further apart than this.
const MOST_MINUTES: i64 = 26 * 60;

/// Microseconds that two ranges have in common; negative if they are apart.
fn overlap_micros(a: TimeRange, b: TimeRange) -> i64 {
    a.1.min(b.1).micros() - a.0.max(b.0).micros()
}

/// Returns whether two ranges have no moment in common.
pub(crate) fn are_apart(a: TimeRange, b: TimeRange) -> bool {
    overlap_micros(a, b) < 0
}

/// Returns the hours that `readings` must be shifted by to match `run`: the difference of two time zones, in whole hours if any
/// whole hour matches, else in quarters. `None` if no such shift explains the distance.
pub(crate) fn zone_shift_hours(readings: TimeRange, run: TimeRange) -> Option<f64> {
    let shortest = (run.1.micros() - run.0.micros()).min(readings.1.micros() - readings.0.micros());
    for step in [60, 30, 15] {
        let shifted = |minutes: i64| (readings.0.plus_micros(minutes * MINUTE), readings.1.plus_micros(minutes * MINUTE));
        let candidates = (-MOST_MINUTES / step..=MOST_MINUTES / step).map(|n| n * step);
        let best = candidates.map(|minutes| (overlap_micros(shifted(minutes), run), -minutes.abs(), minutes)).max();
        if let Some((_, _, minutes)) = best.filter(|(common, ..)| *common >= 0 && *common * 10 >= shortest * 9) {
            return Some(minutes as f64 / 60.0);
        }
    }
    None
}

/// Returns the offset of the readings' local times that would explain the distance from a run in UTC: `-07:00`.
pub(crate) fn zone_of_readings(readings: TimeRange, run: TimeRange) -> Option<String> {
    let minutes = (-zone_shift_hours(readings, run)? * 60.0) as i64;
    let sign = if minutes < 0 { '-' } else { '+' };
    Some(format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60))
}

/// Returns a sentence about readings outside a run: both time ranges, and the shift in hours that would make them match.
pub(crate) fn describe(readings: TimeRange, run: TimeRange) -> String {
    let ranges = format!("the readings run from {} to {}, the run from {} to {}", readings.0, readings.1, run.0, run.1);
    match zone_shift_hours(readings, run) {
        Some(hours) => format!("{ranges}; shifted by {hours:+} h the readings would match: the clocks are of two time zones"),
        None => format!("{ranges}; no difference of time zones explains it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> EventTime {
        EventTime::from_micros(1_700_000_000_000_000 + minutes * MINUTE)
    }

    #[test]
    fn a_difference_of_time_zones_is_found_and_nothing_else_is() {
        for (readings, run, hours) in [
            ((-420, -405), (2, 12), Some(7.0)),
            ((480, 500), (1, 19), Some(-8.0)),
            ((-330, -300), (5, 25), Some(5.5)),
            ((-345, -325), (1, 19), Some(5.75)),
            ((-60, -30), (0, 30), Some(1.0)),
            // Recorded on another day, or minutes off: no zone explains that.
            ((-4_000, -3_990), (0, 10), None),
            ((-10, -4), (0, 6), None),
        ] {
            let range = |(from, to)| (at(from), at(to));
            assert_eq!(zone_shift_hours(range(readings), range(run)), hours, "{readings:?} {run:?}");
        }
        assert!(!are_apart((at(0), at(10)), (at(10), at(20))));
        assert!(are_apart((at(0), at(9)), (at(10), at(20))));
        let text = describe((at(-420), at(-405)), (at(2), at(12)));
        assert!(text.contains("shifted by +7 h") && text.contains(&at(2).to_string()), "{text}");
    }
}
