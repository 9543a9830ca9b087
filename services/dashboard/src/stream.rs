//! What changes, as server-sent events: at most two updates a second, and each notice once.
//!
//! The id of an event is the process's number and the model's version. Who reconnects with it gets what it missed, or, from another
//! process, a `reset`: everything it has is to be asked for anew.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::api::Context;
use crate::model::overview::Overview;

/// Shortest time between two updates.
const PAUSE: Duration = Duration::from_millis(500);
/// A comment so often shows both ends that the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Browsers wait so long before they connect again.
const RECONNECT: Duration = Duration::from_secs(1);

/// Something new.
#[derive(Debug, Serialize)]
struct Update {
    overview: Overview,
}

struct Subscription {
    context: Context,
    versions: watch::Receiver<u64>,
    /// Everything up to this version was sent.
    sent: Option<u64>,
    queue: VecDeque<Event>,
    next: Instant,
}

impl Subscription {
    /// The next event; `None` ends the stream.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some((Ok(event), self));
            }
            let shutdown = self.context.shutdown.clone();
            let waited = async {
                sleep_until(self.next).await;
                let sent = self.sent;
                self.versions.wait_for(|version| Some(*version) != sent).await.is_ok()
            };
            tokio::select! {
                () = shutdown.cancelled() => return None,
                there = waited => if !there { return None },
            }
            self.next = Instant::now() + PAUSE;
            self.fill();
        }
    }

    fn fill(&mut self) {
        let sent = self.sent;
        let (overview, notices) = self.context.model.read(|model| {
            let notices: Vec<_> = sent.map(|sent| model.notices_after(sent).cloned().collect()).unwrap_or_default();
            (model.overview(), notices)
        });
        let version = overview.version;
        let boot = self.context.model.boot;
        if sent.is_none() {
            self.queue.push_back(event("reset", boot, version, &"everything is to be asked for anew").retry(RECONNECT));
        }
        self.queue.extend(notices.iter().map(|notice| event("notice", boot, notice.version, notice)));
        self.queue.push_back(event("update", boot, version, &Update { overview }));
        self.sent = Some(version);
    }
}

fn event(name: &str, boot: u64, version: u64, data: &impl Serialize) -> Event {
    let text = serde_json::to_string(data).expect("every key is a string");
    Event::default().event(name).id(format!("{boot:016x}-{version}")).data(text)
}

/// `GET /api/v1/events`.
pub async fn events(State(context): State<Context>, headers: HeaderMap) -> Response {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let sent = last.and_then(|id| version_of(id, context.model.boot));
    let subscription =
        Subscription { versions: context.model.versions(), context, sent, queue: VecDeque::new(), next: Instant::now() };
    Sse::new(stream::unfold(subscription, Subscription::next)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

/// The version in an id; `None` if another process gave it.
fn version_of(id: &str, boot: u64) -> Option<u64> {
    let (process, version) = id.split_once('-')?;
    (u64::from_str_radix(process, 16) == Ok(boot)).then(|| version.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_to_the_process_that_gave_it() {
        for (id, version) in
            [("00000000000000ff-12", Some(12)), ("ff-12", Some(12)), ("fe-12", None), ("ff-x", None), ("12", None), ("", None)]
        {
            assert_eq!(version_of(id, 255), version, "{id}");
        }
    }
}
