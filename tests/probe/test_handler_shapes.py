"""The same agent behind three handlers: what a disconnect commits is decided by the handler's shape."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from xml.etree import ElementTree

import pytest

from outlive import probe
from outlive.testing import postgres
from probe import plans

Shapes = Callable[[str], probe.Report]
PLANS: Mapping[str, Callable[[pathlib.Path], probe.Plan]] = {
    "inline": lambda d: plans.booking(d, "inline", "stay", "leave", "return", quiet=0.4),
    "background": lambda d: plans.booking(d, "background", "stay", "leave", "return", quiet=0.4),
    "shielded": lambda d: plans.booking(d, "shielded", "stay", "leave"),
}
pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("on_postgres")]
ALL = ["plan", "charge", "notify", "finish"]


def test_an_inline_handler_stops_and_leaves_the_thread_torn(played: Shapes) -> None:
    report = played("inline").as_json()
    left = report["scenarios"][1]
    assert report["outcome"] == left["outcome"] == "stops"
    assert left["executed"] == {"plan": 1, "charge": 1}
    assert left["in_flight_when_cut"] == ["notify"]
    assert (left["recorded"]["position"], left["recorded"]["next"]) == ("torn", ["notify"])
    assert left["recorded"]["steps_on_head"] == ["plan", "charge"]
    assert left["effects"] == {"effect-log": {"plan": 1, "charge": 1}}


def test_a_user_who_returns_to_an_inline_handler_is_charged_again(played: Shapes) -> None:
    returned = played("inline").as_json()["scenarios"][2]
    assert returned["verdict"][0] == "A returning user repeats: charge."
    assert returned["failures"] == ["duplicate-effects"]
    assert returned["recorded"]["steps_on_head"] == ["plan", "charge", *ALL]


def test_a_detached_run_completes_for_nobody_and_repeats_nothing(played: Shapes) -> None:
    left, returned = played("background").as_json()["scenarios"][1:]
    assert left["outcome"] == returned["outcome"] == "completes"
    assert left["steps"]["after"] == {"notify": 1, "finish": 1}
    assert left["recorded"]["position"] == "finished"
    assert returned["failures"] == []


def test_a_shield_around_each_step_buys_one_step_and_leaks_the_run(played: Shapes) -> None:
    left = played("shielded").as_json()["scenarios"][1]
    assert left["outcome"] == "partial"
    assert left["steps"]["after"] == {"notify": 1}
    assert left["recorded"]["next"] == ["finish"]
    assert "leaks" in left["failures"]
    assert any("astream" in name for name in left["platform"]["generators_left"])


def test_the_report_says_what_uvicorn_and_the_frameworks_did(played: Shapes) -> None:
    report = played("inline").as_json()
    platform = report["scenarios"][1]["platform"]
    assert report["asgi"]["spec_version"] == "2.3"
    assert {"uvicorn", "starlette", "fastapi", "langgraph"} <= set(report["versions"])
    assert platform["exception"] == "CancelledError"
    assert platform["finally_finished"] is False
    assert platform["background_ran"] is True
    assert platform["dependencies"] == {"_session": None}
    assert platform["steps_after_close"] == 0


def test_the_client_sees_chunks_until_it_leaves(played: Shapes) -> None:
    stayed, left = played("inline").as_json()["scenarios"][:2]
    assert [json.loads(c.removeprefix("data: "))[0] for c in stayed["clients"][0]["chunks"]] == ALL
    assert stayed["clients"][0]["ended"] == "complete"
    assert len(left["clients"][0]["chunks"]) == 2
    assert left["clients"][0]["ended"] == "left by fin"


def test_the_page_stands_alone_and_its_pictures_are_well_formed(played: Shapes) -> None:
    page = probe.render(played("shielded"))
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http.disconnect", "")
    pictures = [part.split("</svg>")[0] for part in page.split("<svg")[1:]]
    assert len(pictures) == 4  # a timeline and a tree for each of two scenarios
    for picture in pictures:
        ElementTree.fromstring(f"<svg{picture}</svg>")
    assert "client leaves" in pictures[2]


@pytest.fixture(scope="module")
def on_postgres(
    postgres_server: postgres.PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[concurrent.futures.Future[probe.Report]]:
    """The inline handler on PostgreSQL, being played while the other tests of this module look at theirs."""
    dsn = postgres_server.create_database()
    directory = tmp_path_factory.mktemp("postgres")
    plan = plans.booking(directory, "inline", "stay", "return", database=dsn, quiet=0.4)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(probe.run, plan)
    postgres_server.drop_database(dsn)


def test_postgres_tells_the_same_as_sqlite(on_postgres: concurrent.futures.Future[probe.Report]) -> None:
    _, returned = on_postgres.result(timeout=150).as_json()["scenarios"]
    assert returned["outcome"] == "stops"
    assert returned["recorded_before_return"]["next"] == ["notify"]
    assert returned["recorded_before_return"]["steps_on_head"] == ["plan", "charge"]
    assert returned["repeated"] == ["charge"]
    assert returned["recorded"]["steps_on_head"] == ["plan", "charge", *ALL]
