//! Access rules: names under which the page is reached, pages that may send requests, tokens.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use eadt_service::files;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::api::ApiError;
use crate::assets::CONTENT_SECURITY_POLICY;

/// Shortest token that is taken.
const SHORTEST_TOKEN: usize = 16;
/// The cookie in which a browser keeps its token: a stream of events cannot carry another header.
pub const COOKIE: &str = "eadt_token";

/// Longest name of a person, and of a namespace.
const LONGEST_NAME: usize = 63;
/// Prefix of the namespaces of a token in the file of tokens.
const NAMESPACES: &str = "namespaces=";
/// Name of the client if no token is needed: the user of this machine.
const LOCAL: &str = "local";

/// A person who may change policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditorIdentity {
    pub name: String,
    /// The namespaces whose policies they may change; `None` for all.
    pub namespaces: Option<Vec<String>>,
}

impl EditorIdentity {
    /// Returns whether they may change policies of this namespace.
    pub fn may_change(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|own| own.iter().any(|own| own == namespace))
    }
}

/// A token, as its digest.
#[derive(Clone, PartialEq, Eq)]
struct AccessToken {
    digest: [u8; 32],
    /// The user who may change policies with it; `None` if it may only read.
    editor: Option<EditorIdentity>,
}

/// Tokens of readers.
#[derive(Clone, Default)]
pub struct AccessTokens(Vec<AccessToken>);

impl fmt::Debug for AccessTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessTokens({})", self.0.len())
    }
}

impl AccessTokens {
    /// Reads a file of tokens, one a line. A name after the token lets it change policies; namespaces after the name limit which.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = files::read_text(path, files::SMALL_BYTES)
            .map_err(|error| format!("cannot read dashboard.token_file={}: {error}", path.display()))?;
        Self::parse(&text).map_err(|detail| format!("dashboard.token_file={}: {detail}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let (token, name) = (words.next().unwrap_or_default(), words.next());
            if token.len() < SHORTEST_TOKEN || !token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';' && byte != b',')
            {
                return Err(format!(
                    "line {}: a token has at least {SHORTEST_TOKEN} characters, visible ASCII without comma and semicolon",
                    number + 1
                ));
            }
            let (namespaces, more) = (words.next(), words.next());
            let editor = name.map(|name| {
                parse_editor(name, namespaces).filter(|_| more.is_none()).ok_or_else(|| {
                    format!(
                        "line {}: after the token comes nothing, or the name of the person who may change policies by it (at most \
                         {LONGEST_NAME} letters, digits and . _ @ -); after the name nothing, or the only namespaces in which they \
                         may, such as {NAMESPACES}team-a,team-b",
                        number + 1
                    )
                })
            });
            let editor = editor.transpose()?;
            tokens.push(AccessToken { digest: Sha256::digest(token.as_bytes()).into(), editor });
        }
        if tokens.is_empty() { Err("it holds no token".to_owned()) } else { Ok(Self(tokens)) }
    }

    /// Finds a token, in a time that does not depend on which of them it is.
    fn find(&self, token: &str) -> Option<&AccessToken> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = None;
        for token in &self.0 {
            if bool::from(token.digest[..].ct_eq(&digest[..])) {
                found = Some(token);
            }
        }
        found
    }
}

