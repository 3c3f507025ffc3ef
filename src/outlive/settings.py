"""What an operator can set, and where each value came from.

Decides names, types, bounds and precedence: a flag over the environment (``OUTLIVE_SLOTS``) over a TOML file
(``slots = 4``) over the default.  Does not decide what a setting does.  An application that makes its own
``Outlive`` passes arguments and needs none of this.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pydantic_settings
from pydantic import Field
from pydantic_settings import NoDecode

from outlive import errors, large
from outlive.limits import Limits

PREFIX = "OUTLIVE_"
FILE = "outlive.toml"
"""Read from the working directory unless another file is named."""
CONFIG = "OUTLIVE_CONFIG"
NOT_SETTINGS = frozenset({CONFIG, "OUTLIVE_TENANT", "OUTLIVE_FAILPOINTS"})
"""Variables that begin like settings and are read elsewhere."""
NO_FLAG = frozenset({"jwt_key", "agent_limits", "webhook_secrets", "agent_webhooks"})
"""What is no flag: everybody on the machine sees the arguments of a process, and a table is none."""
MASK = "********"


class AgentLimits(pydantic.BaseModel):
    """The limits of one agent, whoever uses it."""

    model_config = pydantic.ConfigDict(extra="forbid")

    running: int | None = Field(default=None, ge=1)
    queued: int | None = Field(default=None, ge=1)
    per_minute: int | None = Field(default=None, ge=1)
    request_bytes: int | None = Field(default=None, ge=1)


Count = Annotated[int | None, Field(ge=1)]


class Settings(pydantic.BaseModel):
    """Every setting.  Flat, so that one name is a flag, a variable and a key of the file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    database: str = Field(
        "sqlite:///outlive.db", description="sqlite:///file.db or postgresql://user@host/name."
    )
    direct_database: str | None = Field(
        None, description="The same database without the transaction pooler, for LISTEN and fast takeover."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0: any free one.")
    slots: int = Field(
        32, ge=0, le=100_000, description="Runs that this process drives at once; 0: only serve HTTP."
    )
    drain: float = Field(
        10.0, ge=0.1, le=3600, description="Seconds that shutdown may take to hand work back."
    )
    lease: float = Field(
        15.0,
        ge=0.5,
        le=3600,
        description="Seconds after which the runs of a frozen or cut-off process go to another one. More than"
        " the database may take for one write.",
    )
    viewer_lease: float = Field(
        15.0,
        ge=1,
        le=3600,
        description="Seconds for which a viewer counts as watching without a further word from its server.",
    )
    rotate: float = Field(
        55.0, ge=1, le=86_400, description="Seconds after which a GET stream ends with a hint to come back."
    )
    heartbeat: float = Field(
        15.0,
        ge=1,
        le=3600,
        description="Seconds without an event after which a stream says that it lives. Less than any proxy's"
        " read time-out.",
    )
    auth: Literal["none", "keys", "jwt"] = Field(
        "none", description="Who may use the service: anybody on this machine, API keys, or JSON Web Tokens."
    )
    langgraph: bool = Field(
        False,
        description="Serve the graphs under the LangGraph protocol, and Outlive's own routes below /native.",
    )
    allow_anyone: bool = Field(
        False, description="Listen beyond this machine although nobody is authenticated."
    )
    jwt_key: pydantic.SecretStr | None = Field(
        None, description="The key that tokens are verified with: a secret, or a public key in PEM."
    )
    jwt_key_set: Path | None = Field(
        None, description="A file with a JSON Web Key Set, read again when it changes; instead of a key."
    )
    jwt_algorithms: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Algorithms that tokens may be signed with, for example RS256; no others are taken."
    )
    jwt_issuer: str | None = Field(None, min_length=1, description="Who must have issued a token (iss).")
    jwt_audience: str | None = Field(None, min_length=1, description="Whom a token must be for (aud).")
    jwt_tenant_claim: str = Field("tenant", min_length=1, description="The claim that names the tenant.")
    principal_running: Count = Field(None, description="Runs of one principal that are not over, at most.")
    principal_queued: Count = Field(None, description="Runs of one principal that wait, at most.")
    principal_per_minute: Count = Field(None, description="Runs that one principal may make in a minute.")
    request_bytes: int = Field(
        4 * 1024 * 1024, ge=1, le=1 << 30, description="Bytes that the body of a request may have."
    )
    max_event_bytes: int = Field(
        large.MAX_EVENT_BYTES,
        ge=large.INLINE_BYTES,
        le=1 << 29,
        description="Bytes that one event of an agent may have; of a larger one a placeholder is recorded.",
    )
    retention: float | None = Field(
        None,
        ge=0,
        description="Seconds after its end at which a run's events are taken away; its record, its end and"
        " its last state stay. None: never.",
    )
    agent_limits: dict[str, AgentLimits] = Field(
        default_factory=dict,
        description="Limits of agents by name: running, queued, per_minute, request_bytes. JSON in a"
        " variable, a table in the file.",
    )
    artifacts: Path | None = Field(
        None, description="Directory for the files that agents make; none: agents cannot make any."
    )
    webhook_secrets: Annotated[tuple[pydantic.SecretStr, ...], NoDecode] = Field(
        (), description="Secrets that webhooks are signed with, the newest first; none: no webhooks are sent."
    )
    webhook_url: str | None = Field(None, description="A URL that is told of the end of every run.")
    agent_webhooks: dict[str, str] = Field(
        default_factory=dict,
        description="URLs that are told of the ends of an agent's runs, by its name. JSON in a variable, a"
        " table in the file.",
    )
    public_url: str | None = Field(
        None, description="Where clients reach the service, for the link to the result in a webhook."
    )
    webhook_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Private networks that webhooks may be sent to, and without TLS: 10.1.0.0/16."
    )
    webhook_result_bytes: int = Field(
        0, ge=0, le=1 << 20, description="Bytes up to which a result is sent along; 0: only the link."
    )
    webhook_timeout: float = Field(15.0, ge=0.1, le=300, description="Seconds that a receiver has to answer.")
    webhook_tries: int = Field(16, ge=1, le=100, description="Tries after which a notification is given up.")
    webhook_max_age: float = Field(
        3 * 86_400.0, ge=1, description="Seconds after which a notification is given up."
    )
    webhook_retention: float = Field(
        30 * 86_400.0, ge=0, description="Seconds after which a notification that is over is deleted."
    )

    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port for Prometheus, apart from the service's; 0: any free one."
    )
    metrics_host: str = Field("127.0.0.1", description="Address of that port. Nobody is authenticated there.")
    traces: Literal["off", "on", "messages"] = Field(
        "off",
        description="Whether runs are traced by OpenTelemetry; messages: with the tracebacks of failed ones,"
        " which may hold anything.",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="How the log says what happens: a line to read, or a line of JSON."
    )
    log_level: Literal["info", "warning", "error"] = Field(
        "info", description="The least that the log tells of; info: of everything that happens to a run."
    )

    log_payloads: bool = Field(
        False,
        description="Whether the log also holds what runs are given, return and fail with: whatever customers"
        " write, and secrets in tracebacks.",
    )

    @pydantic.field_validator("jwt_algorithms", "webhook_secrets", "webhook_networks", mode="before")
    @classmethod
    def _several(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        return tuple(part.strip() for part in given.split(",") if part.strip())

    @property
    def principal_limits(self) -> Limits:
        """The limits of each principal."""
        return Limits(
            running=self.principal_running,
            queued=self.principal_queued,
            per_minute=self.principal_per_minute,
        )

    @property
    def limits_by_agent(self) -> dict[str, Limits]:
        """The limits of agents by name."""
        return {name: Limits(**given.model_dump()) for name, given in self.agent_limits.items()}


class _Environment(pydantic_settings.BaseSettings, Settings):
    """How the settings are called in the environment; never instantiated."""

    model_config = pydantic_settings.SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One setting as it may be printed: ``value`` is masked where it holds a secret."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The settings, the origin of each, and the variables that look like settings and are none."""

    settings: Settings
    origins: Mapping[str, str]
    ignored: tuple[str, ...]

    def shown(self) -> list[Shown]:
        """Return every setting with its origin; secrets are masked."""
        return [
            Shown(name=name, value=show(getattr(self.settings, name)), origin=self.origins[name])
            for name in Settings.model_fields
        ]


def load(flags: Mapping[str, Any] | None = None, *, file: str | Path | None = None) -> Loaded:
    """Read the settings: ``flags`` first, then the environment, then the file, then the defaults.

    ``file`` defaults to ``OUTLIVE_CONFIG``, then to ``outlive.toml`` if there is one.  Reads files; blocks.
    Raises ``Misconfigured``, which names the setting, where its value came from and what is allowed.
    """
    given, origins = {}, dict.fromkeys(Settings.model_fields, "default")
    path = _path(file)
    layers = [
        *([(f"file {path}", _read(path))] if path else []),
        *((_variable(name), {name: value}) for name, value in _environment().items()),
        *((flag(name), {name: value}) for name, value in (flags or {}).items()),
    ]
    for origin, values in layers:
        for name, value in values.items():
            if name not in Settings.model_fields:
                raise _unknown(name, origin)
            given[name], origins[name] = value, origin
    return Loaded(settings=_validated(given, origins), origins=origins, ignored=_ignored())


def flag(name: str) -> str:
    """Return the flag of a setting."""
    return "--" + name.replace("_", "-")


def show(value: Any) -> str:
    """Return a value as text, without the passwords and keys in it."""
    if value is None:
        return "none"
    if isinstance(value, pydantic.SecretStr):
        return MASK
    if isinstance(value, tuple):
        return ", ".join(map(show, value)) or "none"
    if isinstance(value, dict):
        parts = {name: _plain(each) for name, each in value.items()}
        return ", ".join(f"{name}: {bounds}" for name, bounds in parts.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return masked(f"{value:g}" if isinstance(value, float) else str(value))


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, pydantic.BaseModel) else value


def masked(text: str) -> str:
    """Hide the password of a database URL, wherever a URL may carry one."""
    text = re.sub(r"(//[^/@:]*):.*@", rf"\1:{MASK}@", text)
    return re.sub(r"(password=)[^&\s]+", rf"\1{MASK}", text, flags=re.IGNORECASE)


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _path(named: str | Path | None) -> Path | None:
    chosen = named or os.environ.get(CONFIG)
    if chosen is None:
        return Path(FILE) if Path(FILE).is_file() else None
    return Path(chosen)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as failure:
        raise errors.Misconfigured(
            f"The settings file {path} cannot be read: {failure.strerror}.",
            hint="Name another one with --config or OUTLIVE_CONFIG.",
        ) from failure
    except ValueError as failure:
        raise errors.Misconfigured(
            f"The settings file {path} is not TOML: {failure}.", hint="Correct the file."
        ) from failure


def _environment() -> dict[str, Any]:
    try:
        return pydantic_settings.EnvSettingsSource(_Environment)()
    except pydantic_settings.SettingsError as failure:
        raise errors.Misconfigured(f"An environment variable cannot be read: {failure}.") from failure


def _ignored() -> tuple[str, ...]:
    known = {_variable(name) for name in Settings.model_fields} | NOT_SETTINGS
    return tuple(sorted(name for name in os.environ if name.startswith(PREFIX) and name.upper() not in known))


def _unknown(name: str, origin: str) -> errors.Misconfigured:
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    hint = f"Did you mean {near[0]}?" if near else "See: outlive settings"
    return errors.Misconfigured(f"{name} ({origin}) is no setting.", hint=hint)


def _validated(given: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    try:
        return Settings.model_validate(dict(given))
    except pydantic.ValidationError as failure:
        raise _refused(failure.errors()[0], origins) from None


def _refused(wrong: Any, origins: Mapping[str, str]) -> errors.Misconfigured:
    name = str(wrong["loc"][0])
    within = ".".join(str(part) for part in wrong["loc"])
    value = "" if _secret(name) else f", not {wrong['input']!r}"
    said = str(wrong["msg"])
    allowed = said[:1].lower() + said[1:]
    described = Settings.model_fields[name].description
    return errors.Misconfigured(f"{within} ({origins[name]}): {allowed}{value}.", hint=f"{name}: {described}")


def _secret(name: str) -> bool:
    return name in ("database", "direct_database", "jwt_key", "webhook_secrets")
