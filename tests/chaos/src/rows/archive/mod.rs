//! Faults between the log and the files of the archive.

pub mod broker;
pub mod killed;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use eadt_archiver::ArchiverSettings;
use eadt_bus::Bus;
use eadt_lake::{Archive, ArchiveRow};
use eadt_schemas::Topic;

use crate::part::Part;
use crate::row::Outcome;
use crate::verify::read_committed;
use crate::world::{PARTITIONS, World};

/// Topics of a story's events.
pub const OF_A_STORY: [Topic; 2] = [Topic::GpuTelemetry, Topic::TrainingProgress];

/// An archiver whose files are small.
pub fn settings(place: &Path) -> ArchiverSettings {
    ArchiverSettings {
        location: place.display().to_string(),
        roll_rows: 150,
        roll_seconds: 0.5,
        retry_max_seconds: 1.0,
        ..ArchiverSettings::default()
    }
}

/// Waits until the last events of these topics are in files; false if that is not reached.
pub fn await_archived(world: &World, archive: &Archive, topics: &[Topic], part: &mut Part, limit: Duration) -> Result<bool> {
    let ends = ends(world, topics)?;
    let begun = Instant::now();
    loop {
        let whole = archive.files().is_ok_and(|listing| {
            let have = listing.partitions();
            ends.iter().all(|(at, last)| have.get(at).is_some_and(|(_, to)| to >= last))
        });
        if whole || begun.elapsed() > limit || part.ended()?.is_some() {
            return Ok(whole);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether each offset of these topics is in exactly one readable file, and nothing else.
pub fn judge(world: &World, place: &Path, archive: &Archive, topics: &[Topic], outcome: &mut Outcome) -> Result<()> {
    let listing = match archive.files() {
        Ok(listing) => listing,
        Err(error) => {
            outcome.check(false, || format!("the archive contradicts itself: {error}"));
            return Ok(());
        }
    };
    outcome.count("files", listing.files.len() as u64);
    outcome.check(listing.gaps.is_empty() && listing.superseded.is_empty(), || {
        format!("{} gaps, {} files that others cover", listing.gaps.len(), listing.superseded.len())
    });
    let seen = by_pyarrow(place);
    outcome.check(seen.is_ok(), || format!("pyarrow cannot read it: {:#}", seen.as_ref().expect_err("just looked at")));
    for topic in topics.iter().copied() {
        let mut logged: BTreeMap<(i32, i64), Option<Vec<u8>>> = BTreeMap::new();
        for record in read_committed(&world.bus, &world.topic(topic), PARTITIONS)? {
            logged.insert((record.at.partition, record.offset), record.value.map(|value| value.to_vec()));
        }
        if let Ok(seen) = &seen {
            let mut wanted = Places::new();
            for (partition, offset) in logged.keys() {
                extend(wanted.entry(*partition).or_default(), *offset);
            }
            let seen = seen.get(topic.base_name()).cloned().unwrap_or_default();
            let rows = seen.values().flatten().map(|(first, last)| last - first + 1).sum::<i64>();
            outcome.count("rows that pyarrow read", rows as u64);
            outcome.check(seen == wanted, || format!("of {topic} pyarrow sees {seen:?}, and the log has {wanted:?}"));
        }
        for partition in 0..PARTITIONS {
            let rows = archive
                .rows(&listing, topic, partition)
                .collect::<Result<Vec<ArchiveRow>, _>>()
                .context("reading the archive")?;
            for row in rows {
                let value = row.value.as_deref().map(<[u8]>::to_vec);
                match logged.remove(&(partition, row.offset)) {
                    Some(wanted) => {
                        let same = wanted == value
                            || is_next(wanted.as_deref()) && parsed(wanted.as_deref()) == parsed(value.as_deref());
                        outcome.check(same, || {
                            let text = |value: &Option<Vec<u8>>| {
                                String::from_utf8_lossy(value.as_deref().unwrap_or_default()).into_owned()
                            };
                            let (wanted, value) = (text(&wanted), text(&value));
                            format!("{topic} {partition} {} is {value} and should be {wanted}", row.offset)
                        });
                    }
                    None => outcome.duplicated += 1,
                }
            }
        }
        outcome.lost += logged.len() as u64;
    }
    Ok(())
}

/// By partition, runs of offsets: the first and the last of each.
type Places = BTreeMap<i32, Vec<(i64, i64)>>;

fn extend(runs: &mut Vec<(i64, i64)>, offset: i64) {
    match runs.last_mut() {
        Some((_, last)) if offset == *last + 1 => *last = offset,
        _ => runs.push((offset, offset)),
    }
}

/// Returns the content of the files as another reader sees it, by topic.
fn by_pyarrow(place: &Path) -> Result<BTreeMap<String, Places>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/places.py");
    let output = eadt_tests::python::script(&script, &[place])?;
    serde_json::from_str(&output).with_context(|| format!("{} printed {output}", script.display()))
}

/// Fields that this version does not know come in an order of their own; everything else is kept byte for byte.
fn is_next(value: Option<&[u8]>) -> bool {
    value.is_some_and(|value| String::from_utf8_lossy(value).contains(eadt_faults::OF_THE_NEXT_VERSION))
}

fn parsed(value: Option<&[u8]>) -> Option<serde_json::Value> {
    serde_json::from_slice(value?).ok()
}

/// The last offset of every partition of these topics that has any.
fn ends(world: &World, topics: &[Topic]) -> Result<BTreeMap<(Topic, i32), i64>> {
    let mut ends = BTreeMap::new();
    for topic in topics.iter().copied() {
        for partition in 0..PARTITIONS {
            let at = eadt_bus::TopicPartition::new(world.topic(topic), partition);
            let high = world.bus.watermarks(&at)?.high;
            if high > 0 {
                ends.insert((topic, partition), high - 1);
            }
        }
    }
    Ok(ends)
}
