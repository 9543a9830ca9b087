//! Power logs of a run: one device a file and host, switches apart from nodes.
//!
//! A log is that of an interconnect if its file or its host is named after one (`sw_0`, `switch-1`, `leaf`, …), whatever the
//! other name is. A switch's log that calls its host a node must not count as a node. Its power belongs to a workload of its own,
//! the run's name with [`INTERCONNECT`] behind it, which starts and finishes with the run.

use std::path::Path;

use eadt_schemas::EventTime;
use eadt_schemas::v1::JobLifecycle;

use super::{DAMAGED_ENTRY, LogLine, MlperfRun, NO_READING_WATTS, damaged_entry, number};
use crate::overlap::{self, TimeRange};
use crate::recording::{FileId, ProgressMark, RecordedDevice, Recording, SourceId, SourceKind, clean_name};
use crate::{ImportError, ReadingField};

/// Suffix behind the name of the run's workload.
const INTERCONNECT: &str = "-interconnect";
/// Parts of names that switches have.
const SWITCH_NAMES: [&str; 8] = ["sw", "switch", "switches", "ibsw", "nvswitch", "interconnect", "leaf", "spine"];
/// Fewer readings than this may be equal by chance.
const LEAST_EQUAL: usize = 10;

#[derive(Debug)]
struct PowerLog {
    file: FileId,
    host: Option<String>,
    source: SourceId,
    interconnect: bool,
}

/// The power logs among the files of one run.
#[derive(Debug, Default)]
pub(super) struct PowerLogs(Vec<PowerLog>);

/// Returns whether a file or host is named after a switch.
fn names_switch(name: &str) -> bool {
    let parts = name.split(|c: char| !c.is_ascii_alphabetic()).map(str::to_ascii_lowercase);
    parts.into_iter().any(|part| SWITCH_NAMES.contains(&part.as_str()))
}

impl PowerLogs {
    /// Takes an entry with the key `power_reading`.
    pub(super) fn read(&mut self, file: FileId, line: u64, time: EventTime, entry: &LogLine, recording: &mut Recording) {
        let watts = match number(&entry.value) {
            Some(watts) if watts == NO_READING_WATTS => None,
            Some(watts) if watts >= 0.0 => Some(watts),
            None if entry.value.is_null()
                || matches!(crate::units::parse_cell(entry.value.as_str().unwrap_or("?")), crate::units::NumberCell::Absent) =>
            {
                None
            }
            _ => {
                let error = damaged_entry(recording, file, line, &format!("power_reading {}", entry.value));
                return recording.refuse_row(DAMAGED_ENTRY, error);
            }
        };
        let Some(watts) = watts else {
            recording.absent += 1;
            return;
        };
        let host = entry.metadata.get("host").and_then(|host| host.as_str());
        let source = self.source(file, host, recording);
        recording.push(source, time, line, &[(ReadingField::PowerWatts, watts)], None);
    }

    fn source(&mut self, file: FileId, host: Option<&str>, recording: &mut Recording) -> SourceId {
        if let Some(log) = self.0.iter().rev().find(|log| log.file == file && log.host.as_deref() == host) {
            return log.source;
        }
        let stem = recording.clean_stem(file);
        let another_host = self.0.iter().any(|log| log.file == file);
        let name = match host {
            Some(host) if another_host => format!("{stem}-{}", clean_name(host)),
            _ => stem.clone(),
        };
        let name = self.unique_name(name, file, recording);
        let interconnect = names_switch(&stem) || host.is_some_and(names_switch);
        let node = (!interconnect).then(|| name.clone());
        let source = recording.add_device(file, RecordedDevice { name, node, ..RecordedDevice::default() });
        if interconnect {
            recording.sources[source].suffix = INTERCONNECT;
        }
        self.0.push(PowerLog { file, host: host.map(str::to_owned), source, interconnect });
        source
    }

    /// Returns a name that no other device has: nodes' files of several folders are often named alike.
    fn unique_name(&self, name: String, file: FileId, recording: &Recording) -> String {
        let is_taken = |name: &str| self.0.iter().any(|log| device(recording, log).name == name);
        if !is_taken(&name) {
            return name;
        }
        let folder = Path::new(&recording.files[file]).parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let in_folder = clean_name(&format!("{folder}-{name}"));
        if !folder.is_empty() && !is_taken(&in_folder) {
            return in_folder;
        }
        (2..=self.0.len() + 2).map(|n| format!("{name}-{n}")).find(|name| !is_taken(name)).unwrap_or(name)
    }

    /// Notes logs whose readings are another one's: a copy counts energy twice.
    pub(super) fn note_copies(&self, recording: &mut Recording) {
        let mut notes = Vec::new();
        for (i, a) in self.0.iter().enumerate() {
            for b in &self.0[..i] {
                let (of_a, of_b) = (readings(recording, a), readings(recording, b));
                let constant = of_a.iter().all(|(_, watts)| *watts == of_a[0].1);
                let same_watts = of_a.len() == of_b.len() && of_a.iter().zip(&of_b).all(|(a, b)| a.1 == b.1);
                if a.interconnect != b.interconnect && a.host.is_some() && a.host == b.host {
                    notes.push(format!(
                        "{} and {} name the same host {:?}: by their names one is a node's and the other a switch's",
                        recording.files[b.file],
                        recording.files[a.file],
                        a.host.as_deref().unwrap_or_default()
                    ));
                }
                if of_a.is_empty() || !same_watts {
                    continue;
                }
                let same_times = of_a.iter().zip(&of_b).all(|(a, b)| a.0 == b.0);
                if same_times && of_a.len() > 1 || !constant && of_a.len() >= LEAST_EQUAL {
                    let times = if same_times { "" } else { " at other times" };
                    notes.push(format!(
                        "{} and {} have the same {} readings{times}: one may be a copy of the other; the energy counts both",
                        recording.files[b.file],
                        recording.files[a.file],
                        of_a.len()
                    ));
                }
            }
        }
        recording.notes.extend(notes);
    }

