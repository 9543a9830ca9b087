//! Runs jobs side by side: lanes at the same time, the jobs of a lane a few at a time, in their order.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

use anyhow::{Context, bail};

use super::libtest::{Reader, Totals};
use super::times::{self, Times};
use crate::fuzz::Target;
use crate::{process, web};

/// Something to run.
#[derive(Debug)]
pub enum Job {
    /// A test binary, by name.
    Test((String, Command)),
    /// A fuzz target for its time.
    Fuzz(Target),
    /// Downloads and builds the dependencies of the tests on real parts.
    Prepare(Command),
    /// Builds the web page and tests it in a browser.
    Web(web::BrowserTest),
}

impl Job {
    /// Returns true for a module of the tests on real parts that begins with Kafka.
    pub fn is_of_kafka(&self) -> bool {
        matches!(self, Self::Test((name, _)) if name.contains(" kafka_"))
    }
}

/// The result of a job.
#[derive(Debug)]
pub struct Done {
    pub name: String,
    pub totals: Totals,
    pub times: Times,
    pub result: anyhow::Result<()>,
    /// Shown in one piece, since others run at the same time.
    output: String,
}

/// Runs each lane's jobs, with the lane's number of them in parallel. Prints the output of each job when it has ended.
pub fn run_lanes(lanes: Vec<(Vec<Job>, usize)>, shown: &mut impl Write) -> Vec<Done> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let queues: Vec<_> = lanes.into_iter().map(|(jobs, at_once)| (Mutex::new(VecDeque::from(jobs)), at_once)).collect();
    std::thread::scope(|scope| {
        for (queue, at_once) in &queues {
            for _ in 0..*at_once {
                let sender = sender.clone();
                scope.spawn(move || {
                    while let Some(job) = { queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() } {
                        sender.send(run(job)).expect("results are read to the end");
                    }
                });
            }
        }
        drop(sender);
        let mut all = Vec::new();
        for mut done in receiver {
            if let Err(error) = shown.write_all(done.output.as_bytes()).and_then(|()| shown.flush()) {
                done.result = done.result.and(Err(error).context("cannot show the output of a test"));
            }
            all.push(done);
        }
        all
    })
}

fn run(job: Job) -> Done {
    match job {
        Job::Test((name, command)) => run_test(name, command),
        Job::Fuzz(target) => {
            let name = format!("fuzz {}", target.name());
            plain(name, |times| target.run(times))
        }
        Job::Web(test) => plain("web page".to_owned(), |times| {
            let begun = Instant::now();
            let result = test.run();
            times.add("web page", begun.elapsed(), None);
            result
        }),
        Job::Prepare(mut command) => plain("real parts".to_owned(), |times| {
            times::run("real parts", &mut command, times).context("cannot get Kafka, Kubernetes and their tools")
        }),
    }
}

fn plain(name: String, work: impl FnOnce(&mut Times) -> anyhow::Result<()>) -> Done {
    let mut times = Times::default();
    let result = work(&mut times);
    Done { name, totals: Totals::default(), times, result, output: String::new() }
}

fn run_test(name: String, mut command: Command) -> Done {
    let text = process::shown(&command);
    let mut reader = Reader::new(&name);
    let mut output = String::new();
    let mut times = Times::default();
    let begun = Instant::now();
    let result = (|| {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {text}"))?;
        for line in BufReader::new(child.stdout.take().expect("piped")).split(b'\n') {
            let line = line.with_context(|| format!("cannot read the output of {text}"))?;
            if let Some(line) = reader.line(&String::from_utf8_lossy(&line)) {
                output += &line;
                output.push('\n');
            }
        }
        let (status, cpu_seconds) = times::wait(&mut child)?;
        times.add(&name, begun.elapsed(), cpu_seconds);
        if status.success() { Ok(()) } else { bail!("{name} failed: {status}") }
    })();
    let totals = reader.end();
    let summary = format!("{name}: {} in {:.1} s\n", totals.line(), begun.elapsed().as_secs_f64());
    Done { name, totals, times, result, output: output + &summary }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str, folder: &std::path::Path) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(folder);
        Job::Test((name.to_owned(), command))
    }

    #[test]
    fn lanes_run_at_the_same_time_and_every_job_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let passed =
            r#"echo '{"type":"test","event":"ok","name":"t","exec_time":0.5,"stdout":""}'; echo '{"type":"suite","event":"ok"}'"#;
        // Each of the first two waits for the other one.
        let first = vec![
            shell("a", &format!("mkfifo a b; echo > a; cat b; {passed}"), dir.path()),
            shell("c", "echo hello; exit 1", dir.path()),
        ];
        let second = vec![shell("b", &format!("until test -p b; do sleep 0.01; done; cat a; echo > b; {passed}"), dir.path())];
        let mut shown = Vec::new();
        let mut all = run_lanes(vec![(first, 1), (second, 1)], &mut shown);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<_> = all.iter().map(|done| (&*done.name, done.totals.passed, done.result.is_ok())).collect();
        assert_eq!(found, [("a", 1, true), ("b", 1, true), ("c", 0, false)]);
        assert!(all.iter().all(|done| done.times.phases.len() == 1));
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("hello\nc: 0 passed"), "{shown}");
    }

    #[test]
    fn a_lane_runs_as_many_jobs_at_a_time_as_it_declares() {
        let dir = tempfile::tempdir().unwrap();
        let job = |name: &str| {
            let script = "mkdir running 2>/dev/null || exit 1; sleep 0.05; rmdir running";
            shell(name, script, dir.path())
        };
        let all = run_lanes(vec![(vec![job("a"), job("b"), job("c")], 1)], &mut Vec::new());
        assert!(all.len() == 3 && all.iter().all(|done| done.result.is_ok()), "{all:?}");
    }
}
