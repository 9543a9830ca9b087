//! Tests the content of the embedded log when its process is killed, its disk is full, its folder is damaged or already open.
//!
//! Crash tests run this binary again as a child, controlled by environment variables.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use eadt_bus::conformance::numbered::{self, AcknowledgedSteps, LoggedSteps, number};
use eadt_bus::conformance::{outgoing, read_all};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, FreeSpaceSource};
use eadt_bus::{
    Bus, BusError, CommitStep, IsolationLevel, MemberOptions, Membership, PollEvent, ProducerRecord, Remedy, StartOffset,
    TopicPartition, TopicSpec,
};
use eadt_testing::Disk;

const CHILD: &str = "EADT_BUS_TEST_CHILD";
const DIR: &str = "EADT_BUS_TEST_DIR";

/// How often the process is killed; `cargo xtask chaos embedded-killed` does so more often, and while it opens.
const KILLS: u32 = 25;

/// Returns how often its power is cut; `EADT_TEST_POWER_CUTS` for a longer run.
fn power_cuts() -> u32 {
    std::env::var("EADT_TEST_POWER_CUTS").map_or(9, |count| count.parse().expect("EADT_TEST_POWER_CUTS is a number"))
}

fn options() -> EmbeddedOptions {
    EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() }
}

fn open(dir: &Path) -> EmbeddedLog {
    let log = EmbeddedLog::open(dir, options()).unwrap();
    numbered::create_missing_topics(&log).unwrap();
    log
}

fn again(what: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "embedded_crash::child", "--nocapture", "--test-threads=1"]).env(CHILD, what).env(DIR, dir);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Not a test of its own: the work of the child processes.
#[test]
fn child() {
    let (Ok(what), Some(dir)) = (std::env::var(CHILD), std::env::var_os(DIR)) else { return };
    let dir = Path::new(&dir);
    match what.as_str() {
        "commit" => commit_for_ever(dir, 300),
        // Large enough that tables are written and journals go within a second.
        "commit-much" => commit_for_ever(dir, 40_000),
        "open" => match EmbeddedLog::open(dir, options()) {
            Ok(_) => println!("opened"),
            Err(error) => println!("refused {error}"),
        },
        "fill" => fill_the_disk(dir, Some(300_000)),
        "fill-disk" => fill_the_disk(dir, None),
        "sync" => {
            sync_all(dir);
            let made = rustix::fs::statx(
                rustix::fs::CWD,
                dir,
                rustix::fs::AtFlags::empty(),
                rustix::fs::StatxFlags::INO | rustix::fs::StatxFlags::BTIME,
            )
            .unwrap();
            println!("root {}-{}-{}", made.stx_ino, made.stx_btime.tv_sec, made.stx_btime.tv_nsec);
        }
        other => panic!("no such child: {other}"),
    }
}

fn commit_for_ever(dir: &Path, filler: usize) {
    numbered::commit_for_ever(&open(dir), filler, |line| println!("{line}")).unwrap();
}

/// Commits steps until writes fail, as on a full disk; with a limit because no file may grow further than that. Free space is
/// not checked, as when another program takes it between two checks.
fn fill_the_disk(dir: &Path, file_limit: Option<u64>) {
    let free_space = FreeSpaceSource::Injected(Arc::new(|| u64::MAX));
    let log = EmbeddedLog::open(dir, EmbeddedOptions { free_space, ..options() }).unwrap();
    let mut member = log
        .member(MemberOptions {
            group: "g".into(),
            membership: Membership::Transactional("i".into()),
            topics: vec!["input".into()],
        })
        .unwrap();
    let (output, state): (Arc<str>, Arc<str>) = ("output".into(), "state".into());
    let filler = "x".repeat(10_000);
    for n in 1..=1000_u64 {
        if n == 20 && file_limit.is_some() {
            let limit = rustix::process::Rlimit { current: file_limit, maximum: file_limit };
            rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
        }
        let text = format!("{n} {filler}");
        let to = |topic: &Arc<str>, partition| ProducerRecord { partition: Some(partition), ..outgoing(topic, "k", &text) };
        let outputs = vec![to(&output, 0), to(&output, 1), to(&state, 0)];
        match member.commit(&CommitStep { outputs, positions: vec![(TopicPartition::new("input", 0), n as i64)] }) {
            Ok(()) => println!("step {n}"),
            Err(error) => {
                println!("failed {:?} {error}", error.remedy);
                let again = member.commit(&CommitStep { outputs: vec![to(&output, 0)], positions: Vec::new() }).unwrap_err();
                println!("again {:?} {again}", again.remedy);
                return;
            }
        }
    }
}

