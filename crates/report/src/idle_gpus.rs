//! GPUs without a workload: each has windows of its own, all under one name.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::EfficiencyWindow;

use crate::figures::GPUS_WITHOUT_WORKLOAD;
use crate::liveness::{PresentMoment, SampleInterval, WindowTimes};

/// Fewer GPUs are all remembered, however old their windows are.
const FEW: usize = 1024;

/// The newest windows of GPUs without a workload. Each GPU closes its windows by itself, so that they come in any order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IdleGpus {
    /// By the name of the GPU.
    newest: BTreeMap<String, IdleWindow>,
}

/// The newest window of a GPU without a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
struct IdleWindow {
    times: WindowTimes,
    power_watts: Option<f64>,
    /// By this and earlier windows of the GPU.
    interval: SampleInterval,
}

/// Power and number of GPUs without a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IdlePower {
    /// Power of those whose power is known, in watts; `None` if none is known.
    pub power_watts: Option<f64>,
    /// Their number, also of those with unknown power.
    pub devices: u32,
}

impl IdlePower {
    fn add(self, window: &IdleWindow) -> Self {
        let known = self.power_watts.into_iter().chain(window.power_watts);
        Self { power_watts: known.reduce(|sum, watts| sum + watts), devices: self.devices + 1 }
    }
}

/// Returns the GPU of a window, by the window's id: `gpus//GPU/tumbling/START`.
fn device_of(window: &EfficiencyWindow) -> &str {
    let name = window.id.rsplit_once("/tumbling/").map_or(window.id.as_str(), |(name, _)| name);
    name.strip_prefix(GPUS_WITHOUT_WORKLOAD).map_or(name, |device| device.trim_start_matches('/'))
}

impl IdleGpus {
    /// Returns whether a window is not newer than the newest one of its GPU: it was taken before, or is late.
    pub fn is_repeated(&self, window: &EfficiencyWindow) -> bool {
        self.newest.get(device_of(window)).is_some_and(|known| known.times.start >= window.window_start)
    }

    /// Takes a window of one of them. One that is older than the GPU's newest changes no figure.
    pub fn add(&mut self, window: &EfficiencyWindow) {
        let (times, power_watts) = (WindowTimes::from(window), window.mean_power_watts);
        let device = device_of(window);
        let mut interval = self.newest.get(device).map_or(SampleInterval::default(), |known| known.interval);
        interval.add(window);
        let idle = IdleWindow { times, power_watts, interval };
        match self.newest.get_mut(device) {
            Some(known) if known.times.start > idle.times.start => {}
            Some(known) => *known = idle,
            None => {
                self.forget_old();
                self.newest.insert(device.to_owned(), idle);
            }
        }
    }

    /// Forgets GPUs that are silent, each time that the number has doubled.
    fn forget_old(&mut self) {
        let count = self.newest.len();
        if count < FEW || !count.is_power_of_two() {
            return;
        }
        if let Some(now) = self.newest_end() {
            self.newest.retain(|_, idle| !idle.times.is_silent(now));
        }
    }

    fn newest_end(&self) -> Option<EventTime> {
        self.newest.values().map(|idle| idle.times.end).max()
    }

    fn current(&self, moment: PresentMoment) -> impl Iterator<Item = (&str, &IdleWindow)> {
        let is_current = move |idle: &IdleWindow| moment.has(&idle.times.sampled_each(idle.interval));
        self.newest.iter().filter(move |(_, idle)| is_current(idle)).map(|(device, idle)| (device.as_str(), idle))
    }

    /// Returns those that are without work at a moment and that `is_idle` accepts by their names: the next window of each is not
    /// overdue, and the GPU was observed at the end of the newest one.
    pub fn power_at(&self, moment: PresentMoment, is_idle: impl Fn(&str) -> bool) -> IdlePower {
        let idle = self.current(moment).filter(|(device, _)| is_idle(device));
        idle.fold(IdlePower::default(), |sum, (_, idle)| sum.add(idle))
    }

    /// Returns those that were without work at the end of their newest window of all, of any age.
    pub fn last_power(&self) -> IdlePower {
        let record_end = self.newest.values().map(|idle| idle.times.observed_end()).max();
        let last = self.newest_end().map(|now| self.power_at(PresentMoment { now, record_end }, |_| true));
        last.unwrap_or_default()
    }

