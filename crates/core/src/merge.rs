//! Choice of the next record to fold among several co-partitioned inputs.
//!
//! The head with the least event time (not ahead of its stamp, unless `max_future` is off) is next; ties go by the inputs' order.
//! An input that may still have records is waited for; one that is at its end, and not paused, counts as empty. A record may have
//! no event time: a heartbeat, a tombstone, or one that cannot be decoded. It is next once its stamp is not after the stamp of
//! the head that would be next without it. It moves nothing but the log clock, and must neither hold its input up nor run ahead
//! of the others.

use std::collections::VecDeque;

use eadt_schemas::EventTime;

/// A record that waits for its turn.
#[derive(Debug)]
struct QueuedRecord<T> {
    offset: i64,
    stamp: EventTime,
    bytes: usize,
    record: T,
}

/// The key of a head, found once.
#[derive(Debug, Clone, Copy)]
enum HeadKey {
    Unknown,
    Known(Option<EventTime>),
}

#[derive(Debug)]
struct InputQueue<T> {
    records: VecDeque<QueuedRecord<T>>,
    head: HeadKey,
    bytes: usize,
    at_end: bool,
    /// The offset after the last record received, or the position that a later end reported.
    position: i64,
}

/// The inputs of one partition, each in offset order.
#[derive(Debug)]
pub struct InputMerge<T> {
    queues: Vec<InputQueue<T>>,
    max_future: Option<i64>,
    /// The input that was next, and of the heads of all others whose turn it is: they are looked at again only if one
    /// of them changes.
    run: Option<(usize, HeadSelector<usize>)>,
}

/// A record whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub struct MergedRecord<T> {
    pub input: usize,
    pub offset: i64,
    pub stamp: EventTime,
    pub record: T,
}

impl<T> InputMerge<T> {
    /// Builds the merge. `positions`: the start of each input; their order is that of ties.
    pub fn new(positions: &[i64], max_future: Option<i64>) -> Self {
        let queue = |position: &i64| InputQueue {
            records: VecDeque::new(),
            head: HeadKey::Unknown,
            bytes: 0,
            at_end: false,
            position: *position,
        };
        Self { queues: positions.iter().map(queue).collect(), max_future, run: None }
    }

    /// Adds the next record of an input.
    pub fn push(&mut self, input: usize, offset: i64, stamp: EventTime, bytes: usize, record: T) {
        let queue = &mut self.queues[input];
        if queue.records.is_empty() && self.run.is_some_and(|(running, _)| running != input) {
            self.run = None;
        }
        queue.records.push_back(QueuedRecord { offset, stamp, bytes, record });
        queue.bytes += bytes;
        queue.at_end = false;
        queue.position = offset + 1;
    }

    /// Notes that everything before `position` of an input came in, and that there is no more for now.
    pub fn end(&mut self, input: usize, position: i64) {
        let queue = &mut self.queues[input];
        queue.at_end = true;
        queue.position = queue.position.max(position);
    }

    /// Notes that an input is no longer read: whether it is at its end is unknown until the next [`Self::end`].
    pub fn pause(&mut self, input: usize) {
        self.queues[input].at_end = false;
        self.run = None;
    }

    /// Returns the number of bytes of an input that wait for their turn: the caller pauses inputs that hold too many.
    pub fn bytes(&self, input: usize) -> usize {
        self.queues[input].bytes
    }

    /// Returns whether every input is at its end and all its records were taken.
    pub fn is_exhausted(&self) -> bool {
        self.queues.iter().all(|queue| queue.at_end && queue.records.is_empty())
    }

    /// Returns for each input the offset of the first record that was not taken.
    pub fn positions(&self) -> impl Iterator<Item = i64> {
        self.queues.iter().map(|queue| queue.records.front().map_or(queue.position, |head| head.offset))
    }

