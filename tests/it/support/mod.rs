//! What several tests share.

pub(crate) mod process;
pub(crate) mod world;
