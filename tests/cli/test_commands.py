"""The commands that look at a database, what they refuse, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shlex
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import outlive
from cli import served, support
from outlive.cli import app
from outlive.store import filesystem, migrate

Here = support.Here


async def _history(database: str) -> list[str]:
    """Five runs, of which the last is queued; their ids."""
    ids = []
    plain = outlive.agent("plain", policy=outlive.job())(served.plain)
    async with outlive.Outlive(database, [plain, served.gated]) as runtime:
        for number in range(3):
            made = await runtime.submit("plain", number, thread="a thread [/red]")
            await runtime.result(made.run.run_id)
            ids.append(made.run.run_id)
        foreign = await runtime.submit("plain", "theirs", tenant="other")
        await runtime.result(foreign.run.run_id, tenant="other")
        later = await runtime.submit("plain", "later", not_before=9e9)
        ids += [foreign.run.run_id, later.run.run_id]
    return ids


@pytest.fixture
def history(database: str) -> tuple[str, list[str]]:
    """A database with a history, and the ids of its runs."""
    return database, asyncio.run(_history(database))


# ------------------------------------------------------------ looking at runs


def test_runs_are_listed_for_people_and_for_programs(here: Here, history: tuple[str, list[str]]) -> None:
    database, ids = history
    shown = here("runs", "list", "-d", database)
    lines = shown.out.splitlines()
    assert (shown.code, shown.err) == (0, "")
    assert [line.split()[0] for line in lines[1:]] == [ids[4], ids[2], ids[1], ids[0]]
    assert "a thread [/red]" in lines[2]
    assert "succeeded" in lines[2]
    assert "queued" in lines[1]

    def listed(*options: str) -> list[str]:
        done = here("runs", "list", "--json", "-d", database, *options)
        assert done.code == 0
        return [run["run_id"] for run in json.loads(done.out)]

    assert listed("--state", "queued") == [ids[4]]
    assert listed("--thread", "a thread [/red]", "--limit", "2") == [ids[2], ids[1]]
    assert listed("--agent", "nobody") == []
    assert listed("--tenant", "other") == [ids[3]]


def test_a_run_is_shown_with_its_record(here: Here, history: tuple[str, list[str]]) -> None:
    database, ids = history
    record = json.loads(here("runs", "show", ids[1], "--json", "-d", database).out)
    assert (record["run_id"], record["state"], record["input"]) == (ids[1], "succeeded", 1)
    assert "error_detail" not in record
    assert "error_detail" in json.loads(
        here("runs", "show", ids[1], "--json", "--detail", "-d", database).out
    )
    text = here("runs", "show", ids[1], "-d", database)
    assert text.code == 0
    assert "a thread [/red]" in text.out


NOTHING_OLD = "0 events of 0 runs are gone, and 0 slots of schedules.\n"


def test_old_events_are_taken_away_once_and_the_records_stay(
    here: Here, history: tuple[str, list[str]]
) -> None:
    database, ids = history
    unsaid = here("prune", "-d", database)
    assert unsaid.code == 2
    assert "--retention" in unsaid.err
    assert here("prune", "-d", database, "--retention", "86400").out == NOTHING_OLD
    done = here("prune", "-d", database, "--retention", "0", "--json")
    assert json.loads(done.out) == {"runs": 4, "events": 8, "slots": 0}
    assert here("prune", "-d", database, "--retention", "0").out == NOTHING_OLD
    assert json.loads(here("runs", "show", ids[0], "-d", database, "--json").out)["state"] == "succeeded"
    assert here("runs", "follow", ids[0], "-d", database).out.split()[0] == "3"
    gone = here("runs", "follow", ids[0], "-d", database, "--after", "1")
    assert gone.code == 1
    assert "not kept any more" in gone.err


def test_the_record_that_is_shown_says_who_watched(here: Here, history: tuple[str, list[str]]) -> None:
    database, ids = history
    watched = json.loads(here("runs", "show", ids[0], "-d", database, "--json").out)["watched"]
    assert (watched["delivery"], watched["viewers"], watched["watching"]) == ("delivered", 1, 0)
    assert "delivered" in here("runs", "show", ids[0], "-d", database).out


def test_a_run_is_followed_from_a_cursor_to_its_end(here: Here, history: tuple[str, list[str]]) -> None:
    database, ids = history
    whole = here("runs", "follow", ids[0], "--json", "-d", database)
    events = [json.loads(line) for line in whole.out.splitlines()]
    assert whole.code == 0
    assert [event["kind"] for event in events] == ["attempt", "chunk", "end"]
    assert events[1]["data"] == 0
    rest = here("runs", "follow", ids[0], "--json", "--after", events[1]["id"], "-d", database)
    assert [json.loads(line) for line in rest.out.splitlines()] == events[2:]
    text = here("runs", "follow", ids[0], "-d", database).out.splitlines()
    assert len(text) == 3
    assert text[-1].split()[:3] == ["3", "■", "end"]


def test_a_run_is_stopped_and_the_answer_says_what_that_found(
    here: Here, history: tuple[str, list[str]]
) -> None:
    database, ids = history
    stopped = here("runs", "stop", ids[4], "-d", database)
    assert (stopped.code, stopped.out) == (0, f"stopped: {ids[4]} is stopped\n")
    again = here("runs", "stop", ids[4], "--json", "-d", database)
    assert json.loads(again.out) == {"run_id": ids[4], "outcome": "already", "state": "stopped"}


@pytest.mark.parametrize("command", ["show {foreign}", "follow {foreign}", "stop {foreign}", "show nobody"])
def test_S22_a_run_that_is_not_the_tenants_is_not_there(
    here: Here, history: tuple[str, list[str]], command: str
) -> None:
    database, ids = history
    done = here("runs", *command.format(foreign=ids[3]).split(), "-d", database)
    assert (done.code, done.out) == (4, "")
    assert len(done.err.splitlines()) == 1
    assert "There is no run" in done.err


@pytest.mark.parametrize("after", ["x", "-1", "99", "nobody:1"])
def test_a_cursor_that_is_not_of_this_run_is_wrong_use(
    here: Here, history: tuple[str, list[str]], after: str
) -> None:
    database, ids = history
    done = here("runs", "follow", ids[0], f"--after={after}", "-d", database)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("outlive: The cursor")


@pytest.mark.parametrize(
    "line",
    [
        "runs list --state nonsense",
        "runs list --limit 0",
        "runs list --limit x",
        "runs show",
        "runs show 'a\x01b'",
        "runs",
        "nonsense",
        "serve",
        "serve served:gated --port 70000",
        "serve served:gated --drain 0",
        "worker served:gated --slots 0",
    ],
)
def test_wrong_use_is_exit_code_2_and_says_what_is_wrong(here: Here, line: str) -> None:
    done = here(*shlex.split(line))
    assert done.code == 2
    assert done.err or "Usage" in done.out


# ------------------------------------------------------------ databases


def test_migrating_says_what_it_applied_and_then_that_nothing_is_left(here: Here, postgres_dsn: str) -> None:
    names = [migration.name for migration in migrate.known()]
    assert here("migrate", "-d", postgres_dsn, "--json").out == json.dumps({"applied": names}) + "\n"
    assert here("migrate", "-d", postgres_dsn) == (0, "The schema is up to date.\n", "")
    assert here("runs", "list", "-d", postgres_dsn, "--json") == (0, "[]\n", "")


EVERYTHING = [
    ("serve", "served:gated", "--port", "0"),
    ("worker", "served:gated"),
    ("runs", "list"),
    ("runs", "show", "nobody"),
    ("runs", "follow", "nobody"),
    ("runs", "stop", "nobody"),
]


def one_line(done: support.Done, code: int) -> str:
    """What a refused command said after the policies that it printed."""
    lines = [line for line in done.err.splitlines() if not line.startswith("agent ")]
    assert (done.code, done.out, len(lines)) == (code, "", 1), done
    assert lines[0].startswith("outlive: ")
    return lines[0]


@pytest.mark.parametrize("command", [*EVERYTHING, ("migrate",)], ids=" ".join)
def test_a_database_that_is_down_at_start_is_exit_code_3_and_one_line(
    here: Here, command: tuple[str, ...]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        said = one_line(here(*command, "-d", f"postgresql://ann:secret@127.0.0.1:{port}/outlive"), 3)
    assert "cannot be reached" in said
    assert "secret" not in said
    assert str(port) not in said


@pytest.mark.parametrize("command", EVERYTHING, ids=" ".join)
def test_an_empty_database_on_a_server_is_refused_with_the_command_that_fixes_it(
    here: Here, postgres_dsn: str, command: tuple[str, ...]
) -> None:
    assert "outlive migrate --database" in one_line(here(*command, "-d", postgres_dsn), 2)


@pytest.mark.parametrize("command", EVERYTHING, ids=" ".join)
def test_an_older_schema_is_refused_with_the_command_that_fixes_it_and_a_newer_one_too(
    here: Here, sqlite_path: pathlib.Path, command: tuple[str, ...]
) -> None:
    url = f"sqlite:///{sqlite_path}"
    assert here("migrate", "-d", url).code == 0
    with sqlite3.connect(sqlite_path) as connection:
        connection.execute("DELETE FROM migrations WHERE name = (SELECT max(name) FROM migrations)")
    connection.close()
    assert "outlive migrate --database" in one_line(here(*command, "-d", url), 2)
    with sqlite3.connect(sqlite_path) as connection:
        for migration in migrate.known():
            connection.execute("INSERT OR IGNORE INTO migrations VALUES (?, '2026-11-30')", (migration.name,))
        connection.execute("INSERT INTO migrations VALUES ('9999_from_the_future_pre', '2036-11-30')")
    connection.close()
    assert "newer version" in one_line(here(*command, "-d", url), 2)


@pytest.mark.parametrize("command", [*EVERYTHING[:3], ("migrate",)], ids=" ".join)
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_S27_a_SQLite_file_on_a_network_file_system_is_refused(
    here: Here,
    sqlite_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    kind: str,
) -> None:
    sqlite_path.touch()
    mounts = sqlite_path.parent / "mounts"
    mounts.write_text(f"/dev/vda1 / ext4 rw 0 0\nserver:/x {sqlite_path.parent} {kind} rw 0 0\n")
    monkeypatch.setattr(filesystem, "MOUNTS", mounts)
    said = one_line(here(*command, "-d", f"sqlite:///{sqlite_path}"), 2)
    assert kind in said
    assert "local disk, or use PostgreSQL" in said
    assert sqlite_path.stat().st_size == 0


@pytest.mark.parametrize("command", ["migrate", "runs list", "serve served:gated --port 0"])
@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("sqlite:///{folder}/text.db", 2, "file is not a database"),
        ("sqlite:///{folder}", 3, "cannot be opened"),
        ("sqlite://", 2, "neither SQLite nor PostgreSQL"),
        ("mysql://ann:secret@host/db", 2, "neither SQLite nor PostgreSQL"),
        ("", 2, "neither SQLite nor PostgreSQL"),
    ],
)
def test_a_database_that_cannot_be_is_refused(
    here: Here, tmp_path: pathlib.Path, *, command: str, url: str, code: int, says: str
) -> None:
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    said = one_line(here(*command.split(), "-d", url.format(folder=tmp_path)), code)
    assert says in said
    assert "secret" not in said


def test_looking_at_a_database_that_is_not_there_makes_none(here: Here, sqlite_path: pathlib.Path) -> None:
    assert "There is no database at" in one_line(here("runs", "list", "-d", f"sqlite:///{sqlite_path}"), 2)
    assert not sqlite_path.exists()


# ------------------------------------------------------------ targets


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("served", "", "names no attribute"),
        ("served:", "", "names no attribute"),
        (":gated", "", "names no attribute"),
        ("no_such_module:gated", "", "no module 'no_such_module'"),
        ("served:no_such_agent", "", "no attribute 'no_such_agent'"),
        ("served:gated.no_such_part", "", "no attribute"),
        ("served:plain", "", "--policy chat or --policy job"),
        ("served:graph", "", "--policy chat or --policy job"),
        ("served:plain", "--policy nonsense", "chat, job"),
        ("served:gated", "--policy chat", "policy of its own"),
        ("served:both", "--policy chat", "policy of its own"),
        ("served:builder", "--policy chat", ".compile()"),
        ("served:no_generator", "--policy chat", "neither an agent"),
        ("served:HERE", "", "no attribute"),
        ("json:__name__", "--policy chat", "neither an agent"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_target_that_cannot_be_served_is_refused(
    here: Here, sqlite_path: pathlib.Path, *, command: str, target: str, options: str, says: str
) -> None:
    done = here(command, target, *options.split(), "-d", f"sqlite:///{sqlite_path}")
    assert says in one_line(done, 2)
    assert not sqlite_path.exists()


def test_an_address_that_is_taken_is_refused_before_anything_is_started(
    here: Here, sqlite_path: pathlib.Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = here("serve", "served:gated", "--port", port, "-d", f"sqlite:///{sqlite_path}")
    assert f"port {port} cannot be listened on" in one_line(done, 2)
    assert not sqlite_path.exists()


# ------------------------------------------------------------ the command itself


def commands(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every command of the tree."""
    yield " ".join(path), command
    context = typer.Context(command)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), *path, name)


