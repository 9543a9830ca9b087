//! Faults between intents and the settings of a node's GPUs.

pub mod gpu;
pub mod killed;
pub mod others;
pub mod unasked;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_agent::RawSettings;
use eadt_bus::kafka::FetchPath;
use eadt_nvml::fake::{FakeLibrary, FakeMps, FakeSettings};
use eadt_schemas::v1::{DeviceIntent, DeviceSetting, MpsTenant};
use serde_json::json;

use crate::part::{Agent, Faults, Part, Service, Task};
use crate::row::Outcome;
use crate::world::{LIMIT, World, explain};

/// GPUs of the library that replaces NVIDIA's.
pub const GPUS: u32 = 4;
const NODE: &str = "n";
/// How long something is waited for that, without its mitigation, never comes.
const IN_VAIN: Duration = Duration::from_secs(5);

/// Settings requested of every GPU, and of the MPS daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    watts: u32,
    mhz: u32,
    percent: u32,
}

impl Wish {
    const A: Self = Self { watts: 300, mhz: 1410, percent: 50 };
    const B: Self = Self { watts: 250, mhz: 1200, percent: 40 };

    fn intent(self) -> DeviceIntent {
        let all = DeviceSetting {
            power_limit_watts: Some(f64::from(self.watts)),
            sm_clock_mhz: Some(f64::from(self.mhz)),
            ..DeviceSetting::default()
        };
        DeviceIntent {
            node: NODE.to_owned(),
            decision_id: "d".to_owned(),
            devices: Some(vec![all]),
            mps_default_thread_percentage: Some(self.percent),
            mps_tenants: Some(vec![MpsTenant { workload: "n/a".to_owned(), allows_default_change: true }]),
            time_to_live_seconds: 3600.0,
            ..DeviceIntent::default()
        }
    }

    /// A GPU that holds it.
    fn held(self) -> FakeSettings {
        FakeSettings { power_milliwatts: self.watts * 1000, lock_mhz: self.mhz, ..FakeSettings::default() }
    }
}

/// Returns the owner's settings of a GPU: not all are defaults.
fn before(gpu: u32) -> FakeSettings {
    FakeSettings { power_milliwatts: 700_000 - 12_345 * gpu, ..FakeSettings::default() }
}

const MPS_BEFORE: &str = "100.0";

/// Four GPUs, an MPS daemon, and the folders of an agent.
#[derive(Debug)]
pub struct Node {
    pub fake: FakeLibrary,
    mps: FakeMps,
    dir: tempfile::TempDir,
    off: Option<&'static str>,
    /// Time for which a stop and a restore wait for a device without an answer.
    stop_seconds: f64,
    started: std::cell::Cell<u32>,
}

impl Node {
    pub fn new(off: Option<&'static str>) -> Result<Self> {
        let (fake, mps) = (FakeLibrary::new(""), FakeMps::new(MPS_BEFORE));
        let stop_seconds = RawSettings::default().agent.stop_seconds;
        let node = Self { fake, mps, dir: tempfile::tempdir()?, off, stop_seconds, started: std::cell::Cell::new(0) };
        node.begin_anew()?;
        Ok(node)
    }

