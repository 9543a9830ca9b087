//! The default thread percentage of an MPS control daemon, through NVIDIA's control program.
//!
//! The default is the daemon's, for all GPUs and users that it serves. It holds for MPS servers that start later: a
//! server that runs keeps what it has, and so do its clients.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use eadt_nvml::set::GpuSettingError;
use eadt_schemas::v1::SettingOutcome;
use eadt_service::tasks::MPS_CONTROL;

use crate::apply_setting::{EnforcementState, SettingKnob, apply_setting};
use crate::decide::SettingReading;
use crate::gpu::{report_outcome, split};
use crate::ledger::{Ledger, LedgerRecord, RecordedSetting};
use crate::metrics::AgentMetrics;

/// The daemon reports 33.333… for a third.
const TOLERANCE_MILLIPERCENT: u32 = 50;
/// Longest answer that is read.
const ANSWER_BYTES: u64 = 64 << 10;

/// A control daemon, reached through its pipe folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsDaemon {
    /// NVIDIA's `nvidia-cuda-mps-control`.
    pub program: PathBuf,
    pub pipe_directory: PathBuf,
    /// Time limit of one command.
    pub timeout: Duration,
}

impl MpsDaemon {
    /// Returns its name in the ledger.
    pub fn unit(&self) -> String {
        format!("mps:{}", self.pipe_directory.display())
    }

    /// Returns whether the daemon's folder is there; without it no program is started.
    pub fn present(&self) -> bool {
        self.pipe_directory.join("control").exists()
    }

    fn control(&self, command: &str) -> Result<String, String> {
        let program = self.program.display();
        let mut child = Command::new(&self.program)
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe_directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}; set agent.mps.control_program"))?;
        let deadline = Instant::now() + self.timeout;
        let (mut input, output, complaint) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // One answer; the receiver is gone only when the time is over.
        let (sender, receiver) = sync_channel(1);
        let command_line = format!("{command}\n");
        let talk = move || {
            let mut text = [String::new(), String::new()];
            let wrote = input.take().map_or(Ok(()), |mut input| input.write_all(command_line.as_bytes()));
            let read = |from: Option<&mut dyn Read>, into: &mut String| {
                from.map_or(Ok(0), |from| from.take(ANSWER_BYTES).read_to_string(into))
            };
            let (mut output, mut complaint) = (output, complaint);
            let result = wrote
                .and_then(|()| read(output.as_mut().map(|from| from as &mut dyn Read), &mut text[0]))
                .and_then(|_| read(complaint.as_mut().map(|from| from as &mut dyn Read), &mut text[1]));
            drop(sender.send(result.map(|_| text)));
        };
        let spawned = MPS_CONTROL.thread(talk);
        let answer = match spawned {
            Ok(_) => receiver.recv_timeout(self.timeout),
            Err(error) => {
                drop(child.kill());
                drop(child.wait());
                return Err(format!("cannot start a thread: {error}"));
            }
        };
        let ended = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) | Err(_) => break None,
            }
        };
        let Some(status) = ended else {
            drop(child.kill());
            drop(child.wait());
            return Err(format!("{program} did not answer within {:?}, command={command:?}", self.timeout));
        };
        match answer {
            Ok(Ok([output, _])) if status.success() => Ok(output),
            Ok(Ok([output, complaint])) => {
                let message = format!("{} {}", output.trim(), complaint.trim());
                Err(format!("{program} failed: {}, command={command:?}", message.trim()))
            }
            Ok(Err(error)) => Err(format!("cannot talk to {program}: {error}")),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(format!("{program} did not finish its answer, command={command:?}"))
            }
        }
    }

    /// Returns the default in thousandths of a percent.
    pub fn default_millipercent(&self) -> Result<u32, String> {
        let answer = self.control("get_default_active_thread_percentage")?;
        let value = answer.lines().rev().find_map(|line| line.trim().parse::<f64>().ok());
        let value = value.filter(|percent| (0.0..=100.0).contains(percent));
        value
            .map(|percent| (percent * 1000.0).round() as u32)
            .ok_or_else(|| format!("{} answered {:?} instead of a percentage", self.program.display(), answer.trim()))
    }

    fn set_default(&self, millipercent: u32) -> Result<(), String> {
        let percent = f64::from(millipercent) / 1000.0;
        self.control(&format!("set_default_active_thread_percentage {percent}")).map(drop)
    }
}

/// The state of a daemon's default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MpsReport {
    pub outcome: SettingOutcome,
    pub reason: String,
    pub millipercent: Option<u32>,
    /// The value that will be put back; `None` if it was not changed.
    pub original_millipercent: Option<u32>,
}

impl MpsReport {
    /// Returns the report of a daemon about which nothing else is known.
    pub(crate) fn with_reason(outcome: SettingOutcome, reason: String) -> Self {
        Self { outcome, reason, ..Self::default() }
    }
}

/// Holds the default of one daemon.
#[derive(Debug)]
pub(crate) struct MpsEnforcer<'a> {
    ledger: &'a Ledger,
    metrics: &'a AgentMetrics,
    daemon: &'a MpsDaemon,
    record: Result<LedgerRecord, String>,
    remembered: EnforcementState,
}

