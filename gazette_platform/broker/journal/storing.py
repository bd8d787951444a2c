"""Content that other brokers have yet to store: how a broker says so in etcd, and how others ask for it.

A broker that had the journal before may still be persisting it, and so may the replicas of a primary that crashed. A
broker that leaves names in etcd the journals whose unstored content it holds: others cannot ask it once its port
is closed, nor find it once its member key is gone. A broker that has failed does the same, and gives up its lease
early, so that others need not wait for that to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from gazette_platform.broker.etcd_records import storing_key, storing_prefix
from gazette_platform.broker.peers import PeerCall, PeerFailed, with_header
from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.ops.retry import backoff_s
from gazette_platform.protocol import Header, Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Any

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.etcd import Lease
    from gazette_platform.protocol import ProcessId

_log = logging.getLogger(__name__)

# A longer list would be a burden to etcd, which takes values of some 1.5 MB, and to all who read it.
_VALUE_BYTES_MAX = 32 << 10

# Seconds between two looks at what is still to be stored.
_LOOK_S = 1.0

_REVOKE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Unstored:
    """What a leaving broker says of itself.

    The value in etcd has one line for the lease and one for each journal. If there are too many
    journals to name, the value is empty, which stands for any journal.
    """

    lease: int
    """That of its member key, which differs from one instance of a broker to the next; 0: unknown."""
    journals: frozenset[str] | None
    """Those whose unstored content it may hold; None: it may be any."""

    def encode(self) -> bytes:
        """The value in etcd."""
        if self.journals is None:
            return b""
        lines = (f"{self.lease:x}", *sorted(self.journals))
        value = "".join(f"{line}\n" for line in lines).encode()
        return value if len(value) <= _VALUE_BYTES_MAX else b""

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a value. One that is not understood stands for any journal."""
        lease, *journals = value.decode(errors="replace").split("\n")
        try:
            return cls(int(lease, 16), frozenset(filter(None, journals)))
        except ValueError:
            return cls(0, None)

    def may_have(self, journal: str) -> bool:
        """Whether the broker may hold content of a journal that is in no store."""
        return self.journals is None or journal in self.journals


@contextlib.asynccontextmanager
async def still_storing(
    context: BrokerContext, resolver: Resolver[Any], lease: int
) -> AsyncGenerator[asyncio.Event]:
    """Say in etcd, within this block, that this broker still stores content and cannot be asked.

    Other brokers may have taken its journals by then. Because of what it says, they report to no one
    meanwhile that all content is stored, or pruned. Etcd may be away at that moment: if it is away for
    longer than a lease, all brokers fail at once. So this tries again for as long as it takes.

    Args:
        lease: that of our member key.

    Gives: an event that is set once it is said. No step of leaving should wait long for it.
    """
    storing = _Storing(context, resolver, lease)
    saying = context.tasks.spawn(storing.run(), name="storing")
    try:
        yield storing.said
    finally:
        saying.cancel()
        await storing.end()


