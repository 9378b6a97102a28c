//! Keeps the house: who may import whom, which words stay where, how big a file may grow, what is linked.
//!
//! Each rule is a function from files to offences, tried on made-up files that break it.

use std::collections::BTreeMap;
use std::process::Command;

use crate::source::{self, Place, SourceFile, Token, places};

/// Who may import whom. A module may always import itself; what is not listed may not be there.
const IMPORTS: &[(&str, &[&str])] = &[
    ("run", &[]),
    ("failpoint", &[]),
    ("bulk", &["run"]),
    ("clock", &["run"]),
    ("store", &["run", "bulk", "failpoint"]),
    ("net", &["run"]),
    ("places", &["run"]),
    ("policy", &["run", "places", "store"]),
    ("secrets", &["run", "store"]),
    ("auth", &["run", "clock", "net"]),
    ("config", &["run", "auth", "net", "secrets", "failpoint"]),
    ("telemetry", &["config"]),
    ("schema", &["run", "places"]),
    ("model", &["run", "net", "secrets"]),
    ("mcp", &["run", "bulk", "net", "schema", "secrets", "failpoint"]),
    ("oauth", &["run", "clock", "net", "store", "secrets"]),
    ("dispatch", &["run", "bulk", "mcp", "oauth", "schema", "store", "secrets", "net"]),
    ("commands", &["run", "bulk", "clock", "store", "dispatch", "schema", "policy", "secrets", "net", "failpoint"]),
    ("executor", &["run", "bulk", "clock", "store", "model", "dispatch", "policy", "secrets", "failpoint"]),
    ("http", &["run", "bulk", "clock", "commands", "auth", "store"]),
];

/// Modules that build everything and so know everything.
const BUILDERS: &[&str] = &["app", "cli", "main", "lib"];

/// Words that the core may not contain: it waits for nothing and asks nobody.
const CORE_FORBIDS: &[&str] =
    &["async", "await", "tokio", "sqlx", "axum", "reqwest", "tracing", "SystemTime", "Instant", "rmcp", "rig_core"];

/// Libraries that stop at one module.
const STOPS_AT: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("rmcp", &["mcp"]),
    ("rig_core", &["model"]),
    ("rig_reqwest", &["model"]),
    ("jsonwebtoken", &["auth", "oauth", "main"]),
];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "service", "services", "models", "type", "types", "misc"];

const FILE_LINES: usize = 400;
const TEST_FILE_LINES: usize = 800;
const ARCHITECTURE_LINES: usize = 250;
const FOLDERS_DEEP: usize = 2;

/// Crates that a second version of would mean two of the same thing at run time.
const ONE_VERSION: &[&str] = &["reqwest", "rustls", "hyper", "axum", "sqlx-core", "aws-lc-rs", "serde_json", "tokio"];
/// Other cryptography than the one that was chosen.
const NEVER_LINKED: &[&str] = &["openssl-sys", "native-tls", "ring"];

type Offences = Vec<String>;

#[track_caller]
fn assert_none(offences: Offences) {
    assert!(offences.is_empty(), "\n{}\n", offences.join("\n"));
}

// Imports

/// The modules of this crate that a file names, with the line: by `crate::…`, or by enough `super::`.
fn imports(file: &SourceFile) -> Vec<(String, usize)> {
    let tokens = file.tokens();
    let places = places(&tokens);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let start = at;
        at += 1;
        let follows_a_path = start >= 2 && separator(&tokens, start - 2);
        if follows_a_path {
            continue;
        }
        let first_name = match tokens[start].text.as_str() {
            "crate" | "countersign" if separator(&tokens, at) => at + 2,
            "super" => match names_of_the_root(&tokens, start, depth(file, places[start])) {
                Some(first_name) => first_name,
                None => continue,
            },
            _ => continue,
        };
        names_at(&tokens, first_name, &mut found);
    }
    found
}

fn depth(file: &SourceFile, place: Place) -> usize {
    file.module().len() + place.inline_modules
}

fn separator(tokens: &[Token], at: usize) -> bool {
    tokens.get(at).is_some_and(|token| token.text == ":") && tokens.get(at + 1).is_some_and(|token| token.text == ":")
}

