//! One story: processes one after another, and one within another, on a log and a disk that they share. Chance decides at every
//! call of theirs what becomes of it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use eadt_archiver::{ArchiverDependencies, ArchiverError, ArchiverSettings, MonotonicClock, ServiceClock, run_on};
use eadt_bus::TopicPartition;
use eadt_bus::simulation::{PREFIX, ScheduledRecord, SimLog};
use eadt_lake::Archive;
use eadt_lake::simulation::{CrashDisk, archive};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use eadt_testing::stories::Chance;

use super::bus::SimBus;
use super::disk::SimDisk;
use super::look::Seen;

pub const ROOT: &str = "/data/archive";
/// Members of the group.
const NAMES: [&str; 2] = ["archiver-0", "archiver-1"];
/// Processes within each other.
const DEPTH: usize = 3;

/// A mitigation that is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Syncs of files do nothing.
    FileSyncs,
    /// Syncs of folders do nothing.
    FolderSyncs,
    /// The replaced member still gets partitions assigned.
    Ownership,
    /// Hidden files are not listed.
    Leftovers,
    /// A rename is a copy, which can be torn.
    Renames,
}

/// Fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strike {
    /// It fails, and nothing was done.
    Fails,
    /// It fails, and was done.
    Lies,
    Kill,
    PowerLoss,
    /// Another member takes over while this one is frozen in its call.
    TakeOver,
    /// The disk is full for a while.
    Full,
}

/// Unwinds a process that was killed: nothing of it is carried out any more.
struct Killed;

pub struct World {
    pub chance: Chance,
    pub log: SimLog,
    pub committed: BTreeMap<TopicPartition, i64>,
    pub flaw: Option<Flaw>,
    /// Faults left: a story ends.
    faults: usize,
    crashes: usize,
    /// Power losses so far.
    losses: u64,
    /// So many more writes are refused.
    full: usize,
    /// Processes that are not over.
    depth: usize,
    processes: usize,
    calls: usize,
    /// The newest member of each name.
    pub newest: BTreeMap<String, u64>,
    pub members: u64,
    /// Counts the owners of the partitions: a former owner has lost them. 0 if there was none.
    pub generation: u64,
    seen: Seen,
    /// Texts of the events so far.
    notes: Vec<String>,
    wrong: Option<String>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    /// Takes one of the faults that are left, now and then.
    pub fn strikes(&mut self, one_in: usize) -> bool {
        let strikes = self.faults > 0 && self.chance.one_in(one_in);
        self.faults -= usize::from(strikes);
        strikes
    }

    pub fn note(&mut self, what: &str) {
        self.notes.push(format!("{}{what}", "  ".repeat(self.depth)));
    }

    /// Returns whether a write is refused for want of room.
    pub fn is_full(&mut self) -> bool {
        let full = self.full > 0;
        self.full -= usize::from(full);
        full
    }

    /// Returns whether another process goes on when this one is over.
    pub fn is_nested(&self) -> bool {
        self.depth > 1
    }
}

#[derive(Debug, Clone)]
pub struct Story {
    world: Arc<Mutex<World>>,
    disk: CrashDisk,
    settings: ArchiverSettings,
}

