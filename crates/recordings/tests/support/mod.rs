//! What several modules need: small files in memory, measurements by others, and the events of an import.

use std::fs::File;
use std::path::Path;

use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFile, RecordingFormat, import};
use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};
use eadt_schemas::{Topic, decode};

/// Imports files of a folder.
pub fn read(format: RecordingFormat, folder: &Path, files: &[&str], options: &ImportOptions) -> ImportedRecording {
    let open = |file: &&str| RecordingFile::new(*file, File::open(folder.join(file)).unwrap());
    import(format, files.iter().map(open).collect(), options).unwrap_or_else(|error| panic!("{error}"))
}

/// Imports files, each a name and a text.
pub fn read_texts(format: RecordingFormat, files: &[(&str, &str)], options: &ImportOptions) -> Result<ImportedRecording, String> {
    let inputs = files.iter().map(|(name, text)| RecordingFile::new(*name, text.as_bytes())).collect();
    import(format, inputs, options).map_err(|error| error.to_string())
}

/// Options with these values of `--map`.
pub fn maps(texts: &[&str]) -> ImportOptions {
    ImportOptions { maps: texts.iter().map(|text| text.parse().unwrap()).collect(), ..ImportOptions::default() }
}

fn events<T: decode::DecodableEvent>(imported: &ImportedRecording, topic: Topic) -> Vec<T> {
    let events = imported.events().filter(|event| event.topic() == Some(topic));
    events.map(|event| decode(event.data.unwrap().get().as_bytes()).unwrap()).collect()
}

pub fn telemetry(imported: &ImportedRecording) -> Vec<GpuTelemetry> {
    events(imported, Topic::GpuTelemetry)
}

pub fn progress(imported: &ImportedRecording) -> Vec<TrainingProgress> {
    events(imported, Topic::TrainingProgress)
}

/// The name of a board that its file has, without the fingerprint of the file.
pub fn without_fingerprint(device: &str) -> String {
    let (file, own) = device.split_once(':').map_or((device, String::new()), |(file, own)| (file, format!(":{own}")));
    let (name, fingerprint) = file.rsplit_once('-').unwrap_or_else(|| panic!("{device} has no fingerprint"));
    let is_hexadecimal = fingerprint.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    assert!(fingerprint.len() == 8 && is_hexadecimal, "{device} has no fingerprint");
    format!("{name}{own}")
}

/// Compares figures but for rounding.
pub fn near(got: f64, expected: f64, what: &str) {
    assert!((got - expected).abs() < 1e-6 * expected.abs().max(1.0), "{what}: {got} instead of {expected}");
}
