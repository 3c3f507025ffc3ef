"""API keys from the command line, and a server that takes them."""

from __future__ import annotations

import json
import pathlib
import sqlite3
import time

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from cli import support
from cli.test_serving import LISTENS, STREAM, Stream
from outlive import keys, settings


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in settings.Settings.model_fields:
        monkeypatch.delenv(f"OUTLIVE_{name.upper()}", raising=False)


def created(here: support.Here, database: str, *options: str) -> dict[str, object]:
    """Make a key, and return what the command said of it."""
    done = here("keys", "create", "-d", database, "--tenant", "acme", "--name", "ci", "--json", *options)
    assert done.code == 0, done
    said: dict[str, object] = json.loads(done.out)
    return said


def test_a_key_is_shown_once_and_kept_as_a_hash(here: support.Here, sqlite_path: pathlib.Path) -> None:
    database = f"sqlite:///{sqlite_path}"
    assert here("migrate", "-d", database).code == 0
    made = created(here, database)
    text = str(made.pop("key"))
    secret = text.rpartition("_")[2]
    listed = here("keys", "list", "-d", database, "--json")
    assert json.loads(listed.out) == [made]
    assert secret not in listed.out
    shown = here("keys", "list", "-d", database).out
    assert f"olv_{made['key_id']}" in shown
    assert secret not in shown
    with sqlite3.connect(sqlite_path) as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert secret not in dump
    assert keys.digest(text) in dump


def test_a_key_for_people_is_one_line_to_copy(here: support.Here, database: str) -> None:
    done = here("keys", "create", "-d", database, "--tenant", "acme", "--name", "a person's")
    assert keys.id_of(done.out.strip())
    assert len(done.out.splitlines()) == 1
    assert "shown once" in done.err


def test_a_key_may_be_for_reading_and_for_a_time(here: support.Here, database: str) -> None:
    made = created(here, database, "--scope", "read", "--days", "2")
    assert made["scopes"] == ["read"]
    lasts = float(str(made["expires_at"])) - float(str(made["created_at"]))
    assert lasts == pytest.approx(2 * 86400, abs=1)


def test_keys_are_listed_by_tenant_and_revoked_for_good(here: support.Here, database: str) -> None:
    made = created(here, database)
    assert json.loads(here("keys", "list", "-d", database, "--tenant", "other", "--json").out) == []
    for name in (f"olv_{made['key_id']}", str(made["key_id"]), str(made["key"])):  # as anybody may paste it
        done = here("keys", "revoke", name, "-d", database)
        assert (done.code, done.out) == (0, f"revoked: olv_{made['key_id']}\n")
    first = json.loads(here("keys", "revoke", str(made["key_id"]), "-d", database, "--json").out)
    assert first["revoked_at"] is not None
    assert not first["holds"]
    assert json.loads(here("keys", "list", "-d", database, "--json").out) == [first]
    assert "revoked" in here("keys", "list", "-d", database).out


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("revoke 0123456789ab", 4),
        ("create --tenant acme", 2),
        ("create --name x", 2),
        ("create --tenant= --name x", 2),
        ("create --tenant a\x01 --name x", 2),
        ("create --tenant a --name x --scope everything", 2),
        ("create --tenant a --name x --days 0", 2),
    ],
)
def test_wrong_use_of_keys_has_an_exit_code(here: support.Here, database: str, line: str, code: int) -> None:
    assert here("keys", *line.split(" "), "-d", database).code == code


