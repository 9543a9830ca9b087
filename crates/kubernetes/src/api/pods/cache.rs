//! Cache of owners: an object's controller hardly ever changes. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::chain::ControllerRef;

/// Owners by the uid of the owned object; bounded, and old entries are read again, since orphans may be adopted.
#[derive(Debug)]
pub struct OwnerCache {
    entries: HashMap<String, (Instant, Option<ControllerRef>)>,
    capacity: usize,
    good_for: Duration,
}

impl OwnerCache {
    pub fn new(capacity: usize, good_for: Duration) -> Self {
        Self { entries: HashMap::new(), capacity, good_for }
    }

    /// Returns the owner of an object; the outer `None` if unknown.
    #[allow(clippy::option_option, reason = "unknown, known to have none, known")]
    pub fn get(&self, uid: &str, now: Instant) -> Option<Option<ControllerRef>> {
        let (since, owner) = self.entries.get(uid)?;
        (now.saturating_duration_since(*since) < self.good_for).then(|| owner.clone())
    }

    pub fn put(&mut self, uid: &str, owner: Option<ControllerRef>, now: Instant) {
        if self.entries.len() >= self.capacity && !self.entries.contains_key(uid) {
            let good_for = self.good_for;
            self.entries.retain(|_, (since, _)| now.saturating_duration_since(*since) < good_for);
            while self.entries.len() >= self.capacity {
                let Some(oldest) = self.entries.iter().min_by_key(|(_, (since, _))| *since).map(|(uid, _)| uid.clone()) else {
                    break;
                };
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(uid.to_owned(), (now, owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_forgets_the_oldest_first() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut cache = OwnerCache::new(2, Duration::from_secs(100));
        cache.put("a", None, at(0));
        cache.put("b", None, at(1));
        cache.put("a", None, at(2));
        cache.put("c", None, at(3));
        assert_eq!([cache.get("a", at(4)), cache.get("b", at(4)), cache.get("c", at(4))], [Some(None), None, Some(None)]);
        assert_eq!(cache.get("a", at(102)), None, "too old");
        cache.put("d", None, at(102));
        assert!(cache.get("c", at(102)).is_some() && cache.get("d", at(102)).is_some());
        assert_eq!(cache.entries.len(), 2);
    }
}
