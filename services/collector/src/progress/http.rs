//! The endpoint that training jobs report to.
//!
//! `POST /v1/progress` takes one event or an array of events (`training.progress.v1`), each of which is checked by itself. The
//! answer is 202 with `{"accepted", "refused": [{"index", "status", "error", "field"}]}`. If none is accepted, it is the first
//! one's status with a JSON error `{"error", "field", "index"}`. The answer to rank 0 has the directive of its workload, which
//! `GET /v1/directives/NAMESPACE/NAME` returns, too ([`super::directives`]); neither has one of an earlier run. Kubeflow's
//! contract is in [`super::kubeflow`]. Off the loopback only with TLS and tokens, the operator's ([`super::tokens`]) or those of
//! service accounts ([`super::reviews`]), each of which is worth something in its namespaces alone. Requests of browsers are
//! refused.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use eadt_schemas::EventTime;
use eadt_schemas::latest::JobLifecycle;
use eadt_service::connections::ClientIdentity;
use eadt_service::tasks::{self, TaskEntry};
use eadt_service::{ServiceClock, Shutdown};
use serde::Serialize;

use super::directives::{DirectiveAnswer, DirectiveStore};
use super::kubeflow::{self, StatusUpdate};
use super::rate::RateLimiter;
use super::reviews::{ServiceAccountVerifier, TokenRefusal, TokenReviewer};
use super::secrets::{EndpointSecrets, SecretsReloader};
use super::serve;
use super::sources::ProgressSources;
use super::tokens::{self, TokenGrant};
use super::wire::{self, RejectedEvent, Rejection, ReportedEvent};
use crate::metrics::{CodeLabel, CollectorMetrics, ReasonLabel, RequestLabel};
use crate::settings::ProgressSettings;
use crate::sink::EventSink;
use crate::source::{BoxFuture, CollectorSource, SourceError};

pub(crate) const KIND: &str = "progress";

/// Longest time that a stop waits for requests under way.
const STOP: Duration = Duration::from_secs(2);

/// A source that was silent for so long is forgotten, in seconds; its job died without a farewell.
const FORGET_SECONDS: f64 = 6.0 * 3600.0;

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&self)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(self.allows));
        }
        if self.closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[derive(Debug, Serialize)]
struct ProgressReceipt {
    accepted: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RejectedEvent>,
    /// Values that are no numbers (`NaN`, `"Infinity"`, `1e999`): taken as absent.
    #[serde(skip_serializing_if = "is_zero")]
    absent_values: usize,
    /// Directives for the workloads whose rank 0 reported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    directives: Vec<DirectiveAnswer>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[derive(Debug)]
struct ProgressEndpoint {
    settings: ProgressSettings,
    sink: EventSink,
    metrics: CollectorMetrics,
    clock: ServiceClock,
    collector: String,
    /// `None` after the end.
    sources: Mutex<Option<ProgressSources>>,
    rate: Mutex<RateLimiter>,
    /// Common limit of all senders that are not known.
    strangers: Mutex<RateLimiter>,
    secrets: OnceLock<EndpointSecrets>,
    /// Verifier of service accounts' tokens, if they are accepted.
    accounts: Option<ServiceAccountVerifier>,
    directives: DirectiveStore,
    /// Cancelled when the endpoint stops, so that no request waits any longer.
    stopping: Shutdown,
}

/// Sender of a request; `None` if no token is required.
#[derive(Debug, Clone)]
struct SenderIdentity(Option<TokenGrant>);

/// The source.
#[derive(Debug)]
pub(crate) struct HttpSource {
    endpoint: Arc<ProgressEndpoint>,
    listener: Option<Arc<std::net::TcpListener>>,
    opened: Option<(tokio::net::TcpListener, SecretsReloader)>,
}

impl HttpSource {
    /// `reviewer`: needed if the settings accept tokens of service accounts.
    pub fn new(
        settings: ProgressSettings,
        sink: EventSink,
        metrics: CollectorMetrics,
        clock: ServiceClock,
        collector: String,
        reviewer: Option<Arc<dyn TokenReviewer>>,
    ) -> Self {
        let sources = Mutex::new(Some(ProgressSources::new(settings.sources, settings.sources_per_namespace)));
        let rate = || Mutex::new(RateLimiter::new(settings.requests_per_second));
        let (rate, strangers) = (rate(), rate());
        let accounts = settings.service_accounts.as_ref().zip(reviewer);
        let accounts = accounts.map(|(own, reviewer)| ServiceAccountVerifier::new(own, reviewer, clock.clone(), metrics.clone()));
        let secrets = OnceLock::new();
        let (directives, stopping) = (DirectiveStore::default(), Shutdown::new());
        let endpoint = ProgressEndpoint {
            settings,
            sink,
            metrics,
            clock,
            collector,
            sources,
            rate,
            strangers,
            secrets,
            accounts,
            directives,
            stopping,
        };
        Self { endpoint: Arc::new(endpoint), listener: None, opened: None }
    }

    /// Hands these directives on to the jobs that report.
    #[must_use]
    pub fn with_directives(mut self, directives: DirectiveStore) -> Self {
        Arc::get_mut(&mut self.endpoint).expect("nothing serves it yet").directives = directives;
        self
    }

    /// Serves a listener that is open already.
    #[must_use]
    pub fn with_listener(mut self, listener: Option<Arc<std::net::TcpListener>>) -> Self {
        self.listener = listener;
        self
    }

    async fn bind(&mut self) -> Result<SocketAddr, SourceError> {
        let address = self.endpoint.settings.listen;
        if self.endpoint.settings.service_accounts.is_some() && self.endpoint.accounts.is_none() {
            let detail = "no API server that reviews tokens is connected: unset collector.progress.service_accounts.enabled";
            return Err(SourceError::new(KIND, detail));
        }
        let (secrets, follower) =
            EndpointSecrets::load(&self.endpoint.settings).map_err(|error| SourceError::new(KIND, error))?;
        let (tls, service_accounts) = (secrets.tls().is_some(), self.endpoint.accounts.is_some());
        // Opened once.
        drop(self.endpoint.secrets.set(secrets));
        let tokens = self.endpoint.asks();
        let failed = |error| {
            let detail = format!(
                "cannot listen on {address}: {error}; set collector.progress.listen to a free port, or stop the process that uses it"
            );
            SourceError::new(KIND, detail)
        };
        let listener = match self.listener.take() {
            Some(open) => open.try_clone().and_then(tokio::net::TcpListener::from_std),
            None => tokio::net::TcpListener::bind(address).await,
        };
        let listener = listener.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        tracing::info!(address = %bound, tls, tokens, service_accounts, "progress endpoint listens");
        self.opened = Some((listener, follower));
        Ok(bound)
    }
}

impl CollectorSource for HttpSource {
    fn task(&self) -> &'static TaskEntry {
        &tasks::PROGRESS
    }

    fn open(&mut self) -> BoxFuture<'_, Result<(), SourceError>> {
        Box::pin(async { self.bind().await.map(|_| ()) })
    }

    fn run(self: Box<Self>, shutdown: Shutdown) -> BoxFuture<'static, Result<(), SourceError>> {
        Box::pin(async move {
            let (listener, follower) = self.opened.ok_or_else(|| SourceError::new(KIND, "run before it was opened"))?;
            let tls = self.endpoint.secrets().tls();
            let (limits, metrics) = (self.endpoint.settings.limits, self.endpoint.metrics.clone());
            let follow = follower.follow(metrics.clone(), shutdown.clone());
            let server = serve::serve(listener, tls, router(self.endpoint.clone()), limits, metrics, shutdown.clone());
            let too_late = async {
                shutdown.cancelled().await;
                self.endpoint.stopping.cancel();
                tokio::time::sleep(STOP).await;
            };
            tokio::select! {
                // A look at the secrets comes first: other sources took their time to open.
                ((), ()) = async { tokio::join!(follow, server) } => {}
                () = too_late => tracing::warn!("a request to the progress endpoint did not finish and is aborted"),
            }
            self.endpoint.end();
            Ok(())
        })
    }
}

