//! Decisions and actuations in little memory, for thousands of workloads: names and layouts that repeat are kept once.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use eadt_report::states::{ChangeFate, HOLD_OUT, takes_back, verdict_of_action};
use eadt_report::words;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, Layout, Origin};

/// Texts below which unused ones are not looked for.
const LEAST_TEXTS: usize = 1024;

/// Texts that many events have, each kept once while something has it.
#[derive(Debug, Default)]
pub struct SharedTexts {
    texts: HashSet<Arc<str>>,
    /// Number of texts from which unused ones are dropped.
    next_purge: usize,
    /// Names of the evidence of a decision: most decisions of a controller have the same.
    names: HashSet<Arc<[Arc<str>]>>,
    next_names_purge: usize,
}

impl SharedTexts {
    /// Returns the text that is kept.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        if self.texts.len() >= self.next_purge {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.next_purge = LEAST_TEXTS.max(2 * self.texts.len());
        }
        let text: Arc<str> = text.into();
        self.texts.insert(text.clone());
        text
    }

    /// Returns the list of these names that is kept.
    fn names<'a>(&mut self, names: impl Iterator<Item = &'a String>) -> Arc<[Arc<str>]> {
        let names: Vec<Arc<str>> = names.map(|name| self.get(name)).collect();
        if let Some(known) = self.names.get(&names[..]) {
            return known.clone();
        }
        if self.names.len() >= self.next_names_purge {
            self.names.retain(|names| Arc::strong_count(names) > 1);
            self.next_names_purge = LEAST_TEXTS.max(2 * self.names.len());
        }
        let names: Arc<[Arc<str>]> = names.into();
        self.names.insert(names.clone());
        names
    }
}

/// A decision as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDecision {
    pub id: Box<str>,
    pub workload: Arc<str>,
    pub time: EventTime,
    pub expires: EventTime,
    pub hold_until: Option<EventTime>,
    pub action: ControllerAction,
    pub validation: ChangeValidation,
    pub origin: Origin,
    pub restarts: bool,
    pub generation: Option<u64>,
    pub controller: Arc<str>,
    pub controller_version: Arc<str>,
    pub model_version: Option<Arc<str>>,
    pub reason: Box<str>,
    pub concerns: Option<Box<str>>,
    pub from: Arc<Layout>,
    pub to: Arc<Layout>,
    /// Values in the order of the names.
    evidence: Box<[f64]>,
    evidence_names: Arc<[Arc<str>]>,
}

impl StoredDecision {
    /// Stores a decision. `before` is a decision with which it may have layouts in common.
    pub fn new(decision: &Decision, workload: &Arc<str>, before: Option<&Self>, texts: &mut SharedTexts) -> Self {
        let known = before.into_iter().flat_map(|before| [&before.to, &before.from]);
        let from = shared_layout(&decision.from, known);
        let to = shared_layout(&decision.to, [&from].into_iter().chain(before.map(|before| &before.to)));
        Self {
            id: decision.id.as_str().into(),
            workload: workload.clone(),
            time: decision.time,
            expires: decision.expires,
            hold_until: decision.hold_until,
            action: decision.action,
            validation: decision.validation,
            origin: decision.origin,
            restarts: decision.restarts,
            generation: decision.generation,
            controller: texts.get(&decision.controller),
            controller_version: texts.get(&decision.controller_version),
            model_version: decision.model_version.as_deref().map(|version| texts.get(version)),
            reason: decision.reason.as_str().into(),
            concerns: decision.concerns.as_deref().map(Box::from),
            from,
            to,
            evidence: decision.evidence.values().copied().collect(),
            evidence_names: texts.names(decision.evidence.keys()),
        }
    }

    pub fn is_hold_out(&self) -> bool {
        self.evidence_names.iter().any(|name| **name == *HOLD_OUT)
    }

    /// Returns the verdict that its action follows from.
    fn verdict_of_action(&self) -> ChangeValidation {
        verdict_of_action(self.validation, self.is_hold_out())
    }

    /// Returns whether it takes back a change that failed.
    pub fn takes_back(&self) -> bool {
        takes_back(self.action, self.verdict_of_action())
    }

