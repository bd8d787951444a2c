"""From a call to the replica that answers it, here or at another broker.

A request is decoded and held against its rules, and its journal is resolved to the broker that is to answer.
`service` has checked before that the caller may make such a call at all.

If that is another broker, the request goes on in bytes, with our header, which says what we know of the route and of
etcd, and which broker we mean. That broker catches up with our revision of etcd before it resolves the journal
itself, so two brokers never send a call back and forth.

`wait_known` keeps a new primary from naming an end before it has asked its replicas: they may hold more.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple, TypeVar, final

from google.protobuf.message import Message

from gazette_platform.broker.journal.gaps import KNOWN_WAIT_S
from gazette_platform.broker.peers import PeerCall, PeerFailed, with_header
from gazette_platform.client.transport import pick_endpoint
from gazette_platform.errors import TransportError, ValidationError
from gazette_platform.protocol import Header, Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import (
    ASK_ANOTHER,
    CANNOT_REACH,
    Code,
    Condition,
    NotNow,
    RpcFailed,
    brief_details,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolution, Resolver
    from gazette_platform.broker.peers import PeerMessages
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.protocol.pb import admin_pb2 as admin_pb
    from gazette_platform.serving.interface import ContentSource, Send

    Routed = (
        pb.AppendRequest
        | pb.ReadRequest
        | pb.FragmentsRequest
        | admin_pb.FlushRequest
        | admin_pb.ResetHeadRequest
    )


M = TypeVar("M", bound=Message)


@contextlib.contextmanager
def rules(field: str = "") -> Iterator[None]:
    """Hold a request against its rules within this block.

    Args:
        field: of the request, if the rules are those of one field; errors name it.

    Raises: RpcFailed: in place of ValidationError.
    """
    try:
        yield
    except ValidationError as err:
        raise RpcFailed(Code.UNKNOWN, str(err.within(field) if field else err)) from err


def decode(kind: type[M], raw: bytes, validate: Callable[[M], None]) -> M:
    """A request that keeps its rules.

    Raises: RpcFailed: it breaks a rule. DecodeError: the bytes are no such request.
    """
    request = kind.FromString(raw)
    with rules():
        validate(request)
    return request


class Found(NamedTuple):
    """Who answers a call about a journal.

    Attributes:
        status: OK if some broker serves it.
        replica: ours, if we serve it; None: another broker does (`is_remote`), or none.
    """

    resolution: Resolution
    status: Status
    replica: Replica | None

    @property
    def is_remote(self) -> bool:
        """Whether another broker serves the call."""
        return self.status is Status.OK and self.resolution.is_remote


async def find(
    resolver: Resolver[Replica],
    request: Routed,
    claims: Claims,
    *,
    may_proxy: bool,
    require_primary: bool,
    min_revision: int = 0,
) -> Found:
    """Find out who answers a request, once our view of etcd is as new as the request asks for.

    All arguments are those of `Resolver.resolve`.

    Raises: RpcFailed: the broker that forwarded it means another cluster or process, or we stopped.
    Cancellation: safe.
    """
    resolution = await resolver.resolve(
        request.journal,
        may_proxy=may_proxy,
        require_primary=require_primary,
        min_revision=min_revision,
        proxy_header=Header.from_pb(request.header) if request.HasField("header") else None,
        claims=claims,
    )
    return found_of(resolver, resolution, require_primary=require_primary)


async def find_readable(
    resolver: Resolver[Replica],
    request: pb.ReadRequest | pb.FragmentsRequest,
    claims: Claims,
    *,
    min_revision: int = 0,
) -> Found:
    """Like `find`, for a journal's content: any replica answers, unless the spec forbids to read."""
    found = await find(
        resolver,
        request,
        claims,
        may_proxy=not request.do_not_proxy,
        require_primary=False,
        min_revision=min_revision,
    )
    spec = found.resolution.spec
    if found.status is Status.OK and spec is not None and not spec.flags.may_read:
        return found._replace(status=Status.NOT_ALLOWED, replica=None)
    return found


