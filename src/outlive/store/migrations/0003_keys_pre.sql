CREATE TABLE api_keys (
    key_id       TEXT PRIMARY KEY,
    tenant       TEXT NOT NULL,
    name         TEXT NOT NULL,
    scopes       TEXT NOT NULL,
    digest       TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    last_used_at BIGINT,
    revoked_at   BIGINT
);

CREATE INDEX api_keys_by_tenant ON api_keys (tenant, created_at);

-- What counts towards a limit: runs that are not over, and runs of the last minute.  A row stays until a later
-- submit of the same subject finds that it counts no more.
CREATE TABLE quota_uses (
    subject    TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (subject, run_id)
);
