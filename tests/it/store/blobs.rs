//! Big values: kept once a run, whole wherever they are read, nobody else's, and never more than a page at a time.

use countersign::run::call::Stage;
use countersign::run::commit::Commit;
use countersign::run::event::{Event, EventBody};
use countersign::run::ids::CallId;
use countersign::run::json::parse_strict;
use countersign::run::message::Content;
use countersign::run::outcome::Cause;
use countersign::run::tool_result;
use countersign::store::{PAGE_BYTES, RunFilter, Store, StoreError};
use serde_json::{Value, json};

use super::draft::{Draft, apply, at, call, executing, node, tenant, undecided};
use crate::support::database::{Database, both_stores};

both_stores! {
    a_result_of_a_megabyte_is_kept_once_and_read_whole_everywhere => once,
    structured_results_and_inputs_keep_their_digits_in_a_blob => digits,
    a_value_at_the_limit_stays_in_its_row => at_the_limit,
    a_big_call_that_moves_keeps_its_arguments => moves,
    the_first_messages_of_a_run_may_be_big => admitted,
    a_blob_is_never_another_tenants_or_another_runs => apart,
    a_lost_blob_is_corrupt_and_never_null => lost,
    the_bytes_of_a_run_are_counted_as_they_would_be_read => counted,
    a_page_ends_at_its_bytes_and_goes_on_behind_them => pages,
    small_rows_have_no_trace_of_blobs => small,
}

/// Text that hardly compresses, so that it is really that large where it is kept.
fn noise(bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(&uuid::Uuid::new_v4().simple().to_string());
    }
    text.truncate(bytes);
    text
}

fn told(turn: u32, output: &Value) -> EventBody {
    EventBody::ToolOutput {
        turn,
        call_id: CallId::new("c"),
        tool: "charge".to_owned(),
        stage: "completed".to_owned(),
        attempt: 1,
        output: Some(output.clone()),
        error: None,
        cause: None,
        rule: None,
        reason: None,
        policy: None,
        duration_ms: None,
    }
}

/// The commit that a tool's result makes: the call, the event that tells it, and the message for the model.
fn settled(run: &mut Draft, output: &Value) -> Commit {
    run.head.state.turns += 1;
    let turn = run.head.state.turns;
    let mut commit = run.next();
    commit.calls_made = vec![call(turn, 0, Stage::Completed { settled_at: at(1), output: output.clone() })];
    commit.events[0].body = told(turn, output);
    commit.messages[0].content = vec![Content::ToolResult {
        call_id: CallId::new("c"),
        tool: "charge".to_owned(),
        output: tool_result::told(output).output,
        is_error: false,
        pictures: Vec::new(),
    }];
    commit
}

/// Everything that reads a run reads the whole of it.
async fn check_whole(store: &dyn Store, run: &Draft, commits: &[Commit]) {
    let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope;
    let last = commits.last().unwrap();
    assert!(loaded.calls == [last.calls_made.clone(), last.calls_moved.clone()].concat());
    let (mut messages, mut events, mut calls) = (Vec::new(), Vec::<Event>::new(), Vec::new());
    for commit in commits {
        messages.extend(commit.messages.clone());
        events.extend(commit.events.clone());
        calls.extend(commit.calls_made.clone());
    }
    assert!(loaded.messages[1..] == messages);
    let (from, after) = (messages[0].position, events[0].seq - 1);
    let limit = u32::try_from(messages.len()).unwrap();
    assert!(store.message_list(&run.tenant, run.uid, from, limit).await.unwrap().rows == messages);
    assert!(store.receipt_list(&run.tenant, run.uid, None, limit).await.unwrap().rows == calls);
    let stored = store.event_list(&run.tenant, run.uid, after, limit).await.unwrap();
    assert_eq!(stored.len(), events.len());
    for (stored, event) in stored.iter().zip(&events) {
        assert!(stored.body == serde_json::to_string(event).unwrap(), "to the byte");
    }
}

async fn once(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let output = json!({"content": [{"type": "text", "text": noise(1 << 20)}]});
    let commit = settled(&mut run, &output);
    assert!(apply(&*store, &claim, &commit).await);
    assert_eq!(database.count("SELECT count(*) FROM blobs").await, 1);
    let kept = database.count("SELECT sum(length(body)) FROM blobs").await;
    assert_eq!(kept, (1 << 20) + 2);
    for (table, column) in [("events", "body"), ("messages", "body"), ("calls", "output")] {
        let text = format!("length(CAST({column} AS text))");
        let longest = database.count(&format!("SELECT CAST(max({text}) AS bigint) FROM {table}")).await;
        assert!(longest < 1_000, "{table}: {longest}");
    }
    check_whole(&*store, &run, std::slice::from_ref(&commit)).await;
    // The same again, from another turn: nothing more is kept.
    let again = settled(&mut run, &output);
    assert!(apply(&*store, &claim, &again).await);
    assert_eq!(database.count("SELECT count(*) FROM blobs").await, 1);
    check_whole(&*store, &run, &[commit, again]).await;
}

