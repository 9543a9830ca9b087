//! `eadt dashboard`: the web page of an archive, or of a pipeline that runs on Kafka.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use eadt_bus::StartOffset;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_dashboard::{
    ArchivedRanges, AsOfReader, DashboardModel, DashboardServer, DashboardSettings, HistorySource, OtherRun, ReadingProgress,
    RecordError, RecordIdentity, ReplayCheck, ReplayVerdict, RetentionLimits, SharedModel, SourceFacts, SourceKind, WhatIf,
    load_archive, load_log,
};
use eadt_lake::{Archive, LakeError};
use eadt_report::ReportSettings;
use eadt_schemas::counts::{counted, counted_as};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{ServiceClock, Shutdown, Supervisor, tasks};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::task::JoinError;

use crate::cli::DashboardArgs;
use crate::live::source;
use crate::settings::{ProgramSettings, TopicSettings};
use crate::{progress, services};

/// Topics of an archive that are read as a whole.
const ARCHIVED_TOPICS: [Topic; 5] =
    [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::DeadLetters];
/// If a folder takes longer to read, its page shows meanwhile how far it is; it may turn out not to be one to show before that.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// A replay that takes longer is given up: it would hold a core for a badge.
const REPLAY_WITHIN: Duration = Duration::from_mins(2);
const REPLAY_POLL: Duration = Duration::from_millis(100);
/// Most that is read of a replay's result, and of its error output if there is none; and the longest text of it on the page.
const RESULT_BYTES: u64 = 256 << 20;
const COMPLAINT_BYTES: u64 = 64 << 10;
const COMPLAINT_CHARS: usize = 400;

/// Serves until interrupted.
pub async fn run(
    args: DashboardArgs,
    mut settings: ProgramSettings,
    config: Option<PathBuf>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    // The settings keep their address: it is that of a running `eadt up`, `--address` is not.
    let mut served = settings.dashboard.clone();
    if let Some(address) = args.address {
        served.address = address;
        served.check().map_err(anyhow::Error::msg)?;
    }
    let (others, names) = (args.compare, settings.topics.clone());
    let others = tokio::task::spawn_blocking(move || read_others(&others, &names)).await??;
    let mut supervisor = Supervisor::new(shutdown.clone());
    let server = match args.path {
        Some(path) => return serve_folder(supervisor, FolderPage { path, config, others, served }, &settings, &shutdown).await,
        None if settings.bus.brokers.is_empty() => bail!(
            "name an archive or a data folder to show, or a Kafka with --kafka BROKERS; a running `eadt up` serves the page itself"
        ),
        None => {
            settings.dashboard = served;
            let bus = crate::bus::connect(&settings)?;
            // Without them the page would wait for good: as for any other reader, that is an error at the start.
            super::partitions(&*bus, &settings.topics, &source::TOPICS, StartOffset::Earliest)?;
            let server = services::spawn_dashboard(&mut supervisor, &settings, &bus, 0, &shutdown).await?;
            match &args.kubernetes {
                Some(context) => {
                    let clock = Arc::new(|| ServiceClock::machine().now());
                    server.with_editor(services::policy_editor(&settings, context, clock).await?)
                }
                None => server,
            }
        }
    };
    serve(&mut supervisor, server.with_runs(others))?;
    supervisor.join().await?;
    Ok(())
}

fn serve(supervisor: &mut Supervisor, server: DashboardServer) -> anyhow::Result<()> {
    crate::output::print_line!("the web page is at {}", server.url());
    supervisor.spawn(&tasks::DASHBOARD, server.run());
    Ok(())
}

/// Reads the runs of `--compare` as `eadt report` does.
fn read_others(paths: &[PathBuf], names: &TopicSettings) -> anyhow::Result<Vec<OtherRun>> {
    let mut named = BTreeSet::new();
    if let Some(name) = paths.iter().map(|path| path.display().to_string()).find(|name| !named.insert(name.clone())) {
        bail!("--compare {name}: it is named twice; name each run once");
    }
    let mut others: Vec<OtherRun> = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        let report = super::report::read(path, names, &ReportSettings::default());
        let report = report.with_context(|| format!("--compare {name}"))?;
        if report.workloads.is_empty() {
            bail!("--compare {name}: it holds no windows yet");
        }
        others.push(OtherRun::new(name, report));
    }
    Ok(others)
}

