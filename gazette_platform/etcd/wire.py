"""What etcd stores and answers, as small immutable values, and their conversion to and from etcd's own messages.

Keys are text: UTF-8 decoded with ``surrogateescape``, so that a key written by another program in another encoding
survives a round trip. Text order equals etcd's byte order for all valid keys. This is the only importer of grpc and
aetcd; of aetcd only the generated messages and stubs are used, since its client and its watcher split revisions and know
one endpoint.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from aetcd.rpc import kv_pb2, rpc_pb2, rpc_pb2_grpc  # type: ignore[import-untyped]

from gazette_platform.errors import EtcdError

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