fn router(endpoint: Arc<ProgressEndpoint>) -> Router {
    let limit = endpoint.settings.body_bytes;
    Router::new()
        .route("/v1/progress", post(report))
        .route("/v1/directives/{namespace}/{name}", get(directives))
        .route("/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status", post(trainer_status))
        .layer(DefaultBodyLimit::max(limit))
        .layer(middleware::from_fn_with_state(endpoint.clone(), admit))
        .with_state(endpoint)
}

/// Checks sender and rate of a request before its body is read, whether the sender is known or not. Ends requests that take too
/// long.
async fn admit(State(endpoint): State<Arc<ProgressEndpoint>>, mut request: Request, next: Next) -> Response {
    let kind = endpoint_at(request.uri().path());
    let refused = |rejection: Rejection| {
        let response = rejection.into_response();
        endpoint.count(kind, &response);
        response
    };
    let answer = async {
        check_route(request.method(), request.uri().path(), kind)
            .map_err(|rejection| endpoint.reject_unknown_sender(rejection))?;
        let sender = endpoint
            .sender(request.method(), request.headers())
            .await
            .map_err(|rejection| endpoint.reject_unknown_sender(rejection))?;
        if let Some(standing) = request.extensions().get::<ClientIdentity>()
            && !standing.identify(sender.0.as_ref().map_or("", |grant| &grant.id))
        {
            let error = "all connections are in use, and no sender has more of them than this one; try again";
            return Err(Rejection { closes: true, ..Rejection::new(StatusCode::SERVICE_UNAVAILABLE, error.to_owned()) });
        }
        endpoint.paced(&sender)?;
        request.extensions_mut().insert(sender);
        Ok(next.run(request).await)
    };
    let limit = endpoint.settings.limits.request + if kind == DIRECTIVES { LONGEST_POLL } else { Duration::ZERO };
    let answer = tokio::time::timeout(limit, answer).await.map(|answer| answer.unwrap_or_else(&refused));
    answer.unwrap_or_else(|_| {
        let error = format!("the request took longer than {} s; send it at once", limit.as_secs_f64());
        // The rest of the body would be taken for another request.
        refused(Rejection { closes: true, ..Rejection::new(StatusCode::REQUEST_TIMEOUT, error) })
    })
}

/// Returns the endpoint of a path as metrics name it.
fn endpoint_at(path: &str) -> &'static str {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["", "v1", "progress"] => "v1",
        ["", "v1", "directives", namespace, name] if !namespace.is_empty() && !name.is_empty() => DIRECTIVES,
        ["", "apis", "trainer.kubeflow.org", "v1alpha1", "namespaces", namespace, "trainjobs", name, "status"]
            if !namespace.is_empty() && !name.is_empty() =>
        {
            "kubeflow"
        }
        _ => NO_ENDPOINT,
    }
}

/// Endpoint label, in metrics, of requests for unknown paths.
const NO_ENDPOINT: &str = "none";
/// Endpoint label, in metrics, of requests for directives.
const DIRECTIVES: &str = "directives";
/// A question for directives waits for no longer.
const LONGEST_POLL: Duration = Duration::from_secs(30);

/// Refuses a path without an endpoint, and a method that none has, before anything else is asked of the request.
fn check_route(method: &Method, path: &str, endpoint: &str) -> Result<(), Rejection> {
    if endpoint == NO_ENDPOINT {
        let shown: String = path.chars().take(100).collect();
        return Err(Rejection::new(StatusCode::NOT_FOUND, format!("there is nothing at {shown}: POST progress to /v1/progress")));
    }
    let (own, allows, what) = if endpoint == DIRECTIVES {
        (Method::GET, "GET", "ask for directives with GET")
    } else {
        (Method::POST, "POST", "send progress with POST")
    };
    if method != own {
        let error = format!("{method} is not understood here: {what}");
        return Err(Rejection { allows, ..Rejection::new(StatusCode::METHOD_NOT_ALLOWED, error) });
    }
    Ok(())
}

/// Returns whether a content encoding is none: an empty one names no coding.
fn is_identity(encoding: &[u8]) -> bool {
    let encoding = encoding.trim_ascii();
    encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity")
}

/// Browsers name the page's origin with every POST, other clients never do: so no web page can report here.
fn refuse_browsers(method: &Method, headers: &HeaderMap) -> Result<(), Rejection> {
    if headers.contains_key(header::ORIGIN) {
        return Err(Rejection::new(StatusCode::FORBIDDEN, "requests of web pages are not accepted"));
    }
    if method == Method::GET {
        return Ok(());
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") && !kind.to_ascii_lowercase().ends_with("+json") {
        return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("content type {kind:?} is not application/json")));
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !is_identity(encoding.as_bytes()) => Err(Rejection::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a compressed body is not read here: send it without content-encoding",
        )),
        _ => Ok(()),
    }
}

fn whole_body(body: Result<Bytes, BytesRejection>, limit: usize) -> Result<Bytes, Rejection> {
    body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Rejection::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request is larger than {limit} bytes; send smaller batches"),
        ),
        status => Rejection::new(status, error.body_text()),
    })
}

async fn report(
    State(endpoint): State<Arc<ProgressEndpoint>>,
    Extension(sender): Extension<SenderIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let result = whole_body(body, endpoint.settings.body_bytes).and_then(|body| endpoint.report(&sender, &body));
    let response = match result {
        Ok(receipt) => (StatusCode::ACCEPTED, Json(receipt)).into_response(),
        Err(rejection) => rejection.into_response(),
    };
    endpoint.count("v1", &response);
    response
}

/// The query of a request for directives.
#[derive(Debug, Default)]
struct DirectivePoll {
    /// The revision that the job knows.
    after: Option<u64>,
    /// Longest time to wait for another revision, in seconds.
    wait: f64,
}

impl DirectivePoll {
    fn parse(query: &str) -> Result<Self, Rejection> {
        let mut poll = Self::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let is_read = match part.split_once('=') {
                Some(("after", text)) => text.parse().map(|after| poll.after = Some(after)).is_ok(),
                Some(("wait", text)) => {
                    text.parse().ok().filter(|wait| (0.0..=f64::MAX).contains(wait)).map(|wait| poll.wait = wait).is_some()
                }
                _ => false,
            };
            if !is_read {
                let error = "not understood: after=REVISION and wait=SECONDS, from 0, may be in the query";
                return Err(Rejection::new(StatusCode::BAD_REQUEST, error));
            }
        }
        Ok(poll)
    }
}

async fn directives(
    State(endpoint): State<Arc<ProgressEndpoint>>,
    Path((namespace, name)): Path<(String, String)>,
    Extension(sender): Extension<SenderIdentity>,
    RawQuery(query): RawQuery,
) -> Response {
    let query = query.unwrap_or_default();
    let response = match endpoint.wait_for_directive(&sender, &format!("{namespace}/{name}"), &query).await {
        Ok(answer) => Json(answer).into_response(),
        Err(rejection) => rejection.into_response(),
    };
    endpoint.count(DIRECTIVES, &response);
    response
}