/// A folder whose page is served.
struct FolderPage {
    path: PathBuf,
    config: Option<PathBuf>,
    others: Vec<OtherRun>,
    /// Settings of the page, with the address that the command line names.
    served: DashboardSettings,
}

/// Serves the page of a folder, with its earlier moments and the result of a replay. While the folder is read, the page shows how
/// far that is.
async fn serve_folder(
    mut supervisor: Supervisor,
    page: FolderPage,
    settings: &ProgramSettings,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let FolderPage { path, config, others, served } = page;
    let limits = RetentionLimits { windows: served.windows, ..RetentionLimits::default() };
    let prefix = settings.topics.prefix.clone();
    let (place, names) = (path.clone(), prefix.clone());
    let read = Arc::new(move |until: ShownUntil<'_>| load(&place, &names, limits, until));
    let identity = Arc::new(OnceLock::<RecordIdentity>::new());
    let records = HistorySource::Folder { path: path.clone(), prefix, identity: identity.clone() };
    let what_if = WhatIf::new(records, settings.processor.controller_settings.clone());
    let model = SharedModel::new(DashboardModel::new(source_facts(&path), limits));
    let (first, then) = (identity.clone(), read.clone());
    let past = AsOfReader::new(move |time| {
        let then = then(ShownUntil::Moment(time)).map_err(|error| RecordError::Unreadable(format!("{error:#}")))?;
        first.get().map_or(Ok(()), |first| first.check(&then.identity))?;
        Ok(then.model)
    });
    let progress = ReadingProgress::default();
    let shown = progress.clone();
    let mut loading = tokio::task::spawn_blocking(move || read(ShownUntil::End(&shown)));
    let checked =
        |loaded: Result<anyhow::Result<LoadedFolder>, JoinError>| loaded?.map_err(|error| source::name_page(error, settings));
    let soon = tokio::time::timeout(READ_WITHIN, &mut loading).await.ok().map(checked).transpose()?;
    let server = DashboardServer::bind(&served, 0, model.clone(), Some(what_if), shutdown.clone()).await?;
    serve(&mut supervisor, server.with_past(past).with_runs(others).with_reading(progress.clone()))?;
    let loaded = match soon {
        Some(loaded) => loaded,
        None => checked(loading.await)?,
    };
    let LoadedFolder { model: read, not_archived, identity: record } = loaded;
    let identity = identity.get_or_init(|| record).clone();
    model.change(|model| *model = read);
    progress.finish();
    let stop = shutdown.clone();
    supervisor.spawn_thread(&tasks::DASHBOARD_FEED, move || {
        let show = |check| model.change(|model| model.set_replay(check));
        show(ReplayCheck { verdict: ReplayVerdict::Running, text: "the record is replayed and compared".to_owned() });
        let checked = check_replay(&path, config.as_deref(), not_archived, &stop);
        let checked = checked.unwrap_or_else(|error| unknown(&format!("the record could not be replayed: {error:#}")));
        // It would be the verdict on another record.
        let replayed = Archive::find(&path).map(|archive| RecordIdentity::of(&archive)).unwrap_or_default();
        show(identity.check(&replayed).map_or_else(|error| unknown(&error.to_string()), |()| checked));
        anyhow::Ok(())
    });
    supervisor.join().await?;
    Ok(())
}

fn unknown(text: &str) -> ReplayCheck {
    ReplayCheck { verdict: ReplayVerdict::Unknown, text: text.chars().take(COMPLAINT_CHARS).collect() }
}

/// Replays the record in a process of its own, which leaves the page its memory and is ended at the shutdown.
fn check_replay(
    path: &Path,
    config: Option<&Path>,
    not_archived: UnreplayableReason,
    stop: &Shutdown,
) -> anyhow::Result<ReplayCheck> {
    let with = config.map_or_else(String::new, |config| format!(" --config {}", config.display()));
    let command = format!("`eadt replay {} --check{with}`", path.display());
    let (mut answer, mut complaint) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut replay = Command::new(std::env::current_exe()?)
        .args(replay_words(path, config))
        .stdin(Stdio::null())
        .stdout(answer.try_clone()?)
        .stderr(complaint.try_clone()?)
        .spawn()?;
    let begun = Instant::now();
    while replay.try_wait()?.is_none() {
        if stop.is_cancelled() || begun.elapsed() > REPLAY_WITHIN {
            // One that has just ended cannot be killed, and is waited for as well.
            replay.kill().ok();
            replay.wait().ok();
            return Ok(unknown(&format!("the replay takes longer than {} s: run {command}", REPLAY_WITHIN.as_secs())));
        }
        std::thread::sleep(REPLAY_POLL);
    }
    answer.rewind()?;
    let Ok(summary) = serde_json::from_reader::<_, ReplayOutcome>(BufReader::new(answer.take(RESULT_BYTES))) else {
        let mut text = Vec::new();
        complaint.rewind()?;
        complaint.take(COMPLAINT_BYTES).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        return Ok(unknown(if text.trim().is_empty() { "the replay ended without a result" } else { text.trim() }));
    };
    Ok(verdict(&summary, not_archived, &command))
}

/// Returns the arguments of the replay: with the settings that this process was started with, since they are in force wherever the
/// record names none.
fn replay_words(path: &Path, config: Option<&Path>) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["replay", "--check", "--json", "--log", "error"].map(OsString::from).into();
    if let Some(config) = config {
        words.extend(["--config".into(), config.into()]);
    }
    words.extend(["--".into(), path.into()]);
    words
}

