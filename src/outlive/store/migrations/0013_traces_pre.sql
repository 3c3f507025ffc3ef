-- Where a run belongs in whoever's trace asked for it (a W3C traceparent), so that every process that works on
-- it, or tells of its end, goes on with the same trace.  Null: nobody traces it.

ALTER TABLE runs ADD COLUMN traceparent TEXT;
ALTER TABLE outbox ADD COLUMN traceparent TEXT;
