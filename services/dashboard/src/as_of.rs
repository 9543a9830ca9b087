//! Earlier moments of a record that does not grow: the page as it was then.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use eadt_schemas::EventTime;
use eadt_service::supervise::spawn_detached;
use eadt_service::tasks;
use tokio::sync::{Mutex, Semaphore};

use crate::model::DashboardModel;
use crate::record_identity::RecordError;
use crate::response_cache::ResponseCache;
use crate::shared_model::SharedModel;

/// A moment without requests for so long is dropped: it takes as much memory as the newest state.
const UNUSED_TTL: Duration = Duration::from_mins(5);
/// Questions that wait at once. A page asks several about each moment.
const MOST_WAITING: usize = 16;

/// No earlier moment can be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AsOfError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("other earlier moments are being read: ask again in a few seconds")]
    Busy,
    #[error("reading the record failed: see the log of this process")]
    Failed,
}

/// The model at an earlier time, and the answers made from it.
#[derive(Debug, Clone)]
pub(crate) struct AsOfModel {
    pub model: SharedModel,
    pub answers: Arc<ResponseCache>,
}

#[derive(Debug)]
struct CachedAsOfModel {
    time: EventTime,
    model: AsOfModel,
    /// Time of the last request about it.
    used: Instant,
}

/// Reads a record up to a moment. The moment that was asked for last is kept: a page asks several questions about it.
#[derive(Clone)]
pub struct AsOfReader {
    load: Arc<dyn Fn(EventTime) -> Result<DashboardModel, RecordError> + Send + Sync>,
    cached: Arc<Mutex<Option<CachedAsOfModel>>>,
    request_permits: Arc<Semaphore>,
}

impl fmt::Debug for AsOfReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsOfReader").finish_non_exhaustive()
    }
}

impl AsOfReader {
    /// Builds the reader. `load` returns everything up to a time; it may block.
    pub fn new(load: impl Fn(EventTime) -> Result<DashboardModel, RecordError> + Send + Sync + 'static) -> Self {
        Self { load: Arc::new(load), cached: Arc::default(), request_permits: Arc::new(Semaphore::new(MOST_WAITING)) }
    }

    /// Returns the figures as of a time. Moments are read one after the other, so that no more than one is in memory.
    pub(crate) async fn at(&self, time: EventTime) -> Result<AsOfModel, AsOfError> {
        let Ok(_place) = self.request_permits.try_acquire() else { return Err(AsOfError::Busy) };
        let mut cached = self.cached.clone().lock_owned().await;
        if let Some(known) = cached.as_mut()
            && known.time == time
        {
            known.used = Instant::now();
            return Ok(known.model.clone());
        }
        let kept_for_long = Arc::downgrade(&self.cached);
        drop(spawn_detached(&tasks::CONNECTION, async move {
            forget_unused(kept_for_long, time).await;
            Ok::<_, Infallible>(())
        }));
        let load = self.load.clone();
        // The turn ends with the work, even if the client has disconnected.
        let work = move || -> Result<AsOfModel, AsOfError> {
            *cached = None;
            let model = SharedModel::new(load(time)?);
            let moment = AsOfModel { model, answers: Arc::default() };
            *cached = Some(CachedAsOfModel { time, model: moment.clone(), used: Instant::now() });
            Ok(moment)
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| AsOfError::Failed)?
    }
}

/// Drops a moment after a long time without requests.
async fn forget_unused(cached: Weak<Mutex<Option<CachedAsOfModel>>>, time: EventTime) {
    loop {
        tokio::time::sleep(UNUSED_TTL).await;
        let Some(cached) = cached.upgrade() else { return };
        let mut cached = cached.lock().await;
        let Some(known) = cached.as_ref().filter(|known| known.time == time) else { return };
        if known.used.elapsed() >= UNUSED_TTL {
            *cached = None;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::sync_channel;

    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::model::{RetentionLimits, SourceFacts, SourceKind};

    fn empty() -> DashboardModel {
        let source =
            SourceFacts { kind: SourceKind::Archive, place: "a test".to_owned(), window_seconds: None, version: "0".to_owned() };
        DashboardModel::new(source, RetentionLimits::default())
    }

    #[tokio::test]
    async fn a_moment_that_nobody_waits_for_is_read_to_its_end_before_the_next() {
        // One place for each of the two loads.
        let (begun, mut loads) = mpsc::channel(2);
        let (release, gate) = sync_channel::<()>(2);
        let (gate, running) = (std::sync::Mutex::new(gate), AtomicUsize::new(0));
        let past = AsOfReader::new(move |_| {
            begun.try_send(running.fetch_add(1, Ordering::SeqCst) + 1).unwrap();
            gate.lock().unwrap().recv().unwrap();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(empty())
        });
        let ask = |millis| {
            let past = past.clone();
            tokio::spawn(async move { past.at(EventTime::from_millis(millis)).await })
        };
        let first = ask(1);
        assert_eq!(loads.recv().await, Some(1));
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let second = ask(2);
        let early = timeout(Duration::from_millis(200), loads.recv()).await;
        assert!(early.is_err(), "the first one is still being read: {early:?}");
        release.send(()).unwrap();
        assert_eq!(loads.recv().await, Some(1));
        release.send(()).unwrap();
        assert!(second.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_moment_is_kept_with_its_answers_and_too_many_questions_are_refused() {
        let past = AsOfReader::new(|_| Ok(empty()));
        let time = EventTime::from_millis(1);
        let (first, again) = (past.at(time).await.unwrap(), past.at(time).await.unwrap());
        assert!(Arc::ptr_eq(&first.answers, &again.answers) && first.model.boot == again.model.boot);
        let other = past.at(EventTime::from_millis(2)).await.unwrap();
        assert!(!Arc::ptr_eq(&first.answers, &other.answers));
        let places = past.request_permits.try_acquire_many(16).unwrap();
        assert!(matches!(past.at(time).await, Err(AsOfError::Busy)));
        drop(places);
        assert!(past.at(time).await.is_ok());
    }
}
