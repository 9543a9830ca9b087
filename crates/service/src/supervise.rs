//! Supervised tasks: no task dies silently.
//!
//! The first signal cancels [`Supervisor::shutdown`]; a task that sees it finishes what it holds and returns;
//! when the last one has returned, [`Supervisor::join`] does. What happens when a task fails is data: [`OnFailure`].

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use tokio::task::JoinSet;

use crate::Shutdown;

/// What a failed task means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The service cannot go on: everything drains, and the process ends with an error.
    Fatal,
    /// It is reported and counted; the others go on without it.
    Report,
}

/// A task that failed or panicked.
#[derive(Debug, thiserror::Error)]
#[error("task {task} failed: {detail}")]
pub struct Failure {
    pub task: &'static str,
    pub detail: String,
}

struct Ended {
    task: &'static str,
    on_failure: OnFailure,
    result: Result<(), String>,
}

/// Owns the tasks of a process.
pub struct Supervisor {
    shutdown: Shutdown,
    tasks: JoinSet<Ended>,
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new(Shutdown::new())
    }
}

impl Supervisor {
    pub fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, tasks: JoinSet::new() }
    }

    /// Cancelled when everything should drain.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Runs an async task.
    pub fn spawn<F, E>(&mut self, task: &'static str, on_failure: OnFailure, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<AnyError> + Send + 'static,
    {
        self.tasks.spawn(async move {
            // A task of its own, so that a panic is an error here and not an abort of the set.
            let result = match tokio::spawn(future).await {
                Ok(result) => result.map_err(chain),
                Err(error) => Err(format!("panicked: {error}")),
            };
            Ended { task, on_failure, result }
        });
    }

    /// Runs a blocking task on a thread of its own; bus calls block.
    pub fn spawn_thread<F, E>(&mut self, task: &'static str, on_failure: OnFailure, body: F)
    where
        F: FnOnce() -> Result<(), E> + Send + 'static,
        E: Into<AnyError> + Send + 'static,
    {
        let (tell, told) = tokio::sync::oneshot::channel();
        let spawned = std::thread::Builder::new().name(task.to_owned()).spawn(move || {
            let result = std::panic::catch_unwind(AssertUnwindSafe(body));
            let result = match result {
                Ok(result) => result.map_err(chain),
                Err(panic) => Err(format!("panicked: {}", panic_text(&*panic))),
            };
            // The receiver lives in the join set; it is gone only when the process is aborted.
            drop(tell.send(result));
        });
        self.tasks.spawn(async move {
            let result = match spawned {
                Ok(_) => told.await.unwrap_or_else(|_| Err("its thread vanished".to_owned())),
                Err(error) => Err(format!("its thread did not start: {error}")),
            };
            Ended { task, on_failure, result }
        });
    }

    /// Waits until every task has ended; the first fatal failure drains the rest and is returned.
    pub async fn join(mut self) -> Result<(), Failure> {
        let mut first = None;
        while let Some(ended) = self.tasks.join_next().await {
            let Ok(ended) = ended else { continue };
            match ended.result {
                Ok(()) => tracing::debug!(task = ended.task, "task ended"),
                Err(detail) => {
                    tracing::error!(task = ended.task, %detail, "task failed");
                    if ended.on_failure == OnFailure::Fatal {
                        self.shutdown.cancel();
                        first.get_or_insert(Failure { task: ended.task, detail });
                    }
                }
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// Any error, or a text.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// An error with everything that led to it: sources are chained, so each says its own part only.
fn chain(error: impl Into<AnyError>) -> String {
    let error = error.into();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let part = cause.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        source = cause.source();
    }
    text
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Exit status after a second SIGINT, as shells have it.
const INTERRUPTED: i32 = 130;

/// Cancels `shutdown` at the first SIGINT or SIGTERM; at the second one ends the process at once, with status 130, after
/// `before_end`, which gives the terminal back.
pub async fn on_signals(shutdown: Shutdown, before_end: impl FnOnce()) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    for first in [true, false] {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if first {
            tracing::info!("draining; a second signal aborts");
            shutdown.cancel();
        }
    }
    before_end();
    #[allow(clippy::disallowed_methods, reason = "the user asked twice: nothing is waited for any more")]
    std::process::exit(INTERRUPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_seen_and_drains_the_others() {
        let mut supervisor = Supervisor::default();
        let shutdown = supervisor.shutdown();
        supervisor.spawn("waits", OnFailure::Fatal, async move {
            shutdown.cancelled().await;
            Ok::<_, String>(())
        });
        supervisor.spawn_thread("panics", OnFailure::Fatal, || -> Result<(), String> { panic!("on purpose") });
        let failure = supervisor.join().await.unwrap_err();
        assert_eq!((failure.task, failure.detail.contains("on purpose")), ("panics", true));
    }

    #[tokio::test]
    async fn a_failure_tells_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("a source cannot start")]
        struct Start(#[source] std::io::Error);
        let mut supervisor = Supervisor::default();
        let missing = std::io::Error::other("library not found");
        supervisor.spawn("collector", OnFailure::Fatal, async { Err::<(), _>(Start(missing)) });
        let failure = supervisor.join().await.unwrap_err();
        assert_eq!(failure.detail, "a source cannot start: library not found");
    }

    #[tokio::test]
    async fn a_reported_failure_lets_the_others_finish() {
        let mut supervisor = Supervisor::default();
        let shutdown = supervisor.shutdown();
        supervisor.spawn("fails", OnFailure::Report, async { Err("no".to_owned()) });
        supervisor.spawn("works", OnFailure::Fatal, async { Ok::<_, String>(()) });
        assert!(supervisor.join().await.is_ok());
        assert!(!shutdown.is_cancelled());
    }
}
