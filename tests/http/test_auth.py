"""Credentials: what holds, what does not, and what becomes of streams whose credentials are gone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import httpx
import hypothesis
import jwt
import keyed_service
import native_service
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import strategies as st
from keyed_service import Keyed

from outlive import errors, keys
from outlive.http import auth, tokens
from outlive.principal import Principal, Scope
from outlive.store.script import Steps, script, statement

STREAM = native_service.STREAM
SECRET = "a shared secret that is long enough for each of the algorithms here"
PINNED: dict[str, Any] = {"algorithms": ["HS256"], "issuer": "us", "audience": "outlive"}


@contextlib.asynccontextmanager
async def watching(client: httpx.AsyncClient) -> AsyncIterator[tuple[str, AsyncIterator[str]]]:
    """A run that is under way, and the lines of an open stream of it after the first chunk."""
    made = await client.post("/runs", json={"agent": "gated", "input": 1})
    assert made.status_code == 201, made.text
    run: str = made.json()["run_id"]
    async with (
        asyncio.timeout(native_service.WITHIN),
        client.stream("GET", f"/runs/{run}/events", headers=STREAM) as answer,
    ):
        lines = answer.aiter_lines()
        async for line in lines:
            if line.startswith("event: chunk"):
                break
        yield run, lines


async def last_words(lines: AsyncIterator[str]) -> list[str]:
    """What still comes, up to a proper end of the body."""
    return [line async for line in lines if line and not line.startswith((":", "data", "id"))]


# ------------------------------------------------------------ streams end with their credentials


@pytest.mark.invariant("I14")
async def test_revoking_a_key_ends_its_streams_and_no_others_and_stops_nothing(database: str) -> None:
    async with keyed_service.serving(database) as keyed:
        first, second = await keyed.key("ann"), await keyed.key("ann")
        async with (
            keyed.client(first.text) as one,
            keyed.client(second.text) as other,
            watching(one) as (run, ended),
            watching(other) as (_, living),
        ):
            await keyed.outlive.store.write(keys.revoke(first.key_id))
            assert await last_words(ended) == ["retry: 250"]
            refused = await one.get(f"/runs/{run}/events", headers=STREAM)
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
            assert f"The key olv_{first.key_id} was revoked." in refused.json()["title"]
            record = (await other.get(f"/runs/{run}")).json()
            assert (record["state"], record["stop_requested"]) == ("running", False)
            keyed.gate.set()
            assert (await last_words(living))[-1] == "event: end"


async def test_the_stream_of_a_POST_ends_with_its_key_too(database: str) -> None:
    async with keyed_service.serving(database) as keyed:
        key = await keyed.key("ann")
        body = {"agent": "gated", "input": 1}
        async with (
            keyed.client(key.text) as client,
            asyncio.timeout(native_service.WITHIN),
            client.stream("POST", "/runs", json=body, headers=STREAM) as answer,
        ):
            await keyed.outlive.store.write(keys.revoke(key.key_id))
            assert (await last_words(answer.aiter_lines()))[-1] == "retry: 250"


async def test_the_stream_of_a_thread_ends_with_its_key_too(database: str) -> None:
    async with keyed_service.serving(database) as keyed:
        key = await keyed.key("ann")
        async with keyed.client(key.text) as client, asyncio.timeout(native_service.WITHIN):
            await client.post("/runs", json={"agent": "gated", "input": 1, "thread": "t"})
            async with client.stream("GET", "/threads/t/events", headers=STREAM) as answer:
                assert answer.status_code == 200
                await keyed.outlive.store.write(keys.revoke(key.key_id))
                assert (await last_words(answer.aiter_lines()))[-1] == "retry: 250"


async def test_a_viewer_who_was_thrown_out_counts_as_gone(database: str) -> None:
    """A stream that we end keeps its run for half a minute, for whoever comes back; here nobody may."""
    async with keyed_service.serving(database) as keyed:
        key = await keyed.key("ann")
        async with keyed.client(key.text) as client, watching(client) as (run, lines):
            await keyed.outlive.store.write(keys.revoke(key.key_id))
            await last_words(lines)
        async with asyncio.timeout(native_service.WITHIN):
            while (left := await causes(keyed, run)) == [None]:
                pass  # it is written a moment after the stream has ended
        assert left == ["disconnect"]


@script(reads=True)
def viewers(run: str) -> Steps[list[str | None]]:
    """Why each viewer of a run left."""
    return [row["cause"] for row in (yield statement("viewers", run_id=run))]


async def causes(keyed: Keyed, run: str) -> list[str | None]:
    """The same, as the record has it now."""
    return await keyed.outlive.store.read(viewers(run))


async def test_a_stream_ends_when_its_key_expires(database: str) -> None:
    async with keyed_service.serving(database) as keyed:
        key = await keyed.key("ann", lifetime=1.5)
        async with keyed.client(key.text) as client, watching(client) as (run, lines):
            assert await last_words(lines) == ["retry: 250"]
            refused = await client.get(f"/runs/{run}")
        assert (refused.status_code, "has expired" in refused.json()["title"]) == (401, True)


async def test_a_stream_ends_when_its_token_expires(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LEEWAY", 0.0)
    principal = tokens.tokens(key=SECRET, **PINNED)
    async with keyed_service.serving(database, principal) as keyed:
        async with keyed.client(token(exp=time.time() + 2)) as client, watching(client) as (run, lines):
            assert await last_words(lines) == ["retry: 250"]
            refused = await client.get(f"/runs/{run}")
        assert (refused.status_code, refused.json()["title"]) == (401, "The token has expired.")


async def test_a_stream_ends_when_the_applications_own_check_fails_or_raises(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    for answer in (False, LookupError("the directory is gone")):
        allowed = asyncio.Event()

        async def still_valid(answer: Any = answer, allowed: asyncio.Event = allowed) -> bool:
            if not allowed.is_set():
                return True
            if isinstance(answer, Exception):
                raise answer
            return bool(answer)

        async def principal(check: Any = still_valid) -> Principal:
            return Principal(tenant="ann", id="ann", still_valid=check)

        async def named() -> Principal:
            return await principal()

        async with (
            keyed_service.serving(database, named) as keyed,
            keyed.client(None) as client,
            watching(client) as (_, lines),
        ):
            allowed.set()
            assert await last_words(lines) == ["retry: 250"]
        told = [record for record in caplog.records if "still_valid raised" in record.message]
        assert len(told) == isinstance(answer, Exception)


async def test_who_it_is_cannot_be_told_while_the_database_is_away(database: str) -> None:
    """That is no reason to call a key wrong: whoever sent it should try again."""
    async with keyed_service.serving(database) as keyed:
        key = await keyed.key("ann")
        read = keyed.outlive.store.read

        async def away(script: Any, **more: Any) -> Any:
            if script.name == "find":
                raise errors.StoreUnavailable
            return await read(script, **more)

        keyed.outlive.store.read = away  # type: ignore[method-assign]
        async with keyed.client(key.text) as client:
            answer = await client.get("/runs")
            native_service.refused(answer, 503, "store_unavailable")
            assert answer.headers["retry-after"] == "1"


async def test_a_database_that_is_away_throws_nobody_out() -> None:
    async def away() -> bool:
        raise errors.StoreUnavailable

    assert await auth._holds(Principal(tenant="t", id="i", still_valid=away))


# ------------------------------------------------------------ tokens


def token(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **changes: Any) -> str:
    """A token that holds, but for the changes; None takes a claim away."""
    claims = {
        "iss": "us",
        "aud": "outlive",
        "sub": "ann",
        "tenant": "acme",
        "exp": time.time() + 600,
    } | changes
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, key, algorithm, headers=None if kid is None else {"kid": kid})


def request(credentials: str | None) -> Any:
    """What a dependency gets of a request."""
    headers = [] if credentials is None else [(b"authorization", credentials.encode("latin-1"))]
    return fastapi.Request({"type": "http", "method": "GET", "headers": headers})


async def ask(dependency: auth.Dependency, text: str) -> Principal:
    """Let the dependency say who it is."""
    found: Principal = await dependency(request(f"Bearer {text}"))
    return found


async def test_a_token_says_who_it_is_and_what_it_may() -> None:
    dependency = tokens.tokens(key=SECRET, **PINNED)
    who = await ask(dependency, token())
    assert (who.tenant, who.id, sorted(who.scopes)) == ("acme", "ann", ["read", "write"])
    for scope, granted in (
        ("outlive:read openid", ["read"]),
        ("openid", []),
        ("", []),
        (["outlive:read"], []),
    ):
        assert sorted((await ask(dependency, token(scope=scope))).scopes) == granted
    other = tokens.tokens(key=SECRET, tenant_claim="org", **PINNED)
    assert (await ask(other, token(org="b", tenant=None))).tenant == "b"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"exp": time.time() - 60}, "has expired"),
        ({"nbf": time.time() + 86_400}, "does not hold"),
        ({"iss": "them"}, "issued by somebody else"),
        ({"aud": "others"}, "for somebody else"),
        ({"exp": None}, "lacks the claim exp"),
        ({"iss": None}, "lacks the claim iss"),
        ({"aud": None}, "lacks the claim aud"),
        ({"sub": None}, "lacks the claim sub"),
        ({"tenant": None}, "lacks the claim tenant"),
        ({"tenant": ""}, "is no name"),
        ({"tenant": ["a"]}, "is no name"),
        ({"sub": ""}, "is no name"),
        ({"key": "another secret that is long enough for each of the algorithms here"}, "does not hold"),
        ({"algorithm": "HS512"}, "not taken here"),
    ],
)
async def test_a_token_that_does_not_say_what_it_must_is_refused(changes: dict[str, Any], says: str) -> None:
    dependency = tokens.tokens(key=SECRET, **PINNED)
    with pytest.raises(errors.Unauthenticated, match=says):
        await ask(dependency, token(**changes))


async def test_an_unsigned_token_and_one_signed_with_the_public_key_are_refused() -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = private.public_key()
    dependency = tokens.tokens(key=pem(public), **PINNED | {"algorithms": ["RS256"]})
    assert (await ask(dependency, token(private, "RS256"))).id == "ann"
    with pytest.raises(errors.Unauthenticated):
        await ask(dependency, token("", "none"))
    forged = hmac_with(pem(public))
    with pytest.raises(errors.Unauthenticated, match="not taken here"):
        await ask(dependency, forged)


def hmac_with(secret: str) -> str:
    """A token signed with a public key as if it were a shared secret: the library refuses to make one."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    _, claims, _ = token().split(".")
    head = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    signed = hmac.new(secret.encode(), f"{head}.{claims}".encode(), hashlib.sha256).digest()
    return f"{head}.{claims}.{part(signed)}"


