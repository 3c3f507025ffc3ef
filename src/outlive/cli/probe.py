"""``outlive probe``: what a disconnect commits, in any ASGI service.

Turns options into a plan and a report into an exit code; decides nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from outlive import probe
from outlive.probe import interrupted
from outlive.probe import report as reports

probe_app = typer.Typer(
    help="Open a client, leave in the middle, and look at what the service executed and recorded.",
    pretty_exceptions_enable=False,
)


Text = str | None
Many = list[str] | None

Server = Annotated[probe.Server | None, typer.Option(help="The server to start; default: uvicorn.")]
Directory = Annotated[
    pathlib.Path | None, typer.Option(help="Where the app runs and is imported from; default: here.")
]
EffectLog = Annotated[Text, typer.Option(help="file[:column[:thread column]], a line per effect.")]
SqlEffects = Annotated[Text, typer.Option(help="'database::SELECT ...' in which each row names an effect.")]
Endpoint = Annotated[Text, typer.Option(help="A URL, or a path of the service, to GET before and after.")]
OutliveApi = Annotated[
    Text, typer.Option(help="Where Outlive's API answers: a URL, or / for the service itself.")
]
Patience = Annotated[
    float | None, typer.Option(min=1, help="Seconds for a run to come to rest; default: 20.")
]
StartWithin = Annotated[float | None, typer.Option(min=1, help="Seconds for the app to start; default: 60.")]


@probe_app.command("probe")
def run(
    target: Annotated[Text, typer.Argument(help="module:app to start, or the URL of a service.")] = None,
    *,
    plan: Annotated[pathlib.Path | None, typer.Option(help="A TOML file with all of this.")] = None,
    server: Server = None,
    server_option: Annotated[Many, typer.Option(help="An argument for the server. Repeatable.")] = None,
    directory: Directory = None,
    env: Annotated[Many, typer.Option(help="NAME=value for the app. Repeatable.")] = None,
    get: Annotated[Text, typer.Option(help="GET this path; {thread} and {message} are filled in.")] = None,
    post: Annotated[Text, typer.Option(help="POST to this path, filled in likewise.")] = None,
    data: Annotated[Text, typer.Option(help="The body; placeholders are filled in.")] = None,
    header: Annotated[Many, typer.Option(help="'Name: value'. Repeatable.")] = None,
    scenario: Annotated[Many, typer.Option(help="What the client does. Repeatable.")] = None,
    after_chunks: Annotated[int, typer.Option(min=0, help="Leave after so many chunks.")] = 2,
    after_seconds: Annotated[float | None, typer.Option(min=0, help="Leave by the clock instead.")] = None,
    linger: Annotated[float, typer.Option(min=0, help="Stay so many seconds after the last chunk.")] = 0.0,
    checkpoints: Annotated[Text, typer.Option(help="LangGraph's tables: a SQLite file or a DSN.")] = None,
    effect_log: EffectLog = None,
    sql: Annotated[Text, typer.Option(help="'database::SELECT ...' to show rows of.")] = None,
    sql_effects: SqlEffects = None,
    endpoint: Endpoint = None,
    outlive_api: OutliveApi = None,
    effect: Annotated[Many, typer.Option(help="A node that is an effect. Repeatable; default: all.")] = None,
    expect: Annotated[probe.Outcome | None, typer.Option(help="Exit 1 unless the run does this.")] = None,
    fail_on: Annotated[str, typer.Option(help="Exit 2 on duplicate-effects,forks,leaks.")] = "",
    patience: Patience = None,
    start_within: StartWithin = None,
    platform: Annotated[bool, typer.Option(help="Also what server and framework do by themselves.")] = False,
    nginx: Annotated[bool, typer.Option(help="Also what changes behind nginx.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    html: Annotated[pathlib.Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Leave an ASGI service in the middle and tell what it executed and recorded.

    Exit codes: 0 as asked, 1 not as expected, 2 something of --fail-on, 3 not possible.
    """
    try:
        made = probe.from_toml(plan) if plan else probe.Plan(target=_target(target))
        aim = {"server": server, "directory": directory, "start_within": start_within}
        made = _with_target(made, target if plan else None, server_option, env, aim)
        made = _with_request(made, get=get, post=post, data=data, header=header)
        made = dataclasses.replace(
            made,
            scenarios=_scenarios(made, scenario, after_chunks, after_seconds, linger),
            evidence=made.evidence
            + _evidence(checkpoints, effect_log, sql, endpoint, outlive_api)
            + _effects_of(sql_effects),
            effects=tuple(effect or ()) or made.effects,
            expect=expect or made.expect,
            fail_on=_failures(fail_on) or made.fail_on,
            patience=patience or made.patience,
            platform=made.platform or platform,
            nginx=made.nginx or nginx,
        )
        with interrupted.as_interrupt():
            _report(made, as_json=as_json, html=html)
    except (probe.PlanError, ValueError) as exc:
        _impossible(exc)


