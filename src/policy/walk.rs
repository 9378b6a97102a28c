//! Walks the tree of an expression.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// The parts of an expression, in the order of the source as far as the tree keeps it.
pub(super) fn children(expr: &IdedExpr) -> Vec<&IdedExpr> {
    match &expr.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(walk) => {
            vec![&walk.iter_range, &walk.accu_init, &walk.loop_cond, &walk.loop_step, &walk.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| of_entry(&entry.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Struct(made) => made.entries.iter().flat_map(|entry| of_entry(&entry.expr)).collect(),
    }
}

fn of_entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}
