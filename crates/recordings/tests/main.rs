//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod board_totals;
mod column_names;
mod energy_counters;
mod event_log;
mod figures;
mod formats;
mod fuzz;
mod imports_apart;
mod job_figures;
mod long_tables;
mod meters;
mod prometheus;
mod refused;
mod row_spans;
mod shared_data;
mod support;
mod tables;
mod through_the_fold;
mod times;
mod tools;
