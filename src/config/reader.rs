//! Reads single settings and collects what is wrong with them.

use std::str::FromStr;

use super::{ConfigFault, Setting};

/// Asks for settings by name; keeps every fault.
pub(super) struct Reader<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) faults: Vec<ConfigFault>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { env, faults: Vec::new() }
    }

    pub(super) fn fault(&mut self, setting: &Setting, detail: impl Into<String>) {
        self.faults.push(ConfigFault { setting: setting.name, detail: detail.into() });
    }

    /// The value, or the default. An empty value is none: deployments hand empty variables down.
    pub(super) fn text(&mut self, setting: &Setting) -> Option<String> {
        let given = (self.env)(setting.name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        if given.as_ref().is_some_and(|text| text.contains('\u{fffd}')) {
            self.fault(setting, "is not valid UTF-8");
            return None;
        }
        given.or_else(|| setting.default.map(str::to_owned))
    }

    pub(super) fn required(&mut self, setting: &Setting) -> Option<String> {
        let faults = self.faults.len();
        let text = self.text(setting);
        if text.is_none() && self.faults.len() == faults {
            self.fault(setting, "is not set");
        }
        text
    }

    /// Values between commas.
    pub(super) fn list(&mut self, setting: &Setting) -> Vec<String> {
        let text = self.text(setting).unwrap_or_default();
        text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn parsed<T: FromStr>(&mut self, setting: &Setting, what: &str) -> Option<T> {
        let text = self.required(setting)?;
        let value = text.parse().ok();
        if value.is_none() {
            self.fault(setting, format!("{text:?} is not {what}"));
        }
        value
    }

    pub(super) fn number(&mut self, setting: &Setting, least: u32, most: u32) -> Option<u32> {
        let text = self.required(setting)?;
        let value = text.parse().ok().filter(|value| (least..=most).contains(value));
        if value.is_none() {
            self.fault(setting, format!("{text:?} is not a whole number from {least} to {most}"));
        }
        value
    }

    pub(super) fn one_of<T: Copy>(&mut self, setting: &Setting, values: &[(&str, T)]) -> Option<T> {
        let text = self.required(setting)?;
        let value = values.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if value.is_none() {
            let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
            // The value may be an address with a password in it.
            self.fault(setting, format!("is not supported by this version; use {}", names.join(" or ")));
        }
        value
    }
}
