"""One of the servers: ``python -m bench.server bare|ours DATABASE``; says where it listens.

It ends when its standard input does, so that none is left behind by a benchmark that was killed.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading

import uvicorn


def main() -> None:
    """Serve until told to stop."""
    _, kind, database = sys.argv
    end_with_parent()
    application = importlib.import_module(f"bench.{kind}").app(database)
    # The protocol is named, or asyncio would not switch Nagle's algorithm off, and the second packet of each
    # stream would wait 40 ms for the acknowledgement of its first.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)  # who connects from now on waits until the application has started
    config = uvicorn.Config(application, log_level="warning", access_log=False, timeout_keep_alive=600)
    sys.stdout.write(f"listening on {listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listening])


def end_with_parent() -> None:
    """End this process, without a word, when whoever started it is gone."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
