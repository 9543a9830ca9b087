//! Checks without requests to other machines: settings, files of secrets, folders, disk space.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use eadt_bus::embedded::EmbeddedOptions;
use eadt_collector::progress::serve::ServerCertificate;
use eadt_collector::progress::tokens;

use super::Findings;
use crate::settings::{ProgramSettings, kafka_names};

/// A log or an archive fills this in about a day of a busy machine.
const LITTLE_BYTES: u64 = 4 << 30;

/// Checks settings that the loader leaves to the services.
pub fn settings(settings: &ProgramSettings, findings: &mut Findings) {
    let before = findings.0.len();
    let checks = [
        settings.simulator.check(),
        settings.collector.clone().validate(&eadt_collector::host_name()).map(drop).map_err(|error| error.to_string()),
        settings.bus.security.properties().map(drop).map_err(|error| error.detail),
    ];
    for wrong in checks.into_iter().filter_map(Result::err) {
        findings.wrong("settings", wrong, "correct it; `eadt config show` has what is in force");
    }
    let address = eadt_service::address::parse(&settings.http.address);
    if address.is_ok_and(|address| !address.ip().is_loopback()) {
        findings.notice(
            "settings",
            format!("http.address={} is reached from other machines, and requires no token", settings.http.address),
            "let only Prometheus and probes reach it (a network policy, a firewall), or take 127.0.0.1",
        );
    }
    if !settings.bus.brokers.is_empty() && kafka_names::are_those_of_the_default(settings) {
        findings.notice(
            "settings",
            format!("with topics.prefix={:?} groups or instances are called as with the default prefix", settings.topics.prefix),
            "beside an installation with the default prefix, give this one another prefix that is not empty: else they end each other",
        );
    }
    if findings.0.len() == before {
        findings.ok("settings", "valid for every part");
    }
}

/// Access to a file that other users must not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileRestriction {
    /// It holds a secret.
    ToReaders,
    /// It lists users, and need not be hidden: tokens are kept as hashes.
    ToWriters,
}

/// Checks the access to the files that hold secrets, and to those that list users.
pub fn secrets(settings: &ProgramSettings, findings: &mut Findings) {
    use std::os::unix::fs::PermissionsExt;
    let progress = &settings.collector.progress;
    let kafkas = settings.bus.security.secret_files().map(|file| (file, FileRestriction::ToReaders));
    let key = progress.key.iter().map(|file| (file.as_path(), FileRestriction::ToReaders));
    let tokens = progress.tokens_file.iter().map(|file| (file.as_path(), FileRestriction::ToWriters));
    for (file, closed) in kafkas.chain(key).chain(tokens) {
        // A missing file is reported by the settings, or by the collector's start.
        let Ok(metadata) = std::fs::metadata(file) else { continue };
        let mode = metadata.permissions().mode() & 0o777;
        let shown = file.display();
        let (bit, may, remedy) = match closed {
            FileRestriction::ToReaders => {
                (0o004, "read", format!("chmod 600 {shown} (in Kubernetes: defaultMode of the volume)"))
            }
            FileRestriction::ToWriters => (0o002, "change", format!("chmod o-w {shown}")),
        };
        if mode & bit == 0 {
            findings.ok("secrets", format!("other users may not {may} {shown} (mode {mode:03o})"));
        } else {
            findings.wrong("secrets", format!("every user of this machine may {may} {shown} (mode {mode:03o})"), &remedy);
        }
    }
}

/// Reads tokens and certificate as the collector's start does. Missing files are reported by that start.
pub fn progress_files(settings: &ProgramSettings, findings: &mut Findings) {
    let progress = &settings.collector.progress;
    if let Some(file) = progress.tokens_file.as_ref().filter(|file| file.exists())
        && let Err(error) = tokens::read(file)
    {
        findings.wrong("files", error.to_string(), "move it away, and make it with eadt token create");
    }
    if let (Some(certificate), Some(key)) = (&progress.certificate, &progress.key)
        && certificate.exists()
        && key.exists()
        && let Err(error) = ServerCertificate::load(certificate, key)
    {
        findings.wrong("files", error, "name a certificate chain and its key, both as PEM");
    }
}

/// Returns the archive's folder, if it is one.
pub fn archive_folder(settings: &ProgramSettings) -> Option<PathBuf> {
    let location = &settings.archiver.location;
    match location.split_once("://") {
        None => Some(PathBuf::from(location)),
        Some(("file", path)) => Some(PathBuf::from(path)),
        Some(_) => None,
    }
}

/// Folders that are written to. On Kafka there is no log of our own.
fn written_folders(settings: &ProgramSettings) -> Vec<(&'static str, PathBuf)> {
    let data = settings.bus.brokers.is_empty().then(|| ("data folder", settings.bus.data_dir.clone()));
    data.into_iter().chain(archive_folder(settings).map(|folder| ("archive", folder))).collect()
}

