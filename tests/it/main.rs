//! The integration tests, one binary.

mod model;
mod support;
