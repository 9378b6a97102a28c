-- The agent version that a run is made of, as people list runs by it.
ALTER TABLE runs ADD COLUMN agent TEXT;

UPDATE runs SET agent = spec ->> '$.body.agent';

CREATE INDEX runs_agent ON runs (tenant_id, agent, created_at) WHERE agent IS NOT NULL;
