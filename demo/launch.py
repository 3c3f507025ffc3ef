"""Starts the ``outlive`` command after altering it: ``python -m demo.launch ALTERATION,... serve ...``."""

from __future__ import annotations

import sys

from demo import alterations
from outlive import cli


def main() -> None:
    """Alter, then run the command line as it is."""
    _, chosen, *arguments = sys.argv
    for name in chosen.split(","):
        alterations.ALTERATIONS[name]()
    sys.argv = ["outlive", *arguments]
    cli.main()


if __name__ == "__main__":
    main()
