//! Two workloads, or two times of one, side by side.

use eadt_report::{ReportComparison, ReportSettings, SavingSummary, SavingVerdict, WorkloadReport};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Layout, Origin, UpdateMode};
use serde::{Deserialize, Serialize};

use super::DashboardModel;
use super::fleet::InvalidQuery;

/// The two runs to compare.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareQuery {
    /// The one that the other is compared with.
    pub a: String,
    pub b: String,
    pub a_from_ms: Option<i64>,
    pub a_to_ms: Option<i64>,
    pub b_from_ms: Option<i64>,
    pub b_to_ms: Option<i64>,
}

/// One of the two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompareSide {
    pub workload: String,
    /// Ends of the part that is compared; absent: of the record.
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
    /// Only windows within this part count, and there is no saving: that compares with the record's start.
    pub part: bool,
    pub report: WorkloadReport,
    pub saving_verdict: SavingVerdict,
    /// Whether the report's saving may be called that of the run: nearly all of its energy is compared.
    pub saving_is_whole: bool,
    /// Layout in force at the end of the record; `None` for a part that ends before.
    pub layout: Option<Layout>,
    pub mode: Option<UpdateMode>,
    pub gpu_model: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparePage {
    pub a: CompareSide,
    pub b: CompareSide,
    /// `b` is this one, `a` the other.
    pub figures: ReportComparison,
    /// Notes for a careful reader.
    pub notes: Vec<String>,
}

impl DashboardModel {
    /// Compares two reports side by side.
    pub fn compare(&self, query: &CompareQuery) -> Result<ComparePage, InvalidQuery> {
        let a = self.compare_side(&query.a, query.a_from_ms, query.a_to_ms)?;
        let b = self.compare_side(&query.b, query.b_from_ms, query.b_to_ms)?;
        let mut notes = vec!["restarts and trials are included; that both did the same kind of work is not checked".to_owned()];
        let figures = ReportComparison::of(&b.report, &a.report);
        // Between simulated and real figures every change is refused, with the reason.
        let is_simulated = |side: &CompareSide| side.report.origin == Origin::Simulated;
        if a.report.origin != b.report.origin && is_simulated(&a) == is_simulated(&b) {
            notes.push("the figures of the two have different origins".to_owned());
        }
        if a.gpu_model.is_some() && b.gpu_model.is_some() && a.gpu_model != b.gpu_model {
            notes.push("the two run on different boards".to_owned());
        }
        if a.part || b.part {
            notes.push("of a part of a record only windows that lie within it count, and no saving is estimated".to_owned());
        }
        Ok(ComparePage { a, b, figures, notes })
    }

    fn compare_side(&self, name: &str, from_ms: Option<i64>, to_ms: Option<i64>) -> Result<CompareSide, InvalidQuery> {
        let state = self.workloads.get(name).ok_or_else(|| InvalidQuery::no_workload(name))?;
        if !state.is_exact() {
            return Err(InvalidQuery::too_long(name));
        }
        let (from, to) =
            (from_ms.map_or(EventTime::MIN, EventTime::from_millis), to_ms.map_or(EventTime::MAX, EventTime::from_millis));
        if from >= to {
            return Err(InvalidQuery(format!("the part of {name:?} ends before it begins")));
        }
        let part = from_ms.is_some() || to_ms.is_some();
        let settings = ReportSettings::default();
        let report = if part {
            self.reporter.workload_between(name, from, to, &settings)
        } else {
            self.reporter.workload_report(name, &settings)
        };
        let report = report.filter(|report| report.windows > 0);
        let report = report.ok_or_else(|| InvalidQuery(format!("no window of {name:?} lies in that time")))?;
        let declaration = state.declaration.as_deref();
        let summary = SavingSummary::of([&report]);
        Ok(CompareSide {
            workload: name.to_owned(),
            from_ms,
            to_ms,
            part,
            saving_verdict: summary.verdict(),
            saving_is_whole: summary.is_whole(),
            report,
            layout: state.layout().filter(|_| to_ms.is_none()).cloned(),
            mode: state.mode(),
            gpu_model: declaration.and_then(|declared| declared.gpu_model.clone()),
        })
    }
}
