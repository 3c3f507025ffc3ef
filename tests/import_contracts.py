"""Import contracts that may name a module before it exists.

The rules hold from the first commit on; a rule that is added only once its module exists is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from grimp import ImportGraph
from importlinter import ContractCheck
from importlinter.contracts import forbidden, protected
from importlinter.domain.imports import ModuleExpression


class Forbidden(forbidden.ForbiddenContract):
    """`forbidden`, over those of the named modules that exist."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        for field in ("source_modules", "forbidden_modules"):
            setattr(self, field, set(_present(getattr(self, field), graph)))
        return super().check(graph, verbose)


class Protected(protected.ProtectedContract):
    """`protected`, over those of the named modules that exist."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        for field in ("protected_modules", "allowed_importers"):
            setattr(self, field, _present(getattr(self, field), graph))
        return super().check(graph, verbose)


def _present(names: Iterable[ModuleExpression], graph: ImportGraph) -> list[ModuleExpression]:
    return [name for name in names if name.has_wildcard_expression() or str(name) in graph.modules]