/// Parses the text after a token, `alice namespaces=team-a,team-b`; returns `None` if it is invalid.
fn parse_editor(name: &str, namespaces: Option<&str>) -> Option<EditorIdentity> {
    let is_name = |name: &str| {
        name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte))
    };
    let is_namespace = |name: &str| {
        (1..=LONGEST_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let names: Option<Vec<&str>> = match namespaces {
        Some(text) => Some(text.strip_prefix(NAMESPACES)?.split(',').collect()),
        None => None,
    };
    let fits = is_name(name) && names.iter().flatten().all(|name| is_namespace(name));
    let namespaces = names.map(|names| names.into_iter().map(str::to_owned).collect());
    fits.then(|| EditorIdentity { name: name.to_owned(), namespaces })
}

/// The rules of one listener.
#[derive(Debug, Clone)]
pub struct AccessRules {
    pub bound: SocketAddr,
    pub hosts: Vec<String>,
    /// `None` if all clients that reach the address may read.
    pub tokens: Option<AccessTokens>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessRefusal {
    Host,
    Origin,
    Token,
    /// Its token is none of the file's.
    UnknownToken,
    /// Its token may read, and no more.
    ReadOnly,
}

impl AccessRefusal {
    /// Returns the status, and what to do.
    fn status(self) -> (StatusCode, &'static str) {
        match self {
            Self::Host => (
                StatusCode::MISDIRECTED_REQUEST,
                "this name is not the page's: ask for it by its address, or add the name to dashboard.hosts",
            ),
            Self::Origin => (StatusCode::FORBIDDEN, "another page may not ask here"),
            Self::ReadOnly => (
                StatusCode::FORBIDDEN,
                "you may only read: a token with a name after it in the file of dashboard.token_file changes policies",
            ),
            Self::Token => (StatusCode::UNAUTHORIZED, "a token is needed: send it as `Authorization: Bearer TOKEN`"),
            Self::UnknownToken => (
                StatusCode::UNAUTHORIZED,
                "this token is not known here: ask for one of those in the file of dashboard.token_file",
            ),
        }
    }

    /// Answers a request for this path: a file of the page is asked for by people.
    fn answer(self, path: &str) -> Response {
        if is_api(path) {
            return self.into_response();
        }
        let (status, text) = self.status();
        (status, format!("{text}\n")).into_response()
    }
}

/// As every other error of the interface.
impl IntoResponse for AccessRefusal {
    fn into_response(self) -> Response {
        let (status, text) = self.status();
        let mut response = ApiError(status, text.to_owned()).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Returns whether a path is of the interface, and not of a file of the page.
pub fn is_api(path: &str) -> bool {
    path.starts_with("/api/")
}

impl AccessRules {
    /// Returns an error if a request may not be answered. Files of the page hold no data and need no token.
    pub fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), AccessRefusal> {
        let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let host = text(header::HOST).unwrap_or_default();
        if !self.is_ours(name_of(host)) {
            return Err(AccessRefusal::Host);
        }
        if let Some(origin) = text(header::ORIGIN) {
            let same = origin
                .split_once("://")
                .is_some_and(|(scheme, of)| matches!(scheme, "http" | "https") && of.eq_ignore_ascii_case(host));
            if !same {
                return Err(AccessRefusal::Origin);
            }
        }
        let api = is_api(path);
        if api && headers.get("sec-fetch-site").is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
            return Err(AccessRefusal::Origin);
        }
        let open = !api || (path == "/api/v1/session" && method == Method::POST);
        if open || self.token_fits(headers) { Ok(()) } else { Err(refusal_without_token(headers)) }
    }

    /// Returns whether the token that comes with these headers may read.
    pub fn token_fits(&self, headers: &HeaderMap) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens_of(headers).any(|token| tokens.find(token).is_some()))
    }

    /// Returns the user of a request, if they may change policies.
    pub fn editor(&self, headers: &HeaderMap) -> Result<EditorIdentity, AccessRefusal> {
        let Some(tokens) = &self.tokens else {
            // Behind a proxy of this machine, all clients would come from here.
            let is_private = self.bound.ip().is_loopback() && self.hosts.is_empty();
            let local = || EditorIdentity { name: LOCAL.to_owned(), namespaces: None };
            return is_private.then(local).ok_or(AccessRefusal::ReadOnly);
        };
        let found: Vec<_> = tokens_of(headers).filter_map(|token| tokens.find(token)).collect();
        let refusal = if found.is_empty() { refusal_without_token(headers) } else { AccessRefusal::ReadOnly };
        found.into_iter().find_map(|token| token.editor.clone()).ok_or(refusal)
    }

    /// Returns whether a token alone may read.
    pub fn accepts_token(&self, token: &str) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens.find(token).is_some())
    }

    fn is_ours(&self, host: &str) -> bool {
        if self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host)) {
            return true;
        }
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        if self.bound.ip().is_loopback() {
            return host.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback());
        }
        // A page elsewhere can point a name of its own here, but not an address.
        address.is_some()
    }
}

