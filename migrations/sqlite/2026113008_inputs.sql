-- What people answer to servers' questions, left for the owner of a run, which is the only one that may write to it.
CREATE TABLE inputs (
    tenant_id TEXT NOT NULL,
    run_uid   BLOB NOT NULL,
    input_id  TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (tenant_id, run_uid, input_id)
) STRICT, WITHOUT ROWID;
