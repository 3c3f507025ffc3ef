-- Every statement of Outlive.  See sql.py for the dialect words.  Order: the path of a run.
-- Columns are named one by one: `*` would break a prepared statement when a migration adds a column.

-- ------------------------------------------------------------------ command: submit

-- name: take_key
-- The key row comes before the run row: of two submits with one key, the second waits here and then
-- reads the first one's run, instead of inserting a run that nothing points to.
INSERT INTO run_keys (tenant, key, fingerprint, run_id, created_at)
VALUES (:tenant, :key, :fingerprint, :run_id, {now})
ON CONFLICT (tenant, key) DO NOTHING
RETURNING run_id

-- name: read_key
SELECT fingerprint, run_id FROM run_keys WHERE tenant = :tenant AND key = :key

-- name: point_key
UPDATE run_keys SET run_id = :run_id WHERE tenant = :tenant AND key = :key AND run_id = :seen
RETURNING run_id

-- name: enter_thread
-- Creates the thread or locks it, and takes the next place in its queue, in one statement.
INSERT INTO threads (thread_id, tenant, external_id, next_pos, last_seq, created_at)
VALUES (:thread_id, :tenant, :thread, 2, 0, {now})
ON CONFLICT (tenant, external_id) DO UPDATE SET next_pos = threads.next_pos + 1
RETURNING thread_id, next_pos - 1 AS pos, position, left_by

-- name: look_at_thread
-- What somebody found who looked at a thread on which nothing ran; later ends know better.
UPDATE threads SET position = :position
WHERE thread_id = :thread_id AND (position IS NULL OR position = 'unknown')
    AND NOT EXISTS (SELECT 1 FROM runs o WHERE o.thread_id = :thread_id AND o.state = 'running')

-- name: live_runs
SELECT run_id, state, epoch, displaces FROM runs
WHERE thread_id = :thread_id AND state IN ('queued', 'running')
ORDER BY pos

-- name: head_of_thread
-- The place before every other, for a run that displaces another: places are never taken twice.
SELECT min(pos) - 1 AS pos FROM runs WHERE thread_id = :thread_id

-- name: insert_run
-- The run goes straight to running, its attempt opened in its log, if this process offers a slot for its agent
-- and nobody else's run waits for one: taking the slot then would let a busy submitter starve the queue.  A run
-- that waits for its own thread does not count: no slot would help it.
-- A fresh run gets a thread of its own, and takes its key, in the same statement; if the key is taken, or the
-- thread is there, nothing happens and no row comes back.  Any other has entered its thread before.
INSERT INTO threads (thread_id, tenant, external_id, next_pos, last_seq, created_at)
SELECT :thread_id, :tenant, :thread, 2, 0, {now}
WHERE :fresh AND (:key IS NULL OR NOT EXISTS (SELECT 1 FROM run_keys WHERE tenant = :tenant AND key = :key))
ON CONFLICT (tenant, external_id) DO NOTHING;
INSERT INTO runs (
    run_id, tenant, thread_id, agent, pos, not_before, input, metadata, policy, notify, traceparent,
    on_disconnect, grace_ms, recovery, max_losses, origin, continues, displaces, created_at,
    state, epoch, last_seq, claim_token, worker, lease_until, renewed_at, started_at)
SELECT
    :run_id, :tenant, place.thread_id, :agent, :pos, CAST(:not_before AS BIGINT), :input, :metadata, :policy,
    CAST(:notify AS TEXT), CAST(:traceparent AS TEXT), :on_disconnect, :grace_ms, :recovery, :max_losses, :origin, :continues,
    CAST(:displaces AS TEXT), {now},
    CASE WHEN start.now THEN 'running' ELSE 'queued' END,
    CASE WHEN start.now THEN 1 ELSE 0 END,
    CASE WHEN start.now THEN 1 ELSE 0 END,
    CASE WHEN start.now THEN :claim_token END,
    CASE WHEN start.now THEN :worker END,
    CASE WHEN start.now THEN {now} + :lease_ms END,
    CASE WHEN start.now THEN {now} END,
    CASE WHEN start.now THEN {now} END
FROM threads AS place, (
    SELECT :agent {in:agents} AND NOT EXISTS (
        SELECT 1 FROM runs r
        WHERE r.state = 'queued' AND r.agent {in:agents} AND (r.not_before IS NULL OR r.not_before <= {now})
            AND NOT EXISTS (
                SELECT 1 FROM runs o
                WHERE o.thread_id = r.thread_id AND o.state IN ('queued', 'running')
                    AND (o.state = 'running'
                        OR (o.pos < r.pos AND (o.not_before IS NULL OR o.not_before <= {now}))))
    ) AS now) AS start
WHERE place.thread_id = :thread_id
ON CONFLICT (run_id) DO NOTHING
RETURNING run_id, tenant, thread_id, agent, state, reason, epoch, claim_token, worker, lease_until, pos,
    not_before, losses, last_seq, input, output, error, error_detail, metadata, policy, origin, continues,
    displaces, stop_requested_at, stop_reason, created_at, started_at, ended_at, notify, traceparent;
UPDATE threads SET last_seq = last_seq + (SELECT last_seq FROM runs WHERE run_id = :run_id)
WHERE thread_id = :thread_id
RETURNING last_seq AS thread_seq;
INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, mode, payload, created_at)
SELECT r.run_id, 1, r.thread_id, t.last_seq, 1, 'attempt', NULL, :opening, {now}
FROM runs r JOIN threads t ON t.thread_id = r.thread_id
WHERE r.run_id = :run_id AND r.state = 'running';
INSERT INTO run_keys (tenant, key, fingerprint, run_id, created_at)
SELECT :tenant, :key, :fingerprint, :run_id, {now}
WHERE :fresh AND :key IS NOT NULL;
INSERT INTO presence (viewer, run_id, joined_at, lease_until, last_seq)
SELECT :viewer, :run_id, {now}, {now} + :viewer_lease_ms, 0
WHERE :viewer IS NOT NULL
ON CONFLICT (viewer) DO UPDATE SET lease_until = {now} + :viewer_lease_ms, left_at = NULL, cause = NULL

-- name: insert_run [postgresql]
WITH start AS MATERIALIZED (
    SELECT :agent {in:agents} AND NOT EXISTS (
        SELECT 1 FROM runs r
        WHERE r.state = 'queued' AND r.agent {in:agents} AND (r.not_before IS NULL OR r.not_before <= {now})
            AND NOT EXISTS (
                SELECT 1 FROM runs o
                WHERE o.thread_id = r.thread_id AND o.state IN ('queued', 'running')
                    AND (o.state = 'running'
                        OR (o.pos < r.pos AND (o.not_before IS NULL OR o.not_before <= {now}))))
    ) AS now
), taken AS (
    INSERT INTO run_keys (tenant, key, fingerprint, run_id, created_at)
    SELECT :tenant, CAST(:key AS text), :fingerprint, :run_id, {now}
    WHERE :fresh AND CAST(:key AS text) IS NOT NULL
    ON CONFLICT (tenant, key) DO NOTHING
    RETURNING run_id
), fresh AS (
    INSERT INTO threads (thread_id, tenant, external_id, next_pos, last_seq, created_at)
    SELECT :thread_id, :tenant, :thread, 2, CASE WHEN start.now THEN 1 ELSE 0 END, {now} FROM start
    WHERE :fresh AND (CAST(:key AS text) IS NULL OR EXISTS (SELECT 1 FROM taken))
    ON CONFLICT (tenant, external_id) DO NOTHING
    RETURNING thread_id
), place AS (
    SELECT thread_id FROM fresh UNION ALL SELECT CAST(:thread_id AS text) WHERE NOT :fresh
), run AS (
    INSERT INTO runs (
        run_id, tenant, thread_id, agent, pos, not_before, input, metadata, policy, notify, traceparent,
        on_disconnect, grace_ms, recovery, max_losses, origin, continues, displaces, created_at,
        state, epoch, last_seq, claim_token, worker, lease_until, renewed_at, started_at)
    SELECT
        :run_id, :tenant, place.thread_id, :agent, :pos, CAST(:not_before AS BIGINT), :input, :metadata, :policy,
        CAST(:notify AS TEXT), CAST(:traceparent AS TEXT), :on_disconnect, :grace_ms, :recovery, :max_losses, :origin, :continues,
    CAST(:displaces AS TEXT), {now},
        CASE WHEN start.now THEN 'running' ELSE 'queued' END,
        CASE WHEN start.now THEN 1 ELSE 0 END,
        CASE WHEN start.now THEN 1 ELSE 0 END,
        CASE WHEN start.now THEN :claim_token END,
        CASE WHEN start.now THEN :worker END,
        CASE WHEN start.now THEN {now} + :lease_ms END,
        CASE WHEN start.now THEN {now} END,
        CASE WHEN start.now THEN {now} END
    FROM place, start
    ON CONFLICT (run_id) DO NOTHING
    RETURNING run_id, tenant, thread_id, agent, state, reason, epoch, claim_token, worker, lease_until, pos,
        not_before, losses, last_seq, input, output, error, error_detail, metadata, policy, origin, continues,
    displaces,     stop_requested_at, stop_reason, created_at, started_at, ended_at, notify, traceparent
), thread AS (
    UPDATE threads SET last_seq = threads.last_seq + 1
    FROM run WHERE threads.thread_id = run.thread_id AND run.state = 'running' AND NOT :fresh
    RETURNING threads.last_seq
), opened AS (
    INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, mode, payload, created_at)
    SELECT run.run_id, 1, run.thread_id, coalesce((SELECT last_seq FROM thread), 1), 1, 'attempt', NULL,
        :opening, {now}
    FROM run WHERE run.state = 'running'
), watched AS (
    INSERT INTO presence (viewer, run_id, joined_at, lease_until, last_seq)
    SELECT CAST(:viewer AS text), run.run_id, {now}, {now} + :viewer_lease_ms, 0
    FROM run WHERE CAST(:viewer AS text) IS NOT NULL
    ON CONFLICT (viewer) DO UPDATE SET lease_until = {now} + :viewer_lease_ms, left_at = NULL, cause = NULL
)
SELECT run_id, tenant, thread_id, agent, state, reason, epoch, claim_token, worker, lease_until, pos,
    not_before, losses, last_seq, input, output, error, error_detail, metadata, policy, origin, continues,
    displaces, stop_requested_at, stop_reason, created_at, started_at, ended_at, notify, traceparent FROM run

