"""What the tests of webhooks share with those of the core."""

from __future__ import annotations

import pathlib

import pytest

from core.conftest import database as database
from core.conftest import sqlite_url as sqlite_url
from outlive import runtime


@pytest.fixture
def unchecked(sqlite_path: pathlib.Path) -> str:
    """The URL of a database whose record is not checked afterwards."""
    runtime.migrate(f"sqlite:///{sqlite_path}")
    return f"sqlite:///{sqlite_path}"
