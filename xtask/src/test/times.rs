//! Times of a test run: phases, binaries and the slowest tests, kept as a file, so that two runs can be compared.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use serde_json::{Value, json};

/// Number of the slowest tests in the table.
const SLOWEST: usize = 30;
/// Linux counts processor time for user space in hundredths of a second, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// One row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    pub name: String,
    pub wall_seconds: f64,
    /// CPU time of the phase's processes and their children; `None` if this system does not report it.
    pub cpu_seconds: Option<f64>,
}

/// All rows of one run, in the order in which they ended.
#[derive(Debug, Default)]
pub struct Times {
    pub phases: Vec<Phase>,
    pub tests: Vec<(String, f64)>,
}

/// Waits until the child has ended. Returns its status, and its processor time with that of its children, in seconds.
pub fn wait(child: &mut Child) -> anyhow::Result<(ExitStatus, Option<f64>)> {
    let id = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).context("a child has an id")?;
    // Not reaped yet, so that its resource use can still be read.
    while let Err(error) = waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        if error != rustix::io::Errno::INTR {
            return Err(error).context("cannot wait for a child");
        }
    }
    let cpu = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok().as_deref().and_then(cpu_seconds);
    Ok((child.wait()?, cpu))
}

/// Runs a command with our own output streams and takes its time.
pub fn run(name: &str, command: &mut Command, times: &mut Times) -> anyhow::Result<()> {
    let text = crate::process::shown(command);
    println!("$ {text}");
    let begun = Instant::now();
    let mut child = command.stdin(std::process::Stdio::null()).spawn().with_context(|| format!("cannot start {text}"))?;
    let (status, cpu_seconds) = wait(&mut child)?;
    times.add(name, begun.elapsed(), cpu_seconds);
    if !status.success() {
        anyhow::bail!("{text} failed: {status}");
    }
    Ok(())
}

/// Reads the fields `utime stime cutime cstime` of `/proc/PID/stat`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name of the program may have spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(ticks as f64 / TICKS_PER_SECOND)
}

impl Times {
    pub fn add(&mut self, name: &str, wall: Duration, cpu_seconds: Option<f64>) {
        self.phases.push(Phase { name: name.to_owned(), wall_seconds: wall.as_secs_f64(), cpu_seconds });
    }

    pub fn extend(&mut self, other: Self) {
        self.phases.extend(other.phases);
        self.tests.extend(other.tests);
    }

    /// Returns the table that a run ends with.
    pub fn table(&self) -> String {
        let mut text = format!("{:<44} {:>9} {:>9}\n", "phase", "wall s", "CPU s");
        for phase in &self.phases {
            let cpu = phase.cpu_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}"));
            writeln!(text, "{:<44} {:>9.1} {cpu:>9}", phase.name, phase.wall_seconds).expect("text grows");
        }
        let mut tests: Vec<_> = self.tests.iter().collect();
        tests.sort_by(|a, b| b.1.total_cmp(&a.1));
        if !tests.is_empty() {
            writeln!(text, "\nthe slowest of {} tests, wall s", tests.len()).expect("text grows");
        }
        for (name, seconds) in tests.into_iter().take(SLOWEST) {
            writeln!(text, "{seconds:>9.1} {name}").expect("text grows");
        }
        text
    }

    fn json(&self) -> Value {
        let phases = self
            .phases
            .iter()
            .map(|phase| json!({"name": phase.name, "wall_seconds": phase.wall_seconds, "cpu_seconds": phase.cpu_seconds}));
        let tests = self.tests.iter().map(|(name, seconds)| json!({"name": name, "seconds": seconds}));
        json!({"phases": phases.collect::<Vec<_>>(), "tests": tests.collect::<Vec<_>>()})
    }

    fn from_json(value: &Value) -> Option<Self> {
        let phases = value["phases"].as_array()?.iter().map(|phase| {
            Some(Phase {
                name: phase["name"].as_str()?.to_owned(),
                wall_seconds: phase["wall_seconds"].as_f64()?,
                cpu_seconds: phase["cpu_seconds"].as_f64(),
            })
        });
        let tests =
            value["tests"].as_array()?.iter().map(|test| Some((test["name"].as_str()?.to_owned(), test["seconds"].as_f64()?)));
        Some(Self { phases: phases.collect::<Option<_>>()?, tests: tests.collect::<Option<_>>()? })
    }

    /// Writes the file of this run; the one before it is kept beside it.
    pub fn write(&self) -> anyhow::Result<PathBuf> {
        let [new, old] = files()?;
        if new.exists() {
            fs::rename(&new, &old).with_context(|| format!("cannot rename {}", new.display()))?;
        }
        fs::write(&new, format!("{:#}\n", self.json())).with_context(|| format!("cannot write {}", new.display()))?;
        Ok(new)
    }
}

