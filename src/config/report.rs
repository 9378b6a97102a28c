//! Prints the settings for `countersign config`: what holds, where it comes from, and no secret.

use std::fmt::Write as _;

use url::Url;

use super::{Config, ConfigFaults, DATABASE_URL, JWKS_URL, SETTINGS, Setting};

impl Config {
    /// Every setting with its value, where that comes from, and what is wrong.
    pub fn report(env: &impl Fn(&str) -> Option<String>) -> String {
        let mut out = String::new();
        for setting in &SETTINGS {
            let given = env(setting.name).filter(|text| !text.trim().is_empty());
            let (value, source) = match (&given, setting.default) {
                (Some(text), _) => (shown(setting, text), "environment"),
                (None, Some(default)) => (default.to_owned(), "default"),
                (None, None) => ("(not set)".to_owned(), "default"),
            };
            // Writing to a String cannot fail.
            writeln!(out, "{} = {value}    # {source}; {}", setting.name, setting.about).unwrap_or_default();
        }
        if let Err(ConfigFaults(faults)) = Self::from_env(env) {
            writeln!(out, "\n`countersign serve` would not start:").unwrap_or_default();
            for fault in faults {
                writeln!(out, "  {}: {}", fault.setting, fault.detail).unwrap_or_default();
            }
        }
        out
    }
}

fn shown(setting: &Setting, text: &str) -> String {
    if setting.secret {
        return "(set, redacted)".to_owned();
    }
    let may_hold_a_password = setting.name == DATABASE_URL.name || setting.name == JWKS_URL.name;
    if may_hold_a_password && !text.starts_with("sqlite:") {
        return without_password(text).unwrap_or_else(|| "(set, redacted)".to_owned());
    }
    text.to_owned()
}

/// The address without what follows the path, since that may hold a password too.
fn without_password(text: &str) -> Option<String> {
    let mut url = Url::parse(text).ok().filter(Url::has_host)?;
    if url.password().is_some() {
        url.set_password(Some("redacted")).ok()?;
    }
    if url.query().is_some() {
        url.set_query(Some("redacted"));
    }
    Some(url.to_string())
}
