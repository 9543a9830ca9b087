//! Prometheus: the JSON that `/api/v1/query_range` answers (several files for several queries), or text with a time
//! stamp on every sample: the exposition format (milliseconds), `promtool tsdb dump` (milliseconds) and `OpenMetrics`
//! (seconds; it ends with `# EOF`).
//!
//! Series of dcgm-exporter become telemetry, one device a UUID; a job's `training_*` and
//! `mps_thread_percentage_current` become progress. Without a workload of the user's, pod labels name it.

use std::collections::HashMap;
use std::io::Read;

use eadt_schemas::EventTime;
use serde::Deserialize;

use crate::error::quote;
use crate::lines::Lines;
use crate::recording::{Device, FileId, Recording, SourceId, SourceKind, clean_name};
use crate::units::{Unit, is_dcgm_sentinel};
use crate::{Field, ImportError, Options};

/// Series name, field, unit of the series.
const SERIES: &[(&str, Field, &str)] = &[
    ("DCGM_FI_DEV_POWER_USAGE", Field::PowerWatts, "W"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Field::EnergyJoulesTotal, "mJ"),
    ("DCGM_FI_DEV_GPU_UTIL", Field::UtilizationRatio, "%"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Field::MemoryUtilizationRatio, "%"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Field::GraphicsActiveRatio, "ratio"),
    ("DCGM_FI_PROF_SM_ACTIVE", Field::SmActiveRatio, "ratio"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", Field::SmOccupancyRatio, "ratio"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Field::TensorActiveRatio, "ratio"),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", Field::Fp32ActiveRatio, "ratio"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Field::DramActiveRatio, "ratio"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", Field::PcieTransmitBytesPerSecond, "B/s"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", Field::PcieReceiveBytesPerSecond, "B/s"),
    ("DCGM_FI_DEV_FB_USED", Field::MemoryUsedBytes, "MiB"),
    ("DCGM_FI_DEV_SM_CLOCK", Field::SmClockMhz, "MHz"),
    ("DCGM_FI_DEV_MEM_CLOCK", Field::MemoryClockMhz, "MHz"),
    ("DCGM_FI_DEV_GPU_TEMP", Field::TemperatureCelsius, "C"),
    ("DCGM_FI_DEV_MEMORY_TEMP", Field::MemoryTemperatureCelsius, "C"),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", Field::PowerLimitWatts, "W"),
    ("training_samples_per_second", Field::SamplesPerSecond, ""),
    ("training_tokens_per_second", Field::TokensPerSecond, ""),
    ("training_samples_total", Field::SamplesTotal, ""),
    ("training_tokens_total", Field::TokensTotal, ""),
    ("training_steps_total", Field::StepsTotal, ""),
    ("training_loss", Field::Loss, ""),
    ("mps_thread_percentage_current", Field::MpsThreadPercentage, ""),
];

type Labels = HashMap<String, String>;

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: Labels,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

/// A sample on its way into a reading: samples of one source and time go together.
struct Sample {
    source: SourceId,
    time: EventTime,
    line: u64,
    field: Field,
    value: f64,
}

