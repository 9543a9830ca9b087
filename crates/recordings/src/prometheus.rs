//! Prometheus: the JSON that `/api/v1/query_range` answers (several files for several queries), or text with a time
//! stamp on every sample: the exposition format (milliseconds), `promtool tsdb dump` (milliseconds) and `OpenMetrics`
//! (seconds; it ends with `# EOF`). What `promtool query range` prints is read as well, as text and as JSON.
//!
//! Series of an exporter of GPUs become telemetry ([`crate::series`] determines the board and workload); a job's `training_*` and
//! `mps_thread_percentage_current` become progress. A board whose series name several pods or MIG instances is one board: its
//! energy is shared out among them. A line that cannot be understood costs that line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::Read;

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::CounterScope;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::absent::is_absent_text;
use crate::csv_table::{BoardProgress, OwnProgress, ProgressRelation, SUMMED_PROGRESS};
use crate::error::quote;
use crate::fields::MetricType;
use crate::foreign_text::{ForeignText, foreign_json, foreign_text};
use crate::identity::is_zero_uuid;
use crate::interpolate::LinePoint;
use crate::lines::LineReader;
use crate::names::event_name;
use crate::prometheus_text::{PrintedLine, PrintedQuery, is_end, parse_sample, split_printed_series};
use crate::recording::{FileId, RecordedDevice, Recording, SourceId, SourceKind, clean_name};
use crate::series::{
    AttributionRules, BoardHolders, DeviceMetric, ExporterPods, KNOWN_DEVICE_SERIES, MigInstance, PodRule, SeriesAttribution,
    SeriesLabels as _, attribute_series, board, device_metric, gpu, gpu_model, is_of_board, list_names, mig_instance,
};
use crate::tenancy::{BoardTenancies, BoardTenant};
use crate::{ImportError, ImportOptions, ReadingField};

/// Series of jobs.
const JOB_SERIES: &[(&str, ReadingField)] = &[
    ("training_samples_per_second", ReadingField::SamplesPerSecond),
    ("training_tokens_per_second", ReadingField::TokensPerSecond),
    ("training_samples_total", ReadingField::SamplesTotal),
    ("training_tokens_total", ReadingField::TokensTotal),
    ("training_steps_total", ReadingField::StepsTotal),
    ("training_loss", ReadingField::Loss),
    ("mps_thread_percentage_current", ReadingField::MpsThreadPercentage),
];

/// No recording is older: stamps that would be, in milliseconds, are in seconds.
const MILLIS_FROM: EventTime = EventTime::from_micros(100_000_000_000_000);

type LabelMap = HashMap<String, String>;

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct QueryResponse {
    status: String,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    is_partial: bool,
    #[serde(default)]
    data: Option<QueryData>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct QueryData {
    result_type: String,
    result: Vec<AnsweredSeries>,
}

#[derive(serde::Deserialize)]
struct AnsweredSeries {
    metric: LabelMap,
    /// Values of a matrix.
    #[serde(default)]
    values: Vec<(f64, SampleValue)>,
    /// Value of a vector.
    #[serde(default)]
    value: Option<(f64, SampleValue)>,
}

/// An answer, or the series of one alone, as `promtool query -o json` prints them.
struct AnswerOrSeries(QueryResponse);

impl<'de> Deserialize<'de> for AnswerOrSeries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnswerVisitor;
        impl<'de> Visitor<'de> for AnswerVisitor {
            type Value = AnswerOrSeries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an answer or its series")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AnswerOrSeries, A::Error> {
                QueryResponse::deserialize(MapAccessDeserializer::new(map)).map(AnswerOrSeries)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, series: A) -> Result<AnswerOrSeries, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(series)).map(|result| AnswerOrSeries(QueryResponse::of(result)))
            }
        }
        deserializer.deserialize_any(AnswerVisitor)
    }
}

impl QueryResponse {
    /// Returns an answer that is nothing but its series.
    fn of(result: Vec<AnsweredSeries>) -> Self {
        let is_moment = result.iter().any(|series| series.value.is_some());
        let result_type = if is_moment { "vector" } else { "matrix" }.to_owned();
        let data = Some(QueryData { result_type, result });
        Self { status: "success".to_owned(), error: None, warnings: Vec::new(), is_partial: false, data }
    }
}

/// A value as Prometheus writes it, as a text; as a number by others. `None` if it is no number.
struct SampleValue(Option<f64>);

impl<'de> Deserialize<'de> for SampleValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SampleValueVisitor;
        impl Visitor<'_> for SampleValueVisitor {
            type Value = SampleValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_str<E>(self, text: &str) -> Result<SampleValue, E> {
                Ok(SampleValue(text.parse().ok()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<SampleValue, E> {
                Ok(SampleValue(Some(value)))
            }
            fn visit_u64<E>(self, value: u64) -> Result<SampleValue, E> {
                Ok(SampleValue(Some(value as f64)))
            }
            fn visit_i64<E>(self, value: i64) -> Result<SampleValue, E> {
                Ok(SampleValue(Some(value as f64)))
            }
            fn visit_unit<E>(self) -> Result<SampleValue, E> {
                Ok(SampleValue(Some(f64::NAN)))
            }
        }
        deserializer.deserialize_any(SampleValueVisitor)
    }
}

