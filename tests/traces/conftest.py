"""Every test of traces leaves a sound record behind, and hears whatever OpenTelemetry complains of."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from core.conftest import _nothing_stays_armed as _nothing_stays_armed
from core.conftest import database as database
from core.conftest import sqlite_url as sqlite_url


@pytest.fixture(autouse=True)
def _opentelemetry_says_nothing(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What is detached elsewhere, or told to a span that has ended, it reports in its log alone."""
    yield
    said = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    loud = [one for one in said if one.name.startswith("opentelemetry") and one.levelno >= logging.WARNING]
    assert [one.getMessage() for one in loud] == []
