//! A restart loses a job's progress since its last checkpoint, so a job that reports checkpoints gets a request for one, and the
//! restart waits for it.
//!
//! In: the job's progress reports. Out: whether the change may be made now. The actuator does not wait for a job that reports no
//! checkpoint, or for a simulated one, which keeps its progress by itself.

use std::time::{Duration, Instant};

use eadt_bus::BusError;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Origin, TrainingProgress};

use crate::ActuatorSettings;
use crate::job::{JobReports, ProgressTopic};

/// A wait that is not checked for this long is abandoned; live ones are checked every few hundred milliseconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(10);

/// Whether a restart may be made.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckpointGate {
    Open,
    /// A checkpoint may still come.
    Wait,
    Shut {
        reason: String,
    },
}

/// A wait for the checkpoint of one workload.
#[derive(Debug)]
pub struct CheckpointWait {
    reports: JobReports,
    began: EventTime,
    /// Time of the last query about it.
    last_query: Instant,
    /// The last checkpoint when the wait began, and now; `None` if the job reports none.
    first: Option<EventTime>,
    last: Option<EventTime>,
}

impl CheckpointWait {
    /// Begins to wait at `now`; `None` if the process is stopping.
    pub fn begin(
        progress: ProgressTopic<'_>,
        workload: &str,
        now: EventTime,
        stopped: impl Fn() -> bool,
    ) -> Result<Option<Self>, BusError> {
        let mut last = None;
        let reports = JobReports::after_latest(progress, workload, stopped, |report| last = checkpoint_time(&report).or(last))?;
        Ok(reports.map(|reports| Self { reports, began: now, last_query: Instant::now(), first: last, last }))
    }

    /// Reads the reports since the last call.
    pub fn poll_reports(&mut self) -> Result<(), BusError> {
        let last = &mut self.last;
        self.reports.poll(|report| *last = checkpoint_time(&report).or(*last))
    }

    pub fn workload(&self) -> &str {
        self.reports.workload()
    }

    /// Returns whether no decision waits any more: it was answered, or its approval was withdrawn.
    pub fn is_abandoned(&self) -> bool {
        self.last_query.elapsed() > ABANDONED_AFTER
    }

    pub fn check_gate(&mut self, now: EventTime, settings: &ActuatorSettings) -> CheckpointGate {
        self.last_query = Instant::now();
        checkpoint_gate(self.first, self.last, now.seconds_since(self.began), now, settings)
    }
}

/// Returns the time of the last checkpoint in a report.
fn checkpoint_time(report: &TrainingProgress) -> Option<EventTime> {
    report.checkpoint_time.filter(|_| report.origin != Origin::Simulated)
}

/// `first`, `last`: the last checkpoint when the wait began and now; `waited`: seconds. A job whose clock differs is believed
/// once it reports a checkpoint that is newer than the one before.
fn checkpoint_gate(
    first: Option<EventTime>,
    last: Option<EventTime>,
    waited: f64,
    now: EventTime,
    settings: &ActuatorSettings,
) -> CheckpointGate {
    let Some(last) = last else { return CheckpointGate::Open };
    let age = now.seconds_since(last);
    if age <= settings.checkpoint_max_age_seconds || first.is_none_or(|first| last > first) {
        return CheckpointGate::Open;
    }
    if waited < settings.checkpoint_wait_seconds {
        return CheckpointGate::Wait;
    }
    let (wait, most) = (settings.checkpoint_wait_seconds, settings.checkpoint_max_age_seconds);
    CheckpointGate::Shut {
        reason: format!(
            "the job's last checkpoint is of {last}, {age:.0} s ago, and a restart may lose {most} s of work; one was requested, and none came within {wait} s"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    #[test]
    fn a_fresh_checkpoint_opens_the_gate_and_none_in_time_shuts_it() {
        let settings =
            ActuatorSettings { checkpoint_max_age_seconds: 120.0, checkpoint_wait_seconds: 60.0, ..ActuatorSettings::default() };
        let gate = |first: Option<f64>, last: Option<f64>, waited: f64| {
            checkpoint_gate(first.map(at), last.map(at), waited, at(1000.0 + waited), &settings)
        };
        assert_eq!(gate(None, None, 0.0), CheckpointGate::Open, "it reports none");
        assert_eq!(gate(Some(900.0), Some(900.0), 0.0), CheckpointGate::Open, "fresh enough");
        assert_eq!(gate(Some(1100.0), Some(1100.0), 0.0), CheckpointGate::Open, "its clock is ahead");
        assert_eq!(gate(Some(800.0), Some(800.0), 0.0), CheckpointGate::Wait);
        assert_eq!(gate(Some(800.0), Some(1010.0), 11.0), CheckpointGate::Open, "it came");
        assert_eq!(gate(Some(500.0), Some(530.0), 30.0), CheckpointGate::Open, "a new one, by a clock that is behind");
        assert_eq!(gate(None, Some(500.0), 30.0), CheckpointGate::Open, "its first");
        let CheckpointGate::Shut { reason } = gate(Some(800.0), Some(800.0), 60.0) else { panic!("none came") };
        assert!(reason.contains("260 s ago") && reason.contains("within 60 s"), "{reason}");
    }
}
