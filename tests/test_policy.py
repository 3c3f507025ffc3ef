"""Policies: declared, checked however they are built, and read back as they were stored."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive import errors, policy
from outlive.policy import (
    Compensate,
    Durability,
    OnBusy,
    OnDisconnect,
    OnTorn,
    OnUnknown,
    Recovery,
    RunPolicy,
)

SECONDS = st.floats(0, 1e8) | st.integers(0, 10**8)
POLICIES = st.builds(
    RunPolicy,
    on_disconnect=st.sampled_from(OnDisconnect),
    on_busy=st.sampled_from(OnBusy),
    on_torn=st.sampled_from(OnTorn),
    recovery=st.sampled_from(Recovery),
    grace=SECONDS,
    max_losses=st.integers(0, 10**6),
    durability=st.sampled_from(Durability),
    stop_deadline=st.floats(0.01, 1e8),
    run_timeout=st.none() | st.floats(0.01, 1e8),
    silence_timeout=st.none() | st.floats(0.01, 1e8),
    compensate=st.sampled_from(Compensate),
    on_unknown=st.sampled_from(OnUnknown),
)


def test_a_policy_has_no_defaults_for_what_matters() -> None:
    required = {field.name for field in dataclasses.fields(RunPolicy) if field.default is dataclasses.MISSING}
    assert required == {"on_disconnect", "on_busy", "on_torn", "recovery"}
    with pytest.raises(TypeError):
        RunPolicy()  # type: ignore[call-arg]
    with pytest.raises(errors.InvalidPolicy, match=r"incomplete.*on_busy"):
        RunPolicy.from_dict({"on_disconnect": "cancel"})


def test_the_presets_say_what_they_are_for() -> None:
    assert policy.chat().to_dict() == {
        "on_disconnect": "cancel",
        "on_busy": "enqueue",
        "on_torn": "resume",
        "recovery": "resume",
        "grace": 30.0,
        "max_losses": 3,
        "durability": "sync",
        "stop_deadline": 10.0,
        "run_timeout": None,
        "silence_timeout": None,
        "compensate": "never",
        "on_unknown": "wait",
    }
    job = policy.job()
    assert (job.on_disconnect, job.on_busy) == (OnDisconnect.CONTINUE, OnBusy.REJECT)
    assert set(policy.PRESETS) == {"chat", "job", "server"}


@given(POLICIES)
def test_a_policy_survives_the_record(declared: RunPolicy) -> None:
    text = declared.to_json()
    assert RunPolicy.from_json(text) == declared
    assert text.isascii()
    assert RunPolicy.from_dict(declared.to_dict()) == declared


def test_but_changes_some_fields_and_leaves_the_original() -> None:
    chat = policy.chat()
    changed = chat.but(grace=0, on_busy="reject")
    assert (changed.grace, changed.on_busy, chat.grace) == (0, OnBusy.REJECT, 30.0)
    assert changed.but(grace=30.0, on_busy=OnBusy.ENQUEUE) == chat


BAD: list[tuple[str, Any]] = [
    ("on_disconnect", "CANCEL"),
    ("on_busy", None),
    ("on_busy", ["reject"]),
    ("on_torn", "retry"),
    ("recovery", ""),
    ("durability", "later"),
    ("compensate", "sometimes"),
    ("on_unknown", None),
    ("grace", -0.1),
    ("grace", float("nan")),
    ("grace", float("inf")),
    ("grace", 10**400),
    ("grace", "30"),
    ("grace", True),
    ("grace", None),
    ("max_losses", 1.5),
    ("max_losses", -1),
    ("stop_deadline", 0),
    ("run_timeout", 0),
    ("silence_timeout", 0),
    ("run_timeout", "1"),
    ("no_such_field", 1),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=str)
def test_a_bad_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(errors.InvalidPolicy) as refusal:
        policy.chat(**{field: value})
    assert refusal.value.field == field
    assert refusal.value.status == 422
    assert field in str(refusal.value)


@pytest.mark.parametrize(("field", "value"), [bad for bad in BAD if bad[0] != "no_such_field"], ids=str)
def test_the_constructor_checks_as_much_as_the_presets(field: str, value: Any) -> None:
    fields = {**policy.chat().to_dict(), field: value}
    with pytest.raises(errors.InvalidPolicy):
        RunPolicy(**fields)


def test_the_constructor_takes_plain_words_for_what_they_mean() -> None:
    words: dict[str, Any] = {"on_disconnect": "cancel", "on_busy": "enqueue", "on_torn": "resume"}
    built = RunPolicy(**words, recovery="resume")  # type: ignore[arg-type]
    assert built == policy.chat()
    assert built.on_disconnect is OnDisconnect.CANCEL


def test_a_row_of_a_newer_version_can_still_be_read() -> None:
    stored = json.dumps({**policy.job().to_dict(), "a_field_of_tomorrow": {"x": 1}})
    assert RunPolicy.from_json(stored) == policy.job()
