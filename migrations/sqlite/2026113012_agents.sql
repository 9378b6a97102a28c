-- Agents of a tenant: immutable versions, and which of them is active.

CREATE TABLE agents (
    tenant_id  TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    active     TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, namespace, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_versions (
    tenant_id     TEXT NOT NULL,
    namespace     TEXT NOT NULL,
    name          TEXT NOT NULL,
    version       TEXT NOT NULL,
    digest        TEXT NOT NULL,
    body          TEXT NOT NULL,
    published_by  TEXT NOT NULL,
    published_at  INTEGER NOT NULL,
    deprecated_at INTEGER,
    PRIMARY KEY (tenant_id, namespace, name, version)
) STRICT, WITHOUT ROWID;

-- `back_to` is the deployment that a rollback goes back to.
CREATE TABLE agent_deployments (
    tenant_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    number    INTEGER NOT NULL,
    version   TEXT NOT NULL,
    action    TEXT NOT NULL,
    actor     TEXT NOT NULL,
    at        INTEGER NOT NULL,
    back_to   INTEGER,
    PRIMARY KEY (tenant_id, namespace, name, number)
) STRICT, WITHOUT ROWID;
