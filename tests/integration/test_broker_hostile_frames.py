"""Bytes at the port of gRPC that no gRPC library would send: the broker serves on."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, Status
from gazette_platform.testing.local import LocalBrokers, append
from gazette_platform.testing.waiting import pass_time, patient, turns
from tests.fuzz.http2 import headers_frame, preface, request

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
SPEC = JournalSpec(
    JOURNAL,
    1,
    fragment=FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=10**9,
    ),
)
LIST = b"/protocol.Journal/List"


@pytest.mark.parametrize(
    "raw",
    [
        request(b"\xff\xfe", b""),
        request(b"/protocol.Journal/\xff", b""),
        request(LIST, b"\0\0\0\0\0", (b"authorization", b"Bearer \xe9\xff")),
        preface() + headers_frame(LIST, *[(b"k%d" % i, b"v") for i in range(5000)]),
        request(LIST, b"\0\xff\xff\xff\xff"),
        request(b"", b""),
        b"\0" * 1000,
    ],
    ids=["path", "method", "metadata", "headers", "length", "no-path", "zeros"],
)
async def test_odd_bytes_end_no_more_than_their_connection(
    etcd_server, etcd_prefix, tmp_path, caplog, raw
):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        broker = await brokers.start()
        stub = brokers.stub(broker)
        await brokers.apply(stub, SPEC)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        with contextlib.suppress(OSError):
            writer.write(raw)
            await writer.drain()
            # Until it is refused; a request that is only begun is not.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while await reader.read(65536):
                        pass
        response = await append(stub, JOURNAL, b"content")
        assert response.status == Status.OK.value
        writer.close()
    traced = [r for r in caplog.records if r.name.startswith("grpc") and r.exc_info]
    assert not traced, "a traceback a request fills a disk"


async def test_who_leaves_behind_an_odd_path_leaves_no_traceback(
    etcd_server, etcd_prefix, tmp_path, capfd, caplog
):
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        broker = await brokers.start()
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(request(b"\xff\xfe", b""))
            await writer.drain()
            await turns()
            writer.transport.abort()
        await brokers.apply(brokers.stub(broker), SPEC)
    # Asyncio's are of event loops of other tests, which gRPC misses.
    assert not [r for r in caplog.records if r.exc_info and r.name != "asyncio"]
    assert "Traceback" not in capfd.readouterr().err


def taken_back(calls):
    """Make so many calls, and give each up at once."""
    streams = range(1, 2 * calls, 2)
    reset = b"\0\0\x04\x03\0"
    return preface() + b"".join(
        headers_frame(LIST, stream=stream) + reset + struct.pack(">II", stream, 8)
        for stream in streams
    )


async def test_who_takes_back_thousands_of_calls_ends_no_call_of_others(
    etcd_server, etcd_prefix, tmp_path
):
    """gRPC drops new calls of anybody while too many wait, and calls that cancelled."""
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        broker = await brokers.start()
        await brokers.apply(brokers.stub(broker), SPEC)
        async with AsyncClient(ClientConfig(address=f"http://127.0.0.1:{broker.port}")) as client:
            await client.list()
            flood, raw, listed = asyncio.Event(), taken_back(4_000), 0

            async def overwhelm():
                for _ in range(5):
                    _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                    writer.write(raw)
                    await pass_time(0.2)
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
                flood.set()

            async def use():
                nonlocal listed
                while not flood.is_set():
                    listed += len(await client.list())
                    await pass_time(0.002)

            async with asyncio.timeout(patient(30)), asyncio.TaskGroup() as tasks:
                tasks.create_task(overwhelm())
                for _ in range(8):
                    tasks.create_task(use())
            assert listed