    /// Everything as its owner has it, and no record of anything else.
    fn begin_anew(&self) -> Result<()> {
        self.fake.set("");
        (0..GPUS).for_each(|gpu| self.fake.change(gpu, before(gpu)));
        self.mps.change(MPS_BEFORE);
        if self.path("state").exists() {
            fs::remove_dir_all(self.path("state"))?;
        }
        self.withdraw()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An agent that looks often, and follows the file.
    fn settings(&self) -> RawSettings {
        let mut raw = RawSettings::default();
        raw.agent.node = Some(NODE.to_owned());
        raw.agent.state_dir = self.path("state");
        raw.agent.intents_file = Some(self.path("wish.json"));
        raw.agent.library_path = Some(self.fake.library());
        raw.agent.check_seconds = 0.05;
        raw.agent.call_timeout_seconds = 0.5;
        raw.agent.retry_seconds = 0.1;
        raw.agent.stop_seconds = self.stop_seconds;
        raw.agent.mps.enabled = true;
        raw.agent.mps.pipe_directories = vec![self.mps.pipe_directory()];
        raw.agent.mps.control_program = self.mps.program();
        raw
    }

    fn start(&self, restores: bool, wait: Option<(&'static str, u64)>) -> Result<Part> {
        self.started.set(self.started.get() + 1);
        let service = Service::Agent(Box::new(Agent { settings: self.settings(), restores }));
        let task = Task {
            brokers: String::new(),
            properties: std::collections::BTreeMap::new(),
            fetch: FetchPath::default(),
            prefix: String::new(),
            service,
            clock_ahead_seconds: 0,
        };
        let name = format!("agent-{}", self.started.get());
        Part::start(self.dir.path(), &name, &task, &Faults { off: self.off, wait, ..Faults::default() })
    }

    /// An agent that follows the file.
    fn agent(&self) -> Result<Part> {
        self.start(false, None)
    }

    /// An agent that follows the log.
    fn follower(&self, world: &World) -> Result<Part> {
        self.follower_as(NODE, world)
    }

    /// The same of a node with this name.
    pub fn follower_as(&self, node: &str, world: &World) -> Result<Part> {
        let mut settings = self.settings();
        settings.agent.node = Some(node.to_owned());
        settings.agent.intents_file = None;
        settings.topics.prefix.clone_from(&world.prefix);
        world.part(Service::Agent(Box::new(Agent { settings, restores: false })), None)
    }

    /// `eadt-agent restore`, to its end; whether it put everything back.
    fn restore(&self) -> Result<bool> {
        let mut part = self.start(true, None)?;
        Ok(part.await_end(LIMIT)?.success())
    }

    fn wish(&self, wish: Wish) -> Result<()> {
        let mut intent = serde_json::to_value(wish.intent())?;
        // The file's own time.
        let fields = intent.as_object_mut().context("an intent is an object")?;
        fields.remove("time");
        fs::write(self.path("next.json"), json!(fields).to_string())?;
        Ok(fs::rename(self.path("next.json"), self.path("wish.json"))?)
    }

    fn withdraw(&self) -> Result<()> {
        let path = self.path("wish.json");
        if path.exists() {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Whether all GPUs but `but` and the daemon hold it.
    fn hold(&self, wish: Wish, but: Option<u32>) -> bool {
        let mut gpus = (0..GPUS).filter(|gpu| Some(*gpu) != but);
        gpus.all(|gpu| self.fake.settings(gpu) == wish.held()) && self.mps.default().parse() == Ok(f64::from(wish.percent))
    }

    /// Whether nothing is changed, of all GPUs but `but` and of the daemon.
    pub fn as_before(&self, but: Option<u32>) -> bool {
        let mut gpus = (0..GPUS).filter(|gpu| Some(*gpu) != but);
        gpus.all(|gpu| self.fake.settings(gpu) == before(gpu)) && self.mps_as_before()
    }

    fn mps_as_before(&self) -> bool {
        self.mps.default().parse::<f64>().ok() == MPS_BEFORE.parse().ok()
    }

    /// Originals that are on disk.
    pub fn records(&self) -> Result<usize> {
        let path = self.path("state");
        if !path.exists() {
            return Ok(0);
        }
        let mut records = 0;
        for name in fs::read_dir(path)? {
            let path = name?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = match fs::read(&path) {
                Ok(text) => text,
                Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            let record: serde_json::Value = serde_json::from_slice(&text)?;
            // A foreign setting that is left alone has no original to restore.
            let originals = ["power_limit_milliwatts", "sm_clock_mhz", "mps_default_millipercent"];
            records += usize::from(originals.iter().any(|setting| !record[setting].is_null()));
        }
        Ok(records)
    }

    /// Compares everything with what it was: settings of the GPUs but `but`, the daemon's, and that nothing is recorded any more.
    pub fn judge(&self, outcome: &mut Outcome, but: Option<u32>, when: &str) -> Result<bool> {
        let wrong = outcome.wrong;
        for gpu in (0..GPUS).filter(|gpu| Some(*gpu) != but) {
            let is = self.fake.settings(gpu);
            outcome.check(is == before(gpu), || format!("{when}: GPU {gpu} is at {is:?} and was at {:?}", before(gpu)));
        }
        outcome.check(self.mps_as_before(), || format!("{when}: the MPS default is {} and was {MPS_BEFORE}", self.mps.default()));
        let (records, expected) = (self.records()?, usize::from(but.is_some()));
        outcome.check(records == expected, || format!("{when}: {records} originals are still on disk, not {expected}"));
        Ok(outcome.wrong == wrong)
    }
}

/// Waits until something is so; an error if the process ends before.
pub fn wait(part: &mut Part, what: &str, is_so: impl FnMut() -> bool) -> Result<Duration> {
    let begun = Instant::now();
    let so = wait_for(part, LIMIT, is_so)?;
    explain(so.then(|| begun.elapsed()).with_context(|| format!("not within {LIMIT:?}: {what}")), part)
}

/// Whether it becomes so in this time.
fn wait_for(part: &mut Part, limit: Duration, mut is_so: impl FnMut() -> bool) -> Result<bool> {
    let begun = Instant::now();
    loop {
        if is_so() {
            return Ok(true);
        }
        if begun.elapsed() > limit {
            return Ok(false);
        }
        let ended = part.ended()?;
        ensure!(ended.is_none(), "an agent ended by itself: {}", part.tail());
        std::thread::sleep(Duration::from_millis(2));
    }
}