#[test]
fn a_full_disk_stops_with_words_and_leaves_nothing_half() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    // The signal of the limit is ignored by what sh starts, so that the write itself fails.
    let plain = again("fill", dir.path());
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    command.env(CHILD, "fill").env(DIR, dir.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let steps = steps_until_it_failed(&output);
    has_these_steps_and_goes_on(&open(dir.path()), steps);
}

/// Returns how many steps a child had acknowledged before it reported a full disk, with the remedy.
fn steps_until_it_failed(output: &str) -> u64 {
    let failed = output.lines().find(|line| line.starts_with("failed")).unwrap_or_else(|| panic!("nothing failed: {output}"));
    assert!(failed.contains("Stop") && failed.contains("the disk is full") && failed.contains("start again"), "{failed}");
    assert!(output.lines().any(|line| line.starts_with("again Stop")), "{output}");
    let steps = output.lines().filter(|line| line.contains("step ")).count() as u64;
    assert!(steps > 10, "{output}");
    steps
}

/// Each step that was acknowledged is there, the one that failed as a whole or not at all, and another one is taken.
fn has_these_steps_and_goes_on(log: &EmbeddedLog, steps: u64) {
    let committed = log.committed("g", &[TopicPartition::new("input", 0)]).unwrap()[0].unwrap() as u64;
    assert!(committed == steps || committed == steps + 1, "acknowledged {steps}, found {committed}");
    let outputs = read_all(log, &"output".into(), 2, IsolationLevel::ReadCommitted);
    let states = read_all(log, &"state".into(), 2, IsolationLevel::ReadCommitted);
    for (records, partition) in [(&outputs, 0), (&outputs, 1), (&states, 0)] {
        let found: Vec<_> = records.iter().filter(|r| r.at.partition == partition).map(number).collect();
        assert_eq!(found, (1..=committed).collect::<Vec<_>>());
    }
    let options =
        MemberOptions { group: "g".into(), membership: Membership::Transactional("i".into()), topics: vec!["input".into()] };
    log.member(options)
        .unwrap()
        .commit(&CommitStep { outputs: vec![outgoing(&"output".into(), "k", "v")], positions: Vec::new() })
        .unwrap();
}

/// Returns a disk of so many bytes; `None`, with a message, if none can be mounted.
fn disk(place: &Path, bytes: u64) -> Option<Disk> {
    Disk::mount(place, bytes).map_err(|error| eprintln!("skipped: no file system of its own can be mounted: {error}")).ok()
}

#[test]
fn a_file_system_without_any_room_stops_with_words_and_leaves_nothing_half() {
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = disk(place.path(), 16 << 20) else { return };
    let dir = place.path().join("log");
    drop(open(&dir));
    let output = String::from_utf8(again("fill-disk", &dir).output().unwrap().stdout).unwrap();
    let steps = steps_until_it_failed(&output);
    disk.resize(128 << 20).unwrap();
    has_these_steps_and_goes_on(&open(&dir), steps);
}

