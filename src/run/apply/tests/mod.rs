//! The rules, on values only.

mod matrix;
mod properties;
mod reconcile;
mod recovery;
mod turns;
mod world;