@final
class _Storing:
    def __init__(self, context: BrokerContext, resolver: Resolver[Any], member_lease: int) -> None:
        self._context = context
        self._resolver = resolver
        self._member_lease = member_lease
        self._lease: Lease | None = None
        self._value: bytes | None = None
        self.said = asyncio.Event()

    async def run(self) -> None:
        """Say it, and again whenever it changes or etcd has lost it, until cancelled."""
        failures = 0
        while True:
            try:
                await self._say()
            except EtcdError as err:
                _log.warning("others may take what this broker still stores for lost: %s", err)
                await asyncio.sleep(backoff_s(failures))
                failures += 1
            else:
                failures = 0
                self.said.set()
                await asyncio.sleep(_LOOK_S)

    async def end(self) -> None:
        """Take back what was said."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(EtcdError):  # the lease ends by itself
                await lease.revoke(timeout_s=_REVOKE_TIMEOUT_S)

    async def _say(self) -> None:
        """Write what we hold to etcd, if that has changed. Raises: EtcdError."""
        etcd, config = self._context.etcd, self._context.config
        if self._lease is None:
            self._value = None
            self._lease = await etcd.grant_lease(max(1, round(config.etcd_lease_s)))
            self._context.tasks.spawn(self._keep(self._lease), name="storing lease")
        lease = self._lease
        # The list never grows: journals with an open replica are named even while they have no content.
        journals = frozenset(self._resolver.open_journals | self._context.persister.journals)
        value = Unstored(self._member_lease, journals).encode()
        if value != self._value:
            key = storing_key(config.etcd_prefix, self._context.process_id, lease.id)
            await etcd.put(key, value, lease=lease.id)
            self._value = value

    async def _keep(self, lease: Lease) -> None:
        with contextlib.suppress(LeaseLost):
            await lease.keep_alive()
        if self._lease is lease:
            self._lease = None  # lost: `run` says it again under a new one


_FLUSH = "/gazette_platform.Admin/Flush"

# Seconds to wait for an answer. A broker that takes longer, or hangs, is asked again.
_ASK_TIMEOUT_S = 10.0

# Values of leaving brokers that are read at a time: some 2 MB together.
_PAGE_KEYS = 64


async def ask_others(context: BrokerContext, journal: str, *, gives_up: bool = False) -> bool:
    """Ask all other brokers once to store what they hold of a journal.

    Args:
        gives_up: whether they store also what is known of a holder that is not whole.

    Returns: whether none of them holds content that is in no store. Whatever the stores lack then
        was pruned, or only brokers have it that are not members now.
    Cancellation: safe.
    """
    members = context.space.state.members.items()
    asked = {who: member.lease for who, member in members if who != context.process_id}
    answers = await asyncio.gather(
        *(ask_other(context, journal, who, gives_up=gives_up) for who in asked)
    )
    try:
        # Read after the members were: a broker that fails says so before it ceases to be a member.
        prefix = storing_prefix(context.config.etcd_prefix)
        found = await context.etcd.range(prefix, page_keys=_PAGE_KEYS)
    except EtcdError as err:
        _log.warning("%s: who still stores content of it is not known: %s", journal, err)
        return False
    leaving = [Unstored.decode(kv.value) for kv in found.kvs]
    if any(one.may_have(journal) for one in leaving):
        return False
    # A leaving broker does not answer any more. It has said what it holds, and gets nothing new.
    told = {one.lease for one in leaving}
    return all(
        answer or lease in told for answer, lease in zip(answers, asked.values(), strict=True)
    )


async def ask_other(
    context: BrokerContext, journal: str, member: ProcessId, *, gives_up: bool = False
) -> bool:
    """Ask a broker to persist what it holds of a journal; a primary closes its open fragment for that.

    Returns: whether it holds nothing more that is in no store.
    Cancellation: safe.
    """
    state = context.space.state
    known = state.members.get(member)
    if known is None:
        return True  # it left after it had persisted all, or it crashed and cannot be asked
    header = Header(member, state.route_of(journal), context.space.header)
    request = admin_pb.FlushRequest(journal=journal, gives_up=gives_up)
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            status, _ = await call_flush(context, known.spec.endpoint, request, header)
    except RpcFailed as err:
        # Gazette's brokers do not know this call. They persist what they have within minutes.
        return err.code is Code.UNIMPLEMENTED
    except TimeoutError:
        return False
    return status in (Status.OK, Status.NOT_JOURNAL_PRIMARY_BROKER)


async def call_flush(
    context: BrokerContext, endpoint: str, request: admin_pb.FlushRequest, header: Header
) -> tuple[Status, bytes]:
    """Send a Flush to the broker that `header` means.

    Returns: the status of the FlushResponse, and the response.
    Raises: RpcFailed.
    Cancellation: safe.
    """
    needed = Capability.APPEND | (Capability.APPLY if request.gives_up else 0)
    call = PeerCall(context.peers, endpoint, _FLUSH, Capability(needed), request.journal)
    try:
        raw = await call.unary(with_header(request, header))
    except PeerFailed as err:
        raise RpcFailed(err.code, f"broker {endpoint}: {err.text}") from err
    return Status.from_wire(admin_pb.FlushResponse.FromString(raw).status), raw
