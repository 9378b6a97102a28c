//! Says why a request failed.

/// The innermost cause in words, without the URL (its query may carry what must not be shown).
pub fn describe(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    let kind = if error.is_timeout() {
        "time-out"
    } else if error.is_connect() {
        "no connection"
    } else {
        "the connection broke"
    };
    if std::ptr::addr_eq(std::ptr::from_ref(source), std::ptr::from_ref(error)) {
        kind.to_owned()
    } else {
        format!("{kind}: {source}")
    }
}
