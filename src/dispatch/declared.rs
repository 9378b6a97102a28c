//! Servers that the operator declared for every tenant: the seam to whatever reads the declarations.
//!
//! A name belongs to one of both. A tenant cannot register a name that is declared; one that it had registered before
//! stays its own, so that a declaration never leads a tenant's calls and secrets somewhere else.

use crate::run::spec::McpEntry;

/// What the operator declared.
pub trait Declared: Send + Sync {
    /// The server of that name, as an entry with its address.
    fn server(&self, name: &str) -> Option<McpEntry>;
}

/// Nothing is declared.
#[derive(Clone, Copy, Debug)]
pub struct NothingDeclared;

impl Declared for NothingDeclared {
    fn server(&self, _name: &str) -> Option<McpEntry> {
        None
    }
}
