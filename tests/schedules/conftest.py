"""What the tests of schedules share with those of the core."""

from __future__ import annotations

from core.conftest import _nothing_stays_armed as _nothing_stays_armed
from core.conftest import database as database
from core.conftest import sqlite_url as sqlite_url
