//! Training of a simulated job: its loss, the plasticity of its blocks, and the effects of freezing and precision.
//!
//! Simulated, not measured. Loss follows a learning curve (Hestness et al. 2017, Kaplan et al. 2020, Hoffmann et al. 2022). A
//! backward pass costs twice the forward pass (Kaplan et al. 2020), so that `k` frozen blocks of `L` leave `1 − ⅔·k/L` of the
//! GPU's work for a sample. Blocks settle from the input side on (Raghu et al. 2017). What freezing costs in loss has no law: it
//! is a setting, in proportion to the plasticity that was frozen. FP16 and BF16 take the same time and power.

use eadt_schemas::v1::{Layout, Precision, TrainingProgress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gpu::WorkloadProfile;

/// What a job reports about its training, and how it takes directives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingScenario {
    /// Blocks of the model. 1 to 512. Default 12.
    pub layers: u32,
    /// Precision at the start. Default `bf16`.
    pub precision: Precision,
    /// Part of the steps that overflow in FP16. 0 to 1. Default 0.
    pub overflow_skip_ratio: f64,
    /// Loss after infinitely many steps. Above 0. Default 1.8.
    pub loss_floor: f64,
    /// Loss at the start, less `loss_floor`. At least 0. Default 9.
    pub loss_range: f64,
    /// Steps after which the loss begins to follow a power of the steps. Above 0. Default 500.
    pub loss_steps: f64,
    /// Exponent of that power law. 0 to 2. Default 0.5.
    pub loss_exponent: f64,
    /// The validation loss is evaluated this often, in seconds. Above 0. Default 60.
    pub evaluation_seconds: f64,
    /// Part of the planned samples after which the first block has a tenth of its plasticity. Above 0. Default 0.2.
    pub first_block_settled_ratio: f64,
    /// The same of the last block. Above 0. Default 1.2.
    pub last_block_settled_ratio: f64,
    /// Part by which the loss would be higher in the end if all blocks were frozen with all of their plasticity. 0 to 10. Default
    /// 0.05.
    pub freezing_loss_ratio: f64,
    /// Steps in which the loss comes near to what frozen blocks make of it. Above 0. Default 500.
    pub freezing_loss_steps: f64,
    /// Learning rate after the warm-up. Above 0. Default 0.001.
    pub learning_rate: f64,
    /// Part of the planned samples in which the learning rate rises. 0 to 1. Default 0.02.
    pub warm_up_ratio: f64,
    /// The job takes a directive up after this time, at its next checkpoint, in seconds. 0 to 86,400. Default 20.
    pub take_up_seconds: f64,
    /// Why the job refuses directives; absent: it follows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refuses: Option<String>,
}

impl Default for TrainingScenario {
    fn default() -> Self {
        Self {
            layers: 12,
            precision: Precision::Bf16,
            overflow_skip_ratio: 0.0,
            loss_floor: 1.8,
            loss_range: 9.0,
            loss_steps: 500.0,
            loss_exponent: 0.5,
            evaluation_seconds: 60.0,
            first_block_settled_ratio: 0.2,
            last_block_settled_ratio: 1.2,
            freezing_loss_ratio: 0.05,
            freezing_loss_steps: 500.0,
            learning_rate: 1e-3,
            warm_up_ratio: 0.02,
            take_up_seconds: 20.0,
            refuses: None,
        }
    }
}

