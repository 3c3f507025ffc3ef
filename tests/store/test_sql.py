"""``queries.sql`` against the table of moves, and the rule that no SQL is anywhere else."""

from __future__ import annotations

import ast
import pathlib
import re
import sqlite3

import pytest

import outlive
from outlive import errors, states
from outlive.agents import items_sqlite, saver_sqlite
from outlive.states import Move, State
from outlive.store import moves, postgres, sql, sqlite, steps
from outlive.store.script import statement

PACKAGE = pathlib.Path(outlive.__file__).parent
LIVE = {None, State.QUEUED, State.RUNNING}
DIALECTS = list(sql.Dialect)

# What each block that writes runs.state or runs.epoch does: its moves, as (source, targets, steps of epoch).
# `finish` takes its state from a parameter: it is bounded by the scripts, and tested there.
CHANGES: dict[str, set[tuple[State | None, State, int]]] = {
    "insert_run": {(None, State.QUEUED, 0), (None, State.RUNNING, 1)},
    "claim": {(State.QUEUED, State.RUNNING, 1)},
    "hand_back": {(State.RUNNING, State.QUEUED, 0)},
    "requeue_lost": {(State.RUNNING, State.QUEUED, 1)},
}
MOVES = {
    "insert_run": Move.SUBMIT,
    "claim": Move.CLAIM,
    "hand_back": Move.HAND_BACK,
    "requeue_lost": Move.SWEEP,
}
KEEPS = {"say_of_run", "tie_run", "renew", "append", "request_stop", "prune_run"}
POSTGRESQL_ALONE = {"append_many", "live_tokens", "hold_token", "notify", "lock_migrations"}


def blocks(dialect: sql.Dialect) -> dict[str, str]:
    return {name: ";\n".join(block.statements) for name, block in sql.load(dialect).items()}


def writers(dialect: sql.Dialect) -> dict[str, str]:
    """The blocks that write ``runs``."""
    return {
        name: text
        for name, text in blocks(dialect).items()
        if re.search(r"(UPDATE|INTO|DELETE FROM) runs\b", text)
    }


def assigned(text: str) -> set[str]:
    """The columns of ``runs`` that an UPDATE sets."""
    found = re.search(r"UPDATE runs SET(.*?)\n?\s*(FROM|WHERE)\b", text, re.DOTALL)
    return set(re.findall(r"(\w+) = ", found[1])) if found else set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_these_blocks_change_a_runs_state_or_epoch(dialect: sql.Dialect) -> None:
    found = {name: assigned(text) for name, text in writers(dialect).items()}
    changing = {name for name, columns in found.items() if columns & {"state", "epoch"} or not columns}
    assert changing == {*CHANGES, "finish", "clear_runs"}
    alone = POSTGRESQL_ALONE & set(found) if dialect is sql.Dialect.POSTGRESQL else set()
    assert set(found) == {*CHANGES, "finish", "clear_runs", *KEEPS, *alone}
    deleting = {
        name for name, text in blocks(dialect).items() if re.search(r"DELETE FROM (runs|events)\b", text)
    }
    assert deleting == {"prune_events", "clear_events", "clear_runs"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", CHANGES)
def test_each_block_makes_the_transitions_that_its_move_allows(name: str, dialect: sql.Dialect) -> None:
    text = blocks(dialect)[name]
    for source, target, step in CHANGES[name]:
        assert step in states.epoch_steps(MOVES[name], source, target)
        assert f"'{target}'" in text
        if source is not None:
            assert re.search(rf"WHERE[^;]*state = '{source}'", text), "the source state is not guarded"
            assert ("epoch = epoch + 1" in text) == (step == 1)
    named = set(re.findall(r"SET\s+state = '(\w+)'|THEN '(\w+)' ELSE '(\w+)' END", text)[0]) - {""}
    assert named == {target for _, target, _ in CHANGES[name]}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_finish_is_bounded_by_the_moves_that_use_it(dialect: sql.Dialect) -> None:
    text = blocks(dialect)["finish"]
    parameter = {"sqlite": ":{}", "postgresql": "%({})s"}[dialect]
    for column, name in (("state", "from_state"), ("epoch", "epoch"), ("last_seq", "expected")):
        assert f"{column} = {parameter.format(name)}" in text
    assert f"epoch = epoch + {parameter.format('raise')}" in text
    users = [script for script in (moves.stop, moves.settle, moves.sweep) if "finish" in _names(script)]
    assert len(users) == 3
    everything = ast.parse(pathlib.Path(moves.__file__).read_text())
    verdicts = [ast.unparse(node) for node in ast.walk(everything) if isinstance(node, ast.Call)]
    states_made = {v for v in verdicts if v.startswith("Verdict(")}
    assert states_made == {
        "Verdict(state=State.STOPPED, reason=reason)",
        "Verdict(state=State.STOPPED, reason=run.stop_reason)",
        "Verdict(state=State.ABANDONED, reason=Reason.LOST)",
    }


def _names(script: object) -> str:
    tree = ast.parse(pathlib.Path(moves.__file__).read_text())
    wanted = getattr(script, "__name__", "")
    return next(
        ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == wanted
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_write_of_a_holder_carries_the_fence(dialect: sql.Dialect) -> None:
    now = sql._WORDS[dialect]["now"]
    for name in ("append", "hand_back", "check_fence"):
        first = blocks(dialect)[name]
        for condition in (
            "run_id = ",
            "epoch = ",
            "claim_token = ",
            "state = 'running'",
            f"lease_until > {now}",
        ):
            assert condition in first, f"{name} does not check {condition}"
    assert f"lease_until > {now}" in blocks(dialect)["finish"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_now_is_the_databases_clock(dialect: sql.Dialect) -> None:
    ours = {"sqlite": "julianday('now')", "postgresql": "clock_timestamp()"}[dialect]
    assert ours in sql._WORDS[dialect]["now"]
    source = (PACKAGE / "store" / "queries.sql").read_text()
    # When an item passes is LangGraph's to write, and compared as it does that.
    foreign = "(?<!expires_at < )"
    assert not re.search(rf":now\b|{foreign}CURRENT_TIMESTAMP(?!\))|now\(\)|julianday", source)
    for name, text in blocks(dialect).items():
        assert ":now" not in text, name
        assert "{" not in text, name
    bound = sql.load(dialect, bound_clock=True)
    assert all(
        ours not in text for block in bound.values() for text in block.statements if block.name != "uptime"
    )


def test_both_dialects_have_every_block_that_both_need() -> None:
    lite, post = (set(blocks(dialect)) for dialect in DIALECTS)
    assert lite - post == {"any_table"}
    assert post - lite == POSTGRESQL_ALONE


def test_every_statement_that_the_code_names_exists_and_every_block_is_named() -> None:
    named: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        named |= set(re.findall(r"""\bstatement\(\s*"(\w+)\"""", text))
        named |= set(re.findall(r"""\b_run\([^"\n]*"(\w+)\"""", text)) if "store" in path.parts else set()
        named |= set(re.findall(r"""\bsql\.load\([^)]*\)\["(\w+)"\]""", text))
    known = set(blocks(sql.Dialect.SQLITE)) | set(blocks(sql.Dialect.POSTGRESQL))
    assert named - known == set()
    assert known - named <= {"check_fence", "clock", "viewers"}, "a block that nothing uses"


SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX))\b", re.DOTALL
)
FOREIGN = {"agents", "probe", "lab", "testing", "demo"}
"""What has SQL of others, or of no run: checkpointers, the probe, experiments, and tests' own tools."""


