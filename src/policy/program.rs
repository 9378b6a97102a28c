//! One compiled expression: what is refused when it is stored, and what it says of an input.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::extractors::This;
use cel::{Context, Env, ExecutionError, Value as CelValue};
use serde_json::{Map, Value};

use super::cost;
use super::exact::{self, Numbers};
use super::pattern::{Matches, Patterns};
use super::value::{Budget, to_cel};
use super::walk::children;
use super::words::{describe, parse_fault, place};
use super::{Roots, SOURCE_MAX};
use crate::run::policy::Found;

/// Deepest nesting of brackets.
const BRACKETS_MAX: usize = 32;

/// Functions that expressions may call, beside operators.
const FUNCTIONS: [&str; 12] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "type",
    "dyn",
];

/// Operators, by their names in the tree.
const OPERATORS: [&str; 17] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
];

/// What stands in the tree where people wrote something else: `in`, and the parts of a walk through a list.
const INNER: [&str; 2] = [operators::IN, operators::NOT_STRICTLY_FALSE];

/// Names of types, as `type(x)` gives them.
const TYPES: [&str; 8] = ["int", "uint", "double", "string", "bytes", "bool", "list", "map"];

/// Every root that there is.
const ROOTS: [&str; 4] = ["args", "tool", "run", "trigger"];
/// Those of them that have members.
const OBJECTS: [&str; 3] = ["args", "tool", "run"];
/// What is false, or true, of an object and any text or number without ever looking at them.
const COMPARISONS: [&str; 2] = [operators::EQUALS, operators::NOT_EQUALS];

/// A compiled expression.
pub(super) struct Program {
    tree: cel::Program,
    patterns: Arc<Patterns>,
    /// The numbers that are written in it.
    numbers: Numbers,
    /// What it looks at: each root with the members that it names; `None` where it looks at the whole root.
    reads: BTreeMap<String, Option<BTreeSet<String>>>,
}

impl Program {
    /// Compiles an expression, or says what is wrong with it and where.
    pub(super) fn compile(env: &Env, source: &str) -> Result<Self, String> {
        if source.len() > SOURCE_MAX {
            return Err(format!("an expression has at most {SOURCE_MAX} bytes, this one {}", source.len()));
        }
        if let Some(at) = too_deep(source) {
            return Err(format!("{}: brackets nest deeper than {BRACKETS_MAX} levels", place(source, at)));
        }
        let program = env.compile(source).map_err(|errors| parse_fault(&errors))?;
        let (numbers, reads) = (Numbers::default(), BTreeMap::new());
        let mut check = Check { source, program: &program, patterns: Patterns::default(), numbers, reads };
        check.look(program.expression(), &mut Vec::new(), None)?;
        check.numbers.check()?;
        let (patterns, numbers, reads) = (Arc::new(check.patterns), check.numbers, check.reads);
        Ok(Self { tree: program, patterns, numbers, reads })
    }

    /// Whether it looks at nothing that is not there.
    pub(super) fn looks_only_at(&self, roots: Roots) -> Result<(), String> {
        let there = roots.names();
        match self.reads.keys().find(|name| !there.contains(&name.as_str())) {
            Some(other) => Err(format!("there is no {other:?} where this rule applies; there is {}", there.join(", "))),
            None => Ok(()),
        }
    }

    /// What its patterns take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.patterns.bytes()
    }

    /// What it says of an input. Nothing is matched after `until`; the rest is bounded by its count of steps.
    pub(super) fn evaluate(
        &self,
        env: &Arc<Env>,
        (input, trigger): (&Map<String, Value>, &str),
        until: Instant,
    ) -> Found {
        match self.run(env, input, trigger, until) {
            Ok(CelValue::Bool(says)) => {
                if says {
                    Found::Yes
                } else {
                    Found::No
                }
            }
            Ok(other) => {
                Found::Failed(format!("it says neither true nor false but a value of type {}", other.type_of()))
            }
            Err(fault) => Found::Failed(fault),
        }
    }

    fn run(
        &self,
        env: &Arc<Env>,
        input: &Map<String, Value>,
        trigger: &str,
        until: Instant,
    ) -> Result<CelValue, String> {
        let mut context = Context::with_env(Arc::clone(env));
        let mut budget = Budget::with(self.numbers.clone());
        for (root, members) in &self.reads {
            let value = match (root.as_str(), input.get(root), members) {
                ("trigger", _, _) => CelValue::from(trigger),
                (_, None, _) => continue,
                (_, Some(Value::Object(whole)), Some(members)) => {
                    let named = whole.iter().filter(|(name, _)| members.contains(*name));
                    budget.object(named, root)?
                }
                (_, Some(whole), _) => to_cel(whole, root, &mut budget)?,
            };
            context.add_variable_from_value(root.as_str(), value);
        }
        budget.check()?;
        let steps = cost::steps(self.tree.expression(), input);
        if steps > cost::STEPS_MAX {
            let most = cost::STEPS_MAX;
            return Err(format!("it costs too much on what it looks at: up to {steps} steps, and {most} are the most"));
        }
        let matches = Arc::new(Matches::until(until));
        let (patterns, counted) = (Arc::clone(&self.patterns), Arc::clone(&matches));
        let is_match = move |This(text): This<Arc<String>>, pattern: Arc<String>| -> Result<bool, ExecutionError> {
            let says = counted.is_match(&patterns, &pattern, &text);
            says.ok_or_else(|| ExecutionError::function_error("matches", "not compared"))
        };
        context.add_function("matches", is_match).map_err(|fault| fault.to_string())?;
        let said = self.tree.execute(&context);
        // Whatever came of the rest.
        if matches.are_too_dear() {
            return Err("it costs too much on what it looks at: long texts are matched with large patterns".to_owned());
        }
        said.map_err(|error| describe(&error))
    }
}

