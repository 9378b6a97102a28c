-- What people decide about calls whose outcome nobody knows, and the audit of it.

-- Receipts are listed across runs by the time of their call; of calls made before this column, last.
ALTER TABLE calls ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;

CREATE INDEX calls_newest ON calls (tenant_id, created_at, run_uid, turn, pos);
CREATE INDEX calls_unknown ON calls (tenant_id, undecided_since, run_uid, turn, pos) WHERE undecided_since IS NOT NULL;

-- Left for the owner of a run, which is the only one that may write to it. A call is another question each time that
-- it becomes undecided.
CREATE TABLE decisions (
    tenant_id       TEXT NOT NULL,
    run_uid         BLOB NOT NULL,
    turn            INTEGER NOT NULL,
    pos             INTEGER NOT NULL,
    undecided_since INTEGER NOT NULL,
    body            TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, turn, pos, undecided_since)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    tenant_id TEXT NOT NULL,
    at        INTEGER NOT NULL,
    id        BLOB NOT NULL,
    actor     TEXT NOT NULL,
    action    TEXT NOT NULL,
    subject   TEXT NOT NULL,
    run_id    TEXT,
    detail    TEXT NOT NULL,
    PRIMARY KEY (tenant_id, at, id)
) STRICT, WITHOUT ROWID;
