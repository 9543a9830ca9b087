//! `eadt tune`: which clock, power cap or batch size, from a table of measurements.

mod aggregate;
mod export;
mod validate;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use eadt_models::choose::{ChoiceMethod, ChoiceObjective, RobustSettings, TuningKnob, TuningKnobs};
use eadt_service::files;
use eadt_tune::{FieldMap, TuningRequest, TuningResult, epochs, points, presets, tune_counted};

use crate::atomic_file::AtomicFile;
use crate::cli::ImportDecimal;
use crate::output::{print, print_line};
use crate::progress::{MeteredReader, ProgressMeter};
use crate::usage_error;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct TuneArgs {
    #[command(subcommand)]
    pub command: Option<TuneCommand>,
    #[command(flatten)]
    pub choose: TuneChooseArgs,
}

#[derive(Debug, Subcommand)]
pub enum TuneCommand {
    /// Turn raw profiling series into a table of operating points.
    Aggregate(aggregate::TuneAggregateArgs),
    /// Compare new measurements with the predictions of a result; exit 1 if one is wrong or unproved.
    Validate(validate::TuneValidateArgs),
    /// Export the chosen settings for production.
    Export(export::TuneExportArgs),
}

/// What is read from a table of operating points.
#[derive(Debug, Args)]
pub struct PointTableArgs {
    /// Which column holds a field, for example `duration_seconds=elapsed:ms`; may be repeated. Several columns are
    /// added with `+`.
    #[arg(long, value_name = "FIELD=COLUMN[:UNIT]")]
    pub map: Vec<FieldMap>,
    /// The decimal mark of numbers that do not show it, such as `1.200` in a table with semicolons.
    #[arg(long, value_enum, value_name = "MARK")]
    pub decimal: Option<ImportDecimal>,
    /// Columns whose values make a group.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',')]
    pub by: Vec<String>,
    /// Above this mean power a row is taken for another unit; raise it where a row is several GPUs together.
    #[arg(long, value_name = "WATTS", default_value_t = 3000.0, value_parser = crate::number::positive)]
    pub max_power_watts: f64,
}

#[derive(Debug, Args)]
pub struct TuneChooseArgs {
    /// Table of operating points (CSV): a knob, `duration_seconds` of a fixed amount of work, and `energy_joules` or
    /// `mean_power_watts`.
    #[arg(value_name = "POINTS.csv", required = true)]
    pub points: Option<PathBuf>,
    #[command(flatten)]
    pub columns: PointTableArgs,
    /// Knob that the table varies: one knob, or two with a comma between, such as `sm_clock_mhz,memory_clock_mhz` [default: the one that the
    /// table has].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KNOB[,KNOB]")]
    pub knob: Vec<KnobName>,
    /// Setting of the second knob that the reference has, such as `batch_size=64` [default: the highest].
    #[arg(long, value_name = "KNOB=VALUE", value_parser = reference)]
    pub reference: Option<(String, f64)>,
    /// Time over that at the highest setting, less 1: 0.05, or 5%.
    #[arg(long, value_name = "RATIO", value_parser = ratio, required_unless_present = "preset")]
    pub max_slowdown: Option<f64>,
    /// Lowest setting over the highest: 0.85, or 85%.
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub min_ratio: Option<f64>,
    /// Limits by workload (TOML), or `frequency-plan` for those of the frequency plan's five.
    #[arg(long, value_name = "FILE")]
    pub preset: Option<PathBuf>,
    /// Quantity to minimize: `energy`, `edp`, `ed2p`, `weighted:W` (W of energy, 1 − W of time).
    #[arg(long, value_name = "OBJECTIVE", default_value = "energy", value_parser = objective)]
    pub objective: ChoiceObjective,
    /// `robust` fits curves and keeps the limit at a 90 % bound; `measured` takes the measured points as they are.
    #[arg(long, value_enum, default_value_t = MethodName::Robust)]
    pub method: MethodName,
    /// One-sided confidence of the bounds.
    #[arg(long, value_name = "RATIO", value_parser = confidence, default_value = "0.9")]
    pub confidence: f64,
    /// Seed of the resampling.
    #[arg(long, default_value_t = 0, value_parser = crate::number::seed)]
    pub seed: u64,
    /// Groups with fewer settings are skipped.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub min_settings: usize,
    /// Training runs (CSV: `batch_size`, `target_metric`, `target_epoch`): also choose the batch size by energy to accuracy.
    #[arg(long, value_name = "RUNS.csv", requires = "target")]
    pub epochs: Option<PathBuf>,
    /// Target of the training runs: a number, or `VALUE=NUMBER` for groups with this value in a column; may be repeated.
    #[arg(long, value_name = "[VALUE=]NUMBER", requires = "epochs", value_parser = target)]
    pub target: Vec<(Option<String>, f64)>,
    /// Write a report with plots, one HTML file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON; `eadt tune validate` and `export` read it.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KnobName {
    #[value(name = "sm_clock_mhz")]
    SmClockMhz,
    #[value(name = "power_limit_watts")]
    PowerLimitWatts,
    /// Only beside another knob.
    #[value(name = "memory_clock_mhz")]
    MemoryClockMhz,
    /// Only beside another knob.
    #[value(name = "batch_size")]
    BatchSize,
}

