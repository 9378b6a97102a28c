//! Secrets and registered servers: versions that follow each other, deletes that look first.

use countersign::run::ids::{Actor, TenantId};
use countersign::run::time::Timestamp;
use countersign::store::registry::{
    Registration, SealedPlace, SealedRow, SecretDeletion, SecretInfo, ServerPut, StoredSecret,
};
use countersign::store::{AuditFilter, AuditRow};
use serde_json::json;

use crate::support::database::{Database, both_stores};

both_stores! {
    a_version_follows_the_one_before_it_and_no_other => versions,
    a_secret_is_not_deleted_from_under_a_server_that_is_registered_at_that_moment => races,
    what_was_put_meanwhile_is_not_sealed_over => sealed,
    names_and_values_of_another_tenant_are_not_there => tenants,
}

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn audit() -> AuditRow {
    AuditRow {
        id: uuid::Uuid::new_v4(),
        at: Timestamp::from_millis(5),
        actor: Actor::parse("alice").unwrap(),
        action: "secret.put".to_owned(),
        subject: "token".to_owned(),
        run_id: None,
        detail: json!({}),
    }
}

fn secret(version: u32, sealed: &[u8]) -> StoredSecret {
    let at = Timestamp::from_millis(5);
    let hosts = vec!["a.example".to_owned()];
    let info = SecretInfo {
        name: "token".to_owned(),
        version,
        key_id: "k1".to_owned(),
        hosts,
        created_at: at,
        updated_at: at,
    };
    StoredSecret { info, sealed: sealed.to_vec() }
}

fn told(secret: &str) -> Registration {
    let auth = json!({ "scheme": "bearer", "secret": secret });
    let entry = json!({ "url": "https://a.example/mcp", "auth": auth });
    Registration { entry: serde_json::from_value(entry).unwrap() }
}

async fn versions(database: Database) {
    let (store, acme) = (database.open().await, tenant("acme"));
    for (version, stored) in [(2, false), (1, true), (1, false), (3, false), (2, true), (2, false)] {
        let put = store.stored_secret_put(&acme, &secret(version, &[7]), &audit()).await.unwrap();
        assert_eq!(put, stored, "{version}");
    }
    let puts = (0..8).map(|_| async { store.stored_secret_put(&acme, &secret(3, &[8]), &audit()).await.unwrap() });
    let puts = futures::future::join_all(puts).await;
    assert_eq!(puts.iter().filter(|stored| **stored).count(), 1, "of puts at once one is stored");
    let kept = store.stored_secret_fetch(&acme, "token").await.unwrap().unwrap();
    assert_eq!(kept, secret(3, &[8]));
    let rows = store.audit_list(&acme, &AuditFilter::default(), None, 100).await.unwrap();
    assert_eq!(rows.len(), 3, "each with its row of the audit");
    store.close().await;
}

async fn races(database: Database) {
    let (store, acme) = (database.open().await, tenant("acme"));
    for _ in 0..20 {
        store.stored_secret_put(&acme, &secret(1, &[7]), &audit()).await.unwrap();
        let (row, other) = (audit(), audit());
        let registration = told("token");
        let (put, deleted) = tokio::join!(
            store.server_put(&acme, "orders", &registration, &row),
            store.stored_secret_delete(&acme, "token", &other),
        );
        match (put.unwrap(), deleted.unwrap()) {
            (ServerPut::Stored(_), SecretDeletion::UsedBy(servers)) => assert_eq!(servers, ["orders"]),
            (ServerPut::NoSecret, SecretDeletion::Deleted) => {}
            other => panic!("{other:?}"),
        }
        store.server_delete(&acme, "orders", &audit()).await.unwrap();
        store.stored_secret_delete(&acme, "token", &audit()).await.unwrap();
    }
    store.close().await;
}

async fn sealed(database: Database) {
    let (store, acme) = (database.open().await, tenant("acme"));
    store.stored_secret_put(&acme, &secret(1, &[7]), &audit()).await.unwrap();
    let listed = store.sealed_list("k2", None, 10).await.unwrap();
    let place = SealedPlace::Stored { tenant: acme.clone(), name: "token".to_owned(), version: 1 };
    assert_eq!(listed, [SealedRow { place: place.clone(), key_id: "k1".to_owned(), sealed: vec![7] }]);
    assert_eq!(store.sealed_list("k1", None, 10).await.unwrap(), []);
    assert_eq!(store.sealed_list("k2", Some(&place), 10).await.unwrap(), []);
    // Deleted and put again: the same name, version and key, and another value.
    store.stored_secret_delete(&acme, "token", &audit()).await.unwrap();
    store.stored_secret_put(&acme, &secret(1, &[9]), &audit()).await.unwrap();
    assert!(!store.sealed_replace(&listed[0], "k2", &[8]).await.unwrap());
    assert_eq!(store.stored_secret_fetch(&acme, "token").await.unwrap().unwrap().sealed, [9]);
    let now = store.sealed_list("k2", None, 10).await.unwrap();
    assert!(store.sealed_replace(&now[0], "k2", &[8]).await.unwrap());
    let kept = store.stored_secret_fetch(&acme, "token").await.unwrap().unwrap();
    assert_eq!((kept.info.key_id.as_str(), kept.info.version, kept.sealed.as_slice()), ("k2", 1, &[8][..]));
    store.close().await;
}

async fn tenants(database: Database) {
    let (store, acme, umbrella) = (database.open().await, tenant("acme"), tenant("umbrella"));
    store.stored_secret_put(&acme, &secret(1, &[7]), &audit()).await.unwrap();
    assert!(matches!(
        store.server_put(&umbrella, "orders", &told("token"), &audit()).await.unwrap(),
        ServerPut::NoSecret
    ));
    store.server_put(&acme, "orders", &told("token"), &audit()).await.unwrap();
    assert_eq!(store.stored_secret_fetch(&umbrella, "token").await.unwrap(), None);
    assert_eq!(store.server_fetch(&umbrella, "orders").await.unwrap(), None);
    assert!(store.stored_secret_list(&umbrella, None, 10).await.unwrap().is_empty());
    assert!(store.server_list(&umbrella, None, 10).await.unwrap().is_empty());
    assert!(!store.server_delete(&umbrella, "orders", &audit()).await.unwrap());
    let deleted = store.stored_secret_delete(&umbrella, "token", &audit()).await.unwrap();
    assert_eq!(deleted, SecretDeletion::Missing);
    let (server, told) = store.server_fetch(&acme, "orders").await.unwrap().unwrap();
    assert_eq!((server.version, told), (1, Some(secret(1, &[7]))));
    store.close().await;
}