impl TrainingScenario {
    /// Returns the fields that have a range, with it.
    pub(super) fn ranges(&self) -> [(&'static str, f64, f64, f64); 13] {
        [
            ("training.layers", f64::from(self.layers), 1.0, 512.0),
            ("training.overflow_skip_ratio", self.overflow_skip_ratio, 0.0, 1.0),
            ("training.loss_floor", self.loss_floor, 1e-9, 1e9),
            ("training.loss_range", self.loss_range, 0.0, 1e9),
            ("training.loss_steps", self.loss_steps, 1e-9, 1e15),
            ("training.loss_exponent", self.loss_exponent, 0.0, 2.0),
            ("training.evaluation_seconds", self.evaluation_seconds, 0.001, 1e9),
            ("training.first_block_settled_ratio", self.first_block_settled_ratio, 1e-6, 1e6),
            ("training.last_block_settled_ratio", self.last_block_settled_ratio, 1e-6, 1e6),
            ("training.freezing_loss_ratio", self.freezing_loss_ratio, 0.0, 10.0),
            ("training.freezing_loss_steps", self.freezing_loss_steps, 1e-9, 1e15),
            ("training.warm_up_ratio", self.warm_up_ratio, 0.0, 1.0),
            ("training.take_up_seconds", self.take_up_seconds, 0.0, 86_400.0),
        ]
    }

    /// Returns the reason why the job cannot follow a layout.
    pub(super) fn refusal(&self, from: &Layout, to: &Layout) -> Option<String> {
        if let Some(why) = &self.refuses {
            return Some(format!("the job refuses: {why}"));
        }
        if let Some(layers) = to.frozen_prefix_layers.filter(|layers| *layers > self.layers) {
            return Some(format!("the job has {} layers, and {layers} cannot be frozen", self.layers));
        }
        let half =
            |precision: Option<Precision>| matches!(precision.unwrap_or(self.precision), Precision::Fp16 | Precision::Bf16);
        let changes = to.precision != from.precision;
        (changes && !(half(from.precision) && half(to.precision)))
            .then(|| "the job changes its precision between fp16 and bf16 only: others are fixed at its start".into())
    }

    /// Returns the profile of a job with these layers frozen.
    pub(super) fn profile_with_frozen_layers(&self, profile: WorkloadProfile, layout: Option<&Layout>) -> WorkloadProfile {
        let frozen = layout.and_then(|layout| layout.frozen_prefix_layers).unwrap_or(0).min(self.layers);
        if frozen == 0 {
            return profile;
        }
        let left = 1.0 - 2.0 / 3.0 * f64::from(frozen) / f64::from(self.layers);
        let (host, gpu) = (profile.host_ratio, (1.0 - profile.host_ratio) * left);
        let total = host + gpu;
        WorkloadProfile { samples_per_second: profile.samples_per_second / total, host_ratio: host / total, ..profile }
    }

    /// Returns the plasticity of a block when so much of the planned samples is done.
    fn plasticity(&self, block: u32, done: f64) -> f64 {
        let depth = f64::from(block) / f64::from((self.layers - 1).max(1));
        let settled = self.first_block_settled_ratio + (self.last_block_settled_ratio - self.first_block_settled_ratio) * depth;
        0.1_f64.powf(done / settled)
    }
}

/// Progress of a job's training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TrainingState {
    /// Plasticity that each frozen block had when it was frozen.
    frozen: Vec<f64>,
    /// Part by which loss is above its curve.
    excess_ratio: f64,
    skips: f64,
    validation_loss: Option<f64>,
}

/// Progress of a job's training.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrainingAdvance {
    /// Optimiser steps so far, and those of this interval.
    pub steps: f64,
    pub new_steps: f64,
    /// Part of the planned samples that is done.
    pub done: f64,
    /// The validation loss is evaluated at the end of the interval.
    pub evaluates: bool,
}

impl TrainingState {
    pub fn work(&mut self, scenario: &TrainingScenario, layout: &Layout, now: TrainingAdvance) {
        let frozen = layout.frozen_prefix_layers.unwrap_or(0).min(scenario.layers);
        self.frozen.truncate(frozen as usize);
        for block in self.frozen.len() as u32..frozen {
            self.frozen.push(scenario.plasticity(block, now.done));
        }
        let target = scenario.freezing_loss_ratio * self.frozen.iter().sum::<f64>() / f64::from(scenario.layers);
        let follows = 1.0 - (-now.new_steps.max(0.0) / scenario.freezing_loss_steps).exp();
        self.excess_ratio += (target - self.excess_ratio) * follows;
        if layout.precision.unwrap_or(scenario.precision) == Precision::Fp16 {
            self.skips += now.new_steps.max(0.0) * scenario.overflow_skip_ratio;
        }
        if now.evaluates {
            self.validation_loss = Some(self.loss(scenario, now.steps));
        }
    }

