-- What people decide about calls whose outcome nobody knows, and the audit of it.

-- Receipts are listed across runs by the time of their call; of calls made before this column, last.
ALTER TABLE calls ADD COLUMN created_at bigint NOT NULL DEFAULT 0;

CREATE INDEX calls_newest ON calls (tenant_id, created_at, run_uid, turn, pos);
CREATE INDEX calls_unknown ON calls (tenant_id, undecided_since, run_uid, turn, pos) WHERE undecided_since IS NOT NULL;

-- Left for the owner of a run, which is the only one that may write to it. A call is another question each time that
-- it becomes undecided.
CREATE TABLE decisions (
    tenant_id       text COLLATE "C" NOT NULL,
    run_uid         uuid NOT NULL,
    turn            bigint NOT NULL,
    pos             bigint NOT NULL,
    undecided_since bigint NOT NULL,
    body            json NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, turn, pos, undecided_since)
);

CREATE TABLE audit (
    tenant_id text COLLATE "C" NOT NULL,
    at        bigint NOT NULL,
    id        uuid NOT NULL,
    actor     text COLLATE "C" NOT NULL,
    action    text COLLATE "C" NOT NULL,
    subject   text NOT NULL,
    run_id    text COLLATE "C",
    detail    json NOT NULL,
    PRIMARY KEY (tenant_id, at, id)
);
