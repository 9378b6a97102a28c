//! What several tests share.

pub(crate) mod database;
pub(crate) mod fake_mcp;
pub(crate) mod process;
pub(crate) mod world;
