//! How the token endpoint is found, what is sent to it, and whom nothing is sent to.

use std::sync::Arc;

use countersign::oauth::{ClientSecret, Grant, OauthFault, SecretOwner, TokenSource};
use countersign::run::ids::{RunUid, TenantId};
use countersign::store::Store;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{MASTER_KEY, auth, tokens};
use crate::support::database::Database;
use crate::support::fake_issuer::{Asked, FakeIssuer, Grants};
use crate::support::fake_mcp::FakeMcp;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
const METADATA: &str = "/.well-known/oauth-authorization-server";

const EC_KEY: &str = include_str!("keys/es256.pem");
const EC_PUBLIC: &str = include_str!("keys/es256.pub.pem");
const RSA_KEY: &str = include_str!("keys/rs256.pem");
const RSA_PUBLIC: &str = include_str!("keys/rs256.pub.pem");

/// A guarded server, its issuer, and a store behind both.
struct World {
    server: FakeMcp,
    issuer: FakeIssuer,
    store: Arc<dyn Store>,
    _database: Database,
}

impl World {
    async fn start() -> Self {
        let (server, issuer) = (FakeMcp::start().await, FakeIssuer::start().await);
        issuer.guard(&server);
        let database = Database::sqlite().await;
        Self { server, issuer, store: database.open().await, _database: database }
    }

    fn source(&self, more: Value, secret: &str) -> TokenSource {
        let auth = serde_json::from_value(auth(more)).unwrap();
        let grant = Grant::of(&self.server.url().parse().unwrap(), &auth).unwrap().unwrap();
        let owner = SecretOwner::Run(RunUid(Uuid::nil()));
        let secret = ClientSecret { name: "client".to_owned(), value: secret.into(), owner };
        tokens(&self.store, MASTER_KEY).source(&TenantId::parse("acme").unwrap(), grant, secret)
    }

    async fn asks(&self, more: Value) -> Asked {
        self.asks_with(more, "s3cret").await
    }

    async fn asks_with(&self, more: Value, secret: &str) -> Asked {
        let before = self.issuer.asked().len();
        self.source(more, secret).token().await.unwrap();
        let asked = self.issuer.asked();
        assert_eq!(asked.len(), before + 1);
        asked[before].clone()
    }

    async fn fails(&self, more: Value) -> String {
        self.fails_with(more, "s3cret").await
    }

    async fn fails_with(&self, more: Value, secret: &str) -> String {
        let fault = self.source(more, secret).token().await.unwrap_err().to_string();
        assert!(!fault.contains("s3cret"), "{fault}");
        fault
    }

    fn guard(&self, path: &'static str, document: Value, challenge: &str) {
        self.issuer.guard_with(&self.server, Some((path, document)), challenge);
    }

    fn resource(&self) -> Value {
        json!({"resource": self.server.url(), "authorization_servers": [self.issuer.url()]})
    }
}

