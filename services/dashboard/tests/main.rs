mod api;
mod figures;
mod support;
