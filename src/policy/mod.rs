//! Compiles and evaluates the expressions of policies. Knows what an expression may look at, not what a rule does with
//! its result: that is the core's.
//!
//! **Threads of their own.** The parser of the expression language recurses deeply, and a stack that overflows ends the
//! process for every tenant. So sources are short, brackets are counted, and all work happens on a few threads with
//! large stacks. The language has no step limit either, and nothing can interrupt an evaluation: lists cannot be walked
//! inside of each other, what an expression may look at is limited in size, and what it costs on that is counted before
//! it is evaluated (`cost`). Tenants take turns at the threads, and one has half of them at most.

mod cache;
mod cost;
mod exact;
mod pattern;
mod program;
mod threads;
mod value;
mod walk;
mod words;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::places::Places;
use crate::run::approval::Requirement;
use crate::run::call::CallTarget;
use crate::run::envelope::Envelope;
use crate::run::fact::Ruling;
use crate::run::ids::TenantId;
use crate::run::json::{canonical, sha256_hex};
use crate::run::policy::{
    Decision, DecisionOutcome, Found, Judgement, Policy, Trigger, Trouble, about, judge, judge_limit,
};
use threads::{Job, Work};

/// Longest source of an expression, in bytes.
pub const SOURCE_MAX: usize = 1024;

/// How long all rules of one call may take together, the wait for a free thread included.
const JUDGING_MAX: Duration = Duration::from_secs(2);

/// How long the check of a list of expressions may take.
const CHECK_MAX: Duration = Duration::from_secs(10);

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
pub type Input = Arc<Map<String, Value>>;

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
    places: Arc<Places>,
}

