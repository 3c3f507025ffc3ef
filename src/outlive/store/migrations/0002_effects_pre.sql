-- The ledger of effects: one row per business key and generation, whoever tries.  Approvals: what a person
-- allowed, for how long, and what it was used for.  Times are milliseconds on the database's clock.

CREATE TABLE effects (
    effect_id        TEXT PRIMARY KEY,
    tenant           TEXT NOT NULL,
    name             TEXT NOT NULL,
    key              TEXT NOT NULL,
    generation       INTEGER NOT NULL,
    provider_key     TEXT NOT NULL,
    fingerprint      TEXT NOT NULL,
    kind             TEXT NOT NULL CHECK (kind IN ('idempotent', 'reversible', 'deferrable', 'irreversible')),
    resource         TEXT,
    state            TEXT NOT NULL CHECK (state IN (
        'intended', 'started', 'done', 'failed', 'unknown', 'reconciled', 'compensated')),
    due              TEXT CHECK (due IN ('release', 'compensate')),
    compensates      TEXT,
    run_id           TEXT NOT NULL,
    origin           TEXT NOT NULL,
    thread_id        TEXT NOT NULL,
    epoch            BIGINT NOT NULL,
    claim_token      TEXT NOT NULL,
    key_ttl_ms       BIGINT,
    calls            INTEGER NOT NULL DEFAULT 0,
    inputs           TEXT NOT NULL,
    result           TEXT,
    error            TEXT,
    evidence         TEXT,
    settled_by       TEXT,
    created_at       BIGINT NOT NULL,
    first_started_at BIGINT,
    started_at       BIGINT,
    ended_at         BIGINT,
    UNIQUE (tenant, name, key, generation)
);

CREATE INDEX effects_by_origin ON effects (origin, created_at, effect_id);
CREATE INDEX effects_by_thread ON effects (thread_id, created_at, effect_id);
CREATE INDEX effects_by_tenant ON effects (tenant, created_at, effect_id);
CREATE INDEX effects_unfinished ON effects (run_id) WHERE state IN ('intended', 'started', 'unknown');
CREATE INDEX effects_unsettled ON effects (tenant, created_at) WHERE state IN ('started', 'unknown');
CREATE INDEX effects_due ON effects (origin, created_at) WHERE due IS NOT NULL;

-- Two effects that read before either writes would both find their resource free.  The index lets one start.
CREATE UNIQUE INDEX one_unsettled_effect_per_resource ON effects (tenant, resource)
    WHERE resource IS NOT NULL AND state IN ('started', 'unknown');

CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT,
    granted_by  TEXT NOT NULL,
    granted_at  BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL,
    consumed_by TEXT,
    consumed_at BIGINT
);

CREATE INDEX approvals_by_scope ON approvals (tenant, name, key);