#[test]
fn a_log_that_has_filled_its_file_system_lets_go_what_expired_and_goes_on() {
    const MIB: u64 = 1 << 20;
    // Twice the store's background writes at a time.
    const RESERVE: u64 = 64 * MIB;
    const ROOM: u64 = 320 * MIB;
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = disk(place.path(), ROOM) else { return };
    let options = || EmbeddedOptions { reserve_bytes: RESERVE, ..EmbeddedOptions::default() };
    let dir = place.path().join("log");
    let log = EmbeddedLog::open(&dir, options()).unwrap();
    let settings = [("retention.ms".to_owned(), "60000".to_owned())].into();
    log.create_topic(&TopicSpec { name: "output".into(), partitions: 1, replication: 1, settings }).unwrap();
    let member = |log: &EmbeddedLog| {
        let membership = Membership::Transactional("i".into());
        log.member(MemberOptions { group: "g".into(), membership, topics: vec!["output".into()] }).unwrap()
    };
    let mut filling = member(&log);
    // Nothing that compresses.
    let mut noise = 1_u64;
    let mut step = || {
        let value = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        });
        let value = Some(value.take(500_000).collect::<Vec<_>>().into());
        CommitStep { outputs: vec![ProducerRecord { value, ..outgoing(&"output".into(), "k", "") }], positions: Vec::new() }
    };
    let mut acknowledged = Vec::new();
    let error = loop {
        let step = step();
        match filling.commit(&step) {
            Ok(()) => acknowledged.push(step.outputs[0].value.clone()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.remedy, Remedy::Retry);
    assert!(error.to_string().contains("the disk is full") && error.to_string().contains("64 MiB are kept"), "{error}");
    // The store's background writes may be deleted again by now: up to its reserve.
    assert!(disk.used_bytes().unwrap() > ROOM - 2 * RESERVE - 2 * MIB, "{} are used", disk.used_bytes().unwrap());
    let kept = |log: &EmbeddedLog| {
        let records = read_all(log, &"output".into(), 1, IsolationLevel::ReadCommitted);
        records.into_iter().map(|record| record.value).collect::<Vec<_>>()
    };
    assert!(kept(&log) == acknowledged, "of {}", acknowledged.len());
    // The same after a start.
    drop((filling, log));
    let log = EmbeddedLog::open(&dir, options()).unwrap();
    assert!(kept(&log) == acknowledged, "of {}", acknowledged.len());
    // The store's background writes are not counted as another program's.
    let mut used = 0;
    while used != disk.used_bytes().unwrap() {
        used = disk.used_bytes().unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    // Another program takes a little of the reserve, and only the log frees space: it is tidied as often as it takes.
    disk.resize(disk.used_bytes().unwrap() + RESERVE - 4 * MIB).unwrap();
    assert_eq!(member(&log).commit(&step()).unwrap_err().remedy, Remedy::Retry);
    let expired = log.log_time().plus_micros(3_600_000_000);
    // The store writes in the background, too, and a write that finds the disk full there stops it until it is opened again, as
    // it reports.
    let mut log = Some(log);
    let again = |error: BusError| {
        assert!(error.to_string().contains("then start again; everything acknowledged is kept"), "{error}");
        EmbeddedLog::open(&dir, options()).unwrap()
    };
    let (mut tidied, mut deleted) = (0, 0);
    for _ in 0..12 {
        let open = log.take().unwrap();
        log = Some(match open.maintain(expired) {
            Ok(done) => {
                (tidied, deleted) = (tidied + 1, deleted + done.deleted_bytes);
                open
            }
            Err(error) => {
                drop(open);
                again(error)
            }
        });
        if tidied == 4 {
            break;
        }
    }
    assert!(tidied == 4 && deleted > acknowledged.len() as u64 * 500_000, "{tidied} times, {deleted} bytes");
    let (open, step) = (log.take().unwrap(), step());
    let log = match member(&open).commit(&step) {
        Ok(()) => open,
        Err(error) => {
            drop(open);
            let log = again(error);
            member(&log).commit(&step).unwrap();
            log
        }
    };
    assert!(kept(&log) == [step.outputs[0].value.clone()]);
}

#[test]
fn kill_9_loses_nothing_acknowledged_and_leaves_nothing_half() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let (mut steps, mut slowest) = (0, Duration::ZERO);
    for round in 0..KILLS {
        let mut process = again("commit", dir.path()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Its time begins with the first step, however long that takes.
        let first = lines
            .find_map(|line| AcknowledgedSteps::of(&line))
            .unwrap_or_else(|| panic!("round {round}: the child did not come up"));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(u64::from(5 + round * 7 % 60)));
            process.kill().unwrap();
            process.wait().unwrap();
        });
        let acknowledged = lines.filter_map(|line| AcknowledgedSteps::of(&line)).last().unwrap_or(first);
        killer.join().unwrap();
        let begun = Instant::now();
        let log = open(dir.path());
        slowest = slowest.max(begun.elapsed());
        // The step that was under way may be there: whole, or not at all.
        steps = check_whole(&log, round, acknowledged).step;
    }
    assert!(steps > u64::from(KILLS), "too few steps for a test: {steps}");
    eprintln!("{KILLS} kills, {steps} steps, slowest open {slowest:?}");
}

