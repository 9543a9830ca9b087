//! One bounded HTTP GET.

use std::time::Duration;

use eadt_service::files::describe_size;
use reqwest::{Client, Url};

use crate::metrics::{CollectorMetrics, ScrapeLabel};
use crate::settings::ScrapeTarget;

/// The reason why a scrape gave no text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScrapeError {
    #[error("cannot reach it: {0}")]
    Unreachable(String),
    #[error("no complete answer within {0:?}")]
    Timeout(Duration),
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("its answer is larger than {0}; raise body_bytes if that is right")]
    TooLarge(String),
    #[error("its answer is not UTF-8")]
    NotText,
}

impl ScrapeError {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Timeout(_) => "timeout",
            Self::Status(_) => "status",
            Self::TooLarge(_) => "too_large",
            Self::NotText => "not_text",
        }
    }
}

/// Fetches one target again and again; logs once when it fails and once when it works again.
#[derive(Debug)]
pub(crate) struct Scraper {
    client: Client,
    target: ScrapeTarget,
    metrics: CollectorMetrics,
    failing: bool,
}

/// Returns a URL without parts that may be secret.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Neither can fail for an http URL; were it otherwise, they stay, which hides nothing less.
    let cleared = url.set_username("").and(url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    if cleared.is_ok() { url.to_string() } else { "target".to_owned() }
}

impl Scraper {
    pub fn new(target: ScrapeTarget, metrics: CollectorMetrics) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .timeout(target.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("eadt-collector/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { client, target, metrics, failing: false })
    }

    /// Returns the target as shown in logs and metrics.
    pub fn shown(&self) -> &str {
        &self.target.shown
    }

    pub fn interval(&self) -> Duration {
        self.target.interval
    }

    /// Returns the text; `None` after a failure, which is counted and, if it is the first in a row, logged.
    pub async fn text(&mut self) -> Option<String> {
        let result = self.fetch().await;
        let outcome = result.as_ref().map_or_else(ScrapeError::outcome, |_| "ok");
        self.metrics.scrapes.get_or_create(&ScrapeLabel { target: self.target.shown.clone(), outcome }).inc();
        match &result {
            Err(error) if !self.failing => {
                tracing::warn!(target_url = self.shown(), %error, "scrape failed; its samples are missing until it works again");
            }
            Ok(_) if self.failing => tracing::info!(target_url = self.shown(), "scrape works again"),
            _ => {}
        }
        self.failing = result.is_err();
        result.ok()
    }

    async fn fetch(&self) -> Result<String, ScrapeError> {
        let failed = |error: reqwest::Error| {
            if error.is_timeout() {
                return ScrapeError::Timeout(self.target.timeout);
            }
            let mut detail = String::new();
            let mut source: Option<&dyn std::error::Error> = std::error::Error::source(&error);
            // The error itself repeats the URL; its causes give the reason.
            while let Some(cause) = source {
                detail = cause.to_string();
                source = cause.source();
            }
            ScrapeError::Unreachable(if detail.is_empty() { error.without_url().to_string() } else { detail })
        };
        let mut response = self.client.get(self.target.url.clone()).send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(ScrapeError::Status(response.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > self.target.body_bytes {
                return Err(ScrapeError::TooLarge(describe_size(self.target.body_bytes as u64)));
            }
            body.extend_from_slice(&chunk);
        }
        String::from_utf8(body).map_err(|_| ScrapeError::NotText)
    }
}

/// Ticks of one target: late ones are passed over, not made up for.
pub(crate) fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    ticks
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;

    use super::*;

    async fn serve(router: Router) -> Url {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://user:secret@{}/metrics?token=x", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    /// Time limit of scrapes that are to be answered.
    const PATIENCE: Duration = Duration::from_mins(1);

    fn scraper(url: Url, timeout: Duration) -> Scraper {
        let target = ScrapeTarget { shown: shown(&url), url, interval: Duration::from_secs(1), timeout, body_bytes: 1024 };
        Scraper::new(target, CollectorMetrics::new(&eadt_service::MetricsRegistry::default())).unwrap()
    }

    #[tokio::test]
    async fn an_answer_is_bounded_in_size_and_time() {
        let slow = get(|| async {
            std::future::pending::<()>().await;
            ""
        });
        for (router, outcome) in [
            (Router::new().route("/metrics", get(|| async { "up 1\n" })), "ok"),
            (Router::new().route("/metrics", get(|| async { "x".repeat(1025) })), "too_large"),
            (Router::new().route("/metrics", get(|| async { vec![0xff, 0xfe] })), "not_text"),
            (Router::new().route("/metrics", get(|| async { StatusCode::SERVICE_UNAVAILABLE })), "status"),
            (Router::new().route("/metrics", slow), "timeout"),
        ] {
            let timeout = if outcome == "timeout" { Duration::from_millis(300) } else { PATIENCE };
            let scraper = scraper(serve(router).await, timeout);
            let seen = scraper.fetch().await;
            assert_eq!(seen.as_ref().map_or_else(ScrapeError::outcome, |_| "ok"), outcome);
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = scraper(format!("http://{free}/").parse().unwrap(), PATIENCE).fetch().await.unwrap_err();
        assert_eq!(error.outcome(), "unreachable");
        assert!(error.to_string().contains("refused"), "{error}");
    }

    #[tokio::test]
    async fn secrets_in_the_url_are_not_shown() {
        let scraper = scraper("http://user:secret@127.0.0.1:1/metrics?token=x".parse().unwrap(), PATIENCE);
        assert_eq!(scraper.shown(), "http://127.0.0.1:1/metrics");
    }
}
