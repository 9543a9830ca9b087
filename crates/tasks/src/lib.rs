//! The tasks and threads of every process, and the consequence if one fails: one table, [`ALL`].
//!
//! Every thread and task is started with its entry, so that a panic is logged and counted and has the consequence that the entry
//! names. In: an entry and a body. Out: the body's result. It knows no async runtime: `eadt-service` starts async tasks.

mod table;

use std::any::Any;
use std::fmt::{Display, Write};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

pub use table::*;

/// The consequence of a failed task for the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The service cannot continue: all tasks drain, and the process ends with an error.
    Fatal,
    /// The task is restarted; the others continue.
    Restart,
    /// The code that started the task waits for it, and gets an error.
    Starter,
    /// The other tasks continue without it.
    Report,
}

impl OnFailure {
    /// Returns the text for the page and for log lines.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Fatal => "all tasks drain, and the process ends with an error",
            Self::Restart => "it is restarted",
            Self::Starter => "the caller that started it gets an error",
            Self::Report => "the other tasks continue without it",
        }
    }
}

/// A task's entry: the consequence of its failure, and how often it failed in this process.
#[derive(Debug)]
pub struct TaskEntry {
    /// The name in logs and metrics.
    pub name: &'static str,
    /// The services or commands that run it.
    pub place: &'static str,
    pub on_failure: OnFailure,
    /// The effect of that on users.
    pub meaning: &'static str,
    begun: AtomicBool,
    failures: AtomicU64,
}

impl TaskEntry {
    const fn new(name: &'static str, place: &'static str, on_failure: OnFailure, meaning: &'static str) -> Self {
        Self { name, place, on_failure, meaning, begun: AtomicBool::new(false), failures: AtomicU64::new(0) }
    }

    /// Records that the task runs in this process. Called by the code that starts it.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Returns whether the task has run in this process.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns how often the task failed in this process.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Logs and counts a failure.
    pub fn failed(&self, detail: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(task = self.name, detail, "task failed: {}", self.on_failure.text());
    }

    fn caught<T>(&self, body: impl FnOnce() -> T) -> std::thread::Result<T> {
        self.begin();
        let ended = catch_unwind(AssertUnwindSafe(body));
        if let Err(panic) = &ended {
            self.failed(&panicked(&**panic));
        }
        ended
    }

    /// Runs a body on this thread. A panic in it is logged and counted, and is the error.
    pub fn watch<T>(&self, body: impl FnOnce() -> T) -> Result<T, String> {
        self.caught(body).map_err(|panic| panicked(&*panic))
    }

    /// Runs a body on this thread until it returns. After a panic it runs again, after a pause.
    pub fn until_it_returns(&self, pause: Duration, mut body: impl FnMut()) {
        while self.watch(&mut body).is_err() {
            std::thread::sleep(pause);
        }
    }

    /// Runs a body on a new thread. A panic is logged and counted, and resumes in the thread that joins it.
    pub fn thread<T: Send + 'static>(&'static self, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        self.named(self.name.to_owned(), body)
    }

    /// The same, for one of several: the thread's name ends in `which`.
    pub fn thread_of<T: Send + 'static>(
        &'static self,
        which: impl Display,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        self.named(format!("{}-{which}", self.name), body)
    }

    fn named<T: Send + 'static>(
        &'static self,
        name: String,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        Builder::new().name(name).spawn(move || self.caught(body).unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// Returns the text of a panic, for logs and errors.
pub fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no message"))
}

/// Returns the table as a page of the documentation.
pub fn page() -> String {
    let mut page = String::from(
        "# What a failed task means\n\n\
         <!-- Generated by `cargo xtask generate` from crates/tasks; a test fails if it is out of date, or if code starts a task that is not here. -->\n\n\
         For operators who see a task in a log line or a metric.\n\n\
         Every process watches its tasks and threads. A panic or an error is logged with the task's name and counted in\n\
         `eadt_service_task_failures_total`; this table has the consequence. Temporary errors, such as an unavailable broker, are no failure of a task:\n\
         the task itself retries without limit.\n\n\
         | task | in | if it fails | effect |\n|---|---|---|---|\n",
    );
    for TaskEntry { name, place, on_failure, meaning, .. } in ALL {
        writeln!(page, "| `{name}` | {place} | {} | {meaning} |", on_failure.text()).expect("String");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_logged_and_begun_again() {
        static TASK: TaskEntry = TaskEntry::new("test", "tests", OnFailure::Restart, "");
        assert!(!TASK.has_begun());
        let mut left = 2;
        TASK.until_it_returns(Duration::ZERO, || {
            if left > 0 {
                left -= 1;
                panic!("on purpose");
            }
        });
        assert_eq!((left, TASK.has_begun(), TASK.failures()), (0, true, 2));
        assert_eq!(TASK.watch(|| -> u8 { panic!("{}", "on purpose") }), Err("panicked: on purpose".to_owned()));
        assert_eq!((TASK.watch(|| 7), TASK.failures()), (Ok(7), 3));
    }

    #[test]
    fn a_threads_panic_is_counted_and_goes_on_in_who_joins_it() {
        static TASK: TaskEntry = TaskEntry::new("test", "tests", OnFailure::Starter, "");
        let name = TASK.thread_of(3, || std::thread::current().name().map(str::to_owned)).unwrap().join().unwrap();
        assert_eq!(name.as_deref(), Some("test-3"));
        let panic = TASK.thread(|| -> () { panic!("on purpose") }).unwrap().join().unwrap_err();
        assert_eq!((panicked(&*panic).as_str(), TASK.failures()), ("panicked: on purpose", 1));
    }

    #[test]
    fn each_entry_has_a_name_of_its_own_and_a_description() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|task| task.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|task| !task.place.is_empty() && !task.meaning.is_empty()));
    }
}
