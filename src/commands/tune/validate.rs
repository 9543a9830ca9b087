//! `eadt tune validate`: fresh measurements against a result.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use eadt_models::choose::{ChoiceMethod, ChoiceObjective, PromiseVerdict, PromisedChoice, ValidationTolerances, validate};
use eadt_schemas::counts::counted_as;
use eadt_schemas::figures::format_percent;
use eadt_tune::{TuningRequest, points};
use serde::Serialize;

use super::{PointTableArgs, open, ratio, read_result};
use crate::output::print_line;

#[derive(Debug, Args)]
pub struct TuneValidateArgs {
    /// What `eadt tune … --json` printed.
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    /// Fresh runs at the chosen and at the reference settings, as a table of operating points with a column `run`.
    #[arg(value_name = "FRESH.csv")]
    pub fresh: PathBuf,
    #[command(flatten)]
    pub columns: PointTableArgs,
    /// How much less than promised may be saved, in absolute terms.
    #[arg(long, value_name = "RATIO", value_parser = ratio, default_value = "0.02")]
    pub saving_tolerance: f64,
    /// How much runs of a setting may differ.
    #[arg(long, value_name = "RATIO", value_parser = ratio, default_value = "0.05")]
    pub max_spread: f64,
    /// Fewer runs of a setting prove nothing.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub min_runs: usize,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct GroupValidation {
    by: points::GroupKey,
    holds: bool,
    promise: PromisedChoice,
    #[serde(flatten)]
    verdict: PromiseVerdict,
}

pub fn run(args: &TuneValidateArgs) -> anyhow::Result<()> {
    let name = args.result.display();
    let tuning = read_result(&args.result)?;
    if tuning.groups.is_empty() {
        bail!("{name} has no group to validate");
    }
    let by = if args.columns.by.is_empty() { tuning.groups[0].by.keys().cloned().collect() } else { args.columns.by.clone() };
    let request = TuningRequest {
        maps: args.columns.map.clone(),
        decimal: args.columns.decimal.map(Into::into),
        by,
        knobs: tuning.knobs(),
        reference_second_setting: None,
        max_slowdown_ratio: None,
        min_ratio: None,
        preset: None,
        objective: ChoiceObjective::Energy,
        method: ChoiceMethod::Measured,
        min_settings: 1,
        max_power_watts: args.columns.max_power_watts,
    };
    let fresh = points::read(&args.fresh.display().to_string(), open(&args.fresh)?, &request)?;
    if fresh.values().any(|group| group.is_simulated) {
        crate::output::note!("note: {} has simulated rows, which prove nothing of a real board", args.fresh.display());
    }
    let tolerances =
        ValidationTolerances { saving_ratio: args.saving_tolerance, spread_ratio: args.max_spread, runs: args.min_runs.max(1) };
    let judged: Vec<GroupValidation> = tuning
        .groups
        .iter()
        .map(|group| {
            let chosen = &group.choices.constrained;
            let promise = PromisedChoice {
                reference_setting: group.choices.reference.setting,
                reference_second_setting: group.choices.reference.second_setting,
                setting: chosen.setting,
                second_setting: chosen.second_setting,
                max_slowdown_ratio: group.max_slowdown_ratio,
                saving_ratio: chosen.saving_lower_ratio.unwrap_or(chosen.saving_ratio),
            };
            let runs = fresh.get(&group.by).map_or(&[][..], |found| found.measurements.as_slice());
            let verdict = validate(&promise, runs, &tolerances);
            GroupValidation { by: group.by.clone(), holds: verdict.holds(), promise, verdict }
        })
        .collect();
    let failed = judged.iter().filter(|judged| !judged.holds).count();
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&serde_json::json!({ "holds": failed == 0, "groups": judged }))?);
    } else {
        for one in &judged {
            let figure = |ratio: Option<f64>| ratio.map_or("unknown".to_owned(), |ratio| format_percent(ratio, 1));
            let setting = tuning.knobs().words(one.promise.setting, one.promise.second_setting);
            print_line!(
                "{} {} at {setting}: slowdown {} (limit {:.1} %), saving {} (promised {:.1} %), runs differ by {}",
                if one.holds { "holds " } else { "BROKEN" },
                points::name(&one.by),
                figure(one.verdict.slowdown_ratio),
                100.0 * one.promise.max_slowdown_ratio,
                figure(one.verdict.saving_ratio),
                100.0 * one.promise.saving_ratio,
                figure(one.verdict.spread_ratio)
            );
            for problem in &one.verdict.problems {
                print_line!("       {problem}");
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} not hold what was promised, or prove nothing", counted_as(judged.len(), "group does", "groups do"));
    }
    Ok(())
}