/// Rebuilds the folder that a power cut leaves: the synced parts, as the library in `power/synced.c` has kept them.
fn rebuild(shadow: &Path, id: &str, into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    // A folder that was never synced has lost its entries.
    let entries = std::fs::read_to_string(shadow.join(format!("d-{id}"))).unwrap_or_default();
    for entry in entries.lines() {
        let (kind, rest) = entry.split_at(2);
        let (id, name) = rest.split_once(' ').unwrap();
        if kind == "d " {
            rebuild(shadow, id, &into.join(name));
        } else {
            // A file with a durable name and without its bytes.
            let bytes = std::fs::read(shadow.join(format!("f-{id}"))).unwrap_or_default();
            std::fs::write(into.join(name), bytes).unwrap();
        }
    }
}

/// Checks that the log has at least the acknowledged steps, each step and record whole and in its place; returns its steps.
fn check_whole(log: &EmbeddedLog, round: u32, acknowledged: AcknowledgedSteps) -> AcknowledgedSteps {
    let LoggedSteps { step, written, plain } = LoggedSteps::read(log).unwrap();
    assert!(step >= acknowledged.step, "round {round}: acknowledged step {}, found {step}", acknowledged.step);
    for found in written {
        assert_eq!(found, (1..=step).collect::<Vec<_>>(), "round {round}");
    }
    let count = plain.len() as u64;
    assert!(count >= acknowledged.plain, "round {round}: {} acknowledged, {count} found", acknowledged.plain);
    assert_eq!(plain, (0..count).collect::<Vec<_>>(), "round {round}");
    AcknowledgedSteps { step, plain: count }
}

/// Returns the library that keeps what is synced, built by the C compiler that this workspace needs anyway.
fn synced_library(dir: &Path) -> PathBuf {
    let library = dir.join("synced.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power/synced.c");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// Runs the child on `dir` for a while with a power cut at its end; what it printed, of plain records those that the last step
/// made durable with itself; and what is left, in `left`.
fn power_cut(what: &str, dir: &Path, shadow: &Path, left: &Path, library: &Path, run: Duration, lie: bool) -> AcknowledgedSteps {
    std::fs::create_dir(shadow).unwrap();
    let mut command = again(what, dir);
    command.env("LD_PRELOAD", library).env("EADT_POWER_ROOT", dir).env("EADT_POWER_SHADOW", shadow);
    if lie {
        command.env("EADT_POWER_LIE", "1");
    }
    // Files that existed at the power cut are durable.
    let first = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded_crash::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, "sync")
        .env(DIR, dir)
        .env("LD_PRELOAD", library)
        .env("EADT_POWER_ROOT", dir)
        .env("EADT_POWER_SHADOW", shadow)
        .output()
        .unwrap();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stdout));
    let root = String::from_utf8(first.stdout).unwrap();
    let root = root.lines().find_map(|line| line.split_once("root ")).expect("the child names the folder").1.to_owned();
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    // Its time begins with the first step, however long that takes.
    let first = lines.find_map(|line| AcknowledgedSteps::of(&line)).expect("the child comes up");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(run);
        process.kill().unwrap();
        process.wait().unwrap();
    });
    let (mut acknowledged, mut plain) = (AcknowledgedSteps { plain: 0, ..first }, first.plain);
    for now in lines.filter_map(|line| AcknowledgedSteps::of(&line)) {
        acknowledged = AcknowledgedSteps { step: now.step, plain: std::mem::replace(&mut plain, now.plain) };
    }
    killer.join().unwrap();
    rebuild(shadow, &root, left);
    acknowledged
}

