//! `/api/v1`: what the page asks for. JSON, times as milliseconds since the Unix epoch, units in the names of the fields. It only
//! reads, but for the terms of a workload ([`crate::policy_edits`]).

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use eadt_cluster::PolicyWriter;
use eadt_schemas::EventTime;
use eadt_service::Shutdown;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::access::{AccessRefusal, AccessRules, COOKIE};
use crate::as_of::{AsOfError, AsOfModel, AsOfReader};
use crate::export::{self, ExportQuery};
use crate::extract::{ApiBody, ApiPath, ApiQuery};
use crate::log::{self, LogSource};
use crate::model::compare::CompareQuery;
use crate::model::decisions::DecisionQuery;
use crate::model::detail::SeriesQuery;
use crate::model::fleet::{FleetQuery, InvalidQuery};
use crate::model::heat_strip::HeatStripQuery;
use crate::model::overview::FleetOverview;
use crate::model::policies::PolicyQuery;
use crate::model::runs::{OtherRun, RunList, RunQuery};
use crate::model::sharing::SharingQuery;
use crate::model::stages::StageProgress;
use crate::record_identity::{REWRITTEN, RecordError};
use crate::response_cache::ResponseCache;
use crate::shared_model::SharedModel;
use crate::whatif::{WhatIf, WhatIfError, WhatIfQuery};
use crate::workload_history::HistoryError;
use crate::{policy_edits, stream};

/// Shared state of all handlers.
#[derive(Debug, Clone)]
pub struct ApiContext {
    pub model: SharedModel,
    pub access: Arc<AccessRules>,
    pub what_if: Option<WhatIf>,
    /// Earlier moments; `None` if the record still grows.
    pub as_of_reader: Option<AsOfReader>,
    /// Other runs that the record can be compared with.
    pub runs: Arc<[OtherRun]>,
    /// The log behind the page; `None` if it shows an archive.
    pub log: Option<LogSource>,
    /// Writer of workloads' policies; `None` if they cannot be changed here.
    pub editor: Option<Arc<dyn PolicyWriter>>,
    pub answers: Arc<ResponseCache>,
    /// One file is made at a time.
    pub export_turn: Arc<Semaphore>,
    pub shutdown: Shutdown,
}

impl ApiContext {
    pub fn new(model: SharedModel, access: Arc<AccessRules>, what_if: Option<WhatIf>, shutdown: Shutdown) -> Self {
        let export_turn = Arc::new(Semaphore::new(1));
        let (runs, answers) = (Arc::default(), Arc::default());
        Self { model, access, what_if, as_of_reader: None, runs, log: None, editor: None, answers, export_turn, shutdown }
    }
}

/// Returns the routes of the interface.
pub fn routes(context: ApiContext) -> Router {
    Router::new()
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/power", get(power))
        .route("/api/v1/fleet", get(fleet))
        .route("/api/v1/heat-strip", get(heat_strip))
        .route("/api/v1/workloads/{namespace}/{name}", get(workload))
        .route("/api/v1/workloads/{namespace}/{name}/series", get(series))
        .route("/api/v1/workloads/{namespace}/{name}/terms", post(policy_edits::change))
        .route("/api/v1/decisions", get(decisions))
        .route("/api/v1/decision", get(decision))
        .route("/api/v1/sharing", get(sharing))
        .route("/api/v1/gpu-map", get(gpu_map))
        .route("/api/v1/policies", get(policies))
        .route("/api/v1/compare", get(compare))
        .route("/api/v1/runs", get(runs))
        .route("/api/v1/compare-run", get(compare_run))
        .route("/api/v1/what-if", get(get_what_if))
        .route("/api/v1/export", get(export))
        .route("/api/v1/pipeline", get(pipeline))
        .route("/api/v1/events", get(stream::events))
        .route("/api/v1/log", get(log::follow))
        .route("/api/v1/session", get(policy_edits::session).post(open_session).delete(close_session))
        .route("/api/{*rest}", get(|| async { ApiError::not_found("/api/v1 has no such path") }))
        .method_not_allowed_fallback(refuse_method)
        .layer(DefaultBodyLimit::max(4096))
        .with_state(context)
}

/// An error as JSON.
#[derive(Debug)]
pub(crate) struct ApiError(pub StatusCode, pub String);

impl ApiError {
    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, text.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.0, Json(serde_json::json!({ "error": self.1 }))).into_response()
    }
}