def found_of(
    resolver: Resolver[Replica], resolution: Resolution, *, require_primary: bool = False
) -> Found:
    """Who answers, according to a resolution."""
    status = resolution.status
    replica = resolver.replicas.get(resolution.journal) if resolution.is_local else None
    if resolution.is_local and replica is None:
        # It was unassigned after it was resolved, or its replica could not be begun yet.
        primary, any_one = Status.NOT_JOURNAL_PRIMARY_BROKER, Status.NOT_JOURNAL_BROKER
        status = primary if require_primary else any_one
    return Found(resolution, status, replica)


def endpoint_of(found: Resolution) -> str:
    """Where the broker is that serves a call. Raises: RpcFailed: UNAVAILABLE: it has no endpoint."""
    header = found.header
    endpoint = header.route.endpoint_of(header.process_id) if header.process_id else ""
    if not endpoint:
        raise NotNow(f"{found.journal}: its primary has no endpoint")
    return endpoint


_SERVICE = "/protocol.Journal/"

# Seconds for which we keep the connection to a broker that left, since it may still finish calls.
_KEEP_S = 30.0


class PrimaryNotReached(TransportError):
    """The primary accepts no connection. It is probably dead, and etcd will notice."""


@final
class Proxy:
    """Calls of one broker to others, on behalf of its clients."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica]) -> None:
        self._context = context
        self._peers = context.peers
        self._resolver = resolver
        self._state = context.space.state
        self._reads: set[PeerMessages] = set()
        self._is_stopped = False
        self._known: frozenset[str] = frozenset()
        self._left_at: dict[str, float] = {}
        context.space.observe(self._on_change)

    def stop_reads(self) -> None:
        """End forwarded reads without an error, so that their clients turn to another broker."""
        self._is_stopped = True
        for responses in self._reads:
            responses.cancel()

    # ------------------------------------------------------------------------------------ whom
    def better_placed(self, replica: Replica, offset: int) -> Resolution | None:
        """The primary, if it may have content at `offset` that our replica does not know of.

        That is so until the stores are listed and the primary has synced with us. Afterwards, content
        that was committed before may still be in no store, or in none that was listed since.

        Args:
            offset: of the journal; -1 is the write head.

        Returns: where the primary is; None: we know as much as it does.
        """
        if replica.is_primary:
            return None
        index = replica.index
        if replica.is_synced and index.first_refresh.is_set():
            head = index.summary.end
            at = head if offset < 0 else offset
            if at >= max(head, replica.spool.spool.end):
                return None
        found = self._resolver.resolve_now(replica.name, may_proxy=True, require_primary=True)
        return found if found.is_remote else None

    def _endpoint(self, header: Header, *, passing_over: frozenset[str] = frozenset()) -> str:
        """Where to send a call: to the process that the header means, else to the nearest replica.

        Raises: RpcFailed: etcd has no endpoint of it.
        """
        route, recipient = header.route, header.process_id
        if recipient is not None:
            endpoint = route.endpoint_of(recipient)
        else:
            endpoint = pick_endpoint(
                route,
                self._context.process_id.zone,
                primary=False,
                condition=lambda peer: self._condition(peer, passing_over),
                leaves_zone=True,
            )
        if not endpoint:
            who = f"broker {str(recipient).strip()}" if recipient is not None else "each replica"
            raise RpcFailed(
                Code.UNAVAILABLE, f"{who} has no endpoint in etcd (it left, or is about to)"
            )
        return endpoint

    def _condition(self, peer: str, passing_over: frozenset[str]) -> Condition:
        """What is known of the connection to a peer, and that one that was passed over is the last choice."""
        if peer in passing_over:
            return Condition.FAILED
        found = self._peers.condition(peer)
        return Condition.UNKNOWN if passing_over and found is Condition.FAILED else found

    # ---------------------------------------------------------------------------------- append
    async def append(
        self, request: pb.AppendRequest, content: ContentSource, found: Resolution
    ) -> tuple[Status, bytes]:
        """Forward an append to the primary, message by message.

        Args:
            request: the first message.
            content: the messages that follow it.

        Returns: the status, and the AppendResponse of the other broker.
        Raises: PrimaryNotReached: nothing was taken of `content`, and nothing was sent.
            RpcFailed: the other broker failed it, with its code and text, or `content` failed.
        Cancellation: reaches the other broker, which rolls back.
        """
        call = self._call(self._endpoint(found.header), "Append", Capability.APPEND, found.journal)
        first = with_header(request, found.header)
        try:
            raw = await call.client_stream(first, content, self._context.tasks)
        except PeerFailed as err:
            failure = _told(err)
            if failure.code is Code.UNAVAILABLE and not err.is_begun:
                raise PrimaryNotReached(failure.text) from err
            raise failure from err
        return Status.from_wire(pb.AppendResponse.FromString(raw).status), raw

    # ------------------------------------------------------------------------------------ read
    async def read(
        self, request: pb.ReadRequest, header: Header, send: Send, *, is_begun: bool = False
    ) -> None:
        """Forward a read to the process that the header means, or to any replica.

        A replica that cannot be reached is passed over for another, if there is one.

        Sends ReadResponses as they come, and ends without an error when this broker stops.

        Args:
            is_begun: whether the client has had a response. Only the first one may have a header.

        Raises: RpcFailed: the other broker failed it, with its code and text.
        Cancellation: reaches the other broker.
        """
        forwarded = with_header(request, header)
        failed: frozenset[str] = frozenset()
        while not self._is_stopped:
            endpoint = self._endpoint(header, passing_over=failed)
            call = self._call(endpoint, "Read", Capability.READ, request.journal)
            try:
                with self._reading(call, forwarded) as responses:
                    while (raw := await responses.next()) is not None:
                        await send(raw if not is_begun else _without_header(raw))
                        is_begun = True
            except PeerFailed as err:
                failed |= {endpoint}
                has_more = header.process_id is None and not failed.issuperset(
                    filter(None, header.route.endpoints)
                )
                if err.code is not Code.UNAVAILABLE or is_begun or not has_more:
                    raise _told(err) from err
            else:
                return

    @contextlib.contextmanager
    def _reading(self, call: PeerCall, request: bytes) -> Generator[PeerMessages]:
        with call.server_stream(request) as responses:
            self._reads.add(responses)
            try:
                yield responses
            finally:
                self._reads.discard(responses)

    # ------------------------------------------------------------------------------- fragments
    async def list_fragments(
        self, request: pb.FragmentsRequest, header: Header
    ) -> tuple[Status, bytes]:
        """Forward a ListFragments to the process that the header means, or to any replica.

        Returns: the status, and the FragmentsResponse of the other broker.
        Raises: RpcFailed: the other broker failed it, with its code and text.
        Cancellation: reaches the other broker.
        """
        endpoint = self._endpoint(header)
        call = self._call(endpoint, "ListFragments", Capability.READ, request.journal)
        try:
            raw = await call.unary(with_header(request, header))
        except PeerFailed as err:
            raise _told(err) from err
        return Status.from_wire(pb.FragmentsResponse.FromString(raw).status), raw

    def _call(self, endpoint: str, name: str, capability: Capability, journal: str) -> PeerCall:
        return PeerCall(self._peers, endpoint, f"{_SERVICE}{name}", capability, journal)

    # ------------------------------------------------------------------------------ connections
    def _on_change(self) -> None:
        """Close connections to brokers some time after they left."""
        if not self._state.changes.members and not self._left_at:
            return
        now = self._context.clock.monotonic()
        known = frozenset(member.spec.endpoint for member in self._state.members.values())
        for endpoint in self._known - known:
            self._left_at[endpoint] = now
        self._known = known
        for endpoint, left_at in list(self._left_at.items()):
            if endpoint in known:
                del self._left_at[endpoint]
            elif now - left_at > _KEEP_S:
                del self._left_at[endpoint]
                self._context.tasks.spawn(self._peers.drop(endpoint), name=f"drop {endpoint}")


def _told(err: PeerFailed) -> RpcFailed:
    """The error that a client gets when a peer failed."""
    if err.code is not Code.UNAVAILABLE:
        return RpcFailed(err.code, err.text)
    return RpcFailed(err.code, f"{CANNOT_REACH}{err.endpoint}: {brief_details(err.text)}")


def _without_header(raw: bytes) -> bytes:
    """A response without the header, which only the first response to a client has."""
    if raw[:1] in _CONTENT_TAGS:
        return raw
    response = pb.ReadResponse.FromString(raw)
    response.ClearField("header")
    return response.SerializeToString()


# First bytes of responses that begin with an offset or content. No header follows these fields.
_CONTENT_TAGS = (b"\x18", b"\x3a")


# Seconds that a reader waits for a new primary to know a head no older than one it saw before.
_SYNC_WAIT_S = 1.0


async def wait_synced(replica: Replica) -> None:
    """Wait a moment for a new primary to hear from its replicas, which may know of more than it does.

    It waits no longer than that, because what it has can be read even while a replica is away.
    Code that reports the journal's end has to call `wait_known` first.

    Cancellation: safe.
    """
    if replica.is_primary and _is_to_sync(replica):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_WAIT_S):
                await _wait_synced(replica)


async def wait_known(replica: Replica, *, timeout_s: float, offset: int = -1) -> bool:
    """Wait until a primary has synced its replicas, us among them, and stores have what precedes ours.

    Before that, a read could end below content that was acknowledged, as if there were no more. That
    goes for a new replica, too: while the journal has no primary, reads cannot be forwarded.

    Args:
        timeout_s: seconds; 0: `KNOWN_WAIT_S`.
        offset: where a read goes on as soon as there is content, whatever else is not known; -1: nowhere.

    Returns: False: there is content at `offset`, and the rest may not be known yet.
    Raises: RpcFailed: UNAVAILABLE: it is not so yet, and the caller is to ask again; or we may not
        speak for the journal any more.
    Cancellation: safe.
    """
    index = replica.index

    def is_known() -> bool:
        if _is_to_sync(replica) or not index.first_refresh.is_set():
            return False
        # A read that continues after what is missing there does not need it: our spool has seen all since.
        return not replica.is_filling or offset >= replica.hole.end

    def look() -> None:
        index.wake()

    replica.watchers.add(look)
    try:
        async with asyncio.timeout(timeout_s or KNOWN_WAIT_S):
            while not is_known():
                if offset >= 0 and index.covers(offset, offset + 1):
                    return False
                if not await index.wait_change():
                    return True
    except TimeoutError as err:
        if _is_to_sync(replica):
            what = replica.awaiting or "its primary is new, and has not heard from all replicas yet"
        elif not index.first_refresh.is_set():
            what = "its stores are not listed yet (`gazctl journals store-health` says why)"
        elif replica.hole.end > replica.noted_head:
            what = f"another broker has content before {replica.hole.end} that is not stored yet"
        else:
            # The gap lies below the head that the spec notes. Maybe no broker has content to store
            # there: a journal that was suspended while it was empty looks the same.
            what = ""
        if what:
            raise NotNow(f"{replica.name}: {what}") from err
    finally:
        replica.watchers.discard(look)
    check_fence(replica)
    return True


def check_fence(replica: Replica) -> None:
    """Refuse to report where a journal ends if other brokers may have taken over, and acknowledged more.

    Raises: RpcFailed: UNAVAILABLE: we may not speak for the journal any more.
    """
    if replica.refusal:
        raise NotNow(f"{replica.name}: {replica.refusal}", ASK_ANOTHER)


def _is_to_sync(replica: Replica) -> bool:
    # A lone one, too: content may be in a spool of a broker that is away, or be about to be found here.
    return not replica.is_synced and not replica.is_closed


async def _wait_synced(replica: Replica) -> None:
    changed = asyncio.Event()
    replica.watchers.add(changed.set)
    try:
        while _is_to_sync(replica):
            changed.clear()
            await changed.wait()
    finally:
        replica.watchers.discard(changed.set)
