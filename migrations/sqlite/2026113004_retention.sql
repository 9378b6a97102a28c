-- Big values, kept once a run, and what retention needs to find what is old without reading what is not.

-- Values over 64 KiB, as their JSON text. Rows that hold one have null in its place, and say in `blobs` where it goes.
CREATE TABLE blobs (
    tenant_id TEXT NOT NULL,
    run_uid   BLOB NOT NULL,
    digest    TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, digest)
) STRICT;

ALTER TABLE messages ADD COLUMN blobs TEXT;
ALTER TABLE events ADD COLUMN blobs TEXT;

-- A receipt outlives its run: from then on it says itself whose it is.
ALTER TABLE calls ADD COLUMN blobs TEXT;
ALTER TABLE calls ADD COLUMN run_id TEXT;
ALTER TABLE calls ADD COLUMN run_finished_at INTEGER;

-- When events and messages of a finished run were dropped.
ALTER TABLE runs ADD COLUMN pruned_at INTEGER;

-- A run stands in one of these at most. Their predicates keep them out of every other plan.
CREATE INDEX runs_finished ON runs (finished_at, tenant_id, uid) WHERE finished_at IS NOT NULL AND pruned_at IS NULL;
CREATE INDEX runs_pruned ON runs (finished_at, tenant_id, uid) WHERE pruned_at IS NOT NULL;
CREATE INDEX calls_kept ON calls (run_finished_at, tenant_id, run_uid) WHERE run_finished_at IS NOT NULL;
CREATE INDEX idempotency_keys_expired ON idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_run ON idempotency_keys (tenant_id, run_id);