/// Refuses a request with a wrong method; axum adds the allowed ones.
async fn refuse_method(method: Method) -> ApiError {
    ApiError(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not possible here: `allow` has what is"))
}

/// Names the moment that a question is about, in milliseconds since the Unix epoch.
const MOMENT: &str = "eadt-at-ms";

/// State that a request is about: the newest one, or that of an earlier moment. It is taken after the parameters of a request:
/// reading a moment costs much, and a refused request must cause no reading.
struct AsOfContext(ApiContext);

impl FromRequestParts<ApiContext> for AsOfContext {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, context: &ApiContext) -> Result<Self, ApiError> {
        let Some(text) = parts.headers.get(MOMENT) else { return Ok(Self(context.clone())) };
        let refused = |text: &str| ApiError(StatusCode::BAD_REQUEST, format!("{MOMENT}: {text}"));
        let millis = text.to_str().ok().and_then(|text| text.parse::<i64>().ok());
        let millis = millis.ok_or_else(|| refused("milliseconds since the Unix epoch"))?;
        let past = context.as_of_reader.as_ref().ok_or_else(|| refused("only the page of an archive shows earlier moments"))?;
        let read = past.at(EventTime::from_millis(millis)).await;
        if matches!(read, Err(AsOfError::Record(RecordError::Rewritten))) {
            context.show_rewritten();
        }
        let AsOfModel { model, answers } = read?;
        Ok(Self(ApiContext { model, answers, ..context.clone() }))
    }
}

impl From<AsOfError> for ApiError {
    fn from(error: AsOfError) -> Self {
        let status = match &error {
            AsOfError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            AsOfError::Record(RecordError::Rewritten) => StatusCode::CONFLICT,
            AsOfError::Record(RecordError::Unreadable(_)) | AsOfError::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.to_string())
    }
}

impl From<InvalidQuery> for ApiError {
    fn from(error: InvalidQuery) -> Self {
        Self(StatusCode::BAD_REQUEST, error.0)
    }
}

/// Returns JSON that no cache keeps.
pub(crate) fn uncached_json(value: impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(value)).into_response()
}

impl ApiContext {
    /// Shows in the status that the folder holds another record by now.
    fn show_rewritten(&self) {
        let mut text = REWRITTEN.to_owned();
        text.replace_range(..1, "T");
        self.model.change(|model| model.set_incomplete(Some(text)));
    }

