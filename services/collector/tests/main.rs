//! The integration tests of this package, one binary: linking is most of what another one would cost.

mod dcgm_text;
mod kubelet;
mod nvml;
mod run;
mod support;
