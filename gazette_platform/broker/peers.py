"""Calls to other brokers, in bytes: connections and tokens, forwarded calls, streams of Replicate.

A call carries our own token for its journal. If the peer or the connection fails it, the error is a `PeerFailed`. If
the client for whom it is made breaks off, the error is a plain `RpcFailed`. The texts of streams are Gazette's. The
broker imports no gRPC; `serving` has what makes and serves calls.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from gazette_platform.client.config import ClientConfig
from gazette_platform.client.wire import Authorizer
from gazette_platform.ops import tracing
from gazette_platform.ops.network import keepalive_options
from gazette_platform.protocol import endpoint_grpc_address
from gazette_platform.protocol.auth import Capability
from gazette_platform.serving.auth import http2_client_context
from gazette_platform.serving.config import Wire
from gazette_platform.serving.grpc_transport import GrpcChannel
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import PEER_LIMITS
from gazette_platform.serving.interface import Code, Condition, Kind, RpcFailed, go_spelling

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable, Generator

    from google.protobuf.message import Message

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Header, ProcessId
    from gazette_platform.serving.interface import ContentSource, OutgoingCall, OutgoingChannel

_log = logging.getLogger(__name__)

# Milliseconds between attempts to reach a peer that restarts, as in Gazette; and for one attempt.
_RECONNECT_MS_MAX = 500
_CONNECT_MS = 4000

# Pings while a call is open. Each has to be answered before the next one is due, but a busy machine
# is given a second at least.
_PINGS_PER_LEASE = 4
_PING_TIMEOUT_S_MIN = 1.0

# Next to no limit: a peer sends what it has of a journal.
_MESSAGE_BYTES_MAX = 1 << 30

# In the text of the error with which a server ends a connection, and all calls on it, because of
# pings without data between them. Our servers take any number. Those of Go take two in five minutes,
# by default.
_TOO_MANY_PINGS = "too many pings"


@final
class Peers:
    """One channel per peer endpoint, opened at first use.

    The scheme of the endpoint decides whether the peer speaks TLS. Keepalive notices a peer that froze
    within half a lease. If a peer does not stand pings, only the end of its lease shows that it froze.

    Raises: SetupError: a TLS file cannot be used. ValidationError: a key is malformed.
    """

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        tls = config.peer_tls.load()
        self._tls = tls
        self._tls_context: ssl.SSLContext | None = None
        self._authorizer = Authorizer(ClientConfig(auth_keys=config.auth_keys), clock)
        self._channels: dict[str, OutgoingChannel] = {}
        # Endpoints that are not pinged any more, with their former channels, which ping.
        self._unpinged: dict[str, OutgoingChannel] = {}
        self._observer: Callable[[str], None] | None = None

    def observe_failures(self, observer: Callable[[str], None]) -> None:
        """Call `observer` with the endpoint of each call that fails. There is one observer."""
        self._observer = observer

    def channel(self, endpoint: str) -> OutgoingChannel:
        """The channel to a peer.

        Args:
            endpoint: URL in its BrokerSpec.

        Raises: ValidationError: it is no such URL.
        """
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._open(endpoint)
            self._channels[endpoint] = channel
        return channel

    def _open(self, endpoint: str) -> OutgoingChannel:
        target, is_secure = endpoint_grpc_address(endpoint)
        pings = endpoint not in self._unpinged
        if self._config.wire is Wire.GRPC:
            tls = self._tls if is_secure else None
            return GrpcChannel(target, _options(self._config, pings=pings), tls)
        if is_secure and self._tls_context is None:
            self._tls_context = http2_client_context(self._tls)
        dialing = _dialing(self._config, pings=pings)
        return Channel(target, dialing, self._tls_context if is_secure else None)

    def condition(self, endpoint: str) -> Condition:
        """What is known of the connection to a peer. Opens no connection."""
        channel = self._channels.get(endpoint)
        return Condition.UNKNOWN if channel is None else channel.condition

    def metadata(self, capability: Capability, journal: str) -> tuple[tuple[str, str], ...] | None:
        """Metadata of a call to a peer: a token of ours for this journal; None without keys."""
        return self._authorizer.metadata(capability, journal)

    def on_failure(self, endpoint: str, details: str) -> None:
        """Note that a call to a peer failed. If that was because of our pings, it gets no more.

        Args:
            details: of the error.
        """
        if self._observer is not None:
            self._observer(endpoint)
        is_for_pings = _TOO_MANY_PINGS in details.lower().replace("_", " ")
        if is_for_pings and endpoint not in self._unpinged:
            channel = self._channels.pop(endpoint, None)
            if channel is not None:
                _log.info("broker at %s minds pings: it gets none any more", endpoint)
                self._unpinged[endpoint] = channel  # calls that just began may be on it

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The peers to which there are channels."""
        return tuple(self._channels)

    async def drop(self, endpoint: str) -> None:
        """Close the channel to a peer that left; calls under way are cancelled."""
        for channels in (self._channels, self._unpinged):
            channel = channels.pop(endpoint, None)
            if channel is not None:
                await channel.close()

    async def close(self) -> None:
        """Close every channel; calls under way are cancelled."""
        for endpoint in {*self._channels, *self._unpinged}:
            await self.drop(endpoint)


