//! The environment of this process, and names in it that look like settings and are none.

use super::SETTINGS;
#[cfg(debug_assertions)]
use super::failpoints;

/// The environment of this process. Text that is not UTF-8 keeps a mark that the reader refuses.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// A warning for every `COUNTERSIGN_…` variable of this process that no setting has: a typing error would
/// otherwise silently leave a default.
pub fn unknown_variables() -> Vec<String> {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    warn_unknown(names)
}

pub(super) fn warn_unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    #[cfg(debug_assertions)]
    let names = names.filter(|name| !name.starts_with(failpoints::PREFIX));
    let unknown = |name: &String| {
        name.starts_with("COUNTERSIGN_") && !SETTINGS.iter().any(|setting| setting.name == name.as_str())
    };
    let mut warnings: Vec<String> =
        names.filter(unknown).map(|name| format!("{name} is not a setting of this version")).collect();
    warnings.sort();
    warnings
}
