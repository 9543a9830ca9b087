//! Publishes the outcomes of decisions: collects the outputs of the next commit, and keeps the last published event of each
//! workload.

use std::collections::{BTreeMap, BTreeSet};

use eadt_bus::{ConsumerRecord, ProducerRecord};
use eadt_cluster::ManagedWorkload;
use eadt_schemas::v1::{ActuationOutcome, Decision, Workload};
use eadt_schemas::{DecodeError, Envelope, EventTime, EventType, decode};

use super::ActuatorDependencies;
use super::topics::ActuatorTopics;
use crate::check::DecisionRefusal;
use crate::directives::DirectiveUpdate;
use crate::metrics::ActuatorMetrics;
use crate::published_intents::IntentUpdate;
use crate::report::{self, ActuatorEvent};

const SOURCE: &str = "/actuator";

pub struct ActuatorPublisher<'a> {
    deps: &'a ActuatorDependencies,
    metrics: &'a ActuatorMetrics,
    topics: ActuatorTopics,
    outputs: Vec<ProducerRecord>,
    /// The last published event of each workload.
    published: BTreeMap<String, Workload>,
    /// Ids of the newest outcomes in the log: their decisions may be read again, and their steps may have lost other parts.
    outcomes: BTreeSet<String>,
    /// Workloads with an event or a finished decision that is not committed. The object remembers its last change only: a further
    /// one would hide what a successor needs to know in order to publish it.
    unsettled: BTreeSet<String>,
}

impl<'a> ActuatorPublisher<'a> {
    pub fn new(deps: &'a ActuatorDependencies, metrics: &'a ActuatorMetrics, topics: ActuatorTopics) -> Self {
        Self {
            deps,
            metrics,
            topics,
            outputs: Vec::new(),
            published: BTreeMap::new(),
            outcomes: BTreeSet::new(),
            unsettled: BTreeSet::new(),
        }
    }

    /// Takes the published event of a workload from the log; `None` for a tombstone.
    pub fn set_published(&mut self, workload: &str, value: Option<&[u8]>) {
        match value.map(decode::<Workload>) {
            Some(Ok(event)) => drop(self.published.insert(event.workload.clone(), event)),
            None => drop(self.published.remove(workload)),
            // A heartbeat, or not ours; the cluster's state is published over it.
            Some(Err(_)) => {}
        }
    }

    /// Takes the id of an outcome from the log: it is not published again.
    pub fn set_outcome(&mut self, id: &str) {
        self.outcomes.insert(id.to_owned());
    }

    /// Returns whether the log has an outcome of a decision already, so that it is not tried again.
    pub fn is_answered(&self, decision: &Decision) -> bool {
        let is_known = |outcome| self.outcomes.contains(&report::actuation_id(&decision.id, outcome));
        let first = [ActuationOutcome::Applied, ActuationOutcome::Refused, ActuationOutcome::Recommended];
        !self.outcomes.is_empty() && first.into_iter().any(is_known)
    }

    /// Publishes the difference between a workload's last published event and its present state.
    pub fn publish_changes(&mut self, managed: &ManagedWorkload) {
        for report in report::unreported_changes(self.published.get(&managed.state.workload), managed) {
            self.publish(report);
        }
    }

