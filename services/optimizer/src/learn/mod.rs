//! Fits models to windows, and evaluates them on held-back windows. Pure.

mod cap_curve;
mod gpu_sharing;
mod power;

use std::collections::{BTreeMap, BTreeSet};

use eadt_models::published::{cap_curve_name, power_name};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{EfficiencyWindow, Model, Origin, Workload};
use serde::Serialize;
use serde_json::Value;

use crate::settings::OptimizerSettings;

/// The data that models are trained on.
#[derive(Debug, Clone, Default)]
pub struct TrainingData {
    /// Usable tumbling windows, by workload and time.
    pub windows: Vec<EfficiencyWindow>,
    /// Facts about the workloads, by name.
    pub workloads: BTreeMap<String, Workload>,
    /// Fingerprint of all the data: equal data have equal ones.
    pub fingerprint: String,
}

/// The action for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelVerdict {
    /// It beats the one in force, or there is none: publish it.
    Publish,
    /// The one in force is as good, or a constant is.
    Keep,
    /// The data are not sufficient.
    CannotTell,
}

/// The result of fitting one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelProposal {
    /// The model's name: `power/GPU MODEL`, `cap-curve/NAMESPACE/NAME`, `partition/GPU MODEL`.
    pub name: String,
    pub verdict: ModelVerdict,
    /// The reason as text.
    pub reason: String,
    /// Figures on training and held-back data; empty if nothing was fitted.
    pub metrics: BTreeMap<String, f64>,
    /// The event to publish; only with [`ModelVerdict::Publish`].
    pub model: Option<Model>,
}

impl ModelProposal {
    fn without_model(name: &str, verdict: ModelVerdict, reason: String, metrics: BTreeMap<String, f64>) -> Self {
        Self { name: name.to_owned(), verdict, reason, metrics, model: None }
    }
}

/// Returns a document as the parameters of an event.
fn parameters(document: &impl Serialize) -> Value {
    serde_json::to_value(document).expect("invariant fits_are_json: finite numbers and texts")
}

/// Fits and evaluates every model that the windows allow. `now` becomes the event time of published models.
pub fn learn(
    training: &TrainingData,
    present: &BTreeMap<String, Model>,
    settings: &OptimizerSettings,
    now: EventTime,
) -> Vec<ModelProposal> {
    let scope = FitScope { training, present, settings, now };
    let mut proposals = Vec::new();
    let boards: BTreeSet<&str> = training.workloads.values().filter_map(|workload| workload.gpu_model.as_deref()).collect();
    for board in boards {
        let of_board = |window: &&EfficiencyWindow| {
            training.workloads.get(&window.workload).and_then(|w| w.gpu_model.as_deref()) == Some(board)
        };
        let windows: Vec<_> = training.windows.iter().filter(of_board).collect();
        let shared = gpu_sharing::propose(&scope, board, &windows);
        let windows = windows.into_iter().filter(|window| is_alone(window)).collect();
        let subject = FitSubject { name: power_name(board), gpu_model: Some(board), windows, scope };
        proposals.push(subject.fit_and_validate(power::fit, power::predict));
        proposals.extend(shared);
    }
    let workloads: BTreeSet<&str> = training.windows.iter().map(|window| window.workload.as_str()).collect();
    for workload in workloads {
        let alone = |window: &&EfficiencyWindow| window.workload == workload && is_alone(window);
        let windows = cap_curve::comparable(training.windows.iter().filter(alone));
        let gpu_model = training.workloads.get(workload).and_then(|known| known.gpu_model.as_deref());
        let subject = FitSubject { name: cap_curve_name(workload), gpu_model, windows, scope };
        proposals.push(subject.fit_and_validate(cap_curve::fit, cap_curve::predict));
    }
    proposals
}

/// Returns true if a window is of a workload alone on its boards. Beside others it has a part of a board's power, and its
/// throughput depends on them.
fn is_alone(window: &EfficiencyWindow) -> bool {
    window.tenants.is_none_or(|tenants| tenants <= 1)
}

/// The inputs that the fits of all models share.
#[derive(Clone, Copy)]
struct FitScope<'a> {
    training: &'a TrainingData,
    present: &'a BTreeMap<String, Model>,
    settings: &'a OptimizerSettings,
    now: EventTime,
}

impl FitScope<'_> {
    /// Builds the next version of a model; `range`: the time range of its training data.
    fn event(
        &self,
        name: &str,
        mut parameters: Value,
        metrics: &BTreeMap<String, f64>,
        origin: Origin,
        (from, to): (EventTime, EventTime),
    ) -> Model {
        // Unreadable versions are from another program, so counting begins anew.
        let before = self.present.get(name).and_then(|model| model.version.parse::<u64>().ok()).unwrap_or(0);
        parameters["origin"] = serde_json::to_value(origin).expect("an enumeration is JSON");
        parameters["trained_from"] = serde_json::to_value(from).expect("a time is JSON");
        parameters["trained_to"] = serde_json::to_value(to).expect("a time is JSON");
        Model {
            time: self.now,
            name: name.to_owned(),
            version: (before + 1).to_string(),
            data_fingerprint: self.training.fingerprint.clone(),
            metrics: metrics.clone(),
            parameters,
        }
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

/// A fitted model: its parameters in their own versioned form, its error on the training data, and its R² if it has one.
struct FittedParameters {
    parameters: Value,
    mape_ratio: f64,
    r_squared: Option<f64>,
}

/// One model to be learned.
struct FitSubject<'a> {
    name: String,
    /// Board of its windows.
    gpu_model: Option<&'a str>,
    windows: Vec<&'a EfficiencyWindow>,
    scope: FitScope<'a>,
}

