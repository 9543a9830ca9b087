//! Fetch sessions (KIP-227): the broker remembers the last request, so that a request names only changes.

use std::collections::HashMap;

use super::messages::{FetchPosition, PartitionName};

/// The epoch of a request that makes a session.
const FIRST: i32 = 0;

/// A fetch session with one broker: the positions that it was last sent.
#[derive(Debug, Default)]
pub struct FetchSession {
    /// 0: there is none.
    id: i32,
    epoch: i32,
    known: HashMap<PartitionName, FetchPosition>,
}

/// The part of a `Fetch` request that depends on the session.
#[derive(Debug, PartialEq, Eq)]
pub struct SessionRequest {
    pub id: i32,
    pub epoch: i32,
    /// Partitions that are new or whose position changed, sorted by topic.
    pub positions: Vec<FetchPosition>,
    pub forgotten: Vec<PartitionName>,
}

impl FetchSession {
    /// Ends the session: the next request opens a new one, and its answer covers every partition.
    pub fn reset(&mut self) {
        self.epoch = FIRST;
        self.known.clear();
    }

    /// Returns how to ask for exactly these partitions.
    pub fn request(&mut self, wanted: &[FetchPosition]) -> SessionRequest {
        let name = |position: &FetchPosition| (position.topic.clone(), position.topic_id, position.partition);
        let mut positions: Vec<_> =
            wanted.iter().filter(|position| self.known.get(&name(position)) != Some(position)).cloned().collect();
        positions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        let is_wanted = |known: &FetchPosition| {
            wanted.iter().any(|position| {
                (position.partition, &position.topic, position.topic_id) == (known.partition, &known.topic, known.topic_id)
            })
        };
        let forgotten: Vec<_> = self.known.values().filter(|known| !is_wanted(known)).map(name).collect();
        for partition in &forgotten {
            self.known.remove(partition);
        }
        for position in &positions {
            self.known.insert(name(position), position.clone());
        }
        SessionRequest { id: self.id, epoch: self.epoch, positions, forgotten }
    }

    /// Takes the id that the answer has: 0 if the broker keeps no session, and wants everything named again each time.
    pub fn take_answer(&mut self, id: i32) {
        if id == 0 {
            self.id = 0;
            self.reset();
            return;
        }
        self.id = id;
        self.epoch = if self.epoch == i32::MAX { 1 } else { self.epoch + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(topic: &str, partition: i32, offset: i64) -> FetchPosition {
        FetchPosition { topic: topic.into(), topic_id: [1; 16], partition, offset, leader_epoch: 0, last_epoch: -1 }
    }

    fn offsets(request: &SessionRequest) -> Vec<(i32, i64)> {
        request.positions.iter().map(|position| (position.partition, position.offset)).collect()
    }

    #[test]
    fn only_what_changed_is_named_again() {
        let mut session = FetchSession::default();
        let first = session.request(&[position("t", 1, 5), position("t", 0, 3)]);
        assert_eq!((first.id, first.epoch, offsets(&first)), (0, 0, vec![(0, 3), (1, 5)]));
        session.take_answer(7);
        let second = session.request(&[position("t", 0, 4), position("t", 1, 5)]);
        assert_eq!((second.id, second.epoch, offsets(&second), second.forgotten.len()), (7, 1, vec![(0, 4)], 0));
        session.take_answer(7);
        let third = session.request(&[position("t", 0, 4)]);
        assert_eq!((third.epoch, offsets(&third)), (2, vec![]));
        assert_eq!(third.forgotten, [("t".into(), [1; 16], 1)]);
        session.take_answer(7);
        // A partition that returns is new to the broker's session.
        assert_eq!(offsets(&session.request(&[position("t", 0, 4), position("t", 1, 5)])), [(1, 5)]);
    }

    #[test]
    fn a_reset_closes_the_session_and_names_everything() {
        let mut session = FetchSession::default();
        session.request(&[position("t", 0, 3)]);
        session.take_answer(7);
        session.reset();
        let again = session.request(&[position("t", 0, 3)]);
        assert_eq!((again.id, again.epoch, offsets(&again)), (7, 0, vec![(0, 3)]));
    }

    #[test]
    fn a_broker_without_room_for_a_session_is_sent_everything_each_time() {
        let mut session = FetchSession::default();
        for _ in 0..2 {
            let request = session.request(&[position("t", 0, 3)]);
            assert_eq!((request.id, request.epoch, offsets(&request)), (0, 0, vec![(0, 3)]));
            session.take_answer(0);
        }
    }

    #[test]
    fn the_epoch_of_a_session_begins_again_at_one() {
        let mut session = FetchSession { id: 7, epoch: i32::MAX, known: HashMap::new() };
        session.take_answer(7);
        assert_eq!(session.epoch, 1);
    }
}
