//! What commits write: one statement for a whole batch. Every write of a run carries its fence and its revision, and
//! every other row of a commit is joined to the heads that took it: what lost its lease writes nothing at all.

use serde_json::json;
use sqlx::postgres::{PgArguments, PgPool, Postgres};
use sqlx::query::Query;
use uuid::Uuid;

use super::PostgresStore;
use super::admin::audit_insert;
use crate::run::commit::Commit;
use crate::run::ids::{Fence, RunUid, TenantId};
use crate::store::calls::FetchPlace;
use crate::store::rows::CommitRows;
use crate::store::{AuditRow, OwnedCommit, StoreError};

/// The rows beside the heads, for the heads that `h` lists. Each head knows its slice of the arrays (`m` messages, `k`
/// calls, `e` events, `b` blobs), so nothing is joined and a plan cannot go wrong with the size of a batch. A call that
/// is known moves on; its arguments are not written again, nor is a blob that the run has. One that stays on offer stays
/// set aside for whom it is.
///
/// The arrays of big values stand behind all others: what belongs into messages, calls and events, then digests and
/// texts.
macro_rules! insert_rows {
    ($said:literal, $called:literal, $told:literal, $digests:literal, $bodies:literal, $fetch:literal) => {
        concat!(
            "bound AS (INSERT INTO bindings (tenant_id, run_uid, revision, body) \
           SELECT h.tenant_id, h.uid, h.binding_revision, h.binding::json FROM h WHERE h.binding IS NOT NULL), \
         said AS (INSERT INTO messages (tenant_id, run_uid, pos, body, blobs) \
           SELECT h.tenant_id, h.uid, m.pos, m.body::json, m.blobs::json FROM h CROSS JOIN LATERAL unnest( \
             ($1::bigint[])[h.m_from:h.m_to], ($2::text[])[h.m_from:h.m_to], (",
            $said,
            "::text[])[h.m_from:h.m_to]) \
             AS m (pos, body, blobs)), \
         called AS (INSERT INTO calls \
             (tenant_id, run_uid, turn, pos, stage, undecided_since, created_at, input, body, output, blobs, \
              worker_tool, queued_at, lease, outwaits, client_label) \
           SELECT h.tenant_id, h.uid, k.turn, k.pos, k.stage, k.undecided_since, k.created_at, k.input::json, \
             k.body::json, k.output::json, k.blobs::json, k.handed::json ->> 0, \
             now_ms() - (k.handed::json ->> 1)::bigint, k.handed::json ->> 2, (k.handed::json ->> 3)::smallint, \
             k.handed::json ->> 4 FROM h CROSS JOIN LATERAL unnest( \
             ($3::bigint[])[h.k_from:h.k_to], ($4::bigint[])[h.k_from:h.k_to], ($5::text[])[h.k_from:h.k_to], \
             ($6::bigint[])[h.k_from:h.k_to], ($7::text[])[h.k_from:h.k_to], ($8::text[])[h.k_from:h.k_to], \
             ($9::text[])[h.k_from:h.k_to], ($10::bigint[])[h.k_from:h.k_to], (",
            $called,
            "::text[])[h.k_from:h.k_to], (",
            $fetch,
            "::text[])[h.k_from:h.k_to]) \
             AS k (turn, pos, stage, undecided_since, input, body, output, created_at, blobs, handed) \
           ON CONFLICT (tenant_id, run_uid, turn, pos) DO UPDATE SET stage = excluded.stage, \
             undecided_since = excluded.undecided_since, body = excluded.body, output = excluded.output, \
             input = CASE WHEN excluded.stage IN ('proposed', 'pending') THEN excluded.input ELSE calls.input END, \
             blobs = excluded.blobs, worker_tool = excluded.worker_tool, queued_at = excluded.queued_at, \
             outwaits = excluded.outwaits, \
             lease = CASE WHEN excluded.queued_at IS NOT NULL AND calls.queued_at IS NOT NULL THEN calls.lease \
               ELSE excluded.lease END, \
             lease_until = CASE WHEN excluded.lease = calls.lease \
               OR (excluded.queued_at IS NOT NULL AND calls.queued_at IS NOT NULL) THEN calls.lease_until END), \
         told AS (INSERT INTO events (tenant_id, run_uid, seq, at, kind, body, blobs) \
           SELECT h.tenant_id, h.uid, e.seq, e.at, e.kind, e.body::json, e.blobs::json \
           FROM h CROSS JOIN LATERAL unnest( \
             ($11::bigint[])[h.e_from:h.e_to], ($12::bigint[])[h.e_from:h.e_to], ($13::text[])[h.e_from:h.e_to], \
             ($14::text[])[h.e_from:h.e_to], (",
            $told,
            "::text[])[h.e_from:h.e_to]) \
             AS e (seq, at, kind, body, blobs)), \
         kept AS (INSERT INTO blobs (tenant_id, run_uid, digest, body) \
           SELECT h.tenant_id, h.uid, b.digest, b.body FROM h CROSS JOIN LATERAL unnest( \
             (",
            $digests,
            "::text[])[h.b_from:h.b_to], (",
            $bodies,
            "::text[])[h.b_from:h.b_to]) AS b (digest, body) \
           ON CONFLICT (tenant_id, run_uid, digest) DO NOTHING)"
        )
    };
}
pub(super) use insert_rows;