/// Looks at every part of an expression.
struct Check<'a> {
    source: &'a str,
    program: &'a cel::Program,
    patterns: Patterns,
    numbers: Numbers,
    reads: BTreeMap<String, Option<BTreeSet<String>>>,
}

/// A walk through a list that surrounds a part: its accumulator, and whether it makes a list.
#[derive(Clone, Copy)]
struct Loop<'a> {
    accumulator: &'a str,
    makes_list: bool,
}

/// Whether a whole object stands beside a literal. A rule that denies by it would deny nothing.
fn compares(call: &CallExpr, root: &str, scope: &[&str]) -> bool {
    let is_root = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if name == root && !scope.contains(&root));
    let is_literal = |part: &IdedExpr| matches!(part.expr, Expr::Literal(_));
    call.args.iter().any(is_root) && call.args.iter().any(is_literal)
}

impl<'a> Check<'a> {
    fn look(&mut self, expr: &'a IdedExpr, scope: &mut Vec<&'a str>, within: Option<Loop<'a>>) -> Result<(), String> {
        match &expr.expr {
            Expr::Ident(name) => return self.name(expr, name, None, scope),
            Expr::Select(select) => {
                if let Expr::Ident(name) = &select.operand.expr {
                    return self.name(expr, name, Some(&select.field), scope);
                }
            }
            Expr::Call(call) => return self.call(expr, call, scope, within),
            Expr::Literal(literal) => return self.literal(expr, literal),
            Expr::Comprehension(walk) => {
                if within.is_some() {
                    return Err(self.fault(expr, "lists cannot be walked inside of each other"));
                }
                self.look(&walk.iter_range, scope, within)?;
                let names = std::iter::once(&walk.iter_var).chain(&walk.iter_var2);
                if let Some(root) = names.clone().find(|name| ROOTS.contains(&name.as_str())) {
                    return Err(self.fault(expr, &format!("{root:?} is a root and cannot name an element")));
                }
                let before = scope.len();
                scope.extend(names.map(String::as_str));
                scope.push(&walk.accu_var);
                let makes_list = matches!(walk.accu_init.expr, Expr::List(_));
                let inside = Some(Loop { accumulator: &walk.accu_var, makes_list });
                for part in [&walk.accu_init, &walk.loop_cond, &walk.loop_step, &walk.result] {
                    self.look(part, scope, inside)?;
                }
                scope.truncate(before);
                return Ok(());
            }
            Expr::Struct(_) => return Err(self.fault(expr, "there are no message types")),
            Expr::Unspecified | Expr::List(_) | Expr::Map(_) => {}
        }
        for part in children(expr) {
            self.look(part, scope, within)?;
        }
        Ok(())
    }

    /// A name that is read, with the member that is read of it.
    fn name(&mut self, expr: &IdedExpr, name: &str, member: Option<&str>, scope: &[&str]) -> Result<(), String> {
        if scope.contains(&name) {
            return Ok(());
        }
        if !ROOTS.contains(&name) {
            let is_type = member.is_none() && TYPES.contains(&name);
            let unknown = format!("there is no {name:?}; there is {}", ROOTS.join(", "));
            return if is_type { Ok(()) } else { Err(self.fault(expr, &unknown)) };
        }
        match (self.reads.entry(name.to_owned()).or_insert_with(|| Some(BTreeSet::new())), member) {
            (Some(members), Some(member)) => {
                members.insert(member.to_owned());
            }
            (whole, None) => *whole = None,
            (None, Some(_)) => {}
        }
        Ok(())
    }

