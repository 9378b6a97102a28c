//! Collects what is wrong with a request.

use super::{CommandError, Fault};

/// Collects every fault of a body, so that a caller sees them all at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    found: Vec<Fault>,
    /// Places of the body that are not as they came: nothing is said of them but what is wrong with their form.
    mended: Vec<String>,
}

impl Faults {
    pub(super) fn add(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        let pointer = pointer.into();
        if !self.mended.iter().any(|place| touch(place, &pointer)) {
            self.found.push(Fault::at(pointer, detail));
        }
    }

    pub(super) fn require(&mut self, holds: bool, pointer: &str, detail: &str) {
        if !holds {
            self.add(pointer, detail);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    pub(super) fn finish(self) -> Result<(), CommandError> {
        if self.found.is_empty() { Ok(()) } else { Err(self.into()) }
    }
}

impl From<Faults> for CommandError {
    fn from(faults: Faults) -> Self {
        Self::Invalid(faults.found)
    }
}

/// Whether one of two places in a body is the other, or inside it.
fn touch(one: &str, other: &str) -> bool {
    let holds = |outer: &str, inner: &str| {
        !outer.is_empty() && inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    holds(one, other) || holds(other, one)
}

/// A body as far as it could be read, with what is wrong with its form: whoever checks what it means tells both.
#[derive(Clone, Debug)]
pub struct Given<T> {
    value: T,
    faults: Faults,
}

impl<T> Given<T> {
    /// A body that did not have its form: `faults` say why, and at `mended` it is not as it came.
    pub fn mended(value: T, faults: Vec<Fault>, mended: Vec<String>) -> Self {
        Self { value, faults: Faults { found: faults, mended } }
    }

    /// What could be read.
    pub const fn read(&self) -> &T {
        &self.value
    }

    /// Checks what it means, with the faults so far. A body that does not have its form never passes, whatever else is found.
    pub(super) async fn check<R>(
        self,
        check: impl AsyncFnOnce(T, Faults) -> Result<R, CommandError>,
    ) -> Result<R, CommandError> {
        let form = self.faults.clone();
        // On the heap it does not swell every future around.
        match Box::pin(check(self.value, self.faults)).await {
            Err(CommandError::Invalid(all)) => Err(CommandError::Invalid(all)),
            checked => form.finish().and(checked),
        }
    }
}

impl<T> From<T> for Given<T> {
    fn from(value: T) -> Self {
        Self { value, faults: Faults::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_without_its_form_never_passes_and_nothing_is_made_up_of_what_was_mended() {
        let form = || vec![Fault::at("/mcp/0/url", "is of another type")];
        let given = || Given::mended((), form(), vec!["/mcp/0/url".to_owned()]);
        let passes = given().check(async |(), _| Ok(())).await;
        let fails = given().check(async |(), _| Err::<(), _>(CommandError::NotFound)).await;
        for refused in [passes, fails] {
            assert!(matches!(refused, Err(CommandError::Invalid(faults)) if faults == form()));
        }
        let told = given().check(async |(), mut faults: Faults| {
            for place in ["/mcp", "/mcp/0", "/mcp/0/url", "/mcp/0/url/x", "/mcp/0/urls", "/mcp/1", ""] {
                faults.add(place, "means nothing");
            }
            faults.finish()
        });
        let Err(CommandError::Invalid(told)) = told.await else { panic!("it passes") };
        let at: Vec<&str> = told.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(at, ["/mcp/0/url", "/mcp/0/urls", "/mcp/1", ""]);
        assert!(Given::from(()).check(async |(), faults: Faults| faults.finish()).await.is_ok());
    }
}
