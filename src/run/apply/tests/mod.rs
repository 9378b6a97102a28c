//! The rules, on values only.

mod matrix;
mod properties;
mod recovery;
mod turns;
mod world;
