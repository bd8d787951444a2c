"""What etcd stores and answers, as small immutable values, and the channels to its endpoints.

Here values become etcd's own messages, and the other way round; `Connection` knows which endpoint is used now.

Keys are text: UTF-8 decoded with ``surrogateescape``, so that a key written by another program in another encoding
survives a round trip. Text order equals etcd's byte order for all valid keys. This is the only importer of grpc and
aetcd; of aetcd only the generated messages and stubs are used, since its client and its watcher split revisions and know
one endpoint.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, final
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from aetcd.rpc import kv_pb2, rpc_pb2, rpc_pb2_grpc  # type: ignore[import-untyped]

from gazette_platform.errors import EtcdError, SetupError, ValidationError
from gazette_platform.ops.network import keepalive_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_platform.ops.clock import Clock


__all__ = [
    "CALL_ERRORS",
    "NO_ANSWER",
    "aio",
    "compare_to_pb",
    "decode_key",
    "encode_key",
    "error_of",
    "event_of",
    "grpc",
    "header_of",
    "is_silent",
    "operation_to_pb",
    "prefix_end",
    "range_request",
    "range_result",
    "rpc_pb2",
    "stubs",
]


class EtcdRejected(EtcdError):
    """Etcd understood the call and refused it; the same call will be refused again."""

    retriable: ClassVar[bool] = False


class EtcdFull(EtcdError):
    """Etcd has reached its quota and wrote nothing; it takes writes again once it was repaired."""


class Compacted(EtcdRejected):
    """The revision asked for is no longer kept.

    Attributes:
        compact_revision: the oldest revision that may be asked for; 0 if unknown.
    """

    def __init__(self, message: str, *, compact_revision: int = 0) -> None:
        self.compact_revision = compact_revision
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """Which cluster and member answered, at which revision of the store."""

    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key with its value. `lease` is 0 for a key that no lease owns."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Keys in key order; `header.revision` is the revision that they were read at."""

    header: ResponseHeader
    kvs: tuple[KeyValue, ...]
    count: int
    """Keys in the range, which may exceed those returned when a limit was given."""


