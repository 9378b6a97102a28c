//! The real binary that takes the tokens of a real issuer only, and tokens that are wrong in one way each.

use std::time::Duration;

use countersign::auth::{AuthError, AuthSettings, JwksSource, Verifier};
use countersign::clock::{Clock as _, SystemClock};
use countersign::net::{Egress, EgressAllow};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::counterparts::jwt_issuer;
use crate::support::database::Database;
use crate::support::process::Process;
use crate::support::product::{Options, Product};

const AUDIENCE: &str = "countersign-tests";

async fn order(issuer: &Process, method: Method, path: &str) -> Value {
    let claims = json!({"sub": "alice", "tenant": "acme", "scope": "runs:read", "aud": AUDIENCE});
    let request = reqwest::Client::new().request(method, issuer.url(path)).body(claims.to_string());
    let answer = request.send().await.unwrap().text().await.unwrap();
    serde_json::from_str(&answer).unwrap()
}

async fn token(issuer: &Process, path: &str) -> String {
    let answer = order(issuer, Method::POST, path).await;
    answer["token"].as_str().unwrap_or_else(|| panic!("{path}: {answer}")).to_owned()
}

/// A server that knows nothing but where the issuer's keys are.
async fn product(database: &Database, about: &Value) -> Product {
    let issuer = about["issuer"].as_str().unwrap();
    let options = Options::default()
        .with("COUNTERSIGN_JWT_HS256_SECRET", "")
        .with("COUNTERSIGN_JWKS_URL", format!("{issuer}/jwks"))
        .with("COUNTERSIGN_JWT_ISSUER", issuer);
    Product::start_as(&database.url, &options).await
}

async fn status_of(product: &Product, token: &str) -> u16 {
    let request = reqwest::Client::new().get(product.url("/v1/runs")).bearer_auth(token);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn tokens_of_a_real_issuer_are_taken_and_hostile_ones_refused() {
    let Some(issuer) = jwt_issuer().await else { return };
    let database = Database::sqlite().await;
    let product = product(&database, &order(&issuer, Method::GET, "/about").await).await;
    assert_eq!(status_of(&product, &token(&issuer, "/token").await).await, 200);
    let kinds = order(&issuer, Method::GET, "/hostile/").await;
    assert_eq!(kinds.as_array().unwrap().len(), 11);
    for kind in kinds.as_array().unwrap() {
        let kind = kind.as_str().unwrap();
        let hostile = token(&issuer, &format!("/hostile/{kind}")).await;
        assert_eq!(status_of(&product, &hostile).await, 401, "{kind}");
        assert!(!product.log().contains(&hostile), "{kind}");
    }
    assert_eq!(order(&issuer, Method::GET, "/about").await["asked"], 0, "no token says where its key is");
    assert_eq!(status_of(&product, &token(&issuer, "/token").await).await, 200);
}

#[tokio::test]
async fn a_new_key_of_a_real_issuer_is_taken_and_a_withdrawn_one_refused() {
    let Some(issuer) = jwt_issuer().await else { return };
    let about = order(&issuer, Method::GET, "/about").await;
    let address = about["issuer"].as_str().unwrap().to_owned();
    let settings = AuthSettings {
        hs256: None,
        jwks: Some(JwksSource::Url(format!("{address}/jwks").parse().unwrap())),
        issuer: Some(address),
        audience: Some(AUDIENCE.to_owned()),
        tenant_claim: "tenant".to_owned(),
    };
    let egress = Egress::new(EgressAllow::parse(["localhost"]).unwrap());
    let client = egress.client(Duration::from_secs(5), None).unwrap();
    let verifier = Verifier::new(&settings, client).unwrap();
    let now = SystemClock.now();
    let old = token(&issuer, "/token").await;
    verifier.verify(&old, now).await.unwrap();
    order(&issuer, Method::POST, "/rotate").await;
    let new = token(&issuer, "/token").await;
    // The set is read again once a minute at most, whatever tokens come.
    assert_eq!(verifier.verify(&new, now.plus_millis(1_000)).await, Err(AuthError::UnknownKey));
    verifier.verify(&new, now.plus_millis(61_000)).await.unwrap();
    verifier.verify(&old, now.plus_millis(62_000)).await.unwrap();
    order(&issuer, Method::POST, "/withdraw").await;
    let newest = token(&issuer, "/token").await;
    verifier.verify(&newest, now.plus_millis(122_000)).await.unwrap();
    for withdrawn in [old, new] {
        assert_eq!(verifier.verify(&withdrawn, now.plus_millis(123_000)).await, Err(AuthError::UnknownKey));
    }
}
