"""Reads of history: from the broker's spool, through it from a store, and past it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import quote

from benchmarks.bench import Bench, create, delete, journal_spec, serving
from benchmarks.content import SIZES
from benchmarks.load import together
from gazette_platform.errors import DataError
from tests.benches.object_servers import s3_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from benchmarks.bench import Scale
    from benchmarks.content import Payloads
    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["measure_reads", "measure_s3_reads"]

_CODECS = ("raw", "gzip")
_WRITERS = 8
_PROBE_BYTES = 64 << 20
_PERSIST_TIMEOUT_S = 60.0
_POLL_S = 0.1


async def measure_reads(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields each way's label and figures.

    A journal is filled with one fragment's worth of content, which is then read out of the spool;
    the next append closes the fragment, and once it is persisted the same bytes are read out of
    the store, through the broker and directly.
    """
    for codec in _CODECS:
        journal = f"bench/read-{codec}"
        total = bench.scale.read_bytes
        await create(bench.client, journal_spec(journal, codec, fragment_bytes=total))
        begin = await bench.client.write_head(journal)
        elapsed_s = await _fill(bench, journal, total)
        end = begin + total
        figures: Figures = {}
        if total == 1 << 30:
            figures[f"write_1gib_{codec}_mb_per_s"] = total / elapsed_s / 1e6
        yield f"write {total >> 20} MiB, {codec}", figures
        ways = _Ways(bench, journal, begin, end)
        yield f"read from the spool, {codec}", await ways.measure(f"broker_spool_{codec}")
        await _persist(bench, journal, end)
        yield f"read through the broker, {codec}", await ways.measure(f"broker_{codec}")
        yield f"read from the store, {codec}", await ways.measure(f"direct_{codec}")
        await delete(bench, journal)


async def measure_s3_reads(
    folder: Path, *, etcd: str, payloads: Payloads, clock: Clock, scale: Scale
) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields the figures of direct reads from a real S3 server, which shares this machine.

    It has a broker of its own, whose CPU is reported: no byte of such a read passes it.
    """
    journal, total = "bench/read-s3-gzip", scale.read_bytes
    with s3_server(folder / "s3") as s3:
        s3.make_bucket("bench")
        keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
        url = f"s3://bench/fragments/?region=us-east-1&endpoint={quote(s3.endpoint, safe='')}"
        with mock.patch.dict(os.environ, keys):
            async with serving(folder / "broker-s3", etcd=etcd, prefix="/bench/s3") as servers:
                bench = Bench(servers[1], servers[0], payloads, clock, scale)
                spec = journal_spec(journal, "gzip", fragment_bytes=total, store=url)
                await create(bench.client, spec)
                begin = await bench.client.write_head(journal)
                await _fill(bench, journal, total)
                await _persist(bench, journal, begin + total)
                ways = _Ways(bench, journal, begin, begin + total)
                with bench.cpu() as used_s:
                    found = await ways.measure("direct_s3_gzip")
                    found["broker_cpu_s_read_direct_s3_gzip"] = used_s()
                yield f"read {total >> 20} MiB from S3, gzip", found


class _Ways:
    """Reads of the same span, which must give the same bytes each way."""

    def __init__(self, bench: Bench, journal: str, begin: int, end: int) -> None:
        self._bench = bench
        self._journal = journal
        self._begin = begin
        self._end = end
        self._probe = b""

    async def measure(self, way: str) -> Figures:
        is_direct, is_stored = way.startswith("direct"), "spool" not in way
        await self._check(is_direct=is_direct, is_stored=is_stored)
        bench = self._bench
        if is_direct:
            return await bench.repeat(partial(self._read_apart, way))

        async def run() -> Figures:
            with bench.cpu() as used_s:
                begun = bench.clock.monotonic()
                await self._read()
                elapsed_s = bench.clock.monotonic() - begun
                size = self._end - self._begin
                return {
                    f"read_{way}_mb_per_s": size / elapsed_s / 1e6,
                    f"broker_cpu_s_per_gb_read_{way.removeprefix('broker_')}": used_s()
                    / size
                    * 1e9,
                }

        return await bench.repeat(run)

    async def _read_apart(self, way: str) -> Figures:
        """Read directly, in a process of its own, whose memory is reported."""
        broker = self._bench.broker
        arguments = (broker.address, broker.fragments, self._journal, self._begin, self._end)
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.direct_reader", *map(str, arguments)),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await reader.communicate()
        if reader.returncode:
            raise DataError(f"{self._journal}: its reader ended with {reader.returncode}")
        found = json.loads(out)
        return {
            f"read_{way}_mb_per_s": found["mb_per_s"],
            f"read_{way}_rss_mb": found["rss_mb"],
            f"client_cpu_s_per_gb_read_{way}": found["cpu_s_per_gb"],
        }

    async def _read(self) -> None:
        reader = self._bench.client.read(self._journal, self._begin, end_offset=self._end)
        count = 0
        async with reader:
            async for piece in reader:
                count += len(piece)
        if count != self._end - self._begin:
            raise DataError(
                f"{self._journal}: read {count} bytes, expected {self._end - self._begin}"
            )

    async def _check(self, *, is_direct: bool, is_stored: bool) -> None:
        """Warm up, and see that content comes from where it should and is what it was."""
        end = min(self._end, self._begin + _PROBE_BYTES)
        digest = hashlib.sha1(usedforsecurity=False)
        reader = self._bench.client.read(
            self._journal, self._begin, end_offset=end, direct=is_direct
        )
        async with reader:
            async for piece in reader:
                digest.update(piece)
            if bool(reader.fragment_url) != is_stored:
                raise DataError(f"{self._journal}: read from {reader.fragment_url or 'the spool'}")
        if self._probe and self._probe != digest.digest():
            raise DataError(f"{self._journal}: the same span has other bytes than before")
        self._probe = digest.digest()


async def _fill(bench: Bench, journal: str, total: int) -> float:
    """Append `total` bytes, some appends at a time. Returns: seconds it took."""
    size = SIZES["1mib"]
    payloads = bench.payloads.of(size)
    left = total // size

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await bench.client.append(journal, next(payloads))

    begun = bench.clock.monotonic()
    await together(worker, _WRITERS)
    return bench.clock.monotonic() - begun


async def _persist(bench: Bench, journal: str, end: int) -> None:
    """Close the fragment that ends at `end`, and wait until it is in the store."""
    await bench.client.append(journal, b"last\n")
    async with asyncio.timeout(_PERSIST_TIMEOUT_S):
        while not any(  # noqa: ASYNC110  the broker has nothing to wait with
            found.is_persisted and found.fragment.end == end
            for found in await bench.client.fragments(journal)
        ):
            await asyncio.sleep(_POLL_S)