def test_every_command_option_and_argument_is_explained() -> None:
    silent = []
    for path, command in commands(typer.main.get_command(app.app)):
        silent += [f"{path}: {param.name}" for param in command.params if not getattr(param, "help", None)]
        silent += [] if command.help else [path]
    assert silent == []


@pytest.mark.parametrize(
    "path", ["", "serve", "worker", "migrate", "runs", "runs list", "runs show", "runs follow", "runs stop"]
)
def test_help_is_printed_for(here: Here, path: str) -> None:
    done = here(*path.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert f"outlive {path}".strip() in done.out


def test_the_commands_that_are_imported_late_are_listed_and_run(here: Here) -> None:
    assert {"probe", "lab"} <= set(here("--help").out.split())
    assert "--scenario" in here("probe", "--help").out
    assert "--quick" in here("lab", "--help").out


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python that lacks a package."""
    code = f"import sys; sys.modules[{module!r}] = None\nfrom outlive import cli\ncli.main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PYTHONPATH": str(support.HERE)},
    )


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("typer", "--version", "cli"),
        ("uvicorn", "serve served:gated", "http"),
        ("fastapi", "serve served:gated", "http"),
        ("rich.progress", "lab --quick shapes", "lab"),
        ("psycopg", "migrate -d postgresql://localhost/x", "postgres"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_has_it(
    module: str, arguments: str, extra: str
) -> None:
    done = without(module, *arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pip install 'outlive[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_rest_of_the_list_is_there_when_one_command_is_not_installed() -> None:
    done = without("rich.progress", "--help")
    assert done.returncode == 0
    assert "Not installed: rich.progress is missing." in done.stdout


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "outlive", "--version"], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == f"outlive {outlive.__version__}\n"
