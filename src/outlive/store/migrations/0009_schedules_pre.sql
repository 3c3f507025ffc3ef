-- Schedules, and what became of each of their slots.  All slots up to ``seen_until`` have a row among the
-- occurrences; ``next_at`` is the first one after it, null when none comes any more.  An occurrence has a copy
-- of everything that its run is made of, and the id of that run from the moment it is written: submitting it
-- twice makes one run.  A row that was skipped may stand for several slots in a row (``slots``, up to ``slot``).

CREATE TABLE schedules (
    schedule_id TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    cron        TEXT NOT NULL,
    timezone    TEXT NOT NULL,
    agent       TEXT NOT NULL,
    thread      TEXT,
    input       TEXT NOT NULL,
    metadata    TEXT NOT NULL,
    policy      TEXT NOT NULL,
    webhook     TEXT,
    principal   TEXT NOT NULL,
    missed      TEXT NOT NULL CHECK (missed IN ('skip', 'latest', 'all')),
    grace_ms    BIGINT NOT NULL,
    ends_at     BIGINT,
    state       TEXT NOT NULL CHECK (state IN ('active', 'paused', 'ended')),
    seen_until  BIGINT NOT NULL,
    next_at     BIGINT,
    version     INTEGER NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);

CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_by_tenant ON schedules (tenant, created_at, schedule_id);

CREATE TABLE occurrences (
    schedule_id TEXT NOT NULL,
    slot        BIGINT NOT NULL,
    run_id      TEXT NOT NULL,
    slots       INTEGER NOT NULL,
    tenant      TEXT NOT NULL,
    agent       TEXT NOT NULL,
    thread      TEXT,
    input       TEXT NOT NULL,
    metadata    TEXT NOT NULL,
    policy      TEXT NOT NULL,
    webhook     TEXT,
    principal   TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('pending', 'fired', 'skipped')),
    reason      TEXT,
    error       TEXT,
    deadline    BIGINT,
    tries       INTEGER NOT NULL,
    try_at      BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    ended_at    BIGINT,
    PRIMARY KEY (schedule_id, slot)
);

CREATE UNIQUE INDEX occurrences_by_run ON occurrences (run_id);
CREATE INDEX occurrences_pending ON occurrences (try_at) WHERE state = 'pending';
