use eadt_schemas::v1::{ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout};

use crate::models::ModelInForce;

use super::history::Medians;
use super::table::Thresholds;
use super::trial::ChangeNote;
use super::{ControllerContext, ControllerName, ControllerObjective, PowerReading};

/// Grows with every change of what a controller decides.
const VERSION: &str = "3";

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
                expires: window.window_end.plus_seconds(context.settings.expiry_seconds),
                ..Decision::default()
            },
        };
        draft.note("gpus", Some(f64::from(window.gpus)));
        draft.note("energy_coverage_ratio", Some(window.energy_coverage_ratio));
        draft.note("progress_coverage_ratio", Some(window.progress_coverage_ratio));
        draft.note("samples_per_second", window.samples_per_second);
        draft.note("power_watts", window.mean_power_watts);
        draft.note("power_per_gpu_watts", window.mean_power_per_gpu_watts);
        draft.note("joules_per_sample", window.joules_per_sample);
        draft.note("joules_per_sample_running", window.joules_per_sample_running);
        draft.expect_power(window, context);
        draft
    }

    /// Notes the power that the board's model expects at this activity, so that a GPU that differs from others can be found.
    fn expect_power(&mut self, window: &EfficiencyWindow, context: &ControllerContext<'_>) {
        let gpu_model = context.workload.and_then(|workload| workload.gpu_model.as_deref());
        let activity = (window.mean_sm_active_ratio, window.mean_dram_active_ratio, window.mean_sm_clock_mhz);
        if let Some(model) = context.models.and_then(|models| models.power(gpu_model))
            && let (Some(sm), Some(dram), Some(clock)) = activity
        {
            let expected = model.document.expect(sm, dram, clock);
            if expected.inside_range {
                self.note("model_power_per_gpu_watts", Some(expected.watts));
                self.with_model(&model);
            }
        }
    }

    /// Returns the end of the window that is decided about.
    pub fn time(&self) -> eadt_schemas::EventTime {
        self.decision.time
    }

    /// Adds a number that the decision rests on. What is unknown, or no number, is left out.
    pub fn note(&mut self, name: &str, value: Option<f64>) {
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
        self.note(compared, Some(watts));
        self.note("compared_efficiency_samples_per_second_per_watt", Some(efficiency));
        self.note("threshold_power_high_watts", Some(table.high_watts));
        self.note("threshold_power_low_watts", Some(table.low_watts));
        self.note("threshold_efficiency_poor_samples_per_second_per_watt", Some(table.poor));
        self.note("threshold_efficiency_good_samples_per_second_per_watt", Some(table.good));
    }

    pub fn note_medians(&mut self, when: &str, medians: &Medians) {
        self.note(&format!("{when}_windows"), Some(medians.windows as f64));
        self.note(&format!("{when}_samples_per_second"), Some(medians.samples_per_second));
        self.note(&format!("{when}_power_watts"), Some(medians.watts));
        self.note(&format!("{when}_joules_per_sample"), medians.joules_per_sample());
    }

    /// Parts that a change saved: of the energy per sample, and of the objective where that is another one.
    pub fn note_gains(&mut self, objective: ControllerObjective, energy: f64, of_objective: f64) {
        self.note("gain_ratio", Some(energy));
        self.note("objective_gain_ratio", Some(of_objective).filter(|_| !objective.is_energy()));
    }

    /// Sets the state of the validation of a change, and the decision that it concerns.
    pub fn validating(mut self, validation: ChangeValidation, concerns: &str) -> Self {
        self.decision.validation = validation;
        self.decision.concerns = Some(concerns.into()).filter(|id: &String| !id.is_empty());
        self
    }

    /// Names a learned model that the decision was made with.
    pub fn with_model<T>(&mut self, model: &ModelInForce<'_, T>) {
        let said = format!("{}@{}", model.name, model.version);
        self.decision.model_version = Some(match self.decision.model_version.take() {
            Some(before) => format!("{before}, {said}"),
            None => said,
        });
    }

    pub fn holding(mut self, until: Option<eadt_schemas::EventTime>) -> Self {
        self.decision.hold_until = until;
        self
    }

    pub fn maintain(mut self, reason: impl Into<String>) -> Decision {
        self.decision.reason = reason.into();
        self.decision
    }

    pub fn maintain_with_note(self, note: ChangeNote) -> Decision {
        self.validating(note.validation, &note.concerns).holding(note.hold_until).maintain(note.reason)
    }

    /// A change of a knob that turns while the processes run.
    pub fn turn(self, action: ControllerAction, to: Layout, reason: String) -> Decision {
        Decision { restarts: false, ..self.change(action, to, reason) }
    }

    /// A change of the layout, which restarts the workload's processes.
    pub fn change(mut self, action: ControllerAction, to: Layout, reason: String) -> Decision {
        self.decision.action = action;
        self.decision.restarts = true;
        self.decision.to = to;
        self.decision.reason = reason;
        self.decision
    }
}
