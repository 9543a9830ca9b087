//! The joint stage of GPU sharing by itself: windows and layouts in, decisions out, with a plant that carries them out.

#![allow(clippy::single_range_in_vec_init, reason = "the stays of a job, often one")]

mod answers;
mod keeping;
mod measuring;
mod models;
mod sharing;
mod site;
mod windows;
