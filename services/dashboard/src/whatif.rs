//! Computes the decisions that another controller would have made on a workload's record, beside the recorded ones. It is what
//! `eadt backtest --archive` does.
//!
//! One question at a time, on a thread of its own and within bounds ([`HistorySource`]): other requests are answered meanwhile.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use eadt_backtest::{CounterfactualChange, Estimate, HindsightRow, RefusedChange, evaluate_record};
use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_report::{WorkloadReport, words};
use eadt_schemas::v1::{ChangeValidation, ControllerAction, Layout, Origin};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::workload_history::{HistoryError, HistorySource};

/// Time for which a question waits for the one before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// Changes and refusals that are shown, the first ones.
const MOST_CHANGES: usize = 200;

/// The controller and the workload of a what-if question.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhatIfQuery {
    pub workload: String,
    pub controller: String,
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum WhatIfError {
    #[error("{0}")]
    Invalid(String),
    #[error("another question of this kind is being answered: ask again in a few seconds")]
    Busy,
    #[error(transparent)]
    Record(#[from] HistoryError),
    #[error("no window of {0:?} is on record")]
    NoWindows(String),
    #[error("the what-if comparison failed: see the log of this process")]
    Failed,
}

/// A change that the controller would have made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterfactualRow {
    pub time_ms: i64,
    pub action: ControllerAction,
    /// Text of the action that it would have taken.
    pub action_text: Cow<'static, str>,
    pub from: Layout,
    pub to: Layout,
    pub phase: usize,
    pub reason: String,
    pub windows: usize,
    pub effect: Option<Estimate>,
}

/// A change that the record cannot follow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RefusedRow {
    pub time_ms: i64,
    pub action: ControllerAction,
    /// Text of the action that it would have taken.
    pub action_text: Cow<'static, str>,
    pub from: Layout,
    pub to: Layout,
    pub count: u64,
    pub reason: String,
}

/// The answer: [`HindsightRow`] for a page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIfPage {
    pub workload: String,
    pub controller: ControllerName,
    /// The origin of the record; the controller's part is imagined whatever this is.
    pub origin: Origin,
    pub windows: u64,
    pub windows_as_recorded: u64,
    pub windows_estimated: u64,
    pub windows_unknown: u64,
    pub known_ratio: Option<f64>,
    pub recorded_joules_per_sample: Option<f64>,
    /// With the ends of its 90 % interval; absent if there is no estimate, or if a change is refused.
    pub joules_per_sample_change: Option<Estimate>,
    pub changes: Vec<CounterfactualRow>,
    pub refused: Vec<RefusedRow>,
    /// Changes and refusals beyond those that are shown.
    pub left_out: usize,
    pub restarts: u64,
    pub recorded_changes: u64,
    /// Controller in force, as declared last.
    pub recorded_controller: Option<String>,
    pub notes: Vec<String>,
    /// The report on the record; absent if the record is too long for it to be computed here.
    pub report: Option<WorkloadReport>,
    /// Whether the report's saving may be called that of the run: nearly all of its energy is compared.
    pub saving_is_whole: bool,
}

/// Answers one question at a time.
#[derive(Debug, Clone)]
pub struct WhatIf {
    records: HistorySource,
    settings: Arc<ControllerSettings>,
    turn: Arc<Semaphore>,
}

impl WhatIf {
    /// Builds it; `settings` are those of workloads that declare none.
    pub fn new(records: HistorySource, settings: ControllerSettings) -> Self {
        Self { records, settings: Arc::new(settings), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Returns the decisions that a controller would have made; without the report.
    pub(crate) async fn page(&self, query: WhatIfQuery) -> Result<WhatIfPage, WhatIfError> {
        let controller: ControllerName = query
            .controller
            .parse()
            .map_err(|error: eadt_core::controller::UnknownController| WhatIfError::Invalid(error.to_string()))?;
        if !ControllerName::ALL.contains(&controller) {
            return Err(WhatIfError::Invalid(format!(
                "{controller} decides nothing here: it needs the jobs beside this one, or what the job reports of its training"
            )));
        }
        let turn = tokio::time::timeout(QUEUE_TIMEOUT, self.turn.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(WhatIfError::Busy) };
        let (records, settings) = (self.records.clone(), self.settings.clone());
        let work = move || answer(turn, &records, &query.workload, controller, &settings);
        tokio::task::spawn_blocking(work).await.map_err(|_| WhatIfError::Failed)?
    }
}

/// Answers a question. Its turn ends with it, even if the client has disconnected meanwhile.
fn answer(
    turn: OwnedSemaphorePermit,
    records: &HistorySource,
    workload: &str,
    controller: ControllerName,
    settings: &ControllerSettings,
) -> Result<WhatIfPage, WhatIfError> {
    let record = records.read(workload)?;
    let declared = record.workloads.iter().max_by_key(|declared| (declared.time, declared.generation));
    let recorded_controller = declared.and_then(|declared| declared.controller.clone());
    let found = evaluate_record(&record, &[controller], settings).into_iter().find(|found| found.workload == workload);
    let found = found.ok_or_else(|| WhatIfError::NoWindows(workload.to_owned()))?;
    let mut page = page(found, recorded_controller);
    if matches!(records, HistorySource::Log { .. }) {
        page.notes.push(
            "a log keeps the newest declaration of a workload for sure: earlier modes and bounds may be missing".to_owned(),
        );
    }
    drop(turn);
    Ok(page)
}

fn page(found: HindsightRow, recorded_controller: Option<String>) -> WhatIfPage {
    let left_out = found.changes.len().saturating_sub(MOST_CHANGES) + found.refused.len().saturating_sub(MOST_CHANGES);
    let text = |action, from: &Layout, to: &Layout| words::action_text(action, ChangeValidation::None, from, to);
    let considered = |change: CounterfactualChange| CounterfactualRow {
        time_ms: change.time.millis(),
        action: change.action,
        action_text: text(change.action, &change.from, &change.to),
        from: change.from,
        to: change.to,
        phase: change.phase,
        reason: change.reason,
        windows: change.windows,
        effect: change.effect,
    };
    let refused = |change: RefusedChange| RefusedRow {
        time_ms: change.time.millis(),
        action: change.action,
        action_text: text(change.action, &change.from, &change.to),
        from: change.from,
        to: change.to,
        count: change.count,
        reason: change.reason,
    };
    WhatIfPage {
        workload: found.workload,
        controller: found.controller,
        origin: found.origin,
        windows: found.windows,
        windows_as_recorded: found.windows_as_recorded,
        windows_estimated: found.windows_estimated,
        windows_unknown: found.windows_unknown,
        known_ratio: found.known_ratio,
        recorded_joules_per_sample: found.recorded_joules_per_sample,
        joules_per_sample_change: found.joules_per_sample_change,
        changes: found.changes.into_iter().take(MOST_CHANGES).map(considered).collect(),
        refused: found.refused.into_iter().take(MOST_CHANGES).map(refused).collect(),
        left_out,
        restarts: found.restarts,
        recorded_changes: found.recorded_changes,
        recorded_controller,
        notes: found.notes,
        report: None,
        saving_is_whole: false,
    }
}
