//! Reports of a job about its training: beside its counters, the figures that decisions about its precision and its frozen layers
//! need.
//!
//! Reports count in the window that holds their time, whenever that closes, so that a replay sees the same.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{CounterScope, TrainingProgress};
use serde::{Deserialize, Serialize};

/// Blocks whose plasticity is kept; a report about more of them is left out.
const MAX_BLOCKS: usize = 512;

/// The newest of each figure up to a time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingReport {
    /// Time of the job's first report among these figures; another time is another job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<EventTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_remaining: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow_skips_total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<ValidationLoss>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plasticity: Option<Plasticity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_knobs: Option<Vec<String>>,
}

/// A validation loss and the step that it was first reported at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ValidationLoss {
    pub steps: f64,
    pub loss: f64,
}

/// Change of each block at one time; from the input side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plasticity {
    pub time: EventTime,
    pub blocks: Vec<Option<f64>>,
}

/// Reports of one job, by the windows that are still open.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingReports {
    /// Report at the end of the last closed window.
    pub newest: TrainingReport,
    /// Reports by the end of the open window that they belong to.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub open: BTreeMap<EventTime, TrainingReport>,
}

/// Returns whether an event reports more about its training than counters and rates, for the whole job.
pub fn reports_training(event: &TrainingProgress) -> bool {
    let has_training_fields = event.precision.is_some()
        || event.frozen_prefix_layers.is_some()
        || event.overflow_skips_total.is_some()
        || event.validation_loss.is_some()
        || event.learning_rate.is_some()
        || event.loss_scale.is_some()
        || event.layers.is_some()
        || event.plasticity.is_some()
        || event.live_knobs.is_some();
    has_training_fields && (event.scope == CounterScope::Global || event.rank == 0)
}

impl TrainingReport {
    fn from_event(event: &TrainingProgress) -> Self {
        let loss = event.validation_loss.filter(|loss| loss.is_finite());
        let blocks = event.plasticity.as_ref().filter(|blocks| blocks.len() <= MAX_BLOCKS);
        Self {
            since: Some(event.time),
            steps_total: event.steps_total,
            steps_remaining: event.steps_remaining,
            precision: event.precision.as_ref().map(|name| name.to_ascii_lowercase()),
            frozen_prefix_layers: event.frozen_prefix_layers,
            overflow_skips_total: event.overflow_skips_total,
            validation: event.steps_total.zip(loss).map(|(steps, loss)| ValidationLoss { steps, loss }),
            learning_rate: event.learning_rate,
            loss_scale: event.loss_scale,
            layers: event.layers,
            plasticity: blocks.map(|blocks| Plasticity { time: event.time, blocks: blocks.clone() }),
            live_knobs: event.live_knobs.clone(),
        }
    }

    /// Merges a later report.
    fn merge(&mut self, later: Self) {
        self.since = self.since.or(later.since);
        self.steps_total = later.steps_total.or(self.steps_total);
        self.steps_remaining = later.steps_remaining.or(self.steps_remaining);
        self.frozen_prefix_layers = later.frozen_prefix_layers.or(self.frozen_prefix_layers);
        self.overflow_skips_total = later.overflow_skips_total.or(self.overflow_skips_total);
        self.learning_rate = later.learning_rate.or(self.learning_rate);
        if later.precision.is_some() && later.precision != self.precision {
            // The scale is of the precision that it was reported with.
            self.loss_scale = None;
        }
        self.loss_scale = later.loss_scale.or(self.loss_scale);
        self.layers = later.layers.or(self.layers);
        self.precision = later.precision.or(self.precision.take());
        self.plasticity = later.plasticity.or(self.plasticity.take());
        self.live_knobs = later.live_knobs.or(self.live_knobs.take());
        // A job that repeats its last evaluation with every report made one.
        let same = |known: ValidationLoss| later.validation.is_none_or(|new| new.loss.to_bits() == known.loss.to_bits());
        if !self.validation.is_some_and(same) {
            self.validation = later.validation.or(self.validation);
        }
    }
}

impl TrainingReports {
    /// Takes in an event of the open window that ends at `end`.
    pub fn add(&mut self, end: EventTime, event: &TrainingProgress) {
        self.open.entry(end).or_default().merge(TrainingReport::from_event(event));
    }

    /// Closes the windows that end by `end`.
    pub fn close(&mut self, end: EventTime) {
        let still_open = self.open.split_off(&end.plus_micros(1));
        for (_, report) in std::mem::replace(&mut self.open, still_open) {
            self.newest.merge(report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(seconds)
    }

    fn event(seconds: f64, steps: f64) -> TrainingProgress {
        TrainingProgress { time: at(seconds), steps_total: Some(steps), layers: Some(6), ..TrainingProgress::default() }
    }

    #[test]
    fn a_report_counts_in_the_window_of_its_time() {
        let mut reports = TrainingReports::default();
        reports.add(at(60.0), &TrainingProgress { learning_rate: Some(0.1), precision: Some("BF16".into()), ..event(10.0, 1.0) });
        reports.add(at(120.0), &TrainingProgress { learning_rate: Some(0.2), ..event(70.0, 2.0) });
        reports.close(at(60.0));
        assert_eq!((reports.newest.learning_rate, reports.newest.steps_total, reports.open.len()), (Some(0.1), Some(1.0), 1));
        reports.close(at(120.0));
        assert_eq!((reports.newest.learning_rate, reports.newest.precision.as_deref()), (Some(0.2), Some("bf16")));
        assert_eq!((reports.newest.since, reports.open.len()), (Some(at(10.0)), 0));
    }

    #[test]
    fn an_evaluation_that_is_repeated_keeps_its_step() {
        let mut reports = TrainingReports::default();
        for (second, steps, loss) in [(1.0, 100.0, 3.0), (2.0, 110.0, 3.0), (3.0, 120.0, 2.9), (4.0, 130.0, f64::NAN)] {
            reports.add(at(60.0), &TrainingProgress { validation_loss: Some(loss), ..event(second, steps) });
            reports.close(at(60.0));
            let expected = if second < 3.0 { (100.0, 3.0) } else { (120.0, 2.9) };
            assert_eq!(reports.newest.validation.map(|known| (known.steps, known.loss)), Some(expected));
        }
    }

    #[test]
    fn one_rank_speaks_and_a_list_without_end_is_left_out() {
        let ranked = TrainingProgress { scope: CounterScope::Rank, rank: 3, ..event(1.0, 1.0) };
        assert!(!reports_training(&ranked) && reports_training(&TrainingProgress { rank: 0, ..ranked }));
        assert!(!reports_training(&TrainingProgress { steps_total: Some(1.0), loss: Some(2.0), ..TrainingProgress::default() }));
        let long = TrainingProgress { plasticity: Some(vec![Some(0.5); MAX_BLOCKS + 1]), ..event(1.0, 1.0) };
        assert_eq!(TrainingReport::from_event(&long).plasticity, None);
    }
}
