//! Freezing the blocks at the input side that hardly change any more.
//!
//! A step's backward pass costs twice its forward pass (Kaplan et al. 2020), and frozen blocks at the input side need none: `k`
//! of `L` frozen blocks leave `1 − ⅔·k/L` of a step. Blocks settle from the input side on (Raghu et al. 2017).

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::{ControllerAction, EfficiencyWindow, Layout, Workload};
use serde::{Deserialize, Serialize};

use super::super::draft::DecisionDraft;
use super::super::{ControllerContext, ControllerSettings};
use super::loss_guard::{LossGuard, LossRise, resolution_ratio, settled, thin_out};
use super::trend::{EVALUATIONS, FewerStepsCost, LossTrend, TRUSTED};
use super::{JobKnobPlan, turns_live};
use crate::workload::report::TrainingReport;

/// Part of a step that a frozen block's share of the model saves.
const BACKWARD: f64 = 2.0 / 3.0;
/// Reports running in which a block's plasticity has to be low.
const REPORTS: u32 = 3;
/// A freeze has to be worth so many checkpoints: it is taken up at one.
const CHECKPOINTS: f64 = 5.0;
/// Evaluations after frozen blocks train again in which a small rise takes no more freezes back: loss needs time to come down.
const RECOVERY_EVALUATIONS: u32 = 3;
/// A freeze is kept if it saves this part of the expected saving.
const ARRIVES: f64 = 0.5;
/// Frozen blocks train again if the learning rate rises or falls to these parts of its former value.
const RISES: f64 = 2.0;
const FALLS: f64 = 0.1;
/// Loss follows another curve after a learning rate that changes by this factor from one report to the next.
const RATE_CHANGE: f64 = 2.0;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LayerFreezing {
    blocks: Vec<LayerBlock>,
    /// Time of the newest report about plasticity.
    plasticity_time: Option<EventTime>,
    learning_rate: Option<f64>,
    warming_up: bool,
    /// Steps and validation losses.
    evaluations: VecDeque<(f64, f64)>,
    #[serde(flatten)]
    guard: LossGuard,
    /// Freezes in force, oldest first.
    freezes: Vec<LayerFreeze>,
    /// Steps of the newest evaluation, and of that one when the last freeze began.
    evaluated_steps: f64,
    frozen_at_steps: f64,
    /// Evaluations that are still left to recover in.
    recovering: u32,
    /// Steps up to which evaluations are no part of the next trend.
    excluded_steps: f64,
    /// The reason why nothing is frozen any more in this run.
    stopped: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct LayerBlock {
    /// Greatest plasticity so far.
    peak: f64,
    newest: f64,
    /// Reports running in which it was low.
    low: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LayerFreeze {
    /// Number of frozen layers in the request before.
    from: Option<u32>,
    to: Option<u32>,
    learning_rate: Option<f64>,
    /// Steps of the newest evaluation when it began.
    #[serde(default)]
    after_steps: Option<f64>,
}

/// Freezes to be taken back.
pub(super) struct LayerUnfreeze {
    pub to: Layout,
    /// Number of freezes that are left.
    pub freezes: usize,
    pub why: String,
    /// True if nothing is frozen again for some time.
    pub bars: bool,
}

impl LayerFreezing {
    /// Returns a layout without any of the standing freezes; `None` if EADT has frozen nothing.
    pub fn without_freezes(&self, layout: &Layout) -> Option<Layout> {
        let first = self.freezes.first()?;
        Some(Layout { frozen_prefix_layers: first.from, ..layout.clone() })
    }

    /// Returns the layout and the number of freezes that the job still has, if it reports so many frozen layers; none of them if no
    /// freeze left that many. `None` if EADT has frozen nothing.
    pub fn freezes_as_reported(&self, layout: &Layout, reported: u32) -> Option<(Layout, usize)> {
        let left = self.freezes.iter().position(|freeze| freeze.from.unwrap_or(0) == reported).unwrap_or(0);
        let freeze = self.freezes.get(left)?;
        Some((Layout { frozen_prefix_layers: freeze.from, ..layout.clone() }, left))
    }

    pub fn freeze_count(&self) -> usize {
        self.freezes.len()
    }

    /// Returns whether the learning rate is still rising.
    pub fn is_warming_up(&self) -> bool {
        self.warming_up
    }

    /// Takes in a report; `at_rest`: no change is under way.
    pub fn observe(&mut self, report: &TrainingReport, at_rest: bool, settings: &ControllerSettings) {
        if let Some(rate) = report.learning_rate {
            if self
                .learning_rate
                .is_some_and(|before| before > 0.0 && (rate >= RATE_CHANGE * before || rate <= before / RATE_CHANGE))
            {
                self.evaluations.clear();
                let reported = report.validation.map_or(0.0, |newest| newest.steps);
                self.excluded_steps = self.excluded_steps.max(self.evaluated_steps).max(reported);
            }
            self.warming_up = self.learning_rate.is_none_or(|before| rate > before * (1.0 + 1e-9));
            self.learning_rate = Some(rate);
        }
        let frozen = report.frozen_prefix_layers.unwrap_or(0) as usize;
        if let Some(plasticity) = report.plasticity.as_ref().filter(|new| self.plasticity_time != Some(new.time)) {
            self.plasticity_time = Some(plasticity.time);
            self.blocks.resize(plasticity.blocks.len(), LayerBlock::default());
            for (i, (block, reported)) in self.blocks.iter_mut().zip(&plasticity.blocks).enumerate() {
                match reported.filter(|value| value.is_finite() && *value >= 0.0 && i >= frozen) {
                    Some(value) => {
                        block.peak = block.peak.max(value);
                        block.newest = value;
                        block.low = if value < settings.plasticity_ratio * block.peak { block.low + 1 } else { 0 };
                    }
                    None => block.low = 0,
                }
            }
        }
        if let Some(new) = report.validation {
            // The newest evaluation is in every report until there is another one.
            if self.freezes.is_empty() && new.steps > self.evaluated_steps && self.recovering > 0 {
                self.recovering -= 1;
                self.excluded_steps = new.steps;
            }
            self.evaluated_steps = self.evaluated_steps.max(new.steps);
        }
        if let Some(new) = report.validation.filter(|new| at_rest && new.steps > self.excluded_steps)
            && self.evaluations.back().is_none_or(|(steps, _)| new.steps > *steps)
        {
            self.evaluations.push_back((new.steps, new.loss));
            thin_out(&mut self.evaluations);
        }
    }

    /// Notes that a freeze is on its way to the job.
    pub fn on_freeze_requested(&mut self, from: &Layout, to: &Layout) {
        let (from, to) = (from.frozen_prefix_layers, to.frozen_prefix_layers);
        self.freezes.push(LayerFreeze { from, to, learning_rate: self.learning_rate, after_steps: Some(self.evaluated_steps) });
        self.frozen_at_steps = self.evaluated_steps;
    }

    /// Keeps the first `count` freezes: all others were taken back.
    pub fn keep_first(&mut self, count: usize) {
        if count < self.freezes.len() {
            self.recovering = RECOVERY_EVALUATIONS;
            self.guard.forget_excesses();
        }
        if count == 0
            && let Some(since) = self.freezes.first().and_then(|first| first.after_steps)
        {
            // The next trend is of a job in which all blocks train: evaluations while some were frozen are not used.
            self.evaluations.retain(|(steps, _)| *steps <= since);
            self.excluded_steps = self.evaluated_steps;
        }
        self.freezes.truncate(count);
    }

    /// Notes that the number of frozen layers was set from outside: none of it is ours.
    pub fn on_external_change(&mut self, frozen_layers: Option<u32>) {
        if self.freezes.last().is_some_and(|last| last.to != frozen_layers) {
            self.keep_first(0);
        }
    }

    /// Returns the freezes to revert if the validation loss or the learning rate left the range for which they were decided.
    pub fn check_quality(
        &mut self,
        report: &TrainingReport,
        workload: &Workload,
        settings: &ControllerSettings,
    ) -> Option<LayerUnfreeze> {
        let (first, last) = (self.freezes.first()?, self.freezes.last()?);
        let back = |to: Option<u32>| Layout { frozen_prefix_layers: to, ..workload.layout.clone() };
        if let (Some(then), Some(now)) = (last.learning_rate, report.learning_rate)
            && then > 0.0
            && (now >= RISES * then || now <= FALLS * then)
        {
            let to = back(first.from);
            // Plasticity at the former learning rate does not hold for the new one.
            self.blocks.clear();
            let why = format!("the learning rate went from {then:.3e} to {now:.3e} since they were frozen");
            return Some(LayerUnfreeze { to, freezes: 0, why, bars: false });
        }
        let new = report.validation?;
        let rise = self.guard.compare(new.steps, new.loss)?;
        let is_recovering = self.recovering > 0;
        self.recovering = self.recovering.saturating_sub(1);
        if is_recovering {
            self.guard.forget_excesses();
        }
        let stop_ratio = settings.validation_loss_stop_ratio;
        if rise.exceeds(stop_ratio) {
            let why = rise_message(&rise, new.steps, stop_ratio);
            let to = back(first.from);
            self.stopped = Some(why.clone());
            let why = format!("{why}; nothing is frozen in this run any more");
            return Some(LayerUnfreeze { to, freezes: 0, why, bars: true });
        }
        if rise.exceeds(settings.validation_loss_rise_ratio) && !is_recovering {
            let why = rise_message(&rise, new.steps, settings.validation_loss_rise_ratio);
            return Some(LayerUnfreeze { to: back(last.from), freezes: self.freezes.len() - 1, why, bars: true });
        }
        // A trend does not hold that far ahead: it is fitted anew, and the rise so far is carried over.
        if !is_recovering
            && self.guard.is_trend_spent(new.steps)
            && let Some(trend) = LossTrend::fit(&settled(&self.evaluations))
        {
            self.guard.continue_with(trend, new.steps);
        }
        None
    }

    /// Returns how far the loss of the newest evaluation that can be compared is above the trend, as a part of it, if it is newer
    /// than the last freeze.
    fn excess_since_freeze(&self, report: &TrainingReport) -> Option<f64> {
        let new = report.validation.filter(|new| new.steps > self.frozen_at_steps)?;
        // The trend may have been fitted anew since, with this evaluation as its last one.
        self.guard.excess(new.steps, new.loss).or_else(|| self.guard.compared_after(self.frozen_at_steps))
    }

    /// Returns the next blocks to freeze, or why none.
    pub fn plan(
        &mut self,
        report: &TrainingReport,
        window: &EfficiencyWindow,
        workload: &Workload,
        draft: &mut DecisionDraft,
        context: &ControllerContext<'_>,
    ) -> JobKnobPlan {
        match self.next(report, window, workload, draft, context) {
            Ok((to, expected_gain_ratio, why)) => {
                JobKnobPlan::Change { action: ControllerAction::FreezeLayers, to, expected_gain_ratio, why }
            }
            Err(reason) => JobKnobPlan::None(reason),
        }
    }

    fn next(
        &mut self,
        report: &TrainingReport,
        window: &EfficiencyWindow,
        workload: &Workload,
        draft: &mut DecisionDraft,
        context: &ControllerContext<'_>,
    ) -> Result<(Layout, f64, String), String> {
        let settings = context.settings;
        let Some(bound) = workload.bounds.frozen_prefix_layers_max.filter(|most| *most > 0) else {
            return Err("no layer may be frozen: the policy sets no bounds.maxFrozenPrefixLayers".into());
        };
        if let Some(why) = &self.stopped {
            return Err(format!("nothing is frozen in this run any more: {why}"));
        }
        let Some(layers) = report.layers.filter(|layers| *layers > 0) else {
            return Err("the job does not report how many layers it has".into());
        };
        if !turns_live(report.live_knobs.as_ref(), "frozen_prefix_layers") {
            return Err("the job does not freeze layers while it runs".into());
        }
        let frozen = report.frozen_prefix_layers.or(workload.layout.frozen_prefix_layers).unwrap_or(0);
        let (Some(done), Some(left)) = (report.steps_total, report.steps_remaining) else {
            return Err("the job does not report its steps and how many are left".into());
        };
        let part = done / (done + left).max(1.0);
        draft.add_evidence("layers", Some(f64::from(layers)));
        draft.add_evidence("frozen_prefix_layers", Some(f64::from(frozen)));
        draft.add_evidence("steps_done_ratio", Some(part));
        if part < settings.freeze_start_ratio {
            let start = 100.0 * settings.freeze_start_ratio;
            return Err(format!("{:.0} % of the steps are done: nothing is frozen before {start:.0} %", 100.0 * part));
        }
        if self.warming_up {
            return Err("the learning rate is still rising: nothing is frozen before it has warmed up".into());
        }
        let most = bound.min(layers / 2);
        let next = self.blocks.iter().skip(frozen as usize).take(most.saturating_sub(frozen) as usize);
        let low = next.take_while(|block| block.low >= REPORTS).count() as u32;
        if let Some(block) = self.blocks.get(frozen as usize).filter(|block| block.peak > 0.0) {
            draft.add_evidence("next_block_plasticity_ratio", Some(block.newest / block.peak));
        }
        if frozen >= most {
            return Err(format!("{frozen} of {layers} layers are frozen, and at most {most} may be"));
        }
        if low == 0 {
            let limit = 100.0 * settings.plasticity_ratio;
            return Err(match self.blocks.get(frozen as usize) {
                None => "the job reports no plasticity of its blocks".into(),
                Some(block) if block.low > 0 => {
                    format!("block {frozen} was below {limit:.0} % of its peak plasticity in {} of {REPORTS} reports", block.low)
                }
                Some(block) => format!(
                    "block {frozen} still has {:.0} % of its peak plasticity, and is frozen below {limit:.0} %",
                    100.0 * block.newest / block.peak.max(f64::MIN_POSITIVE)
                ),
            });
        }
        if !self.freezes.is_empty() && self.evaluated_steps <= self.frozen_at_steps {
            return Err("the job has not evaluated its validation loss since the last blocks were frozen".into());
        }
        let saved = Self::expected_saving(low, frozen, layers, left, window, draft, context)?;
        let trend = self.trend_to_guard(settings)?;
        let to = frozen + low;
        let fewer = saved * left;
        let total = done + left;
        let control = trend.cost_of_fewer_steps(total, fewer);
        note_control(draft, &control);
        let why = format!(
            "{} at the input side hardly {} any more: freezes {to} of {layers}, which is expected to save {:.1} % of what is left; training {fewer:.0} \
             steps fewer saves as much and costs about {} of validation loss by its trend",
            if low == 1 { format!("block {frozen}") } else { format!("blocks {frozen} to {}", to - 1) },
            if low == 1 { "changes" } else { "change" },
            100.0 * saved,
            cost_range(&control)
        );
        if self.freezes.is_empty() {
            let last = self.evaluations.back().map_or(0.0, |(steps, _)| *steps);
            self.guard.begin(trend, last);
        }
        Ok((Layout { frozen_prefix_layers: Some(to), ..workload.layout.clone() }, saved, why))
    }

    /// Returns the part of the remaining energy that freezing `more` blocks is expected to save, or why it is too little.
    #[allow(clippy::too_many_arguments, reason = "all of it is weighed")]
    fn expected_saving(
        more: u32,
        frozen: u32,
        layers: u32,
        steps_left: f64,
        window: &EfficiencyWindow,
        draft: &mut DecisionDraft,
        context: &ControllerContext<'_>,
    ) -> Result<f64, String> {
        let settings = context.settings;
        let of_step = |count: u32| BACKWARD * f64::from(count) / f64::from(layers);
        let saved = of_step(more) / (1.0 - of_step(frozen));
        let seconds = window.window_end.seconds_since(window.window_start);
        let by_steps = window.steps.filter(|steps| *steps > 0.0).map(|steps| steps_left / steps * seconds);
        let Some(remaining) = context.remaining_seconds.or(by_steps) else {
            return Err("it is not known how long the job still takes".into());
        };
        let watts = window.mean_power_watts.unwrap_or(0.0);
        draft.add_evidence("expected_saving_ratio", Some(saved));
        draft.add_evidence("remaining_seconds", Some(remaining));
        draft.add_evidence("expected_saving_joules", Some(saved * remaining * watts));
        draft.add_evidence("checkpoint_joules", Some(settings.checkpoint_seconds * watts));
        if saved < settings.freeze_gain_ratio {
            let least = 100.0 * settings.freeze_gain_ratio;
            return Err(format!(
                "{more} more of {layers} layers would save {:.1} % of the energy that is left, less than {least:.0} %",
                100.0 * saved
            ));
        }
        let checkpoints = CHECKPOINTS * settings.checkpoint_seconds;
        // An estimate that is not a number is no reason to ask.
        if saved * remaining >= checkpoints {
            return Ok(saved);
        }
        Err(format!(
            "{more} more of {layers} layers would save the energy of {:.0} s, less than {CHECKPOINTS} checkpoints of {} s",
            saved * remaining,
            settings.checkpoint_seconds
        ))
    }

    /// Returns the curve that the guard compares with, or the reason why there is none: without a guard nothing is frozen.
    fn trend_to_guard(&self, settings: &ControllerSettings) -> Result<LossTrend, String> {
        if let Some(trend) = self.guard.trend().filter(|_| !self.freezes.is_empty()) {
            return Ok(trend);
        }
        let settled = settled(&self.evaluations);
        let Some(trend) = LossTrend::fit(&settled) else {
            let have = settled.len();
            if have >= EVALUATIONS {
                return Err("quality cannot be guarded: no trend fits the evaluations of the validation loss".into());
            }
            return Err(format!(
                "quality cannot be guarded: {have} of the {EVALUATIONS} evaluations of the validation loss that a trend needs are there"
            ));
        };
        let last = self.evaluations.back().map_or(0.0, |(steps, _)| *steps);
        let resolution = resolution_ratio(&trend, last);
        if resolution > settings.validation_loss_rise_ratio {
            return Err(format!(
                "quality cannot be guarded: the trend of validation loss is uncertain by {:.2} % at step {:.0}, and a rise of {:.2} % has to be detectable",
                100.0 * resolution,
                TRUSTED * last,
                100.0 * settings.validation_loss_rise_ratio
            ));
        }
        Ok(trend)
    }

    /// Returns whether a freeze is kept, and why.
    pub fn verdict(
        &self,
        gain_ratio: f64,
        expected: f64,
        context: &ControllerContext<'_>,
        draft: &mut DecisionDraft,
    ) -> Result<String, String> {
        draft.add_evidence("expected_saving_ratio", Some(expected));
        let excess = context.training.and_then(|report| self.excess_since_freeze(report));
        draft.add_evidence("validation_loss_over_trend_ratio", excess);
        if gain_ratio.is_nan() || gain_ratio < ARRIVES * expected {
            return Err(format!("expected were {:.1} %, and less than half of it was measured", 100.0 * expected));
        }
        let steps = context.training.and_then(|report| Some((report.steps_total?, report.steps_remaining?)));
        let control =
            self.guard.trend().zip(steps).map(|(trend, (done, left))| trend.cost_of_fewer_steps(done + left, gain_ratio * left));
        if let Some(control) = &control {
            note_control(draft, control);
        }
        let cost = match excess {
            Some(excess) => format!("validation loss is {} from its trend", format_signed_percent(excess, 2)),
            None if self.evaluated_steps > self.frozen_at_steps => "validation loss was not compared with a trend since".into(),
            None => "validation loss was not evaluated since".into(),
        };
        Ok(match control {
            Some(control) => {
                format!(
                    "{cost}; training {:.0} steps fewer would save as much and cost about {} of it",
                    control.steps,
                    cost_range(&control)
                )
            }
            None => cost,
        })
    }
}

/// Formats a rise as `validation loss is 0.74 % above its trend at step 1251, more than 0.5 % and the 0.05 % that are uncertain`.
fn rise_message(rise: &LossRise, steps: f64, limit_ratio: f64) -> String {
    let of = match rise.evaluations {
        1 => String::new(),
        count => format!(" (mean of {count} evaluations)"),
    };
    format!(
        "validation loss is {:.2} % above its trend at step {steps:.0}{of}, more than {} % and the {:.2} % that are uncertain",
        100.0 * rise.ratio,
        100.0 * limit_ratio,
        100.0 * rise.uncertainty_ratio
    )
}

/// Formats a cost as `3.00 % (2.80 to 3.20)`.
fn cost_range(control: &FewerStepsCost) -> String {
    format!("{:.2} % ({:.2} to {:.2})", 100.0 * control.ratio, 100.0 * control.lowest, 100.0 * control.highest)
}

/// Records the cost of training fewer steps instead.
fn note_control(draft: &mut DecisionDraft, control: &FewerStepsCost) {
    draft.add_evidence("control_fewer_steps", Some(control.steps));
    draft.add_evidence("control_validation_loss_ratio", Some(control.ratio));
    draft.add_evidence("control_validation_loss_lowest_ratio", Some(control.lowest));
    draft.add_evidence("control_validation_loss_highest_ratio", Some(control.highest));
}
