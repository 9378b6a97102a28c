//! Who shares a connection with whom, and when it is closed.

use std::time::Duration;

use countersign::mcp::{McpPool, McpTarget, News, PoolSettings};
use countersign::run::ids::{Fence, RunUid, TenantId};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{acme, call, call_as, charge, class, pool, pool_with, settings, target};
use crate::support::fake_mcp::{FakeMcp, Reply};

const FRESH: Duration = Duration::from_mins(1);

async fn use_as(pool: &McpPool, tenant: &str, target: &McpTarget) {
    let tenant = TenantId::parse(tenant).unwrap();
    let outcome = call_as(pool, &tenant, target, charge(1)).await;
    assert_eq!(class(&outcome), "done", "{outcome:?}");
}

#[tokio::test]
async fn many_first_users_make_one_handshake_and_one_reading() {
    let fake = FakeMcp::start().await;
    let pool = pool();
    let mut users = JoinSet::new();
    for _ in 0..20 {
        let (pool, target) = (std::sync::Arc::clone(&pool), target(&fake.url()));
        users.spawn(async move {
            pool.catalog(&acme(), &target, FRESH).await.unwrap();
            use_as(&pool, "acme", &target).await;
        });
    }
    while let Some(user) = users.join_next().await {
        user.unwrap();
    }
    assert_eq!((fake.count("initialize"), fake.count("tools/list"), fake.count("tools/call")), (1, 1, 20));
}

#[tokio::test]
async fn users_that_wait_for_a_connection_share_its_failure() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Takes connections and never answers: each attempt costs the whole connect time.
    let mut target = target(&format!("http://{}/mcp", listener.local_addr().unwrap()));
    target.timeouts.connect_ms = 300;
    let pool = pool();
    let tenant = acme();
    let started = tokio::time::Instant::now();
    let readings = (0..20).map(|_| pool.catalog(&tenant, &target, FRESH));
    for reading in futures::future::join_all(readings).await {
        assert!(reading.unwrap_err().message.contains("300 ms"));
    }
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[tokio::test]
async fn b108_equal_configurations_of_one_tenant_share_and_nobody_else_does() {
    let fake = FakeMcp::start().await;
    let pool = pool();
    let base = target(&fake.url());
    use_as(&pool, "acme", &base).await;
    let mut other_limits = base.clone();
    other_limits.timeouts.call_ms += 1;
    use_as(&pool, "acme", &other_limits).await;
    assert_eq!(fake.count("initialize"), 1, "the second run makes no new handshake");
    use_as(&pool, "globex", &base).await;
    assert_eq!(fake.count("initialize"), 2, "another tenant never shares");
    let mut rotated = base.clone();
    rotated.secret_header = Some(("authorization".to_owned(), "Bearer other".into()));
    use_as(&pool, "acme", &rotated).await;
    assert_eq!(fake.count("initialize"), 3, "another secret is another identity");
    assert_eq!(pool.open_connections(), 3);
}

#[tokio::test]
async fn b205_calls_at_once_use_one_session() {
    let fake = FakeMcp::start().await;
    let (pool, target) = (pool(), target(&fake.url()));
    let outcomes = futures::future::join_all((0..3).map(|_| call(&pool, &target))).await;
    assert!(outcomes.iter().all(|outcome| class(outcome) == "done"));
    let sessions: std::collections::HashSet<String> =
        fake.seen_rpc("tools/call").iter().map(|seen| seen.headers["mcp-session-id"].clone()).collect();
    assert_eq!((sessions.len(), fake.count("tools/call")), (1, 3));
}

#[tokio::test]
async fn b106_b109_a_private_connection_ends_with_its_run_and_a_shared_one_stays() {
    let fake = FakeMcp::start().await;
    let pool = pool();
    let shared = target(&fake.url());
    let run = RunUid(Uuid::new_v4());
    let private = McpTarget { private_to: Some((run, Fence(1))), ..shared.clone() };
    use_as(&pool, "acme", &shared).await;
    use_as(&pool, "acme", &private).await;
    use_as(&pool, "acme", &private).await;
    assert_eq!(fake.count("initialize"), 2);
    pool.release_run(RunUid(Uuid::new_v4()), Fence(1)).await;
    pool.release_run(run, Fence(0)).await;
    assert_eq!(fake.count_http("DELETE"), 0, "a drive that lost the run long ago leaves its successor's alone");
    pool.release_run(run, Fence(1)).await;
    assert_eq!((fake.count_http("DELETE"), pool.open_connections()), (1, 1));
    use_as(&pool, "acme", &shared).await;
    assert_eq!(fake.count("initialize"), 2);
    use_as(&pool, "acme", &private).await;
    assert_eq!(fake.count("initialize"), 3, "a resumed run opens a new one");
}

