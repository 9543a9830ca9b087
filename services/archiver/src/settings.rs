use eadt_lake::RollLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest consumer group in the name of the file that records it: a file name has at most 255 bytes, also with the ending of a file
/// that is being written.
const GROUP_NAME_BYTES: usize = 200;

/// Location of the archive, and the limits of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ArchiverSettings {
    /// A folder, or an object-store URL (`s3://…`, `gs://…`, `az://…`; these need a build with the feature
    /// `object-stores`, and take credentials from the environment). Default: `archive` in the data folder.
    pub location: String,
    /// Consumer group. Archivers of one group share the partitions and must share the location. Default: `archiver`.
    pub group: String,
    /// Stable name of this instance within the group, its `group.instance.id`: after a crash the next process of the name goes on
    /// at once, and fences an older one that still runs. Archivers that share a group have a name each. Default: `archiver-0`.
    pub instance: String,
    /// A file is complete at this many rows, 1 to 100,000,000. Default: 983,040 (eight row groups).
    pub roll_rows: usize,
    /// A file is complete when its rows take this many bytes of memory, at least 64 KiB. Default: 128 MiB.
    pub roll_bytes: usize,
    /// A file is complete this many seconds after its first row, 0.1 to 86,400. Shorter: fresher, and more small files for
    /// `eadt archive compact`. Default: 600.
    pub roll_seconds: f64,
    /// Memory of all rows that wait, in bytes, at least 1 MiB; past it the largest file is completed. Encoding a file takes
    /// about as much again as its rows. Default: 256 MiB.
    pub memory_bytes: usize,
    /// At the end of the process: how long to go on reading until the log has nothing more, in seconds, 0 to 3,600.
    /// Default: 5.
    pub drain_seconds: f64,
    /// Longest pause between attempts while the disk is full, or the store or the log is away, in seconds, 0.01 to 3,600.
    /// Default: 30.
    pub retry_max_seconds: f64,
}

impl Default for ArchiverSettings {
    fn default() -> Self {
        let limits = RollLimits::default();
        Self {
            location: "eadt-data/archive".to_owned(),
            group: "archiver".to_owned(),
            instance: "archiver-0".to_owned(),
            roll_rows: limits.rows,
            roll_bytes: limits.bytes,
            roll_seconds: limits.age_micros as f64 / 1e6,
            memory_bytes: limits.total_bytes,
            drain_seconds: 5.0,
            retry_max_seconds: 30.0,
        }
    }
}

impl ArchiverSettings {
    /// Checks all values; the error is the first that is out of its range.
    pub fn check(&self) -> Result<(), String> {
        if self.location.is_empty() {
            return Err("archiver.location is empty: name a folder or an object-store URL".to_owned());
        }
        if self.group.is_empty() {
            return Err("archiver.group is empty: name a consumer group".to_owned());
        }
        Self::check_group(&self.group)?;
        if self.instance.is_empty() {
            return Err("archiver.instance is empty: name this archiver within its group".to_owned());
        }
        for (name, value, low, high) in [
            ("roll_rows", self.roll_rows as f64, 1.0, 1e8),
            ("roll_bytes", self.roll_bytes as f64, 65_536.0, 1e12),
            ("roll_seconds", self.roll_seconds, 0.1, 86_400.0),
            ("memory_bytes", self.memory_bytes as f64, 1_048_576.0, 1e12),
            ("drain_seconds", self.drain_seconds, 0.0, 3600.0),
            ("retry_max_seconds", self.retry_max_seconds, 0.01, 3600.0),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("archiver.{name} is {value}: give a number from {low} to {high}"));
            }
        }
        Ok(())
    }

    /// Returns an error if the archive's record of its group would have too long a file name.
    pub fn check_group(group: &str) -> Result<(), String> {
        // The record has three bytes for each byte that is none of these.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let length: usize = group.bytes().map(|byte| if is_plain(byte) { 1 } else { 3 }).sum();
        if length > GROUP_NAME_BYTES {
            return Err(format!(
                "archiver.group is too long, prefix included: the archive records it in a file name, for which it has {length} bytes of \
                 at most {GROUP_NAME_BYTES} (each byte that is no letter, digit, '.', '-' or '_' counts as three); give a shorter name"
            ));
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> RollLimits {
        RollLimits {
            rows: self.roll_rows,
            bytes: self.roll_bytes,
            total_bytes: self.memory_bytes,
            age_micros: (self.roll_seconds * 1e6) as i64,
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(cases(64))]
        #[test]
        fn a_group_is_refused_or_has_an_archive(group in "[a-z./=é漢 -]{1,100}|[a-z]{190,300}|é{30,50}") {
            let folder = tempfile::tempdir().unwrap();
            let archive = eadt_lake::Archive::folder(folder.path()).unwrap();
            if ArchiverSettings::check_group(&group).is_ok() {
                prop_assert!(archive.claim_for_group(&group).is_ok() && archive.claim_for_group(&group).is_ok(), "{}", group);
            }
        }
    }

    #[test]
    fn a_group_of_usual_length_is_taken() {
        for (group, is_taken) in
            [("a".repeat(200), true), ("a".repeat(201), false), ("é".repeat(33), true), ("é".repeat(34), false)]
        {
            assert_eq!(ArchiverSettings::check_group(&group).is_ok(), is_taken, "{group}");
        }
    }

    #[test]
    fn defaults_are_in_range_and_others_are_named() {
        assert_eq!(ArchiverSettings::default().check(), Ok(()));
        for (settings, name) in [
            (ArchiverSettings { location: String::new(), ..ArchiverSettings::default() }, "location"),
            (ArchiverSettings { instance: String::new(), ..ArchiverSettings::default() }, "instance"),
            (ArchiverSettings { roll_rows: 0, ..ArchiverSettings::default() }, "roll_rows"),
            (ArchiverSettings { roll_seconds: f64::NAN, ..ArchiverSettings::default() }, "roll_seconds"),
            (ArchiverSettings { memory_bytes: 1, ..ArchiverSettings::default() }, "memory_bytes"),
        ] {
            assert!(settings.check().unwrap_err().contains(name));
        }
        assert!(serde_json::from_str::<ArchiverSettings>(r#"{"roll_row": 1}"#).is_err());
    }
}
