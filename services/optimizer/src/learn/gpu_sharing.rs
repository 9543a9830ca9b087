//! The mutual slowdown of workloads that share a board.
//!
//! In: all usable windows of a board. Windows of a workload alone make its profile; windows of several workloads on a GPU make
//! co-runs. A model is evaluated on the latest sets of workloads, which it never saw together, beside the additive model and the
//! one in force: the training data of the latter are also earlier.

use std::collections::{BTreeMap, BTreeSet};

use eadt_gpu_sharing::co_runs::{GatheredRun, GatheredRuns, co_runs, implied_idle_watts};
use eadt_gpu_sharing::forest::ForestSettings;
use eadt_gpu_sharing::gather::{GatherSettings, ProfileGatherer};
use eadt_gpu_sharing::published::SharingModelDocument;
use eadt_gpu_sharing::{
    AdditivePredictor, CoRun, GpuMeasurements, GpuTenants, ShareCandidate, SharePredictor, SlowdownModel, SoloProfile,
};
use eadt_models::published::partition_name;
use eadt_schemas::v1::{EfficiencyWindow, Origin};

use super::{FitScope, ModelProposal, ModelVerdict, percent};

/// Minimum number of sets of workloads that ran together, and of the held-back ones: with fewer, an evaluation would prove
/// nothing about other sets.
const SETS_MIN: usize = 6;
const SETS_HELD_BACK_MIN: usize = 2;
/// Co-runs that are learned from, the latest ones.
const RUNS_MAX: usize = 1_000;
/// Largest document: an event is carried by Kafka's default limits of 1 MB for a record, envelope and all.
const DOCUMENT_BYTES_MAX: usize = 900_000;
/// More tenants cannot be distinguished.
const TENANTS_MAX: usize = 16;

type SoloProfiles = BTreeMap<String, SoloProfile>;

/// Errors of a model on co-runs: means of the relative errors.
#[derive(Debug, Clone, Copy)]
struct CoRunErrors {
    /// Error of each workload's throughput.
    throughput_ratio: f64,
    /// Error of the GPU's power.
    power_ratio: f64,
}

impl CoRunErrors {
    /// A partition is chosen by both.
    fn ratio(self) -> f64 {
        f64::midpoint(self.throughput_ratio, self.power_ratio)
    }
}

/// Returns the errors on these co-runs; `None` if there is no prediction for some of them.
fn co_run_errors(
    predictor: &dyn SharePredictor,
    idle_watts: f64,
    profiles: &SoloProfiles,
    runs: &[CoRun],
) -> Option<CoRunErrors> {
    let (mut throughput, mut rates, mut power) = (0.0, 0, 0.0);
    for run in runs {
        let tenants = run.tenants.iter().map(|tenant| profiles.get(&tenant.workload)).collect::<Option<_>>()?;
        let together = GpuTenants::new(tenants, idle_watts).ok()?;
        let candidate = ShareCandidate {
            mps_thread_percentages: run.tenants.iter().map(|tenant| tenant.mps_thread_percentage).collect(),
            sm_clock_mhz: None,
        };
        let outlook = predictor.predict(&together, &[candidate]).ok()?;
        let predicted = outlook.means().next()?;
        for (tenant, rate) in run.tenants.iter().zip(&predicted.samples_per_second) {
            throughput += (rate / tenant.samples_per_second - 1.0).abs();
            rates += 1;
        }
        power += (predicted.power_watts / run.power_watts - 1.0).abs();
    }
    let errors = CoRunErrors { throughput_ratio: throughput / f64::from(rates), power_ratio: power / runs.len() as f64 };
    errors.ratio().is_finite().then_some(errors)
}

/// Returns the same of adding up, at its best: with the idle power of each set of workloads that fits its own co-runs, as online.
fn additive_error(found: &BoardCoRuns, runs: &[CoRun]) -> Option<f64> {
    let mut sets: BTreeMap<Vec<&str>, Vec<CoRun>> = BTreeMap::new();
    for run in runs {
        sets.entry(run.group()).or_default().push(run.clone());
    }
    let mut sum = 0.0;
    for runs in sets.values() {
        let idle_watts = implied_idle_watts(&found.profiles_of(runs), runs)?;
        sum += co_run_errors(&AdditivePredictor, idle_watts, &found.profiles, runs)?.ratio() * runs.len() as f64;
    }
    Some(sum / runs.len() as f64)
}

/// Returns the profile of each workload, from its windows alone on a GPU.
fn profiles(scope: &FitScope<'_>, windows: &[&EfficiencyWindow], settings: &GatherSettings) -> SoloProfiles {
    let mut gatherer = ProfileGatherer::default();
    for window in windows {
        // Speed and power under a clock limit are the limit's.
        let limited = window.layout.as_ref().is_some_and(|layout| layout.sm_clock_mhz.is_some());
        if let (Some(workload), false) = (scope.training.workloads.get(&window.workload), limited) {
            let _is_usable = gatherer.observe(window, workload, window.tenants.unwrap_or(1), settings);
        }
    }
    let names: BTreeSet<&str> = windows.iter().map(|window| window.workload.as_str()).collect();
    let known = names.into_iter().filter_map(|name| gatherer.profile(name, settings)?.ok());
    known.map(|profile| (profile.workload().to_owned(), profile)).collect()
}