async fn trainer_status(
    State(endpoint): State<Arc<ProgressEndpoint>>,
    Path((namespace, name)): Path<(String, String)>,
    Extension(sender): Extension<SenderIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let workload = format!("{namespace}/{name}");
    let result = sender
        .check(&workload)
        .and_then(|()| whole_body(body, endpoint.settings.body_bytes))
        .and_then(|body| endpoint.trainer_status(workload, &body).map(|()| body));
    let response = match result {
        // Returns the update, like Kubeflow's own server.
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(Rejection { status, error, field, .. }) => {
            let message = field.map_or_else(|| error.clone(), |field| format!("{field}: {error}"));
            let status_object = serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": message, "reason": "Invalid", "code": status.as_u16(),
            });
            (status, Json(status_object)).into_response()
        }
    };
    endpoint.count("kubeflow", &response);
    response
}

impl SenderIdentity {
    fn check(&self, workload: &str) -> Result<(), Rejection> {
        match &self.0 {
            Some(grant) if !grant.allows(workload) => {
                let error = format!("token {} may not report for {workload:?}: it belongs to another namespace", grant.id);
                let rejection = Rejection::new(StatusCode::FORBIDDEN, error);
                Err(Rejection { field: Some("workload".to_owned()), ..rejection })
            }
            _ => Ok(()),
        }
    }
}

impl ProgressEndpoint {
    fn secrets(&self) -> &EndpointSecrets {
        self.secrets.get().expect("opened before it runs")
    }

    /// Returns whether senders need a token.
    fn asks(&self) -> bool {
        self.secrets().asks() || self.accounts.is_some()
    }

    /// Returns the rights of the bearer of a token.
    async fn grant(&self, headers: &HeaderMap) -> Result<TokenGrant, Rejection> {
        let header_text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header_text.and_then(|text| text.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = token else {
            let mut error = "no token: send `authorization: Bearer TOKEN`; eadt token create makes one".to_owned();
            if let Some(accounts) = &self.accounts {
                write!(error, ", and a service account's for the audience {:?} is as good", accounts.audience())
                    .expect("writing to a String cannot fail");
            }
            return Err(Rejection::new(StatusCode::UNAUTHORIZED, error));
        };
        let token = token.trim();
        let verdict = match &self.accounts {
            Some(accounts) if !token.starts_with(tokens::PREFIX) => accounts.verify(token).await,
            _ => self.secrets().verify(token, self.clock.now()).ok_or(TokenRefusal::Worthless),
        };
        verdict.map_err(|refusal| match refusal {
            TokenRefusal::Worthless => Rejection::new(StatusCode::UNAUTHORIZED, "the token is unknown, revoked or expired"),
            TokenRefusal::Unanswered => {
                let error = "the token cannot be checked now: the API server does not answer; send it again later";
                Rejection::new(StatusCode::SERVICE_UNAVAILABLE, error)
            }
            TokenRefusal::PutOff(wait) => {
                let error = format!(
                    "the token cannot be checked now: too many unknown ones are (collector.progress.service_accounts.reviews_per_second); \
                     try again in {:.3} s",
                    wait.as_secs_f64()
                );
                Rejection::new(StatusCode::SERVICE_UNAVAILABLE, error)
            }
        })
    }

    /// Returns the sender of a request.
    async fn sender(&self, method: &Method, headers: &HeaderMap) -> Result<SenderIdentity, Rejection> {
        refuse_browsers(method, headers)?;
        Ok(SenderIdentity(if self.asks() { Some(self.grant(headers).await?) } else { None }))
    }

    /// Returns the directive of a workload, at once or once it is another than the job knows.
    async fn wait_for_directive(
        &self,
        sender: &SenderIdentity,
        workload: &str,
        query: &str,
    ) -> Result<DirectiveAnswer, Rejection> {
        sender.check(workload)?;
        let poll = DirectivePoll::parse(query)?;
        let wait = Duration::from_secs_f64(poll.wait.min(LONGEST_POLL.as_secs_f64()));
        // Without a revision, the present directive is requested.
        let wait = if poll.after.is_some() { wait } else { Duration::ZERO };
        self.directives.wait_for_change(workload, poll.after, wait, &self.stopping).await.ok_or_else(|| {
            let error = "directives cannot be read now: the collector has not read them yet, or may not; ask again later";
            Rejection::new(StatusCode::SERVICE_UNAVAILABLE, error)
        })
    }

    /// Checks that a sender does not send more often than it may.
    fn paced(&self, sender: &SenderIdentity) -> Result<(), Rejection> {
        let name = sender.0.as_ref().map_or("", |grant| &grant.id);
        let admitted = self.rate.lock().unwrap_or_else(PoisonError::into_inner).admit(name, Instant::now());
        admitted.map_err(|wait| {
            let per_second = self.settings.requests_per_second;
            let error = format!(
                "more than {per_second} requests a second (collector.progress.requests_per_second); try again in {:.3} s, and send batches",
                wait.as_secs_f64()
            );
            Rejection::new(StatusCode::TOO_MANY_REQUESTS, error)
        })
    }

    /// Returns the rejection of an unknown sender: `why`, or, if too many ask, that they do; the connection ends with the latter.
    /// All unknown senders share one rate limit, which takes nothing from known ones, even behind the same address.
    fn reject_unknown_sender(&self, why: Rejection) -> Rejection {
        let admitted = self.strangers.lock().unwrap_or_else(PoisonError::into_inner).admit("", Instant::now());
        let Err(wait) = admitted else { return why };
        self.metrics.connections_refused.get_or_create(&ReasonLabel { reason: "unknown" }).inc();
        let error = format!(
            "more than {} requests a second from unknown senders (collector.progress.requests_per_second); this one: {}; \
             try again in {:.3} s",
            self.settings.requests_per_second,
            why.error,
            wait.as_secs_f64()
        );
        Rejection { closes: true, ..Rejection::new(StatusCode::TOO_MANY_REQUESTS, error) }
    }

    fn count(&self, endpoint: &'static str, response: &Response) {
        self.metrics.requests.get_or_create(&RequestLabel { endpoint, code: response.status().as_u16() }).inc();
    }

    fn sources(&self) -> MutexGuard<'_, Option<ProgressSources>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, sender: &SenderIdentity, body: &[u8]) -> Result<ProgressReceipt, Rejection> {
        let request = wire::events(body, self.settings.batch_events)?;
        let now = self.clock.now();
        let (is_batch, absent) = (request.is_batch, request.absent);
        let mut refused: Vec<(usize, Rejection)> = Vec::new();
        let mut accepted = 0;
        let mut leaders: Vec<String> = Vec::new();
        self.metrics.absent_values.inc_by(absent as u64);
        for (index, record) in request.records.into_iter().enumerate() {
            // Without a time of its own an event happened when it came; those of a batch in its order.
            let came = now.plus_micros(index as i64);
            let checked = record.and_then(|sent| self.check(sender, sent, (came, now), absent > 0));
            let leader = checked.as_ref().ok().filter(|sent| sent.event.rank == 0).map(|sent| sent.event.workload.clone());
            match checked.and_then(|sent| self.take(sent)) {
                Ok(()) => {
                    accepted += 1;
                    leaders.extend(leader.filter(|workload| !leaders.contains(workload)));
                }
                // Nothing more is taken of any.
                Err(rejection) if rejection.status == StatusCode::SERVICE_UNAVAILABLE && accepted == 0 => return Err(rejection),
                Err(rejection) => refused.push((index, rejection)),
            }
        }
        for (_, rejection) in &refused {
            self.metrics.progress_refused.get_or_create(&CodeLabel { code: rejection.status.as_u16() }).inc();
        }
        let list = |refused: &[(usize, Rejection)]| {
            refused.iter().map(|(index, why)| RejectedEvent::new(*index, why)).collect::<Vec<_>>()
        };
        if let (0, Some((index, first))) = (accepted, refused.first()) {
            let all = if refused.len() > 1 { list(&refused) } else { Vec::new() };
            return Err(Rejection { index: is_batch.then_some(*index), refused: all, ..first.clone() });
        }
        let answers = leaders.iter().filter_map(|workload| self.directives.current(workload));
        let directives = answers.filter(|answer| answer.revision > 0).collect();
        Ok(ProgressReceipt { accepted, refused: list(&refused), absent_values: absent, directives })
    }