    pub fn publish(&mut self, report: ActuatorEvent) {
        match report {
            ActuatorEvent::Actuation(actuation) => {
                let (workload, decision, reason) = (&actuation.workload, &actuation.decision_id, &actuation.reason);
                match actuation.outcome {
                    ActuationOutcome::RolledBack => tracing::warn!(workload, decision, reason, "decision rolled back"),
                    ActuationOutcome::Failed => tracing::warn!(workload, decision, reason, "decision failed"),
                    _ => {}
                }
                self.unsettled.insert(actuation.workload.clone());
                self.deps.cluster.on_actuation(&actuation);
                if self.outcomes.remove(&actuation.id) {
                    return;
                }
                self.metrics.count_outcome(actuation.outcome);
                let envelope = envelope(actuation.id.clone(), EventType::Actuation, actuation.time, actuation.workload.clone());
                self.outputs.push(ProducerRecord::event(&self.topics.actuations, &actuation.workload, &envelope, &*actuation));
            }
            ActuatorEvent::Workload(workload) => {
                let id = format!("{}/{}/{}", workload.workload, workload.generation, workload.time.micros());
                let envelope = envelope(id, EventType::Workload, workload.time, workload.workload.clone());
                self.outputs.push(ProducerRecord::event(&self.topics.workloads, &workload.workload, &envelope, &*workload));
                self.published.insert(workload.workload.clone(), *workload);
            }
        }
    }

    /// Publishes that a decision is refused; `managed`: its workload, if it opted in.
    pub fn publish_refusal(
        &mut self,
        decision: &Decision,
        refusal: &DecisionRefusal,
        managed: Option<&ManagedWorkload>,
        now: EventTime,
    ) {
        tracing::info!(workload = decision.workload, decision = decision.id, reason = refusal.reason, "decision refused");
        self.metrics.count_refusal(refusal.kind);
        self.publish(report::refused_report(decision, refusal, managed, now));
    }

    pub fn publish_dead_letter(&mut self, record: &ConsumerRecord, unreadable: &DecodeError) {
        self.metrics.dead_letters.inc();
        self.outputs.push(ProducerRecord::dead_letter(&self.topics.dead_letters, record, unreadable, "actuator"));
    }

    pub fn publish_directive(&mut self, workload: &str, update: DirectiveUpdate) {
        let topic = &self.topics.directives;
        self.outputs.push(match update {
            DirectiveUpdate::Publish(directive) => {
                tracing::info!(
                    workload,
                    decision = directive.decision_id,
                    precision = directive.precision,
                    frozen_prefix_layers = directive.frozen_prefix_layers,
                    checkpoint_now = directive.checkpoint_now,
                    "directive published"
                );
                let id = format!("{workload}/{}", directive.time.micros());
                let envelope = envelope(id, EventType::Directive, directive.time, workload.to_owned());
                ProducerRecord::event(topic, workload, &envelope, &directive)
            }
            DirectiveUpdate::Withdraw => {
                tracing::info!(workload, "directive withdrawn");
                ProducerRecord::tombstone(topic, workload)
            }
        });
    }

    pub fn publish_intent(&mut self, update: IntentUpdate) {
        let topic = &self.topics.device_intents;
        self.outputs.push(match update {
            IntentUpdate::Publish(intent) => {
                tracing::debug!(node = intent.node, decision = intent.decision_id, "device intent published");
                let id = format!("{}/{}", intent.node, intent.time.micros());
                let envelope = envelope(id, EventType::DeviceIntent, intent.time, intent.node.clone());
                ProducerRecord::event(topic, &intent.node, &envelope, &intent)
            }
            IntentUpdate::Withdraw(node) => {
                tracing::info!(node, "device intent withdrawn");
                ProducerRecord::tombstone(topic, &node)
            }
        });
    }

    pub fn is_unsettled(&self, workload: &str) -> bool {
        self.unsettled.contains(workload)
    }

    pub fn mark_unsettled(&mut self, workload: &str) {
        self.unsettled.insert(workload.to_owned());
    }

    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    pub fn take_outputs(&mut self) -> Vec<ProducerRecord> {
        std::mem::take(&mut self.outputs)
    }

    pub fn on_committed(&mut self) {
        self.unsettled.clear();
    }

    /// Drops uncommitted outputs: the next owner publishes them.
    pub fn clear(&mut self) {
        self.outputs.clear();
        self.outcomes.clear();
        self.unsettled.clear();
    }
}

fn envelope(id: String, kind: EventType, time: EventTime, subject: String) -> Envelope {
    Envelope { id, source: SOURCE.into(), kind, time, subject }
}
