-- Nodes, runs and what runs append. Times are milliseconds since 1970 UTC.
-- Payloads are `json`: it keeps the text as it came; `jsonb` reprints numbers.

-- The database clock. STABLE, so that an index can serve `due_at <= now_ms()`.
CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;

CREATE TABLE nodes (
    node_id    uuid PRIMARY KEY,
    started_at bigint NOT NULL,
    beat_at    bigint NOT NULL,
    dead_at    bigint
) WITH (fillfactor = 60);

-- The head of a run is the one row that is written again. Room on each page and no index on what an ordinary
-- commit changes keep such an update inside its page.
CREATE TABLE runs (
    tenant_id           text COLLATE "C" NOT NULL,
    uid                 uuid NOT NULL,
    id                  text COLLATE "C" NOT NULL,
    status              text COLLATE "C" NOT NULL,
    reason              text COLLATE "C",
    revision            bigint NOT NULL,
    fence               bigint NOT NULL,
    last_seq            bigint NOT NULL,
    owner               uuid,
    due_at              bigint,
    attention           boolean NOT NULL DEFAULT false,
    cancel_requested_by text COLLATE "C",
    attempt             bigint NOT NULL,
    crashes             bigint NOT NULL,
    priority            integer NOT NULL,
    spec                json NOT NULL,
    state               json NOT NULL,
    metadata            json NOT NULL,
    binding_revision    bigint NOT NULL,
    created_at          bigint NOT NULL,
    updated_at          bigint NOT NULL,
    finished_at         bigint
) WITH (fillfactor = 60);

CREATE INDEX runs_due ON runs (tenant_id, priority DESC, due_at, uid) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX runs_next_due ON runs (due_at) WHERE owner IS NULL AND due_at IS NOT NULL;
CREATE INDEX runs_busy ON runs (tenant_id) WHERE owner IS NOT NULL;
CREATE INDEX runs_owned ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_attention ON runs (owner) WHERE attention;
CREATE INDEX runs_newest ON runs (tenant_id, created_at);
CREATE INDEX runs_status ON runs (tenant_id, status, created_at);
-- The keys come last: before there are statistics all ways to one run look the same, and the planner takes the youngest.
ALTER TABLE runs ADD CONSTRAINT run_exists UNIQUE (tenant_id, id);
ALTER TABLE runs ADD CONSTRAINT runs_pkey PRIMARY KEY (tenant_id, uid);

CREATE TABLE bindings (
    tenant_id text COLLATE "C" NOT NULL,
    run_uid   uuid NOT NULL,
    revision  bigint NOT NULL,
    body      json NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, revision)
);

CREATE TABLE messages (
    tenant_id text COLLATE "C" NOT NULL,
    run_uid   uuid NOT NULL,
    pos       bigint NOT NULL,
    body      json NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, pos)
);

-- A call moves two or three times, close to its birth.
CREATE TABLE calls (
    tenant_id       text COLLATE "C" NOT NULL,
    run_uid         uuid NOT NULL,
    turn            bigint NOT NULL,
    pos             bigint NOT NULL,
    stage           text COLLATE "C" NOT NULL,
    undecided_since bigint,
    input           json NOT NULL,
    body            json NOT NULL,
    output          json,
    PRIMARY KEY (tenant_id, run_uid, turn, pos)
) WITH (fillfactor = 80);

CREATE INDEX calls_undecided ON calls (tenant_id, run_uid, turn, pos) WHERE undecided_since IS NOT NULL;

CREATE TABLE events (
    tenant_id text COLLATE "C" NOT NULL,
    run_uid   uuid NOT NULL,
    seq       bigint NOT NULL,
    at        bigint NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    body      json NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, seq)
);
