-- Access tokens that all nodes share, and whose turn it is to get a new one.

-- Sealed with the row's tenant, identity and version as associated data: it opens nowhere else. Until the first token
-- came, version and times are 0.
CREATE TABLE oauth_tokens (
    tenant_id   TEXT NOT NULL,
    identity    BLOB NOT NULL,
    version     INTEGER NOT NULL,
    key_id      TEXT,
    sealed      BLOB,
    expires_at  INTEGER NOT NULL,
    holder      BLOB,
    lease_until INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, identity)
) STRICT, WITHOUT ROWID;