/// A series that is known, and whose it is once all of them are read.
struct ImportedSeries {
    file: FileId,
    name: String,
    labels: LabelMap,
    metric: Option<DeviceMetric>,
    field: ReadingField,
    instance: Option<MigInstance>,
    attribution: SeriesAttribution,
    /// Index of its board or job.
    target: usize,
}

impl ImportedSeries {
    fn rank(&self) -> usize {
        self.metric.map_or(0, |metric| metric.rank)
    }
}

/// Remedy for a line of a text.
const REPAIR: &str = "restore the line or take it out";

/// A sample of a text, as seconds and as milliseconds: which of them is known at the end only.
struct UnscaledSample {
    series: usize,
    seconds: Option<EventTime>,
    millis: Option<EventTime>,
    line: u64,
    value: f64,
}

struct SeriesSample {
    series: usize,
    time: EventTime,
    line: u64,
    value: f64,
}

/// Target of the readings.
enum ReadingTarget {
    Board(RecordedDevice),
    Job { workload: Option<String>, rank: u32 },
}

pub(crate) fn read(
    files: Vec<(FileId, LineReader<'_>)>,
    recording: &mut Recording,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let mut gathered = PrometheusImport::default();
    for (file, mut lines) in files {
        let first = loop {
            match lines.next_line()? {
                Some((line, text)) if text.trim().is_empty() => recording.skip_line(file, line, "empty line"),
                Some((line, text)) => break Some((line, text.into_owned())),
                None => break None,
            }
        };
        let Some((line, first)) = first else { continue };
        if let Some(ForeignText { what, remedy }) = foreign_text(&first) {
            return Err(recording.error(file, line, format!("it is {what}, and no text of Prometheus"), remedy));
        }
        // `{__name__="…"}` is a sample of a dump, `{"name",…} 1` one of `OpenMetrics`; `{"status":` an answer.
        let begins = |start: &str| first.trim_start().starts_with(start);
        let is_sample = || matches!(parse_sample(&first), Ok(Some(_))) || split_printed_series(&first).is_some();
        if begins("[") || begins("{") && !begins("{__") && !is_sample() {
            gathered.read_answers(file, &first, lines, recording)?;
        } else {
            gathered.read_text(file, line, first, lines, recording)?;
        }
    }
    gathered.finish(recording, options)
}

#[derive(Default)]
struct PrometheusImport {
    series: Vec<ImportedSeries>,
    /// Index of series by name and labels.
    known: HashMap<(String, BTreeMap<String, String>), usize>,
    samples: Vec<SeriesSample>,
    /// Names of series that no field is for.
    foreign: BTreeSet<String>,
    /// The first thing that could not be used; an error if nothing else could either.
    problem: Option<ImportError>,
    /// The file with an answer that has one moment only.
    moment: Option<String>,
}

impl PrometheusImport {
    /// Returns the index of a series, or `None` if no field is for it.
    fn series_index(&mut self, file: FileId, name: &str, labels: impl FnOnce() -> LabelMap) -> Option<usize> {
        let metric = device_metric(name);
        let field =
            metric.map(|metric| metric.field).or_else(|| JOB_SERIES.iter().find(|(known, _)| *known == name).map(|s| s.1));
        let Some(field) = field else {
            self.foreign.insert(clean_name(name));
            return None;
        };
        let mut labels = labels();
        labels.remove("__name__");
        let key = (name.to_owned(), labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect());
        let next = self.series.len();
        let index = *self.known.entry(key).or_insert(next);
        if index == next {
            let instance = metric.and_then(|_| mig_instance(&labels));
            let (name, attribution, target) = (name.to_owned(), SeriesAttribution::Unattributed, 0);
            self.series.push(ImportedSeries { file, name, labels, metric, field, instance, attribution, target });
        }
        Some(index)
    }

    fn add_sample(&mut self, recording: &mut Recording, series: usize, (time, line): (EventTime, u64), value: f64) {
        let ImportedSeries { metric, .. } = &self.series[series];
        if metric.map_or(!value.is_finite(), |metric| metric.is_absent(value)) {
            recording.absent += 1;
            return;
        }
        let value = metric.map_or(value, |metric| metric.to_base_unit(value));
        self.samples.push(SeriesSample { series, time, line, value });
    }

    fn refuse(&mut self, recording: &mut Recording, kind: &'static str, line: u64, error: ImportError) {
        self.problem.get_or_insert_with(|| error.clone());
        recording.refuse_row(kind, ImportError { line: Some(line), ..error });
    }

    fn read_answers(
        &mut self,
        file: FileId,
        first: &str,
        lines: LineReader<'_>,
        recording: &mut Recording,
    ) -> Result<(), ImportError> {
        let name = recording.files[file].clone();
        let remedy = "save the whole answer of /api/v1/query_range";
        let rest = std::io::Cursor::new(b"\n").chain(lines.into_reader());
        let whole = std::io::Cursor::new(first.as_bytes()).chain(rest);
        // Several answers may follow one after the other.
        for answer in serde_json::Deserializer::from_reader(whole).into_iter::<AnswerOrSeries>() {
            let answer = answer.map_err(|error| {
                if let Some(ForeignText { what, remedy }) = foreign_json(first) {
                    return ImportError::in_line(&name, 1, format!("it is {what}, and no answer of Prometheus"), remedy);
                }
                let problem = format!("is not the answer to a query, or truncated: {error}");
                ImportError { line: Some(error.line() as u64), ..ImportError::in_file(&name, problem, remedy) }
            })?;
            self.read_answer(file, answer.0, recording)?;
        }
        Ok(())
    }

    fn read_answer(&mut self, file: FileId, answer: QueryResponse, recording: &mut Recording) -> Result<(), ImportError> {
        let name = recording.files[file].clone();
        let remedy = "save the whole answer of /api/v1/query_range";
        if answer.status != "success" {
            let problem = format!("holds a failed query: {}", answer.error.as_deref().unwrap_or("no reason given"));
            return Err(ImportError::in_file(&name, problem, remedy));
        }
        for warning in &answer.warnings {
            recording.notes.push(format!("{name}: the server warned: {warning}"));
        }
        if answer.is_partial {
            recording.notes.push(format!("{name}: the server reports that the answer is not complete"));
        }
        let Some(data) = answer.data else { return Err(ImportError::in_file(&name, "holds an answer without data", remedy)) };
        match data.result_type.as_str() {
            "matrix" => {}
            "vector" => self.moment = Some(name.clone()),
            other => {
                let problem = format!("holds a {other:?}, not a matrix");
                return Err(ImportError::in_file(&name, problem, "ask /api/v1/query_range, not /api/v1/query"));
            }
        }
        for series in data.result {
            let series_name = series.metric.get("__name__").cloned().unwrap_or_default();
            let values = series.values.into_iter().chain(series.value);
            if series_name.is_empty() {
                let problem = "a series has no name, as after a function such as rate()";
                self.refuse(recording, "name", 1, ImportError::in_file(&name, problem, "query the series themselves"));
                continue;
            }
            let index = self.series_index(file, &series_name, || series.metric);
            for (seconds, SampleValue(value)) in values {
                recording.rows += 1;
                let Some(index) = index else {
                    recording.skip_line(file, 1, &no_field(&series_name));
                    continue;
                };
                let micros = seconds * 1e6;
                if !(micros > 0.0 && micros < EventTime::MAX.micros() as f64) {
                    let problem = format!("time {seconds} is not in seconds since 1970");
                    self.refuse(recording, "time", 1, ImportError::in_file(&name, problem, remedy).with_column(&series_name));
                } else if let Some(value) = value {
                    self.add_sample(recording, index, (EventTime::from_seconds(seconds), 1), value);
                } else {
                    let error = ImportError::in_file(&name, "a value is not a number", remedy).with_column(&series_name);
                    self.refuse(recording, "number", 1, error);
                }
            }
        }
        Ok(())
    }

    fn read_text(
        &mut self,
        file: FileId,
        first_line: u64,
        first: String,
        mut lines: LineReader<'_>,
        recording: &mut Recording,
    ) -> Result<(), ImportError> {
        let mut printed = PrintedQuery::default();
        let mut read: Vec<UnscaledSample> = Vec::new();
        // A series is the same text again and again.
        let mut by_text: HashMap<String, Result<usize, String>> = HashMap::new();
        let mut open_metrics = false;
        let mut next = Some((first_line, first));
        while let Some((line, text)) = next {
            open_metrics |= is_end(&text);
            let text = match printed.read_line(&text) {
                Some(PrintedLine::Series) => String::new(),
                Some(PrintedLine::Sample { text, is_moment }) => {
                    open_metrics = true;
                    if is_moment {
                        self.moment = Some(recording.files[file].clone());
                    }
                    text
                }
                None => text,
            };
            match parse_sample(&text) {
                Ok(None) => {}
                Err(reason) => {
                    let problem = format!("{} is not a sample: {reason}", quote(text.trim()));
                    let is_computed = reason == "no metric name" && text.trim_start().starts_with('{');
                    let remedy =
                        if is_computed { "query the series themselves, without functions such as rate()" } else { REPAIR };
                    let error = recording.error(file, line, problem, remedy);
                    self.refuse(recording, reason, line, error);
                }
                Ok(Some(sample)) => {
                    recording.rows += 1;
                    let known = by_text.get(sample.series).cloned();
                    let index = known.unwrap_or_else(|| {
                        let labels = || sample.labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
                        let index = self.series_index(file, &sample.name, labels).ok_or_else(|| no_field(&sample.name));
                        by_text.insert(sample.series.to_owned(), index.clone());
                        index
                    });
                    let (seconds, millis) = (sample.time(true), sample.time(false));
                    match (index, sample.stamp) {
                        (Err(no_field), _) => recording.skip_line(file, line, &no_field),
                        (Ok(_), None) => {
                            let problem = "the sample has no time stamp: one scrape is not a recording";
                            let remedy = "export with time stamps: promtool tsdb dump, or /api/v1/query_range";
                            let error = recording.error(file, line, problem, remedy).with_column(&*sample.name);
                            self.refuse(recording, "no time", line, error);
                        }
                        (Ok(_), Some(stamp)) if seconds.or(millis).is_none() => {
                            let problem = format!("time stamp {} is not a time", quote(stamp));
                            let error = recording.error(file, line, problem, REPAIR).with_column(&*sample.name);
                            self.refuse(recording, "time", line, error);
                        }
                        (Ok(series), Some(_)) => {
                            read.push(UnscaledSample { series, seconds, millis, line, value: sample.value });
                        }
                    }
                }
            }
            next = lines.next_line()?.map(|(line, text)| (line, text.into_owned()));
        }
        self.add_scaled(file, read, open_metrics, recording);
        Ok(())
    }

    /// Adds samples of a text in seconds, if it is known to be in seconds, else in milliseconds.
    fn add_scaled(&mut self, file: FileId, read: Vec<UnscaledSample>, mut in_seconds: bool, recording: &mut Recording) {
        // Cut off before its end, or never given one: no recording is as old as its stamps in milliseconds would make it.
        let early = |stamped: &UnscaledSample| stamped.millis.is_some_and(|time| time < MILLIS_FROM);
        if !in_seconds && !read.is_empty() && read.iter().all(early) {
            let name = &recording.files[file];
            let note = format!(
                "{name}: time stamps are taken for seconds, though it does not end with # EOF: milliseconds would be in 1970"
            );
            recording.notes.push(note);
            in_seconds = true;
        }
        for UnscaledSample { series, seconds, millis, line, value } in read {
            if let Some(time) = if in_seconds { seconds } else { millis } {
                self.add_sample(recording, series, (time, line), value);
            } else {
                let error = recording.error(file, line, "the time stamp is not a time", REPAIR);
                self.refuse(recording, "time", line, error);
            }
        }
    }

    /// Makes readings of the gathered series.
    fn finish(mut self, recording: &mut Recording, options: &ImportOptions) -> Result<(), ImportError> {
        if self.samples.is_empty() {
            if let Some(problem) = self.problem {
                return Err(problem);
            }
            if !self.foreign.is_empty() && self.series.is_empty() {
                let problem = format!("none of its series is known; found: {}", list_names(&self.foreign));
                let remedy = format!(
                    "query {KNOWN_DEVICE_SERIES}, or training_… of jobs; write the values of others as a table, and import that as csv"
                );
                return Err(ImportError::in_file(recording.files.join(", "), problem, remedy));
            }
            return Ok(());
        }
        let mut targets = self.attribute_series();
        for series in &self.series {
            recording.columns.entry(series.field).or_insert_with(|| series.name.clone());
        }
        for note in self.split_boards_by_place(&mut targets) {
            recording.add_note(note);
        }
        self.samples.sort_by_key(|sample| {
            let series = &self.series[sample.series];
            (series.target, sample.time, series.field, series.rank(), series.instance.is_some(), sample.series)
        });
        if let Some(file) = self.moment.take() {
            let mut seen_series = BTreeSet::new();
            if self.samples.iter().all(|sample| seen_series.insert(sample.series)) {
                let remedy = "ask /api/v1/query_range, not /api/v1/query (promtool query range, not instant), or give the answers of several \
                              moments";
                return Err(ImportError::in_file(
                    file,
                    "holds a \"vector\", not a matrix: one moment is not a recording",
                    remedy,
                ));
            }
        }
        let by_labels = options.workload.is_none();
        let is_device = |series: &&ImportedSeries| series.metric.is_some();
        let is_named = |series: &ImportedSeries| matches!(series.attribution, SeriesAttribution::Workload { .. });
        let any_named = self.series.iter().filter(is_device).any(is_named);
        if by_labels && !any_named && self.series.iter().filter(is_device).any(|series| series.labels.label("pod").is_some()) {
            let note = "no series names a pod but the exporter's own: whose GPUs these are is not known; name it with --workload";
            recording.notes.push(note.to_owned());
        }
        let mut idle = BTreeSet::new();
        for samples in self.samples.chunk_by(|a, b| self.series[a.series].target == self.series[b.series].target) {
            let series = &self.series[samples[0].series];
            match &mut targets[series.target] {
                ReadingTarget::Job { workload, rank } => {
                    let kind = SourceKind::Job { rank: *rank, irregular: false, scope: CounterScope::Global };
                    let workload = workload.take().filter(|_| by_labels);
                    if by_labels && workload.is_none() && any_named {
                        let note = format!(
                            "{} names no workload, but the GPUs' series do: the two never match; name both with --workload",
                            series.name
                        );
                        if !recording.notes.contains(&note) {
                            recording.notes.push(note);
                        }
                    }
                    let source = recording.add_source(series.file, workload, kind);
                    for moment in self.target_snapshots(samples, recording) {
                        recording.push_portion(source, (moment.time, moment.line), &moment.values, None);
                    }
                }
                ReadingTarget::Board(device) => {
                    let device = std::mem::take(device);
                    let name = device.name.clone();
                    let moments = self.target_snapshots(samples, recording);
                    let nobodys = moments.iter().all(|moment| moment.tenants.is_empty());
                    if by_labels && any_named {
                        if nobodys {
                            idle.insert(name);
                        }
                        push_shared(recording, series.file, &device, moments);
                    } else {
                        let source = recording.add_device(series.file, device);
                        recording.check_board_count(series.file, moments.first().map_or(0, |moment| moment.line))?;
                        for moment in moments {
                            recording.push_portion(source, (moment.time, moment.line), &moment.values, None);
                        }
                    }
                }
            }
        }
        note_ranks_that_differ(recording, options.workload.as_deref());
        if !idle.is_empty() {
            recording
                .notes
                .push(format!("no series names a pod of these GPUs, so that they are of no workload: {}", list_names(&idle)));
        }
        Ok(())
    }

    /// Finds out of every series which board or job it is of, and whose.
    fn attribute_series(&mut self) -> Vec<ReadingTarget> {
        let rules = AttributionRules { workload_label: Some("hpc_job".to_owned()), workload_namespace: None, pods: PodRule::Pod };
        let mut exporters = ExporterPods::default();
        for series in self.series.iter().filter(|series| series.metric.is_some()) {
            exporters.add_exporter(&series.labels);
        }
        let mut targets: Vec<ReadingTarget> = Vec::new();
        let mut by_key: HashMap<(Option<String>, String), usize> = HashMap::new();
        for series in &mut self.series {
            let labels = &series.labels;
            let (key, target) = if series.metric.is_some() {
                series.attribution = sanitize_attribution(attribute_series(labels, &rules, &exporters));
                let device = device(labels);
                ((None, device.name.clone()), ReadingTarget::Board(device))
            } else {
                let ReadingTarget::Job { workload, rank } = job(labels) else { continue };
                ((workload.clone(), format!("rank {rank}")), ReadingTarget::Job { workload, rank })
            };
            series.target = *by_key.entry(key).or_insert(targets.len());
            match (targets.get_mut(series.target), target) {
                (Some(ReadingTarget::Board(known)), ReadingTarget::Board(device)) => {
                    known.node = known.node.take().or(device.node);
                    known.gpu_index = known.gpu_index.or(device.gpu_index);
                    known.gpu_model = known.gpu_model.take().or(device.gpu_model);
                }
                (Some(_), _) => {}
                (None, target) => targets.push(target),
            }
        }
        for series in &mut self.series {
            if let (Some(metric), ReadingTarget::Board(device)) = (series.metric, &targets[series.target]) {
                series.field = metric.field_of(device.gpu_model.as_deref());
            }
        }
        targets
    }

    /// Finds boards that share one name, but are several by the labels of their place. They have the same UUID with different
    /// values at one time, or the same host and index in two clusters at the same time.
    fn boards_of_several_places(&self, targets: &[ReadingTarget]) -> BTreeMap<usize, BoardCount> {
        // Number of the place of each series.
        let mut known: HashMap<BTreeMap<&'static str, String>, usize> = HashMap::new();
        let places: Vec<usize> = self
            .series
            .iter()
            .map(|series| {
                let next = known.len();
                *known.entry(board_labels(&series.labels)).or_insert(next)
            })
            .collect();
        let mut of_target: HashMap<usize, BTreeSet<usize>> = HashMap::new();
        for (series, place) in self.series.iter().zip(&places).filter(|(series, _)| series.metric.is_some()) {
            of_target.entry(series.target).or_default().insert(*place);
        }
        let mut boards: BTreeMap<usize, ReadingsByPlace<'_>> = BTreeMap::new();
        for sample in &self.samples {
            let series = &self.series[sample.series];
            let is_board =
                series.metric.is_some() && is_of_board(series.field) && matches!(targets[series.target], ReadingTarget::Board(_));
            if !is_board || of_target[&series.target].len() < 2 {
                continue;
            }
            let board = boards.entry(series.target).or_default();
            board.is_unique |= has_uuid(&series.labels);
            let (_, by_place) = board.series.entry(&series.name).or_insert_with(|| (series.field, BTreeMap::new()));
            by_place.entry(places[sample.series]).or_default().push((sample.time, sample.value));
        }
        let verdicts = boards.into_iter().map(|(target, board)| (target, board.board_count()));
        verdicts.filter(|(_, verdict)| *verdict != BoardCount::One).collect()
    }

    /// Splits targets that go by one name, but are several boards by the labels of their place. Returns messages about them.
    fn split_boards_by_place(&mut self, targets: &mut Vec<ReadingTarget>) -> Vec<String> {
        let split = self.boards_of_several_places(targets);
        let (mut names, mut differing, mut unknown) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (target, verdict) in split {
            let ReadingTarget::Board(device) = &targets[target] else { continue };
            let device = device.clone();
            let of_target = self.series.iter().filter(|series| series.target == target && series.metric.is_some());
            let places: BTreeSet<_> = of_target.map(|series| board_labels(&series.labels)).collect();
            let differs = |label: &&str| {
                let values: BTreeSet<_> = places.iter().map(|place| place.get(label)).collect();
                values.len() > 1
            };
            let labels: Vec<&str> = place_labels().filter(differs).collect();
            let mut by_place: HashMap<String, usize> = HashMap::new();
            for series in self.series.iter_mut().filter(|series| series.target == target && series.metric.is_some()) {
                let place = board_labels(&series.labels);
                let own: Vec<&str> = labels.iter().filter_map(|label| place.get(label).map(String::as_str)).collect();
                let own = own.join("/");
                if own.is_empty() {
                    continue;
                }
                series.target = *by_place.entry(own.clone()).or_insert_with(|| {
                    let node = device.node.as_ref().filter(|_| labels.iter().all(|label| !NODE_LABELS.contains(label)));
                    let node = node.cloned().or_else(|| Some(own.clone()));
                    let name = event_name(&format!("{own}/{}", device.name));
                    targets.push(ReadingTarget::Board(RecordedDevice { name, node, ..device.clone() }));
                    targets.len() - 1
                });
            }
            if verdict == BoardCount::Unknown {
                unknown.insert(device.name.clone());
            }
            names.insert(device.name);
            differing.extend(labels.into_iter().map(str::to_owned));
        }
        let mut notes = Vec::new();
        if !names.is_empty() {
            notes.push(format!(
                "{} goes by one name in several places at one time: boards are distinguished by {}",
                list_names(&names),
                list_names(&differing)
            ));
        }
        if !unknown.is_empty() {
            notes.push(format!(
                "{}: nothing that varies shows whether it is several boards or one that is scraped twice: it is taken for several; if it \
                 is one, select one value of {} in the query, else its energy counts twice",
                list_names(&unknown),
                list_names(&differing)
            ));
        }
        notes
    }

    /// Puts the samples of one target together, those of each time into one moment.
    fn target_snapshots(&self, samples: &[SeriesSample], recording: &mut Recording) -> Vec<TargetSnapshot> {
        let mut moments = Vec::new();
        let mut differing: Option<(usize, usize)> = None;
        let mut guesses = 0;
        // Most of the time the same series have a value, so that the same workloads hold the board.
        let mut tenants: (Vec<usize>, std::rc::Rc<[BoardTenant]>) = (Vec::new(), std::rc::Rc::new([]));
        for samples in samples.chunk_by(|a, b| a.time == b.time) {
            let mut values = Vec::new();
            let (mut repeated, mut other) = (0, 0);
            for group in samples.chunk_by(|a, b| self.series[a.series].field == self.series[b.series].field) {
                let (field, candidates) = self.best_series_samples(group);
                let Some((first, further)) = candidates.split_first() else { continue };
                let mut counts = (0, 0);
                for (at, sample) in further.iter().enumerate() {
                    let same_holder = |earlier: &&&SeriesSample| {
                        self.series[earlier.series].attribution == self.series[sample.series].attribution
                    };
                    if !field.is_progress() && sample.value == first.value && !candidates[..=at].iter().any(|e| same_holder(&e)) {
                        // The same reading under another pod.
                    } else if candidates[..=at].iter().any(|earlier| earlier.value == sample.value) {
                        counts.0 += 1;
                    } else {
                        counts.1 += 1;
                        differing.get_or_insert((first.series, sample.series));
                    }
                }
                (repeated, other) = (repeated.max(counts.0 + counts.1), other.max(counts.1));
                values.push((field, merge_samples(field, &candidates)));
            }
            recording.same_stamp += other;
            recording.duplicates += repeated - other;
            guesses += u64::from(other > 0);
            if values.is_empty() {
                continue;
            }
            let named: Vec<usize> = samples.iter().map(|sample| sample.series).collect();
            if named != tenants.0 || samples.iter().any(|sample| self.is_activity(sample.series)) {
                tenants = (named, self.holders(samples).tenants().into());
            }
            let (time, line, tenants) = (samples[0].time, samples[0].line, tenants.1.clone());
            moments.push(TargetSnapshot { time, line, values, tenants });
        }
        if let Some((a, b)) = differing {
            recording.notes.push(self.note_guess(a, b, guesses));
        }
        moments
    }

    fn is_activity(&self, series: usize) -> bool {
        let series = &self.series[series];
        series.field == ReadingField::GraphicsActiveRatio && series.instance.is_some()
    }

    fn holders(&self, samples: &[SeriesSample]) -> BoardHolders {
        let mut holders = BoardHolders::default();
        for sample in samples {
            let series = &self.series[sample.series];
            holders.add(&series.attribution, series.instance.as_ref());
        }
        for sample in samples.iter().filter(|sample| self.is_activity(sample.series)) {
            if let Some(instance) = &self.series[sample.series].instance {
                holders.set_activity(&instance.id, sample.value);
            }
        }
        holders
    }

    /// Returns those samples of one field and time that represent the whole target: those of its best series, and of the board
    /// before its MIG instances, of which only the first represents the board.
    fn best_series_samples<'a>(&self, group: &'a [SeriesSample]) -> (ReadingField, Vec<&'a SeriesSample>) {
        let field = self.series[group[0].series].field;
        let of_board = |sample: &&SeriesSample| is_of_board(field) || self.series[sample.series].instance.is_none();
        let all: Vec<&SeriesSample> = group.iter().filter(of_board).collect();
        let Some(best) = all.first().map(|sample| &self.series[sample.series]) else { return (field, all) };
        let speaks = |sample: &&SeriesSample| {
            let series = &self.series[sample.series];
            series.rank() == best.rank() && series.instance == best.instance
        };
        (field, all.into_iter().filter(speaks).collect())
    }

    fn note_guess(&self, a: usize, b: usize, moments: u64) -> String {
        let (a, b) = (&self.series[a], &self.series[b]);
        let names: BTreeSet<&String> = a.labels.keys().chain(b.labels.keys()).collect();
        let differ: BTreeSet<String> =
            names.into_iter().filter(|name| a.labels.get(*name) != b.labels.get(*name)).cloned().collect();
        let by = if differ.is_empty() { "nothing".to_owned() } else { list_names(&differ) };
        let of = if a.metric.is_some() { device(&a.labels).name } else { a.name.clone() };
        format!(
            "{of}: at {} {} has several values, of series that differ by {by}: their mean (counters: the last) is a \
             guess; select one of them in the query",
            counted(moments, "time"),
            a.name
        )
    }
}

