//! Services as processes of their own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use eadt_bus::conformance::numbered;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::kafka::FetchPath;
use eadt_faults::{NEXT, OFF, WAIT};
use eadt_processor::{OptionalSeconds, ProcessorSettings};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde::{Deserialize, Serialize};

use crate::story::WINDOW_SECONDS;

/// A folder that keeps the logs of the processes of one run; without it that goes with the run.
const LOGS: &str = "EADT_CHAOS_LOGS";

/// How long a process may take until it listens to signals.
const STARTS: Duration = Duration::from_mins(1);

/// Which service, with what settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    Processor(Box<ProcessorSettings>),
    Archiver(Box<eadt_archiver::ArchiverSettings>),
    Collector(Box<eadt_collector::RawSettings>),
    Actuator(Box<Actuator>),
    Agent(Box<Agent>),
    Optimizer(Box<eadt_optimizer::OptimizerSettings>),
    Embedded(Embedded),
}

/// A process that commits numbered steps to an embedded log, and prints each that is acknowledged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Embedded {
    pub dir: PathBuf,
    /// Bytes that a record has beside its number.
    pub filler: usize,
}

impl Embedded {
    pub fn open(&self) -> Result<EmbeddedLog> {
        let log = EmbeddedLog::open(&self.dir, EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() })?;
        numbered::create_missing_topics(&log)?;
        Ok(log)
    }
}

/// How the API server is reached.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// Through the proxy before it, without credentials.
    Url(String),
    /// Itself.
    Kubeconfig(PathBuf),
}

/// A node agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Agent {
    pub settings: eadt_agent::RawSettings,
    /// It only puts back what a dead one left behind.
    pub restores: bool,
}

/// An actuator on Kubernetes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Actuator {
    pub server: Server,
    /// Of the Lease.
    pub namespace: String,
    /// No other namespace is looked at.
    pub alone: bool,
    pub identity: String,
    pub settings: eadt_actuator::ActuatorSettings,
}

/// The task of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Empty for an agent that follows a file, and for an embedded log.
    pub brokers: String,
    pub properties: BTreeMap<String, String>,
    /// The path by which it reads from them.
    pub fetch: FetchPath,
    pub prefix: String,
    pub service: Service,
    /// How far its clock is ahead of the machine's, in seconds.
    pub clock_ahead_seconds: i64,
}

/// Faults of a process.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// A promise that is switched off.
    pub off: Option<&'static str>,
    /// Waits when this phase is reached the so-manieth time.
    pub wait: Option<(&'static str, u64)>,
    /// It plays the next minor version of itself.
    pub next: bool,
    /// Large pieces of memory go back to the system when they are freed, so that resident memory is used memory.
    pub returns_memory: bool,
}

/// How every processor of these runs is set: windows depend on event time alone, and commits do not wait.
pub fn processor_settings(prefix: &str) -> ProcessorSettings {
    ProcessorSettings {
        prefix: prefix.to_owned(),
        window_seconds: WINDOW_SECONDS as f64,
        max_future_seconds: OptionalSeconds(None),
        idle_grace_seconds: 86_400.0,
        join_grace_seconds: 0.0,
        commit_seconds: 0.5,
        dead_letter_seconds: 0.2,
        retry_seconds: 0.05,
        ..ProcessorSettings::default()
    }
}

/// The program of the parts, beside the one that runs.
fn program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program")?;
    let beside = own.parent().into_iter().chain(own.parent().and_then(Path::parent)).map(|dir| dir.join("chaos-part"));
    let found = beside.into_iter().find(|path| path.is_file());
    found.context("chaos-part is not beside this program: build it with `cargo build -p eadt-chaos`")
}

/// A running process; dropping it kills it.
#[derive(Debug)]
pub struct Part {
    child: Child,
    mark: PathBuf,
    log: PathBuf,
    out: PathBuf,
    /// Writes its standard error into its log.
    writes: Option<std::thread::JoinHandle<()>>,
}

