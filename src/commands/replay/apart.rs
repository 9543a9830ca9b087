//! Workloads whose power and progress have no time in common, for instance because two clocks are in different zones.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::EfficiencyWindow;

/// First and last moment.
type TimeExtent = Option<(EventTime, EventTime)>;

/// Times of each workload's energy, and of its progress.
#[derive(Debug, Default)]
pub struct WorkloadTimeExtents {
    by_workload: BTreeMap<String, (TimeExtent, TimeExtent)>,
}

impl WorkloadTimeExtents {
    pub fn add(&mut self, window: &EfficiencyWindow) {
        let positive = |value: Option<f64>| value.is_some_and(|value| value > 0.0);
        let has_energy = positive(window.energy_joules);
        let has_progress = positive(window.samples) || positive(window.tokens);
        if !has_energy && !has_progress {
            return;
        }
        if !self.by_workload.contains_key(&window.workload) {
            self.by_workload.insert(window.workload.clone(), (None, None));
        }
        let Some((energy, progress)) = self.by_workload.get_mut(&window.workload) else { return };
        for (range, has) in [(energy, has_energy), (progress, has_progress)] {
            if has {
                let (from, to) = range.unwrap_or((window.window_start, window.window_end));
                *range = Some((from.min(window.window_start), to.max(window.window_end)));
            }
        }
    }

    /// Returns a line for each workload whose power and progress are apart.
    pub fn describe(&self) -> Vec<String> {
        let apart = |(workload, (energy, progress)): (&String, &(TimeExtent, TimeExtent))| {
            let text = eadt_recordings::describe_apart((*energy)?, (*progress)?)?;
            Some(format!("{workload}: power and progress have no time in common: {text}"))
        };
        self.by_workload.iter().filter_map(apart).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_shift_between_power_and_progress() {
        let window = |minute: i64, joules: Option<f64>, samples: Option<f64>| EfficiencyWindow {
            workload: "lab/a".to_owned(),
            window_start: EventTime::from_micros(minute * 60_000_000),
            window_end: EventTime::from_micros((minute + 1) * 60_000_000),
            energy_joules: joules,
            samples,
            ..EfficiencyWindow::default()
        };
        let mut ranges = WorkloadTimeExtents::default();
        for minute in 0..5 {
            ranges.add(&window(720 + minute, Some(18_000.0), None));
            ranges.add(&window(600 + minute, None, Some(60.0)));
        }
        let lines = ranges.describe();
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("lab/a: power and progress have no time in common") && lines[0].contains("-2 h"),
            "{lines:?}"
        );
        ranges.add(&window(604, Some(1.0), Some(60.0)));
        assert!(ranges.describe().is_empty());
    }
}
