"""What gRPC raises on a connection to etcd that breaks is an error of etcd that passes."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio
from grpc._cython import cygrpc

from gazette_platform.errors import EtcdError
from gazette_platform.etcd import Lease, Watch
from gazette_platform.ops.clock import ManualClock

ERRORS = [
    cygrpc.ExecuteBatchError("failed"),
    aio.UsageError("misused"),
    asyncio.InvalidStateError("RPC already finished."),
    aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata()),
]


class Call:
    """A call whose reads or writes fail."""

    def __init__(self, connection):
        self.connection = connection

    async def write(self, _request):
        if self.connection.failing == "write":
            raise self.connection.error

    async def read(self):
        raise self.connection.error

    def cancel(self):
        pass


class Connection:
    """One endpoint, whose stubs begin such calls."""

    url = "http://etcd"

    def __init__(self, error, failing):
        self.error, self.failing = error, failing
        self.rotated = 0

    async def stub(self, _stub_class, *, deadline):
        assert deadline
        return self

    def Watch(self, metadata):  # noqa: N802  as in the stub
        assert metadata
        return Call(self)

    def LeaseKeepAlive(self, _requests, timeout):  # noqa: N802
        assert timeout
        return Call(self)

    def rotate(self):
        self.rotated += 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("failing", ["write", "read"])
async def test_a_watch_that_breaks_says_so(error, failing):
    connection = Connection(error, failing)
    watch = Watch(connection, ManualClock(), prefix="/p/", start_revision=1, connect_timeout_s=1.0)
    with pytest.raises(EtcdError, match=r"etcd at http://etcd: watch of /p/\*") as caught:
        async with watch:
            await anext(watch)
    assert caught.value.retriable
    assert connection.rotated == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_renewal_that_breaks_is_tried_again(error):
    connection = Connection(error, "read")
    lease = Lease(connection, ManualClock(), lease_id=7, ttl_s=10, granted_at=0.0)
    with pytest.raises(EtcdError, match="renewal of lease 7"):
        await lease._renew()
    assert connection.rotated == 1