def _failures(words: str) -> tuple[probe.Failure, ...]:
    return tuple(probe.Failure(word.strip()) for word in words.split(",") if word.strip())


def _write(path: pathlib.Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise probe.PlanError(f"The report cannot be written to {path}: {exc}.") from exc


def _impossible(exc: Exception) -> NoReturn:
    typer.echo(f"outlive probe: {exc}", err=True)
    raise typer.Exit(reports.IMPOSSIBLE) from exc


def _target(target: Text) -> probe.Target:
    if target is None:
        raise probe.PlanError("Name a target: module:app, a URL, or --plan with a file.")
    return probe.Target(url=target) if "://" in target else probe.Target(app=target)


def _with_target(made: probe.Plan, target: Text, options: Many, env: Many, aim: dict[str, Any]) -> probe.Plan:
    changes = {name: value for name, value in aim.items() if value is not None}
    if target is not None:
        named = _target(target)
        changes |= {"app": named.app, "url": named.url}
    if options:
        changes["arguments"] = tuple(options)
    if env:
        pairs = dict(pair.partition("=")[::2] for pair in env)
        changes["environment"] = {**made.target.environment, **pairs}
    return dataclasses.replace(made, target=dataclasses.replace(made.target, **changes))


def _with_request(
    made: probe.Plan, *, get: str | None, post: str | None, data: str | None, header: list[str] | None
) -> probe.Plan:
    changes: dict[str, Any] = {}
    if get is not None or post is not None:
        changes = {"method": "GET", "path": get} if get is not None else {"method": "POST", "path": post}
    if data is not None:
        changes["body"] = data
    if header:
        changes["headers"] = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in header)}
    return dataclasses.replace(made, request=dataclasses.replace(made.request, **changes))


def _scenarios(
    made: probe.Plan, names: Many, chunks: int, seconds: float | None, linger: float
) -> tuple[probe.Scenario, ...]:
    if names is None and made.scenarios:
        return made.scenarios
    wanted = tuple(names or reports.DEFAULT)
    # Everything is compared with what an undisturbed client gets.
    wanted = wanted if "stay" in wanted else ("stay", *wanted)
    return probe.scenarios(wanted, chunks=chunks, seconds=seconds, linger=linger)


def _evidence(
    checkpoints: str | None, log: str | None, sql: str | None, endpoint: str | None, api: str | None
) -> tuple[probe.Source, ...]:
    found: list[probe.Source] = []
    if checkpoints is not None:
        database = checkpoints.startswith(("postgres://", "postgresql://")) or "=" in checkpoints
        kind, name = ("langgraph-postgres", "dsn") if database else ("langgraph-sqlite", "path")
        found.append(probe.Source(kind=kind, settings={name: checkpoints}))
    if log is not None:
        path, *columns = log.split(":")
        if len(columns) > 2 or not all(column.isdecimal() for column in columns):
            raise probe.PlanError(f"--effect-log is file[:column[:thread column]], not {log!r}.")
        numbers = dict(zip(("column", "thread_column"), map(int, columns), strict=False))
        found.append(probe.Source(kind="effect-log", settings={"path": path, **numbers}))
    if sql is not None:
        found.append(probe.Source(kind="sql", settings=_query(sql)))
    if endpoint is not None:
        found.append(probe.Source(kind="http", settings={"url": endpoint}))
    if api is not None:
        found.append(probe.Source(kind="outlive", settings={"url": api}))
    return tuple(found)


def _effects_of(sql: Text) -> tuple[probe.Source, ...]:
    return () if sql is None else (probe.Source(kind="sql", settings={**_query(sql), "effects": True}),)


def _query(text: str) -> dict[str, str]:
    database, separated, query = text.partition("::")
    if not separated or not query.strip():
        raise probe.PlanError(f"A query is 'database::SELECT ...', not {text!r}.")
    return {"database": database, "query": query}


def _report(made: probe.Plan, *, as_json: bool, html: pathlib.Path | None) -> None:
    console = Console(stderr=True)
    with console.status("starting", spinner="dots") as status:
        report = probe.run(made, lambda name: status.update(f"playing {name}"))
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2, default=str))
    else:
        wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
        probe.show(report, Console(width=wide))
    if html is not None:
        _write(html, probe.render(report))
    raise typer.Exit(report.exit_code(made))