    /// Returns the next record, `None` while an input has to be waited for or all are empty. `time_of(input, record)` is asked
    /// once for each record that becomes a head.
    pub fn next(&mut self, mut time_of: impl FnMut(usize, &T) -> Option<EventTime>) -> Option<MergedRecord<T>> {
        let turn = match self.run {
            Some((input, others)) => {
                let mut turn = others;
                self.queues[input].offer(input, self.max_future, &mut time_of, &mut turn)?;
                turn
            }
            None => self.turn_without(usize::MAX, &mut time_of)?,
        };
        let (_, input) = turn.next()?;
        if self.run.is_none_or(|(running, _)| running != input) {
            self.run = Some((input, self.turn_without(input, &mut time_of)?));
        }
        let queue = &mut self.queues[input];
        let head = queue.records.pop_front()?;
        queue.head = HeadKey::Unknown;
        queue.bytes -= head.bytes;
        Some(MergedRecord { input, offset: head.offset, stamp: head.stamp, record: head.record })
    }

    /// Selects the next head of all inputs but one; `None` if one of them has to be waited for.
    fn turn_without(
        &mut self,
        input: usize,
        time_of: &mut impl FnMut(usize, &T) -> Option<EventTime>,
    ) -> Option<HeadSelector<usize>> {
        let mut turn = HeadSelector::default();
        for (i, queue) in self.queues.iter_mut().enumerate().filter(|(i, _)| *i != input) {
            queue.offer(i, self.max_future, time_of, &mut turn)?;
        }
        Some(turn)
    }
}

impl<T> InputQueue<T> {
    /// Offers the head, if there is one; `None` if it has to be waited for.
    fn offer(
        &mut self,
        input: usize,
        max_future: Option<i64>,
        time_of: &mut impl FnMut(usize, &T) -> Option<EventTime>,
        turn: &mut HeadSelector<usize>,
    ) -> Option<()> {
        let Some(head) = self.records.front() else { return self.at_end.then_some(()) };
        let key = match self.head {
            HeadKey::Known(key) => key,
            HeadKey::Unknown => {
                let key = time_of(input, &head.record).map(|time| crate::partition::merge_key(time, head.stamp, max_future));
                self.head = HeadKey::Known(key);
                key
            }
        };
        turn.offer(key, head.stamp, input);
        Some(())
    }
}

/// Selects the next of the offered heads; ties go to the least head.
#[derive(Debug, Clone, Copy)]
pub struct HeadSelector<T> {
    /// Key, head, stamp.
    timed: Option<(EventTime, T, EventTime)>,
    /// Stamp.
    timeless: Option<(EventTime, T)>,
}

impl<T> Default for HeadSelector<T> {
    fn default() -> Self {
        Self { timed: None, timeless: None }
    }
}

impl<T: Ord> HeadSelector<T> {
    /// Offers a head with its merge key, `None` if it has no event time.
    pub fn offer(&mut self, key: Option<EventTime>, stamp: EventTime, head: T) {
        match key {
            Some(key) => self.timed = Some(least(self.timed.take(), (key, head, stamp))),
            None => self.timeless = Some(least(self.timeless.take(), (stamp, head))),
        }
    }

    /// Returns the head that is next, with its key or, without one, its stamp.
    pub fn next(self) -> Option<(EventTime, T)> {
        match (self.timeless, self.timed) {
            (Some((stamp, head)), Some((_, _, other))) if stamp <= other => Some((stamp, head)),
            (_, Some((key, head, _))) => Some((key, head)),
            (timeless, None) => timeless,
        }
    }
}