    /// Returns the answer of the model as JSON, from the cache if it is recent enough.
    fn answer<T: Serialize, E>(
        &self,
        uri: &Uri,
        ask: impl FnOnce(&crate::DashboardModel) -> Result<T, E>,
    ) -> Result<Response, E> {
        let query = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let version = self.model.read(crate::DashboardModel::version);
        let body = self.answers.get(query, version, || {
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

async fn overview(AsOfContext(context): AsOfContext) -> Response {
    uncached_json(context.model.read(crate::DashboardModel::overview))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PowerQuery {
    from_ms: Option<i64>,
    to_ms: Option<i64>,
}

async fn power(uri: Uri, ApiQuery(range): ApiQuery<PowerQuery>, AsOfContext(context): AsOfContext) -> Result<Response, ApiError> {
    let (from, to) = (range.from_ms.map(EventTime::from_millis), range.to_ms.map(EventTime::from_millis));
    context.answer(&uri, |model| Ok(model.power_history(from, to)))
}

async fn fleet(uri: Uri, ApiQuery(query): ApiQuery<FleetQuery>, AsOfContext(context): AsOfContext) -> Result<Response, ApiError> {
    Ok(context.answer(&uri, |model| model.fleet(&query))?)
}

async fn heat_strip(
    uri: Uri,
    ApiQuery(query): ApiQuery<HeatStripQuery>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    Ok(context.answer(&uri, |model| model.heat_strip(&query))?)
}

fn unknown_workload(name: &str) -> ApiError {
    ApiError::not_found(InvalidQuery::no_workload(name).0)
}

async fn workload(
    AsOfContext(context): AsOfContext,
    uri: Uri,
    ApiPath((namespace, name)): ApiPath<(String, String)>,
) -> Result<Response, ApiError> {
    let name = format!("{namespace}/{name}");
    context.answer(&uri, |model| model.workload_detail(&name).ok_or_else(|| unknown_workload(&name)))
}

async fn series(
    uri: Uri,
    ApiPath((namespace, name)): ApiPath<(String, String)>,
    ApiQuery(query): ApiQuery<SeriesQuery>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    let name = format!("{namespace}/{name}");
    context.answer(&uri, |model| model.series(&name, &query).ok_or_else(|| unknown_workload(&name)))
}

async fn decisions(
    uri: Uri,
    ApiQuery(query): ApiQuery<DecisionQuery>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    Ok(context.answer(&uri, |model| model.decision_page(&query))?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionKey {
    workload: String,
    id: String,
}

async fn decision(ApiQuery(key): ApiQuery<DecisionKey>, AsOfContext(context): AsOfContext) -> Result<Response, ApiError> {
    let detail = context.model.read(|model| model.decision_detail(&key.workload, &key.id));
    let missing =
        || format!("no decision {:?} of {:?} is kept here: `eadt tail decisions --from-start` has all", key.id, key.workload);
    detail.map(uncached_json).ok_or_else(|| ApiError::not_found(missing()))
}

async fn sharing(
    uri: Uri,
    ApiQuery(query): ApiQuery<SharingQuery>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    context.answer(&uri, |model| Ok(model.sharing(&query)))
}

/// A question without parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

async fn gpu_map(
    uri: Uri,
    ApiQuery(NoParameters {}): ApiQuery<NoParameters>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    context.answer(&uri, |model| Ok(model.gpu_map()))
}

async fn policies(
    uri: Uri,
    ApiQuery(query): ApiQuery<PolicyQuery>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    Ok(context.answer(&uri, |model| model.policies(&query))?)
}

async fn compare(
    uri: Uri,
    ApiQuery(query): ApiQuery<CompareQuery>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    Ok(context.answer(&uri, |model| model.compare(&query))?)
}

async fn runs(State(context): State<ApiContext>) -> Response {
    uncached_json(RunList::of(&context.runs))
}

async fn compare_run(
    uri: Uri,
    ApiQuery(query): ApiQuery<RunQuery>,
    AsOfContext(context): AsOfContext,
) -> Result<Response, ApiError> {
    let runs = context.runs.clone();
    Ok(context.answer(&uri, |model| model.compare_run(&runs, &query))?)
}

impl From<WhatIfError> for ApiError {
    fn from(error: WhatIfError) -> Self {
        let status = match &error {
            WhatIfError::Invalid(_) => StatusCode::BAD_REQUEST,
            WhatIfError::NoWindows(_) => StatusCode::NOT_FOUND,
            WhatIfError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            WhatIfError::Record(HistoryError::Rewritten) => StatusCode::CONFLICT,
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

async fn get_what_if(State(context): State<ApiContext>, ApiQuery(query): ApiQuery<WhatIfQuery>) -> Result<Response, ApiError> {
    let Some(what_if) = &context.what_if else {
        return Err(ApiError::not_found("there is no record to compare controllers on"));
    };
    let workload = query.workload.clone();
    let answer = what_if.page(query).await;
    if matches!(answer, Err(WhatIfError::Record(HistoryError::Rewritten))) {
        context.show_rewritten();
    }
    let mut page = answer?;
    let detail = context.model.read(|model| model.workload_detail(&workload));
    page.saving_is_whole = detail.as_ref().is_some_and(|detail| detail.row.saving_is_whole);
    page.report = detail.and_then(|detail| detail.report);
    Ok(uncached_json(page))
}

/// Returns a run in one file, made off the serving threads.
async fn export(State(context): State<ApiContext>, ApiQuery(query): ApiQuery<ExportQuery>) -> Result<Response, ApiError> {
    let Ok(turn) = context.export_turn.clone().try_acquire_owned() else {
        return Err(ApiError(
            StatusCode::SERVICE_UNAVAILABLE,
            "another file is being made: ask again in a few seconds".to_owned(),
        ));
    };
    let model = context.model.clone();
    let failed = |_| ApiError(StatusCode::INTERNAL_SERVER_ERROR, "the export failed: see the log of this process".to_owned());
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
struct PipelineStatus {
    source: crate::SourceFacts,
    counts: crate::model::DashboardCounts,
    dead_letters: Vec<(String, u64)>,
    stages: Vec<StageProgress>,
    problem: Option<String>,
    newest_figures_ms: Option<i64>,
}

impl From<FleetOverview> for PipelineStatus {
    fn from(overview: FleetOverview) -> Self {
        let FleetOverview { source, counts, dead_letters, stages, problem, newest_figures_ms, .. } = overview;
        Self { source, counts, dead_letters, stages, problem, newest_figures_ms }
    }
}

async fn pipeline(AsOfContext(context): AsOfContext) -> Response {
    uncached_json(PipelineStatus::from(context.model.read(crate::DashboardModel::overview)))
}

#[derive(Debug, Deserialize)]
struct LoginRequest {
    token: String,
}

/// Keeps a token in a cookie that no script reads and no other site sends.
async fn open_session(State(context): State<ApiContext>, ApiBody(login): ApiBody<LoginRequest>) -> Response {
    if !context.access.accepts_token(&login.token) {
        return AccessRefusal::UnknownToken.into_response();
    }
    let cookie = format!("{COOKIE}={}; HttpOnly; SameSite=Strict; Path=/api", login.token);
    match HeaderValue::from_str(&cookie).ok().filter(|_| !login.token.contains([';', ','])) {
        Some(cookie) => (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response(),
        None => AccessRefusal::UnknownToken.into_response(),
    }
}

async fn close_session() -> Response {
    let cookie = format!("{COOKIE}=; HttpOnly; SameSite=Strict; Path=/api; Max-Age=0");
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}
