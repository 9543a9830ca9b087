//! Runs of jobs, and which directives were asked of an earlier one. Pure.
//!
//! A job that begins anew has another model than the run before it, so what was asked of that run is withheld from it. A job
//! that goes on from a checkpoint gets it. The order is that of the log: what was in force when rank 0 reported `started`, or
//! `finished` with nothing started since, is older than the run. A job goes on from a checkpoint if a counter is above 0 at the
//! time of its `started`. If no report has that time, the first counters after it are compared with what the job does later.

use std::collections::HashMap;

use eadt_schemas::EventTime;
use eadt_schemas::latest::{JobLifecycle, TrainingProgress};

/// The revision in force while the directives are not read yet: all of them are older than a run that begins now.
pub const UNREAD: u64 = u64::MAX;
/// Runs that are noted while the directives are not read yet.
const MAX_UNREAD_RUNS: usize = 10_000;
/// Seconds of progress at least, and at most, after which first counters are too large for a job that begins anew.
const COMPARED_SECONDS: (f64, f64) = (60.0, 600.0);

/// Steps, samples and tokens of an event.
type Counters = [Option<f64>; 3];

fn counters(event: &TrainingProgress) -> Counters {
    [event.steps_total, event.samples_total, event.tokens_total]
}

/// Beginning of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum RunOrigin {
    /// Not known yet. `first`: the first counters after the start, and their time.
    Unknown {
        first: Option<(EventTime, Counters)>,
    },
    FirstStep,
    Checkpoint,
}

/// The present run of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
struct JobRun {
    /// Event time of its `started`, or of the `finished` after which nothing started.
    began: EventTime,
    is_started: bool,
    origin: RunOrigin,
    /// Revisions up to this one are older than the run.
    at_start: u64,
    /// Revisions up to this one are older than the run whose checkpoint it would resume from.
    before: u64,
}

impl JobRun {
    /// Revisions up to this one are not for this run.
    fn withheld_through(&self) -> u64 {
        if self.origin == RunOrigin::Checkpoint { self.before } else { self.at_start }
    }

    /// Learns from the counters of a report where the run begins.
    fn take_counters(&mut self, event: &TrainingProgress) {
        let now = counters(event);
        if event.phase == JobLifecycle::Finished || event.time < self.began || now == [None; 3] {
            return;
        }
        if event.time == self.began {
            if self.is_started {
                let goes_on = now.iter().flatten().any(|count| *count > 0.0);
                self.origin = if goes_on { RunOrigin::Checkpoint } else { RunOrigin::FirstStep };
            }
            return;
        }
        let RunOrigin::Unknown { first } = self.origin else { return };
        let Some((time, then)) = first else {
            self.origin = RunOrigin::Unknown { first: Some((event.time, now)) };
            return;
        };
        let Some((then, now_count)) = then.iter().zip(&now).find_map(|(then, now)| then.zip(*now)) else { return };
        let (least, most) = COMPARED_SECONDS;
        if now_count < then {
            self.origin = RunOrigin::Unknown { first: Some((event.time, now)) };
        } else if then <= 2.0 * (now_count - then) {
            // It does as much by itself before long.
            self.origin = RunOrigin::FirstStep;
        } else if event.time.seconds_since(time) >= time.seconds_since(self.began).clamp(least, most) {
            self.origin = RunOrigin::Checkpoint;
        }
    }
}

/// The present runs of the jobs that have a directive.
#[derive(Debug, Default)]
pub struct JobRuns {
    runs: HashMap<String, JobRun>,
}

impl JobRuns {
    /// Returns whether a revision was asked of an earlier run of this workload.
    pub fn withholds(&self, workload: &str, revision: u64) -> bool {
        self.runs.get(workload).is_some_and(|run| revision <= run.withheld_through())
    }

