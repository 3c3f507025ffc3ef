"""How each ASGI server is told to serve one application on one port. Decides command lines, nothing else."""

from __future__ import annotations

import importlib.util
from typing import assert_never

from outlive.probe.plan import Server


def command(server: Server, application: str, port: int) -> list[str]:
    """The arguments after the interpreter, bound to 127.0.0.1 and quiet."""
    match server:
        case Server.UVICORN:
            return [
                "-m",
                "uvicorn",
                application,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                *_quiet("warning"),
            ]
        case Server.GRANIAN:
            options = ["--interface", "asgi", "--host", "127.0.0.1", "--port", str(port)]
            return ["-m", "granian", *options, *_quiet("warning"), application]
        case Server.HYPERCORN:
            return ["-m", "hypercorn", "--bind", f"127.0.0.1:{port}", *_quiet("warning"), application]
        case Server.GUNICORN:
            options = ["-k", "asgi", "-b", f"127.0.0.1:{port}", "--no-control-socket"]
            return ["-m", "gunicorn", *options, *_quiet("warning"), application]
        case _:
            assert_never(server)


def installed(server: Server) -> bool:
    """Whether this interpreter has the server."""
    return importlib.util.find_spec(server.value) is not None


def _quiet(level: str) -> list[str]:
    return ["--log-level", level]
