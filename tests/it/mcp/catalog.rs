//! Catalogs are read whole, kept while fresh, and refused when they make no sense.

use std::time::Duration;

use countersign::mcp::PoolSettings;
use countersign::run::binding::ServedCatalog;
use serde_json::{Value, json};

use super::{acme, pool, target};
use crate::support::fake_mcp::{FakeMcp, Reply, Step, tool};

const FRESH: Duration = Duration::from_mins(1);

fn names(catalog: &ServedCatalog) -> Vec<&str> {
    catalog.tools.iter().map(|tool| tool.name.as_str()).collect()
}

#[track_caller]
fn check_refused(
    list: impl Fn(Option<&str>) -> Value + Send + Sync + 'static,
    want: &'static str,
) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let fake = FakeMcp::start().await;
        fake.on_list(move |seen| Reply::Result(list(seen.body["params"]["cursor"].as_str())));
        let fault = pool().catalog(&acme(), &target(&fake.url()), FRESH).await.unwrap_err();
        assert!(fault.message.contains(want), "{place}: {fault}");
        assert!(fake.count("tools/list") <= 101, "{place}");
    }
}

#[tokio::test]
async fn all_pages_are_read_in_order_with_schemas_as_served() {
    let fake = FakeMcp::start().await;
    fake.on_list(|seen| {
        Reply::Result(match seen.body["params"]["cursor"].as_str() {
            None => json!({ "tools": [tool("b"), tool("a")], "nextCursor": "2" }),
            Some("2") => json!({ "tools": [], "nextCursor": "3" }),
            _ => {
                let schema =
                    json!({ "type": "object", "properties": { "n": { "maximum": 18_446_744_073_709_551_615_u64 } } });
                json!({ "tools": [{ "name": "c", "inputSchema": schema, "outputSchema": { "type": "object" } }] })
            }
        })
    });
    let catalog = pool().catalog(&acme(), &target(&fake.url()), FRESH).await.unwrap();
    assert_eq!(names(&catalog), ["b", "a", "c"]);
    assert_eq!(catalog.tools[0].description.as_deref(), Some("Charge the card on file."));
    assert_eq!(catalog.tools[2].description, None);
    assert_eq!(catalog.tools[2].input_schema["properties"]["n"]["maximum"].to_string(), "18446744073709551615");
    assert_eq!(catalog.tools[2].output_schema, Some(json!({ "type": "object" })));
}

#[tokio::test]
async fn catalogs_that_make_no_sense_are_refused_with_a_reason() {
    check_refused(|_| json!({ "tools": [tool("a")], "nextCursor": "again" }), "'a' twice").await;
    check_refused(|_| json!({ "tools": [], "nextCursor": "again" }), "circle").await;
    check_refused(|_| json!({ "tools": [tool("a"), tool("b"), tool("a")] }), "'a' twice").await;
    check_refused(
        |cursor| {
            let page: u32 = cursor.map_or(0, |text| text.parse().unwrap());
            json!({ "tools": [], "nextCursor": (page + 1).to_string() })
        },
        "more than 100 pages",
    )
    .await;
    let many =
        || -> Vec<Value> { (0..2_001).map(|at| json!({ "name": format!("t{at}"), "inputSchema": {} })).collect() };
    // Pages below the size limit, in sum too many.
    check_refused(
        move |cursor| {
            let start: usize = cursor.map_or(0, |text| text.parse().unwrap());
            let end = (start + 500).min(2_001);
            json!({ "tools": many()[start..end], "nextCursor": (end < 2_001).then(|| end.to_string()) })
        },
        "more than 2000 tools",
    )
    .await;
    check_refused(|_| json!({ "tools": { "a": tool("a") } }), "no list of tools").await;
    check_refused(|_| json!({ "tools": [], "nextCursor": 7 }), "no text").await;
}

