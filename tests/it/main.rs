//! The integration tests, one binary.
#![allow(clippy::unwrap_used, reason = "tests state facts; the exception of the lint ends at their helper functions")]

mod architecture;
mod codes;
mod documents;
mod durability;
mod field;
mod http;
mod mcp;
mod model;
mod oauth;
mod protocol;
mod registry;
mod rules;
mod runs;
mod servers;
mod source;
mod store;
mod support;
mod whole;
mod workers;
