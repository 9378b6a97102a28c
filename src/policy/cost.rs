//! What an expression costs on an input, counted before it is evaluated: the library has no limit of steps, and nothing can
//! interrupt it. The count is an upper bound for time and for memory, made of the tree and of the sizes of what the
//! expression names. Evaluates nothing.
//!
//! **Sums, not products.** Inside of a walk through a list, the size of a part is that of its values over all elements
//! together: what is read of the elements is no larger than the list, what stands outside of them counts once for
//! each. Walks do not stand inside of each other, so there is one such factor at most.
//!
//! `matches` is not counted here but for the copy of its text: it counts itself, see `pattern`.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, MapExpr, operators};
use serde_json::{Map, Value};

/// Most steps of one expression on one input. Of a debug build a step took about two nanoseconds at most.
pub(super) const STEPS_MAX: u64 = 300_000_000;

/// A part that is evaluated once, its lookups and the words of an error included.
const PART: u64 = 200;
/// A value, beside the bytes of its text: what it takes in memory.
const VALUE: u64 = 64;
/// A byte that is made. Ten to one: what an evaluation holds in memory has a tenth of the steps as its bound.
const MADE: u64 = 10;
/// The longest text of a number.
const NUMBER_TEXT: u64 = 400;

/// How large the values of a part are.
#[derive(Clone, Copy, Default)]
struct Size {
    /// `VALUE` for each value, and the bytes of texts; over all elements, inside of a walk.
    bytes: u64,
    /// Elements that a walk through it has.
    count: u64,
}

impl Size {
    /// Something inside of it.
    const fn part(self) -> Self {
        Self { bytes: self.bytes, count: self.bytes / VALUE }
    }
}

/// The steps that an expression takes at most.
pub(super) fn steps(expr: &IdedExpr, input: &Map<String, Value>) -> u64 {
    let mut counter = Counter { input, steps: 0, walk: None };
    let result = counter.count(expr);
    counter.steps.saturating_add(result.bytes)
}

/// The walk that surrounds a part.
struct Walk<'a> {
    of: &'a ComprehensionExpr,
    times: u64,
    elements: Size,
}

struct Counter<'a> {
    input: &'a Map<String, Value>,
    steps: u64,
    walk: Option<Walk<'a>>,
}

impl<'a> Counter<'a> {
    const fn add(&mut self, steps: u64) {
        self.steps = self.steps.saturating_add(steps);
    }

    const fn make(&mut self, bytes: u64) {
        self.add(bytes.saturating_mul(MADE));
    }

    fn times(&self) -> u64 {
        self.walk.as_ref().map_or(1, |walk| walk.times)
    }

    /// So many bytes each time.
    fn each(&self, bytes: u64) -> Size {
        Size { bytes: bytes.saturating_mul(self.times()), count: 0 }
    }

