-- What people are asked before a call is sent, and how they voted. Pending ones stand in the run's head too; these rows
-- outlive their decision.
CREATE TABLE approvals (
    tenant_id  TEXT NOT NULL,
    id         BLOB NOT NULL,
    run_uid    BLOB NOT NULL,
    status     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    body       TEXT NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_of_run ON approvals (tenant_id, run_uid, created_at, id);
CREATE INDEX approvals_newest ON approvals (tenant_id, created_at, id);
CREATE INDEX approvals_of_status ON approvals (tenant_id, status, created_at, id);
-- Those that a deadline decides, the first one first.
CREATE INDEX approvals_due ON approvals (expires_at, id) WHERE status = 'pending' AND expires_at IS NOT NULL;

-- Votes, left for the owner of a run, which is the only one that may write to it.
CREATE TABLE votes (
    tenant_id   TEXT NOT NULL,
    run_uid     BLOB NOT NULL,
    approval_id BLOB NOT NULL,
    actor       TEXT NOT NULL,
    body        TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, approval_id, actor)
) STRICT, WITHOUT ROWID;
