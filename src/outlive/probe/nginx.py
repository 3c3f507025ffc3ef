"""An nginx of our own in front of a service, in a directory of its own, for as long as a context lasts."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping

from outlive.probe.plan import PlanError

ABSENT = "not measured: nginx is not installed (put it on PATH, or name it in OUTLIVE_PROBE_NGINX)"

#: Where it is installed to, also when that is not on the PATH of people who are not root.
USUAL = "/usr/local/sbin:/usr/sbin"

#: The configurations that differ in when the origin learns that a client has left.
CONFIGURATIONS: Mapping[str, str] = {
    "defaults": "",
    "proxy_buffering off": "proxy_buffering off;",
    "proxy_ignore_client_abort on": "proxy_ignore_client_abort on;",
}

_TEMPLATE = """\
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    proxy_cache_path {directory}/cache keys_zone=cache:1m;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {origin};
            {options}
        }}
    }}
}}
"""


def binary() -> str | None:
    """Where nginx is."""
    named = os.environ.get("OUTLIVE_PROBE_NGINX")
    return named or shutil.which("nginx") or shutil.which("nginx", path=USUAL)


@contextlib.contextmanager
def proxy(origin: str, options: str) -> Iterator[str]:
    """The URL of a proxy for this origin. Raises `PlanError` with nginx's words when it does not start."""
    command = binary()
    if command is None:
        raise PlanError(ABSENT)
    with tempfile.TemporaryDirectory(prefix="outlive-nginx-", ignore_cleanup_errors=True) as name:
        directory, port = pathlib.Path(name), _free_port()
        # As root, nginx would give its workers to another user, who has no way into a private directory.
        user = "user root;\n" if os.geteuid() == 0 else ""
        text = _TEMPLATE.format(directory=directory, port=port, origin=origin, options=options)
        (directory / "nginx.conf").write_text(user + text, encoding="utf-8")
        arguments = [
            command,
            "-p",
            name,
            "-c",
            str(directory / "nginx.conf"),
            "-e",
            str(directory / "error.log"),
        ]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            _wait(process, port)
            yield urllib.parse.urlunsplit(("http", f"127.0.0.1:{port}", "", "", ""))
        finally:
            process.terminate()
            process.communicate(timeout=30)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 20
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > until:
            process.terminate()
            raise PlanError(f"nginx did not start: {process.communicate(timeout=30)[1].decode()[-500:]}")
        time.sleep(0.02)


def _listens(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as knock:
        knock.bind(("127.0.0.1", 0))
        return int(knock.getsockname()[1])
