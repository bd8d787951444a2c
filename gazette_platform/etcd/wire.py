"""Conversions between `types` and etcd's own messages; the only importer of grpc and aetcd.

Of aetcd only the generated messages and stubs are used: its client and its watcher split
revisions and know one endpoint.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from aetcd.rpc import kv_pb2, rpc_pb2, rpc_pb2_grpc  # type: ignore[import-untyped]

from gazette_platform.errors import EtcdError
from gazette_platform.etcd.types import (
    Compacted,
    Compare,
    CompareTarget,
    Delete,
    EtcdFull,
    EtcdRejected,
    Event,
    Get,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    ResponseHeader,
)

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
