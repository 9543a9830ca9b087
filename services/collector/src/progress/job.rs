//! A training job's own Prometheus endpoint.

use std::collections::{BTreeMap, BTreeSet};

use eadt_recordings::prometheus_text::{is_open_metrics, parse_samples};
use eadt_recordings::series::list_names;
use eadt_schemas::EventTime;
use eadt_schemas::latest::{CounterScope, TrainingProgress};
use eadt_service::tasks::{self, TaskEntry};
use eadt_service::{ServiceClock, Shutdown};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sources::ProgressSources;
use crate::metrics::CollectorMetrics;
use crate::scrape::{Scraper, ticks};
use crate::settings::JobSettings;
use crate::sink::EventSink;
use crate::source::{BoxFuture, CollectorSource, SourceError};

pub(crate) const KIND: &str = "job";

/// Ranks of one job that are followed.
const MAX_RANKS: usize = 10_000;

/// A value that a job's metrics may report, by the event's field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressField {
    SamplesTotal,
    TokensTotal,
    StepsTotal,
    SamplesPerSecond,
    TokensPerSecond,
    Loss,
    Epoch,
    GradientNorm,
    StepsRemaining,
    RemainingSeconds,
    OverflowSkipsTotal,
    GlobalBatchSize,
    WorldSize,
    MpsThreadPercentage,
}

impl ProgressField {
    const ALL: [Self; 14] = [
        Self::SamplesTotal,
        Self::TokensTotal,
        Self::StepsTotal,
        Self::SamplesPerSecond,
        Self::TokensPerSecond,
        Self::Loss,
        Self::Epoch,
        Self::GradientNorm,
        Self::StepsRemaining,
        Self::RemainingSeconds,
        Self::OverflowSkipsTotal,
        Self::GlobalBatchSize,
        Self::WorldSize,
        Self::MpsThreadPercentage,
    ];

    /// Returns the metric that is read if settings name no other.
    pub const fn default_metric(self) -> &'static str {
        match self {
            Self::SamplesTotal => "training_samples_total",
            Self::TokensTotal => "training_tokens_total",
            Self::StepsTotal => "training_steps_total",
            Self::SamplesPerSecond => "training_samples_per_second",
            Self::TokensPerSecond => "training_tokens_per_second",
            Self::Loss => "training_loss",
            Self::Epoch => "training_epoch",
            Self::GradientNorm => "training_gradient_norm",
            Self::StepsRemaining => "training_steps_remaining",
            Self::RemainingSeconds => "training_remaining_seconds",
            Self::OverflowSkipsTotal => "training_overflow_skips_total",
            Self::GlobalBatchSize => "training_global_batch_size",
            Self::WorldSize => "training_world_size",
            Self::MpsThreadPercentage => "mps_thread_percentage_current",
        }
    }

    /// Sets the field if it is free; false if it is taken.
    fn set(self, event: &mut TrainingProgress, value: f64) -> bool {
        let whole = || (value >= 1.0 && value <= f64::from(u32::MAX)).then_some(value.round() as u32);
        let slot = match self {
            Self::SamplesTotal => &mut event.samples_total,
            Self::TokensTotal => &mut event.tokens_total,
            Self::StepsTotal => &mut event.steps_total,
            Self::SamplesPerSecond => &mut event.samples_per_second,
            Self::TokensPerSecond => &mut event.tokens_per_second,
            Self::Loss => &mut event.loss,
            Self::Epoch => &mut event.epoch,
            Self::GradientNorm => &mut event.gradient_norm,
            Self::StepsRemaining => &mut event.steps_remaining,
            Self::RemainingSeconds => &mut event.remaining_seconds,
            Self::OverflowSkipsTotal => &mut event.overflow_skips_total,
            Self::GlobalBatchSize => {
                return event.global_batch_size.is_none().then(|| event.global_batch_size = whole()).is_some();
            }
            Self::WorldSize => return event.world_size.is_none().then(|| event.world_size = whole()).is_some(),
            Self::MpsThreadPercentage => {
                return event.mps_thread_percentage.is_none().then(|| event.mps_thread_percentage = whole()).is_some();
            }
        };
        slot.is_none().then(|| *slot = Some(value)).is_some()
    }
}

