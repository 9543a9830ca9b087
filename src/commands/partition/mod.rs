//! `eadt partition`: how to share a GPU.

mod args;
mod experiment;

use std::cell::Cell;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use eadt_gpu_sharing::evaluate::{
    EvaluateSettings, EvaluatedMethod, EvaluationFindings, EvaluationSet, by_group, by_unseen_workload, workload_bars,
};
use eadt_gpu_sharing::forest::ForestSettings;
use eadt_gpu_sharing::tables::{SoloTable, read_co_runs, read_solo, write_co_runs, write_solo};
use eadt_gpu_sharing::{
    AdditivePredictor, ChoiceSettings, ChoiceVerdict, GpuMeasurements, GpuTenants, ShareObjective, SharePredictor, SlowdownModel,
    SoloProfile, choose,
};
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::Origin;
use eadt_service::files;
use eadt_simulator::gpu::BoardModel;
use eadt_simulator::sharing::{LabNoise, LabPlan, PAPER_MEMORY_GIB, SharingLab, paper_suite, tenths};
use serde_json::json;

pub use args::PartitionCommand;

use crate::atomic_file::{AtomicFile, create_folder};
use crate::live::origin_word;
use crate::output::{print, print_line};
use crate::progress::ProgressMeter;
use crate::usage_error;

const SIMULATED: &str = "Simulated: the paper's 16 workloads in the GPU model of a V100, measured with noise, choices held against the \
                         model without noise.";

pub fn run(command: &PartitionCommand) -> anyhow::Result<()> {
    match command {
        PartitionCommand::Evaluate(args) => evaluate(args),
        PartitionCommand::Choose(args) => choose_for(args),
        PartitionCommand::Train(args) => train(args),
        PartitionCommand::Simulate(args) => simulate(args),
    }
}

impl From<args::ForestArgs> for ForestSettings {
    fn from(growth: args::ForestArgs) -> Self {
        Self { trees: growth.trees, leaf_min: growth.leaf_min, seed: growth.seed, features_per_split: None }
    }
}

fn evaluate(args: &args::PartitionEvaluateArgs) -> anyhow::Result<()> {
    let settings = EvaluateSettings {
        forest: args.growth.into(),
        training_ratios: args.training.clone(),
        repeats: args.repeats,
        seed: args.growth.seed,
        ..EvaluateSettings::default()
    };
    let inputs: Vec<PathBuf> = args.solo.iter().chain(&args.co_runs).cloned().collect();
    let page = args.html.as_deref().map(|path| AtomicFile::create(path, &inputs, args.force)).transpose()?;
    let (findings, origin, note) = if let (Some(solo), Some(co_runs)) = (&args.solo, &args.co_runs) {
        let (measurements, origin) = measurements(&read(solo)?, solo, args.idle_watts, co_runs)?;
        let trial = EvaluationSet::of(measurements);
        let mut findings = EvaluationFindings::default();
        let meter = ProgressMeter::steps(3, "parts");
        by_group("groups", &trial, &settings, &mut findings)?;
        meter.add(1);
        by_unseen_workload("groups with an unseen workload", &trial, &settings, &mut findings)?;
        meter.add(1);
        workload_bars(&trial, &settings, &mut findings)?;
        meter.finish();
        (findings, origin, note_on_tables(origin))
    } else {
        let meter = ProgressMeter::steps(experiment::parts(args.paper_only), "parts");
        let begun = Cell::new(false);
        let findings = experiment::run(&settings, args.paper_only, &|part| {
            // The one before is done.
            meter.add(u64::from(begun.replace(true)));
            tracing::info!("{part}");
        });
        meter.finish();
        (findings?, Origin::Simulated, SIMULATED.to_owned())
    };
    if let Some(page) = page {
        let mark = if origin == Origin::Measured { String::new() } else { format!(" ({})", origin_word(origin)) };
        let heading = format!("Sharing a GPU: predicted and chosen partitions{mark}");
        page.write(&findings.html(&heading, std::slice::from_ref(&note)))?;
    }
    if args.json {
        let gains = findings.workload_gains();
        print_line!(
            "{}",
            json!({
                "origin": origin,
                "lines": findings.lines,
                "workloads": findings.workloads,
                "workload_gain_mean_ratio": gains.map(|(mean, _)| mean),
                "workload_gain_max_ratio": gains.map(|(_, largest)| largest),
            })
        );
        return Ok(());
    }
    print(&format!("{note}\n{}", findings.text()))?;
    if let Some(path) = &args.html {
        print_line!("\npage: {}", path.display());
    }
    Ok(())
}

