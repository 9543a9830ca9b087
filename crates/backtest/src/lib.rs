//! Simulator and controllers in lock-step, without a bus: how would each controller have done on these days?
//!
//! In: scenarios, contenders, days and seeds. Out: energy per sample, throughput and restarts of each, against a layout that is
//! never changed and against an oracle. Everything is a pure function of its arguments: the same seeds give the same bytes,
//! however many cores work on it. Restarts cost what they cost in the simulated cluster: downtime, idle power, lost work.
//!
//! [`MeasuredBacktestPlan`] runs the same controllers on measured boards.
//!
//! Every figure of a contest is simulated and marked so. It never touches a bus, a clock or a file.

mod answer;
mod calibrate;
mod days;
mod hindsight;
mod measured;
mod oracle;
mod simulated;

mod render;
mod summary;

pub use calibrate::{
    Calibration, CalibrationReport, CalibrationRow, CalibrationRun, CalibrationTarget, calibration_html,
    render_calibration_report,
};
pub use days::{come_and_go, even_phases, random_days};
pub use hindsight::{
    CounterfactualChange, ENOUGH_WINDOWS, Estimate, HindsightInput, HindsightRow, InsufficientEvidence, RefusedChange,
    evaluate_record, evaluate_record_counted, hindsight_html, render_hindsight_report,
};
pub use measured::{
    MeasuredBacktestPlan, MeasuredBoard, MeasuredMean, MeasuredReport, MeasuredRow, SweepKnob, SweepPoint, TestbedError,
    render_measured_report,
};
pub use simulated::{BacktestError, BacktestPlan, BacktestRun, Contender, Oversubscription, ScenarioSource, trace};

pub use render::{html, text};
pub use summary::{BacktestReport, BacktestRow, SeedSpread};
