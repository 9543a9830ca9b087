//! Event logs: one CloudEvents JSON object a line, `.jsonl` or `.jsonl.zst`.

mod canonical;
mod chunk;
mod reader;
mod writer;

pub use chunk::{LogChunk, LogChunks};
pub use reader::{EventRef, LogError, LogReader, MAX_EVENT_BYTES};
pub use writer::{Compression, LogWriter};
