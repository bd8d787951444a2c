"""A slim, typed asyncio client of etcd v3.

Nouns: key, revision (of the whole store), lease, transaction, watch. Guarantees: deadlines on
every call, several endpoints, whole revisions from watches, and errors that name endpoint, key
and next step. What is not promised: exactly-once writes; a write whose connection broke may have
been applied, so writers compare revisions in a transaction.

A lease makes keys vanish when the process stops renewing it. A watch yields whole revisions of one prefix, in order,
until it breaks: a reader that saw half a revision would act on a state that never existed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from typing import TYPE_CHECKING, Any, Self, final

from gazette_platform.errors import EtcdError, LeaseLost, ValidationError
from gazette_platform.etcd import wire
from gazette_platform.etcd.wire import (
    Compacted,
    Compare,
    CompareTarget,
    Connection,
    Delete,
    EtcdFull,
    EtcdRejected,
    EtcdTls,
    Event,
    Get,
    KeyValue,
    Operation,
    Put,
    RangeResult,
    ResponseHeader,
    ServerStatus,
    TxnResult,
    WatchBatch,
    parse_endpoint,
)
from gazette_platform.ops.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "TXN_OPS_MAX",
    "Compacted",
    "Compare",
    "CompareTarget",
    "Delete",
    "EtcdClient",
    "EtcdFull",
    "EtcdRejected",
    "EtcdTls",
    "Event",
    "Get",
    "KeyValue",
    "Lease",
    "Operation",
    "Put",
    "RangeResult",
    "ResponseHeader",
    "ServerStatus",
    "TxnResult",
    "Watch",
    "WatchBatch",
    "parse_endpoint",
]


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
                EtcdRejected: what answers is not etcd, or too old.
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
        """End a lease of another process, with all keys under it; for your own use `Lease.revoke`.

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


_log = logging.getLogger(__name__)

# Three chances per time to live, as etcd's own clients have it.
_RENEWALS_PER_TTL = 3
_RETRY_S = 0.25


@final
class Lease:
    """A granted lease. `keep_alive` renews it; `revoke` ends it with all keys under it.

    Our own deadline counts from *before* the last renewal that succeeded was sent. So it never
    lies later than etcd's, and a process that was paused knows that it lost the lease even
    before it asks.
    """

    def __init__(
        self, connection: Connection, clock: Clock, *, lease_id: int, ttl_s: int, granted_at: float
    ) -> None:
        self._connection = connection
        self._clock = clock
        self.id = lease_id
        self.ttl_s = ttl_s
        """Seconds, as granted: etcd may raise a time to live that is too short for it."""
        self.why_late: Callable[[], str] = str
        """Returns why this process may have been late to renew it, as far as it knows; or ""."""
        self._deadline = granted_at + ttl_s
        self._revoked = asyncio.Event()

    @property
    def remaining_s(self) -> float:
        """Seconds until it ends unless renewed; 0 or less: it is lost."""
        return self._deadline - self._clock.monotonic()

    async def keep_alive(self) -> None:
        """Renew for as long as the lease is ours; spawn it in a task group. Ends after `revoke`.

        Raises: LeaseLost: it ran out, or was revoked; whatever it owned is gone.
        Cancellation: safe; the lease then ends by itself.
        """
        last_error = ""
        pause_s = self.ttl_s / _RENEWALS_PER_TTL
        while not self._revoked.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause_s, max(self.remaining_s, 0.0))):
                    await self._revoked.wait()
            if self._revoked.is_set():
                return
            if self.remaining_s <= 0:
                raise LeaseLost(
                    f"unable to keep member lease alive: lease {self.id:x} was not renewed "
                    f"within {self.ttl_s} s; {last_error or self.why_late() or 'the process was paused'}; "
                    "the process has to start again"
                )
            try:
                await self._renew()
            except LeaseLost:
                if not self._revoked.is_set():
                    raise
            except EtcdError as err:
                last_error = str(err)
                _log.warning("lease %x is not renewed: %s", self.id, err)
                pause_s = _RETRY_S
            else:
                pause_s = self.ttl_s / _RENEWALS_PER_TTL

    async def revoke(self, *, timeout_s: float = 3.0) -> None:
        """End the lease and remove its keys. A lease that is gone already is not an error.

        Args:
            timeout_s: seconds.

        Raises: EtcdError: etcd did not answer; the lease then ends by itself.
        """
        self._revoked.set()
        deadline = self._clock.monotonic() + timeout_s
        stub = await self._connection.stub(wire.stubs.LeaseStub, deadline=deadline)
        request = wire.rpc_pb2.LeaseRevokeRequest(ID=self.id)
        try:
            await stub.LeaseRevoke(request, timeout=max(0.001, deadline - self._clock.monotonic()))
        except wire.aio.AioRpcError as err:
            if err.code() == wire.grpc.StatusCode.NOT_FOUND:
                return
            what = f"revocation of lease {self.id:x}"
            raise wire.error_of(err, what=what, endpoint=self._connection.url) from err

    async def _renew(self) -> None:
        # One short stream per renewal: it costs a few packets per TTL, and needs no stream state
        # that has to move when the endpoint does.
        sent_at = self._clock.monotonic()
        # A dead endpoint must leave time to try the next.
        budget_s = max(0.001, min(self.ttl_s / _RENEWALS_PER_TTL, self.remaining_s))
        stub = await self._connection.stub(wire.stubs.LeaseStub, deadline=sent_at + budget_s)
        endpoint = self._connection.url
        request = wire.rpc_pb2.LeaseKeepAliveRequest(ID=self.id)
        left_s = max(0.001, sent_at + budget_s - self._clock.monotonic())
        call = stub.LeaseKeepAlive(iter((request,)), timeout=left_s)
        try:
            msg = await call.read()
        except wire.CALL_ERRORS as err:
            self._connection.rotate()
            what = f"renewal of lease {self.id:x}"
            raise wire.error_of(err, what=what, endpoint=endpoint) from err
        finally:
            call.cancel()
        if msg is wire.aio.EOF:
            raise EtcdError(f"etcd at {endpoint}: renewal of lease {self.id:x}: no answer")
        if msg.TTL <= 0:
            self._deadline = sent_at
            raise LeaseLost(
                f"unable to keep member lease alive: etcd at {endpoint} does not know lease "
                f"{self.id:x} any more (it ran out or was revoked); the process has to start again"
            )
        self.ttl_s = msg.TTL
        self._deadline = sent_at + msg.TTL


