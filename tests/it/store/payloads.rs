//! What comes in comes out, to the digit and the byte; what does not read is named, and nothing panics.

use countersign::run::call::Stage;
use countersign::run::commit::Next;
use countersign::run::event::{Event, EventBody};
use countersign::run::json::parse_strict;
use countersign::run::message::Content;
use countersign::run::outcome::ToolError;
use countersign::run::status::Status;
use countersign::store::{Admitted, RunFilter, StoreError};
use serde_json::{Value, json};

use super::draft::{Draft, apply, at, call, node, undecided};
use crate::support::database::{Database, both_stores};

both_stores! {
    field_a018_a019_texts_and_numbers_survive_to_the_digit => field_a018_a019_texts_and_numbers_survive_to_the_digit,
    a_result_of_five_megabytes_survives => large,
    deep_values_survive => deep,
    what_is_too_deep_to_be_read_again_is_refused => too_deep,
    a_row_that_does_not_read_is_corrupt => corrupt,
}

fn values() -> Vec<Value> {
    let digits = [
        "18446744073709551616",
        "18446744073709551617",
        "117.63331139400017",
        "12345678901234567890123456789012345678.12345678901234567890123456789012345678",
        "-0.10",
        "0",
        "-0",
    ];
    let mut values: Vec<Value> = digits.iter().map(|digits| parse_strict(digits).unwrap()).collect();
    values.push(parse_strict("[1e400, 1E-999, 123456789e99999]").unwrap());
    values.push(json!("\u{0} nul \u{1f600} \u{ffff} \u{7f}\u{80} \\u0000 \r\n\t\"'"));
    values.push(json!({"\u{0}": "\u{0}\u{0}", "": null, "b": 1, "a": [true, false, {}, []]}));
    values.push(Value::Null);
    values
}

async fn field_a018_a019_texts_and_numbers_survive_to_the_digit(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    for (i, value) in values().into_iter().enumerate() {
        let mut run = Draft::new("acme", &format!("r-{i}"));
        run.spec.instructions = Some("\u{0}\u{1f600}".to_owned());
        run.spec.model.parameters = Some(json!({"p": value}).as_object().unwrap().clone());
        run.head.state.output =
            Some(countersign::run::result::RunOutput { text: "\u{0}".to_owned(), structured: Some(json!([value])) });
        let claim = run.admit_owned(&*store, node).await;
        run.head.state.turns = 1;
        let mut commit = run.next();
        let settled_at = at(1);
        let error = ToolError::new("tool-error", "\u{0}\u{1f600}");
        commit.calls_made = vec![
            call(1, 0, Stage::Completed { settled_at, output: value.clone() }),
            call(1, 1, Stage::Failed { settled_at, error: error.clone(), output: Some(value.clone()) }),
            call(1, 2, Stage::Failed { settled_at, error, output: None }),
            call(1, 3, undecided()),
        ];
        for call in &mut commit.calls_made {
            call.input = value.clone();
            "t\u{0}".clone_into(&mut call.tool);
        }
        let call_id = commit.calls_made[0].call_id.clone();
        let tool_call = Content::ToolCall { call_id, tool: "t\u{0}".to_owned(), input: value.clone() };
        commit.messages[0].content.push(tool_call);
        commit.events[0].body = tool_output(&value);
        assert!(apply(&*store, &claim, &commit).await);

        let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope;
        assert_eq!(loaded.spec, run.spec);
        assert_eq!(loaded.head, run.head);
        assert_eq!(loaded.calls, commit.calls_made);
        assert_eq!(loaded.messages[1], commit.messages[0]);
        assert_eq!(store.receipt_list(&run.tenant, run.uid, None, 10).await.unwrap().rows, commit.calls_made);
        let view = store.run_fetch(&run.tenant, &run.id).await.unwrap().unwrap();
        assert_eq!(view.undecided[0].input, value);
        let events = store.event_list(&run.tenant, run.uid, 1, 1).await.unwrap();
        assert_eq!(events[0].body, serde_json::to_string(&commit.events[0]).unwrap());
        let read: Value = serde_json::from_str(&events[0].body).unwrap();
        assert_eq!(read["output"], value);
    }
}

fn tool_output(value: &Value) -> EventBody {
    EventBody::ToolOutput {
        turn: 1,
        call_id: countersign::run::ids::CallId::new("c\u{0}"),
        tool: "t".to_owned(),
        stage: "completed".to_owned(),
        attempt: 1,
        output: Some(value.clone()),
        error: None,
        cause: None,
        rule: None,
        reason: None,
        policy: None,
        duration_ms: None,
    }
}

