//! The events that the parts of EADT exchange: their types, their topics, their envelope.
//!
//! In: bytes from a log. Out: checked, typed events, or a [`DecodeError`] that names the field and the reason.
//! One sample is one event; values are flat JSON; units are part of field names; times are RFC 3339 UTC.
//! This crate never reads a clock, never does I/O and never invents a value: what is unknown is `None`.

// First: its macro has the list of the event types.
#[macro_use]
pub mod envelope;

pub mod compat;
pub mod counts;
pub mod decode;
pub mod documents;
pub mod event_log;
#[doc(hidden)]
pub mod fast;
mod fields;
pub mod figures;
pub mod fnv;
pub mod secret_names;
pub mod time;
pub mod time_text;
pub mod topics;
pub mod v1;
pub mod visible_text;

pub use decode::{DecodeError, decode};
pub use envelope::{Envelope, EventType};
pub use event_log::LoggedEvent;
pub use time::EventTime;
pub use topics::Topic;
/// The newest version of every event.
pub use v1 as latest;