    fn loss(&self, scenario: &TrainingScenario, steps: f64) -> f64 {
        let curve = scenario.loss_range * (1.0 + steps / scenario.loss_steps).powf(-scenario.loss_exponent);
        (scenario.loss_floor + curve) * (1.0 + self.excess_ratio)
    }

    /// Adds the figures of the job's training to a report. `decision_id` is that of the request that the job carries out.
    pub fn report(
        &self,
        scenario: &TrainingScenario,
        layout: &Layout,
        steps: f64,
        done: f64,
        decision_id: Option<&str>,
        into: TrainingProgress,
    ) -> TrainingProgress {
        let precision = layout.precision.unwrap_or(scenario.precision);
        let frozen = self.frozen.len() as u32;
        let block = |block: u32| (block >= frozen).then(|| scenario.plasticity(block, done));
        let warm = if scenario.warm_up_ratio > 0.0 { (done / scenario.warm_up_ratio).min(1.0) } else { 1.0 };
        let half = matches!(precision, Precision::Fp16 | Precision::Bf16);
        let knobs = ["checkpoint_now", "frozen_prefix_layers"].into_iter().chain(half.then_some("precision"));
        TrainingProgress {
            loss: Some(self.loss(scenario, steps)),
            precision: Some(precision.to_string()),
            overflow_skips_total: Some(self.skips.floor()),
            frozen_prefix_layers: Some(frozen),
            validation_loss: self.validation_loss,
            learning_rate: Some(scenario.learning_rate * warm),
            loss_scale: (precision == Precision::Fp16).then_some(65_536.0),
            layers: Some(scenario.layers),
            plasticity: Some((0..scenario.layers).map(block).collect()),
            live_knobs: Some(knobs.map(str::to_owned).collect()),
            decision_id: decision_id.map(str::to_owned),
            ..into
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frozen(layers: u32) -> Layout {
        Layout { frozen_prefix_layers: Some(layers), ..Layout::default() }
    }

    #[test]
    fn frozen_blocks_save_two_thirds_of_their_part_of_the_gpus_work_and_none_of_the_hosts() {
        let scenario = TrainingScenario::default();
        let plain = WorkloadProfile { host_ratio: 0.25, samples_per_second: 30.0, ..WorkloadProfile::MID };
        let half = scenario.profile_with_frozen_layers(plain, Some(&frozen(6)));
        // A quarter stays with the host, and two thirds of the rest are left.
        assert!((half.samples_per_second - 40.0).abs() < 1e-9 && (half.host_ratio - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(scenario.profile_with_frozen_layers(plain, None), plain);
    }

    #[test]
    fn loss_rises_by_the_plasticity_that_was_frozen_and_comes_back() {
        let scenario = TrainingScenario { freezing_loss_ratio: 1.0, ..TrainingScenario::default() };
        let mut state = TrainingState::default();
        let now = TrainingAdvance { steps: 1_000.0, new_steps: 1e6, done: 0.2, evaluates: true };
        state.work(&scenario, &Layout::default(), now);
        let plain = state.validation_loss.unwrap();
        state.work(&scenario, &frozen(1), now);
        assert!((state.validation_loss.unwrap() / plain - (1.0 + 0.1 / 12.0)).abs() < 1e-9, "a tenth of one block of twelve");
        state.work(&scenario, &Layout::default(), now);
        assert!((state.validation_loss.unwrap() / plain - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_a_job_cannot_do_it_refuses() {
        let scenario = TrainingScenario::default();
        let refusal = |scenario: &TrainingScenario, to: &Layout| scenario.refusal(&Layout::default(), to);
        let precise = |precision| Layout { precision: Some(precision), ..Layout::default() };
        assert_eq!(refusal(&scenario, &frozen(6)), None);
        assert!(refusal(&scenario, &frozen(13)).unwrap().contains("12 layers"));
        assert_eq!(refusal(&scenario, &precise(Precision::Fp16)), None);
        assert!(refusal(&scenario, &precise(Precision::Fp32)).unwrap().contains("fixed at its start"));
        let no = TrainingScenario { refuses: Some("reentrant checkpointing".into()), ..scenario };
        assert_eq!(refusal(&no, &frozen(1)).unwrap(), "the job refuses: reentrant checkpointing");
    }
}
