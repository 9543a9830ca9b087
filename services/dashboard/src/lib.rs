//! The dashboard: a web page about the pipeline, with its JSON API and event stream.
//!
//! In: windows, decisions, actuations and workloads, read from the log outside of any group ([`follow`]) or from an archive
//! ([`load_archive`]), and samples and settings of GPUs. Out: an HTTP listener of its own ([`DashboardServer`]) with the page and
//! `/api/v1`. Every figure is [`eadt_report`]'s or an event's own; the page computes none. It never writes to the log, never
//! joins a group, and holds no more than [`RetentionLimits`] allow. With an editor ([`DashboardServer::with_editor`]) people
//! pause, approve and set modes through it. Of an archive it also shows earlier moments ([`AsOfReader`]),
//! and it compares the record with other runs ([`OtherRun`]). Terminals follow the
//! log behind it over HTTP ([`DashboardServer::with_log`]).

mod access;
mod api;
mod as_of;
mod assets;
mod export;
mod extract;
mod feed;
mod log;
mod model;
mod policy_edits;
mod reading;
mod record_identity;
mod response_cache;
mod server;
mod settings;
mod shared_model;
mod stream;
mod whatif;
mod workload_history;

pub use as_of::AsOfReader;
pub use feed::{ArchivedRanges, FeedError, follow, load_archive, load_log};
pub use log::{LOG_END_HEADER, LOG_MEDIA_TYPE, LogLines, LogPositions, LogSource, StreamMarker};
pub use model::compare::{ComparePage, CompareQuery};
pub use model::decisions::{DecisionPage, DecisionQuery};
pub use model::fleet::{FleetPage, FleetQuery, SortKey};
pub use model::policies::{PolicyPage, PolicyQuery};
pub use model::runs::{OtherRun, RunPage, RunQuery};
pub use model::saving_parts::{SavingPart, SavingPartKind, SavingParts};
pub use model::sharing::{AttributionBasis, SharingPage, SharingQuery};
pub use model::{DashboardModel, ReplayCheck, ReplayVerdict, RetentionLimits, SourceFacts, SourceKind};
pub use reading::ReadingProgress;
pub use record_identity::{RecordError, RecordIdentity};
pub use server::{DashboardServer, ListenError};
pub use settings::DashboardSettings;
pub use shared_model::SharedModel;
pub use whatif::WhatIf;
pub use workload_history::HistorySource;
