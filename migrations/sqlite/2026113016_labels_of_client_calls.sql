-- The label of a call that the run's client carries out, as JSON text: a result that comes again names its call by it. Unknown
-- for rows from before.
ALTER TABLE calls ADD COLUMN client_label TEXT;
CREATE INDEX calls_client_label ON calls (tenant_id, run_uid, client_label, turn) WHERE client_label IS NOT NULL;
