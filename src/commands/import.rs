//! `eadt import`: other people's recordings into an event log.

use std::fs::File;
use std::io::BufReader;

use anyhow::Context;
use eadt_recordings::{Format, Input, LogWriter, Options, parse_interval};

use crate::cli::{Import, ImportFormat};
use crate::output::say;
use crate::target::Target;

pub fn run(args: &Import) -> anyhow::Result<()> {
    let format = match args.format {
        ImportFormat::Mlperf => Format::Mlperf,
        ImportFormat::MlperfInference => Format::MlperfInference,
        ImportFormat::Dcgmi => Format::Dcgmi,
        ImportFormat::NvidiaSmi => Format::NvidiaSmi,
        ImportFormat::Prometheus => Format::Prometheus,
        ImportFormat::Csv => Format::Csv,
    };
    let options = Options {
        workload: args.workload.clone(),
        maps: args.map.iter().map(|text| text.parse()).collect::<Result<_, _>>()?,
        time_format: args.time_format.as_deref().map(str::parse).transpose()?,
        interval: args.interval.as_deref().map(parse_interval).transpose().context("--interval")?,
        ..Options::default()
    };
    let (target, compression) = Target::event_log(&args.out, &args.files, args.force)?;
    let mut inputs = Vec::new();
    for path in &args.files {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        inputs.push(Input::new(path.display().to_string(), BufReader::new(file)));
    }
    let imported = eadt_recordings::import(format, inputs, &options)?;
    let report = imported.report.clone();
    let cannot = || format!("cannot write {}", args.out.display());
    let mut log = LogWriter::new(target.writer()?, compression)?;
    for event in imported.events() {
        log.write(&event).with_context(cannot)?;
    }
    target.finish(log.finish().with_context(cannot)?)?;
    if args.json {
        say!("{}", serde_json::to_string(&report)?);
    } else {
        crate::output::print(&report.to_string())?;
        say!("written to {}", args.out.display());
    }
    Ok(())
}
