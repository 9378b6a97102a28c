//! No tenant sees or moves what is another's, by any method.

use countersign::run::call::{Backend, Call, Stage};
use countersign::run::ids::{CallId, CallKey, Fence};
use countersign::store::{Admitted, RunFilter, SealedSecret};

use super::draft::{Draft, actor, apply, at, call, node, picture, tenant, undecided};
use crate::support::database::{Database, both_stores};

both_stores! {
    field_a070_no_method_reaches_the_run_of_another_tenant => field_a070_no_method_reaches_the_run_of_another_tenant,
    two_tenants_hold_the_same_uid_and_id_apart => same_names,
    b208_the_last_earlier_call_of_a_client_with_a_label_is_found_in_its_own_run_only => labels,
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

async fn labels(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    // As a provider may give it that numbers the calls of each turn anew. Any text is a label.
    let label = CallId::new("call\u{0}_\"1");
    let settled = || Stage::Completed { settled_at: at(3), output: "paid".into() };
    let of = |turn: u32, position: u32, backend: Backend| {
        let mut call = Call { call_id: label.clone(), ..call(turn, position, settled()) };
        call.target.as_mut().unwrap().backend = backend;
        call
    };
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let mut commit = run.next();
    commit.calls_made = vec![of(1, 1, Backend::Client), of(3, 0, Backend::Client), of(4, 0, Backend::Mcp)];
    assert!(apply(&*store, &claim, &commit).await);
    let mut other = Draft::new("globex", "r-1");
    other.uid = run.uid;
    other.admit_owned(&*store, node).await;
    for (before, found) in [(9, Some((3, 0))), (3, Some((1, 1))), (1, None)] {
        let found = found.map(|(turn, position)| CallKey { turn, position });
        assert_eq!(store.client_call_find(&run.tenant, run.uid, &label, before).await.unwrap(), found, "{before}");
    }
    for (tenant, label) in [(&other.tenant, &label), (&run.tenant, &CallId::new("call_1"))] {
        assert_eq!(store.client_call_find(tenant, run.uid, label, 9).await.unwrap(), None);
    }
}
