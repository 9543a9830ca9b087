//! GPUs without a workload: each has windows of its own, all under one name.

use eadt_schemas::EventTime;
use eadt_schemas::v1::EfficiencyWindow;

use crate::liveness::open_limit_seconds;

/// Sums of the newest windows of GPUs without a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IdleGpus {
    /// Start and end of the newest windows.
    newest: Option<(EventTime, EventTime)>,
    power_watts: f64,
    devices: u32,
}

impl IdleGpus {
    /// Takes a window of one of them; returns whether it is the first one of its time. A window without known power, or one that is
    /// older than the newest, adds nothing.
    pub fn add(&mut self, window: &EfficiencyWindow) -> bool {
        let Some(watts) = window.mean_power_watts else { return false };
        let newest = self.newest.map(|(start, _)| start);
        let is_first = newest < Some(window.window_start);
        if is_first {
            *self = Self { newest: Some((window.window_start, window.window_end)), ..Self::default() };
        }
        if is_first || newest == Some(window.window_start) {
            self.power_watts += watts;
            self.devices += 1;
        }
        is_first
    }

    /// Returns their power in watts and their number; `None` if no power is known, or if the newest windows are too old.
    pub fn power_now(&self, now: EventTime) -> Option<(f64, u32)> {
        let (start, end) = self.newest?;
        let is_recent = now.seconds_since(end) <= open_limit_seconds(end.seconds_since(start));
        is_recent.then_some((self.power_watts, self.devices))
    }

    /// Returns the same as of the newest windows, whatever their age.
    pub fn last_power(&self) -> Option<(f64, u32)> {
        self.newest.map(|_| (self.power_watts, self.devices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_windows_add_up_until_they_are_too_old() {
        let at = |minute: i64| EventTime::from_micros(minute * 60_000_000);
        let window = |minute: i64, mean_power_watts| EfficiencyWindow {
            window_start: at(minute),
            window_end: at(minute + 1),
            mean_power_watts,
            ..EfficiencyWindow::default()
        };
        let mut gpus = IdleGpus::default();
        let windows = [(0, Some(90.0)), (1, Some(60.0)), (1, Some(70.0)), (1, None), (0, Some(80.0))];
        let first: Vec<bool> = windows.into_iter().map(|(minute, watts)| gpus.add(&window(minute, watts))).collect();
        assert_eq!(first, [true, true, false, false, false]);
        assert_eq!((gpus.power_now(at(2)), gpus.power_now(at(5))), (Some((130.0, 2)), Some((130.0, 2))));
        // They work for somebody now.
        assert_eq!((gpus.power_now(at(6)), gpus.last_power()), (None, Some((130.0, 2))));
    }
}
