"""kcat, as Debian has it: an older librdkafka than the one of PyPI."""

from __future__ import annotations

import asyncio
import re
import shutil

import pytest
from kafka_docs import program_does
from kafka_wire import gateway_of

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

WAIT_S = 30.0


async def kcat(gateway, *arguments, given=b""):
    program = shutil.which("kcat")
    assert program, "kcat is missing (Debian: apt-get install kcat)"
    process = await asyncio.create_subprocess_exec(
        program,
        "-b",
        f"127.0.0.1:{gateway.port}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate(given)
    assert process.returncode == 0, err.decode()
    return out


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
async def test_kcat_produces_consumes_and_asks(local_brokers, codec, request):
    broker = await local_brokers.start()
    async with gateway_of(broker, auto_create=True) as gateway:
        given = b"".join(b'k%d\t{"n":%d}\n' % (n, n) for n in range(100))
        await kcat(gateway, "-t", "t", "-P", "-K", "\t", "-z", codec, "-X", "acks=all", given=given)
        found = await kcat(
            gateway, "-t", "t", "-C", "-o", "beginning", "-e", "-q", "-f", "%k\t%s\n"
        )
        assert found == given
        last = await kcat(gateway, "-t", "t", "-C", "-o", "-1", "-e", "-q", "-f", "%s\n")
        assert last == b'{"n":99}\n'
        assert b'topic "t" with 1 partitions' in await kcat(gateway, "-L")
        version = await kcat(gateway, "-V")
    program_does(
        request.config,
        f"kcat {re.search(r'Version ([0-9.]+)', version.decode())[1]}",
        "writes with each codec, reads from an offset to the end, and lists topics",
    )
