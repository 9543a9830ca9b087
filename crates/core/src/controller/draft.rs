use eadt_schemas::v1::{ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout};

use crate::models::ModelInForce;

use super::history::Medians;
use super::matrix::Thresholds;
use super::trial::ChangeNote;
use super::{ControllerContext, ControllerName, ControllerObjective, PowerReading};

/// Version of the decision rules. It grows with every change of decisions.
const VERSION: &str = "5";

/// A decision in the making: `maintain` unless it is set to something else.
#[derive(Debug)]
pub(super) struct DecisionDraft {
    decision: Decision,
}

impl DecisionDraft {
    pub fn new(name: ControllerName, window: &EfficiencyWindow, context: &ControllerContext<'_>) -> Self {
        let layout = context.workload.map(|workload| &workload.layout).or(window.layout.as_ref()).cloned().unwrap_or_default();
        let mut draft = Self {
            decision: Decision {
                id: format!("{}@{}/{name}", window.workload, window.window_end),
                workload: window.workload.clone(),
                time: window.window_end,
                origin: window.origin,
                controller: name.as_str().into(),
                controller_version: VERSION.into(),
                from: layout.clone(),
                to: layout,
                generation: context.workload.map(|workload| workload.generation),
                expires: window.window_end.plus_seconds(context.settings.decision_expiry_seconds),
                ..Decision::default()
            },
        };
        draft.add_evidence("gpus", Some(f64::from(window.gpus)));
        draft.add_evidence("energy_coverage_ratio", Some(window.energy_coverage_ratio));
        draft.add_evidence("progress_coverage_ratio", Some(window.progress_coverage_ratio));
        draft.add_evidence("samples_per_second", window.samples_per_second);
        draft.add_evidence("power_watts", window.mean_power_watts);
        draft.add_evidence("power_per_gpu_watts", window.mean_power_per_gpu_watts);
        draft.add_evidence("joules_per_sample", window.joules_per_sample);
        draft.add_evidence("joules_per_sample_running", window.joules_per_sample_running);
        draft.expect_power(window, context);
        draft
    }

    /// Notes the power that the board's model expects at this activity, so that a GPU that differs from others can be found.
    fn expect_power(&mut self, window: &EfficiencyWindow, context: &ControllerContext<'_>) {
        let gpu_model = context.workload.and_then(|workload| workload.gpu_model.as_deref());
        let activity = (window.mean_sm_active_ratio, window.mean_dram_active_ratio, window.mean_sm_clock_mhz);
        if let Some(model) = context.models.and_then(|models| models.power_model(gpu_model))
            && let (Some(sm), Some(dram), Some(clock)) = activity
        {
            let expected = model.document.expect(sm, dram, clock);
            if expected.inside_range {
                self.add_evidence("model_power_per_gpu_watts", Some(expected.watts));
                self.with_model(&model);
            }
        }
    }

    /// Returns the end of the window that is decided about.
    pub fn time(&self) -> eadt_schemas::EventTime {
        self.decision.time
    }

    /// Adds a number that the decision rests on. Unknown and non-finite values are left out.
    pub fn add_evidence(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.decision.evidence.insert(name.into(), value);
        }
    }

    /// Notes the reading that was compared with the table.
    pub fn note_reading(&mut self, reading: PowerReading, watts: f64, efficiency: f64, table: &Thresholds) {
        let compared = match reading {
            PowerReading::PerGpu => "compared_power_per_gpu_watts",
            PowerReading::Total => "compared_power_total_watts",
        };
        self.add_evidence(compared, Some(watts));
        self.add_evidence("compared_efficiency_samples_per_second_per_watt", Some(efficiency));
        self.add_evidence("threshold_power_high_watts", Some(table.high_watts));
        self.add_evidence("threshold_power_low_watts", Some(table.low_watts));
        self.add_evidence("threshold_efficiency_poor_samples_per_second_per_watt", Some(table.poor));
        self.add_evidence("threshold_efficiency_good_samples_per_second_per_watt", Some(table.good));
    }

    pub fn note_medians(&mut self, when: &str, medians: &Medians) {
        self.add_evidence(&format!("{when}_windows"), Some(medians.windows as f64));
        self.add_evidence(&format!("{when}_samples_per_second"), Some(medians.samples_per_second));
        self.add_evidence(&format!("{when}_power_watts"), Some(medians.watts));
        self.add_evidence(&format!("{when}_joules_per_sample"), medians.joules_per_sample());
    }

    /// Parts that a change saved: of the energy per sample, and of the objective if that is another one.
    pub fn note_gains(&mut self, objective: ControllerObjective, energy: f64, of_objective: f64) {
        self.add_evidence("gain_ratio", Some(energy));
        self.add_evidence("objective_gain_ratio", Some(of_objective).filter(|_| !objective.is_energy()));
    }

    /// Sets the state of the validation of a change, and the decision that it concerns.
    pub fn with_validation(mut self, validation: ChangeValidation, concerns: &str) -> Self {
        self.decision.validation = validation;
        self.decision.concerns = Some(concerns.into()).filter(|id: &String| !id.is_empty());
        self
    }

    /// Names a learned model that the decision was made with.
    pub fn with_model<T>(&mut self, model: &ModelInForce<'_, T>) {
        let model_version = format!("{}@{}", model.name, model.version);
        self.decision.model_version = Some(match self.decision.model_version.take() {
            Some(before) => format!("{before}, {model_version}"),
            None => model_version,
        });
    }

    pub fn with_hold_until(mut self, until: Option<eadt_schemas::EventTime>) -> Self {
        self.decision.hold_until = until;
        self
    }

    pub fn maintain(mut self, reason: impl Into<String>) -> Decision {
        self.decision.reason = reason.into();
        self.decision
    }

    pub fn maintain_with_note(self, note: ChangeNote) -> Decision {
        self.with_validation(note.validation, &note.concerns).with_hold_until(note.hold_until).maintain(note.reason)
    }

    /// Returns a change of a knob that turns while the processes run.
    pub fn change_without_restart(self, action: ControllerAction, to: Layout, reason: String) -> Decision {
        Decision { restarts: false, ..self.change_with_restart(action, to, reason) }
    }

    /// Returns a change of the layout, which restarts the workload's processes.
    pub fn change_with_restart(mut self, action: ControllerAction, to: Layout, reason: String) -> Decision {
        self.decision.action = action;
        self.decision.restarts = true;
        self.decision.to = to;
        self.decision.reason = reason;
        self.decision
    }
}