    /// Returns its action as text.
    pub fn action_text(&self) -> Cow<'static, str> {
        words::action_text(self.action, self.verdict_of_action(), &self.from, &self.to)
    }

    pub fn evidence(&self) -> BTreeMap<String, f64> {
        self.evidence_names.iter().map(ToString::to_string).zip(self.evidence.iter().copied()).collect()
    }
}

/// An actuation as it is kept, beside the decision that it answers.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredActuation {
    /// Id without the decision's own, with which it begins.
    id: Arc<str>,
    pub time: EventTime,
    pub outcome: ActuationOutcome,
    pub origin: Origin,
    pub reason: Box<str>,
    pub layout: Arc<Layout>,
    pub generation: u64,
    pub downtime_seconds: Option<f64>,
}

impl StoredActuation {
    /// Stores an actuation. `known` are layouts of which its own may be one.
    pub fn new<'a>(actuation: &Actuation, known: impl IntoIterator<Item = &'a Arc<Layout>>, texts: &mut SharedTexts) -> Self {
        Self {
            id: texts.get(Self::own_part(actuation)),
            time: actuation.time,
            outcome: actuation.outcome,
            origin: actuation.origin,
            reason: actuation.reason.as_str().into(),
            layout: shared_layout(&actuation.layout, known),
            generation: actuation.generation,
            downtime_seconds: actuation.downtime_seconds,
        }
    }

    /// Returns the outcome of the decision.
    pub fn fate(&self) -> ChangeFate {
        ChangeFate::new(self.outcome, &self.reason)
    }

    /// Returns whether it is this one, which answers the same decision.
    pub fn is(&self, actuation: &Actuation) -> bool {
        *self.id == *Self::own_part(actuation)
    }

    fn own_part(actuation: &Actuation) -> &str {
        actuation.id.strip_prefix(actuation.decision_id.as_str()).unwrap_or(&actuation.id)
    }
}

/// Returns the layout of these that is equal, or a new one.
fn shared_layout<'a>(layout: &Layout, known: impl IntoIterator<Item = &'a Arc<Layout>>) -> Arc<Layout> {
    known.into_iter().find(|known| ***known == *layout).cloned().unwrap_or_else(|| Arc::new(layout.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once_and_while_something_has_it() {
        let mut texts = SharedTexts::default();
        let kept = texts.get("gpus");
        assert!(Arc::ptr_eq(&kept, &texts.get("gpus")));
        for number in 0..10_000 {
            texts.get(&number.to_string());
        }
        assert!(texts.texts.len() <= LEAST_TEXTS, "{}", texts.texts.len());
        assert!(Arc::ptr_eq(&kept, &texts.get("gpus")));
    }

    #[test]
    fn layouts_that_repeat_are_kept_once_and_evidence_is_read_back() {
        let layout = |watts| Layout { power_limit_watts: Some(watts), ..Layout::default() };
        let decision = |from, to| Decision {
            from: layout(from),
            to: layout(to),
            evidence: [("power_watts".to_owned(), 0.1 + 0.2)].into(),
            ..Decision::default()
        };
        let (mut texts, workload) = (SharedTexts::default(), "team/job".into());
        let first = StoredDecision::new(&decision(300.0, 250.0), &workload, None, &mut texts);
        let second = StoredDecision::new(&decision(250.0, 250.0), &workload, Some(&first), &mut texts);
        assert!(Arc::ptr_eq(&first.to, &second.from) && Arc::ptr_eq(&second.from, &second.to));
        assert_eq!(*first.from, layout(300.0));
        assert_eq!(second.evidence(), decision(250.0, 250.0).evidence);
        assert!(Arc::ptr_eq(&first.evidence_names, &second.evidence_names));
        let actuation =
            Actuation { id: "d/ready".into(), decision_id: "d".into(), layout: layout(250.0), ..Actuation::default() };
        let stored = StoredActuation::new(&actuation, [&second.to], &mut texts);
        assert!(Arc::ptr_eq(&stored.layout, &second.to) && stored.is(&actuation));
        assert!(!stored.is(&Actuation { id: "d/applied".into(), ..actuation }));
    }
}
