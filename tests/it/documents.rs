//! Keeps the documents true: the tables of behaviours and of field cases name tests that exist, and links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::source::{self, SourceFile};

/// One line of the table: its number and the tests that it names.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    number: u32,
    /// What holds, in a sentence.
    statement: String,
    tests: Vec<String>,
}

/// The rows `| number | statement | `test`, `test` |` of a document; the number of a field case has an `A` in front.
fn rows(document: &str) -> Vec<Row> {
    let mut found = Vec::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, statement, tests] = cells.as_slice() else { continue };
        let Ok(number) = number.trim_start_matches('A').parse() else { continue };
        let tests = tests.split(',').map(|test| test.trim().trim_matches('`').to_owned());
        let statement = (*statement).to_owned();
        found.push(Row { number, statement, tests: tests.filter(|test| !test.is_empty()).collect() });
    }
    found
}

/// The numbers that a test's name speaks of: `b007_b009_x` is 7 and 9, `b034_to_b037_x` is 34 to 37; none for others.
fn numbers_of(name: &str) -> BTreeSet<u32> {
    numbers_behind(name, "b")
}

/// The cases that a test's name speaks of: `field_a079_a096_x` is 79 and 96.
fn cases_of(name: &str) -> BTreeSet<u32> {
    name.strip_prefix("field_").map(|rest| numbers_behind(rest, "a")).unwrap_or_default()
}

fn numbers_behind(name: &str, letter: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut last = None;
    let mut range = false;
    for part in name.split('_') {
        let number =
            part.strip_prefix(letter).filter(|digits| digits.len() == 3).and_then(|digits| digits.parse().ok());
        match (number, last) {
            (Some(number), Some(first)) if range => found.extend(first..=number),
            (Some(number), _) => drop(found.insert(number)),
            (None, Some(_)) if part == "to" => {
                range = true;
                continue;
            }
            (None, _) => break,
        }
        last = number;
        range = false;
    }
    found
}

/// The names of all functions.
fn functions(files: &[SourceFile]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files {
        let tokens = file.tokens();
        found.extend(tokens.windows(2).filter(|pair| pair[0].text == "fn").map(|pair| pair[1].text.clone()));
    }
    found
}

fn table_offences(document: &str, functions: &BTreeSet<String>, numbers_of: fn(&str) -> BTreeSet<u32>) -> Vec<String> {
    let mut offences = Vec::new();
    let mut listed: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut before = 0;
    for row in rows(document) {
        let number = row.number;
        if number <= before {
            offences.push(format!("{number} stands after {before}"));
        }
        if row.statement.len() < 20 {
            offences.push(format!("{number} does not say what holds: {:?}", row.statement));
        }
        if row.tests.is_empty() {
            offences.push(format!("{number} names no test"));
        }
        for test in row.tests.iter().filter(|test| !functions.contains(*test)) {
            offences.push(format!("{number} names `{test}`, which does not exist"));
        }
        before = number;
        listed.insert(number, row.tests);
    }
    for name in functions {
        for number in numbers_of(name) {
            if !listed.get(&number).is_some_and(|tests| tests.contains(name)) {
                offences.push(format!("{number} does not name `{name}`"));
            }
        }
    }
    offences
}

#[test]
fn the_table_of_behaviours_names_the_tests_that_exist() {
    let mut files = source::rust_files("src");
    files.extend(source::rust_files("tests"));
    let document = source::read("docs/behaviours.md");
    assert!(!rows(&document).is_empty(), "the table has no rows");
    let offences = table_offences(&document, &functions(&files), numbers_of);
    assert!(offences.is_empty(), "docs/behaviours.md:\n{}\n", offences.join("\n"));
}

#[test]
fn the_table_of_field_cases_names_the_tests_that_exist() {
    let mut files = source::rust_files("src");
    files.extend(source::rust_files("tests"));
    let document = source::read("docs/field-cases.md");
    assert!(!rows(&document).is_empty(), "the table has no rows");
    let offences = table_offences(&document, &functions(&files), cases_of);
    assert!(offences.is_empty(), "docs/field-cases.md:\n{}\n", offences.join("\n"));
}

