//! Directives to jobs, and whether jobs follow them. Pure, except for reading reports.
//!
//! A job changes its precision and its frozen layers itself. Its directive is in `directives.v1`, one event per workload, as long
//! as the workload's mark has the request and its policy allows it. A request that is no longer wanted is withdrawn by a
//! tombstone, and the job returns to the settings that it was started with. The change is ready when the job reports to follow
//! it, and rolled back when it does not in time, or when the job takes it back later.

use std::collections::{BTreeMap, BTreeSet};

use eadt_bus::BusError;
use eadt_cluster::{AppliedDecision, JobRequest, ManagedWorkload};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Directive, TrainingProgress, UpdateMode};

use crate::check::job_settings_beyond_bounds;
use crate::job::{ProgressTail, ProgressTopic};

/// Returns the present directive for a workload's job. It requests nothing without a policy that still allows it, or while the
/// workload is paused. `checkpoint`: the decision that waits for one.
pub fn build_directive(managed: &ManagedWorkload, checkpoint: Option<&str>) -> Option<Directive> {
    let state = &managed.state;
    let mut directive = Directive { workload: state.workload.clone(), ..Directive::default() };
    if let Some(applied) = managed.applied.as_ref().filter(|_| !state.paused && state.mode != UpdateMode::Observe) {
        let (precision, layers) = state.layout.asked_of_job();
        let beyond = job_settings_beyond_bounds(&state.layout, &state.bounds);
        directive.precision = precision.filter(|_| beyond.0.is_none()).map(|precision| precision.to_string());
        directive.frozen_prefix_layers = layers.filter(|_| beyond.1.is_none());
        directive.decision_id.clone_from(&applied.decision_id);
        let asks = directive.precision.is_some() || directive.frozen_prefix_layers.is_some();
        // It is taken up at a checkpoint, and hours may lie between two of them.
        directive.checkpoint_now = asks && managed.rolling_out().is_some_and(|applied| applied.job_request().is_some());
    }
    if let Some(decision_id) = checkpoint {
        directive.checkpoint_now = true;
        decision_id.clone_into(&mut directive.decision_id);
    }
    let asks = directive.precision.is_some() || directive.frozen_prefix_layers.is_some() || directive.checkpoint_now;
    asks.then_some(directive)
}

/// Returns the change in force that the job made, and that is still requested from it: the job may take it back.
pub fn change_followed_by_job(managed: &ManagedWorkload) -> Option<&AppliedDecision> {
    managed.made_by_job().filter(|_| build_directive(managed, None).is_some())
}

/// The directives in the log.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PublishedDirectives {
    directives: BTreeMap<String, Directive>,
}

/// A publication about one job.
#[derive(Debug, Clone, PartialEq)]
pub enum DirectiveUpdate {
    Publish(Directive),
    Withdraw,
}

impl PublishedDirectives {
    /// Takes the published directive of a workload from the log; `None` if it was withdrawn.
    pub fn set_from_log(&mut self, workload: &str, directive: Option<Directive>) {
        match directive {
            Some(directive) => drop(self.directives.insert(workload.to_owned(), directive)),
            None => drop(self.directives.remove(workload)),
        }
    }

    pub fn workloads(&self) -> impl Iterator<Item = &String> {
        self.directives.keys()
    }

    /// Forgets workloads that another process publishes now.
    pub fn retain_workloads(&mut self, mine: impl Fn(&str) -> bool) {
        self.directives.retain(|workload, _| mine(workload));
    }

