//! The rules, on values only.

mod asks;
mod ends;
mod matrix;
mod properties;
mod reconcile;
mod recovery;
mod turns;
mod world;
