//! Metrics of the simulator; names are prefixed with `eadt_simulator_`.

use std::sync::atomic::AtomicU64;

use eadt_service::MetricsRegistry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Debug, Default)]
pub struct SimulatorMetrics {
    /// Simulated time since the simulation's start.
    pub simulated_seconds: Gauge<f64, AtomicU64>,
    /// Events reported.
    pub events: Counter,
    /// Atomic steps committed.
    pub steps: Counter,
    /// Wall time during which simulated time stood still for an answer.
    pub held_seconds: Counter<f64, AtomicU64>,
    /// Answers that are owed now.
    pub pending_answers: Gauge,
    /// Records of the answers' topics that could not be read.
    pub unreadable: Counter,
    /// Sessions on the bus that ended with an error and began anew.
    pub restarts: Counter,
}

impl SimulatorMetrics {
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("simulator", |registry| {
            let this = Self::default();
            registry.register("simulated_seconds", "Simulated time since the start", this.simulated_seconds.clone());
            registry.register("events", "Events reported", this.events.clone());
            registry.register("steps", "Atomic steps committed", this.steps.clone());
            registry.register("held_seconds", "Wall time spent waiting for answers", this.held_seconds.clone());
            let pending = "Answers that simulated time waits for now";
            registry.register("pending_answers", pending, this.pending_answers.clone());
            registry.register("owed", "Old name of eadt_simulator_pending_answers", this.pending_answers.clone());
            registry.register("unreadable", "Records that could not be read", this.unreadable.clone());
            registry.register("restarts", "Bus sessions restarted after an error", this.restarts.clone());
            this
        })
    }
}
