//! Simulator and controllers in lock-step, without a bus.
