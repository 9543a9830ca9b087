//! Growing the two forests of the slowdown model, and predicting a pair's nine partitions: against scikit-learn's Extra Trees
//! on the same rows, on one thread each, in turns. Without Python 3 (venv, pip) only our own times are shown.
//!
//! The peer gets its rows ready-made; ours are built from the profiles each time.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures with clocks")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use eadt_gpu_sharing::forest::ForestSettings;
use eadt_gpu_sharing::{GpuTenants, SharePredictor, SlowdownModel};

const ROUNDS: usize = 5;
const FITS: u32 = 3;
const PREDICTIONS: u32 = 400;
const PEER_PREDICTIONS: u32 = 20;

/// CPU seconds of this thread. The kernel brings them up to date every few milliseconds.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with CONFIG_SCHED_INFO");
    text.split_whitespace().next().and_then(|nanos| nanos.parse::<f64>().ok()).expect("a number of nanoseconds") / 1e9
}

fn timed(times: u32, mut work: impl FnMut()) -> f64 {
    let start = cpu_seconds();
    (0..times).for_each(|_| work());
    (cpu_seconds() - start) / f64::from(times)
}

struct Peer(Child, BufReader<std::process::ChildStdout>);

impl Peer {
    fn start(folder: &Path) -> Option<Self> {
        let python = python()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peer/peer.py");
        let mut command = Command::new(python);
        command.arg(script).arg(folder.join("rates.csv")).arg(folder.join("power.csv"));
        for name in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
            command.env(name, "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut lines = BufReader::new(child.stdout.take()?);
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        (line.trim() == "ready").then_some(Self(child, lines))
    }

    fn time(&mut self, command: &str, times: u32) -> f64 {
        writeln!(self.0.stdin.as_mut().unwrap(), "{command} {times}").unwrap();
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|_| panic!("the peer answered {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

/// Returns the interpreter of a virtual environment in the user's cache, made on first use.
fn python() -> Option<PathBuf> {
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peer/requirements.txt");
    let text = std::fs::read_to_string(&requirements).ok()?;
    let version: String = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("-").replace("==", "-");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    let folder = cache.join("eadt").join(version);
    let python = folder.join("bin/python");
    let ready = folder.join("ready");
    if !ready.exists() {
        eprintln!("making {}", folder.display());
        let run = |command: &mut Command| command.stdout(Stdio::null()).status().is_ok_and(|status| status.success());
        let made = run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            && run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(&requirements));
        if !made {
            return None;
        }
        std::fs::write(&ready, "").ok()?;
    }
    Some(python)
}

fn main() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(run);
}

fn run() {
    let measurements = support::paper_pairs(1).measured;
    let settings = ForestSettings::default();
    let model = SlowdownModel::train(&measurements, &settings).unwrap();
    let run = &measurements.runs()[0];
    let profiles = run.tenants.iter().map(|tenant| &measurements.profiles()[&tenant.workload]).collect();
    let together = GpuTenants::new(profiles, measurements.idle_watts()).unwrap();
    let candidates = together.candidates(10, &[None]).unwrap();
    assert_eq!(candidates.len(), 9);

    let folder = tempfile::tempdir().unwrap();
    let (rates, power) = SlowdownModel::rows(&measurements).unwrap();
    for (name, rows) in [("rates.csv", &rates), ("power.csv", &power)] {
        let mut text = String::new();
        for (row, target) in rows {
            for value in row {
                write!(text, "{value},").unwrap();
            }
            writeln!(text, "{target}").unwrap();
        }
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let shape = |rows: &[(Vec<f64>, f64)]| format!("{} x {}", rows.len(), rows[0].0.len());
    println!("rows: rates {}, power {}; 100 trees, every feature tried, one thread", shape(&rates), shape(&power));

    let mut peer = Peer::start(folder.path());
    if peer.is_none() {
        println!("no Python 3 with venv and pip: the peer is left out");
    }
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let fit = timed(FITS, || drop(SlowdownModel::train(&measurements, &settings).unwrap()));
        let predict = timed(PREDICTIONS, || drop(model.predict(&together, &candidates).unwrap()));
        print!("round {round}: growing {:.1} ms, predicting nine partitions {:.1} µs", fit * 1e3, predict * 1e6);
        if let Some(peer) = &mut peer {
            let (fits, predictions) = (peer.time("fit", 1), peer.time("predict", PEER_PREDICTIONS));
            ratios[0].push(fits / fit);
            ratios[1].push(predictions / predict);
            print!(
                "; scikit-learn {:.1} ms, {:.1} µs: {:.1}x, {:.1}x",
                fits * 1e3,
                predictions * 1e6,
                fits / fit,
                predictions / predict
            );
        }
        println!();
    }
    for (what, ratios) in ["growing", "predicting"].into_iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        if let (Some(low), Some(high)) = (ratios.first(), ratios.last()) {
            println!("{what}: {:.1} times as fast as scikit-learn (median; {low:.1} to {high:.1})", ratios[ratios.len() / 2]);
        }
    }
}
