//! `/api/v1`: what the page asks for. Read only, JSON, times as milliseconds since the Unix epoch, units in the names of the fields.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use eadt_schemas::EventTime;
use eadt_service::Shutdown;
use serde::{Deserialize, Serialize};

use crate::access::{Access, COOKIE, Refusal};
use crate::model::decisions::DecisionQuery;
use crate::model::detail::SeriesQuery;
use crate::model::fleet::{FleetQuery, InvalidQuery};
use crate::server::SharedModel;
use crate::stream;

/// What every handler may use.
#[derive(Debug, Clone)]
pub struct Context {
    pub model: SharedModel,
    pub access: Arc<Access>,
    pub shutdown: Shutdown,
}

/// The routes of the interface.
pub fn routes(model: SharedModel, access: Arc<Access>, shutdown: Shutdown) -> Router {
    Router::new()
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/power", get(power))
        .route("/api/v1/fleet", get(fleet))
        .route("/api/v1/workloads/{namespace}/{name}", get(workload))
        .route("/api/v1/workloads/{namespace}/{name}/series", get(series))
        .route("/api/v1/decisions", get(decisions))
        .route("/api/v1/decision", get(decision))
        .route("/api/v1/pipeline", get(pipeline))
        .route("/api/v1/events", get(stream::events))
        .route("/api/v1/session", post(open_session).delete(close_session))
        .route("/api/{*rest}", get(|| async { Problem::not_found("there is no such address in /api/v1") }))
        .layer(DefaultBodyLimit::max(4096))
        .with_state(Context { model, access, shutdown })
}

/// An error as JSON.
#[derive(Debug)]
struct Problem(StatusCode, String);

impl Problem {
    fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, text.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(serde_json::json!({ "error": self.1 }))).into_response()
    }
}

impl From<InvalidQuery> for Problem {
    fn from(error: InvalidQuery) -> Self {
        Self(StatusCode::BAD_REQUEST, error.0)
    }
}

/// JSON that no cache keeps.
fn fresh(value: impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(value)).into_response()
}

async fn overview(State(context): State<Context>) -> Response {
    fresh(context.model.read(crate::Model::overview))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Range {
    from_ms: Option<i64>,
    to_ms: Option<i64>,
}

async fn power(State(context): State<Context>, Query(range): Query<Range>) -> Response {
    let (from, to) = (range.from_ms.map(EventTime::from_millis), range.to_ms.map(EventTime::from_millis));
    fresh(context.model.read(|model| model.power_history(from, to)))
}

async fn fleet(State(context): State<Context>, Query(query): Query<FleetQuery>) -> Result<Response, Problem> {
    Ok(fresh(context.model.read(|model| model.fleet(&query))?))
}

async fn workload(State(context): State<Context>, Path((namespace, name)): Path<(String, String)>) -> Result<Response, Problem> {
    let name = format!("{namespace}/{name}");
    let detail = context.model.read(|model| model.workload_detail(&name));
    detail.map(fresh).ok_or_else(|| Problem::not_found(format!("no workload is named {name:?} here")))
}

async fn series(
    State(context): State<Context>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<SeriesQuery>,
) -> Result<Response, Problem> {
    let name = format!("{namespace}/{name}");
    let series = context.model.read(|model| model.series(&name, &query));
    series.map(fresh).ok_or_else(|| Problem::not_found(format!("no workload is named {name:?} here")))
}

async fn decisions(State(context): State<Context>, Query(query): Query<DecisionQuery>) -> Result<Response, Problem> {
    Ok(fresh(context.model.read(|model| model.decision_page(&query))?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionKey {
    workload: String,
    id: String,
}

async fn decision(State(context): State<Context>, Query(key): Query<DecisionKey>) -> Result<Response, Problem> {
    let detail = context.model.read(|model| model.decision_detail(&key.workload, &key.id));
    let missing =
        || format!("no decision {:?} of {:?} is kept here: `eadt tail decisions --from-start` has all", key.id, key.workload);
    detail.map(fresh).ok_or_else(|| Problem::not_found(missing()))
}

#[derive(Debug, Serialize)]
struct Pipeline {
    source: crate::SourceFacts,
    counts: crate::model::Counts,
    dead_letters: Vec<(String, u64)>,
}

async fn pipeline(State(context): State<Context>) -> Response {
    fresh(context.model.read(|model| {
        let overview = model.overview();
        Pipeline { source: overview.source, counts: overview.counts, dead_letters: overview.dead_letters }
    }))
}

#[derive(Debug, Deserialize)]
struct Credentials {
    token: String,
}

/// Keeps a token in a cookie that no script reads and no other site sends.
async fn open_session(State(context): State<Context>, Json(given): Json<Credentials>) -> Response {
    if !context.access.knows(&given.token) {
        return Refusal::Token.into_response();
    }
    let cookie = format!("{COOKIE}={}; HttpOnly; SameSite=Strict; Path=/api", given.token);
    match HeaderValue::from_str(&cookie).ok().filter(|_| !given.token.contains([';', ','])) {
        Some(cookie) => (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response(),
        None => Refusal::Token.into_response(),
    }
}

async fn close_session() -> Response {
    let cookie = format!("{COOKIE}=; HttpOnly; SameSite=Strict; Path=/api; Max-Age=0");
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}