#[tokio::test]
async fn the_servers_challenge_leads_to_the_endpoint_and_the_secret_goes_as_basic() {
    let world = World::start().await;
    let asked = world.asks(json!({"scopes": ["a", "b"]})).await;
    // `svc:s3cret`
    assert_eq!(asked.authorization.as_deref(), Some("Basic c3ZjOnMzY3JldA=="));
    let form = json!(asked.form);
    assert_eq!(form, json!({"grant_type": "client_credentials", "scope": "a b", "resource": world.server.url()}));
    let asked: Vec<String> =
        world.server.seen().iter().map(|seen| format!("{} {}", seen.http_method, seen.path)).collect();
    assert_eq!(asked, ["POST /mcp".to_owned(), format!("GET {WELL_KNOWN}/mcp")]);
    assert_eq!(world.issuer.documents(), [METADATA]);
    assert!(world.server.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
}

#[tokio::test]
async fn documents_are_found_in_each_of_their_places() {
    let world = World::start().await;
    world.guard(
        "/elsewhere.json",
        world.resource(),
        &format!("Bearer resource_metadata=\"http://{}/elsewhere.json\"", world.server.addr()),
    );
    world.asks(json!({})).await;
    world.guard(WELL_KNOWN, world.resource(), "Bearer");
    world.asks(json!({})).await;
    // A server that calls itself by its origin; the name is passed on as it is.
    let origin = format!("http://{}", world.server.addr());
    world.guard(
        WELL_KNOWN,
        json!({"resource": origin, "authorization_servers": [world.issuer.url()]}),
        "Basic realm=x",
    );
    assert_eq!(world.asks(json!({})).await.form["resource"], origin);
    for (issuer, places) in [
        ("", vec!["/.well-known/openid-configuration"]),
        ("/", vec![METADATA]),
        ("/t", vec!["/.well-known/oauth-authorization-server/t"]),
        ("/t", vec!["/.well-known/openid-configuration/t"]),
        ("/t", vec!["/t/.well-known/openid-configuration"]),
    ] {
        world.issuer.hide();
        let named = format!("{}{issuer}", world.issuer.url());
        // A bare origin is known with and without its slash.
        let own = named.trim_end_matches('/').to_owned();
        for place in places {
            world.issuer.describe(place, world.issuer.metadata(&own));
        }
        world.guard(WELL_KNOWN, json!({"resource": world.server.url(), "authorization_servers": [named]}), "Bearer");
        world.asks(json!({})).await;
        world.asks(json!({"issuer": named})).await;
    }
}

#[tokio::test]
async fn a_named_token_endpoint_needs_no_document() {
    let world = World::start().await;
    world.issuer.hide();
    let asked = world.asks(json!({"token_url": world.issuer.token_url(), "resource": "urn:x"})).await;
    assert_eq!(asked.form["resource"], "urn:x");
    let asked = world.asks(json!({"token_url": world.issuer.token_url(), "audience": "api"})).await;
    assert_eq!((asked.form.get("audience").map(String::as_str), asked.form.get("resource")), (Some("api"), None));
    assert!(world.issuer.documents().is_empty() && world.server.seen().is_empty());
}

#[tokio::test]
async fn the_way_to_authenticate_is_the_entrys_or_one_that_the_issuer_offers() {
    let world = World::start().await;
    let post = world.asks(json!({"method": "client-secret-post"})).await;
    assert_eq!((post.authorization, post.form["client_id"].as_str()), (None, "svc"));
    assert_eq!(post.form["client_secret"], "s3cret");
    let mut metadata = world.issuer.metadata(world.issuer.url());
    metadata["token_endpoint_auth_methods_supported"] = json!(["client_secret_post"]);
    world.issuer.describe(METADATA, metadata);
    assert_eq!(world.asks(json!({})).await.form["client_secret"], "s3cret");
    let basic = world.asks(json!({"method": "client-secret-basic"})).await;
    assert!(basic.authorization.is_some() && !basic.form.contains_key("client_secret"));
    // RFC 6749: both halves are form-encoded first.
    let odd = world.asks_with(json!({"client_id": "a:b c", "method": "client-secret-basic"}), "p+s:ü").await;
    assert_eq!(odd.authorization.as_deref(), Some("Basic YSUzQWIrYzpwJTJCcyUzQSVDMyVCQw=="));
}

/// Checks that a client with this key signs what its public half and this audience accept.
async fn check_signed(
    world: &World,
    more: Value,
    key: &str,
    public: &DecodingKey,
    algorithm: Algorithm,
    audience: &str,
) {
    let asked = world.asks_with(more.clone(), key).await;
    assert_eq!(asked.form["client_assertion_type"], "urn:ietf:params:oauth:client-assertion-type:jwt-bearer");
    assert!(asked.authorization.is_none() && !asked.form.contains_key("client_secret"));
    let assertion = &asked.form["client_assertion"];
    let mut validation = Validation::new(algorithm);
    validation.set_audience(&[audience]);
    validation.set_issuer(&["svc"]);
    let claims = decode::<Value>(assertion, public, &validation).unwrap().claims;
    assert_eq!(
        (claims["sub"].as_str(), claims["exp"].as_i64()),
        (Some("svc"), claims["iat"].as_i64().map(|at| at + 60))
    );
    assert!(claims["jti"].is_string());
    assert_eq!(decode_header(assertion).unwrap().kid.as_deref(), more["key_id"].as_str());
    let again = world.asks_with(more, key).await;
    assert_ne!(&again.form["client_assertion"], assertion, "no two are alike");
}

#[tokio::test]
async fn a_private_key_signs_and_is_never_sent() {
    let world = World::start().await;
    let issuer = world.issuer.url().to_owned();
    let (ec, rsa) = (
        DecodingKey::from_ec_pem(EC_PUBLIC.as_bytes()).unwrap(),
        DecodingKey::from_rsa_pem(RSA_PUBLIC.as_bytes()).unwrap(),
    );
    check_signed(&world, json!({}), EC_KEY, &ec, Algorithm::ES256, &issuer).await;
    check_signed(&world, json!({"method": "private-key-jwt", "key_id": "k"}), RSA_KEY, &rsa, Algorithm::RS256, &issuer)
        .await;
    check_signed(&world, json!({"algorithm": "PS384"}), RSA_KEY, &rsa, Algorithm::PS384, &issuer).await;
    let endpoint = world.issuer.token_url();
    check_signed(&world, json!({"token_url": endpoint}), EC_KEY, &ec, Algorithm::ES256, &endpoint).await;
    let before = world.issuer.asked().len();
    for (more, secret, says) in [
        (json!({"method": "client-secret-post"}), EC_KEY, "only signs"),
        (json!({"method": "private-key-jwt"}), "s3cret", "no private key in PEM form"),
        (json!({"algorithm": "RS256"}), EC_KEY, "does not fit the algorithm"),
        (
            json!({}),
            "-----BEGIN EC PRIVATE KEY-----\nMHc=\n-----END EC PRIVATE KEY-----\n",
            "no private key in PEM form",
        ),
    ] {
        let fault = world.fails_with(more, secret).await;
        assert!(fault.contains(says) && !fault.contains("BEGIN"), "{fault}");
    }
    assert_eq!(world.issuer.asked().len(), before);
}

#[tokio::test]
async fn a_server_cannot_have_the_secret_sent_to_whom_it_likes() {
    let world = World::start().await;
    let (evil, server) = (FakeIssuer::start().await, world.server.url());
    let challenge = format!("Bearer resource_metadata=\"http://{}{WELL_KNOWN}\"", world.server.addr());
    let elsewhere = evil.url().replace("127.0.0.1", "localhost");
    for (document, says) in [
        (json!({"resource": server, "authorization_servers": [elsewhere]}), "name it as the entry's `issuer`"),
        (
            json!({"resource": "https://evil.example/mcp", "authorization_servers": [world.issuer.url()]}),
            "of another resource",
        ),
        (json!({"resource": server, "authorization_servers": []}), "names no authorization server"),
        (json!({"resource": server, "authorization_servers": ["no url"]}), "names no authorization server"),
        (json!({"authorization_servers": [world.issuer.url()]}), "of another resource"),
        (json!([]), "no JSON object"),
    ] {
        world.guard(WELL_KNOWN, document.clone(), &challenge);
        let fault = world.fails(json!({})).await;
        assert!(fault.contains(says), "{document}: {fault}");
    }
    // Named by the entry it is trusted: the issuer is the caller's word, not the server's.
    evil.describe(METADATA, evil.metadata(&elsewhere));
    world.asks_of(&evil, json!({"issuer": elsewhere})).await;
    let asked = evil.asked().len();
    world.guard(WELL_KNOWN, world.resource(), &format!("Bearer resource_metadata=\"{elsewhere}/doc\""));
    assert!(world.fails(json!({})).await.contains("on another host"));
    // An issuer that hands on to another host, or says that it is another.
    world.guard(WELL_KNOWN, world.resource(), &challenge);
    let mut metadata = world.issuer.metadata(world.issuer.url());
    metadata["token_endpoint"] = json!(format!("{elsewhere}/token"));
    world.issuer.describe(METADATA, metadata);
    assert!(world.fails(json!({})).await.contains("name it as the entry's `issuer`"));
    world.issuer.describe(METADATA, world.issuer.metadata("https://evil.example"));
    assert!(world.fails(json!({})).await.contains("of another issuer"));
    world.issuer.describe(METADATA, json!({"issuer": world.issuer.url()}));
    assert!(world.fails(json!({})).await.contains("name no token endpoint"));
    world.issuer.hide();
    assert!(world.fails(json!({})).await.contains("nowhere to be found"));
    assert_eq!((evil.asked().len(), world.issuer.asked().len()), (asked, 0));
}

impl World {
    async fn asks_of(&self, issuer: &FakeIssuer, more: Value) {
        self.source(more, "s3cret").token().await.unwrap();
        assert_eq!(issuer.asked().len(), 1);
    }
}

#[tokio::test]
async fn addresses_that_may_not_be_dialled_are_not_dialled_for_a_token_either() {
    let world = World::start().await;
    for address in ["http://169.254.169.254/token", "https://10.0.0.1/token", "http://example.com/token"] {
        let fault = world.fails(json!({"token_url": address})).await;
        assert!(fault.contains("not allowed"), "{address}: {fault}");
        let fault = world.fails(json!({"issuer": address})).await;
        assert!(fault.contains("not allowed"), "{address}: {fault}");
    }
}

#[tokio::test]
async fn each_bad_answer_of_a_token_endpoint_has_a_name_and_quotes_nothing() {
    let world = World::start().await;
    let token = |more: Value| {
        let mut body = json!({"access_token": "t", "token_type": "Bearer"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    for (status, body, says) in [
        (400, json!({"error": "invalid_scope", "error_description": "s3cret"}).to_string(), ": invalid_scope"),
        (401, json!({"error": "s3cret is WRONG"}).to_string(), ": an error without a code"),
        (200, json!({"error": "invalid_grant"}).to_string(), ": invalid_grant"),
        (302, String::new(), "(HTTP 302)"),
        (429, String::new(), "(HTTP 429)"),
        (500, "<html>s3cret</html>".to_owned(), "(HTTP 500)"),
        (200, "<html>s3cret</html>".to_owned(), "something else than a JSON object"),
        (200, "[]".to_owned(), "something else than a JSON object"),
        (200, token(json!({"token_type": "DPoP"})), "no bearer token"),
        (200, json!({"access_token": "t"}).to_string(), "no bearer token"),
        (200, token(json!({"access_token": ""})), "no access token that a header can carry"),
        (200, token(json!({"access_token": "a\r\nb"})), "no access token that a header can carry"),
        (200, token(json!({"access_token": "x".repeat(300 * 1024)})), "answers without end"),
    ] {
        let answer = body.clone();
        world.issuer.on_token(move |_| Grants::Http(status, answer.clone()));
        let fault = world.fails(json!({"token_url": world.issuer.token_url()})).await;
        assert!(fault.contains(says), "{status} {}: {fault}", body.chars().take(80).collect::<String>());
    }
    for expires_in in [json!(null), json!("3600"), json!(0), json!(-1), json!(1e300), json!("soon")] {
        let answer = token(json!({"expires_in": expires_in}));
        world.issuer.on_token(move |_| Grants::Http(200, answer.clone()));
        world.asks(json!({"token_url": world.issuer.token_url()})).await;
    }
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_is_given_up_in_time() {
    let world = World::start().await;
    world.issuer.on_token(|_| Grants::Never);
    let source = world.source(json!({"token_url": world.issuer.token_url()}), "s3cret");
    let fault = source.token().await.unwrap_err();
    assert!(matches!(&fault, OauthFault::Unreachable { why, .. } if why == "no answer within 8 s"), "{fault}");
    assert_eq!(fault.to_string(), "the token endpoint at 127.0.0.1 could not be reached (no answer within 8 s)");
}