/// Returns the value of a window and the model's prediction; `None` if the model makes none.
type PredictFn = fn(&Value, &EfficiencyWindow) -> Option<(f64, f64)>;
/// Fits a model; the error has the reason if the windows are not sufficient.
type FitFn = fn(&[&EfficiencyWindow], Option<&str>) -> Result<FittedParameters, String>;

/// Returns the mean absolute error as a part of the true value, and over how many windows.
fn error_of(parameters: &Value, predict: PredictFn, windows: &[&EfficiencyWindow]) -> Option<(f64, usize)> {
    let errors: Vec<f64> = windows
        .iter()
        .filter_map(|window| predict(parameters, window))
        .map(|(truth, predicted)| ((predicted - truth) / truth).abs())
        .filter(|error| error.is_finite())
        .collect();
    (!errors.is_empty()).then(|| (errors.iter().sum::<f64>() / errors.len() as f64, errors.len()))
}

/// Returns the error, as [`error_of`] does, of a constant: the mean of `seen`.
fn error_of_constant(
    parameters: &Value,
    predict: PredictFn,
    training: &[&EfficiencyWindow],
    held_back: &[&EfficiencyWindow],
) -> Option<f64> {
    let truths = |windows: &[&EfficiencyWindow]| -> Vec<f64> {
        windows.iter().filter_map(|window| predict(parameters, window)).map(|(truth, _)| truth).collect()
    };
    let (training, held_back) = (truths(training), truths(held_back));
    let mean = training.iter().sum::<f64>() / training.len() as f64;
    let error = held_back.iter().map(|truth| ((mean - truth) / truth).abs()).sum::<f64>() / held_back.len() as f64;
    error.is_finite().then_some(error)
}

impl FitSubject<'_> {
    fn fit_and_validate(mut self, fit: FitFn, predict: PredictFn) -> ModelProposal {
        self.windows.sort_by(|a, b| (a.window_start, &a.workload).cmp(&(b.window_start, &b.workload)));
        self.windows.drain(..self.windows.len().saturating_sub(self.scope.settings.windows_max));
        let count = self.windows.len();
        if count < self.scope.settings.windows_min {
            let reason = format!("{count} usable windows; optimizer.windows_min asks for {}", self.scope.settings.windows_min);
            return self.proposal(ModelVerdict::CannotTell, reason, BTreeMap::new());
        }
        let held_back = ((count as f64 * self.scope.settings.held_back_ratio).round() as usize).clamp(1, count - 1);
        let (training, held_back_windows) = self.windows.split_at(count - held_back);
        let fitted = match fit(training, self.gpu_model) {
            Ok(fitted) => fitted,
            Err(reason) => return self.proposal(ModelVerdict::CannotTell, reason, BTreeMap::new()),
        };
        let Some((error, judged)) = error_of(&fitted.parameters, predict, held_back_windows) else {
            let reason = "no held-back window lies where the model was fitted".to_owned();
            return self.proposal(ModelVerdict::CannotTell, reason, BTreeMap::new());
        };
        let constant = error_of_constant(&fitted.parameters, predict, training, held_back_windows);
        let present = self.scope.present.get(&self.name);
        let in_force = present.and_then(|model| error_of(&model.parameters, predict, held_back_windows)).map(|(error, _)| error);
        let mut metrics = BTreeMap::from([
            ("training_windows".to_owned(), training.len() as f64),
            ("training_mape_ratio".to_owned(), fitted.mape_ratio),
            ("held_back_windows".to_owned(), judged as f64),
            ("held_back_mape_ratio".to_owned(), error),
        ]);
        metrics.extend(fitted.r_squared.map(|value| ("training_r_squared".to_owned(), value)));
        metrics.extend(constant.map(|value| ("held_back_constant_mape_ratio".to_owned(), value)));
        metrics.extend(in_force.map(|value| ("held_back_present_mape_ratio".to_owned(), value)));

        let worse_than = |other: f64| error > other * (1.0 - self.scope.settings.margin_ratio);
        if let Some(constant) = constant.filter(|constant| worse_than(*constant)) {
            let reason = format!("misses held-back windows by {}, a constant by {}", percent(error), percent(constant));
            return self.proposal(ModelVerdict::Keep, reason, metrics);
        }
        if let (Some(model), Some(in_force)) = (present, in_force.filter(|in_force| worse_than(*in_force))) {
            let (new, old) = (percent(error), percent(in_force));
            let reason = format!("misses held-back windows by {new}, version {} in force by {old}", model.version);
            return self.proposal(ModelVerdict::Keep, reason, metrics);
        }
        let reason = match in_force {
            Some(in_force) => {
                format!("misses held-back windows by {}, the one in force by {}", percent(error), percent(in_force))
            }
            None => format!("misses held-back windows by {}; there is none in force for them", percent(error)),
        };
        let model = self.event(training, fitted.parameters, &metrics);
        ModelProposal { model: Some(model), ..self.proposal(ModelVerdict::Publish, reason, metrics) }
    }

    fn event(&self, training: &[&EfficiencyWindow], parameters: Value, metrics: &BTreeMap<String, f64>) -> Model {
        let origin = training.iter().map(|window| window.origin).max().unwrap_or(Origin::Measured);
        let range = match training {
            [first, .., last] => (first.window_start, last.window_end),
            [only] => (only.window_start, only.window_end),
            [] => Default::default(),
        };
        self.scope.event(&self.name, parameters, metrics, origin, range)
    }

    fn proposal(&self, verdict: ModelVerdict, reason: String, metrics: BTreeMap<String, f64>) -> ModelProposal {
        ModelProposal::without_model(&self.name, verdict, reason, metrics)
    }
}
