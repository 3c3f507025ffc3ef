"""Settings: where a value comes from, what is refused and how, and what is never printed."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from typing import Any

import pytest

from cli import support
from outlive import errors, settings
from outlive.cli import ending

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """In a directory without a file, with no variable set."""
    monkeypatch.chdir(tmp_path)
    for name in [*settings.Settings.model_fields, "config"]:
        monkeypatch.delenv(f"OUTLIVE_{name.upper()}", raising=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> support.Here:
    """Runs commands in this process."""
    monkeypatch.setattr(ending, "Ending", support.NoEnd)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(support.HERE)
    return support.Here(monkeypatch, capsys)


def shown(done: support.Done) -> dict[str, tuple[Any, str]]:
    """What the command printed for programs: value and origin by name."""
    assert done.code == 0, done
    return {one["name"]: (one["value"], one["origin"]) for one in json.loads(done.out)}


def test_a_flag_comes_before_the_environment_before_the_file_before_the_default(
    here: support.Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pathlib.Path("outlive.toml")
    file.write_text('slots = 1\nport = 1001\nhost = "::1"\n')
    monkeypatch.setenv("OUTLIVE_SLOTS", "2")
    monkeypatch.setenv("OUTLIVE_PORT", "1002")
    found = shown(here("settings", "--slots", "3", "--json"))
    assert found["slots"] == (3, "--slots")
    assert found["port"] == (1002, "OUTLIVE_PORT")
    assert found["host"] == ("::1", "file outlive.toml")
    assert found["drain"] == (10.0, "default")
    assert list(found) == list(settings.Settings.model_fields)


def test_the_file_is_named_by_flag_or_variable_and_must_then_be_there(
    here: support.Here, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text("slots = 7\n")
    assert shown(here("settings", "--config", str(other), "--json"))["slots"] == (7, f"file {other}")
    monkeypatch.setenv("OUTLIVE_CONFIG", str(other))
    assert shown(here("settings", "--json"))["slots"] == (7, f"file {other}")
    missing = here("settings", "--config", "nowhere.toml")
    assert missing.code == 2
    assert "nowhere.toml cannot be read" in missing.err


@pytest.mark.parametrize(
    ("file", "variables", "flags", "says"),
    [
        ("slots = -1", {}, (), ["slots (file outlive.toml)", "greater than or equal to 0", "not -1"]),
        (
            "",
            {"OUTLIVE_PORT": "tcp://10.0.0.1:80"},
            (),
            ["port (OUTLIVE_PORT)", "valid integer", "not 'tcp:"],
        ),
        ("", {}, ("--lease", "soon"), ["lease (--lease)", "valid number", "not 'soon'"]),
        ("", {}, ("--auth", "magic"), ["auth (--auth)", "'none', 'keys' or 'jwt'", "not 'magic'"]),
        ("slot = 1", {}, (), ["slot (file outlive.toml) is no setting", "Did you mean slots?"]),
        ("slots = ", {}, (), ["outlive.toml is not TOML"]),
        ("[agent_limits.a]\nruning = 1", {}, (), ["agent_limits.a.runing (file outlive.toml)"]),
        (
            "[agent_limits.a]\nrunning = 0",
            {},
            (),
            ["agent_limits.a.running (file outlive.toml)", "equal to 1"],
        ),
        ("", {"OUTLIVE_AGENT_LIMITS": "{"}, (), ["environment variable cannot be read", "agent_limits"]),
    ],
)
@pytest.mark.parametrize("command", [("settings",), ("serve", "served:gated"), ("worker", "served:gated")])
def test_a_wrong_value_is_refused_with_its_name_its_origin_and_what_is_allowed(
    here: support.Here,
    monkeypatch: pytest.MonkeyPatch,
    *,
    file: str,
    variables: dict[str, str],
    flags: tuple[str, ...],
    says: list[str],
    command: tuple[str, ...],
) -> None:
    pathlib.Path("outlive.toml").write_text(file)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    done = here(*command, *flags)
    assert (done.code, done.out) == (2, "")
    if command[0] == "worker" and flags[:1] == ("--auth",):
        assert "No such option" in done.err  # a worker authenticates nobody
        return
    assert len(done.err.splitlines()) == 1
    for part in says:
        assert part in done.err
    assert not pathlib.Path("outlive.db").exists()


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("postgresql://ann:s3cret@host/name", "postgresql://ann:********@host/name"),
        ("postgresql://ann:s3cr:et@x@host/name", "postgresql://ann:********@host/name"),
        (
            "postgresql://host/name?user=ann&password=s3cret&x=1",
            "postgresql://host/name?user=ann&password=********&x=1",
        ),
        ("sqlite:///a:b.db", "sqlite:///a:b.db"),
    ],
)
def test_no_password_is_printed(here: support.Here, *, given: str, printed: str) -> None:
    found = shown(here("settings", "--database", given, "--direct-database", given, "--json"))
    assert found["database"][0] == found["direct_database"][0] == printed
    assert "s3cret" not in here("settings", "-d", given).out


def test_a_key_is_neither_printed_nor_repeated_in_an_error(
    here: support.Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLIVE_JWT_KEY", "s3cret-key")
    assert shown(here("settings", "--json"))["jwt_key"] == ("********", "OUTLIVE_JWT_KEY")
    assert here("settings", "--jwt-key", "s3cret").code == 2  # a flag would show it to the whole machine
    monkeypatch.delenv("OUTLIVE_JWT_KEY")
    pathlib.Path("outlive.toml").write_text("jwt_key = ['s3cret']\n")
    refused = here("settings")
    assert (refused.code, "s3cret" in refused.err) == (2, False)
    assert "jwt_key (file outlive.toml)" in refused.err


def test_a_variable_that_only_looks_like_a_setting_is_named(
    here: support.Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLIVE_SLOT", "3")
    done = here("settings", "--json")
    assert "OUTLIVE_SLOT looks like a setting and is none" in done.err


def test_the_commands_that_look_at_a_database_find_it_where_the_server_does(
    here: support.Here, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    pathlib.Path("outlive.toml").write_text(f'database = "sqlite:///{tmp_path}/filed.db"\n')
    assert here("migrate").code == 0
    assert (tmp_path / "filed.db").exists()
    assert here("runs", "list", "--json") == (0, "[]\n", "")
    monkeypatch.setenv("OUTLIVE_DATABASE", f"sqlite:///{tmp_path}/nowhere.db")
    assert here("runs", "list").code == 2
    assert here("runs", "list", "--json", "-d", f"sqlite:///{tmp_path}/filed.db").out == "[]\n"


def test_an_empty_variable_sets_nothing(here: support.Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLOTS", "DIRECT_DATABASE", "JWT_ALGORITHMS"):
        monkeypatch.setenv(f"OUTLIVE_{name}", "")
    found = shown(here("settings", "--json"))
    assert {found[name][1] for name in ("slots", "direct_database", "jwt_algorithms")} == {"default"}


def test_limits_of_agents_come_as_a_table_or_as_JSON(monkeypatch: pytest.MonkeyPatch) -> None:
    pathlib.Path("outlive.toml").write_text("[agent_limits.a]\nrunning = 2\n")
    assert settings.load().settings.limits_by_agent["a"].running == 2
    monkeypatch.setenv("OUTLIVE_AGENT_LIMITS", '{"b": {"per_minute": 3}}')
    loaded = settings.load()
    assert {name: limits.per_minute for name, limits in loaded.settings.limits_by_agent.items()} == {"b": 3}
    assert loaded.origins["agent_limits"] == "OUTLIVE_AGENT_LIMITS"


def test_algorithms_come_by_commas_or_as_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIVE_JWT_ALGORITHMS", "RS256, ES256")
    assert settings.load().settings.jwt_algorithms == ("RS256", "ES256")
    monkeypatch.delenv("OUTLIVE_JWT_ALGORITHMS")
    pathlib.Path("outlive.toml").write_text('jwt_algorithms = ["EdDSA"]\n')
    assert settings.load().settings.jwt_algorithms == ("EdDSA",)


def test_a_flag_that_is_no_setting_is_refused() -> None:
    with pytest.raises(errors.Misconfigured, match=r"nonsense \(--nonsense\) is no setting"):
        settings.load({"nonsense": 1})


def test_the_page_of_settings_is_current_and_explains_each() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == generate.settings_page(), "run: python docs/generate.py"
    for name, field in settings.Settings.model_fields.items():
        assert f"| `{name}` |" in page
        assert field.description


def test_limits_of_an_agent_that_is_not_there_are_said(here: support.Here, tmp_path: pathlib.Path) -> None:
    pathlib.Path("outlive.toml").write_text(
        f'database = "sqlite:///{tmp_path}"\nport = 0\n[agent_limits.gatde]\nrunning = 2\n'
    )
    done = here("serve", "served:gated")
    assert done.code == 3  # the database is a directory
    assert "agent gatde: has limits, and is not served here" in done.err