fn train(args: &args::PartitionTrainArgs) -> anyhow::Result<()> {
    let target = AtomicFile::create(&args.out, &[args.measured.solo.clone(), args.co_runs.clone()], args.force)?;
    let (measurements, origin) =
        measurements(&read(&args.measured.solo)?, &args.measured.solo, args.measured.idle_watts, &args.co_runs)?;
    let forest = ForestSettings::from(args.growth);
    let meter = ProgressMeter::steps(2, "parts");
    let model = SlowdownModel::train(&measurements, &forest)?.with_origin(origin);
    meter.add(1);
    let groups = measurements.groups().len();
    let trial = EvaluationSet::of(measurements);
    let settings = EvaluateSettings {
        forest,
        training_ratios: vec![0.8],
        repeats: 5,
        seed: args.growth.seed,
        ..EvaluateSettings::default()
    };
    let mut findings = EvaluationFindings::default();
    let held_back = by_group("groups", &trial, &settings, &mut findings);
    meter.finish();
    let text = serde_json::to_string(&model)?;
    target.write(&text)?;
    let score = findings.lines.iter().find(|line| line.method == EvaluatedMethod::SlowdownMean).map(|line| line.score);
    if args.json {
        print_line!(
            "{}",
            json!({"out": args.out, "origin": origin, "gpu_model": model.gpu_model(), "groups": groups, "nodes": model.nodes(), "bytes": text.len(), "held_back": score})
        );
        return Ok(());
    }
    print_line!(
        "{}: {}, {groups} groups ({}), {} nodes, {} bytes",
        args.out.display(),
        model.gpu_model(),
        origin_word(origin),
        model.nodes(),
        text.len()
    );
    match (held_back, score) {
        (Ok(()), Some(score)) => {
            let percent = |ratio: Option<f64>| ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
            print_line!(
                "on groups held back (a fifth, five times): throughput error {}, power error {}, choices worth {:.1} % of the best",
                percent(score.throughput_error_ratio),
                percent(score.power_error_ratio),
                score.of_oracle_ratio * 100.0
            );
        }
        (Err(error), _) => crate::output::note!("warning: how good the model is cannot be computed: {error}"),
        (Ok(()), None) => {}
    }
    Ok(())
}

