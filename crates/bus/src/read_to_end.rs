//! Reading what partitions hold now: to their ends, and then no further.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::{Bus, BusError, ConsumerRecord, IsolationLevel, PartitionReader, PollEvent, StartOffset, TopicPartition};

const ITEMS: usize = 4096;
/// Interval between two calls of `stopped` while no records come.
const WAIT: Duration = Duration::from_millis(100);
/// A warning is logged if nothing more could be read for this long, and again after as long.
const SILENCE: Duration = Duration::from_secs(30);

/// Gives `each` every committed record that these partitions held when this was called, and perhaps newer ones; each partition's
/// in their order. A partition is done once its records or its end have reached the high watermark that is noted first. The
/// first reported end is not enough, since a commit returns before its records can be read. Records alone are not enough either,
/// since the last offsets may hold none.
///
/// Returns the reader, positioned after the records that were given; `None` if `stopped` returned true first.
pub fn read_to_end<E: From<BusError>>(
    bus: &dyn Bus,
    from: &[(TopicPartition, StartOffset)],
    stopped: impl Fn() -> bool,
    each: impl FnMut(ConsumerRecord) -> Result<(), E>,
) -> Result<Option<Box<dyn PartitionReader>>, E> {
    Ok(read_within(bus, from, IsolationLevel::ReadCommitted, Duration::MAX, stopped, each)?.ok())
}

/// The reason why partitions were not read to their ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnreadEnd {
    /// `stopped` returned true.
    Stopped,
    /// These partitions delivered nothing, and are not at their ends.
    Stalled(Vec<TopicPartition>),
}

/// Reads like [`read_to_end`], at this isolation. Gives up if no records come for longer than `stall` of partitions that are
/// not at their ends.
pub fn read_within<E: From<BusError>>(
    bus: &dyn Bus,
    from: &[(TopicPartition, StartOffset)],
    isolation: IsolationLevel,
    stall: Duration,
    stopped: impl Fn() -> bool,
    mut each: impl FnMut(ConsumerRecord) -> Result<(), E>,
) -> Result<Result<Box<dyn PartitionReader>, UnreadEnd>, E> {
    let mut open = HashMap::new();
    for (at, _) in from {
        let marks = bus.watermarks(at)?;
        if marks.high > 0 {
            open.insert(at.clone(), marks.high);
        }
    }
    let mut reader = bus.reader(from, isolation)?;
    let (mut polled, mut warning, mut stalled) = (Vec::new(), ReadWatchdog::new(SILENCE), ReadWatchdog::new(stall));
    while !open.is_empty() {
        if stopped() {
            return Ok(Err(UnreadEnd::Stopped));
        }
        reader.poll(ITEMS, WAIT, &mut polled)?;
        // Only partitions that are still waited for count.
        let is_awaited = |item: &PollEvent| matches!(item, PollEvent::Record(record) if open.contains_key(&record.at));
        let (received, now) = (polled.iter().any(is_awaited), Instant::now());
        if warning.is_report_due(received, now) {
            for (at, end) in &open {
                tracing::warn!(
                    %at,
                    end,
                    "a partition cannot be read to its end: a broker of it is away, or a transaction in it is open; it is waited for \
                     (docs/operate/operations.md, \"A transaction that stays open\")"
                );
            }
        }
        for item in polled.drain(..) {
            match item {
                PollEvent::Record(record) => {
                    // So that a busy producer cannot keep this from ending.
                    close_if_reached(&record.at, record.offset + 1, &mut open);
                    each(record)?;
                }
                PollEvent::End { at, position } => close_if_reached(&at, position, &mut open),
                PollEvent::Batch(_) | PollEvent::Assigned(_) | PollEvent::Revoked(_) | PollEvent::Lost(_) => {}
            }
        }
        if stalled.is_report_due(received, now) && !open.is_empty() {
            return Ok(Err(UnreadEnd::Stalled(open.into_keys().collect())));
        }
    }
    Ok(Ok(reader))
}