    /// Notes logs that lie outside the run, and the energy of switches; refuses if no node's log lies inside.
    pub(super) fn compare_with_run(&self, run: &MlperfRun, recording: &mut Recording) -> Result<(), ImportError> {
        let window: TimeRange = (run.start, run.stop.unwrap_or(run.last));
        let mut notes = Vec::new();
        let (mut nodes, mut nodes_inside, mut outside) = (0, 0, None);
        for log in &self.0 {
            let readings = readings(recording, log);
            let (Some(first), Some(last)) = (readings.first(), readings.last()) else { continue };
            let range = (first.0, last.0);
            let apart = overlap::are_apart(range, window);
            let (file, name) = (&recording.files[log.file], &device(recording, log).name);
            if apart {
                let text = overlap::describe(range, window);
                let whose = if log.interconnect {
                    "the interconnect's energy in the run is not known"
                } else {
                    "none of its energy is in the run"
                };
                notes.push(format!("no reading of {name} lies in the run ({file}): {whose}; {text}"));
                outside.get_or_insert(text);
            } else if log.interconnect {
                let joules = energy_joules(&readings, window);
                notes.push(format!(
                    "{name} is a switch: its {joules:.1} J in the run are apart from the nodes', as workload …{INTERCONNECT} ({file})"
                ));
            }
            nodes += usize::from(!log.interconnect);
            nodes_inside += usize::from(!log.interconnect && !apart);
        }
        if let Some(text) = outside.filter(|_| nodes > 0 && nodes_inside == 0) {
            let problem = format!("no power reading of a node lies between run_start and run_stop: {text}");
            let remedy = "give the power logs of this run, or shift the times of one side; the power logs alone can be imported without it";
            return Err(recording.error(run.file, run.line, problem, remedy));
        }
        recording.notes.extend(notes);
        let switch = self.0.iter().find(|log| log.interconnect).map(|log| log.source);
        if switch.is_some() {
            let source = recording.add_source(
                run.file,
                None,
                SourceKind::Job { rank: 0, irregular: true, scope: eadt_schemas::v1::CounterScope::Global },
            );
            recording.sources[source].suffix = INTERCONNECT;
            let mark = |phase| Some(ProgressMark { phase, span: None });
            recording.push(source, run.start, run.line, &[], mark(JobLifecycle::Started));
            if let Some(stop) = run.stop {
                recording.push(source, stop, run.line, &[], mark(JobLifecycle::Finished));
            }
        }
        Ok(())
    }
}

fn device<'a>(recording: &'a Recording, log: &PowerLog) -> &'a RecordedDevice {
    match &recording.sources[log.source].kind {
        SourceKind::Device(device) => device,
        SourceKind::Job { .. } => unreachable!("power logs are devices"),
    }
}

/// Returns times and watts in the order of time, equal times averaged.
fn readings(recording: &Recording, log: &PowerLog) -> Vec<(EventTime, f64)> {
    let all = &recording.sources[log.source].readings;
    let mut readings: Vec<(EventTime, f64)> =
        all.iter().filter_map(|reading| Some((reading.time, reading.values.first()?.1))).collect();
    readings.sort_by_key(|(time, _)| *time);
    let mean = |group: &[(EventTime, f64)]| (group[0].0, group.iter().map(|(_, watts)| watts).sum::<f64>() / group.len() as f64);
    readings.chunk_by(|a, b| a.0 == b.0).map(mean).collect()
}

/// Joules between two moments by the trapezoidal rule, linear at both ends.
fn energy_joules(readings: &[(EventTime, f64)], (from, to): TimeRange) -> f64 {
    let step = |pair: &[(EventTime, f64)]| {
        let ((a, watts_a), (b, watts_b)) = (pair[0], pair[1]);
        let (low, high) = (a.max(from), b.min(to));
        if high <= low {
            return 0.0;
        }
        let at = |time: EventTime| watts_a + (watts_b - watts_a) * time.seconds_since(a) / b.seconds_since(a);
        f64::midpoint(at(low), at(high)) * high.seconds_since(low)
    };
    readings.windows(2).map(step).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_known_by_the_name_of_file_or_host() {
        for name in ["sw_0", "switch-1", "Switch3", "ib_switch_2", "rack1.leaf0", "IBSW01", "spine7", "interconnect"] {
            assert!(names_switch(name), "{name}");
        }
        for name in ["node_0", "swift-1", "gpu07", "host-a", "swn01x", "dgx-sweden", ""] {
            assert!(!names_switch(name), "{name}");
        }
    }
}
