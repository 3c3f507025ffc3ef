-- Threads, runs, idempotency keys, events, presence.  Times are milliseconds since the epoch on the
-- database's clock; JSON is ASCII text.  One spelling serves both dialects.

CREATE TABLE threads (
    thread_id   TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL,
    external_id TEXT NOT NULL,
    next_pos    BIGINT NOT NULL,
    last_seq    BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    UNIQUE (tenant, external_id)
);

CREATE TABLE runs (
    run_id            TEXT PRIMARY KEY,
    tenant            TEXT NOT NULL,
    thread_id         TEXT NOT NULL REFERENCES threads (thread_id),
    agent             TEXT NOT NULL,
    state             TEXT NOT NULL CHECK (state IN (
        'queued', 'running', 'succeeded', 'waiting', 'failed', 'stopped', 'abandoned')),
    reason            TEXT CHECK (reason IN ('requested', 'disconnect', 'displaced', 'timeout', 'lost')),
    epoch             BIGINT NOT NULL,
    claim_token       TEXT,
    worker            TEXT,
    lease_until       BIGINT,
    renewed_at        BIGINT,
    pos               BIGINT NOT NULL,
    not_before        BIGINT,
    losses            INTEGER NOT NULL DEFAULT 0,
    last_seq          BIGINT NOT NULL DEFAULT 0,
    input             TEXT NOT NULL,
    output            TEXT,
    error             TEXT,
    error_detail      TEXT,
    metadata          TEXT NOT NULL,
    policy            TEXT NOT NULL,
    on_disconnect     TEXT NOT NULL,
    grace_ms          BIGINT NOT NULL,
    recovery          TEXT NOT NULL,
    max_losses        INTEGER NOT NULL,
    origin            TEXT NOT NULL,
    continues         TEXT,
    stop_requested_at BIGINT,
    stop_reason       TEXT,
    created_at        BIGINT NOT NULL,
    started_at        BIGINT,
    ended_at          BIGINT
);

-- A query cannot keep two workers off one thread: both read before either writes.  The index can.
CREATE UNIQUE INDEX one_running_run_per_thread ON runs (thread_id) WHERE state = 'running';
CREATE UNIQUE INDEX one_run_per_claim ON runs (claim_token) WHERE state = 'running';
CREATE UNIQUE INDEX runs_by_thread ON runs (thread_id, pos);
CREATE INDEX runs_live_by_thread ON runs (thread_id, pos) WHERE state IN ('queued', 'running');
CREATE INDEX runs_queued ON runs (created_at, run_id) WHERE state = 'queued';
CREATE INDEX runs_cancellable ON runs (created_at)
    WHERE on_disconnect = 'cancel' AND stop_requested_at IS NULL AND state IN ('queued', 'running');
CREATE INDEX runs_by_tenant ON runs (tenant, created_at, run_id);

CREATE TABLE run_keys (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE TABLE events (
    run_id     TEXT NOT NULL REFERENCES runs (run_id),
    seq        BIGINT NOT NULL,
    thread_id  TEXT NOT NULL,
    thread_seq BIGINT NOT NULL,
    epoch      BIGINT NOT NULL,
    kind       TEXT NOT NULL,
    mode       TEXT,
    payload    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, seq)
);

CREATE UNIQUE INDEX events_by_thread ON events (thread_id, thread_seq);
CREATE UNIQUE INDEX one_end_per_run ON events (run_id) WHERE kind = 'end';

CREATE TABLE presence (
    viewer      TEXT PRIMARY KEY,
    run_id      TEXT NOT NULL,
    joined_at   BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    left_at     BIGINT,
    cause       TEXT,
    last_seq    BIGINT NOT NULL
);

CREATE INDEX presence_by_run ON presence (run_id);
