//! Precision: recommends one to start with; changes it in a running job for stability, or by measurement.
//!
//! FP16 and BF16 have the same tensor throughput, and no publication shows that one takes less energy than the other. FP32
//! to 16 bit and FP8 do save; frameworks fix them at the start.

use std::collections::VecDeque;

use eadt_schemas::v1::{ControllerAction, Layout, Precision, Workload, computes_fp8, is_older_than_ampere};
use serde::{Deserialize, Serialize};

use super::super::ControllerSettings;
use super::super::draft::DecisionDraft;
use super::super::history::MeasuredWindow;
use super::{JobKnobPlan, turns_live};
use crate::workload::report::TrainingReport;

/// Number of first steps in which a gradient scaler searches for its scale, and skips steps.
const SCALER_STEPS: f64 = 200.0;
/// Steps over which skipped ones are counted, at least.
const COUNTED_STEPS: f64 = 200.0;
/// Windows that are looked back.
const MARKS: usize = 30;
/// FP16 is kept if it saves this part, and this many standard errors.
const TEST_GAIN: f64 = 0.02;
const TEST_ERRORS: f64 = 3.0;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PrecisionChoice {
    /// Precision in which the job computes.
    precision: Option<String>,
    /// Steps and skipped steps after the warm-up, in this precision.
    marks: VecDeque<(f64, f64)>,
    /// FP16 was left because too many steps overflowed.
    overflowed: bool,
}

impl PrecisionChoice {
    /// Takes in a report.
    pub fn observe(&mut self, report: &TrainingReport, warming_up: bool) {
        if self.precision != report.precision {
            self.precision.clone_from(&report.precision);
            self.marks.clear();
        }
        let (Some(steps), Some(skips)) = (report.steps_total, report.overflow_skips_total) else { return };
        if warming_up || steps < SCALER_STEPS {
            return;
        }
        // A job that went back to a checkpoint counts anew.
        if self.marks.back().is_some_and(|(before, skipped)| steps < *before || skips < *skipped) {
            self.marks.clear();
        }
        if self.marks.back().is_none_or(|(before, _)| steps > *before) {
            self.marks.push_back((steps, skips));
        }
        if self.marks.len() > MARKS {
            self.marks.pop_front();
        }
    }

    /// Returns the part of the steps that overflowed and were skipped, if enough were counted.
    fn skip_ratio(&self) -> Option<f64> {
        let (first, last) = (self.marks.front()?, self.marks.back()?);
        let steps = last.0 - first.0;
        (steps >= COUNTED_STEPS).then(|| (last.1 - first.1) / steps)
    }

    /// Returns the precision to ask for, or the reason that none is asked for.
    pub fn plan(
        &mut self,
        report: &TrainingReport,
        workload: &Workload,
        draft: &mut DecisionDraft,
        settings: &ControllerSettings,
    ) -> JobKnobPlan {
        let Some(allowed) = workload.bounds.precisions.as_ref().filter(|all| !all.is_empty()) else {
            return JobKnobPlan::None("no other precision may be requested: the policy sets no bounds.precisions".into());
        };
        let skips = self.skip_ratio();
        draft.add_evidence("overflow_skip_ratio", skips);
        let model = workload.gpu_model.as_deref();
        let older = model.is_some_and(is_older_than_ampere);
        let fp8 = match model {
            Some(model) if computes_fp8(model) => "; fp8 is recommended for a trial at the next start, if the framework has it",
            _ => "",
        };
        let live = turns_live(report.live_knobs.as_ref(), "precision");
        match report.precision.as_deref() {
            None => JobKnobPlan::None("the job does not report its precision".into()),
            Some(now @ ("fp32" | "tf32")) => {
                let (to, why) = if older {
                    ("fp16", format!("{} computes no bf16", model.unwrap_or_default()))
                } else {
                    ("bf16", "it needs no gradient scaler".to_owned())
                };
                JobKnobPlan::None(format!(
                    "the job computes in {now}: {to} is recommended for the next start, which takes about half the traffic and uses tensor cores \
                     ({why}); it is not requested while the job runs{fp8}"
                ))
            }
            Some("fp16") => {
                let plan = Self::leave_fp16(skips, allowed, older, live, workload, settings);
                self.overflowed |= matches!(plan, JobKnobPlan::Change { .. });
                plan
            }
            Some("bf16") if self.overflowed => {
                JobKnobPlan::None("the job computes in bf16, and fp16 is not tried: too many steps overflowed in it".into())
            }
            Some("bf16") => Self::test_fp16(report, allowed, live, fp8, workload, settings),
            Some(other) => JobKnobPlan::None(format!("the job computes in {other}: no other precision is requested")),
        }
    }

