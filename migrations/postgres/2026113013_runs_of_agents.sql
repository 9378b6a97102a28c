-- The agent version that a run is made of, as people list runs by it.
ALTER TABLE runs ADD COLUMN agent text COLLATE "C";

-- Read as text, from its beginning: `json` operators refuse a whole document for one NUL in a label.
UPDATE runs SET agent = substring(spec::text FROM '^\{"v":1,"body":\{"agent":"([^"\\]+)"');

CREATE INDEX runs_agent ON runs (tenant_id, agent, created_at) WHERE agent IS NOT NULL;