    /// Returns the publication at `now` that is news to the job, after which what is `wanted` is in the log; it counts as
    /// published. A request for a checkpoint that is no longer wanted stays in a directive that asks for more: the job would take
    /// its end for another directive, and write a second checkpoint for it.
    pub fn take_update(&mut self, workload: &str, wanted: Option<Directive>, now: EventTime) -> Option<DirectiveUpdate> {
        let Some(wanted) = wanted else { return self.directives.remove(workload).map(|_| DirectiveUpdate::Withdraw) };
        // Another decision that asks for nothing else of the job is no news to it; for a checkpoint each asks by itself.
        let is_same = |standing: &Directive| {
            (&standing.precision, standing.frozen_prefix_layers) == (&wanted.precision, wanted.frozen_prefix_layers)
                && (!wanted.checkpoint_now || standing.checkpoint_now && standing.decision_id == wanted.decision_id)
        };
        if self.directives.get(workload).is_some_and(is_same) {
            return None;
        }
        let directive = Directive { time: now, ..wanted };
        self.directives.insert(workload.to_owned(), directive.clone());
        Some(DirectiveUpdate::Publish(directive))
    }
}

/// Returns whether a report shows that a request is followed; `None` if the report does not show it.
fn follows_request(request: JobRequest, report: &TrainingProgress) -> Option<bool> {
    let precision = match (request.precision, &report.precision) {
        (None, _) => Some(true),
        (Some(requested), reported) => reported.as_ref().map(|reported| reported.eq_ignore_ascii_case(requested.as_str())),
    };
    let layers = match (request.frozen_prefix_layers, report.frozen_prefix_layers) {
        (None, _) => Some(true),
        (Some(requested), reported) => reported.map(|reported| reported == requested),
    };
    Some(precision? && layers?)
}

/// Reports of a job's ranks since it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JobRequestReports {
    workload: String,
    request: JobRequest,
    /// Number of replicas: higher ranks belong to processes that have ended.
    replicas: u32,
    /// Consecutive reports of each rank that follow the request.
    ranks: BTreeMap<u32, u32>,
    /// The last report that contradicted the request.
    contradiction: Option<String>,
    decision_id: String,
    /// The job has made the change.
    is_ready: bool,
    /// The reason why the job refuses, or took the change back.
    refusal: Option<String>,
}

impl JobRequestReports {
    fn from_decision(workload: &str, applied: &AppliedDecision) -> Option<Self> {
        let (request, replicas) = (applied.job_request()?, applied.layout.replicas.unwrap_or(u32::MAX));
        Some(Self {
            workload: workload.to_owned(),
            request,
            replicas,
            ranks: BTreeMap::new(),
            contradiction: None,
            decision_id: applied.decision_id.clone(),
            is_ready: applied.ready_time.is_some(),
            refusal: None,
        })
    }

    fn add_report(&mut self, report: &TrainingProgress) {
        let follows = follows_request(self.request, report);
        if report.decision_id.as_ref() == Some(&self.decision_id) {
            // A job that has the settings did not take them back, whatever it refuses now.
            let refusal = report.directive_refused.as_ref().filter(|_| !(self.is_ready && follows == Some(true)));
            self.refusal = refusal.cloned();
        }
        let Some(done) = follows.filter(|_| report.rank < self.replicas) else { return };
        let times = self.ranks.entry(report.rank).or_default();
        *times = if done { times.saturating_add(1) } else { 0 };
        if !done {
            let layers = report.frozen_prefix_layers.map(|layers| format!("{layers} frozen layers"));
            let values: Vec<_> = report.precision.iter().cloned().chain(layers).collect();
            self.contradiction = Some(format!("rank {} reports {}", report.rank, values.join(" and ")));
        }
    }

    /// Returns whether all ranks follow the request, and one of them has reported it twice: by then every other rank that reports
    /// as often has reported.
    fn is_done(&self) -> bool {
        self.ranks.values().all(|times| *times > 0) && self.ranks.values().any(|times| *times > 1)
    }

    fn describe_missing(&self) -> String {
        if let Some(refusal) = &self.refusal {
            return format!("the job refused the requested {}: {refusal}", self.request);
        }
        let instead = self.contradiction.as_deref().unwrap_or("none of its reports has these settings");
        format!("the job did not follow the requested {}: {instead}", self.request)
    }
}

/// Follows whether jobs do what changes ask of them, and go on doing it. They share one reader, which lives as long as there is
/// such a change.
#[derive(Debug, Default)]
pub struct JobRequestTracker {
    progress_tail: Option<ProgressTail>,
    /// Answers by decision.
    jobs: BTreeMap<String, JobRequestReports>,
}

