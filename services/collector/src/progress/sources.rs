//! The progress sources (workload and rank) known to an endpoint. Pure.

use std::collections::HashMap;

use eadt_schemas::EventTime;
use eadt_schemas::latest::{Phase, TrainingProgress};

/// Each source's last event, bounded in number.
#[derive(Debug)]
pub struct Sources {
    last: HashMap<(String, u32), TrainingProgress>,
    limit: usize,
}

impl Sources {
    pub fn new(limit: usize) -> Self {
        Self { last: HashMap::new(), limit }
    }

    pub fn len(&self) -> usize {
        self.last.len()
    }

    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// The last event of a source that has not ended.
    pub fn last(&self, workload: &str, rank: u32) -> Option<&TrainingProgress> {
        self.last.get(&(workload.to_owned(), rank))
    }

    /// Whether all these events could be noted.
    pub fn has_room(&self, events: &[TrainingProgress]) -> bool {
        let new: std::collections::HashSet<_> = events
            .iter()
            .map(|event| (event.workload.clone(), event.rank))
            .filter(|source| !self.last.contains_key(source))
            .collect();
        self.last.len() + new.len() <= self.limit
    }

    /// Notes an event; the end of a source forgets it.
    pub fn note(&mut self, event: &TrainingProgress) {
        let source = (event.workload.clone(), event.rank);
        if event.last {
            self.last.remove(&source);
        } else {
            self.last.insert(source, event.clone());
        }
    }

    /// Forgets sources whose last event lies before `time`; a job that died says no farewell.
    pub fn forget_before(&mut self, time: EventTime) {
        self.last.retain(|_, event| event.time >= time);
    }

    /// Ends every source: its last event once more, marked `last`. A repeated event adds nothing, its mark counts.
    pub fn end(&mut self) -> Vec<TrainingProgress> {
        let mut events: Vec<_> = self
            .last
            .drain()
            .map(|(_, event)| {
                // `started` must not be said twice.
                let phase = if event.phase == Phase::Started { Phase::Progress } else { event.phase };
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
            phase: Phase::Started,
            ..TrainingProgress::default()
        }
    }

    #[test]
    fn open_sources_are_ended_and_ended_ones_forgotten() {
        let mut sources = Sources::new(2);
        sources.note(&event(0, 5));
        sources.note(&event(1, 5));
        assert!(sources.has_room(&[event(1, 6)]) && !sources.has_room(&[event(2, 6)]));
        sources.note(&TrainingProgress { last: true, ..event(0, 6) });
        assert!(sources.has_room(&[event(2, 6), event(2, 7)]));
        let ended = sources.end();
        assert_eq!(ended.iter().map(|e| (e.rank, e.last, e.phase)).collect::<Vec<_>>(), [(1, true, Phase::Progress)]);
        assert!(sources.end().is_empty());
        sources.note(&event(3, 5));
        sources.forget_before(EventTime::from_micros(6));
        assert!(sources.is_empty());
    }
}
