//! `eadt import`: other people's recordings into an event log.

use std::fs::File;
use std::io::{BufReader, BufWriter};

use anyhow::Context;
use eadt_recordings::{Compression, Format, Input, LogWriter, Options, parse_interval};

use crate::cli::{Import, ImportFormat};

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
        interval: args.interval.as_deref().map(parse_interval).transpose()?,
        ..Options::default()
    };
    let mut inputs = Vec::new();
    for path in &args.files {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        inputs.push(Input::new(path.display().to_string(), BufReader::new(file)));
    }
    let imported = eadt_recordings::import(format, inputs, &options)?;
    let report = imported.report.clone();
    // Written beside and renamed, so that a failed import leaves no half log.
    let folder = args.out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| std::path::Path::new("."));
    let cannot = || format!("cannot write {}", args.out.display());
    let partial = args.out.with_extension("partial");
    std::fs::create_dir_all(folder).with_context(cannot)?;
    let file = File::create(&partial).with_context(cannot)?;
    let mut log = LogWriter::new(BufWriter::new(file), Compression::of_name(&args.out.to_string_lossy()))?;
    for event in imported.events() {
        log.write(&event).with_context(cannot)?;
    }
    let file = log.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(cannot)?;
    file.sync_all().with_context(cannot)?;
    std::fs::rename(&partial, &args.out).with_context(cannot)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
        println!("written to {}", args.out.display());
    }
    Ok(())
}
