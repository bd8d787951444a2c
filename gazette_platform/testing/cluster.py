"""Several brokers, as processes in zones on a real etcd, behind proxies that can break.

    async with BrokerCluster(folder, etcd=etcd.endpoint, prefix="/test", zones="aabbc") as cluster:
        async with AsyncClient(ClientConfig(address=cluster.address)) as client: ...
        cluster.pause("broker-1")

Brokers share one file store. The address of the cluster leads to a broker that is in good health,
whatever happens to others, as a balancer would.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, final
from urllib.parse import urlsplit

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.fault_proxy import FaultProxies, FaultProxy
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import pass_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["BrokerCluster", "broker_names"]

_DRAIN_TIMEOUT_S = 60.0
_POLL_S = 0.05


def broker_names(zones: Sequence[str]) -> tuple[str, ...]:
    """The names of brokers in these zones."""
    return tuple(f"broker-{number}" for number in range(1, len(zones) + 1))


def _gateway(name: str) -> str:
    """What its proxy is called."""
    return f"{name} kafka"


@final
class BrokerCluster:
    """Brokers ``broker-1``, ``broker-2``, … on a key prefix of their own.

    A context manager that starts all of them and kills what is left. Belongs to one event loop.

    Args:
        folder: for the store (``fragments``), and for each broker's spool and log.
        etcd: endpoint of a running etcd, or those of its members.
        prefix: key prefix for this test alone.
        zones: the zone of each broker.
        lease_s: seconds.
        is_proxied: put a proxy before each broker, which it advertises, so that clients and peers
            go through it; and one between each broker and etcd.
        flags: more flags of each broker.
        fragments: folder of the store, where it is not ``fragments`` in `folder`.
        program: what to run as `gazette`; empty: the one of this interpreter.
        has_kafka: give each broker a Kafka gateway, behind a proxy too if brokers are.

    Attributes:
        brokers: processes by name.
        proxies: by name of the broker: what clients and peers reach it through.
        etcd_proxies: likewise: what it reaches etcd through.
        kafka_ports: where clients of Kafka reach each broker; empty without `has_kafka`.
        fragments: folder of the store.
    """

    def __init__(
        self,
        folder: Path,
        *,
        etcd: str,
        prefix: str,
        zones: Sequence[str] = ("a", "a", "b", "b", "c"),
        lease_s: float = 2.0,
        is_proxied: bool = False,
        flags: Sequence[str] = (),
        fragments: Path | None = None,
        program: Sequence[str] = (),
        has_kafka: bool = False,
    ) -> None:
        self.fragments = fragments or folder / "fragments"
        self.brokers: dict[str, BrokerServer] = {}
        self.proxies = FaultProxies()
        self.etcd_proxies = FaultProxies()
        self.kafka_ports: dict[str, int] = {}
        self._folder = folder
        self._etcd = etcd
        self._prefix = prefix
        self._zones = dict(zip(broker_names(zones), zones, strict=True))
        self._lease_s = lease_s
        self._is_proxied = is_proxied
        self._flags = tuple(flags)
        self._program = program
        self._has_kafka = has_kafka
        self._front = FaultProxy("127.0.0.1", 1)
        self._unfit: set[str] = set()

    @property
    def address(self) -> str:
        """An endpoint that leads to some broker that is neither down, paused nor cut off."""
        return self._front.address

    @property
    def names(self) -> tuple[str, ...]:
        """The brokers, whether they run or not."""
        return tuple(self._zones)

    def doors(self, name: str) -> tuple[FaultProxy, ...]:
        """The proxies through which clients and peers reach a broker: its own, and its gateway's."""
        return tuple(self.proxies[door] for door in self._doors_of(name))

    def zone_of(self, name: str) -> str:
        """The zone of a broker."""
        return self._zones[name]

    async def __aenter__(self) -> Self:
        await self._front.start()
        try:
            # One after another: those that are ready would lose their leases to others that start.
            for name in self._zones:
                await self._make(name)
                await self.start(name)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._front.stop()
        for name in self.brokers:
            await asyncio.to_thread(self.brokers[name].kill)
        for proxies in (self.proxies, self.etcd_proxies):
            await proxies.__aexit__()

    async def _make(self, name: str) -> None:
        etcd, flags = self._etcd, list(self._flags)
        if self._is_proxied:
            addresses = []
            for proxied, one in zip(self._etcd_proxies_of(name), etcd.split(","), strict=True):
                target = urlsplit(one)
                host, port = target.hostname or "", target.port or 2379
                addresses.append((await self.etcd_proxies.add(proxied, host, port)).address)
            etcd = ",".join(addresses)
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        broker = BrokerServer(
            folder,
            etcd=etcd,
            prefix=self._prefix,
            broker_id=name,
            zone=self._zones[name],
            fragments=self.fragments,
            lease_s=self._lease_s,
            flags=flags,
            program=self._program,
        )
        if self._is_proxied:
            front = await self.proxies.add(name, "127.0.0.1", broker.port)
            broker.flags += (f"--broker.advertise={front.address}",)
        if self._has_kafka:
            broker.flags += await self._kafka_flags(name)
        self.brokers[name] = broker

    async def _kafka_flags(self, name: str) -> tuple[str, ...]:
        port = self.kafka_ports[name] = choose_ports(["kafka"])["kafka"]
        flags = ("--kafka.host=127.0.0.1", f"--kafka.port={port}")
        if not self._is_proxied:
            return flags
        front = await self.proxies.add(_gateway(name), "127.0.0.1", port)
        self.kafka_ports[name] = front.port
        return (*flags, f"--kafka.advertise=127.0.0.1:{front.port}")

    # ------------------------------------------------------------------ what may happen to them

    async def start(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Start a broker that does not run, and wait until it is ready.

        After `kill` that takes until its former lease has ended, or has been revoked by peers.
        """
        for door in self.doors(name):
            await door.start()
        await asyncio.to_thread(self.brokers[name].start, timeout_s=timeout_s)
        self._is_fit(name)

    def kill(self, *names: str) -> None:
        """SIGKILL to all of them at the same instant.

        Their addresses refuse connections from then on, as those of dead processes do.
        """
        for name in names:
            self.brokers[name].strike()
        for name in names:
            self._is_unfit(name)
            self.brokers[name].kill()
            for door in self.doors(name):
                door.refuse()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self._is_unfit(name)
        self.brokers[name].pause()

    def resume(self, name: str) -> None:
        """SIGCONT. A broker that was paused past its lease will end; see `revive`."""
        self.brokers[name].resume()

    async def drain(self, *names: str, timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
        """SIGTERM to all of them at once, and wait until they have left.

        Raises: SetupError: one did not leave in time, or left with an error; with its log.
        """
        for name in names:
            self._is_unfit(name)
            self.brokers[name].terminate()
        codes = await asyncio.gather(
            *[asyncio.to_thread(self.brokers[name].wait, timeout_s=timeout_s) for name in names]
        )
        for name, code in zip(names, codes, strict=True):
            if code:
                raise SetupError(
                    f"{name} exited with {code} when asked to leave; its log ends:\n"
                    f"{self.brokers[name].log_tail()}"
                )

    async def stop(self, name: str, *, grace_s: float) -> bool:
        """SIGTERM, and SIGKILL if it runs still after `grace_s` seconds, as Kubernetes ends a pod.

        Returns: whether it ended by itself, with exit code 0.
        """
        broker = self.brokers[name]
        self._is_unfit(name)
        broker.terminate()
        try:
            async with asyncio.timeout(grace_s):
                while not broker.has_ended:
                    await pass_time(_POLL_S)
        except TimeoutError:
            await asyncio.to_thread(broker.kill)
            return False
        return await asyncio.to_thread(broker.wait) == 0

    def isolate(self, *names: str) -> None:
        """Cut brokers off from etcd, and from the calls of clients and peers.

        What they send to peers themselves still arrives, which is harder on the others than
        silence: one that was primary goes on to replicate until its lease has ended.
        """
        for name in names:
            self._is_unfit(name)
            self.proxies.partition(self._doors_of(name))
            self.etcd_proxies.partition(self._etcd_proxies_of(name))

    async def heal(self) -> None:
        """Undo whatever was done to the network. Brokers that lost their lease will end."""
        await self.proxies.heal()
        await self.etcd_proxies.heal()

    async def heal_one(self, name: str) -> None:
        """The same for the network of one broker."""
        for door in self.doors(name):
            await door.heal()
        for proxied in self._etcd_proxies_of(name):
            await self.etcd_proxies[proxied].heal()

    async def revive(self, *, timeout_s: float = 60.0) -> list[str]:
        """Start every broker that has ended, whether it was made to or had lost its lease.

        From then on the address of the cluster may lead to any broker again.

        Returns: those that were started.
        """
        ended = [name for name, broker in self.brokers.items() if broker.has_ended]
        await self.start_again(ended, timeout_s=timeout_s)
        for name in self.names:
            self._is_fit(name)
        return ended

    async def start_again(self, names: Iterable[str], *, timeout_s: float = 60.0) -> None:
        """Start brokers that have ended, all at once, and wait until all are ready.

        Raises: SetupError: as `start`, when all others are ready or have failed too.
        """
        names = [*names]
        for name in names:
            self.kill(name)  # forget the process
        outcomes = await asyncio.gather(
            *[self.start(name, timeout_s=timeout_s) for name in names], return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _doors_of(self, name: str) -> list[str]:
        if not self._is_proxied:
            return []
        return [name, _gateway(name)] if self._has_kafka else [name]

    def _etcd_proxies_of(self, name: str) -> list[str]:
        """One before each member of etcd."""
        count = self._etcd.count(",") + 1
        return [name, *(f"{name} to {number}" for number in range(2, count + 1))]

    # ------------------------------------------------------------------ the balancer

    def _is_fit(self, name: str) -> None:
        self._unfit.discard(name)
        self._aim()

    def _is_unfit(self, name: str) -> None:
        self._unfit.add(name)
        self._aim()

    def _aim(self) -> None:
        """Let the front lead to the first broker that is fit."""
        fit = [name for name in self._started() if name not in self._unfit]
        if not fit:
            return
        upstream = ("127.0.0.1", self._port_of(fit[0]))
        if upstream != self._front.upstream:
            self._front.upstream = upstream
            self._front.reset()

    def _started(self) -> Iterable[str]:
        return [name for name, broker in self.brokers.items() if not broker.has_ended]

    def _port_of(self, name: str) -> int:
        return self.proxies[name].port if self._is_proxied else self.brokers[name].port
