-- Calls that others come and fetch: workers, and the run's client.

-- While a call is on offer or with a worker: the tool and version that a worker must serve; empty while it is with the run's client.
ALTER TABLE calls ADD COLUMN worker_tool TEXT;
-- While it is on offer: since when, by this database's clock.
ALTER TABLE calls ADD COLUMN queued_at INTEGER;
-- While a worker has it, or it is set aside for one: the hand-out, its end, and the worker.
ALTER TABLE calls ADD COLUMN lease TEXT;
ALTER TABLE calls ADD COLUMN lease_until INTEGER;
ALTER TABLE calls ADD COLUMN worker_id TEXT;

CREATE INDEX calls_queued ON calls (tenant_id, worker_tool, queued_at) WHERE queued_at IS NOT NULL;
CREATE INDEX calls_leased ON calls (tenant_id, worker_tool, lease_until) WHERE lease IS NOT NULL;
CREATE INDEX calls_client ON calls (tenant_id, run_uid, turn, pos) WHERE worker_tool = '';

-- What became of such calls, left for the owner of the run, which is the only one that may write to it.
CREATE TABLE fetched (
    tenant_id TEXT NOT NULL,
    run_uid   BLOB NOT NULL,
    turn      INTEGER NOT NULL,
    pos       INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, turn, pos, kind)
) STRICT;

-- When somebody last asked for calls of a tool.
CREATE TABLE worker_tools (
    tenant_id   TEXT NOT NULL,
    worker_tool TEXT NOT NULL,
    seen_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, worker_tool)
) STRICT;