    fn count(&mut self, expr: &'a IdedExpr) -> Size {
        self.add(self.each(PART).bytes);
        match &expr.expr {
            Expr::Literal(LiteralValue::String(text)) => self.each(VALUE.saturating_add(length(text.inner().len()))),
            Expr::Literal(LiteralValue::Bytes(bytes)) => self.each(VALUE.saturating_add(length(bytes.inner().len()))),
            Expr::Literal(_) => self.each(VALUE),
            Expr::Ident(name) => self.name(name),
            Expr::Select(_) => self.select(expr),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let mut bytes = self.each(VALUE).bytes;
                for element in &list.elements {
                    bytes = bytes.saturating_add(self.count(element).bytes);
                }
                self.make(bytes);
                Size { bytes, count: length(list.elements.len()) }
            }
            Expr::Map(map) => self.map(map),
            Expr::Comprehension(walk) => self.walk(walk),
            // Neither passes the check of a source.
            Expr::Struct(_) | Expr::Unspecified => {
                self.add(u64::MAX);
                Size::default()
            }
        }
    }

    fn name(&self, name: &str) -> Size {
        if let Some(walk) = &self.walk {
            if walk.of.iter_var == name || walk.of.iter_var2.as_deref() == Some(name) {
                return walk.elements.part();
            }
            if walk.of.accu_var == name {
                return self.each(VALUE);
            }
        }
        match self.input.get(name) {
            Some(value) => self.known(value),
            // The trigger, or a type.
            None => self.each(2 * VALUE),
        }
    }

    fn known(&self, value: &Value) -> Size {
        let count = match value {
            Value::Array(items) => items.len(),
            Value::Object(members) => members.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        };
        Size { count: length(count), ..self.each(weight(value)) }
    }

    /// `a.b.c`. The library looks for variables of the name `a.b.c`, `a.b` and `a` first.
    fn select(&mut self, expr: &'a IdedExpr) -> Size {
        let (mut at, mut fields, mut is_test) = (expr, Vec::new(), false);
        while let Expr::Select(select) = &at.expr {
            self.add(self.each(PART.saturating_add(spelled(at))).bytes);
            is_test |= select.test;
            fields.push(select.field.as_str());
            at = &select.operand;
        }
        let is_inner = |name: &str| {
            let of = self.walk.as_ref().map(|walk| walk.of);
            of.is_some_and(|of| of.iter_var == name || of.iter_var2.as_deref() == Some(name) || of.accu_var == name)
        };
        let size = match &at.expr {
            Expr::Ident(root) if !is_inner(root) => {
                let value = fields.iter().rev().try_fold(self.input.get(root), |value, field| {
                    // What is not there is an error.
                    value.map(|value| value.get(field))
                });
                value.flatten().map_or_else(|| self.each(VALUE), |value| self.known(value))
            }
            _ => self.count(at).part(),
        };
        if is_test { self.each(VALUE) } else { size }
    }

    fn call(&mut self, call: &'a CallExpr) -> Size {
        let operands: Vec<Size> =
            call.target.as_deref().into_iter().chain(&call.args).map(|part| self.count(part)).collect();
        let bytes = operands.iter().fold(0, |sum: u64, size| sum.saturating_add(size.bytes));
        match (call.func_name.as_str(), operands.as_slice()) {
            // What a walk gathers grows in place.
            (operators::ADD, [_, right]) if self.gathers(call) => {
                self.make(right.bytes);
                *right
            }
            (operators::ADD, operands) => {
                self.make(bytes);
                Size { bytes, count: operands.iter().fold(0, |sum, size| sum.saturating_add(size.count)) }
            }
            (operators::CONDITIONAL, operands) => {
                Size { bytes, count: operands.iter().map(|size| size.count).max().unwrap_or(0) }
            }
            (operators::INDEX, [of, _]) => of.part(),
            ("string" | "bytes", _) => {
                let bytes = bytes.saturating_add(self.each(NUMBER_TEXT).bytes);
                self.make(bytes);
                Size { bytes, count: 0 }
            }
            ("dyn", [of]) => {
                self.add(bytes);
                *of
            }
            ("matches", _) => {
                self.make(bytes);
                self.each(VALUE)
            }
            // It gives a number, a truth or a type.
            _ => {
                self.add(bytes);
                self.each(VALUE)
            }
        }
    }

    /// Whether this is the addition by which a walk gathers its list.
    fn gathers(&self, call: &CallExpr) -> bool {
        let first = call.args.first().map(|first| &first.expr);
        self.walk.as_ref().is_some_and(|walk| matches!(first, Some(Expr::Ident(name)) if *name == walk.of.accu_var))
    }

    fn map(&mut self, map: &'a MapExpr) -> Size {
        let mut bytes = self.each(VALUE).bytes;
        for entry in &map.entries {
            if let EntryExpr::MapEntry(entry) = &entry.expr {
                bytes = bytes.saturating_add(self.count(&entry.key).bytes).saturating_add(self.each(VALUE).bytes);
                bytes = bytes.saturating_add(self.count(&entry.value).bytes);
            }
        }
        self.make(bytes);
        Size { bytes, count: length(map.entries.len()) }
    }

    fn walk(&mut self, of: &'a ComprehensionExpr) -> Size {
        if self.walk.is_some() {
            // Does not pass the check of a source.
            self.add(u64::MAX);
            return Size::default();
        }
        let elements = self.count(&of.iter_range);
        self.count(&of.accu_init);
        // Each element is copied once, and let go of.
        self.add(elements.bytes.saturating_mul(2));
        self.walk = Some(Walk { of, times: elements.count, elements });
        self.count(&of.loop_cond);
        let gathered = self.count(&of.loop_step);
        self.walk = None;
        let bytes = gathered.bytes.saturating_add(VALUE);
        // The parts of what comes after it: no more than a comparison with the accumulator.
        self.add(PART.saturating_mul(4));
        let makes_list = matches!(of.accu_init.expr, Expr::List(_));
        if makes_list { Size { bytes, count: elements.count } } else { self.each(VALUE) }
    }
}

/// What a value takes.
fn weight(value: &Value) -> u64 {
    let inside = match value {
        Value::Array(items) => items.iter().map(weight).fold(0, u64::saturating_add),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| weight(value).saturating_add(VALUE + length(name.len()));
            members.iter().map(member).fold(0, u64::saturating_add)
        }
        Value::String(text) => length(text.len()),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    inside.saturating_add(VALUE)
}

/// How long the name `a.b.c` is.
fn spelled(expr: &IdedExpr) -> u64 {
    let (mut at, mut sum) = (expr, 0_u64);
    while let Expr::Select(select) = &at.expr {
        sum = sum.saturating_add(length(select.field.len()) + 1);
        at = &select.operand;
    }
    sum
}

fn length(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