-- ------------------------------------------------------------------ command: stop

-- name: request_stop
UPDATE runs SET stop_requested_at = {now}, stop_reason = :reason
WHERE run_id = :run_id AND state = 'running' AND stop_requested_at IS NULL
RETURNING run_id

-- ------------------------------------------------------------------ execution: claim

-- name: claimed
-- What these claim tokens hold already: a claim whose reply was lost is read back, not made again.
SELECT run_id FROM runs WHERE state = 'running' AND claim_token {in:claim_tokens} ORDER BY claim_token

-- name: claimable
SELECT r.run_id, r.thread_id, r.agent FROM runs r
WHERE r.state = 'queued' AND r.agent {in:agents} AND (r.not_before IS NULL OR r.not_before <= {now})
    AND NOT EXISTS (
        SELECT 1 FROM runs o
        WHERE o.thread_id = r.thread_id AND o.state IN ('queued', 'running')
            AND (o.state = 'running' OR (o.pos < r.pos AND (o.not_before IS NULL OR o.not_before <= {now}))))
ORDER BY r.created_at, r.run_id
LIMIT :limit

-- name: lock_thread
SELECT thread_id FROM threads WHERE thread_id = :thread_id {lock}

-- name: try_lock_thread
SELECT thread_id FROM threads WHERE thread_id = :thread_id {skip_locked}

-- name: claim
UPDATE runs SET
    state = 'running', epoch = epoch + 1, claim_token = :claim_token, worker = :worker,
    lease_until = {now} + :lease_ms, renewed_at = {now}, started_at = coalesce(started_at, {now})
WHERE run_id = :run_id AND state = 'queued' AND stop_requested_at IS NULL
    AND (not_before IS NULL OR not_before <= {now})
    AND NOT EXISTS (
        SELECT 1 FROM runs o
        WHERE o.thread_id = runs.thread_id AND o.state IN ('queued', 'running')
            AND (o.state = 'running'
                OR (o.pos < runs.pos AND (o.not_before IS NULL OR o.not_before <= {now}))))
RETURNING epoch, last_seq

-- ------------------------------------------------------------------ execution: keep, write, end

-- name: renew
UPDATE runs SET lease_until = max(coalesce(lease_until, 0), {now} + :lease_ms), renewed_at = {now}
WHERE state = 'running' AND (run_id, epoch, claim_token) IN (
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:claims))
RETURNING run_id, epoch, stop_requested_at, stop_reason

-- name: renew [postgresql]
UPDATE runs SET lease_until = greatest(runs.lease_until, {now} + :lease_ms), renewed_at = {now}
FROM (
    SELECT r.run_id FROM runs r
    JOIN json_array_elements(CAST(:claims AS json)) AS held (value)
        ON r.run_id = held.value ->> 0 AND r.epoch = (held.value ->> 1)::bigint
            AND r.claim_token = held.value ->> 2
    WHERE r.state = 'running'
    ORDER BY r.run_id
    FOR NO KEY UPDATE OF r SKIP LOCKED) AS mine
WHERE runs.run_id = mine.run_id
RETURNING runs.run_id, runs.epoch, runs.stop_requested_at, runs.stop_reason

-- name: held
-- Which of these claims still stand, without a lock: tells a skipped renewal from a lost lease.
SELECT run_id, epoch, claim_token, stop_requested_at, stop_reason FROM runs
WHERE state = 'running' AND run_id {in:run_ids}

-- name: append
UPDATE runs SET
    last_seq = last_seq + :count, renewed_at = {now}, lease_until = max(lease_until, {now} + :lease_ms)
WHERE {fence} AND last_seq = :expected
RETURNING last_seq, lease_until, stop_requested_at, stop_reason, renewed_at AS stored_at;
UPDATE threads SET last_seq = last_seq + :count WHERE thread_id = :thread_id
RETURNING last_seq AS thread_seq;
INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, mode, payload, created_at)
SELECT :run_id, :expected + 1 + e.key, :thread_id,
    (SELECT last_seq FROM threads WHERE thread_id = :thread_id) - :count + 1 + e.key,
    :epoch, e.value ->> 0, e.value ->> 1, e.value ->> 2,
    (SELECT renewed_at FROM runs WHERE run_id = :run_id)
FROM json_each(:events) AS e

-- name: append [postgresql]
WITH locked AS MATERIALIZED (
    SELECT thread_id FROM threads WHERE thread_id = :thread_id FOR NO KEY UPDATE
), run AS (
    UPDATE runs SET
        last_seq = last_seq + :count, renewed_at = {now},
        lease_until = greatest(lease_until, {now} + :lease_ms)
    FROM locked
    WHERE runs.thread_id = locked.thread_id AND {fence} AND last_seq = :expected
    RETURNING runs.thread_id, runs.last_seq, lease_until, stop_requested_at, stop_reason,
        renewed_at AS stored_at
), thread AS (
    UPDATE threads SET last_seq = threads.last_seq + :count
    FROM run WHERE threads.thread_id = run.thread_id
    RETURNING threads.last_seq AS thread_seq
), stored AS (
    INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, mode, payload, created_at)
    SELECT :run_id, run.last_seq - :count + e.n, run.thread_id, thread.thread_seq - :count + e.n,
        :epoch, e.value ->> 0, e.value ->> 1, e.value ->> 2, run.stored_at
    FROM run, thread,
        json_array_elements(CAST(:events AS json)) WITH ORDINALITY AS e (value, n)
)
SELECT run.last_seq, run.lease_until, run.stop_requested_at, run.stop_reason, run.stored_at, thread.thread_seq
FROM run, thread

-- name: append_many [postgresql]
-- Appends of several runs at once.  It waits for nobody: a run whose thread or own row is locked, or whose
-- claim does not stand, is left out, and its append is made alone.  Rows are asked for by arrays of ids: of the
-- elements of a JSON text PostgreSQL expects a hundred, and would rather read a small table whole.
WITH asked AS MATERIALIZED (
    SELECT a.n, a.value ->> 0 AS run_id, a.value ->> 1 AS thread_id, (a.value ->> 2)::bigint AS epoch,
        a.value ->> 3 AS claim_token, (a.value ->> 4)::bigint AS expected, (a.value ->> 5)::bigint AS lease_ms,
        json_array_length(a.value -> 6) AS count, a.value -> 6 AS events
    FROM json_array_elements(CAST(:batches AS json)) WITH ORDINALITY AS a (value, n)
), locked AS MATERIALIZED (
    SELECT asked.n, runs.run_id
    FROM asked
    JOIN runs ON runs.run_id = asked.run_id AND runs.thread_id = asked.thread_id
        AND runs.epoch = asked.epoch AND runs.claim_token = asked.claim_token
        AND runs.state = 'running' AND runs.lease_until > {now} AND runs.last_seq = asked.expected
    JOIN threads ON threads.thread_id = runs.thread_id
    WHERE runs.run_id = ANY (ARRAY(SELECT run_id FROM asked))
        AND threads.thread_id = ANY (ARRAY(SELECT thread_id FROM asked))
    FOR NO KEY UPDATE OF threads, runs SKIP LOCKED
), run AS (
    UPDATE runs SET
        last_seq = runs.last_seq + asked.count, renewed_at = {now},
        lease_until = greatest(runs.lease_until, {now} + asked.lease_ms)
    FROM locked JOIN asked ON asked.n = locked.n
    WHERE runs.run_id = ANY (ARRAY(SELECT run_id FROM locked))
        AND runs.run_id = locked.run_id AND runs.last_seq = asked.expected
    RETURNING asked.n, asked.count, asked.events, runs.run_id, runs.thread_id, runs.epoch, runs.last_seq,
        runs.lease_until, runs.stop_requested_at, runs.stop_reason, runs.renewed_at AS stored_at
), thread AS (
    UPDATE threads SET last_seq = threads.last_seq + run.count
    FROM run
    WHERE threads.thread_id = ANY (ARRAY(SELECT thread_id FROM run)) AND threads.thread_id = run.thread_id
    RETURNING run.n, threads.last_seq AS thread_seq
), stored AS (
    INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, mode, payload, created_at)
    SELECT run.run_id, run.last_seq - run.count + e.n, run.thread_id, thread.thread_seq - run.count + e.n,
        run.epoch, e.value ->> 0, e.value ->> 1, e.value ->> 2, run.stored_at
    FROM run JOIN thread ON thread.n = run.n, json_array_elements(run.events) WITH ORDINALITY AS e (value, n)
)
SELECT run.n, run.last_seq, run.lease_until, run.stop_requested_at, run.stop_reason, run.stored_at,
    thread.thread_seq
FROM run JOIN thread ON thread.n = run.n

-- name: finish
-- The one statement that ends a run: state, reason, result, end event and whoever is told of it together.
-- Settle proves its claim; stop and sweep hold the thread's lock and name the epoch that they read under it.  A raised epoch
-- is the end event's alone: what the holder wrote before it was written under the epoch that it held.
UPDATE runs SET
    state = :state, reason = :reason, output = :output, error = :error,
    error_detail = :detail, position = :position, ended_at = {now},
    epoch = epoch + :raise, lease_until = NULL, last_seq = last_seq + :count
WHERE run_id = :run_id AND epoch = :epoch AND state = :from_state AND last_seq = :expected
    AND (:claim_token IS NULL OR (claim_token = :claim_token AND lease_until > {now}))
RETURNING last_seq, ended_at AS stored_at;
UPDATE threads SET
    last_seq = last_seq + :count, position = coalesce(:position, position),
    left_by = CASE WHEN :position IS NULL THEN left_by ELSE :run_id END
WHERE thread_id = :thread_id
RETURNING last_seq AS thread_seq, EXISTS (
    SELECT 1 FROM runs o WHERE o.thread_id = :thread_id AND o.state = 'queued') AS others_wait;
INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, mode, payload, created_at)
SELECT :run_id, :expected + 1 + e.key, :thread_id,
    (SELECT last_seq FROM threads WHERE thread_id = :thread_id) - :count + 1 + e.key,
    :epoch + CASE WHEN e.key = :count - 1 THEN :raise ELSE 0 END,
    e.value ->> 0, e.value ->> 1, e.value ->> 2,
    (SELECT ended_at FROM runs WHERE run_id = :run_id)
FROM json_each(:events) AS e;
INSERT INTO outbox (
    notification_id, tenant, run_id, kind, receiver, url, audience, state, next_at, created_at, queued_at,
    traceparent)
SELECT r.run_id || '-' || (n.key + 1), r.tenant, r.run_id, 'run.' || r.state, n.value ->> 'receiver',
    n.value ->> 'url', n.value ->> 'audience', 'pending', r.ended_at, r.ended_at, r.ended_at,
    r.traceparent
FROM runs r, json_each(r.notify) AS n
WHERE r.run_id = :run_id AND r.notify IS NOT NULL

-- name: finish [postgresql]
WITH locked AS MATERIALIZED (
    SELECT thread_id FROM threads WHERE thread_id = :thread_id {lock}
), taken AS MATERIALIZED (
    SELECT runs.run_id FROM runs, locked WHERE runs.run_id = :run_id FOR UPDATE OF runs
), run AS (
    UPDATE runs SET
        state = :state, reason = :reason, output = :output, error = :error,
        error_detail = :detail, position = CAST(:position AS text), ended_at = {now},
        epoch = epoch + :raise, lease_until = NULL, last_seq = last_seq + :count
    FROM taken
    WHERE runs.run_id = taken.run_id AND runs.thread_id = :thread_id AND epoch = :epoch
        AND state = :from_state AND last_seq = :expected
        AND (CAST(:claim_token AS text) IS NULL
            OR (claim_token = CAST(:claim_token AS text) AND lease_until > {now}))
    RETURNING runs.run_id, runs.tenant, runs.thread_id, runs.state, runs.last_seq, runs.ended_at AS stored_at,
        runs.notify, runs.traceparent
), thread AS (
    UPDATE threads SET
        last_seq = threads.last_seq + :count, position = coalesce(CAST(:position AS text), threads.position),
        left_by = CASE WHEN CAST(:position AS text) IS NULL THEN threads.left_by ELSE :run_id END
    FROM run WHERE threads.thread_id = run.thread_id
    RETURNING threads.last_seq AS thread_seq
), stored AS (
    INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, mode, payload, created_at)
    SELECT :run_id, run.last_seq - :count + e.n, run.thread_id, thread.thread_seq - :count + e.n,
        :epoch + CASE WHEN e.n = :count THEN :raise ELSE 0 END,
        e.value ->> 0, e.value ->> 1, e.value ->> 2, run.stored_at
    FROM run, thread,
        json_array_elements(CAST(:events AS json)) WITH ORDINALITY AS e (value, n)
), told AS (
    INSERT INTO outbox (
        notification_id, tenant, run_id, kind, receiver, url, audience, state, next_at, created_at, queued_at,
        traceparent)
    SELECT run.run_id || '-' || n.n, run.tenant, run.run_id, 'run.' || run.state, n.value ->> 'receiver',
        n.value ->> 'url', n.value ->> 'audience', 'pending', run.stored_at, run.stored_at, run.stored_at,
        run.traceparent
    FROM run, json_array_elements(CAST(run.notify AS json)) WITH ORDINALITY AS n (value, n)
)
SELECT run.last_seq, run.stored_at, thread.thread_seq, EXISTS (
    SELECT 1 FROM runs o WHERE o.thread_id = :thread_id AND o.state = 'queued') AS others_wait
FROM run, thread

-- name: hand_back
-- The claim token stays, worth nothing in a queued run, so that a repeat recognises its own work.
UPDATE runs SET state = 'queued', worker = NULL, lease_until = NULL, renewed_at = NULL
WHERE {fence} AND stop_requested_at IS NULL
RETURNING run_id

-- name: hand_back [postgresql]
WITH taken AS MATERIALIZED (SELECT run_id AS id FROM runs WHERE run_id = :run_id {take})
UPDATE runs SET state = 'queued', worker = NULL, lease_until = NULL, renewed_at = NULL
FROM taken
WHERE runs.run_id = taken.id AND {fence} AND stop_requested_at IS NULL
RETURNING run_id

-- Checkpoints are written beside the run's own appends, which must not wait for one another's commits; but
-- whoever ends or takes the run must wait for both.  So the fence keeps the row, appends and renewals update
-- it as usual, and each block that takes a running run from its holder locks it for taking first: it waits for
-- every checkpoint under way, and a fence that looked before it and locks after it looks again, and fails.

-- name: check_fence
SELECT run_id FROM runs WHERE {fence} {keep}

-- name: keep_body
INSERT INTO event_bodies (run_id, digest, body)
SELECT :run_id, :digest, :body FROM runs WHERE {fence}
ON CONFLICT (run_id, digest) DO NOTHING

-- ------------------------------------------------------------------ execution: sweep

-- name: suspects
SELECT run_id, thread_id, epoch, coalesce(worker, '') AS worker, coalesce(renewed_at, 0) AS renewed_at,
    traceparent,
    CASE WHEN coalesce(lease_until, 0) <= {now} THEN 1 ELSE 0 END AS expired
FROM runs
WHERE state = 'running' AND coalesce(renewed_at, 0) <= {now} - :missed_ms
ORDER BY coalesce(renewed_at, 0)
LIMIT :limit

-- name: lock_run
SELECT state, epoch, coalesce(renewed_at, 0) AS seen_at,
    CASE WHEN coalesce(lease_until, 0) <= {now} THEN 1 ELSE 0 END AS expired
FROM runs WHERE run_id = :run_id {take}

-- name: requeue_lost
UPDATE runs SET
    state = 'queued', epoch = epoch + 1, losses = losses + 1,
    claim_token = NULL, worker = NULL, lease_until = NULL, renewed_at = NULL
WHERE run_id = :run_id AND epoch = :epoch AND state = 'running'
RETURNING run_id

-- ------------------------------------------------------------------ observation

-- name: run
SELECT r.run_id, r.tenant, r.thread_id, r.agent, r.state, r.reason, r.epoch, r.claim_token, r.worker,
    r.lease_until, r.pos, r.not_before, r.losses, r.last_seq, r.input, r.output, r.error, r.error_detail,
    r.metadata, r.policy, r.origin, r.continues, r.displaces, r.stop_requested_at, r.stop_reason, r.created_at,
    r.started_at, r.ended_at, r.position, r.notify, r.traceparent, t.external_id AS thread, t.position AS thread_position, t.left_by
FROM runs r JOIN threads t ON t.thread_id = r.thread_id
WHERE r.run_id = :run_id AND (CAST(:tenant AS TEXT) IS NULL OR r.tenant = :tenant) AND t.deleted_at IS NULL

-- name: list_runs
-- Newest first.  The order is one that only the tenant's own index gives: by run id alone PostgreSQL would
-- sometimes walk everybody's runs.  The bound on created_at lets a deep page begin where it must.
SELECT r.run_id, r.tenant, r.thread_id, r.agent, r.state, r.reason, r.epoch, r.claim_token, r.worker,
    r.lease_until, r.pos, r.not_before, r.losses, r.last_seq, r.input, r.output, r.error, r.error_detail,
    r.metadata, r.policy, r.origin, r.continues, r.displaces, r.stop_requested_at, r.stop_reason, r.created_at,
    r.started_at, r.ended_at, r.position, r.notify, r.traceparent, t.external_id AS thread, t.position AS thread_position, t.left_by
FROM runs r JOIN threads t ON t.thread_id = r.thread_id
WHERE r.tenant = :tenant AND t.deleted_at IS NULL
    AND r.created_at <= coalesce(
        (SELECT b.created_at FROM runs b WHERE b.run_id = :before AND b.tenant = :tenant), 9223372036854775807)
    AND (CAST(:before AS TEXT) IS NULL OR (r.created_at, r.run_id) < (
        SELECT b.created_at, b.run_id FROM runs b WHERE b.run_id = :before AND b.tenant = :tenant))
    AND (CAST(:agent AS TEXT) IS NULL OR r.agent = :agent)
    AND (CAST(:state AS TEXT) IS NULL OR r.state = :state)
ORDER BY r.created_at DESC, r.run_id DESC
LIMIT :limit

-- name: list_thread_runs
-- A thread has few runs and the tenant many: without a query of its own this would walk all of them.
SELECT r.run_id, r.tenant, r.thread_id, r.agent, r.state, r.reason, r.epoch, r.claim_token, r.worker,
    r.lease_until, r.pos, r.not_before, r.losses, r.last_seq, r.input, r.output, r.error, r.error_detail,
    r.metadata, r.policy, r.origin, r.continues, r.displaces, r.stop_requested_at, r.stop_reason, r.created_at,
    r.started_at, r.ended_at, r.position, r.notify, r.traceparent, t.external_id AS thread, t.position AS thread_position, t.left_by
FROM threads t JOIN runs r ON r.thread_id = t.thread_id
WHERE t.tenant = :tenant AND t.external_id = :thread
    AND r.created_at <= coalesce(
        (SELECT b.created_at FROM runs b WHERE b.run_id = :before AND b.tenant = :tenant), 9223372036854775807)
    AND (CAST(:before AS TEXT) IS NULL OR (r.created_at, r.run_id) < (
        SELECT b.created_at, b.run_id FROM runs b WHERE b.run_id = :before AND b.tenant = :tenant))
    AND (CAST(:agent AS TEXT) IS NULL OR r.agent = :agent)
    AND (CAST(:state AS TEXT) IS NULL OR r.state = :state)
ORDER BY r.created_at DESC, r.run_id DESC
LIMIT :limit

-- name: thread
SELECT thread_id, external_id AS thread, last_seq, created_at, position, left_by, copied_from FROM threads
WHERE tenant = :tenant AND external_id = :thread

-- name: thread_is_there
SELECT 1 AS found FROM threads WHERE thread_id = :thread_id AND deleted_at IS NULL

