"""A server of our HTTP/2 in a process of its own, which says what it holds: ``python h2_server_process.py LIMITS``."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
from dataclasses import replace

from h2_server_bench import SERVICE, Bench, Echo

from gazette_platform.ops.process import resident_bytes
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import LIMITS, PEER_LIMITS
from gazette_platform.serving.interface import Kind, Rpc
from gazette_platform.testing.waiting import eventually

MIB = 1 << 20


class Holding(Echo):
    """Handlers that hold what they get, and one that says how much there is of everything."""

    shared = None

    async def hold(self, first, content, metadata):
        await self.gate.wait()

    async def state(self, request, metadata):
        if request:
            self.failed.clear()  # errors keep frames, and these keep messages
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
        shared = self.shared
        return json.dumps({
            "connections": len(shared.connections),
            "streams": sum(len(each.streams) for each in shared.connections),
            "blocked": sum(len(each.blocked) for each in shared.connections),
            "deadlines": len(shared.deadlines._steps),
            "tasks": len(shared.tasks),
            "unread": sum(each.unread for each in shared.connections),
            "rss": resident_bytes(),
        }).encode()  # fmt: skip

    def rpcs(self):
        more = {"Hold": (Kind.CLIENT_STREAM, self.hold), "State": (Kind.UNARY, self.state)}
        return super().rpcs() + [Rpc(SERVICE, name, *how) for name, how in more.items()]


async def serve(changes):
    bench = Bench(echo=Holding(), limits=replace(LIMITS, **changes))
    bench.echo.shared = bench.shared
    async with bench:
        print(bench.server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


class ServerProcess:
    """The process, as a test has it. `limits` are those that differ."""

    def __init__(self, **limits):
        self.limits = limits

    async def __aenter__(self):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, json.dumps(self.limits),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        self.port = int(await self.process.stdout.readline())
        self.address = f"127.0.0.1:{self.port}"
        self.channel = open_channel(self.address)
        for _ in range(100):
            await self.state()
        self.before = await self.state()
        return self

    async def __aexit__(self, *exc_info):
        await self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.communicate()

    async def state(self, *, is_tidy=True):
        """What it holds; `is_tidy`: after it has given free memory back."""
        call = self.channel.call(f"/{SERVICE}/State", Kind.UNARY, request=b"x" * is_tidy)
        return json.loads(await call.answer())

    async def at_rest(self, growth_mib=16):
        """Wait until it holds no more than at first."""

        async def is_at_rest():
            found = await self.state()
            grown = found.pop("rss") - self.before["rss"]
            wanted = {key: value for key, value in self.before.items() if key != "rss"}
            self.found = found | {"grown MiB": grown / MIB}
            return found == wanted and grown < growth_mib * MIB

        try:
            await eventually(is_at_rest, timeout_s=30.0, poll_s=0.2)
        except TimeoutError:
            raise AssertionError(f"it is still {self.found}, and was {self.before}") from None

    async def watch(self, work):
        """Do some work. Returns: by how many MiB the server grew at most."""
        largest, task = 0, asyncio.get_running_loop().create_task(work)
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            largest = max(largest, (await self.state(is_tidy=False))["rss"])
        await task
        return (largest - self.before["rss"]) / MIB


def open_channel(target, **settings):
    given = {"limits": PEER_LIMITS, "message_bytes_max": 1 << 30}
    return Channel(target, Dialing(**(given | settings)))


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
