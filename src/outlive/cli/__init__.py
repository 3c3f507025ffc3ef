"""The ``outlive`` command, as far as it can be had: its own packages are an extra."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Run the command line; exits 2 with one line if what it needs is not installed."""
    try:
        app = importlib.import_module("outlive.cli.app")
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "pydantic", "pydantic_settings"):
            raise
        print("outlive: The command line is not installed. Run: pip install 'outlive[cli]'", file=sys.stderr)
        sys.exit(2)
    app.main()