-- name: list_threads
-- Newest first.
SELECT thread_id, external_id AS thread, last_seq, created_at, position, left_by, copied_from FROM threads
WHERE tenant = :tenant
    AND (CAST(:before AS TEXT) IS NULL OR (created_at, thread_id) < (
        SELECT b.created_at, b.thread_id FROM threads b
        WHERE b.tenant = :tenant AND b.external_id = :before))
ORDER BY created_at DESC, thread_id DESC
LIMIT :limit

-- name: events_after
SELECT run_id, seq, thread_seq, epoch, kind, mode, payload, created_at FROM events
WHERE run_id = :run_id AND seq > :after
ORDER BY seq
LIMIT :limit

-- name: body
SELECT body FROM event_bodies WHERE run_id = :run_id AND digest = :digest

-- name: thread_events_after
SELECT run_id, seq, thread_seq, epoch, kind, mode, payload, created_at FROM events
WHERE thread_id = :thread_id AND thread_seq > :after
ORDER BY thread_seq
LIMIT :limit

-- ------------------------------------------------------------------ presence

-- name: join
INSERT INTO presence (viewer, run_id, thread_id, joined_at, lease_until, first_seq, last_seq)
VALUES (:viewer, :run_id, :thread_id, {now}, {now} + :lease_ms, :last_seq, :last_seq)
ON CONFLICT (viewer) DO UPDATE SET lease_until = {now} + :lease_ms, left_at = NULL, cause = NULL

-- name: keep_presence
UPDATE presence SET lease_until = {now} + :lease_ms, last_seq = (
    SELECT value ->> 1 FROM json_each(:viewers) WHERE value ->> 0 = presence.viewer)
WHERE left_at IS NULL AND viewer IN (SELECT value ->> 0 FROM json_each(:viewers))

-- name: keep_presence [postgresql]
UPDATE presence SET lease_until = {now} + :lease_ms, last_seq = (kept.value ->> 1)::bigint
FROM json_array_elements(CAST(:viewers AS json)) AS kept (value)
WHERE presence.viewer = kept.value ->> 0 AND left_at IS NULL

-- name: leave
UPDATE presence SET left_at = {now} + :hold_ms, cause = :cause, last_seq = :last_seq
WHERE viewer = :viewer AND left_at IS NULL

-- name: leave_at_end
UPDATE presence SET left_at = {now}, cause = 'end', last_seq = (
    SELECT value ->> 1 FROM json_each(:viewers) WHERE value ->> 0 = presence.viewer)
WHERE left_at IS NULL AND viewer IN (SELECT value ->> 0 FROM json_each(:viewers))

-- name: leave_at_end [postgresql]
UPDATE presence SET left_at = {now}, cause = 'end', last_seq = (seen.value ->> 1)::bigint
FROM json_array_elements(CAST(:viewers AS json)) AS seen (value)
WHERE presence.viewer = seen.value ->> 0 AND left_at IS NULL

-- name: unwatched
SELECT r.run_id FROM runs r
WHERE r.on_disconnect = 'cancel' AND r.stop_requested_at IS NULL AND r.state IN ('queued', 'running')
    AND r.created_at + r.grace_ms <= {now}
    AND NOT EXISTS (
        SELECT 1 FROM presence p
        WHERE p.run_id = r.run_id AND coalesce(p.left_at, p.lease_until) + r.grace_ms > {now})
    AND NOT EXISTS (
        SELECT 1 FROM presence p
        WHERE p.thread_id = r.thread_id AND coalesce(p.left_at, p.lease_until) + r.grace_ms > {now})
ORDER BY r.created_at
LIMIT :limit

-- name: tie_run
UPDATE runs SET on_disconnect = 'cancel', policy = :policy
WHERE run_id = :run_id AND state IN ('queued', 'running') AND on_disconnect <> 'cancel'

-- name: is_unwatched
SELECT r.run_id FROM runs r
WHERE r.run_id = :run_id AND r.on_disconnect = 'cancel' AND r.stop_requested_at IS NULL
    AND r.created_at + r.grace_ms <= {now}
    AND NOT EXISTS (
        SELECT 1 FROM presence p
        WHERE p.run_id = r.run_id AND coalesce(p.left_at, p.lease_until) + r.grace_ms > {now})
    AND NOT EXISTS (
        SELECT 1 FROM presence p
        WHERE p.thread_id = r.thread_id AND coalesce(p.left_at, p.lease_until) + r.grace_ms > {now})

-- name: viewers
SELECT viewer, joined_at, left_at, cause, last_seq FROM presence WHERE run_id = :run_id ORDER BY joined_at

-- name: evidence
-- Who watched a run, and who its thread while the run lived, or later from before its end to behind it.
WITH watched AS MATERIALIZED (
    SELECT p.lease_until, p.left_at, p.cause, p.last_seq, NULL AS thread_seq
    FROM presence p WHERE p.run_id = :run_id
    UNION ALL
    SELECT p.lease_until, p.left_at, p.cause, 0, p.last_seq
    FROM runs r JOIN presence p ON p.thread_id = r.thread_id
    LEFT JOIN events e ON e.run_id = r.run_id AND e.kind = 'end'
    WHERE r.run_id = :run_id AND (
        (p.joined_at <= coalesce(r.ended_at, {now}) AND coalesce(p.left_at, p.lease_until) >= r.created_at)
        OR (p.first_seq < e.thread_seq AND e.thread_seq <= p.last_seq))
), gone AS (
    SELECT coalesce(cause, 'lost') AS cause,
        CASE WHEN cause = 'ours' THEN left_at - :hold_ms ELSE coalesce(left_at, lease_until) END AS left_at
    FROM watched WHERE left_at IS NOT NULL OR lease_until <= {now}
)
SELECT count(*) AS viewers,
    coalesce(sum(CASE WHEN left_at IS NULL AND lease_until > {now} THEN 1 ELSE 0 END), 0) AS watching,
    coalesce(max(last_seq), 0) AS seen, max(thread_seq) AS thread_seen,
    (SELECT left_at FROM gone ORDER BY left_at DESC LIMIT 1) AS left_at,
    (SELECT cause FROM gone ORDER BY left_at DESC LIMIT 1) AS cause
FROM watched

-- name: seen_of_thread
SELECT seq FROM events WHERE run_id = :run_id AND thread_seq <= :thread_seq ORDER BY seq DESC LIMIT 1

-- ------------------------------------------------------------------ retention

-- name: to_prune
SELECT run_id FROM runs
-- The clock is read once, or PostgreSQL would compare it with every run that has ended.
WHERE ended_at IS NOT NULL AND pruned_at IS NULL AND ended_at <= (SELECT {now} - :retention_ms)
ORDER BY ended_at
LIMIT :limit

-- name: pruned_so_far
SELECT thread_id, oldest_seq, last_seq FROM runs
WHERE run_id = :run_id AND ended_at IS NOT NULL AND pruned_at IS NULL

-- name: newest_state
SELECT seq FROM events WHERE run_id = :run_id AND seq > :after AND kind = 'chunk' AND mode = 'values'
ORDER BY seq DESC
LIMIT 1

-- name: prune_run
UPDATE runs SET oldest_seq = :oldest, pruned_at = CASE WHEN :done THEN {now} END
WHERE run_id = :run_id AND ended_at IS NOT NULL AND pruned_at IS NULL

-- name: prune_thread
UPDATE threads SET oldest_seq = :oldest_seq WHERE thread_id = :thread_id AND oldest_seq < :oldest_seq

-- name: prune_events
DELETE FROM events WHERE run_id = :run_id AND seq < :oldest

-- name: prune_bodies
DELETE FROM event_bodies WHERE run_id = :run_id AND NOT (digest {in:kept})

-- name: oldest_of_run
SELECT oldest_seq FROM runs WHERE run_id = :run_id

-- name: oldest_of_thread
SELECT oldest_seq FROM threads WHERE thread_id = :thread_id

-- ------------------------------------------------------------------ threads: delete

-- name: open_effects_of_thread
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.thread_id = :thread_id
    AND (effects.state IN ('started', 'unknown') OR effects.due IS NOT NULL)
ORDER BY effects.created_at, effects.effect_id
LIMIT :limit

-- name: count_effects_of_thread
SELECT count(*) AS many FROM effects WHERE thread_id = :thread_id

-- name: bury_thread
-- Its name is free from here on, and nobody can be of this tenant: no name has such a character.
UPDATE threads SET tenant = :grave, external_id = thread_id, deleted_at = {now}
WHERE thread_id = :thread_id AND deleted_at IS NULL
RETURNING thread_id

-- name: forget_keys_of_thread
DELETE FROM run_keys WHERE run_id IN (SELECT run_id FROM runs WHERE thread_id = :thread_id)

-- name: pass_after
UPDATE threads SET passes_after_ms = CAST(:after_ms AS BIGINT)
WHERE tenant = :tenant AND external_id = :thread AND deleted_at IS NULL
RETURNING thread_id

-- name: passing_of_thread
SELECT passes_after_ms FROM threads WHERE thread_id = :thread_id

-- name: passed_threads
-- What happened last on a thread is the end of a run, a word about it, or its making.
SELECT t.thread_id, t.external_id AS thread FROM threads t
WHERE t.thread_id > :after AND t.passes_after_ms IS NOT NULL AND t.deleted_at IS NULL
    AND t.created_at + t.passes_after_ms <= {now}
    AND coalesce(t.updated_at, 0) + t.passes_after_ms <= {now}
    AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = t.thread_id
        AND (r.ended_at IS NULL OR r.ended_at + t.passes_after_ms > {now}))
ORDER BY t.thread_id
LIMIT :limit

-- name: has_passed
SELECT t.thread_id FROM threads t
WHERE t.thread_id = :thread_id AND t.passes_after_ms IS NOT NULL AND t.deleted_at IS NULL
    AND coalesce(t.updated_at, t.created_at) + t.passes_after_ms <= {now}
    AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = t.thread_id
        AND (r.ended_at IS NULL OR r.ended_at + t.passes_after_ms > {now}))

-- name: buried_threads
SELECT thread_id FROM threads WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT :limit

-- name: lock_buried_thread
SELECT thread_id FROM threads WHERE thread_id = :thread_id AND deleted_at IS NOT NULL {lock}

