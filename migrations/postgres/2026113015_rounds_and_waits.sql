-- A vote belongs to the arguments that it was cast for: how often they had been changed then.
ALTER TABLE votes ADD COLUMN round bigint NOT NULL DEFAULT 0;
ALTER TABLE votes DROP CONSTRAINT votes_pkey;
ALTER TABLE votes ADD PRIMARY KEY (tenant_id, run_uid, approval_id, round, actor);

-- What a call on offer only goes on waiting through, by a rule: 1 nobody serves it, 2 nobody has room for it, 3 both. Unknown
-- for rows from before.
ALTER TABLE calls ADD COLUMN outwaits smallint;

-- Since when somebody asks for calls of a tool without a long pause.
ALTER TABLE worker_tools ADD COLUMN served_since bigint NOT NULL DEFAULT 0;
