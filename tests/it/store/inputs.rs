//! Answers to servers' questions that are left for an owner.

use countersign::run::ask::InputAction;
use countersign::run::fact::InputAnswer;
use countersign::store::Left;
use serde_json::json;

use super::draft::{Draft, actor, node};
use crate::support::database::{Database, both_stores};

both_stores! {
    the_first_answer_stays_and_waits_for_the_owner,
}

fn answer(by: &str, input_id: &str) -> InputAnswer {
    let content = Some(json!({ "text": "a\0b", "n": 1 }));
    InputAnswer { actor: actor(by), input_id: input_id.to_owned(), action: InputAction::Accept, content }
}

async fn the_first_answer_stays_and_waits_for_the_owner(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r");
    let claim = run.admit_owned(&*store, node).await;
    let leave = |answer: InputAnswer| {
        let (store, tenant, uid) = (&*store, run.tenant.clone(), run.uid);
        async move { store.answer_leave(&tenant, uid, &answer).await.unwrap() }
    };
    assert_eq!(leave(answer("ann", "input_1")).await, Left::Kept);
    assert_eq!(leave(answer("ann", "input_1")).await, Left::Kept, "its caller asks again");
    assert_eq!(leave(answer("eve", "input_1")).await, Left::Decided, "somebody was faster");
    assert_eq!(leave(answer("eve", "input_2")).await, Left::Kept);
    assert_eq!(store.wish_list(node).await.unwrap(), std::slice::from_ref(&claim));
    let wishes = store.wishes_take(&claim).await.unwrap();
    assert_eq!(wishes.answers, [answer("ann", "input_1"), answer("eve", "input_2")]);
    assert_eq!(store.wish_list(node).await.unwrap(), []);
    let other = store.answer_leave(&super::draft::tenant("globex"), run.uid, &answer("ann", "input_3")).await.unwrap();
    assert_eq!(other, Left::NotOwned, "another tenant has no such run");
    assert!(store.run_release(&claim, false).await.unwrap());
    assert_eq!(leave(answer("ann", "input_4")).await, Left::NotOwned);
}
