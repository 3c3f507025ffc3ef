-- For operators' questions: which runs ended last, newest first so that nothing else is read by it, and which
-- threads were left part-way.

CREATE INDEX runs_by_end ON runs ((-ended_at)) WHERE ended_at IS NOT NULL;
CREATE INDEX threads_left ON threads (position) WHERE position IN ('torn', 'unknown');