/// Trains a model, with fewer trees if the document would be too large.
fn train(measurements: &GpuMeasurements) -> Result<(SharingModelDocument, u32), String> {
    let mut forest = SlowdownModel::FOREST;
    loop {
        let model = SlowdownModel::train(measurements, &forest).map_err(|error| error.to_string())?;
        let document = SharingModelDocument::new(model);
        let bytes = super::parameters(&document).to_string().len();
        if bytes <= DOCUMENT_BYTES_MAX {
            return Ok((document, forest.trees));
        }
        let fitting = (f64::from(forest.trees) * 0.98 * DOCUMENT_BYTES_MAX as f64 / bytes as f64) as u32;
        if fitting == 0 {
            return Err(format!("a single tree of it takes more than {DOCUMENT_BYTES_MAX} bytes"));
        }
        forest = ForestSettings { trees: fitting.min(forest.trees - 1), ..forest };
    }
}

/// Returns the sets of workloads that ran together, in the order in which they first did.
fn sets(runs: &[GatheredRun]) -> Vec<Vec<String>> {
    let mut first: BTreeMap<Vec<&str>, _> = BTreeMap::new();
    for run in runs {
        let known = first.entry(run.run.group()).or_insert(run.first);
        *known = run.first.min(*known);
    }
    let mut sets: Vec<_> = first.into_iter().map(|(set, first)| (first, set)).collect();
    sets.sort_unstable();
    sets.into_iter().map(|(_, set)| set.into_iter().map(str::to_owned).collect()).collect()
}

/// Profiles and co-runs from a board's windows.
struct BoardCoRuns {
    profiles: SoloProfiles,
    /// Co-runs whose workloads were measured at their shares, the oldest first.
    runs: Vec<GatheredRun>,
    /// The sets of workloads in the order in which they first ran together.
    sets: Vec<Vec<String>>,
    /// Co-runs of workloads that are not.
    unprofiled: usize,
    /// Windows beside other workloads that are not usable.
    passed: usize,
}

impl BoardCoRuns {
    /// Returns the scope; `None` if no GPU was shared.
    fn of(scope: &FitScope<'_>, windows: &[&EfficiencyWindow]) -> Option<Self> {
        let settings = GatherSettings::default();
        let GatheredRuns { mut runs, passed } = co_runs(windows.iter().copied(), &settings);
        if runs.is_empty() && passed == 0 {
            return None;
        }
        let profiles = profiles(scope, windows, &settings);
        let together = runs.len();
        runs.retain(|run| {
            let mut tenants = run.run.tenants.iter();
            tenants.len() <= TENANTS_MAX
                && tenants.all(|tenant| {
                    let profile = profiles.get(&tenant.workload);
                    profile.is_some_and(|profile| profile.at(tenant.mps_thread_percentage, None).is_some())
                })
        });
        let unprofiled = together - runs.len();
        let mut sets = sets(&runs);
        runs.sort_by_key(|run| run.last);
        runs.drain(..runs.len().saturating_sub(RUNS_MAX));
        sets.retain(|set| runs.iter().any(|run| run.run.group() == *set));
        Some(Self { profiles, runs, sets, unprofiled, passed })
    }

    /// Returns windows that the co-runs are made of.
    fn windows(&self) -> usize {
        self.runs.iter().map(|run| run.windows * run.run.tenants.len()).sum()
    }

    /// Returns the profiles of the workloads of some co-runs: those of others would affect which metrics all of them have.
    fn profiles_of(&self, runs: &[CoRun]) -> SoloProfiles {
        let tenants = runs.iter().flat_map(|run| &run.tenants);
        tenants.filter_map(|tenant| Some((tenant.workload.clone(), self.profiles.get(&tenant.workload)?.clone()))).collect()
    }
}

