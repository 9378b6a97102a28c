//! The integration tests, one binary.

mod architecture;
mod documents;
mod model;
mod source;
mod support;