/// The number of boards that go by one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BoardCount {
    One,
    Several,
    /// It is in several places at one time, and no figure decides.
    Unknown,
}

type TimeSeries = Vec<(EventTime, f64)>;

/// The readings under one name, by series and by place.
#[derive(Debug, Default)]
struct ReadingsByPlace<'a> {
    /// The labels have an id that no other board has.
    is_unique: bool,
    series: BTreeMap<&'a str, (ReadingField, BTreeMap<usize, TimeSeries>)>,
}

impl ReadingsByPlace<'_> {
    /// Returns whether boards are several. Power that differs is of several boards. Otherwise a figure that goes up and down
    /// alike is of one board that is scraped twice. A constant figure is no evidence.
    fn board_count(mut self) -> BoardCount {
        let (mut alike, mut power_differs, mut other_differs, mut exact, mut meet) = (false, false, false, false, false);
        for (field, places) in self.series.values_mut() {
            for readings in places.values_mut() {
                readings.sort_by_key(|(time, _)| *time);
                readings.dedup_by_key(|(time, _)| *time);
            }
            let is_power =
                matches!(field, ReadingField::PowerWatts | ReadingField::PowerAverageWatts | ReadingField::EnergyJoulesTotal);
            let places: Vec<&TimeSeries> = places.values().collect();
            for (at, b) in places.iter().enumerate() {
                for a in &places[..at] {
                    meet |= overlap_long(a, b);
                    match compare(a, b) {
                        SeriesComparison::Alike => alike = true,
                        SeriesComparison::Unclear => {}
                        differs => {
                            exact |= differs == SeriesComparison::DiffersAtOneTime;
                            *if is_power { &mut power_differs } else { &mut other_differs } = true;
                        }
                    }
                }
            }
        }
        if self.is_unique {
            return if exact { BoardCount::Several } else { BoardCount::One };
        }
        if power_differs || other_differs && !alike {
            BoardCount::Several
        } else if meet && !alike {
            BoardCount::Unknown
        } else {
            BoardCount::One
        }
    }
}

