//! The conformance suite: what every store must do, each test on both.

mod admission;
mod blobs;
mod decisions;
pub(crate) mod draft;
mod fencing;
mod follow;
mod hub;
mod inputs;
mod isolation;
mod journal;
mod leases;
mod pages;
mod payloads;
mod retention;
mod schema;