/// Syncs every file and folder below, as if they had been there for long, and names the folder as the library does.
fn sync_all(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sync_all(&path);
        } else {
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
        }
    }
    std::fs::File::open(dir).unwrap().sync_all().unwrap();
}

#[test]
fn a_power_cut_loses_nothing_that_was_committed_and_leaves_nothing_half() {
    let data = tempfile::tempdir().unwrap();
    let library = synced_library(data.path());
    let mut dir = data.path().join("log-0");
    drop(open(&dir));
    let (mut before, rounds) = (AcknowledgedSteps::default(), power_cuts());
    for round in 0..rounds {
        let (shadow, left) = (data.path().join(format!("shadow-{round}")), data.path().join(format!("log-{}", round + 1)));
        let much = round % 4 == 3;
        let (what, run) = if much { ("commit-much", 700) } else { ("commit", 20 + u64::from(round) * 37 % 200) };
        let acknowledged = power_cut(what, &dir, &shadow, &left, &library, Duration::from_millis(run), false);
        std::fs::remove_dir_all(&shadow).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        dir = left;
        let log = open(&dir);
        before = check_whole(
            &log,
            round,
            AcknowledgedSteps { step: acknowledged.step.max(before.step), plain: acknowledged.plain.max(before.plain) },
        );
    }
    let steps = before.step;
    assert!(steps > u64::from(rounds), "too few steps for a test: {steps}");
    eprintln!("{rounds} power cuts, {steps} steps");
}

/// The test above bites: if syncs are not done, steps that were acknowledged are gone.
#[test]
fn a_disk_that_acknowledges_a_sync_that_it_did_not_do_loses_steps() {
    let data = tempfile::tempdir().unwrap();
    let library = synced_library(data.path());
    let [dir, shadow, left] = ["log", "shadow", "left"].map(|name| data.path().join(name));
    drop(open(&dir));
    let acknowledged = power_cut("commit", &dir, &shadow, &left, &library, Duration::from_millis(300), true);
    assert!(acknowledged.step > 0, "{acknowledged:?}");
    let found = EmbeddedLog::open(&left, options())
        .map(|log| log.committed("g", &[TopicPartition::new("input", 0)]).unwrap()[0].unwrap_or(0) as u64);
    assert!(found.as_ref().is_ok_and(|found| *found < acknowledged.step) || found.is_err(), "{acknowledged:?}, found {found:?}");
}

#[test]
fn a_second_process_is_refused_and_pointed_to_kafka() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let output_of = |dir: &Path| String::from_utf8(again("open", dir).output().unwrap().stdout).unwrap();
    let refused = output_of(dir.path());
    assert!(refused.contains("refused") && refused.contains("use Kafka (--kafka) for more than one process"), "{refused}");
    drop(log);
    assert!(output_of(dir.path()).contains("opened"));
}

#[test]
fn a_damaged_store_is_named_with_a_remedy_and_left_as_it_is() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("log");
    let log = open(&dir);
    let records: Vec<_> = (0..2000).map(|n| outgoing(&"output".into(), "k", &format!("{n} {}", "x".repeat(1000)))).collect();
    eadt_bus::conformance::send_all(&log, &records);
    drop(log);
    let marker = dir.join("version");
    let before = std::fs::read(&marker).unwrap();
    std::fs::write(&marker, b"not a store").unwrap();
    let message = damage(&dir);
    // The archive that lies beside it belongs to this log: both go.
    assert!(message.contains(&format!("move {} away", data.path().display())), "{message}");
    assert_eq!(std::fs::read(&marker).unwrap(), b"not a store");
    std::fs::write(&marker, before).unwrap();
    assert_eq!(read_all(&open(&dir), &"output".into(), 2, IsolationLevel::ReadCommitted).len(), 2000);
}

