"""``make serve``: the demonstration's agents, with their provider, for playing around by hand."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from demo import guard, stage
from outlive import cli


def main() -> None:
    """Start a provider, then serve until told to stop; arguments go to ``outlive serve``."""
    port = _free_port()
    os.environ["DEMO_PROVIDER"] = f"http://127.0.0.1:{port}"
    sys.argv = ["outlive", "serve", "demo.booking:served", *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="outlive-provider-") as folder:
        log = str(Path(folder) / "provider.jsonl")
        command = [sys.executable, "-m", "outlive.testing.provider", "--port", str(port), "--log", log]
        command += ["--work", stage.CHARGING]
        provider = subprocess.Popen(command, cwd=stage.ROOT, start_new_session=True)
        watching = guard.Guard(folder)
        watching.watch(provider.pid)
        try:
            cli.main()
        finally:
            provider.kill()
            provider.wait()
            watching.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
