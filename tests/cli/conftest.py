"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli import support
from outlive.cli import ending


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> support.Here:
    """Runs commands in this process, where what they serve can be imported."""
    monkeypatch.setattr(ending, "Ending", support.NoEnd)
    monkeypatch.syspath_prepend(support.HERE)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("OUTLIVE_DATABASE", raising=False)
    return support.Here(monkeypatch, capsys)


@pytest.fixture
def gate() -> Iterator[support.Gate]:
    """A gate, closed at the end."""
    made = support.Gate()
    yield made
    made.close()
