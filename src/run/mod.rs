//! The run core: pure rules of a durable agent run. No IO, no clock, no async.
//!
//! `next` says what must happen, `apply` says what a fact changes. Recovery is `load` + `next`: it calls exactly what
//! the happy path calls.
#![deny(
    missing_docs,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm
)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::panic,
        clippy::arithmetic_side_effects,
        clippy::wildcard_enum_match_arm,
        reason = "tests state facts"
    )
)]

pub mod address;
pub mod agent;
pub mod apply;
pub mod approval;
pub mod ask;
pub mod asking;
pub mod binding;
pub mod call;
pub mod commit;
pub mod credential;
pub mod dialect;
pub mod envelope;
pub mod estimate;
pub mod event;
pub mod fact;
pub mod fetched;
pub mod given;
pub mod history;
pub mod ids;
pub mod json;
pub mod limits;
pub mod media;
pub mod mend;
pub mod message;
pub mod money;
pub mod offer;
pub mod outcome;
pub mod pace;
pub mod policy;
pub mod reached;
pub mod refusal;
pub mod result;
pub mod sampling;
pub mod schema;
pub mod spec;
pub mod status;
pub mod step;
pub mod structured;
pub mod tighten;
pub mod time;
pub mod tool_result;
pub mod untaken;
pub mod view;

pub use apply::apply;
pub use step::{Step, next};
