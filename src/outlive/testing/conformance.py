"""Whether a store keeps the promises that the rest of Outlive is built on.

Decides how the checks are run and reported; the checks themselves are in ``store_checks``.  Run them all over
a store of your own::

    report = await check_store(factory)
    report.raise_for_failures()

or one by one from pytest::

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=str)
    async def test_my_store(check: conformance.Check, one: Store, two: Store) -> None:
        (await conformance.run_check(check, one, two)).raise_for_failure()

``factory()`` is an async context manager that gives an open store.  Two stores given by one factory must use
one and the same database, as two processes would.  Each check makes names of its own and minds only its own
runs, so all of them may share a database.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from outlive.store import Store
from outlive.testing import store_checks
from outlive.testing.store_checks.bench import Backdoor, Bench, Factory, Skip
from outlive.testing.store_checks.bench import Check as Check

CHECKS: tuple[Check, ...] = tuple(store_checks.CHECKS)
"""Every check, in the order of a run's path."""


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One check's outcome.  ``message`` says why it failed or was skipped."""

    check: Check
    outcome: Outcome
    message: str = ""
    error: BaseException | None = None

    def raise_for_failure(self) -> None:
        """Raise ``AssertionError``, with the promise that was broken, if the check failed."""
        if self.outcome is Outcome.FAILED:
            raise AssertionError(f"{self.check.name}: {self.check.sentence}\n{self.message}") from self.error


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What all checks came to.  Its text is for people; ``failed`` is for programs."""

    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
        """The broken promises."""
        return tuple(result for result in self.results if result.outcome is Outcome.FAILED)

    @property
    def skipped(self) -> tuple[Result, ...]:
        """The checks that could not be made."""
        return tuple(result for result in self.results if result.outcome is Outcome.SKIPPED)

    def raise_for_failures(self) -> None:
        """Raise ``AssertionError`` with the whole report if a promise is broken."""
        if self.failed:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        lines = [f"{len(self.results)} checks, {len(self.failed)} failed, {len(self.skipped)} skipped"]
        for result in (*self.failed, *self.skipped):
            lines.append(f"{result.outcome.upper()} {result.check.name}: {result.check.sentence}")
            lines.extend(f"    {line}" for line in result.message.splitlines())
        return "\n".join(lines)


async def check_store(
    factory: Factory, *, backdoor: Backdoor | None = None, checks: Sequence[Check] = CHECKS
) -> Report:
    """Run ``checks`` over two stores of one database and report on each.

    ``backdoor`` runs one SQL text behind the stores' backs; without it the checks that need a row which no
    move makes are skipped.  A store that cannot even be opened raises.
    """
    async with factory() as one, factory() as two:
        results = [await run_check(check, one, two, backdoor=backdoor) for check in checks]
    return Report(results=tuple(results))


async def run_check(check: Check, one: Store, two: Store, *, backdoor: Backdoor | None = None) -> Result:
    """Run one check over two open stores of one database."""
    try:
        await check.run(Bench(one=one, two=two, backdoor=backdoor))
    except Skip as skipped:
        return Result(check=check, outcome=Outcome.SKIPPED, message=str(skipped))
    except Exception as failure:
        message = "".join(traceback.format_exception(failure))
        return Result(check=check, outcome=Outcome.FAILED, message=message, error=failure)
    return Result(check=check, outcome=Outcome.PASSED)
