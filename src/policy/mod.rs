//! Compiles and evaluates the expressions of policies. Knows what an expression may look at, not what a rule does with
//! its result: that is the core's.
//!
//! **Threads of their own.** The parser of the expression language recurses deeply, and a stack that overflows ends the
//! process for every tenant. So sources are short, brackets are counted, and all work happens on a few threads with
//! large stacks. The language has no step limit either: lists cannot be walked inside of each other, what an expression
//! may look at is limited in size, and whoever asks waits only so long.

mod cache;
mod program;
mod threads;
mod value;
mod walk;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::run::policy::Found;
use threads::{Job, Work};

/// Longest source of an expression, in bytes.
pub const SOURCE_MAX: usize = 1024;

/// How long all rules of one call may take together, the wait for a free thread included.
const JUDGING_MAX: Duration = Duration::from_secs(2);

/// How long the check of a list of expressions may take.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// Jobs that wait for a thread; whoever comes then waits for a place.
const WAITING_MAX: usize = 256;

/// Where a root of an expression is not there to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roots {
    /// Rules for calls: `args`, `tool`, `run`, `trigger`.
    Call,
    /// Rules for limits, which are about no call: `run`, `trigger`.
    Run,
}

impl Roots {
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Call => &["args", "tool", "run", "trigger"],
            Self::Run => &["run", "trigger"],
        }
    }
}

/// What an expression is evaluated on: one JSON object with a member for each root.
pub type Input = Arc<serde_json::Map<String, Value>>;

/// A rule's expression, and what its rule is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The source.
    pub when: Arc<str>,
    /// The trigger, as expressions read it.
    pub trigger: &'static str,
}

/// Evaluates expressions; cheap to clone.
#[derive(Clone, Debug)]
pub struct Expressions {
    jobs: mpsc::Sender<Job>,
}

impl Expressions {
    /// Starts the threads. They end when the last clone is dropped.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(WAITING_MAX);
        threads::start(queue)?;
        Ok(Self { jobs })
    }

    /// What is wrong with each of these sources; `None`: nothing.
    ///
    /// # Errors
    /// In words, when they could not be looked at in time.
    pub async fn check(&self, sources: Vec<(String, Roots)>) -> Result<Vec<Option<String>>, String> {
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        self.ask(CHECK_MAX, |answer| Work::Check { sources, answer }).await
    }

    /// What each expression says of the input, in order. What cannot be evaluated, for whatever reason, says why.
    pub async fn judge(&self, questions: Vec<Question>, input: Input) -> Vec<Found> {
        if questions.is_empty() {
            return Vec::new();
        }
        let count = questions.len();
        let judged = self.ask(JUDGING_MAX, |answer| Work::Judge { questions, input, answer }).await;
        judged.unwrap_or_else(|why| vec![Found::Failed(why); count])
    }

    async fn ask<T>(&self, max: Duration, work: impl FnOnce(oneshot::Sender<T>) -> Work) -> Result<T, String> {
        let until = Instant::now() + max;
        let late = || format!("it was not evaluated within {} s", max.as_secs());
        let (answer, answered) = oneshot::channel();
        let job = Job { until: until.into_std(), work: work(answer) };
        match timeout_at(until, self.jobs.send(job)).await {
            Ok(Ok(())) => {}
            Ok(Err(_closed)) => return Err("nothing evaluates expressions any more".to_owned()),
            Err(_late) => return Err(late()),
        }
        match timeout_at(until, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_dropped)) => Err(late()),
            Err(_late) => Err(late()),
        }
    }
}

#[cfg(test)]
mod tests;
