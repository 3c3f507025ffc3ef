"""The files of runs over HTTP: fetched whole or in part, and never a page of ours."""

from __future__ import annotations

import asyncio
import pathlib
import shutil

import httpx
import keyed_service
import native_service
import pytest


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of a service."""
    return tmp_path / "artifacts"


async def made(client: httpx.AsyncClient) -> str:
    """A run that has written its file."""
    run: str = (await client.post("/runs", json={"agent": "writing"})).json()["run_id"]
    await client.get(f"/runs/{run}/events", headers=native_service.STREAM)
    return run


async def test_a_file_is_listed_fetched_and_harmless(database: str, root: pathlib.Path) -> None:
    async with keyed_service.serving(database, artifacts=root) as keyed:
        key = await keyed.key("ann")
        async with keyed.client(key.text) as client:
            run = await made(client)
            listed = (await client.get(f"/runs/{run}/artifacts")).json()
            assert listed == {"run_id": run, "artifacts": [{"name": "made.html", "size": 25}]}
            answer = await client.get(f"/runs/{run}/artifacts/made.html")
            assert answer.text == "<script>alert(1)</script>"
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["content-disposition"] == 'attachment; filename="made.html"'
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"].startswith("sandbox")
            assert answer.headers["content-length"] == "25"
            part = await client.get(f"/runs/{run}/artifacts/made.html", headers={"Range": "bytes=1-6"})
            assert (part.status_code, part.text) == (206, "script")
            head = await client.head(f"/runs/{run}/artifacts/made.html")
            assert (head.status_code, head.headers["content-length"], head.content) == (200, "25", b"")


@pytest.mark.parametrize("name", ["other", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "made.html%0a"])
async def test_what_was_not_linked_is_not_there(database: str, root: pathlib.Path, name: str) -> None:
    async with keyed_service.serving(database, artifacts=root) as keyed:
        key = await keyed.key("ann")
        async with keyed.client(key.text) as client:
            run = await made(client)
            answer = await client.get(f"{keyed.url}/runs/{run}/artifacts/{name}")
            assert answer.status_code == 404
            assert "passwd" not in answer.text or name in str(answer.request.url)


async def test_a_process_that_lacks_the_files_says_what_is_wrong(database: str, root: pathlib.Path) -> None:
    async with keyed_service.serving(database, artifacts=root) as keyed:
        key = await keyed.key("ann")
        async with keyed.client(key.text) as client:
            run = await made(client)
            await asyncio.to_thread(shutil.rmtree, root)
            found = native_service.refused(
                await client.get(f"/runs/{run}/artifacts/made.html"), 404, "not_found"
            )
            assert "same artifacts directory" in found["hint"]
            assert str(root) not in str(found)