class CompareTarget(Enum):
    """What of a key a comparison looks at."""

    VERSION = "version"
    CREATE = "create_revision"
    MOD = "mod_revision"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: `target` of `key` equals `value`.

    A key that does not exist has version, create and mod revision 0.

    With `is_below_all`, `target` of all keys that start with `key` is smaller than `value`.
    """

    key: str
    target: CompareTarget
    value: int
    is_below_all: bool = False

    @classmethod
    def mod(cls, key: str, revision: int) -> Compare:
        """The key was last changed at `revision`; 0: it does not exist."""
        return cls(key, CompareTarget.MOD, revision)

    @classmethod
    def none_since(cls, prefix: str, revision: int) -> Compare:
        """No key that starts with `prefix` was written after `revision`."""
        return cls(prefix, CompareTarget.MOD, revision + 1, is_below_all=True)

    @classmethod
    def create(cls, key: str, revision: int) -> Compare:
        """The key was created at `revision`; 0: it does not exist."""
        return cls(key, CompareTarget.CREATE, revision)

    @classmethod
    def version(cls, key: str, version: int) -> Compare:
        """The key was changed `version` times since its creation, which counts."""
        return cls(key, CompareTarget.VERSION, version)

    @classmethod
    def lease_is(cls, key: str, lease: int) -> Compare:
        """The key is owned by this lease."""
        return cls(key, CompareTarget.LEASE, lease)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. With `ignore_lease` an existing key keeps its lease (and must exist)."""

    key: str
    value: bytes
    lease: int = 0
    ignore_lease: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, or with `prefix` all that start with it. Removing nothing is not an error."""

    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key, or with `prefix` all that start with it, inside a transaction."""

    key: str
    prefix: bool = False


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Outcome of a transaction.

    `header.revision` is the transaction's own revision if it wrote anything. `reads` holds the
    result of each `Get` that was executed, in order.
    """

    succeeded: bool
    header: ResponseHeader
    reads: tuple[RangeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one key. Of a removed key `kv` holds only the key and the mod revision."""

    kv: KeyValue
    is_delete: bool


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Whole revisions of changes, oldest first; no events: all up to the header's is known."""

    header: ResponseHeader
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What a member of the cluster says of itself."""

    header: ResponseHeader
    version: str
    endpoint: str


aio = grpc.aio
CALL_ERRORS = (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError)
"""All that operations on a call raise, beside cancellation; only the first has a status."""
stubs = rpc_pb2_grpc

# Codes of what passes by itself: a lost connection, a member without a leader, an election, an overload.
_RETRIABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
    }
)
# Words of etcd, and of the gRPC server in front of it, whose codes do not distinguish these cases from others.
_FULL = "database space exceeded"
_TOO_LARGE = ("request is too large", "received message larger than max")
_MEND_FULL = "it takes no writes: compact and defragment it, or raise its quota, then run `etcdctl alarm disarm`"
NO_ANSWER = "etcd does not answer (the log of this process has more)"
"""The error for callers of this process while etcd is away."""
_SILENT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_TARGETS = {
    CompareTarget.VERSION: rpc_pb2.Compare.VERSION,
    CompareTarget.CREATE: rpc_pb2.Compare.CREATE,
    CompareTarget.MOD: rpc_pb2.Compare.MOD,
    CompareTarget.LEASE: rpc_pb2.Compare.LEASE,
}


def encode_key(key: str) -> bytes:
    """The bytes of a key."""
    return key.encode("utf-8", "surrogateescape")


def decode_key(raw: bytes) -> str:
    """The text of a key; inverse of `encode_key`."""
    return raw.decode("utf-8", "surrogateescape")


def prefix_end(prefix: str) -> bytes:
    """The first key beyond all that start with `prefix`; a zero byte (no end) if that is empty."""
    raw = bytearray(encode_key(prefix))
    while raw:
        if raw[-1] < 0xFF:
            raw[-1] += 1
            return bytes(raw)
        raw.pop()
    return b"\0"


def header_of(msg: Any) -> ResponseHeader:
    """The typed header of any response."""
    return ResponseHeader(msg.cluster_id, msg.member_id, msg.revision, msg.raft_term)


def _kv_of(msg: Any) -> KeyValue:
    return KeyValue(
        key=decode_key(msg.key),
        value=msg.value,
        create_revision=msg.create_revision,
        mod_revision=msg.mod_revision,
        version=msg.version,
        lease=msg.lease,
    )


def event_of(msg: Any) -> Event:
    """A watched change."""
    return Event(_kv_of(msg.kv), is_delete=msg.type == kv_pb2.Event.DELETE)


def range_request(
    key: str, *, prefix: bool, revision: int = 0, limit: int = 0, keys_only: bool = False
) -> Any:
    """A read of one key, or of all keys that start with it, in key order."""
    # etcd has no empty key: the range from \0 on is the whole store.
    first = encode_key(key) or b"\0"
    return rpc_pb2.RangeRequest(
        key=first,
        range_end=prefix_end(key) if prefix else b"",
        revision=revision,
        limit=limit,
        keys_only=keys_only,
    )


def range_result(msg: Any) -> RangeResult:
    """The typed answer of a read; its header says when the answer was made."""
    return RangeResult(header_of(msg.header), tuple(_kv_of(kv) for kv in msg.kvs), msg.count)


def compare_to_pb(compare: Compare) -> Any:
    """The wire form of a condition."""
    return rpc_pb2.Compare(
        result=rpc_pb2.Compare.LESS if compare.is_below_all else rpc_pb2.Compare.EQUAL,
        target=_TARGETS[compare.target],
        key=encode_key(compare.key),
        range_end=prefix_end(compare.key) if compare.is_below_all else b"",
        **{compare.target.value: compare.value},
    )


def operation_to_pb(operation: Operation) -> Any:
    """The wire form of one operation of a transaction."""
    match operation:
        case Put():
            return rpc_pb2.RequestOp(
                request_put=rpc_pb2.PutRequest(
                    key=encode_key(operation.key),
                    value=operation.value,
                    lease=operation.lease,
                    ignore_lease=operation.ignore_lease,
                )
            )
        case Delete():
            return rpc_pb2.RequestOp(
                request_delete_range=rpc_pb2.DeleteRangeRequest(
                    key=encode_key(operation.key) or b"\0",
                    range_end=prefix_end(operation.key) if operation.prefix else b"",
                )
            )
        case Get():
            return rpc_pb2.RequestOp(
                request_range=range_request(operation.key, prefix=operation.prefix)
            )


def is_silent(error: Any) -> bool:
    """Whether another endpoint may do better.

    The connection broke, the member has no leader, or nothing came back in time.
    """
    return error.code() in _SILENT


def error_of(error: Any, *, what: str, endpoint: str) -> EtcdError:
    """The typed error of a failed call.

    Args:
        error: one of `CALL_ERRORS`.
        what: the call, with the key or lease it was about.
    """
    if not isinstance(error, grpc.RpcError):
        text = f"etcd at {endpoint}: {what}: the connection broke ({error!r})"
        return EtcdError(text, told=NO_ANSWER)
    code, details = error.code(), error.details() or ""
    text = f"etcd at {endpoint}: {what}: {code.name}: {details}"
    if _FULL in details:
        return EtcdFull(f"{text} ({_MEND_FULL})", told=f"etcd is out of space ({_MEND_FULL})")
    # The code alone does not distinguish it from a revision of the future.
    if code == grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted(text)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return EtcdRejected(
            f"{text}; the server there is no etcd of version 3.4 or later; check --etcd.address"
        )
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        advice = "check that etcd runs and that --etcd.address names it"
        return EtcdError(f"{text}; {advice}", told=NO_ANSWER)
    told, is_too_large = (
        f"etcd refuses: {code.name}: {details}",
        any(map(details.count, _TOO_LARGE)),
    )
    if is_too_large:
        told = "the change is too large for one transaction of etcd (apply fewer specs at a time)"
    passes = code in _RETRIABLE and not is_too_large
    return EtcdError(text, told=told) if passes else EtcdRejected(text, told=told)


_log = logging.getLogger(__name__)

_DEFAULT_PORT = 2379
# Between rounds over all endpoints. Short, because a fresh etcd is often up within a few rounds.
_ROUND_PAUSE_S = 0.05
# So that one endpoint which never answers does not use up the time for the others.
_CONNECT_S_MAX = 1.5
# etcd answers a ping more frequent than its --grpc-keepalive-min-time (5 s) with a GOAWAY.
_PING_EVERY_S = 6.0
_PING_TIMEOUT_S = 3.0
# A page of a range read holds up to 1,000 values; etcd itself limits a request, not a response.
_MESSAGE_BYTES_MAX = 256 << 20
_CHANNEL_OPTIONS = (
    *keepalive_options(_PING_EVERY_S, _PING_TIMEOUT_S),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # etcd is an internal server: the machine's HTTP proxy has no business in between.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdTls:
    """Files for ``https`` endpoints."""

    trusted_ca_file: Path | None = None
    """PEM of the authorities to trust; None: the system's."""
    cert_file: Path | None = None
    """PEM of our certificate, when etcd asks for one."""
    cert_key_file: Path | None = None
    """PEM of its key; both or neither are given."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.cert_key_file is None):
            raise ValidationError(
                "etcd certificate and key go together: set both --etcd.cert-file and "
                "--etcd.cert-key-file, or neither"
            )

    def credentials(self) -> Any:
        """The channel credentials. Raises: SetupError: a file cannot be read."""

        def read(path: Path | None) -> bytes | None:
            return path.read_bytes() if path is not None else None

        try:
            return grpc.ssl_channel_credentials(
                root_certificates=read(self.trusted_ca_file),
                private_key=read(self.cert_key_file),
                certificate_chain=read(self.cert_file),
            )
        except OSError as err:
            raise SetupError(f"etcd TLS file: {err}; check the --etcd.* file flags") from err


def parse_endpoint(text: str) -> tuple[str, bool]:
    """The gRPC target of an endpoint, and whether it wants TLS.

    >>> parse_endpoint("http://10.0.0.1:2379"), parse_endpoint("unix:///run/etcd.sock")
    (('10.0.0.1:2379', False), ('unix:/run/etcd.sock', False))
    >>> parse_endpoint("https://etcd.example")
    ('etcd.example:2379', True)

    Raises: ValidationError: it is not an http, https or unix URL.
    """
    url = urlsplit(text if "://" in text else f"http://{text}")
    if url.scheme == "unix" and (url.path or url.netloc):
        return f"unix:{url.netloc}{url.path}", False
    try:
        port = url.port or _DEFAULT_PORT
    except ValueError as err:
        raise ValidationError(f"bad port of etcd address {text!r}: {err}") from err
    if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/"):
        raise ValidationError(
            f"bad etcd address {text!r}; expected http://host:port, https://host:port or "
            "unix:///path/of/socket"
        )
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{host}:{port}", url.scheme == "https"


@dataclass(slots=True)
class _Endpoint:
    url: str
    channel: Any
    stubs: dict[str, Any] = field(default_factory=dict)


@final
class Connection:
    """Hands out a stub on an endpoint that is connected, starting with the one that worked last.

    Nothing is sent before a channel is ready. So a call that fails earlier was certainly not
    executed, and writes may be tried elsewhere without the danger of applying them twice.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: EtcdTls | None, clock: Clock) -> None:
        if not endpoints:
            raise ValidationError("no etcd address given; set --etcd.address")
        self._targets = [(url, *parse_endpoint(url)) for url in endpoints]
        self._tls = tls
        self._clock = clock
        self._endpoints: list[_Endpoint] = []
        self._current = 0

    @property
    def url(self) -> str:
        """The endpoint in use."""
        return self._targets[self._current][0]

    async def stub(self, stub_class: Any, *, deadline: float) -> Any:
        """A stub whose channel is connected.

        Args:
            deadline: of the clock's monotonic seconds.

        Raises: EtcdError: no endpoint could be reached until then.
        Cancellation: safe.
        """
        if not self._endpoints:
            self._open()
        started_at = self._clock.monotonic()
        while True:
            for _ in self._endpoints:
                endpoint = self._endpoints[self._current]
                if await self._is_ready(endpoint.channel, deadline):
                    name = stub_class.__name__
                    if name not in endpoint.stubs:
                        endpoint.stubs[name] = stub_class(endpoint.channel)
                    return endpoint.stubs[name]
                self.rotate()
            if self._clock.monotonic() + _ROUND_PAUSE_S >= deadline:
                waited_s = self._clock.monotonic() - started_at
                raise EtcdError(
                    f"cannot reach etcd at {', '.join(t[0] for t in self._targets)} (tried for "
                    f"{waited_s:.1f} s); check that etcd runs and that --etcd.address names it",
                    told=NO_ANSWER,
                )
            await asyncio.sleep(_ROUND_PAUSE_S)

    def rotate(self) -> None:
        """Prefer the next endpoint from now on."""
        self._current = (self._current + 1) % len(self._targets)

    async def close(self) -> None:
        """Close every channel; calls under way end with CANCELLED."""
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            await endpoint.channel.close(grace=None)

    def _open(self) -> None:
        # Channels belong to the running event loop, hence not in the constructor.
        for url, target, is_tls in self._targets:
            if is_tls:
                credentials = (self._tls or EtcdTls()).credentials()
                channel = aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
            else:
                channel = aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
            self._endpoints.append(_Endpoint(url, channel))

    async def _is_ready(self, channel: Any, deadline: float) -> bool:
        connectivity = grpc.ChannelConnectivity
        state = channel.get_state(try_to_connect=True)
        if state == connectivity.READY:
            return True
        budget_s = min(_CONNECT_S_MAX, deadline - self._clock.monotonic())
        try:
            async with asyncio.timeout(budget_s):
                while state != connectivity.READY:
                    if state in (connectivity.TRANSIENT_FAILURE, connectivity.SHUTDOWN):
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True