impl<'a> MpsEnforcer<'a> {
    pub fn new(ledger: &'a Ledger, metrics: &'a AgentMetrics, daemon: &'a MpsDaemon) -> Self {
        let record = ledger.load(&daemon.unit()).map_err(|error| error.to_string());
        Self { ledger, metrics, daemon, record, remembered: EnforcementState::default() }
    }

    pub fn step(&mut self, requested: Option<&Result<u32, String>>) -> MpsReport {
        let mut record = match &self.record {
            Ok(record) => record.clone(),
            Err(reason) => {
                return MpsReport::with_reason(SettingOutcome::Failed, reason.clone());
            }
        };
        let (requested, refused) = split(requested.map(|requested| requested.clone().map(|percent| percent * 1000)));
        if !self.daemon.present() {
            return self.absent(requested.is_some(), refused);
        }
        let mut recorded =
            RecordedSetting { entry: record.mps_default_millipercent.take(), left_alone: record.mps_default_left_alone.take() };
        let result = {
            let mut save = |recorded: &RecordedSetting<_>| {
                record.mps_default_millipercent.clone_from(&recorded.entry);
                record.mps_default_left_alone = recorded.left_alone;
                self.ledger.store(&record).map_err(|error| error.to_string())
            };
            let knob = &mut MpsKnob { daemon: self.daemon, last_reading: 0 };
            apply_setting(requested, &mut recorded, &mut self.remembered, TOLERANCE_MILLIPERCENT, knob, &mut save)
        };
        let original_millipercent = recorded.entry.as_ref().map(|entry| entry.original);
        (record.mps_default_millipercent, record.mps_default_left_alone) = (recorded.entry, recorded.left_alone);
        self.record = Ok(record);
        let status = match result {
            Ok(status) => status,
            Err(lost) => {
                return MpsReport::with_reason(SettingOutcome::Failed, lost.to_string());
            }
        };
        self.metrics.count(&self.daemon.unit(), "mps_default", &status);
        let millipercent = status.value;
        let (outcome, reason) = report_outcome(status, refused);
        MpsReport { outcome, reason, millipercent, original_millipercent }
    }

    /// Returns the report for a daemon that ended: it has forgotten its default, ours included.
    fn absent(&mut self, is_requested: bool, refused: Option<String>) -> MpsReport {
        let outcome = match (&refused, is_requested) {
            (Some(_), _) => SettingOutcome::Refused,
            (None, true) => SettingOutcome::Failed,
            (None, false) => SettingOutcome::Untouched,
        };
        let folder = self.daemon.pipe_directory.display();
        let reason = refused.or_else(|| is_requested.then(|| format!("no MPS control daemon runs, pipe_directory={folder}")));
        if let Ok(record) = &mut self.record
            && (record.mps_default_millipercent.take().is_some() | record.mps_default_left_alone.take().is_some())
            && let Err(error) = self.ledger.store(record)
        {
            tracing::warn!(device = self.daemon.unit(), %error, "the record of a daemon that ended could not be removed");
        }
        self.remembered = EnforcementState::default();
        MpsReport::with_reason(outcome, reason.unwrap_or_default())
    }
}

struct MpsKnob<'d> {
    daemon: &'d MpsDaemon,
    last_reading: u32,
}

fn failed(call: &'static str) -> impl Fn(String) -> GpuSettingError {
    move |detail| GpuSettingError::Failed { call, detail }
}

impl SettingKnob<u32> for MpsKnob<'_> {
    fn unit(&self) -> String {
        self.daemon.unit()
    }

    fn read(&mut self) -> Result<SettingReading, GpuSettingError> {
        self.last_reading = self.daemon.default_millipercent().map_err(failed("reading the MPS default"))?;
        Ok(SettingReading::Value(self.last_reading))
    }

    fn original_setting(&self) -> u32 {
        self.last_reading
    }

    fn set(&mut self, millipercent: u32) -> Result<(), GpuSettingError> {
        self.daemon.set_default(millipercent).map_err(failed("setting the MPS default"))
    }

    fn put_back(&mut self, original: &u32) -> Result<(), GpuSettingError> {
        self.set(*original)
    }

    fn all_or_nothing(&self) -> bool {
        // A program that was abandoned may have set the daemon's default.
        false
    }

    fn rounds(&self) -> bool {
        false
    }

    fn describe(&self, millipercent: u32) -> String {
        format!("{} %", f64::from(millipercent) / 1000.0)
    }
}

/// Returns all daemons of a node as one: the worst outcome, and the default if all have the same.
pub(crate) fn together(reports: &[MpsReport]) -> MpsReport {
    let rank = |outcome: SettingOutcome| match outcome {
        SettingOutcome::Failed => 5,
        SettingOutcome::ChangedByOthers => 4,
        SettingOutcome::Refused => 3,
        SettingOutcome::Held => 2,
        SettingOutcome::Restored => 1,
        SettingOutcome::Untouched => 0,
    };
    let mut all = reports.iter().max_by_key(|report| rank(report.outcome)).cloned().unwrap_or_default();
    if reports.iter().any(|report| report.millipercent != all.millipercent) {
        all.millipercent = None;
    }
    if reports.iter().any(|report| report.original_millipercent != all.original_millipercent) {
        all.original_millipercent = None;
    }
    all
}

/// Returns the pipe folder of a daemon in its default location.
pub fn default_pipe_directory() -> &'static Path {
    Path::new("/tmp/nvidia-mps")
}
