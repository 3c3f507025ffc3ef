-- Schedules whose runs have threads of their own that pass: so long after nothing has happened on them any more
-- they are deleted.  Null: they stay.

ALTER TABLE schedules ADD COLUMN passes_after_ms BIGINT;
ALTER TABLE occurrences ADD COLUMN passes_after_ms BIGINT;
