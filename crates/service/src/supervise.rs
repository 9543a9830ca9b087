//! Supervised tasks: no task dies silently.
//!
//! The first signal cancels [`Supervisor::shutdown`]; a task that sees it finishes what it holds and returns;
//! when the last one has returned, [`Supervisor::join`] does. What happens when a task fails is data: [`eadt_tasks::ALL`].

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use eadt_tasks::{OnFailure, TaskEntry, panicked};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use crate::Shutdown;

/// A task that failed or panicked.
#[derive(Debug, thiserror::Error)]
#[error("task {task} failed: {detail}")]
pub struct TaskFailure {
    pub task: &'static str,
    pub detail: String,
}

struct TaskExit {
    task: &'static TaskEntry,
    result: Result<(), String>,
}

/// Owns the tasks of a process.
pub struct Supervisor {
    shutdown: Shutdown,
    tasks: JoinSet<TaskExit>,
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

    /// Returns the shutdown that is cancelled when everything should drain.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Runs an async task.
    pub fn spawn<F, E>(&mut self, task: &'static TaskEntry, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<AnyError> + Send + 'static,
    {
        task.begin();
        // A task of its own, so that a panic is an error here and not an abort of the set.
        self.tasks.spawn(async move { TaskExit { task, result: task_result(tokio::spawn(future).await) } });
    }

    /// Runs a blocking task on a thread of its own; bus calls block.
    pub fn spawn_thread<F, E>(&mut self, task: &'static TaskEntry, body: F)
    where
        F: FnOnce() -> Result<(), E> + Send + 'static,
        E: Into<AnyError> + Send + 'static,
    {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let spawned = task.thread(move || {
            // Caught here: the caller that joins the thread logs it once, with the errors.
            let result = match catch_unwind(AssertUnwindSafe(body)) {
                Ok(result) => result.map_err(error_chain),
                Err(panic) => Err(panicked(&*panic)),
            };
            // The receiver lives in the join set; it is gone only when the process is aborted.
            drop(sender.send(result));
        });
        self.tasks.spawn(async move {
            let result = match spawned {
                Ok(_) => receiver.await.unwrap_or_else(|_| Err("its thread vanished".to_owned())),
                Err(error) => Err(format!("its thread did not start: {error}")),
            };
            TaskExit { task, result }
        });
    }

    /// Waits until every task has ended; the first fatal failure drains the rest and is returned.
    pub async fn join(mut self) -> Result<(), TaskFailure> {
        let mut first = None;
        while let Some(ended) = self.tasks.join_next().await {
            let Ok(ended) = ended else { continue };
            match ended.result {
                Ok(()) => tracing::debug!(task = ended.task.name, "task ended"),
                Err(detail) => {
                    ended.task.failed(&detail);
                    if ended.task.on_failure == OnFailure::Fatal {
                        self.shutdown.cancel();
                        first.get_or_insert(TaskFailure { task: ended.task.name, detail });
                    }
                }
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// Any error, or a text.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Returns an error with everything that led to it: sources are chained, so each gives its own part only.
fn error_chain(error: impl Into<AnyError>) -> String {
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

/// Runs an async task that is not joined and ends with the process. Its failure is logged and counted.
pub fn spawn_detached<F, E>(task: &'static TaskEntry, future: F) -> JoinHandle<()>
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<AnyError> + Send + 'static,
{
    task.begin();
    tokio::spawn(async move {
        if let Err(detail) = task_result(tokio::spawn(future).await) {
            task.failed(&detail);
        }
    })
}

/// Returns how an async task ended; one that the runtime cancelled did not fail.
fn task_result<E: Into<AnyError>>(joined: Result<Result<(), E>, JoinError>) -> Result<(), String> {
    match joined {
        Ok(result) => result.map_err(error_chain),
        Err(error) => error.try_into_panic().map_or(Ok(()), |panic| Err(panicked(&*panic))),
    }
}

/// Exit status after a second SIGINT, as shells have it.
const INTERRUPTED: i32 = 130;

/// Signals within this time of the first one are that one sent again: `timeout` signals the process, and then its group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Effect of a signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignalEffect {
    Drain,
    Ignored,
    Abort,
}

/// Decides about each signal that asks the process to end. Pure: the caller has the clock.
#[derive(Debug, Default)]
struct SignalPolicy {
    draining_since: Option<Instant>,
}

impl SignalPolicy {
    fn on_signal(&mut self, now: Instant, is_hangup: bool) -> SignalEffect {
        match self.draining_since {
            None => {
                self.draining_since = Some(now);
                SignalEffect::Drain
            }
            Some(first) if is_hangup || now.duration_since(first) < SAME_SIGNAL => SignalEffect::Ignored,
            Some(_) => SignalEffect::Abort,
        }
    }
}

/// Cancels `shutdown` at the first SIGINT, SIGTERM or SIGHUP; at a second SIGINT or SIGTERM, [`SAME_SIGNAL`] later or more, ends the
/// process at once, with status 130, after `before_end`, which gives the terminal back.
///
/// A terminal that is closed sends SIGHUP, and its shell may send another one: neither ends what drains. A SIGHUP that this process was
/// started to ignore, as by `nohup`, stays ignored.
pub async fn on_signals(shutdown: Shutdown, before_end: impl FnOnce()) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    // Read before a handler replaces the inherited one.
    let drains_at_hangup = !ignores_hangup();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = drains_at_hangup.then(|| signal(SignalKind::hangup())).transpose()?;
    let mut policy = SignalPolicy::default();
    loop {
        let is_hangup = tokio::select! {
            _ = interrupt.recv() => false,
            _ = terminate.recv() => false,
            () = next_hangup(hangup.as_mut()) => true,
        };
        match policy.on_signal(Instant::now(), is_hangup) {
            SignalEffect::Drain => {
                tracing::info!("draining; a second signal aborts");
                shutdown.cancel();
            }
            SignalEffect::Ignored => {}
            SignalEffect::Abort => break,
        }
    }
    before_end();
    tracing::warn!("aborted by a second signal before everything was drained");
    #[allow(clippy::disallowed_methods, reason = "the user asked twice: nothing is waited for any more")]
    std::process::exit(INTERRUPTED)
}

/// Returns at the next SIGHUP; never if it is ignored.
async fn next_hangup(hangup: Option<&mut tokio::signal::unix::Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns whether this process was started with SIGHUP ignored; also if the system does not report it, since a handler cannot
/// be undone.
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").ok().and_then(|status| is_first_signal_ignored(&status)).unwrap_or(true)
}

/// Reads from `/proc/PID/status` whether signal 1, SIGHUP, is ignored.
fn is_first_signal_ignored(status: &str) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()? & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_that_is_ignored_is_known() {
        assert_eq!(is_first_signal_ignored("Name:\teadt\nSigIgn:\t0000000000001001\n"), Some(true));
        assert_eq!(is_first_signal_ignored("SigIgn:\t0000000000001000\n"), Some(false));
        assert_eq!(is_first_signal_ignored("Name:\teadt\n"), None);
    }

    #[test]
    fn a_signal_that_comes_twice_in_a_moment_is_one_and_a_later_one_aborts() {
        use SignalEffect::{Abort, Drain, Ignored};
        let begun = Instant::now();
        // Milliseconds, whether it is SIGHUP, and the effect.
        for signals in [
            &[(0, false, Drain), (0, false, Ignored), (999, false, Ignored), (1000, false, Abort)][..],
            &[(0, true, Drain), (1, true, Ignored), (5000, true, Ignored), (5001, false, Abort)],
            &[(0, false, Drain), (2000, true, Ignored), (2000, false, Abort)],
            &[(0, true, Drain), (500, false, Ignored), (60_000, false, Abort)],
        ] {
            let mut policy = SignalPolicy::default();
            for (millis, is_hangup, effect) in signals {
                let now = begun + Duration::from_millis(*millis);
                assert_eq!(policy.on_signal(now, *is_hangup), *effect, "{millis} of {signals:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_panic_is_seen_and_drains_the_others() {
        let mut supervisor = Supervisor::default();
        let shutdown = supervisor.shutdown();
        supervisor.spawn(&eadt_tasks::PROCESSOR, async move {
            shutdown.cancelled().await;
            Ok::<_, String>(())
        });
        supervisor.spawn_thread(&eadt_tasks::ARCHIVER, || -> Result<(), String> { panic!("on purpose") });
        let failure = supervisor.join().await.unwrap_err();
        assert_eq!((failure.task, failure.detail.contains("on purpose")), ("archiver", true));
    }

    #[tokio::test]
    async fn a_failure_shows_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("a source cannot start")]
        struct Start(#[source] std::io::Error);
        let mut supervisor = Supervisor::default();
        let missing = std::io::Error::other("library not found");
        supervisor.spawn(&eadt_tasks::COLLECTOR, async { Err::<(), _>(Start(missing)) });
        let failure = supervisor.join().await.unwrap_err();
        assert_eq!(failure.detail, "a source cannot start: library not found");
    }

    #[tokio::test]
    async fn a_reported_failure_lets_the_others_finish() {
        let mut supervisor = Supervisor::default();
        let shutdown = supervisor.shutdown();
        let metrics = crate::MetricsRegistry::default();
        let counted = |text: &str| metrics.text().lines().any(|line| line == text);
        supervisor.spawn(&eadt_tasks::HTTP, async { Err("no".to_owned()) });
        supervisor.spawn(&eadt_tasks::PROCESSOR, async { Ok::<_, String>(()) });
        assert!(counted("eadt_service_task_failures_total{task=\"http\"} 0"), "{}", metrics.text());
        assert!(supervisor.join().await.is_ok());
        assert!(!shutdown.is_cancelled());
        assert!(counted("eadt_service_task_failures_total{task=\"http\"} 1"), "{}", metrics.text());
    }

    async fn panics() -> Result<(), String> {
        tokio::task::yield_now().await;
        panic!("on purpose")
    }

    #[tokio::test]
    async fn a_task_for_which_nobody_waits_is_reported_to_have_failed() {
        let before = eadt_tasks::SIGNALS.failures();
        spawn_detached(&eadt_tasks::SIGNALS, async { Ok::<_, String>(()) }).await.unwrap();
        assert_eq!(eadt_tasks::SIGNALS.failures(), before);
        spawn_detached(&eadt_tasks::SIGNALS, panics()).await.unwrap();
        spawn_detached(&eadt_tasks::SIGNALS, async { Err("no".to_owned()) }).await.unwrap();
        assert_eq!(eadt_tasks::SIGNALS.failures(), before + 2);
    }
}