async fn large(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    run.head.state.turns = 1;
    // Hardly compressible, so that it is really that large where it is kept.
    let mut text = String::new();
    while text.len() < 5 << 20 {
        text.push_str(&uuid::Uuid::new_v4().simple().to_string());
    }
    let output = json!({"content": [{"type": "text", "text": text}]});
    let mut commit = run.next();
    commit.calls_made = vec![call(1, 0, Stage::Completed { settled_at: at(1), output: output.clone() })];
    commit.events.push(Event { body: tool_output(&output), ..run.event(run.head.last_seq + 1) });
    run.head.last_seq += 1;
    commit.head.last_seq += 1;
    assert!(apply(&*store, &claim, &commit).await);
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope;
    assert!(loaded.calls == commit.calls_made);
    let events = store.event_list(&run.tenant, run.uid, 2, 1).await.unwrap();
    assert!(events[0].body == serde_json::to_string(&commit.events[1]).unwrap());
}

async fn deep(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    run.head.state.turns = 1;
    // As deep as a parsed value can be, in a call; a message holds it three levels further down.
    let nested = |depth: usize| parse_strict(&format!("{}{}", "[".repeat(depth), "]".repeat(depth))).unwrap();
    let mut commit = run.next();
    let mut made = call(1, 0, Stage::Completed { settled_at: at(1), output: nested(127) });
    made.input = nested(127);
    commit.calls_made = vec![made];
    let call_id = commit.calls_made[0].call_id.clone();
    commit.messages[0].content.push(Content::ToolCall { call_id, tool: "t".to_owned(), input: nested(120) });
    assert!(apply(&*store, &claim, &commit).await);
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope;
    assert_eq!(loaded.calls, commit.calls_made);
    assert_eq!(loaded.messages[1], commit.messages[0]);
}

async fn too_deep(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let mut commit = run.clone().next();
    let nested = format!("{}\"]]]\\\"\"{}", "[".repeat(126), "]".repeat(126));
    let input = parse_strict(&nested).unwrap();
    let call_id = countersign::run::ids::CallId::new("c");
    commit.messages[0].content.push(Content::ToolCall { call_id, tool: "t".to_owned(), input });
    let refused = countersign::store::OwnedCommit::encode(&claim, &commit);
    assert!(matches!(refused, Err(StoreError::Rejected(_))), "what could not be read again is not stored");
    assert!(apply(&*store, &claim, &run.next()).await);
    assert!(store.run_load(&run.tenant, run.uid).await.unwrap().is_some());
}

async fn corrupt(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let mut admission = run.admission(Some(node));
    admission.commit.calls_made = vec![call(0, 0, undecided())];
    assert_eq!(store.run_admit(admission).await.unwrap(), Admitted::Created);
    let unknown = r#"{"v":0,"body":{}}"#;
    let wrong = r#"{"v":1,"body":{"secret":"canary"}}"#;
    let spoils: Vec<(&str, String)> = vec![
        ("runs", "status = 'dancing'".to_owned()),
        ("runs", "status = 'suspended'".to_owned()),
        ("runs", format!("state = '{unknown}'")),
        ("runs", format!("state = '{wrong}'")),
        ("runs", "state = '7'".to_owned()),
        ("runs", format!("spec = '{wrong}'")),
        ("runs", "attempt = -1".to_owned()),
        ("runs", "crashes = 5000000000".to_owned()),
        ("runs", "id = 'a b'".to_owned()),
        ("runs", "binding_revision = 9".to_owned()),
        ("bindings", format!("body = '{unknown}'")),
        ("calls", format!("body = '{unknown}'")),
        ("calls", format!("body = '{wrong}'")),
        ("messages", format!("body = '{wrong}'")),
    ];
    for (table, spoil) in spoils {
        database.execute(&format!("CREATE TABLE kept AS SELECT * FROM {table}")).await;
        database.execute(&format!("UPDATE {table} SET {spoil}")).await;
        let loaded = store.run_load(&run.tenant, run.uid).await;
        let Err(fault @ StoreError::Corrupt { .. }) = loaded else { panic!("{table} {spoil}: {loaded:?}") };
        assert!(!fault.to_string().contains("canary"), "{fault}");
        if table != "messages" {
            let listed = store.run_list(&run.tenant, &RunFilter::default(), None, 10).await;
            assert!(matches!(listed, Err(StoreError::Corrupt { .. })), "{table} {spoil}: {listed:?}");
        }
        database.execute(&format!("DELETE FROM {table}")).await;
        database.execute(&format!("INSERT INTO {table} SELECT * FROM kept")).await;
        database.execute("DROP TABLE kept").await;
    }
    assert!(store.run_load(&run.tenant, run.uid).await.unwrap().is_some());
    // What a later version wrote is not corrupt: one of its nodes reads it.
    database.execute("CREATE TABLE kept AS SELECT * FROM runs").await;
    database.execute(r#"UPDATE runs SET state = '{"v":2,"body":{}}'"#).await;
    let loaded = store.run_load(&run.tenant, run.uid).await;
    assert!(matches!(loaded, Err(StoreError::Newer { version: 2, .. })), "{loaded:?}");
    database.execute("DELETE FROM runs").await;
    database.execute("INSERT INTO runs SELECT * FROM kept").await;
    let done = run.become_(Status::Completed, Next::Rest);
    assert!(apply(&*store, &run.claim(1), &done).await);
}