#[tokio::test]
async fn a_server_that_restarts_on_its_port_is_reached_again() {
    let restarted = async |fake: FakeMcp| {
        let addr = fake.addr();
        fake.stop().await;
        let fake = FakeMcp::start_at(addr).await;
        fake.close_after_each_answer();
        fake
    };
    let fake = FakeMcp::start().await;
    fake.close_after_each_answer();
    let (pool, target) = (pool(), target(&fake.url()));
    use_as(&pool, "acme", &target).await;
    let fake = restarted(fake).await;
    use_as(&pool, "acme", &target).await;
    assert_eq!((fake.count("initialize"), fake.count("tools/call")), (1, 2), "refused for its session, then executed");
    let fake = restarted(fake).await;
    let catalog = pool.catalog(&acme(), &target, Duration::ZERO).await.unwrap();
    assert_eq!((catalog.tools.len(), fake.count("initialize")), (1, 1));
}

#[tokio::test]
async fn idle_and_old_connections_are_closed_but_never_one_in_use() {
    for settings in [
        PoolSettings { idle_close: Duration::ZERO, ..settings() },
        PoolSettings { max_age: Duration::ZERO, ..settings() },
    ] {
        let fake = FakeMcp::start().await;
        let pool = pool_with(settings);
        let target = target(&fake.url());
        let gate = std::sync::Arc::new(tokio::sync::Notify::new());
        let reply = Reply::When(std::sync::Arc::clone(&gate), Box::new(Reply::text("charged")));
        fake.on_call(move |_| reply.clone());
        let calling = call(&pool, &target);
        let sweeping = async {
            fake.wait_until(|fake| fake.count("tools/call") == 1).await;
            pool.sweep();
            assert_eq!(pool.open_connections(), 1, "in use");
            gate.notify_one();
        };
        assert_eq!(class(&tokio::join!(calling, sweeping).0), "done");
        let stop = CancellationToken::new();
        let closed = async {
            fake.wait_until(|fake| fake.count_http("DELETE") == 1).await;
            stop.cancel();
        };
        tokio::join!(pool.keep_tidy(stop.clone()), closed);
        assert_eq!(pool.open_connections(), 0);
    }
}

#[tokio::test]
async fn b107_whoever_watches_a_connection_keeps_it_and_hears_of_it_until_they_let_go() {
    let fake = FakeMcp::start().await;
    fake.let_listen();
    let pool = pool_with(PoolSettings { idle_close: Duration::ZERO, ..settings() });
    let target = target(&fake.url());
    let (_, watched) = pool.read(&acme(), &target, FRESH).await.unwrap();
    fake.wait_until(|fake| fake.count_http("GET") == 1).await;
    pool.sweep();
    assert_eq!((pool.open_connections(), watched.news()), (1, News::None), "in use");
    fake.announce();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while watched.news() != News::Announced {
        assert!(tokio::time::Instant::now() < deadline, "the announcement is not heard");
        tokio::task::yield_now().await;
    }
    let (_, again) = pool.read(&acme(), &target, FRESH).await.unwrap();
    assert_eq!((again.news(), watched.news()), (News::None, News::Announced), "each reading for itself");
    assert_eq!((fake.count("tools/list"), fake.count("initialize")), (2, 1));
    drop((watched, again));
    pool.sweep();
    assert_eq!(pool.open_connections(), 0, "nobody watches it any more");
    let (_, private) = pool.read(&acme(), &target, FRESH).await.unwrap();
    pool.close().await;
    assert_eq!(private.news(), News::Lost);
}

#[tokio::test]
async fn a_closed_pool_ends_its_sessions_and_opens_no_more() {
    let fake = FakeMcp::start().await;
    let (pool, target) = (pool(), target(&fake.url()));
    use_as(&pool, "acme", &target).await;
    pool.close().await;
    assert_eq!((fake.count_http("DELETE"), pool.open_connections()), (1, 0));
    assert_eq!(class(&call(&pool, &target).await), "not sent mcp-unreachable");
    assert_eq!(fake.count("initialize"), 1);
}

#[tokio::test]
async fn a_server_is_asked_for_its_era_once() {
    let fake = FakeMcp::start().await;
    let pool = pool();
    for tenant in ["acme", "globex", "initech"] {
        use_as(&pool, tenant, &target(&fake.url())).await;
    }
    assert_eq!((fake.count("server/discover"), fake.count("initialize")), (1, 3));
}

#[tokio::test]
async fn headers_that_belong_to_the_protocol_are_refused_and_no_fault_shows_a_secret() {
    let fake = FakeMcp::start().await;
    for name in ["Mcp-Session-Id", "Host", "idempotency-key", "Content-Length", "bad name"] {
        let mut target = target(&fake.url());
        target.headers.push((name.to_owned(), "x".to_owned()));
        let fault = pool().catalog(&acme(), &target, FRESH).await.unwrap_err();
        assert!(fault.message.to_ascii_lowercase().contains(&name.to_ascii_lowercase()), "{fault}");
    }
    let mut target = target(&fake.url());
    target.secret_header = Some(("authorization".to_owned(), "Bearer hun\nter2".into()));
    let fault = pool().catalog(&acme(), &target, FRESH).await.unwrap_err();
    assert!(!fault.message.contains("ter2"), "{fault}");
    assert_eq!(fake.seen().len(), 0);
}