    /// Returns the earliest end of the newest windows whose successors are likely to be open; `None` if there are none.
    pub fn open_since(&self, moment: PresentMoment) -> Option<EventTime> {
        self.current(moment).map(|(_, idle)| idle.times.end).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> EventTime {
        EventTime::from_micros(minute * 60_000_000)
    }

    fn window(device: &str, minute: i64, mean_power_watts: Option<f64>) -> EfficiencyWindow {
        let (window_start, window_end) = (at(minute), at(minute + 1));
        let id = format!("gpus//{device}/tumbling/{window_start}");
        EfficiencyWindow { id, window_start, window_end, mean_power_watts, ..EfficiencyWindow::default() }
    }

    /// Returns power and number at a minute of a record that goes on.
    fn figures(gpus: &IdleGpus, minute: i64) -> (Option<f64>, u32) {
        let power = gpus.power_at(PresentMoment { now: at(minute), record_end: None }, |_| true);
        (power.power_watts, power.devices)
    }

    #[test]
    fn the_newest_window_of_each_counts_whatever_order_they_come_in() {
        let mut gpus = IdleGpus::default();
        let mut sums = Vec::new();
        for (device, minute, watts) in
            [("A", 1, 50.0), ("B", 1, 70.0), ("A", 2, 51.0), ("A", 3, 52.0), ("B", 2, 71.0), ("B", 1, 7.0)]
        {
            gpus.add(&window(device, minute, Some(watts)));
            sums.push(figures(&gpus, 4));
        }
        let watts = [50.0, 120.0, 121.0, 122.0, 123.0, 123.0];
        assert_eq!(
            sums,
            [1, 2, 2, 2, 2, 2].into_iter().zip(watts).map(|(count, watts)| (Some(watts), count)).collect::<Vec<_>>()
        );
        assert_eq!(gpus.open_since(PresentMoment { now: at(4), record_end: None }), Some(at(3)), "that of B is open");
        // Each is without work until its own next window is overdue.
        assert_eq!([6, 7, 8].map(|minute| figures(&gpus, minute)), [(Some(123.0), 2), (Some(52.0), 1), (None, 0)]);
        let last = gpus.last_power();
        assert_eq!((last.power_watts, last.devices), (Some(123.0), 2), "of any age");
    }

    #[test]
    fn a_gpu_that_gets_a_job_leaves_with_the_window_that_it_leaves_in() {
        let mut gpus = IdleGpus::default();
        gpus.add(&window("A", 1, Some(60.0)));
        gpus.add(&window("B", 1, Some(70.0)));
        let left = EfficiencyWindow { observed_end: Some(at(2).plus_seconds(5.0)), ..window("A", 2, Some(60.0)) };
        gpus.add(&left);
        assert_eq!(figures(&gpus, 3), (Some(70.0), 1));
        let power = gpus.power_at(PresentMoment { now: at(2), record_end: None }, |device| device != "B");
        assert_eq!((power.power_watts, power.devices), (None, 0), "B is known to have got a job");
    }

    #[test]
    fn a_gpu_that_is_sampled_each_minute_counts_at_the_end_of_a_record() {
        for (events, seconds, count) in [(1, 40.0, 1), (1, 100.0, 0), (6, 25.0, 1), (6, 40.0, 0)] {
            let mut gpus = IdleGpus::default();
            for minute in 0..4 {
                let observed_end = if minute == 3 { at(3).plus_seconds(10.0) } else { at(minute + 1) };
                let observed = (Some(at(minute)), Some(observed_end));
                let base = window("A", minute, Some(60.0));
                gpus.add(&EfficiencyWindow { observed_start: observed.0, observed_end: observed.1, events, ..base });
            }
            let moment = PresentMoment { now: at(5), record_end: Some(at(3).plus_seconds(10.0 + seconds)) };
            assert_eq!(gpus.power_at(moment, |_| true).devices, count, "{events} samples a window, {seconds} s");
        }
    }

    #[test]
    fn gpus_whose_power_is_unknown_are_idle_and_counted() {
        let mut gpus = IdleGpus::default();
        assert_eq!((gpus.last_power(), figures(&gpus, 0)), (IdlePower::default(), (None, 0)));
        for (device, minute) in [("A", 0), ("A", 10), ("B", 10)] {
            gpus.add(&window(device, minute, None));
        }
        assert_eq!(figures(&gpus, 11), (None, 2));
        for (device, minute) in [("C", 9), ("D", 9), ("C", 10)] {
            gpus.add(&window(device, minute, Some(60.0)));
        }
        assert_eq!(figures(&gpus, 11), (Some(120.0), 4));
    }
}
