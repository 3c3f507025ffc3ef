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
        return probe.run(plans.booking(tmp_path_factory.mktemp(shape), shape, "stay", "leave", "return"))

    return played
