//! `eadt report`: figures per workload from a data folder, an archive or a replay.

use eadt_report::{By, Form, Reporter, Settings, parse_baseline};

use crate::cli::{Breakdown, Report, ReportFormat};

pub fn run(args: &Report) -> anyhow::Result<()> {
    if !args.path.exists() {
        anyhow::bail!("{} does not exist: name a data folder, an archive or the output of `eadt replay`", args.path.display());
    }
    let settings = Settings {
        price_per_kwh: args.price_per_kwh,
        carbon_grams_per_kwh: args.carbon_grams_per_kwh,
        baselines: args.baseline.iter().map(|text| parse_baseline(text)).collect::<Result<_, _>>()?,
        by: args.by.map(|by| match by {
            Breakdown::Window => By::Window,
            Breakdown::Span => By::Span,
        }),
    };
    let mut reporter = Reporter::default();
    let windows = eadt_lake::read_windows(&args.path)?;
    let decisions = eadt_lake::read_decisions(&args.path)?;
    let actuations = eadt_lake::read_actuations(&args.path)?;
    for (partition, offset, refusal) in windows.refused.iter().chain(&decisions.refused).chain(&actuations.refused) {
        eprintln!("warning: an event was left out, partition {partition} offset {offset}: {refusal}");
    }
    if windows.events.is_empty() {
        anyhow::bail!(
            "{} holds no windows: is it an archive, a data folder or the output of `eadt replay --out`?",
            args.path.display()
        );
    }
    windows.events.iter().for_each(|event| reporter.window(event));
    decisions.events.iter().for_each(|event| reporter.decision(event));
    actuations.events.iter().for_each(|event| reporter.actuation(event));
    let form = match args.format {
        _ if args.json => Form::Json,
        ReportFormat::Text => Form::Text,
        ReportFormat::Markdown => Form::Markdown,
        ReportFormat::Html => Form::Html,
    };
    print!("{}", reporter.report(&settings).render(form));
    Ok(())
}
