"""Every test of metrics leaves a sound record behind: what the tests of the core get holds here too."""

from __future__ import annotations

from core.conftest import _nothing_stays_armed as _nothing_stays_armed
from core.conftest import database as database
from core.conftest import sqlite_url as sqlite_url
