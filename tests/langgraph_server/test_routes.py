"""The page of the SDK's methods is what a real service does, method by method."""

from __future__ import annotations

from langgraph_server import routes
from langgraph_server.conftest import Service


def test_every_method_of_the_sdk_has_a_row() -> None:
    assert routes.methods() == sorted({**routes.ROWS, **routes.ELSEWHERE})


async def test_the_page_is_what_every_method_comes_to(service: Service) -> None:
    found = await routes.page(service.url, service.tenant)
    assert found == routes.PAGE.read_text("utf-8"), "run python -m langgraph_server.routes"
