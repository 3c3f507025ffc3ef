"""The graphs' long-term memory through the SDK and from inside graphs: one for each tenant."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph_sdk import errors as sdk_errors

import outlive
from langgraph_server import graphs
from langgraph_server.conftest import POLICY, Service, asked
from outlive.agents import items
from outlive.agents.langgraph import LangGraphAgent
from outlive.store import items as passing
from outlive.testing.asgi import WITHIN

WRONG: list[tuple[str, str, Any]] = [
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k"}),
    ("PUT", "/store/items", {"namespace": "a", "key": "k", "value": {}}),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "", "value": {}}),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": [1]}),
    ("PUT", "/store/items", {"namespace": [], "key": "k", "value": {}}),
    ("PUT", "/store/items", {"namespace": [""], "key": "k", "value": {}}),
    ("PUT", "/store/items", {"namespace": ["a.b"], "key": "k", "value": {}}),
    ("PUT", "/store/items", {"namespace": ["langgraph"], "key": "k", "value": {}}),
    ("PUT", "/store/items", {"namespace": ["a\x00"], "key": "k", "value": {}}),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k\x00", "value": {}}),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k" * 2000, "value": {}}),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {"a": "\x00"}}),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {}, "ttl": 0}),
    ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {}, "index": ["text"]}),
    ("DELETE", "/store/items", {"namespace": ["a"]}),
    ("GET", "/store/items?namespace=a", None),
    ("GET", "/store/items?namespace=a..b&key=k", None),
    ("GET", "/store/items?namespace=a&key=k&refresh_ttl=perhaps", None),
    ("POST", "/store/items/search", {"namespace_prefix": ["a"], "query": "what I like"}),
    ("POST", "/store/items/search", {"limit": 0}),
    ("POST", "/store/items/search", {"filter": {"a'": 1}}),
    ("POST", "/store/items/search", {"filter": {"a.b": 1}}),
    ("POST", "/store/items/search", {"filter": {"a": {"$near": 1}}}),
    ("POST", "/store/namespaces", {"max_depth": 0}),
    ("POST", "/store/namespaces", {"prefix": ["a.b"]}),
    ("POST", "/store/items/search", []),
]


async def test_an_item_is_kept_read_replaced_searched_for_and_taken_away(service: Service) -> None:
    store = service.sdk.store
    await store.put_item(["docs", "mine"], key="one", value={"title": "One", "rank": 1})
    await store.put_item(["docs", "mine"], key="two", value={"title": "Two", "rank": 2})
    await store.put_item(["docs", "mine"], key="one", value={"title": "First", "rank": 3})
    found: Any = await store.get_item(["docs", "mine"], key="one")
    assert (found["namespace"], found["key"]) == (["docs", "mine"], "one")
    assert found["value"] == {"title": "First", "rank": 3}
    assert found["created_at"].endswith("+00:00")
    assert found["updated_at"].endswith("+00:00")
    assert await store.get_item(["docs"], key="one") is None
    by_rank = await store.search_items(["docs"], filter={"rank": {"$gt": 2}})
    assert [one["key"] for one in by_rank["items"]] == ["one"]
    by_title = await store.search_items(["docs"], filter={"title": "Two"})
    assert [one["key"] for one in by_title["items"]] == ["two"]
    pages = [await store.search_items(["docs"], limit=1, offset=place) for place in range(3)]
    assert sorted(one["key"] for page in pages for one in page["items"]) == ["one", "two"]
    await store.delete_item(["docs", "mine"], key="one")
    await store.delete_item(["docs", "mine"], key="one")
    assert await store.get_item(["docs", "mine"], key="one") is None


async def test_namespaces_are_found_by_how_they_begin_end_and_how_deep_they_are(service: Service) -> None:
    store = service.sdk.store
    for namespace in (["a"], ["a", "b"], ["a", "b", "c"], ["ab", "c"]):
        await store.put_item(namespace, key="k", value={})

    async def listed(**wanted: Any) -> list[list[str]]:
        return (await store.list_namespaces(**wanted))["namespaces"]

    assert await listed() == [["a"], ["a", "b"], ["a", "b", "c"], ["ab", "c"]]
    assert await listed(prefix=["a"]) == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert await listed(suffix=["c"]) == [["a", "b", "c"], ["ab", "c"]]
    assert await listed(suffix=["*", "c"]) == [["a", "b", "c"], ["ab", "c"]]
    assert await listed(prefix=["*", "b"]) == [["a", "b"], ["a", "b", "c"]]
    assert await listed(max_depth=1) == [["a"], ["ab"]]
    assert await listed(limit=2, offset=1) == [["a", "b"], ["a", "b", "c"]]
    # A wildcard stands for a label of the client's own, never for the one above them all.
    assert await listed(suffix=["*", "a"]) == []


async def test_a_graph_and_its_tenants_clients_share_one_memory_over_all_threads(service: Service) -> None:
    first: Any = await service.sdk.runs.wait(None, "memory", input={"user": "ada", "fact": "likes tea"})
    assert first["known"] == ["likes tea", "again likes tea"]
    kept = await service.sdk.store.get_item(["facts", "ada"], key="likes tea")
    assert kept["value"] == {"fact": "likes tea"}
    await service.sdk.store.put_item(["facts", "ada"], key="told", value={"fact": "told by a client"})
    second: Any = await service.sdk.runs.wait(None, "memory", input={"user": "ada", "fact": "hates tea"})
    assert second["known"][:3] == ["hates tea", "likes tea", "told by a client"]


async def test_a_stranger_neither_sees_changes_nor_names_what_is_another_tenants(
    service: Service, stranger: Service
) -> None:
    await service.sdk.runs.wait(None, "memory", input={"user": "ada", "fact": "a secret"})
    root = items.label(service.tenant)
    for namespace in (["facts", "ada"], [root, "facts", "ada"]):
        assert await stranger.sdk.store.get_item(namespace, key="a secret") is None
        await stranger.sdk.store.delete_item(namespace, key="a secret")
        assert (await stranger.sdk.store.search_items(namespace))["items"] == []
        found: Any = await stranger.sdk.store.list_namespaces(prefix=namespace)
        assert found["namespaces"] == []
    assert (await stranger.sdk.store.search_items([]))["items"] == []
    everywhere: Any = await stranger.sdk.store.list_namespaces()
    assert everywhere["namespaces"] == []
    theirs: Any = await stranger.sdk.runs.wait(None, "memory", input={"user": "ada", "fact": "other"})
    assert theirs["known"] == ["other", "again other"]
    mine: Any = await service.sdk.store.list_namespaces()
    assert mine["namespaces"] == [["facts", "ada"]]
    assert (await service.sdk.store.get_item(["facts", "ada"], key="a secret"))["value"] == {
        "fact": "a secret"
    }


def test_no_tenants_label_is_the_beginning_of_anothers() -> None:
    tenants = ["", "a", "ab", "a.b", "a-", "A", "*", "x" * 300, "x" * 301, "ä" * 512]
    labels = [items.label(tenant) for tenant in tenants]
    assert len(set(labels)) == len(labels)
    assert not any(a != b and a.startswith(b) for a in labels for b in labels)
    assert all("." not in label and len(label) < 300 for label in labels)


@pytest.mark.parametrize(("method", "path", "sent"), WRONG)
async def test_what_cannot_be_kept_or_asked_is_refused_with_a_reason(
    service: Service, method: str, path: str, sent: Any
) -> None:
    answer = await service.http.request(method, path, json=sent)
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]


async def test_a_search_by_meaning_is_refused_through_the_sdk(service: Service) -> None:
    with pytest.raises(sdk_errors.UnprocessableEntityError, match="meaning"):
        await service.sdk.store.search_items(["a"], query="what I like")


async def test_the_six_characters_that_stand_for_a_nul_in_json_are_kept(service: Service) -> None:
    value = {"text": "\\u0000", "large": 2**53 + 1, "none": None, "ü": [1.5, True]}
    await service.sdk.store.put_item(["a"], key="k", value=value)
    assert (await service.sdk.store.get_item(["a"], key="k"))["value"] == value


async def test_items_that_two_write_at_once_are_both_kept(service: Service) -> None:
    keys = [f"k{number}" for number in range(20)]
    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(service.sdk.store.put_item(["many"], key=key, value={"key": key}))
    found = await service.sdk.store.search_items(["many"], limit=100)
    assert sorted(one["key"] for one in found["items"]) == sorted(keys)


async def _age(service: Service, key: str) -> None:
    """Have an item's time be over, as the database counts."""
    url = service.outlive._database
    before = "datetime('now', '-1 minute')" if url.startswith("sqlite") else "now() - interval '1 minute'"
    await asked(url, f"UPDATE store SET expires_at = {before} WHERE key = '{key}'")


