"""A watch of one prefix: whole revisions, in order, until it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, final

from gazette_platform.errors import EtcdError
from gazette_platform.etcd import wire
from gazette_platform.etcd.types import Compacted, EtcdRejected, Event, WatchBatch

if TYPE_CHECKING:
    from gazette_platform.etcd.connection import Connection
    from gazette_platform.ops.clock import Clock

__all__ = ["Watch"]

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
