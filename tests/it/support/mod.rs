//! What several kinds of tests need.

pub(crate) mod database;
