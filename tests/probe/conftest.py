"""Probes, a few at a time: most of a probe is waiting, and each module names its own in `PLANS`."""

from __future__ import annotations

import concurrent.futures
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outlive import probe

#: How many services run at once: a probe mostly waits. More would only disturb each other on two cores.
AT_ONCE = 6

Played = Callable[[str], probe.Report]
Futures = dict[tuple[Any, str], "concurrent.futures.Future[probe.Report]"]


@pytest.fixture(scope="session")
def _playing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Futures]:
    """The plans of all collected modules, being played in the order of the modules."""
    modules = dict.fromkeys(getattr(item, "module", None) for item in request.session.items)
    wanted = [(module, *pair) for module in modules for pair in getattr(module, "PLANS", {}).items()]

    def play(make: Callable[[pathlib.Path], probe.Plan], directory: pathlib.Path) -> probe.Report:
        return probe.run(make(directory))

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        # The directories are made here: pytest does not make them from several threads at once.
        futures = {
            (module, name): pool.submit(play, make, tmp_path_factory.mktemp(name))
            for module, name, make in wanted
        }
        yield futures
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def played(request: pytest.FixtureRequest, _playing: Futures) -> Played:
    """The report of one of the module's plans."""
    return lambda name: _playing[request.module, name].result(timeout=150)
