//! How many connections a tenant may have, who makes room, who waits, and who is left alone.

use std::sync::Arc;
use std::time::Duration;

use countersign::mcp::{BreakerSettings, FaultKind, McpPool, McpTarget, News, PoolSettings};
use countersign::run::ids::TenantId;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{acme, call, charge, class, pool, pool_with, settings, target};
use crate::support::fake_mcp::{FakeMcp, Reply};

const FRESH: Duration = Duration::from_mins(1);

/// One of many identities at the same server.
fn numbered(fake: &FakeMcp, number: usize) -> McpTarget {
    let mut target = target(&fake.url());
    target.headers.push(("X-Number".to_owned(), number.to_string()));
    target
}

async fn use_as(pool: &McpPool, tenant: &str, target: &McpTarget) -> String {
    class(&pool.call(&TenantId::parse(tenant).unwrap(), target, charge(1), CancellationToken::new()).await)
}

#[tokio::test]
async fn a_full_tenant_loses_the_connection_that_was_idle_for_longest() {
    let fake = FakeMcp::start().await;
    let pool = pool_with(PoolSettings { server_connections: 2, ..settings() });
    for number in [0, 1, 0, 2] {
        assert_eq!(use_as(&pool, "acme", &numbered(&fake, number)).await, "done");
    }
    assert_eq!((pool.open_connections(), fake.count("initialize")), (2, 3));
    assert_eq!(use_as(&pool, "acme", &numbered(&fake, 0)).await, "done");
    assert_eq!(fake.count("initialize"), 3, "it was used later than the one that went");
    assert_eq!(use_as(&pool, "globex", &numbered(&fake, 0)).await, "done");
    assert_eq!(pool.open_connections(), 3, "another tenant has its own places");
}

#[tokio::test]
async fn a_caller_without_a_place_waits_and_is_then_certainly_not_sent() {
    for limits in
        [PoolSettings { tenant_connections: 1, ..settings() }, PoolSettings { server_connections: 1, ..settings() }]
    {
        let fake = FakeMcp::start().await;
        let gate = Arc::new(Notify::new());
        let reply = Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged")));
        fake.on_call(move |_| reply.clone());
        let pool = pool_with(limits);
        let (first, second) = (numbered(&fake, 0), numbered(&fake, 1));
        let holding = call(&pool, &first);
        let refused = async {
            fake.wait_until(|fake| fake.count("tools/call") == 1).await;
            let outcome = call(&pool, &second).await;
            assert_eq!(class(&outcome), "not sent mcp-unreachable");
            assert!(format!("{outcome:?}").contains("on this node are in use"), "{outcome:?}");
            let waiting = call(&pool, &second);
            gate.notify_one();
            let letting_through = async {
                fake.wait_until(|fake| fake.count("tools/call") == 2).await;
                gate.notify_one();
            };
            tokio::join!(waiting, letting_through).0
        };
        let (held, waited) = tokio::join!(holding, refused);
        assert_eq!((class(&held).as_str(), class(&waited).as_str()), ("done", "done"));
        assert_eq!((fake.count("tools/call"), pool.open_connections()), (2, 1));
    }
}

#[tokio::test]
async fn a_changed_registration_retires_the_connection_and_cuts_no_call() {
    let fake = FakeMcp::start().await;
    let pool = pool();
    let mut named = target(&fake.url());
    named.origin = Some("server/orders".to_owned());
    let (_, watched) = pool.read(&acme(), &named, FRESH).await.unwrap();
    let gate = Arc::new(Notify::new());
    let reply = Reply::When(Arc::clone(&gate), Box::new(Reply::text("charged")));
    fake.on_call(move |_| reply.clone());
    let calling = call(&pool, &named);
    let rotating = async {
        fake.wait_until(|fake| fake.count("tools/call") == 1).await;
        let mut rotated = named.clone();
        rotated.secret_header = Some(("authorization".to_owned(), "Bearer rotated".into()));
        pool.retire(&TenantId::parse("globex").unwrap(), "server/orders");
        assert_eq!(watched.news(), News::None, "another tenant's is not meant");
        pool.retire(&acme(), "server/orders");
        pool.catalog(&acme(), &rotated, FRESH).await.unwrap();
        assert_eq!(watched.news(), News::Lost, "whoever watched it looks for the new one");
        drop(watched);
        assert_eq!((fake.count_http("DELETE"), pool.open_connections()), (0, 2), "a call is out on it");
        gate.notify_one();
    };
    assert_eq!(class(&tokio::join!(calling, rotating).0), "done");
    fake.wait_until(|fake| fake.count_http("DELETE") == 1).await;
    assert_eq!((fake.count("tools/call"), pool.open_connections()), (1, 1));
    pool.retire(&acme(), "server/orders");
    assert_eq!(pool.open_connections(), 0);
}

