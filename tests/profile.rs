//! `eadt profile` as on a node: the job runs at each setting, the node agent (its real program) holds the setting and puts it
//! back, and both see the same GPUs, which here are those of the library that the tests build.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use eadt_nvml::fake::{FakeLibrary, FakeSettings};
use support::{Running, agent_program, signal, text};

const WITHIN: Duration = Duration::from_mins(2);
const WATTS: f64 = 250.0;

struct Node {
    fake: FakeLibrary,
    folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { fake: FakeLibrary::new(""), folder: tempfile::tempdir().unwrap() };
        let text = format!(
            "[log]\nfilter = \"warn\"\n[http]\naddress = \"127.0.0.1:0\"\n[agent]\nnode = \"n\"\nstate_dir = '{}'\n\
             intents_file = '{}'\nlibrary_path = '{}'\ncheck_seconds = 0.05\n",
            node.path("state").display(),
            node.path("wish.json").display(),
            node.fake.library().display(),
        );
        std::fs::write(node.path("agent.toml"), text).unwrap();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn agent(&self) -> Running {
        let mut agent = Command::new(agent_program());
        agent.args(["--config".as_ref(), self.path("agent.toml").as_os_str(), "run".as_ref()]).env_remove("KAFKA_BROKERS");
        Running(agent.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// A job that takes longer at lower settings.
    fn profile(&self, knob: &str, settings: &str, runs: &str) -> Command {
        let job = "sleep $(awk \"BEGIN { print 900 / $EADT_PROFILE_SETTING }\")";
        let (library, wish, out) = (self.fake.library(), self.path("wish.json"), self.path("points.csv"));
        let mut command = Command::new(eadt_tests::program());
        command
            .args(["profile", "--knob", knob, "--settings", settings, "--runs", runs, "--settle", "100ms"])
            .args(["--workload", "lab/bert", "--library", library.to_str().unwrap()])
            .args(["--intents-file", wish.to_str().unwrap(), "--out", out.to_str().unwrap(), "--", "sh", "-c", job])
            .stdin(Stdio::null());
        command
    }

    fn wait(&self, what: &str, until: impl Fn(FakeSettings) -> bool) {
        let began = Instant::now();
        while !until(self.fake.settings(0)) {
            assert!(began.elapsed() < WITHIN, "{what}: {:?} after {} s", self.fake.settings(0), WITHIN.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the rows of a CSV file, without its header.
fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn a_job_is_profiled_through_the_agent_and_everything_is_put_back() {
    let node = Node::new();
    let before = FakeSettings { power_milliwatts: 650_000, ..FakeSettings::default() };
    node.fake.change(0, before);
    let _agent = node.agent();
    for (knob, settings) in [("sm_clock_mhz", "1410,1200,990,900,810"), ("power_limit_watts", "600,500")] {
        std::fs::remove_file(node.path("points.csv")).ok();
        let (out, err, good) = text(node.profile(knob, settings, "2"));
        assert!(good, "{out}{err}");
        let rows = rows(&node.path("points.csv"));
        let count = settings.split(',').count();
        assert_eq!(rows.len(), 2 * count, "the cold run is not in the table: {rows:?}");
        for row in &rows {
            let [workload, board, setting, _, seconds, joules, mhz, celsius, origin] = &row[..] else { panic!("{row:?}") };
            assert_eq!([workload, board, celsius, origin], ["lab/bert", "Fake H100", "50.0", "measured"], "{row:?}");
            let number = |text: &str| text.parse::<f64>().unwrap();
            // Power is steady, so whatever a run took, energy over time is that power.
            let watts = number(joules) / number(seconds);
            assert!((watts / WATTS - 1.0).abs() < 0.02, "{watts} W: {row:?}");
            let bound = if knob == "sm_clock_mhz" { number(setting) } else { 1980.0 };
            assert_eq!(number(mhz), bound, "{row:?}");
        }
        let order: Vec<&str> = rows.iter().map(|row| row[2].as_str()).collect();
        assert!(settings.split(',').all(|setting| order.iter().filter(|known| **known == setting).count() == 2), "{order:?}");
        node.wait("put back", |settings| settings == before);
        assert!(!node.path("wish.json").exists());
        if knob == "sm_clock_mhz" {
            let args = ["tune", "points.csv", "--by", "workload,gpu_model", "--max-slowdown", "10%", "--method", "measured"];
            let mut tune = Command::new(eadt_tests::program());
            tune.args(args).current_dir(node.folder.path());
            let (out, err, good) = text(tune);
            assert!(good && out.contains("lab/bert"), "what it writes is what tune reads: {out}{err}");
        }
    }
}

#[test]
fn an_interrupted_profile_writes_nothing_and_lets_go() {
    let node = Node::new();
    let _agent = node.agent();
    let mut command = node.profile("sm_clock_mhz", "1410,900", "50");
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    node.wait("a bound in force", |settings| settings.lock_mhz != 0);
    signal(&running.0, "-INT");
    let status = running.0.wait().unwrap();
    assert!(!status.success());
    node.wait("put back", |settings| settings == FakeSettings::default());
    assert!(!node.path("points.csv").exists() && !node.path("wish.json").exists());
}

#[test]
fn without_an_agent_no_run_counts() {
    let node = Node::new();
    let (out, err, good) = text(node.profile("sm_clock_mhz", "1410,900", "1"));
    assert!(!good && err.contains("does the node agent run"), "{out}{err}");
    assert!(!node.path("points.csv").exists() && !node.path("wish.json").exists(), "nothing is left behind");
    // A job that fails is no measurement.
    let _agent = node.agent();
    let mut failing = Command::new(eadt_tests::program());
    failing
        .args(["profile", "--knob", "sm_clock_mhz", "--settings", "1410,900", "--settle", "100ms", "--library"])
        .arg(node.fake.library())
        .arg("--intents-file")
        .arg(node.path("wish.json"))
        .arg("--out")
        .arg(node.path("points.csv"))
        .args(["--", "sh", "-c", "exit 3"]);
    let (out, err, good) = text(failing);
    assert!(!good && err.contains("the command failed") && err.contains("cold run"), "{out}{err}");
    assert!(!node.path("points.csv").exists());
    node.wait("put back", |settings| settings == FakeSettings::default());
}