async def test_an_item_whose_time_has_passed_is_taken_away_unless_it_was_read_with_that_word(
    service: Service,
) -> None:
    store = service.sdk.store
    for key in ("passing", "refreshed", "looked-at"):
        await store.put_item(["brief"], key=key, value={}, ttl=5)
    await store.put_item(["brief"], key="staying", value={})
    for key in ("passing", "refreshed", "looked-at"):
        await _age(service, key)
    assert await store.get_item(["brief"], key="refreshed", refresh_ttl=True)
    assert await store.get_item(["brief"], key="looked-at")
    assert await service.outlive.store.write(passing.drop_passed()) == 2
    left = await store.search_items(["brief"])
    assert sorted(one["key"] for one in left["items"]) == ["refreshed", "staying"]


async def test_a_graph_with_a_store_of_its_own_keeps_it(database: str) -> None:
    own = InMemoryStore()
    graph = graphs.memory()
    graph.store = own
    agent = LangGraphAgent("memory", graph, policy=POLICY)
    async with outlive.Outlive(database, [agent]) as served:
        made = await served.submit("memory", {"user": "ada", "fact": "kept"}, tenant="t")
        await served.result(made.run.run_id, tenant="t")
        assert [one.key for one in await own.asearch(("facts", "ada"))] == ["kept"]
        assert await agent.items("t").asearch(("facts", "ada")) == []


