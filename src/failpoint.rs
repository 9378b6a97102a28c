//! Named points at which a test kills or stops this process: before and after every commit and every send.
//!
//! What a crash leaves behind is only proven by a process that really dies there: one that returns an error instead still
//! runs destructors, answers callers and closes connections. Only debug builds have the points; in a release build
//! `pass` is nothing, and no setting arms it. Knows nothing of what happens around a point.

#[cfg(debug_assertions)]
pub use armed::{Pass, Plan, arm, pass};

/// This build has no such points.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn pass(_name: &'static str) {}

#[cfg(debug_assertions)]
mod armed {
    use std::collections::HashMap;
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use parking_lot::Mutex;
    use rustix::process::{Signal, getpid, kill_process};

    static ARMED: OnceLock<Armed> = OnceLock::new();

    /// One pass of all.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Pass {
        /// The n-th of all, from 1.
        Nth(u64),
        /// The n-th of the point of that name, from 1.
        Point(String, u64),
    }

    /// What a test wants of the points.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Plan {
        /// Each pass is appended here as a line `name#count`.
        pub log: Option<PathBuf>,
        /// Where the process dies.
        pub kill: Option<Pass>,
        /// Where the process stops until somebody lets it go on, as a machine that is suspended does.
        pub stop: Option<Pass>,
    }

    struct Armed {
        plan: Plan,
        passed: Mutex<Passed>,
    }

    struct Passed {
        log: Option<File>,
        total: u64,
        by_name: HashMap<&'static str, u64>,
    }

    /// Arms the points of this process, once.
    ///
    /// # Errors
    /// A log that cannot be written, or points that are armed already.
    pub fn arm(plan: Plan) -> std::io::Result<()> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        let log = plan.log.as_ref().map(open).transpose()?;
        let armed = Armed { plan, passed: Mutex::new(Passed { log, total: 0, by_name: HashMap::new() }) };
        ARMED.set(armed).map_err(|_armed| std::io::Error::other("the points are armed already"))
    }

    /// Passes the point of that name: nothing, unless a test armed it.
    pub fn pass(name: &'static str) {
        if let Some(armed) = ARMED.get() {
            armed.pass(name);
        }
    }

    impl Armed {
        fn pass(&self, name: &'static str) {
            // Held until the process is gone: nobody gets past another point meanwhile.
            let mut passed = self.passed.lock();
            passed.total += 1;
            let total = passed.total;
            let count = passed.by_name.entry(name).or_insert(0);
            *count += 1;
            let count = *count;
            if let Some(Err(fault)) =
                passed.log.as_mut().map(|log| log.write_all(format!("{name}#{count}\n").as_bytes()))
            {
                tracing::error!(%fault, "the passes of points cannot be written down");
            }
            let is_meant = |pass: &Option<Pass>| match pass {
                None => false,
                Some(Pass::Nth(nth)) => total == *nth,
                Some(Pass::Point(point, nth)) => point == name && count == *nth,
            };
            for (pass, signal) in [(&self.plan.kill, Signal::KILL), (&self.plan.stop, Signal::STOP)] {
                if is_meant(pass)
                    && let Err(fault) = kill_process(getpid(), signal)
                {
                    tracing::error!(%fault, "this process cannot send itself a signal");
                }
            }
        }
    }
}
