"""The client: reads, transactions, and the handles to leases and watches."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Self, final

from gazette_platform.errors import EtcdError, ValidationError
from gazette_platform.etcd import wire
from gazette_platform.etcd.connection import Connection, EtcdTls
from gazette_platform.etcd.lease import Lease
from gazette_platform.etcd.types import (
    Compare,
    Delete,
    EtcdFull,
    EtcdRejected,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    ResponseHeader,
    ServerStatus,
    TxnResult,
)
from gazette_platform.etcd.watch import Watch
from gazette_platform.ops.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TXN_OPS_MAX", "EtcdClient"]

TXN_OPS_MAX = 128
"""Operations, and comparisons, that etcd takes in one transaction (its --max-txn-ops)."""

_PAGE_KEYS = 1000
# A gRPC call is a reference cycle that keeps its answer until the garbage collector runs, which is some
# hundred calls later: too late for answers larger than this. So we collect, which takes a millisecond.
_LARGE_BYTES = 512 << 10

# 3.3 and before lack what we rely on (leases in Txn, fragments of watches).
_VERSION_MIN = (3, 4)


@final
class EtcdClient:
    """A typed client of one etcd cluster.

    Every call has a deadline and names what it was about when it fails. Reads are retried on the
    other endpoints; writes only as long as nothing was sent, because a write whose connection
    broke may have been applied.

    Args:
        endpoints: URLs, ``http://host:port``, ``https://…`` or ``unix:///path``.
        tls: files for https endpoints.
        request_timeout_s: deadline of one call, retries included; seconds.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: EtcdTls | None = None,
        request_timeout_s: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        if request_timeout_s <= 0:
            raise ValidationError(f"request_timeout_s must be positive, not {request_timeout_s}")
        self._clock = clock or SystemClock()
        self._connection = Connection(endpoints, tls=tls, clock=self._clock)
        self._timeout_s = request_timeout_s

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def endpoint(self) -> str:
        """The URL in use."""
        return self._connection.url

    async def connect(self) -> ServerStatus:
        """Reach one endpoint and check that it is an etcd that is new enough.

        Raises: EtcdError: none could be reached within the request timeout.
                EtcdRejected: what answers is no etcd, or too old.
        """
        msg = await self._call(
            wire.stubs.MaintenanceStub,
            "Status",
            wire.rpc_pb2.StatusRequest(),
            what="status",
            is_read=True,
        )
        version = tuple(int(part) for part in msg.version.split(".")[:2] if part.isdigit())
        if version < _VERSION_MIN:
            raise EtcdRejected(
                f"etcd at {self.endpoint} has version {msg.version}; upgrade it to 3.4.23 or later"
            )
        return ServerStatus(wire.header_of(msg.header), msg.version, self.endpoint)

    async def close(self) -> None:
        """Close the connections. Leases are not revoked: their owners do that."""
        await self._connection.close()

    async def get(self, key: str, *, revision: int = 0) -> KeyValue | None:
        """One key, or None; at `revision`, 0 being the newest."""
        request = wire.range_request(key, prefix=False, revision=revision)
        result = await self._range(request, what=f"read of {key}")
        return result.kvs[0] if result.kvs else None

    async def range(
        self,
        prefix: str,
        *,
        revision: int = 0,
        page_keys: int = _PAGE_KEYS,
        keys_only: bool = False,
    ) -> RangeResult:
        """All keys that start with `prefix`, in key order, as of one revision.

        Read in pages, so that a large key space needs no large messages. Every page is of the
        revision of the first.

        Args:
            revision: of the store; 0 is the newest.

        Returns: everything, with `header.revision` = the revision read.
        Raises: Compacted: `revision` is no longer kept.
        Cancellation: safe.
        """
        kvs: list[KeyValue] = []
        header: ResponseHeader | None = None
        while True:
            after = kvs[-1].key if kvs else ""
            page = await self.page(
                prefix, after=after, revision=revision, page_keys=page_keys, keys_only=keys_only
            )
            revision = page.header.revision
            header = header or page.header
            kvs.extend(page.kvs)
            if len(page.kvs) == page.count:
                return RangeResult(header, tuple(kvs), len(kvs))

    async def page(
        self,
        prefix: str,
        *,
        after: str = "",
        revision: int = 0,
        page_keys: int = _PAGE_KEYS,
        keys_only: bool = False,
    ) -> RangeResult:
        """The first keys that start with `prefix`, or of those behind the key `after`.

        For callers that do not need all of a `range` at once.

        Returns: up to `page_keys` of them, and with `count` how many there are.
        Raises: as `range`. Cancellation: safe.
        """
        request = wire.range_request(
            prefix, prefix=True, revision=revision, limit=page_keys, keys_only=keys_only
        )
        if after:
            request.key = wire.encode_key(after) + b"\0"
        page = await self._range(request, what=f"read of {prefix}*")
        found = page.header
        at = revision or found.revision
        header = ResponseHeader(found.cluster_id, found.member_id, at, found.raft_term)
        return RangeResult(header, page.kvs, page.count)

    async def _range(self, request: Any, *, what: str) -> RangeResult:
        msg = await self._call(wire.stubs.KVStub, "Range", request, what=what, is_read=True)
        result, size = wire.range_result(msg), msg.ByteSize()
        del msg
        if size > _LARGE_BYTES:
            gc.collect(0)
        return result

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnResult:
        """Execute `success` if every comparison holds, else `failure`, as one revision.

        Raises: EtcdRejected: e.g. too many operations, a key written twice, an unknown lease.
                EtcdError: it could not be sent, or (text says so) the outcome is unknown.
        Cancellation: leaves open whether it was applied.
        """
        request = wire.rpc_pb2.TxnRequest(
            compare=[wire.compare_to_pb(c) for c in compares],
            success=[wire.operation_to_pb(op) for op in success],
            failure=[wire.operation_to_pb(op) for op in failure],
        )
        keys = [op.key for op in success] or [op.key for op in failure] or ["nothing"]
        what = f"transaction on {keys[0]}" + (f" and {len(keys) - 1} more" if keys[1:] else "")
        msg = await self._call(wire.stubs.KVStub, "Txn", request, what=what)
        reads = tuple(
            wire.range_result(response.response_range)
            for response in msg.responses
            if response.WhichOneof("response") == "response_range"
        )
        return TxnResult(bool(msg.succeeded), wire.header_of(msg.header), reads)

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> ResponseHeader:
        """Write a key without any condition; its revision is the header's."""
        return (await self.txn((), (Put(key, value, lease=lease),))).header

    async def delete(self, key: str, *, prefix: bool = False) -> ResponseHeader:
        """Remove a key, or all that start with it."""
        return (await self.txn((), (Delete(key, prefix=prefix),))).header

    async def grant_lease(self, ttl_s: int) -> Lease:
        """A new lease. Spawn its `keep_alive`, or it ends after `ttl_s` seconds."""
        before = self._clock.monotonic()
        msg = await self._call(
            wire.stubs.LeaseStub,
            "LeaseGrant",
            wire.rpc_pb2.LeaseGrantRequest(TTL=ttl_s),
            what=f"grant of a lease of {ttl_s} s",
        )
        return Lease(
            self._connection, self._clock, lease_id=msg.ID, ttl_s=msg.TTL, granted_at=before
        )

    async def revoke_lease(self, lease_id: int) -> bool:
        """End a lease of another process, with all keys under it; one's own has `Lease.revoke`.

        Returns: False if there is no such lease any more.
        """
        try:
            await self._call(
                wire.stubs.LeaseStub,
                "LeaseRevoke",
                wire.rpc_pb2.LeaseRevokeRequest(ID=lease_id),
                what=f"revocation of lease {lease_id:x}",
            )
        except EtcdRejected as err:
            cause: Any = err.__cause__
            if cause.code() == wire.grpc.StatusCode.NOT_FOUND:
                return False
            raise
        return True

    def watch(self, prefix: str, *, start_revision: int) -> Watch:
        """Changes of all keys that start with `prefix`, from `start_revision` on, inclusive."""
        return Watch(
            self._connection,
            self._clock,
            prefix=prefix,
            start_revision=start_revision,
            connect_timeout_s=self._timeout_s,
        )

    async def compact(self, revision: int) -> None:
        """Forget all revisions before `revision`. For operators and tests; brokers never do it."""
        await self._call(
            wire.stubs.KVStub,
            "Compact",
            wire.rpc_pb2.CompactionRequest(revision=revision, physical=True),
            what=f"compaction to {revision}",
        )

    async def _call(
        self, stub_class: Any, method: str, request: Any, *, what: str, is_read: bool = False
    ) -> Any:
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            stub = await self._connection.stub(stub_class, deadline=deadline)
            endpoint = self._connection.url
            timeout_s = max(0.001, deadline - self._clock.monotonic())
            try:
                return await getattr(stub, method)(request, timeout=timeout_s)
            except wire.aio.AioRpcError as err:
                if wire.is_silent(err):
                    self._connection.rotate()
                    if is_read and self._clock.monotonic() < deadline:
                        continue
                error = wire.error_of(err, what=what, endpoint=endpoint)
                if error.retriable and not is_read and not isinstance(error, EtcdFull):
                    unknown = "(outcome unknown)"
                    raise EtcdError(f"{error} {unknown}", told=f"{error.told} {unknown}") from err
                raise error from err
