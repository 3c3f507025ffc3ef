"""What a serving process lets its operator see: its log, its traces, and its metrics."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import typer

from outlive import errors, logs, runtime, settings


def log(chosen: settings.Settings) -> None:
    """Send the log to stderr as the settings say."""
    handler = logging.StreamHandler()
    handler.setFormatter(logs.Json() if chosen.log_format == "json" else logs.Text())
    logging.basicConfig(level=chosen.log_level.upper(), handlers=[handler])


def traces(outlive: runtime.Outlive, chosen: settings.Settings) -> None:
    """Have it traced, if that is set; raises ``Misconfigured`` if nothing here records spans."""
    if chosen.traces == "off":
        return
    module = _import("traces")
    module.check_recorded()
    module.observe(outlive, messages=chosen.traces == "messages")


def _import(part: str) -> Any:
    try:
        return importlib.import_module(f"outlive.{part}")
    except ModuleNotFoundError as missing:
        raise errors.Misconfigured(
            f"{part.capitalize()} need {missing.name}, which is not installed.",
            hint=f"Run: pip install 'outlive[{part}]'",
        ) from missing


@asynccontextmanager
async def metrics(outlive: runtime.Outlive, chosen: settings.Settings) -> AsyncIterator[None]:
    """Answer scrapes meanwhile, if a port is set."""
    if chosen.metrics_port is None:
        yield
        return
    module = _import("metrics")
    async with module.Metrics(outlive).served(chosen.metrics_port, chosen.metrics_host) as port:
        host = f"[{chosen.metrics_host}]" if ":" in chosen.metrics_host else chosen.metrics_host
        typer.echo(f"metrics on http://{host}:{port}/metrics", err=True)
        yield