impl Part {
    /// Starts one; files of the run lie in `dir`, under `name`.
    pub fn start(dir: &Path, name: &str, task: &Task, faults: &Faults) -> Result<Self> {
        let logs = std::env::var_os(LOGS).map_or_else(|| dir.to_owned(), PathBuf::from);
        let (mark, log, out) =
            (dir.join(format!("{name}.mark")), logs.join(format!("{name}.log")), dir.join(format!("{name}.out")));
        let task_file = dir.join(format!("{name}.json"));
        fs::write(&task_file, serde_json::to_vec(task)?)?;
        for stale in [mark.clone(), go(&mark)] {
            if stale.exists() {
                fs::remove_file(stale)?;
            }
        }
        let appending = |path: &Path| File::options().append(true).create(true).open(path);
        // Programs started by this shell ignore the signal for a limit on files, so that a write fails as it does on a full
        // disk.
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#]).arg(program()?).arg(task_file);
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(Stdio::piped());
        if let Some(off) = faults.off {
            command.env(OFF, off);
        }
        if faults.next {
            command.env(NEXT, "1");
        }
        if faults.returns_memory {
            // Else the C library raises this to the size of what was freed, and keeps as much for each thread that allocates.
            command.env("MALLOC_MMAP_THRESHOLD_", "131072");
        }
        if let Some((phase, number)) = faults.wait {
            command.env(WAIT, format!("{phase}:{number}:{}", mark.display()));
        }
        let mut child = command.spawn().context("starting chaos-part")?;
        // This process writes the log: the disk of the child may be full.
        let mut writes = None;
        if let Some(mut stderr) = child.stderr.take() {
            let mut log = appending(&log)?;
            writes = Some(std::thread::spawn(move || drop(std::io::copy(&mut stderr, &mut log))));
        }
        Ok(Self { child, mark, log, out, writes })
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether the phase that it waits in was reached.
    pub fn has_reached(&self) -> bool {
        self.mark.exists()
    }

    /// Waits for the phase; an error if the process ends before.
    pub fn await_phase(&mut self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while !self.has_reached() {
            if let Some(status) = self.ended()? {
                bail!("a process ended ({status}) before the phase that it was to wait in:\n{}", self.tail());
            }
            ensure!(begun.elapsed() < limit, "a phase was not reached within {limit:?}:\n{}", self.tail());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Lets it go on from the phase that it waits in.
    pub fn go_on(&mut self) -> Result<()> {
        fs::write(go(&self.mark), "")?;
        // It marks this before it goes on, so that the next phase is not taken for this one.
        while go(&self.mark).exists() {
            ensure!(self.ended()?.is_none(), "a process ended where it should have gone on:\n{}", self.tail());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// How it ended; its last words are in the log by then.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let ended = self.child.try_wait()?;
        if let Some(writes) = self.writes.take_if(|_| ended.is_some()) {
            drop(writes.join());
        }
        Ok(ended)
    }

    /// SIGKILL; waits until it is gone.
    pub fn kill(self) -> Result<()> {
        self.kill_printed().map(drop)
    }

    /// The same; returns its output until then.
    pub fn kill_printed(mut self) -> Result<String> {
        self.stop_at_once()?;
        self.printed()
    }

    /// The same, if another one takes its place.
    pub fn stop_at_once(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns its output so far.
    pub fn printed(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.out)?)
    }

    /// SIGSTOP or SIGCONT.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        Ok(kill_process(self.pid(), if frozen { Signal::STOP } else { Signal::CONT })?)
    }

    /// From now on no file of it may grow beyond so many bytes: its disk is full. `None`: there is room again.
    pub fn limit_files(&self, bytes: Option<u64>) -> Result<()> {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(self.pid()), Resource::Fsize, limit)?;
        Ok(())
    }

    /// Whether it has ended for what looked like another process of its name. It ends, since going on would fence the other
    /// one, if there is one. There is none if the broker took its joining and was killed before it could answer; its supervisor
    /// starts it again.
    pub fn was_fenced(&mut self) -> Result<bool> {
        Ok(self.ended()?.is_some() && self.tail().contains("a newer member of the same instance has taken over"))
    }

    /// SIGTERM; what it printed, once it has ended well.
    pub fn stop(mut self, limit: Duration) -> Result<String> {
        self.ask_to_end()?;
        let status = self.await_end(limit)?;
        ensure!(status.success(), "a process ended with {status}:\n{}", self.tail());
        self.printed()
    }

    /// Sends SIGTERM once the process handles it: at its very start, it would be killed by the signal.
    pub fn ask_to_end(&self) -> Result<()> {
        let begun = Instant::now();
        while self.hears_term() == Some(false) && begun.elapsed() < STARTS {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(kill_process(self.pid(), Signal::TERM)?)
    }

    /// Whether it has a handler of SIGTERM; `None`: it is gone.
    fn hears_term(&self) -> Option<bool> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        if status.contains("State:\tZ") {
            return None;
        }
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        Some(caught >> (Signal::TERM.as_raw() - 1) & 1 == 1)
    }

    /// Waits until it has ended, and how it did.
    pub fn await_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            ensure!(begun.elapsed() < limit, "a process does not end within {limit:?}:\n{}", self.tail());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its memory, and the most that it ever was, in bytes.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
            let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
            anyhow::Ok(kilobytes * 1024)
        };
        Ok((of("VmRSS:")?, of("VmHWM:")?))
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        // The client library repeats this one for as long as a broker is away.
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains("Connection refused")).collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Everything that it, and those before it under its name, logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It may end by itself meanwhile.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

fn go(mark: &Path) -> PathBuf {
    PathBuf::from(format!("{}.go", mark.display()))
}
