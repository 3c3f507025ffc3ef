"""This machine: SQLite's version, the file system, what the process may open, and the settings themselves."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
from pathlib import Path

from outlive import errors, settings
from outlive.cli import checks
from outlive.store import filesystem, sqlite

OLDEST_SQLITE = (3, 40, 0)
FEW_FILES = 1_024
MANY_FILES = 8_192
LITTLE_ROOM = 1 << 30


def look(loaded: settings.Loaded) -> list[checks.Finding]:
    """Look at everything that needs no database."""
    chosen = loaded.settings
    return [
        _settings(loaded),
        *(_sqlite(chosen) if chosen.database.startswith("sqlite:") else []),
        *([_artifacts(chosen.artifacts)] if chosen.artifacts is not None else []),
        _files(),
    ]


def _settings(loaded: settings.Loaded) -> checks.Finding:
    if loaded.ignored:
        found = f"{', '.join(loaded.ignored)} looks like a setting and is none."
        return checks.warn("settings", found, "Correct the name; see: outlive settings")
    given = sum(origin != "default" for origin in loaded.origins.values())
    return checks.ok("settings", f"{given} of {len(loaded.origins)} are not at their default.")


def _sqlite(chosen: settings.Settings) -> list[checks.Finding]:
    version = sqlite3.sqlite_version
    path = Path(chosen.database.removeprefix("sqlite:///"))
    found = [_file_system(path), _room(path), _lease(chosen)]
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        return [
            checks.fail("SQLite", f"{version} is too old.", "Use a Python with SQLite 3.40 or newer."),
            *found,
        ]
    return [checks.ok("SQLite", f"{version}."), *found]


def _file_system(path: Path) -> checks.Finding:
    try:
        filesystem.refuse_network(path)
        kind = filesystem.kind_of(path, filesystem.MOUNTS.read_text("utf-8", "replace"))
    except errors.UnsafeFileSystem as failure:
        return checks.fail("file system", failure.message, failure.hint)
    except OSError:
        return checks.skip("file system", "This system does not say what is mounted where.")
    return checks.ok("file system", f"{kind or 'local'}.")


def _room(path: Path) -> checks.Finding:
    folder = next(folder for folder in path.resolve().parents if folder.is_dir())
    left = shutil.disk_usage(folder).free
    if left < LITTLE_ROOM:
        return checks.warn("room", f"{left >> 20} MiB are free.", "Make room: a full disk stops every run.")
    return checks.ok("room", f"{left >> 30} GiB are free.")


def _lease(chosen: settings.Settings) -> checks.Finding:
    if chosen.lease <= sqlite.BUSY_BUDGET:
        found = f"{chosen.lease:g} s, and a write may wait {sqlite.BUSY_BUDGET:g} s for another process's."
        return checks.warn("lease", found, "Raise it, or runs go to another process while they are driven.")
    return checks.ok("lease", f"{chosen.lease:g} s.")


def _artifacts(root: Path) -> checks.Finding:
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return checks.fail(
            "artifacts", f"Nothing can be written in {there}.", "Choose a directory of its own."
        )
    return checks.ok("artifacts", f"{root}; every process must have the same.")


def _files() -> checks.Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"A process may have {_count(soft)} files open, at most {_count(hard)}; each open stream is one."
    if soft == resource.RLIM_INFINITY or soft >= MANY_FILES:
        return checks.ok("ulimit", found)
    level = checks.warn if soft >= FEW_FILES else checks.fail
    return level("ulimit", found, "Raise it: ulimit -n 65536, or LimitNOFILE=65536 for systemd.")


def _count(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)
