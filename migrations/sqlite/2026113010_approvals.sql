-- What people are asked before a call is sent, and how they voted. Pending ones stand in the run's head too; these rows
-- outlive their decision.
CREATE TABLE approvals (
    tenant_id  TEXT NOT NULL,
    id         BLOB NOT NULL,
    run_uid    BLOB NOT NULL,
    status     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    body       TEXT NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_of_run ON approvals (tenant_id, run_uid, created_at, id);
CREATE INDEX approvals_newest ON approvals (tenant_id, status, created_at, id);