#[tokio::test]
async fn a_server_that_is_down_is_left_alone_by_the_tenant_that_found_it_so() {
    let fake = FakeMcp::start().await;
    let addr = fake.addr();
    fake.stop().await;
    let breaker = BreakerSettings { failures: 3, pause: Duration::from_millis(500), pause_max: Duration::from_secs(1) };
    let pool = pool_with(PoolSettings { breaker, ..settings() });
    let target = target(&format!("http://{addr}/mcp"));
    for _ in 0..3 {
        assert_eq!(pool.catalog(&acme(), &target, FRESH).await.unwrap_err().kind, FaultKind::Unreachable);
    }
    let paused = Instant::now();
    let outcome = call(&pool, &target).await;
    assert!(format!("{outcome:?}").contains("paused until"), "{outcome:?}");
    assert!(paused.elapsed() < Duration::from_millis(200), "it fails at once");
    let fake = FakeMcp::start_at(addr).await;
    assert_eq!(pool.catalog(&acme(), &target, FRESH).await.unwrap_err().kind, FaultKind::Paused);
    assert_eq!(fake.seen().len(), 0, "nobody asks it meanwhile");
    assert_eq!(use_as(&pool, "globex", &target).await, "done");
    let deadline = Instant::now() + Duration::from_secs(5);
    while use_as(&pool, "acme", &target).await != "done" {
        assert!(Instant::now() < deadline, "it is not tried again");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_server_that_refuses_is_up() {
    let fake = FakeMcp::start().await;
    fake.refuse_handshakes(Reply::status(401, serde_json::json!({})));
    let pool = pool_with(PoolSettings { breaker: BreakerSettings { failures: 1, ..settings().breaker }, ..settings() });
    for _ in 0..3 {
        let fault = pool.catalog(&acme(), &target(&fake.url()), FRESH).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    }
    let other = FakeMcp::start().await;
    other.refuse_handshakes(Reply::status(503, serde_json::json!({})));
    let failed = pool.catalog(&acme(), &target(&other.url()), FRESH).await.unwrap_err();
    assert_eq!(failed.kind, FaultKind::ServerError, "{failed}");
    assert_eq!(pool.catalog(&acme(), &target(&other.url()), FRESH).await.unwrap_err().kind, FaultKind::Paused);
}

/// Sockets of this process that are open to a port.
fn sockets() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))).count()
}

#[tokio::test]
async fn a_thousand_calls_in_turn_and_two_hundred_at_once_leave_nothing_behind() {
    let Some(server) = crate::support::counterparts::everything().await else { return };
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = (sockets(), tasks());
    let (pool, mut target) = (pool(), target(&server.url("/mcp")));
    target.timeouts = countersign::run::spec::Timeouts { connect_ms: 30_000, ..Default::default() };
    let tenant = acme();
    let echo = || {
        let arguments = super::object(serde_json::json!({ "message": "hi" }));
        let request = countersign::mcp::ToolRequest { server_tool: "echo".to_owned(), arguments, ..charge(1) };
        pool.call(&tenant, &target, request, CancellationToken::new())
    };
    assert_eq!(class(&echo().await), "done");
    let one = (sockets(), tasks());
    for _ in 0..1_000 {
        assert_eq!(class(&echo().await), "done");
    }
    assert!(sockets() <= one.0 + 1 && tasks() <= one.1 + 1, "{one:?} {:?}", (sockets(), tasks()));
    let outcomes = futures::future::join_all((0..200).map(|_| echo())).await;
    assert!(outcomes.iter().all(|outcome| class(outcome) == "done"));
    assert_eq!((pool.open_connections(), pool.calls_out()), (1, 0));
    pool.close().await;
    drop(pool);
    let deadline = Instant::now() + Duration::from_secs(20);
    while sockets() > before.0 || tasks() > before.1 {
        assert!(Instant::now() < deadline, "{before:?} {:?}", (sockets(), tasks()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
