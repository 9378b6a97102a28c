//! Collects what is wrong with a request.

use super::{CommandError, Fault};

/// Collects every fault of a body, so that a caller sees them all at once.
#[derive(Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.0.push(Fault::at(pointer, detail));
    }

    pub(super) fn require(&mut self, holds: bool, pointer: &str, detail: &str) {
        if !holds {
            self.add(pointer, detail);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn finish(self) -> Result<(), CommandError> {
        if self.0.is_empty() { Ok(()) } else { Err(CommandError::Invalid(self.0)) }
    }
}

impl From<Faults> for CommandError {
    fn from(faults: Faults) -> Self {
        Self::Invalid(faults.0)
    }
}