def pem(public: Any) -> str:
    """A public key as text."""
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return str(public.public_bytes(*form).decode())


def key_set(path: pathlib.Path, **private: ec.EllipticCurvePrivateKey) -> None:
    """Write the public parts of keys as a key set."""
    made = []
    for kid, key in private.items():
        public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        made.append({**public, "kid": kid, "alg": "ES256", "use": "sig"})
    path.write_text(json.dumps({"keys": made}))


async def test_a_key_set_is_read_again_and_a_key_that_left_it_holds_no_more(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "keys.json"
    key_set(path, old=old)
    dependency = await asyncio.to_thread(tokens.tokens, key_set=path, **PINNED | {"algorithms": ["ES256"]})
    who = await ask(dependency, token(old, "ES256"))  # the only key needs no name
    assert who.still_valid is not None
    assert await who.still_valid()
    key_set(path, new=new)
    with pytest.raises(errors.Unauthenticated, match="not known here"):
        await ask(dependency, token(new, "ES256", kid="new"))  # too soon after the last look
    monkeypatch.setattr(tokens, "READ_AGAIN", 0.0)
    assert (await ask(dependency, token(new, "ES256", kid="new"))).id == "ann"
    with pytest.raises(errors.Unauthenticated, match="not known here"):
        await ask(dependency, token(old, "ES256", kid="old"))
    assert not await who.still_valid()
    path.write_text("{")  # somebody is writing it
    assert (await ask(dependency, token(new, "ES256", kid="new"))).id == "ann"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": None}, "a key or a key set"),
        ({"key_set": pathlib.Path("x")}, "a key or a key set"),
        ({"algorithms": []}, "pinned algorithms"),
        ({"issuer": ""}, "an issuer"),
        ({"audience": ""}, "an audience"),
        ({"algorithms": ["none"]}, "no algorithm"),
        ({"algorithms": ["HS257"]}, "no algorithm"),
        ({"algorithms": ["HS256", "RS256"]}, "cannot be mixed"),
        ({"key": "short"}, "shorter than 32 bytes"),
        ({"key": "-----BEGIN PUBLIC KEY-----" + "x" * 40}, "is a public key"),
        ({"key": None, "key_set": pathlib.Path("nowhere.json")}, "cannot be used"),
    ],
)
def test_rules_that_would_let_anybody_in_are_refused_at_the_start(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.Misconfigured, match=says):
        tokens.tokens(**{"key": SECRET, **PINNED, **changes})


