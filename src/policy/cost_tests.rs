//! What expressions cost: hostile ones on the largest inputs, and ordinary ones that must go on.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::*;

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn input(args: Value) -> Input {
    let Value::Object(input) = json!({ "args": args, "tool": { "name": "charge" }, "run": { "turns": 1 } }) else {
        unreachable!()
    };
    Arc::new(input)
}

/// As much as an expression may look at: a long text and a long list.
fn largest() -> Input {
    let text: String =
        (0_u32..250_000).map(|at| if at.wrapping_mul(2_654_435_761) >> 31 == 0 { 'x' } else { 'y' }).collect();
    let objects: Vec<Value> = (0..100).map(|at| json!({ "name": format!("n{at}"), "price": 9.5, "qty": at })).collect();
    input(json!({ "l": (0..9_000).collect::<Vec<u32>>(), "s": text, "o": objects }))
}

async fn said(expressions: &Expressions, of: &str, when: &str, input: &Input) -> Found {
    let question = Question { when: Arc::from(when), trigger: "call" };
    expressions.judge(&tenant(of), vec![question], Arc::clone(input)).await.remove(0)
}

/// Whether it was refused for what it would cost.
fn is_too_dear(found: &Found) -> bool {
    matches!(found, Found::Failed(why) if why.contains("it costs too much"))
}

const PATTERN: &str = "(?:x|y)*x(?:x|y){30}[^xy]";

/// What was found to hold a thread for hours, and to take all memory.
fn found_by_attackers() -> [String; 2] {
    let copies = vec!["args.l.map(x, bytes(args.s))"; 25].join(" + ");
    [format!("args.l.exists(x, args.s.matches('{PATTERN}'))"), format!("size({copies}) > 0")]
}

