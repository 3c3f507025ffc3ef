"""The promises and the failures that the tests are there for: `docs/invariants.md` is made of this.

A test says which promise it guards by `@pytest.mark.invariant("I3")`, and which failure it replays by its
name, `test_S08_...`.  `test_manifest.py` holds this table and the tests against each other, both ways.
"""

from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

TESTS = pathlib.Path(__file__).parent
PAGE = TESTS.parent / "docs" / "invariants.md"


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """A promise.  ``not_yet`` says what of it no test guards, since it does not exist."""

    id: str
    sentence: str
    not_yet: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A failure that others had, and how it is replayed here: on which stores, with real processes, by which
    signals.  What is left out has a reason.
    """

    id: str
    sentence: str
    stores: tuple[str, ...] = ()
    processes: bool = False
    signals: tuple[str, ...] = ()
    without: str = ""


@dataclass(frozen=True, kw_only=True)
class Test:
    """A test as its source has it."""

    name: str
    file: str
    invariants: tuple[str, ...]
    source: str

    @property
    def case(self) -> str | None:
        """The id of the case that its name begins with."""
        word = self.name.split("_")[1]
        return word if word[:1] == "S" and word[1:].isdigit() else None


BOTH = ("SQLite", "PostgreSQL")

INVARIANTS = (
    Invariant(
        id="I1",
        sentence="A run has at most one terminal state and exactly one end event; both commit in one"
        " transaction, before anybody can read the event.",
    ),
    Invariant(
        id="I2",
        sentence="Only the holder of the current claim writes events, checkpoints and a verdict; every other"
        " write is refused and counted.",
    ),
    Invariant(
        id="I3",
        sentence="A thread has at most one running run; an index in the database sees to it, no query.",
    ),
    Invariant(
        id="I4",
        sentence="The sequence of a run's events, and of a thread's, has no hole and no repeat, and is the"
        " order of their commits; a new attempt opens with an `attempt` event.",
    ),
    Invariant(
        id="I5",
        sentence="A follower always reaches the end: early, late or in a race, it gets every event after its"
        " cursor, then the end event, then its stream closes.",
    ),
    Invariant(
        id="I6",
        sentence="What a client was told survives: no event is shown before it is committed, and what came"
        " before a stop is kept with it.",
    ),
    Invariant(
        id="I7",
        sentence="The first verdict that commits wins. A request to stop is a fact of its own, and whoever"
        " made it is told which of the two happened.",
    ),
    Invariant(
        id="I8",
        sentence="The same key with the same body is the same run; with another body it is refused.",
    ),
    Invariant(
        id="I9",
        sentence="An effect has one ledger row per business key and generation, does not start without a live"
        " claim, and is never repeated blindly.",
    ),
    Invariant(
        id="I10",
        sentence="A verdict and its notifications commit together, and each notification has a stable id.",
    ),
    Invariant(
        id="I11",
        sentence="Disconnect, stop by a user, shutdown, time-out and loss of the lease are told apart in the"
        " record.",
    ),
    Invariant(
        id="I12", sentence="Shutdown hands work back: queued in its place, no loss charged, never finalised."
    ),
    Invariant(
        id="I13",
        sentence="No cancelled request leaves a pooled connection, lock, task, generator, slot or busy thread"
        " behind.",
    ),
    Invariant(
        id="I14",
        sentence="Nobody sees a byte of another's run, thread or cursor; unknown and foreign look the same.",
        not_yet="Tenants are kept apart, but nothing proves yet who somebody is.",
    ),
    Invariant(
        id="I15",
        sentence="What could not be stored is never a success: it is loud, and it stays recoverable.",
    ),
)

KILL, STOP, CONTINUE, TERMINATE = "SIGKILL", "SIGSTOP", "SIGCONT", "SIGTERM"

CASES = (
    Case(
        id="S01",
        sentence="A cancelled run's nested graphs run on.",
        stores=BOTH,
        without="Cancellation happens inside one event loop: no process and no signal could tell more.",
    ),
    Case(
        id="S02",
        sentence="A stop is acknowledged while what it should have stopped goes on to have its effect.",
        stores=BOTH,
        without="A stop and an effect meet inside one event loop; what a death does to an effect is S23's.",
    ),
    Case(
        id="S03",
        sentence="The clean-up of nested generators is left to the garbage collector.",
        stores=BOTH,
        without="Generators live and die inside one event loop: no process and no signal could tell more.",
    ),
    Case(
        id="S04",
        sentence="A proxy drops a connection that is silent, and the run is taken for abandoned by its user.",
        stores=BOTH,
        without="A real proxy cuts the connection; no signal is about one connection.",
    ),
    Case(
        id="S05",
        sentence="A sleeping tab kills a tool call, and the question that came up is lost.",
        stores=BOTH,
        without="The service is closed and opened anew inside the test; what a death loses is S07's subject.",
    ),
    Case(
        id="S06",
        sentence="A turn is stored only once its stream is read to the end; a reload loses it.",
        stores=BOTH,
        without="The record is read over a connection of its own; what a death loses is S07's subject.",
    ),
    Case(
        id="S07",
        sentence="A dead worker's run stays `running` for ever and blocks its thread.",
        stores=BOTH,
        processes=True,
        signals=(KILL,),
    ),
    Case(
        id="S08",
        sentence="A stalled worker comes back and overwrites what its replacement did.",
        stores=BOTH,
        processes=True,
        signals=(STOP, CONTINUE),
        without="No process gets a wrong clock: only the database's counts, and no statement takes another.",
    ),
    Case(
        id="S09",
        sentence="An open stream keeps the server from shutting down.",
        processes=True,
        signals=(TERMINATE,),
        without="A stream ends before anything is asked of a store.",
    ),
    Case(
        id="S10",
        sentence="A stop overwrites a success that was already stored, or the other way round.",
        stores=BOTH,
        without="Both writers are held at the statement that matters, which no signal could time.",
    ),
    Case(
        id="S11",
        sentence="A client that attaches while the run ends waits for ever.",
        stores=BOTH,
        without="Two runtimes share only the database; hints are lost by the test, which no signal could do.",
    ),
    Case(
        id="S12",
        sentence="A reconnect replays what was seen, or starts the work again.",
        stores=BOTH,
        without="A connection is cut by its client, over a real socket: no signal is about one connection.",
    ),
    Case(
        id="S13",
        sentence="A context variable is set in one task and reset in another.",
        stores=BOTH,
        without="A context lives inside one event loop: no process and no signal could tell more.",
    ),
    Case(
        id="S14",
        sentence="A reader that stalls makes the server keep everything for it.",
        stores=BOTH,
        without="A client stops reading its socket; the memory is measured by `bench/streams.py`.",
    ),
    Case(
        id="S15",
        sentence="A line of a stream is longer than its client reads, and the stream dies.",
        stores=BOTH,
        without="No signal changes a payload.",
    ),
    Case(
        id="S16",
        sentence="A character in a payload splits the event, or ends it early.",
        stores=BOTH,
        processes=True,
        without="No signal changes a payload.",
    ),
    Case(
        id="S17",
        sentence="A stream that ends in an error looks like one that succeeded.",
        stores=BOTH,
        processes=True,
        signals=(KILL,),
    ),
    Case(
        id="S18",
        sentence="A value that the serialiser does not know aborts the run.",
        stores=BOTH,
        without="A value is written in one process, and no signal changes it.",
    ),
    Case(
        id="S19",
        sentence="A notification fails the write that it announces, or never arrives, and nobody notices.",
        stores=("PostgreSQL",),
        without="SQLite sends no notification. Connections are cut and frozen at the socket, one by one.",
    ),
    Case(
        id="S20",
        sentence="A stop during a tool call leaves a conversation that every provider refuses.",
        stores=BOTH,
        without="A stop and its clean-up meet inside one event loop; what a death does is S07's.",
    ),
    Case(
        id="S21",
        sentence="A double click makes two runs.",
        stores=BOTH,
        processes=True,
        without="No signal is about a request.",
    ),
    Case(
        id="S22",
        sentence="Somebody reads or stops another's run.",
        stores=BOTH,
        without="Whose a run is, is on record: neither a process nor a signal is about that.",
    ),
    Case(
        id="S23",
        sentence="A purchase is charged twice: its key was made for a call, an attempt or a model's turn.",
        stores=BOTH,
        processes=True,
        signals=(KILL,),
    ),
    Case(
        id="S24",
        sentence="A status commits and what it should have sent is lost, or is sent twice.",
        stores=BOTH,
        processes=True,
        signals=(KILL,),
    ),
    Case(
        id="S25",
        sentence="A slot of a schedule fires once per worker, twice after a restart, or is lost in silence.",
        stores=BOTH,
        processes=True,
        signals=(KILL,),
    ),
    Case(
        id="S26",
        sentence="A cancelled request leaves a connection or a lock behind; an open stream holds one.",
        stores=("PostgreSQL",),
        without="SQLite has one writer and no pool. Requests are cut by their clients, at any moment.",
    ),
    Case(
        id="S27",
        sentence="Two processes write one SQLite file: `database is locked`.",
        stores=("SQLite",),
        processes=True,
        without="PostgreSQL has no such lock. The lock is held by another process that lives.",
    ),
    Case(
        id="S28",
        sentence="An answer to a question inside a subgraph repeats what the subgraph had done.",
        stores=BOTH,
        without="Where an answer goes is decided inside one process; restarts of it are S07's subject.",
    ),
)


def collect() -> list[Test]:
    """Every test function in the tree, read from its source."""
    return [test for path in sorted(TESTS.rglob("test_*.py")) for test in _tests_of(path)]


def _tests_of(path: pathlib.Path) -> Iterator[Test]:
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            decorators = [ast.get_source_segment(text, one) or "" for one in node.decorator_list]
            yield Test(
                name=node.name,
                file=path.relative_to(TESTS).as_posix(),
                invariants=tuple(one.split('"')[1] for one in decorators if ".invariant(" in one),
                source="\n".join([*decorators, ast.get_source_segment(text, node) or ""]),
            )


def page() -> str:
    """The text of `docs/invariants.md`."""
    tests = collect()
    lines = [
        "# What Outlive promises, and what it is tested against",
        "",
        "Made by `python tests/invariants.py` of that file and of the tests; a test holds it current.",
        "",
        "## Promises",
        "",
        "| id | promise | tests that fail when it is broken |",
        "|---|---|---|",
    ]
    for promise in INVARIANTS:
        guards = [test for test in tests if promise.id in test.invariants]
        shown = " ".join(filter(None, [_shown(guards), promise.not_yet and f"Not yet: {promise.not_yet}"]))
        lines.append(f"| {promise.id} | {promise.sentence} | {shown} |")
    lines += [
        "",
        "## Failures that others had",
        "",
        "| id | failure | stores | real processes | signals | left out because | tests |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        replays = [test for test in tests if test.case == case.id]
        cells = [
            case.id,
            case.sentence,
            " · ".join(case.stores) or "-",
            "yes" if case.processes else "-",
            " · ".join(case.signals) or "-",
            case.without or "-",
            _shown(replays),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shown(tests: list[Test]) -> str:
    return ", ".join(f"`{file}`" for file in sorted({test.file for test in tests}))


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE} is written.\n")
