-- What people answer to servers' questions, left for the owner of a run, which is the only one that may write to it.
CREATE TABLE inputs (
    tenant_id text COLLATE "C" NOT NULL,
    run_uid   uuid NOT NULL,
    input_id  text COLLATE "C" NOT NULL,
    body      json NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, input_id)
);
