"""Options that several commands share: the settings as flags, and a few that are none."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from outlive import settings

DEFAULT_DATABASE: str = settings.Settings.model_fields["database"].default


def _database(context: typer.Context, given: str) -> str:
    """Look in the environment and the file as well, unless the flag was given."""
    source = context.get_parameter_source("database")
    if context.resilient_parsing or (source is not None and source.name == "COMMANDLINE"):
        return given
    return settings.load().settings.database


Database = Annotated[
    str,
    typer.Option(
        "--database", "-d", callback=_database, help="sqlite:///file.db or postgresql://user@host/name."
    ),
]
"""For a command that needs no other setting."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Tenant = Annotated[str, typer.Option(envvar="OUTLIVE_TENANT", help="Whose runs.")]

FLAGS = tuple(name for name in settings.Settings.model_fields if name not in settings.NO_FLAG)
EXECUTING = (
    "database",
    "direct_database",
    "slots",
    "drain",
    "lease",
    "viewer_lease",
    "artifacts",
    "metrics_port",
    "metrics_host",
    "traces",
    "log_format",
    "log_level",
    "log_payloads",
)
"""The settings of a process that drives runs."""
_SHORT = {"database": ("-d",)}
_CONFIG = Annotated[
    str | None,
    typer.Option("--config", help="A TOML file with settings; default: outlive.toml, if there is one."),
]


def settable(
    names: Iterable[str], *, graphs: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each of these settings; it gets them all as its first argument.

    ``graphs``: a file that --config names may be a langgraph.json, which the command gets by that name.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        first, *rest = own.parameters.values()
        flags = [_flag(name) for name in names]

        @functools.wraps(command)
        def with_settings(**given: Any) -> None:
            found = {flag.name: given.pop(flag.name) for flag in flags}
            chosen = {name: value for name, value in found.items() if value is not None}
            file = given.pop("config")
            if graphs and file is not None and file.endswith(".json"):
                given["graphs"], file = file, None
            loaded = settings.load(chosen, file=file)
            command(**{first.name: loaded}, **given)

        config = _parameter("config", _CONFIG)
        rest = [one for one in rest if one.name != "graphs"]
        with_settings.__signature__ = own.replace(parameters=[*rest, *flags, config])  # type: ignore[attr-defined]
        return with_settings

    return decorate


def _flag(name: str) -> inspect.Parameter:
    field = settings.Settings.model_fields[name]
    kind = bool if field.annotation is bool else str
    flag = settings.flag(name)
    declared = f"{flag}/--no-{flag.removeprefix('--')}" if kind is bool else flag
    default = settings.show(field.get_default(call_default_factory=True))
    option = typer.Option(
        declared,
        *_SHORT.get(name, ()),
        metavar=None if kind is bool else _metavar(field.annotation),
        show_default=default,
        help=field.description,
    )
    return _parameter(name, Annotated[kind | None, option])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    words = {int: "INTEGER", float: "SECONDS"}
    inner = {annotation, *get_args(annotation)}
    return next((word for kind, word in words.items() if kind in inner), "TEXT")


def of_tenant(tenant: str | None) -> str:
    """Say for an empty list whose things were looked for: of another tenant there may be some."""
    return (
        f" of the tenant {tenant!r}" if tenant else " of the tenant that has no name (--tenant names another)"
    )
