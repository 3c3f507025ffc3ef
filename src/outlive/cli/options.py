"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_DATABASE = "sqlite:///outlive.db"

Database = Annotated[
    str,
    typer.Option(
        "--database",
        "-d",
        envvar="OUTLIVE_DATABASE",
        help="sqlite:///file.db or postgresql://user@host/name.",
    ),
]
DirectDatabase = Annotated[
    str | None,
    typer.Option(
        envvar="OUTLIVE_DIRECT_DATABASE",
        help="The same database without the transaction pooler, for LISTEN and fast takeover.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Tenant = Annotated[str, typer.Option(envvar="OUTLIVE_TENANT", help="Whose runs.")]