/// Returns the error of opening a damaged log.
fn damage(dir: &Path) -> String {
    let error = EmbeddedLog::open(dir, options()).unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop);
    let message = error.to_string();
    assert!(message.contains("the store is damaged") && message.contains(&*dir.to_string_lossy()), "{message}");
    message
}

/// Steps that are durable when this returns.
fn durable_steps(dir: &Path, count: u64) {
    let log = open(dir);
    let options =
        MemberOptions { group: "g".into(), membership: Membership::Transactional("i".into()), topics: vec!["input".into()] };
    let mut member = log.member(options).unwrap();
    for n in 1..=count {
        let outputs = vec![outgoing(&"output".into(), "k", &format!("{n} {}", "x".repeat(500)))];
        member.commit(&CommitStep { outputs, positions: vec![(TopicPartition::new("input", 0), n as i64)] }).unwrap();
    }
}

#[test]
fn a_log_that_was_cut_off_or_overwritten_is_noticed_and_a_copy_brings_it_back() {
    let dir = tempfile::tempdir().unwrap();
    durable_steps(dir.path(), 100);
    let journal = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let journal = journal.filter(|path| path.extension().is_some_and(|end| end == "jnl")).max().unwrap();
    let whole = std::fs::read(&journal).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(used > 50_000, "the journal holds the steps: {used} bytes");
    for part in 1..10 {
        let at = used * part / 10;
        std::fs::write(&journal, &whole[..at]).unwrap();
        // Again after the store has tidied what it found.
        for _ in 0..2 {
            let message = damage(dir.path());
            assert!(message.contains("cut off") && message.contains("restore a copy"), "{message}");
        }
        let mut torn = whole.clone();
        torn[at..at + 8].fill(0xff);
        std::fs::write(&journal, &torn).unwrap();
        damage(dir.path());
    }
    std::fs::write(&journal, &whole).unwrap();
    let log = open(dir.path());
    assert_eq!(read_all(&log, &"output".into(), 2, IsolationLevel::ReadCommitted).len(), 100);
    assert_eq!(log.committed("g", &[TopicPartition::new("input", 0)]).unwrap(), [Some(100)]);
}

#[test]
fn a_log_that_lost_files_is_noticed() {
    let all = |log: &EmbeddedLog| {
        assert_eq!(read_all(log, &"output".into(), 2, IsolationLevel::ReadCommitted).len(), 100);
        assert_eq!(log.committed("g", &[TopicPartition::new("input", 0)]).unwrap(), [Some(100)]);
    };
    let dir = tempfile::tempdir().unwrap();
    durable_steps(dir.path(), 100);
    // Writes memory to the disk, as the store does when there is more of it.
    let db = fjall::Database::builder(dir.path()).open().unwrap();
    for name in ["blocks", "meta"] {
        db.keyspace(name, fjall::KeyspaceCreateOptions::default).unwrap().rotate_memtable_and_wait().unwrap();
    }
    drop(db);
    let copy = tempfile::tempdir().unwrap();
    for lost in ["keyspaces/0", "keyspaces/1", "keyspaces/2", "keyspaces/1/current", "keyspaces/1/tables", "keyspaces/1/blobs"] {
        let damaged = copy.path().join(lost.replace('/', "-"));
        assert!(std::process::Command::new("cp").arg("-r").arg(dir.path()).arg(&damaged).status().unwrap().success());
        let path = damaged.join(lost);
        if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }.unwrap();
        // It is no better when it is opened again.
        for _ in 0..2 {
            let message = damage(&damaged);
            assert!(message.contains("restore a copy"), "{lost}: {message}");
        }
    }
    all(&open(dir.path()));
}

