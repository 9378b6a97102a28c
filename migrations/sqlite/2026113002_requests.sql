-- What a creating request leaves beside its run: the caller's key, and sealed run-scoped secrets.

CREATE TABLE idempotency_keys (
    tenant_id   TEXT NOT NULL,
    actor       TEXT NOT NULL,
    route       TEXT NOT NULL,
    key         TEXT NOT NULL,
    body_digest TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, actor, route, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (tenant_id, expires_at);

CREATE TABLE run_secrets (
    tenant_id TEXT NOT NULL,
    run_uid   BLOB NOT NULL,
    name      TEXT NOT NULL,
    key_id    TEXT NOT NULL,
    sealed    BLOB NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, name)
) STRICT, WITHOUT ROWID;
