"""Content that is missing before other content of a journal: who has it still, who waits for it, and how long.

A broker that had the journal before may still be persisting it, and so may the replicas of a primary that
crashed. A broker that leaves names in etcd the journals whose unstored content it holds: others cannot ask it
once its port is closed, nor find it once its member key is gone. A broker that has failed does the same, and
gives up its lease early, so that others need not wait for that to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Self, final

from gazette_platform.broker.etcd_records import storing_key, storing_prefix
from gazette_platform.broker.peers import PeerCall, PeerFailed, with_header
from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.fragment.cover_set import JUMP_AGE_S
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.lru import Lru
from gazette_platform.protocol import Header, Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Any

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.etcd import Lease
    from gazette_platform.fragment.index import Index
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import ProcessId

KNOWN_WAIT_S: Final = 5.0
"""Seconds that readers wait for content which other brokers are about to store."""

# Seconds after which missing content counts as lost, unless another broker says that it has it.
_LOST_S = 140.0
# Offsets of gaps that are remembered.
_OFFSETS_MAX = 1000
_REFRESH_S = 0.5


@final
class Gaps:
    """The gaps that reads have met at one replica.

    Brokers that had a journal store their content of it in any order. So later content may be in the
    store while another broker still holds what precedes it. A read must not end at such a gap as if
    the journal ended there.

    Nor may a read continue after the gap, as if the content had been pruned, before the other brokers
    were asked. Asking once is enough: what is appended from then on is here until it is stored. What
    they have held for hours counts as lost, as any other gap of that age does.

    Args:
        wait_s: seconds that a read waits.
        refresh: has the stores listed soon.
        may_come: whether content at an offset is still expected from anybody.
        ask: has other brokers store what they hold, and then the stores listed. Returns whether
            that is done.

    Attributes:
        others_end: other brokers may hold content below this offset that is in no store.
    """

    def __init__(
        self,
        journal: str,
        index: Index,
        *,
        wait_s: float,
        clock: Clock,
        tasks: TaskGroup,
        refresh: Callable[[], None],
        may_come: Callable[[int], bool],
        ask: Callable[[], Awaitable[bool]],
    ) -> None:
        self._journal = journal
        self._index = index
        self.wait_s = wait_s
        self._clock = clock
        self._tasks = tasks
        self._refresh = refresh
        self._may_come = may_come
        self._ask = ask
        self._is_asking = False
        self.others_end = sys.maxsize
        self._others_at = clock.monotonic()
        # Content of these offsets is gone for good, as our primary reported.
        self._gone_begin = self._gone_end = 0
        self._refresh_at = 0.0
        self._met_at: Lru[int, float] = Lru(_OFFSETS_MAX)

    def on_leap(self, begin: int) -> None:
        """Note that our spool goes on at `begin`: others hold what precedes, or stores do."""
        self.others_end = begin
        self._others_at = self._clock.monotonic()

    def on_commit(self, begin: int) -> None:
        """Note that our spool holds what is appended from `begin` on."""
        self.others_end = min(self.others_end, begin)

    def on_gone(self, begin: int, end: int) -> None:
        """Note that our primary reads on at `end` when asked for `begin`: all between is gone."""
        if begin <= self._gone_end and end >= self._gone_begin:
            begin, end = min(begin, self._gone_begin), max(end, self._gone_end)
        self._gone_begin, self._gone_end = begin, end

    def may_skip(self, offset: int) -> bool:
        """Whether content that is missing at `offset`, before stored content, is gone for good."""
        if self._gone_begin <= offset < self._gone_end >= self._index.summary.begin:
            return True
        return self._is_asked(offset) and not self._may_come(offset)

    def _is_asked(self, offset: int) -> bool:
        """Whether there is no need to ask other brokers about `offset` (any more)."""
        is_old = self._clock.monotonic() - self._others_at > JUMP_AGE_S
        return is_old or offset >= self.others_end

    async def wait_skip(self, offset: int) -> None:
        """Wait until content at `offset` has come, or may be skipped, or the replica closes.

        Reads that block do not wait longer than others: their clients would not learn why nothing
        comes.

        Raises: RpcFailed: UNAVAILABLE: it is still open; the caller is to ask again.
        Cancellation: safe.
        """
        index = self._index
        try:
            async with asyncio.timeout(self.wait_s):
                while not (self.may_skip(offset) or index.covers(offset, offset + 1)):
                    if not self._is_asked(offset):
                        self._ask_soon()
                    if not await index.wait_change():
                        return
        except TimeoutError as err:
            raise self.still_open(offset) from err

    def still_open(self, offset: int) -> RpcFailed:
        """The error while it is unknown whether content at `offset` is gone: ask again."""
        what = f"another broker may have content at {offset} that is not stored yet"
        return NotNow(f"{self._journal}: {what}")

    def _ask_soon(self) -> None:
        """Ask other brokers, unless that is under way: one question serves all readers."""
        if not self._is_asking:
            self._is_asking = True
            self._tasks.spawn(self._ask_others(), name=f"ask for {self._journal}")

    async def _ask_others(self) -> None:
        asked_end = self.others_end
        try:
            if not await self._ask():
                await asyncio.sleep(_REFRESH_S)
            elif asked_end == self.others_end:
                self.others_end = 0
        except Exception:
            await asyncio.sleep(_REFRESH_S)  # the reads that wait will ask again
            raise
        finally:
            self._is_asking = False
            self._index.wake()

    async def wait(self, offset: int, *, noted_head: int = 0) -> bool:
        """Wait for content at `offset`, which lies before content that is known.

        Args:
            noted_head: where the journal's spec says that it goes on. One that was suspended may have
                been pruned up to there: then nothing comes once the other brokers were asked.

        Returns: whether it has come; False: it is lost, or the replica closes.
        Raises: RpcFailed: UNAVAILABLE: it did not come in time; the caller is to ask again.
        Cancellation: safe.
        """
        if self._index.summary.end <= offset < noted_head:
            await self.wait_skip(offset)
            return self._index.covers(offset, offset + 1)
        met_at = self._met_at.get(offset)
        if met_at is None:
            met_at = self._clock.monotonic()
            self._met_at.put(offset, met_at)
        return await self.wait_listed(offset, lost_at=met_at + _LOST_S)

    async def wait_listed(self, offset: int, *, lost_at: float = math.inf) -> bool:
        """Wait until a listing shows content at `offset`; have the stores listed often meanwhile.

        Args:
            lost_at: monotonic seconds. From then on the content counts as lost, unless another broker
                says that it has it: its store may have been full for hours.

        Returns, Raises, Cancellation: as `wait`.
        """
        index, now = self._index, self._clock.monotonic
        try:
            async with asyncio.timeout(self.wait_s):
                while not index.covers(offset, offset + 1):
                    if now() > lost_at:
                        if offset >= self.others_end:
                            return False
                        self._ask_soon()
                    if now() >= self._refresh_at:
                        self._refresh_at = now() + _REFRESH_S
                        self._refresh()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REFRESH_S):
                            if not await index.wait_change():
                                return False
        except TimeoutError as err:
            what = f"another broker has content at {offset} that is not stored yet"
            raise NotNow(f"{self._journal}: {what}") from err
        return True


# A replica looks for that content in the stores so many seconds after its spool began.
_REFRESHES_S = tuple(accumulate((0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 30, 60)))


@final
class Hole:
    """The hole before the spool of one replica. It opens once, with each spool that begins elsewhere.

    Once its content was seen in a store it is closed for good. What is missing there from then on was
    pruned, and no broker is about to store it: to wait for that would hold up reads for minutes.

    Attributes:
        end: where the spool began, while the hole is open; else 0.
    """

    def __init__(self, index: Index, clock: Clock) -> None:
        self.end = 0
        self._began_at = -math.inf
        self._index = index
        self._clock = clock

    def begin(self, end: int) -> None:
        """Note that a spool begins at offset `end`, after all that is known."""
        self.end = end
        self._began_at = self._clock.monotonic()

    def look(self) -> None:
        """See whether it has closed. To be called whenever more is known to be stored."""
        if self.end > 0 and not self.is_open:
            self.end = 0

    @property
    def is_open(self) -> bool:
        """Whether its content is neither here nor known to be in a store."""
        # Its last byte is enough to know: content before that may have been pruned.
        return self.end > 0 and not self._index.covers(self.end - 1, self.end)

    @property
    def is_filling(self) -> bool:
        """Whether it is open, and its content is expected still.

        If that takes minutes, reads stop waiting for content that no replica says it has.
        """
        return self.refresh_s() < math.inf and self.is_open

    def refresh_s(self) -> float:
        """Seconds until stores are listed for its content; infinity: never again."""
        age_s = self._clock.monotonic() - self._began_at
        return next((at_s - age_s for at_s in _REFRESHES_S if at_s > age_s), math.inf)


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
    leases = {one.lease for one in leaving}
    return all(
        answer or lease in leases for answer, lease in zip(answers, asked.values(), strict=True)
    )


async def settle_holders(
    context: BrokerContext,
    journal: str,
    settle_own: Callable[[bool], Awaitable[bool]],
    list_stores: Callable[[], Awaitable[bool]],
    *,
    gives_up: bool,
) -> bool:
    """Have all brokers store what they hold of a journal, then list it.

    If an operator gives up what no holder can prove, spools may have different bytes at the same offsets. So one
    broker follows the other, the one with the furthest spool first: what is stored first is the journal's, and what
    contradicts it is set aside.

    Args:
        settle_own: stores what we hold; its argument is `gives_up`. Returns whether that is done.
        list_stores: shows readers what is stored by now. Returns whether that is done.

    Returns: whether all that can be asked are done.
    Cancellation: safe.
    """
    own, ends = context.process_id, {context.process_id: 0}
    if gives_up:
        ends = await spool_ends(context, journal)
    for member in sorted(ends, key=lambda member: (-ends[member], member != own)):
        if member == own:
            is_done = await settle_own(gives_up)
        else:
            is_done = await ask_other(context, journal, member, gives_up=True)
        if not is_done or (gives_up and not await list_stores()):
            return False
    return await ask_others(context, journal, gives_up=gives_up) and await list_stores()


async def spool_ends(context: BrokerContext, journal: str) -> dict[ProcessId, int]:
    """Ask all brokers how far the spools go that a reset would store; 0: as far as none. Cancellation: safe."""
    own = context.process_id
    others = [member for member in context.space.state.members if member != own]
    ends = await asyncio.gather(*(_ask_end(context, journal, member) for member in others))
    return {own: context.leftovers.end_of(journal), **dict(zip(others, ends, strict=True))}


async def _ask_end(context: BrokerContext, journal: str, member: ProcessId) -> int:
    """How far the spools of a broker go that a reset would store; 0: it does not say."""
    state = context.space.state
    known = state.members.get(member)
    if known is None:
        return 0
    header = Header(member, state.route_of(journal), context.space.header)
    request = admin_pb.FlushRequest(journal=journal, asks_end=True)
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            _, raw = await call_flush(context, known.spec.endpoint, request, header)
    except (RpcFailed, TimeoutError) as err:
        _log.info("%s: broker %s does not say how far its spools go: %s", journal, member.name, err)
        return 0
    return admin_pb.FlushResponse.FromString(raw).end


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