/// Returns the tokens that come with a request.
fn tokens_of(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    let cookies = text(header::COOKIE).unwrap_or_default().split(';').filter_map(|cookie| cookie.trim().split_once('='));
    let cookie = cookies.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value);
    bearer.into_iter().chain(cookie)
}

/// Returns the name in a `Host`, without its port.
fn name_of(host: &str) -> &str {
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Checks each request, and sets the security headers of the response.
pub async fn guard(State(access): State<Arc<AccessRules>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let mut response = match access.check(request.method(), path, request.headers()) {
        Err(refusal) => refusal.answer(path),
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY.clone());
    response
}

/// Returns why a request is refused whose token does not fit.
fn refusal_without_token(headers: &HeaderMap) -> AccessRefusal {
    if tokens_of(headers).any(|token| !token.is_empty()) { AccessRefusal::UnknownToken } else { AccessRefusal::Token }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123";

    fn access(bound: &str, hosts: &[&str], tokens: bool) -> AccessRules {
        AccessRules {
            bound: bound.parse().unwrap(),
            hosts: hosts.iter().map(ToString::to_string).collect(),
            tokens: tokens.then(|| AccessTokens::parse(TOKEN).unwrap()),
        }
    }

    fn asked(access: &AccessRules, path: &str, headers: &[(&'static str, &str)]) -> Result<(), AccessRefusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        access.check(&Method::GET, path, &map)
    }

    #[test]
    fn only_the_pages_own_names_are_answered() {
        let local = access("127.0.0.1:9580", &[], false);
        let wide = access("0.0.0.0:9580", &["eadt.example.org"], true);
        for (of, host, fits) in [
            (&local, "127.0.0.1:9580", true),
            (&local, "localhost:9580", true),
            (&local, "LOCALHOST", true),
            (&local, "[::1]:9580", true),
            (&local, "evil.example:9580", false),
            (&local, "localhost.evil.example", false),
            (&local, "192.0.2.7", false),
            (&local, "", false),
            (&wide, "192.0.2.7:9580", true),
            (&wide, "[2001:db8::1]:9580", true),
            (&wide, "EADT.example.org", true),
            (&wide, "evil.example", false),
        ] {
            assert_eq!(asked(of, "/", &[("host", host)]).is_ok(), fits, "{host}");
        }
        assert_eq!(asked(&local, "/", &[]), Err(AccessRefusal::Host));
    }

    #[test]
    fn another_page_may_not_ask() {
        let local = access("127.0.0.1:9580", &[], false);
        let host = ("host", "localhost:9580");
        for (header, fits) in [
            (("origin", "http://localhost:9580"), true),
            (("origin", "http://localhost:8080"), false),
            (("origin", "https://evil.example"), false),
            (("origin", "null"), false),
            (("sec-fetch-site", "same-origin"), true),
            (("sec-fetch-site", "none"), true),
            (("sec-fetch-site", "cross-site"), false),
            (("sec-fetch-site", "same-site"), false),
        ] {
            assert_eq!(asked(&local, "/api/v1/fleet", &[host, header]).is_ok(), fits, "{header:?}");
        }
        // A link from elsewhere to the page itself.
        assert_eq!(asked(&local, "/", &[host, ("sec-fetch-site", "cross-site")]), Ok(()));
    }

    #[test]
    fn a_token_opens_the_data_and_nothing_else_does() {
        let wide = access("0.0.0.0:9580", &[], true);
        let host = ("host", "192.0.2.7:9580");
        let (bearer, lower) = (format!("Bearer {TOKEN}"), format!("bearer  {TOKEN}"));
        let cookies = format!("a=b; {COOKIE}={TOKEN}");
        assert_eq!(asked(&wide, "/", &[host]), Ok(()), "the page asks for the token");
        for (headers, answer) in [
            (vec![host], Err(AccessRefusal::Token)),
            (vec![host, ("authorization", &*bearer)], Ok(())),
            (vec![host, ("authorization", &*lower)], Ok(())),
            (vec![host, ("authorization", "Bearer 0123456789abcdef0124")], Err(AccessRefusal::UnknownToken)),
            (vec![host, ("authorization", TOKEN)], Err(AccessRefusal::Token)),
            (vec![host, ("cookie", &*cookies)], Ok(())),
            (vec![host, ("cookie", "eadt_token=")], Err(AccessRefusal::Token)),
        ] {
            assert_eq!(asked(&wide, "/api/v1/fleet", &headers), answer, "{headers:?}");
        }
    }

    #[test]
    fn a_name_after_a_token_lets_it_change_policies() {
        let tokens = AccessTokens::parse(&format!("{TOKEN}\nfedcba9876543210\talice@example.org\n")).unwrap();
        let wide = AccessRules { tokens: Some(tokens), ..access("0.0.0.0:9580", &[], false) };
        let asked = |access: &AccessRules, headers: &HeaderMap| access.editor(headers).map(|editor| editor.name);
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(asked(&wide, &headers("Bearer fedcba9876543210")), Ok("alice@example.org".to_owned()));
        assert_eq!(asked(&wide, &headers(&format!("Bearer {TOKEN}"))), Err(AccessRefusal::ReadOnly));
        assert_eq!(asked(&wide, &headers("Bearer alice@example.org")), Err(AccessRefusal::UnknownToken));
        assert_eq!(asked(&wide, &HeaderMap::new()), Err(AccessRefusal::Token));
        assert_eq!(asked(&access("127.0.0.1:9580", &[], false), &HeaderMap::new()), Ok(LOCAL.to_owned()));
        let proxied = access("127.0.0.1:9580", &["eadt.example.org"], false);
        assert_eq!(asked(&proxied, &HeaderMap::new()), Err(AccessRefusal::ReadOnly), "everybody comes from here");
    }

    #[test]
    fn namespaces_after_a_name_limit_what_it_changes() {
        let tokens = AccessTokens::parse(&format!("{TOKEN} alice\nfedcba9876543210 bob  namespaces=team-a,team-2\n")).unwrap();
        let editor = |token: &str| tokens.find(token).unwrap().editor.clone().unwrap();
        let (alice, bob) = (editor(TOKEN), editor("fedcba9876543210"));
        assert!(alice.may_change("team-a") && alice.may_change("other"));
        assert!(bob.may_change("team-a") && bob.may_change("team-2"));
        assert!(["team", "team-a2", "TEAM-A", "team-a/x", ""].iter().all(|namespace| !bob.may_change(namespace)));
        let long = "a".repeat(64);
        for names in ["", "a,", "a, b", "a/b", "*", "A", &long] {
            let text = format!("{TOKEN} alice namespaces={names}\n");
            let refused = AccessTokens::parse(&text).unwrap_err();
            assert!(refused.contains("line 1") && refused.contains("namespaces=team-a,team-b"), "{text:?}: {refused}");
        }
        assert!(AccessTokens::parse(&format!("{TOKEN} namespaces=a\n")).is_err(), "nobody has a name with =");
    }

    #[test]
    fn a_file_of_tokens_is_read_line_by_line() {
        let tokens = AccessTokens::parse("# readers\n\n  0123456789abcdef0123  \nfedcba9876543210\n").unwrap();
        let reads = |token: &str| tokens.find(token).is_some_and(|token| token.editor.is_none());
        assert!(reads(TOKEN) && reads("fedcba9876543210") && tokens.find("# readers").is_none());
        let long = format!("{TOKEN} {}\n", "a".repeat(64));
        for (text, why) in [
            ("", "no token"),
            ("# none\n", "no token"),
            ("short\n", "line 1"),
            ("0123456789abcdef;x\n", "line 1"),
            ("0123456789abcdef0123 alice admin\n", "line 1"),
            ("0123456789abcdef0123 al/ice\n", "line 1"),
            (&long, "line 1"),
        ] {
            let refused = AccessTokens::parse(text).unwrap_err();
            assert!(refused.contains(why), "{text:?}: {refused}");
        }
        assert_eq!(format!("{tokens:?}"), "AccessTokens(2)");
    }
}