/// Where the first name stands after as many `super::` as lead out of the file's module to the root.
fn names_of_the_root(tokens: &[Token], start: usize, depth: usize) -> Option<usize> {
    let mut at = start;
    for _ in 0..depth {
        (tokens.get(at)?.text == "super" && separator(tokens, at + 1)).then_some(())?;
        at += 3;
    }
    Some(at)
}

/// One name, or the first names of a group.
fn names_at(tokens: &[Token], at: usize, found: &mut Vec<(String, usize)>) {
    let Some(first) = tokens.get(at) else { return };
    if first.text != "{" {
        found.push((first.text.clone(), first.line));
        return;
    }
    let mut open = 0_usize;
    let mut expects_name = false;
    for token in &tokens[at..] {
        match token.text.as_str() {
            "{" => {
                open += 1;
                expects_name = open == 1;
            }
            "}" => {
                open -= 1;
                if open == 0 {
                    return;
                }
            }
            "," if open == 1 => expects_name = true,
            _ if expects_name => {
                found.push((token.text.clone(), token.line));
                expects_name = false;
            }
            _ => {}
        }
    }
}

fn import_offences(files: &[SourceFile]) -> Offences {
    let table: BTreeMap<&str, &[&str]> = IMPORTS.iter().copied().collect();
    let mut offences = Offences::new();
    for file in files {
        let area = file.area();
        if BUILDERS.contains(&area.as_str()) {
            continue;
        }
        let Some(allowed) = table.get(area.as_str()) else {
            offences.push(format!("src/{}: module `{area}` is not in the import table", file.path));
            continue;
        };
        for (name, line) in imports(file) {
            if name != area && !allowed.contains(&name.as_str()) {
                offences.push(format!("src/{}:{line}: `{area}` may not import `{name}`", file.path));
            }
        }
    }
    offences
}

#[test]
fn modules_import_only_what_the_table_allows() {
    assert_none(import_offences(&source::rust_files("src")));
}