/// Paths of the newest run's file and of the one before it.
fn files() -> anyhow::Result<[PathBuf; 2]> {
    let target = super::target_folder()?;
    Ok(["test-times.json", "test-times.old.json"].map(|name| target.join(name)))
}

/// Which runs to compare.
#[derive(Debug, Args)]
pub struct Options {
    /// File of the older run [default: target/test-times.old.json].
    old: Option<PathBuf>,
    /// File of the newer run [default: target/test-times.json].
    new: Option<PathBuf>,
}

/// Prints two runs side by side, the largest differences first.
pub fn compare(options: &Options) -> anyhow::Result<()> {
    let [new, old] = files()?;
    let read = |path: &Path| -> anyhow::Result<Times> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}; `cargo xtask test` writes it", path.display()))?;
        let value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        Times::from_json(&value).with_context(|| format!("{} is no file of test times", path.display()))
    };
    let old = read(options.old.as_deref().unwrap_or(&old))?;
    let new = read(options.new.as_deref().unwrap_or(&new))?;
    print!("{}", comparison(&old, &new));
    Ok(())
}

fn comparison(old: &Times, new: &Times) -> String {
    let rows = |times: &Times| -> Vec<(String, f64)> {
        let phases = times.phases.iter().map(|phase| (phase.name.clone(), phase.wall_seconds));
        phases.chain(times.tests.iter().cloned()).collect()
    };
    let (old, new) = (rows(old), rows(new));
    let find = |rows: &[(String, f64)], name: &str| rows.iter().find(|row| row.0 == name).map(|row| row.1);
    let names = new.iter().map(|row| &row.0).chain(old.iter().map(|row| &row.0).filter(|name| find(&new, name).is_none()));
    let mut differences: Vec<_> = names.map(|name| (name, find(&old, name), find(&new, name))).collect();
    let size = |row: &(&String, Option<f64>, Option<f64>)| (row.2.unwrap_or(0.0) - row.1.unwrap_or(0.0)).abs();
    differences.sort_by(|a, b| size(b).total_cmp(&size(a)));
    let shown = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}"));
    let mut text = format!("{:>9} {:>9}  wall s\n", "old", "new");
    for (name, old, new) in differences.into_iter().take(SLOWEST) {
        writeln!(text, "{:>9} {:>9}  {name}", shown(old), shown(new)).expect("text grows");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(seconds: f64) -> Times {
        let mut times = Times { tests: vec![("core::late".to_owned(), seconds)], ..Times::default() };
        times.add("build", Duration::from_mins(1), Some(110.5));
        times
    }

    #[test]
    fn processor_time_is_read_of_programs_with_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 200 0 0 150 50 25 75 20 0 1 0 100 0 0";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("7 (a) S 1"), None);
    }

    #[test]
    fn a_child_is_waited_for_and_its_processor_time_is_known() {
        let mut child =
            Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 3"]).spawn().unwrap();
        let (status, cpu) = wait(&mut child).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(!cfg!(target_os = "linux") || cpu.is_some_and(|seconds| seconds > 0.0), "{cpu:?}");
    }

    #[test]
    fn a_run_survives_its_file_and_the_table_has_phases_and_tests() {
        let kept = Times::from_json(&times(2.5).json()).unwrap();
        assert_eq!((kept.phases, kept.tests), (times(2.5).phases, times(2.5).tests));
        let table = times(2.5).table();
        assert!(table.contains("build") && table.contains("110.5") && table.contains("2.5 core::late"), "{table}");
    }

    #[test]
    fn the_largest_difference_comes_first() {
        let text = comparison(&times(1.0), &times(9.0));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("1.0") && lines[1].contains("9.0") && lines[1].contains("core::late"), "{text}");
        assert!(lines[2].contains("build"), "{text}");
    }
}
