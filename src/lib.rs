//! Countersign: a control plane for agent runs that never does a thing twice without saying so.
//!
//! The modules in reading order; who may use whom is kept by `tests/it/architecture.rs`.

pub mod bulk;
pub mod failpoint;
pub mod run;

pub mod clock;
pub mod store;

pub mod config;
pub mod net;
pub mod places;
pub mod schema;
pub mod secrets;

pub mod mcp;
pub mod model;
pub mod oauth;
pub mod policy;

pub mod dispatch;

pub mod commands;
pub mod executor;

pub mod auth;
pub mod telemetry;

pub mod http;

pub mod app;
pub mod cli;