#[test]
fn a_store_of_a_newer_version_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    durable_steps(dir.path(), 3);
    let open_error = |dir: &Path| {
        let error = EmbeddedLog::open(dir, options()).unwrap_err();
        assert_eq!(error.remedy, Remedy::Stop);
        error.to_string()
    };
    let marker = dir.path().join("version");
    let before = std::fs::read(&marker).unwrap();
    std::fs::write(&marker, b"FJL\x04").unwrap();
    let newer = open_error(dir.path());
    assert!(newer.contains("a newer version of eadt wrote it (format 4") && !newer.contains("damaged"), "{newer}");
    std::fs::write(&marker, before).unwrap();
    // The same store with rows of a later kind.
    change(dir.path(), |_, meta| meta.insert("f", 3_u32.to_be_bytes()).unwrap());
    assert!(open_error(dir.path()).contains("format 3, this version reads up to 2"), "{}", open_error(dir.path()));
    change(dir.path(), |_, meta| meta.insert("f", 2_u32.to_be_bytes()).unwrap());
    assert_eq!(read_all(&open(dir.path()), &"output".into(), 2, IsolationLevel::ReadCommitted).len(), 3);
}

/// Changes rows of a store behind its back.
fn change(dir: &Path, change: impl FnOnce(&fjall::Keyspace, &fjall::Keyspace)) {
    let db = fjall::Database::builder(dir).open().unwrap();
    let [blocks, meta] = ["blocks", "meta"].map(|name| db.keyspace(name, fjall::KeyspaceCreateOptions::default).unwrap());
    change(&blocks, &meta);
    db.persist(fjall::PersistMode::SyncAll).unwrap();
}

/// The number of the newest commit, which since format 2 is with the blocks, too.
const COMMIT: &str = "n";

#[test]
fn a_store_of_the_format_before_is_read_and_becomes_one_of_this() {
    let dir = tempfile::tempdir().unwrap();
    durable_steps(dir.path(), 3);
    let all = |log: &EmbeddedLog| {
        assert_eq!(read_all(log, &"output".into(), 2, IsolationLevel::ReadCommitted).len(), 3);
        assert_eq!(log.committed("g", &[TopicPartition::new("input", 0)]).unwrap(), [Some(3)]);
    };
    let mut newest = None;
    change(dir.path(), |blocks, meta| {
        newest = meta.get(COMMIT).unwrap();
        assert!(newest.is_some() && blocks.get(COMMIT).unwrap() == newest);
        blocks.remove(COMMIT).unwrap();
        meta.insert("f", 1_u32.to_be_bytes()).unwrap();
    });
    all(&open(dir.path()));
    // A commit that follows is to be found in both, and the store is read as one that was never of another format.
    change(dir.path(), |blocks, meta| {
        assert_eq!(meta.get("f").unwrap().as_deref(), Some(&2_u32.to_be_bytes()[..]));
        let number = blocks.get(COMMIT).unwrap();
        assert!(number >= newest && number == meta.get(COMMIT).unwrap(), "{number:?} after {newest:?}");
    });
    all(&open(dir.path()));
    // Without it a store of this format lacks files.
    change(dir.path(), |blocks, _| blocks.remove(COMMIT).unwrap());
    let message = damage(dir.path());
    assert!(message.contains("its records end at commit 0"), "{message}");
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = EmbeddedLog::open(&file, options()).unwrap_err();
    assert_eq!(error.remedy, Remedy::Stop);
    assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
}