def test_no_SQL_is_outside_the_file_of_statements() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), node.value.split("(")[0].strip())
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in FOREIGN
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value)
    }
    # The table that says which migrations there are, and two words of a dialect.
    assert found == {
        ("store/migrate.py", "CREATE TABLE IF NOT EXISTS migrations"),
        ("store/sql.py", "IN"),
        ("store/sql.py", "NOT EXISTS"),
    }


def test_the_pattern_finds_what_it_is_for() -> None:
    for text in (
        "SELECT a\nFROM b",
        "UPDATE runs SET x = 1",
        "INSERT INTO runs VALUES (1)",
        "DELETE FROM runs",
    ):
        assert SQL.search(text)
    assert not SQL.search("Select a database, update its settings, or delete from it.")


# ---------------------------------------------------------------- the loader


def load(monkeypatch: pytest.MonkeyPatch, text: str, dialect: sql.Dialect) -> dict[str, tuple[str, ...]]:
    """Load this text as if it were ``queries.sql``."""

    class Folder:
        def joinpath(self, name: str) -> Folder:
            return self

        def read_text(self, encoding: str) -> str:
            return text

    monkeypatch.setattr("outlive.store.sql.resources.files", lambda package: Folder())
    loaded = sql.load.__wrapped__(dialect)
    return {name: block.statements for name, block in loaded.items()}


def test_an_override_wins_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
-- name: a [postgresql]
SELECT 1
-- name: a
SELECT 2
-- name: b
SELECT 3
-- name: b [sqlite]
SELECT 4
"""
    assert load(monkeypatch, text, sql.Dialect.POSTGRESQL) == {"a": ("SELECT 1",), "b": ("SELECT 3",)}
    assert load(monkeypatch, text, sql.Dialect.SQLITE) == {"a": ("SELECT 2",), "b": ("SELECT 4",)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-- name: a\nSELECT 1\n-- name: a\nSELECT 2", "twice"),
        ("-- name: a [postgresql]\nSELECT 1\n-- name: a [postgresql]\nSELECT 2", "twice"),
        ("-- name: a [postgres]\nSELECT 1", "no dialect"),
        ("-- name: a\nSELECT 1;\nSELECT 2", "several statements"),
    ],
)
def test_a_mistake_in_the_file_is_refused(text: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=complaint):
        load(monkeypatch, text, sql.Dialect.POSTGRESQL)


def test_the_words_of_a_dialect_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "-- name: a\nSELECT :x, y::text, '%' -- :not_this\nFROM t WHERE z {in:zs} {lock}"
    [lite], [post] = (load(monkeypatch, text, dialect)["a"] for dialect in DIALECTS)
    assert re.split(r"\s+", lite) == re.split(
        r"\s+", "SELECT :x, y::text, '%' FROM t WHERE z IN (SELECT value FROM json_each(:zs))"
    )
    assert "SELECT %(x)s, y::text, '%%'" in post
    assert post.endswith("FOR NO KEY UPDATE")
    assert ":zs" not in post


def test_every_block_is_accepted_by_sqlite() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    sqlite.prepare(connection)
    saver_sqlite.setup_sqlite(connection)
    items_sqlite.setup_sqlite(connection)
    for name, block in sql.load(sql.Dialect.SQLITE).items():
        for text in block.statements:
            names = set(re.findall(r"(?<!:):(\w+)", text))
            connection.execute(f"EXPLAIN {text}", dict.fromkeys(names, "[]")).fetchall()
        assert block.name == name
    connection.close()


def test_scripts_can_be_stepped_through_by_hand() -> None:
    stepping = moves.stop("r", None, states.Reason.REQUESTED).start()
    assert next(stepping) == statement("run", run_id="r", tenant=None)
    with pytest.raises(errors.NotFound):
        stepping.send([])
    assert postgres.BLOCKS is sql.load(sql.Dialect.POSTGRESQL)
    assert steps.LATE.endswith("nothing was written.")