impl JobRequestTracker {
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns whether it follows exactly these workloads' changes.
    pub fn follows_exactly(&self, changes: &[(&String, &AppliedDecision)]) -> bool {
        self.jobs.len() == changes.len() && changes.iter().all(|(_, applied)| self.jobs.contains_key(&applied.decision_id))
    }

    /// Follows exactly these workloads' changes from now on: those that wait for their jobs, and those that the jobs have made.
    /// Reports from before the request do not count.
    pub fn set_changes(&mut self, progress: ProgressTopic<'_>, changes: &[(&String, &AppliedDecision)]) -> Result<(), BusError> {
        self.jobs.retain(|decision, _| changes.iter().any(|(_, applied)| applied.decision_id == *decision));
        for (workload, applied) in changes {
            if let Some(answers) = JobRequestReports::from_decision(workload, applied) {
                let is_ready = answers.is_ready;
                self.jobs.entry(applied.decision_id.clone()).or_insert(answers).is_ready = is_ready;
            }
        }
        match &self.progress_tail {
            Some(_) if self.jobs.is_empty() => self.progress_tail = None,
            None if !self.jobs.is_empty() => self.progress_tail = Some(ProgressTail::from_now(progress)?),
            _ => {}
        }
        Ok(())
    }

    /// Reads the reports since then; returns workload and decision of every job that now follows its request.
    pub fn poll_followers(&mut self) -> Result<Vec<(String, String)>, BusError> {
        let Some(news) = &mut self.progress_tail else { return Ok(Vec::new()) };
        let mut by_workload: BTreeMap<String, &mut JobRequestReports> =
            self.jobs.values_mut().map(|answers| (answers.workload.clone(), answers)).collect();
        let known: BTreeSet<String> = by_workload.keys().cloned().collect();
        news.poll(
            |workload| known.contains(workload),
            |report| {
                if let Some(answers) = by_workload.get_mut(&report.workload) {
                    answers.add_report(&report);
                }
            },
        )?;
        let done = self.jobs.iter().filter(|(_, answers)| !answers.is_ready && answers.is_done());
        Ok(done.map(|(decision, answers)| (answers.workload.clone(), decision.clone())).collect())
    }

    /// Returns the reason why a job refused the request of a decision, or took it back; `None` if it did not.
    pub fn refusal(&self, decision: &str) -> Option<&str> {
        self.jobs.get(decision)?.refusal.as_deref()
    }