/// The whole statement; what differs is the fence afterwards, and who may own the run before. A wish to cancel that
/// the leaving owner has not read makes the run due at once: the next owner reads it.
macro_rules! apply_commits {
    ($fence:literal, $owner:literal) => {
        concat!(
            "WITH h AS (UPDATE runs r SET fence = ",
            $fence,
            ", revision = r.revision + 1, status = c.status, reason = c.reason, last_seq = c.last_seq, \
               attempt = c.attempt, crashes = c.crashes, state = c.state::json, updated_at = c.updated_at, \
               finished_at = c.finished_at, binding_revision = COALESCE(c.binding_revision, r.binding_revision), \
               owner = CASE WHEN c.lets_go THEN NULL ELSE r.owner END, \
               due_at = CASE WHEN NOT c.lets_go OR c.terminal THEN NULL \
                 WHEN r.cancel_requested_by IS NOT NULL THEN now_ms() ELSE c.due_in + now_ms() END, \
               attention = r.attention AND NOT c.terminal, \
               cancel_requested_by = CASE WHEN c.terminal THEN NULL ELSE r.cancel_requested_by END \
             FROM unnest($15::bigint[], $16::text[], $17::uuid[], $18::bigint[], $19::bigint[], $20::bigint[], \
                 $21::text[], $22::text[], $23::bigint[], $24::bigint[], $25::bigint[], $26::text[], \
                 $27::bigint[], $28::bigint[], $29::bigint[], $30::text[], $31::boolean[], $32::boolean[], \
                 $33::bigint[], $34::int[], $35::int[], $36::int[], $37::int[], $38::int[], $39::int[], \
                 $40::int[], $41::int[], $48::text[]) \
               AS c (i, tenant_id, uid, fence, expected, base_seq, status, reason, last_seq, attempt, crashes, state, \
                 updated_at, finished_at, binding_revision, binding, lets_go, terminal, due_in, \
                 m_from, m_to, k_from, k_to, e_from, e_to, b_from, b_to, approvals) \
             WHERE r.tenant_id = c.tenant_id AND r.uid = c.uid AND r.fence = c.fence AND r.revision = c.expected \
               AND r.last_seq = c.base_seq AND r.owner IS ",
            $owner,
            " RETURNING c.i, r.tenant_id, r.uid, c.terminal, c.binding_revision, c.binding, c.m_from, c.m_to, \
               c.k_from, c.k_to, c.e_from, c.e_to, c.b_from, c.b_to, c.approvals), ",
            insert_rows!("$42", "$43", "$44", "$45", "$46", "$47"),
            ", asked AS (INSERT INTO approvals \
                 (tenant_id, id, run_uid, status, created_at, expires_at, body) \
               SELECT h.tenant_id, (a.value ->> 'id')::uuid, h.uid, a.value ->> 'status', \
                 (a.value ->> 'created_at')::bigint, (a.value ->> 'expires_at')::bigint, a.value -> 'body' \
               FROM h CROSS JOIN LATERAL json_array_elements(h.approvals::json) AS a \
               ON CONFLICT (tenant_id, id) DO UPDATE SET status = excluded.status, \
                 expires_at = excluded.expires_at, body = excluded.body), \
             purged AS (DELETE FROM run_secrets s USING h \
               WHERE s.tenant_id = h.tenant_id AND s.run_uid = h.uid AND h.terminal) \
             SELECT h.i FROM h"
        )
    };
}

pub(super) async fn commit_apply(store: &PostgresStore, commits: &[OwnedCommit]) -> Result<Vec<bool>, StoreError> {
    const SQL: &str = apply_commits!("r.fence", "NOT NULL");
    let mut order: Vec<usize> = (0..commits.len()).collect();
    // Rows are locked in the order of the batch: the same order in every writer.
    order.sort_by_key(|i| commits.get(*i).map(|commit| (commit.tenant.as_str(), commit.uid)));
    let mut batch = Batch::default();
    for i in order {
        if let Some(commit) = commits.get(i) {
            batch.push(i, (&commit.tenant, commit.uid), commit.fence, &commit.rows);
        }
    }
    let mut applied = vec![false; commits.len()];
    for i in batch.apply(SQL, &store.writer).await? {
        if let Some(took) = usize::try_from(i).ok().and_then(|i| applied.get_mut(i)) {
            *took = true;
        }
    }
    Ok(applied)
}