/// Returns whether two series overlap for half of the shorter: a label that was changed leaves some minutes in which the old one
/// is still there.
fn overlap_long(a: &TimeSeries, b: &TimeSeries) -> bool {
    let (Some((a_from, _)), Some((a_to, _)), Some((b_from, _)), Some((b_to, _))) = (a.first(), a.last(), b.first(), b.last())
    else {
        return false;
    };
    let shorter = a_to.seconds_since(*a_from).min(b_to.seconds_since(*b_from));
    shorter > 0.0 && a_to.min(b_to).seconds_since(*a_from.max(b_from)) * 2.0 >= shorter
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeriesComparison {
    Alike,
    DiffersAtOneTime,
    /// Samples are at times in between.
    Differs,
    Unclear,
}

/// Fewer readings at times in between are no evidence.
const READINGS_TO_COMPARE: usize = 3;

/// Compares a figure of two places: at the times that both have, else one of them with what lies between the readings of the
/// other.
fn compare(a: &TimeSeries, b: &TimeSeries) -> SeriesComparison {
    let mut common = Vec::new();
    for (time, value) in b {
        if let Ok(at) = a.binary_search_by_key(time, |(time, _)| *time) {
            if a[at].1 != *value {
                return SeriesComparison::DiffersAtOneTime;
            }
            common.push(*value);
        }
    }
    if !common.is_empty() {
        let varies = common.iter().any(|value| *value != common[0]);
        return if varies { SeriesComparison::Alike } else { SeriesComparison::Unclear };
    }
    if !overlap_long(a, b) {
        return SeriesComparison::Unclear;
    }
    let (mut differences, mut rises, mut level) = (Vec::new(), 0.0, 0.0);
    for pair in b.windows(2) {
        let (time, value) = pair[1];
        let Some(line) = LinePoint::at(a, time) else { continue };
        differences.push(value - line.value);
        rises += line.rise.max((value - pair[0].1).abs());
        level += value.abs();
    }
    if differences.len() < READINGS_TO_COMPARE {
        return SeriesComparison::Unclear;
    }
    let count = differences.len() as f64;
    let (rise, level) = (rises / count, level / count);
    let bias = differences.iter().sum::<f64>().abs() / count;
    let difference = differences.iter().map(|difference| difference.abs()).sum::<f64>() / count;
    if bias > rise && bias > 0.01 * level {
        SeriesComparison::Differs
    } else if rise > 0.0 && difference <= 0.5 * rise && bias <= 0.02 * level {
        SeriesComparison::Alike
    } else {
        SeriesComparison::Unclear
    }
}

fn has_uuid(labels: &LabelMap) -> bool {
    let is_known = |uuid: &str| !is_absent_text(uuid) && !is_zero_uuid(uuid);
    ["UUID", "uuid", "gpu_uuid"].iter().any(|name| labels.label(name).is_some_and(is_known))
}

/// Labels that name the node of a board.
const NODE_LABELS: [&str; 11] = [
    "Hostname",
    "hostname",
    "exported_hostname",
    "kubernetes_node",
    "node",
    "exported_node",
    "node_name",
    "nodename",
    "host",
    "machine",
    "server",
];

/// Labels that name the place of a node, from the outermost.
const SITE_LABELS: [&str; 7] = ["datacenter", "dc", "site", "region", "cluster", "cluster_name", "k8s_cluster"];

/// Returns the labels that name the place of a board, from the outermost to the node.
fn place_labels() -> impl Iterator<Item = &'static str> {
    SITE_LABELS.into_iter().chain(NODE_LABELS)
}

