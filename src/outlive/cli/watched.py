"""What a serving process lets its operator see: its log, and its metrics."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import typer

from outlive import errors, logs, runtime, settings


def log(chosen: settings.Settings) -> None:
    """Send the log to stderr as the settings say."""
    handler = logging.StreamHandler()
    handler.setFormatter(logs.Json() if chosen.log_format == "json" else logs.Text())
    logging.basicConfig(level=chosen.log_level.upper(), handlers=[handler])


@asynccontextmanager
async def metrics(outlive: runtime.Outlive, chosen: settings.Settings) -> AsyncIterator[None]:
    """Answer scrapes meanwhile, if a port is set."""
    if chosen.metrics_port is None:
        yield
        return
    try:
        module = importlib.import_module("outlive.metrics")
    except ModuleNotFoundError as missing:
        raise errors.Misconfigured(
            f"Metrics need {missing.name}, which is not installed.",
            hint="Run: pip install 'outlive[metrics]'",
        ) from missing
    async with module.Metrics(outlive).served(chosen.metrics_port, chosen.metrics_host) as port:
        host = f"[{chosen.metrics_host}]" if ":" in chosen.metrics_host else chosen.metrics_host
        typer.echo(f"metrics on http://{host}:{port}/metrics", err=True)
        yield
