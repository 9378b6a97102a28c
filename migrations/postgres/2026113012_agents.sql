-- Agents of a tenant: immutable versions, and which of them is active.

CREATE TABLE agents (
    tenant_id  text COLLATE "C" NOT NULL,
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    active     text COLLATE "C",
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, namespace, name)
);

CREATE TABLE agent_versions (
    tenant_id     text COLLATE "C" NOT NULL,
    namespace     text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    version       text COLLATE "C" NOT NULL,
    digest        text COLLATE "C" NOT NULL,
    body          json NOT NULL,
    published_by  text COLLATE "C" NOT NULL,
    published_at  bigint NOT NULL,
    deprecated_at bigint,
    PRIMARY KEY (tenant_id, namespace, name, version)
);

-- `back_to` is the deployment that a rollback goes back to.
CREATE TABLE agent_deployments (
    tenant_id text COLLATE "C" NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    version   text COLLATE "C" NOT NULL,
    action    text COLLATE "C" NOT NULL,
    actor     text COLLATE "C" NOT NULL,
    at        bigint NOT NULL,
    back_to   bigint,
    PRIMARY KEY (tenant_id, namespace, name, number)
);