    /// Completes one event, and refuses what cannot be, or may not come from this sender.
    fn check(
        &self,
        sender: &SenderIdentity,
        mut sent: ReportedEvent,
        (came, now): (EventTime, EventTime),
        has_absent: bool,
    ) -> Result<ReportedEvent, Rejection> {
        let event = &mut sent.event;
        if !sent.timed {
            event.time = came;
        }
        event.collector.clone_from(&self.collector);
        // With the end of the job its source ends.
        event.last |= event.phase == JobLifecycle::Finished;
        wire::check(event, now, self.settings.times)?;
        sender.check(&event.workload)?;
        wire::check_content(event).map_err(|rejection| {
            let hint = if has_absent {
                "; NaN is not JSON, and like its text or too large a number it is taken for null: leave the field out"
            } else {
                ""
            };
            Rejection { error: rejection.error.clone() + hint, ..rejection }
        })?;
        Ok(sent)
    }

    fn trainer_status(&self, workload: String, body: &[u8]) -> Result<(), Rejection> {
        let (body, _) = wire::without_not_numbers(body);
        let update: StatusUpdate = wire::parse(&body, None)?;
        let timed = update.trainer_status.as_ref().is_some_and(|status| status.last_updated_time.is_some());
        let now = self.clock.now();
        let known = self.sources().as_ref().and_then(|sources| sources.last(&workload, 0).cloned());
        let Some(mut event) = kubeflow::event(&update, workload, known.as_ref(), now) else { return Ok(()) };
        event.collector.clone_from(&self.collector);
        wire::check(&event, now, self.settings.times)?;
        self.take(ReportedEvent { event, timed })
    }

    fn take(&self, ReportedEvent { mut event, timed }: ReportedEvent) -> Result<(), Rejection> {
        let mut guard = self.sources();
        let Some(sources) = guard.as_mut() else {
            return Err(Rejection::new(StatusCode::SERVICE_UNAVAILABLE, "the collector is stopping; send it again later"));
        };
        if sources.room([&event]).is_err() {
            sources.forget_before(self.clock.now().plus_seconds(-FORGET_SECONDS));
        }
        sources.room([&event]).map_err(|full| Rejection::new(StatusCode::TOO_MANY_REQUESTS, full.to_string()))?;
        // Requests come here in another order than they came in, and a batch may reach beyond the next request's time.
        if !timed {
            event.time = sources.time(&event.workload, event.rank, event.time);
        }
        sources.note(&event);
        self.directives.note_report(&event);
        // Checked before, so nothing is refused here.
        if let Err(refusal) = self.sink.progress(KIND, &event) {
            tracing::warn!(workload = event.workload, %refusal, "progress was refused");
        }
        self.metrics.progress_sources.set(sources.len() as i64);
        Ok(())
    }

