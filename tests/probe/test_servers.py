"""The same service under the servers that people deploy, and what each platform does by itself."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping

import pytest

from outlive import probe
from outlive.probe import nginx
from probe import plans

Played = Callable[[str], probe.Report]


def _under(server: probe.Server) -> Callable[[pathlib.Path], probe.Plan]:
    return lambda _: plans.counting("/counted", "stay", "leave", server=server, quiet=0.4)


PLANS: Mapping[str, Callable[[pathlib.Path], probe.Plan]] = {
    "plain": lambda _: plans.counting("/plain", "stay", "leave-early", platform=True, quiet=0.4, grace=1.0),
    "granian": _under(probe.Server.GRANIAN),
    "hypercorn": _under(probe.Server.HYPERCORN),
    "gunicorn": _under(probe.Server.GUNICORN),
    **({"nginx": lambda _: plans.counting("/counted", "stay", nginx=True)} if nginx.binary() else {}),
}
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    ("server", "spec", "outcome"),
    [
        (probe.Server.GRANIAN, "2.3", "stops"),
        (probe.Server.HYPERCORN, "2.1", "stops"),
        # Its own grace of three seconds is longer than what was left of the stream.
        (probe.Server.GUNICORN, "2.4", "completes"),
    ],
)
def test_each_server_announces_its_spec_and_decides_what_leaving_means(
    played: Played, server: probe.Server, spec: str, outcome: str
) -> None:
    report = played(server.value).as_json()
    assert report["asgi"]["spec_version"] == spec
    assert report["outcome"] == outcome


def test_the_platform_is_told_apart_from_the_handler(played: Played) -> None:
    facts = played("plain").as_json()["platform"]
    stream = facts["stream"]
    assert stream["exception"] == "CancelledError"
    assert stream["steps_after_close"] == 0
    assert stream["finally_await_finished"] is False
    assert stream["background_task_ran"] is True
    assert facts["is_disconnected"]["alone"].startswith("True ")
    assert facts["is_disconnected"]["behind_middleware"] == "never True"
    assert facts["is_disconnected"]["watched"].startswith("5 of 5")
    assert facts["yield_dependency"].startswith("left cleanly")
    assert facts["sigterm"]["exits"] == "not within 1 s"  # it waits for the open stream
    assert facts["sigterm"]["exception"] is None


def test_an_endpoint_that_does_not_stream_runs_to_its_end_for_nobody(played: Played) -> None:
    stayed, left = played("plain").as_json()["scenarios"]
    assert (stayed["outcome"], left["outcome"]) == (None, "completes")


@pytest.mark.skipif(nginx.binary() is None, reason=nginx.ABSENT)
def test_a_proxy_that_ignores_aborts_delays_the_cancellation(played: Played) -> None:
    behind = played("nginx").as_json()["behind_nginx"]
    for told in behind.values():
        assert told["defaults"]["steps_after_close"] == 0
        assert told["proxy_ignore_client_abort on"]["steps_after_close"] >= 1


def test_without_nginx_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLIVE_PROBE_NGINX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(nginx, "USUAL", "/nowhere")
    assert nginx.binary() is None
    with (
        pytest.raises(probe.PlanError, match="nginx is not installed"),
        nginx.proxy("http://127.0.0.1:1", ""),
    ):
        pass


def test_an_application_that_cannot_be_imported_is_an_error_with_the_servers_words() -> None:
    plan = probe.Plan(target=probe.Target(app="nowhere:app", directory=plans.SERVICES))
    with pytest.raises(probe.PlanError, match="No module named 'nowhere'"):
        probe.run(plan)
