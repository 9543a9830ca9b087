//! Captured log lines.

use std::io::{Result, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Level};

#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<String>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        // A line is written in one piece.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(String::from_utf8_lossy(bytes).trim().to_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// With one subscriber alone, `tracing` asks that of the thread which comes to a line first: one that has none switches the line off
/// for all. With another one beside it, all are asked.
static OTHER: OnceLock<Dispatch> = OnceLock::new();

/// Returns the log lines that `of` writes on this thread, down to the level `DEBUG`, and its result. Each line begins with its
/// level: a message, then `name=value` of each field.
pub fn lines<T>(of: impl FnOnce() -> T) -> (Vec<String>, T) {
    OTHER.get_or_init(|| Dispatch::new(NoSubscriber::default()));
    let kept = Kept::default();
    let writer = kept.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    let given = tracing::subscriber::with_default(subscriber, of);
    let lines = std::mem::take(&mut *kept.0.lock().unwrap_or_else(PoisonError::into_inner));
    (lines, given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_with_their_levels_and_fields() {
        let (logged, given) = lines(|| {
            tracing::warn!(error = %"it is full", n = 7, "writing");
            tracing::debug!("again, and\nagain");
            tracing::trace!("not this one");
            3
        });
        assert_eq!(
            (logged.as_slice(), given),
            (&["WARN writing error=it is full n=7".to_owned(), "DEBUG again, and\nagain".to_owned()][..], 3)
        );
    }
}
