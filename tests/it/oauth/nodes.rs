//! What nodes share: one asks, all have the token.

use std::sync::Arc;
use std::time::Duration;

use countersign::oauth::{AccessToken, ClientSecret, Grant, OauthFault, SecretOwner, TokenSource, Tokens};
use countersign::run::ids::{Actor, RunUid, TenantId};
use countersign::run::spec::McpAuth;
use countersign::run::time::Timestamp;
use countersign::store::AuditRow;
use countersign::store::registry::{SecretInfo, StoredSecret};
use countersign::store::tokens::{SealedToken, TokenKey, TokenTurn};
use futures::future::join_all;
use secrecy::ExposeSecret as _;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::{MASTER_KEY, auth, tokens};
use crate::support::database::{Database, both_stores};
use crate::support::fake_issuer::{FakeIssuer, Grants, TOKEN_CANARY};

both_stores! {
    b211_two_nodes_with_fifty_calls_each_and_an_expired_token_ask_once => b211_two_nodes_with_fifty_calls_each_and_an_expired_token_ask_once,
    a_refused_token_is_renewed_once_for_all_nodes_and_never_by_who_has_a_newer_one => refused,
    a_node_that_dies_in_its_turn_is_in_nobodys_way_for_long => dead_holder,
    a_failure_gives_the_turn_back_and_is_not_repeated_at_once => failures,
    a_token_at_rest_is_sealed_and_one_that_does_not_open_is_got_anew => at_rest,
    a_runs_own_token_is_never_stored_and_nobody_elses => own,
    field_a061_the_turn_is_one_nodes_and_a_late_token_changes_nothing => field_a061_the_turn_is_one_nodes_and_a_late_token_changes_nothing,
    field_a059_a_token_whose_answer_is_lost_is_asked_for_again_and_another_nodes_is_used => field_a059_a_token_whose_answer_is_lost_is_asked_for_again_and_another_nodes_is_used,
    field_a060_a_thousand_tokens_that_end_at_once_are_all_renewed_each_once => field_a060_a_thousand_tokens_that_end_at_once_are_all_renewed_each_once,
    what_a_secret_bought_is_forgotten_with_it_also_what_is_on_its_way => forgotten,
    an_asker_that_goes_away_leaves_the_token_to_the_next => gone_asker,
    a_token_that_is_still_good_outlives_a_failed_renewal => still_good,
}

fn acme() -> TenantId {
    TenantId::parse("acme").unwrap()
}

fn source_of(tokens: &Arc<Tokens>, issuer: &FakeIssuer, owner: SecretOwner) -> TokenSource {
    let auth: McpAuth = serde_json::from_value(auth(json!({"token_url": issuer.token_url()}))).unwrap();
    let grant = Grant::of(&"http://127.0.0.1:1/mcp".parse().unwrap(), &auth).unwrap().unwrap();
    tokens.source(&acme(), grant, ClientSecret { name: "client".to_owned(), value: "s3cret".into(), owner })
}

fn stored_one() -> SecretOwner {
    SecretOwner::Tenant { version: 1, hosts: vec!["127.0.0.1".to_owned()] }
}

fn source(tokens: &Arc<Tokens>, issuer: &FakeIssuer) -> TokenSource {
    source_of(tokens, issuer, stored_one())
}

fn text(got: &Result<AccessToken, OauthFault>) -> String {
    got.as_ref().unwrap().value.expose_secret().to_owned()
}

/// A source for each of two nodes on one database.
async fn two_nodes(database: &Database, issuer: &FakeIssuer) -> [(Arc<Tokens>, TokenSource); 2] {
    // On SQLite one process has the file: its nodes share the store.
    let first = database.open().await;
    let second = if database.url.starts_with("sqlite:") { Arc::clone(&first) } else { database.open().await };
    [first, second].map(|store| {
        let node = tokens(&store, MASTER_KEY);
        let source = source(&node, issuer);
        (node, source)
    })
}

async fn b211_two_nodes_with_fifty_calls_each_and_an_expired_token_ask_once(database: Database) {
    let issuer = FakeIssuer::start().await;
    let first = two_nodes(&database, &issuer).await[0].1.token().await;
    assert_eq!(issuer.asked().len(), 1);
    database.execute("UPDATE oauth_tokens SET expires_at = 1").await;
    let nodes = two_nodes(&database, &issuer).await;
    let all = join_all(nodes.iter().flat_map(|(node, _)| {
        // As calls do: each has a source of its own.
        (0..50).map(|_| source(node, &issuer)).map(|source| async move { source.token().await })
    }))
    .await;
    let texts: Vec<String> = all.iter().map(text).collect();
    assert_eq!((texts.len(), issuer.asked().len()), (100, 2));
    assert!(texts.iter().all(|each| *each == texts[0] && *each != text(&first)));
}