impl From<KnobName> for TuningKnob {
    fn from(name: KnobName) -> Self {
        match name {
            KnobName::SmClockMhz => Self::SmClockMhz,
            KnobName::PowerLimitWatts => Self::PowerLimitWatts,
            KnobName::MemoryClockMhz => Self::MemoryClockMhz,
            KnobName::BatchSize => Self::BatchSize,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MethodName {
    Robust,
    Measured,
}

/// Parses `0.05`, or `5%`.
fn ratio(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a ratio; for example 0.05 or 5%");
    let value: f64 = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0,
        None => text.trim().parse().map_err(|_| wrong())?,
    };
    if value > 1.0 {
        return Err(format!("{text} is more than 1; for {text} percent give {text}%"));
    }
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(wrong()) }
}

/// Returns a ratio above 0.5 and below 1.
fn confidence(text: &str) -> Result<f64, String> {
    let value = ratio(text)?;
    if value > 0.5 && value < 1.0 { Ok(value) } else { Err("give a ratio above 0.5 and below 1".to_owned()) }
}

fn objective(text: &str) -> Result<ChoiceObjective, String> {
    match text {
        "energy" => Ok(ChoiceObjective::Energy),
        "edp" => Ok(ChoiceObjective::Edp),
        "ed2p" => Ok(ChoiceObjective::Ed2p),
        _ => match text.strip_prefix("weighted:").map(str::parse) {
            Some(Ok(weight)) if (0.0..=1.0).contains(&weight) => Ok(ChoiceObjective::Weighted(weight)),
            _ => Err(format!("{text:?} is none of energy, edp, ed2p, weighted:W with W from 0 to 1")),
        },
    }
}

pub fn run(args: TuneArgs) -> anyhow::Result<()> {
    match args.command {
        Some(TuneCommand::Aggregate(args)) => aggregate::run(&args),
        Some(TuneCommand::Validate(args)) => validate::run(&args),
        Some(TuneCommand::Export(args)) => export::run(&args),
        None => choose(&args.choose),
    }
}

pub(crate) fn open(path: &Path) -> anyhow::Result<BufReader<File>> {
    Ok(BufReader::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?))
}

/// Reads what `eadt tune … --json` printed.
fn read_result(path: &Path) -> anyhow::Result<TuningResult> {
    let text = files::read_text(path, files::TEXT_BYTES).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no result of `eadt tune … --json`", path.display()))
}

/// Writes a whole file, or nothing.
fn write(path: &Path, inputs: &[PathBuf], text: &str, forced: bool) -> anyhow::Result<()> {
    AtomicFile::create(path, inputs, forced)?.write(text)
}

