"""An HTTP endpoint of the service (a thread's state, a health page) whose JSON is shown before and after."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping

from outlive.probe.evidence.found import Found
from outlive.probe.plan import PlanError

#: Seconds for an answer.
BUDGET = 10.0


class Endpoint:
    """`GET` of a URL in which `{thread}` is filled in; an answer that is no JSON is shown as text."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._headers = dict(headers or {})
        self._before: object = None

    def begin(self, thread: str) -> None:
        self._before = get(self._url.replace("{thread}", thread), self._headers)

    def read(self, thread: str) -> Found:
        after = get(self._url.replace("{thread}", thread), self._headers)
        return Found(source="http", facts={self._url: {"before": self._before, "after": after}})


def get(url: str, headers: Mapping[str, str]) -> dict[str, object]:
    """Status and body (its JSON, or its text), whatever the status. Raises `PlanError` without an answer."""
    if not url.startswith(("http://", "https://")):
        raise PlanError(f"{url!r} is no HTTP address.")
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=BUDGET) as response:
            return {"status": response.status, "body": _value(response.read())}
    except urllib.error.HTTPError as refusal:
        with refusal:
            return {"status": refusal.code, "body": _value(refusal.read())}
    except OSError as exc:
        raise PlanError(f"{url} does not answer: {exc}.") from exc


def _value(body: bytes) -> object:
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
