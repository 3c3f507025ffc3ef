"""A hundred thousand finished runs slow nobody down: every statement of the hot paths uses its index."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outlive import policy
from outlive.model import Claim, EventKind, NewEvent
from outlive.store import postgres, sql, sqlite
from outlive.testing.postgres import PostgresServer

RUNS, LIVE = 100_000, 200
NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
POLICY = policy.chat().to_json()
FILL = (
    f"""{NUMBERS.format(count=RUNS // 5)}
INSERT INTO threads (thread_id, tenant, external_id, next_pos, last_seq, created_at)
SELECT 'thread-' || i, 'tenant-' || (i % 10), 'thread-' || i, 7, 11, 1700000000000 + i FROM n""",
    f"""{NUMBERS.format(count=RUNS)}
INSERT INTO runs (run_id, tenant, thread_id, agent, state, epoch, claim_token, worker, pos, last_seq, input,
    metadata, policy, on_disconnect, grace_ms, recovery, max_losses, origin, created_at, started_at, ended_at)
SELECT 'run-' || (1000000 + i), 'tenant-' || ((1 + (i - 1) / 5) % 10), 'thread-' || (1 + (i - 1) / 5),
    'agent', CASE i % 9 WHEN 0 THEN 'failed' ELSE 'succeeded' END, 1, 'token-' || i, 'worker',
    1 + (i - 1) % 5, 2, '{{}}', '{{}}', '{POLICY}', 'cancel', 30000, 'resume', 3, 'run-' || (1000000 + i),
    1700000000000 + i, 1700000000000, 1700000001000
FROM n""",
    f"""{NUMBERS.format(count=LIVE)}
INSERT INTO runs (run_id, tenant, thread_id, agent, state, epoch, claim_token, worker, lease_until,
    renewed_at, pos, last_seq, input, metadata, policy, on_disconnect, grace_ms, recovery, max_losses, origin,
    created_at)
SELECT 'live-' || i, 'tenant-' || (i % 10), 'thread-' || i, 'agent',
    CASE i % 4 WHEN 0 THEN 'running' ELSE 'queued' END, i % 2, CASE i % 4 WHEN 0 THEN 'live-token-' || i END,
    'worker', 4000000000000, 1700000000000, 6, 1, '{{}}', '{{}}', '{POLICY}', 'cancel', 30000, 'resume', 3,
    'live-' || i, 1800000000000 + i
FROM n""",
    """INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, payload, created_at)
SELECT run_id, 1, thread_id, pos * 2 - 1, 1, 'attempt', '{}', created_at FROM runs""",
    """INSERT INTO events (run_id, seq, thread_id, thread_seq, epoch, kind, payload, created_at)
SELECT run_id, 2, thread_id, pos * 2, 1, 'end', '{}', created_at FROM runs WHERE ended_at IS NOT NULL""",
    """INSERT INTO run_keys (tenant, key, fingerprint, run_id, created_at)
SELECT tenant, run_id, 'f', run_id, created_at FROM runs""",
    """INSERT INTO presence (viewer, run_id, joined_at, lease_until, left_at, last_seq)
SELECT 'viewer-' || run_id, run_id, created_at, created_at, created_at, 0 FROM runs""",
    """INSERT INTO presence (viewer, run_id, thread_id, joined_at, lease_until, left_at, last_seq)
SELECT 'of-' || thread_id, '', thread_id, created_at, created_at, created_at, 0 FROM threads""",
    """INSERT INTO event_bodies (run_id, digest, body) SELECT run_id, 'd', '1' FROM runs""",
    """INSERT INTO effects (effect_id, tenant, name, key, generation, provider_key, fingerprint, kind,
    resource, state, due, run_id, origin, thread_id, epoch, claim_token, calls, inputs, created_at)
SELECT 'effect-' || run_id, tenant, 'charge', run_id, 1, 'k', 'f', 'reversible', 'resource-' || run_id,
    CASE pos WHEN 5 THEN 'unknown' WHEN 4 THEN 'intended' ELSE 'done' END,
    CASE pos WHEN 5 THEN 'compensate' END, run_id, run_id, thread_id, 1, 't', 1, '{}', created_at
FROM runs""",
    """INSERT INTO approvals (approval_id, tenant, name, key, granted_by, granted_at, expires_at)
SELECT run_id, tenant, 'charge', run_id, 'ann', created_at, created_at FROM runs""",
    """INSERT INTO quota_uses (subject, run_id, created_at)
SELECT 'principal/' || tenant || '/p', run_id, created_at FROM runs WHERE pos > 4""",
    """INSERT INTO outbox (notification_id, tenant, run_id, kind, receiver, url, audience, state, next_at,
    created_at, queued_at, ended_at)
SELECT run_id || '-1', tenant, run_id, 'run.succeeded', 'https://' || thread_id, 'u', 'tenant',
    CASE pos WHEN 5 THEN 'pending' ELSE 'delivered' END, created_at, created_at, created_at,
    CASE pos WHEN 5 THEN NULL ELSE created_at END
FROM runs WHERE ended_at IS NOT NULL""",
    """INSERT INTO circuits (receiver, failures, retry_at) SELECT 'x' || run_id, 9, 9 FROM runs""",
    """INSERT INTO gone_urls (receiver, url, gone_at) SELECT 'x', run_id, 9 FROM runs""",
    """INSERT INTO api_keys (key_id, tenant, name, scopes, digest, created_at)
SELECT 'key-' || run_id, tenant, 'n', '[]', 'd', created_at FROM runs WHERE pos = 1""",
    """INSERT INTO assistants (tenant, assistant_id, version, agent, name, config, context, metadata,
    created_at, updated_at)
SELECT tenant, 'assistant-' || thread_id, 1, 'agent', external_id, '{}', '{}', '{}', created_at, created_at
FROM threads""",
    """INSERT INTO assistant_versions (tenant, assistant_id, version, agent, name, config, context, metadata,
    created_at)
SELECT tenant, assistant_id, version, agent, name, config, context, metadata, created_at FROM assistants""",
    f"""{NUMBERS.format(count=5000)}
INSERT INTO schedules (schedule_id, tenant, name, cron, timezone, agent, input, metadata, policy, principal,
    missed, grace_ms, state, seen_until, next_at, version, created_at, updated_at)
SELECT 'schedule-' || i, 'tenant-' || (i % 10), 'n', '* * * * *', 'UTC', 'agent', '1', '{{}}', '{{}}', '',
    'skip', 1, 'active', 1700000000000, 4000000000000 + i, 1, 1700000000000 + i, 1 FROM n""",
    """INSERT INTO occurrences (schedule_id, slot, run_id, slots, tenant, agent, input, metadata, policy,
    principal, state, tries, try_at, created_at)
SELECT 'schedule-' || thread_id, pos, run_id, 1, tenant, agent, '1', '{}', '{}', '',
    CASE pos WHEN 6 THEN 'pending' ELSE 'fired' END, 1, 1, 1 FROM runs""",
    "ANALYZE",
)

OF_A_CLAIM = "runs|one_run_per_claim"
OF_A_THREAD = "one_running_run_per_thread|runs_live_by_thread"
CLAIM: dict[str, Any] = {
    "run_id": "live-4",
    "thread_id": "thread-4",
    "epoch": 0,
    "claim_token": "live-token-4",
}
BATCH = {"count": 1, "events": (NewEvent(kind=EventKind.CHUNK, payload="1"),), "expected": 1}
VERDICT = {
    "from_state": "running", "state": "succeeded", "reason": None, "output": None, "error": None,
    "position": None,
}  # fmt: skip
FILTERS = {"limit": 50, "before": "run-1099000", "agent": None, "state": None}
SUBMIT = {
    "run_id": "new", "tenant": "tenant-1", "thread_id": "thread-1", "agent": "agent", "pos": 9,
    "not_before": None, "input": "{}", "metadata": "{}", "policy": POLICY, "on_disconnect": "cancel",
    "notify": None, "traceparent": None,
    "grace_ms": 1, "recovery": "resume", "max_losses": 3, "origin": "new", "continues": None,
    "displaces": None,
    "agents": ["agent"], "claim_token": "t", "worker": "w", "lease_ms": 1, "fresh": True, "thread": "new",
    "key": "k", "fingerprint": "f", "viewer": "v", "viewer_lease_ms": 1, "opening": "{}",
}  # fmt: skip
EFFECT = {"effect_id": "effect-run-1000001"}
WISH = {
    "name": "charge", "key": "new", "generation": 1, "provider_key": "k", "fingerprint": "f", "resource": "r",
    "kind": "reversible", "state": "started", "compensates": None, "key_ttl_ms": 1, "inputs": "{}",
    "effect_id": "new",
}  # fmt: skip
SCHEDULE = {"schedule_id": "schedule-thread-1"}
RECEIVER = {"receiver": "https://thread-1"}
TOLD = {"notification_id": "run-1000001-1"}
IDS = {"ids": ["run-1000001-1", "run-1000002-1"]}
ENDED = {"state": "done", "result": "1", "error": None, "calls": 1}
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "read_key": ({"tenant": "tenant-1", "key": "run-1000001"}, {"run_keys"}),
    "point_key": (
        {"tenant": "tenant-1", "key": "k", "run_id": "new", "seen": "old"},
        {"run_keys|run_keys_by_run"},
    ),
    "head_of_thread": ({"thread_id": "thread-1"}, {"runs_by_thread"}),
    "live_runs": ({"thread_id": "thread-1"}, {"runs_live_by_thread"}),
    "insert_run": (SUBMIT, {"runs_queued"}),
    "request_stop": ({"run_id": "live-4", "reason": "requested"}, {"runs"}),
    "claimed": ({"claim_tokens": ["live-token-4", "x"]}, {"one_run_per_claim"}),
    "claimable": ({"agents": ["agent"], "limit": 20}, {"runs_queued", "runs_live_by_thread"}),
    "lock_thread": ({"thread_id": "thread-1"}, {"threads"}),
    "look_at_thread": ({"thread_id": "thread-1", "position": "torn"}, {"threads", OF_A_THREAD}),
    "claim": ({**CLAIM, "worker": "w", "lease_ms": 1}, {"runs"}),
    "renew": ({"claims": [Claim(**CLAIM)] * 20, "lease_ms": 1}, set()),
    "held": ({"run_ids": ["live-4", "live-8"]}, {"runs"}),
    "append": ({**CLAIM, **BATCH, "lease_ms": 1}, {OF_A_CLAIM, "threads"}),
    "append_many": (
        {"batches": [("live-4", "thread-4", 0, "live-token-4", 1, 1, [("chunk", None, "1")])]},
        {OF_A_CLAIM, "threads"},
    ),
    "finish": ({**CLAIM, **BATCH, **VERDICT, "raise": 0, "detail": None}, {OF_A_CLAIM, "threads"}),
    "hand_back": (CLAIM, {OF_A_CLAIM}),
    "check_fence": (CLAIM, {OF_A_CLAIM}),
    "suspects": ({"missed_ms": 1000, "limit": 100}, set()),
    "lock_run": ({"run_id": "live-4"}, {"runs"}),
    "requeue_lost": ({"run_id": "live-4", "epoch": 0}, {"runs"}),
    "run": ({"run_id": "live-4", "tenant": "tenant-4"}, {"runs", "threads"}),
    "list_runs": ({"tenant": "tenant-1", **FILTERS}, {"runs_by_tenant"}),
    "list_thread_runs": (
        {"tenant": "tenant-1", "thread": "thread-1", **FILTERS},
        {"threads_key", "runs_by_thread"},
    ),
    "thread": ({"tenant": "tenant-1", "thread": "thread-1"}, {"threads_key"}),
    "thread_is_there": ({"thread_id": "thread-1"}, {"threads"}),
    "list_threads": ({"tenant": "tenant-1", "limit": 20, "before": "thread-9"}, {"threads_by_tenant"}),
    "open_effects_of_thread": ({"thread_id": "thread-1", "limit": 10}, {"effects_by_thread"}),
    "count_effects_of_thread": ({"thread_id": "thread-1"}, {"effects_by_thread"}),
    "bury_thread": ({"thread_id": "thread-1", "grave": "x"}, {"threads"}),
    "forget_keys_of_thread": ({"thread_id": "thread-1"}, {"run_keys_by_run", "runs_by_thread"}),
    "pass_after": ({"tenant": "tenant-1", "thread": "thread-1", "after_ms": 1}, {"threads_key"}),
    "passed_threads": ({"after": "", "limit": 10}, {"threads_passing"}),
    "has_passed": ({"thread_id": "thread-1"}, {"threads|threads_passing"}),
    "tie_run": ({"run_id": "run-1000001", "policy": "{}"}, {"runs"}),
    "buried_threads": ({"limit": 10}, {"threads_deleted"}),
    "lock_buried_thread": ({"thread_id": "thread-1"}, {"threads|threads_deleted"}),
    "runs_of_thread": ({"thread_id": "thread-1"}, {"runs_by_thread"}),
    "copy_thread": (
        {"thread_id": "thread-1", "target_id": "new", "target": "new"},
        {"threads", OF_A_THREAD},
    ),
    "clear_events": ({"thread_id": "thread-1", "limit": 10}, {"events", "events_by_thread"}),
    "clear_bodies": ({"thread_id": "thread-1"}, {"event_bodies", "runs_by_thread"}),
    "clear_notifications": ({"thread_id": "thread-1"}, {"outbox_by_run", "runs_by_thread"}),
    "clear_viewers_of_runs": ({"thread_id": "thread-1"}, {"presence_by_run", "runs_by_thread"}),
    "clear_viewers_of_thread": ({"thread_id": "thread-1"}, {"presence_by_thread"}),
    "clear_runs": ({"thread_id": "thread-1"}, {"runs_by_thread"}),
    "clear_thread": ({"thread_id": "thread-1"}, {"threads|threads_deleted"}),
    "events_after": ({"run_id": "run-1000001", "after": 0, "limit": 10}, {"events"}),
    "thread_events_after": ({"thread_id": "thread-1", "after": 0, "limit": 10}, {"events_by_thread"}),
    "keep_presence": ({"viewers": [("viewer-live-1", 1)], "lease_ms": 1}, {"presence"}),
    "leave_at_end": ({"viewers": [("viewer-live-1", 1)]}, {"presence"}),
    "leave": ({"viewer": "v", "hold_ms": 0, "cause": "end", "last_seq": 1}, {"presence"}),
    "unwatched": ({"limit": 100}, {"runs_cancellable", "presence_by_run", "presence_by_thread"}),
    "is_unwatched": ({"run_id": "live-4"}, {"runs", "presence_by_run", "presence_by_thread"}),
    "evidence": (
        {"run_id": "run-1000001", "hold_ms": 1},
        {"runs", "presence_by_run", "presence_by_thread", "one_end_per_run"},
    ),
    "standing": (
        {},
        {
            "runs_queued",
            "one_running_run_per_thread|one_run_per_claim|runs_live_by_thread",
            "threads_left",
            "outbox_pending|outbox_aging",
        },
    ),
    "costs": (
        {"since_ms": 1900000000000, "hold_ms": 1},
        {"runs_by_end", "presence_by_run", "presence_by_thread", "events"},
    ),
    "to_prune": ({"retention_ms": 1, "limit": 100}, {"runs_to_prune"}),
    "pruned_so_far": ({"run_id": "run-1000001"}, {"runs"}),
    "newest_state": ({"run_id": "run-1000001", "after": 0}, {"events"}),
    "prune_run": ({"run_id": "run-1000001", "oldest": 2, "done": True}, {"runs"}),
    "prune_thread": ({"thread_id": "thread-1", "oldest_seq": 2}, {"threads"}),
    "prune_events": ({"run_id": "run-1000001", "oldest": 2}, {"events"}),
    "prune_bodies": ({"run_id": "run-1000001", "kept": ["d"]}, {"event_bodies"}),
    "oldest_of_run": ({"run_id": "run-1000001"}, {"runs"}),
    "oldest_of_thread": ({"thread_id": "thread-1"}, {"threads"}),
    "keep_body": ({**CLAIM, "digest": "d", "body": "1"}, {OF_A_CLAIM}),
    "body": ({"run_id": "live-4", "digest": "d"}, {"event_bodies"}),
    "seen_of_thread": ({"run_id": "run-1000001", "thread_seq": 1}, {"events"}),
    "viewers": ({"run_id": "live-4"}, {"presence_by_run"}),
    "begin_effect": ({**CLAIM, **WISH}, {OF_A_CLAIM, "one_unsettled_effect_per_resource"}),
    "start_effect": (
        {**CLAIM, **EFFECT, "calls": 1, "for_ever": False, "replay_within_ms": 1},
        {OF_A_CLAIM, "effects", "one_unsettled_effect_per_resource"},
    ),
    "use_approval": (
        {**EFFECT, "tenant": "tenant-1", "name": "charge", "key": "run-1000001", "fingerprint": "f"},
        {"approvals", "approvals_by_scope"},
    ),
    "finish_effect": ({**CLAIM, **EFFECT, **ENDED}, {OF_A_CLAIM, "effects"}),
    "store_evidence": ({**EFFECT, "evidence": "1", "calls": 1}, {"effects"}),
    "cut_effect": ({**EFFECT, "calls": 1}, {"effects"}),
    "cut_effects": ({"run_id": "run-1000001"}, {"effects_unfinished"}),
    "settle_effect": ({**EFFECT, **ENDED, "by": "ann"}, {"effects"}),
    "compensate_effect": (EFFECT, {"effects"}),
    "take_over_effect": ({**CLAIM, **EFFECT}, {OF_A_CLAIM, "effects"}),
    "release_effects": ({"run_id": "run-1000001"}, {"effects_unfinished"}),
    "mark_for_compensation": ({"origin": "run-1000001"}, {"effects_by_origin"}),
    "due_effects": ({"origin": "run-1000001"}, {"effects_due|effects_by_origin"}),
    "find_effect": ({"tenant": "tenant-1", "name": "charge", "key": "run-1000001"}, {"effects_key"}),
    "effect": ({**EFFECT, "tenant": "tenant-1"}, {"effects"}),
    "list_effects": ({"tenant": "tenant-1", "limit": 10}, {"effects_by_tenant"}),
    "list_unsettled_effects": ({"tenant": "tenant-1", "limit": 10}, {"effects_unsettled|effects_by_tenant"}),
    "list_effects_of": ({"origin": "run-1000001", "limit": 10}, {"effects_by_origin"}),
    "list_effects_of_thread": ({"thread_id": "thread-1", "limit": 10}, {"effects_by_thread"}),
    "count_effects": ({"origin": "run-1000001"}, {"effects_by_origin"}),
    "receivers_due": ({"busy": ["b"], "limit": 10, "after": ""}, {"outbox_pending", "circuits"}),
    "circuit": (RECEIVER, {"circuits"}),
    "probe_circuit": ({**RECEIVER, "lease_ms": 1}, {"circuits"}),
    "open_circuit": ({**RECEIVER, "pause_ms": 1}, {"circuits"}),
    "close_circuit": (RECEIVER, {"circuits"}),
    "due_notifications": ({**RECEIVER, "limit": 4}, {"outbox_pending"}),
    "claim_notifications": ({**IDS, "claim_token": "t", "lease_ms": 1}, {"outbox"}),
    "seal_notification": ({**TOLD, "body": "{}"}, {"outbox"}),
    "is_gone": ({**RECEIVER, "url": "u"}, {"gone_urls"}),
    "forget_gone": ({**RECEIVER, "url": "u"}, {"gone_urls"}),
    "deliver_notification": ({**TOLD, "status": 200}, {"outbox"}),
    "put_off_notification": (
        {**TOLD, "delay_ms": 1, "status": 500, "error": "e", "claim_token": "t"},
        {"outbox"},
    ),
    "bury_notification": ({**TOLD, "status": 500, "error": "e", "claim_token": "t"}, {"outbox"}),
    "bury_url": ({**RECEIVER, "url": "u", "status": 410, "error": "e"}, {"outbox_pending"}),
    "old_notifications": ({"age_ms": 1, "limit": 100}, {"outbox_aging"}),
    "bury_old": ({**IDS, "error": "e"}, {"outbox"}),
    "resend_notification": ({**TOLD, "tenant": "tenant-1"}, {"outbox"}),
    "notification": ({**TOLD, "tenant": "tenant-1"}, {"outbox"}),
    "list_notifications": (
        {"tenant": "tenant-1", "limit": 50, "before": "run-1099000-1", "state": None},
        {"outbox_by_tenant"},
    ),
    "list_notifications_of": (
        {"run_id": "run-1000001", "tenant": "tenant-1", "state": None, "limit": 9},
        {"outbox_by_run"},
    ),
    "oldest_notification": ({}, {"outbox_aging"}),
    "ended_notifications": ({"retention_ms": 1, "limit": 100}, {"outbox_ended"}),
    "prune_notifications": (IDS, {"outbox"}),
    "forget_uses": ({"subject": "principal/tenant-1/p"}, {"quota_uses", "runs"}),
    "count_uses": ({"subject": "principal/tenant-1/p", "back": 9}, {"quota_uses", "runs"}),
    "key": ({"key_id": "key-run-1000001"}, {"api_keys"}),
    "revoke_key": ({"key_id": "key-run-1000001"}, {"api_keys"}),
    "use_key": ({"key_id": "key-run-1000001"}, {"api_keys"}),
    "schedule": ({**SCHEDULE, "tenant": "tenant-1"}, {"schedules"}),
    "list_schedules": ({"tenant": "tenant-1", "before": "schedule-91", "limit": 9}, {"schedules_by_tenant"}),
    "due_schedules": ({"limit": 9}, {"schedules_due"}),
    "next_schedule": ({}, {"schedules_due"}),
    "lock_schedule": ({**SCHEDULE, "seen_until": 1, "version": 1}, {"schedules"}),
    "advance_schedule": ({**SCHEDULE, "seen_until": 1, "next_at": 2, "state": "active"}, {"schedules"}),
    "change_schedule": (
        {
            **SCHEDULE,
            **dict.fromkeys(("name", "cron", "timezone", "agent", "thread", "webhook"), "x"),
            **dict.fromkeys(("input", "metadata", "policy"), "{}"),
            **dict.fromkeys(("grace_ms", "ends_at", "seen_until", "next_at", "version", "seen"), 1),
            "passes_after_ms": None,
            "tenant": "tenant-1",
            "missed": "all",
            "state": "active",
        },
        {"schedules"},
    ),
    "passing_of_thread": ({"thread_id": "thread-1"}, {"threads"}),
    "schedules_on_thread": ({"thread_id": "thread-1"}, {"threads", "schedules_by_tenant"}),
    "schedules_of_thread": ({"tenant": "tenant-1", "thread": "t"}, {"schedules_by_tenant"}),
    "drop_schedule": ({**SCHEDULE, "tenant": "tenant-1"}, {"schedules"}),
    "drop_occurrences": (SCHEDULE, {"occurrences"}),
    "insert_occurrence": (
        {
            **SCHEDULE,
            "slot": 1,
            "run_id": "r",
            "slots": 1,
            "state": "pending",
            "reason": None,
            "deadline": None,
        },
        {"schedules"},
    ),
    "occurrence_waits": ({}, {"occurrences_pending"}),
    "pending_occurrences": ({"agents": ["agent"], "limit": 9, "patience_ms": 1}, {"occurrences_pending"}),
    "take_occurrences": (
        {"ids": ["live-1", "live-2"], "lease_ms": 1},
        {"occurrences_by_run|occurrences_pending"},
    ),
    "fire_occurrence": ({"run_id": "live-1"}, {"occurrences_by_run"}),
    "skip_occurrence": (
        {"run_id": "live-1", "reason": "missed", "error": None},
        {"occurrences_by_run"},
    ),
    "ended_occurrences": ({"retention_ms": 1, "limit": 100}, {"occurrences_ended"}),
    "prune_occurrences": (IDS, {"occurrences_by_run|occurrences_ended"}),
    "list_occurrences": (
        {**SCHEDULE, "tenant": "tenant-1", "before": 9, "limit": 9},
        {"occurrences"},
    ),
    "thread_metadata": ({"tenant": "tenant-1", "thread": "thread-1"}, {"threads_key"}),
    "say_of_thread": ({"thread_id": "thread-1", "metadata": "{}"}, {"threads"}),
    "run_metadata": ({"run_id": "run-1000001"}, {"runs"}),
    "say_of_run": ({"run_id": "run-1000001", "metadata": "{}"}, {"runs"}),
    "found_threads": (
        {
            "tenant": "tenant-1",
            "thread": "thread-1",
            "named": False,
            "threads": [],
            "metadata": "{}",
            "allowed": '{"owner":"ann"}',
            "holding": '{"members":["ann"]}',
            "status": None,
            "by": "updated_at",
            "sign": -1,
            "limit": 1,
            "offset": 0,
        },
        {"threads_key|threads_by_tenant", "runs_by_thread"},
    ),
    "lock_assistant": ({"tenant": "tenant-1", "assistant_id": "assistant-1"}, {"assistants"}),
    "newest_version": ({"tenant": "tenant-1", "assistant_id": "assistant-1"}, {"assistant_versions"}),
    "keep_version": ({"tenant": "tenant-1", "assistant_id": "assistant-1"}, {"assistants"}),
    "assistant": ({"tenant": "tenant-1", "assistant_id": "assistant-1"}, {"assistants"}),
    "list_versions": (
        {
            "tenant": "tenant-1",
            "assistant_id": "assistant-1",
            "version": None,
            "metadata": "{}",
            "limit": 1,
            "offset": 0,
        },
        {"assistant_versions"},
    ),
    "search_assistants": (
        {
            "tenant": "tenant-1",
            "agent": None,
            "name": None,
            "metadata": "{}",
            "allowed": '{"owner":"ann"}',
            "holding": '{"members":["ann"]}',
            "by": "name",
            "sign": 1,
            "limit": 10,
            "offset": 0,
        },
        {"assistants"},
    ),
    "drop_versions": ({"tenant": "tenant-1", "assistant_id": "assistant-1"}, {"assistant_versions"}),
    "drop_assistant": ({"tenant": "tenant-1", "assistant_id": "assistant-1"}, {"assistants"}),
    "change_assistant": (
        {
            "tenant": "tenant-1",
            "assistant_id": "assistant-1",
            "version": 2,
            "agent": "a",
            "name": "n",
            "description": None,
            "config": "{}",
            "context": "{}",
            "metadata": "{}",
        },
        {"assistants"},
    ),
}
WRITES_ONE_ROW = {
    "take_key",
    "enter_thread",
    "join",
    "grant_approval",
    "create_key",
    "note_use",
    "make_thread",
    "insert_assistant",
    "insert_schedule",
    "note_gone",
    "note_failure",
}
TABLES = {
    "runs",
    "threads",
    "events",
    "run_keys",
    "presence",
    "effects",
    "approvals",
    "quota_uses",
    "api_keys",
    "assistants",
    "assistant_versions",
    "outbox",
    "circuits",
    "gone_urls",
    "schedules",
    "occurrences",
}
OF_LIVE_RUNS = {
    "one_running_run_per_thread", "one_run_per_claim", "runs_queued", "runs_live_by_thread",
    "runs_cancellable", "one_unsettled_effect_per_resource", "threads_deleted", "effects_unsettled",
    "effects_unfinished", "outbox_pending", "outbox_aging", "threads_left",
    "schedules_due", "occurrences_pending",
}  # fmt: skip
"""Partial indexes: reading one from end to end reads the few that are live, open or unsent."""


def missing(name: str, used: set[str]) -> set[str]:
    """The intended indexes that a plan does not use; ``a|b`` means that either will do."""
    return {wanted for wanted in CASES[name][1] if not used & set(wanted.split("|"))}


# ---------------------------------------------------------------- SQLite


def sqlite_plan(connection: sqlite3.Connection, name: str) -> tuple[set[str], list[str]]:
    """The indexes that a block uses, and what in its plan reads a table from end to end."""
    used, scans = set(), []
    params = sql.bind(CASES[name][0])
    for statement in sql.load(sql.Dialect.SQLITE)[name].statements:
        for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}", params):
            index = re.search(r"USING (?:COVERING )?(?:INDEX (\w+)|(INTEGER) PRIMARY KEY)", detail)
            if index:
                used.add(_logical(index[1] or "rowid"))
            if detail.startswith("SCAN") and not re.search(r"VIRTUAL TABLE|CONSTANT ROW", detail):
                whole = index[1] if index else ""
                if whole not in OF_LIVE_RUNS and not re.match(
                    r"SCAN (start|run|watched|gone|alone|counted|w|\(subquery)\b", detail
                ):
                    scans.append(detail)
    return used, scans


def _logical(index: str) -> str:
    """Name an automatic index by its table and what it is for."""
    automatic = re.match(r"sqlite_autoindex_(\w+)_(\d+)", index)
    if automatic:
        return automatic[1] if automatic[2] == "1" else f"{automatic[1]}_key"
    return index


@pytest.fixture(scope="module")
def full_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: pathlib.Path = tmp_path_factory.mktemp("plans") / "outlive.db"
    sqlite.migrate_file(str(path))
    with contextlib.closing(sqlite.connect(str(path))) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for statement in FILL:
            connection.execute(statement)
        connection.execute("COMMIT")
        yield connection


@pytest.mark.parametrize("name", [name for name in CASES if name in sql.load(sql.Dialect.SQLITE)])
def test_sqlite_reads_by_index(name: str, full_sqlite: sqlite3.Connection) -> None:
    used, scans = sqlite_plan(full_sqlite, name)
    assert scans == []
    assert missing(name, used) == set()


# ---------------------------------------------------------------- PostgreSQL


def explained(connection: psycopg.Connection[Any], name: str, mode: str) -> list[dict[str, Any]]:
    """The nodes of a block's plan, once prepared as the pool prepares it."""
    [text] = sql.load(sql.Dialect.POSTGRESQL)[name].statements
    params, order = sql.bind(CASES[name][0]), list[str]()

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    numbered = re.sub(r"%\((\w+)\)s", number, text).replace("%%", "%")
    literals = ", ".join(psycopg.sql.Literal(params[each]).as_string(connection) for each in order)
    connection.execute(f"SET plan_cache_mode = {mode}".encode())
    connection.execute(f"PREPARE wanted AS {numbered}".encode())
    execute = f"EXECUTE wanted({literals})" if order else "EXECUTE wanted"
    cursor = connection.execute(f"EXPLAIN (FORMAT JSON) {execute}".encode())
    [[plan]] = cursor.fetchall()
    connection.execute("DEALLOCATE wanted")
    return list(_nodes(plan[0]["Plan"]))


def postgres_plan(connection: psycopg.Connection[Any], name: str, mode: str) -> tuple[set[str], list[str]]:
    """Like ``sqlite_plan``."""
    used, scans = set(), []
    for node in explained(connection, name, mode):
        if "Index Name" in node:
            used.add(
                re.sub(
                    r"_pkey$|(_tenant_external_id|_tenant_name_key_generation)?(_key)$",
                    r"\2",
                    node["Index Name"],
                )
            )
        if node["Node Type"] == "Seq Scan" and node.get("Relation Name") in TABLES:
            scans.append(json.dumps({key: value for key, value in node.items() if key != "Plans"}))
        if node.get("Index Name", "runs_queued") not in OF_LIVE_RUNS and "Index Cond" not in node:
            scans.append(json.dumps(node))
    return used, scans


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


@pytest.fixture(scope="module")
def full_postgres(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres_server.create_database()
    postgres.migrate_database(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET session_replication_role = replica")  # no foreign keys: they hold anyway
        for statement in FILL:
            connection.execute(statement.encode())
        yield connection
    postgres_server.drop_database(dsn)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", CASES)
def test_postgresql_reads_by_index(name: str, mode: str, full_postgres: psycopg.Connection[Any]) -> None:
    used, scans = postgres_plan(full_postgres, name, mode)
    assert scans == []
    assert missing(name, used) == set()


# ---------------------------------------------------------------- both


def test_a_deep_page_of_runs_begins_where_it_must(
    full_sqlite: sqlite3.Connection, full_postgres: psycopg.Connection[Any]
) -> None:
    statement = sql.load(sql.Dialect.SQLITE)["list_runs"].statements[0]
    plan = full_sqlite.execute(f"EXPLAIN QUERY PLAN {statement}", sql.bind(CASES["list_runs"][0])).fetchall()
    assert any("runs_by_tenant (tenant=? AND created_at<?)" in row["detail"] for row in plan)
    for mode in ("force_custom_plan", "force_generic_plan"):
        conditions = [node.get("Index Cond", "") for node in explained(full_postgres, "list_runs", mode)]
        assert any("created_at <=" in condition for condition in conditions)


def test_every_statement_that_reads_a_table_is_planned_here() -> None:
    for dialect in sql.Dialect:
        reads = {
            name
            for name, block in sql.load(dialect).items()
            if any(
                re.search(rf"\b(FROM|UPDATE|INTO) {table}\b", text)
                for text in block.statements
                for table in TABLES
            )
        }
        assert reads - set(CASES) == WRITES_ONE_ROW | {"try_lock_thread", "list_keys", "torn_threads"}