async def test_items_live_as_long_as_a_langgraph_json_says(database: str) -> None:
    lives: Any = {"default_ttl": 5, "refresh_on_read": True}
    agent = LangGraphAgent("memory", graphs.memory(), policy=POLICY, store_ttl=lives)
    async with outlive.Outlive(database, [agent]) as served:
        mine = agent.items("t")
        await mine.aput(("a",), "passes", {})
        await mine.aput(("a",), "stays", {}, ttl=None)
        told: dict[str, Any] = dict(await asked(database, "SELECT key, ttl_minutes FROM store"))
        assert told == {"passes": 5, "stays": None}
        assert await mine.aget(("a",), "passes") is not None
        assert await served.store.write(passing.drop_passed()) == 0


async def test_a_call_that_would_block_the_event_loop_is_refused(database: str) -> None:
    agent = LangGraphAgent("memory", graphs.memory(), policy=POLICY)
    with pytest.raises(outlive.errors.NotReady):
        agent.items("t")
    async with outlive.Outlive(database, [agent]):
        with pytest.raises(outlive.errors.Misconfigured):
            agent.items("t").get(("a",), "k")


LABELS = ("a", "ab", "A", "b", "ü")


def _namespace(chance: random.Random, least: int = 1) -> tuple[str, ...]:
    return tuple(chance.choice(LABELS) for _ in range(chance.randint(least, 3)))


async def _step(chance: random.Random, mine: BaseStore, reference: InMemoryStore) -> None:
    """One thing that may be done or asked, done to both; they answer alike."""
    namespace, key = _namespace(chance), chance.choice("xy")
    stores: tuple[BaseStore, ...] = (mine, reference)
    match chance.choice(("put", "delete", "get", "search", "namespaces")):
        case "put":
            value = {"n": chance.randint(0, 2)}
            for store in stores:
                await store.aput(namespace, key, value)
        case "delete":
            for store in stores:
                await store.adelete(namespace, key)
        case "get":
            one, other = [await store.aget(namespace, key) for store in stores]
            assert (one and (one.namespace, one.value)) == (other and (other.namespace, other.value))
        case "search":
            below, sought = _namespace(chance, 0), chance.choice((None, {"n": 1}))
            asked = [await store.asearch(below, filter=sought, limit=100) for store in stores]
            assert len({tuple(sorted((item.namespace, item.key) for item in found)) for found in asked}) == 1
        case _:
            wanted: Any = {
                "prefix": chance.choice((None, _namespace(chance), ("*", chance.choice(LABELS)))),
                "suffix": chance.choice((None, _namespace(chance), ("*", chance.choice(LABELS)))),
                "max_depth": chance.choice((None, 1, 2)),
            }
            for emptied in [name for name, held in reference._data.items() if not held]:
                del reference._data[emptied]  # which it goes on listing
            listed = [await store.alist_namespaces(limit=100, **wanted) for store in stores]
            assert sorted(listed[0]) == sorted(listed[1]), wanted


@pytest.mark.parametrize("seed", range(4))
async def test_each_tenant_has_a_store_that_behaves_as_if_it_were_the_only_one(
    service: Service, seed: int
) -> None:
    chance = random.Random(seed)
    agent: Any = service.outlive.registry["memory"]
    tenants = [f"{service.tenant}{more}" for more in ("", ".a", "a", "*")]
    pairs = [(agent.items(tenant), InMemoryStore()) for tenant in tenants]
    for _ in range(200):
        await _step(chance, *chance.choice(pairs))