#[test]
fn a_wrong_table_of_behaviours_is_found() {
    let made_up = SourceFile::made_up("x.rs", "fn b007_a() {} fn b034_to_b036_b() {} fn plain() {} // fn b099_c() {}");
    let functions = functions(&[made_up]);
    let right = "| 7 | a sentence that says it | `b007_a` |\n| 34 | a sentence that says it | `b034_to_b036_b`, `plain` |\n\
                 | 35 | a sentence that says it | `b034_to_b036_b` |\n\
                 | 36 | a sentence that says it | `b034_to_b036_b` |\n";
    let offences = |document: &str| table_offences(document, &functions, numbers_of).len();
    assert_eq!(offences(right), 0);
    assert_eq!(offences(&right.replace("plain", "planned")), 1);
    assert_eq!(offences(&right.replace("`b007_a`", "")), 2);
    assert_eq!(offences(&right.replace("| 36 |", "| 30 |")), 2);
    assert_eq!(offences(""), 4);
    assert_eq!(offences(&right.replacen("a sentence that says it", "TODO", 1)), 1);
}

#[test]
fn a_name_speaks_of_its_numbers() {
    let check = |name: &str, expected: &[u32]| {
        assert_eq!(numbers_of(name).into_iter().collect::<Vec<_>>(), expected, "{name}");
    };
    check("b007_interrupted_call_needs_reconciliation", &[7]);
    check("b007_b009_both", &[7, 9]);
    check("b034_to_b037_drift_is_said_in_exact_words", &[34, 35, 36, 37]);
    check("b002_b004_to_b006_x", &[2, 4, 5, 6]);
    check("b007_back_to_b009", &[7]);
    check("bytes_b007_x", &[]);
    check("b07_x", &[]);
    assert_eq!(cases_of("field_a079_a096_x"), BTreeSet::from([79, 96]));
    assert_eq!((cases_of("a079_x"), cases_of("field_b079_x")), (BTreeSet::new(), BTreeSet::new()));
}

/// The relative links of a Markdown text.
fn links(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let targets = after.filter_map(|target| target.split('#').next());
    targets.filter(|target| !target.is_empty() && !target.contains("://") && !target.contains(' ')).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = Vec::new();
    for folder in ["", "docs", "docs/decisions", "migrations"] {
        let Ok(entries) = fs::read_dir(source::root().join(folder)) else { continue };
        let paths = entries.map(|entry| entry.expect("an entry").path());
        documents.extend(paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    assert!(documents.len() > 5, "the documents are found");
    for document in documents {
        let text = fs::read_to_string(&document).expect("UTF-8");
        for link in links(&text) {
            let target = document.parent().expect("a folder").join(link);
            assert!(target.exists(), "{}: {link} leads nowhere", document.display());
        }
    }
    assert_eq!(links("see [a](b.md), [c](#d) and [e](https://f.g) or [h](i/j.md#k)"), ["b.md", "i/j.md"]);
}

/// The names of settings in a text, e.g. `COUNTERSIGN_LISTEN`.
fn settings(text: &str) -> BTreeSet<&str> {
    let words = text.split(|sign: char| !(sign.is_ascii_uppercase() || sign.is_ascii_digit() || sign == '_'));
    words.filter(|word| word.strip_prefix("COUNTERSIGN_").is_some_and(|rest| !rest.is_empty())).collect()
}

#[test]
fn the_operating_guide_lists_exactly_the_settings_that_exist() {
    let guide = source::read("docs/operating.md");
    let files =
        ["mod", "connections", "keep", "view", "workers"].map(|file| source::read(&format!("src/config/{file}.rs")));
    let config = files.concat();
    assert_eq!(settings(&guide), settings(&config));
    assert_eq!(settings("`COUNTERSIGN_A_1`, COUNTERSIGN_…, XCOUNTERSIGN_B"), BTreeSet::from(["COUNTERSIGN_A_1"]));
}
