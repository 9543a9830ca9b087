//! An archive: each partition of a topic is read by a thread of its own.

use std::cell::RefCell;

use eadt_lake::{Archive, Listing, Rows};
use eadt_processor::offline::Raw;
use eadt_schemas::Topic;
use eadt_schemas::envelope::header;

use super::batches::{Batches, Lane};
use super::check::Own;

/// Records handed over at once.
const BATCH: usize = 256;

/// The rows of one partition, in the order of their offsets.
pub fn read<'a>(archive: &Archive, listing: &Listing, topic: Topic, partition: i32, own: &'a RefCell<Own>) -> Batches<'a> {
    let (lanes, batches) = Batches::new(format!("{topic}-{partition} of {}", archive.place()), 1, own);
    for lane in lanes {
        let rows = archive.rows(listing, topic, partition);
        std::thread::spawn(move || decode(rows, &lane));
    }
    batches
}

fn decode(rows: Rows, lane: &Lane) {
    let mut batch = lane.batch();
    for row in rows {
        match row {
            Ok(row) => {
                let raw = Raw {
                    topic: row.topic,
                    kind: row.header(header::TYPE),
                    key: row.key.as_deref().unwrap_or_default(),
                    value: row.value.as_deref(),
                    stamp: row.stamp,
                };
                batch.slot().renew(raw, Some(row.partition), Some(row.offset));
                batch.keep();
            }
            Err(error) => {
                batch.error = Some(error.into());
                break;
            }
        }
        if batch.len() == BATCH && !lane.send(std::mem::replace(&mut batch, lane.batch())) {
            return;
        }
    }
    batch.last = true;
    // Nobody waits for it where the replay has failed.
    lane.send(batch);
}
