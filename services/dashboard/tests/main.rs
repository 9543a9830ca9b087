mod api;
mod archive;
mod figures;
mod log;
mod policies;
mod sharing;
mod support;
