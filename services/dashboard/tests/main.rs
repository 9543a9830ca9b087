mod api;
mod figures;
mod policies;
mod sharing;
mod support;
