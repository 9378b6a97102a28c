use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::run::json::parse_strict;

fn tenant() -> TenantId {
    TenantId::parse("acme").unwrap()
}

async fn said(source: &str, args: &str) -> Found {
    let expressions = Expressions::start().unwrap();
    let input = json!({
        "args": parse_strict(args).unwrap(),
        "tool": { "name": "charge", "server": "till", "side_effect_class": "non_idempotent_write" },
        "run": { "id": "r", "agent": null, "created_by": "alice", "metadata": { "order": "7" }, "turns": 1 },
    });
    let Value::Object(input) = input else { unreachable!() };
    let question = Question { when: Arc::from(source), trigger: "call" };
    expressions.judge(&tenant(), vec![question], Arc::new(input)).await.remove(0)
}

async fn check(source: &str, args: &str, expected: Found) {
    let found = said(source, args).await;
    match (&found, &expected) {
        (Found::Failed(why), Found::Failed(words)) => assert!(why.contains(words.as_str()), "{source}: {why}"),
        _ => assert_eq!(found, expected, "{source} on {args}"),
    }
}

fn failed(words: &str) -> Found {
    Found::Failed(words.to_owned())
}

#[tokio::test]
async fn numbers_are_compared_as_numbers_and_never_rounded_into_a_rule() {
    let exact = r#"{"amount": 1500, "rate": 117.63331139400017, "big": 18446744073709551617, "huge": 1e400, "no": -3}"#;
    for (source, expected) in [
        ("args.amount == 1500", Found::Yes),
        ("args.amount != 1500", Found::No),
        ("args.amount in [1500]", Found::Yes),
        ("args.amount + 1 > 1500", Found::Yes),
        ("args.amount == 1500.0", Found::Yes),
        ("args.amount > 1499.5 && args.amount < 1500.5", Found::Yes),
        ("args.rate == 117.63331139400017", Found::Yes),
        ("args.rate > 117", Found::Yes),
        ("-args.no == 3", Found::Yes),
        ("args.big > 5", failed("18446744073709551617 is out of range")),
        ("args.huge > 5.0", failed("out of range")),
        ("args == {}", failed("out of range")),
        // What a rule does not look at does not matter to it.
        ("args.amount > 5 && has(args.rate)", Found::Yes),
        ("9223372036854775807 + args.amount > 0", failed("out of range")),
        ("args.amount / 0 > 0", failed("divides by zero")),
    ] {
        check(source, exact, expected).await;
    }
    check("args.a == 1000.0", r#"{"a": 1e3}"#, Found::Yes).await;
    check("args.a == 9223372036854775807", r#"{"a": 9223372036854775807}"#, Found::Yes).await;
    check("args.a > 0", r#"{"a": 9223372036854775808}"#, failed("out of range")).await;
}

#[tokio::test]
async fn a_number_that_would_be_rounded_passes_no_limit() {
    let more = || failed("more digits than are compared");
    let rounds = || failed("without rounding it");
    for (source, amount, expected) in [
        ("args.a > 1000", "1000", Found::No),
        ("args.a > 1000", "1000.0", Found::No),
        ("args.a > 1000", "1000.01", Found::Yes),
        ("args.a > 1000", "19.99", Found::No),
        ("args.a == 19.99", "19.99", Found::Yes),
        ("args.a == 19.99", "19.990", Found::Yes),
        ("args.a > 1000", "1000.0000000000001", Found::Yes),
        ("args.a > 1000", "1000.0000000000000001", more()),
        ("args.a > 1000", "-1000.0000000000000001", more()),
        ("args.a <= 1000.0", "1000.00000000000000000001", more()),
        ("args.a > 1000", "1e-400", more()),
        ("args.a > 1000.0000000000000001", "1000.0", more()),
        ("args.a > -1000.0000000000000001", "1000.0", more()),
        ("'é' == 'é' && args.a > -1000.5", "1000.0", Found::Yes),
        ("args.a > 1.5e+2 && args.a < 2.5E3", "1000.0", Found::Yes),
        ("args.a == 9007199254740993", "9007199254740993", Found::Yes),
        ("args.a > 9007199254740992", "9007199254740993", Found::Yes),
        ("args.a > 9007199254740992.0", "9007199254740993", rounds()),
        ("args.a > 9007199254740992.0", "9007199254740994", Found::Yes),
        ("args.a < 9007199254740993", "9007199254740992.0", rounds()),
        ("double(args.a) > 9007199254740992.0", "9007199254740993", rounds()),
        ("double(args.a) > 1000.0", r#""1000.0000000000000001""#, more()),
        ("double(args.a) > 1000.0", r#""1000.01""#, Found::Yes),
        ("double('1000.0000000000000001') > double(args.a)", r#""1000""#, more()),
        ("args.a == '1000.0000000000000001'", r#""1000.0000000000000001""#, Found::Yes),
        ("args.a > 5", "18446744073709551617", failed("out of range")),
        ("args.a.exists(x, x > 1000)", "[1, 1000.0000000000000001]", more()),
    ] {
        check(source, &format!(r#"{{"a": {amount}}}"#), expected).await;
    }
}

#[tokio::test]
async fn b232_what_cannot_be_evaluated_says_why() {
    for (source, why) in [
        ("args.amount > 5", "there is no field \"amount\""),
        ("args.text > 5", "no matching overload"),
        ("args.text", "neither true nor false but a value of type string"),
        ("args.list[7] == 1", "out of bounds"),
        ("args.text.size", "no matching overload"),
        ("args.list.all(x, x.y)", ""),
        ("run.metadata.missing == 'x'", "there is no field \"missing\""),
        ("int(args.text) > 5", ""),
    ] {
        check(source, r#"{"text": "abc", "list": [1, 2]}"#, failed(why)).await;
    }
    // The language's own way: where one side decides, the other does not matter.
    check("has(args.amount) && args.amount > 5", "{}", Found::No).await;
    check("!has(args.amount) || args.amount > 5", "{}", Found::Yes).await;
}

#[tokio::test]
async fn expressions_look_at_the_call_its_tool_its_run_and_the_trigger() {
    for source in [
        "tool.name == 'charge' && tool.server == 'till'",
        "tool.side_effect_class == 'non_idempotent_write'",
        "run.id == 'r' && run.created_by == 'alice' && run.turns == 1 && run.agent == null",
        "run.metadata.order == '7' && run.metadata['order'] == '7'",
        "trigger == 'call'",
        "args.items.filter(i, i.qty > 1).all(i, i.price < 10)",
        "args.items.exists(i, i.price == 9.5) && size(args.items) == 2",
        "args.items.map(i, i.price * 2.0).exists(p, p > 18.0)",
        "args.items.exists_one(i, i.qty == 2)",
        "args.mail.matches('^[a-z]+@example[.]com$') && args.mail.endsWith('.com')",
        "type(args.mail) == string && string(args.items[0].qty) == '2'",
        "(args.items[0].qty > 1 ? 'a' : 'b') == 'a'",
        "args['mail'].contains('@') && args.mail.startsWith('bob')",
    ] {
        let args = r#"{"mail": "bob@example.com", "items": [{"qty": 2, "price": 9.5}, {"qty": 1, "price": 100.25}]}"#;
        check(source, args, Found::Yes).await;
    }
}

async fn faults(sources: &[&str]) -> Vec<Option<String>> {
    let expressions = Expressions::start().unwrap();
    let sources = sources.iter().map(|source| ((*source).to_owned(), Roots::Call)).collect();
    expressions.check(&tenant(), sources).await.unwrap()
}

#[tokio::test]
async fn b232_what_does_not_compile_is_refused_with_its_place() {
    let sources = [
        ("args.amount >", "line 1, column"),
        ("true &&\n  (args.x", "line 2, column"),
        ("env.PATH == 'x'", "line 1, column 4: there is no \"env\"; there is args, tool, run, trigger"),
        (".args.x", "there is no"),
        ("args.x.frobnicate()", "there is no function \"frobnicate\""),
        ("'é' == 'é' && now() > 5", "line 1, column 18: there is no function \"now\""),
        ("now() > 5", "there is no function \"now\""),
        ("args.xs.all(x, args.ys.exists(y, y == x))", "cannot be walked inside of each other"),
        ("args.xs.map(x, args.ys.map(y, y)) == []", "cannot be walked inside of each other"),
        ("args.xs.map(x, x + x) == []", "`+` cannot stand inside of map or filter"),
        ("args.xs.all(args, args > 5)", "\"args\" is a root"),
        ("tool == 'charge'", "\"tool\" is an object"),
        ("args.amount > 5 && 'r' != run", "\"run\" is an object"),
        ("args.x.matches(args.y)", "a pattern that is written out"),
        ("args.x.matches('(a')", "the pattern cannot be used: unclosed group"),
        ("args.x.matches('((a{100}){100}){100}')", "the pattern cannot be used"),
        ("google.protobuf.Timestamp{seconds: 5} == args.x", ""),
        ("args.?x.orValue(5) > 3", ""),
        ("", "line 1"),
    ];
    let found = faults(&sources.map(|(source, _)| source)).await;
    for ((source, words), fault) in sources.iter().zip(found) {
        let fault = fault.unwrap_or_else(|| panic!("{source} was taken"));
        assert!(fault.contains(words), "{source}: {fault}");
        assert!(!fault.contains("<input>"), "{fault}");
    }
}

#[tokio::test]
async fn rules_for_limits_have_no_call_to_look_at() {
    let expressions = Expressions::start().unwrap();
    let sources = ["args.x > 5", "tool.name == 'x'", "run.turns > 5", "trigger == 'limit:reached'"];
    let sources = sources.iter().map(|source| ((*source).to_owned(), Roots::Run)).collect();
    let faults = expressions.check(&tenant(), sources).await.unwrap();
    assert_eq!(faults.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
}

#[tokio::test]
async fn hostile_sources_are_refused_or_evaluated_and_the_process_lives() {
    let sums = format!("1{} > 0", "+1".repeat(509));
    let choices = format!("{}false", "true?true:".repeat(101));
    let chain = format!("args{}", ".a".repeat(500));
    let minus = format!("{}1 < 5", "-".repeat(1000));
    let nots = format!("{}true", "!".repeat(1000));
    let ors = format!("true{}", "||a".repeat(330));
    let walks = format!("args.l{}.size() == 0", ".filter(x,x>0)".repeat(60));
    let long = format!("1{} > 0", "+1".repeat(600));
    for source in [&sums, &choices, &chain, &minus, &nots, &ors, &walks] {
        assert!(source.len() <= SOURCE_MAX, "{}", source.len());
        // Whatever is said of it, something is.
        said(source, r#"{"l": [0], "a": 1}"#).await;
    }
    let deep =
        |open: &str, close: &str, levels: usize| format!("{}1{} == 1", open.repeat(levels), close.repeat(levels));
    assert_eq!(said(&deep("(", ")", 32), "{}").await, Found::Yes);
    for levels in [33, 50, 90, 300] {
        let said = said(&deep("(", ")", levels), "{}").await;
        assert!(matches!(&said, Found::Failed(why) if why.contains("nest deeper than 32")), "{said:?}");
    }
    assert!(matches!(said(&deep("[", "]", 33), "{}").await, Found::Failed(_)));
    assert!(matches!(said(&long, "{}").await, Found::Failed(why) if why.contains("at most 1024 bytes")));
    assert!(matches!(said("\u{0}", "{}").await, Found::Failed(_)));
    assert_eq!(said("args.s.matches('^(a+)+$')", &format!(r#"{{"s": "{}b"}}"#, "a".repeat(50_000))).await, Found::No);
}

#[tokio::test]
async fn what_a_rule_may_look_at_is_limited_and_what_it_does_not_look_at_is_free() {
    let wide = format!(r#"{{"l": [{}1], "ok": true}}"#, "1,".repeat(20_000));
    let long = format!(r#"{{"s": "{}", "ok": true}}"#, "x".repeat(300_000));
    check("args.l.size() > 5", &wide, failed("more than 256 KiB or 10000 values")).await;
    check("args.s.size() > 5", &long, failed("more than 256 KiB or 10000 values")).await;
    check("args.ok", &wide, Found::Yes).await;
    check("args.ok", &long, Found::Yes).await;
}

#[tokio::test]
async fn one_failing_rule_does_not_touch_the_next_and_results_keep_their_order() {
    let expressions = Expressions::start().unwrap();
    let Value::Object(input) = json!({ "args": { "a": 1 } }) else { unreachable!() };
    let question = |when: &str| Question { when: Arc::from(when), trigger: "dispatch:indeterminate" };
    let questions = ["args.a == 1", "args.b == 1", "args.a == 2", "trigger == 'dispatch:indeterminate'"];
    let found =
        expressions.judge(&tenant(), questions.iter().map(|when| question(when)).collect(), Arc::new(input)).await;
    assert!(matches!(found.as_slice(), [Found::Yes, Found::Failed(_), Found::No, Found::Yes]), "{found:?}");
    assert_eq!(expressions.judge(&tenant(), Vec::new(), Arc::default()).await, []);
}
