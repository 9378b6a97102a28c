//! The integration tests, one binary.

mod architecture;
mod documents;
mod mcp;
mod model;
mod runs;
mod source;
mod store;
mod support;