    /// Returns the part of a decision's change that the job does not follow, as text; `None` if it follows all of it.
    /// `withdrawn`: the request no longer exists.
    pub fn describe_missing(&self, decision: &str, withdrawn: bool) -> Option<String> {
        let answers = self.jobs.get(decision).filter(|answers| !answers.is_done())?;
        if withdrawn {
            return Some(format!(
                "{} is no longer requested from the job: it is paused, or the policy does not allow it now",
                answers.request
            ));
        }
        Some(answers.describe_missing())
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::{Layout, LayoutBounds, Precision};

    use super::*;
    use crate::check::tests::{applied, at, managed};

    fn asking() -> ManagedWorkload {
        let mut managed = managed();
        managed.state.layout.precision = Some(Precision::Bf16);
        managed.state.layout.frozen_prefix_layers = Some(8);
        managed.applied = Some(applied());
        managed
    }

    #[test]
    fn a_job_is_asked_for_what_its_policy_still_allows() {
        let asked = build_directive(&asking(), None).unwrap();
        assert_eq!(
            (asked.precision.as_deref(), asked.frozen_prefix_layers, asked.checkpoint_now),
            (Some("bf16"), Some(8), false)
        );
        assert_eq!(asked.decision_id, "d-0");
        let with = |change: fn(&mut ManagedWorkload)| {
            let mut managed = asking();
            change(&mut managed);
            build_directive(&managed, None).map(|asked| (asked.precision, asked.frozen_prefix_layers))
        };
        assert_eq!(with(|m| m.state.paused = true), None);
        assert_eq!(with(|m| m.state.mode = UpdateMode::Observe), None);
        assert_eq!(with(|m| m.applied = None), None, "it was never asked");
        let fewer = |m: &mut ManagedWorkload| {
            m.state.bounds = LayoutBounds { frozen_prefix_layers_max: Some(7), ..LayoutBounds::default() }
        };
        assert_eq!(with(fewer), Some((Some("bf16".into()), None)));
        let none =
            |m: &mut ManagedWorkload| m.state.bounds = LayoutBounds { precisions: Some(vec![]), ..LayoutBounds::default() };
        assert_eq!(with(none), Some((None, Some(8))));
        let plain = managed();
        assert_eq!(build_directive(&plain, None), None);
        let checkpoint = build_directive(&plain, Some("d-9")).unwrap();
        assert_eq!((checkpoint.checkpoint_now, checkpoint.decision_id.as_str(), checkpoint.precision), (true, "d-9", None));
        let both = build_directive(&asking(), Some("d-9")).unwrap();
        assert_eq!(
            (both.checkpoint_now, both.precision.as_deref()),
            (true, Some("bf16")),
            "it must not lose what it was asked for"
        );
    }

    #[test]
    fn a_directive_is_published_once_and_withdrawn() {
        let (mut standing, workload) = (PublishedDirectives::default(), "eadt/llm-training");
        let asked = build_directive(&asking(), None);
        let Some(DirectiveUpdate::Publish(directive)) = standing.take_update(workload, asked.clone(), at(1.0)) else {
            panic!("it is news")
        };
        assert_eq!(directive.time, at(1.0));
        let mut other = asking();
        other.applied = Some(AppliedDecision { decision_id: "d-1".into(), ..applied() });
        assert_eq!(
            standing.take_update(workload, build_directive(&other, None), at(2.0)),
            None,
            "the job is asked for nothing else"
        );
        let Some(DirectiveUpdate::Publish(checkpoint)) =
            standing.take_update(workload, build_directive(&other, Some("d-2")), at(3.0))
        else {
            panic!("it is news")
        };
        assert!(checkpoint.checkpoint_now && checkpoint.precision.is_some());
        assert!(standing.take_update(workload, build_directive(&other, Some("d-3")), at(3.5)).is_some(), "another one asks");
        assert_eq!(
            standing.take_update(workload, asked, at(4.0)),
            None,
            "a checkpoint that is not asked for any more is no news"
        );
        assert_eq!(standing.take_update(workload, None, at(5.0)), Some(DirectiveUpdate::Withdraw));
        assert_eq!(standing.take_update(workload, None, at(6.0)), None);
        standing.set_from_log(workload, Some(directive));
        assert_eq!(standing.workloads().collect::<Vec<_>>(), [workload]);
        standing.retain_workloads(|_| false);
        assert_eq!(standing, PublishedDirectives::default());
    }

    #[test]
    fn only_what_is_news_to_the_job_is_published() {
        let directive = |decision_id: &str, layers, checkpoint_now| Directive {
            workload: "n/a".into(),
            decision_id: decision_id.into(),
            frozen_prefix_layers: layers,
            checkpoint_now,
            ..Directive::default()
        };
        for (standing, wanted, is_news) in [
            (("d-1", Some(3), true), ("d-1", Some(3), false), false),
            (("d-9", Some(3), true), ("d-1", Some(3), false), false),
            (("d-1", Some(3), false), ("d-2", Some(3), false), false),
            (("d-1", Some(3), false), ("d-1", Some(3), true), true),
            (("d-1", Some(3), true), ("d-2", Some(3), true), true),
            (("d-1", Some(3), true), ("d-1", Some(4), false), true),
            (("d-1", Some(3), true), ("d-1", None, true), true),
            (("d-1", None, true), ("d-1", Some(3), false), true),
        ] {
            let of = |(decision, layers, checkpoint): (&str, _, _)| directive(decision, layers, checkpoint);
            let mut published = PublishedDirectives::default();
            published.set_from_log("n/a", Some(of(standing)));
            let update = published.take_update("n/a", Some(of(wanted)), at(1.0));
            assert_eq!(update.is_some(), is_news, "{standing:?}, then {wanted:?}");
        }
    }

    fn report(rank: u32, precision: Option<&str>, layers: Option<u32>) -> TrainingProgress {
        TrainingProgress {
            rank,
            precision: precision.map(str::to_owned),
            frozen_prefix_layers: layers,
            ..TrainingProgress::default()
        }
    }

    #[test]
    fn a_job_follows_a_request_when_every_rank_that_reports_follows_it() {
        let before = Layout { precision: Some(Precision::Fp16), frozen_prefix_layers: Some(8), ..Layout::default() };
        let layout = Layout { precision: Some(Precision::Bf16), replicas: Some(2), ..before.clone() };
        let of = |before: &Layout, layout: &Layout| {
            JobRequestReports::from_decision(
                "eadt/llm-training",
                &AppliedDecision { layout: layout.clone(), before: before.clone(), ..applied() },
            )
        };
        assert_eq!(of(&before, &before), None);
        assert_eq!(of(&layout, &Layout::default()), None, "going back is no question");
        let mut pending = of(&before, &layout).unwrap();
        assert_eq!(
            pending.request,
            JobRequest { precision: Some(Precision::Bf16), frozen_prefix_layers: None },
            "only what is new"
        );
        assert!(!pending.is_done(), "nobody has reported anything");
        pending.add_report(&report(0, None, None));
        assert!(
            !pending.is_done() && pending.describe_missing().contains("none of its reports"),
            "{}",
            pending.describe_missing()
        );
        pending.add_report(&report(0, Some("BF16"), None));
        assert!(!pending.is_done(), "the other one may not have reported yet");
        pending.add_report(&report(1, Some("fp16"), Some(8)));
        pending.add_report(&report(0, Some("bf16"), None));
        assert!(!pending.is_done());
        assert_eq!(
            pending.describe_missing(),
            "the job did not follow the requested precision bf16: rank 1 reports fp16 and 8 frozen layers"
        );
        pending.add_report(&report(5, Some("fp16"), Some(8)));
        pending.add_report(&report(1, Some("bf16"), Some(8)));
        assert!(pending.is_done(), "rank 5 is none of the two processes");

        let mut asked = of(&before, &layout).unwrap();
        let refused = |decision: &str, why: Option<&str>| TrainingProgress {
            decision_id: Some(decision.into()),
            directive_refused: why.map(str::to_owned),
            ..report(0, Some("fp16"), None)
        };
        asked.add_report(&refused("another", Some("no")));
        assert_eq!(asked.refusal, None);
        asked.add_report(&refused("d-0", Some("no scaler")));
        assert_eq!(asked.describe_missing(), "the job refused the requested precision bf16: no scaler");
        asked.add_report(&refused("d-0", None));
        assert_eq!(asked.refusal, None, "it changed its mind");
        asked.is_ready = true;
        asked.add_report(&TrainingProgress { precision: Some("bf16".into()), ..refused("d-0", Some("no checkpoint")) });
        assert_eq!(asked.refusal, None, "it has what was requested");
        asked.add_report(&refused("d-0", Some("it diverges")));
        assert_eq!(asked.refusal.as_deref(), Some("it diverges"), "it took it back");

        let layers = Layout { frozen_prefix_layers: Some(4), ..before.clone() };
        let both = Layout { precision: Some(Precision::Bf16), ..layers };
        let asked = JobRequest::between(&before, &both).unwrap();
        let follows = |precision, layers| follows_request(asked, &report(0, precision, layers));
        assert_eq!(
            (follows(Some("bf16"), Some(4)), follows(Some("bf16"), Some(8)), follows(Some("bf16"), None)),
            (Some(true), Some(false), None)
        );
    }
}
