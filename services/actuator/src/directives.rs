//! What jobs are asked for, and whether they do it. Pure, but for the reports that are heard.
//!
//! A job turns its precision and its frozen layers itself. What it is asked for stands in `directives.v1`, one event a workload, as long
//! as the workload's mark says it; a request that nobody makes any more is withdrawn by a tombstone, and the job goes on as it was
//! started. The change is ready when the job reports to do it, and taken back when it does not in time.

use std::collections::BTreeMap;

use eadt_bus::BusError;
use eadt_cluster::{Applied, Managed};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Directive, Precision, TrainingProgress, UpdateMode};

use crate::check::beyond_bounds;
use crate::job::{Progress, Reports};

/// What a workload's job is asked for now. Without a policy that still allows it, or while it is paused, it is asked for nothing.
/// `checkpoint`: the decision that waits for one.
pub fn wanted(managed: &Managed, checkpoint: Option<&str>) -> Option<Directive> {
    let state = &managed.state;
    let mut directive = Directive { workload: state.workload.clone(), ..Directive::default() };
    if let Some(applied) = managed.applied.as_ref().filter(|_| !state.paused && state.mode != UpdateMode::Observe) {
        let (precision, layers) = state.layout.asked_of_job();
        let beyond = beyond_bounds(&state.layout, &state.bounds);
        directive.precision = precision.filter(|_| beyond.0.is_none()).map(|precision| precision.to_string());
        directive.frozen_prefix_layers = layers.filter(|_| beyond.1.is_none());
        directive.decision_id.clone_from(&applied.decision_id);
    }
    if let Some(decision_id) = checkpoint {
        directive.checkpoint_now = true;
        decision_id.clone_into(&mut directive.decision_id);
    }
    let asks = directive.precision.is_some() || directive.frozen_prefix_layers.is_some() || directive.checkpoint_now;
    asks.then_some(directive)
}

/// What stands in the log.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Standing {
    directives: BTreeMap<String, Directive>,
}

/// What is to be published of one job.
#[derive(Debug, Clone, PartialEq)]
pub enum Due {
    Say(Directive),
    Withdraw,
}

impl Standing {
    /// Takes note of what stands in the log; `None`: withdrawn.
    pub fn read(&mut self, workload: &str, directive: Option<Directive>) {
        match directive {
            Some(directive) => drop(self.directives.insert(workload.to_owned(), directive)),
            None => drop(self.directives.remove(workload)),
        }
    }

    pub fn workloads(&self) -> impl Iterator<Item = &String> {
        self.directives.keys()
    }

    /// Forgets workloads that are another one's to speak of.
    pub fn retain(&mut self, mine: impl Fn(&str) -> bool) {
        self.directives.retain(|workload, _| mine(workload));
    }

    /// What is to be published at `now` so that exactly `wanted` stands; it counts as published.
    pub fn due(&mut self, workload: &str, wanted: Option<Directive>, now: EventTime) -> Option<Due> {
        let Some(wanted) = wanted else { return self.directives.remove(workload).map(|_| Due::Withdraw) };
        let asks = |d: &Directive| (d.precision.clone(), d.frozen_prefix_layers, d.checkpoint_now);
        let standing = self.directives.get(workload);
        // Another decision that asks for nothing else of the job is no news to it; for a checkpoint each asks by itself.
        let same = |d: &Directive| asks(d) == asks(&wanted) && (!wanted.checkpoint_now || d.decision_id == wanted.decision_id);
        if standing.is_some_and(same) {
            return None;
        }
        let said = Directive { time: now, ..wanted };
        self.directives.insert(workload.to_owned(), said.clone());
        Some(Due::Say(said))
    }
}

/// What a change asks of the job that it was not asked for before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    precision: Option<Precision>,
    frozen_prefix_layers: Option<u32>,
}

impl Asked {
    /// `None`: nothing.
    fn by(applied: &Applied) -> Option<Self> {
        let (to, from) = (&applied.layout, &applied.before);
        let asked = Self {
            precision: to.precision.filter(|_| to.precision != from.precision),
            frozen_prefix_layers: to.frozen_prefix_layers.filter(|_| to.frozen_prefix_layers != from.frozen_prefix_layers),
        };
        (asked.precision.is_some() || asked.frozen_prefix_layers.is_some()).then_some(asked)
    }

