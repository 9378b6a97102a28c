//! The settings of the points at which tests kill a process. Release builds have neither.

use super::reader::Reader;
use super::{Config, ConfigFaults, Setting, plain};
use crate::failpoint::{Pass, Plan};

/// What all their names begin with.
pub(super) const PREFIX: &str = "COUNTERSIGN_FAILPOINT_";
const FAILPOINT_LOG: Setting = plain("COUNTERSIGN_FAILPOINT_LOG", None, "file that every pass is appended to");
const FAILPOINT_KILL: Setting = plain("COUNTERSIGN_FAILPOINT_KILL", None, "N, or name#N: the pass that kills");
const FAILPOINT_STOP: Setting = plain("COUNTERSIGN_FAILPOINT_STOP", None, "N, or name#N: the pass that stops");

impl Config {
    /// What a test wants of the points; `None`: nothing.
    ///
    /// # Errors
    /// A pass that is neither `N` nor `name#N`.
    pub fn failpoints_from_env(env: &impl Fn(&str) -> Option<String>) -> Result<Option<Plan>, ConfigFaults> {
        let mut reader = Reader::new(env);
        let log = reader.text(&FAILPOINT_LOG).map(std::path::PathBuf::from);
        let [kill, stop] = [&FAILPOINT_KILL, &FAILPOINT_STOP].map(|setting| {
            let text = reader.text(setting)?;
            let pass = pass_of(&text);
            if pass.is_none() {
                reader.fault(setting, "is neither N nor name#N");
            }
            pass
        });
        if !reader.faults.is_empty() {
            return Err(ConfigFaults(reader.faults));
        }
        let plan = Plan { log, kill, stop };
        Ok((plan != Plan::default()).then_some(plan))
    }
}

fn pass_of(text: &str) -> Option<Pass> {
    let counted = |count: &str| count.parse().ok().filter(|count| *count > 0);
    match text.split_once('#') {
        None => counted(text).map(Pass::Nth),
        Some((name, count)) => counted(count).map(|count| Pass::Point(name.to_owned(), count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_armed_by_their_number_or_by_their_name_and_by_nothing_else() {
        let read = |kill: &'static str| {
            Config::failpoints_from_env(&|name: &str| (name == FAILPOINT_KILL.name).then(|| kill.to_owned()))
        };
        assert_eq!(read("7").unwrap().unwrap().kill, Some(Pass::Nth(7)));
        assert_eq!(read("run.admit.after#2").unwrap().unwrap().kill, Some(Pass::Point("run.admit.after".into(), 2)));
        assert_eq!(read("").unwrap(), None);
        for wrong in ["0", "run.admit.after", "run.admit.after#", "x#0", "-1"] {
            assert_eq!(read(wrong).unwrap_err().0[0].setting, "COUNTERSIGN_FAILPOINT_KILL", "{wrong}");
        }
    }
}
