//! Addresses that must not be dialled.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use countersign::mcp::McpPool;
use countersign::net::{Egress, EgressAllow, Found, Names};
use futures::future::BoxFuture;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use url::Url;

use crate::mcp::{call, class, settings, target};
use crate::support::database::Database;
use crate::support::fake_mcp::FakeMcp;
use crate::support::product::Product;
use crate::support::world::run_on;

/// Takes connections, counts them and says nothing.
struct Trap {
    address: SocketAddr,
    dialled: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Trap {
    async fn at(address: &str) -> Option<Self> {
        let listener = TcpListener::bind(address).await.ok()?;
        let (address, dialled) = (listener.local_addr().ok()?, Arc::new(AtomicUsize::new(0)));
        let (counter, mut tasks) = (Arc::clone(&dialled), JoinSet::new());
        tasks.spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                drop(connection);
            }
        });
        Some(Self { address, dialled, _tasks: tasks })
    }

    fn dialled(&self) -> usize {
        self.dialled.load(Ordering::SeqCst)
    }
}

/// Two that listen on one port: the first where one may dial, the second where one may not.
async fn outside_and_inside() -> (Trap, Trap) {
    loop {
        let outside = Trap::at("127.0.0.2:0").await.unwrap();
        if let Some(inside) = Trap::at(&format!("127.0.0.1:{}", outside.address.port())).await {
            return (outside, inside);
        }
    }
}

/// Answers each look-up with the next list; the last stays.
#[derive(Debug)]
struct Turning(Mutex<VecDeque<Vec<&'static str>>>);

impl Turning {
    fn through(answers: &[&[&'static str]]) -> Arc<Self> {
        Arc::new(Self(Mutex::new(answers.iter().map(|answer| answer.to_vec()).collect())))
    }
}

impl Names for Turning {
    fn look_up<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Found> {
        let mut answers = self.0.lock();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        let found = answer.unwrap().into_iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
        Box::pin(async move { Ok(found) })
    }
}

/// Lets 127.0.0.2 stand for the public internet.
fn egress(names: Arc<Turning>) -> Egress {
    Egress::new(EgressAllow::parse(["127.0.0.2"]).unwrap()).with_names(names)
}

#[tokio::test]
async fn field_a128_a_name_that_turns_inward_between_check_and_use_is_not_dialled() {
    let (outside, inside) = outside_and_inside().await;
    let names = Turning::through(&[&["127.0.0.2"], &["127.0.0.1"], &["127.0.0.1", "127.0.0.2"], &["::ffff:127.0.0.1"]]);
    let egress = egress(names);
    let client = egress.client(Duration::from_secs(5), None).unwrap();
    let url: Url = format!("https://rebind.example:{}/", outside.address.port()).parse().unwrap();
    for (dialled, word) in [(1, ""), (1, "loopback"), (2, ""), (2, "loopback")] {
        assert_eq!(egress.check(&url), Ok(()), "the name itself is no offence");
        // Neither of the two speaks TLS: what counts is who was dialled.
        let fault = client.request(Method::GET, &url).unwrap().send().await.unwrap_err();
        assert!(format!("{fault:?}").contains(word), "{fault:?}");
        assert_eq!((outside.dialled(), inside.dialled()), (dialled, 0));
    }
}

#[tokio::test]
async fn field_a129_a_server_whose_name_is_turned_inward_later_is_not_called() {
    let (outside, inside) = outside_and_inside().await;
    let egress = egress(Turning::through(&[&["127.0.0.2"], &["127.0.0.1"]]));
    let pool = McpPool::new(egress.client(Duration::from_secs(5), None).unwrap(), settings());
    let target = target(&format!("https://rebind.example:{}/mcp", outside.address.port()));
    assert_eq!(class(&call(&pool, &target).await), "not sent mcp-unreachable");
    assert_eq!((outside.dialled() > 0, inside.dialled()), (true, 0));
    let before = outside.dialled();
    for _ in 0..3 {
        assert_eq!(class(&call(&pool, &target).await), "not sent mcp-unreachable");
    }
    assert_eq!((outside.dialled(), inside.dialled()), (before, 0));
}

/// Sends everybody elsewhere, and counts who came.
async fn redirector(status: u16, to: String) -> (Url, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}/mcp", listener.local_addr().unwrap())).unwrap();
    let (came, mut tasks) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let counter = Arc::clone(&came);
    let router = axum::Router::new().fallback(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        let answer = (http::StatusCode::from_u16(status).unwrap(), [(http::header::LOCATION, to.clone())]);
        async move { answer }
    });
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, came, tasks)
}

