"""A simulated process: the parts that ``runtime`` composes, over a simulated store; and the fleet of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outlive import commands, disconnect, execution, lease, outbox, presence, seams, signals, sweeper, worker
from outlive.agents import Binds, Registry
from outlive.store import sql
from outlive.testing.simulation import receivers
from outlive.testing.simulation.cast import Cast
from outlive.testing.simulation.database import Database, SimulatedStore
from outlive.testing.simulation.history import History
from outlive.testing.simulation.provider import Provider
from outlive.testing.simulation.world import Dice, Sandbox, VirtualLoop

TIMING = lease.Timing(lease=4.0, renew_every=0.5, margin=0.5, stall_after=1.0, stall_limit=6.0)
SLOTS = 3
VIEWER_LEASE = 3.0
DRAIN = 3.0


@dataclass(eq=False)
class Process:
    """One incarnation of one machine's process; a restart makes another.  ``name`` tells both: ``p0.2``."""

    machine: str
    fleet: Fleet
    incarnation: int
    skew: float = 0.0
    name: str = field(init=False)
    sandbox: Sandbox = field(init=False)
    happenings: signals.Signals = field(init=False)
    up: bool = True
    _duties: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        loop, dice = self.fleet.loop, self.fleet.dice
        self.name = f"{self.machine}.{self.incarnation}"
        self.sandbox = Sandbox(self.name, loop)
        self.happenings = signals.Signals(listeners=(self._note,))
        local = seams.Seams(
            monotonic=lambda: loop.time() + self.skew,
            random=dice.of(f"local/{self.name}").random,
            new_id=self.fleet.new_id,
        )
        self.store = SimulatedStore(self.fleet.database, self, dice, self.happenings, local)
        told = self.happenings
        self.registry = registry = Registry(self.fleet.cast.agents(self))
        self.keeper = lease.Keeper(self.store, timing=TIMING, happenings=told, local=local)
        around = execution.Surroundings(
            store=self.store, keeper=self.keeper, happenings=told, local=local, drain=DRAIN / 4
        )
        self.worker = worker.Worker(registry, around, slots=SLOTS)
        self.commands = commands.Commands(
            self.store, registry, starter=self.worker, happenings=told, local=local, told=receivers.who
        )
        self.presence = presence.Presence(self.store, happenings=told, lease=VIEWER_LEASE)
        self.disconnect = disconnect.Disconnect(self.store, happenings=told)
        self.sweeper = sweeper.Sweeper(self.store, timing=TIMING, happenings=told, local=local, every=0.6)
        self.dispatcher = self._dispatcher()

    def _dispatcher(self) -> outbox.Dispatcher:
        """What sends, with dice of its own: what it does is to change nothing in what the others do."""
        fleet, dice = self.fleet, Dice.within(self.fleet.dice, "outbox")
        local = seams.Seams(
            monotonic=lambda: fleet.loop.time() + self.skew,
            random=dice.of(f"local/{self.name}").random,
            new_id=fleet.new_token,
        )
        store = SimulatedStore(
            fleet.database,
            self,
            dice,
            self.happenings,
            local,
            hub=self.store.hub,
            weather=self.store.weather,
        )
        return receivers.dispatcher(store, fleet.receivers, self.name, self.happenings, local)

    @property
    def worker_id(self) -> str:
        """What the liveness token stands for."""
        return self.worker.id

    def _note(self, happening: signals.Happening) -> None:
        if self.sandbox.dead:  # a clean-up that the end of the simulation, or a garbage collector, sets off
            return
        self.fleet.history.notes.append((self.fleet.loop.time(), self.name, happening))

    def start(self) -> None:
        """Begin working; each duty in the process's own sandbox."""
        self.sandbox.spawn(self._begin())
        self._duties = [self.sandbox.spawn(self._renew(), renewing=True)]
        for duty in (self.sweeper.run(), self.presence.run(), self.disconnect.run(), self.dispatcher.run()):
            self._duties.append(self.sandbox.spawn(duty))

    async def _begin(self) -> None:
        self.keeper.attach()
        for name in self.registry.names:
            agent = self.registry[name]
            if isinstance(agent, Binds):
                await agent.bind(self.store, self.happenings)
        await self.worker.begin()

    async def _renew(self) -> None:
        """What the renewing thread does, in virtual time."""
        while True:
            await asyncio.sleep(TIMING.renew_every)
            self.keeper.watch_loop()
            self.keeper.renew_once()

    async def shut_down(self) -> None:
        """End as ``runtime`` does; afterwards nothing of this process may be left at work."""
        self.up = False
        fair = self.store.weather.fair
        await self.commands.close()
        await self.worker.shutdown(DRAIN)
        await self.presence.close()
        for duty in self._duties:
            duty.cancel()
        await asyncio.wait(self._duties)
        await self.dispatcher.close()
        await self.keeper.close()
        await self.store.close()
        if fair and self.store.weather.fair:
            self._account_for_slots()

    def _account_for_slots(self) -> None:
        """Nothing may be driven any more, unless the database could not be reached to hand it back."""
        if self.worker.free != SLOTS:
            self.fleet.history.leaks.append(f"{self.name} ends with {self.worker.free} of {SLOTS} slots free")
        if self.worker.driving:
            self.fleet.history.leaks.append(f"{self.name} still drives {list(self.worker.driving)}")

    def kill(self) -> None:
        """SIGKILL."""
        self.up = False
        self.sandbox.kill()
        self.fleet.tokens.discard(self.worker_id)


@dataclass(eq=False)
class Fleet:
    """All processes over one database."""

    loop: VirtualLoop
    dice: Dice
    history: History
    blocks: Mapping[str, sql.Block]
    cast: Cast
    new_id: Callable[[], str] = field(init=False)
    new_token: Callable[[], str] = field(init=False)
    tokens: set[str] = field(default_factory=set)
    current: dict[str, Process] = field(default_factory=dict)
    all: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = Database(self.loop, self.history, self.blocks)
        self.provider = Provider(self.history, self.loop.time, self.dice.of("provider").random)
        self.receivers = receivers.Receivers(self.history, self.loop.time, self.dice.of("receivers").random)
        self.new_id = _counting_ids(self.dice, "ids")
        self.new_token = _counting_ids(self.dice, "outbox tokens")

    def start(self, machine: str) -> Process:
        """Start a machine's process, or the next incarnation of it."""
        before = self.current.get(machine)
        process = Process(machine, self, before.incarnation + 1 if before else 1)
        if before is not None:
            process.skew = before.skew
        self.current[machine] = process
        self.all.append(process)
        process.start()
        return process

    def peers(self, process: Process) -> list[Process]:
        """The other processes that live."""
        return [peer for peer in self.current.values() if peer is not process and peer.up]

    def wake_all(self) -> None:
        """Have everybody read again."""
        for process in self.current.values():
            process.store.hub.wake_all()

    def close(self) -> None:
        """Free what a simulation holds."""
        for process in self.all:
            process.sandbox.kill()
        self.database.close()


def _counting_ids(dice: Dice, purpose: str) -> Callable[[], str]:
    rolls, count = dice.of(purpose), 0

    def new_id() -> str:
        nonlocal count
        count += 1
        return f"{count:08x}{rolls.getrandbits(96):024x}"

    return new_id