# etcd is asked to require a leader: a member that is cut off from the others would else accept the
# watch and stay silent for ever, and we would take an old state for the present one.
_METADATA = (("hasleader", "true"),)
# Reasons of cancellation that pass by themselves, which etcd gives as text only.
_PASSING = ("no leader", "watch canceled", "server stopped", "leader changed")


@final
class Watch:
    """An async context manager that iterates over `WatchBatch`es.

    A batch never splits a revision: etcd groups by revision, and the fragments in which it sends
    large groups are put together here. It does not restart itself: only the caller, who applies the
    batches, knows the revision to go on from.

    Raises (from entering and from iterating):
        Compacted: the start revision is no longer kept.
        EtcdRejected: etcd cancelled the watch for another lasting reason.
        EtcdError: retriable; the stream broke.
    """

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        *,
        prefix: str,
        start_revision: int,
        connect_timeout_s: float,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._prefix = prefix
        self._start_revision = start_revision
        self._connect_timeout_s = connect_timeout_s
        self._endpoint = ""
        self._call: Any = None

    async def __aenter__(self) -> Self:
        deadline = self._clock.monotonic() + self._connect_timeout_s
        stub = await self._connection.stub(wire.stubs.WatchStub, deadline=deadline)
        self._endpoint = self._connection.url
        self._call = stub.Watch(metadata=_METADATA)
        request = wire.rpc_pb2.WatchRequest(
            create_request=wire.rpc_pb2.WatchCreateRequest(
                key=wire.encode_key(self._prefix) or b"\0",
                range_end=wire.prefix_end(self._prefix),
                start_revision=self._start_revision,
                progress_notify=True,
                fragment=True,
            )
        )
        try:
            await self._call.write(request)
        except wire.CALL_ERRORS as err:
            self._connection.rotate()
            raise self._error(err) from err
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._call is not None:
            self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        """The next batch; waits for one. Cancellation: safe, but ends the watch's use."""
        events: list[Event] = []
        while True:
            msg = await self._read()
            if msg.canceled:
                raise self._cancel_error(msg)
            events.extend(wire.event_of(event) for event in msg.events)
            if msg.created or msg.fragment:
                continue
            return WatchBatch(wire.header_of(msg.header), tuple(events))

    async def _read(self) -> Any:
        try:
            msg = await self._call.read()
        except wire.CALL_ERRORS as err:
            self._connection.rotate()
            raise self._error(err) from err
        if msg is wire.aio.EOF:
            self._connection.rotate()
            raise EtcdError(f"etcd at {self._endpoint}: watch of {self._prefix}*: stream ended")
        return msg

    def _error(self, err: Any) -> EtcdError:
        return wire.error_of(err, what=f"watch of {self._prefix}*", endpoint=self._endpoint)

    def _cancel_error(self, msg: Any) -> EtcdError:
        text = f"etcd at {self._endpoint}: watch of {self._prefix}* from {self._start_revision}"
        if msg.compact_revision:
            return Compacted(
                f"{text}: compacted up to {msg.compact_revision}; load again at a newer revision",
                compact_revision=msg.compact_revision,
            )
        reason = msg.cancel_reason or "no reason given"
        if any(passing in reason for passing in _PASSING):
            # Only this member of etcd says so; another one may be better off.
            self._connection.rotate()
            return EtcdError(f"{text}: cancelled: {reason}")
        return EtcdRejected(f"{text}: cancelled: {reason}")
