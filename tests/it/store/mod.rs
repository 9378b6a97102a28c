//! The conformance suite: what every store must do, each test on both.

mod admission;
pub(crate) mod draft;
mod fencing;
mod hub;
mod isolation;
mod journal;
mod leases;
mod pages;
mod payloads;
mod schema;