/// Fields that are read of the output of `eadt replay --check --json`.
#[derive(Debug, Deserialize)]
struct ReplayOutcome {
    events: u64,
    check: Option<ReplayComparison>,
    #[serde(default)]
    left_out: ReplayLeftOut,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplayLeftOut {
    removed_offsets: u64,
    unrecorded_partitions: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplayComparison {
    windows_same: u64,
    decisions_same: u64,
    windows_beyond_record: u64,
    decisions_beyond_windows: u64,
    differences: Vec<IgnoredAny>,
    not_compared: Option<String>,
}

fn verdict(replayed: &ReplayOutcome, not_archived: UnreplayableReason, command: &str) -> ReplayCheck {
    if replayed.events == 0 {
        return unknown("it has no events of collectors to replay, windows and decisions alone");
    }
    let none = ReplayComparison::default();
    let check = replayed.check.as_ref().unwrap_or(&none);
    let (windows, decisions) = (check.windows_same, check.decisions_same);
    if let Some(why) = &check.not_compared {
        return unknown(&format!("nothing could be compared: {why}"));
    }
    if replayed.left_out.removed_offsets > 0 {
        let offsets = counted(replayed.left_out.removed_offsets, "offset");
        return unknown(&format!("files with {offsets} were removed from the archive: {command} names them"));
    }
    if !check.differences.is_empty() {
        let places = counted(check.differences.len(), "place");
        let text = format!("a replay differs from the record in {places}: {command} names them");
        return match not_archived {
            UnreplayableReason::Events(0) => ReplayCheck { verdict: ReplayVerdict::Different, text },
            UnreplayableReason::Events(events) => {
                let events = counted_as(events, "event is", "events are");
                unknown(&format!("{events} in the log and not in the archive yet; {text}"))
            }
            UnreplayableReason::Unknown => {
                unknown(&format!("the log beside the archive could not be opened and may hold more; {text}"))
            }
        };
    }
    if windows + decisions == 0 {
        return unknown("the record has nothing to compare a replay with");
    }
    let same = format!("the same {} and {} of what is archived", counted(windows, "window"), counted(decisions, "decision"));
    if check.decisions_beyond_windows > 0 {
        let decisions = counted(check.decisions_beyond_windows, "decision");
        return unknown(&format!("the archive lacks the windows of {decisions}; otherwise a replay gave {same}: {command}"));
    }
    if replayed.left_out.unrecorded_partitions > 0 {
        let partitions = counted(replayed.left_out.unrecorded_partitions, "partition");
        let text = "nothing in the folder _archived records what was archived of";
        return unknown(&format!("{text} {partitions}, so files may be missing; otherwise a replay gave {same}: {command}"));
    }
    let beyond = match check.windows_beyond_record {
        0 => String::new(),
        count => format!(", and {} behind its end", counted(count, "window")),
    };
    ReplayCheck { verdict: ReplayVerdict::Identical, text: format!("a replay gave {same}{beyond}: {command}") }
}

/// Content of a folder that a replay does not read, since no archive holds it.
#[derive(Debug, Clone, Copy)]
enum UnreplayableReason {
    Events(u64),
    Unknown,
}

/// The content of a folder.
#[derive(Debug)]
struct LoadedFolder {
    model: DashboardModel,
    not_archived: UnreplayableReason,
    identity: RecordIdentity,
}

/// The part of a record that is shown.
#[derive(Debug, Clone, Copy)]
enum ShownUntil<'a> {
    /// All of it. It is read at the start, with its progress.
    End(&'a ReadingProgress),
    Moment(EventTime),
}

fn source_facts(path: &Path) -> SourceFacts {
    SourceFacts {
        kind: SourceKind::Archive,
        place: path.display().to_string(),
        window_seconds: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Loads everything under a path up to a time, as `eadt report` takes it.
fn load(path: &Path, prefix: &str, limits: RetentionLimits, until: ShownUntil<'_>) -> anyhow::Result<LoadedFolder> {
    if !path.is_dir() {
        bail!("{} is not a folder: name a data folder, an archive or the output of `eadt replay`", path.display());
    }
    let mut model = DashboardModel::new(source_facts(path), limits);
    let progress = match until {
        ShownUntil::End(progress) => Some(progress),
        ShownUntil::Moment(time) => {
            model = model.as_of(time);
            None
        }
    };
    let log = path.join("log");
    let (mut identity, mut is_archived) = (RecordIdentity::default(), true);
    let archived = match super::find_archive(path, &Topic::ALL) {
        Ok(archive) => {
            let ranges = read_archive(archive.clone(), &mut model, progress);
            // As of the last listing: it may be written anew meanwhile.
            identity = RecordIdentity::of(&archive);
            ranges
        }
        // Records that the archive does not hold yet are in the log; those in both count once.
        Err(LakeError::Absent { .. }) if log.is_dir() => {
            is_archived = false;
            Ok(ArchivedRanges::default())
        }
        Err(error) => Err(error.into()),
    };
    let ranges = archived.with_context(|| format!("the archive in {} cannot be read", path.display()))?;
    let mut not_archived = UnreplayableReason::Events(0);
    if log.is_dir() {
        match EmbeddedLog::open(&log, EmbeddedOptions::default()) {
            Ok(bus) => not_archived = UnreplayableReason::Events(load_log(&bus, prefix, &ranges, &mut model)?),
            Err(error) if !is_archived => {
                let why = format!("nothing is archived in {} yet", path.display());
                return Err(anyhow::Error::from(error).context(why));
            }
            Err(error) if progress.is_some() => {
                not_archived = UnreplayableReason::Unknown;
                model.set_goes_on();
                crate::output::note!("warning: only what is archived is shown: {error}");
            }
            // The page would go on showing it without the end of the record.
            Err(error) => {
                let why = "the log beside the archive cannot be opened, so this moment cannot be read now";
                return Err(anyhow::Error::from(error).context(why));
            }
        }
    }
    Ok(LoadedFolder { model, not_archived, identity })
}

/// Takes in an archive, at the start with its progress, on the terminal and on the page.
fn read_archive(
    archive: Archive,
    model: &mut DashboardModel,
    progress: Option<&ReadingProgress>,
) -> anyhow::Result<ArchivedRanges> {
    let Some(progress) = progress else { return Ok(load_archive(&archive, model)?) };
    let listing = archive.files()?;
    let (archive, meter) = progress::over_files(archive, &listing, &ARCHIVED_TOPICS);
    let shown = meter.clone();
    progress.describe_by(move || shown.bytes_text());
    let ranges = load_archive(&archive, model)?;
    meter.finish();
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use clap::Parser;
    use eadt_bus::embedded::IN_USE;
    use eadt_lake::{ArchiveRow, ArchiveWriter, RollLimits};
    use eadt_schemas::v1::Workload;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    #[test]
    fn the_badge_shows_what_the_replay_compared() {
        let of_events = |events: u64, differences: &[&str], same: u64, not_compared: Option<&str>| {
            let check = serde_json::json!({
                "windows_same": same, "decisions_same": same, "differences": differences, "not_compared": not_compared,
            });
            let replayed = serde_json::from_value(serde_json::json!({"events": events, "check": check, "seconds": 0.5})).unwrap();
            verdict(&replayed, UnreplayableReason::Events(0), "`eadt replay run --check`")
        };
        let of = |differences: &[&str], same, not_compared: Option<&str>| of_events(99, differences, same, not_compared);
        let identical = of(&[], 7, None);
        assert_eq!(identical.verdict, ReplayVerdict::Identical);
        assert!(identical.text.contains("7 windows and 7 decisions"), "{identical:?}");
        let different = of(&["one", "two"], 7, None);
        assert_eq!(different.verdict, ReplayVerdict::Different);
        assert!(different.text.contains("2 places") && different.text.contains("eadt replay run"), "{different:?}");
        assert_eq!(of(&[], 0, None).verdict, ReplayVerdict::Unknown);
        let output = of_events(0, &["no windows"], 0, None);
        assert_eq!(output.verdict, ReplayVerdict::Unknown, "the output of a replay holds no inputs");
        let other = of(&[], 7, Some("another release made it"));
        assert!(other.verdict == ReplayVerdict::Unknown && other.text.contains("another release"), "{other:?}");
    }

    #[test]
    fn the_replay_of_the_badge_has_the_settings_file_of_the_page() {
        let parse = |config: Option<&str>| {
            let words = replay_words(Path::new("run"), config.map(Path::new));
            Cli::try_parse_from([OsString::from("eadt")].into_iter().chain(words)).unwrap()
        };
        for config in [None, Some("eadt.toml")] {
            let cli = parse(config);
            assert_eq!(cli.config.as_deref(), config.map(Path::new));
            assert!(matches!(cli.command, CliCommand::Replay(args) if args.check && args.logs == [PathBuf::from("run")]));
        }
    }

    #[test]
    fn a_run_that_is_to_be_compared_twice_is_refused() {
        let paths = ["a", "b", "a"].map(PathBuf::from);
        let refused = read_others(&paths, &TopicSettings::default()).unwrap_err().to_string();
        assert_eq!(refused, "--compare a: it is named twice; name each run once");
    }

    /// Writes an archive with one declaration of a workload.
    fn write_archive(archive: Archive, workload: &str) {
        let declared = Workload { workload: workload.to_owned(), ..Workload::default() };
        let row = ArchiveRow {
            topic: Topic::Workloads,
            partition: 0,
            offset: 0,
            stamp: EventTime::from_millis(0),
            key: None,
            value: Some(Bytes::from(serde_json::to_vec(&declared).unwrap())),
            headers: Vec::new(),
        };
        let mut writer = ArchiveWriter::new(archive, RollLimits::default());
        writer.push(&row, row.stamp).unwrap();
        writer.roll_all().unwrap();
    }

    #[test]
    fn a_page_beside_a_log_that_is_in_use_names_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let _held = EmbeddedLog::open(&folder.path().join("log"), options).unwrap();
        let read = || load(folder.path(), "", RetentionLimits::default(), ShownUntil::End(&ReadingProgress::default()));
        let refused = format!("{:#}", read().unwrap_err());
        assert!(refused.contains("nothing is archived in ") && refused.contains(IN_USE), "{refused}");
        write_archive(Archive::folder(&folder.path().join("archive")).unwrap(), "run/1");
        let overview = read().unwrap().model.overview();
        assert!(overview.status.contains(". Only what was archived is shown: the log beside it"), "{}", overview.status);
    }

    #[tokio::test]
    async fn a_log_that_is_in_use_is_not_at_the_address_of_a_page_that_was_to_be_served() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let _held = EmbeddedLog::open(&folder.path().join("log"), options).unwrap();
        let address = Some("127.0.0.1:1".to_owned());
        let args = DashboardArgs { path: Some(folder.path().to_owned()), address, compare: Vec::new(), kubernetes: None };
        let settings = ProgramSettings::default();
        let page = format!("http://{}`", settings.dashboard.address);
        let refused = format!("{:#}", run(args, settings, None, Shutdown::new()).await.unwrap_err());
        assert!(refused.contains(&page) && !refused.contains("127.0.0.1:1`"), "{refused}");
    }

    #[test]
    fn what_is_read_of_a_folder_that_was_written_anew_is_of_another_record() {
        let folder = tempfile::tempdir().unwrap();
        let read = |id: u128| {
            let archive = Archive::folder(folder.path()).unwrap().with_new_id(id);
            write_archive(archive, &format!("run/{id}"));
            load(folder.path(), "", RetentionLimits::default(), ShownUntil::End(&ReadingProgress::default())).unwrap().identity
        };
        let first = read(1);
        for inside in [format!("topic={}", Topic::Workloads), "_archived".to_owned()] {
            std::fs::remove_dir_all(folder.path().join(inside)).unwrap();
        }
        let second = read(2);
        assert_eq!((first.check(&first), first.check(&second)), (Ok(()), Err(RecordError::Rewritten)));
    }

    #[test]
    fn an_archive_that_cannot_be_read_is_not_one_that_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let _held = EmbeddedLog::open(&folder.path().join("log"), options).unwrap();
        let read = || load(folder.path(), "", RetentionLimits::default(), ShownUntil::End(&ReadingProgress::default())).map(drop);
        let refused = format!("{:#}", read().unwrap_err());
        assert!(refused.contains("nothing is archived") && refused.contains(IN_USE), "{refused}");
        let foreign = folder.path().join("archive/topic=decisions.v1/date=2026-01-01");
        std::fs::create_dir_all(&foreign).unwrap();
        std::fs::write(foreign.join("other.parquet"), "no Parquet of ours").unwrap();
        let refused = format!("{:#}", read().unwrap_err());
        assert!(refused.contains("cannot be read") && refused.contains("other.parquet"), "{refused}");
    }

    #[test]
    fn an_earlier_moment_that_lacks_what_is_in_the_log_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let _held = EmbeddedLog::open(&folder.path().join("log"), options).unwrap();
        write_archive(Archive::folder(&folder.path().join("archive")).unwrap(), "run/1");
        let (progress, read) = (ReadingProgress::default(), |until| load(folder.path(), "", RetentionLimits::default(), until));
        assert!(matches!(read(ShownUntil::End(&progress)), Ok(LoadedFolder { not_archived: UnreplayableReason::Unknown, .. })));
        let refused = format!("{:#}", read(ShownUntil::Moment(EventTime::from_millis(0))).unwrap_err());
        assert!(refused.contains("cannot be read now"), "{refused}");
    }

