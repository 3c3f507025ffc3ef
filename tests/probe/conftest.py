"""Probes of the services in `services/`, each played once for all tests that look at it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from outlive import probe
from probe import plans


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], probe.Report]:
    """The report of a handler shape: undisturbed, left, and left with a return."""

    @functools.cache
    def played(shape: str) -> probe.Report:
        scenarios = ("stay", "leave") if shape == "shielded" else ("stay", "leave", "return")
        quiet = 0.7 if shape == "shielded" else 0.4  # a leak is told after half a second
        return probe.run(plans.booking(tmp_path_factory.mktemp(shape), shape, *scenarios, quiet=quiet))

    return played
