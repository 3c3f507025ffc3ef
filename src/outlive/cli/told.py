"""``outlive webhooks``: list, show and resend what was told of runs' ends; secrets for who verifies it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from outlive import errors, notifications, outbox, settings
from outlive.cli import options, runs
from outlive.notifications import Audience, Delivery, Notification
from outlive.store import Store

app = typer.Typer(help="Look at what was told of runs' ends, and have it sent again.", no_args_is_help=True)
NotificationId = Annotated[str, typer.Argument(help="The notification's id.")]
STYLE = {Delivery.PENDING: "yellow", Delivery.DELIVERED: "green", Delivery.DEAD: "bold red"}


def webhooks(chosen: settings.Settings) -> notifications.Webhooks | None:
    """Return what the settings say of webhooks; None without a secret.  Raises ``Misconfigured``."""
    secrets = tuple(secret.get_secret_value() for secret in chosen.webhook_secrets)
    if not secrets:
        if chosen.webhook_url or chosen.agent_webhooks:
            raise errors.Misconfigured(
                "Somebody is to be told of runs' ends, and nothing signs it: webhook_secrets is empty.",
                hint="Make one: outlive webhooks new-secret",
            )
        return None
    return notifications.Webhooks(
        secrets=secrets,
        url=chosen.webhook_url,
        agents=chosen.agent_webhooks,
        public_url=chosen.public_url,
        result_bytes=chosen.webhook_result_bytes,
        networks=chosen.webhook_networks,
        timeout=chosen.webhook_timeout,
        tries=chosen.webhook_tries,
        max_age=chosen.webhook_max_age,
        retention=chosen.webhook_retention,
    )


@app.command("list")
def list_(
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 50,
    state: Annotated[Delivery | None, typer.Option(help="Only those; dead: the dead letters.")] = None,
    run: Annotated[str | None, typer.Option(help="Only those of this run's end.")] = None,
    as_json: options.Json = False,
) -> None:
    """List notifications, newest first."""

    async def read(store: Store) -> list[Notification]:
        desk = outbox.Desk(store)
        if run is not None:
            return await desk.of_run(run, tenant=tenant, limit=limit, state=state)
        return await desk.newest(tenant=tenant, limit=limit, state=state)

    found = runs.with_store(database, read)
    if as_json:
        typer.echo(json.dumps([each.public() for each in found]))
        return
    table = Table(Column("notification", no_wrap=True, min_width=34), *_COLUMNS, box=None)
    for each in found:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(each.created_at))
        words = (each.kind, Text(each.state.value, STYLE[each.state]), str(each.attempts))
        table.add_row(each.notification_id, *words, Text(each.url), Text(each.error or ""), when)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


_COLUMNS = ("kind", "state", "tries", "receiver", "last error", "run ended")


@app.command()
def show(
    notification_id: NotificationId,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Show one notification: what it says, to whom, and what came of it."""

    async def read(store: Store) -> Notification:
        return await outbox.Desk(store).show(notification_id, tenant=tenant)

    _print(runs.with_store(database, read), as_json)


@app.command()
def resend(
    notification_id: NotificationId,
    *,
    database: options.Database = options.DEFAULT_DATABASE,
    tenant: options.Tenant = "",
    as_json: options.Json = False,
) -> None:
    """Have a notification sent again by the processes that serve: same id, same words.

    Its receiver is taken to be well again, and its address to be there, whatever was known of them.
    """

    async def again(store: Store) -> Notification:
        return await outbox.Desk(store).resend(notification_id, tenant=tenant)

    _print(runs.with_store(database, again), as_json)


@app.command("new-secret")
def new_secret() -> None:
    """Make a secret for the setting webhook_secrets and print it."""
    typer.echo(notifications.new_secret(os.urandom(32)))


@app.command()
@options.settable(())
def secret(
    loaded: settings.Loaded,
    *,
    tenant: options.Tenant = "",
    service: Annotated[bool, typer.Option("--service", help="For the receivers of the settings.")] = False,
    as_json: options.Json = False,
) -> None:
    """Print what a tenant's receivers verify with; several, while the service's secrets change.

    Each tenant has its own, so that none can forge what another is sent. Treat them like passwords.
    """
    hooks = webhooks(loaded.settings)
    if hooks is None:
        raise errors.Misconfigured("webhook_secrets is empty.", hint="Make one: outlive webhooks new-secret")
    found = hooks.secrets_of(tenant, Audience.SERVICE if service else Audience.TENANT)
    typer.echo(json.dumps(found) if as_json else "\n".join(found))


def _print(found: Notification, as_json: bool) -> None:
    shown = found.public()
    if as_json:
        typer.echo(json.dumps(shown))
        return
    table = Table(show_header=False)
    for name, value in shown.items():
        table.add_row(name, Text(value if isinstance(value, str) else json.dumps(value)))
    Console().print(table)