async fn digits(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let numbers =
        ["18446744073709551617", "117.63331139400017", "1e-999", "-0.10", "\"\\u0000\\ud83d\\ude00\"", "null"];
    let many = numbers.iter().cycle().take(20_000).copied().collect::<Vec<_>>().join(",");
    let big = parse_strict(&format!(r#"{{"a/b~":[{many}],"n":18446744073709551617}}"#)).unwrap();
    let output = json!({"content": [{"type": "text", "text": big.to_string()}], "structuredContent": big});
    let mut commit = settled(&mut run, &output);
    commit.calls_made[0].input = json!({"rows": big, "one": 1});
    let content = Content::ToolCall { call_id: CallId::new("c"), tool: "t".to_owned(), input: json!({"rows": big}) };
    commit.messages[0].content.push(content);
    commit.messages[0].content.push(Content::Text { text: noise(100_000) });
    assert!(apply(&*store, &claim, &commit).await);
    check_whole(&*store, &run, &[commit]).await;
    // The rows, their text, and what the model said.
    assert_eq!(database.count("SELECT count(*) FROM blobs").await, 3);
}

async fn at_the_limit(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    // With its two quotes.
    for (bytes, blobs) in [(64 * 1024 - 2, 0), (64 * 1024 - 1, 1)] {
        let mut commit = settled(&mut run, &Value::String(noise(bytes)));
        // What stands around it in a message would be over the limit either way.
        commit.messages[0].content.clear();
        assert!(apply(&*store, &claim, &commit).await);
        assert_eq!(database.count("SELECT count(*) FROM blobs").await, blobs);
        let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope;
        assert!(loaded.calls == commit.calls_made);
    }
}

async fn moves(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    run.head.state.turns = 1;
    let mut made = call(1, 0, executing());
    made.input = json!({"document": noise(300_000)});
    let mut commit = run.next();
    commit.calls_made = vec![made.clone()];
    assert!(apply(&*store, &claim, &commit).await);
    for stage in [undecided(), Stage::Completed { settled_at: at(3), output: json!({"text": noise(200_000)}) }] {
        made.stage = stage;
        let mut commit = run.next();
        commit.calls_moved = vec![made.clone()];
        assert!(apply(&*store, &claim, &commit).await);
        let loaded = store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope;
        assert!(loaded.calls == [made.clone()]);
        let view = store.run_fetch(&run.tenant, &run.id).await.unwrap().unwrap();
        let listed = store.run_list(&run.tenant, &RunFilter::default(), None, 10).await.unwrap();
        assert!(view.undecided == listed[0].undecided);
        for undecided in &view.undecided {
            assert_eq!(undecided.cause, Cause::Crash.code());
            assert!(undecided.input == made.input);
        }
        assert_eq!(view.undecided.len(), usize::from(made.is_undecided()));
    }
    assert_eq!(database.count("SELECT count(*) FROM blobs").await, 2);
}

async fn admitted(database: Database) {
    let store = database.open().await;
    let mut run = Draft::new("acme", "r-1");
    let mut admission = run.admission(None);
    admission.commit.messages[0].content =
        vec![Content::Text { text: noise(3 << 20) }, Content::Text { text: "and this".to_owned() }];
    let messages = admission.commit.messages.clone();
    store.run_admit(admission).await.unwrap();
    assert_eq!(database.count("SELECT count(*) FROM blobs").await, 1);
    assert!(store.run_load(&run.tenant, run.uid).await.unwrap().unwrap().envelope.messages == messages);
    assert!(store.message_list(&run.tenant, run.uid, 0, 10).await.unwrap().rows == messages);
}

async fn apart(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let text = noise(100_000);
    let mut runs = [Draft::new("acme", "r-1"), Draft::new("acme", "r-2"), Draft::new("globex", "r-1")];
    runs[2].uid = runs[0].uid;
    for run in &mut runs {
        let claim = run.admit_owned(&*store, node).await;
        let commit = settled(run, &Value::String(text.clone()));
        assert!(apply(&*store, &claim, &commit).await);
        check_whole(&*store, run, &[commit]).await;
    }
    assert_eq!(database.count("SELECT count(*) FROM blobs").await, 3);
    // What the others have is of no use to a run that lost its own.
    database.execute("DELETE FROM blobs WHERE tenant_id = 'globex'").await;
    let theirs = store.receipt_list(&tenant("globex"), runs[2].uid, None, 10).await;
    assert!(matches!(theirs, Err(StoreError::Corrupt { .. })));
    assert!(store.receipt_list(&tenant("acme"), runs[0].uid, None, 10).await.is_ok());
}

async fn lost(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let mut commit = settled(&mut run, &Value::String(noise(100_000)));
    let mut open = call(1, 1, undecided());
    open.input = Value::String(noise(100_000));
    commit.calls_made.push(open);
    assert!(apply(&*store, &claim, &commit).await);
    database.execute("DELETE FROM blobs").await;
    let (of, uid) = (&run.tenant, run.uid);
    let faults = [
        store.run_load(of, uid).await.err(),
        store.run_fetch(of, &run.id).await.err(),
        store.run_list(of, &RunFilter::default(), None, 10).await.err(),
        store.message_list(of, uid, 0, 10).await.err(),
        store.receipt_list(of, uid, None, 10).await.err(),
        store.event_list(of, uid, 0, 10).await.err(),
    ];
    for (i, fault) in faults.into_iter().enumerate() {
        assert!(matches!(fault, Some(StoreError::Corrupt { .. })), "{i}: {fault:?}");
    }
    assert!(store.event_list(of, uid, 0, 1).await.is_ok(), "what needs no blob is read");
}

async fn pages(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let mut commits = Vec::new();
    for _ in 0..10 {
        let commit = settled(&mut run, &Value::String(noise(1 << 20)));
        assert!(apply(&*store, &claim, &commit).await);
        commits.push(commit);
    }
    let (mut seqs, mut after) = (Vec::new(), 0);
    loop {
        let page = store.event_list(&run.tenant, run.uid, after, 200).await.unwrap();
        let bytes: usize = page.iter().map(|event| event.body.len()).sum();
        assert!((1..=PAGE_BYTES).contains(&bytes), "{bytes}");
        seqs.extend(page.iter().map(|event| event.seq));
        after = page.last().unwrap().seq;
        if !page.more {
            break;
        }
        assert!(bytes > PAGE_BYTES / 2, "a page is no smaller than it must be");
    }
    assert_eq!(seqs, (1..=11).collect::<Vec<_>>());
    let (mut positions, mut from) = (Vec::new(), 0);
    loop {
        let page = store.message_list(&run.tenant, run.uid, from, 200).await.unwrap();
        assert!(page.len() <= 4);
        positions.extend(page.iter().map(|message| message.position));
        from = page.last().unwrap().position + 1;
        if !page.more {
            break;
        }
    }
    assert_eq!(positions, (0..=10).collect::<Vec<_>>());
    let (mut turns, mut after) = (Vec::new(), None);
    loop {
        let page = store.receipt_list(&run.tenant, run.uid, after, 200).await.unwrap();
        assert!(page.len() <= 4);
        turns.extend(page.iter().map(|call| call.key.turn));
        after = page.last().map(|call| (call.key.turn, call.key.position));
        if !page.more {
            break;
        }
    }
    assert_eq!(turns, (1..=10).collect::<Vec<_>>());
    // A single row is never too large for a page.
    let huge = settled(&mut run, &Value::String(noise(PAGE_BYTES + 1)));
    assert!(apply(&*store, &claim, &huge).await);
    let page = store.receipt_list(&run.tenant, run.uid, Some((10, 0)), 200).await.unwrap();
    assert!(page.rows == huge.calls_made && !page.more);
}

async fn small(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    let commit = settled(&mut run, &json!({"content": [{"type": "text", "text": noise(60_000)}]}));
    assert!(apply(&*store, &claim, &commit).await);
    assert_eq!(database.count("SELECT count(*) FROM blobs").await, 0);
    for table in ["events", "messages", "calls"] {
        let marked = database.count(&format!("SELECT count(*) FROM {table} WHERE blobs IS NOT NULL")).await;
        assert_eq!(marked, 0, "{table}");
    }
    check_whole(&*store, &run, &[commit]).await;
}

async fn counted(database: Database) {
    const ONE: u64 = 500_000;
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    run.admit_owned(&*store, node).await;
    let few = store.run_bytes(&run.tenant, run.uid).await.unwrap();
    assert!((1..2000).contains(&few), "{few}");
    // One blob; it stands in three messages and in the call of the last turn.
    let output = json!(noise(500_000));
    for _ in 0..3 {
        let commit = settled(&mut run, &output);
        assert!(apply(&*store, &run.claim(1), &commit).await);
    }
    let many = store.run_bytes(&run.tenant, run.uid).await.unwrap();
    assert!((4 * ONE..4 * ONE + 10_000).contains(&many), "{many}");
    assert_eq!(store.run_bytes(&tenant("globex"), run.uid).await.unwrap(), 0, "it is another tenant's");
}