def deep(levels: int) -> str:
    """A token whose head nests as deeply as a header has room for."""
    return base64.urlsafe_b64encode(b'{"alg":' + b"[" * levels).decode().rstrip("=") + ".e30.e30"


@pytest.fixture(scope="module")
def either(tmp_path_factory: pytest.TempPathFactory) -> list[auth.Dependency]:
    """One dependency with a shared secret and one with a key set."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    key_set(path, one=ec.generate_private_key(ec.SECP256R1()))
    asymmetric = tokens.tokens(key_set=path, **PINNED | {"algorithms": ["ES256"]})
    return [tokens.tokens(key=SECRET, **PINNED), asymmetric]


@hypothesis.given(
    text=st.text(st.characters(max_codepoint=255), min_size=1)
    | st.lists(st.binary().map(lambda part: base64.urlsafe_b64encode(part).decode()), min_size=1).map(
        ".".join
    )
)
@hypothesis.example(deep(30_000))
@hypothesis.example("e30.e30.e30")
@hypothesis.example("bnVsbA.bnVsbA.")
async def test_whatever_a_stranger_sends_is_no_credentials(either: list[auth.Dependency], text: str) -> None:
    assert keys.id_of(text) is None
    for dependency in either:
        with pytest.raises(errors.Unauthenticated):
            await dependency(request("Bearer " + text))


@hypothesis.given(text=st.text(st.characters(max_codepoint=255)))
def test_whatever_a_host_is_called_it_is_here_or_not(text: str) -> None:
    assert auth._is_here(f"//{text}") in (True, False)


def test_a_scope_of_a_newer_version_grants_nothing() -> None:
    row = {"scopes": '["read", "rule"]', "holds": 1, "created_at": 1, "digest": "", "name": "", "tenant": "t"}
    times = dict.fromkeys(("expires_at", "last_used_at", "revoked_at"))
    assert keys.Key.from_row({"key_id": "k", **row, **times}).scopes == {Scope.READ}


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer  ", "Basic YTpi", "bearer", "x"])
async def test_what_is_no_bearer_is_no_credentials(given: str | None) -> None:
    with pytest.raises(errors.Unauthenticated, match="no credentials"):
        auth.bearer(request(given))


# ------------------------------------------------------------ nobody is authenticated


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("127.0.0.1:8000", None, True),
        ("localhost", "http://localhost:3000", True),
        ("[::1]:8000", "http://127.0.0.1", True),
        ("127.8.8.8", None, True),
        ("LOCALHOST:1", None, True),
        ("evil.example", None, False),
        ("localhost.evil.example", None, False),
        ("127.0.0.1.evil.example", None, False),
        ("127.0.0.1", "https://evil.example", False),
        ("127.0.0.1", "null", False),
        ("127.0.0.1", "http://localhost.evil.example", False),
        ("localhost@evil.example", None, False),
        ("", None, False),
        ("[::1", None, False),
        ("10.0.0.1", None, False),
    ],
)
async def test_where_nobody_is_authenticated_a_page_of_the_web_gets_nothing(
    host: str, origin: str | None, allowed: bool
) -> None:
    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    asking = fastapi.Request({"type": "http", "method": "POST", "headers": headers})
    if allowed:
        assert (await auth.this_machine(asking)).tenant == ""
    else:
        with pytest.raises(errors.Forbidden, match="only this machine"):
            await auth.this_machine(asking)


@pytest.mark.parametrize("found", [None, "", 1, Principal(tenant="", id="x"), object()])
def test_a_dependency_that_names_no_tenant_lets_nobody_in(found: object) -> None:
    with pytest.raises(errors.NoTenant):
        auth.read(found)


# ------------------------------------------------------------ keys


def test_a_key_can_be_told_from_anything_else_and_is_not_kept() -> None:
    minted = keys.mint()
    assert keys.id_of(minted.text) == minted.key_id
    assert minted.text not in minted.digest
    assert len({keys.mint().text for _ in range(100)}) == 100
    for wrong in (
        "",
        "olv",
        "olv_",
        f"olv_{minted.key_id}",
        f"{minted.text}x",
        minted.text.upper(),
        "olv_\xff_x",
    ):
        assert keys.id_of(wrong) is None


async def test_a_key_is_looked_up_once_however_often_it_is_used(database: str) -> None:
    async with keyed_service.serving(database) as keyed:
        key = await keyed.key("ann")
        known, reads = auth._Known(keyed.outlive), 0
        read = keyed.outlive.store.read

        async def counted(script: Any, **more: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(script, **more)

        keyed.outlive.store.read = counted  # type: ignore[method-assign]
        for _ in range(50):
            assert (await known.key(key.text)).key_id == key.key_id
        assert reads < 10