pub(crate) fn read(files: Vec<(FileId, Lines<'_>)>, recording: &mut Recording, options: &Options) -> Result<(), ImportError> {
    for (name, field, _) in SERIES {
        recording.columns.entry(*field).or_insert_with(|| (*name).to_owned());
    }
    let mut gathered = Gathered { by_pod: options.workload.is_none(), ..Gathered::default() };
    for (file, mut lines) in files {
        let first = loop {
            match lines.next_line()? {
                Some((line, text)) if text.trim().is_empty() => recording.skip(file, line, "empty line"),
                Some((line, text)) => break Some((line, text.into_owned())),
                None => break None,
            }
        };
        let Some((line, first)) = first else { continue };
        // `{__name__="…"}` is a sample of a dump; `{"status"` an answer.
        if first.trim_start().starts_with('{') && !first.trim_start().starts_with("{__name__") {
            read_answer(file, &first, lines, recording, &mut gathered)?;
        } else {
            read_text(file, line, first, lines, recording, &mut gathered)?;
        }
    }
    gathered.finish(recording);
    Ok(())
}

fn read_answer(
    file: FileId,
    first: &str,
    lines: Lines<'_>,
    recording: &mut Recording,
    gathered: &mut Gathered,
) -> Result<(), ImportError> {
    let name = recording.files[file].clone();
    let remedy = "save the whole answer of /api/v1/query_range";
    let rest = std::io::Cursor::new(b"\n").chain(lines.into_reader());
    let answer: Answer = serde_json::from_reader(std::io::Cursor::new(first.as_bytes()).chain(rest)).map_err(|error| {
        let problem = format!("is not the answer to a query, or truncated: {error}");
        ImportError { line: Some(error.line() as u64), ..ImportError::whole(&name, problem, remedy) }
    })?;
    if answer.status != "success" {
        let problem = format!("holds a failed query: {}", answer.error.as_deref().unwrap_or("no reason given"));
        return Err(ImportError::whole(&name, problem, remedy));
    }
    let Some(data) = answer.data else { return Err(ImportError::whole(&name, "holds an answer without data", remedy)) };
    if data.result_type != "matrix" {
        let problem = format!("holds a {:?}, not a matrix", data.result_type);
        return Err(ImportError::whole(&name, problem, "ask /api/v1/query_range, not /api/v1/query"));
    }
    for series in data.result {
        let series_name = series.metric.get("__name__").cloned().unwrap_or_default();
        if series_name.is_empty() {
            let problem = "a series has no name, as after a function such as rate()";
            return Err(ImportError::whole(&name, problem, "query the series themselves"));
        }
        for (seconds, text) in series.values {
            recording.rows += 1;
            let micros = seconds * 1e6;
            if !(micros > 0.0 && micros < EventTime::MAX.micros() as f64) {
                let problem = format!("time {seconds} is not in seconds since 1970");
                return Err(ImportError::whole(&name, problem, remedy).column(series_name));
            }
            gathered.take(recording, file, 1, (&series_name, &series.metric), EventTime::from_seconds(seconds), &text)?;
        }
    }
    Ok(())
}

fn read_text(
    file: FileId,
    first_line: u64,
    first: String,
    mut lines: Lines<'_>,
    recording: &mut Recording,
    gathered: &mut Gathered,
) -> Result<(), ImportError> {
    // Whether times are seconds is known at the end only.
    let mut samples: Vec<(u64, String)> = Vec::new();
    let mut open_metrics = false;
    let mut next = Some((first_line, first));
    while let Some((line, text)) = next {
        let text = text.trim();
        if text == "# EOF" {
            open_metrics = true;
        } else if !text.is_empty() && !text.starts_with('#') {
            samples.push((line, text.to_owned()));
        }
        next = lines.next_line()?.map(|(line, text)| (line, text.into_owned()));
    }
    for (line, text) in samples {
        let Some((name, labels, rest)) = parse_sample(&text) else {
            let problem = format!("{} is not a sample", quote(&text));
            return Err(recording.error(file, line, problem, "restore the line or take it out"));
        };
        recording.rows += 1;
        let mut parts = rest.split_whitespace();
        let (value, stamp) = (parts.next().unwrap_or_default(), parts.next());
        let Some(stamp) = stamp else {
            let problem = "the sample has no time stamp: one scrape is no recording";
            let remedy = "export with time stamps: promtool tsdb dump, or /api/v1/query_range";
            return Err(recording.error(file, line, problem, remedy).column(name));
        };
        let micros = stamp.parse::<f64>().map(|stamp| if open_metrics { stamp * 1e6 } else { stamp * 1e3 });
        let Some(micros) = micros.ok().filter(|micros| *micros > 0.0 && *micros < EventTime::MAX.micros() as f64) else {
            let problem = format!("time stamp {} is not a time", quote(stamp));
            return Err(recording.error(file, line, problem, "restore the line or take it out").column(name));
        };
        let time = EventTime::from_micros(micros.round() as i64);
        gathered.take(recording, file, line, (&name, &labels), time, value)?;
    }
    Ok(())
}

/// `name{label="value",…} rest` or `{__name__="name",…} rest`.
fn parse_sample(text: &str) -> Option<(String, Labels, &str)> {
    let end = text.find(|c: char| c == '{' || c.is_whitespace())?;
    let mut name = text[..end].to_owned();
    let mut rest = text[end..].trim_start();
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once('=')?;
            let mut chars = after.trim_start().strip_prefix('"')?.char_indices();
            let body = &after.trim_start()[1..];
            let mut value = String::new();
            let close = loop {
                match chars.next()? {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next()?.1 {
                        'n' => value.push('\n'),
                        other => value.push(other),
                    },
                    (_, other) => value.push(other),
                }
            };
            labels.insert(label.trim().to_owned(), value);
            rest = &body[close + 1..];
        }
    }
    if name.is_empty() {
        name.clone_from(labels.get("__name__")?);
    }
    let good = name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
    (good && !rest.trim().is_empty()).then_some((name, labels, rest))
}

