//! The fleet as pages of rows, sorted and filtered here: a browser never has to hold all of it.

use std::cmp::Ordering;

use eadt_report::states::WorkloadStatus;
use eadt_report::{SavingSummary, SavingVerdict};
use eadt_schemas::v1::{Layout, Origin, UpdateMode};
use serde::{Deserialize, Serialize};

use super::workload::WorkloadState;
use super::{DEFAULT_ROWS, DashboardModel, rows_of_page};

/// Points of the line in a row.
const SPARKLINE: usize = 40;

/// Column that the rows are sorted by. Unknown figures come last in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SortKey {
    Name,
    Power,
    /// Of the newest window.
    JoulesPerSample,
    /// Of the whole run, as in the report.
    RunJoulesPerSample,
    SamplesPerSecond,
    #[default]
    Saving,
    SavingRatio,
    Energy,
    State,
}

/// Selection and order of the rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetQuery {
    pub sort: SortKey,
    /// `asc` or `desc`; by default names and states ascend, figures descend.
    pub order: Option<SortOrder>,
    /// A part of the name, in either case.
    pub q: String,
    /// Only these states, separated by commas.
    pub state: String,
    /// The end of the page before, as that page returned it.
    pub cursor: Option<String>,
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SortOrder {
    Asc,
    Desc,
}

/// A workload in one line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetRow {
    pub workload: String,
    pub origin: Option<Origin>,
    pub state: WorkloadStatus,
    pub mode: Option<UpdateMode>,
    pub layout: Option<Layout>,
    pub gpus: Option<u32>,
    /// Power of the newest window; absent if that is not of the present: the job has ended, has left its GPUs, or is late.
    pub power_watts: Option<f64>,
    pub samples_per_second: Option<f64>,
    pub joules_per_sample: Option<f64>,
    /// J/sample of the whole run, as in the report.
    pub run_joules_per_sample: Option<f64>,
    pub energy_joules: Option<f64>,
    pub saving_joules: Option<f64>,
    pub saving_ratio: Option<f64>,
    pub saving_ratio_low: Option<f64>,
    pub saving_ratio_high: Option<f64>,
    pub compared_energy_ratio: Option<f64>,
    pub saving_verdict: SavingVerdict,
    /// Whether the saving may be called that of the run: nearly all of its energy is compared.
    pub saving_is_whole: bool,
    pub throughput_kept_ratio: Option<f64>,
    /// Its record is too long for a saving to be computed here.
    pub saving_left_out: bool,
    /// No actuator has answered its newest change.
    pub is_unanswered: bool,
    pub window_end_ms: Option<i64>,
    /// The last J/sample, oldest first, restarts left out.
    pub sparkline: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetPage {
    pub rows: Vec<FleetRow>,
    /// All workloads.
    pub total: usize,
    /// Number of rows that match the filter.
    pub matching: usize,
    /// The number of these before this page.
    pub before: usize,
    /// Ask with it for the next page; absent on the last one.
    pub next: Option<String>,
}

/// A query that cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidQuery(pub String);

impl InvalidQuery {
    /// Returns the error that no workload has this name.
    pub fn no_workload(name: &str) -> Self {
        Self(format!("no workload is named {name:?} here"))
    }

    /// Returns the error that more windows are on record than are kept.
    pub fn too_long(name: &str) -> Self {
        Self(format!(
            "the record of {name:?} is too long to be compared here: set dashboard.windows higher; `eadt report --compare` \
             compares whole runs"
        ))
    }
}

/// Sort key of a row: its figure, then its name.
#[derive(Debug, Clone, Copy, PartialEq)]
struct FleetCursor<'a> {
    /// Already turned, so that less comes first.
    value: Option<f64>,
    name: &'a str,
}

/// A workload and its sort key.
type FleetEntry<'a> = (FleetCursor<'a>, &'a WorkloadState);

impl<'a> FleetCursor<'a> {
    fn compare(&self, other: &FleetCursor<'_>, descending_names: bool) -> Ordering {
        let by_value = match (self.value, other.value) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        };
        let by_name = self.name.cmp(other.name);
        by_value.then(if descending_names { by_name.reverse() } else { by_name })
    }

    /// Returns the text of a cursor: the bits of the figure, then the name.
    fn text(self) -> String {
        let value = self.value.map_or_else(|| "-".to_owned(), |value| format!("{:016x}", value.to_bits()));
        format!("{value}:{}", self.name)
    }

    fn parse(text: &'a str) -> Option<Self> {
        let (value, name) = text.split_once(':')?;
        let value = match value {
            "-" => None,
            bits => Some(f64::from_bits(u64::from_str_radix(bits, 16).ok().filter(|_| bits.len() == 16)?)),
        };
        Some(Self { value, name })
    }
}

impl DashboardModel {
    /// Returns the workloads that match a query, in no order, and whether their names descend.
    fn matching_workloads(&self, query: &FleetQuery) -> Result<(Vec<FleetEntry<'_>>, bool), InvalidQuery> {
        let wanted = query.q.to_lowercase();
        let states = parse_states(&query.state)?;
        let turned = match (query.order, query.sort) {
            (Some(order), _) => order == SortOrder::Desc,
            (None, SortKey::Name | SortKey::State) => false,
            (None, _) => true,
        };
        let entries = self
            .workloads
            .iter()
            .filter(|(name, state)| {
                (wanted.is_empty() || name.to_lowercase().contains(&wanted))
                    && (states.is_empty() || states.contains(&self.state(state)))
            })
            .map(|(name, state)| {
                let value = self.sort_value(query.sort, name, state);
                (FleetCursor { value: value.map(|value| if turned { -value } else { value }), name }, state)
            })
            .collect();
        Ok((entries, query.sort == SortKey::Name && turned))
    }

