"""A lease: what a process writes under it vanishes when the process stops renewing it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, final

from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.etcd import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.etcd.connection import Connection
    from gazette_platform.ops.clock import Clock

__all__ = ["Lease"]

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
