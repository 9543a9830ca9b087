//! Streams changes as server-sent events: at most two updates a second, fewer of a large fleet, and each notice once.
//!
//! The id of an event is the process's number and the model's version. A client that reconnects with it gets the missed
//! updates, or, from another process, a `reset`: then it must request everything again.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::api::ApiContext;
use crate::shared_model::UPDATE_PAUSE;

/// A snapshot that holds nothing new is looked at again after so long, or when the next one is due.
const SOON: Duration = Duration::from_millis(50);
/// A comment so often shows both ends that the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Browsers wait so long before they connect again.
const RECONNECT: Duration = Duration::from_secs(1);

struct SseSubscription {
    context: ApiContext,
    versions: watch::Receiver<u64>,
    /// Everything up to this version was sent.
    sent: Option<u64>,
    queue: VecDeque<Event>,
    next: Instant,
}

impl SseSubscription {
    /// Returns the next event; `None` ends the stream.
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
            self.next = Instant::now() + UPDATE_PAUSE;
            self.fill();
        }
    }

    fn fill(&mut self) {
        let snapshot = self.context.model.snapshot();
        if self.sent.is_some_and(|sent| sent >= snapshot.version) {
            // The snapshot does not hold the news yet: the next one is due soon.
            self.next = Instant::now() + snapshot.due_in().max(SOON);
            return;
        }
        let (sent, version) = (self.sent, snapshot.version);
        let notices: Vec<_> = self.context.model.read(|model| {
            let after = sent.map(|sent| model.notices_after(sent).filter(|notice| notice.version <= version).cloned());
            after.into_iter().flatten().collect()
        });
        let boot = self.context.model.boot;
        if sent.is_none() {
            self.queue.push_back(event("reset", boot, version, "\"everything is to be asked for anew\"").retry(RECONNECT));
        }
        let text = |notice| serde_json::to_string(notice).expect("every key is a string");
        self.queue.extend(notices.iter().map(|notice| event("notice", boot, notice.version, &text(notice))));
        self.queue.push_back(event("update", boot, version, &snapshot.update));
        self.sent = Some(version);
    }
}

fn event(name: &str, boot: u64, version: u64, json: &str) -> Event {
    Event::default().event(name).id(format!("{boot:016x}-{version}")).data(json)
}

/// Serves `GET /api/v1/events`.
pub async fn events(State(context): State<ApiContext>, headers: HeaderMap) -> Response {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let sent = last.and_then(|id| version_of(id, context.model.boot));
    let subscription =
        SseSubscription { versions: context.model.versions(), context, sent, queue: VecDeque::new(), next: Instant::now() };
    Sse::new(stream::unfold(subscription, SseSubscription::next))
        .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
        .into_response()
}

/// Returns the version in an id; `None` if another process gave it.
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
