//! The conformance suite: what every store must do, each test on both.

mod admission;
mod behind;
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
mod registry;
mod retention;
mod schema;