#[tokio::test]
async fn what_multiplies_is_not_evaluated_and_others_are_served_meanwhile() {
    let expressions = Expressions::start().unwrap();
    let (hostile, input_of_evil) = (found_by_attackers(), largest());
    let began = Instant::now();
    let many = (0..8).map(|at| said(&expressions, "evil", &hostile[at % 2], &input_of_evil));
    let evil = futures::future::join_all(many);
    let small = input(json!({ "a": 7 }));
    let victim = async {
        for _ in 0..20 {
            assert_eq!(said(&expressions, "victim", "args.a > 5", &small).await, Found::Yes);
        }
        began.elapsed()
    };
    let (evil, served) = tokio::join!(evil, victim);
    assert!(evil.iter().all(is_too_dear), "{evil:?}");
    assert!(served < Duration::from_secs(3), "another tenant waited {served:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn whatever_an_expression_multiplies_it_ends_in_time() {
    let expressions = Expressions::start().unwrap();
    let largest = largest();
    let repeat = |part: &str, by: &str, times: usize| vec![part; times].join(by);
    let chain = ".a".repeat(450);
    let sources = [
        // Refused: each would take minutes or gigabytes.
        (true, "args.l.all(x, args.s.contains('z') == false)".to_owned()),
        (true, "args.l.all(x, args.s.size() > x)".to_owned()),
        (true, "args.l.all(x, args.s == args.s)".to_owned()),
        (true, "args.l.exists(x, (args.s + 'a').endsWith('b'))".to_owned()),
        (true, "args.l.exists(x, args.s < args.s || args.s + x == '')".to_owned()),
        (true, "args.l.exists(x, (args.l + args.l + args.l).size() == x)".to_owned()),
        (true, "args.l.exists(x, args.l.size() + [args.l].size() == x && [args.l, args.l] == [args.o])".to_owned()),
        (true, format!("args.l.exists(x, x{chain} > 0)")),
        (true, "args.l.map(x, args.l).size() > 5".to_owned()),
        (true, "args.l.map(x, string(args.s)).size() > 5".to_owned()),
        (true, "args.l.map(x, {'a': args.s}).size() > 5".to_owned()),
        (true, format!("{} == ''", repeat("args.s", "+", 120))),
        // Evaluated: as dear as it gets.
        (false, format!("args.l.all(x, {})", repeat("x >= 0", " && ", 9))),
        (false, format!("{} == ''", repeat("args.s", "+", 8))),
        (false, "args.l.map(x, x * 2).filter(x, x > 5).map(x, [x]).size() > 5".to_owned()),
        (false, format!("args.s.matches('{PATTERN}')")),
        (false, "args.l.exists(x, x in args.o)".to_owned()),
    ];
    for (is_refused, source) in sources {
        assert!(source.len() <= SOURCE_MAX, "{}", source.len());
        let began = Instant::now();
        let found = said(&expressions, "evil", &source, &largest).await;
        assert!(!is_refused || is_too_dear(&found), "{source}: {found:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{source}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn ordinary_rules_go_on_also_on_large_arguments() {
    let expressions = Expressions::start().unwrap();
    let items: Vec<Value> = (0..1_000)
        .map(|at| json!({ "sku": format!("SKU-{at}"), "mail": format!("user{at}@example.com"), "qty": at % 7, "price": 9.5 }))
        .collect();
    let letter = "Dear customer, your order is on its way. ".repeat(2_500);
    let args = json!({
        "amount": 1500, "currency": "EUR", "items": items, "letter": letter,
        "ids": (0..5_000).collect::<Vec<u32>>(), "allowed": ["EUR", "USD"],
    });
    let input = input(args);
    for source in [
        "args.amount > 1000 && args.currency in args.allowed",
        "args.items.all(i, i.qty < 7 && i.price <= 10.0)",
        "args.items.all(i, i.sku.startsWith('SKU-') && i.mail.matches('^[a-z0-9.]+@example[.]com$'))",
        "args.items.map(i, i.price * 2.0).exists(p, p > 18.0)",
        "args.items.filter(i, i.qty > 3).map(i, i.sku).size() > 10",
        "args.items.exists_one(i, i.sku == 'SKU-77')",
        "args.items.all(i, args.currency in ['EUR', 'USD'] || i.qty > args.amount)",
        "args.ids.all(i, i >= 0) && 4999 in args.ids && args.ids.size() == 5000",
        "args.letter.contains('order') && args.letter.size() > 100000",
        r"args.letter.matches('(?i)order\\s+is') && !args.letter.matches('[0-9]{4}-[0-9]{4}-[0-9]{4}-[0-9]{4}')",
        "('Re: ' + args.letter).startsWith('Re: Dear')",
        "has(args.items) && type(args.items) == list && string(args.amount) == '1500'",
    ] {
        assert_eq!(said(&expressions, "acme", source, &input).await, Found::Yes, "{source}");
    }
}

#[tokio::test]
async fn patterns_are_paid_by_the_length_of_what_they_are_matched_with() {
    let expressions = Expressions::start().unwrap();
    let largest = largest();
    // Five thousand states, with a text of 250 kB: refused when it is matched, whatever else is said of it.
    for source in
        ["args.s.matches('x{6000}z')", "args.s.matches('x{6000}z') || true", "args.s.matches('x{6000}z') && false"]
    {
        let found = said(&expressions, "evil", source, &largest).await;
        assert!(is_too_dear(&found), "{source}: {found:?}");
    }
    let short = input(json!({ "s": "x" }));
    assert_eq!(said(&expressions, "evil", "args.s.matches('x{6000}z')", &short).await, Found::No);
    let many = (0..30).map(|at| format!("||args.s.matches('{at}{{2500}}')")).collect::<Vec<String>>().concat();
    let fault =
        expressions.check(&tenant("evil"), vec![(format!("false{many}"), Roots::Call)]).await.unwrap().remove(0);
    assert!(fault.unwrap().contains("all of an expression take 256 KiB at most"));
}

#[tokio::test]
async fn patterns_that_are_dear_to_compile_are_refused_in_time() {
    let expressions = Expressions::start().unwrap();
    for pattern in
        [format!("(?i){}", r"\\pL".repeat(190)), r"(?i)\\w{200}".to_owned(), r"((a{100}){100}){100}".to_owned()]
    {
        let began = Instant::now();
        let source = format!("args.s.matches('{pattern}')");
        let fault = expressions.check(&tenant("evil"), vec![(source, Roots::Call)]).await.unwrap().remove(0);
        assert!(fault.unwrap().contains("the pattern cannot be used"), "{pattern}");
        assert!(began.elapsed() < Duration::from_secs(5), "{pattern}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn many_dear_rules_of_one_tenant_let_others_go_first() {
    let expressions = Expressions::start().unwrap();
    let largest = largest();
    let dear = Question { when: Arc::from("args.l.all(x, x >= 0 && x < 9000 && x != -1)"), trigger: "call" };
    let greedy = tenant("evil");
    let evil = (0..6).map(|_| expressions.judge(&greedy, vec![dear.clone(); 100], Arc::clone(&largest)));
    let evil = futures::future::join_all(evil);
    let small = input(json!({ "a": 7 }));
    let began = Instant::now();
    let victim = async {
        for _ in 0..10 {
            assert_eq!(said(&expressions, "victim", "args.a > 5", &small).await, Found::Yes);
        }
        began.elapsed()
    };
    let (evil, served) = tokio::join!(evil, victim);
    assert!(served < Duration::from_secs(2), "another tenant waited {served:?}");
    // What was not looked at in time says so.
    let is_said = |found: &Found| {
        matches!(found, Found::Yes) || matches!(found, Found::Failed(why) if why.contains("within 2 s"))
    };
    assert!(evil.iter().all(|found| found.len() == 100 && found.iter().all(is_said)), "{evil:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn the_count_follows_what_is_named_and_not_what_stands_beside_it() {
    let env = cel::Env::stdlib();
    let count = |source: &str, args: Value| {
        let Value::Object(input) = json!({ "args": args }) else { unreachable!() };
        let tree = env.compile(source).unwrap();
        let of: &Map<String, Value> = &input;
        cost::steps(tree.expression(), of)
    };
    let beside = |text: &str| json!({ "a": 1, "b": text });
    assert_eq!(count("args.a > 5", beside("")), count("args.a > 5", beside(&"x".repeat(100_000))));
    assert!(count("args.b == 'x'", beside(&"x".repeat(100_000))) > 100_000);
    let list = |length: usize| json!({ "l": vec!["x"; length] });
    let (one, ten) = (count("args.l.all(e, e == 'x')", list(10)), count("args.l.all(e, e == 'x')", list(100)));
    assert!(ten > 5 * one && ten < 11 * one, "{one}, {ten}");
}