    #[test]
    fn a_difference_means_nothing_while_the_archive_is_not_whole() {
        for (differences, not_archived, expected, words) in [
            (r#"["one"]"#, UnreplayableReason::Events(0), ReplayVerdict::Different, "differs from the record"),
            (r#"["one"]"#, UnreplayableReason::Events(7), ReplayVerdict::Unknown, "7 events are in the log"),
            (r#"["one"]"#, UnreplayableReason::Unknown, ReplayVerdict::Unknown, "could not be opened"),
            ("[]", UnreplayableReason::Events(7), ReplayVerdict::Identical, "of what is archived"),
        ] {
            let text = format!(r#"{{"events": 9, "check": {{"windows_same": 7, "differences": {differences}}}}}"#);
            let check = verdict(&serde_json::from_str(&text).unwrap(), not_archived, "`eadt replay run --check`");
            assert!(check.verdict == expected && check.text.contains(words), "{check:?}");
        }
        for (beyond, left_out, words) in [
            (r#""decisions_beyond_windows": 20"#, "{}", "windows of 20 decisions"),
            (r#""windows_beyond_record": 20"#, r#"{"unrecorded_partitions": 2}"#, "_archived"),
        ] {
            let check = format!(r#"{{"windows_same": 7, "differences": [], {beyond}}}"#);
            let text = format!(r#"{{"events": 9, "check": {check}, "left_out": {left_out}}}"#);
            let outcome = serde_json::from_str(&text).unwrap();
            let check = verdict(&outcome, UnreplayableReason::Events(0), "`eadt replay run --check`");
            assert!(check.verdict == ReplayVerdict::Unknown && check.text.contains(words), "{check:?}");
        }
        for differences in ["[]", r#"["one"]"#] {
            let check = format!(r#"{{"windows_same": 7, "differences": {differences}}}"#);
            let text = format!(r#"{{"events": 9, "check": {check}, "left_out": {{"removed_offsets": 40}}}}"#);
            let outcome = serde_json::from_str(&text).unwrap();
            let check = verdict(&outcome, UnreplayableReason::Events(0), "`eadt replay run --check`");
            assert!(check.verdict == ReplayVerdict::Unknown && check.text.contains("40 offsets"), "{check:?}");
        }
        assert_eq!(unknown(&"é".repeat(5000)).text.chars().count(), COMPLAINT_CHARS);
    }
}