/// Returns the place of the board that the labels of a series name.
fn board_labels(labels: &LabelMap) -> BTreeMap<&'static str, String> {
    place_labels().filter_map(|name| Some((name, labels.label(name)?.to_owned()))).collect()
}

/// The values of one target at one time.
struct TargetSnapshot {
    time: EventTime,
    line: u64,
    values: Vec<(ReadingField, f64)>,
    tenants: std::rc::Rc<[BoardTenant]>,
}

fn no_field(name: &str) -> String {
    format!("series {} has no field in the events", clean_name(name))
}

/// Merges samples of one time. A repeated value adds nothing new, so it weighs nothing in a mean.
fn merge_samples(field: ReadingField, candidates: &[&SeriesSample]) -> f64 {
    let last = candidates[candidates.len() - 1].value;
    if field.nature() == MetricType::Counter {
        return last;
    }
    let first = |(at, sample): &(usize, &&SeriesSample)| !candidates[..*at].iter().any(|earlier| earlier.value == sample.value);
    let values: Vec<f64> = candidates.iter().enumerate().filter(first).map(|(_, sample)| sample.value).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Makes the sources of a board, one for each workload on it and one for the unattributed part.
fn push_shared(recording: &mut Recording, file: FileId, device: &RecordedDevice, moments: Vec<TargetSnapshot>) {
    let mut stays = BoardTenancies::default();
    let portions: Vec<_> = moments.iter().map(|moment| stays.observe(moment.time, &moment.tenants)).collect();
    // One workload has all of it all the time.
    let [first, ..] = portions.first().map_or(&[][..], Vec::as_slice) else { return };
    let simple = portions.iter().all(|portions| portions.len() == 1 && portions[0] == *first) && first.share.is_none();
    let mut sources: HashMap<Option<String>, SourceId> = HashMap::new();
    for (moment, portions) in moments.into_iter().zip(portions) {
        for portion in portions {
            let source = *sources.entry(portion.workload.clone()).or_insert_with(|| {
                let source = recording.add_source(file, portion.workload.clone(), SourceKind::Device(device.clone()));
                recording.sources[source].is_nobodys = portion.workload.is_none();
                source
            });
            recording.push_portion(source, (moment.time, moment.line), &moment.values, (!simple).then_some(portion));
        }
    }
}

/// Returns the board of a series; one without a name of its own is called after its node.
fn device(labels: &LabelMap) -> RecordedDevice {
    let label = |name: &str| labels.label(name).filter(|text| text.len() <= 253);
    let named = board(labels).unwrap_or_else(|| crate::series::SeriesBoard {
        device: format!("{}/gpu{}", label("instance").unwrap_or("node"), gpu(labels).unwrap_or("0")),
        node: None,
        gpu_index: gpu(labels).and_then(|index| index.parse().ok()),
        gpu_model: gpu_model(labels),
    });
    let node = named.node.or_else(|| label("instance").map(str::to_owned));
    RecordedDevice {
        name: named.device,
        node,
        gpu_index: named.gpu_index,
        gpu_model: named.gpu_model,
        ..RecordedDevice::default()
    }
}

/// Returns the job of a series: of the pod that serves it, which is the target itself.
fn job(labels: &LabelMap) -> ReadingTarget {
    let label = |name: &str| labels.exporter_label(name).filter(|text| text.len() <= 253);
    let workload = label("namespace").zip(label("pod"));
    let workload = workload.map(|(namespace, pod)| format!("{}/{}", clean_name(namespace), clean_name(pod)));
    ReadingTarget::Job { workload, rank: label("rank").and_then(|rank| rank.parse().ok()).unwrap_or(0) }
}

/// Returns the names of workloads as events may have them. One without a namespace is of `imported`.
fn sanitize_attribution(attribution: SeriesAttribution) -> SeriesAttribution {
    match attribution {
        SeriesAttribution::Workload { workload, pod } => {
            let (namespace, name) = workload.split_once('/').unwrap_or(("imported", &workload));
            SeriesAttribution::Workload { workload: format!("{}/{}", clean_name(namespace), clean_name(name)), pod }
        }
        SeriesAttribution::NoNamespace(name) => {
            SeriesAttribution::Workload { workload: format!("imported/{}", clean_name(&name)), pod: String::new() }
        }
        SeriesAttribution::NotAWorkload(_) | SeriesAttribution::Unattributed => SeriesAttribution::Unattributed,
    }
}

/// Notes ranks of a job that have progress of their own: that of one of them counts for the whole job. All jobs are of the given workload,
/// if there is one.
fn note_ranks_that_differ(recording: &mut Recording, given: Option<&str>) {
    let mut of_jobs: BTreeMap<Option<&str>, BoardProgress> = BTreeMap::new();
    for source in &recording.sources {
        let SourceKind::Job { rank, .. } = source.kind else { continue };
        let of_job = of_jobs.entry(source.workload.as_deref()).or_default();
        let name = format!("rank {rank}");
        for reading in &source.readings {
            for (field, value) in reading.values.iter().filter(|(field, _)| SUMMED_PROGRESS.contains(field)) {
                of_job.note(&name, (*field, false), (reading.time, u64::from(reading.line)), *value);
            }
        }
    }
    let own = of_jobs.into_iter().filter_map(|(workload, of_job)| match of_job.compare() {
        Some(ProgressRelation::OfBoards(own)) => Some(describe_ranks_that_differ(given.or(workload), &own)),
        _ => None,
    });
    for note in own.collect::<Vec<String>>() {
        recording.add_note(note);
    }
}

fn describe_ranks_that_differ(workload: Option<&str>, own: &OwnProgress) -> String {
    let [first, second] = &own.boards;
    let of_workload = workload.map_or(String::new(), |workload| format!(" of {workload}"));
    format!(
        "{} of {first} and {second}{of_workload} differs: that of one rank counts for the whole job; if each counts its own, export \
         their sum, as by sum without (rank)",
        own.field.name()
    )
}
