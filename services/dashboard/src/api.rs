//! `/api/v1`: what the page asks for. JSON, times as milliseconds since the Unix epoch, units in the names of the fields. It only reads,
//! but for the terms of a workload ([`crate::terms`]).

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use eadt_cluster::ChangeTerms;
use eadt_schemas::EventTime;
use eadt_service::Shutdown;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::access::{Access, COOKIE, Refusal};
use crate::answers::Answers;
use crate::export::{self, ExportQuery};
use crate::log::{self, LogSource};
use crate::model::compare::CompareQuery;
use crate::model::decisions::DecisionQuery;
use crate::model::detail::SeriesQuery;
use crate::model::fleet::{FleetQuery, InvalidQuery};
use crate::model::overview::Overview;
use crate::model::policies::PolicyQuery;
use crate::model::sharing::SharingQuery;
use crate::model::stages::StageProgress;
use crate::past::{Moment, Past, PastError};
use crate::server::SharedModel;
use crate::whatif::{WhatIf, WhatIfError, WhatIfQuery};
use crate::{stream, terms};

/// What every handler may use.
#[derive(Debug, Clone)]
pub struct Context {
    pub model: SharedModel,
    pub access: Arc<Access>,
    pub what_if: Option<WhatIf>,
    /// Earlier moments; `None`: the record still grows.
    pub past: Option<Past>,
    /// The log behind the page; `None`: it shows an archive.
    pub log: Option<LogSource>,
    /// What changes the terms of workloads; `None`: nothing here can.
    pub editor: Option<Arc<dyn ChangeTerms>>,
    pub answers: Arc<Answers>,
    /// One file is made at a time.
    pub export_turn: Arc<Semaphore>,
    pub shutdown: Shutdown,
}

impl Context {
    pub fn new(model: SharedModel, access: Arc<Access>, what_if: Option<WhatIf>, shutdown: Shutdown) -> Self {
        let export_turn = Arc::new(Semaphore::new(1));
        Self { model, access, what_if, past: None, log: None, editor: None, answers: Arc::default(), export_turn, shutdown }
    }
}

/// The routes of the interface.
pub fn routes(context: Context) -> Router {
    Router::new()
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/power", get(power))
        .route("/api/v1/fleet", get(fleet))
        .route("/api/v1/workloads/{namespace}/{name}", get(workload))
        .route("/api/v1/workloads/{namespace}/{name}/series", get(series))
        .route("/api/v1/workloads/{namespace}/{name}/terms", post(terms::change))
        .route("/api/v1/decisions", get(decisions))
        .route("/api/v1/decision", get(decision))
        .route("/api/v1/sharing", get(sharing))
        .route("/api/v1/policies", get(policies))
        .route("/api/v1/compare", get(compare))
        .route("/api/v1/what-if", get(ask_what_if))
        .route("/api/v1/export", get(export))
        .route("/api/v1/pipeline", get(pipeline))
        .route("/api/v1/events", get(stream::events))
        .route("/api/v1/log", get(log::follow))
        .route("/api/v1/session", get(terms::session).post(open_session).delete(close_session))
        .route("/api/{*rest}", get(|| async { Problem::not_found("there is no such address in /api/v1") }))
        .layer(DefaultBodyLimit::max(4096))
        .with_state(context)
}

/// An error as JSON.
#[derive(Debug)]
pub(crate) struct Problem(pub StatusCode, pub String);

impl Problem {
    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, text.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(serde_json::json!({ "error": self.1 }))).into_response()
    }
}

/// Names the moment that a question is about, in milliseconds since the Unix epoch.
const MOMENT: &str = "eadt-at-ms";

/// What a question is about: the newest state, or that of an earlier moment. It is taken after the parameters of a question: reading a
/// moment costs much, and nothing is read for a question that is refused.
struct Asked(Context);

impl FromRequestParts<Context> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, context: &Context) -> Result<Self, Problem> {
        let Some(text) = parts.headers.get(MOMENT) else { return Ok(Self(context.clone())) };
        let refused = |text: &str| Problem(StatusCode::BAD_REQUEST, format!("{MOMENT}: {text}"));
        let millis = text.to_str().ok().and_then(|text| text.parse::<i64>().ok());
        let millis = millis.ok_or_else(|| refused("milliseconds since the Unix epoch"))?;
        let past = context.past.as_ref().ok_or_else(|| refused("only the page of an archive shows earlier moments"))?;
        let Moment { model, answers } = past.at(EventTime::from_millis(millis)).await?;
        Ok(Self(Context { model, answers, ..context.clone() }))
    }
}

