//! A run comes in whole or not at all.

use countersign::run::commit::Next;
use countersign::run::ids::NodeId;
use countersign::run::status::Status;
use countersign::store::{Admitted, KeptAnswer, KeptRequest, SealedSecret};
use uuid::Uuid;

use super::draft::{Draft, actor, at, node, tenant};
use crate::support::database::{Database, both_stores};

both_stores! {
    an_admitted_run_reads_back_as_it_was_given => reads_back,
    a_run_id_is_taken_once_in_its_tenant => run_exists,
    a_key_is_kept_with_its_run_until_it_expires => keys,
    requests_with_one_key_at_once_make_one_run => keys_at_once,
    a_run_admitted_for_a_node_that_is_dead_is_due => dead_owner,
    secrets_live_as_long_as_their_run => secrets,
}

async fn reads_back(database: Database) {
    let store = database.open().await;
    let mut run = Draft::new("acme", "r-1");
    run.spec.metadata.insert("team".to_owned(), "blue".to_owned());
    let admission = run.admission(None);
    assert_eq!(store.run_admit(admission.clone()).await.unwrap(), Admitted::Created);

    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
    assert_eq!(loaded.envelope.head, admission.commit.head);
    assert_eq!(loaded.envelope.messages, admission.commit.messages);
    assert_eq!(Some(&loaded.envelope.binding), admission.commit.binding.as_ref());
    assert_eq!(loaded.envelope.spec, run.spec);
    assert_eq!((loaded.fence.0, loaded.owned), (0, false));

    let view = store.run_fetch(&run.tenant, &run.id).await.unwrap().unwrap();
    assert_eq!((view.uid, &view.id, &view.spec, &view.head), (run.uid, &run.id, &run.spec, &run.head));
    assert_eq!((view.binding_revision, view.owned, view.undecided.len()), (1, false, 0));
    assert!(store.run_due_in().await.unwrap().is_some_and(|due| due <= 0));
}

async fn run_exists(database: Database) {
    let store = database.open().await;
    Draft::new("acme", "r-1").admit(&*store).await;
    let mut again = Draft::new("acme", "r-1");
    let mut admission = again.admission(None);
    let request = kept("k");
    admission.idempotency = Some(request.clone());
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::RunExists);
    assert!(store.run_load(&again.tenant, again.uid).await.unwrap().is_none());
    assert!(store.event_list(&again.tenant, again.uid, 0, 10).await.unwrap().is_empty());
    assert_eq!(store.kept_fetch(&again.tenant, &request, at(0)).await.unwrap(), None, "the key is not kept either");
    Draft::new("globex", "r-1").admit(&*store).await;
}

pub(super) fn kept(key: &str) -> KeptRequest {
    KeptRequest {
        actor: actor("ann"),
        route: "run_create",
        key: key.to_owned(),
        body_digest: "d1".to_owned(),
        expires_at: at(1_000),
    }
}

async fn keys(database: Database) {
    let store = database.open().await;
    let mut first = Draft::new("acme", "r-1");
    let mut admission = first.admission(None);
    admission.idempotency = Some(kept("k"));
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);

    let answer = KeptAnswer { body_digest: "d1".to_owned(), run_id: first.id.clone() };
    let mut second = Draft::new("acme", "r-1");
    let mut admission = second.admission(None);
    admission.idempotency = Some(KeptRequest { body_digest: "d2".to_owned(), ..kept("k") });
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::KeyUsed(answer.clone()));
    assert!(store.run_load(&second.tenant, second.uid).await.unwrap().is_none());

    let acme = tenant("acme");
    assert_eq!(store.kept_fetch(&acme, &kept("k"), at(999)).await.unwrap(), Some(answer));
    assert_eq!(store.kept_fetch(&acme, &kept("k"), at(1_000)).await.unwrap(), None, "it has expired");
    assert_eq!(store.kept_fetch(&tenant("globex"), &kept("k"), at(0)).await.unwrap(), None);
    let other = KeptRequest { actor: actor("bob"), ..kept("k") };
    assert_eq!(store.kept_fetch(&acme, &other, at(0)).await.unwrap(), None, "a key is its actor's");
    let other = KeptRequest { route: "run_resume", ..kept("k") };
    assert_eq!(store.kept_fetch(&acme, &other, at(0)).await.unwrap(), None, "a key is its route's");

    let mut third = Draft::new("acme", "r-3");
    third.head.created_at = at(1_000);
    let mut admission = third.admission(None);
    admission.idempotency = Some(KeptRequest { expires_at: at(2_000), ..kept("k") });
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created, "an expired key is free");
    let found = store.kept_fetch(&acme, &kept("k"), at(1_000)).await.unwrap();
    assert_eq!(found.map(|answer| answer.run_id), Some(third.id));
}

async fn keys_at_once(database: Database) {
    let store = database.open().await;
    let attempts = (0..8).map(|_| {
        let store = std::sync::Arc::clone(&store);
        async move {
            let mut admission = Draft::new("acme", "r-1").admission(None);
            admission.idempotency = Some(kept("k"));
            store.run_admit(admission).await.unwrap()
        }
    });
    let answers = futures::future::join_all(attempts).await;
    assert_eq!(answers.iter().filter(|answer| **answer == Admitted::Created).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Admitted::KeyUsed(_))).count(), 7, "{answers:?}");
}

async fn dead_owner(database: Database) {
    let store = database.open().await;
    let living = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    run.admit_owned(&*store, living).await;
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
    assert_eq!((loaded.fence.0, loaded.owned), (1, true));

    for (id, dead) in [("r-2", NodeId(Uuid::new_v4())), ("r-3", living)] {
        store.node_retire(dead).await.unwrap();
        let mut run = Draft::new("acme", id);
        let admission = run.admission(Some(dead));
        assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::NotTaken, "{id}");
        let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap();
        assert_eq!((loaded.fence.0, loaded.owned), (0, false), "{id}");
    }
}

async fn secrets(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let secret = |name: &str| SealedSecret { name: name.to_owned(), key_id: "k1".to_owned(), sealed: vec![0, 255, 1] };
    let mut owned = Draft::new("acme", "r-1");
    let mut admission = owned.admission(Some(node));
    admission.secrets = vec![secret("b"), secret("a")];
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);
    let names = |secrets: Vec<SealedSecret>| secrets.into_iter().map(|secret| secret.name).collect::<Vec<_>>();
    let listed = store.secret_list(&owned.tenant, owned.uid).await.unwrap();
    assert_eq!((listed[0].key_id.as_str(), listed[0].sealed.as_slice()), ("k1", [0, 255, 1].as_slice()));
    assert_eq!(names(listed), ["a", "b"]);

    let claim = owned.claim(1);
    let commit = owned.become_(Status::Running, Next::Owner);
    assert!(super::draft::apply(&*store, &claim, &commit).await);
    assert_eq!(store.secret_list(&owned.tenant, owned.uid).await.unwrap().len(), 2);
    let commit = owned.become_(Status::Completed, Next::Rest);
    assert!(super::draft::apply(&*store, &claim, &commit).await);
    assert_eq!(names(store.secret_list(&owned.tenant, owned.uid).await.unwrap()), [""; 0]);

    let mut decided = Draft::new("acme", "r-2");
    let mut admission = decided.admission(None);
    admission.secrets = vec![secret("a")];
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);
    let commit = decided.become_(Status::Cancelled, Next::Rest);
    assert!(store.run_decide(&decided.tenant, decided.uid, decided.claim(0).fence, &commit, &[]).await.unwrap());
    assert_eq!(names(store.secret_list(&decided.tenant, decided.uid).await.unwrap()), [""; 0]);
}