    /// Whether a report says that it is done; `None`: it does not say.
    fn done(self, report: &TrainingProgress) -> Option<bool> {
        let precision = match (self.precision, &report.precision) {
            (None, _) => Some(true),
            (Some(asked), said) => said.as_ref().map(|said| said.eq_ignore_ascii_case(asked.as_str())),
        };
        let layers = match (self.frozen_prefix_layers, report.frozen_prefix_layers) {
            (None, _) => Some(true),
            (Some(asked), said) => said.map(|said| said == asked),
        };
        Some(precision? && layers?)
    }
}

/// What the ranks of a job said since it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Heard {
    asked: Asked,
    /// Whether the last word of each rank was that it does what is asked.
    ranks: BTreeMap<u32, bool>,
    /// The last word that was another.
    instead: Option<String>,
}

impl Heard {
    fn take(&mut self, report: &TrainingProgress) {
        let Some(done) = self.asked.done(report) else { return };
        self.ranks.insert(report.rank, done);
        if !done {
            let layers = report.frozen_prefix_layers.map(|layers| format!("{layers} frozen layers"));
            let said: Vec<_> = report.precision.iter().cloned().chain(layers).collect();
            self.instead = Some(format!("rank {} reports {}", report.rank, said.join(" and ")));
        }
    }

    fn done(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.values().all(|done| *done)
    }

    fn missing(&self) -> String {
        let layers = self.asked.frozen_prefix_layers.map(|layers| format!("{layers} frozen layers"));
        let precision = self.asked.precision.map(|precision| format!("precision {precision}"));
        let asked: Vec<_> = precision.into_iter().chain(layers).collect();
        let instead = self.instead.as_deref().unwrap_or("none of its reports says what it does");
        format!("the job was asked for {} and did not take it up: {instead}", asked.join(" and "))
    }
}

/// Waits until a job does what the change of a decision asks of it.
#[derive(Debug)]
pub struct Following {
    heard: Heard,
    reports: Reports,
}

impl Following {
    /// `None`: the change asks nothing of the job.
    pub fn begin(progress: Progress<'_>, workload: &str, applied: &Applied) -> Result<Option<Self>, BusError> {
        let Some(asked) = Asked::by(applied) else { return Ok(None) };
        // What it said before it was asked says nothing.
        let reports = Reports::from_now(progress, workload)?;
        Ok(Some(Self { heard: Heard { asked, ranks: BTreeMap::new(), instead: None }, reports }))
    }

    /// Takes in what was said since; true once every rank that speaks does what was asked.
    pub fn hear(&mut self) -> Result<bool, BusError> {
        let heard = &mut self.heard;
        self.reports.hear(|report| heard.take(&report))?;
        Ok(heard.done())
    }

    /// What is missing, in words.
    pub fn missing(&self) -> String {
        self.heard.missing()
    }
}

