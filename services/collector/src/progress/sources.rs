//! The progress sources (workload and rank) known to an endpoint. Pure.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use eadt_schemas::EventTime;
use eadt_schemas::latest::{JobLifecycle, TrainingProgress};

/// Each source's last event, bounded in number: of all, and of each namespace, so that one that invents sources leaves room for
/// others.
#[derive(Debug)]
pub struct ProgressSources {
    last: HashMap<(String, u32), TrainingProgress>,
    /// Number of sources by namespace; a namespace without sources has no entry.
    of: HashMap<String, usize>,
    limit: usize,
    limit_per_namespace: usize,
}

/// There is no room for new sources.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceLimitError {
    #[error("{0} sources report already, no more are accepted; raise collector.progress.sources")]
    All(usize),
    #[error(
        "{known} sources of namespace {namespace:?} report already, no more are accepted; raise collector.progress.sources_per_namespace"
    )]
    Namespace { namespace: String, known: usize },
}

fn namespace(workload: &str) -> &str {
    workload.split_once('/').map_or(workload, |(namespace, _)| namespace)
}

impl ProgressSources {
    pub fn new(limit: usize, limit_per_namespace: usize) -> Self {
        Self { last: HashMap::new(), of: HashMap::new(), limit, limit_per_namespace }
    }

    pub fn len(&self) -> usize {
        self.last.len()
    }

    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Returns the last event of a source that has not ended.
    pub fn last(&self, workload: &str, rank: u32) -> Option<&TrainingProgress> {
        self.last.get(&(workload.to_owned(), rank))
    }

    /// Returns the time of an event that has none of its own and came at `now`: after all earlier events of its source.
    pub fn time(&self, workload: &str, rank: u32, now: EventTime) -> EventTime {
        self.last(workload, rank).map_or(now, |last| now.max(last.time.plus_micros(1)))
    }

    /// Checks whether all these events could be noted.
    pub fn room<'a>(&self, events: impl IntoIterator<Item = &'a TrainingProgress>) -> Result<(), SourceLimitError> {
        let new: HashSet<_> = events
            .into_iter()
            .map(|event| (event.workload.clone(), event.rank))
            .filter(|source| !self.last.contains_key(source))
            .collect();
        let mut coming = HashMap::new();
        for (workload, _) in &new {
            let own = namespace(workload);
            let known = self.of.get(own).copied().unwrap_or(0);
            let coming: &mut usize = coming.entry(own).or_default();
            *coming += 1;
            if known + *coming > self.limit_per_namespace {
                return Err(SourceLimitError::Namespace { namespace: own.to_owned(), known });
            }
        }
        if self.last.len() + new.len() > self.limit { Err(SourceLimitError::All(self.last.len())) } else { Ok(()) }
    }

    /// Records an event. The end of a source forgets the source. An event older than its source's last is stale to readers, and
    /// replaces no other source.
    pub fn note(&mut self, event: &TrainingProgress) {
        let source = (event.workload.clone(), event.rank);
        let own = namespace(&event.workload);
        if !event.last {
            match self.last.entry(source) {
                Entry::Occupied(mut last) if last.get().time <= event.time => _ = last.insert(event.clone()),
                Entry::Occupied(_) => {}
                Entry::Vacant(new) => {
                    new.insert(event.clone());
                    *self.of.entry(own.to_owned()).or_default() += 1;
                }
            }
        } else if self.last.remove(&source).is_some()
            && let Some(known) = self.of.get_mut(own)
        {
            *known -= 1;
            if *known == 0 {
                self.of.remove(own);
            }
        }
    }

    /// Forgets sources whose last event lies before `time`; a job that died sends no last event.
    pub fn forget_before(&mut self, time: EventTime) {
        self.last.retain(|_, event| event.time >= time);
        self.of.clear();
        for (workload, _) in self.last.keys() {
            *self.of.entry(namespace(workload).to_owned()).or_default() += 1;
        }
    }

    /// Ends every source: its last event once more, marked `last`. A repeated event adds nothing, its mark counts.
    pub fn end(&mut self) -> Vec<TrainingProgress> {
        self.of.clear();
        let mut events: Vec<_> = self
            .last
            .drain()
            .map(|(_, event)| {
                // `started` must not be reported twice.
                let phase = if event.phase == JobLifecycle::Started { JobLifecycle::Progress } else { event.phase };
                TrainingProgress { last: true, phase, ..event }
            })
            .collect();
        events.sort_by(|a, b| (&a.workload, a.rank).cmp(&(&b.workload, b.rank)));
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(rank: u32, at: i64) -> TrainingProgress {
        TrainingProgress {
            workload: "n/a".into(),
            rank,
            time: EventTime::from_micros(at),
            phase: JobLifecycle::Started,
            ..TrainingProgress::default()
        }
    }

    #[test]
    fn open_sources_are_ended_and_ended_ones_forgotten() {
        let mut sources = ProgressSources::new(2, 2);
        sources.note(&event(0, 5));
        sources.note(&event(1, 5));
        assert_eq!((sources.room(&[event(1, 6)]).is_ok(), sources.room(&[event(2, 6)]).is_ok()), (true, false));
        sources.note(&TrainingProgress { last: true, ..event(0, 6) });
        assert_eq!(sources.room(&[event(2, 6), event(2, 7)]), Ok(()));
        let ended = sources.end();
        assert_eq!(ended.iter().map(|e| (e.rank, e.last, e.phase)).collect::<Vec<_>>(), [(1, true, JobLifecycle::Progress)]);
        assert!(sources.end().is_empty());
        sources.note(&event(3, 5));
        sources.forget_before(EventTime::from_micros(6));
        assert!(sources.is_empty());
    }

    #[test]
    fn what_has_no_time_comes_after_its_sources_newest_event() {
        let mut sources = ProgressSources::new(2, 2);
        let at = EventTime::from_micros;
        let time = |sources: &ProgressSources, now| sources.time("n/a", 0, at(now));
        assert_eq!(time(&sources, 5), at(5), "nothing is known");
        sources.note(&event(0, 7));
        assert_eq!((time(&sources, 5), time(&sources, 7), time(&sources, 9)), (at(8), at(8), at(9)));
        // A stale event moves nothing back, and the last event is the newest.
        sources.note(&event(0, 3));
        assert_eq!((time(&sources, 5), sources.time("n/a", 1, at(5))), (at(8), at(5)));
        assert_eq!(sources.end().iter().map(|e| e.time).collect::<Vec<_>>(), [at(7)]);
    }

    #[test]
    fn a_namespace_that_invents_sources_leaves_room_for_others() {
        let mut sources = ProgressSources::new(5, 3);
        (0..3).for_each(|rank| sources.note(&event(rank, 5)));
        let full = Err(SourceLimitError::Namespace { namespace: "n".into(), known: 3 });
        assert_eq!((sources.room(&[event(2, 6)]), sources.room(&[event(3, 6)])), (Ok(()), full));
        let other = |rank| TrainingProgress { workload: "m/a".into(), ..event(rank, 5) };
        assert_eq!(sources.room(&[other(0), other(1)]), Ok(()));
        assert_eq!(sources.room(&[other(0), other(1), other(2)]), Err(SourceLimitError::All(3)));
        // Sources that ended or were forgotten make room.
        sources.note(&TrainingProgress { last: true, ..event(0, 6) });
        assert_eq!(sources.room(&[event(3, 6)]), Ok(()));
        sources.note(&event(3, 7));
        sources.forget_before(EventTime::from_micros(7));
        assert_eq!((sources.len(), sources.room(&[event(4, 8), event(5, 8)])), (1, Ok(())));
    }
}