def _ping_times(config: BrokerConfig) -> tuple[float, float]:
    """Seconds between pings, and for the answer to one."""
    interval_s = config.etcd_lease_s / _PINGS_PER_LEASE
    return interval_s, max(_PING_TIMEOUT_S_MIN, interval_s)


def _dialing(config: BrokerConfig, *, pings: bool) -> Dialing:
    every_s, timeout_s = _ping_times(config)
    return Dialing(
        limits=PEER_LIMITS,
        message_bytes_max=_MESSAGE_BYTES_MAX,
        ping_every_s=every_s if pings else 0.0,
        ping_timeout_s=timeout_s,
        connect_s=_CONNECT_MS / 1000,
        backoff_s_max=_RECONNECT_MS_MAX / 1000,
    )


def _options(config: BrokerConfig, *, pings: bool) -> list[tuple[str, int]]:
    return [
        *(keepalive_options(*_ping_times(config)) if pings else ()),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.lookahead_bytes", PEER_LIMITS.stream_window),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.write_buffer_size", 1 << 20),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS_MAX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]


# What is sent without a wait. More would have to wait for room anyway.
_SMALL_BYTES_MAX: Final = 64 << 10


class PeerFailed(RpcFailed):
    """A peer could not be reached, left, or refused a call.

    Attributes:
        endpoint: of the peer.
        is_begun: whether the peer may have got any part of the call.
    """

    def __init__(self, err: RpcFailed, endpoint: str, *, is_begun: bool) -> None:
        super().__init__(err.code, err.text)
        self.endpoint = endpoint
        self.is_begun = is_begun


def with_header(request: Message, header: Header) -> bytes:
    """A request as it is forwarded, with our header in place of any that it has."""
    forwarded: Any = type(request)()
    forwarded.CopyFrom(request)
    forwarded.ClearField("header")
    header.into_pb(forwarded.header)
    raw: bytes = forwarded.SerializeToString()
    return raw


