//! Values between two readings, on the straight line from one to the other.

use eadt_schemas::EventTime;

/// A point on the line between the two readings around a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LinePoint {
    /// Value at that time.
    pub(crate) value: f64,
    /// Difference of the two values.
    pub(crate) rise: f64,
}

impl LinePoint {
    /// Returns the value at a time; `readings` are in order of time; `None` outside of them.
    pub(crate) fn at(readings: &[(EventTime, f64)], time: EventTime) -> Option<Self> {
        let next = readings.partition_point(|(other, _)| *other < time);
        let (to, after) = *readings.get(next)?;
        if to == time && next == 0 {
            return Some(Self { value: after, rise: 0.0 });
        }
        let (from, before) = *readings.get(next.checked_sub(1)?)?;
        let value = before + (after - before) * time.seconds_since(from) / to.seconds_since(from);
        Some(Self { value, rise: (after - before).abs() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_drawn_between_readings_and_nowhere_else() {
        let at = EventTime::from_seconds;
        let readings = [(at(10.0), 100.0), (at(20.0), 200.0), (at(30.0), 150.0)];
        for (second, expected) in [
            (9.0, None),
            (10.0, Some((100.0, 0.0))),
            (15.0, Some((150.0, 100.0))),
            (20.0, Some((200.0, 100.0))),
            (25.0, Some((175.0, 50.0))),
            (30.0, Some((150.0, 50.0))),
            (31.0, None),
        ] {
            let line = LinePoint::at(&readings, at(second)).map(|line| (line.value, line.rise));
            assert_eq!(line, expected, "{second} s");
        }
    }
}
