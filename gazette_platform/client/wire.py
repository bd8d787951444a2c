"""Channels to brokers with their tokens, and the calls of the Journal service over them.

Requests of streams and responses of reads travel as raw bytes, because content is encoded and decoded by hand
(`protocol.content`); everything else uses the generated classes. A call carries a fixed bearer token, or one
that is signed for each kind of call.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from google.protobuf.message import DecodeError, Message

from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    DataError,
    SetupError,
    TransportError,
    ValidationError,
)
from gazette_platform.ops.lru import Lru
from gazette_platform.protocol import (
    LabelSelector,
    LabelSet,
    Status,
    endpoint_grpc_address,
    strip_meta,
)
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.serving.auth import TlsMaterial, http2_client_context
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import CLIENT_LIMITS
from gazette_platform.serving.interface import (
    ASK_AGAIN,
    ASK_ANOTHER,
    CANNOT_REACH,
    CONNECT_FAILED,
    DROPPED,
    FELL_SILENT,
    NOT_HTTP2,
    SPEAKS_TLS,
    TRY_AGAIN,
    Code,
    Condition,
    Kind,
    brief_details,
)
from gazette_platform.serving.sockets import proxy_for

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from gazette_platform.client.config import ClientConfig
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.serving.interface import ClientCall, ClientChannel, RpcFailed

M = TypeVar("M", bound=Message)
Metadata = tuple[tuple[str, str], ...]

_APPEND: Final = "/protocol.Journal/Append"
_APPEND_WHOLE: Final = "/gazette_platform.Admin/AppendWhole"
_LIST: Final = "/protocol.Journal/List"
_READ: Final = "/protocol.Journal/Read"
_SWEEP_S: Final = 30.0
# A server that minds pings without data between them ends the connection with an error that has these
# words. Our brokers allow a ping a second. Gazette's allow by default one in five minutes:
# whoever has complained is pinged as seldom as that.
_TOO_MANY_PINGS: Final = "too many pings"
_SELDOM_S: Final = 310.0
# Our own back-off decides when to try again; that of the channel must not be the slower one.
_BACKOFF_S_MAX: Final = 1.0
# However little patience a client has, an attempt may take so long: TLS to a far machine needs half of it.
_CONNECT_S_MIN: Final = 1.0
# Codes that say the broker was not reached or went away; everything else is an answer.
_UNREACHED: Final = frozenset({Code.UNAVAILABLE, Code.CANCELLED})
_ASKED_AGAIN: Final = (ASK_AGAIN, TRY_AGAIN, ASK_ANOTHER)
# Brokers say so once they have stopped and no other one took their journals over, ours and Gazette's: before a call
# looks at a journal, so an append was not taken.
_LEAVING: Final = "resolver has stopped serving local replicas"
# The text of calls that end because the client is closed.
_CLOSED: Final = "the client was closed during the call"
_BY_PROXY: Final = "(through the HTTP proxy "
_HANGS: Final = "does it hang, or is it overloaded? look at its log, or start it again"
# Words of failed attempts to connect, and what to do.
_ADVICE: Final = (
    (
        ("Hostname mismatch", "IP address mismatch"),
        "its certificate names other hosts: address it by one of them",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        "its certificate is of no authority that is trusted here: give the file of that one as trusted-ca-file",
    ),
    (
        ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"),
        "it speaks no TLS: its address begins with http://",
    ),
    (
        (NOT_HTTP2,),
        "another program answers there, or a proxy that passes only HTTP/1: give the address of the gRPC port",
    ),
    ((SPEAKS_TLS,), "its address begins with https://"),
    ((FELL_SILENT,), _HANGS),
)


class PeerUnreached(TransportError):
    """The broker that was asked cannot reach the one that is to answer, as after a crash."""


class NotYet(TransportError):
    """The broker cannot answer now, and asks to be asked again."""


def call_error(err: RpcFailed, endpoint: str, what: str, *, peer: str = "broker") -> TransportError:
    """The error of a failed call.

    Args:
        err: what the call raised.
        endpoint: URL that was dialed.
        what: the call, as in ``append to a/journal``.
        peer: what was dialed.

    Returns: a plain, retriable `TransportError` when the broker was not reached or went away,
    `CallUnanswered` after a deadline, else `CallFailed`.
    """
    code, details = err.code, err.text
    if code in _UNREACHED and details.startswith(CANNOT_REACH):
        return PeerUnreached(f"{what}: {peer} {endpoint} {details}")
    if details == _CLOSED:
        return TransportError(f"{what}: {_CLOSED}")
    details = brief_details(details)
    if code in _UNREACHED:
        said = f"is not reachable: {details} ({_advice(details, endpoint)})"
        kind = TransportError
        if code is Code.CANCELLED or details.endswith(DROPPED):
            said = DROPPED
        elif details.endswith(_ASKED_AGAIN):
            kind, said = NotYet, f"cannot answer now: {details}"
        return kind(f"{what}: {peer} {endpoint} {said}")
    if code is Code.UNKNOWN and details.endswith(_LEAVING):
        return NotYet(f"{what}: {peer} {endpoint} is leaving: {details}")
    if code is Code.DEADLINE_EXCEEDED:
        return CallUnanswered(f"{what}: {peer} {endpoint} did not answer in time ({_HANGS})")
    if code is Code.UNAUTHENTICATED:
        details += " (check the auth token or keys)"
    if code is Code.UNIMPLEMENTED:
        details += f" (is it a Gazette {peer}, or a {peer} of a version that lacks this call?)"
    return CallFailed(f"{what}: {peer} {endpoint}: {details}", code=code.name, details=details)


def minds_pings(err: RpcFailed) -> bool:
    """Whether the broker ended the call of this error because we ping too often."""
    return _TOO_MANY_PINGS in err.text.lower().replace("_", " ")


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
            that we do not know: their rules are those of a later broker, and the caller gets its
            number.
        peer: who answered.

    Raises: DataError: it cannot be decoded, or is not valid.
    """
    try:
        message = message_class.FromString(raw)
        if validate is not None and Status.from_wire(message.status).is_known:  # type: ignore[attr-defined]
            validate(message)
    except (DecodeError, ValidationError) as err:
        raise DataError(f"validating {peer} response: {err}") from err
    return message


