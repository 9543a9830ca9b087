//! The page itself: built by `cargo xtask web` from `services/dashboard/web`, embedded as it is and compressed.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// A file of the page.
struct WebAsset {
    path: &'static str,
    kind: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

macro_rules! asset {
    ($path:literal, $file:literal, $kind:literal) => {
        WebAsset {
            path: $path,
            kind: $kind,
            plain: include_bytes!(concat!("../web/dist/", $file)),
            gzip: include_bytes!(concat!("../web/dist/", $file, ".gz")),
        }
    };
}

/// The same files as text, for a page in one file.
pub const INDEX: &str = include_str!("../web/dist/index.html");
pub const SCRIPT: &str = include_str!("../web/dist/app.js");
pub const STYLE: &str = include_str!("../web/dist/app.css");

static ASSETS: [WebAsset; 3] = [
    asset!("/", "index.html", "text/html; charset=utf-8"),
    asset!("/app.js", "app.js", "text/javascript; charset=utf-8"),
    asset!("/app.css", "app.css", "text/css; charset=utf-8"),
];

/// Everything comes from here, and nothing runs that is not a file of the page or written in it: a name that holds markup stays text.
pub static CONTENT_SECURITY_POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src 'self' {}; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        policy_hash(inline_script())
    );
    HeaderValue::from_str(&policy).expect("a policy is visible ASCII")
});

/// Returns the script that is written in the page: it loads the page again if one of its files could not be loaded.
pub fn inline_script() -> &'static str {
    let (_, from) = INDEX.split_once("<script>").expect("the page has a script of its own");
    from.split_once("</script>").expect("its script ends").0
}

/// Returns how a content security policy names a text that it lets in.
pub fn policy_hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

/// Returns the file of the page at this path.
fn find(path: &str) -> Option<&'static WebAsset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

/// Returns whether the page has a file at this path.
pub fn is_file(path: &str) -> bool {
    find(path).is_some()
}

/// Answers a request for a file of the page.
pub async fn serve(request: Request) -> Response {
    let Some(asset) = find(request.uri().path()) else {
        return (StatusCode::NOT_FOUND, "there is nothing here; the page is at /\n").into_response();
    };
    let (body, encoding) = if takes_gzip(request.headers()) { (asset.gzip, Some("gzip")) } else { (asset.plain, None) };
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    // A newer program has other files under the same names.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    response
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"))
            && !parts.any(|weight| matches!(weight, "q=0" | "q=0.0"))
    })
}