    /// Takes in a report. `in_force`: the revision that asks something of the job now; 0: nothing is asked. Returns whether
    /// other revisions are withheld than before.
    pub fn note(&mut self, event: &TrainingProgress, in_force: u64) -> bool {
        if event.rank != 0 {
            return false;
        }
        let known = self.runs.get(&event.workload).copied();
        let withheld = known.map_or(0, |run| run.withheld_through());
        // A late report of a run before this one begins none.
        if event.phase != JobLifecycle::Progress && known.is_none_or(|run| event.time > run.began) {
            self.begin(event, known, in_force);
        }
        let Some(run) = self.runs.get_mut(&event.workload) else { return withheld > 0 };
        run.take_counters(event);
        run.withheld_through() != withheld
    }

    /// Begins another run with a report that starts or ends one.
    fn begin(&mut self, event: &TrainingProgress, known: Option<JobRun>, in_force: u64) {
        if in_force == 0 {
            self.runs.remove(&event.workload);
            return;
        }
        if in_force == UNREAD && known.is_none() && self.runs.len() >= MAX_UNREAD_RUNS {
            return;
        }
        // A run of which no step is known has no checkpoint.
        let before = known.map_or(0, |run| match run.origin {
            RunOrigin::Unknown { .. } => run.before,
            _ => run.withheld_through(),
        });
        let run = JobRun {
            began: event.time,
            is_started: event.phase == JobLifecycle::Started,
            origin: RunOrigin::Unknown { first: None },
            at_start: in_force,
            before,
        };
        self.runs.insert(event.workload.clone(), run);
    }

