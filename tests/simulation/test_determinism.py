"""The same seed is the same history, to the last event; another seed is another."""

from __future__ import annotations

import dataclasses
import gc
import os
import pathlib
import subprocess
import sys

import pytest

from outlive.testing.simulation import generate, simulate
from outlive.testing.simulation.history import History

TESTS = pathlib.Path(__file__).parent.parent


def everything(history: History) -> list[str]:
    """A history as text, one line per happening: easy to compare, and to read where it differs."""
    return [
        f"{field.name} {item!r}"
        for field in dataclasses.fields(history)
        for item in parts(history, field.name)
    ]


def parts(history: History, name: str) -> list[object]:
    value = getattr(history, name)
    return list(value) if isinstance(value, list) else [value]


@pytest.mark.parametrize("seed", [3, 11, 26, 71, 494])
def test_the_same_seed_gives_the_same_history(seed: int) -> None:
    first = everything(simulate(seed).history)
    simulate(seed + 1)  # whatever ran before must not matter
    again = everything(simulate(seed).history)
    assert len(first) > 50
    assert again == first


def test_a_plan_that_was_printed_and_read_again_gives_the_same_history() -> None:
    plan = generate(26)
    assert plan == generate(26)
    assert everything(simulate(plan).history) == everything(simulate(26).history)


def test_another_seed_is_another_history() -> None:
    assert everything(simulate(3).history) != everything(simulate(4).history)


def test_what_is_collected_later_does_not_change_what_happened() -> None:
    history = simulate(71).history
    before = everything(history)
    gc.collect()
    assert everything(history) == before


SUMS = """
import hashlib, sys
from simulation import test_determinism
from outlive.testing.simulation import simulate
for seed in map(int, sys.argv[1:]):
    lines = test_determinism.everything(simulate(seed).history)
    print(seed, hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


def test_a_history_is_the_same_in_every_process_whatever_the_order_of_its_sets() -> None:
    sums = []
    for hash_seed, allocator in (("1", "pymalloc"), ("2", "malloc")):  # other hashes and other addresses
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONMALLOC": allocator,
            "PYTHONPATH": str(TESTS),
        }
        command = [sys.executable, "-c", SUMS, *map(str, range(20))]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=50, env=environment
        )
        sums.append(done.stdout.splitlines())
    assert sums[0] == sums[1]
    assert len(sums[0]) == 20
