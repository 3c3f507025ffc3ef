"""Evidence, read from real files and databases that somebody else wrote."""

from __future__ import annotations

import http.server
import json
import operator
import pathlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from outlive import probe
from outlive.probe import evidence
from outlive.probe.evidence import checkpoints, effect_log, endpoint, outlive_api, sql
from outlive.probe.evidence.found import Position, Record


class State(TypedDict):
    done: Annotated[list[str], operator.add]


def _node(name: str) -> Any:
    return lambda _: {"done": [name]}


def _diamond(saver: SqliteSaver, **options: Any) -> Any:
    builder = StateGraph(State)
    for name in ("start", "left", "right", "join"):
        builder.add_node(name, _node(name))
    builder.add_edge(START, "start")
    builder.add_edge("start", "left")
    builder.add_edge("start", "right")
    builder.add_edge(["left", "right"], "join")
    builder.add_edge("join", END)
    return builder.compile(checkpointer=saver, **options)


def _config(thread: str = "t", **more: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, **more}}


def _read(path: pathlib.Path, thread: str = "t") -> Record:
    record = checkpoints.Sqlite(path=str(path)).read(thread).record
    assert record is not None
    return record


def test_next_and_steps_are_what_langgraph_says(sqlite_path: pathlib.Path) -> None:
    with SqliteSaver.from_conn_string(str(sqlite_path)) as saver:
        for node in ("left", "join"):
            graph = _diamond(saver, interrupt_before=[node])
            graph.invoke({"done": []}, _config(node))
            snapshot = graph.get_state(_config(node))
            record = _read(sqlite_path, node)
            assert sorted(record.next) == sorted(snapshot.next)
            assert list(record.head) == snapshot.values["done"]
            assert record.position is Position.TORN


def test_a_finished_sibling_is_no_longer_next_but_still_pending(sqlite_path: pathlib.Path) -> None:
    builder: Any = StateGraph(State)
    builder.add_node("asks", lambda _: {"done": [interrupt("well?")]})
    builder.add_node("works", _node("works"))
    builder.add_edge(START, "asks")
    builder.add_edge(START, "works")
    with SqliteSaver.from_conn_string(str(sqlite_path)) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"done": []}, _config())
        record = _read(sqlite_path)
        assert record.next == graph.get_state(_config()).next == ("asks",)
    assert record.tasks == ("asks", "works")
    assert record.position is Position.WAITING


def test_a_fork_is_counted_and_every_branch_tells_its_steps(sqlite_path: pathlib.Path) -> None:
    with SqliteSaver.from_conn_string(str(sqlite_path)) as saver:
        graph = _diamond(saver)
        graph.invoke({"done": []}, _config())
        earlier = next(s for s in graph.get_state_history(_config()) if s.next == ("join",))
        graph.invoke(None, earlier.config)
    record = _read(sqlite_path)
    assert record.forks >= 1
    assert record.anywhere["join"] == 2
    assert Counter(record.head) == Counter(["start", "left", "right", "join"])


def test_two_first_messages_that_did_not_know_of_each_other_are_a_fork(sqlite_path: pathlib.Path) -> None:
    with SqliteSaver.from_conn_string(str(sqlite_path)) as saver:
        _diamond(saver).invoke({"done": []}, _config("a"))
        _diamond(saver).invoke({"done": []}, _config("b"))
        saver.conn.execute("UPDATE checkpoints SET thread_id = 't'")
        saver.conn.commit()
    assert _read(sqlite_path).forks == 1


def test_no_file_no_table_and_no_row_are_no_checkpoint(tmp_path: pathlib.Path) -> None:
    assert _read(tmp_path / "nowhere.db").position is Position.NONE
    assert not (tmp_path / "nowhere.db").exists()
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE other (x)").connection.close()
    assert _read(tmp_path / "empty.db").position is Position.NONE


def test_reading_writes_nothing(sqlite_path: pathlib.Path) -> None:
    with SqliteSaver.from_conn_string(str(sqlite_path)) as saver:
        _diamond(saver).invoke({"done": []}, _config())
    before = sqlite_path.read_bytes()
    assert _read(sqlite_path).position is Position.FINISHED
    assert sqlite_path.read_bytes() == before


