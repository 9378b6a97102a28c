//! Tokens and tickets: what is taken and what is refused.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use aws_lc_rs::{hmac, rsa};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use secrecy::SecretString;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::net::{Egress, EgressAllow, EgressClient};
use crate::run::ids::{RunId, RunUid};

const NOW: Timestamp = Timestamp::from_millis(1_796_000_000_000);
const NOW_S: i64 = 1_796_000_000;
const SECRET: &str = "0123456789abcdef0123456789abcdef";

struct Keys {
    rsa: EncodingKey,
    ec: EncodingKey,
    ed: EncodingKey,
    stranger: EncodingKey,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let random = SystemRandom::new();
    let ec = || EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let der: aws_lc_rs::encoding::Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der.as_ref()));
    Keys {
        rsa: EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap(),
        ec: EncodingKey::from_ec_der(ec().as_ref()),
        ed: EncodingKey::from_ed_der(Ed25519KeyPair::generate_pkcs8v1(&random).unwrap().as_ref()),
        stranger: EncodingKey::from_ec_der(ec().as_ref()),
    }
});

fn public(key: &EncodingKey, algorithm: Algorithm, kid: &str) -> Value {
    let mut jwk = Jwk::from_encoding_key(key, algorithm).unwrap();
    jwk.common.key_id = Some(kid.to_owned());
    serde_json::to_value(jwk).unwrap()
}

fn key_set() -> Value {
    json!({ "keys": [
        public(&KEYS.rsa, Algorithm::RS256, "rsa"),
        public(&KEYS.ec, Algorithm::ES256, "ec"),
        public(&KEYS.ed, Algorithm::EdDSA, "ed"),
        { "kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET), "kid": "oct" },
        { "kty": "future", "kid": "?" },
    ]})
}

fn settings(jwks: Option<JwksSource>, hs256: bool) -> AuthSettings {
    AuthSettings {
        hs256: hs256.then(|| SecretString::from(SECRET)),
        jwks,
        issuer: Some("https://issuer".to_owned()),
        audience: Some("countersign".to_owned()),
        tenant_claim: "tenant".to_owned(),
    }
}

fn client() -> EgressClient {
    let egress = Egress::new(EgressAllow::parse(["127.0.0.1"]).unwrap());
    egress.client(std::time::Duration::from_secs(5), None).unwrap()
}

fn file_verifier(hs256: bool) -> Verifier {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), key_set().to_string()).unwrap();
    let jwks = Some(JwksSource::File(file.path().to_owned()));
    Verifier::new(&settings(jwks, hs256), client()).unwrap()
}

fn good_claims() -> Value {
    json!({
        "sub": "alice", "tenant": "acme", "scope": "runs:read runs:write openid",
        "iss": "https://issuer", "aud": ["other", "countersign"], "exp": NOW_S + 600, "nbf": NOW_S,
    })
}

fn signed(algorithm: Algorithm, kid: Option<&str>, key: &EncodingKey, claims: &Value) -> String {
    let mut header = Header::new(algorithm);
    header.kid = kid.map(str::to_owned);
    encode(&header, claims, key).unwrap()
}

fn hs256(claims: &Value) -> String {
    signed(Algorithm::HS256, None, &EncodingKey::from_secret(SECRET.as_bytes()).unwrap(), claims)
}

#[tokio::test]
async fn tokens_of_every_configured_kind_say_who_asks() {
    let verifier = file_verifier(true);
    let claims = good_claims();
    for token in [
        hs256(&claims),
        signed(Algorithm::RS256, Some("rsa"), &KEYS.rsa, &claims),
        signed(Algorithm::ES256, Some("ec"), &KEYS.ec, &claims),
        signed(Algorithm::EdDSA, Some("ed"), &KEYS.ed, &claims),
        signed(Algorithm::EdDSA, None, &KEYS.ed, &claims),
    ] {
        let caller = verifier.verify(&token, NOW).await.unwrap();
        assert_eq!((caller.tenant.as_str(), caller.actor.as_str()), ("acme", "alice"));
        assert_eq!(caller.scopes, BTreeSet::from([Scope::RunsRead, Scope::RunsWrite]));
        assert_eq!(caller.expires_at, NOW.plus_millis(600_000));
        assert!(caller.may(Scope::RunsRead) && !caller.may(Scope::Admin));
    }
}

