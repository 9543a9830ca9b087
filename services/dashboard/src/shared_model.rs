//! The model that the listener shares with its writer.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;

use crate::model::DashboardModel;
use crate::model::overview::FleetOverview;
use crate::response_cache::REUSE;

/// Shortest time between two overviews.
pub(crate) const UPDATE_PAUSE: Duration = Duration::from_millis(500);
/// Longest time between them while something is new.
const MAX_UPDATE_PAUSE: Duration = Duration::from_secs(5);

/// Something new, as JSON.
#[derive(Debug, Serialize)]
struct OverviewUpdate<'a> {
    overview: &'a FleetOverview,
}

/// The overview of one version, ready to be sent.
#[derive(Debug, Clone)]
pub(crate) struct OverviewSnapshot {
    pub version: u64,
    pub update: Arc<str>,
    made: Instant,
    /// The next one is made after so long.
    pause: Duration,
}

impl OverviewSnapshot {
    /// Returns the time until the next overview may be made.
    pub(crate) fn due_in(&self) -> Duration {
        self.pause.saturating_sub(self.made.elapsed())
    }
}

/// Returns the time between two overviews, one of which `took` so long to make: an overview is used again as an answer is.
fn pause_after(took: Duration) -> Duration {
    (took * REUSE).clamp(UPDATE_PAUSE, MAX_UPDATE_PAUSE)
}

/// A model whose changes can be waited for. Clones are the same.
#[derive(Debug, Clone)]
pub struct SharedModel {
    model: Arc<RwLock<DashboardModel>>,
    version_sender: Arc<watch::Sender<u64>>,
    snapshot: Arc<Mutex<Option<OverviewSnapshot>>>,
    /// Distinguishes this process from another that served under the same address.
    pub(crate) boot: u64,
}

impl SharedModel {
    pub fn new(model: DashboardModel) -> Self {
        let version_sender = watch::Sender::new(model.version());
        // Without a random number two processes might give equal ids.
        let boot = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        Self { model: Arc::new(RwLock::new(model)), version_sender: Arc::new(version_sender), snapshot: Arc::default(), boot }
    }

    /// Reads the model.
    pub fn read<T>(&self, read: impl FnOnce(&DashboardModel) -> T) -> T {
        read(&self.model.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the model, and wakes waiting readers if it changed.
    pub fn change<T>(&self, change: impl FnOnce(&mut DashboardModel) -> T) -> T {
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut model);
        let version = model.version();
        drop(model);
        self.version_sender.send_if_modified(|known| std::mem::replace(known, version) != version);
        changed
    }

    /// Returns the overview for all followers. It is made at most once in a pause, for any number of them.
    pub(crate) fn snapshot(&self) -> OverviewSnapshot {
        let mut cached = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cached
            .as_ref()
            .filter(|cached| cached.due_in() > Duration::ZERO || cached.version == self.read(DashboardModel::version));
        if let Some(known) = known {
            return known.clone();
        }
        let begun = Instant::now();
        let overview = self.read(DashboardModel::overview);
        let update = serde_json::to_string(&OverviewUpdate { overview: &overview }).expect("every key is a string");
        let made = Instant::now();
        let pause = pause_after(made.duration_since(begun));
        let snapshot = OverviewSnapshot { version: overview.version, update: update.into(), made, pause };
        *cached = Some(snapshot.clone());
        snapshot
    }

    /// Waits for versions.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.version_sender.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overviews_of_a_large_fleet_follow_each_other_less_often() {
        for (took_ms, pause_ms) in [(0, 500), (2, 500), (12, 2_400), (100, 5_000)] {
            assert_eq!(pause_after(Duration::from_millis(took_ms)), Duration::from_millis(pause_ms), "{took_ms} ms");
        }
    }
}