async fn refused(database: Database) {
    let issuer = FakeIssuer::start().await;
    let nodes = two_nodes(&database, &issuer).await;
    let old = nodes[0].1.token().await.unwrap();
    assert_eq!(nodes[1].1.token().await.unwrap().version, old.version);
    let renewing = nodes.iter().flat_map(|(_, source)| (0..50).map(|_| source.renew(&old, None)));
    let all = join_all(renewing).await;
    assert_eq!(issuer.asked().len(), 2);
    assert!(all.iter().all(|each| text(each) == text(&all[0])));
    // Whoever comes late with the old one gets the newer one.
    assert_eq!(text(&nodes[0].1.renew(&old, None).await), text(&all[0]));
    assert_eq!(issuer.asked().len(), 2);
    // A server that refuses whatever it is shown does not make us ask and ask.
    let new = all[0].as_ref().unwrap();
    let outcomes = [nodes[0].1.renew(new, None).await, nodes[1].1.renew(new, None).await];
    assert!(outcomes.iter().any(|each| matches!(each, Err(OauthFault::StillRefused))), "{outcomes:?}");
    assert!(issuer.asked().len() <= 3);
}

fn key_of(source: &TokenSource) -> TokenKey {
    TokenKey { tenant: acme(), secret: "client".to_owned(), identity: source.identity() }
}

async fn dead_holder(database: Database) {
    let issuer = FakeIssuer::start().await;
    let store = database.open().await;
    let source = source(&tokens(&store, MASTER_KEY), &issuer);
    let taken = store.token_turn(&key_of(&source), 0, Uuid::from_u128(9), 1_500).await.unwrap();
    assert_eq!(taken, TokenTurn::Taken(0));
    let asked = Instant::now();
    source.token().await.unwrap();
    assert!(asked.elapsed() > Duration::from_secs(1), "the turn was the other's");
    assert_eq!(issuer.asked().len(), 1);
}

async fn failures(database: Database) {
    let issuer = FakeIssuer::start().await;
    let nodes = two_nodes(&database, &issuer).await;
    let body = json!({"error": "invalid_client", "error_description": "s3cret is wrong"}).to_string();
    issuer.on_token(move |_| Grants::Http(401, body.clone()));
    let all = join_all((0..20).map(|_| nodes[0].1.token())).await;
    for each in &all {
        assert_eq!(
            each.as_ref().unwrap_err().to_string(),
            "the token endpoint at 127.0.0.1 refused to give an access token: invalid_client"
        );
    }
    assert_eq!(issuer.asked().len(), 1);
    issuer.on_token(|_| Grants::Token(3600));
    let asked = Instant::now();
    nodes[1].1.token().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(5), "the turn was given back");
}

async fn at_rest(database: Database) {
    let issuer = FakeIssuer::start().await;
    let store = database.open().await;
    let token = source(&tokens(&store, MASTER_KEY), &issuer).token().await;
    let dump = database.dump().await;
    assert!(dump.contains("oauth_tokens"));
    let hex = hex::encode(TOKEN_CANARY);
    assert!(!dump.contains(TOKEN_CANARY) && !dump.to_ascii_lowercase().contains(&hex), "{dump}");
    // The same node after a restart reads what it stored.
    assert_eq!(text(&source(&tokens(&store, MASTER_KEY), &issuer).token().await), text(&token));
    assert_eq!(issuer.asked().len(), 1);
    let other = "k2:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let renewed = source(&tokens(&store, other), &issuer).token().await.unwrap();
    assert_eq!((renewed.version, issuer.asked().len()), (2, 2));
}

async fn own(database: Database) {
    let issuer = FakeIssuer::start().await;
    let store = database.open().await;
    let node = tokens(&store, MASTER_KEY);
    let of = |run: u128| source_of(&node, &issuer, SecretOwner::Run(RunUid(Uuid::from_u128(run))));
    let (first, second, again) = (of(1), of(2), of(1));
    let texts = [text(&first.token().await), text(&second.token().await), text(&again.token().await)];
    assert_eq!(issuer.asked().len(), 2);
    assert!(texts[0] == texts[2] && texts[0] != texts[1]);
    for source in [&first, &second] {
        let turn = store.token_turn(&key_of(source), 0, Uuid::from_u128(9), 1_000).await.unwrap();
        assert_eq!(turn, TokenTurn::Taken(0), "nothing of it is in the store");
    }
    // It goes with its last user.
    drop((first, again));
    of(1).token().await.unwrap();
    assert_eq!(issuer.asked().len(), 3);
}

