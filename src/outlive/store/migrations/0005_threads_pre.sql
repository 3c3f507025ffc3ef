-- Where the last run that can tell has left a thread (clean, waiting, torn, unknown), and which run that was.
-- In ``runs``, where each left it.  Null: nobody has looked.

ALTER TABLE threads ADD COLUMN position TEXT;
ALTER TABLE threads ADD COLUMN left_by TEXT;
ALTER TABLE runs ADD COLUMN position TEXT;