    /// Adds the runs of the log, unless a later one is known. `in_force`: the revision that is asked of a workload, once the
    /// directives were read; 0: nothing is asked.
    pub fn complete(&mut self, of_log: Self, in_force: impl Fn(&str) -> u64) {
        for (workload, logged) in of_log.runs {
            let run = self.runs.entry(workload).or_insert(logged);
            if run.began < logged.began {
                *run = logged;
            } else if run.began == logged.began {
                run.before = logged.before;
            }
        }
        self.runs.retain(|workload, run| {
            let newest = in_force(workload);
            (run.at_start, run.before) = (run.at_start.min(newest), run.before.min(newest));
            newest > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: &str = "n/a";

    fn report(second: f64, phase: JobLifecycle, steps: Option<f64>) -> TrainingProgress {
        let (workload, time) = (WORKLOAD.to_owned(), EventTime::from_seconds(second));
        TrainingProgress { workload, time, phase, steps_total: steps, ..TrainingProgress::default() }
    }

    fn started(second: f64) -> TrainingProgress {
        report(second, JobLifecycle::Started, None)
    }

    fn finished(second: f64) -> TrainingProgress {
        report(second, JobLifecycle::Finished, Some(900.0))
    }

    fn steps(second: f64, steps: f64) -> TrainingProgress {
        report(second, JobLifecycle::Progress, Some(steps))
    }

    /// Returns whether revision 7, which is in force all the time, is withheld after these reports.
    fn is_withheld(reports: &[TrainingProgress]) -> bool {
        let mut runs = JobRuns::default();
        for report in reports {
            runs.note(report, 7);
        }
        runs.withholds(WORKLOAD, 7)
    }

    #[test]
    fn what_was_asked_of_another_run_is_withheld_until_a_job_goes_on_from_a_checkpoint() {
        for (what, reports, withheld) in [
            ("nothing began", vec![steps(1.0, 500.0)], false),
            ("nobody knows where it begins", vec![started(0.0)], true),
            ("it reports a start", vec![report(0.0, JobLifecycle::Started, Some(0.0))], true),
            ("at the time of its start", vec![started(0.0), steps(0.0, 0.0), steps(9.0, 40.0)], true),
            ("it goes on", vec![report(0.0, JobLifecycle::Started, Some(500.0))], false),
            ("it goes on, as is reported later", vec![started(0.0), steps(0.0, 500.0)], false),
            ("first counters later, and as much again", vec![started(0.0), steps(9.0, 40.0), steps(18.0, 80.0)], true),
            ("a pause does not make it older", vec![started(0.0), steps(2.0, 40.0), steps(61.0, 41.0), steps(70.0, 90.0)], true),
            ("first counters that it would never reach", vec![started(0.0), steps(90.0, 501.0), steps(180.0, 620.0)], false),
            ("not yet", vec![started(0.0), steps(90.0, 501.0), steps(120.0, 540.0)], true),
            ("the end is no start", vec![finished(0.0)], true),
            ("another run after an end", vec![finished(0.0), started(5.0), steps(5.0, 0.0)], true),
            ("the same run after an end", vec![finished(0.0), started(5.0), steps(5.0, 900.0)], false),
            ("it goes on without a start", vec![finished(0.0), steps(5.0, 901.0), steps(65.0, 950.0)], false),
            (
                "a checkpoint of the run that was not asked",
                vec![started(0.0), steps(0.0, 0.0), started(50.0), steps(50.0, 300.0)],
                true,
            ),
            ("it died before its first step", vec![started(0.0), started(50.0), steps(50.0, 300.0)], false),
            (
                "the end of the run before comes late",
                vec![started(10.0), steps(10.0, 0.0), finished(12.0), steps(14.0, 20.0), steps(80.0, 22.0)],
                true,
            ),
            ("a start that comes twice or late", vec![started(10.0), steps(10.0, 500.0), started(10.0), started(3.0)], false),
        ] {
            assert_eq!(is_withheld(&reports), withheld, "{what}");
        }
        let other_rank = TrainingProgress { rank: 1, ..started(0.0) };
        assert!(!is_withheld(&[other_rank]));
    }

    #[test]
    fn a_pause_alone_decides_nothing_for_long() {
        // 40 steps in 2 s, then an evaluation of half a minute: it still begins anew.
        assert!(is_withheld(&[started(0.0), steps(2.0, 40.0), steps(32.0, 41.0), steps(33.0, 41.0)]));
    }

    #[test]
    fn what_is_asked_later_is_not_withheld_and_nothing_is_kept_where_nothing_is_asked() {
        let mut runs = JobRuns::default();
        assert!(!runs.note(&started(0.0), 0) && runs.runs.is_empty());
        assert!(runs.note(&started(1.0), 7));
        let withheld = (runs.withholds(WORKLOAD, 7), runs.withholds(WORKLOAD, 8), runs.withholds("n/b", 7));
        assert_eq!(withheld, (true, false, false));
        assert!(!runs.note(&steps(1.0, 0.0), 8), "the same revisions");
        assert!(runs.note(&started(2.0), 0) && runs.runs.is_empty());
    }

    #[test]
    fn runs_that_begin_before_the_directives_are_read_are_younger_than_all_of_them() {
        let mut runs = JobRuns::default();
        runs.note(&started(5.0), UNREAD);
        runs.note(&TrainingProgress { workload: "n/b".into(), ..started(5.0) }, UNREAD);
        let mut of_log = JobRuns::default();
        of_log.note(&started(1.0), 7);
        of_log.note(&steps(1.0, 100.0), 7);
        runs.complete(of_log, |workload| if workload == WORKLOAD { 7 } else { 0 });
        assert!(runs.withholds(WORKLOAD, 7) && !runs.withholds(WORKLOAD, 8));
        assert_eq!(runs.runs.len(), 1, "nothing is asked of the other");

        // Read again: a later run reported to another collector.
        let mut of_log = JobRuns::default();
        of_log.note(&started(8.0), 7);
        of_log.note(&steps(8.0, 100.0), 7);
        runs.complete(of_log, |_| 7);
        assert!(!runs.withholds(WORKLOAD, 7), "it went on from a checkpoint");

        let mut full = JobRuns::default();
        for number in 0..=MAX_UNREAD_RUNS {
            full.note(&TrainingProgress { workload: format!("n/{number}"), ..started(5.0) }, UNREAD);
        }
        assert_eq!(full.runs.len(), MAX_UNREAD_RUNS);
    }
}
