//! `EnergyPolicy`: one object defines what may be changed on one workload. Its definition, its checks, and its effective policy
//! for the actuator.
//!
//! In: policies from the API server, and the labels and annotations of workloads and namespaces. Out: [`EffectivePolicy`] in
//! force, or [`PolicyProblem`]s as text. The definition ([`crd_definition`]) is generated from these types. Everything here
//! except
//! [`access`] is pure.
//!
//! It never decides on a workload's settings, and never guesses the intention of a policy: a contradictory policy permits
//! nothing.
//!
//! [`EffectivePolicy`]: crate::objects::effective_policy::EffectivePolicy

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
    BoundsSpec, ControllerSpec, CountRange, EnergyPolicy, EnergyPolicySpec, MegahertzRange, ObjectiveMetric, ObjectiveSpec,
    PercentageRange, PolicyKnob, PolicyMode, PriceAndCarbon, RestartBudget, RestartScheduleSpec, RestartWindow, TargetRef,
    TrainingSpec, WattsRange, Weekday,
};
pub use status::{
    ChangeOutcome, Condition, ConditionStatus, ConditionType, CurrentState, EnergyPolicyStatus, HISTORY_MAX, LastDecision,
    LayoutSettings, PastChange, Recommendation, SavingEffect, set_condition,
};