/// The lines of a table that name a module of no line before them: read downwards, it has no way back up.
fn upward_lines(table: &[(&'static str, &'static [&'static str])]) -> Vec<&'static str> {
    let known_above = |at: usize, name: &str| table[..at].iter().any(|(above, _)| *above == name);
    let upward = table.iter().enumerate().filter(|(at, (_, may))| !may.iter().all(|name| known_above(*at, name)));
    upward.map(|(_, (module, _))| *module).collect()
}

#[test]
fn the_table_points_downwards_only() {
    assert!(upward_lines(IMPORTS).is_empty(), "{:?}", upward_lines(IMPORTS));
    assert_eq!(upward_lines(&[("a", &["b"]), ("b", &[]), ("c", &["a", "b"]), ("d", &["d"])]), ["a", "d"]);
}

/// The rows `| `a`, `b` | c, d |` of the document, one entry a module of the first cell.
fn documented_imports(document: &str) -> BTreeMap<String, Vec<String>> {
    let names = |cell: &str| -> Vec<String> {
        let names = cell.split(',').map(|name| name.trim().trim_matches('`').to_owned());
        names.filter(|name| !name.is_empty() && name != "–").collect()
    };
    let section = document.split("## Who may import whom").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut found = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        if let [modules, may] = line.trim_matches('|').split('|').collect::<Vec<_>>().as_slice() {
            found.extend(names(modules).into_iter().map(|module| (module, names(may))));
        }
    }
    found
}

#[test]
fn the_document_shows_the_same_table() {
    let documented = documented_imports(&source::read("ARCHITECTURE.md"));
    for (module, may) in IMPORTS {
        let documented: Vec<&str> = documented.get(*module).into_iter().flatten().map(String::as_str).collect();
        assert_eq!(documented, *may, "{module}");
    }
    let extra: Vec<_> = documented.keys().filter(|module| !IMPORTS.iter().any(|(name, _)| name == module)).collect();
    assert_eq!(extra, ["app", "main"], "builders only");
}

#[test]
fn an_import_outside_the_table_is_found() {
    let offends = |path: &str, text: &str| import_offences(&[SourceFile::made_up(path, text)]).len();
    assert_eq!(offends("run/next.rs", "use crate::run::ids::RunUid;"), 0);
    assert_eq!(offends("run/next.rs", "use crate::store::Store;"), 1);
    assert_eq!(offends("run/next.rs", "// use crate::store::Store;"), 0);
    assert_eq!(offends("run/next.rs", "fn f() { crate::clock::now() }"), 1);
    assert_eq!(offends("store/mod.rs", "use crate::{run::{ids, time}, http, model::Prompt};"), 2);
    assert_eq!(offends("executor/mod.rs", "use crate::http::problem;"), 1);
    assert_eq!(offends("http/runs.rs", "use crate::executor::drive;"), 1);
    assert_eq!(offends("http/runs.rs", "use super::problem; use super::super::commands; use super::super::model;"), 1);
    assert_eq!(offends("clock.rs", "use super::run; mod tests { use super::now; use super::super::store; }"), 1);
    assert_eq!(offends("attic/mod.rs", ""), 1);
    assert_eq!(offends("app.rs", "use crate::http; use crate::executor;"), 0);
}

// Words

/// Where a word stands that only some modules may use.
fn word_offences(files: &[SourceFile], word: &str, allowed: impl Fn(&str) -> bool) -> Offences {
    let mut offences = Offences::new();
    for file in files.iter().filter(|file| !allowed(&file.area())) {
        for token in file.tokens().iter().filter(|token| token.text == word) {
            offences.push(format!("src/{}:{}: `{word}` does not belong here", file.path, token.line));
        }
    }
    offences
}

#[test]
fn the_core_waits_for_nothing() {
    let files = source::rust_files("src");
    assert_none(CORE_FORBIDS.iter().flat_map(|word| word_offences(&files, word, |area| area != "run")).collect());
}

#[test]
fn libraries_stop_at_their_module() {
    let files = source::rust_files("src");
    let offences = STOPS_AT
        .iter()
        .flat_map(|(word, areas)| word_offences(&files, word, |area| areas.contains(&area) || area == "app"));
    assert_none(offences.collect());
}

/// Where a text is shortened by modules that hear counterparts: a secret that is cut is found by nobody, so that is left
/// to whom takes secrets out.
fn cut_offences(files: &[SourceFile]) -> Offences {
    const HEAR: [&str; 3] = ["mcp", "model", "oauth"];
    let mut offences = word_offences(files, "char_indices", |area| !HEAR.contains(&area));
    for file in files.iter().filter(|file| HEAR.contains(&file.area().as_str())) {
        let tokens = file.tokens();
        let cuts = tokens
            .windows(5)
            .filter(|five| five.iter().map(|token| token.text.as_str()).eq(["chars", "(", ")", ".", "take"]));
        offences.extend(
            cuts.map(|five| format!("src/{}:{}: a text is cut that may hold a secret", file.path, five[0].line)),
        );
    }
    offences
}

#[test]
fn what_counterparts_say_is_cut_only_where_secrets_are_taken_out() {
    assert_none(cut_offences(&source::rust_files("src")));
    let cuts = |path: &str, text: &str| cut_offences(&[SourceFile::made_up(path, text)]).len();
    assert_eq!(cuts("mcp/a.rs", "fn f() { text.chars().take(5); text.char_indices().nth(5); text.chars().rev(); }"), 2);
    assert_eq!(cuts("secrets/a.rs", "fn f() { text.chars().take(5); text.char_indices().nth(5) }"), 0);
}

#[test]
fn a_word_in_the_wrong_module_is_found() {
    let files = [
        SourceFile::made_up("run/next.rs", "async fn f() { g().await } // tokio\n/* sqlx */ const S: &str = \"axum\";"),
        SourceFile::made_up("store/mod.rs", "use sqlx::Row;"),
    ];
    let in_run = |word: &str| word_offences(&files, word, |area| area != "run").len();
    assert_eq!((in_run("async"), in_run("await"), in_run("tokio"), in_run("sqlx"), in_run("axum")), (1, 1, 0, 0, 0));
    assert_eq!(word_offences(&files, "sqlx", |area| area == "store").len(), 0);
    assert_eq!(word_offences(&files, "sqlx", |area| area == "http").len(), 1);
}

/// Only `schema` compiles schemas and checks values by them, within limits and where it holds up nobody. Bodies are checked
/// against our own document in one file of `http`.
fn compiler_offences(files: &[SourceFile]) -> Offences {
    let mut offences = Offences::new();
    for file in files.iter().filter(|file| file.area() != "schema" && file.path != "http/schema.rs") {
        for token in file.tokens().iter().filter(|token| token.text == "jsonschema") {
            offences.push(format!("src/{}:{}: a JSON Schema compiled outside of schema", file.path, token.line));
        }
    }
    offences
}

#[test]
fn only_schema_compiles_schemas() {
    assert_none(compiler_offences(&source::rust_files("src")));
    let offends = |path: &str, text: &str| compiler_offences(&[SourceFile::made_up(path, text)]).len();
    assert_eq!(offends("mcp/asks.rs", "fn f() { jsonschema::validator_for(&schema) }"), 1);
    assert_eq!(offends("http/runs.rs", "use jsonschema::Validator; // jsonschema"), 1);
    assert_eq!(offends("http/schema.rs", "use jsonschema::Validator;") + offends("schema/mod.rs", "jsonschema"), 0);
}

/// Only `net` builds HTTP clients: whoever builds one elsewhere bypasses the check of the address.
fn client_offences(files: &[SourceFile]) -> Offences {
    let mut offences = Offences::new();
    for file in files.iter().filter(|file| file.area() != "net" && !file.is_for_tests()) {
        let tokens = file.tokens();
        let places = places(&tokens);
        for at in 0..tokens.len() {
            let words: Vec<&str> = tokens[at..].iter().take(7).map(|token| token.text.as_str()).collect();
            let builds = matches!(words.as_slice(), ["ClientBuilder", ..])
                || matches!(words.as_slice(), ["reqwest", ":", ":", "Client", ..])
                || matches!(words.as_slice(), ["reqwest", ":", ":", "get", ..]);
            if builds && !places[at].in_tests {
                offences.push(format!("src/{}:{}: an HTTP client outside of net", file.path, tokens[at].line));
            }
        }
    }
    offences
}

#[test]
fn only_net_holds_http_clients_that_judge_nothing() {
    assert_none(client_offences(&source::rust_files("src")));
}

#[test]
fn an_http_client_built_elsewhere_is_found() {
    let offends = |path: &str, text: &str| client_offences(&[SourceFile::made_up(path, text)]).len();
    assert_eq!(offends("mcp/pool.rs", "let c = reqwest::Client::new();"), 1);
    assert_eq!(offends("auth/jwks.rs", "let c = reqwest::Client::builder();"), 1);
    assert_eq!(offends("auth/jwks.rs", "use reqwest::ClientBuilder;"), 1);
    assert_eq!(offends("mcp/pool.rs", "fn f(client: reqwest::Client) {}"), 1, "one that judges no address");
    assert_eq!(offends("net/mod.rs", "let c = reqwest::Client::builder();"), 0);
    assert_eq!(offends("auth/tests.rs", "let c = reqwest::Client::builder();"), 0);
}

// Shape and size

fn shape_offences(files: &[SourceFile]) -> Offences {
    let mut offences = Offences::new();
    for file in files {
        // The tests of a module may have a folder of their own.
        let folders = file.path.replace("/tests/", "/").matches('/').count();
        if folders > FOLDERS_DEEP {
            offences.push(format!("src/{}: more than {FOLDERS_DEEP} folders deep", file.path));
        }
        for part in file.module().iter().filter(|part| EMPTY_NAMES.contains(part)) {
            offences.push(format!("src/{}: `{part}` says nothing about what is inside", file.path));
        }
    }
    offences
}

/// The lines of a file that are not in a test module.
fn lines_without_tests(file: &SourceFile) -> usize {
    let tokens = file.tokens();
    let places = places(&tokens);
    let in_tests = tokens.iter().zip(&places).filter(|(_, place)| place.in_tests).map(|(token, _)| token.line);
    let (first, last) = in_tests.fold((usize::MAX, 0), |(first, last), line| (first.min(line), last.max(line)));
    let tests = if last == 0 { 0 } else { last - first + 1 };
    file.text.lines().count() - tests
}

fn size_offences(files: &[SourceFile], limit_of: impl Fn(&SourceFile) -> usize) -> Offences {
    let mut offences = Offences::new();
    for file in files {
        let (lines, limit) = (lines_without_tests(file), limit_of(file));
        if lines > limit {
            offences.push(format!("{}: {lines} lines, at most {limit}: split it by noun", file.path));
        }
    }
    offences
}

fn source_limit(file: &SourceFile) -> usize {
    if file.is_for_tests() { TEST_FILE_LINES } else { FILE_LINES }
}

#[test]
fn the_tree_is_shallow_and_its_names_speak() {
    assert_none(shape_offences(&source::rust_files("src")));
}

#[test]
fn no_file_outgrows_its_limit() {
    assert_none(size_offences(&source::rust_files("src"), source_limit));
    assert_none(size_offences(&source::rust_files("tests"), |_| TEST_FILE_LINES));
    assert!(source::read("ARCHITECTURE.md").lines().count() <= ARCHITECTURE_LINES, "ARCHITECTURE.md is too long");
    // Functions are clippy's: its limits may not be raised in silence.
    let clippy = source::read("clippy.toml");
    for limit in ["too-many-lines-threshold = 60\n", "too-many-arguments-threshold = 6\n"] {
        assert!(clippy.contains(limit), "clippy.toml lost {limit}");
    }
}

#[test]
fn a_deep_tree_an_empty_name_and_a_long_file_are_found() {
    let shape = |path: &str| shape_offences(&[SourceFile::made_up(path, "")]).len();
    assert_eq!((shape("store/sqlite/runs.rs"), shape("store/sqlite/rows/runs.rs")), (0, 1));
    assert_eq!((shape("run/apply/tests/turns.rs"), shape("run/apply/tests/a/b.rs")), (0, 1));
    assert_eq!((shape("util.rs"), shape("http/helpers.rs"), shape("types/mod.rs"), shape("run/ids.rs")), (1, 1, 1, 0));
    let long = |lines: usize, rest: &str| {
        size_offences(&[SourceFile::made_up("run/x.rs", &("fn f() {}\n".repeat(lines) + rest))], source_limit).len()
    };
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "fn g() {}\n".repeat(500));
    assert_eq!((long(400, ""), long(401, ""), long(399, &tests), long(400, &tests)), (0, 1, 0, 1));
    let test_file = SourceFile::made_up("run/tests.rs", &"fn f() {}\n".repeat(801));
    assert_eq!(size_offences(&[test_file], source_limit).len(), 1);
}

// Dependencies

/// How often each name stands in a lock file.
fn versions_in(lock: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for name in lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')) {
        *found.entry(name.to_owned()).or_insert(0) += 1;
    }
    found
}

fn version_offences(lock: &str) -> Offences {
    let found = versions_in(lock);
    let count = |name: &str| found.get(name).copied().unwrap_or(0);
    let wrong = ONE_VERSION.iter().filter(|name| count(name) != 1);
    wrong.map(|name| format!("Cargo.lock holds {} versions of {name}", count(name))).collect()
}

#[test]
fn one_version_of_what_must_be_one() {
    assert_none(version_offences(&source::read("Cargo.lock")));
}

#[test]
fn a_second_version_is_found() {
    let lock = format!("name = \"{}\"\n", ONE_VERSION.join("\"\nname = \""));
    assert_eq!(version_offences(&lock).len(), 0);
    assert_eq!(version_offences(&format!("{lock}name = \"rustls\"\n")).len(), 1);
    assert_eq!(version_offences("").len(), ONE_VERSION.len());
}

/// What cargo says about who brings a crate into the binary; empty when nobody does. The lock file alone cannot tell:
/// it also names optional crates (`ring`) that no feature turns on.
fn dependents(package: &str) -> String {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--edges", "normal,build", "--invert", package])
        .current_dir(source::root())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&tree.stderr);
    let absent = errors.contains("did not match any packages");
    assert!(tree.status.success() || absent, "cargo tree: {errors}");
    String::from_utf8_lossy(&tree.stdout).into_owned()
}

#[test]
fn no_other_cryptography_is_linked() {
    let offences = NEVER_LINKED.iter().map(|name| dependents(name)).filter(|tree| !tree.is_empty());
    assert_none(offences.collect());
    assert!(dependents("aws-lc-rs").contains("countersign"), "the question itself finds what is linked");
}