impl Story {
    pub fn new(
        chance: Chance,
        coming: Vec<ScheduledRecord>,
        faults: usize,
        settings: ArchiverSettings,
        flaw: Option<Flaw>,
    ) -> Self {
        let world = World {
            chance,
            log: SimLog::new(coming),
            committed: BTreeMap::new(),
            flaw,
            faults,
            crashes: 0,
            losses: 0,
            full: 0,
            depth: 0,
            processes: 0,
            calls: 0,
            newest: BTreeMap::new(),
            members: 0,
            generation: 1,
            seen: Seen::default(),
            notes: Vec::new(),
            wrong: None,
        };
        Self { world: Arc::new(Mutex::new(world)), disk: CrashDisk::default(), settings }
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the archive on a disk on which nothing happens.
    fn archive(&self) -> Archive {
        archive(Path::new(ROOT), self.disk.clone())
    }

    /// Runs one process after another, until everything is archived. Returns the number of crashes, or the error.
    pub fn play(&self) -> Result<usize, String> {
        self.to_its_end().map_err(|wrong| format!("{wrong}\n{}", self.world().notes.join("\n")))
    }

    fn to_its_end(&self) -> Result<usize, String> {
        while !self.world().is_archived() {
            self.live()?;
            if self.world().processes > 60 {
                return Err("it never ends".to_owned());
            }
        }
        // The next process runs without faults and leaves no temporary files; its files survive any later fault.
        self.world().faults = 0;
        self.live()?;
        let listed = self.archive().files().map_err(|error| error.to_string())?.files.len();
        let files = self.disk.files();
        let is_record =
            |path: &Path| path.starts_with(Path::new(ROOT).join("_archived")) && path.extension().is_none_or(|e| e != "tmp");
        if files.iter().filter(|path| !is_record(path)).count() != listed {
            return Err(format!("something was left behind: {files:?}"));
        }
        self.disk.lose_power(|| false);
        self.look("after everything")?;
        let world = self.world();
        if world.is_archived() { Ok(world.crashes) } else { Err("a power loss after everything took some of it".to_owned()) }
    }

    /// Checks that visible files are the beginning of the log, after any faults.
    fn look(&self, when: &str) -> Result<(), String> {
        let world = &mut *self.world();
        world.seen.look(&self.archive(), &world.log, &world.committed).map_err(|wrong| format!("{when}: {wrong}"))
    }

    /// A process from its start to its end. What is wrong stays so, for the processes around it, too.
    fn live(&self) -> Result<(), String> {
        let process = {
            let mut world = self.world();
            world.processes += 1;
            world.depth += 1;
            let name = NAMES[usize::from(world.chance.one_in(4))];
            let number = world.processes;
            world.note(&format!("process {number}, {name}"));
            Arc::new(Process {
                story: self.clone(),
                number,
                name,
                losses: world.losses,
                shutdown: Shutdown::new(),
                timer: MonotonicClock::simulated(),
                allowed: AtomicBool::new(false),
            })
        };
        let service = ArchiverDependencies {
            settings: ArchiverSettings { instance: process.name.to_owned(), ..self.settings.clone() },
            prefix: PREFIX.to_owned(),
            bus: Arc::new(SimBus(Arc::clone(&process))),
            clock: {
                let story = self.clone();
                ServiceClock::new(move || story.world().log.now())
            },
            shutdown: process.shutdown.clone(),
            metrics: MetricsRegistry::default(),
            new_archive_id: 1,
            ready: HealthRegistry::default().part("archiver"),
        };
        let disk = SimDisk { process: Arc::clone(&process), disk: self.disk.clone() };
        let archive = archive(Path::new(ROOT), disk);
        let ended = catch_unwind(AssertUnwindSafe(|| run_on(&service, &archive, &process.timer)));
        let wrong = match ended {
            Ok(ended) => process.is_wrong(ended),
            Err(what) if is_kill(&*what) => None,
            Err(panic) => resume_unwind(panic),
        };
        let wrong = wrong.map_or_else(|| self.look(&format!("process {} is over", process.number)), Err);
        let mut world = self.world();
        world.depth -= 1;
        if let Err(wrong) = wrong {
            world.wrong.get_or_insert(wrong);
        }
        world.wrong.clone().map_or(Ok(()), Err)
    }
}

fn is_kill(what: &(dyn Any + Send)) -> bool {
    what.is::<Killed>()
}

impl World {
    /// Returns whether every record is in a file.
    fn is_archived(&self) -> bool {
        self.log.is_revealed() && self.seen.has_all(&self.log)
    }
}

/// A process: it is alive until it ends, is killed, or the power goes.
#[derive(Debug)]
pub struct Process {
    pub story: Story,
    pub number: usize,
    pub name: &'static str,
    losses: u64,
    pub shutdown: Shutdown,
    pub timer: MonotonicClock,
    /// A partition was assigned to it, and it has not made a file of that yet.
    allowed: AtomicBool,
}

impl Process {
    /// Returns the reason why an unforced end is wrong.
    fn is_wrong(&self, ended: Result<(), ArchiverError>) -> Option<String> {
        let mut world = self.story.world();
        let error = match ended {
            Ok(()) => {
                world.note(&format!("process {} ended", self.number));
                return None;
            }
            Err(error) => error,
        };
        world.note(&format!("process {} ended: {error}", self.number));
        match error {
            ArchiverError::Unwritten(_) => None,
            ArchiverError::Bus(error) if error.detail.contains("fenced on purpose") => None,
            error => Some(format!("process {}: {error}", self.number)),
        }
    }