@final
@dataclass(frozen=True, slots=True)
class PeerCall:
    """A call to be made to a peer.

    Attributes:
        endpoint: of the peer.
        method: ``/service/name``.
        journal: the one that our token is for.
    """

    peers: Peers
    endpoint: str
    method: str
    capability: Capability
    journal: str

    async def unary(self, request: bytes) -> bytes:
        """Make the call. Raises: PeerFailed. Cancellation: reaches the peer."""
        try:
            return await self._begin(Kind.UNARY, request).answer()
        except RpcFailed as err:
            raise self.failed(err) from err

    async def client_stream(self, first: bytes, content: ContentSource, tasks: TaskGroup) -> bytes:
        """Make the call, message by message.

        Args:
            first: its first message.
            content: the messages that follow.
            tasks: owns the task that sends them.

        Returns: the response.
        Raises: PeerFailed: if it has not begun, nothing was taken of `content`.
            RpcFailed: `content` failed.
        Cancellation: reaches the peer.
        """
        call = self._begin(Kind.CLIENT_STREAM)
        sender = Sender(call, content)
        sending: asyncio.Task[None] | None = None
        if not sender.run_now(first):
            sending = tasks.spawn(sender.run(first), name=f"forward {self.journal}")
        try:
            return await call.answer()
        except RpcFailed as err:
            raise sender.failure or self.failed(err, is_begun=sender.is_begun) from err
        finally:
            if sending is not None:
                sending.cancel()
            call.cancel()

    @contextlib.contextmanager
    def server_stream(self, request: bytes) -> Generator[PeerMessages]:
        """Make the call. Gives: its responses. The call ends with the block."""
        messages = PeerMessages(self, self._begin(Kind.SERVER_STREAM, request))
        try:
            yield messages
        finally:
            messages.cancel()

    def bidi_stream(self, *metadata: tuple[str, str]) -> OutgoingCall:
        """Make the call, with this metadata beside the usual."""
        return self._begin(Kind.BIDI_STREAM, more=metadata)

    def _begin(
        self, kind: Kind, request: bytes | None = None, more: tuple[tuple[str, str], ...] = ()
    ) -> OutgoingCall:
        metadata = self.peers.metadata(self.capability, self.journal) or ()
        if kind is not Kind.BIDI_STREAM:  # which outlives the span that it is begun in
            more = (*more, *tracing.headers())
        channel = self.peers.channel(self.endpoint)
        return channel.call(self.method, kind, (*metadata, *more), request)

    def failed(self, err: RpcFailed, *, is_begun: bool = True) -> PeerFailed:
        """The error of a call that failed by `err`. Notifies the observer of failures, too."""
        self.peers.on_failure(self.endpoint, err.text)
        return PeerFailed(err, self.endpoint, is_begun=is_begun)


@final
class PeerMessages:
    """The messages that a peer streams to us."""

    __slots__ = ("_call", "_is_cancelled", "_peer_call")

    def __init__(self, peer_call: PeerCall, call: OutgoingCall) -> None:
        self._peer_call = peer_call
        self._call = call
        self._is_cancelled = False

    async def next(self) -> bytes | None:
        """The next message; None at the end, or once we cancelled the call. Raises: PeerFailed."""
        try:
            return None if self._is_cancelled else await self._call.next()
        except RpcFailed as err:
            if self._is_cancelled:
                return None
            raise self._peer_call.failed(err) from err

    def cancel(self) -> None:
        """End the call."""
        self._is_cancelled = True
        self._call.cancel()


@final
class Sender:
    """Sends the messages of an append.

    Attributes:
        is_begun: whether the first message is on its way, and content is being taken.
        failure: the error of the content, if it failed. Any other error comes with the answer.
    """

    def __init__(self, call: OutgoingCall, content: ContentSource) -> None:
        self._call = call
        self._content = content
        self.is_begun = False
        self.failure: RpcFailed | None = None
        self._taken: deque[bytes] | None = None

    def run_now(self, first: bytes) -> bool:
        """Send all messages without a wait, if they are here, and there is room for them.

        Returns: whether that was done; if not, call `run`.
        """
        if not self._call.send_now(first):
            return False
        self.is_begun = True
        messages = self._content.take_all(_SMALL_BYTES_MAX)
        if messages is None:
            return False
        self._taken = deque(messages)
        while self._taken and self._call.send_now(self._taken[0]):
            self._taken.popleft()
        return not self._taken and self._call.end_now()

    async def run(self, first: bytes) -> None:
        """Send all of them. Cancellation: safe."""
        # If the other broker answers before it has read everything, a send breaks.
        try:
            with contextlib.suppress(RpcFailed):
                await self._run(first)
        except Exception as err:
            self.failure = RpcFailed(Code.INTERNAL, f"forwarding: {type(err).__name__}: {err}")
            self._call.cancel()
            raise  # the owner of the task reports it as a fault

    async def _run(self, first: bytes) -> None:
        if not self.is_begun:
            await self._call.send(first)
            self.is_begun = True
        while (raw := await self._next()) is not None:
            await self._call.send(raw)
        await self._call.done_sending()

    async def _next(self) -> bytes | None:
        if self._taken is not None:
            return self._taken.popleft() if self._taken else None
        try:
            return await self._content.next()
        except RpcFailed as err:
            self.failure = err  # a stream that ends without the commit marker is rolled back
            return None


