//! A JSON value as the checker of schemas sees it, with a count of how often it looks. Every rule of a schema looks at
//! a value before it can decide anything or go on to another rule, so the count bounds the whole check. When the looks
//! are spent the check is left at once, from wherever it stands: the checker knows no other way out.

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use jsonschema::JsonType;
use jsonschema::json::{Array, Json, Node, NodeIdentity, Object, unique};
use serde_json::{Map, Number, Value};

thread_local! {
    /// What is left of the looks of the check that this thread makes.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// How much a look at a text costs for each of its bytes, in sixteenths of a look.
    static TEXT_COST: Cell<u64> = const { Cell::new(0) };
    /// The same for the name of a member.
    static NAME_COST: Cell<u64> = const { Cell::new(0) };
    /// Where the stack stood when the check began, and how much of it the check may use.
    static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// What a check may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) looks: u64,
    /// Bytes of stack.
    pub(super) stack: usize,
    /// What a byte of a text costs, in sixteenths of a look.
    pub(super) text_cost: u64,
    /// What a byte of a member's name costs, in the same.
    pub(super) name_cost: u64,
}

/// Leaves the check.
struct Spent;

/// Runs a check within limits; `None` when they did not suffice.
pub(super) fn within<T>(limits: Limits, check: impl FnOnce() -> T) -> Option<T> {
    LEFT.set(limits.looks);
    TEXT_COST.set(limits.text_cost);
    NAME_COST.set(limits.name_cost);
    STACK.set((here(), limits.stack));
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(outcome) => Some(outcome),
        Err(cause) if cause.is::<Spent>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// About where the stack stands.
#[inline(never)]
fn here() -> usize {
    let mark = 0_u8;
    std::hint::black_box(std::ptr::from_ref(&mark)).addr()
}

fn look(cost: u64) {
    let left = LEFT.get().checked_sub(cost.saturating_add(1));
    LEFT.set(left.unwrap_or(0));
    let (began, stack) = STACK.get();
    if left.is_none() || began.abs_diff(here()) > stack {
        // Not a panic: no hook hears of it.
        resume_unwind(Box::new(Spent));
    }
}

fn look_at_text(text: &str, cost: u64) {
    let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
    look(bytes.saturating_mul(cost) / 16);
}

fn look_at_all(count: usize) {
    look(u64::try_from(count).unwrap_or(u64::MAX));
}

/// The representation.
pub(super) struct CountedJson;

/// A value that is looked at.
#[derive(Clone, Copy)]
pub(super) struct Counted<'a>(pub(super) &'a Value);

/// The members of an object, or the elements of an array.
#[derive(Clone, Copy)]
pub(super) struct Inside<'a, T: ?Sized>(&'a T);

impl Json for CountedJson {
    type Node<'a> = Counted<'a>;
    type PreparedKey = String;
    type StringBuffer = ();

    const ACYCLIC: bool = true;

    fn prepare_key(key: &str) -> String {
        key.to_owned()
    }

    fn with_string_node<T>((): &mut (), string: &str, f: impl FnOnce(Counted<'_>) -> T) -> T {
        f(Counted(&Value::String(string.to_owned())))
    }
}

impl<'a> Node<'a, CountedJson> for Counted<'a> {
    type Array = Inside<'a, [Value]>;
    type Number = &'a Number;
    type Object = Inside<'a, Map<String, Value>>;

    fn as_object(&self) -> Option<Self::Object> {
        look(0);
        self.0.as_object().map(Inside)
    }

    fn as_array(&self) -> Option<Self::Array> {
        look(0);
        self.0.as_array().map(|items| Inside(items.as_slice()))
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        let text = self.0.as_str();
        look_at_text(text.unwrap_or_default(), TEXT_COST.get());
        text.map(Cow::Borrowed)
    }

    fn as_number(&self) -> Option<&'a Number> {
        look_at_all(self.0.as_number().map_or(0, |number| number.as_str().len() / 16));
        self.0.as_number()
    }

    fn as_boolean(&self) -> Option<bool> {
        look(0);
        self.0.as_bool()
    }

    fn is_null(&self) -> bool {
        look(0);
        self.0.is_null()
    }

    fn json_type(&self) -> JsonType {
        look(0);
        match self.0 {
            Value::Null => JsonType::Null,
            Value::Bool(_) => JsonType::Boolean,
            Value::Number(_) => JsonType::Number,
            Value::String(_) => JsonType::String,
            Value::Array(_) => JsonType::Array,
            Value::Object(_) => JsonType::Object,
        }
    }

    fn to_value(&self) -> Cow<'a, Value> {
        look(0);
        Cow::Borrowed(self.0)
    }

    fn identity(&self) -> Option<NodeIdentity> {
        look(0);
        Some(NodeIdentity::new(std::ptr::from_ref(self.0).addr()))
    }
}

impl<'a> Object<'a, CountedJson> for Inside<'a, Map<String, Value>> {
    type MemberName = &'a str;
    type MembersIter = Members<'a>;
    type Node = Counted<'a>;

    fn len(&self) -> usize {
        look(0);
        self.0.len()
    }

    fn get(&self, key: &String) -> Option<Counted<'a>> {
        look(0);
        self.0.get(key.as_str()).map(Counted)
    }

    fn members(&self) -> Members<'a> {
        Members(self.0.iter())
    }
}

/// Goes over the members of an object.
pub(super) struct Members<'a>(serde_json::map::Iter<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, Counted<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, value) = self.0.next()?;
        look_at_text(name, NAME_COST.get());
        Some((name.as_str(), Counted(value)))
    }
}

impl<'a> Array<'a, CountedJson> for Inside<'a, [Value]> {
    type ElementsIter = Elements<'a>;
    type Node = Counted<'a>;

    fn len(&self) -> usize {
        look(0);
        self.0.len()
    }

    fn elements(&self) -> Elements<'a> {
        Elements(self.0.iter())
    }

    fn is_unique(&self) -> bool {
        // At worst each is compared with each.
        look_at_all(self.0.len().saturating_mul(self.0.len()) / 16);
        unique::is_unique(self.0)
    }
}

/// Goes over the elements of an array.
pub(super) struct Elements<'a>(std::slice::Iter<'a, Value>);

impl<'a> Iterator for Elements<'a> {
    type Item = Counted<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        look(0);
        self.0.next().map(Counted)
    }
}
