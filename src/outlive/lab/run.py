"""Play experiments one after another, each in a directory of its own and with a seed of its own."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import random
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence

from outlive.lab import experiments, stage
from outlive.lab.experiment import Bench, Experiment, Options, Progress, Result, Unavailable, databases
from outlive.probe.plan import PlanError


def names() -> list[str]:
    """The names of all experiments, in their order."""
    return [experiment.name for experiment in experiments.ALL]


def run(
    wanted: Sequence[str] = (), options: Options | None = None, progress: Progress = lambda *_: None
) -> Iterator[Result]:
    """Yield a result per experiment as it is done; all experiments when none is named.

    Raises `ValueError` for an unknown name, before anything is played.
    """
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        raise ValueError(f"There is no experiment {unknown[0]!r}. Known: {', '.join(names())}.")
    chosen = [experiment for experiment in experiments.ALL if not wanted or experiment.name in wanted]
    return _play(chosen, options or Options(), progress)


def _play(chosen: Sequence[Experiment], options: Options, progress: Progress) -> Iterator[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="outlive-lab-", ignore_cleanup_errors=True) as directory,
        databases(options.postgres) as postgres,
        contextlib.ExitStack() as stack,
    ):
        root = pathlib.Path(directory)

        @functools.cache
        def service() -> stage.Service:
            return stack.enter_context(stage.service(root / "service", str(root / "service.db"), worker=True))

        for experiment in chosen:
            place = root / experiment.name
            place.mkdir()
            bench = Bench(
                name=experiment.name,
                options=options,
                directory=place,
                progress=progress,
                postgres=postgres,
                service=service,
                random=random.Random(f"{options.seed}/{experiment.name}"),
            )
            yield _one(experiment, bench)


def _one(experiment: Experiment, bench: Bench) -> Result:
    began = time.monotonic()
    measured, skipped, failed = None, None, False
    try:
        measured = experiment.play(bench)
    except Unavailable as missing:
        skipped = str(missing)
    except Exception as broken:  # what the others measured, in minutes, is worth more than a clean crash
        failed, skipped = True, _told(broken)
    return Result(
        name=experiment.name,
        title=experiment.title,
        asserts=experiment.asserts,
        ok=measured.ok if measured else False if failed else None,
        rows=measured.rows if measured else (),
        figures=measured.figures if measured else (),
        skipped=skipped,
        seconds=time.monotonic() - began,
    )


def _told(broken: Exception) -> str:
    if isinstance(broken, PlanError):
        return f"It could not be played: {broken}"
    at = traceback.extract_tb(broken.__traceback__)[-1]
    return f"It broke: {type(broken).__name__}: {broken} ({pathlib.Path(at.filename).name}:{at.lineno})"
