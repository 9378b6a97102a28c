//! What went wrong for people who run servers like this one, and must not here: `field_a001_…` after the number of the
//! case. `docs/field-cases.md` says what must hold in each.

mod cancellation;
mod duplicates;
mod egress;
mod keys;
mod leases;
mod migrations;
mod node;
mod postgres;
mod proxy;
mod sessions;
mod shutdown;
mod sse;
mod tenants;
mod usage;