#[tokio::test]
async fn tokens_of_a_wrong_kind_key_or_shape_are_refused() {
    let claims = good_claims();
    let header = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let body = header(&claims.to_string());
    let genuine = hs256(&claims);
    let (message, signature) = genuine.rsplit_once('.').unwrap();
    let other_body = header(&json!({ "sub": "mallory", "exp": NOW_S + 600 }).to_string());
    let public_key = public(&KEYS.rsa, Algorithm::RS256, "rsa")["n"].as_str().unwrap().to_owned();
    let with_public_key =
        signed(Algorithm::HS256, Some("rsa"), &EncodingKey::from_secret(public_key.as_bytes()).unwrap(), &claims);
    let secret_key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    let cases = [
        ("alg none", format!("{}.{body}.", header(r#"{"alg":"none","typ":"JWT"}"#)), AuthError::Malformed),
        ("alg None", format!("{}.{body}.", header(r#"{"alg":"None"}"#)), AuthError::Malformed),
        ("unknown crit", format!("{}.{body}.x", header(r#"{"alg":"HS256","crit":["exp"]}"#)), AuthError::Malformed),
        ("HS512", signed(Algorithm::HS512, None, &secret_key, &claims), AuthError::Algorithm),
        ("public key as secret", with_public_key.clone(), AuthError::Signature),
        ("wrong kid", signed(Algorithm::ES256, Some("ed"), &KEYS.ec, &claims), AuthError::UnknownKey),
        ("oct kid", signed(Algorithm::HS256, Some("oct"), &KEYS_OTHER_SECRET, &claims), AuthError::Signature),
        ("unknown key", signed(Algorithm::ES256, Some("new"), &KEYS.stranger, &claims), AuthError::UnknownKey),
        ("stranger's key", signed(Algorithm::ES256, Some("ec"), &KEYS.stranger, &claims), AuthError::Signature),
        (
            "other body",
            format!("{}.{other_body}.{signature}", message.split_once('.').unwrap().0),
            AuthError::Signature,
        ),
        ("no signature", format!("{message}."), AuthError::Signature),
        ("empty", String::new(), AuthError::Malformed),
        ("words", "not a token".to_owned(), AuthError::Malformed),
        ("two parts", message.to_owned(), AuthError::Malformed),
        ("too long", format!("{message}{}.{signature}", "A".repeat(20_000)), AuthError::Malformed),
    ];
    let verifier = file_verifier(true);
    for (case, token, refused) in cases {
        assert_eq!(verifier.verify(&token, NOW).await, Err(refused), "{case}");
    }
    // Where only public keys are configured, no shared secret is ever looked at; and the other way round.
    assert_eq!(file_verifier(false).verify(&with_public_key, NOW).await, Err(AuthError::Algorithm));
    let secret_only = Verifier::new(&settings(None, true), client()).unwrap();
    let by_key = signed(Algorithm::ES256, Some("ec"), &KEYS.ec, &claims);
    assert_eq!(secret_only.verify(&by_key, NOW).await, Err(AuthError::Algorithm));
}

static KEYS_OTHER_SECRET: LazyLock<EncodingKey> =
    LazyLock::new(|| EncodingKey::from_secret(b"another secret of enough length!").unwrap());

#[tokio::test]
async fn claims_are_all_checked() {
    let verifier = file_verifier(true);
    let missing = |name: &str| AuthError::MissingClaim(name.to_owned());
    let bad = |name: &str| AuthError::BadClaim(name.to_owned());
    let cases: Vec<(&str, Value, Option<AuthError>)> = vec![
        ("exp", Value::Null, Some(missing("exp"))),
        ("exp", json!(NOW_S - 60), Some(AuthError::Expired)),
        ("exp", json!(NOW_S - 59), None),
        ("exp", json!(f64::from(1_796_000_000) + 0.5), None),
        ("exp", json!("1796000600"), Some(bad("exp"))),
        ("exp", json!(-1), Some(AuthError::Expired)),
        ("nbf", Value::Null, None),
        ("nbf", json!(NOW_S + 60), None),
        ("nbf", json!(NOW_S + 61), Some(AuthError::NotYetValid)),
        ("nbf", json!(true), Some(bad("nbf"))),
        ("iss", json!("https://other"), Some(AuthError::Issuer)),
        ("iss", json!(["https://issuer"]), Some(AuthError::Issuer)),
        ("iss", Value::Null, Some(AuthError::Issuer)),
        ("aud", json!("countersign"), None),
        ("aud", json!("countersigns"), Some(AuthError::Audience)),
        ("aud", json!([]), Some(AuthError::Audience)),
        ("aud", Value::Null, Some(AuthError::Audience)),
        ("sub", Value::Null, Some(missing("sub"))),
        ("sub", json!(""), Some(bad("sub"))),
        ("sub", json!(7), Some(bad("sub"))),
        ("sub", json!("system:recovery"), Some(bad("sub"))),
        ("sub", json!("Alice"), None),
        ("sub", json!("alice "), Some(AuthError::Unseen)),
        ("sub", json!("alice\u{200b}"), Some(AuthError::Unseen)),
        ("sub", json!("alice\n"), Some(AuthError::Unseen)),
        ("tenant", Value::Null, Some(missing("tenant"))),
        ("tenant", json!(""), Some(bad("tenant"))),
        ("tenant", json!("a\u{0}b"), Some(bad("tenant"))),
        ("tenant", json!(["acme"]), Some(bad("tenant"))),
        ("scope", Value::Null, Some(missing("scope"))),
        ("scope", json!(["runs:read"]), Some(bad("scope"))),
        ("scope", json!(""), None),
        ("scopes", json!(["runs:read"]), None),
        ("scopes", json!("runs:read"), Some(bad("scopes"))),
        ("scopes", json!([1]), Some(bad("scopes"))),
    ];
    for (name, value, refused) in cases {
        let mut claims = good_claims();
        let map = claims.as_object_mut().unwrap();
        if value.is_null() {
            map.remove(name)
        } else {
            map.insert(name.to_owned(), value.clone())
        };
        let verdict = verifier.verify(&hs256(&claims), NOW).await.err();
        assert_eq!(verdict, refused, "{name} = {value}");
    }
}

#[tokio::test]
async fn the_tenant_claim_is_the_configured_one_and_admin_allows_everything() {
    let mut settings = settings(None, true);
    settings.tenant_claim = "https://acme.example/org".to_owned();
    let verifier = Verifier::new(&settings, client()).unwrap();
    let mut claims = good_claims();
    assert!(verifier.verify(&hs256(&claims), NOW).await.is_err());
    claims["https://acme.example/org"] = json!("org-7");
    claims["scope"] = json!("admin");
    let caller = verifier.verify(&hs256(&claims), NOW).await.unwrap();
    assert_eq!(caller.tenant.as_str(), "org-7");
    assert!(Scope::ALL.iter().all(|scope| caller.may(*scope)));
}

#[tokio::test]
async fn a_made_token_is_taken_and_says_what_was_asked() {
    let settings = settings(None, true);
    let grant = Grant {
        tenant: TenantId::parse("acme").unwrap(),
        actor: Actor::parse("alice").unwrap(),
        scope: "runs:read".to_owned(),
        ttl_s: parse_ttl("1h").unwrap(),
        workload_identity: None,
        image_digest: None,
    };
    let token = mint(&settings, &grant, NOW).unwrap();
    let caller = Verifier::new(&settings, client()).unwrap().verify(&token, NOW).await.unwrap();
    assert_eq!((caller.tenant, caller.actor), (grant.tenant.clone(), grant.actor.clone()));
    assert_eq!(caller.expires_at, NOW.plus_millis(3_600_000));
    let keyless = AuthSettings { hs256: None, ..settings };
    assert!(matches!(mint(&keyless, &grant, NOW), Err(MintError::NoSecret)));
}

#[test]
fn durations_read_with_their_unit() {
    for (text, seconds) in [("90s", 90), ("15m", 900), ("1h", 3600), ("7d", 604_800), ("1h30m", 5400)] {
        assert_eq!(parse_ttl(text), Some(seconds), "{text}");
    }
    for bad in ["", "1", "h", "-1h", "1.5h", "0s", "1w", "99999999999999999999s", "9223372036854775807d"] {
        assert_eq!(parse_ttl(bad), None, "{bad}");
    }
}

#[test]
fn a_ticket_opens_one_run_first_soon_and_then_until_its_token_ends() {
    let key = |byte: u8| hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32]);
    let tickets = Tickets::new(vec![key(1)]);
    let caller = Caller {
        tenant: TenantId::parse("acme").unwrap(),
        actor: Actor::parse("alice").unwrap(),
        scopes: BTreeSet::from([Scope::RunsRead]),
        scope_names: BTreeSet::from(["runs:read".to_owned()]),
        expires_at: NOW.plus_millis(600_000),
        workload_identity: None,
        image_digest: None,
    };
    let run = RunId::parse("r1").unwrap();
    let (text, expires_at) = tickets.make(&caller, &run, RunUid(Uuid::from_u128(7)), NOW).unwrap();
    assert_eq!(expires_at, caller.expires_at);
    let read = |is_reconnect, passed| tickets.read(&text, is_reconnect, NOW.plus_millis(passed));
    assert_eq!(read(false, 60_000).unwrap().run, run);
    assert_eq!(read(false, 60_001), Err(TicketRefusal::Late));
    assert!(read(true, 599_999).is_ok());
    assert_eq!(read(true, 600_000), Err(TicketRefusal::Expired));

    let long = Caller { expires_at: NOW.plus_millis(86_400_000), ..caller };
    assert_eq!(tickets.make(&long, &run, RunUid(Uuid::nil()), NOW).unwrap().1, NOW.plus_millis(3_600_000));

    assert!(Tickets::new(vec![key(2), key(1)]).read(&text, false, NOW).is_ok(), "an older key still verifies");
    assert_eq!(Tickets::new(vec![key(2)]).read(&text, false, NOW), Err(TicketRefusal::Invalid));
    let (body, mac) = text.split_once('.').unwrap();
    let forged =
        URL_SAFE_NO_PAD.encode(String::from_utf8(URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap().replace("r1", "r2"));
    for bad in ["", ".", "a.b", body, &format!("{body}."), &format!("{forged}.{mac}"), &format!("{text}.x")] {
        assert_eq!(tickets.read(bad, false, NOW), Err(TicketRefusal::Invalid), "{bad}");
    }
}

/// An issuer whose answer can be changed, and that counts how often it was asked.
async fn issuer(answer: Arc<parking_lot::Mutex<String>>, asked: Arc<AtomicU32>) -> (Url, tokio::task::JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}/keys", listener.local_addr().unwrap())).unwrap();
    let router = axum::Router::new().route(
        "/keys",
        axum::routing::get(move || async move {
            asked.fetch_add(1, Ordering::SeqCst);
            answer.lock().clone()
        }),
    );
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, tasks)
}

#[tokio::test]
async fn keys_are_fetched_again_for_an_unknown_kid_at_most_once_a_minute() {
    let answer = Arc::new(parking_lot::Mutex::new("no keys here".to_owned()));
    let asked = Arc::new(AtomicU32::new(0));
    let (url, _tasks) = issuer(Arc::clone(&answer), Arc::clone(&asked)).await;
    let verifier = Verifier::new(&settings(Some(JwksSource::Url(url)), false), client()).unwrap();
    let token = signed(Algorithm::ES256, Some("ec"), &KEYS.ec, &good_claims());
    assert_eq!(verifier.verify(&token, NOW).await, Err(AuthError::KeysUnavailable));
    *answer.lock() = json!({ "keys": [public(&KEYS.ec, Algorithm::ES256, "ec")] }).to_string();
    assert_eq!(verifier.verify(&token, NOW.plus_millis(59_000)).await, Err(AuthError::KeysUnavailable));
    assert_eq!(asked.load(Ordering::SeqCst), 1, "not asked again within a minute");

    let later = NOW.plus_millis(60_000);
    let several = futures::future::join_all((0..20).map(|_| verifier.verify(&token, later))).await;
    assert!(several.iter().all(Result::is_ok), "{several:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 2, "one request for all that wait");

    let unknown = signed(Algorithm::ES256, Some("new"), &KEYS.stranger, &good_claims());
    assert_eq!(verifier.verify(&unknown, later.plus_millis(1)).await, Err(AuthError::UnknownKey));
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    *answer.lock() = json!({ "keys": [public(&KEYS.stranger, Algorithm::ES256, "new")] }).to_string();
    assert!(verifier.verify(&unknown, later.plus_millis(60_000)).await.is_ok());
    let withdrawn = verifier.verify(&token, later.plus_millis(60_001)).await;
    assert_eq!(withdrawn, Err(AuthError::UnknownKey), "a withdrawn key ends");
}

#[tokio::test]
async fn a_withdrawn_key_ends_even_when_no_unknown_kid_is_seen() {
    let answer = Arc::new(parking_lot::Mutex::new(key_set().to_string()));
    let asked = Arc::new(AtomicU32::new(0));
    let (url, _tasks) = issuer(Arc::clone(&answer), Arc::clone(&asked)).await;
    let verifier = Verifier::new(&settings(Some(JwksSource::Url(url)), false), client()).unwrap();
    let mut claims = good_claims();
    claims["exp"] = json!(NOW_S + 7200);
    let token = signed(Algorithm::ES256, Some("ec"), &KEYS.ec, &claims);
    assert!(verifier.verify(&token, NOW).await.is_ok());
    *answer.lock() = "down".to_owned();
    assert!(verifier.verify(&token, NOW.plus_millis(600_000)).await.is_ok(), "known keys serve while it is down");
    *answer.lock() = json!({ "keys": [public(&KEYS.ed, Algorithm::EdDSA, "ed")] }).to_string();
    assert_eq!(verifier.verify(&token, NOW.plus_millis(660_000)).await, Err(AuthError::UnknownKey));
}

#[test]
fn a_key_file_that_does_not_read_is_named() {
    let missing = settings(Some(JwksSource::File("/nowhere/keys.json".into())), false);
    let fault = Verifier::new(&missing, client()).err().unwrap();
    assert!(fault.to_string().starts_with("/nowhere/keys.json: "), "{fault}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#).unwrap();
    let empty = settings(Some(JwksSource::File(file.path().to_owned())), false);
    assert!(matches!(Verifier::new(&empty, client()), Err(JwksFault::NotASet(_))));
}
