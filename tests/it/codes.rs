//! Keeps the document of codes complete: every code that the program can say stands in it.

use std::collections::BTreeSet;

use crate::source;

/// What stands before a code.
const MARKS: [&str; 9] = [
    "RunError::new(",
    "ToolError::new(",
    "failed(",
    "rule: ",
    "Problem::new(",
    "Warning::mcp(",
    "let code = if ",
    "=> (\"",
    "=> \"",
];

/// Files whose every such word is a code.
const FILES: [&str; 12] = [
    "http/problem.rs",
    "run/refusal.rs",
    "run/status.rs",
    "run/outcome.rs",
    "run/sampling.rs",
    "run/offer.rs",
    "mcp/outcome.rs",
    "mcp/task.rs",
    "mcp/pool/calls.rs",
    "executor/keep.rs",
    "executor/model_turn.rs",
    "commands/reconcile.rs",
];

/// A word in the form of a code: `mcp-error`, `budget.tokens`.
fn is_code(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|sign| sign.is_ascii_lowercase());
    // What the counters say of a call that did not leave is no code.
    !matches!(text, "not-sent" | "turned-away") && text.contains(['-', '.']) && text.split(['-', '.']).all(is_word)
}

/// The texts in quotes of some source.
fn texts(source: &str) -> impl Iterator<Item = &str> {
    source.split('"').skip(1).step_by(2)
}

/// The codes of one file: the first behind each mark, and the values of constants that are said to be codes.
fn codes(path: &str, source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for mark in MARKS {
        // An arm is a code only where all arms are.
        if mark.starts_with("=>") && !FILES.contains(&path) {
            continue;
        }
        for behind in source.split(mark).skip(1) {
            // An argument of the call, or the value of the arm: not far behind it.
            let near: String = behind.split(';').next().unwrap_or_default().chars().take(300).collect();
            // A mark that ends with a quote has opened the text.
            let near = if mark.ends_with('"') { format!("\"{near}") } else { near };
            found.extend(texts(&near).find(|text| is_code(text)).map(str::to_owned));
        }
    }
    let lines: Vec<&str> = source.lines().collect();
    for pair in lines.windows(2) {
        if pair[0].contains("///") && pair[0].contains("code") && pair[1].contains("const ") {
            found.extend(texts(pair[1]).filter(|text| is_code(text)).map(str::to_owned));
        }
    }
    found
}

#[test]
fn every_code_that_the_program_can_say_stands_in_the_document() {
    let document = source::read("docs/status-codes.md");
    let mut all = BTreeSet::new();
    for file in source::rust_files("src").into_iter().filter(|file| !file.is_for_tests()) {
        all.extend(codes(&file.path, &file.text));
    }
    for known in ["mcp-tool-unusable", "mcp-tool-adapted", "model-tool-refused", "run-active", "mcp-refused"] {
        assert!(all.contains(known), "{known} is not found in the source: {all:?}");
    }
    let missing: Vec<&String> = all.iter().filter(|code| !document.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "docs/status-codes.md lacks {missing:?}");
}

#[test]
fn a_code_is_found_where_it_is_said() {
    let made_up = r#"
        /// The code of a warning.
        pub const A: &str = "a-warning";
        const B: &str = "no-code";
        fn x() { ToolError::new("a-tool", "text"); Problem::new(StatusCode::OK, "a-problem", "x-y"); }
        Ruling::Reject { rule: "a-rule", reason };
        #[cfg(test)]
        mod tests { fn y() { RunError::new("in-a-test", ""); } }
    "#;
    let found: Vec<String> = codes("x.rs", made_up).into_iter().collect();
    assert_eq!(found, ["a-problem", "a-rule", "a-tool", "a-warning"]);
    assert_eq!(codes("run/status.rs", r#"Self::X => "max-turns", Self::Y => ("b-c", None)"#).len(), 2);
}
