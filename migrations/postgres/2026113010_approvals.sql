-- What people are asked before a call is sent, and how they voted. Pending ones stand in the run's head too; these rows
-- outlive their decision.
CREATE TABLE approvals (
    tenant_id  text COLLATE "C" NOT NULL,
    id         uuid NOT NULL,
    run_uid    uuid NOT NULL,
    status     text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    body       json NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

CREATE INDEX approvals_of_run ON approvals (tenant_id, run_uid, created_at, id);
CREATE INDEX approvals_newest ON approvals (tenant_id, created_at, id);
CREATE INDEX approvals_of_status ON approvals (tenant_id, status, created_at, id);
-- Those that a deadline decides, the first one first.
CREATE INDEX approvals_due ON approvals (expires_at, id) WHERE status = 'pending' AND expires_at IS NOT NULL;

-- Votes, left for the owner of a run, which is the only one that may write to it.
CREATE TABLE votes (
    tenant_id   text COLLATE "C" NOT NULL,
    run_uid     uuid NOT NULL,
    approval_id uuid NOT NULL,
    actor       text COLLATE "C" NOT NULL,
    body        json NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, approval_id, actor)
);
