//! The integration tests, one binary.
#![allow(clippy::unwrap_used, reason = "tests state facts; the lint's own exception ends at their helper functions")]

mod store;
mod support;
