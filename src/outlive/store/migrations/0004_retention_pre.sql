-- Viewers of whole threads, bodies of events that are too large to travel with them, and what retention has
-- taken away.  In ``presence``, ``thread_id`` is set where somebody watches a thread: ``run_id`` is empty then,
-- and ``first_seq`` and ``last_seq`` are the thread's.

ALTER TABLE presence ADD COLUMN thread_id TEXT;
ALTER TABLE presence ADD COLUMN first_seq BIGINT NOT NULL DEFAULT 0;
CREATE INDEX presence_by_thread ON presence (thread_id) WHERE thread_id IS NOT NULL;

CREATE TABLE event_bodies (
    run_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    body   TEXT NOT NULL,
    PRIMARY KEY (run_id, digest)
);

-- The oldest event that is kept; ``pruned_at`` is when everything was taken that retention takes.
ALTER TABLE runs ADD COLUMN oldest_seq BIGINT NOT NULL DEFAULT 1;
ALTER TABLE runs ADD COLUMN pruned_at BIGINT;
ALTER TABLE threads ADD COLUMN oldest_seq BIGINT NOT NULL DEFAULT 1;
CREATE INDEX runs_to_prune ON runs (ended_at) WHERE ended_at IS NOT NULL AND pruned_at IS NULL;
