"""The figures, what is asked of them, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A bound on a figure."""

    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether a figure keeps it."""
        return value >= self.bound if self.at_least else value <= self.bound

    def missed_by(self, value: float) -> float:
        """By what part of the bound a figure misses it."""
        return abs(value - self.bound) / self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:,g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure; without a target it is only told."""

    name: str
    value: float
    unit: str
    target: Target | None = None
    why: str = ""
    """Where the time goes, as measured: told if the target is missed."""

    @property
    def met(self) -> bool | None:
        """Whether it keeps its target; None if there is none."""
        return None if self.target is None else self.target.met(self.value)

    def document(self) -> dict[str, Any]:
        """What is written about it."""
        return {
            "name": self.name,
            "value": float(f"{self.value:.4g}"),
            "unit": self.unit,
            "target": None if self.target is None else str(self.target),
            "met": self.met,
        }


@dataclass(kw_only=True, slots=True)
class Report:
    """Everything that a run of the benchmark found."""

    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def add(
        self, name: str, value: float, unit: str, target: Target | None = None, *, why: str = ""
    ) -> Figure:
        """Keep a figure."""
        figure = Figure(name=name, value=value, unit=unit, target=target, why=why)
        self.figures.append(figure)
        return figure

    @property
    def missed(self) -> list[Figure]:
        """The figures that do not keep their target."""
        return [figure for figure in self.figures if figure.met is False]

    def show(self, console: Console) -> None:
        """Print the tables, the figures with targets, what was missed, and why."""
        for table in self.tables:
            console.print(table)
        console.print(_targets([figure for figure in self.figures if figure.target is not None]))
        for figure in self.missed:
            assert figure.target is not None
            console.print(
                f"[red]missed[/] {figure.name}: {_number(figure.value)} {figure.unit}, "
                f"{figure.target.missed_by(figure.value):.0%} off {figure.target}. {figure.why}",
                highlight=False,
            )

    def write(self, path: Path) -> None:
        """Write the figures as JSON."""
        path.parent.mkdir(exist_ok=True)
        text = ",\n  ".join(json.dumps(figure.document()) for figure in self.figures)
        path.write_text(f"[\n  {text}\n]\n", encoding="utf-8")


def _targets(figures: Sequence[Figure]) -> Table:
    table = Table(title="Targets", title_justify="left", expand=False)
    for column in ("figure", "value", "unit", "target", "ratio", "met"):
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right")
    for figure in figures:
        assert figure.target is not None
        table.add_row(
            figure.name,
            _number(figure.value),
            figure.unit,
            str(figure.target),
            f"{figure.value / figure.target.bound:.2f}",
            "[green]yes[/]" if figure.met else "[red]no[/]",
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
