"""Refuses to keep a SQLite file where its locks cannot be trusted."""

from __future__ import annotations

from pathlib import Path

from outlive import errors

MOUNTS = Path("/proc/mounts")
"""What is mounted where, on Linux."""

_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "9p",
    "ceph",
    "gluster",
    "lustre",
    "fuse.sshfs",
    "fuse.s3fs",
    "gcsfuse",
)


def kind_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that ``path`` lies on, given the text of ``/proc/mounts``."""
    best, kind = "", ""
    target = str(path.resolve())
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def refuse_network(path: Path) -> None:
    """Raise ``UnsafeFileSystem`` if ``path`` lies on a network file system."""
    try:
        mounts = MOUNTS.read_text("utf-8", "replace")
    except OSError:
        return  # not Linux: there is no portable way to ask
    kind = kind_of(path, mounts)
    if kind.startswith(_NETWORK):
        raise errors.UnsafeFileSystem(f"The SQLite file would lie on {kind}, whose locks cannot be trusted.")
