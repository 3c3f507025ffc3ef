-- What became of slots long ago is taken away with the events of their time.

CREATE INDEX occurrences_ended ON occurrences (ended_at) WHERE ended_at IS NOT NULL;
