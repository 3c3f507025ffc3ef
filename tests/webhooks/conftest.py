"""What the tests of webhooks share with those of the core."""

from __future__ import annotations

from core.conftest import database as database
from core.conftest import sqlite_url as sqlite_url
