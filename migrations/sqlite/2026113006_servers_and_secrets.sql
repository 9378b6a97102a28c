-- What a tenant keeps beside its runs: secrets for certain hosts, and registered MCP servers.

-- Sealed with the row's tenant, name and version as associated data: it opens nowhere else.
CREATE TABLE secrets (
    tenant_id  TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    key_id     TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    hosts      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, name)
) STRICT, WITHOUT ROWID;

-- `secret` is the stored secret that the server is told, by name: what is in use is not deleted.
CREATE TABLE mcp_servers (
    tenant_id  TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    secret     TEXT,
    body       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX mcp_servers_secret ON mcp_servers (tenant_id, secret) WHERE secret IS NOT NULL;