    /// Returns all workloads that match a query, in its order, whatever its page.
    pub(super) fn sorted_workloads(&self, query: &FleetQuery) -> Result<Vec<(&str, &WorkloadState)>, InvalidQuery> {
        let (mut entries, descending_names) = self.matching_workloads(query)?;
        entries.sort_unstable_by(|(a, _), (b, _)| a.compare(b, descending_names));
        Ok(entries.into_iter().map(|(place, state)| (place.name, state)).collect())
    }

    /// Returns one page of the fleet.
    pub fn fleet(&self, query: &FleetQuery) -> Result<FleetPage, InvalidQuery> {
        let cursor = query.cursor.as_deref().map(|text| {
            FleetCursor::parse(text).ok_or_else(|| InvalidQuery(format!("cursor {text:?} is none that a page had: leave it out")))
        });
        let cursor = cursor.transpose()?;
        let (mut places, descending_names) = self.matching_workloads(query)?;
        let matching = places.len();
        if let Some(cursor) = cursor {
            places.retain(|(place, _)| place.compare(&cursor, descending_names).is_gt());
        }
        let before = matching - places.len();
        // Only the page is sorted.
        let limit = rows_of_page(query.limit, DEFAULT_ROWS).min(places.len());
        let is_last = limit == places.len();
        if !is_last {
            places.select_nth_unstable_by(limit, |(a, _), (b, _)| a.compare(b, descending_names));
        }
        let page = &mut places[..limit];
        page.sort_unstable_by(|(a, _), (b, _)| a.compare(b, descending_names));
        let next = page.last().filter(|_| !is_last).map(|(place, _)| place.text());
        Ok(FleetPage {
            rows: page.iter().map(|(place, state)| self.row(place.name, state)).collect(),
            total: self.workloads.len(),
            matching,
            before,
            next,
        })
    }

    fn sort_value(&self, key: SortKey, name: &str, state: &WorkloadState) -> Option<f64> {
        let latest = self.running_window(name, state);
        let figures = state.figures.as_deref();
        match key {
            SortKey::Name => None,
            SortKey::State => Some(f64::from(self.state(state) as u8)),
            SortKey::Power => latest?.power_watts,
            SortKey::JoulesPerSample => latest?.joules_per_sample,
            SortKey::RunJoulesPerSample => figures?.joules_per_sample,
            SortKey::SamplesPerSecond => latest?.samples_per_second,
            SortKey::Saving => figures?.saving_joules,
            SortKey::SavingRatio => figures?.saving_ratio,
            SortKey::Energy => figures?.energy_joules,
        }
    }

    /// Returns one workload's row.
    pub(super) fn row(&self, name: &str, state: &WorkloadState) -> FleetRow {
        let latest = state.latest.as_ref();
        let live = self.running_window(name, state);
        let figures = state.figures.as_deref();
        let summary = SavingSummary::of(figures);
        FleetRow {
            workload: name.to_string(),
            origin: state.origin(),
            state: self.state(state),
            mode: state.mode(),
            layout: state.layout().cloned(),
            gpus: latest.and_then(|latest| latest.gpus),
            power_watts: live.and_then(|latest| latest.power_watts),
            samples_per_second: live.and_then(|latest| latest.samples_per_second),
            joules_per_sample: live.and_then(|latest| latest.joules_per_sample),
            run_joules_per_sample: figures.and_then(|figures| figures.joules_per_sample),
            energy_joules: figures.and_then(|figures| figures.energy_joules),
            saving_joules: figures.and_then(|figures| figures.saving_joules),
            saving_ratio: figures.and_then(|figures| figures.saving_ratio),
            saving_ratio_low: figures.and_then(|figures| figures.saving_ratio_low),
            saving_ratio_high: figures.and_then(|figures| figures.saving_ratio_high),
            compared_energy_ratio: figures.and_then(|figures| figures.compared_energy_ratio),
            saving_verdict: summary.verdict(),
            saving_is_whole: summary.is_whole(),
            throughput_kept_ratio: figures.and_then(|figures| figures.throughput_kept_ratio),
            saving_left_out: !state.is_exact(),
            is_unanswered: state.unanswered_since().is_some(),
            window_end_ms: latest.map(|latest| latest.times.end.millis()),
            sparkline: state.trace.sparkline(SPARKLINE),
        }
    }
}

fn parse_states(text: &str) -> Result<Vec<WorkloadStatus>, InvalidQuery> {
    const ALL: [(&str, WorkloadStatus); 10] = [
        ("reverted", WorkloadStatus::Reverted),
        ("refused", WorkloadStatus::Refused),
        ("rolling_out", WorkloadStatus::RollingOut),
        ("restarted", WorkloadStatus::Restarted),
        ("validating", WorkloadStatus::Validating),
        ("paused", WorkloadStatus::Paused),
        ("steady", WorkloadStatus::Steady),
        ("waiting", WorkloadStatus::Waiting),
        ("silent", WorkloadStatus::Silent),
        ("ended", WorkloadStatus::Ended),
    ];
    let known = |word: &str| ALL.iter().find(|(name, _)| *name == word).map(|(_, state)| *state);
    let words = text.split(',').filter(|word| !word.is_empty());
    let unknown = |word: &str| {
        InvalidQuery(format!("state {word:?} is none of {}", ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")))
    };
    words.map(|word| known(word).ok_or_else(|| unknown(word))).collect()
}
