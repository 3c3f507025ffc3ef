"""An agent whose effects go through the ledger, and the world that they are meant for, for simulations.

Decides what the world does with a call: it may be lost on its way, executed and not answered, answered late,
or asked about afterwards; some of its operations honour keys and some do not.  The check counts what the
world executed, which is all that counts.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlive import agents, effects, policy
from outlive.effects import Call, asking
from outlive.effects.asking import Executed
from outlive.model import Run
from outlive.states import State
from outlive.testing.simulation.history import History

ORDERS = tuple(range(4))
KEYED, LOOKED_UP, DEAF = "charge", "seat", "fax"
"""Operations: one that honours keys, one that can be asked, and one that can neither."""
POLICY = policy.job(
    grace=1.0,
    max_losses=9,
    stop_deadline=1.0,
    on_busy="enqueue",
    on_unknown="fail",
    recovery="resume",
    compensate="failures",
)
KEY_TTL = 600.0
SLACK = 1.0
"""Virtual seconds that may pass between the guard's look at the record and the call."""
LANDS_WITHIN = 25.0
"""Virtual seconds: longer than any process is frozen for, so that what was on its way has arrived."""


@dataclass(slots=True)
class World:
    """Everything outside: what was executed, by operation and order, and how it answers."""

    executed: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    refunded: Counter[str] = field(default_factory=Counter)
    began: list[tuple[str, int, float]] = field(default_factory=list)
    _known: dict[str, str] = field(default_factory=dict)
    _receipts: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    async def call(self, operation: str, order: str, call: Call, context: agents.Context) -> str:
        """Have an effect, unless the line breaks first; it may break after it, or long before."""
        loop = asyncio.get_running_loop()
        self.began.append((context.run.run_id, context.claim.epoch, loop.time()))
        luck = self._luck(operation, order)
        if luck % 11 == 0:
            await asyncio.sleep(0.05)
            raise ConnectionError("lost on its way there")
        lands = 6.0 if luck % 11 == 1 else 0.01 + 0.4 * (luck % 7) / 7
        answer: asyncio.Future[str] = loop.create_future()
        # What is on its way arrives, whatever becomes of who sent it.
        loop.call_later(
            lands, self._execute, operation, order, call.provider_key, answer, context=contextvars.Context()
        )
        async with asyncio.timeout(1.0):
            receipt = await answer
        await asyncio.sleep(0.01 + 0.4 * (luck % 5) / 5)
        if luck % 13 == 0:
            raise ConnectionError("lost on its way back")
        return receipt

    def fails(self, order: str) -> bool:
        """Say whether the shop breaks down after everything is bought: then it is to be undone."""
        return self._luck("checkout", order) % 3 == 0

    def _luck(self, operation: str, order: str) -> int:
        self.calls[operation, order] += 1
        words = f"{operation}/{order}/{self.calls[operation, order]}"
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big")

    def _execute(self, operation: str, order: str, key: str, answer: asyncio.Future[str]) -> None:
        known = self._known.get(key) if operation == KEYED else None
        if known is None:
            self.executed[operation, order] += 1
            known = f"{operation} {order} no. {self.executed[operation, order]}"
            self._known[key] = known
            self._receipts[operation, order].append(known)
        if not answer.done():
            answer.set_result(known)

    async def refund(self, receipt: str, key: str) -> None:
        """Give the money of a receipt back, once per key; the line may break before or after it."""
        luck = self._luck("refund", receipt)
        await asyncio.sleep(0.1)
        if luck % 5 == 0:
            raise ConnectionError("lost on its way there")
        self.refunded[receipt] += self._once(f"refund {key}")
        await asyncio.sleep(0.1)
        if luck % 7 == 0:
            raise ConnectionError("lost on its way back")

    def _once(self, key: str) -> int:
        """1 the first time that a key is seen, else 0."""
        self.calls[key, ""] += 1
        return int(self.calls[key, ""] == 1)

    async def look_up(self, operation: str, order: str) -> str:
        """Tell what was executed for an order; raises ``NotExecuted``."""
        await asyncio.sleep(0.02)
        if not self._receipts[operation, order]:
            raise effects.NotExecuted
        return self._receipts[operation, order][0]


world = World()


def begin() -> None:
    """Make the world new."""
    global world  # noqa: PLW0603 - the agents of three processes call one world
    world = World()


async def shop(context: agents.Context) -> AsyncGenerator[Any, None]:
    """Buy an order's three things: each at most once, whoever else buys the same order."""
    order = order_of(context.run)
    receipts: list[Any] = []
    for operation in (KEYED, LOOKED_UP, DEAF):
        receipts.append(await buy(operation, order, context))
        yield {operation: order}
    if world.fails(order):
        raise ValueError("no ticket")
    yield agents.Outcome(output=receipts)


def order_of(run: Run) -> str:
    """The order that a run is about: another tenant's is another one."""
    return f"{run.tenant or 'nobody'}:{agents.restored(run.input)}"


async def buy(operation: str, order: str, context: agents.Context) -> Any:
    """Have one effect."""
    here = world
    return await effects.once(
        operation,
        key=order,
        call=lambda call: here.call(operation, order, call, context),
        inputs={"order": order},
        key_ttl=KEY_TTL if operation == KEYED else None,
        compensate=_undo if operation == KEYED else None,
        lookup=(lambda: here.look_up(operation, order)) if operation == LOOKED_UP else None,
        lands_within=LANDS_WITHIN,
        budget=20.0,
    )


async def _undo(done: Executed) -> None:
    call = asking.CALL.get()
    assert call is not None
    await world.refund(done.result, call.provider_key)


def check(runs: Sequence[Run]) -> None:
    """Nothing was executed or refunded twice, and who succeeded has it all; raises ``AssertionError``."""
    again = {receipt: count for receipt, count in world.refunded.items() if count > 1}
    assert not again, f"refunded more than once: {again}"
    kept = Counter({what: count for what, count in world.executed.items() if count})
    kept.subtract((KEYED, receipt.split()[1]) for receipt in world.refunded)
    twice = {what: count for what, count in kept.items() if not 0 <= count <= 1}
    assert not twice, f"executed more than once: {twice}"
    for run in runs:
        if run.state is State.SUCCEEDED and run.agent == "shop":
            order = order_of(run)
            paid, *others = agents.restored(run.output or "[null]")
            wanted = [f"{operation} {order} no. 1" for operation in (LOOKED_UP, DEAF)]
            assert others == wanted, f"run {run.run_id} has {run.output}"
            assert paid in world._receipts[KEYED, order], f"run {run.run_id} has {run.output}"
            assert paid not in world.refunded, f"run {run.run_id} succeeded with {paid}, which was refunded"
            missing = [word for word in (KEYED, LOOKED_UP, DEAF) if not world.executed[word, order]]
            assert not missing, f"run {run.run_id} succeeded without {missing}"


def late_calls(history: History) -> list[str]:
    """Calls begun when their run had ended, or had been another executor's, for longer than ``SLACK``."""
    over: dict[tuple[str, int], float] = {}
    for commit in history.commits:
        for change in commit.runs:
            if change.before is not None and change.before[0] == "running" and change.after != change.before:
                over.setdefault((change.run_id, change.before[1]), commit.at)
    return [
        f"run {run_id} called under epoch {epoch} at {at:.3f}, which was over at {over[run_id, epoch]:.3f}"
        for run_id, epoch, at in world.began
        if at > over.get((run_id, epoch), at) + SLACK
    ]