/// Returns the named knobs; if there are none, the table's only one.
pub(crate) fn knobs_of(path: &Path, columns: &PointTableArgs, names: &[KnobName]) -> anyhow::Result<TuningKnobs> {
    let named: Vec<TuningKnob> = names.iter().map(|name| (*name).into()).collect();
    let alone = |knob: &TuningKnob| TuningKnob::SINGLY_TUNABLE.contains(knob);
    let refused = |why: String| {
        let value = named.iter().map(|knob| knob.name()).collect::<Vec<_>>().join(",");
        Err(usage_error::invalid("--knob <KNOB[,KNOB]>", value, why))
    };
    match named.as_slice() {
        [] => {}
        [knob] if alone(knob) => return Ok((*knob).into()),
        [knob] => {
            let name = knob.name();
            return refused(format!(
                "{name} is not turned alone: name another knob beside it, such as --knob sm_clock_mhz,{name}"
            ));
        }
        [first, second] if first == second => return refused(format!("{} is named twice", first.name())),
        [first, second] if alone(first) => return Ok(TuningKnobs { first: *first, second: Some(*second) }),
        [first, second] if alone(second) => return Ok(TuningKnobs { first: *second, second: Some(*first) }),
        [_, _] => return refused("one of two knobs must be sm_clock_mhz or power_limit_watts".to_owned()),
        _ => return refused(format!("one or two knobs can be turned, not {}", named.len())),
    }
    let file = path.display().to_string();
    let header = points::column_names(&file, open(path)?, &columns.map, &columns.by)?;
    let mapped = |knob: TuningKnob| columns.map.iter().any(|map| map.field() == knob.name());
    let is_column = |knob: TuningKnob| {
        let plain = |name: &str| name.split(['[', '(']).next().unwrap_or(name).trim().eq_ignore_ascii_case(knob.name());
        header.iter().any(|name| plain(name))
    };
    let found: Vec<TuningKnob> =
        TuningKnob::SINGLY_TUNABLE.into_iter().filter(|knob| mapped(*knob) || is_column(*knob)).collect();
    match found.as_slice() {
        [knob] => Ok((*knob).into()),
        [] => bail!(
            "{}: neither sm_clock_mhz nor power_limit_watts is a column; map one of them, for example --map sm_clock_mhz=COLUMN",
            path.display()
        ),
        _ => bail!("{}: sm_clock_mhz and power_limit_watts are both there; name the turned one with --knob", path.display()),
    }
}

/// Reads `KNOB=VALUE`.
fn reference(text: &str) -> Result<(String, f64), String> {
    let parts = text.split_once('=').and_then(|(knob, value)| Some((knob.trim().to_owned(), value.trim().parse::<f64>().ok()?)));
    parts.filter(|(_, value)| value.is_finite()).ok_or_else(|| "give KNOB=VALUE, for example batch_size=64".to_owned())
}

/// Returns the value of `--reference`, which is of the second knob.
fn reference_of(knobs: TuningKnobs, reference: Option<&(String, f64)>) -> anyhow::Result<Option<f64>> {
    let Some((name, value)) = reference else { return Ok(None) };
    let refused = |why: String| Err(usage_error::invalid("--reference <KNOB=VALUE>", format_args!("{name}={value}"), why));
    match knobs.second {
        Some(second) if second.name() == name => Ok(Some(*value)),
        Some(second) => refused(format!("it is of the second knob, {}", second.name())),
        None => refused("it is of a second knob; the reference of one knob is its highest setting".to_owned()),
    }
}

fn choose(args: &TuneChooseArgs) -> anyhow::Result<()> {
    let path = args.points.as_ref().context("name a table of operating points")?;
    let preset = match &args.preset {
        None => None,
        Some(name) if name.as_os_str() == "frequency-plan" => Some(presets::read("frequency-plan", presets::FREQUENCY_PLAN)?),
        Some(file) => {
            let text = files::read_text(file, files::TEXT_BYTES).with_context(|| format!("cannot read {}", file.display()))?;
            Some(presets::read(&file.display().to_string(), &text)?)
        }
    };
    let knobs = knobs_of(path, &args.columns, &args.knob)?;
    let mut request = TuningRequest {
        maps: args.columns.map.clone(),
        decimal: args.columns.decimal.map(Into::into),
        by: args.columns.by.clone(),
        knobs,
        reference_second_setting: reference_of(knobs, args.reference.as_ref())?,
        max_slowdown_ratio: args.max_slowdown,
        min_ratio: args.min_ratio,
        preset,
        objective: args.objective,
        method: match args.method {
            MethodName::Measured => ChoiceMethod::Measured,
            MethodName::Robust => {
                ChoiceMethod::Robust(RobustSettings { confidence: args.confidence, seed: args.seed, ..RobustSettings::default() })
            }
        },
        min_settings: args.min_settings.max(2),
        max_power_watts: args.columns.max_power_watts,
    };
    // Batch sizes are distinguished in the table, and put together again for the energy to accuracy.
    if args.epochs.is_some() && knobs.second == Some(TuningKnob::BatchSize) {
        return Err(usage_error::impossible(
            "with --epochs the batch size is chosen by energy to accuracy: take it out of --knob",
        ));
    }
    if args.epochs.is_some() && !request.by.iter().any(|by| by == "batch_size") {
        request.by.push("batch_size".to_owned());
    }
    let name = path.display().to_string();
    let meter = ProgressMeter::over_files([path]);
    let groups = points::read(&name, MeteredReader::new(open(path)?, &meter), &request)?;
    meter.finish();
    let meter = ProgressMeter::steps(groups.len() as u64, "groups");
    let mut result = tune_counted(&name, &groups, &request, &|| meter.add(1));
    meter.finish();
    let mut inputs = vec![path.clone()];
    if let Some(file) = &args.epochs {
        let runs = epochs::read(&file.display().to_string(), open(file)?, &request)?;
        let untold = result.add_energy_to_accuracy(&groups, &runs, &args.target);
        result.skipped.extend(untold);
        inputs.push(file.clone());
    }
    if let Some(file) = &args.html {
        write(file, &inputs, &result.html(), args.force)?;
    }
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&result)?);
    } else {
        print(&result.text())?;
        if let Some(file) = &args.html {
            print_line!("report written to {}", file.display());
        }
    }
    if args.json {
        for note in &result.notes {
            crate::output::note!("note: {}", note.text);
        }
    }
    if result.groups.is_empty() {
        let reason = result.skipped.first().map_or("the table has no group", |skipped| skipped.reason.as_str());
        bail!("{name}: no group could be chosen for: {reason}");
    }
    Ok(())
}

