-- What a creating request leaves beside its run: the caller's key, and sealed run-scoped secrets.

CREATE TABLE idempotency_keys (
    tenant_id   text COLLATE "C" NOT NULL,
    actor       text COLLATE "C" NOT NULL,
    route       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    body_digest text NOT NULL,
    run_id      text COLLATE "C" NOT NULL,
    expires_at  bigint NOT NULL,
    PRIMARY KEY (tenant_id, actor, route, key)
);

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (tenant_id, expires_at);

CREATE TABLE run_secrets (
    tenant_id text COLLATE "C" NOT NULL,
    run_uid   uuid NOT NULL,
    name      text COLLATE "C" NOT NULL,
    key_id    text NOT NULL,
    sealed    bytea NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, name)
);