#[tokio::test]
async fn field_a132_nobody_is_followed_elsewhere_neither_server_model_issuer_nor_token_endpoint() {
    let (database, fake) = (Database::sqlite().await, FakeMcp::start().await);
    let trap = Trap::at("127.0.0.1:0").await.unwrap();
    let to = format!("http://{}/elsewhere", trap.address);
    for status in [301, 302, 303, 307, 308] {
        let (url, came, _tasks) = redirector(status, to.clone()).await;
        let product = Product::start_with(&database.url, &[("COUNTERSIGN_JWKS_URL", url.as_str())]).await;
        let secrets = json!({ "key": "canary" });

        let mcp = json!([{ "url": url, "auth": { "scheme": "bearer", "secret": "key" } }]);
        let body = json!({ "model": scripted(), "input": "Hi.", "mcp": mcp, "secrets": secrets });
        let problem = product.post("/v1/runs", &body, 502).await;
        assert_eq!(problem["code"], "mcp-unreachable", "{problem}");
        assert!(came.swap(0, Ordering::SeqCst) > 0, "the server was asked");

        let auth =
            json!({ "scheme": "oauth-client-credentials", "client_id": "svc", "secret": "key", "token_url": url });
        let mcp = json!([{ "url": fake.url(), "auth": auth }]);
        let body = json!({ "model": scripted(), "input": "Hi.", "mcp": mcp, "secrets": secrets });
        let problem = product.post("/v1/runs", &body, 502).await;
        assert_eq!(problem["code"], "mcp-unreachable", "{problem}");
        assert!(came.swap(0, Ordering::SeqCst) > 0, "the token endpoint was asked");

        let id = format!("model-{status}");
        let model = json!({ "provider": "openai", "name": "m", "secret": "key", "base_url": url });
        let body = json!({ "id": id, "model": model, "input": "Hi.", "secrets": secrets });
        product.post("/v1/runs", &body, 201).await;
        let run = product.rested(&id).await;
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("model-error")), "{run}");
        assert_eq!(came.swap(0, Ordering::SeqCst), 1, "the model was asked once");

        let claims = json!({ "sub": "a", "tenant": "acme", "exp": 4_000_000_000_u64 });
        let head = json!({ "alg": "RS256", "kid": "k" });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let token = format!("{}.{}.{}", part(&head), part(&claims), URL_SAFE_NO_PAD.encode("signed"));
        let answer = reqwest::Client::new().get(product.url("/v1/runs")).bearer_auth(token).send().await.unwrap();
        assert!(!answer.status().is_success(), "{answer:?}");
        assert_eq!(came.load(Ordering::SeqCst), 1, "the issuer was asked");

        assert_eq!(trap.dialled(), 0, "{status}");
    }
}

fn scripted() -> Value {
    json!({ "provider": "scripted", "name": "demo", "script": [{ "text": "Hello." }] })
}

#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let (database, fake) = (Database::sqlite().await, FakeMcp::start().await);
    let trap = Trap::at("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", trap.address);
    let names = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let product = Product::start_with(&database.url, &names.map(|name| (name, proxy.as_str()))).await;
    let charge = [("charge", json!({ "amount": 5 }))];
    product.post("/v1/runs", &run_on("r", &charge, json!([{ "url": fake.url() }])), 201).await;
    assert_eq!(product.rested("r").await["status"], "completed");
    assert_eq!((fake.count("tools/call"), trap.dialled()), (1, 0));
}
