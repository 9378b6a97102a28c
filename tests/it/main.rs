//! The integration tests, one binary.

mod mcp;
mod support;