impl Expressions {
    /// Starts the threads. They end when the last clone is dropped.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start() -> io::Result<Self> {
        let count = threads::count();
        // Whoever has a place finds a thread: the queue holds only what is about to be taken from it.
        let (jobs, queue) = mpsc::channel(count);
        threads::start(count, queue)?;
        Ok(Self { jobs, places: Arc::new(Places::new(count, count / 2)) })
    }

    /// What is wrong with each of these sources of a tenant; `None`: nothing.
    ///
    /// # Errors
    /// In words, when they could not be looked at in time.
    pub async fn check(&self, tenant: &TenantId, sources: Vec<(String, Roots)>) -> Result<Vec<Option<String>>, String> {
        let sources: Arc<[(String, Roots)]> = Arc::from(sources);
        let until = Instant::now() + CHECK_MAX;
        let mut faults = Vec::new();
        while faults.len() < sources.len() {
            let (sources, from) = (Arc::clone(&sources), faults.len());
            let more = self.ask(tenant, until, |answer| Work::Check { sources, from, answer }).await;
            faults.extend(more.ok_or_else(|| late(CHECK_MAX))?);
        }
        Ok(faults)
    }

    /// What each expression of a tenant says of the input, in order. What cannot be evaluated, for whatever reason, says why.
    pub async fn judge(&self, tenant: &TenantId, questions: Vec<Question>, input: Input) -> Vec<Found> {
        let questions: Arc<[Question]> = Arc::from(questions);
        let until = Instant::now() + JUDGING_MAX;
        let mut found = Vec::new();
        while found.len() < questions.len() {
            let (questions, input, from) = (Arc::clone(&questions), Arc::clone(&input), found.len());
            match self.ask(tenant, until, |answer| Work::Judge { questions, from, input, answer }).await {
                Some(more) => found.extend(more),
                None => break,
            }
        }
        found.resize_with(questions.len(), || Found::Failed(late(JUDGING_MAX)));
        found
    }

    /// What the rules make of a call that the gate would let pass: the last thing before it has a receipt. `turn` is the
    /// model turn that made it.
    pub async fn rule(&self, envelope: &Envelope, turn: u32, tool: &str, ruling: Ruling) -> Ruling {
        let (target, input, declared) = match ruling {
            Ruling::Admit { target, input, .. } => (target, input, None),
            Ruling::Ask { target, input, requirement, .. } => (target, input, Some(*requirement)),
            rejected @ Ruling::Reject { .. } => return rejected,
        };
        let rules = match envelope.binding.tool(tool) {
            Some(bound) => about(&envelope.spec.policies, &envelope.binding, bound),
            None => Vec::new(),
        };
        let Judgement { judged, requirement } = if rules.is_empty() {
            Judgement::default()
        } else {
            let looked_at = looked_at(envelope, turn, tool, (&target, &input));
            let digest = sha256_hex(&canonical(&Value::Object(looked_at.clone())));
            let found = self.find(&envelope.tenant, &rules, Arc::new(looked_at)).await;
            let rules: Vec<(&Policy, Found)> = rules.into_iter().zip(found).collect();
            judge(&rules, tool, digest)
        };
        let denied = judged.decision.as_ref().filter(|decision| decision.outcome == DecisionOutcome::Deny).cloned();
        let judged = Box::new(judged);
        if let Some(Decision { rule, reason, .. }) = denied {
            let (rule, reason) = (rule.unwrap_or_default(), reason.unwrap_or_default());
            return Ruling::Reject { rule, reason, input, judged };
        }
        match declared.into_iter().chain(requirement).reduce(Requirement::and) {
            None => Ruling::Admit { target, input, judged },
            Some(requirement) => Ruling::Ask { target, input, requirement: Box::new(requirement), judged },
        }
    }

    /// What is done about a limit that the run reached; `None`: what is done without any rule.
    pub async fn limit_reached(&self, envelope: &Envelope) -> Option<Trouble> {
        let of_limits = |policy: &&Policy| policy.trigger == Trigger::LimitReached;
        let rules: Vec<&Policy> = envelope.spec.policies.iter().filter(of_limits).collect();
        let mut looked_at = Map::new();
        looked_at.insert("run".to_owned(), run_of(envelope, envelope.head.state.turns));
        let found = self.find(&envelope.tenant, &rules, Arc::new(looked_at)).await;
        let rules: Vec<(&Policy, Found)> = rules.into_iter().zip(found).collect();
        judge_limit(&rules)
    }

    /// What the condition of each rule says. One without a condition always holds.
    async fn find(&self, tenant: &TenantId, rules: &[&Policy], input: Input) -> Vec<Found> {
        let question = |policy: &&&Policy| {
            let when = Arc::from(policy.when.as_deref()?);
            Some(Question { when, trigger: policy.trigger.code() })
        };
        let questions = rules.iter().filter_map(|policy| question(&policy)).collect();
        let mut found = self.judge(tenant, questions, input).await.into_iter();
        let unasked = || Found::Failed("it was not evaluated".to_owned());
        let of = |policy: &&Policy| match policy.when {
            None => Found::Yes,
            Some(_) => found.next().unwrap_or_else(unasked),
        };
        rules.iter().map(of).collect()
    }

    /// An answer from one of the threads, in the tenant's turn; `None`: there was none in time.
    async fn ask<T>(
        &self,
        tenant: &TenantId,
        until: Instant,
        work: impl FnOnce(oneshot::Sender<T>) -> Work,
    ) -> Option<T> {
        let asked = async {
            let place = self.places.take(tenant).await?;
            let (answer, answered) = oneshot::channel();
            self.jobs.send(Job { place, until: until.into_std(), work: work(answer) }).await.ok()?;
            answered.await.ok()
        };
        timeout_at(until, asked).await.ok().flatten()
    }
}

fn late(max: Duration) -> String {
    format!("it was not evaluated within {} s", max.as_secs())
}

/// What rules for a call look at.
fn looked_at(envelope: &Envelope, turn: u32, tool: &str, call: (&CallTarget, &Value)) -> Map<String, Value> {
    let (target, args) = call;
    let mut roots = Map::new();
    let tool = json!({ "name": tool, "server": target.server, "side_effect_class": target.class });
    roots.insert("args".to_owned(), args.clone());
    roots.insert("tool".to_owned(), tool);
    roots.insert("run".to_owned(), run_of(envelope, turn));
    roots
}

fn run_of(envelope: &Envelope, turns: u32) -> Value {
    json!({
        "id": envelope.id.as_str(),
        "agent": envelope.spec.agent.as_ref().map(ToString::to_string),
        "created_by": envelope.head.state.created_by.as_str(),
        "metadata": envelope.spec.metadata,
        "turns": turns,
    })
}

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod tests;