pub fn folders(settings: &ProgramSettings, findings: &mut Findings) {
    use std::os::unix::fs::PermissionsExt;
    for (name, folder) in written_folders(settings) {
        let shown = folder.display();
        let present = nearest_existing(&folder);
        if !present.is_dir() {
            let remedy = "name another folder, or move the file away";
            findings.wrong("folders", format!("{name} {shown}: {} is not a folder", present.display()), remedy);
            continue;
        }
        if let Err(error) = tempfile::tempfile_in(&present) {
            let remedy = write_remedy(error.kind(), &present);
            findings.wrong("folders", format!("{name} {shown}: cannot write to {}: {error}", present.display()), &remedy);
            continue;
        }
        if present != folder {
            findings.ok("folders", format!("{name} {shown} does not exist yet and can be created"));
            continue;
        }
        let mode = std::fs::metadata(&folder).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o002 != 0 {
            let remedy = format!("chmod o-w {shown}");
            findings.wrong("folders", format!("{name} {shown}: every user of this machine may change what it holds"), &remedy);
        } else {
            findings.ok("folders", format!("{name} {shown} can be written"));
        }
    }
}

/// Returns the remedy for a folder that cannot be written to, by the kind of the error.
fn write_remedy(kind: ErrorKind, folder: &Path) -> String {
    let shown = folder.display();
    match kind {
        ErrorKind::ReadOnlyFilesystem => {
            format!("the file system of {shown} is mounted read-only: name a folder on another one, or mount it writable")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("free some space for {shown}, or name a folder on another disk")
        }
        ErrorKind::PermissionDenied => {
            format!("let the user of this process write there: chown or chmod {shown}, or name another folder")
        }
        _ => format!("name another folder, or find out why {shown} cannot be written to"),
    }
}

/// Returns the folder, or the nearest one above it that is there.
fn nearest_existing(folder: &Path) -> PathBuf {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    if absolute.exists() && folder.exists() {
        return folder.to_owned();
    }
    absolute.ancestors().find(|above| above.exists()).map_or(absolute.clone(), Path::to_path_buf)
}

pub fn disk(settings: &ProgramSettings, findings: &mut Findings) {
    for (name, folder) in written_folders(settings) {
        let present = nearest_existing(&folder);
        let space = rustix::fs::statvfs(&present).map(|space| space.f_bavail.saturating_mul(space.f_frsize));
        match space {
            Ok(free) => report_free_space(name, &folder, free, EmbeddedOptions::default().reserve_bytes, findings),
            Err(error) => findings.unchecked("disk", format!("{name} {}: {error}", folder.display())),
        }
    }
}

fn report_free_space(name: &str, folder: &Path, free: u64, reserve: u64, findings: &mut Findings) {
    let about = format!("{name} {}: {} MiB are free", folder.display(), free >> 20);
    let remedy =
        "free some, or name a folder on another disk; running services continue by themselves, and nothing starts before";
    if free <= reserve {
        findings.wrong("disk", format!("{about}, and nothing is appended below {} MiB", reserve >> 20), remedy);
    } else if free < LITTLE_BYTES {
        findings.notice("disk", about, "free some before it is used up");
    } else {
        findings.ok("disk", about);
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn a_disk_is_wrong_where_nothing_would_be_appended() {
        let mut findings = Findings::default();
        for free in [0, 256 << 20, (256 << 20) + 1, LITTLE_BYTES - 1, LITTLE_BYTES] {
            report_free_space("data folder", Path::new("/d"), free, 256 << 20, &mut findings);
        }
        let states: Vec<_> = findings.0.iter().map(|finding| finding.state).collect();
        assert_eq!(states, [CheckStatus::Wrong, CheckStatus::Wrong, CheckStatus::Notice, CheckStatus::Notice, CheckStatus::Ok]);
        assert!(findings.0[0].about.contains("/d: 0 MiB are free"), "{:?}", findings.0[0]);
    }

    #[test]
    fn the_remedy_for_a_folder_fits_why_it_cannot_be_written() {
        for (kind, part) in [
            (ErrorKind::ReadOnlyFilesystem, "read-only"),
            (ErrorKind::StorageFull, "free some space"),
            (ErrorKind::PermissionDenied, "chown or chmod /d"),
            (ErrorKind::NotFound, "name another folder"),
        ] {
            let remedy = write_remedy(kind, Path::new("/d"));
            assert!(remedy.contains(part) && (kind == ErrorKind::PermissionDenied) == remedy.contains("chown"), "{remedy}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_judged_by_what_is_above_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nearest_existing(&dir.path().join("a/b/c")), dir.path());
        assert_eq!(nearest_existing(dir.path()), dir.path());
        assert!(nearest_existing(Path::new("not-there-1b2/x")).is_absolute());
    }
}
