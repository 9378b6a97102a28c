-- Nodes, runs and what runs append. Times are milliseconds since 1970 UTC; uids are 16 bytes.

CREATE TABLE nodes (
    node_id    BLOB PRIMARY KEY,
    started_at INTEGER NOT NULL,
    beat_at    INTEGER NOT NULL,
    dead_at    INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    tenant_id           TEXT NOT NULL,
    uid                 BLOB NOT NULL,
    id                  TEXT NOT NULL,
    status              TEXT NOT NULL,
    reason              TEXT,
    revision            INTEGER NOT NULL,
    fence               INTEGER NOT NULL,
    last_seq            INTEGER NOT NULL,
    owner               BLOB,
    due_at              INTEGER,
    attention           INTEGER NOT NULL DEFAULT 0,
    cancel_requested_by TEXT,
    attempt             INTEGER NOT NULL,
    crashes             INTEGER NOT NULL,
    priority            INTEGER NOT NULL,
    spec                TEXT NOT NULL,
    state               TEXT NOT NULL,
    metadata            TEXT NOT NULL,
    binding_revision    INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    finished_at         INTEGER,
    PRIMARY KEY (tenant_id, uid),
    CONSTRAINT run_exists UNIQUE (tenant_id, id)
) STRICT;

CREATE INDEX runs_due ON runs (tenant_id, priority DESC, due_at, uid) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX runs_next_due ON runs (due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX runs_busy ON runs (tenant_id) WHERE owner IS NOT NULL;
CREATE INDEX runs_owned ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_attention ON runs (owner) WHERE attention;
CREATE INDEX runs_newest ON runs (tenant_id, created_at);
CREATE INDEX runs_status ON runs (tenant_id, status, created_at);

CREATE TABLE bindings (
    tenant_id TEXT NOT NULL,
    run_uid   BLOB NOT NULL,
    revision  INTEGER NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, revision)
) STRICT;

CREATE TABLE messages (
    tenant_id TEXT NOT NULL,
    run_uid   BLOB NOT NULL,
    pos       INTEGER NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, pos)
) STRICT;

CREATE TABLE calls (
    tenant_id       TEXT NOT NULL,
    run_uid         BLOB NOT NULL,
    turn            INTEGER NOT NULL,
    pos             INTEGER NOT NULL,
    stage           TEXT NOT NULL,
    undecided_since INTEGER,
    input           TEXT NOT NULL,
    body            TEXT NOT NULL,
    output          TEXT,
    PRIMARY KEY (tenant_id, run_uid, turn, pos)
) STRICT;

CREATE INDEX calls_undecided ON calls (tenant_id, run_uid, turn, pos) WHERE undecided_since IS NOT NULL;

CREATE TABLE events (
    tenant_id TEXT NOT NULL,
    run_uid   BLOB NOT NULL,
    seq       INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, seq)
) STRICT;