-- name: runs_of_thread
SELECT run_id, agent FROM runs WHERE thread_id = :thread_id ORDER BY pos

-- name: clear_events
DELETE FROM events WHERE (run_id, seq) IN (
    SELECT run_id, seq FROM events WHERE thread_id = :thread_id ORDER BY thread_seq LIMIT :limit)
RETURNING seq

-- name: clear_bodies
DELETE FROM event_bodies WHERE run_id IN (SELECT run_id FROM runs WHERE thread_id = :thread_id)

-- name: clear_notifications
DELETE FROM outbox WHERE run_id IN (SELECT run_id FROM runs WHERE thread_id = :thread_id)

-- name: clear_viewers_of_runs
DELETE FROM presence WHERE run_id IN (SELECT run_id FROM runs WHERE thread_id = :thread_id)

-- name: clear_viewers_of_thread
DELETE FROM presence WHERE thread_id = :thread_id

-- name: clear_runs
DELETE FROM runs WHERE thread_id = :thread_id

-- name: clear_thread
DELETE FROM threads WHERE thread_id = :thread_id AND deleted_at IS NOT NULL

-- ------------------------------------------------------------------ LangGraph's tables of checkpoints
-- They are there if a graph was ever bound to this database.  A thread's subgraphs are in them under its id.

-- name: has_checkpoints
SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'checkpoints'

-- name: has_checkpoints [postgresql]
SELECT 1 AS found WHERE to_regclass('checkpoints') IS NOT NULL

-- name: heads_of_threads
-- Of every thread of a checkpointer: the newest checkpoint of its graph, and of that and its subgraphs.
SELECT thread_id, max(CASE WHEN checkpoint_ns = '' THEN checkpoint_id END) AS head, max(checkpoint_id) AS newest
FROM checkpoints GROUP BY thread_id ORDER BY thread_id

-- name: torn_threads
-- Threads that nobody owns and that somebody has left part-way, or nobody knows how.  Who asks waits for a look
-- at all threads.
SELECT t.thread_id, t.tenant, t.external_id AS thread, t.position, r.run_id, r.agent,
    {now} - coalesce(r.ended_at, r.created_at) AS age_ms
FROM threads t JOIN runs r ON r.run_id = t.left_by
WHERE t.position IN ('torn', 'unknown') AND t.deleted_at IS NULL
    AND coalesce(r.ended_at, r.created_at) <= {now} - :older_ms
    AND NOT EXISTS (SELECT 1 FROM runs o WHERE o.thread_id = t.thread_id AND o.state IN ('queued', 'running'))
ORDER BY t.created_at, t.thread_id
LIMIT :limit

-- name: list_checkpoints
-- Newest first: ids begin with the time.
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, CAST(metadata AS TEXT) AS metadata FROM checkpoints
WHERE thread_id = :thread_id
ORDER BY checkpoint_id DESC
LIMIT :limit

-- name: marked_checkpoints
SELECT DISTINCT checkpoint_ns, checkpoint_id, channel FROM writes
WHERE thread_id = :thread_id AND channel IN ('__interrupt__', '__error__')

-- name: marked_checkpoints [postgresql]
SELECT DISTINCT checkpoint_ns, checkpoint_id, channel FROM checkpoint_writes
WHERE thread_id = :thread_id AND channel IN ('__interrupt__', '__error__')

-- name: copy_thread
-- Its first place counts as taken: else the first message there would be let in as on a new thread.
INSERT INTO threads (
    thread_id, tenant, external_id, next_pos, last_seq, created_at, position, copied_from, metadata, updated_at)
SELECT
    :target_id, t.tenant, :target, 2, 0, {now},
    CASE WHEN EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = t.thread_id AND r.state = 'running')
        THEN 'unknown' ELSE t.position END,
    t.external_id, t.metadata, {now}
FROM threads t
WHERE t.thread_id = :thread_id AND t.deleted_at IS NULL
ON CONFLICT (tenant, external_id) DO NOTHING
RETURNING thread_id

-- name: copy_checkpoints
INSERT INTO checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata)
SELECT :target_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata
FROM checkpoints WHERE thread_id = :thread_id

-- name: copy_checkpoint_writes
INSERT INTO writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value)
SELECT :target_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value
FROM writes WHERE thread_id = :thread_id

-- name: copy_checkpoint_writes [postgresql]
-- After the checkpoints, in a statement of its own: one that is written meanwhile brings these with it.
WITH blobs AS (
    INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
    SELECT :target_id, checkpoint_ns, channel, version, type, blob
    FROM checkpoint_blobs WHERE thread_id = :thread_id
)
INSERT INTO checkpoint_writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
SELECT :target_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob
FROM checkpoint_writes WHERE thread_id = :thread_id

-- name: delete_checkpoints
DELETE FROM checkpoints WHERE thread_id = :thread_id

-- name: delete_checkpoint_writes
DELETE FROM writes WHERE thread_id = :thread_id

-- name: delete_checkpoint_writes [postgresql]
WITH blobs AS (DELETE FROM checkpoint_blobs WHERE thread_id = :thread_id)
DELETE FROM checkpoint_writes WHERE thread_id = :thread_id

-- ------------------------------------------------------------------ LangGraph's table of items
-- The long-term memory of graphs.  It is there if a graph was ever bound to this database; a table of that name
-- alone may be anybody's.

-- name: has_items
SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'store_migrations'

-- name: has_items [postgresql]
SELECT 1 AS found WHERE to_regclass('store_migrations') IS NOT NULL

-- name: drop_passed_items
DELETE FROM store WHERE expires_at IS NOT NULL AND expires_at < CURRENT_TIMESTAMP
RETURNING key

-- ------------------------------------------------------------------ the database itself

-- name: any_table [sqlite]
SELECT 1 AS found FROM sqlite_master WHERE type = 'table' LIMIT 1

-- name: has_ledger
SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'migrations'

-- name: has_ledger [postgresql]
SELECT 1 AS found WHERE to_regclass('migrations') IS NOT NULL

-- name: is_ours
SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'run_keys'

-- name: is_ours [postgresql]
SELECT 1 AS found WHERE to_regclass('run_keys') IS NOT NULL

-- name: applied_migrations
SELECT name FROM migrations

-- name: record_migration
INSERT INTO migrations (name, applied_at) VALUES (:name, CURRENT_TIMESTAMP)

-- name: lock_migrations [postgresql]
SELECT pg_advisory_xact_lock(:lock)

-- name: clock
SELECT {now} AS now_ms

-- name: uptime
SELECT 0 AS up_ms

-- name: uptime [postgresql]
SELECT ((extract(epoch FROM clock_timestamp()) - extract(epoch FROM pg_postmaster_start_time())) * 1000)::bigint
    AS up_ms

-- name: live_tokens [postgresql]
SELECT (classid::bigint << 32) | objid::bigint AS token FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())

-- name: hold_token [postgresql]
SELECT pg_try_advisory_lock(:token) AS held

-- name: notify [postgresql]
SELECT pg_notify(:channel, :payload)

-- ------------------------------------------------------------------ effects
-- A start proves its claim in the statement that makes it, under a lock that lets the holder's own writes pass
-- but makes whoever takes the run wait: a thawed, stopped or replaced executor starts nothing new.

-- name: begin_effect
-- The common case in one statement: nobody had this effect before, and nothing stands in its way.
WITH run AS MATERIALIZED (
    SELECT run_id, tenant, origin, thread_id FROM runs WHERE {fence} AND stop_requested_at IS NULL {keep}
)
INSERT INTO effects (
    effect_id, tenant, name, key, generation, provider_key, fingerprint, kind, resource, state, compensates,
    run_id, origin, thread_id, epoch, claim_token, key_ttl_ms, calls, inputs, created_at, first_started_at,
    started_at)
SELECT
    :effect_id, run.tenant, :name, :key, :generation, :provider_key, :fingerprint, :kind,
    CAST(:resource AS TEXT), :state, CAST(:compensates AS TEXT), run.run_id, run.origin, run.thread_id, :epoch,
    :claim_token, CAST(:key_ttl_ms AS BIGINT), CASE WHEN :state = 'started' THEN 1 ELSE 0 END, :inputs, {now},
    CASE WHEN :state = 'started' THEN {now} END, CASE WHEN :state = 'started' THEN {now} END
FROM run
WHERE :state <> 'started' OR CAST(:resource AS TEXT) IS NULL OR NOT EXISTS (
    SELECT 1 FROM effects o
    WHERE o.tenant = run.tenant AND o.resource = CAST(:resource AS TEXT) AND o.state IN ('started', 'unknown'))
ON CONFLICT (tenant, name, key, generation) DO NOTHING
RETURNING {started}

-- name: start_effect
WITH run AS MATERIALIZED (
    SELECT run_id, origin, thread_id FROM runs WHERE {fence} AND stop_requested_at IS NULL {keep}
)
UPDATE effects SET
    state = 'started', epoch = :epoch, claim_token = :claim_token, run_id = run.run_id,
    -- What was released stays with the run that released it: who looks for what is due looks there.  What an
    -- ended run has to undo, and another run wants before that, is the other's from now on.
    origin = CASE WHEN due = 'release' THEN effects.origin ELSE run.origin END,
    thread_id = CASE WHEN due = 'release' THEN effects.thread_id ELSE run.thread_id END,
    due = CASE WHEN due = 'release' THEN due END,
    calls = calls + 1, started_at = {now}, ended_at = NULL,
    first_started_at = CASE WHEN state = 'unknown' THEN first_started_at ELSE {now} END
FROM run
WHERE effect_id = :effect_id AND calls = :calls AND state IN ('intended', 'unknown')
    AND (state = 'intended' OR :for_ever
        OR {now} < first_started_at + coalesce(CAST(:replay_within_ms AS BIGINT), 0))
    AND (resource IS NULL OR NOT EXISTS (
        SELECT 1 FROM effects o
        WHERE o.tenant = effects.tenant AND o.resource = effects.resource
            AND o.effect_id <> effects.effect_id AND o.state IN ('started', 'unknown')))
RETURNING {started}

