//! Is between a client and the API server, and does to chosen requests what networks and API servers do on bad days.
//!
//! The client speaks plain HTTP to it; it speaks to the API server with the credentials of the client that it was given.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, StatusCode, header};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// More than any request of these tests has.
const MAX_BODY: usize = 16 << 20;

/// An answer to a request in place of the API server's.
#[derive(Debug, Clone)]
pub enum Answer {
    /// This code, without anything having been done; `Retry-After` in whole seconds.
    Refused { code: u16, retry_after: Option<u64> },
    /// No answer at all.
    Nothing,
    /// The API server does what is asked, but its answer breaks off.
    Lost,
    /// For a watch: it begins well, and its first event is 410 Gone, as after a compaction.
    Gone,
}

/// Requests that are interfered with.
#[derive(Debug, Clone)]
pub struct Fault {
    pub method: Method,
    /// Part of the path.
    pub path: String,
    /// Applies to watches only, or to other requests only.
    pub watch: bool,
    pub answer: Answer,
    /// How many requests; `usize::MAX`: all until [`Proxy::heal`].
    pub times: usize,
}

/// A request that came by.
#[derive(Debug, Clone)]
pub struct Passed {
    pub at: Instant,
    pub method: Method,
    pub path: String,
    pub query: String,
    /// It got an answer of the proxy's own.
    pub faulty: bool,
}

impl Passed {
    pub fn is_watch(&self) -> bool {
        is_watch(&self.query)
    }
}

#[derive(Debug)]
struct Shared {
    faults: Mutex<Vec<Fault>>,
    passed: Mutex<Vec<Passed>>,
    cuts: watch::Sender<u64>,
}

/// A running proxy; dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_watch(query: &str) -> bool {
    query.split('&').any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}

impl Proxy {
    /// Starts one on a free port, within the present runtime. `upstream`: how the API server is reached.
    pub async fn start(upstream: Client) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no free port")?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared { faults: Mutex::default(), passed: Mutex::default(), cuts: watch::Sender::new(0) });
        let router = Router::new().fallback(pass).with_state((shared.clone(), upstream));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the proxy ended: {error}");
            }
        });
        Ok(Self { url, shared, server })
    }

    /// A client whose requests go through it.
    pub fn client(&self) -> Result<Client> {
        client(&self.url)
    }

    /// Returns its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn interfere(&self, fault: Fault) {
        lock(&self.shared.faults).push(fault);
    }

    /// Faults that are still to come.
    pub fn left(&self) -> usize {
        lock(&self.shared.faults).iter().map(|fault| fault.times).sum()
    }

    /// No more faults.
    pub fn heal(&self) {
        lock(&self.shared.faults).clear();
    }

    /// Breaks every watch off, as a load balancer or a restarted API server does.
    pub fn cut_watches(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// All requests since the last call.
    pub fn passed(&self) -> Vec<Passed> {
        std::mem::take(&mut lock(&self.shared.passed))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn fault(&self, method: &Method, path: &str, query: &str) -> Option<Answer> {
        let mut faults = lock(&self.faults);
        let matching = |fault: &Fault| fault.method == *method && path.contains(&fault.path) && fault.watch == is_watch(query);
        let at = faults.iter().position(matching)?;
        let answer = faults[at].answer.clone();
        if faults[at].times != usize::MAX {
            faults[at].times -= 1;
            if faults[at].times == 0 {
                faults.remove(at);
            }
        }
        Some(answer)
    }
}

async fn pass(State((shared, upstream)): State<(Arc<Shared>, Client)>, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let query = request.uri().query().unwrap_or_default().to_owned();
    let fault = shared.fault(&method, &path, &query);
    let cuts = shared.cuts.subscribe();
    lock(&shared.passed).push(Passed { at: Instant::now(), method, path, query: query.clone(), faulty: fault.is_some() });
    match fault {
        None => {
            let answer = forward(&upstream, request).await;
            if is_watch(&query) { until_cut(answer, cuts) } else { answer }
        }
        Some(Answer::Refused { code, retry_after }) => {
            let mut answer = json_response(code, Body::from(status(code).to_string()));
            if let Some(seconds) = retry_after {
                answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            }
            answer
        }
        Some(Answer::Nothing) => std::future::pending().await,
        Some(Answer::Lost) => {
            let code = forward(&upstream, request).await.status();
            let broken = stream::iter([Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("cut"))]);
            json_response(code.as_u16(), Body::from_stream(broken))
        }
        Some(Answer::Gone) => json_response(200, Body::from(format!("{}\n", json!({"type": "ERROR", "object": status(410)})))),
    }
}

async fn forward(upstream: &Client, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    // It names the proxy.
    parts.headers.remove(header::HOST);
    let answer = async {
        let body = axum::body::to_bytes(body, MAX_BODY).await?;
        let request = http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
        anyhow::Ok(upstream.send(request).await?)
    };
    match answer.await {
        Ok(answer) => {
            let mut answer = answer.map(Body::new);
            // They are of one connection.
            for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
                answer.headers_mut().remove(name);
            }
            answer
        }
        Err(error) => json_response(502, Body::from(format!("{error:#}"))),
    }
}

fn until_cut(answer: Response, mut cuts: watch::Receiver<u64>) -> Response {
    answer.map(|body| {
        let cut = async move { drop(cuts.changed().await) };
        Body::from_stream(body.into_data_stream().take_until(Box::pin(cut)))
    })
}

fn json_response(code: u16, body: Body) -> Response {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}

/// The status object of the API server for a code.
fn status(code: u16) -> Value {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": match code {
            // As an API server answers for a moment after its start, before it has read its roles.
            403 => "statefulsets.apps is forbidden: User \"system:serviceaccount:t:t\" cannot do this: the proxy says 403".to_owned(),
            _ => format!("the proxy says {code}"),
        },
    })
}

/// A client of a proxy that listens there, for the present runtime.
pub fn client(url: &str) -> Result<Client> {
    Ok(Client::try_from(Config::new(url.parse()?))?)
}

/// A fault that hits so many requests of a method.
pub fn fault(method: Method, path: &str, answer: Answer, times: usize) -> Fault {
    Fault { method, path: path.to_owned(), watch: false, answer, times }
}

/// How long requests took from one to the next.
pub fn pauses(passed: &[Passed]) -> Vec<Duration> {
    passed.windows(2).map(|pair| pair[1].at.duration_since(pair[0].at)).collect()
}
