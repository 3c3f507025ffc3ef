"""The threads that read a SQLite file, each over a connection of its own that cannot write."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

from outlive import errors
from outlive.store import handoff


class Readers:
    """Runs jobs in any order.  ``connect`` opens a connection; ``translate`` makes errors of its errors."""

    def __init__(
        self,
        count: int,
        *,
        connect: Callable[[], sqlite3.Connection],
        check: Callable[[], None],
        translate: Callable[[BaseException], BaseException],
    ) -> None:
        self._connect = connect
        self._check = check
        self._translate = translate
        self._jobs: queue.SimpleQueue[handoff.Job | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        names = [f"outlive-read_{number}" for number in range(count)]
        self._threads = [threading.Thread(target=self._main, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    async def run(self, work: handoff.Work, within: float | None = None) -> Any:
        """Run ``work`` on one of the threads, for ``within`` seconds; see ``Job.ended``.

        Raises ``NotReady`` once they are stopped.
        """
        job = handoff.Job.of_loop(work)
        with self._closing:
            if self._closed:
                raise errors.NotReady("The store is closed.")
            self._jobs.put(job)
        return await job.ended(within)

    def stop(self) -> None:
        """Do what is queued and end the threads.  Blocks; may be called again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _main(self) -> None:
        connection: sqlite3.Connection | None = None
        while (job := self._jobs.get()) is not None:
            try:
                self._check()
                if connection is None:
                    connection = self._connect()
                job.run(connection)
            except BaseException as failure:  # the thread must outlive whatever a piece of work raises
                job.error = self._translate(failure)
            handoff.deliver((job,))
            del job  # else its rows would stay for as long as there is nothing else to read
        if connection is not None:
            connection.close()