def test_a_server_takes_keys_and_lets_go_of_who_loses_theirs(here: support.Here, database: str) -> None:
    made = created(here, database)
    serve = ("serve", "served:both", "-d", database, "--host", "0.0.0.0", "--port", "0", "--auth", "keys")
    with support.running(*serve) as process:
        url = process.says(LISTENS).replace("0.0.0.0", "127.0.0.1")
        bearer = {"Authorization": f"Bearer {made['key']}"}
        with httpx.Client(base_url=url, timeout=support.WITHIN) as http:
            assert http.post("/runs", json={"agent": "flood", "input": 1}).status_code == 401
            run = http.post("/runs", json={"agent": "flood", "input": 1}, headers=bearer).json()
            with http.stream("GET", f"/runs/{run['run_id']}/events", headers=bearer | STREAM) as response:
                stream = Stream(response)
                assert [event.kind for event in stream.next(2)] == ["attempt", "chunk"]
                assert here("keys", "revoke", str(made["key_id"]), "-d", database).code == 0
                assert stream.last_words()[-1] == "retry: 250"
            assert http.get("/runs", headers=bearer).status_code == 401
            assert http.get("/ready").status_code == 200


def test_a_server_without_authentication_answers_this_machine_only(here: support.Here, database: str) -> None:
    with (
        support.running("serve", "served:both", "-d", database, "--port", "0") as process,
        httpx.Client(base_url=process.says(LISTENS), timeout=support.WITHIN) as http,
    ):
        assert http.get("/runs").status_code == 200
        elsewhere = http.get("/runs", headers={"Host": "evil.example"})
        assert (elsewhere.status_code, elsewhere.json()["code"]) == (403, "forbidden")
        body = '{"agent": "flood", "input": 1}'
        page = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
        assert http.post("/runs", content=body, headers=page).status_code == 403
        assert http.get("/runs").json()["runs"] == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--auth jwt", "a key or a key set"),
        ("--auth jwt --jwt-key-set nowhere.json", "pinned algorithms"),
        (
            "--auth jwt --jwt-key-set nowhere.json --jwt-algorithms RS256 --jwt-issuer a --jwt-audience b",
            "nowhere.json cannot be used",
        ),
    ],
)
def test_tokens_without_rules_are_refused_before_anything_is_started(
    here: support.Here, sqlite_path: pathlib.Path, options: str, says: str
) -> None:
    done = here("serve", "served:gated", "-d", f"sqlite:///{sqlite_path}", "--port", "0", *options.split())
    assert done.code == 2
    assert says in done.err
    assert not sqlite_path.exists()


def test_a_server_takes_tokens_of_a_key_set_and_lets_go_when_it_changes(
    here: support.Here, database: str, tmp_path: pathlib.Path
) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    key_set = tmp_path / "keys.json"
    key_set.write_text(json.dumps({"keys": [{**public, "kid": "1", "alg": "ES256"}]}))
    claims = {"iss": "us", "aud": "outlive", "sub": "ann", "tenant": "acme", "exp": time.time() + 600}
    bearer = {"Authorization": f"Bearer {jwt.encode(claims, private, 'ES256', headers={'kid': '1'})}"}
    (tmp_path / "outlive.toml").write_text(
        f'database = "{database}"\nport = 0\nauth = "jwt"\njwt_key_set = "{key_set}"\n'
        'jwt_algorithms = ["ES256"]\njwt_issuer = "us"\njwt_audience = "outlive"\n'
    )
    with (
        support.running("serve", "served:both") as process,
        httpx.Client(base_url=process.says(LISTENS), timeout=support.WITHIN) as http,
    ):
        assert http.get("/runs").status_code == 401
        run = http.post("/runs", json={"agent": "flood", "input": 1}, headers=bearer).json()
        listed = json.loads(here("runs", "list", "--tenant", "acme", "--json").out)
        assert [one["run_id"] for one in listed] == [run["run_id"]]
        with http.stream("GET", f"/runs/{run['run_id']}/events", headers=bearer | STREAM) as response:
            stream = Stream(response)
            assert [event.kind for event in stream.next(2)] == ["attempt", "chunk"]
            key_set.write_text(json.dumps({"keys": [{**public, "kid": "2", "alg": "ES256"}]}))
            assert stream.last_words()[-1] == "retry: 250"
        assert http.get("/runs", headers=bearer).status_code == 401
