//! `EnergyPolicy`: one object says what may be done to one workload. Its definition, its checks, and what it means for the actuator.
//!
//! In: policies as the API server has them, and the labels and annotations of workloads and namespaces. Out: [`Terms`] in force, or
//! [`Problem`]s in words. The definition ([`definition`]) is generated from these types. Everything here but [`access`] is pure.
//!
//! It never decides what a workload should be like, and never guesses what a policy may have meant: what is contradictory permits nothing.
//!
//! [`Terms`]: crate::terms::Terms

pub mod access;
mod check;
mod definition;
pub mod names;
mod problem;
mod resolve;
mod schedule;
mod spec;
mod status;
pub mod words;

pub use check::{Target, check};
pub use definition::{definition, yaml};
pub use problem::{Problem, Reason};
pub use resolve::{Resolved, paused, resolve, short_form};
pub use schedule::Schedule;
pub use spec::{
    Bounds, Controller, Counts, EnergyPolicy, EnergyPolicySpec, Knob, Megahertz, Minimize, Mode, Objective, Percentages,
    PriceAndCarbon, RestartBudget, RestartWindow, Restarts, TargetRef, Training, Watts, Weekday,
};
pub use status::{
    Condition, ConditionStatus, ConditionType, Current, Effect, EnergyPolicyStatus, HISTORY_MAX, Last, Outcome, Past,
    Recommendation, Settings, set_condition,
};
