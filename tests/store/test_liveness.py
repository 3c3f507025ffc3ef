"""Tokens that die with their process, files that must lie on a local disk, and hints inside one process."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from outlive import errors, seams
from outlive.store import filesystem
from outlive.store.postgres import PostgresStore
from outlive.store.sqlite import SqliteStore
from outlive.store.token_files import TokenFiles
from outlive.store.wakeup import Hub, Waiter
from store import support

HOLD = """
import asyncio, sys
from outlive.store.postgres import PostgresStore
from outlive.store.sqlite import SqliteStore

async def main(where, worker):
    store = PostgresStore(where) if where.startswith("postgresql:") else SqliteStore(where)
    await store.open()
    await store.hold_token(worker)
    if not where.startswith("postgresql:"):
        open(where, "rb").close()  # drops every POSIX lock that this process has on the database file
    print("held", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.contextmanager
def holder(where: str, worker: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds this worker's token."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, where, worker], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue({"sqlite": "sqlite_path", "postgresql": "empty_dsn"}[request.param]))


async def test_a_token_dies_with_its_process_and_not_before(where: str) -> None:
    worker = seams.new_id()
    store = PostgresStore(where) if where.startswith("postgresql:") else SqliteStore(where)
    async with support.opened(store):
        with contextlib.ExitStack() as stack:
            process = await asyncio.to_thread(stack.enter_context, holder(where, worker))
            for _ in range(3):
                assert await store.dead([worker]) == set()
            process.kill()
            await asyncio.to_thread(process.wait)
            async with asyncio.timeout(20):
                while await store.dead([worker]) != {worker}:
                    pass  # PostgreSQL notices a vanished client in its own time


def test_a_token_file_is_taken_away_with_its_worker(tmp_path: pathlib.Path) -> None:
    one, two = TokenFiles(str(tmp_path / "x.db")), TokenFiles(str(tmp_path / "x.db"))
    assert one.dead(["nobody"]) == {"nobody"}
    one.hold("worker")
    assert two.dead(["worker"]) == one.dead(["worker"]) == set()
    with pytest.raises(BlockingIOError):
        two.hold("worker")
    one.release()
    assert two.dead(["worker"]) == {"worker"}
    assert list((tmp_path / "x.db.workers").iterdir()) == []


def test_the_file_of_a_worker_that_died_is_taken_away_by_who_finds_it(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "x.db.workers"
    folder.mkdir()
    (folder / "dead").touch()
    assert TokenFiles(str(tmp_path / "x.db")).dead(["dead"]) == {"dead"}
    assert list(folder.iterdir()) == []


def test_a_worker_that_begins_takes_away_the_files_of_all_that_died(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "x.db.workers"
    (folder / "kept").mkdir(parents=True)  # not ours
    for dead in ("one", "two"):
        (folder / dead).touch()
    living, new = TokenFiles(str(tmp_path / "x.db")), TokenFiles(str(tmp_path / "x.db"))
    living.hold("living")
    new.hold("new")
    assert {path.name for path in folder.iterdir()} == {"kept", "living", "new"}
    living.release()
    new.release()


def test_tokens_taken_while_others_look_for_the_dead_are_never_lost(tmp_path: pathlib.Path) -> None:
    """A looker may lock, or remove, the file of a worker that has created it and not yet locked it."""
    enough = threading.Event()
    looker = TokenFiles(str(tmp_path / "x.db"))

    def look() -> None:
        while not enough.is_set():
            looker.dead([f"w{number}" for number in range(20)])

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for thread in lookers:
        thread.start()
    try:
        for _ in range(20):
            tokens = [TokenFiles(str(tmp_path / "x.db")) for _ in range(20)]
            for number, token in enumerate(tokens):
                token.hold(f"w{number}")
            assert looker.dead([f"w{number}" for number in range(20)]) == set()
            for token in tokens:
                token.release()
    finally:
        enough.set()
        for thread in lookers:
            thread.join(10)


@pytest.mark.parametrize("name", ["", ".", "..", "../x.db", "a/b"])
def test_a_name_that_is_none_proves_nothing_and_removes_nothing(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.db").write_text("precious")
    tokens = TokenFiles(str(tmp_path / "x.db"))
    tokens.hold("w")
    assert tokens.dead([name]) == set()
    assert (tmp_path / "x.db").read_text() == "precious"
    tokens.release()


# ---------------------------------------------------------------- file systems

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/share /mnt/share nfs4 rw 0 0
/dev/sdb1 /mnt/share/local xfs rw 0 0
//server/docs /mnt/my\\040docs cifs rw 0 0
host: /mnt/ssh fuse.sshfs rw 0 0
tmpfs /mnt/sharedmemory tmpfs rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/x.db", "ext4"),
        ("/mnt/share/x.db", "nfs4"),
        ("/mnt/share/deep/er/x.db", "nfs4"),
        ("/mnt/share/local/x.db", "xfs"),
        ("/mnt/sharedmemory/x.db", "tmpfs"),
        ("/mnt/my docs/x.db", "cifs"),
        ("/mnt/ssh/x.db", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str) -> None:
    assert filesystem.kind_of(pathlib.Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    ("kind", "safe"), [("ext4", True), ("nfs", False), ("fuse.s3fs", False), ("9p", False)]
)
async def test_S27_a_file_on_a_network_is_refused(
    kind: str, safe: bool, sqlite_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "kind_of", lambda path, mounts: kind)
    if safe:
        async with support.opened(SqliteStore(sqlite_path)):
            return
    with pytest.raises(errors.UnsafeFileSystem) as refusal:
        await SqliteStore(sqlite_path).open()
    assert kind in str(refusal.value)
    assert "PostgreSQL" in str(refusal.value)


# ---------------------------------------------------------------- the hub


async def woken(waiter: Waiter) -> bool:
    """Whether a hint is there."""
    return waiter._event.is_set()


async def test_a_waiter_is_woken_by_its_topics_and_no_others() -> None:
    hub = Hub()
    with hub.watch("a", "b") as waiter, hub.watch("c") as other:
        hub.wake(["b", "unknown"])
        await waiter.wait(20)
        assert await woken(waiter)
        assert not await woken(other)
        waiter.clear()
        hub.wake_all()
        assert await woken(waiter)
        assert await woken(other)
    assert hub._waiters == {}
    hub.wake_all()


async def test_S11_a_hint_between_the_look_and_the_wait_is_not_lost() -> None:
    hub = Hub(poll=1000)
    with hub.watch("a") as waiter:
        waiter.clear()
        hub.wake(["a"])  # somebody commits while the record is read
        async with asyncio.timeout(20):
            await waiter.wait()


async def test_silence_lasts_no_longer_than_the_poll_interval() -> None:
    hub = Hub(poll=0.01)
    with hub.watch("a") as waiter:
        async with asyncio.timeout(20):
            await waiter.wait()
            await waiter.wait(0.01)
        assert not await woken(waiter)


async def test_one_of_two_waiters_of_a_topic_may_leave() -> None:
    hub = Hub()
    with hub.watch("a") as stays:
        with hub.watch("a"):
            pass
        hub.wake(["a"])
        assert await woken(stays)
