//! Pages: in order, without a gap or a repeat, also while runs come in.

use countersign::run::call::Stage;
use countersign::run::commit::Next;
use countersign::run::ids::RunUid;
use countersign::run::status::{Status, StopReason, SuspendReason};
use countersign::store::{RunCursor, RunFilter, RunStore};

use super::draft::{Draft, apply, at, call, executing, node, tenant, undecided};
use crate::support::database::{Database, both_stores, eventually};

both_stores! {
    runs_are_listed_newest_first_and_pages_are_stable_under_inserts => runs,
    runs_are_filtered_by_status_reason_labels_and_time => filters,
    messages_receipts_and_events_are_paged_in_order => inside_a_run,
    the_runs_of_an_agent_are_found_among_many_by_their_index => of_agents,
}

async fn of_agents(database: Database) {
    let store = database.open().await;
    let mut wanted = Vec::new();
    for (i, agent) in
        ["pay/charger@1.0.0", "pay/charger-x@1.0.0", "pay/charger@1.2.0-rc.1+z", "pay/charge@1.0.0"].iter().enumerate()
    {
        let mut run = Draft::new("acme", &format!("r-{i}"));
        run.spec.agent = Some((*agent).to_owned().try_into().unwrap());
        // A label that no JSON operator of a database reads.
        run.spec.metadata = [("a".to_owned(), "\u{0}".to_owned())].into_iter().collect();
        run.head.created_at = at(i64::try_from(i).unwrap());
        run.admit(&*store).await;
        wanted.push(run.uid);
    }
    let mut plain = Draft::new("acme", "plain");
    plain.admit(&*store).await;
    let of = |agent: &str| RunFilter { agent: Some(agent.to_owned()), ..RunFilter::default() };
    assert_eq!(all_pages(&*store, "acme", &of("pay/charger"), 1).await, [wanted[2], wanted[0]]);
    assert_eq!(all_pages(&*store, "acme", &of("pay/charger@1.0.0"), 5).await, [wanted[0]]);
    assert_eq!(all_pages(&*store, "globex", &of("pay/charger"), 5).await, []);
    let columns = "tenant_id, status, revision, fence, last_seq, attempt, crashes, priority, spec, state, metadata, \
                   binding_revision, created_at, updated_at";
    let (id, many) = if database.is_postgres() {
        ("gen_random_uuid(), 'many-' || n", "generate_series(1, 5000) AS many (n)")
    } else {
        (
            "randomblob(16), 'many-' || n",
            "(WITH RECURSIVE m (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM m WHERE n < 5000) SELECT n FROM m)",
        )
    };
    let more =
        format!("INSERT INTO runs ({columns}, uid, id) SELECT {columns}, {id} FROM runs, {many} WHERE id = 'plain'");
    database.execute(&more).await;
    database.execute("ANALYZE runs").await;
    assert_eq!(all_pages(&*store, "acme", &of("pay/charger"), 50).await, [wanted[2], wanted[0]]);
    if database.is_postgres() {
        // Told by the sessions when they end.
        store.close().await;
        let used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'runs_agent'";
        eventually("the index is used", async || database.count(used).await > 0).await;
    } else {
        let plan = "EXPLAIN QUERY PLAN SELECT r.uid FROM runs r WHERE r.tenant_id = 'acme' AND r.agent >= 'pay/charger@' \
                    AND r.agent <= 'pay/charger@~' ORDER BY r.created_at DESC, r.uid DESC LIMIT 51";
        let plan = database.texts(plan, "detail").await.join("\n");
        assert!(plan.contains("runs_agent"), "{plan}");
    }
}

async fn all_pages(store: &dyn RunStore, of: &str, filter: &RunFilter, limit: u32) -> Vec<RunUid> {
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = store.run_list(&tenant(of), filter, after, limit).await.unwrap();
        assert!(page.len() <= limit as usize);
        listed.extend(page.iter().map(|run| run.uid));
        let Some(last) = page.last().filter(|_| page.more) else { return listed };
        after = Some(RunCursor { created_at: last.head.created_at, uid: last.uid });
    }
}

async fn runs(database: Database) {
    let store = database.open().await;
    let mut born: Vec<(i64, RunUid)> = Vec::new();
    for i in 0..10 {
        let mut run = Draft::new("acme", &format!("r-{i}"));
        // Three at each time: the uid breaks the tie.
        run.head.created_at = at(i / 3);
        run.admit(&*store).await;
        born.push((i / 3, run.uid));
    }
    born.sort_by(|a, b| b.cmp(a));
    let wanted: Vec<RunUid> = born.into_iter().map(|(_, uid)| uid).collect();
    for limit in [1, 3, 10, 50] {
        assert_eq!(all_pages(&*store, "acme", &RunFilter::default(), limit).await, wanted, "pages of {limit}");
    }
    let first = store.run_list(&tenant("acme"), &RunFilter::default(), None, 4).await.unwrap();
    let mut late = Draft::new("acme", "late");
    late.head.created_at = at(100);
    late.admit(&*store).await;
    let after = RunCursor { created_at: first[3].head.created_at, uid: first[3].uid };
    let second = store.run_list(&tenant("acme"), &RunFilter::default(), Some(after), 4).await.unwrap();
    assert_eq!(second.iter().map(|run| run.uid).collect::<Vec<_>>(), wanted[4..8]);
}

