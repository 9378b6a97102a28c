//! What a server was told in confidence. A text of a server is whole and raw inside of this module, so that nothing is cut
//! before it is clean; `McpPool` hands none out that is not.

use std::fmt;
use std::sync::Arc;

use super::{McpFault, McpTarget};
use crate::secrets::Redactor;

/// Longest text of a fault that is handed on, in characters.
const FAULT_MAX: usize = 4_000;

/// What a server was told until now: access tokens are got while it is spoken to, and secrets replaced.
#[derive(Clone, Default)]
pub struct Told(Option<Arc<dyn Fn() -> Redactor + Send + Sync>>);

impl Told {
    /// What it was told, as its owner sees it whenever it is asked for.
    pub fn new(known: impl Fn() -> Redactor + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(known)))
    }

    /// Takes out of a text what it was told until now.
    pub fn now(&self) -> Redactor {
        self.0.as_ref().map(|known| known()).unwrap_or_default()
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Told").field(&self.0.is_some()).finish()
    }
}

impl McpTarget {
    /// The same fault without what the server was told.
    pub(super) fn clean(&self, fault: McpFault) -> McpFault {
        McpFault { message: self.told.now().cut(&fault.message, FAULT_MAX), ..fault }
    }
}
