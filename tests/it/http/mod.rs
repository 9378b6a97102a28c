//! The HTTP contract, against the router in this process: real store, real executor, scripted models.

mod approval_rules;
mod approvals;
mod budgets;
mod cancel;
mod catalogs;
mod contents;
mod continued;
mod delete;
mod document;
mod faults;
pub(crate) mod harness;
mod inputs;
mod keys;
mod limits;
mod probes;
mod reconcile;
mod records;
mod refresh;
mod resume;
mod retention;
mod said;
mod sampling;
mod streams;
mod structured;
mod tenants;
