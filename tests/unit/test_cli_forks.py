"""Programs fork Spark's JVM although they have used gRPC."""

from __future__ import annotations

import os
import subprocess
import sys

# As PySpark starts its gateway: `preexec_fn` makes it a fork.
_PROGRAM = """
import asyncio, signal, subprocess
import gazette_platform.cli
import grpc.aio

async def main():
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        try:
            await asyncio.wait_for(channel.unary_unary("/a/b")(b""), 2)
        except (grpc.aio.AioRpcError, TimeoutError):
            pass
        ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in range(5):
            assert subprocess.Popen(["true"], preexec_fn=ignore).wait() == 0

asyncio.run(main())
"""


def test_forks_do_not_meet_grpc():
    environment = {**os.environ, "GRPC_VERBOSITY": "INFO"}
    environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)  # the tests' own
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "fork() handlers" not in ended.stderr
