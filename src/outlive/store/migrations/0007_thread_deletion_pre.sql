-- Threads that are being deleted: nobody finds them any more, and what is left of them is taken away piece by
-- piece.  Where a thread was copied from.  Threads in the order in which they began.

ALTER TABLE threads ADD COLUMN deleted_at BIGINT;
ALTER TABLE threads ADD COLUMN copied_from TEXT;
CREATE INDEX threads_deleted ON threads (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX threads_by_tenant ON threads (tenant, created_at, thread_id);
CREATE INDEX run_keys_by_run ON run_keys (run_id);
