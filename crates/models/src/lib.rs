//! Cost of energy, throughput of a GPU for it, and choice of clock, power cap or batch size.
//!
//! - [`energy`]: energy from power readings, its price under a tariff, and its CO₂.
//! - [`fit`]: power from telemetry, throughput against power; each reports how well it fits and where it holds.
//! - [`choose`]: operating points in, a choice under a limit on the slowdown out: measured, or fitted and bounded.
//! - [`published`]: how fitted models travel as events.
//!
//! In: measured or simulated numbers. Out: numbers, with the data they are based on. Nothing here reads a clock, a file or the
//! network; chance comes from a seed, so that the same input gives the same bytes. If the data do not suffice, it gives no
//! answer: that is a [`choose::ChoiceRefusal`], a verdict, or `None`.

pub mod choose;
pub mod energy;
pub mod fit;
pub mod published;

mod stats;
