//! What several tests share.

pub(crate) mod bad_stdio;
pub(crate) mod cluster;
pub(crate) mod counterparts;
pub(crate) mod database;
pub(crate) mod fake_issuer;
pub(crate) mod fake_mcp;
pub(crate) mod fake_model;
pub(crate) mod flaky_store;
pub(crate) mod process;
pub(crate) mod product;
pub(crate) mod proxy;
pub(crate) mod sse;
pub(crate) mod world;