/// A list of nearly everything that can be wrong with a tool, and two good ones.
fn spoilt() -> Value {
    let deep = (0..70).fold(json!({}), |inner, _| json!({ "not": inner }));
    json!({ "tools": [
        tool("first"), null, 7, {}, { "name": 7 }, { "name": "a\u{7}b" }, { "name": "none", "inputSchema": null },
        { "name": "absent" }, { "name": "text", "inputSchema": "{}" }, { "name": "deep", "inputSchema": deep },
        { "name": "huge", "description": "x".repeat(300_000), "inputSchema": {} },
        { "name": "lost", "inputSchema": { "properties": { "a": { "$ref": "#/$defs/Gone" } } } },
        { "name": "away", "inputSchema": { "properties": { "a": { "$ref": "https://127.0.0.1:1/a.json" } } } },
        { "name": "vague", "inputSchema": {}, "outputSchema": { "type": 7 }, "annotations": [1], "execution": "x" },
        tool("last"),
    ] })
}

#[tokio::test]
async fn field_a034_one_bad_tool_never_breaks_the_rest_in_either_kind_of_answer() {
    let pool = super::pool_with(PoolSettings { max_result_bytes: 1 << 20, ..super::settings() });
    for streams in [false, true] {
        let fake = FakeMcp::start().await;
        fake.on_list(move |_| if streams { Reply::Sse(vec![Step::Result(spoilt())]) } else { Reply::Result(spoilt()) });
        let catalog = pool.catalog(&acme(), &target(&fake.url()), FRESH).await.unwrap();
        let usable: Vec<&str> =
            catalog.tools.iter().filter(|tool| tool.unusable.is_none()).map(|tool| tool.name.as_str()).collect();
        assert_eq!(usable, ["first", "none", "absent", "vague", "last"]);
        let unusable: Vec<&str> =
            catalog.tools.iter().filter(|tool| tool.unusable.is_some()).map(|tool| tool.name.as_str()).collect();
        assert_eq!(unusable, ["text", "deep", "huge", "lost", "away"]);
        assert_eq!((catalog.unnamed.len(), catalog.tools[8].output_schema.clone()), (5, None));
    }
}

#[tokio::test]
async fn a_server_without_tools_has_an_empty_catalog() {
    let fake = FakeMcp::start().await;
    fake.on_list(|_| Reply::Error(json!({ "code": -32601, "message": "Method not found" })));
    assert_eq!(names(&pool().catalog(&acme(), &target(&fake.url()), FRESH).await.unwrap()), Vec::<&str>::new());
}

#[tokio::test]
async fn a_catalog_is_read_again_when_it_is_too_old_or_the_server_announced_a_change() {
    let fake = FakeMcp::start().await;
    let (pool, target) = (pool(), target(&fake.url()));
    let read = async |max_age| drop(pool.catalog(&acme(), &target, max_age).await.unwrap());
    read(FRESH).await;
    read(FRESH).await;
    assert_eq!(fake.count("tools/list"), 1, "served from the cache");
    read(Duration::ZERO).await;
    assert_eq!(fake.count("tools/list"), 2, "too old");
    fake.on_call(|_| {
        let announcement = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
        Reply::Sse(vec![Step::Raw(format!("data: {announcement}\n\n")), Step::Result(json!({ "content": [] }))])
    });
    super::call(&pool, &target).await;
    // The announcement is handled beside the answer: until it is, the cache may serve once more.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while fake.count("tools/list") < 3 && tokio::time::Instant::now() < deadline {
        read(FRESH).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(fake.count("tools/list"), 3, "announced");
    read(FRESH).await;
    assert_eq!(fake.count("tools/list"), 3, "one announcement, one reading");
}

#[tokio::test]
async fn an_unknown_protocol_revision_is_refused() {
    let fake = FakeMcp::start().await;
    fake.speak("2023-01-01");
    let fault = pool().catalog(&acme(), &target(&fake.url()), FRESH).await.unwrap_err();
    assert!(fault.message.contains("revision"), "{fault}");
}