async fn field_a061_the_turn_is_one_nodes_and_a_late_token_changes_nothing(database: Database) {
    let store = database.open().await;
    let key = TokenKey { tenant: acme(), secret: "client".to_owned(), identity: [7; 32] };
    let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let token = |version| SealedToken { version, key_id: "k1".into(), sealed: vec![1, 2], expires_in_ms: 60_000 };
    assert_eq!(store.token_turn(&key, 0, a, 5_000).await.unwrap(), TokenTurn::Taken(0));
    let busy = store.token_turn(&key, 0, b, 5_000).await.unwrap();
    assert!(matches!(busy, TokenTurn::Busy(left) if (1..=5_000).contains(&left)), "{busy:?}");
    assert!(!store.token_keep(&key, b, &token(1)).await.unwrap(), "not its turn");
    assert!(store.token_keep(&key, a, &token(1)).await.unwrap());
    assert!(!store.token_keep(&key, a, &token(2)).await.unwrap(), "its turn is over");
    let newer = store.token_turn(&key, 0, b, 5_000).await.unwrap();
    assert!(matches!(&newer, TokenTurn::Newer(kept) if kept.version == 1 && kept.sealed == [1, 2]), "{newer:?}");
    // Who has seen version 1 may get the next; who waives lets the next one in at once.
    assert_eq!(store.token_turn(&key, 1, b, 5_000).await.unwrap(), TokenTurn::Taken(1));
    store.token_waive(&key, a).await.unwrap();
    assert!(matches!(store.token_turn(&key, 1, a, 5_000).await.unwrap(), TokenTurn::Busy(_)));
    store.token_waive(&key, b).await.unwrap();
    assert_eq!(store.token_turn(&key, 1, a, 0).await.unwrap(), TokenTurn::Taken(1));
    // A turn that lapsed is another's, and the late token of the first changes nothing.
    assert_eq!(store.token_turn(&key, 1, b, 5_000).await.unwrap(), TokenTurn::Taken(1));
    assert!(!store.token_keep(&key, a, &token(2)).await.unwrap());
    let elsewhere = TokenKey { tenant: TenantId::parse("umbrella").unwrap(), ..key };
    assert_eq!(store.token_turn(&elsewhere, 0, a, 5_000).await.unwrap(), TokenTurn::Taken(0));
}

async fn gone_asker(database: Database) {
    let issuer = FakeIssuer::start().await;
    let source = source(&tokens(&database.open().await, MASTER_KEY), &issuer);
    let gate = Arc::new(Notify::new());
    let held = Arc::clone(&gate);
    issuer.on_token(move |_| Grants::When(Arc::clone(&held)));
    assert!(timeout(Duration::from_millis(200), source.token()).await.is_err(), "it has gone");
    issuer.wait_for(1).await;
    gate.notify_one();
    source.token().await.unwrap();
    assert_eq!(issuer.asked().len(), 1);
}

