//! The official conformance suite for clients, driven through the REST interface by `clients/conformance/drive.py`. What
//! does not apply is named, with the reason, in the baselines beside it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::support::database::Database;
use crate::support::process::testworld;
use crate::support::product::{Product, token};

const FOLDER: &str = "clients/conformance";

/// What the driver's token allows.
const SCOPES: &str = "runs:read runs:write mcp:write";

/// The whole product passes these scenarios of the suite, except exactly those of the baseline.
async fn conforms(scenarios: [&str; 2], baseline: &str) {
    let Some(program) = testworld("conformance/node_modules/.bin/conformance") else { return };
    let database = Database::sqlite().await;
    // A scenario's server ends once nobody is connected to it any more.
    let product = Product::start_with(&database.url, &[("COUNTERSIGN_MCP_IDLE_S", "1")]).await;
    let (root, results) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().unwrap());
    let file = format!("{FOLDER}/{baseline}");
    let mut command = Command::new(&program);
    // The suite cuts the driver's command at spaces, so it is named from the root.
    command.current_dir(root).args(["client", "--command", &format!("python3 {FOLDER}/drive.py")]).args(scenarios);
    // The scenarios take turns, so that each has the machine; a driver waits for its own.
    command.args(["--timeout", "120000"]);
    command.args(["--expected-failures", &file, "--output-dir"]).arg(results.path());
    command.env("PATH", path_with(program.parent().unwrap()));
    command.env("COUNTERSIGN_URL", product.url("")).env("COUNTERSIGN_TOKEN", token("acme", SCOPES));
    let run = command.output().unwrap();
    let text = std::fs::read_to_string(root.join(&file)).unwrap();
    let named = exempted(&text).unwrap_or_else(|fault| panic!("{file}: {fault}"));
    let said = String::from_utf8_lossy(&run.stdout);
    let told = complaints(results.path(), &named);
    if let Err(fault) = verdict(run.status.success(), &said, &named) {
        panic!("{fault}\n{told}");
    }
}

/// The scenarios that a baseline exempts. Each stands below a reason of its own or of its group.
fn exempted(text: &str) -> Result<BTreeSet<&str>, String> {
    let (mut named, mut reason, mut in_reason) = (BTreeSet::new(), false, false);
    for line in text.lines().skip_while(|line| line.trim() != "client:").skip(1).map(str::trim) {
        match line.strip_prefix("- ") {
            Some(scenario) if !reason => return Err(format!("{scenario} has no reason")),
            Some(scenario) if !named.insert(scenario) => return Err(format!("{scenario} stands twice")),
            Some(_) => in_reason = false,
            None => {
                // A reason may take several lines.
                reason = (reason && in_reason) || line.strip_prefix('#').is_some_and(|text| text.trim().len() > 20);
                in_reason = true;
            }
        }
    }
    Ok(named)
}

/// Whether a run of the suite fails in exactly what is exempted: neither in anything else, nor in less.
fn verdict(succeeded: bool, said: &str, named: &BTreeSet<&str>) -> Result<(), String> {
    let (_, summary) = said.split_once("=== SUITE SUMMARY ===").ok_or_else(|| format!("no summary: {said}"))?;
    if !succeeded {
        return Err(summary.to_owned());
    }
    let passed: Vec<&str> = lines(summary, "✓ ").collect();
    // A scenario that checked nothing has not passed, and a line of the baseline that nothing failed for is an error.
    if let Some(vacuous) = passed.iter().find(|line| line.contains(": 0 passed")) {
        return Err(format!("nothing was checked: {vacuous}"));
    }
    let failed: BTreeSet<&str> = lines(summary, "~ ").collect();
    if passed.is_empty() || failed != *named {
        return Err(format!("expected to fail: {named:?}\n{summary}"));
    }
    Ok(())
}

