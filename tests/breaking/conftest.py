"""Databases whose record is checked when the test is over."""

from __future__ import annotations

from core.conftest import database as database
from core.conftest import sqlite_url as sqlite_url