fn least<K: Ord>(held: Option<K>, offered: K) -> K {
    match held {
        Some(held) => held.min(offered),
        None => offered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    /// Makes records whose stamps are their event times.
    fn drain(merge: &mut InputMerge<Option<i64>>) -> Vec<(usize, Option<i64>)> {
        let mut taken = Vec::new();
        while let Some(next) = merge.next(|_, record| record.map(at)) {
            taken.push((next.input, next.record));
        }
        taken
    }

    fn push(merge: &mut InputMerge<Option<i64>>, input: usize, offset: i64, stamp: i64, time: Option<i64>) {
        merge.push(input, offset, at(stamp), 1, time);
    }

    /// Returns the input that [`InputMerge::next`] should take, from all heads.
    fn expected(queues: &[VecDeque<(i64, Option<i64>)>], ended: &[bool]) -> Option<usize> {
        let mut turn = HeadSelector::default();
        for (input, queue) in queues.iter().enumerate() {
            match queue.front() {
                Some((stamp, time)) => turn.offer(time.map(|time| at(time).min(at(*stamp))), at(*stamp), input),
                None if ended[input] => {}
                None => return None,
            }
        }
        turn.next().map(|(_, input)| input)
    }

    proptest::proptest! {
        #![proptest_config(eadt_testing::cases(400))]

        #[test]
        fn in_whatever_order_records_come_the_next_one_is_that_of_all_heads(
            doings in proptest::collection::vec((0_usize..3, 0_u8..6, 0_i64..6, 0_i64..8), 0..120)
        ) {
            let (mut merge, mut queues, mut ended) = (InputMerge::new(&[0; 3], Some(0)), vec![VecDeque::new(); 3], [false; 3]);
            let mut offsets = [0; 3];
            for (input, doing, stamp, time) in doings {
                match doing {
                    0 => {
                        merge.end(input, offsets[input]);
                        ended[input] = true;
                    }
                    1..3 => {
                        let time = (time < 6).then_some(time);
                        push(&mut merge, input, offsets[input], stamp, time);
                        queues[input].push_back((stamp, time));
                        (offsets[input], ended[input]) = (offsets[input] + 1, false);
                    }
                    _ => {
                        let taken = merge.next(|_, record| record.map(at));
                        let expected = expected(&queues, &ended).map(|input| (input, queues[input].pop_front().unwrap()));
                        proptest::prop_assert_eq!(taken.map(|next| (next.input, (next.stamp.micros() / 1_000_000, next.record))), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn waits_for_an_input_until_it_is_at_its_end() {
        let mut merge = InputMerge::new(&[0, 0], Some(0));
        push(&mut merge, 0, 0, 5, Some(5));
        assert_eq!(drain(&mut merge), []);
        push(&mut merge, 1, 0, 3, Some(3));
        assert_eq!(drain(&mut merge), [(1, Some(3))], "input 1 may have more");
        // Control records: the end lies beyond the last record.
        merge.end(1, 7);
        assert_eq!(drain(&mut merge), [(0, Some(5))]);
        assert_eq!(merge.positions().collect::<Vec<_>>(), [1, 7]);
        merge.end(0, 1);
        push(&mut merge, 1, 7, 9, Some(9));
        assert_eq!(drain(&mut merge), [(1, Some(9))], "after its end an input goes on");
    }

    #[test]
    fn a_paused_input_is_waited_for_until_its_end_is_reported_again() {
        let mut merge = InputMerge::new(&[0, 0], Some(0));
        push(&mut merge, 0, 0, 2, Some(2));
        push(&mut merge, 1, 0, 3, Some(3));
        push(&mut merge, 1, 1, 4, Some(4));
        (0..2).for_each(|input| merge.end(input, 2));
        assert_eq!(merge.next(|_, record| record.map(at)).map(|next| next.input), Some(0), "both are known");
        merge.pause(0);
        assert_eq!(drain(&mut merge), [], "input 0 may have gone on");
        push(&mut merge, 0, 1, 3, Some(3));
        merge.end(0, 2);
        assert_eq!(drain(&mut merge), [(0, Some(3)), (1, Some(3)), (1, Some(4))]);
    }

    #[test]
    fn records_without_a_time_go_in_the_order_of_the_log() {
        for (stamps, order) in [([3, 5], [0, 1]), ([5, 3], [1, 0]), ([4, 4], [0, 1])] {
            let mut merge = InputMerge::new(&[0, 0], None);
            for (input, stamp) in stamps.into_iter().enumerate() {
                push(&mut merge, input, 0, stamp, None);
                merge.end(input, 1);
            }
            assert_eq!(drain(&mut merge), order.map(|input| (input, None)), "{stamps:?}");
        }
    }

    #[test]
    fn bytes_are_those_that_wait() {
        let mut merge = InputMerge::new(&[0, 0], None);
        merge.push(0, 0, at(1), 300, Some(1));
        merge.push(0, 1, at(2), 20, Some(2));
        merge.push(1, 0, at(3), 1, Some(3));
        assert_eq!((merge.bytes(0), merge.bytes(1)), (320, 1));
        assert!(merge.next(|_, record| record.map(at)).is_some());
        assert_eq!((merge.bytes(0), merge.bytes(1)), (20, 1));
        merge.end(0, 2);
        assert_eq!(drain(&mut merge), [(0, Some(2)), (1, Some(3))]);
        assert_eq!((merge.bytes(0), merge.bytes(1)), (0, 0));
        assert!(!merge.is_exhausted(), "input 1 may have more");
        merge.end(1, 1);
        assert!(merge.is_exhausted());
        push(&mut merge, 1, 1, 4, Some(4));
        assert!(!merge.is_exhausted());
    }

    #[test]
    fn ties_go_by_input_and_a_clock_ahead_of_the_log_waits_for_its_stamp() {
        let mut merge = InputMerge::new(&[0, 0], Some(0));
        push(&mut merge, 1, 0, 5, Some(5));
        push(&mut merge, 0, 0, 6, Some(5));
        push(&mut merge, 1, 1, 6, Some(100));
        push(&mut merge, 0, 1, 8, Some(7));
        merge.end(0, 2);
        merge.end(1, 2);
        assert_eq!(drain(&mut merge), [(0, Some(5)), (1, Some(5)), (1, Some(100)), (0, Some(7))]);
    }

    #[test]
    fn heartbeats_of_an_hours_downtime_do_not_run_ahead_of_the_other_inputs() {
        let mut merge = InputMerge::new(&[0, 0], Some(0));
        for i in 0..3 {
            push(&mut merge, 0, i, 10 * i, None);
            push(&mut merge, 1, i, 10 * i + 1, Some(10 * i + 1));
        }
        merge.end(0, 3);
        merge.end(1, 3);
        let order: Vec<usize> = drain(&mut merge).into_iter().map(|(input, _)| input).collect();
        assert_eq!(order, [0, 1, 0, 1, 0, 1]);
    }

    /// A job that posts real times into a log of simulated ones: nothing but what is behind its event may wait for it.
    #[test]
    fn an_event_of_a_far_future_keeps_no_heartbeat_of_another_input_waiting() {
        let mut merge = InputMerge::new(&[0, 0, 0], None);
        push(&mut merge, 0, 0, 50, Some(1_000_000));
        for i in 0..3 {
            push(&mut merge, 1, i, 60 + 10 * i, (i != 0).then_some(i));
            push(&mut merge, 2, i, 61 + 10 * i, Some(i));
        }
        (0..3).for_each(|input| merge.end(input, 3));
        let order = drain(&mut merge);
        assert_eq!(
            order,
            [(1, None), (2, Some(0)), (1, Some(1)), (2, Some(1)), (1, Some(2)), (2, Some(2)), (0, Some(1_000_000))]
        );
    }

    #[test]
    fn a_heartbeat_before_an_imported_record_does_not_hold_it_up() {
        // Stamps of today, event times of long ago.
        let mut merge = InputMerge::new(&[0, 0], None);
        push(&mut merge, 0, 0, 1_000, None);
        push(&mut merge, 0, 1, 1_005, Some(3));
        push(&mut merge, 1, 0, 1_004, Some(2));
        push(&mut merge, 1, 1, 1_006, Some(4));
        merge.end(0, 2);
        merge.end(1, 2);
        assert_eq!(drain(&mut merge), [(0, None), (1, Some(2)), (0, Some(3)), (1, Some(4))]);
    }
}
