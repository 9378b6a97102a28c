-- Access tokens that all nodes share, and whose turn it is to get a new one.

-- Sealed with the row's tenant, identity and version as associated data: it opens nowhere else. Until the first token
-- came, version and times are 0.
CREATE TABLE oauth_tokens (
    tenant_id   text COLLATE "C" NOT NULL,
    identity    bytea NOT NULL,
    version     bigint NOT NULL,
    key_id      text COLLATE "C",
    sealed      bytea,
    expires_at  bigint NOT NULL,
    holder      uuid,
    lease_until bigint NOT NULL,
    PRIMARY KEY (tenant_id, identity)
);
