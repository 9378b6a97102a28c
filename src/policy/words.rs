//! What is said of expressions that are refused or cannot be evaluated, for people.

use cel::{ExecutionError, ParseErrors};

/// Line and column of a character, from 1.
pub(super) fn place(source: &str, at: usize) -> String {
    let before: Vec<char> = source.chars().take(at).collect();
    let line = before.iter().filter(|c| **c == '\n').count() + 1;
    let column = before.iter().rev().take_while(|c| **c != '\n').count() + 1;
    format!("line {line}, column {column}")
}

pub(super) fn parse_fault(errors: &ParseErrors) -> String {
    let said = errors.errors.first().map(|error| {
        let (line, column) = (error.pos.0.max(1), error.pos.1.max(1));
        let words = error.msg.trim_start_matches("Syntax error: ");
        format!("line {line}, column {column}: {words}")
    });
    said.unwrap_or_else(|| "it is not an expression".to_owned())
}

/// Why an expression could not be evaluated, without values: they may be long, and are told elsewhere.
pub(super) fn describe(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("there is no field {key:?}"),
        ExecutionError::UndeclaredReference(name) => format!("there is no {name:?}"),
        ExecutionError::NoSuchOverload(overload) => overload.to_string(),
        ExecutionError::DivisionByZero(_) => "it divides by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "it takes a remainder by zero".to_owned(),
        ExecutionError::Overflow(operator, ..) => format!("the result of {operator} is out of range"),
        ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds".to_owned(),
        ExecutionError::ValuesNotComparable(left, right) => {
            format!("{} and {} cannot be compared", left.type_of(), right.type_of())
        }
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            format!("{operator} does not take {} and {}", left.type_of(), right.type_of())
        }
        ExecutionError::UnexpectedType { got, want } => format!("a value is {got} where {want} is needed"),
        ExecutionError::UnsupportedIndex(_, of) => format!("a value of type {} has no such member", of.type_of()),
        ExecutionError::FunctionError { function, .. } => format!("{function} does not take this value"),
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            format!("a function takes {expected} arguments and got {actual}")
        }
        _ => "a value has the wrong type".to_owned(),
    }
}
