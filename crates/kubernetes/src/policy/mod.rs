//! `EnergyPolicy`: one object says what may be done to one workload. Its definition, its checks, and what it means for the actuator.
//!
//! In: policies as the API server has them, and the labels and annotations of workloads and namespaces. Out: [`PolicyTerms`] in force, or
//! [`PolicyProblem`]s in words. The definition ([`crd_definition`]) is generated from these types. Everything here but [`access`] is pure.
//!
//! It never decides what a workload should be like, and never guesses what a policy may have meant: what is contradictory permits nothing.
//!
//! [`PolicyTerms`]: crate::objects::terms::Terms

pub mod access;
mod check;
mod definition;
pub mod names;
mod problem;
mod resolve;
pub mod resource;
mod schedule;
mod spec;
mod status;
pub mod words;

pub use check::{TargetLookup, find_target_problems};
pub use definition::{crd_definition, crd_yaml};
pub use problem::{PolicyProblem, ProblemReason};
pub use resolve::{ResolvedPolicy, observe_label_terms, read_pause, resolve_policy};
pub use schedule::RestartSchedule;
pub use spec::{
    Bounds, Controller, Counts, EnergyPolicy, EnergyPolicySpec, Knob, Megahertz, Minimize, Mode, Objective, Percentages,
    PriceAndCarbon, RestartBudget, RestartWindow, Restarts, TargetRef, Training, Watts, Weekday,
};
pub use status::{
    Condition, ConditionStatus, ConditionType, CurrentState, EnergyPolicyStatus, HISTORY_MAX, LastDecision, Outcome, PastChange,
    Recommendation, SavingEffect, Settings, set_condition,
};