    fn end(&self) {
        for event in self.sources().take().iter_mut().flat_map(ProgressSources::end) {
            if let Err(refusal) = self.sink.progress(KIND, &event) {
                tracing::warn!(workload = event.workload, %refusal, "progress was refused");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Client;
    use serde_json::{Value, json};

    use super::*;
    use crate::buffer::EventBuffer;
    use crate::progress::reviews::tests::{TrustingReviewer, of_account};
    use crate::settings::ServiceAccounts;
    use crate::sink::tests::{outlet, progress};

    /// Returns the defaults, on a free port.
    fn settings() -> ProgressSettings {
        let raw = crate::RawSettings::default().validate("h").unwrap();
        ProgressSettings { listen: "127.0.0.1:0".parse().unwrap(), ..raw.progress.unwrap() }
    }

    fn fixed() -> ServiceClock {
        ServiceClock::fixed("2026-01-02T03:04:05Z".parse().unwrap())
    }

    struct Fixture {
        url: String,
        client: Client,
        buffer: Arc<EventBuffer>,
        metrics: CollectorMetrics,
        shutdown: Shutdown,
        task: tokio::task::JoinHandle<Result<(), SourceError>>,
    }

    async fn start() -> Fixture {
        let settings = ProgressSettings { body_bytes: 4096, batch_events: 5, sources: 3, ..settings() };
        start_with(settings, None).await
    }

    async fn start_with(settings: ProgressSettings, reviewer: Option<Arc<dyn TokenReviewer>>) -> Fixture {
        let (outlet, buffer, metrics) = outlet();
        let mut source = HttpSource::new(settings, outlet, metrics.clone(), fixed(), "progress/h".into(), reviewer);
        let url = format!("http://{}", source.bind().await.unwrap());
        let shutdown = Shutdown::new();
        let task = tokio::spawn(Box::new(source).run(shutdown.clone()));
        Fixture { url, client: Client::builder().no_proxy().build().unwrap(), buffer, metrics, shutdown, task }
    }

    impl Fixture {
        async fn post(&self, path: &str, body: impl Into<String>) -> (u16, Value) {
            let request = self.client.post(format!("{}{path}", self.url)).header("content-type", "application/json");
            let response = request.body(body.into()).send().await.unwrap();
            let status = response.status().as_u16();
            let text = response.text().await.unwrap();
            (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
        }

        async fn progress(&self, body: impl Into<String>) -> (u16, Value) {
            self.post("/v1/progress", body).await
        }
    }

    #[tokio::test]
    async fn one_event_or_a_batch_is_accepted_and_a_stop_marks_open_sources_last() {
        let f = start().await;
        assert_eq!(f.progress(r#"{"workload":"n/a","phase":"started"}"#).await, (202, json!({"accepted": 1})));
        let batch = r#"[{"workload":"n/a","time":"2026-01-02T03:04:06Z","samples_total":10},{"workload":"n/b","rank":1,"samples_total":5,"scope":"rank"},{"workload":"n/b","rank":1,"phase":"finished"}]"#;
        assert_eq!(f.progress(batch).await, (202, json!({"accepted": 3})));
        f.shutdown.cancel();
        f.task.await.unwrap().unwrap();
        let seen: Vec<_> = progress(&f.buffer)
            .into_iter()
            .map(|e| (e.workload, e.rank, e.time.micros() % 10_000_000, e.phase, e.last, e.samples_total))
            .collect();
        let now = fixed().now().micros() % 10_000_000;
        let (a, b) = (|| "n/a".to_owned(), || "n/b".to_owned());
        assert_eq!(
            seen,
            [
                (a(), 0, now, JobLifecycle::Started, false, None),
                (a(), 0, now + 1_000_000, JobLifecycle::Progress, false, Some(10.0)),
                (b(), 1, now + 1, JobLifecycle::Progress, false, Some(5.0)),
                (b(), 1, now + 2, JobLifecycle::Finished, true, None),
                (a(), 0, now + 1_000_000, JobLifecycle::Progress, true, Some(10.0)),
            ]
        );
    }

    #[test]
    fn an_event_without_time_is_never_older_than_what_its_source_sent_before() {
        let one = r#"{"workload":"n/a","loss":1}"#;
        let three = r#"[{"workload":"n/a","loss":1},{"workload":"n/a","loss":2},{"workload":"n/a","loss":3}]"#;
        let ahead = r#"[{"workload":"n/a","time":"2026-01-02T03:04:06Z","loss":1},{"workload":"n/a","loss":2}]"#;
        let other = r#"{"workload":"n/a","rank":1,"loss":1}"#;
        let update = r#"{"trainerStatus":{"progressPercentage":50}}"#;
        let second = 1_000_000;
        // When each request came, in the order in which they are taken: microseconds after a time, and of their events.
        for (requests, times) in [
            (vec![(0, three), (0, one), (2, one)], vec![0, 1, 2, 3, 4]),
            (vec![(9, one), (7, one), (8, one), (20, one)], vec![9, 10, 11, 20]),
            (vec![(9, one), (7, three), (7, other)], vec![9, 10, 11, 12, 7]),
            (vec![(0, ahead), (3, one), (3, other)], vec![second, second + 1, second + 2, 3]),
            (vec![(9, one), (7, update), (7, update)], vec![9, 10, 11]),
        ] {
            let (outlet, buffer, metrics) = outlet();
            let start = fixed().now();
            let came = Mutex::new(requests.iter().map(|(micros, _)| *micros).collect::<std::collections::VecDeque<_>>());
            let clock = ServiceClock::new(move || start.plus_micros(came.lock().unwrap().pop_front().unwrap()));
            let HttpSource { endpoint, .. } = HttpSource::new(settings(), outlet, metrics, clock, "progress/h".into(), None);
            for (_, body) in &requests {
                if *body == update {
                    endpoint.trainer_status("n/a".to_owned(), body.as_bytes()).unwrap();
                } else {
                    endpoint.report(&SenderIdentity(None), body.as_bytes()).unwrap();
                }
            }
            let seen: Vec<_> = progress(&buffer).iter().map(|event| event.time.micros() - start.micros()).collect();
            assert_eq!(seen, times, "{requests:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_names_status_field_and_index_and_nothing_of_the_request_is_taken() {
        let f = start().await;
        let deep = format!("{{\"workload\":\"n/a\",\"loss\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        let six = format!("[{}]", [r#"{"workload":"n/a"}"#; 6].join(","));
        let long = format!("{{\"workload\":\"n/{}\"}}", "a".repeat(300));
        for (body, status, field, index) in [
            ("", 400, None, None),
            ("{", 400, None, None),
            ("nonsense", 400, None, None),
            (r#"{"workload":"n/a"} x"#, 400, None, None),
            (r#"{"workload":"n/a","samples_total":"many"}"#, 422, Some("samples_total"), None),
            (r#"{"workload":"n/a","samples_total":1e999}"#, 422, None, None),
            (r#"{"workload":"n/a","samples_total":NaN}"#, 422, None, None),
            (r#"{"workload":"n/a","rank":NaN,"loss":1}"#, 422, Some("rank"), None),
            (r#"[{"workload":"n/a","loss":1}"#, 400, None, None),
            (r#"[{"workload":"n/a","loss":1}] x"#, 400, None, None),
            (r#"{"workload":"n/a","samples_total":-1}"#, 422, Some("samples_total"), None),
            (r#"{"workload":"n/a","loss":1,"loss":2}"#, 422, Some("loss"), None),
            (r#"{"workload":"a"}"#, 422, Some("workload"), None),
            ("{}", 422, Some("workload"), None),
            ("7", 422, None, None),
            (r#"[["2026-01-02T03:04:05Z","n/a"]]"#, 422, None, Some(0)),
            (r#"{"workload":"n/a","time":"2026-01-02T04:04:05Z"}"#, 422, Some("time"), None),
            (r#"{"workload":"n/a","time":"yesterday"}"#, 422, Some("time"), None),
            (r#"{"workload":"n/a","time":"1970-01-01T00:00:00Z","loss":1}"#, 422, Some("time"), None),
            (r#"{"workload":"n/a","time":"0000-01-01T00:00:00Z","loss":1}"#, 422, Some("time"), None),
            (r#"{"workload":"n/a","time":"9999-12-31T23:59:59Z","loss":1}"#, 422, Some("time"), None),
            (r#"{"workload":"n/a","sample_total":1}"#, 422, Some("sample_total"), None),
            (r#"[{"workload":"n/a","losss":1}]"#, 422, Some("losss"), Some(0)),
            (r#"[{"workload":"n/a","losss":1},{"workload":"n/a","loss":"x"}]"#, 422, Some("losss"), Some(0)),
            (r#"{"workload":"n/a"}"#, 422, None, None),
            (&deep, 422, Some("loss"), None),
            (&six, 413, None, None),
            (&long, 422, Some("workload"), None),
            (&"x".repeat(5000), 413, None, None),
        ] {
            let (got, answer) = f.progress(body).await;
            let shown: String = body.chars().take(80).collect();
            assert_eq!(got, status, "{shown}: {answer}");
            assert!(answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{shown}: {answer}");
            assert_eq!(answer.get("field").and_then(Value::as_str), field, "{shown}: {answer}");
            assert_eq!(answer.get("index").and_then(Value::as_u64), index.map(|index: usize| index as u64), "{shown}");
        }
        assert!(progress(&f.buffer).is_empty());
    }

    #[tokio::test]
    async fn each_record_of_a_batch_is_judged_for_itself() {
        let good = |loss: u32| format!(r#"{{"workload":"n/a","loss":{loss}}}"#);
        for (bad, status, field, expected) in [
            (r#"{"workload":"n/a","losss":1}"#, 422, Some("losss"), "did you mean loss?"),
            (r#"{"workload":"n/a"}"#, 422, None, "has nothing about the job"),
            (r#"{"workload":"n/a","loss":NaN}"#, 422, None, "NaN is not JSON"),
            (r#"{"workload":"n/a","rank":-1}"#, 422, Some("rank"), "-1"),
            (r#"{"workload":"","loss":1}"#, 422, Some("workload"), ""),
            (r#"{"workload":"n/a","loss":1e999}"#, 422, None, "too large a number"),
            (r#"{"workload":"n/a","loss":"NaN"}"#, 422, None, "leave the field out"),
            (r#"{"workload":"n/a","loss":}"#, 400, Some("loss"), "expected value"),
            (r#"{"workload":"n/a","time":"9999-12-31T23:59:59Z","loss":1}"#, 422, Some("time"), "future"),
            ("7", 422, None, "not a JSON object"),
            ("", 400, None, "EOF"),
        ] {
            let f = start().await;
            let (got, answer) = f.progress(format!("[{},{bad},{}]", good(1), good(2))).await;
            assert_eq!((got, answer["accepted"].as_u64()), (202, Some(2)), "{bad}: {answer}");
            let [refused] = &answer["refused"].as_array().unwrap()[..] else { panic!("{answer}") };
            assert_eq!((refused["index"].as_u64(), refused["status"].as_u64()), (Some(1), Some(status)), "{answer}");
            assert_eq!(refused.get("field").and_then(Value::as_str), field, "{answer}");
            assert!(refused["error"].as_str().unwrap().contains(expected), "{answer}");
            assert_eq!(progress(&f.buffer).iter().filter_map(|event| event.loss).collect::<Vec<_>>(), [1.0, 2.0], "{bad}");
            let counted = f.metrics.progress_refused.get_or_create(&CodeLabel { code: status as u16 }).get();
            assert_eq!(counted, 1, "{bad}");
        }
        let f = start().await;
        let four = ["a", "b", "c", "d"].map(|name| format!(r#"{{"workload":"n/{name}","loss":1}}"#)).join(",");
        let (status, answer) = f.progress(format!("[{four}]")).await;
        assert_eq!(
            (status, answer["accepted"].as_u64(), answer["refused"][0]["status"].as_u64()),
            (202, Some(3), Some(429)),
            "{answer}"
        );
        let (status, answer) = f.progress(r#"[{"workload":"n/a"},{"workload":"n/b","loss":"x"}]"#).await;
        assert_eq!(
            (status, answer["index"].as_u64(), answer["refused"].as_array().unwrap().len()),
            (422, Some(0), 2),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn a_counter_beside_a_value_that_is_no_number_is_taken() {
        for value in ["NaN", "Infinity", "-Infinity", "nan", "-inf", "\"NaN\"", "\"-Infinity\"", "1e999"] {
            let f = start().await;
            let body = format!(r#"{{"workload":"n/a","samples_total":5,"loss":{value}}}"#);
            assert_eq!(f.progress(body.as_str()).await, (202, json!({"accepted": 1, "absent_values": 1})));
            assert_eq!(f.progress(format!("[{body},{body}]")).await, (202, json!({"accepted": 2, "absent_values": 2})));
            let seen: Vec<_> = progress(&f.buffer).iter().map(|event| (event.samples_total, event.loss)).collect();
            assert_eq!(seen, [(Some(5.0), None); 3], "{value}");
        }
        let f = start().await;
        let path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainjobs/llama/status";
        let update = r#"{"trainerStatus":{"progressPercentage":50,"estimatedRemainingSeconds":NaN,"metrics":[{"name":"loss","value":"NaN"}]}}"#;
        assert_eq!(f.post(path, update).await.0, 200);
        assert_eq!(progress(&f.buffer)[0].loss, None);
    }

    #[tokio::test]
    async fn what_is_not_there_is_refused_before_the_request_is_checked() {
        let f = start().await;
        let kubeflow = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/n/trainjobs/a/status";
        for (method, path, kind, expected) in [
            (Method::POST, "/v1/progress", "text/plain", 415),
            (Method::POST, "/v1/progres", "text/plain", 404),
            (Method::POST, "/v1/progress/", "application/json", 404),
            (Method::GET, "/v1/progress", "text/plain", 405),
            (Method::PUT, "/v1/progress", "application/json", 405),
            (Method::GET, "/", "", 404),
            (Method::GET, "/metrics", "", 404),
            (Method::GET, kubeflow, "", 405),
            (Method::POST, "/apis/trainer.kubeflow.org/v1alpha1/namespaces/n/trainjobs//status", "", 404),
        ] {
            let request = f.client.request(method.clone(), format!("{}{path}", f.url)).header("content-type", kind);
            let response = request.body("{}").send().await.unwrap();
            let allow = response.headers().get("allow").is_some_and(|allow| allow == "POST");
            assert_eq!((response.status().as_u16(), allow), (expected, expected == 405), "{method} {path}");
            assert!(response.text().await.unwrap().contains("error"), "{method} {path}");
        }
    }

    #[tokio::test]
    async fn a_request_that_never_ends_does_not_hold_up_a_stop() {
        use tokio::io::AsyncWriteExt;
        let f = start().await;
        let mut stream = tokio::net::TcpStream::connect(f.url.trim_start_matches("http://")).await.unwrap();
        let head = "POST /v1/progress HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(f.progress(r#"{"workload":"n/a","loss":1}"#).await.0, 202);
        f.shutdown.cancel();
        tokio::time::timeout(STOP * 5, f.task).await.expect("ends").unwrap().unwrap();
        stream.write_all(br#""workload":"n/late"}"#).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let seen: Vec<_> = progress(&f.buffer).into_iter().map(|e| (e.workload, e.last)).collect();
        assert_eq!(seen, [("n/a".to_owned(), false), ("n/a".to_owned(), true)], "nothing comes after the last");
    }

    #[tokio::test]
    async fn web_pages_are_refused() {
        let f = start().await;
        let url = format!("{}/v1/progress", f.url);
        let body = r#"{"workload":"n/a","loss":1}"#;
        let request = || f.client.post(&url).body(body);
        let plain = request().header("content-type", "text/plain").send().await.unwrap();
        assert_eq!(plain.status().as_u16(), 415);
        let packed = f.client.post(format!("{}/v1/progress", f.url)).header("content-type", "application/json");
        let packed = packed.header("content-encoding", "gzip").body("{}").send().await.unwrap();
        assert_eq!(packed.status().as_u16(), 415, "its bytes are no JSON, and no header names its encoding");
        let page = request().header("content-type", "application/json").header("origin", "http://evil").send().await.unwrap();
        assert_eq!(page.status().as_u16(), 403);
        assert!(progress(&f.buffer).is_empty());
        for encoding in ["", "identity"] {
            let plain = request().header("content-type", "application/json").header("content-encoding", encoding);
            assert_eq!(plain.send().await.unwrap().status().as_u16(), 202, "{encoding:?} is no encoding");
        }
    }

    #[tokio::test]
    async fn kubeflows_contract_is_understood() {
        let f = start().await;
        let path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainjobs/llama/status";
        for body in [
            r#"{"trainerStatus":{"progressPercentage":0,"lastUpdatedTime":"2026-01-02T03:04:00Z"}}"#,
            r#"{"trainerStatus":{"progressPercentage":50,"estimatedRemainingSeconds":30,"metrics":[{"name":"loss","value":"0.5"}],"lastUpdatedTime":"2026-01-02T03:04:05Z"}}"#,
            r#"{"trainerStatus":{"progressPercentage":100,"lastUpdatedTime":"2026-01-02T03:04:10Z"}}"#,
            r#"{"trainerStatus":{"progressPercentage":100,"lastUpdatedTime":"2026-01-02T03:04:15Z"}}"#,
            "{}",
        ] {
            let (status, answer) = f.post(path, body).await;
            assert_eq!((status, answer), (200, serde_json::from_str(body).unwrap()));
        }
        let (status, answer) = f.post(path, r#"{"trainerStatus":{"metrics":[{"name":"loss"}]}}"#).await;
        assert_eq!((status, answer["kind"].as_str()), (422, Some("Status")));
        let seen: Vec<_> =
            progress(&f.buffer).into_iter().map(|e| (e.workload, e.phase, e.last, e.loss, e.remaining_seconds)).collect();
        let job = || "team-a/llama".to_owned();
        assert_eq!(
            seen,
            [
                (job(), JobLifecycle::Started, false, None, None),
                (job(), JobLifecycle::Progress, false, Some(0.5), Some(30.0)),
                (job(), JobLifecycle::Finished, true, None, None)
            ]
        );
    }

    #[tokio::test]
    async fn a_service_account_reports_for_its_namespace_beside_tokens_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let of_file = tokens::change(&path, |tokens| {
            let chance = std::array::from_fn(|at| at as u8);
            tokens.create(&chance, &["team-b".to_owned()], fixed().now(), None).map(|(token, _)| token)
        });
        let of_file = of_file.unwrap();
        let own = ServiceAccounts { audience: "eadt".into(), remember_seconds: 60.0, reviews_per_second: 4.0 };
        let settings = ProgressSettings { tokens_file: Some(path), service_accounts: Some(own), ..settings() };
        let reviewer = TrustingReviewer::new(1000);
        let f = start_with(settings, Some(reviewer.clone())).await;
        let post = async |token: &str, workload: &str| {
            let body = format!("{{\"workload\":\"{workload}\",\"loss\":1}}");
            let request = f.client.post(format!("{}/v1/progress", f.url)).header("content-type", "application/json");
            let response = request.header("authorization", format!("Bearer {token}")).body(body).send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        let account = of_account("team-a", "train");
        assert_eq!(post(&account, "team-a/x").await.0, 202);
        let (status, answer) = post(&account, "team-b/x").await;
        assert!(status == 403 && answer.contains("system:serviceaccount:team-a:train"), "{status}: {answer}");
        assert_eq!(post(of_file.reveal(), "team-b/x").await.0, 202);
        assert_eq!(post("eadt_0_0", "team-b/x").await.0, 401);
        assert_eq!(post("garbage", "team-b/x").await.0, 401);
        let (status, answer) = f.progress(r#"{"workload":"team-a/x"}"#).await;
        assert!(status == 401 && answer.to_string().contains("audience"), "{status}: {answer}");
        assert_eq!(reviewer.asked.load(std::sync::atomic::Ordering::SeqCst), 1);

        reviewer.away.store(true, std::sync::atomic::Ordering::SeqCst);
        let (status, answer) = post(&of_account("team-a", "other"), "team-a/x").await;
        assert!(status == 503 && answer.contains("cannot be checked now"), "{status}: {answer}");
        let answer = loop {
            let name = format!("other-{}", reviewer.asked.load(std::sync::atomic::Ordering::SeqCst));
            let (status, answer) = post(&of_account("team-a", &name), "team-a/x").await;
            assert_eq!(status, 503, "{answer}");
            if answer.contains("reviews_per_second") {
                break answer;
            }
        };
        assert!(answer.contains("try again in"), "{answer}");
        assert_eq!((post(&account, "team-a/x").await.0, post(of_file.reveal(), "team-b/x").await.0), (202, 202));
    }

    #[tokio::test]
    async fn strangers_share_one_pace_and_take_nothing_from_who_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let token = tokens::change(&path, |tokens| {
            let chance = std::array::from_fn(|at| at as u8);
            tokens.create(&chance, &["n".to_owned()], fixed().now(), None).map(|(token, _)| token)
        });
        let token = token.unwrap();
        // One, and no further one within the test.
        let f = start_with(ProgressSettings { tokens_file: Some(path), requests_per_second: 0.01, ..settings() }, None).await;
        let post = async |token: Option<&str>, more: Option<(&str, &str)>| {
            let request = f.client.post(format!("{}/v1/progress", f.url)).header("content-type", "application/json");
            let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
            let request = more.into_iter().fold(request, |request, (name, value)| request.header(name, value));
            let response = request.body(r#"{"workload":"n/a","loss":1}"#).send().await.unwrap();
            let closes = response.headers().get("connection").is_some_and(|value| value == "close");
            (response.status().as_u16(), closes, response.text().await.unwrap())
        };
        let (status, closes, _) = post(Some("eadt_0_0"), None).await;
        assert_eq!((status, closes), (401, false), "the first gets the reason");
        let page = ("origin", "http://evil");
        for (token, more, why) in
            [(Some("eadt_0_0"), None, "unknown, revoked or expired"), (None, None, "no token"), (None, Some(page), "web pages")]
        {
            let (status, closes, answer) = post(token, more).await;
            assert_eq!((status, closes), (429, true), "{answer}");
            assert!(
                answer.contains(why) && answer.contains("requests_per_second") && answer.contains("try again in"),
                "{answer}"
            );
        }
        assert_eq!(post(Some(token.reveal()), None).await.0, 202);
        let refused = f.metrics.connections_refused.get_or_create(&ReasonLabel { reason: "unknown" }).get();
        let counted = |code| f.metrics.requests.get_or_create(&RequestLabel { endpoint: "v1", code }).get();
        assert_eq!((refused, counted(401), counted(429), counted(202)), (3, 1, 3, 1));
    }

    #[tokio::test]
    async fn who_opens_hundreds_of_slow_connections_takes_nothing_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let token = |namespace: &str, seed: u8| {
            tokens::change(&path, |tokens| {
                let chance = std::array::from_fn(|at| at as u8 ^ seed);
                tokens.create(&chance, &[namespace.to_owned()], fixed().now(), None).map(|(token, _)| token)
            })
            .unwrap()
        };
        let (slow, quick) = (token("slow", 1), token("quick", 2));
        // The slow ones stay for longer than this test waits.
        let limits = eadt_service::connections::ConnectionLimits { request: Duration::from_mins(10), ..settings().limits };
        let settings = ProgressSettings { tokens_file: Some(path.clone()), requests_per_second: 10_000.0, limits, ..settings() };
        assert!(settings.limits.connections < 300, "{:?}", settings.limits);
        let f = start_with(settings, None).await;
        let address = f.url.strip_prefix("http://").unwrap();
        let mut held = Vec::new();
        for _ in 0..300 {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let head = format!(
                "POST /v1/progress HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
                 content-length: 1000\r\n\r\n{{",
                slow.reveal()
            );
            tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
            held.push(stream);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        for number in 0..12 {
            // Each over a connection of its own.
            let client = Client::builder().no_proxy().build().unwrap();
            let request = client.post(format!("{}/v1/progress", f.url)).bearer_auth(quick.reveal());
            let request = request.header("content-type", "application/json").body(r#"{"workload":"quick/a","loss":1}"#);
            let answer = tokio::time::timeout(Duration::from_mins(1), request.send()).await;
            assert_eq!(answer.unwrap_or_else(|_| panic!("post {number} waits")).unwrap().status().as_u16(), 202);
        }
    }

    #[tokio::test]
    async fn an_api_server_that_takes_its_time_takes_none_beyond_a_requests() {
        let own = ServiceAccounts { audience: "eadt".into(), remember_seconds: 60.0, reviews_per_second: 4.0 };
        let limits = eadt_service::connections::ConnectionLimits { request: Duration::from_millis(100), ..settings().limits };
        let settings = ProgressSettings { service_accounts: Some(own), limits, ..settings() };
        let f = start_with(settings, Some(TrustingReviewer::new(0))).await;
        let request = f.client.post(format!("{}/v1/progress", f.url)).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {}", of_account("team-a", "train")));
        assert_eq!(request.body("{}").send().await.unwrap().status().as_u16(), 408);
    }

    #[tokio::test]
    async fn without_somebody_to_ask_no_service_account_is_accepted() {
        let own = ServiceAccounts { audience: "eadt".into(), remember_seconds: 60.0, reviews_per_second: 4.0 };
        let (outlet, _, metrics) = outlet();
        let settings = ProgressSettings { service_accounts: Some(own), ..settings() };
        let mut source = HttpSource::new(settings, outlet, metrics, fixed(), "h".into(), None);
        let error = source.open().await.unwrap_err().to_string();
        assert!(error.contains("service_accounts"), "{error}");
    }

    #[tokio::test]
    async fn the_error_of_a_busy_port_names_the_remedy() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (outlet, _, metrics) = outlet();
        let settings = ProgressSettings { listen: taken.local_addr().unwrap(), ..settings() };
        let mut source = HttpSource::new(settings, outlet, metrics, fixed(), "h".into(), None);
        let error = source.open().await.unwrap_err().to_string();
        assert!(error.contains("collector.progress.listen") && error.contains("in use"), "{error}");
    }

    async fn ask(f: &Fixture, path: &str) -> (u16, Value) {
        let response = f.client.get(format!("{}{path}", f.url)).send().await.unwrap();
        (response.status().as_u16(), serde_json::from_slice(&response.bytes().await.unwrap()).unwrap())
    }

    #[tokio::test]
    async fn a_job_gets_its_directive_with_the_answer_to_rank_0_and_by_asking() {
        use crate::progress::directives::tests::record;

        let (outlet, buffer, metrics) = outlet();
        let known = DirectiveStore::of_records(&[record("n/a", 6, Some(2))]);
        let source = HttpSource::new(settings(), outlet, metrics.clone(), fixed(), "progress/h".into(), None);
        let mut source = source.with_directives(known.clone());
        let url = format!("http://{}", source.bind().await.unwrap());
        let shutdown = Shutdown::new();
        let task = tokio::spawn(Box::new(source).run(shutdown.clone()));
        let f = Fixture { url, client: Client::builder().no_proxy().build().unwrap(), buffer, metrics, shutdown, task };

        let (status, answer) = f.progress(r#"{"workload":"n/a","loss":1,"precision":"bf16-mixed"}"#).await;
        let directive = &answer["directives"][0];
        assert_eq!((status, &directive["workload"], &directive["revision"]), (202, &json!("n/a"), &json!(7)), "{answer}");
        assert_eq!(directive["directive"]["frozen_prefix_layers"], 2, "{answer}");
        assert_eq!(progress(&f.buffer)[0].precision.as_deref(), Some("bf16"));
        for quiet in [r#"{"workload":"n/a","rank":1,"loss":1}"#, r#"{"workload":"n/b","loss":1}"#] {
            assert_eq!(f.progress(quiet).await, (202, json!({"accepted": 1})), "{quiet}");
        }
        let (status, answer) = f.progress(r#"{"workload":"n/b","loss":NaN,"plasticity":[NaN,0.5]}"#).await;
        assert_eq!((status, answer), (202, json!({"accepted": 1, "absent_values": 2})));
        assert_eq!(progress(&f.buffer).last().unwrap().plasticity, Some(vec![None, Some(0.5)]));
        assert_eq!(f.metrics.absent_values.get(), 2);

        let (status, answer) = ask(&f, "/v1/directives/n/a").await;
        assert_eq!((status, &answer["revision"]), (200, &json!(7)), "{answer}");
        let nothing = json!({"workload": "n/b", "revision": 0, "directive": null});
        assert_eq!(ask(&f, "/v1/directives/n/b").await, (200, nothing));
        for query in ["after=x", "wait=-1", "wait=NaN", "wait=inf", "wait=x", "what=1"] {
            assert_eq!(ask(&f, &format!("/v1/directives/n/a?{query}")).await.0, 400, "{query}");
        }
        assert_eq!(ask(&f, "/v1/directives/n/a?after=6&wait=1e30").await.0, 200, "as long as may be");
        assert_eq!(f.post("/v1/directives/n/a", "{}").await.0, 405);
        let waiting = ask(&f, "/v1/directives/n/a?after=7&wait=30");
        let withdraw = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            known.add(&[record("n/a", 8, None)]);
        };
        let ((status, answer), ()) = tokio::join!(waiting, withdraw);
        assert_eq!((status, answer), (200, json!({"workload": "n/a", "revision": 9, "directive": null})));
        // A stop ends waiting requests.
        let waiting = ask(&f, "/v1/directives/n/a?after=9&wait=30");
        let stop = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            f.shutdown.cancel();
        };
        let ((status, _), ()) = tokio::join!(waiting, stop);
        assert_eq!(status, 200);
        f.task.await.unwrap().unwrap();
    }

    /// Returns a report of a time that all of them have.
    fn at_once(fields: &str) -> String {
        format!("{{\"workload\":\"n/a\",\"time\":\"2026-01-02T03:04:05Z\",{fields}}}")
    }

    #[tokio::test]
    async fn a_job_that_begins_anew_gets_nothing_that_was_asked_of_the_run_before() {
        use crate::progress::directives::tests::record;

        let started = at_once(r#""phase":"started""#);
        let steps = |steps: u32| at_once(&format!("\"steps_total\":{steps}"));
        for (reports, revision) in [
            (vec![steps(5)], Some(7)),
            (vec![started.clone()], None),
            (vec![format!("[{started},{}]", steps(0))], None),
            (vec![format!("[{started},{}]", steps(500))], Some(7)),
            (vec![started.clone(), steps(500)], Some(7)),
            (vec![started.clone(), steps(500), at_once(r#""phase":"started","loss":1"#)], Some(7)),
            (vec![at_once(r#""phase":"started","rank":1"#), steps(5)], Some(7)),
            (vec![at_once(r#""phase":"finished","steps_total":900"#)], None),
        ] {
            let (outlet, _, metrics) = outlet();
            let known = DirectiveStore::of_records(&[record("n/a", 6, Some(2))]);
            let source = HttpSource::new(settings(), outlet, metrics, fixed(), "progress/h".into(), None);
            let HttpSource { endpoint, .. } = source.with_directives(known.clone());
            let report = |body: &String| endpoint.report(&SenderIdentity(None), body.as_bytes()).unwrap();
            let answers: Vec<_> = reports.iter().map(report).collect();
            let revision_sent = answers.last().unwrap().directives.first().map(|answer| answer.revision);
            assert_eq!(revision_sent, revision, "{reports:?}");
            let polled = endpoint.wait_for_directive(&SenderIdentity(None), "n/a", "").await.unwrap();
            assert_eq!((polled.revision, polled.directive.is_some()), (revision.unwrap_or(0), revision.is_some()), "{reports:?}");
            // Later requests belong to this run.
            known.add(&[record("n/a", 8, Some(1))]);
            assert_eq!(report(&steps(0)).directives[0].revision, 9, "{reports:?}");
        }
    }

    #[tokio::test]
    async fn a_job_that_goes_on_from_a_checkpoint_ends_its_long_poll() {
        use crate::progress::directives::tests::record;

        let (outlet, _, metrics) = outlet();
        let known = DirectiveStore::of_records(&[record("n/a", 6, Some(2))]);
        let source = HttpSource::new(settings(), outlet, metrics, fixed(), "progress/h".into(), None);
        let HttpSource { endpoint, .. } = source.with_directives(known);
        let sender = SenderIdentity(None);
        let report = |fields: &str| endpoint.report(&sender, at_once(fields).as_bytes()).map(|_| ());
        report(r#""phase":"started""#).unwrap();
        let waiting = endpoint.wait_for_directive(&sender, "n/a", "after=0&wait=30");
        let goes_on = async {
            tokio::task::yield_now().await;
            report(r#""steps_total":500"#)
        };
        let (answer, reported) = tokio::join!(waiting, goes_on);
        reported.unwrap();
        assert_eq!(answer.unwrap().revision, 7);
    }

    #[tokio::test]
    async fn directives_that_were_not_read_yet_are_asked_for_later() {
        let f = start().await;
        let (status, answer) = ask(&f, "/v1/directives/n/a").await;
        assert_eq!(status, 503, "{answer}");
    }
}