#[test]
fn a_disk_below_its_reserve_refuses_and_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let free = Arc::new(AtomicU64::new(0));
    let space = {
        let free = Arc::clone(&free);
        FreeSpaceSource::Injected(Arc::new(move || free.load(Ordering::Relaxed)))
    };
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions { free_space: space, ..EmbeddedOptions::default() }).unwrap();
    let options =
        MemberOptions { group: "g".into(), membership: Membership::Transactional("i".into()), topics: vec!["input".into()] };
    let mut member = log.member(options).unwrap();
    let step =
        CommitStep { outputs: vec![outgoing(&"output".into(), "k", "v")], positions: vec![(TopicPartition::new("input", 0), 1)] };
    let error = member.commit(&step).unwrap_err();
    assert_eq!(error.remedy, Remedy::Retry);
    assert!(error.to_string().contains("the disk is full"), "{error}");
    // A plain producer keeps what it took and reports that it is not written.
    let mut producer = log.producer("p").unwrap();
    let waiting: Vec<_> = (0..20).map(|n| outgoing(&"output".into(), "k", &format!("waits {n}"))).collect();
    for record in &waiting {
        producer.send(record.clone()).unwrap();
    }
    assert!(!producer.flush(Duration::from_millis(300)).unwrap());
    assert_eq!((producer.counts().accepted, producer.counts().acknowledged, producer.counts().failed), (20, 0, 0));
    assert_eq!(read_all(&log, &"output".into(), 2, IsolationLevel::ReadCommitted).len(), 0);
    assert_eq!(log.committed("g", &[TopicPartition::new("input", 0)]).unwrap(), [None]);
    free.store(1 << 40, Ordering::Relaxed);
    assert!(producer.flush(Duration::from_mins(1)).unwrap(), "it goes on by itself");
    assert_eq!((producer.counts().acknowledged, producer.counts().failed), (20, 0));
    member.commit(&step).unwrap();
    let texts: Vec<_> = read_all(&log, &"output".into(), 2, IsolationLevel::ReadCommitted)
        .into_iter()
        .map(|record| String::from_utf8(record.value.unwrap().to_vec()).unwrap())
        .collect();
    let expected: Vec<_> = (0..20).map(|n| format!("waits {n}")).chain(["v".to_owned()]).collect();
    assert_eq!(texts, expected, "everything once, in order");
}

#[test]
fn below_its_reserve_a_log_still_lets_go_what_it_need_not_keep() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1 << 40));
    let space = {
        let free = Arc::clone(&free);
        FreeSpaceSource::Injected(Arc::new(move || free.load(Ordering::Relaxed)))
    };
    let options = EmbeddedOptions { free_space: space, ..EmbeddedOptions::default() };
    let log = EmbeddedLog::open(dir.path(), options.clone()).unwrap();
    let topics: [(Arc<str>, _); 2] =
        [("aging".into(), ("retention.ms", "60000")), ("table".into(), ("cleanup.policy", "compact"))];
    for (name, (setting, value)) in topics.clone() {
        let settings = [(setting.to_owned(), value.to_owned())].into();
        log.create_topic(&TopicSpec { name, partitions: 1, replication: 1, settings }).unwrap();
    }
    let filler = "x".repeat(50_000);
    for _ in 0..2 {
        let records: Vec<_> =
            topics.iter().flat_map(|(name, _)| [outgoing(name, "k", &filler), outgoing(name, "k", &filler)]).collect();
        eadt_bus::conformance::send_all(&log, &records);
    }
    // Another program has taken all of the disk: nothing is done, and nothing is reported as deleted.
    drop(log);
    free.store(0, Ordering::Relaxed);
    let log = EmbeddedLog::open(dir.path(), options).unwrap();
    let aging = TopicPartition::new("aging", 0);
    let mut slow = log.reader(&[(aging.clone(), StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
    let later = log.log_time().plus_micros(3_600_000_000);
    for _ in 0..2 {
        let error = log.maintain(later).unwrap_err();
        assert_eq!(error.remedy, Remedy::Retry);
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert_eq!(log.watermarks(&aging).unwrap().low, 0);
    }
    let mut polled = Vec::new();
    slow.poll(10, Duration::ZERO, &mut polled).unwrap();
    assert_eq!(polled.iter().filter(|item| matches!(item, PollEvent::Record(_))).count(), 4);
    // The log has filled the disk itself, up to the reserve.
    free.store(200 * MIB, Ordering::Relaxed);
    let done = log.maintain(later).unwrap();
    assert!(done.deleted_bytes > 4 * 50_000, "{done:?}");
    assert_eq!(done.compacted_records, 3);
    assert_eq!(
        (log.watermarks(&aging).unwrap().low, read_all(&log, &"table".into(), 1, IsolationLevel::ReadCommitted).len()),
        (4, 1)
    );
}