    pub fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Ordering::Relaxed);
    }

    /// Unwinds unless this process may go on.
    fn alive(&self) {
        let mut world = self.story.world();
        world.calls += 1;
        if world.calls > 100_000 {
            world.wrong.get_or_insert("it never ends".to_owned());
        }
        // Any error found ends the story.
        let dead = world.losses != self.losses || world.wrong.is_some();
        drop(world);
        if dead {
            resume_unwind(Box::new(Killed));
        }
    }

    /// Makes a call of this process. By chance, rarely, a fault replaces its effect; a process that dies in the middle leaves a
    /// part of it.
    ///
    /// No other member takes over between the check that a partition is this process's own and the file that follows from it:
    /// that gap is known (docs/use/archive.md).
    pub fn call<T, E>(
        &self,
        what: &str,
        one_in: usize,
        refused: impl Fn(&str) -> E,
        partly: impl FnOnce(),
        effect: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.alive();
        let Some((strike, before)) = self.strike(what, one_in) else { return effect() };
        match strike {
            Strike::Fails => return Err(refused("fails on purpose")),
            Strike::Lies => {
                drop(effect());
                return Err(refused("fails on purpose, and was done"));
            }
            Strike::Full => self.story.world().full += 1,
            Strike::Kill | Strike::PowerLoss | Strike::TakeOver if before => {
                if strike != Strike::TakeOver && self.story.world().chance.one_in(2) {
                    partly();
                }
                self.happen(strike);
            }
            Strike::Kill | Strike::PowerLoss | Strike::TakeOver => {}
        }
        let result = effect();
        if !before && (strike != Strike::TakeOver || !self.allowed.load(Ordering::Relaxed)) {
            self.happen(strike);
        }
        result
    }

    fn strike(&self, what: &str, one_in: usize) -> Option<(Strike, bool)> {
        let mut world = self.story.world();
        if !world.strikes(one_in) {
            return None;
        }
        let before = world.chance.one_in(2);
        let strike = match world.chance.below(16) {
            0..3 => Strike::Fails,
            3..5 => Strike::Lies,
            5..9 => Strike::Kill,
            9..11 => Strike::PowerLoss,
            11..15 => Strike::TakeOver,
            _ => Strike::Full,
        };
        if strike == Strike::Full {
            let writes = world.chance.below(6);
            world.full += writes;
        }
        if strike == Strike::TakeOver && (world.depth >= DEPTH || (before && self.allowed.load(Ordering::Relaxed))) {
            return None;
        }
        world.note(&format!("process {}: {strike:?} {} {what}", self.number, if before { "before" } else { "after" }));
        Some((strike, before))
    }

    fn happen(&self, strike: Strike) {
        match strike {
            Strike::Kill => {
                self.story.world().crashes += 1;
                resume_unwind(Box::new(Killed));
            }
            Strike::PowerLoss => {
                let mut world = self.story.world();
                world.crashes += 1;
                world.losses += 1;
                // Unsynced parts may survive all the same.
                let strict = world.chance.one_in(2);
                self.story.disk.lose_power(|| !strict && world.chance.one_in(2));
            }
            // Errors found there end this one, too.
            Strike::TakeOver => drop(self.story.live()),
            Strike::Fails | Strike::Lies | Strike::Full => {}
        }
        self.alive();
    }
}
