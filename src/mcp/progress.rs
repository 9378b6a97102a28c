//! How far calls have come, as their servers tell it while they work.

use std::fmt;
use std::sync::Arc;

use dashmap::DashMap;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use serde_json::Number;

use super::Told;
use crate::run::event::Progress;

/// Longest text of a server's progress that is handed on, in characters.
const MESSAGE_MAX: usize = 500;
/// Whole numbers up to here are printed as such.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Hears how far a call has come; called as often as the server says so.
#[derive(Clone)]
pub struct ProgressSink(Option<Arc<dyn Fn(Progress) + Send + Sync>>);

impl ProgressSink {
    /// Hands what is heard to that function, which must not wait.
    pub fn new(hear: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    /// Nobody wants to know.
    pub const fn none() -> Self {
        Self(None)
    }

    /// The same, without what the server was told until it says so. A number that tells a secret is no progress.
    pub(super) fn cleaned(self, told: &Told) -> Self {
        let (Some(hear), told) = (self.0, told.clone()) else { return Self(None) };
        Self::new(move |said: Progress| {
            let redactor = told.now();
            if redactor.tells(&said.progress) {
                return;
            }
            let total = said.total.filter(|total| !redactor.tells(total));
            let message = said.message.map(|text| redactor.cut(&text, MESSAGE_MAX));
            hear(Progress { progress: said.progress, total, message });
        })
    }
}

impl fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProgressSink").field(&self.0.is_some()).finish()
    }
}

/// Who hears what of one connection's calls.
#[derive(Clone, Default)]
pub(super) struct Listeners(Arc<DashMap<ProgressToken, ProgressSink>>);

/// The place of one call among them; given up when dropped.
pub(super) struct Hearing<'a> {
    listeners: &'a Listeners,
    token: ProgressToken,
}

impl Listeners {
    /// Hears of the call with that token while the answer is kept.
    pub(super) fn add(&self, token: ProgressToken, sink: ProgressSink) -> Hearing<'_> {
        if sink.0.is_some() {
            self.0.insert(token.clone(), sink);
        }
        Hearing { listeners: self, token }
    }

    /// The server told how far a call has come. What names no call that is out says nothing.
    pub(super) fn tell(&self, told: ProgressNotificationParam) {
        let Some(sink) = self.0.get(&told.progress_token).and_then(|sink| sink.0.clone()) else { return };
        if let Some(progress) = number(told.progress) {
            sink(Progress { progress, total: told.total.and_then(number), message: told.message });
        }
    }
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        self.listeners.0.remove(&self.token);
    }
}

/// A whole number prints without a fraction, as servers write it.
fn number(value: f64) -> Option<Number> {
    let number = Number::from_f64(value)?;
    if value.fract() == 0.0 && value.abs() <= WHOLE_MAX {
        return serde_json::from_str(&format!("{value:.0}")).ok();
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use rmcp::model::NumberOrString;

    use super::*;
    use crate::secrets::Redactor;

    #[test]
    fn only_the_call_that_is_named_hears_it_and_only_while_it_is_out() {
        let (listeners, heard) = (Listeners::default(), Arc::new(Mutex::new(Vec::new())));
        let token = |id: i64| ProgressToken(NumberOrString::Number(id));
        let into = Arc::clone(&heard);
        let told = Told::new(|| Redactor::of(&["canary-1".into(), "12345678".into()]));
        let sink = ProgressSink::new(move |progress| into.lock().push(progress));
        let place = listeners.add(token(1), sink.cleaned(&told));
        listeners.tell(
            ProgressNotificationParam::new(token(1), 2.0).with_total(3.5).with_message("x".repeat(495) + "canary-1"),
        );
        listeners.tell(ProgressNotificationParam::new(token(2), 1.0));
        listeners.tell(ProgressNotificationParam::new(token(1), f64::NAN));
        listeners.tell(ProgressNotificationParam::new(token(1), 12_345_678.0));
        listeners.tell(ProgressNotificationParam::new(token(1), 2.5).with_total(12_345_678.0));
        drop(place);
        listeners.tell(ProgressNotificationParam::new(token(1), 3.0));
        let told = serde_json::to_value(&*heard.lock()).unwrap();
        let message = "x".repeat(495) + "[reda…";
        assert_eq!(told, serde_json::json!([{"progress": 2, "total": 3.5, "message": message}, {"progress": 2.5}]));
    }
}
