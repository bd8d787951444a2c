"""Channels to brokers, and the calls of the Journal service over them.

Requests of streams and responses of reads travel as raw bytes, because content is encoded and
decoded by hand (`protocol.content`); everything else uses the generated classes.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message

from gazette_platform.client.route_cache import Condition
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    DataError,
    SetupError,
    TransportError,
    ValidationError,
)
from gazette_platform.ops.interrupt import is_cancelled
from gazette_platform.ops.keepalive import keepalive_options
from gazette_platform.protocol import Status, endpoint_grpc_address
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from gazette_platform.client.config import ClientConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup

__all__ = [
    "ASK_AGAIN",
    "ASK_ANOTHER",
    "CALL_ERRORS",
    "CANNOT_REACH",
    "DROPPED",
    "TRY_AGAIN",
    "WRITE_FAILED",
    "NotYet",
    "PeerUnreached",
    "Wire",
    "WirePool",
    "brief_details",
    "call_error",
    "condition_of",
    "decoded",
    "minds_pings",
    "proxy_options",
]

M = TypeVar("M", bound=Message)

_SERVICE = "/protocol.Journal/"
_APPEND_WHOLE = "/gazette_platform.Admin/AppendWhole"
_SWEEP_S = 30.0
# What http_proxy names is there for other machines.
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|\[::1\]):")
# A server that minds pings without data between them ends the connection with an error that has these
# words. Our brokers allow a ping a second. Gazette's, unless told otherwise, allow one in five minutes:
# whoever has complained is pinged as seldom as that.
_TOO_MANY_PINGS = "too many pings"
_SELDOM_S = 310.0
# How a broker says that another one, which it had to ask, cannot be reached.
CANNOT_REACH = "cannot reach broker "
# Codes that say the broker was not reached or went away; everything else is an answer.
_UNREACHED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
# How texts end when a broker itself answers UNAVAILABLE: then it was reached.
ASK_AGAIN = "; ask again"
TRY_AGAIN = "; try again"
ASK_ANOTHER = "; ask another one"
_ASKED_AGAIN = (ASK_AGAIN, TRY_AGAIN, ASK_ANOTHER)
# What grpc.aio says in place of the broker's status if it could not write a message of ours any more
# and had not yet learned of that status, as when a broker leaves, or refuses a token.
WRITE_FAILED = "Internal error from Core"
# What it means if a call is cancelled and we have not asked for it: with a thousand or more calls
# waiting to begin, gRPC cancels some of the new ones at random.
DROPPED = "dropped the call, as it does while thousands wait for it, and when it stops"
# All errors that a grpc.aio call can raise. If the connection breaks between two operations of a call,
# those of its core come unchanged: `done_writing` raises ExecuteBatchError, which is a BaseError.
CALL_ERRORS = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
_CONNECTING = frozenset({grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING})
_BROKEN = frozenset({grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN})


class PeerUnreached(TransportError):
    """The broker that was asked cannot reach the one that is to answer, as after a crash."""


class NotYet(TransportError):
    """The broker cannot answer now, and asks to be asked again."""


def call_error(err: Exception, endpoint: str, what: str, *, peer: str = "broker") -> TransportError:
    """The error of a failed call.

    Args:
        err: one of `CALL_ERRORS`.
        endpoint: URL that was dialed.
        what: the call, as in ``append to a/journal``.
        peer: what was dialed.

    Returns: a plain, retriable `TransportError` when the broker was not reached or went away,
    or its status was not received,
    `CallUnanswered` after a deadline, else `CallFailed`.
    """
    if not isinstance(err, grpc.aio.AioRpcError):
        return TransportError(
            f"{what}: the connection to {peer} {endpoint} broke during the call "
            f"({str(err) or type(err).__name__})"
        )
    code, details = err.code(), err.details() or ""
    if code in _UNREACHED and details.startswith(CANNOT_REACH):
        return PeerUnreached(f"{what}: {peer} {endpoint} {details}")
    if code is grpc.StatusCode.INTERNAL and details == WRITE_FAILED:
        return TransportError(
            f"{what}: {peer} {endpoint} ended the call while it was being sent, for a reason that "
            f"was not received (see the {peer}'s log if it does so again)"
        )
    details = brief_details(details)
    if code in _UNREACHED:
        said = f"is not reachable: {details} ({_advice(details, endpoint)})"
        kind = TransportError
        if code is grpc.StatusCode.CANCELLED:
            said = DROPPED
        elif details.endswith(_ASKED_AGAIN):
            kind, said = NotYet, f"cannot answer now: {details}"
        return kind(f"{what}: {peer} {endpoint} {said}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallUnanswered(f"{what}: {peer} {endpoint} did not answer in time")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        details += " (check the auth token or keys)"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        details += f" (is it a Gazette {peer}, or a {peer} of a version that lacks this call?)"
    return CallFailed(f"{what}: {peer} {endpoint}: {details}", code=code.name, details=details)


def minds_pings(err: Exception) -> bool:
    """Whether the broker ended a call, one of whose errors this is, because we ping too often."""
    details = (err.details() or "") if isinstance(err, grpc.aio.AioRpcError) else ""
    return _TOO_MANY_PINGS in details.lower().replace("_", " ")


def decoded(
    message_class: type[M],
    raw: bytes,
    validate: Callable[[Any], None] | None = None,
    *,
    peer: str = "broker",
) -> M:
    """A response.

    Args:
        validate: raises ValidationError if the response breaks a rule. It is not asked about statuses
            that we do not know: their rules are those of a later broker, and the caller is told its
            number.
        peer: who answered.

    Raises: DataError: it cannot be decoded (gRPC would log a traceback, and give None), or is not valid.
    """
    try:
        message = message_class.FromString(raw)
        if validate is not None and Status.from_wire(message.status).is_known:  # type: ignore[attr-defined]
            validate(message)
    except (DecodeError, ValidationError) as err:
        raise DataError(f"validating {peer} response: {err}") from err
    return message


def condition_of(channel: grpc.aio.Channel) -> Condition:
    """What is known of the connection that `channel` keeps; opens none."""
    state = channel.get_state()
    if state is grpc.ChannelConnectivity.READY:
        return Condition.READY
    if state in _BROKEN:
        return Condition.FAILED
    return Condition.UNKNOWN


def _advice(details: str, endpoint: str) -> str:
    """What to look at when a connection failed; gRPC tells of TLS in OpenSSL's words only."""
    is_secure = endpoint.startswith("https:")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return (
            "its certificate is of no authority that is trusted here: give the file of that one as "
            "trusted-ca-file"
        )
    if "Hostname Verification" in details or "Peer name" in details:
        return "its certificate names other hosts: address it by one of them"
    if "WRONG_VERSION_NUMBER" in details:
        return "it speaks no TLS: its address begins with http://"
    if "Stream removed" in details:  # so the connection was there
        return "it ended, or its connection broke; is it running?"
    # A server that refuses a certificate ends the connection, with or without reading what has come.
    if "Socket closed" in details or (is_secure and "Secure read failed" in details):
        if_plain = "does it speak TLS? then its address begins with https://"
        if_secure = "does it ask for a certificate? give cert-file and cert-key-file"
        return if_secure if is_secure else if_plain
    return "is it running, and is the address right?"


