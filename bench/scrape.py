"""What scrapes cost streams, and streams scrapes: ``python bench/scrape.py [--json]``.

Rounds without and with scrapes alternate in one process, so that what else the machine does falls on both.
The ratio is of medians; a time by itself says little on a machine that others use.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import outlive
from outlive import metrics, runtime

STREAMS, CHUNKS, ROUNDS, EVERY = 20, 200, 6, 0.1


@outlive.agent("speaks", policy=outlive.job())
async def speaks(context: outlive.Context) -> AsyncGenerator[Any, None]:
    """Chunks with a breath between them."""
    for number in range(CHUNKS):
        yield f"word {number}"
        await asyncio.sleep(0.002)


async def _stream(served: outlive.Outlive) -> None:
    run = (await served.submit("speaks")).run
    async with aclosing(served.watch(run.run_id)) as events:
        async for _ in events:
            pass


async def _scrape(port: int, into: list[float]) -> None:
    def get() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            answer.read()

    while True:
        since = time.monotonic()
        await asyncio.to_thread(get)
        into.append(time.monotonic() - since)
        await asyncio.sleep(max(0.0, EVERY - into[-1]))


async def _round(served: outlive.Outlive, port: int | None, into: list[float]) -> tuple[float, float]:
    wall, cpu = time.monotonic(), time.process_time()
    scraping = None if port is None else asyncio.create_task(_scrape(port, into))
    await asyncio.gather(*(_stream(served) for _ in range(STREAMS)))
    if scraping is not None:
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping
    return time.monotonic() - wall, time.process_time() - cpu


async def _measured(database: str) -> dict[str, Any]:
    latencies: list[float] = []
    plain, scraped = [], []
    async with (
        outlive.Outlive(database, [speaks], slots=STREAMS) as served,
        metrics.Metrics(served).served(0) as port,
    ):
        await _round(served, None, latencies)
        for _ in range(ROUNDS):
            plain.append(await _round(served, None, latencies))
            scraped.append(await _round(served, port, latencies))
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "streams": STREAMS,
        "scrapes": len(latencies),
        "scrape_p50_ms": round(cuts[49] * 1000, 1),
        "scrape_p99_ms": round(cuts[98] * 1000, 1),
        "streams_wall_ratio": round(_ratio(plain, scraped, 0), 3),
        "cpu_ratio": round(_ratio(plain, scraped, 1), 3),
    }


def _ratio(plain: list[tuple[float, float]], scraped: list[tuple[float, float]], which: int) -> float:
    return statistics.median(one[which] for one in scraped) / statistics.median(one[which] for one in plain)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    as_json = arguments.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{pathlib.Path(folder) / 'bench.db'}"
        runtime.migrate(database)
        found = asyncio.run(_measured(database))
    print(json.dumps(found) if as_json else "\n".join(f"{name:20} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
