-- Threads that pass by themselves: so long after nothing has happened on them any more they are deleted.
-- Null: a thread stays until somebody deletes it.

ALTER TABLE threads ADD COLUMN passes_after_ms BIGINT;
CREATE INDEX threads_passing ON threads (thread_id) WHERE passes_after_ms IS NOT NULL AND deleted_at IS NULL;
