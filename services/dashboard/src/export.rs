//! Exports a run as one file: the page with its scripts, styles and data inside, which opens without any server.
//!
//! The file's own policy allows only the page's two scripts, by their digests, and forbids all requests.

use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use crate::assets::{self, policy_hash};
use crate::model::decisions::{DecisionDetail, DecisionQuery};
use crate::model::detail::{SeriesQuery, WindowSeries, WorkloadDetail};
use crate::model::fleet::{FleetPage, FleetQuery, InvalidQuery, SortKey};
use crate::model::overview::{FleetOverview, PowerHistory};
use crate::model::policies::{PolicyPage, PolicyQuery};
use crate::model::sharing::{SharingPage, SharingQuery};
use crate::shared_model::SharedModel;

/// Bounds of a file: workloads with the most energy, decisions of each, the newest ones, and points of each chart.
const MOST_WORKLOADS: usize = 200;
const MOST_DECISIONS: usize = 100;
const POINTS: usize = 300;
/// Rows of GPUs and of policies.
const MOST_ROWS: usize = 200;

/// Selection of the export.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExportQuery {
    /// Only this workload; absent: all.
    pub workload: Option<String>,
}

/// One workload in a file.
#[derive(Debug, Serialize)]
struct ExportedWorkload {
    detail: WorkloadDetail,
    series: WindowSeries,
    /// Newest first.
    decisions: Vec<DecisionDetail>,
    /// Number of all decisions.
    all_decisions: usize,
}

/// Answers that the exported page carries with it.
#[derive(Debug, Serialize)]
struct ExportBundle {
    overview: FleetOverview,
    power: Option<PowerHistory>,
    /// The rows of the workloads that are here, by energy.
    fleet: FleetPage,
    workloads: Vec<ExportedWorkload>,
    sharing: SharingPage,
    policies: PolicyPage,
    /// Workloads that are not here.
    left_out: usize,
}

/// Makes the file; the turn ends with it. Reads the model piece by piece, so that its feed is not held up.
pub fn file(turn: OwnedSemaphorePermit, model: &SharedModel, query: &ExportQuery) -> Result<String, InvalidQuery> {
    let text = serde_json::to_string(&collect(model, query)?).expect("every key is a string");
    let file = page(&text);
    drop(turn);
    Ok(file)
}

fn collect(model: &SharedModel, query: &ExportQuery) -> Result<ExportBundle, InvalidQuery> {
    let by_energy = FleetQuery { sort: SortKey::Energy, limit: Some(MOST_WORKLOADS), ..FleetQuery::default() };
    let mut fleet = model.read(|model| model.fleet(&by_energy))?;
    if let Some(name) = &query.workload {
        let detail = model.read(|model| model.workload_detail(name));
        let detail = detail.ok_or_else(|| InvalidQuery::no_workload(name))?;
        fleet = FleetPage { rows: vec![detail.row], total: 1, matching: 1, before: 0, next: None };
    }
    let left_out = fleet.total - fleet.rows.len();
    fleet.next = None;
    let workloads = fleet.rows.iter().filter_map(|row| export_workload(model, &row.workload)).collect();
    let (overview, power) = model.read(|model| (model.overview(), model.power_history(None, None)));
    let q = query.workload.clone().unwrap_or_default();
    let sharing = SharingQuery { limit: Some(MOST_ROWS), q: q.clone(), ..SharingQuery::default() };
    let policies = PolicyQuery { limit: Some(MOST_ROWS), q, ..PolicyQuery::default() };
    let (sharing, policies) = model.read(|model| (model.sharing(&sharing), model.policies(&policies)));
    Ok(ExportBundle { overview, power, fleet, workloads, sharing, policies: policies?, left_out })
}

fn export_workload(model: &SharedModel, name: &str) -> Option<ExportedWorkload> {
    model.read(|model| {
        let query = DecisionQuery { workload: Some(name.to_owned()), skip: 0, limit: Some(MOST_DECISIONS) };
        let page = model.decision_page(&query).ok()?;
        Some(ExportedWorkload {
            detail: model.workload_detail(name)?,
            series: model.series(name, &SeriesQuery { points: Some(POINTS), ..SeriesQuery::default() })?,
            decisions: page.rows.iter().filter_map(|row| model.decision_detail(name, &row.id)).collect(),
            all_decisions: page.matching,
        })
    })
}

const STYLE_LINK: &str = r#"<link rel="stylesheet" href="/app.css" />"#;
const SCRIPT_LINK: &str = r#"<script type="module" src="/app.js"></script>"#;

/// Returns the page around some JSON.
fn page(data: &str) -> String {
    let (style, script) = (assets::STYLE, assets::SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        policy_hash(script),
        policy_hash(style)
    );
    // First of all, so that it holds for everything after it.
    let head = format!(r#"<head><meta http-equiv="Content-Security-Policy" content="{policy}" />"#);
    let block = format!(
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script type=\"module\">{script}</script>\n</body>",
        inert(data)
    );
    assets::INDEX
        .replacen("<head>", &head, 1)
        .replacen(STYLE_LINK, &format!("<style>{style}</style>"), 1)
        .replacen(SCRIPT_LINK, "", 1)
        .replacen(&format!("<script>{}</script>", assets::inline_script()), "", 1)
        .replacen("</body>", &block, 1)
}

/// Returns JSON that holds no markup: no name ends a block or begins a comment.
fn inert(json: &str) -> String {
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_data_ends_its_block_and_everything_comes_back() {
        let hostile = serde_json::json!({ "</script><script>alert(1)</script>": "<!-- <img src=x> ]]> & \u{2028}" });
        let text = inert(&hostile.to_string());
        assert!(!text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), hostile);
    }

    #[test]
    fn the_file_asks_nobody_and_its_blocks_are_those_of_its_policy() {
        // The content of the bundle must not end its own block.
        assert!(!assets::SCRIPT.to_lowercase().contains("</script"));
        assert!(!assets::SCRIPT.contains("<!--"));
        assert!(!assets::STYLE.to_lowercase().contains("</style"));
        let page = page(r#"{"a":1}"#);
        assert!(!page.contains("/app.js") && !page.contains("/app.css"), "both are inside");
        let block = |begin: &str, end: &str| {
            let from = page.rfind(begin).unwrap() + begin.len();
            page[from..].split_once(end).unwrap().0.to_owned()
        };
        for (name, text) in
            [("script-src", block("<script type=\"module\">", "</script>")), ("style-src", block("<style>", "</style>"))]
        {
            assert!(page.contains(&format!("{name} {}", policy_hash(&text))), "{name}");
        }
        assert!(page.find("Content-Security-Policy").unwrap() < page.find("<style>").unwrap());
    }
}
