"""``python -m outlive``: the command line, where the script is not on the path."""

from __future__ import annotations

from outlive import cli

if __name__ == "__main__":
    cli.main()