pub(super) async fn run_decide(
    store: &PostgresStore,
    tenant: &TenantId,
    uid: RunUid,
    seen: Fence,
    commit: &Commit,
    audit: &[AuditRow],
) -> Result<bool, StoreError> {
    const SQL: &str = apply_commits!("r.fence + 1", "NULL");
    let rows = CommitRows::encode(commit)?.of_nobody();
    let mut batch = Batch::default();
    batch.push(0, (tenant, uid), seen, &rows);
    let mut tx = store.pool.begin().await?;
    let took = !numbers(&batch.query(SQL).fetch_all(&mut *tx).await?)?.is_empty();
    if took {
        audit_insert(&mut tx, tenant, audit).await?;
        tx.commit().await?;
    }
    Ok(took)
}

/// The columns of all heads of a batch, and its other rows.
#[derive(Default)]
struct Batch<'a> {
    i: Vec<i64>,
    tenant: Vec<&'a str>,
    uid: Vec<Uuid>,
    fence: Vec<i64>,
    expected: Vec<i64>,
    base_seq: Vec<i64>,
    status: Vec<&'a str>,
    reason: Vec<Option<&'a str>>,
    last_seq: Vec<i64>,
    attempt: Vec<i64>,
    crashes: Vec<i64>,
    state: Vec<&'a str>,
    updated_at: Vec<i64>,
    finished_at: Vec<Option<i64>>,
    binding_revision: Vec<Option<i64>>,
    binding: Vec<Option<&'a str>>,
    lets_go: Vec<bool>,
    terminal: Vec<bool>,
    due_in: Vec<Option<i64>>,
    approvals: Vec<Option<&'a str>>,
    /// Where its rows stand in `rows`: messages, calls, events, blobs.
    slices: [Slices; 4],
    rows: Rows<'a>,
}

impl<'a> Batch<'a> {
    fn push(&mut self, i: usize, run: (&'a TenantId, RunUid), fence: Fence, rows: &'a CommitRows) {
        let i = i64::try_from(i).unwrap_or(i64::MAX);
        self.i.push(i);
        self.tenant.push(run.0.as_str());
        self.uid.push(run.1.0);
        self.fence.push(fence.0);
        self.expected.push(rows.expected);
        self.base_seq.push(rows.base_seq);
        self.status.push(rows.status);
        self.reason.push(rows.reason);
        self.last_seq.push(rows.last_seq);
        self.attempt.push(rows.attempt);
        self.crashes.push(rows.crashes);
        self.state.push(&rows.state);
        self.updated_at.push(rows.updated_at);
        self.finished_at.push(rows.finished_at);
        self.binding_revision.push(rows.binding.as_ref().map(|(revision, _)| *revision));
        self.binding.push(rows.binding.as_ref().map(|(_, body)| body.as_str()));
        self.lets_go.push(rows.lets_go);
        self.terminal.push(rows.terminal);
        self.due_in.push(rows.due_in);
        self.approvals.push(rows.asked.as_deref());
        let before = self.rows.lengths();
        self.rows.push(rows);
        let after = self.rows.lengths();
        for ((slices, before), after) in self.slices.iter_mut().zip(before).zip(after) {
            // Arrays count from 1, both ends belong to the slice.
            slices.from.push(before.saturating_add(1));
            slices.to.push(after);
        }
    }

    /// Answers the numbers of those that took. A deadlock's victim wrote nothing and tries once more.
    async fn apply(&self, sql: &'static str, pool: &PgPool) -> Result<Vec<i64>, StoreError> {
        match self.query(sql).fetch_all(pool).await {
            Err(sqlx::Error::Database(answer)) if answer.code().is_some_and(|code| code == "40P01") => {
                tracing::warn!("a batch of commits was the victim of a deadlock; it is tried once more");
                numbers(&self.query(sql).fetch_all(pool).await?)
            }
            rows => numbers(&rows?),
        }
    }

    fn query(&self, sql: &'static str) -> Query<'_, Postgres, PgArguments> {
        let query = self
            .rows
            .bind(sqlx::query(sql))
            .bind(&self.i)
            .bind(&self.tenant)
            .bind(&self.uid)
            .bind(&self.fence)
            .bind(&self.expected)
            .bind(&self.base_seq)
            .bind(&self.status)
            .bind(&self.reason)
            .bind(&self.last_seq)
            .bind(&self.attempt)
            .bind(&self.crashes)
            .bind(&self.state)
            .bind(&self.updated_at)
            .bind(&self.finished_at)
            .bind(&self.binding_revision)
            .bind(&self.binding)
            .bind(&self.lets_go)
            .bind(&self.terminal)
            .bind(&self.due_in);
        let query = self.slices.iter().fold(query, |query, slices| query.bind(&slices.from).bind(&slices.to));
        self.rows.bind_blobs(query).bind(&self.approvals)
    }
}

fn numbers(rows: &[sqlx::postgres::PgRow]) -> Result<Vec<i64>, StoreError> {
    rows.iter().map(|row| Ok(sqlx::Row::try_get(row, 0)?)).collect()
}

#[derive(Default)]
struct Slices {
    from: Vec<i32>,
    to: Vec<i32>,
}

/// The arrays that `insert_rows!` reads.
#[derive(Default)]
pub(super) struct Rows<'a> {
    positions: Vec<i64>,
    messages: Vec<&'a str>,
    calls: Calls<'a>,
    events: Events<'a>,
    blobs: Blobs<'a>,
}

#[derive(Default)]
struct Calls<'a> {
    turn: Vec<i64>,
    pos: Vec<i64>,
    stage: Vec<&'a str>,
    undecided_since: Vec<Option<i64>>,
    input: Vec<&'a str>,
    body: Vec<&'a str>,
    output: Vec<Option<&'a str>>,
    created_at: Vec<i64>,
    /// Where those who fetch a call find it, as one JSON array a call.
    fetch: Vec<Option<String>>,
}