#[derive(Default)]
struct Gathered {
    by_pod: bool,
    sources: HashMap<(Option<String>, String), SourceId>,
    samples: Vec<Sample>,
}

impl Gathered {
    fn take(
        &mut self,
        recording: &mut Recording,
        file: FileId,
        line: u64,
        (name, labels): (&str, &Labels),
        time: EventTime,
        text: &str,
    ) -> Result<(), ImportError> {
        let Some((_, field, unit)) = SERIES.iter().find(|(known, _, _)| *known == name) else {
            recording.skip(file, line, &format!("series {} has no field in the events", clean_name(name)));
            return Ok(());
        };
        let value: f64 = text.parse().map_err(|_| {
            let problem = format!("{} is not a number", quote(text));
            recording.error(file, line, problem, "restore the line or take it out").column(name)
        })?;
        let raw_sentinel = if *field == Field::EnergyJoulesTotal { value >= 9.2e18 } else { is_dcgm_sentinel(value) };
        let is_device = !field.is_progress();
        // NaN marks a stale series.
        if !value.is_finite() || is_device && raw_sentinel {
            recording.absent += 1;
            return Ok(());
        }
        let value = Unit::named(unit).map_or(value, |unit| unit.to_ours(value));
        let source = self.source(recording, file, labels, is_device);
        self.samples.push(Sample { source, time, line, field: *field, value });
        Ok(())
    }

    fn source(&mut self, recording: &mut Recording, file: FileId, labels: &Labels, is_device: bool) -> SourceId {
        let label = |name: &str| labels.get(name).filter(|text| !text.is_empty() && text.len() <= 253).cloned();
        let pod = label("exported_pod").or_else(|| label("pod"));
        let namespace = label("exported_namespace").or_else(|| label("namespace"));
        let workload = namespace.zip(pod).filter(|_| self.by_pod);
        let workload = workload.map(|(namespace, pod)| format!("{}/{}", clean_name(&namespace), clean_name(&pod)));
        let rank = label("rank").and_then(|rank| rank.parse().ok()).unwrap_or(0);
        let index = label("gpu").and_then(|index| index.parse().ok());
        let node = label("Hostname").or_else(|| label("instance"));
        let device = label("UUID")
            .unwrap_or_else(|| format!("{}:gpu-{}", node.as_deref().unwrap_or("node"), label("gpu").as_deref().unwrap_or("0")));
        let key = if is_device { device.clone() } else { format!("rank {rank}") };
        *self.sources.entry((workload.clone(), key)).or_insert_with(|| {
            let kind = if is_device {
                SourceKind::Device(Device {
                    name: device,
                    node,
                    gpu_index: index,
                    gpu_model: label("modelName"),
                    ..Device::default()
                })
            } else {
                SourceKind::Job { rank, irregular: false }
            };
            recording.add_source(file, workload, kind)
        })
    }

    /// Samples of one source and time become one reading; a repeated one counts as such.
    fn finish(mut self, recording: &mut Recording) {
        self.samples.sort_by_key(|sample| (sample.source, sample.time, sample.field));
        for group in self.samples.chunk_by(|a, b| a.source == b.source && a.time == b.time) {
            let mut readings: Vec<Vec<(Field, f64)>> = vec![Vec::new()];
            for field in group.chunk_by(|a, b| a.field == b.field) {
                for (index, sample) in field.iter().enumerate() {
                    if readings.len() <= index {
                        readings.push(Vec::new());
                    }
                    readings[index].push((sample.field, sample.value));
                }
            }
            for values in readings {
                recording.push(group[0].source, group[0].time, group[0].line, &values, None);
            }
        }
    }
}