/// Measures how long nothing more could be read.
struct ReadWatchdog {
    limit: Duration,
    since: Instant,
}

impl ReadWatchdog {
    fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now() }
    }

    /// Returns whether the limit is reached. The time begins anew then, and with every record.
    fn is_report_due(&mut self, received: bool, now: Instant) -> bool {
        let is_due = !received && now.duration_since(self.since) >= self.limit;
        if received || is_due {
            self.since = now;
        }
        is_due
    }
}

fn close_if_reached(at: &TopicPartition, position: i64, open: &mut HashMap<TopicPartition, i64>) {
    if open.get(at).is_some_and(|high| position >= *high) {
        open.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::CommitStep;
    use crate::conformance::{fresh_topic, join, outgoing, send_all};
    use crate::embedded::{EmbeddedLog, EmbeddedOptions};

    fn log() -> (tempfile::TempDir, EmbeddedLog, [(TopicPartition, StartOffset); 1]) {
        let dir = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(dir.path(), options).unwrap();
        let topic = fresh_topic(&log, 1, &[]);
        (dir, log, [(TopicPartition::new(topic, 0), StartOffset::Earliest)])
    }

    #[test]
    fn partitions_that_never_held_anything_are_read_to_their_end_at_once() {
        let (_dir, log, from) = log();
        let (asked, mut given) = (std::cell::Cell::new(false), 0);
        let reader = read_to_end(
            &log,
            &from,
            || asked.replace(true),
            |_| {
                given += 1;
                Ok::<_, BusError>(())
            },
        );
        assert!(reader.unwrap().is_some());
        assert_eq!((asked.get(), given), (false, 0));
    }

    #[test]
    fn more_than_is_polled_at_once_is_read_to_its_end() {
        let (_dir, log, from) = log();
        let topic = Arc::clone(&from[0].0.topic);
        let (mut member, _) = join(&log, "g", Some("i"), std::slice::from_ref(&topic));
        let step = CommitStep { outputs: vec![outgoing(&topic, "k", "v"); ITEMS + 1], positions: Vec::new() };
        member.commit(&step).unwrap();
        let mut given = 0;
        read_to_end(
            &log,
            &from,
            || false,
            |_| {
                given += 1;
                Ok::<_, BusError>(())
            },
        )
        .unwrap();
        assert_eq!(given, ITEMS + 1);
    }

    #[test]
    fn what_comes_while_it_is_read_does_not_keep_it_from_ending() {
        let (_dir, log, from) = log();
        let topic = Arc::clone(&from[0].0.topic);
        // As many as are polled at once, so that their end comes with the records after them.
        let records = vec![outgoing(&topic, "k", "v"); ITEMS];
        send_all(&log, &records);
        let mut offsets = Vec::new();
        let reader = read_to_end(
            &log,
            &from,
            || false,
            |record| {
                if offsets.is_empty() {
                    send_all(&log, &records[..1]);
                }
                offsets.push(record.offset);
                Ok::<_, BusError>(())
            },
        );
        assert_eq!(offsets, (0..ITEMS as i64).collect::<Vec<_>>());
        // The reader is after them.
        let mut polled = Vec::new();
        reader.unwrap().unwrap().poll(1, Duration::ZERO, &mut polled).unwrap();
        assert!(matches!(&polled[..], [PollEvent::Record(record)] if record.offset == ITEMS as i64), "{polled:?}");
    }

    #[test]
    fn a_silence_is_logged_after_half_a_minute_and_again_after_as_long() {
        let begun = Instant::now();
        let mut silence = ReadWatchdog { limit: SILENCE, since: begun };
        for (seconds, received, is_due) in [
            (29, false, false),
            (30, false, true),
            (31, false, false),
            (59, false, false),
            (60, false, true),
            (89, true, false),
            (118, false, false),
            (119, false, true),
            (200, true, false),
            (229, false, false),
        ] {
            assert_eq!(silence.is_report_due(received, begun + Duration::from_secs(seconds)), is_due, "{seconds}");
        }
    }
}