def test_an_effect_log_counts_only_what_was_added(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "effects"
    log.write_text("1.0\tt\tcharge\n", encoding="utf-8")
    witness = effect_log.EffectLog(path=str(log), column=2, thread_column=1)
    witness.begin("t")
    with log.open("a", encoding="utf-8") as file:
        file.write('2.0\tt\tcharge\n2.1\tother\tcharge\n{"effect": "refund"}\n')
    assert witness.read("t").effects == {"charge": 1, "refund": 1}


def test_a_line_without_the_column_is_an_error(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "effects"
    witness = effect_log.EffectLog(path=str(log), column=3)
    witness.begin("t")
    log.write_text("charge\n", encoding="utf-8")
    with pytest.raises(probe.PlanError, match="column 3"):
        witness.read("t")


def test_a_query_names_effects_or_shows_rows(sqlite_path: pathlib.Path, postgres_dsn: str) -> None:
    with sqlite3.connect(sqlite_path) as lite, psycopg.connect(postgres_dsn) as server:
        for connection in (lite, server):
            connection.execute("CREATE TABLE charges (name text, thread text)")
            connection.execute("INSERT INTO charges VALUES ('charge', 't')")
            connection.commit()
        for database, connection in ((str(sqlite_path), lite), (postgres_dsn, server)):
            query = "SELECT name FROM charges WHERE thread = {thread}"
            counted, shown = sql.Query(database, query, effects=True), sql.Query(database, query)
            counted.begin("t")
            connection.execute("INSERT INTO charges VALUES ('charge', 't'), ('charge', 'x')")
            connection.commit()
            assert counted.read("t").effects == {"charge": 1}
            assert json.dumps(shown.read("t").facts) == json.dumps({query: [["charge"], ["charge"]]})


def test_what_cannot_be_read_is_an_error_that_names_the_evidence(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "effects"
    log.write_text('{"effect"\n', encoding="utf-8")
    (tmp_path / "text.db").write_text("no database " * 100, encoding="utf-8")
    wrong: dict[str, dict[str, Any]] = {
        "effect-log": {"path": "effects"},
        "sql": {"database": "absent.db", "query": "SELECT 1"},
        "langgraph-sqlite": {"path": "text.db"},
        "langgraph-postgres": {"dsn": "postgresql://127.0.0.1:1/x"},
        "http": {"url": "/state"},
    }
    for kind, settings in wrong.items():
        witness = evidence.build(
            probe.Source(kind=kind, settings=settings), directory=tmp_path, url="http://127.0.0.1:1"
        )
        with pytest.raises(
            probe.PlanError, match=rf"Evidence '{kind}' cannot be read|no JSON|does not (answer|exist)"
        ):
            witness.read("t")


def test_a_path_with_signs_that_mean_something_in_an_address_is_a_path(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "100% #1?.db"
    with SqliteSaver.from_conn_string(str(place)) as saver:
        _diamond(saver).invoke({"done": []}, _config())
    assert _read(place).position is Position.FINISHED
    assert sql.Query(str(place), "SELECT 1").read("t").facts == {"SELECT 1": [["1"]]}


def test_effects_whose_table_the_first_one_makes_are_counted(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "shop.db"
    witness = sql.Query(str(place), "SELECT name FROM charges", effects=True)
    with pytest.raises(probe.PlanError, match=r"shop\.db does not exist"):
        witness.read("t")
    witness.begin("t")
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE charges AS SELECT 'charge' AS name")
    connection.close()
    assert witness.read("t").effects == {"charge": 1}


class _Api(http.server.BaseHTTPRequestHandler):
    """Two runs of a thread as Outlive lists them, newest first."""

    def do_GET(self) -> None:
        runs = [{"run_id": "b", "state": "succeeded", "reason": None}]
        runs.append({"run_id": "a", "state": "stopped", "reason": "disconnect"})
        kinds = {"a": ["attempt", "chunk", "end"], "b": ["attempt", "chunk", "chunk", "end"]}
        answers: dict[str, Any] = {"/runs?thread=t": {"runs": runs}}
        answers |= {f"/runs/{run}/events": {"events": [{"kind": k} for k in kinds[run]]} for run in kinds}
        body = json.dumps(answers.get(self.path, {})).encode()
        self.send_response(200 if self.path in answers else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def api() -> Iterator[str]:
    """Where such an API answers."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_outlives_runs_tell_their_states_and_the_work_on_record(api: str) -> None:
    found = outlive_api.Runs(url=api).read("t")
    assert outlive_api.runs_of(found) == ["stopped (disconnect)", "succeeded"]
    assert found.steps == {"event": 3}


def test_an_endpoint_is_shown_before_and_after_whatever_it_answers(api: str) -> None:
    witness = endpoint.Endpoint(url=f"{api}/nothing/{{thread}}")
    witness.begin("t")
    answer = {"status": 404, "body": {}}
    assert witness.read("t").facts == {f"{api}/nothing/{{thread}}": {"before": answer, "after": answer}}


def test_an_endpoint_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(probe.PlanError, match="does not answer"):
        endpoint.Endpoint(url="http://127.0.0.1:1/").begin("t")


def test_unknown_kinds_and_settings_are_errors() -> None:
    with pytest.raises(probe.PlanError, match="no evidence of kind 'tea'"):
        evidence.build(probe.Source(kind="tea"))
    with pytest.raises(probe.PlanError, match="colour"):
        evidence.build(probe.Source(kind="effect-log", settings={"path": "x", "colour": 1}))