def brief_details(details: str) -> str:
    """The last and most precise part of gRPC's nested explanations."""
    for marker in ("last error: ", "UNKNOWN: "):
        details = details.rpartition(marker)[2]
    return details.strip()


@final
class Wire:
    """The streams of one broker, and its channel for calls without.

    `calls` counts all those under way, so that sweeps spare them. `takes_whole` is whether appends of one
    message are worth a try: none was refused yet where a stream was not.
    """

    def __init__(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.calls = 0
        self.used_at = 0.0
        self.takes_whole = True
        # Responses come as bytes: see `decoded`.
        self.append: Any = channel.stream_unary(f"{_SERVICE}Append")
        self.append_whole: Any = channel.unary_unary(_APPEND_WHOLE)
        self.read: Any = channel.unary_stream(f"{_SERVICE}Read")
        self.list: Any = channel.unary_stream(
            f"{_SERVICE}List",
            request_serializer=pb.ListRequest.SerializeToString,
        )

    @property
    def is_ready(self) -> bool:
        """Whether there is a connection now."""
        return condition_of(self.channel) is Condition.READY

    async def connected(self) -> bool:
        """Wait until there is a connection, or making one has failed. Cancellation: safe.

        Calls do not tell: for grpc.aio a call begins only when the broker has said something.
        """
        while (state := self.channel.get_state(try_to_connect=True)) in _CONNECTING:
            try:
                await self.channel.wait_for_state_change(state)
            except (grpc.aio.BaseError, AssertionError):
                return False  # it is being closed
        return state is grpc.ChannelConnectivity.READY

    def __enter__(self) -> Wire:
        """Count a call under way."""
        self.calls += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.calls -= 1
        if isinstance(error, asyncio.CancelledError) and not is_cancelled():
            raise TransportError(
                f"the client was closed during a call of broker {self.endpoint}"
            ) from error


@final
class WirePool:
    """One channel per broker endpoint, opened at first use and closed when long unused.

    Those of the service addresses stay.
    """

    def __init__(self, config: ClientConfig, clock: Clock, tasks: TaskGroup) -> None:
        self._config = config
        self._clock = clock
        self._tasks = tasks
        self._wires: dict[str, Wire] = {}
        # Endpoints that are pinged seldom, and connections to them that did it more often.
        self._spared: set[str] = set()
        self._former: list[Wire] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._credentials: grpc.ChannelCredentials | None = None

    def get(self, endpoint: str) -> Wire:
        """The calls of the broker at `endpoint`, a URL; opens no connection by itself.

        Raises: ValidationError: the pool was closed.
        """
        if self._is_closed:
            raise ValidationError("the client is closed")
        wire = self._wires.get(endpoint)
        if wire is None:
            wire = self._wires[endpoint] = Wire(endpoint, self._open(endpoint))
            if self._sweep_timer is None and endpoint not in self._config.addresses:
                self._sweep_later()
        wire.used_at = self._clock.monotonic()
        return wire

    def condition(self, endpoint: str) -> Condition:
        """What is known of the connection to `endpoint`; opens none."""
        wire = self._wires.get(endpoint)
        return Condition.UNKNOWN if wire is None else condition_of(wire.channel)

    def _open(self, endpoint: str) -> grpc.aio.Channel:
        target, is_secure = endpoint_grpc_address(endpoint)
        options = _channel_options(self._config, is_spared=endpoint in self._spared)
        options += proxy_options(target)
        if not is_secure:
            return grpc.aio.insecure_channel(target, options=options)
        if self._credentials is None:
            self._credentials = grpc.ssl_channel_credentials(
                _pem(self._config.trusted_ca_file),
                _pem(self._config.cert_key_file),
                _pem(self._config.cert_file),
            )
        return grpc.aio.secure_channel(target, self._credentials, options=options)

    def spare(self, wire: Wire) -> None:
        """Let calls that follow be of another connection, over which the broker is pinged seldom."""
        if self._wires.get(wire.endpoint) is wire:
            self._spared.add(wire.endpoint)
            self._former.append(self._wires.pop(wire.endpoint))  # others' calls may be on it
            if self._sweep_timer is None:
                self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_S, self.sweep)

    def sweep(self) -> None:
        """Close connections without calls that were not used for a while, and look again later."""
        now = self._clock.monotonic()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        addresses = self._config.addresses
        others = [wire for wire in self._wires.values() if wire.endpoint not in addresses]
        idle = [wire for wire in self._former if not wire.calls]
        self._former = [wire for wire in self._former if wire.calls]
        for wire in idle:
            self._tasks.spawn(wire.channel.close(), name=f"close {wire.endpoint}")
        if self._former:
            self._sweep_later()
        for wire in others:
            if not wire.calls and now - wire.used_at >= _SWEEP_S:
                del self._wires[wire.endpoint]
                self._tasks.spawn(wire.channel.close(), name=f"close {wire.endpoint}")
            elif self._sweep_timer is None:
                self._sweep_later()

    async def close(self) -> None:
        """Close every channel; calls under way are cancelled."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        wires, self._wires = [*self._wires.values(), *self._former], {}
        for wire in wires:
            await wire.channel.close()


def proxy_options(target: str) -> list[tuple[str, int]]:
    """Options of a channel to `target`: one to this machine goes through no proxy."""
    return [("grpc.enable_http_proxy", 0)] if _LOOPBACK.match(target) else []


def _channel_options(config: ClientConfig, *, is_spared: bool = False) -> list[tuple[str, int]]:
    ping_every_s = max(config.keepalive_s, _SELDOM_S) if is_spared else config.keepalive_s
    return [
        ("grpc.max_receive_message_length", config.message_bytes_max),
        ("grpc.max_send_message_length", config.message_bytes_max),
        # A fixed, large window for each stream instead of one that probes: reads came a third
        # faster, and a tail costs no pings beside its content.
        ("grpc.http2.lookahead_bytes", 8 << 20),
        ("grpc.http2.bdp_probe", 0),
        # Larger frames and buffers: fewer system calls for a content message.
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.write_buffer_size", 1 << 20),
        *keepalive_options(ping_every_s, config.keepalive_s),
        # Our own back-off decides when to try again; gRPC's must not be the slower one.
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", int(config.connect_timeout_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Clients with different options must not share a connection.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]


def _pem(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise SetupError(
            f"cannot read the PEM file {path}: {err.strerror} (check the certificate options)"
        ) from err