#[derive(Default)]
struct Events<'a> {
    seq: Vec<i64>,
    at: Vec<i64>,
    kind: Vec<&'a str>,
    body: Vec<&'a str>,
}

/// What belongs into messages, calls and events, and the texts themselves.
#[derive(Default)]
struct Blobs<'a> {
    said: Vec<Option<&'a str>>,
    called: Vec<Option<&'a str>>,
    told: Vec<Option<&'a str>>,
    digest: Vec<&'a str>,
    body: Vec<&'a str>,
}

impl<'a> Rows<'a> {
    pub(super) fn push(&mut self, rows: &'a CommitRows) {
        for message in &rows.messages {
            self.positions.push(message.pos);
            self.messages.push(&message.body);
            self.blobs.said.push(message.blobs.as_deref());
        }
        for call in &rows.calls {
            self.calls.turn.push(call.turn);
            self.calls.pos.push(call.pos);
            self.calls.stage.push(call.stage);
            self.calls.undecided_since.push(call.undecided_since);
            self.calls.input.push(&call.input);
            self.calls.body.push(&call.body);
            self.calls.output.push(call.output.as_deref());
            self.calls.created_at.push(call.created_at);
            self.calls.fetch.push(fetch_column(&call.place));
            self.blobs.called.push(call.blobs.as_deref());
        }
        for row in &rows.events {
            self.events.seq.push(row.event.seq);
            self.events.at.push(row.at);
            self.events.kind.push(&row.event.kind);
            self.events.body.push(row.body());
            self.blobs.told.push(row.blobs.as_deref());
        }
        for (digest, body) in rows.blobs.iter() {
            self.blobs.digest.push(digest);
            self.blobs.body.push(body);
        }
    }

    /// How many messages, calls, events and blobs there are.
    fn lengths(&self) -> [i32; 4] {
        [self.messages.len(), self.calls.pos.len(), self.events.seq.len(), self.blobs.digest.len()]
            .map(|length| i32::try_from(length).unwrap_or(i32::MAX))
    }

    /// Binds `$1` to `$14`.
    pub(super) fn bind<'q>(&'q self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(&self.positions)
            .bind(&self.messages)
            .bind(&self.calls.turn)
            .bind(&self.calls.pos)
            .bind(&self.calls.stage)
            .bind(&self.calls.undecided_since)
            .bind(&self.calls.input)
            .bind(&self.calls.body)
            .bind(&self.calls.output)
            .bind(&self.calls.created_at)
            .bind(&self.events.seq)
            .bind(&self.events.at)
            .bind(&self.events.kind)
            .bind(&self.events.body)
    }

    /// Binds the last six parameters.
    pub(super) fn bind_blobs<'q>(
        &'q self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(&self.blobs.said)
            .bind(&self.blobs.called)
            .bind(&self.blobs.told)
            .bind(&self.blobs.digest)
            .bind(&self.blobs.body)
            .bind(&self.calls.fetch)
    }
}

fn fetch_column(place: &FetchPlace) -> Option<String> {
    let FetchPlace { tool, offered_for, lease, outwaits, client_label } = place;
    let found_by_it = tool.is_some() || client_label.is_some();
    found_by_it.then(|| json!([tool, offered_for, lease, outwaits, client_label]).to_string())
}
