-- Which run a message has displaced that went before all who waited on its thread.  Null: none.

ALTER TABLE runs ADD COLUMN displaces TEXT;