    /// Plans the change from FP16 to BF16 if too many steps overflow.
    fn leave_fp16(
        skips: Option<f64>,
        allowed: &[Precision],
        older: bool,
        live: bool,
        workload: &Workload,
        settings: &ControllerSettings,
    ) -> JobKnobPlan {
        let Some(ratio) = skips else {
            return JobKnobPlan::None(
                "the job computes in fp16, and skipped steps were not counted long enough after its warm-up".into(),
            );
        };
        let (percent, limit) = (100.0 * ratio, 100.0 * settings.overflow_skip_ratio);
        if ratio <= settings.overflow_skip_ratio {
            return JobKnobPlan::None(format!(
                "the job computes in fp16 and skips {percent:.2} % of its steps, not above {limit} %: bf16 would save no energy"
            ));
        }
        let so = format!("{percent:.2} % of the steps overflow in fp16 and are skipped, more than {limit} %");
        if older {
            return JobKnobPlan::None(format!(
                "{so}, but its GPUs compute no bf16: raise the loss scaler's patience or use fp32"
            ));
        }
        if !allowed.contains(&Precision::Bf16) {
            return JobKnobPlan::None(format!("{so}, but bf16 is not among bounds.precisions"));
        }
        if !live {
            return JobKnobPlan::None(format!(
                "{so}: bf16 is recommended for the next start; the job does not change it while it runs"
            ));
        }
        let to = Layout { precision: Some(Precision::Bf16), ..workload.layout.clone() };
        let why = format!("{so}: requests bf16, for stability and not for energy");
        JobKnobPlan::Change { action: ControllerAction::SetPrecision, to, expected_gain_ratio: 0.0, why }
    }

    /// Plans the change from BF16 to FP16, as a measured trial only.
    fn test_fp16(
        report: &TrainingReport,
        allowed: &[Precision],
        live: bool,
        fp8: &str,
        workload: &Workload,
        settings: &ControllerSettings,
    ) -> JobKnobPlan {
        let none = |why: &str| JobKnobPlan::None(format!("the job computes in bf16: {why}{fp8}"));
        let windows = settings.precision_trial_windows;
        if windows == 0 || !allowed.contains(&Precision::Fp16) {
            return none("no measurement shows that fp16 takes less energy");
        }
        if !live {
            return none("it does not change its precision while it runs");
        }
        if report.loss_scale.is_none_or(|scale| scale <= 0.0) {
            return none("it reports no gradient scaler, without which fp16 underflows");
        }
        let to = Layout { precision: Some(Precision::Fp16), ..workload.layout.clone() };
        let why = format!(
            "compares fp16 with bf16 over {windows} windows each: it is kept only for {:.0} % less J/sample outside noise",
            100.0 * TEST_GAIN
        );
        JobKnobPlan::Change { action: ControllerAction::SetPrecision, to, expected_gain_ratio: TEST_GAIN, why }
    }

    /// Returns whether another precision is kept, and why.
    #[allow(clippy::too_many_arguments, reason = "all of it is weighed")]
    pub fn verdict(
        &self,
        to: &Layout,
        before: &[MeasuredWindow],
        after: &[MeasuredWindow],
        gain_ratio: f64,
        throughput_ratio: f64,
        settings: &ControllerSettings,
        draft: &mut DecisionDraft,
    ) -> Result<String, String> {
        draft.add_evidence("overflow_skip_ratio", self.skip_ratio());
        if to.precision == Some(Precision::Fp16) {
            let error = standard_error_ratio(before, after);
            draft.add_evidence("gain_standard_error_ratio", error);
            let noise = error.map_or(f64::INFINITY, |error| TEST_ERRORS * error);
            let comparison =
                format!("{:.1} % outside noise are required, and noise is {:.2} %", 100.0 * TEST_GAIN, 100.0 * noise);
            if let Some(skips) = self.skip_ratio().filter(|skips| *skips > settings.overflow_skip_ratio) {
                return Err(format!("{:.2} % of the steps overflow", 100.0 * skips));
            }
            return if gain_ratio >= TEST_GAIN && gain_ratio > noise { Ok(comparison) } else { Err(comparison) };
        }
        let least = settings.validation_throughput_ratio;
        if throughput_ratio >= least && 1.0 - gain_ratio <= 1.0 / least {
            return Ok("it was for stability, and no saving was expected".into());
        }
        Err(format!("required are {:.0} % of the throughput and of the efficiency", 100.0 * least))
    }
}

/// Returns the standard error of the difference of two means of J/sample, as a part of the first.
fn standard_error_ratio(before: &[MeasuredWindow], after: &[MeasuredWindow]) -> Option<f64> {
    let of = |windows: &[MeasuredWindow]| -> Option<(f64, f64)> {
        let n = windows.len() as f64;
        let joules: Vec<f64> = windows.iter().map(|window| 1.0 / window.efficiency()).collect();
        let mean = joules.iter().sum::<f64>() / n;
        let variance = joules.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (windows.len() > 1 && mean.is_finite()).then(|| (mean, variance / n))
    };
    let ((mean, first), (_, second)) = (of(before)?, of(after)?);
    Some((first + second).sqrt() / mean)
}
