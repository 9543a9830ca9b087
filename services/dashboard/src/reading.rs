//! What the page answers while the record behind it is read: how far that is.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};

use crate::access::is_api;
use crate::api::ApiError;
use crate::assets;

/// Seconds after which a client asks again.
const ASK_AGAIN: &str = "1";
const SCRIPT_PATH: &str = "/reading.js";
/// A script of its own: a refresh by the page's head does not load an address with a fragment again.
const SCRIPT: &str = "setTimeout(() => location.reload(), 1000);\n";
const SCRIPT_TYPE: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");

/// How far a record is read. Clones are the same.
#[derive(Clone, Default)]
pub struct ReadingProgress(Arc<Progress>);

#[derive(Default)]
struct Progress {
    describe: OnceLock<Box<dyn Fn() -> String + Send + Sync>>,
    is_read: AtomicBool,
}

impl fmt::Debug for ReadingProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadingProgress").field("text", &self.text()).finish_non_exhaustive()
    }
}

impl ReadingProgress {
    /// Sets what tells how far it is: `12 MB of 40 MB read, 3 s left`. The first one counts.
    pub fn describe_by(&self, describe: impl Fn() -> String + Send + Sync + 'static) {
        drop(self.0.describe.set(Box::new(describe)));
    }

    /// Opens the page: the record is read.
    pub fn finish(&self) {
        self.0.is_read.store(true, Ordering::Release);
    }

    fn text(&self) -> String {
        let amounts = self.0.describe.get().map(|describe| describe()).filter(|text| !text.is_empty());
        amounts.map_or_else(|| "The record is being read".to_owned(), |amounts| format!("The record is being read: {amounts}"))
    }
}

/// Answers requests with the progress until the record is read.
pub async fn hold_back(State(progress): State<ReadingProgress>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // Also after the end: the page that shows the progress may ask for it last.
    if path == SCRIPT_PATH {
        return ([(header::CONTENT_TYPE, SCRIPT_TYPE)], SCRIPT).into_response();
    }
    if progress.0.is_read.load(Ordering::Acquire) || (assets::is_file(path) && path != "/") {
        return next.run(request).await;
    }
    let text = progress.text();
    let mut response = if is_api(path) {
        ApiError(StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Html(page(&text))).into_response()
    };
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(ASK_AGAIN));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn page(text: &str) -> String {
    // The text is of sizes and times, but might name a file one day.
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        r#"<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <meta name="color-scheme" content="light dark" />
    <title>EADT: reading</title>
    <link rel="stylesheet" href="/app.css" />
    <script src="{SCRIPT_PATH}"></script>
    <noscript><meta http-equiv="refresh" content="{ASK_AGAIN}" /></noscript>
  </head>
  <body>
    <main id="app"><h1 class="boot">EADT</h1><p class="boot" role="status">{text}.</p></main>
  </body>
</html>
"#
    )
}