/// Content of a job's answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobScrape {
    /// One event a rank, without collector.
    pub events: Vec<TrainingProgress>,
    pub malformed: u64,
    /// Second series for one field of one rank: the first holds.
    pub duplicate: u64,
    /// Not finite, or negative where it counts something.
    pub implausible: u64,
    pub complaint: Option<String>,
    /// Names of the series, of the first few that differ.
    pub names: BTreeSet<String>,
}

/// Most names that are kept for a message.
const MAX_NAMES: usize = 50;

/// Reads a job's answer, complete at `now`. Series with a `rank` label are that rank's, the others `rank`'s.
pub fn read(
    text: &str,
    workload: &str,
    rank: u32,
    scope: CounterScope,
    names: &BTreeMap<ProgressField, String>,
    now: EventTime,
) -> JobScrape {
    let metrics: BTreeMap<&str, ProgressField> = ProgressField::ALL
        .into_iter()
        .map(|field| (names.get(&field).map_or(field.default_metric(), String::as_str), field))
        .collect();
    let mut scraped = JobScrape::default();
    let mut ranks: BTreeMap<u32, TrainingProgress> = BTreeMap::new();
    let open_metrics = is_open_metrics(text);
    for line in parse_samples(text) {
        let sample = match line {
            Ok(sample) => sample,
            Err(malformed) => {
                scraped.malformed += 1;
                scraped.complaint.get_or_insert_with(|| malformed.to_string());
                continue;
            }
        };
        if scraped.names.len() < MAX_NAMES && !scraped.names.contains(&*sample.name) {
            scraped.names.insert(sample.name.to_string());
        }
        let Some(field) = metrics.get(&*sample.name) else { continue };
        let signed = matches!(field, ProgressField::Loss);
        if !sample.value.is_finite() || (!signed && sample.value < 0.0) {
            scraped.implausible += 1;
            continue;
        }
        let rank = sample.label("rank").and_then(|rank| rank.parse().ok()).unwrap_or(rank);
        let event = ranks.entry(rank).or_insert_with(|| TrainingProgress {
            time: EventTime::default(),
            workload: workload.to_owned(),
            rank,
            scope,
            ..TrainingProgress::default()
        });
        if let Some(time) = sample.time(open_metrics) {
            event.time = event.time.max(time);
        }
        if !field.set(event, sample.value) {
            scraped.duplicate += 1;
        }
    }
    scraped.events = ranks
        .into_values()
        .map(|event| if event.time == EventTime::default() { TrainingProgress { time: now, ..event } } else { event })
        .collect();
    scraped
}

/// The source.
#[derive(Debug)]
pub(crate) struct JobMetricsSource {
    settings: JobSettings,
    scraper: Scraper,
    sink: EventSink,
    metrics: CollectorMetrics,
    clock: ServiceClock,
    collector: String,
    sources: ProgressSources,
    complained: bool,
    /// The last answer had none of the job's metrics.
    useless: bool,
}

impl JobMetricsSource {
    pub fn new(
        settings: JobSettings,
        sink: EventSink,
        metrics: CollectorMetrics,
        clock: ServiceClock,
        collector: String,
    ) -> Result<Self, SourceError> {
        let scraper = Scraper::new(settings.target.clone(), metrics.clone())
            .map_err(|error| SourceError::new(KIND, format!("cannot make an HTTP client: {error}")))?;
        Ok(Self {
            settings,
            scraper,
            sink,
            metrics,
            clock,
            collector,
            sources: ProgressSources::new(MAX_RANKS, MAX_RANKS),
            complained: false,
            useless: false,
        })
    }

    fn take(&mut self, text: &str) {
        let JobSettings { workload, rank, per_rank, metrics: names, .. } = &self.settings;
        let scope = if *per_rank { CounterScope::Rank } else { CounterScope::Global };
        let scraped = read(text, workload, *rank, scope, names, self.clock.now());
        let target = self.scraper.shown().to_owned();
        self.metrics.skip(&target, "malformed", scraped.malformed);
        self.metrics.skip(&target, "duplicate", scraped.duplicate);
        self.metrics.skip(&target, "implausible", scraped.implausible);
        if let Some(complaint) = scraped.complaint.filter(|_| !self.complained) {
            self.complained = true;
            tracing::warn!(target_url = target, complaint, "a line of the job was skipped; further ones are only counted");
        }
        self.note_usefulness(&target, &scraped.names, scraped.events.is_empty());
        for mut event in scraped.events {
            let known = self.sources.last(&event.workload, event.rank);
            if known.is_some_and(|last| event.time <= last.time) {
                self.metrics.skip(&target, "out_of_order", 1);
                continue;
            }
            if known.is_none() && self.sources.len() >= MAX_RANKS {
                self.metrics.skip(&target, "device_limit", 1);
                continue;
            }
            event.collector.clone_from(&self.collector);
            self.send(&event);
            self.sources.note(&event);
        }
    }

