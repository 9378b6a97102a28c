-- A vote belongs to the arguments that it was cast for: how often they had been changed then.
CREATE TABLE votes_with_rounds (
    tenant_id   TEXT NOT NULL,
    run_uid     BLOB NOT NULL,
    approval_id BLOB NOT NULL,
    round       INTEGER NOT NULL DEFAULT 0,
    actor       TEXT NOT NULL,
    body        TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, approval_id, round, actor)
) STRICT, WITHOUT ROWID;
INSERT INTO votes_with_rounds (tenant_id, run_uid, approval_id, actor, body)
    SELECT tenant_id, run_uid, approval_id, actor, body FROM votes;
DROP TABLE votes;
ALTER TABLE votes_with_rounds RENAME TO votes;

-- What a call on offer only goes on waiting through, by a rule: 1 nobody serves it, 2 nobody has room for it, 3 both. Unknown
-- for rows from before.
ALTER TABLE calls ADD COLUMN outwaits INTEGER;

-- Since when somebody asks for calls of a tool without a long pause.
ALTER TABLE worker_tools ADD COLUMN served_since INTEGER NOT NULL DEFAULT 0;
