"""Probes of other brokers' ports, and the eviction of those that crashed: does what `eviction.CrashWatch` decides."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

from gazette_platform.broker.crash import eviction as fsm
from gazette_platform.broker.etcd_records import testimonies_prefix, testimony_key, witness_of
from gazette_platform.errors import EtcdError
from gazette_platform.etcd import Compare, EtcdRejected, Get, Operation, Put
from gazette_platform.keyspace import member_key
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from prometheus_client import Counter

    from gazette_platform.etcd import EtcdClient, TxnResult
    from gazette_platform.keyspace import BrokerState, KeySpace, Member
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import ProcessId


_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 0.5
# At most this many addresses of one host name are tried.
_ADDRESSES_MAX = 4
# Seconds after which we look again for what is due, at the latest.
_IDLE_S_MAX = 1.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Sockets are closed by a reset, which leaves none behind in TIME_WAIT.
_LINGER_RESET = struct.pack("ii", 1, 0)


async def look(endpoint: str, *, timeout_s: float = _CONNECT_TIMEOUT_S) -> fsm.Seen:
    """Connect to a broker's endpoint over plain TCP, and close.

    Args:
        endpoint: http or https URL.
        timeout_s: seconds for all addresses of its host.

    Returns: ACCEPTED if one address accepts; REFUSED if all say ECONNREFUSED; else UNCLEAR.
    Cancellation: safe.
    """
    url = urlsplit(endpoint)
    loop = asyncio.get_running_loop()
    outcomes: list[fsm.Seen] = []
    try:
        port = url.port or _DEFAULT_PORTS[url.scheme]
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, address in found[:_ADDRESSES_MAX]:
                with socket.socket(family, kind, protocol) as sock:
                    sock.setblocking(False)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                    outcomes.append(await _connect(sock, address))
                # One address that accepts, or stays unclear, is enough to leave the broker alone: a
                # wrong eviction costs more than a late one.
                if outcomes[-1] is not fsm.Seen.REFUSED:
                    return outcomes[-1]
    except (OSError, TimeoutError, KeyError, ValueError):
        return fsm.Seen.UNCLEAR
    return fsm.Seen.REFUSED if outcomes else fsm.Seen.UNCLEAR


async def _connect(sock: socket.socket, address: object) -> fsm.Seen:
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)  # type: ignore[arg-type]
    except ConnectionRefusedError:
        return fsm.Seen.REFUSED
    return fsm.Seen.ACCEPTED


@final
class Evictor:
    """The crash watch of one broker, for as long as `run` runs.

    Args:
        space: loaded already, and watched by another task.
        after_s: seconds for which a peer has to refuse connections.
        evicted: counts the leases that we had revoked.
    """

    def __init__(
        self,
        etcd: EtcdClient,
        space: KeySpace[BrokerState],
        process_id: ProcessId,
        *,
        after_s: float,
        clock: Clock,
        evicted: Counter,
        faults: Faults | None = None,
    ) -> None:
        self._etcd = etcd
        self._space = space
        self._id = process_id
        self._clock = clock
        self._evicted = evicted
        self._watch = fsm.CrashWatch(process_id, after_s=after_s)
        self._wake = asyncio.Event()
        self._is_changed = True
        self._faults = faults or Faults()
        self._work = TaskGroup("crash watch", faults=self._faults)
        space.observe(self._on_change)

    def hint(self, endpoint: str) -> None:
        """Look at `endpoint` at once, since a call to it failed."""
        self._step(fsm.Hinted(endpoint))
        self._wake.set()

    async def run(self) -> None:
        """Look at peers until cancelled. It never fails: without etcd, leases end by themselves.

        Cancellation: takes nothing back; our testimonies end with our lease.
        """
        try:
            while True:
                if self._is_changed:
                    self._step(fsm.MembersChanged(self._peers()))
                    self._is_changed = False  # only now: after a fault, members are reported again
                self._step(fsm.Ticked())
                due_at = self._watch.next_due()
                now = self._clock.monotonic()
                # A look may be overdue because too many others are under way. This loop must not
                # spin until one of them ends.
                pause_s = None if due_at is None else max(0.01, min(_IDLE_S_MAX, due_at - now))
                self._wake.clear()
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            work, self._work = self._work, TaskGroup("crash watch", faults=self._faults)
            await work.close()

    def _on_change(self) -> None:
        if self._space.state.changes.members:
            self._is_changed = True
            self._wake.set()

    def _peers(self) -> tuple[fsm.Peer, ...]:
        return tuple(_peer(who, member) for who, member in self._space.state.members.items())

    def _step(self, event: fsm.Event) -> None:
        for effect in self._watch.step(event, self._clock.monotonic()):
            self._work.spawn(self._perform(effect), name=type(effect).__name__)

    async def _perform(self, effect: fsm.Effect) -> None:
        event: fsm.Event
        try:
            match effect:
                case fsm.Connect(peer):
                    event = fsm.Connected(peer, await look(peer.endpoint))
                case fsm.Accuse(peer):
                    event = await self._testify(peer)
                case fsm.Withdraw(peer):
                    await self._withdraw(peer)
                    return
                case fsm.Evict():
                    event = await self._evict(effect)
        except EtcdError as err:
            _log.warning("cannot report the crash of broker %s: %s", effect.peer.id.name, err)
            event = fsm.Unheard(effect.peer)
        except Exception as err:  # noqa: BLE001  reported
            self._faults.report("peer", f"crash watch of {effect.peer.id.name}", err)
            event = fsm.Unheard(effect.peer)
        self._step(event)
        self._wake.set()

    # --------------------------------------------------------------------------------- etcd

    async def _testify(self, peer: fsm.Peer) -> fsm.Event:
        """Write our testimony and read all others in one transaction, so that all are of one moment."""
        prefix = self._space.prefix
        # Without a lease there is nothing to testify under; and we may be the one that is cut off.
        own = self._space.state.members.get(self._id)
        if own is None:
            return fsm.Refuted(peer)
        key = testimony_key(prefix, peer.id, peer.create_revision, self._id)
        everyone = testimonies_prefix(prefix, peer.id, peer.create_revision)
        # Under our own lease: the testimony of a witness that is gone ends with it.
        result = await self._txn(
            [self._is_unchanged(peer), self._is_own(own)],
            [Put(key, b"", lease=own.lease), Get(everyone, prefix=True)],
        )
        if result is None:
            return fsm.Refuted(peer)
        found = {witness_of(kv.key): kv.mod_revision for kv in result.reads[0].kvs}
        return fsm.Accused(peer, result.header.revision, found)

    async def _withdraw(self, peer: fsm.Peer) -> None:
        key = testimony_key(self._space.prefix, peer.id, peer.create_revision, self._id)
        await self._etcd.delete(key)

    async def _evict(self, verdict: fsm.Evict) -> fsm.Event:
        peer, witness = verdict.peer, verdict.witness
        own = self._space.state.members.get(self._id)
        # The looks come before etcd is asked: a broker that leaves says so before it closes its port.
        # If the witness refuses us as well, it is our own network that refuses everything.
        if await look(witness.endpoint) is not fsm.Seen.ACCEPTED:
            return fsm.Refuted(peer)
        if await look(peer.endpoint) is not fsm.Seen.REFUSED or own is None:
            return fsm.Refuted(peer)
        prefix = self._space.prefix

        def testimony(of: ProcessId) -> str:
            return testimony_key(prefix, peer.id, peer.create_revision, of)

        agreed = await self._txn(
            [
                self._is_unchanged(peer),
                Compare.create(member_key(prefix, peer.id), peer.create_revision),
                # What is revoked below is a lease, so etcd has to say that it is still that of this
                # peer.
                Compare.lease_is(member_key(prefix, peer.id), peer.lease),
                self._is_own(own),
                Compare.create(member_key(prefix, witness.id), witness.create_revision),
                Compare.mod(testimony(self._id), verdict.own_revision),
                # The witness may have renewed its testimony since, but not withdrawn it.
                Compare.lease_is(testimony(witness.id), witness.lease),
            ],
            [Get(member_key(prefix, peer.id))],
        )
        if agreed is None:
            return fsm.Refuted(peer)
        # A transaction cannot revoke a lease. Between the two, the peer may announce its exit or
        # end: etcd never grants a lease twice, so a late revocation hits no other instance.
        await self._etcd.revoke_lease(peer.lease)
        self._evicted.inc()
        _log.warning(
            "broker %s has crashed: %s refuses connections, as broker %s sees, too; its lease is "
            "revoked",
            *(peer.id.name, peer.endpoint, witness.id.name),
        )
        return fsm.Evicted(peer)

    def _is_unchanged(self, peer: fsm.Peer) -> Compare:
        """Holds for the instance that we mean, until it announces that it exits."""
        return Compare.mod(member_key(self._space.prefix, peer.id), peer.mod_revision)

    def _is_own(self, own: Member) -> Compare:
        """Holds while we are a member ourselves."""
        return Compare.create(member_key(self._space.prefix, self._id), own.create_revision)

    async def _txn(self, compares: list[Compare], operations: list[Operation]) -> TxnResult | None:
        """Make a transaction. Returns: None if a comparison failed, or our own lease is gone."""
        try:
            result = await self._etcd.txn(compares, operations)
        except EtcdRejected as err:
            _log.info("crash watch: %s", err)
            return None
        return result if result.succeeded else None


def _peer(process_id: ProcessId, member: Member) -> fsm.Peer:
    return fsm.Peer(
        process_id,
        member.create_revision,
        member.mod_revision,
        member.lease,
        member.spec.endpoint,
        member.spec.exiting,
    )
