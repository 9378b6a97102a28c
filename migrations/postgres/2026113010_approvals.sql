-- What people are asked before a call is sent, and how they voted. Pending ones stand in the run's head too; these rows
-- outlive their decision.
CREATE TABLE approvals (
    tenant_id  text COLLATE "C" NOT NULL,
    id         uuid NOT NULL,
    run_uid    uuid NOT NULL,
    status     text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    body       json NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

CREATE INDEX approvals_of_run ON approvals (tenant_id, run_uid, created_at, id);
CREATE INDEX approvals_newest ON approvals (tenant_id, status, created_at, id);
