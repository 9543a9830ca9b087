//! Reading what partitions hold now: to their ends, and then no further.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::{Bus, BusError, Isolation, Polled, Reader, Record, Start, TopicPartition};

const ITEMS: usize = 4096;
/// How often `stopped` is asked while nothing comes.
const WAIT: Duration = Duration::from_millis(100);
/// Where nothing more could be read for so long it is said, and again after as long.
const SILENCE: Duration = Duration::from_secs(30);

/// Gives `each` every committed record that these partitions held when this was called, and perhaps newer ones; each partition's
/// in their order. A partition is done once its records or its end have reached the high watermark that is noted first. The
/// first end that is told is not enough, since a commit returns before its records can be read; and records alone are not,
/// since the last offsets may hold none.
///
/// The reader stands after what was given; `None` where `stopped` said so first.
pub fn read_to_end<E: From<BusError>>(
    bus: &dyn Bus,
    from: &[(TopicPartition, Start)],
    stopped: impl Fn() -> bool,
    mut each: impl FnMut(Record) -> Result<(), E>,
) -> Result<Option<Box<dyn Reader>>, E> {
    let mut open = HashMap::new();
    for (at, _) in from {
        let marks = bus.watermarks(at)?;
        if marks.high > 0 {
            open.insert(at.clone(), marks.high);
        }
    }
    let mut reader = bus.reader(from, Isolation::ReadCommitted)?;
    let (mut polled, mut heard) = (Vec::new(), Instant::now());
    while !open.is_empty() {
        if stopped() {
            return Ok(None);
        }
        reader.poll(ITEMS, WAIT, &mut polled)?;
        if polled.iter().any(|item| matches!(item, Polled::Record(_))) {
            heard = Instant::now();
        } else if heard.elapsed() >= SILENCE {
            heard = Instant::now();
            for (at, end) in &open {
                tracing::warn!(
                    %at,
                    end,
                    "a partition cannot be read to its end: a broker of it is away, or a transaction in it is open; it is waited for \
                     (docs/operations.md, \"A transaction that stays open\")"
                );
            }
        }
        for item in polled.drain(..) {
            match item {
                Polled::Record(record) => {
                    // So that a busy producer cannot keep this from ending.
                    reached(&record.at, record.offset + 1, &mut open);
                    each(record)?;
                }
                Polled::End { at, position } => reached(&at, position, &mut open),
                Polled::Assigned(_) | Polled::Revoked(_) | Polled::Lost(_) => {}
            }
        }
    }
    Ok(Some(reader))
}

fn reached(at: &TopicPartition, position: i64, open: &mut HashMap<TopicPartition, i64>) {
    if open.get(at).is_some_and(|high| position >= *high) {
        open.remove(at);
    }
}