/// Whether a change waits for its job.
pub fn asks_the_job(applied: &Applied) -> bool {
    Asked::by(applied).is_some()
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::{Bounds, Layout};

    use super::*;
    use crate::check::tests::{applied, at, managed};

    fn asking() -> Managed {
        let mut managed = managed();
        managed.state.layout.precision = Some(Precision::Bf16);
        managed.state.layout.frozen_prefix_layers = Some(8);
        managed.applied = Some(applied());
        managed
    }

    #[test]
    fn a_job_is_asked_for_what_its_policy_still_allows() {
        let asked = wanted(&asking(), None).unwrap();
        assert_eq!(
            (asked.precision.as_deref(), asked.frozen_prefix_layers, asked.checkpoint_now),
            (Some("bf16"), Some(8), false)
        );
        assert_eq!(asked.decision_id, "d-0");
        let with = |change: fn(&mut Managed)| {
            let mut managed = asking();
            change(&mut managed);
            wanted(&managed, None).map(|asked| (asked.precision, asked.frozen_prefix_layers))
        };
        assert_eq!(with(|m| m.state.paused = true), None);
        assert_eq!(with(|m| m.state.mode = UpdateMode::Observe), None);
        assert_eq!(with(|m| m.applied = None), None, "it was never asked");
        let fewer = |m: &mut Managed| m.state.bounds = Bounds { frozen_prefix_layers_max: Some(7), ..Bounds::default() };
        assert_eq!(with(fewer), Some((Some("bf16".into()), None)));
        let none = |m: &mut Managed| m.state.bounds = Bounds { precisions: Some(vec![]), ..Bounds::default() };
        assert_eq!(with(none), Some((None, Some(8))));
        let plain = managed();
        assert_eq!(wanted(&plain, None), None);
        let checkpoint = wanted(&plain, Some("d-9")).unwrap();
        assert_eq!((checkpoint.checkpoint_now, checkpoint.decision_id.as_str(), checkpoint.precision), (true, "d-9", None));
        let both = wanted(&asking(), Some("d-9")).unwrap();
        assert_eq!(
            (both.checkpoint_now, both.precision.as_deref()),
            (true, Some("bf16")),
            "it must not lose what it was asked for"
        );
    }

    #[test]
    fn what_stands_is_said_once_and_withdrawn() {
        let (mut standing, workload) = (Standing::default(), "eadt/llm-training");
        let asked = wanted(&asking(), None);
        let Some(Due::Say(said)) = standing.due(workload, asked.clone(), at(1.0)) else { panic!("it is news") };
        assert_eq!(said.time, at(1.0));
        let mut other = asking();
        other.applied = Some(Applied { decision_id: "d-1".into(), ..applied() });
        assert_eq!(standing.due(workload, wanted(&other, None), at(2.0)), None, "the job is asked for nothing else");
        let Some(Due::Say(checkpoint)) = standing.due(workload, wanted(&other, Some("d-2")), at(3.0)) else {
            panic!("it is news")
        };
        assert!(checkpoint.checkpoint_now && checkpoint.precision.is_some());
        assert!(standing.due(workload, wanted(&other, Some("d-3")), at(3.5)).is_some(), "another one asks");
        assert!(matches!(standing.due(workload, asked, at(4.0)), Some(Due::Say(said)) if !said.checkpoint_now));
        assert_eq!(standing.due(workload, None, at(5.0)), Some(Due::Withdraw));
        assert_eq!(standing.due(workload, None, at(6.0)), None);
        standing.read(workload, Some(said));
        assert_eq!(standing.workloads().collect::<Vec<_>>(), [workload]);
        standing.retain(|_| false);
        assert_eq!(standing, Standing::default());
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
    fn a_job_has_taken_it_up_when_every_rank_that_speaks_says_so() {
        let before = Layout { precision: Some(Precision::Fp16), frozen_prefix_layers: Some(8), ..Layout::default() };
        let layout = Layout { precision: Some(Precision::Bf16), ..before.clone() };
        let asked = Asked::by(&Applied { layout: layout.clone(), before: before.clone(), ..applied() }).unwrap();
        assert_eq!(asked, Asked { precision: Some(Precision::Bf16), frozen_prefix_layers: None }, "only what is new");
        assert_eq!(Asked::by(&Applied { layout: before.clone(), before, ..applied() }), None);
        let mut heard = Heard { asked, ranks: BTreeMap::new(), instead: None };
        assert!(!heard.done(), "nobody has said anything");
        heard.take(&report(0, None, None));
        assert!(!heard.done() && heard.missing().contains("none of its reports"), "{}", heard.missing());
        heard.take(&report(0, Some("BF16"), None));
        assert!(heard.done());
        heard.take(&report(1, Some("fp16"), Some(8)));
        assert!(!heard.done());
        assert_eq!(
            heard.missing(),
            "the job was asked for precision bf16 and did not take it up: rank 1 reports fp16 and 8 frozen layers"
        );
        heard.take(&report(1, Some("bf16"), Some(8)));
        assert!(heard.done());

        let layers = Layout { frozen_prefix_layers: Some(4), ..layout.clone() };
        let asked = Asked::by(&Applied { layout: layers, before: layout, ..applied() }).unwrap();
        assert_eq!(
            (asked.done(&report(0, Some("bf16"), Some(4))), asked.done(&report(0, None, Some(8)))),
            (Some(true), Some(false))
        );
        assert_eq!(asked.done(&report(0, Some("bf16"), None)), None);
    }
}
