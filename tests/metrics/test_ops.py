"""The dashboard and the alerts ask for what is exported, by labels that it has."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from outlive.metrics.definitions import METRICS

OPS = pathlib.Path(__file__).parents[2] / "ops"
LABELS = {name: {*metric.labels, "le", "instance"} for metric in METRICS for name in metric.exported}
_SELECTOR = re.compile(r"\b(outlive_\w+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\) \(([^()]*(?:\([^()]*\))?[^()]*)\)")


def problems(query: str) -> list[str]:
    """Names and labels of a query that nothing exports."""
    found: list[str] = []
    names = [name for name, _ in _SELECTOR.findall(query)]
    found += [name for name in names if name not in LABELS]
    for name, matchers in _SELECTOR.findall(query):
        asked = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
        found += [f"{name}{{{label}}}" for label in asked if label not in LABELS.get(name, set())]
    for labels, inner in _BY.findall(query):
        for name, _ in _SELECTOR.findall(inner):
            wanted = {label.strip() for label in labels.split(",")}
            found += [f"{name} by {label}" for label in sorted(wanted - LABELS.get(name, set()))]
    return found if names else [f"asks for nothing: {query}"]


def _dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OPS / "grafana-dashboard.json").read_text("utf-8"))
    return found


def _rules() -> list[dict[str, Any]]:
    yaml = importlib.import_module("yaml")  # it has no types
    groups = yaml.safe_load((OPS / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _module(path: pathlib.Path) -> Any:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _queries() -> Iterator[tuple[str, str]]:
    for rule in _rules():
        yield rule["expr"], rule["annotations"]["summary"].replace("$labels.", "")
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


@pytest.mark.parametrize(("query", "words"), list(_queries()))
def test_a_query_asks_for_what_is_exported(query: str, words: str) -> None:
    assert problems(query) == []
    shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", words))
    name = _SELECTOR.findall(query)[0][0]
    assert shown <= LABELS[name]
    kept = re.findall(r"by \(([^)]*)\)", query)
    assert not kept or shown <= {label.strip() for labels in kept for label in labels.split(",")}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("sum(outlive_nothing)", "outlive_nothing"),
        ("rate(outlive_runs_ended[5m])", "outlive_runs_ended"),
        ('outlive_slots{size="1"}', "outlive_slots{size}"),
        ("sum by (tenant) (rate(outlive_runs_ended_total[5m]))", "outlive_runs_ended_total by tenant"),
    ],
)
def test_a_query_that_asks_for_something_else_is_noticed(query: str, problem: str) -> None:
    assert problem in problems(query)


def test_the_dashboard_is_what_its_description_makes() -> None:
    assert (OPS / "grafana-dashboard.json").read_text("utf-8") == _module(OPS / "dashboard.py").text()


def test_the_page_of_metrics_is_what_the_definitions_say() -> None:
    docs = OPS.parent / "docs"
    assert (docs / "metrics.md").read_text("utf-8") == _module(docs / "generate.py").metrics_page()


def test_alerts_have_names_of_their_own_and_say_what_is_wrong() -> None:
    names = [rule["alert"] for rule in _rules()]
    assert len(names) == len(set(names))
    assert all(rule["labels"]["severity"] in ("page", "ticket") for rule in _rules())