-- name: use_approval
UPDATE approvals SET consumed_by = :effect_id, consumed_at = coalesce(consumed_at, {now})
WHERE approval_id = (
    SELECT a.approval_id FROM approvals a
    WHERE a.tenant = :tenant AND a.name = :name AND a.key = :key AND a.expires_at > {now}
        AND (a.fingerprint IS NULL OR a.fingerprint = :fingerprint)
        AND (a.consumed_by IS NULL OR a.consumed_by = :effect_id)
    ORDER BY a.consumed_by IS NULL, a.granted_at, a.approval_id
    LIMIT 1)
    AND (consumed_by IS NULL OR consumed_by = :effect_id)
RETURNING approval_id

-- name: grant_approval
INSERT INTO approvals (approval_id, tenant, name, key, fingerprint, granted_by, granted_at, expires_at)
VALUES (:approval_id, :tenant, :name, :key, :fingerprint, :granted_by, {now}, {now} + :lasts_ms)
ON CONFLICT (approval_id) DO NOTHING

-- name: finish_effect
WITH run AS MATERIALIZED (SELECT run_id FROM runs WHERE {fence} {keep})
UPDATE effects SET
    state = :state, result = CAST(:result AS TEXT), error = CAST(:error AS TEXT),
    ended_at = {now}
FROM run
WHERE effect_id = :effect_id AND effects.run_id = run.run_id AND effects.epoch = :epoch
    AND effects.claim_token = :claim_token AND effects.state = 'started' AND effects.calls = :calls
RETURNING effect_id, compensates

-- name: store_evidence
-- Whoever has the provider's answer may leave it here, also long after losing the run.
UPDATE effects SET evidence = :evidence
WHERE effect_id = :effect_id AND evidence IS NULL AND calls >= :calls
RETURNING effect_id

-- name: cut_effect
UPDATE effects SET state = 'unknown', ended_at = {now}
WHERE effect_id = :effect_id AND state = 'started' AND calls = :calls
RETURNING effect_id

-- name: cut_effects
-- The index's own condition as well: SQLite takes a partial index only where it finds that word for word.
UPDATE effects SET state = 'unknown', ended_at = {now}
WHERE run_id = :run_id AND state = 'started' AND state IN ('intended', 'started', 'unknown')
RETURNING effect_id

-- name: settle_effect
UPDATE effects SET
    state = :state, result = coalesce(CAST(:result AS TEXT), result), error = CAST(:error AS TEXT),
    settled_by = :by, ended_at = {now}, evidence = CASE WHEN :state = 'intended' THEN NULL ELSE evidence END,
    due = CASE WHEN :state = 'intended' AND due = 'compensate' THEN NULL ELSE due END
WHERE effect_id = :effect_id AND state = 'unknown' AND calls = :calls
RETURNING effect_id

-- name: compensate_effect
UPDATE effects SET state = 'compensated', due = NULL
WHERE effect_id = :effect_id AND state IN ('done', 'reconciled')
RETURNING effect_id

-- name: take_over_effect
-- A deferred effect that an earlier run wished for and did not earn is this run's now.
WITH run AS MATERIALIZED (
    SELECT run_id, origin, thread_id FROM runs WHERE {fence} AND stop_requested_at IS NULL {keep}
)
UPDATE effects SET run_id = run.run_id, origin = run.origin, thread_id = run.thread_id
FROM run
WHERE effect_id = :effect_id AND effects.state = 'intended' AND effects.due IS NULL
RETURNING effect_id

-- name: release_effects
UPDATE effects SET due = 'release'
WHERE run_id = :run_id AND kind = 'deferrable'
    AND state = 'intended' AND state IN ('intended', 'started', 'unknown')
RETURNING effect_id

-- name: mark_for_compensation
UPDATE effects SET due = 'compensate'
WHERE origin = :origin AND kind = 'reversible' AND state IN ('done', 'reconciled', 'unknown')
RETURNING effect_id

-- name: due_effects
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.origin = :origin AND effects.due IS NOT NULL
ORDER BY effects.created_at, effects.effect_id

-- name: find_effect
-- The newest generation.
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.tenant = :tenant AND effects.name = :name AND effects.key = :key
ORDER BY effects.generation DESC
LIMIT 1

-- name: effect
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.effect_id = :effect_id AND (CAST(:tenant AS TEXT) IS NULL OR effects.tenant = :tenant)

-- name: list_effects
-- Newest first.
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.tenant = :tenant
ORDER BY effects.created_at DESC, effects.effect_id DESC
LIMIT :limit

-- name: list_unsettled_effects
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.tenant = :tenant AND effects.state IN ('started', 'unknown')
ORDER BY effects.created_at, effects.effect_id
LIMIT :limit

-- name: list_effects_of
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.origin = :origin
ORDER BY effects.created_at, effects.effect_id
LIMIT :limit

-- name: list_effects_of_thread
SELECT {effect}
FROM effects LEFT JOIN runs r ON r.run_id = effects.run_id
WHERE effects.thread_id = :thread_id
ORDER BY effects.created_at DESC, effects.effect_id DESC
LIMIT :limit

-- name: count_effects
SELECT name, state, count(*) AS many FROM effects
WHERE origin = :origin AND compensates IS NULL
GROUP BY name, state
ORDER BY name, state

-- ------------------------------------------------------------------ keys

-- name: create_key
INSERT INTO api_keys (key_id, tenant, name, scopes, digest, created_at, expires_at)
VALUES (:key_id, :tenant, :name, :scopes, :digest, {now}, {now} + CAST(:lifetime_ms AS BIGINT))
ON CONFLICT (key_id) DO NOTHING

-- name: key
SELECT key_id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at,
    CASE WHEN revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now}) THEN 1 ELSE 0 END AS holds
FROM api_keys WHERE key_id = :key_id

-- name: list_keys
SELECT key_id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at,
    CASE WHEN revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now}) THEN 1 ELSE 0 END AS holds
FROM api_keys WHERE CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant
ORDER BY created_at, key_id

-- name: revoke_key
UPDATE api_keys SET revoked_at = {now} WHERE key_id = :key_id AND revoked_at IS NULL

-- name: use_key
UPDATE api_keys SET last_used_at = {now} WHERE key_id = :key_id

-- ------------------------------------------------------------------ limits

-- name: enter_quota
-- In SQLite a transaction that writes is alone.
SELECT 1 AS alone

-- name: enter_quota [postgresql]
-- Two submits of one subject count one after the other; the lock ends with the transaction.
SELECT pg_advisory_xact_lock(20211, hashtext(:subject))

-- name: forget_uses
-- Each run is looked up by itself, here and below: as a join this would sometimes read every run there is.
DELETE FROM quota_uses
WHERE subject = :subject AND created_at <= {now} - 60000 AND coalesce(
    (SELECT r.state FROM runs r WHERE r.run_id = quota_uses.run_id), 'gone') NOT IN ('queued', 'running')

-- name: count_uses
-- free_in_ms: in how many milliseconds the run that is per_minute runs back is a minute old.
SELECT
    coalesce(sum(CASE WHEN q.state IN ('queued', 'running') THEN 1 ELSE 0 END), 0) AS running,
    coalesce(sum(CASE WHEN q.state = 'queued' THEN 1 ELSE 0 END), 0) AS queued,
    coalesce(sum(CASE WHEN q.created_at > {now} - 60000 THEN 1 ELSE 0 END), 0) AS per_minute,
    (SELECT b.created_at + 60000 - {now} FROM quota_uses b WHERE b.subject = :subject
        ORDER BY b.created_at DESC LIMIT 1 OFFSET :back) AS free_in_ms
FROM (
    SELECT u.created_at, (SELECT r.state FROM runs r WHERE r.run_id = u.run_id) AS state
    FROM quota_uses u WHERE u.subject = :subject
) AS q

-- name: note_use
INSERT INTO quota_uses (subject, run_id, created_at) VALUES (:subject, :run_id, {now})
ON CONFLICT (subject, run_id) DO NOTHING

-- ------------------------------------------------------------------ assistants

-- name: insert_assistant
-- A version of its own and the newest one, which is read without the others.
INSERT INTO assistants (tenant, assistant_id, version, agent, name, description, config, context, metadata,
    created_at, updated_at)
VALUES (:tenant, :assistant_id, 1, :agent, :name, :description, :config, :context, :metadata, {now}, {now})
ON CONFLICT (tenant, assistant_id) DO NOTHING
RETURNING tenant, assistant_id, version, agent, name, description, config, context, metadata, created_at, updated_at

-- name: lock_assistant
SELECT assistant_id FROM assistants WHERE tenant = :tenant AND assistant_id = :assistant_id {lock}

-- name: newest_version
SELECT max(version) AS version FROM assistant_versions WHERE tenant = :tenant AND assistant_id = :assistant_id

-- name: keep_version
-- What an assistant is now, as one of its versions.
INSERT INTO assistant_versions (tenant, assistant_id, version, agent, name, description, config, context,
    metadata, created_at)
SELECT tenant, assistant_id, version, agent, name, description, config, context, metadata, updated_at
FROM assistants WHERE tenant = :tenant AND assistant_id = :assistant_id

-- name: change_assistant
UPDATE assistants SET version = :version, agent = :agent, name = :name, description = :description,
    config = :config, context = :context, metadata = :metadata, updated_at = {now}
WHERE tenant = :tenant AND assistant_id = :assistant_id
RETURNING tenant, assistant_id, version, agent, name, description, config, context, metadata, created_at, updated_at

-- name: assistant
SELECT tenant, assistant_id, version, agent, name, description, config, context, metadata, created_at, updated_at
FROM assistants WHERE tenant = :tenant AND assistant_id = :assistant_id

-- name: list_versions
SELECT tenant, assistant_id, version, agent, name, description, config, context, metadata, created_at,
    created_at AS updated_at
FROM assistant_versions
WHERE tenant = :tenant AND assistant_id = :assistant_id
    AND (CAST(:version AS INTEGER) IS NULL OR version = :version)
    AND {contains:assistant_versions.metadata:metadata}
ORDER BY version DESC
LIMIT :limit OFFSET :offset

