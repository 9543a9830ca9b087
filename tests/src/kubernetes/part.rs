//! One process of the control plane.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Ends a component whose standard input closes, which it does however this process ends.
const STOP_WITH_INPUT: &str = "EADT_STOP_WITH_INPUT";

/// A component, running or not. Dropping it kills it: everything here is thrown away, and a good end can take 10 s.
#[derive(Debug)]
pub struct Part {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    running: Mutex<Option<Child>>,
}

impl Part {
    pub fn new(program: &Path, name: &str, arguments: Vec<String>, logs: &Path) -> Self {
        let arguments = std::iter::once(name.to_owned()).chain(arguments).collect();
        Self { program: program.to_owned(), arguments, log: logs.join(format!("{name}.log")), running: Mutex::default() }
    }

    pub fn name(&self) -> &str {
        &self.arguments[0]
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    fn running(&self) -> MutexGuard<'_, Option<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn start(&self) -> Result<()> {
        let mut running = self.running();
        ensure!(running.is_none(), "{} is running", self.name());
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env(STOP_WITH_INPUT, "yes")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", self.name()))?;
        *running = Some(child);
        Ok(())
    }

    /// Starts it again if it has ended by itself; true if it had.
    pub fn revive(&self) -> Result<bool> {
        let ended = {
            let mut running = self.running();
            let ended = running.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() {
                *running = None;
            }
            ended
        };
        let Some(status) = ended else { return Ok(false) };
        eprintln!("{} ended ({status}) and is started again; its log is {}", self.name(), self.log.display());
        self.start()?;
        Ok(true)
    }

    /// The process id, `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(Child::id)
    }

    /// Fails with the end of its log if it has ended by itself.
    pub fn check(&self) -> Result<()> {
        let ended = match self.running().as_mut() {
            Some(child) => child.try_wait()?,
            None => None,
        };
        if let Some(status) = ended {
            bail!("{} ended ({status}); its log is {}:\n{}", self.name(), self.log.display(), self.last_lines());
        }
        Ok(())
    }

    pub fn last_lines(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Ends it in good order, or with SIGKILL where that takes longer than `within`.
    pub fn stop(&self, within: Duration) -> Result<()> {
        if let Some(child) = self.running().as_mut() {
            signal(child, Signal::TERM)?;
            let begun = Instant::now();
            while child.try_wait()?.is_none() && begun.elapsed() < within {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.kill()
    }

    /// SIGKILL, and its end awaited.
    pub fn kill(&self) -> Result<()> {
        if let Some(mut child) = self.running().take() {
            child.kill().with_context(|| format!("killing {}", self.name()))?;
            child.wait()?;
        }
        Ok(())
    }

    /// Stops its threads where they are (SIGSTOP), or lets them go on (SIGCONT).
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        let running = self.running();
        let child = running.as_ref().with_context(|| format!("{} is stopped", self.name()))?;
        signal(child, if frozen { Signal::STOP } else { Signal::CONT })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{} may still run: {error:#}", self.name());
        }
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(child.id().cast_signed()).context("a child has a process id")?;
    // Not waited for, so the id still is the child's.
    Ok(kill_process(pid, signal)?)
}
