//! Checks the rules of a run, of an agent, or of a registered server, before they are stored: what is stored can be
//! evaluated.

use std::collections::BTreeSet;

use super::faults::Faults;
use super::{CommandError, Commands};
use crate::policy::Roots;
use crate::run::approval::OnTimeout;
use crate::run::binding::{BoundTool, Hints};
use crate::run::ids::TenantId;
use crate::run::policy::{Action, Policy, Scope, Trigger};
use crate::run::spec::{McpEntry, PerTool, SideEffectClass};

/// Most rules that stand together.
const POLICIES_MAX: usize = 100;

/// Where rules stand.
#[derive(Clone, Copy)]
enum Home<'a> {
    /// With these servers and declared tools, in a run or in an agent.
    Run(&'a [McpEntry], &'a [BoundTool]),
    /// In the registration of this server.
    Server(&'a str, &'a McpEntry),
}

impl Commands {
    /// The rules of a run with these servers and declared tools.
    pub(super) async fn check_policies(
        &self,
        tenant: &TenantId,
        policies: &[Policy],
        entries: &[McpEntry],
        tools: &[BoundTool],
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        self.check_rules(tenant, policies, Home::Run(entries, tools), faults).await
    }

    /// The rules of a registered server.
    pub(super) async fn check_own_policies(
        &self,
        tenant: &TenantId,
        policies: &[Policy],
        server: &str,
        entry: &McpEntry,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        self.check_rules(tenant, policies, Home::Server(server, entry), faults).await
    }

    async fn check_rules(
        &self,
        tenant: &TenantId,
        policies: &[Policy],
        home: Home<'_>,
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        faults.require(policies.len() <= POLICIES_MAX, "/policies", "at most 100 rules");
        let mut names = BTreeSet::new();
        for (index, policy) in policies.iter().enumerate() {
            let at = |member: &str| format!("/policies/{index}/{member}");
            faults.require(!policy.name.trim().is_empty(), &at("name"), "must not be empty");
            faults.require(!policy.name.chars().any(char::is_control), &at("name"), "must have no control characters");
            faults.require(names.insert(&policy.name), &at("name"), "is the name of an earlier rule");
            for (member, detail) in policy.contradictions() {
                faults.add(at(member), detail);
            }
            let of_run = policy.trigger != Trigger::LimitReached || matches!(home, Home::Run(..));
            faults.require(of_run, &at("trigger"), "limits are a run's: the rule cannot stand with a server");
            if let Err(detail) = home.has(policy) {
                faults.add(at("scope"), detail);
            }
            if let Some(member) = repeats_by_itself(policy).filter(|_| home.has_irreversible(policy)) {
                faults.add(at(member), "an irreversible action is never sent again by itself");
            }
        }
        self.check_conditions(tenant, policies, faults).await
    }

    async fn check_conditions(
        &self,
        tenant: &TenantId,
        policies: &[Policy],
        faults: &mut Faults,
    ) -> Result<(), CommandError> {
        let roots = |policy: &Policy| match policy.trigger {
            Trigger::LimitReached => Roots::Run,
            Trigger::Call
            | Trigger::Indeterminate
            | Trigger::NoHandler
            | Trigger::CapacityExhausted
            | Trigger::LeaseExpired => Roots::Call,
        };
        let written =
            || policies.iter().enumerate().filter_map(|(at, policy)| Some((at, policy, policy.when.as_ref()?)));
        let sources = written().map(|(_, policy, when)| (when.clone(), roots(policy))).collect();
        let found = self.expressions.check(tenant, sources).await.map_err(CommandError::NotEvaluated)?;
        for ((index, _, _), fault) in written().zip(found) {
            if let Some(fault) = fault {
                faults.add(format!("/policies/{index}/when"), fault);
            }
        }
        Ok(())
    }
}

impl Home<'_> {
    /// Whether what the rule names can be there.
    fn has(self, policy: &Policy) -> Result<(), String> {
        match (self, &policy.scope) {
            (_, Scope::Agent) => Ok(()),
            (Self::Run(entries, tools), Scope::Tool(name)) => {
                // A server's tools are known when it is read: what fits none of them is a warning then.
                let is_declared = tools.iter().any(|tool| tool.name == *name);
                let may_be_served = is_declared || entries.iter().any(|entry| !entry.is_unused());
                if may_be_served { Ok(()) } else { Err(format!("no tool {name:?} is declared, and no server")) }
            }
            (Self::Run(entries, _), Scope::Server(name)) => {
                let is = |entry: &McpEntry| entry.server.as_ref() == Some(name) || entry.label() == name;
                let fits = entries.iter().any(is);
                if fits { Ok(()) } else { Err(format!("there is no server {name:?} here")) }
            }
            (Self::Server(_, entry), Scope::Tool(name)) => {
                let fits = entry.tools.as_ref().is_none_or(|tools| tools.contains(name));
                if fits { Ok(()) } else { Err(format!("the server is registered without the tool {name:?}")) }
            }
            (Self::Server(own, _), Scope::Server(name)) => {
                if name == own {
                    Ok(())
                } else {
                    Err("names another server than the one that it stands with".to_owned())
                }
            }
        }
    }

    /// Whether the rule is about a tool that is declared as irreversible.
    fn has_irreversible(self, policy: &Policy) -> bool {
        match self {
            Self::Run(entries, tools) => {
                let covers = |tool: &BoundTool| match &policy.scope {
                    Scope::Agent => true,
                    Scope::Tool(name) => tool.name == *name,
                    Scope::Server(_) => false,
                };
                let is_irreversible = |tool: &BoundTool| tool.class == SideEffectClass::IrreversibleAction;
                tools.iter().any(|tool| covers(tool) && is_irreversible(tool))
                    || entries.iter().any(|entry| match &policy.scope {
                        Scope::Agent => declares_irreversible(entry, |_| true),
                        Scope::Server(name) => {
                            let is = entry.server.as_ref() == Some(name) || entry.label() == name;
                            is && declares_irreversible(entry, |_| true)
                        }
                        Scope::Tool(name) => declares_irreversible(entry, |tool| entry.offered_name(tool) == *name),
                    })
            }
            Self::Server(_, entry) => declares_irreversible(entry, |tool| policy.scope.covers_own(tool)),
        }
    }
}

/// The member by which a rule has calls sent again without anybody's word.
fn repeats_by_itself(policy: &Policy) -> Option<&'static str> {
    let by_deadline = policy.approval.as_ref().is_some_and(|rule| rule.on_timeout == OnTimeout::Approve);
    // A call that was never handed out is not sent again but for the first time.
    if matches!(policy.trigger, Trigger::NoHandler | Trigger::CapacityExhausted) {
        return None;
    }
    match policy.action {
        Action::Retry => Some("action"),
        Action::RequireApproval if by_deadline && policy.trigger != Trigger::Call => Some("approval/on_timeout"),
        Action::RequireApproval
        | Action::Allow
        | Action::Deny
        | Action::ToolError
        | Action::Reconcile
        | Action::Fail => None,
    }
}

/// Whether one of these tools of the server is declared as irreversible, or all of its tools are.
fn declares_irreversible(entry: &McpEntry, is_meant: impl Fn(&str) -> bool) -> bool {
    let declared = [&entry.side_effect_class, &entry.own_class];
    declared.into_iter().flatten().any(|class| match class {
        PerTool::All(class) => *class == SideEffectClass::IrreversibleAction,
        PerTool::Each(tools) => tools.keys().any(|tool| {
            is_meant(tool) && entry.class_of(tool, &Hints::default()) == SideEffectClass::IrreversibleAction
        }),
    })
}