async fn filters(database: Database) {
    let store = database.open().await;
    let labels: [&[(&str, &str)]; 4] = [
        &[],
        &[("team", "blue"), ("env", "prod")],
        &[("team", "blue")],
        &[("a\"b\\c'\u{0}\u{1f600}.$", "x\u{0}\\0 y"), ("team", "Blue")],
    ];
    let statuses = [
        Status::Queued,
        Status::Suspended(SuspendReason::McpUnreachable),
        Status::Suspended(SuspendReason::McpCatalogChanged),
        Status::Stopped(StopReason::MaxTurns),
    ];
    let mut uids = Vec::new();
    for (i, (labels, status)) in labels.iter().zip(statuses).enumerate() {
        let mut run = Draft::new("acme", &format!("r-{i}"));
        run.head.created_at = at(i64::try_from(i).unwrap() * 10);
        run.head.status = status;
        run.spec.metadata = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        run.admit(&*store).await;
        uids.push(run.uid);
    }
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let status = |code: &str| RunFilter { status: Some(code.to_owned()), ..RunFilter::default() };
    let metadata = |labels: &[(String, String)]| RunFilter { metadata: labels.to_vec(), ..RunFilter::default() };
    let cases: Vec<(RunFilter, &[usize])> = vec![
        (status("suspended"), &[2, 1]),
        (status("nonsense"), &[]),
        (RunFilter { reason: Some("mcp-unreachable".to_owned()), ..status("suspended") }, &[1]),
        (metadata(&[label("team", "blue")]), &[2, 1]),
        (metadata(&[label("team", "blue"), label("env", "prod")]), &[1]),
        (metadata(&[label("team", "blue"), label("team", "red")]), &[]),
        (metadata(&[label("a\"b\\c'\u{0}\u{1f600}.$", "x\u{0}\\0 y")]), &[3]),
        (metadata(&[label("a\"b\\c'\u{0}\u{1f600}.$", "x\\0\\0 y")]), &[]),
        (metadata(&[label("missing", "")]), &[]),
        (RunFilter { created_after: Some(at(10)), created_before: Some(at(30)), ..RunFilter::default() }, &[2, 1]),
        (RunFilter { created_after: Some(at(20)), ..status("suspended") }, &[2]),
    ];
    for (filter, wanted) in cases {
        let wanted: Vec<RunUid> = wanted.iter().map(|i| uids[*i]).collect();
        assert_eq!(all_pages(&*store, "acme", &filter, 1).await, wanted, "{filter:?}");
    }
}

async fn inside_a_run(database: Database) {
    let store = database.open().await;
    let node = node(&*store).await;
    let mut run = Draft::new("acme", "r-1");
    let claim = run.admit_owned(&*store, node).await;
    for turn in 1..=3 {
        run.head.state.turns = turn;
        let mut commit = run.next();
        let rejected = Stage::Rejected { rule: "unknown-tool".to_owned(), reason: "no such tool".to_owned() };
        commit.calls_made = vec![call(turn, 0, undecided()), call(turn, 1, rejected), call(turn, 2, executing())];
        assert!(apply(&*store, &claim, &commit).await);
    }
    let (of, uid) = (&tenant("acme"), run.uid);
    let positions: Vec<u32> =
        store.message_list(of, uid, 1, 2).await.unwrap().iter().map(|message| message.position).collect();
    assert_eq!(positions, [1, 2]);
    assert!(store.message_list(of, uid, 4, 2).await.unwrap().is_empty());
    let events = store.event_list(of, uid, 1, 2).await.unwrap();
    assert_eq!(
        events.iter().map(|event| (event.seq, event.kind.as_str())).collect::<Vec<_>>(),
        [(2, "run-status"), (3, "run-status")]
    );
    assert!(store.event_list(of, uid, 4, 2).await.unwrap().is_empty());

    let mut keys = Vec::new();
    let mut after = None;
    while let Some(receipt) = store.receipt_list(of, uid, after, 1).await.unwrap().first() {
        after = Some((receipt.key.turn, receipt.key.position));
        keys.extend(after);
    }
    assert_eq!(keys, [(1, 0), (1, 2), (2, 0), (2, 2), (3, 0), (3, 2)], "rejected calls have no receipt");

    let calls = store.run_load(of, uid).await.unwrap().unwrap().envelope.calls;
    let keys: Vec<_> = calls.iter().map(|call| (call.key.turn, call.key.position)).collect();
    assert_eq!(keys, [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)], "the last turn, and what waits for a person");

    // A turn without calls: those of the turn before are not this turn's.
    run.head.state.turns = 4;
    assert!(apply(&*store, &claim, &run.become_(Status::Running, Next::Owner)).await);
    let calls = store.run_load(of, uid).await.unwrap().unwrap().envelope.calls;
    assert!(calls.iter().all(countersign::run::call::Call::is_undecided));
    assert_eq!(calls.len(), 3);
}