    /// Counts an answer without any known metric, and logs it once until one has some again.
    fn note_usefulness(&mut self, target: &str, found: &BTreeSet<String>, useless: bool) {
        if useless {
            self.metrics.skip(target, "no_usable_series", 1);
        }
        match (self.useless, useless) {
            (false, true) => tracing::warn!(
                target_url = target,
                workload = self.settings.workload,
                found = list_names(found),
                "the job's answer has none of the metrics that are read; name the job's own in metrics of this collector.jobs"
            ),
            (true, false) => tracing::info!(target_url = target, "the job's answer has known metrics now"),
            _ => {}
        }
        self.useless = useless;
    }

    fn send(&self, event: &TrainingProgress) {
        if let Err(refusal) = self.sink.progress(KIND, event) {
            tracing::warn!(workload = event.workload, rank = event.rank, %refusal, "progress was refused");
        }
    }
}

impl CollectorSource for JobMetricsSource {
    fn task(&self) -> &'static TaskEntry {
        &tasks::JOB
    }

    fn open(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        // A job that does not run yet will: not an error at start.
        Box::pin(async { Ok(()) })
    }

    fn run(mut self: Box<Self>, shutdown: Shutdown) -> BoxFuture<'static, Result<(), SourceError>> {
        Box::pin(async move {
            let mut ticks = ticks(self.scraper.interval());
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    _ = ticks.tick() => {}
                }
                let text = tokio::select! {
                    () = shutdown.cancelled() => break,
                    text = self.scraper.text() => text,
                };
                if let Some(text) = text {
                    self.take(&text);
                }
            }
            for event in self.sources.end() {
                self.send(&event);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: EventTime = EventTime::from_micros(9_000_000);

    #[test]
    fn gauges_and_counters_become_one_event() {
        let text = "# TYPE training_loss gauge\ntraining_samples_per_second 1234.5\ntraining_loss{model=\"x\"} 0.25\n\
                    mps_thread_percentage_current 50\ntraining_samples_total 1e6\ntraining_steps_total NaN\nother 5\nbroken{ 1\n";
        let scraped = read(text, "n/a", 0, CounterScope::Global, &BTreeMap::new(), NOW);
        let [e] = &scraped.events[..] else { panic!("{scraped:?}") };
        assert_eq!((e.samples_per_second, e.loss, e.mps_thread_percentage), (Some(1234.5), Some(0.25), Some(50)));
        assert_eq!((e.samples_total, e.steps_total, e.time), (Some(1e6), None, NOW));
        assert_eq!((scraped.malformed, scraped.implausible), (1, 1));
    }

    #[test]
    fn ranks_are_sources_of_their_own_and_names_can_be_given() {
        let names = BTreeMap::from([(ProgressField::SamplesTotal, "my_samples".to_owned())]);
        let text = "my_samples{rank=\"0\"} 10 8000\nmy_samples{rank=\"1\"} 11\nmy_samples{rank=\"1\",x=\"y\"} 12\ntraining_samples_total 99\n";
        let scraped = read(text, "n/a", 0, CounterScope::Rank, &names, NOW);
        let seen: Vec<_> = scraped.events.iter().map(|e| (e.rank, e.scope, e.samples_total, e.time.micros())).collect();
        assert_eq!(seen, [(0, CounterScope::Rank, Some(10.0), 8_000_000), (1, CounterScope::Rank, Some(11.0), 9_000_000)]);
        assert_eq!(scraped.duplicate, 1);
    }

    #[test]
    fn an_answer_without_known_metrics_is_no_event() {
        let scraped = read("up 1\nmy_samples 5\n", "n/a", 0, CounterScope::Global, &BTreeMap::new(), NOW);
        assert!(scraped.events.is_empty());
        assert_eq!(list_names(&scraped.names), "my_samples, up");
    }
}