-- name: search_assistants
-- A number is turned round by its sign (1 or -1); a text is not, so the other direction has a line of its own.
SELECT tenant, assistant_id, version, agent, name, description, config, context, metadata, created_at, updated_at,
    count(*) OVER () AS total
FROM assistants
WHERE tenant = :tenant
    AND (CAST(:agent AS TEXT) IS NULL OR agent = :agent)
    AND (CAST(:name AS TEXT) IS NULL OR lower(name) LIKE :name ESCAPE '\')
    AND {contains:assistants.metadata:metadata}
    AND {contains:assistants.metadata:allowed}
    AND {holds:assistants.metadata:holding}
ORDER BY
    :sign * CASE :by WHEN 'created_at' THEN created_at WHEN 'updated_at' THEN updated_at END,
    CASE WHEN :sign < 0 THEN CASE :by WHEN 'name' THEN name WHEN 'graph_id' THEN agent ELSE assistant_id END END DESC,
    CASE :by WHEN 'name' THEN name WHEN 'graph_id' THEN agent ELSE assistant_id END
LIMIT :limit OFFSET :offset

-- name: drop_versions
DELETE FROM assistant_versions WHERE tenant = :tenant AND assistant_id = :assistant_id

-- name: drop_assistant
DELETE FROM assistants WHERE tenant = :tenant AND assistant_id = :assistant_id
RETURNING assistant_id

-- ------------------------------------------------------------------ threads, as they are looked for

-- name: make_thread
INSERT INTO threads (thread_id, tenant, external_id, next_pos, last_seq, created_at, metadata)
VALUES (:thread_id, :tenant, :thread, 1, 0, {now}, :metadata)
ON CONFLICT (tenant, external_id) DO NOTHING
RETURNING thread_id

-- name: thread_metadata
SELECT thread_id, metadata FROM threads WHERE tenant = :tenant AND external_id = :thread {lock}

-- name: say_of_thread
UPDATE threads SET metadata = :metadata, updated_at = {now} WHERE thread_id = :thread_id

-- name: run_metadata
SELECT metadata FROM runs WHERE run_id = :run_id {lock}

-- name: say_of_run
UPDATE runs SET metadata = :metadata WHERE run_id = :run_id

-- name: found_threads
-- A thread's status: busy with a live run, or what its newest end says.  Each filter is left out by null.
WITH found AS (
    SELECT t.thread_id, t.external_id AS thread, t.last_seq, t.created_at, t.position, t.left_by, t.copied_from, t.metadata,
        coalesce(t.updated_at, t.created_at) AS said_at,
        coalesce((SELECT max(coalesce(r.ended_at, r.started_at, r.created_at)) FROM runs r
            WHERE r.thread_id = t.thread_id), t.created_at) AS moved_at,
        CASE
            WHEN EXISTS (SELECT 1 FROM runs r WHERE r.thread_id = t.thread_id AND r.state IN ('queued', 'running'))
                THEN 'busy'
            ELSE coalesce((
                SELECT CASE r.state WHEN 'waiting' THEN 'interrupted' WHEN 'stopped' THEN 'interrupted'
                    WHEN 'failed' THEN 'error' WHEN 'abandoned' THEN 'error' ELSE 'idle' END
                FROM runs r WHERE r.thread_id = t.thread_id ORDER BY r.ended_at DESC, r.pos DESC LIMIT 1), 'idle')
        END AS status
    FROM threads t
    WHERE t.tenant = :tenant
        AND (CAST(:thread AS TEXT) IS NULL OR t.external_id = :thread)
        AND (NOT :named OR t.external_id {in:threads})
        AND {contains:t.metadata:metadata}
        AND {contains:t.metadata:allowed}
        AND {holds:t.metadata:holding}
)
SELECT thread_id, thread, last_seq, created_at, position, left_by, copied_from, metadata, said_at, moved_at, status,
    CASE WHEN said_at > moved_at THEN said_at ELSE moved_at END AS updated_at, count(*) OVER () AS total
FROM found
WHERE CAST(:status AS TEXT) IS NULL OR status = :status
ORDER BY
    :sign * CASE :by WHEN 'created_at' THEN created_at WHEN 'state_updated_at' THEN moved_at
        WHEN 'updated_at' THEN CASE WHEN said_at > moved_at THEN said_at ELSE moved_at END END,
    CASE WHEN :sign < 0 THEN CASE :by WHEN 'status' THEN status ELSE thread END END DESC,
    CASE :by WHEN 'status' THEN status ELSE thread END
LIMIT :limit OFFSET :offset

-- ------------------------------------------------------------------ outbox
-- A receiver is who shares a circuit: a tenant's addresses on one origin, or the service's own.  Rows are looked
-- for receiver by receiver, in steps through the index: ten thousand that wait for one that is dead are one step.

-- name: receivers_due
WITH RECURSIVE waiting (receiver) AS (
    SELECT min(receiver) FROM outbox WHERE state = 'pending' AND receiver > :after
    UNION ALL
    SELECT (SELECT min(o.receiver) FROM outbox o WHERE o.state = 'pending' AND o.receiver > w.receiver)
    FROM waiting w WHERE w.receiver IS NOT NULL
)
SELECT w.receiver FROM waiting w LEFT JOIN circuits c ON c.receiver = w.receiver
WHERE w.receiver IS NOT NULL AND NOT (w.receiver {in:busy}) AND coalesce(c.retry_at, 0) <= {now}
    AND EXISTS (
        SELECT 1 FROM outbox o WHERE o.state = 'pending' AND o.receiver = w.receiver AND o.next_at <= (SELECT {now}))
LIMIT :limit

-- name: circuit
SELECT failures, CASE WHEN retry_at <= {now} THEN 1 ELSE 0 END AS due FROM circuits WHERE receiver = :receiver

-- name: probe_circuit
-- Who tries a receiver that did not answer does so alone: the others find it put off.
UPDATE circuits SET retry_at = {now} + :lease_ms WHERE receiver = :receiver AND retry_at <= {now}
RETURNING receiver

-- name: due_notifications
SELECT notification_id FROM outbox
WHERE state = 'pending' AND receiver = :receiver AND next_at <= (SELECT {now})
ORDER BY next_at
LIMIT :limit {skip_locked}

-- name: claim_notifications
UPDATE outbox SET
    attempts = attempts + 1, claim_token = :claim_token, attempted_at = {now}, next_at = {now} + :lease_ms
WHERE notification_id {in:ids} AND state = 'pending'
RETURNING {notification}

-- name: seal_notification
UPDATE outbox SET body = :body WHERE notification_id = :notification_id AND body IS NULL
RETURNING {notification}

-- name: is_gone
SELECT 1 AS gone FROM gone_urls WHERE receiver = :receiver AND url = :url

-- name: deliver_notification
-- Whoever has the receiver's word for it says so, also one whose lease is over.
UPDATE outbox SET
    state = 'delivered', ended_at = {now}, status = :status, error = NULL, claim_token = NULL
WHERE notification_id = :notification_id AND state <> 'delivered'
RETURNING queued_at, ended_at

-- name: put_off_notification
UPDATE outbox SET
    next_at = {now} + :delay_ms, status = CAST(:status AS INTEGER), error = :error, claim_token = NULL
WHERE notification_id = :notification_id AND state = 'pending' AND claim_token = :claim_token
RETURNING notification_id

-- name: bury_notification
UPDATE outbox SET
    state = 'dead', ended_at = {now}, status = CAST(:status AS INTEGER), error = :error, claim_token = NULL
WHERE notification_id = :notification_id AND state = 'pending' AND claim_token = :claim_token
RETURNING notification_id

-- name: bury_url
UPDATE outbox SET
    state = 'dead', ended_at = {now}, status = :status, error = :error, claim_token = NULL
WHERE state = 'pending' AND receiver = :receiver AND url = :url
RETURNING notification_id, run_id

-- name: old_notifications
-- Not those that somebody is sending now.
SELECT notification_id FROM outbox
WHERE state = 'pending' AND queued_at <= (SELECT {now} - :age_ms) AND (claim_token IS NULL OR next_at <= {now})
ORDER BY queued_at
LIMIT :limit {skip_locked}

-- name: bury_old
UPDATE outbox SET state = 'dead', ended_at = {now}, error = :error, claim_token = NULL
WHERE notification_id {in:ids} AND state = 'pending'
RETURNING notification_id, run_id

-- name: note_gone
INSERT INTO gone_urls (receiver, url, gone_at) VALUES (:receiver, :url, {now})
ON CONFLICT (receiver, url) DO NOTHING

-- name: forget_gone
DELETE FROM gone_urls WHERE receiver = :receiver AND url = :url

-- name: note_failure
INSERT INTO circuits (receiver, failures, retry_at) VALUES (:receiver, 1, 0)
ON CONFLICT (receiver) DO UPDATE SET failures = circuits.failures + 1
RETURNING failures

-- name: open_circuit
UPDATE circuits SET retry_at = {now} + :pause_ms WHERE receiver = :receiver AND retry_at < {now} + :pause_ms

-- name: close_circuit
DELETE FROM circuits WHERE receiver = :receiver

-- name: resend_notification
UPDATE outbox SET
    state = 'pending', attempts = 0, next_at = {now}, queued_at = {now}, claim_token = NULL, ended_at = NULL
WHERE notification_id = :notification_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
RETURNING {notification}

-- name: notification
SELECT {notification} FROM outbox
WHERE notification_id = :notification_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)

-- name: list_notifications
-- Newest first.
SELECT {notification} FROM outbox
WHERE tenant = :tenant
    AND created_at <= coalesce((
        SELECT b.created_at FROM outbox b WHERE b.notification_id = :before AND b.tenant = :tenant
    ), 9223372036854775807)
    AND (CAST(:before AS TEXT) IS NULL OR (created_at, notification_id) < (
        SELECT b.created_at, b.notification_id FROM outbox b
        WHERE b.notification_id = :before AND b.tenant = :tenant))
    AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY created_at DESC, notification_id DESC
LIMIT :limit

-- name: list_notifications_of
SELECT {notification} FROM outbox
WHERE run_id = :run_id AND tenant = :tenant AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY notification_id
LIMIT :limit

