"""Every bug that is put back is noticed within a bounded number of seeds, and as what it is."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Iterator

import pytest

from simulation import mutations

Hunts = dict[str, concurrent.futures.Future[mutations.Caught | None]]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def hunts(request: pytest.FixtureRequest) -> Iterator[Hunts]:
    """The hunts for the mutations of the tests that were selected, in two processes."""
    selected = {item.name for item in request.session.items}
    wanted = [mutation.name for mutation in mutations.ALL if f"test_noticed[{mutation.name}]" in selected]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        yield {name: pool.submit(mutations.hunt, name) for name in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutation", mutations.ALL, ids=lambda mutation: mutation.name)
def test_noticed(mutation: mutations.Mutation, hunts: Hunts) -> None:
    caught = hunts[mutation.name].result()
    assert caught is not None, f"{mutation.within} seeds kept {sorted(mutation.noticed_as)}"


def test_there_are_enough_mutations_and_each_says_what_it_breaks() -> None:
    assert len({mutation.name for mutation in mutations.ALL}) == len(mutations.ALL) >= 40
    assert all(mutation.noticed_as and mutation.within <= 300 for mutation in mutations.ALL)
