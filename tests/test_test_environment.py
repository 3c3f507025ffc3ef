"""What the fixtures of `conftest.py` promise to the other tests."""

from __future__ import annotations

import asyncio
import pathlib
import time

import blockbuster
import hypothesis
import psycopg
import pytest
from hypothesis import strategies

import outlive

OURS = pathlib.Path(outlive.__file__).with_name("sleeper.py")


def sleep_in_our_code() -> None:
    """Block as a module of the package would: whose code it is, is told by the file that it came from."""
    exec(compile("import time\ntime.sleep(0)", OURS, "exec"), {})  # noqa: S102


async def test_async_tests_run_on_asyncio_without_a_mark() -> None:
    assert asyncio.get_running_loop().is_running()


async def test_a_blocking_call_of_ours_on_the_loop_is_an_error() -> None:
    with pytest.raises(blockbuster.BlockingError, match="sleep"):
        sleep_in_our_code()


async def test_a_blocking_call_of_ours_in_a_thread_is_allowed() -> None:
    await asyncio.to_thread(sleep_in_our_code)


async def test_a_blocking_call_of_the_test_itself_is_allowed() -> None:
    time.sleep(0)  # noqa: ASYNC251


def test_a_blocking_call_without_a_loop_is_allowed() -> None:
    sleep_in_our_code()


@hypothesis.given(strategies.integers())
async def test_properties_may_be_async(value: int) -> None:
    await asyncio.sleep(0)
    assert value == int(str(value))


def test_the_database_of_a_test_is_empty(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE only_mine (id int)")


def test_the_database_of_the_next_test_is_empty_too(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE only_mine (id int)")


def test_the_database_file_of_a_test_does_not_exist_yet(sqlite_path: pathlib.Path) -> None:
    assert not sqlite_path.exists()
    assert sqlite_path.parent.is_dir()