def _advice(details: str, endpoint: str) -> str:
    """What to look at when a connection failed; OpenSSL's words say little to most people."""
    for words, advice in _ADVICE:
        if any(each in details for each in words):
            return advice
    if _BY_PROXY in details:
        return "can the proxy reach it? no_proxy names the hosts to reach without a proxy"
    if CONNECT_FAILED not in details and ("Socket closed" in details or "ping" in details):
        return "it ended, or its connection broke; is it running?"
    # A server that refuses a certificate ends the connection, with or without reading what has come.
    if "Socket closed" in details:
        if_plain = "does it speak TLS? then its address begins with https://"
        if_secure = "does it ask for a certificate? give cert-file and cert-key-file"
        return if_secure if endpoint.startswith("https:") else if_plain
    return "is it running, and is the address right?"


@final
class Wire:
    """The channel to one broker, and its streams.

    `calls` counts all those under way, so that sweeps spare them. `takes_whole` is whether appends of one
    message are worth a try: none was refused yet where a stream was not.
    """

    def __init__(self, endpoint: str, channel: ClientChannel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.calls = 0
        self.used_at = 0.0
        self.takes_whole = True

    @property
    def is_ready(self) -> bool:
        """Whether there is a connection now."""
        return self.channel.condition <= Condition.READY

    async def connected(self) -> bool:
        """Wait until there is a connection, or making one has failed. Cancellation: safe.

        Calls do not show it: one that waits at the head of a journal is silent.
        """
        return await self.channel.connected()

    # Responses come as bytes: see `decoded`.
    def append(self, metadata: Metadata | None) -> ClientCall:
        """Begin an append, whose messages follow."""
        return self.channel.call(_APPEND, Kind.CLIENT_STREAM, metadata or ())

    def append_whole(self, request: bytes, metadata: Metadata | None) -> ClientCall:
        """Append by one message."""
        return self.channel.call(_APPEND_WHOLE, Kind.UNARY, metadata or (), request)

    def read(self, request: bytes, metadata: Metadata | None) -> ClientCall:
        """Begin a read."""
        return self.channel.call(_READ, Kind.SERVER_STREAM, metadata or (), request)

    def list(
        self, request: bytes, metadata: Metadata | None, *, timeout_s: float | None = None
    ) -> ClientCall:
        """Begin a list, or a watch."""
        return self.channel.call(
            _LIST, Kind.SERVER_STREAM, metadata or (), request, timeout_s=timeout_s
        )

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


@final
class WirePool:
    """One channel per broker endpoint, opened at first use and closed when long unused.

    Those of the service addresses stay, and those that are given.

    Args:
        channels: by endpoint, of brokers in this process; they are closed with the others.
    """

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        tasks: TaskGroup,
        channels: Mapping[str, ClientChannel] | None = None,
    ) -> None:
        self._config = config
        self._channels = channels or {}
        self._stay = {*config.addresses, *self._channels}
        self._clock = clock
        self._tasks = tasks
        self._wires: dict[str, Wire] = {}
        # Endpoints that are pinged seldom, and connections to them that did it more often.
        self._spared: set[str] = set()
        self._former: list[Wire] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._tls: ssl.SSLContext | None = None

    def get(self, endpoint: str) -> Wire:
        """The calls of the broker at `endpoint`, a URL; opens no connection by itself.

        Raises: ValidationError: the pool was closed.
        """
        if self._is_closed:
            raise ValidationError("the client is closed")
        wire = self._wires.get(endpoint)
        if wire is None:
            wire = self._wires[endpoint] = Wire(endpoint, self._open(endpoint))
            if self._sweep_timer is None and endpoint not in self._stay:
                self._sweep_later()
        wire.used_at = self._clock.monotonic()
        return wire

    def condition(self, endpoint: str) -> Condition:
        """What is known of the connection to `endpoint`; opens none."""
        wire = self._wires.get(endpoint)
        return Condition.UNKNOWN if wire is None else wire.channel.condition

    def _open(self, endpoint: str) -> ClientChannel:
        if endpoint in self._channels:
            return self._channels[endpoint]
        target, is_secure = endpoint_grpc_address(endpoint)
        if is_secure and self._tls is None:
            self._tls = _tls_context(self._config)
        dialing = _dialing(self._config, target, is_spared=endpoint in self._spared)
        return Channel(target, dialing, self._tls if is_secure else None)

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
        others = [wire for wire in self._wires.values() if wire.endpoint not in self._stay]
        idle = [wire for wire in self._former if not wire.calls]
        self._former = [wire for wire in self._former if wire.calls]
        for wire in idle:
            self._tasks.spawn(wire.channel.close(_CLOSED), name=f"close {wire.endpoint}")
        if self._former:
            self._sweep_later()
        for wire in others:
            if not wire.calls and now - wire.used_at >= _SWEEP_S:
                del self._wires[wire.endpoint]
                self._tasks.spawn(wire.channel.close(_CLOSED), name=f"close {wire.endpoint}")
            elif self._sweep_timer is None:
                self._sweep_later()

    async def close(self) -> None:
        """Close every channel; calls under way end."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        wires, self._wires = [*self._wires.values(), *self._former], {}
        await asyncio.gather(*(wire.channel.close(_CLOSED) for wire in wires))


def _dialing(config: ClientConfig, target: str, *, is_spared: bool = False) -> Dialing:
    return Dialing(
        limits=CLIENT_LIMITS,
        message_bytes_max=config.message_bytes_max,
        ping_every_s=max(config.keepalive_s, _SELDOM_S) if is_spared else config.keepalive_s,
        ping_timeout_s=config.keepalive_s,
        connect_s=max(config.connect_timeout_s, _CONNECT_S_MIN),
        backoff_s_max=_BACKOFF_S_MAX,
        proxy=proxy_for(target, os.environ),
    )


def _tls_context(config: ClientConfig) -> ssl.SSLContext:
    path = config.trusted_ca_file
    try:
        roots = Path(path).read_bytes() if path else b""
        context = http2_client_context(TlsMaterial(ca=roots))
        if path := config.cert_file:
            # Without a password, OpenSSL would ask whoever sits at the terminal for one.
            context.load_cert_chain(path, config.cert_key_file, password="")
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise SetupError(
            f"cannot use the PEM file {path}: {reason} (check the certificate options)"
        ) from err
    return context


# Seconds. Applying is rare and powerful, so that its tokens are short-lived.
_LIFETIME_S = {Capability.APPLY: 60}
_LIFETIME_DEFAULT_S = 3600

# A token is replaced when half of its life is over: no call begins with one that is about to
# expire, and a long read that ends with its token goes on with another.
_RENEW_AT = 0.5

# Signed tokens that are kept, for as many kinds of calls and journals.
_TOKENS_MAX = 4096


@final
class Authorizer:
    """Makes the metadata of calls."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        self._clock = clock
        self._fixed = _bearer(config.auth_token) if config.auth_token else None
        self._keys = KeyRing(config.auth_keys) if config.auth_keys.strip() else None
        self._signed: Lru[tuple[Capability, LabelSelector | str], tuple[float, Metadata]]
        self._signed = Lru(_TOKENS_MAX)

    def metadata(self, capability: Capability, selector: LabelSelector | str) -> Metadata | None:
        """Metadata of a call that needs `capability` for a selector, or for a journal's name."""
        if self._fixed is not None or self._keys is None:
            return self._fixed
        now = self._clock.now().timestamp()
        key = (capability, selector)
        found = self._signed.get(key)
        if found is not None and now < found[0]:
            return found[1]
        lifetime_s = _LIFETIME_S.get(capability, _LIFETIME_DEFAULT_S)
        token = self._keys.sign(
            Claims(capability, _selector(selector)), now=now, lifetime_s=lifetime_s
        )
        metadata = _bearer(token)
        self._signed.put(key, (now + lifetime_s * _RENEW_AT, metadata))
        return metadata


def _bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def _selector(selector: LabelSelector | str) -> LabelSelector:
    if isinstance(selector, LabelSelector):
        return selector
    name = strip_meta(selector)
    return LabelSelector(include=LabelSet.of(name=name)) if name else LabelSelector()
