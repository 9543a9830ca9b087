//! GPUs without a workload: each has windows of its own, all under one name.

use eadt_schemas::EventTime;
use eadt_schemas::v1::EfficiencyWindow;

use crate::liveness::open_limit_seconds;

/// Sums of the newest windows of GPUs without a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IdleGpus {
    /// Start and end of the newest windows.
    newest: Option<(EventTime, EventTime)>,
    devices: u32,
    /// Of those whose power is known; `None`: of none it is.
    power_watts: Option<f64>,
    /// Start of the newest window with known power.
    newest_known: Option<EventTime>,
}

impl IdleGpus {
    /// Takes a window of one of them; returns whether it is the first one of its time with known power. A window that is older than
    /// the newest adds nothing.
    pub fn add(&mut self, window: &EfficiencyWindow) -> bool {
        let start = window.window_start;
        let newest = self.newest.map(|(newest, _)| newest);
        if newest < Some(start) {
            (self.newest, self.devices, self.power_watts) = (Some((start, window.window_end)), 0, None);
        }
        let is_newest = newest <= Some(start);
        self.devices += u32::from(is_newest);
        let Some(watts) = window.mean_power_watts else { return false };
        if is_newest {
            self.power_watts = Some(self.power_watts.unwrap_or(0.0) + watts);
        }
        let is_first = self.newest_known < Some(start);
        self.newest_known = self.newest_known.max(Some(start));
        is_first
    }

    /// Returns whether they are likely to be without work still; false if the newest windows are too old.
    pub fn are_idle(&self, now: EventTime) -> bool {
        self.newest.is_some_and(|(start, end)| now.seconds_since(end) <= open_limit_seconds(end.seconds_since(start)))
    }

    /// Returns their power in watts in the newest windows, whatever the age of these; `None`: it is known of none.
    pub const fn power_watts(&self) -> Option<f64> {
        self.power_watts
    }

    /// Returns their number in the newest windows, whatever the age of these, also of those whose power is unknown.
    pub const fn devices(&self) -> u32 {
        self.devices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> EventTime {
        EventTime::from_micros(minute * 60_000_000)
    }

    fn window(minute: i64, mean_power_watts: Option<f64>) -> EfficiencyWindow {
        let (window_start, window_end) = (at(minute), at(minute + 1));
        EfficiencyWindow { window_start, window_end, mean_power_watts, ..EfficiencyWindow::default() }
    }

    #[test]
    fn the_newest_windows_add_up_until_they_are_too_old() {
        let mut gpus = IdleGpus::default();
        let windows = [(0, Some(90.0)), (1, Some(60.0)), (1, Some(70.0)), (1, None), (0, Some(80.0))];
        let first: Vec<bool> = windows.into_iter().map(|(minute, watts)| gpus.add(&window(minute, watts))).collect();
        assert_eq!(first, [true, true, false, false, false]);
        assert_eq!((gpus.power_watts(), gpus.devices()), (Some(130.0), 3), "power of one of the three is unknown");
        // After that they work for somebody.
        assert_eq!([2, 5, 6].map(|minute| gpus.are_idle(at(minute))), [true, true, false]);
    }

    #[test]
    fn gpus_whose_power_is_unknown_are_idle_and_counted() {
        let mut gpus = IdleGpus::default();
        assert!(!gpus.are_idle(at(0)), "there are none");
        assert_eq!([0, 10, 10].map(|minute| gpus.add(&window(minute, None))), [false; 3]);
        assert_eq!((gpus.power_watts(), gpus.devices(), gpus.are_idle(at(11))), (None, 2, true));
        // The first one of an earlier time with known power, and the first one of this time.
        assert_eq!([9, 9, 10].map(|minute| gpus.add(&window(minute, Some(60.0)))), [true, false, true]);
        assert_eq!((gpus.power_watts(), gpus.devices()), (Some(60.0), 3));
    }
}