TENURE: Final = "gazette-platform-tenure"
"""Metadata of Replicate with which brokers of this project report their holding of the journal to each other,
if that survives their process; else it is empty. Those of Gazette neither send it nor look at it."""

_REPLICATE = "/protocol.Journal/Replicate"


class PeerStream(Protocol):
    """A Replicate stream to one peer."""

    async def write(self, raw: bytes) -> None:
        """Send a message. Raises: RpcFailed: the stream broke."""
        ...

    def write_now(self, raw: bytes) -> bool:
        """Send a message without a wait. Returns: whether it was sent; if not, call `write`."""
        ...

    async def read(self) -> bytes | None:
        """The next message; None at the end. Raises: RpcFailed: the stream broke."""
        ...

    def listen(self, take: Callable[[bytes], None]) -> None:
        """Let messages be taken as they come; as `OutgoingCall` has it."""
        ...

    async def tenure(self) -> str | None:
        """The peer's holding of the journal, once a message came; None: it keeps none after a crash.

        Raises: RpcFailed: the stream broke.
        """
        ...

    async def done_writing(self) -> None:
        """Signal the peer that nothing more comes. Raises: RpcFailed: the stream broke."""
        ...

    def cancel(self) -> None:
        """Give the stream up."""
        ...


def open_replicate(
    peers: Peers, journal: str, peer: ProcessId, endpoint: str, tenure: str
) -> PeerStream:
    """Begin a Replicate stream about `journal`; connects by itself.

    Args:
        tenure: our holding of the journal.

    Raises: RpcFailed: the peer's address is unknown.
    """
    if not endpoint:
        raise RpcFailed(Code.UNAVAILABLE, f"broker {str(peer).strip()} has no endpoint in etcd")
    peer_call = PeerCall(peers, endpoint, _REPLICATE, Capability.REPLICATE, journal)
    return _CallStream(peer_call, tenure)


@final
class _CallStream:
    """A stream that is a call to the peer."""

    __slots__ = ("_call", "_peer_call")

    def __init__(self, peer_call: PeerCall, tenure: str) -> None:
        self._peer_call = peer_call
        self._call = peer_call.bidi_stream((TENURE, tenure))

    async def write(self, raw: bytes) -> None:
        try:
            await self._call.send(raw)
        except RpcFailed as err:
            raise self._failed(err) from err

    def write_now(self, raw: bytes) -> bool:
        return self._call.send_now(raw)

    def listen(self, take: Callable[[bytes], None]) -> None:
        self._call.listen(take)

    async def read(self) -> bytes | None:
        try:
            return await self._call.next()
        except RpcFailed as err:
            raise self._failed(err) from err

    async def tenure(self) -> str | None:
        try:
            greeting = await self._call.greeting()
        except RpcFailed as err:
            raise self._failed(err) from err
        return greeting.get(TENURE) or None

    async def done_writing(self) -> None:
        try:
            await self._call.done_sending()
        except RpcFailed as err:
            raise self._failed(err) from err

    def cancel(self) -> None:
        self._call.cancel()

    def _failed(self, err: RpcFailed) -> RpcFailed:
        self._peer_call.failed(err)
        text = f"rpc error: code = {go_spelling(err.code.value)} desc = {err.text}"
        return RpcFailed(err.code, text)
