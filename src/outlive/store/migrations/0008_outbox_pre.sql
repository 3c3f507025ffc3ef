-- Who is told of a run's end, and what is told.  ``runs.notify`` names the receivers, as JSON; the statement
-- that ends a run writes one row per receiver into ``outbox``, and nothing else does.  ``body`` is set by who
-- first takes a row, before it sends anything, and never changes.  ``next_at`` is when a row may be taken; who
-- takes one puts it off by its lease.  ``queued_at`` is what its age is counted from.

ALTER TABLE runs ADD COLUMN notify TEXT;

CREATE TABLE outbox (
    notification_id TEXT PRIMARY KEY,
    tenant          TEXT NOT NULL,
    run_id          TEXT NOT NULL,
    kind            TEXT NOT NULL,
    receiver        TEXT NOT NULL,
    url             TEXT NOT NULL,
    audience        TEXT NOT NULL CHECK (audience IN ('tenant', 'service')),
    state           TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'dead')),
    body            TEXT,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_at         BIGINT NOT NULL,
    claim_token     TEXT,
    status          INTEGER,
    error           TEXT,
    created_at      BIGINT NOT NULL,
    queued_at       BIGINT NOT NULL,
    attempted_at    BIGINT,
    ended_at        BIGINT
);

CREATE INDEX outbox_pending ON outbox (receiver, next_at) WHERE state = 'pending';
CREATE INDEX outbox_aging ON outbox (queued_at) WHERE state = 'pending';
CREATE INDEX outbox_ended ON outbox (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX outbox_by_tenant ON outbox (tenant, created_at, notification_id);
CREATE INDEX outbox_by_run ON outbox (run_id, notification_id);

-- Receivers that do not answer: how often in a row, and when one is tried again.  No row: all is well.
CREATE TABLE circuits (
    receiver TEXT PRIMARY KEY,
    failures INTEGER NOT NULL,
    retry_at BIGINT NOT NULL
);

-- Addresses that said that nobody wants to hear anything there any more.
CREATE TABLE gone_urls (
    receiver TEXT NOT NULL,
    url      TEXT NOT NULL,
    gone_at  BIGINT NOT NULL,
    PRIMARY KEY (receiver, url)
);
