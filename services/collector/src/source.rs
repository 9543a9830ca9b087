//! Common interface of all sources of events.

use std::fmt;
use std::pin::Pin;

use eadt_service::Shutdown;
use eadt_service::tasks::TaskEntry;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A source that cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[error("{source_name}: {detail}")]
pub struct SourceError {
    pub source_name: &'static str,
    /// The problem, its object, and the remedy.
    pub detail: String,
}

impl SourceError {
    pub fn new(source_name: &'static str, detail: impl fmt::Display) -> Self {
        Self { source_name, detail: detail.to_string() }
    }
}

/// A source of events.
pub trait CollectorSource: Send + fmt::Debug {
    /// Returns the source's task.
    fn task(&self) -> &'static TaskEntry;
    /// Opens its resources (a port, a library), so that a missing one is an error at start.
    fn open(&mut self) -> BoxFuture<'_, Result<(), SourceError>>;
    /// Delivers until `shutdown`, then marks the end of the delivered data and returns.
    fn run(self: Box<Self>, shutdown: Shutdown) -> BoxFuture<'static, Result<(), SourceError>>;
}