impl From<PastError> for Problem {
    fn from(error: PastError) -> Self {
        let status = match &error {
            PastError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            PastError::Unreadable(_) | PastError::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

impl From<InvalidQuery> for Problem {
    fn from(error: InvalidQuery) -> Self {
        Self(StatusCode::BAD_REQUEST, error.0)
    }
}

/// JSON that no cache keeps.
pub(crate) fn fresh(value: impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(value)).into_response()
}

impl Context {
    /// Returns the answer of the model as JSON, from the cache if it is recent enough.
    fn answer<T: Serialize, E>(&self, uri: &Uri, ask: impl FnOnce(&crate::Model) -> Result<T, E>) -> Result<Response, E> {
        let asked = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let version = self.model.read(crate::Model::version);
        let body = self.answers.get(asked, version, || {
            let value = self.model.read(ask)?;
            Ok(Bytes::from(serde_json::to_vec(&value).expect("every key is a string")))
        })?;
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        Ok((headers, body).into_response())
    }
}

async fn overview(Asked(context): Asked) -> Response {
    fresh(context.model.read(crate::Model::overview))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Range {
    from_ms: Option<i64>,
    to_ms: Option<i64>,
}

async fn power(uri: Uri, Query(range): Query<Range>, Asked(context): Asked) -> Result<Response, Problem> {
    let (from, to) = (range.from_ms.map(EventTime::from_millis), range.to_ms.map(EventTime::from_millis));
    context.answer(&uri, |model| Ok(model.power_history(from, to)))
}

async fn fleet(uri: Uri, Query(query): Query<FleetQuery>, Asked(context): Asked) -> Result<Response, Problem> {
    Ok(context.answer(&uri, |model| model.fleet(&query))?)
}

fn unknown_workload(name: &str) -> Problem {
    Problem::not_found(InvalidQuery::no_workload(name).0)
}

async fn workload(Asked(context): Asked, uri: Uri, Path((namespace, name)): Path<(String, String)>) -> Result<Response, Problem> {
    let name = format!("{namespace}/{name}");
    context.answer(&uri, |model| model.workload_detail(&name).ok_or_else(|| unknown_workload(&name)))
}

async fn series(
    uri: Uri,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<SeriesQuery>,
    Asked(context): Asked,
) -> Result<Response, Problem> {
    let name = format!("{namespace}/{name}");
    context.answer(&uri, |model| model.series(&name, &query).ok_or_else(|| unknown_workload(&name)))
}

async fn decisions(uri: Uri, Query(query): Query<DecisionQuery>, Asked(context): Asked) -> Result<Response, Problem> {
    Ok(context.answer(&uri, |model| model.decision_page(&query))?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionKey {
    workload: String,
    id: String,
}

async fn decision(Query(key): Query<DecisionKey>, Asked(context): Asked) -> Result<Response, Problem> {
    let detail = context.model.read(|model| model.decision_detail(&key.workload, &key.id));
    let missing =
        || format!("no decision {:?} of {:?} is kept here: `eadt tail decisions --from-start` has all", key.id, key.workload);
    detail.map(fresh).ok_or_else(|| Problem::not_found(missing()))
}

async fn sharing(uri: Uri, Query(query): Query<SharingQuery>, Asked(context): Asked) -> Result<Response, Problem> {
    context.answer(&uri, |model| Ok(model.sharing(&query)))
}

async fn policies(uri: Uri, Query(query): Query<PolicyQuery>, Asked(context): Asked) -> Result<Response, Problem> {
    Ok(context.answer(&uri, |model| model.policies(&query))?)
}

async fn compare(uri: Uri, Query(query): Query<CompareQuery>, Asked(context): Asked) -> Result<Response, Problem> {
    Ok(context.answer(&uri, |model| model.compare(&query))?)
}

impl From<WhatIfError> for Problem {
    fn from(error: WhatIfError) -> Self {
        let status = match &error {
            WhatIfError::Invalid(_) => StatusCode::BAD_REQUEST,
            WhatIfError::NoWindows(_) => StatusCode::NOT_FOUND,
            WhatIfError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            WhatIfError::Record(_) | WhatIfError::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self(status, text)
    }
}

async fn ask_what_if(State(context): State<Context>, Query(query): Query<WhatIfQuery>) -> Result<Response, Problem> {
    let Some(what_if) = &context.what_if else {
        return Err(Problem::not_found("there is no record here to look back on"));
    };
    let workload = query.workload.clone();
    let mut page = what_if.ask(query).await?;
    page.report = context.model.read(|model| model.workload_detail(&workload)).and_then(|detail| detail.report);
    Ok(fresh(page))
}

/// A run in one file, made off the serving threads.
async fn export(State(context): State<Context>, Query(query): Query<ExportQuery>) -> Result<Response, Problem> {
    let Ok(turn) = context.export_turn.clone().try_acquire_owned() else {
        return Err(Problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "another file is being made: ask again in a few seconds".to_owned(),
        ));
    };
    let model = context.model.clone();
    let failed = |_| Problem(StatusCode::INTERNAL_SERVER_ERROR, "the export failed: see the log of this process".to_owned());
    let work = move || export::file(turn, &model, &query);
    let file = tokio::task::spawn_blocking(work).await.map_err(failed)??;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"eadt-run.html\"")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, file).into_response())
}

#[derive(Debug, Serialize)]
struct Pipeline {
    source: crate::SourceFacts,
    counts: crate::model::Counts,
    dead_letters: Vec<(String, u64)>,
    stages: Vec<StageProgress>,
    problem: Option<String>,
    newest_record_ms: Option<i64>,
}

impl From<Overview> for Pipeline {
    fn from(overview: Overview) -> Self {
        let Overview { source, counts, dead_letters, stages, problem, newest_record_ms, .. } = overview;
        Self { source, counts, dead_letters, stages, problem, newest_record_ms }
    }
}

async fn pipeline(Asked(context): Asked) -> Response {
    fresh(Pipeline::from(context.model.read(crate::Model::overview)))
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