/// Proposes a model; `None` if no GPU of this board was shared.
pub(super) fn propose(scope: &FitScope<'_>, gpu_model: &str, windows: &[&EfficiencyWindow]) -> Option<ModelProposal> {
    let mut windows = windows.to_vec();
    windows.sort_by(|a, b| (a.window_end, &a.workload).cmp(&(b.window_end, &b.workload)));
    let found = BoardCoRuns::of(scope, &windows)?;
    let BoardCoRuns { profiles, runs, sets, unprofiled, passed } = &found;
    let name = partition_name(gpu_model);
    let mut metrics = BTreeMap::from([
        ("co_runs".to_owned(), runs.len() as f64),
        ("co_runs_without_profiles".to_owned(), *unprofiled as f64),
        ("sets".to_owned(), sets.len() as f64),
        ("windows_passed_over".to_owned(), *passed as f64),
    ]);
    let cannot_tell = |reason, metrics| Some(ModelProposal::without_model(&name, ModelVerdict::CannotTell, reason, metrics));
    let (used, windows_min) = (found.windows(), scope.settings.windows_min);
    if sets.len() < SETS_MIN || used < windows_min {
        let reason = format!(
            "{} co-runs of {} sets of workloads in {used} usable windows: {SETS_MIN} sets are needed, and optimizer.windows_min asks for \
             {windows_min} windows ({unprofiled} other co-runs have a workload that was not measured alone at 100 % and at its share, and \
             {passed} windows beside others are not usable)",
            runs.len(),
            sets.len(),
        );
        return cannot_tell(reason, metrics);
    }
    let held_back = ((sets.len() as f64 * scope.settings.held_back_ratio).round() as usize).max(SETS_HELD_BACK_MIN);
    let held_back: BTreeSet<&[String]> = sets[sets.len() - held_back..].iter().map(Vec::as_slice).collect();
    let is_held_back = |run: &&GatheredRun| held_back.iter().any(|set| run.run.group() == *set);
    let (held_back_runs, training_runs): (Vec<&GatheredRun>, Vec<&GatheredRun>) = runs.iter().partition(is_held_back);
    let range = (training_runs.iter().map(|run| run.first).min()?, training_runs.iter().map(|run| run.last).max()?);
    let [held_back_runs, training_runs] =
        [held_back_runs, training_runs].map(|runs| runs.into_iter().map(|run| run.run.clone()).collect::<Vec<CoRun>>());
    let of_seen = found.profiles_of(&training_runs);
    let origin = windows.iter().filter(|window| of_seen.contains_key(&window.workload)).map(|window| window.origin).max();
    // With all profiles: a job may draw less than those that shared a GPU.
    let Some(idle_watts) = implied_idle_watts(profiles, &training_runs) else {
        return cannot_tell("no co-run's workloads are known at their shares".to_owned(), metrics);
    };
    let fitted = GpuMeasurements::new(idle_watts, of_seen.into_values().collect(), training_runs.clone())
        .map_err(|error| error.to_string())
        .and_then(|measurements| train(&measurements));
    let (document, trees) = match fitted {
        Ok(fitted) => fitted,
        Err(reason) => return cannot_tell(reason, metrics),
    };
    metrics.extend([
        ("training_co_runs".to_owned(), training_runs.len() as f64),
        ("held_back_co_runs".to_owned(), held_back_runs.len() as f64),
        ("held_back_sets".to_owned(), held_back.len() as f64),
        ("trees".to_owned(), f64::from(trees)),
    ]);
    let Some(own) = co_run_errors(&document.model, idle_watts, profiles, &held_back_runs) else {
        let reason = "the held-back workloads were measured without metrics that the others have".to_owned();
        return cannot_tell(reason, metrics);
    };
    let training = co_run_errors(&document.model, idle_watts, profiles, &training_runs);
    let additive = additive_error(&found, &held_back_runs);
    let present = scope.present.get(&name);
    let in_force = present
        .and_then(|model| SharingModelDocument::of(model)?.ok())
        .and_then(|document| co_run_errors(&document.model, document.model.idle_watts(), profiles, &held_back_runs))
        .map(CoRunErrors::ratio);
    let figures = [
        ("held_back_mape_ratio", Some(own.ratio())),
        ("held_back_throughput_mape_ratio", Some(own.throughput_ratio)),
        ("held_back_power_mape_ratio", Some(own.power_ratio)),
        ("held_back_additive_mape_ratio", additive),
        ("held_back_present_mape_ratio", in_force),
        ("training_mape_ratio", training.map(CoRunErrors::ratio)),
    ];
    metrics.extend(figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));

    let text = format!("misses held-back co-runs by {}", percent(own.ratio()));
    let beats = |other: f64| own.ratio() <= other * (1.0 - scope.settings.margin_ratio);
    if let Some(additive) = additive.filter(|additive| !beats(*additive)) {
        let reason = format!("{text}, the additive model by {}", percent(additive));
        return Some(ModelProposal::without_model(&name, ModelVerdict::Keep, reason, metrics));
    }
    if let (Some(model), Some(in_force)) = (present, in_force.filter(|in_force| !beats(*in_force))) {
        let reason = format!("{text}, version {} in force by {}", model.version, percent(in_force));
        return Some(ModelProposal::without_model(&name, ModelVerdict::Keep, reason, metrics));
    }
    let than = additive.map_or(String::new(), |additive| format!(", the additive model by {}", percent(additive)));
    let reason = match in_force {
        Some(in_force) => format!("{text}{than}, the one in force by {}", percent(in_force)),
        None => format!("{text}{than}; there is none in force for them"),
    };
    let model = scope.event(&name, super::parameters(&document), &metrics, origin.unwrap_or(Origin::Measured), range);
    Some(ModelProposal { model: Some(model), ..ModelProposal::without_model(&name, ModelVerdict::Publish, reason, metrics) })
}
