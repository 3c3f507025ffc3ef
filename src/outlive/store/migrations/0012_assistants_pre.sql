-- What clients of the LangGraph protocol keep beside runs: words about a thread that it can be found by, and
-- assistants, each a graph under an id with a configuration of its own.  Null: nobody has said anything since.

ALTER TABLE threads ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';
ALTER TABLE threads ADD COLUMN updated_at BIGINT;

CREATE TABLE assistants (
    tenant       TEXT NOT NULL,
    assistant_id TEXT NOT NULL,
    version      INTEGER NOT NULL,
    agent        TEXT NOT NULL,
    name         TEXT NOT NULL,
    description  TEXT,
    config       TEXT NOT NULL,
    context      TEXT NOT NULL,
    metadata     TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    PRIMARY KEY (tenant, assistant_id)
);

CREATE TABLE assistant_versions (
    tenant       TEXT NOT NULL,
    assistant_id TEXT NOT NULL,
    version      INTEGER NOT NULL,
    agent        TEXT NOT NULL,
    name         TEXT NOT NULL,
    description  TEXT,
    config       TEXT NOT NULL,
    context      TEXT NOT NULL,
    metadata     TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    PRIMARY KEY (tenant, assistant_id, version)
);
