"""Writes `grafana-dashboard.json`: ``python ops/dashboard.py``.  A test holds it current."""

from __future__ import annotations

import json
import pathlib
from typing import Any, NamedTuple

PATH = pathlib.Path(__file__).parent / "grafana-dashboard.json"
WIDTH, HEIGHT, PER_ROW = 8, 7, 3


class Panel(NamedTuple):
    """One chart: its title, its unit for Grafana, and its queries by legend."""

    title: str
    unit: str
    queries: dict[str, str]


def _quantiles(name: str, by: str = "") -> dict[str, str]:
    inner = f"sum by (le{', ' + by if by else ''}) (rate({name}_bucket[5m]))"
    shown = f" {{{{{by}}}}}" if by else ""
    return {f"p{part}{shown}": f"histogram_quantile(0.{part}, {inner})" for part in ("50", "99")}


PANELS = (
    Panel(
        "Runs that end",
        "ops",
        {"{{state}} {{reason}}": "sum by (state, reason) (rate(outlive_runs_ended_total[5m]))"},
    ),
    Panel("Runs there are", "short", {"{{state}} {{agent}}": "max by (state, agent) (outlive_runs)"}),
    Panel("Age of the queue", "s", {"{{agent}}": "max by (agent) (outlive_queue_age_seconds)"}),
    Panel(
        "Submitted and claimed",
        "ops",
        {
            "submitted {{agent}}": "sum by (agent) (rate(outlive_runs_submitted_total[5m]))",
            "claimed": "sum(rate(outlive_runs_claimed_total[5m]))",
        },
    ),
    Panel("Slots", "short", {"{{kind}}": "sum by (kind) (outlive_slots)"}),
    Panel("Viewers", "short", {"{{instance}}": "outlive_subscribers"}),
    Panel("From commit to viewer", "s", _quantiles("outlive_event_lag_seconds")),
    Panel("From an agent's end to its verdict", "s", _quantiles("outlive_finalisation_seconds")),
    Panel("From a run's end to its notification", "s", _quantiles("outlive_notification_seconds")),
    Panel(
        "Slots of schedules",
        "ops",
        {
            "fired": "sum(rate(outlive_schedule_slots_fired_total[5m]))",
            "skipped: {{reason}}": "sum by (reason) (rate(outlive_schedule_slots_skipped_total[5m]))",
        },
    ),
    Panel("From a slot to its run", "s", _quantiles("outlive_schedule_seconds")),
    Panel("Executors lost", "ops", {"by {{by}}": "sum by (by) (rate(outlive_leases_expired_total[5m]))"}),
    Panel(
        "Stale writes refused",
        "ops",
        {"{{write}}": "sum by (write) (rate(outlive_stale_writes_refused_total[5m]))"},
    ),
    Panel(
        "What could not be stored",
        "ops",
        {
            "events": "sum(rate(outlive_recordings_failed_total[5m]))",
            "verdicts": "sum(rate(outlive_finalisations_failed_total[5m]))",
            "repeated {{script}}": "sum by (script) (rate(outlive_store_retries_total[5m]))",
        },
    ),
    Panel("Lag of the event loop", "s", {"{{instance}}": "outlive_loop_lag_seconds"}),
    Panel(
        "Who blocks the loop",
        "s",
        {"{{node}}": "sum by (node) (increase(outlive_loop_stall_seconds_sum[15m]))"},
    ),
    Panel(
        "Unknown and torn",
        "short",
        {"effects": "max(outlive_effects_unknown)", "threads": "max(outlive_threads_torn)"},
    ),
    Panel(
        "Notifications",
        "short",
        {
            "pending": "max(outlive_notifications_pending)",
            "failed tries": "sum(increase(outlive_notification_tries_failed_total[5m]))",
            "dead": "sum(increase(outlive_notifications_dead_total[5m]))",
        },
    ),
    Panel(
        "Worked after the last viewer, last hour",
        "s",
        {"{{agent}}": "max by (agent) (outlive_unwatched_seconds)"},
    ),
    Panel(
        "Thrown away by stops, last hour",
        "s",
        {"{{agent}} {{reason}}": "max by (agent, reason) (outlive_thrown_away_seconds)"},
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "Outlive",
        "uid": "outlive",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, PER_ROW)
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": source}
        for place, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