fn choose_for(args: &args::PartitionChooseArgs) -> anyhow::Result<()> {
    let solo = read(&args.measured.solo)?;
    let idle_watts = idle(&solo, &args.measured.solo, args.measured.idle_watts)?;
    let find = |name: &String| -> anyhow::Result<&SoloProfile> {
        let known = || solo.profiles.iter().map(SoloProfile::workload).collect::<Vec<_>>().join(", ");
        let found = solo.profiles.iter().find(|profile| profile.workload() == name);
        found.with_context(|| {
            format!("--workloads names {name}, which {} lacks; it has {}", args.measured.solo.display(), known())
        })
    };
    let tenants = args.workloads.iter().map(find).collect::<anyhow::Result<Vec<_>>>()?;
    let settings = ChoiceSettings {
        objective: match args.objective {
            args::PartitionObjective::Progress => ShareObjective::Progress,
            args::PartitionObjective::Sum => ShareObjective::Sum,
        },
        risk_quantile: args.risk.0,
        floor_ratio: Some(args.floor),
        slowdown_max_ratio: args.max_slowdown,
        gain_min_ratio: args.min_gain,
    };
    settings.check().map_err(anyhow::Error::msg)?;
    let model = args.model.as_deref().map(read_model).transpose()?;
    let predictor: &dyn SharePredictor = model.as_ref().map_or(&AdditivePredictor, |model| model);
    let clocks = if args.clocks { common_clocks(&tenants)? } else { vec![None] };
    let together = GpuTenants::new(tenants, idle_watts)?;
    let candidates = together.candidates(args.step, &clocks)?;
    let outlook = predictor.predict(&together, &candidates)?;
    let choice = choose(&together, &candidates, &outlook, &settings);
    let by = if model.is_some() { "model" } else { "additive" };
    let origin = model.as_ref().map_or(solo.origin, |model| model.origin().max(solo.origin));
    let rows: Vec<_> = (0..together.tenants().len())
        .map(|i| {
            let whole = together.tenants()[i].whole().samples_per_second;
            let (expected, equal) = (choice.expected.samples_per_second[i], choice.equal.samples_per_second[i]);
            (together.tenants()[i].workload(), choice.candidate.mps_thread_percentages[i], expected, equal, whole)
        })
        .collect();
    if args.json {
        let workloads: Vec<_> = rows
            .iter()
            .map(|(workload, share, expected, equal, whole)| {
                json!({"workload": workload, "mps_thread_percentage": share, "samples_per_second": expected,
                    "equal_samples_per_second": equal, "progress_ratio": expected / whole})
            })
            .collect();
        print_line!(
            "{}",
            json!({"origin": origin, "gpu_model": together.gpu_model(), "predicted_by": by, "verdict": choice.verdict, "workloads": workloads,
                "sm_clock_mhz": choice.candidate.sm_clock_mhz, "power_watts": choice.expected.power_watts,
                "equal_power_watts": choice.equal.power_watts, "gain_ratio": choice.gain_ratio,
                "sure_gain_ratio": choice.sure_gain_ratio, "feasible": choice.feasible, "candidates": candidates.len()})
        );
        return Ok(());
    }
    if origin != Origin::Measured {
        print_line!("{}: predicted from {} measurements", together.gpu_model(), origin_word(origin));
    }
    print_line!("{:<24}{:>8}{:>14}{:>14}{:>12}", "workload", "share", "samples/s", "at equal", "of alone");
    for (workload, share, expected, equal, whole) in rows {
        print_line!("{workload:<24}{:>8}{expected:>14.2}{equal:>14.2}{:>10.0} %", format!("{share} %"), expected / whole * 100.0);
    }
    let clock = choice.candidate.sm_clock_mhz.map_or(String::new(), |mhz| format!(" at {mhz} MHz"));
    print_line!("GPU: {:.0} W{clock}, {:.0} W at equal shares", choice.expected.power_watts, choice.equal.power_watts);
    let sought = if settings.objective == ShareObjective::Sum { "throughput sum per watt" } else { "progress per watt" };
    match choice.verdict {
        ChoiceVerdict::Better if settings.risk_quantile.is_some() && model.is_some() => print_line!(
            "{sought}: {} against equal shares, {} counted carefully; {} of {} partitions keep the limits",
            format_signed_percent(choice.gain_ratio, 1),
            format_signed_percent(choice.sure_gain_ratio, 1),
            choice.feasible,
            candidates.len()
        ),
        ChoiceVerdict::Better => print_line!(
            "{sought}: {} against equal shares; {} of {} partitions keep the limits",
            format_signed_percent(choice.gain_ratio, 1),
            choice.feasible,
            candidates.len()
        ),
        ChoiceVerdict::EqualIsBest => {
            print_line!("no partition is better than equal shares by {:.1} % or more", settings.gain_min_ratio * 100.0);
        }
        ChoiceVerdict::Infeasible => {
            print_line!("no partition keeps the limits, equal shares neither: loosen --max-slowdown or do not share");
        }
    }
    if model.is_none() {
        print_line!("predicted by adding what each does alone; `eadt partition train` learns from co-runs");
    }
    Ok(())
}

/// Files of `eadt partition simulate`.
const SIMULATED_TABLES: [&str; 2] = ["solo.csv", "co_runs.csv"];

