-- What whoever watches a whole tenant looks for: status and result events of the last seconds.
CREATE INDEX events_feed ON events (tenant_id, at) WHERE kind IN ('run-status', 'result');
