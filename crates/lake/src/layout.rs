//! The path of a file, and the parts of its name.

use eadt_schemas::Topic;

/// The place of one file: `topic=T/date=D/T+PARTITION+FIRST-LAST.parquet`, offsets inclusive and zero-padded.
///
/// Every part is checked when it is parsed, and topics are known ones, so no name leads out of the archive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchiveFileName {
    pub topic: Topic,
    pub partition: i32,
    /// First offset that the file covers. Offsets without a record (control records, compacted or burnt ones) count.
    pub first: i64,
    /// Last offset that the file covers.
    pub last: i64,
    /// `YYYY-MM-DD` of the log's append times, UTC.
    pub date: String,
}

impl ArchiveFileName {
    /// Returns the relative to the archive, with `/`.
    pub fn path(&self) -> String {
        let Self { topic, partition, first, last, date } = self;
        format!("topic={topic}/date={date}/{topic}+{partition}+{first:020}-{last:020}.parquet")
    }

    /// Parses a path. The error states the reason.
    pub fn parse(path: &str) -> Result<Self, String> {
        let parts: Vec<&str> = path.split('/').collect();
        let [folder, date, file] = parts[..] else {
            return Err("it does not lie in topic=…/date=…/".to_owned());
        };
        let topic = folder.strip_prefix("topic=").ok_or_else(|| format!("folder {folder:?} is not topic=…"))?;
        let topic = Topic::from_base_name(topic).ok_or_else(|| format!("{topic:?} is not a topic of this version"))?;
        let date = date.strip_prefix("date=").filter(|date| is_date(date));
        let date = date.ok_or("its folder is not date=YYYY-MM-DD")?.to_owned();
        let shape = || format!("its name is not {topic}+PARTITION+FIRST-LAST.parquet");
        let rest = file.strip_suffix(".parquet").and_then(|stem| stem.strip_prefix(topic.base_name())).ok_or_else(shape)?;
        let (partition, range) = rest.strip_prefix('+').and_then(|rest| rest.split_once('+')).ok_or_else(shape)?;
        let (first, last) = range.split_once('-').ok_or_else(shape)?;
        let partition = partition.parse().map_err(|_| shape())?;
        let (first, last) = (first.parse().map_err(|_| shape())?, last.parse().map_err(|_| shape())?);
        let name = Self { topic, partition, first, last, date };
        if partition < 0 || first < 0 || first > last || name.path() != path {
            return Err(shape());
        }
        Ok(name)
    }

    /// Returns true if topic and partition are the same, and every offset of `other` is one of this file's.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.topic == other.topic && self.partition == other.partition && self.first <= other.first && other.last <= self.last
    }
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let name =
            ArchiveFileName { topic: Topic::GpuTelemetry, partition: 3, first: 17, last: 122_880, date: "2026-01-02".to_owned() };
        let path = "topic=gpu.telemetry.v1/date=2026-01-02/gpu.telemetry.v1+3+00000000000000000017-00000000000000122880.parquet";
        assert_eq!(name.path(), path);
        assert_eq!(ArchiveFileName::parse(path), Ok(name));
    }

    #[test]
    fn other_names_are_refused() {
        for path in [
            "a.parquet",
            "topic=x/date=2026-01-02/x+0+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=../decisions.v1+0+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01-02/decisions.v1+0+0-1.parquet",
            "topic=decisions.v1/date=2026/01-02/decisions.v1+0+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01x02/decisions.v1+0+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01-0x/decisions.v1+0+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01-022/decisions.v1+0+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01-02/actuations.v1+0+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01-02/decisions.v1+0+00000000000000000002-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01-02/decisions.v1+-1+00000000000000000000-00000000000000000001.parquet",
            "topic=decisions.v1/date=2026-01-02/part-0.parquet",
        ] {
            assert!(ArchiveFileName::parse(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_covers_what_lies_in_its_range_of_its_partition_only() {
        let name =
            |topic, partition, first, last| ArchiveFileName { topic, partition, first, last, date: "2026-01-02".to_owned() };
        let file = name(Topic::Decisions, 1, 10, 19);
        for (first, last, expected) in [
            (10, 19, true),
            (11, 18, true),
            (10, 10, true),
            (19, 19, true),
            (9, 19, false),
            (10, 20, false),
            (0, 9, false),
            (20, 29, false),
        ] {
            assert_eq!(file.covers(&name(Topic::Decisions, 1, first, last)), expected, "{first} to {last}");
            assert!(!file.covers(&name(Topic::Decisions, 2, first, last)), "another partition");
            assert!(!file.covers(&name(Topic::Actuations, 1, first, last)), "another topic");
        }
        // Dates do not matter: a compacted file may have another one.
        assert!(file.covers(&ArchiveFileName { date: "2026-01-01".to_owned(), ..name(Topic::Decisions, 1, 10, 11) }));
    }
}
