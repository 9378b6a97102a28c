//! The rules, on values only.

mod approvals;
mod asks;
mod catalogs;
mod ends;
mod fetched;
mod limits;
mod matrix;
mod properties;
mod reconcile;
mod recovery;
mod turns;
mod world;