/// Reads `[VALUE=]NUMBER`.
fn target(text: &str) -> Result<(Option<String>, f64), String> {
    let (of, number) = match text.rsplit_once('=') {
        Some((of, number)) => (Some(of.to_owned()), number),
        None => (None, text),
    };
    let number = number.parse().ok().filter(|n: &f64| n.is_finite());
    let number = number.ok_or("give a number or VALUE=NUMBER, for example 0.6 or cifar100=0.6")?;
    Ok((of, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_not_percent_by_accident() {
        assert_eq!(ratio("0.05"), Ok(0.05));
        assert_eq!(ratio("5%"), Ok(0.05));
        assert!(ratio("5").unwrap_err().contains("give 5%"));
        for text in ["", "x", "-0.1", "nan", "-5%"] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }

    #[test]
    fn two_knobs_and_their_reference() {
        let columns = PointTableArgs { map: Vec::new(), by: Vec::new(), max_power_watts: 3000.0, decimal: None };
        let knobs = |given: &[KnobName]| knobs_of(Path::new("unread"), &columns, given);
        let pair = knobs(&[KnobName::BatchSize, KnobName::SmClockMhz]).unwrap();
        assert_eq!(pair, TuningKnobs { first: TuningKnob::SmClockMhz, second: Some(TuningKnob::BatchSize) }, "in any order");
        assert_eq!(knobs(&[KnobName::PowerLimitWatts]).unwrap(), TuningKnob::PowerLimitWatts.into());
        for (given, part) in [
            (&[KnobName::MemoryClockMhz][..], "is not turned alone"),
            (&[KnobName::SmClockMhz, KnobName::SmClockMhz], "named twice"),
            (&[KnobName::MemoryClockMhz, KnobName::BatchSize], "one of two knobs must be"),
            (&[KnobName::SmClockMhz, KnobName::PowerLimitWatts, KnobName::BatchSize], "one or two"),
        ] {
            assert!(knobs(given).unwrap_err().to_string().contains(part), "{given:?}");
        }
        let asked = |knobs, text| reference(text).map(|given| reference_of(knobs, Some(&given)).ok().flatten());
        assert_eq!(asked(pair, "batch_size=64"), Ok(Some(64.0)));
        assert_eq!(reference_of(pair, None).unwrap(), None);
        assert!(reference("64").is_err() && reference("batch_size=nan").is_err());
        for knobs in [pair, TuningKnob::SmClockMhz.into()] {
            assert_eq!(asked(knobs, "sm_clock_mhz=1200"), Ok(None));
        }
    }

    #[test]
    fn objectives_and_targets() {
        assert_eq!(objective("weighted:0.5"), Ok(ChoiceObjective::Weighted(0.5)));
        assert!(objective("weighted:2").unwrap_err().contains("W from 0 to 1"));
        assert_eq!(target("0.6").unwrap(), (None, 0.6));
        assert_eq!(target("cifar100=0.6").unwrap(), (Some("cifar100".to_owned()), 0.6));
        assert!(target("cifar100").is_err());
    }
}