-- name: oldest_notification
SELECT {now} - queued_at AS age_ms FROM outbox
WHERE state = 'pending' AND queued_at > 0
ORDER BY queued_at
LIMIT 1

-- name: ended_notifications
SELECT notification_id FROM outbox
WHERE ended_at IS NOT NULL AND ended_at <= (SELECT {now} - :retention_ms)
ORDER BY ended_at
LIMIT :limit

-- name: prune_notifications
DELETE FROM outbox WHERE notification_id {in:ids} AND ended_at IS NOT NULL
RETURNING notification_id

-- ------------------------------------------------------------------ how things stand

-- name: standing
-- Everything that an operator's gauges ask, read from small partial indexes in one go.
SELECT 'queued' AS what, agent, count(*) AS n,
    {now} - min(CASE WHEN coalesce(not_before, 0) > created_at THEN not_before ELSE created_at END) AS age_ms
FROM runs WHERE state = 'queued' GROUP BY agent
UNION ALL
SELECT 'running', agent, count(*), {now} - min(started_at) FROM runs WHERE state = 'running' GROUP BY agent
UNION ALL
SELECT 'unknown_effects', '', count(*), {now} - min(created_at)
FROM effects WHERE state = 'unknown' AND state IN ('started', 'unknown')
UNION ALL
SELECT 'torn_threads', '', count(*), 0
FROM threads WHERE position = 'torn' AND position IN ('torn', 'unknown') AND deleted_at IS NULL
UNION ALL
SELECT 'notifications', '', count(*), {now} - min(queued_at) FROM outbox WHERE state = 'pending'

-- name: costs
-- Whoever the server itself sent away counts as gone at once: presence is held for him, in case he comes back.
WITH gone AS MATERIALIZED (
    SELECT r.run_id, r.agent, r.state, coalesce(r.reason, '') AS reason, r.started_at, r.ended_at, (
        SELECT max(CASE WHEN p.cause = 'ours' THEN p.left_at - :hold_ms
            ELSE coalesce(p.left_at, p.lease_until) END)
        FROM presence p WHERE p.run_id = r.run_id) AS run_left, (
        SELECT max(CASE WHEN p.cause = 'ours' THEN p.left_at - :hold_ms
            ELSE coalesce(p.left_at, p.lease_until) END)
        FROM presence p WHERE p.thread_id = r.thread_id AND p.joined_at <= r.ended_at
            AND coalesce(p.left_at, p.lease_until) >= r.created_at) AS thread_left
    FROM runs r WHERE r.ended_at IS NOT NULL AND -r.ended_at < -CAST(:since_ms AS BIGINT)
), alone AS MATERIALIZED (
    SELECT run_id, agent, state, reason, started_at, ended_at,
        CASE WHEN run_left IS NULL OR thread_left > run_left THEN thread_left ELSE run_left END AS left_at
    FROM gone
), counted AS MATERIALIZED (
    SELECT agent, state, reason, coalesce(ended_at - started_at, 0) AS spent_ms,
        CASE WHEN left_at >= ended_at OR started_at IS NULL THEN 0
            WHEN left_at < started_at THEN ended_at - started_at
            ELSE coalesce(ended_at - left_at, 0) END AS unwatched_ms,
        (SELECT count(*) FROM events e WHERE e.run_id = alone.run_id AND e.kind = 'chunk') AS spent_chunks,
        (SELECT count(*) FROM events e WHERE e.run_id = alone.run_id AND e.kind = 'chunk'
            AND e.created_at > alone.left_at) AS unwatched_chunks
    FROM alone
)
SELECT agent, state, reason, count(*) AS runs, sum(CASE WHEN unwatched_ms > 0 THEN 1 ELSE 0 END) AS unwatched_runs,
    sum(unwatched_ms) AS unwatched_ms, sum(unwatched_chunks) AS unwatched_chunks,
    sum(spent_ms) AS spent_ms, sum(spent_chunks) AS spent_chunks
FROM counted GROUP BY agent, state, reason ORDER BY agent, state, reason

-- ------------------------------------------------------------------ schedules

-- name: insert_schedule
INSERT INTO schedules (schedule_id, tenant, name, cron, timezone, agent, thread, input, metadata, policy, webhook,
    principal, missed, grace_ms, ends_at, state, seen_until, next_at, passes_after_ms, version, created_at, updated_at)
VALUES (:schedule_id, :tenant, :name, :cron, :timezone, :agent, :thread, :input, :metadata, :policy, :webhook,
    :principal, :missed, :grace_ms, :ends_at, :state, :seen_until, :next_at, :passes_after_ms, 1, {now}, {now})
ON CONFLICT (schedule_id) DO NOTHING

-- name: schedule
SELECT {schedule} FROM schedules
WHERE schedule_id = :schedule_id AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)

-- name: list_schedules
-- Newest first.
SELECT {schedule} FROM schedules
WHERE tenant = :tenant
    AND (CAST(:before AS TEXT) IS NULL OR (created_at, schedule_id) < (
        SELECT b.created_at, b.schedule_id FROM schedules b
        WHERE b.schedule_id = :before AND b.tenant = :tenant))
ORDER BY created_at DESC, schedule_id DESC
LIMIT :limit

-- name: due_schedules
SELECT {schedule} FROM schedules WHERE next_at <= (SELECT {now}) ORDER BY next_at LIMIT :limit

-- name: next_schedule
SELECT next_at - {now} AS wait_ms FROM schedules WHERE next_at IS NOT NULL ORDER BY next_at LIMIT 1

-- name: lock_schedule
-- Nobody waits here: whoever has the row does the same.
SELECT schedule_id FROM schedules
WHERE schedule_id = :schedule_id AND seen_until = :seen_until AND version = :version {skip_locked}

-- name: advance_schedule
UPDATE schedules SET seen_until = :seen_until, next_at = CAST(:next_at AS BIGINT), state = :state
WHERE schedule_id = :schedule_id

-- name: change_schedule
-- ``seen``: the slots that were accounted for when the change was made ready.
UPDATE schedules SET name = :name, cron = :cron, timezone = :timezone, agent = :agent, thread = :thread,
    input = :input, metadata = :metadata, policy = :policy, webhook = :webhook, missed = :missed,
    grace_ms = :grace_ms, ends_at = CAST(:ends_at AS BIGINT), state = :state, seen_until = :seen_until,
    next_at = CAST(:next_at AS BIGINT), passes_after_ms = CAST(:passes_after_ms AS BIGINT), version = version + 1,
    updated_at = {now}
WHERE schedule_id = :schedule_id AND tenant = :tenant AND version = :version AND seen_until = :seen
RETURNING {schedule}

-- name: drop_schedule
DELETE FROM schedules WHERE schedule_id = :schedule_id AND tenant = :tenant
RETURNING schedule_id

-- name: schedules_of_thread
SELECT schedule_id FROM schedules WHERE tenant = :tenant AND thread = :thread

-- name: schedules_on_thread
SELECT s.schedule_id, s.tenant FROM threads t JOIN schedules s ON s.tenant = t.tenant AND s.thread = t.external_id
WHERE t.thread_id = :thread_id

-- name: drop_occurrences
DELETE FROM occurrences WHERE schedule_id = :schedule_id

-- name: insert_occurrence
INSERT INTO occurrences (schedule_id, slot, run_id, slots, tenant, agent, thread, input, metadata, policy, webhook,
    principal, passes_after_ms, state, reason, deadline, tries, try_at, created_at, ended_at)
SELECT schedule_id, :slot, :run_id, :slots, tenant, agent, thread, input, metadata, policy, webhook,
    principal, passes_after_ms, CAST(:state AS TEXT), CAST(:reason AS TEXT), CAST(:deadline AS BIGINT), 0, {now}, {now},
    CASE WHEN :state = 'skipped' THEN {now} END
FROM schedules WHERE schedule_id = :schedule_id
ON CONFLICT (schedule_id, slot) DO NOTHING
RETURNING slot

-- name: occurrence_waits
SELECT run_id FROM occurrences WHERE state = 'pending' AND try_at <= (SELECT {now}) LIMIT 1

-- name: pending_occurrences
-- Whoever has the agent goes first; one that nobody has is somebody's to say so.
SELECT run_id FROM occurrences
WHERE state = 'pending' AND try_at <= (SELECT {now}) AND (agent {in:agents} OR created_at <= {now} - :patience_ms)
ORDER BY try_at
LIMIT :limit {skip_locked}

-- name: take_occurrences
UPDATE occurrences SET tries = tries + 1, try_at = {now} + :lease_ms
WHERE run_id {in:ids} AND state = 'pending'
RETURNING {occurrence}, CASE
    WHEN (SELECT s.state FROM schedules s WHERE s.schedule_id = occurrences.schedule_id) = 'paused' THEN 'paused'
    WHEN EXISTS (
        SELECT 1 FROM api_keys k WHERE k.key_id = occurrences.principal AND k.tenant = occurrences.tenant
            AND (k.revoked_at IS NOT NULL OR k.expires_at <= {now})) THEN 'key_revoked'
    WHEN deadline < {now} THEN 'missed'
    END AS barred

-- name: fire_occurrence
-- Whoever knows of the run says so, also to one that took it for lost.
UPDATE occurrences SET state = 'fired', reason = NULL, error = NULL, ended_at = {now}
WHERE run_id = :run_id AND state <> 'fired'
RETURNING ended_at - slot AS late_ms

-- name: skip_occurrence
UPDATE occurrences SET state = 'skipped', reason = :reason, error = :error, ended_at = {now}
WHERE run_id = :run_id AND state = 'pending'
RETURNING slot

-- name: ended_occurrences
SELECT run_id FROM occurrences
WHERE ended_at IS NOT NULL AND ended_at <= (SELECT {now} - :retention_ms)
ORDER BY ended_at
LIMIT :limit

-- name: prune_occurrences
DELETE FROM occurrences WHERE run_id {in:ids} AND ended_at IS NOT NULL
RETURNING run_id

-- name: list_occurrences
-- Newest first.
SELECT {occurrence}, NULL AS barred FROM occurrences
WHERE schedule_id = :schedule_id AND tenant = :tenant AND slot < :before
ORDER BY slot DESC
LIMIT :limit