    fn call(
        &mut self,
        expr: &'a IdedExpr,
        call: &'a CallExpr,
        scope: &mut Vec<&'a str>,
        within: Option<Loop<'a>>,
    ) -> Result<(), String> {
        let name = call.func_name.as_str();
        let is_operator = OPERATORS.contains(&name) || INNER.contains(&name);
        if !is_operator && !FUNCTIONS.contains(&name) {
            let known = FUNCTIONS.join(", ");
            return Err(self.fault(expr, &format!("there is no function {name:?}; there is {known}")));
        }
        // A list of texts that grow would cost more memory than its arguments have.
        if name == operators::ADD && within.is_some_and(|within| within.makes_list && !accumulates(call, within)) {
            return Err(self.fault(expr, "`+` cannot stand inside of map or filter"));
        }
        if name == "matches" {
            self.pattern(expr, call)?;
        }
        if let Some(root) = OBJECTS.into_iter().find(|root| COMPARISONS.contains(&name) && compares(call, root, scope))
        {
            return Err(self
                .fault(expr, &format!("{root:?} is an object and equals no text or number: compare a member of it")));
        }
        self.numbers.converts |= name == "double";
        for part in call.target.as_deref().into_iter().chain(&call.args) {
            self.look(part, scope, within)?;
        }
        Ok(())
    }

    /// A number is what stands there, or none.
    fn literal(&mut self, expr: &IdedExpr, literal: &LiteralValue) -> Result<(), String> {
        match literal {
            LiteralValue::Int(int) => self.numbers.int(int.inner().unsigned_abs(), || int.inner().to_string()),
            LiteralValue::UInt(int) => self.numbers.int(*int.inner(), || int.inner().to_string()),
            LiteralValue::Double(double) => {
                self.numbers.doubles = true;
                let written = self.written(expr);
                let same =
                    exact::double(&written).is_some_and(|written| written.to_bits() == double.inner().abs().to_bits());
                if !same {
                    return Err(self.fault(expr, &format!("the number {written} has more digits than are compared")));
                }
            }
            LiteralValue::String(text) if exact::is_rounded(text.inner()) => {
                self.numbers.rounded = true;
            }
            LiteralValue::String(_) | LiteralValue::Bytes(_) | LiteralValue::Boolean(_) | LiteralValue::Null => {}
        }
        Ok(())
    }

    /// The digits of a number as they stand in the source, without its sign.
    fn written(&self, expr: &IdedExpr) -> String {
        let start = self.program.source_info().offset_for(expr.id).map_or(0, |(start, _)| start);
        let text = self.source.get(usize::try_from(start).unwrap_or(0)..).unwrap_or_default();
        let mut written = String::new();
        for c in text.trim_start_matches(|c: char| c == '-' || c.is_whitespace()).chars() {
            let is_signed = matches!(c, '+' | '-') && written.ends_with(['e', 'E']);
            if !(c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E') || is_signed) {
                break;
            }
            written.push(c);
        }
        written
    }

    /// Patterns are compiled once, with the expression.
    fn pattern(&mut self, expr: &IdedExpr, call: &CallExpr) -> Result<(), String> {
        let literal = call.args.last().and_then(|last| match &last.expr {
            Expr::Literal(LiteralValue::String(text)) => Some(text.inner().to_owned()),
            _ => None,
        });
        let count = call.args.len() + usize::from(call.target.is_some());
        let Some(text) = literal.filter(|_| count == 2) else {
            return Err(self.fault(expr, "`matches` takes a text and a pattern that is written out"));
        };
        self.patterns.add(&text).map_err(|fault| self.fault(expr, &fault))
    }

    fn fault(&self, expr: &IdedExpr, says: &str) -> String {
        match self.program.source_info().offset_for(expr.id) {
            Some((start, _)) => {
                // The parser counts bytes, people count characters.
                let before = self.source.get(..usize::try_from(start).unwrap_or(0)).unwrap_or_default();
                format!("{}: {says}", place(self.source, before.chars().count()))
            }
            None => says.to_owned(),
        }
    }
}

/// Whether this is the addition by which a walk gathers its list, not one that somebody wrote.
fn accumulates(call: &CallExpr, within: Loop<'_>) -> bool {
    call.args.first().is_some_and(|first| matches!(&first.expr, Expr::Ident(name) if name == within.accumulator))
}

/// Where brackets nest too deep, counted in characters. Those in texts count too: that errs on the safe side only.
fn too_deep(source: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in source.chars().enumerate() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > BRACKETS_MAX {
            return Some(at);
        }
    }
    None
}
