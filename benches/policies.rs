//! What rules cost: the judgement of a call by one rule, by ten, and by ten on large arguments, one after the other and many
//! at once; and a rule that was never seen before.
//!
//! `cargo bench --bench policies`; half a minute. A judgement is what a call waits for before its receipt is stored: the way to
//! a thread that evaluates, the evaluation of all rules, and the way back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use countersign::policy::{Expressions, Input, Question};
use countersign::run::ids::TenantId;
use countersign::run::policy::Found;
use futures::future::join_all;
use serde_json::{Map, Value, json};

/// Judgements of one measurement.
const CALLS: usize = 20_000;
/// Rules that are compiled for the first time.
const FRESH: usize = 500;
/// Judgements that wait at once.
const AT_ONCE: usize = 64;

fn main() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let expressions = Expressions::start()?;
        let tenant = TenantId::parse("bench").ok_or_else(|| anyhow::anyhow!("no name of a tenant"))?;
        let small = input(&json!({ "amount": 500, "currency": "USD", "items": [{ "price": 5 }, { "price": 9 }] }));
        let text = "x".repeat(20_000);
        let large = input(&json!({ "amount": 500, "currency": "USD", "items": [{ "price": 5 }], "document": text }));
        for (name, rules, input) in [
            ("one rule", 1, &small),
            ("ten rules", 10, &small),
            ("ten rules, 20 KB beside what they look at", 10, &large),
        ] {
            in_turn(&expressions, &tenant, name, rules, input).await?;
        }
        at_once(&expressions, &tenant, &small).await;
        fresh(&expressions, &tenant, &small).await;
        Ok(())
    })
}

fn input(args: &Value) -> Input {
    let mut roots = Map::new();
    roots.insert("args".to_owned(), args.clone());
    roots.insert("tool".to_owned(), json!({ "name": "charge", "server": "till", "side_effect_class": "read_only" }));
    roots.insert("run".to_owned(), json!({ "id": "r", "agent": null, "created_by": "a", "metadata": {}, "turns": 1 }));
    Arc::new(roots)
}

fn questions(count: usize) -> Vec<Question> {
    let sources = [
        "args.amount > 1000",
        "args.currency in ['USD', 'EUR'] && args.amount > 100",
        "args.items.exists(item, item.price > 100)",
        "tool.name == 'charge' && run.turns > 3",
        "args.currency.matches('^[A-Z]{3}$')",
    ];
    let question = |source: &&str| Question { when: Arc::from(*source), trigger: "call" };
    sources.iter().cycle().take(count).map(question).collect()
}

async fn in_turn(
    expressions: &Expressions,
    tenant: &TenantId,
    name: &str,
    rules: usize,
    input: &Input,
) -> anyhow::Result<()> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let began = Instant::now();
        let found = expressions.judge(tenant, questions(rules), Arc::clone(input)).await;
        times.push(began.elapsed());
        anyhow::ensure!(!found.iter().any(|found| matches!(found, Found::Failed(_))), "{found:?}");
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    say(&format!("{name}: p50 {:?}, p99 {:?}", at(50), at(99)));
    Ok(())
}

async fn at_once(expressions: &Expressions, tenant: &TenantId, input: &Input) {
    let began = Instant::now();
    let worker = || async {
        for _ in 0..CALLS / AT_ONCE {
            expressions.judge(tenant, questions(10), Arc::clone(input)).await;
        }
    };
    join_all((0..AT_ONCE).map(|_| worker())).await;
    let took = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let each = CALLS as f64 / took;
    say(&format!("ten rules, {AT_ONCE} calls at once: {each:.0} calls/s"));
}

async fn fresh(expressions: &Expressions, tenant: &TenantId, input: &Input) {
    let mut total = Duration::ZERO;
    for number in 0..FRESH {
        let when = Arc::from(format!("args.amount > {number} && args.currency == 'USD'"));
        let began = Instant::now();
        expressions.judge(tenant, vec![Question { when, trigger: "call" }], Arc::clone(input)).await;
        total += began.elapsed();
    }
    say(&format!("a rule that was never seen: {:?}", total / u32::try_from(FRESH).unwrap_or(u32::MAX)));
}

#[expect(clippy::print_stdout, reason = "what a bench is for")]
fn say(line: &str) {
    println!("{line}");
}
