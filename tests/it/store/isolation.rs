//! No tenant sees or moves what is another's, by any method.

use countersign::run::ids::Fence;
use countersign::store::{Admitted, RunFilter, SealedSecret};

use super::draft::{Draft, actor, apply, call, node, picture, tenant, undecided};
use crate::support::database::{Database, both_stores};

both_stores! {
    field_a070_no_method_reaches_the_run_of_another_tenant => field_a070_no_method_reaches_the_run_of_another_tenant,
    two_tenants_hold_the_same_uid_and_id_apart => same_names,
}

async fn field_a070_no_method_reaches_the_run_of_another_tenant(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let mut admission = run.admission(Some(node));
    admission.secrets = vec![SealedSecret { name: "a".to_owned(), key_id: "k".to_owned(), sealed: vec![1] }];
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);
    let mut commit = run.next();
    commit.calls_made = vec![call(1, 0, undecided())];
    assert!(apply(&*store, &run.claim(1), &commit).await);
    let before = picture(&*store, &run).await;

    let other = tenant("globex");
    assert!(store.run_fetch(&other, &run.id).await.unwrap().is_none());
    assert!(store.run_list(&other, &RunFilter::default(), None, 10).await.unwrap().is_empty());
    assert!(store.run_load(&other, run.uid).await.unwrap().is_none());
    assert!(store.message_list(&other, run.uid, 0, 10).await.unwrap().is_empty());
    assert!(store.receipt_list(&other, run.uid, None, 10).await.unwrap().is_empty());
    assert!(store.event_list(&other, run.uid, 0, 10).await.unwrap().is_empty());
    assert!(store.secret_list(&other, run.uid).await.unwrap().is_empty());
    assert!(!store.cancel_request(&other, run.uid, &actor("eve")).await.unwrap());
    let mut claim = run.claim(1);
    claim.tenant = other.clone();
    assert_eq!(store.run_revision(&claim).await.unwrap(), None);
    assert!(!store.run_release(&claim, false).await.unwrap());
    let next = run.clone().next();
    assert!(!apply(&*store, &claim, &next).await);
    assert!(store.run_release(&run.claim(1), false).await.unwrap());
    assert!(!store.run_decide(&other, run.uid, Fence(1), &next, &[]).await.unwrap());
    let after = picture(&*store, &run).await;
    assert_eq!(after.replace("owned: false", "owned: true"), before);
}

async fn same_names(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut one = Draft::new("acme", "r-1");
    let mut two = Draft::new("globex", "r-1");
    two.uid = one.uid;
    one.admit_owned(&*store, node).await;
    two.admit_owned(&*store, node).await;
    for _ in 0..3 {
        assert!(apply(&*store, &one.claim(1), &one.next()).await);
    }
    assert!(apply(&*store, &two.claim(1), &two.next()).await);
    assert_eq!(store.event_list(&one.tenant, one.uid, 0, 10).await.unwrap().len(), 4);
    assert_eq!(store.event_list(&two.tenant, two.uid, 0, 10).await.unwrap().len(), 2);
    assert_eq!(store.run_load(&two.tenant, two.uid).await.unwrap().unwrap().envelope.head, two.head);
}