#[test]
fn a_scenario_that_passes_again_or_fails_anew_or_checks_nothing_is_found() {
    let said = |lines: &str| format!("noise\n=== SUITE SUMMARY ===\n{lines}\n");
    let named = BTreeSet::from(["auth/a", "auth/b"]);
    let right = said("✓ tools_call: 3 passed, 0 failed\n~ auth/a\n~ auth/b");
    assert_eq!(verdict(true, &right, &named), Ok(()));
    assert!(verdict(false, &right, &named).is_err(), "the suite itself is not content");
    assert!(verdict(true, &right.replace("~ auth/b", "✓ auth/b: 1 passed, 0 failed"), &named).is_err(), "passes again");
    assert!(verdict(true, &right.replace("✓ tools_call: 3 passed, 0 failed", "~ tools_call"), &named).is_err());
    assert!(verdict(true, &right.replace("3 passed", "0 passed"), &named).is_err(), "nothing was checked");
    assert!(verdict(true, &said("~ auth/a\n~ auth/b"), &named).is_err(), "nothing passed");
    assert!(verdict(true, "it could not start", &named).is_err());

    let baseline = "# What this is.\nclient:\n  # A reason that says something.\n  - auth/a\n  - auth/b\n";
    assert_eq!(exempted(baseline), Ok(named));
    assert!(exempted(&baseline.replace("  # A reason that says something.\n", "")).is_err());
    assert!(exempted(&baseline.replace("auth/b", "auth/a")).is_err());
}

#[test]
fn every_baseline_gives_its_reasons() {
    for revision in ["2025-11-25", "2026-07-28", "extensions"] {
        let file = format!("{FOLDER}/baseline-{revision}.yml");
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&file)).unwrap();
        assert!(exempted(&text).is_ok_and(|named| !named.is_empty()), "{file}: {:?}", exempted(&text));
    }
}

/// The rest of each line that begins so.
fn lines<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.trim().strip_prefix(begin))
}

/// What the driver complained of in each scenario that is expected to pass.
fn complaints(results: &Path, baseline: &BTreeSet<&str>) -> String {
    let mut told = String::new();
    for folder in
        std::fs::read_dir(results).unwrap().chain(std::fs::read_dir(results.join("auth")).into_iter().flatten())
    {
        let path = folder.unwrap().path();
        let name = path.strip_prefix(results).unwrap().display().to_string();
        let said = std::fs::read_to_string(path.join("stderr.txt")).unwrap_or_default();
        // Tokens are the extensions' affair: they are told of by their own baseline.
        let expected = name.starts_with("auth/") || baseline.iter().any(|scenario| name.starts_with(scenario));
        if !said.trim().is_empty() && !expected {
            told = format!("{told}{name}: {said}\n");
        }
    }
    told
}

fn path_with(first: &Path) -> std::ffi::OsString {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(first.to_owned()).chain(std::env::split_paths(&rest))).unwrap()
}

#[tokio::test]
async fn the_suite_s_scenarios_that_the_revision_2025_11_25_requires_pass() {
    conforms(["--requirements", "2025-11-25"], "baseline-2025-11-25.yml").await;
}

#[tokio::test]
async fn the_suite_s_scenarios_that_the_revision_2026_07_28_requires_pass() {
    conforms(["--requirements", "2026-07-28"], "baseline-2026-07-28.yml").await;
}

#[tokio::test]
async fn the_suite_s_scenarios_of_extensions_pass() {
    conforms(["--suite", "extensions"], "baseline-extensions.yml").await;
}

/// The product passes this scenario in this revision, though neither of the lists above has it.
async fn passes(scenario: &str, revision: &str) {
    let Some(program) = testworld("conformance/node_modules/.bin/conformance") else { return };
    let database = Database::sqlite().await;
    let product = Product::start_with(&database.url, &[("COUNTERSIGN_MCP_IDLE_S", "1")]).await;
    let mut command = Command::new(&program);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["client", "--command", &format!("python3 {FOLDER}/drive.py"), "--timeout", "120000"]);
    command.args(["--scenario", scenario, "--spec-version", revision]);
    command.env("PATH", path_with(program.parent().unwrap()));
    command.env("COUNTERSIGN_URL", product.url("")).env("COUNTERSIGN_TOKEN", token("acme", SCOPES));
    let run = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && said.contains("Passed: "), "{said}");
    assert!(!said.contains("SKIPPED") && !said.contains("FAILURE"), "{said}");
}

#[tokio::test]
async fn every_keyword_of_a_tool_s_schema_reaches_whoever_looks_at_it() {
    passes("json-schema-2020-12-preservation", "2026-07-28").await;
}
