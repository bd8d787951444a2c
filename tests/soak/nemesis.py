"""Does what the plan says to processes and their network, and undoes it."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from typing import TYPE_CHECKING, final

from gazette_platform.client import ClientConfig
from gazette_platform.consumer.client import ShardClient
from gazette_platform.consumer.protocol import ReplicaCode
from gazette_platform.errors import GazetteError
from gazette_platform.testing.fault_proxy import Direction
from gazette_platform.testing.waiting import pass_time, patient
from tests.chaos.logs import lost_its_lease
from tests.harness import Late, reason_of
from tests.soak.plan import WARM_UP_S, Fault, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gazette_platform.consumer.client import ShardListing
    from gazette_platform.ops.clock import Clock
    from gazette_platform.testing.cluster import BrokerCluster
    from gazette_platform.testing.etcd import EtcdServer
    from tests.benches.postgres_server import Postgres
    from tests.soak.consumers import ConsumerGroup
    from tests.soak.producers import JumpingClock

_POLL_S = 0.2
_SETTLE_S = 60.0
_RESET_S = 0.3
_HAS_FAILED = "has failed"


@final
class Nemesis:
    """Inflicts faults, one episode after another, and watches over processes and shards.

    Args:
        database: of shards without a log; None: there are none.
        producer: the clock of one that jumps.
        is_starved: whether the machine was so late lately that leases run out by it.
        shards: how many there are.
        lease_s: of brokers and consumers.

    Attributes:
        faults: that were inflicted, by kind.
        troubles: what must not have happened; the first one ends `run`.
        waited: share of its time in which a server that was not ready in time had no core.
    """

    def __init__(
        self,
        brokers: BrokerCluster,
        consumers: ConsumerGroup,
        etcd: EtcdServer,
        database: Postgres | None,
        producer: JumpingClock,
        *,
        shards: int,
        lease_s: float,
        clock: Clock,
        say: Callable[[str], None],
        is_starved: Callable[[], bool],
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.troubles: list[str] = []
        self.waited = 0.0
        self._brokers = brokers
        self._consumers = consumers
        self._etcd = etcd
        self._database = database
        self._producer = producer
        self._shards = shards
        self._lease_s = lease_s
        self._clock = clock
        self._say = say
        self._is_starved = is_starved
        # Processes that may end, as they were kept from renewing their leases, and until when; and those
        # that have to, by what was done to them: else that was not done.
        self._excused: dict[int, float] = {}
        self._doomed: dict[int, str] = {}

    async def run(self, plan: Iterator[Sequence[Fault]], until: float) -> None:
        """Faults until a monotonic second, or the first trouble; then all works again.

        Raises: SetupError: a process does not start.
        """
        await pass_time(WARM_UP_S)
        for episode in plan:
            await pass_time(episode[0].calm_s)
            if self._clock.monotonic() >= until or self.troubles:
                return
            await self._episode(episode)
            await self.settle()

    async def _episode(self, episode: Sequence[Fault]) -> None:
        now = self._clock.monotonic()
        self._excused = {pid: until for pid, until in self._excused.items() if now < until}
        try:
            async with asyncio.TaskGroup() as tasks:
                for at, fault in enumerate(episode):
                    tasks.create_task(self._one(fault, at * fault.calm_s))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _one(self, fault: Fault, after_s: float) -> None:
        await pass_time(after_s)
        self._say(f"fault: {fault}")
        self.faults[fault.kind] += 1
        process = self._process_of(fault) if fault.may_take_lease else None
        if process is not None:
            self._excused[process] = math.inf
        await self._inflict(fault)
        self._say(f"undone: {fault.kind}")
        if process is not None:
            self._excused[process] = self._clock.monotonic() + self._lease_s
            if fault.takes_lease(self._lease_s):
                self._doomed[process] = str(fault)

    def _process_of(self, fault: Fault) -> int | None:
        if "broker" in fault.kind:
            return self._brokers.brokers[self._brokers.names[fault.target]].pid
        server = self._consumers.servers[self._consumers.names[fault.target]]
        return server.pid or None

    async def _inflict(self, fault: Fault) -> None:
        broker = self._brokers.names[fault.target]
        consumer = self._consumers.names[fault.target]
        if fault.kind is Kind.RESET:
            await self._reset(fault, broker, consumer)
        elif fault.kind is Kind.LOSE_ANSWERS:
            await self._lose_answers(fault, broker)
        elif fault.kind is Kind.JUMP_CLOCK:
            self._producer.jump()
        elif fault.kind is Kind.RESTART_POSTGRES:
            await self._restart_database(fault)
        elif "etcd" in fault.kind:
            await self._on_etcd(fault)
        elif "broker" in fault.kind:
            await self._on_broker(fault, broker)
        else:
            await self._on_consumer(fault, consumer)

    async def _on_etcd(self, fault: Fault) -> None:
        if fault.kind is Kind.KILL_ETCD:
            self._etcd.kill()
            await pass_time(fault.lasts_s)
            await asyncio.to_thread(self._etcd.start)
        else:
            self._etcd.pause()
            await pass_time(fault.lasts_s)
            self._etcd.resume()

    async def _restart_database(self, fault: Fault) -> None:
        if self._database is not None:
            await asyncio.to_thread(self._database.kill)
            await pass_time(fault.lasts_s)
            await asyncio.to_thread(self._database.start)

    async def _on_broker(self, fault: Fault, broker: str) -> None:
        if fault.kind is Kind.KILL_BROKER:
            self._brokers.kill(broker)
            await pass_time(fault.lasts_s)
            await self._brokers.start_again([broker])
        elif fault.kind is Kind.CUT_BROKER:
            self._brokers.isolate(broker)
            await pass_time(fault.lasts_s)
            await self._brokers.heal_one(broker)
        elif fault.kind is Kind.CUT_BROKERS:
            self._brokers.proxies.partition(self._brokers.names)
            await pass_time(fault.lasts_s)
            await self._brokers.proxies.heal()
        elif not self._brokers.brokers[broker].has_ended:
            self._brokers.pause(broker)
            await pass_time(fault.lasts_s)
            if not self._brokers.brokers[broker].has_ended:
                self._brokers.resume(broker)

    async def _on_consumer(self, fault: Fault, consumer: str) -> None:
        match fault.kind:
            case Kind.PAUSE_CONSUMER:
                server = self._consumers.servers[consumer]
                if not server.has_ended:
                    server.pause()
                    await pass_time(fault.lasts_s)
                    if not server.has_ended:
                        server.resume()
            case Kind.CUT_CONSUMER:
                self._consumers.isolate(consumer)
                await pass_time(fault.lasts_s)
                await self._consumers.heal(consumer)
            case Kind.LEAVE_CONSUMER:
                await self._leave(consumer)
            case _:
                await self._kill_consumers(fault, consumer)

    async def _kill_consumers(self, fault: Fault, consumer: str) -> None:
        names = self._consumers.names if fault.kind is Kind.KILL_CONSUMERS else (consumer,)
        for name in names:
            self._consumers.servers[name].strike()
        for name in names:
            self._consumers.servers[name].kill()
        await pass_time(fault.lasts_s)
        await self._consumers.start(*names)

    async def _leave(self, consumer: str) -> None:
        server = self._consumers.servers[consumer]
        code = await self._consumers.leave(consumer)
        if code != 0:
            how = "did not leave in time" if code is None else f"left with exit code {code}"
            text = f"{consumer} {how}; its log ends:\n{server.log_of_run()[-4000:]}"
            self._trouble(Late(text) if code is None else text)
        await self._consumers.start(consumer)

    async def _reset(self, fault: Fault, broker: str, consumer: str) -> None:
        dice = random.Random(str(fault))
        for _ in range(int(fault.lasts_s / _RESET_S)):
            proxies = (
                self._brokers.proxies[broker],
                self._consumers.proxies[consumer],
                self._consumers.etcd_proxies[consumer],
            )
            dice.choice(proxies).reset()
            await pass_time(_RESET_S)

    async def _lose_answers(self, fault: Fault, broker: str) -> None:
        proxy = self._brokers.proxies[broker]
        proxy.black_hole(Direction.TO_CLIENT)
        await pass_time(fault.lasts_s)
        proxy.reset()
        await proxy.heal()

    # ------------------------------------------------------------------ what must be so afterwards

    async def settle(self) -> None:
        """Wait until all processes run, and each shard has a primary that consumes; note what must not be.

        Raises: SetupError: a process does not start.
        """
        limit_s = patient(_SETTLE_S)
        until = self._clock.monotonic() + limit_s
        what = ""
        while not self.troubles and self._clock.monotonic() < until:
            await self.revive()
            what = self._unharmed() or await self._unsettled()
            if not what:
                return
            await pass_time(_POLL_S)
        if not self.troubles:
            text = f"not whole again after {limit_s:g} s: {what}"
            self._trouble(text if _HAS_FAILED in what else Late(text))

    def _unharmed(self) -> str:
        """Who runs on without its lease, if anybody does."""
        running = {
            process.pid: name
            for servers in (self._brokers.brokers, self._consumers.servers)
            for name, process in servers.items()
        }
        self._doomed = {pid: fault for pid, fault in self._doomed.items() if pid in running}
        return "; ".join(
            f"{running[pid]} runs on after {fault}, when its lease has ended: was that done to it?"
            for pid, fault in self._doomed.items()
        )

    async def _unsettled(self) -> str:
        """What is not as it should be yet; empty if all is."""
        config = ClientConfig(address=self._consumers.address, retry_timeout_s=5.0)
        try:
            async with ShardClient(config) as client:
                listings = list(await client.list())
        except (GazetteError, TimeoutError) as err:
            return f"shards cannot be listed: {err}"
        what, failed = standing(listings, self._shards)
        for text in failed:
            self._trouble(text)
        return what

    async def revive(self) -> None:
        """Start processes that have ended, and report those that must not have."""
        ended = [
            *[(n, b.pid, b.log_of_run) for n, b in self._brokers.brokers.items() if b.has_ended],
            *[(n, s.pid, s.log_of_run) for n, s in self._consumers.servers.items() if s.has_ended],
        ]
        for name, pid, log in ended:
            if pid:
                self._note_end(name, pid, log())
        if any(name in self._brokers.names for name, *_ in ended):
            await self._brokers.revive()
        gone = [name for name, *_ in ended if name in self._consumers.names]
        for name in gone:
            self._consumers.servers[name].kill()  # forget the process
        await self._consumers.start(*gone)

    def _note_end(self, name: str, pid: int, log: str) -> None:
        if lost_its_lease(log) and pid in self._excused:
            self._doomed.pop(pid, None)
            self._say(f"{name} ended, as its lease was taken")
        elif lost_its_lease(log) and self._is_starved():
            self._say(f"{name} ended while the machine was starved")
        else:
            text = f"{name} ended by itself; its log ends:\n{log[-4000:]}"
            # A lease is a limit of time, too.
            self._trouble(Late(text) if lost_its_lease(log) else text)

    def fail(self, err: GazetteError) -> None:
        """Note an error that ended `run`."""
        self.waited = getattr(err, "waited", 0.0)
        self._trouble(reason_of(err))

    def _trouble(self, text: str) -> None:
        self._say(f"trouble: {text}")
        self.troubles.append(text)


def standing(listings: Iterable[ShardListing], shards: int) -> tuple[str, list[str]]:
    """Judge whether each of so many shards has a primary that consumes. Pure.

    One without a log may fail for a while, as its database was away, or a former owner came late.

    Returns: what is not as it should be yet, empty if all is; and what must never be.
    """
    ready, failed, fatal = 0, [], []
    for listing in listings:
        ready += any(status.code is ReplicaCode.PRIMARY for status in listing.statuses)
        for status in listing.statuses:
            if status.code is ReplicaCode.FAILED:
                text = f"shard {listing.id} {_HAS_FAILED}: {' '.join(status.errors)}"
                (fatal if listing.spec.recovery_log else failed).append(text)
    if ready == shards:
        return "", fatal
    return "; ".join([f"{ready} of {shards} shards have a primary", *failed]), fatal
