"""Forwards calls to the broker that is to answer them, in bytes both ways.

A request goes on with our header, which says what we know of the route and of etcd, and which broker
we mean. That broker catches up with our revision of etcd before it resolves the journal itself, so
that two brokers never send a call back and forth.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, final

from gazette_platform.broker.wire.forwarder import PeerCall, PeerFailed, with_header
from gazette_platform.client.transport import pick_endpoint
from gazette_platform.errors import TransportError
from gazette_platform.protocol import Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import (
    CANNOT_REACH,
    Code,
    Condition,
    RpcFailed,
    brief_details,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolution, Resolver
    from gazette_platform.broker.wire.forwarder import PeerMessages
    from gazette_platform.protocol import Header
    from gazette_platform.serving.interface import ContentSource, Send

__all__ = ["PrimaryNotReached", "Proxy"]

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
        route, meant = header.route, header.process_id
        if meant is not None:
            endpoint = route.endpoint_of(meant)
        else:
            endpoint = pick_endpoint(
                route,
                self._context.process_id.zone,
                primary=False,
                condition=lambda peer: self._condition(peer, passing_over),
                leaves_zone=True,
            )
        if not endpoint:
            who = f"broker {str(meant).strip()}" if meant is not None else "each replica"
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