async fn still_good(database: Database) {
    let issuer = FakeIssuer::start().await;
    let source = source(&tokens(&database.open().await, MASTER_KEY), &issuer);
    issuer.on_token(|_| Grants::Token(4));
    let first = text(&source.token().await);
    issuer.on_token(|_| Grants::Http(500, "no".to_owned()));
    let deadline = Instant::now() + Duration::from_secs(10);
    // Renewal begins before the end; until then the token serves.
    while issuer.asked().len() < 2 {
        assert_eq!(text(&source.token().await), first);
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let refused = source.token().await;
    assert!(refused.is_err() || text(&refused) == first);
}

async fn field_a059_a_token_whose_answer_is_lost_is_asked_for_again_and_another_nodes_is_used(database: Database) {
    let issuer = FakeIssuer::start().await;
    let nodes = two_nodes(&database, &issuer).await;
    // The issuer gave a token, and its answer broke off.
    issuer.on_token(|_| Grants::Http(200, "{\"access_token\": \"half".to_owned()));
    let lost = nodes[0].1.token().await.unwrap_err().to_string();
    assert!(lost.contains("token endpoint"), "{lost}");
    assert_eq!(issuer.asked().len(), 1, "it is said, and not asked for in a loop");
    issuer.on_token(|_| Grants::Token(3600));
    let newer = nodes[1].1.token().await;
    assert_eq!(issuer.asked().len(), 2);
    // Also where it was lost, the token that is stored by now is used.
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_newer = |got: Result<AccessToken, OauthFault>| got.is_ok() && text(&got) == text(&newer);
    while !is_newer(nodes[0].1.token().await) {
        assert!(Instant::now() < deadline, "the stored token is not used");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(issuer.asked().len(), 2);
}

async fn field_a060_a_thousand_tokens_that_end_at_once_are_all_renewed_each_once(database: Database) {
    let issuer = FakeIssuer::start().await;
    let store = database.open().await;
    for round in 1..=2 {
        let node = tokens(&store, MASTER_KEY);
        let hosts = || vec!["127.0.0.1".to_owned()];
        let of = |version| source_of(&node, &issuer, SecretOwner::Tenant { version, hosts: hosts() });
        let sources: Vec<TokenSource> = (0..1000).map(of).collect();
        let all = join_all(sources.iter().map(TokenSource::token)).await;
        let distinct: std::collections::BTreeSet<String> = all.iter().map(text).collect();
        assert_eq!((distinct.len(), issuer.asked().len()), (1000, 1000 * round), "each has a token of its own");
        database.execute("UPDATE oauth_tokens SET expires_at = 1").await;
    }
}

/// Whether some row still holds a token.
async fn is_kept(database: &Database) -> bool {
    let dump = database.dump().await;
    dump.lines().any(|line| line.contains("oauth_tokens") && line.contains("k1"))
}

async fn forgotten(database: Database) {
    let (issuer, store) = (FakeIssuer::start().await, database.open().await);
    let node = tokens(&store, MASTER_KEY);
    let put = async |version: u32| {
        let at = Timestamp::from_millis(i64::from(version));
        let info = SecretInfo {
            name: "client".to_owned(),
            version,
            key_id: "k0".to_owned(),
            hosts: vec!["127.0.0.1".to_owned()],
            created_at: at,
            updated_at: at,
        };
        let audit = row(at);
        assert!(store.stored_secret_put(&acme(), &StoredSecret { info, sealed: vec![1] }, &audit).await.unwrap());
    };
    put(1).await;
    let first = source(&node, &issuer);
    let (old, key) = (text(&first.token().await), key_of(&first));
    assert!(is_kept(&database).await);
    put(2).await;
    assert!(!is_kept(&database).await, "replaced");
    // A node that still uses the old secret for a call that is out gets a token, and nobody keeps it.
    let other = source(&tokens(&store, MASTER_KEY), &issuer);
    assert_ne!(text(&other.token().await), old);
    assert_eq!(issuer.asked().len(), 2);
    assert!(!is_kept(&database).await);
    // One that is on its way while the secret is deleted is not kept either.
    let second = SecretOwner::Tenant { version: 2, hosts: vec!["127.0.0.1".to_owned()] };
    let second = source_of(&node, &issuer, second);
    let gate = Arc::new(Notify::new());
    let held = Arc::clone(&gate);
    issuer.on_token(move |_| Grants::When(Arc::clone(&held)));
    let deleting = async {
        issuer.wait_for(3).await;
        store.stored_secret_delete(&acme(), "client", &row(Timestamp::from_millis(3))).await.unwrap();
        gate.notify_one();
    };
    let (late, ()) = futures::future::join(second.token(), deleting).await;
    assert!(late.is_ok() && !is_kept(&database).await, "{late:?}");
    // Of another tenant, or another secret, nothing is forgotten.
    let elsewhere = TokenKey { tenant: TenantId::parse("umbrella").unwrap(), ..key.clone() };
    let beside = TokenKey { secret: "other".to_owned(), identity: [8; 32], ..key };
    for key in [&elsewhere, &beside] {
        let token = SealedToken { version: 1, key_id: "k1".into(), sealed: vec![1], expires_in_ms: 60_000 };
        let holder = Uuid::from_u128(1);
        assert_eq!(store.token_turn(key, 0, holder, 5_000).await.unwrap(), TokenTurn::Taken(0));
        assert!(store.token_keep(key, holder, &token).await.unwrap());
    }
    put(1).await;
    for key in [elsewhere, beside] {
        let newer = store.token_turn(&key, 0, Uuid::from_u128(2), 0).await.unwrap();
        assert!(matches!(newer, TokenTurn::Newer(_)), "{newer:?}");
    }
    assert_eq!(store.token_forget("k1").await.unwrap(), 0);
    assert_eq!((store.token_forget("k2").await.unwrap(), is_kept(&database).await), (2, false));
}

fn row(at: Timestamp) -> AuditRow {
    AuditRow {
        id: Uuid::new_v4(),
        at,
        actor: Actor::parse("alice").unwrap(),
        action: "secret.put".to_owned(),
        subject: "client".to_owned(),
        run_id: None,
        detail: json!({}),
    }
}
