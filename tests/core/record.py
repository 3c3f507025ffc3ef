"""Reads a database behind the package's back and says what in it must never be so."""

from __future__ import annotations

import collections
import contextlib
import json
import sqlite3
from typing import Any

import psycopg
from psycopg.rows import dict_row

TERMINAL = {"succeeded", "waiting", "failed", "stopped", "abandoned"}
Row = dict[str, Any]


def rows(database: str, query: str) -> list[Row]:
    """What a query returns, read over a connection of its own."""
    if not database.startswith("sqlite"):
        with psycopg.connect(database, row_factory=dict_row) as connection:
            return connection.execute(query.encode()).fetchall()
    with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as file:
        file.row_factory = sqlite3.Row
        return [dict(row) for row in file.execute(query)]


def execute(database: str, statement: str) -> None:
    """Change a database by hand, as no code of the package would."""
    if not database.startswith("sqlite"):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(statement.encode())
            return
    with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"), timeout=5)) as file, file:
        file.execute(statement)


def faults(database: str) -> list[str]:
    """Everything in the record that breaks a promise, as sentences; none in a sound one."""
    runs = rows(database, "SELECT * FROM runs")
    events = rows(database, "SELECT * FROM events ORDER BY run_id, seq")
    threads = rows(database, "SELECT * FROM threads")
    by_run = collections.defaultdict(list)
    for event in events:
        by_run[event["run_id"]].append(event)
    found = [fault for run in runs for fault in _faults_of_run(run, by_run[run["run_id"]])]
    told = collections.Counter(row["run_id"] for row in rows(database, "SELECT run_id FROM outbox"))
    for run in runs:
        due = len(json.loads(run["notify"] or "[]")) if run["state"] in TERMINAL else 0
        if told[run["run_id"]] != due:
            found.append(f"run {run['run_id']} is {run['state']}: {told[run['run_id']]} of {due} are told")
    for thread in threads:
        found += _faults_of_thread(thread, runs, events)
    return found


def _faults_of_run(run: Row, events: list[Row]) -> list[str]:
    name, found = f"run {run['run_id']}", []
    if [event["seq"] for event in events] != list(range(run["oldest_seq"], run["last_seq"] + 1)):
        found.append(f"{name}: seqs {[event['seq'] for event in events]}, last_seq {run['last_seq']}")
    ends = [event for event in events if event["kind"] == "end"]
    if len(ends) != (run["state"] in TERMINAL):
        found.append(f"{name} is {run['state']} and has {len(ends)} end events")
    if ends and (ends[0]["seq"] != run["last_seq"]):
        found.append(f"{name}: something follows its end")
    if ends and (said := json.loads(ends[0]["payload"]))["state"] != run["state"]:
        found.append(f"{name} is {run['state']} and its end event says {said['state']}")
    if ends and said["reason"] != run["reason"]:
        found.append(f"{name} has the reason {run['reason']} and its end event says {said['reason']}")
    epochs = [event["epoch"] for event in events]
    if epochs != sorted(epochs):
        found.append(f"{name}: epochs go back: {epochs}")
    opened: set[int] = set() if run["oldest_seq"] == 1 else set(epochs)
    for event in events:
        if event["kind"] == "attempt":
            opened.add(event["epoch"])
        elif event["kind"] != "end" and event["epoch"] not in opened:
            found.append(f"{name}: epoch {event['epoch']} wrote before its attempt event")
    return found


def _faults_of_thread(thread: Row, runs: list[Row], events: list[Row]) -> list[str]:
    thread_id, found = thread["thread_id"], []
    oldest = thread["oldest_seq"]
    all_ = (event["thread_seq"] for event in events if event["thread_id"] == thread_id)
    own = sorted(seq for seq in all_ if seq >= oldest)
    if own != list(range(oldest, thread["last_seq"] + 1)):
        found.append(f"thread {thread_id}: seqs {own}, last_seq {thread['last_seq']}")
    running = [run for run in runs if run["thread_id"] == thread_id and run["state"] == "running"]
    if len(running) > 1:
        found.append(f"thread {thread_id} has {len(running)} running runs")
    return found
