-- What a tenant keeps beside its runs: secrets for certain hosts, and registered MCP servers.

-- Sealed with the row's tenant, name and version as associated data: it opens nowhere else.
CREATE TABLE secrets (
    tenant_id  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    key_id     text COLLATE "C" NOT NULL,
    sealed     bytea NOT NULL,
    hosts      json NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, name)
);

-- `secret` is the stored secret that the server is told, by name: what is in use is not deleted.
CREATE TABLE mcp_servers (
    tenant_id  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    secret     text COLLATE "C",
    body       json NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, name)
);

CREATE INDEX mcp_servers_secret ON mcp_servers (tenant_id, secret) WHERE secret IS NOT NULL;