fn simulate(args: &args::PartitionSimulateArgs) -> anyhow::Result<()> {
    let board = BoardModel::V100.board();
    if let Some(clock) = args.clocks.iter().find(|clock| !(board.clock_min_mhz..=board.clock_max_mhz).contains(*clock)) {
        let why = format!("a {} runs from {} to {} MHz", board.name, board.clock_min_mhz, board.clock_max_mhz);
        return Err(usage_error::invalid("--clocks <MHZ,…>", clock, why));
    }
    create_folder(&args.out, &[], args.force, |name| SIMULATED_TABLES.contains(&name))?;
    let lab = SharingLab::new(BoardModel::V100, paper_suite(), LabNoise::usual(args.seed));
    let mut clocks: Vec<Option<f64>> = args.clocks.iter().copied().map(Some).collect();
    if clocks.is_empty() {
        clocks.push(None);
    }
    let measurements = lab.measure(&LabPlan { groups: lab.pairs(PAPER_MEMORY_GIB), partitions: tenths(), clocks })?;
    for (name, text) in SIMULATED_TABLES
        .into_iter()
        .zip([write_solo(&measurements, Origin::Simulated), write_co_runs(&measurements, Origin::Simulated)])
    {
        let path = args.out.join(name);
        AtomicFile::create(&path, &[], args.force)?.write(&text)?;
        print_line!("{}", path.display());
    }
    print_line!(
        "simulated: {} workloads alone, {} co-runs of {} pairs",
        lab.workloads().len(),
        measurements.runs().len(),
        measurements.groups().len()
    );
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<SoloTable> {
    Ok(read_solo(&path.display().to_string(), &text_of(path)?)?)
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    files::read_text(path, files::TEXT_BYTES).with_context(|| format!("cannot read {}", path.display()))
}

fn idle(solo: &SoloTable, path: &Path, option: Option<f64>) -> anyhow::Result<f64> {
    option.or(solo.idle_watts).with_context(|| {
        format!("{} has no row with 0 % for the GPU's idle power: add one, or give --idle-watts", path.display())
    })
}

/// Reads the co-runs and joins them with the table alone. Returns also the weakest origin of both.
fn measurements(
    solo: &SoloTable,
    path: &Path,
    idle_watts: Option<f64>,
    co_runs: &Path,
) -> anyhow::Result<(GpuMeasurements, Origin)> {
    let together = read_co_runs(&co_runs.display().to_string(), &text_of(co_runs)?)?;
    let idle_watts = idle(solo, path, idle_watts)?;
    let measurements = GpuMeasurements::new(idle_watts, solo.profiles.clone(), together.runs)?;
    Ok((measurements, solo.origin.max(together.origin)))
}

/// Returns the note on an evaluation of tables, by their origin.
fn note_on_tables(origin: Origin) -> String {
    const HELD_AGAINST: &str = "Choices are held against the measurements themselves.";
    match origin {
        Origin::Measured => HELD_AGAINST.to_owned(),
        Origin::Imported => format!("Imported, by the tables' column origin. {HELD_AGAINST}"),
        Origin::Simulated => {
            format!("Simulated, by the tables' column origin: these figures were not measured. {HELD_AGAINST}")
        }
    }
}

fn read_model(path: &Path) -> anyhow::Result<SlowdownModel> {
    serde_json::from_str(&text_of(path)?).with_context(|| {
        format!("{} is no model that this program can use; make one with `eadt partition train`", path.display())
    })
}

/// Returns the clocks at which all workloads were measured, the highest first.
fn common_clocks(tenants: &[&SoloProfile]) -> anyhow::Result<Vec<Option<f64>>> {
    let common: Vec<Option<f64>> =
        tenants[0].clocks().filter(|clock| tenants.iter().all(|tenant| tenant.clocks().any(|own| own == *clock))).collect();
    if common.len() < 2 {
        bail!("--clocks: the workloads were not measured at two or more clocks that all of them have");
    }
    Ok(common)
}
