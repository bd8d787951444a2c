"""Crashes of a broker process, against its promise:

bytes that were acknowledged exist afterwards, unchanged and at their offsets; an append exists as
a whole or not at all; and a broker that stops on request has stored everything.

Appends are records with a length and a checksum, so that every byte can be judged without knowing
which of them were acknowledged. Rounds are random; the seed is in the name of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.codecs import decompressor
from gazette_platform.errors import GazetteError, IndexHasGreaterOffset
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalChange,
    JournalSpec,
    parse_fragment_path,
)
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import pass_time, patient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.etcd]

JOURNAL = "a/journal"
HEAD = struct.Struct(">4sI20s")
MAGIC = b"REC\n"
APPENDERS = 8


def record(rng: random.Random) -> bytes:
    """Mostly small, so that they are written together; some large enough to be streamed."""
    kind = rng.random()
    size = rng.randrange(1, 2000) if kind < 0.9 else rng.randrange(100_000, 300_000)
    if kind > 0.995:
        size = rng.randrange(2 << 20, 5 << 20)
    payload = rng.randbytes(min(size, 4096)) * (size // 4096 + 1)
    payload = payload[:size]
    digest = hashlib.sha1(payload, usedforsecurity=False).digest()
    return HEAD.pack(MAGIC, len(payload), digest) + payload


def check_records(content: bytes, where: str) -> int:
    """Check that `content` is nothing but whole records. Returns: how many."""
    at = count = 0
    while at < len(content):
        magic, length, digest = HEAD.unpack_from(content, at)
        payload = content[at + HEAD.size : at + HEAD.size + length]
        assert magic == MAGIC, f"{where}: no record at byte {at}"
        assert len(payload) == length, f"{where}: record at byte {at} is cut off"
        found = hashlib.sha1(payload, usedforsecurity=False).digest()
        assert found == digest, f"{where}: record at byte {at} is not as it was sent"
        at += HEAD.size + length
        count += 1
    return count


@dataclass
class History:
    """What was acknowledged, by its offset."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)

    def add(self, begin: int, content: bytes) -> None:
        for other_begin, other in self.acknowledged.items():
            assert begin >= other_begin + len(other) or begin + len(content) <= other_begin, (
                f"[{begin}, {begin + len(content)}) was acknowledged over what is at {other_begin}"
            )
        self.acknowledged[begin] = content

    def forget_unless(self, kept: list[tuple[int, int]]) -> int:
        """Forget what lies in none of the spans. Returns: how many appends that are."""
        lost = [
            begin
            for begin, content in self.acknowledged.items()
            if not any(low <= begin and begin + len(content) <= high for low, high in kept)
        ]
        for begin in lost:
            del self.acknowledged[begin]
        return len(lost)

    def check(self, low: int, content: bytes) -> int:
        """Check the acknowledged appends within a span. Returns: how many they are."""
        count = 0
        for begin, expected in self.acknowledged.items():
            if low <= begin < low + len(content):
                found = content[begin - low : begin - low + len(expected)]
                assert found == expected, f"other bytes than acknowledged at {begin}"
                count += 1
        return count


class Cluster:
    """One journal, and one broker at a time, each with a name of its own but in one folder."""

    def __init__(self, folder: Path, etcd: str, prefix: str) -> None:
        self.folder, self.etcd, self.prefix = folder, etcd, prefix
        self.history = History()
        self.starts = 0

    @contextlib.contextmanager
    def broker(self) -> Iterator[BrokerServer]:
        self.starts += 1
        # A new name, so that it need not wait for the lease of the one that was killed.
        flags = [f"--broker.id=broker-{self.starts:04d}"]
        with BrokerServer(self.folder, etcd=self.etcd, prefix=self.prefix, flags=flags) as server:
            yield server

    @contextlib.asynccontextmanager
    async def client(self, server: BrokerServer) -> AsyncIterator[AsyncClient]:
        async with AsyncClient(ClientConfig(address=server.address)) as client:
            yield client

    def stored(self) -> dict[Fragment, bytes]:
        """All fragments in the store, decompressed, by offset."""
        folder = self.folder / "fragments" / JOURNAL
        found = {}
        for path in folder.rglob("*.*") if folder.is_dir() else ():
            if path.name.startswith("."):
                continue  # an upload that was cut short: no name, no fragment
            fragment = parse_fragment_path(JOURNAL, str(path.relative_to(folder)))
            steps = decompressor(fragment.codec)
            found[fragment] = steps.decompress(path.read_bytes())
            steps.finish()
        return dict(sorted(found.items(), key=lambda item: item[0].begin))


@pytest.fixture
def cluster(etcd_server, etcd_prefix, tmp_path):
    return Cluster(tmp_path, etcd_server.endpoint, etcd_prefix)


async def create(client: AsyncClient, codec: CompressionCodec) -> None:
    fragment = FragmentSpec(
        length=256 << 10, codec=codec, stores=("file:///",), refresh_interval_ns=10**9
    )
    await client.apply([JournalChange(JournalSpec(JOURNAL, 1, fragment=fragment))])


async def append_for_ever(client: AsyncClient, history: History, rng: random.Random) -> None:
    """Append records, one after the other, until cancelled or the broker has gone."""
    while True:
        content = record(rng)
        try:
            result = await client.append(JOURNAL, content)
        except GazetteError:
            return  # outcome unknown
        history.add(result.begin, content)


async def while_appending(client, history, rng, moment) -> None:
    """Run `moment` in a thread after a random time, while several tasks append."""
    appenders = [
        asyncio.ensure_future(  # noqa: TID251  awaited below
            append_for_ever(client, history, random.Random(rng.random()))
        )
        for _ in range(APPENDERS)
    ]
    await pass_time(rng.uniform(0.2, 1.5))
    await asyncio.get_running_loop().run_in_executor(None, moment)
    for appender in appenders:
        appender.cancel()
    for appender in appenders:
        with contextlib.suppress(asyncio.CancelledError):
            await appender


async def take_over(client: AsyncClient) -> int:
    """Wait until the new broker serves, and reset the head if need be. Returns: the head."""
    async with asyncio.timeout(patient(60)):
        try:
            return (await client.append(JOURNAL, b"")).end
        except IndexHasGreaterOffset:
            await client.reset_head(JOURNAL)
            return (await client.append(JOURNAL, b"")).end


def check_store(cluster: Cluster) -> list[tuple[int, int]]:
    """Check every persisted byte. Returns: their spans."""
    spans = []
    for fragment, content in cluster.stored().items():
        name = fragment.content_name
        assert len(content) == fragment.content_length, name
        assert hashlib.sha1(content, usedforsecurity=False).digest() == fragment.sum, name
        check_records(content, name)
        cluster.history.check(fragment.begin, content)
        spans.append((fragment.begin, fragment.end))
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert end <= begin, "fragments overlap"
    return spans


async def check_reads(client: AsyncClient, cluster: Cluster, spans) -> int:
    """Read persisted content back through the broker. Returns: acknowledged appends found."""
    found = 0
    for begin, end in spans:
        async with client.read(JOURNAL, begin, end_offset=end) as reader:
            content = b"".join([bytes(piece) async for piece in reader])
        assert len(content) == end - begin
        check_records(content, f"read of [{begin}, {end})")
        found += cluster.history.check(begin, content)
    return found


async def crash_rounds(cluster: Cluster, rng: random.Random, rounds: int) -> None:
    for number in range(rounds):
        with cluster.broker() as server:
            async with cluster.client(server) as client:
                if number == 0:
                    await create(client, rng.choice([CompressionCodec.GZIP, CompressionCodec.NONE]))
                # No reset: it goes on where it was killed.
                head = (await client.append(JOURNAL, b"")).end
                check_store(cluster)
                found = await check_reads(client, cluster, [(0, head)] if head else [])
                assert found == len(cluster.history.acknowledged)
                await while_appending(client, cluster.history, rng, server.kill)
    assert len(cluster.history.acknowledged) > 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1])
async def test_sigkill_loses_nothing_that_was_acknowledged(cluster, seed):
    await crash_rounds(cluster, random.Random(seed), rounds=4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [4])
async def test_sigterm_loses_nothing_at_all(cluster, seed):
    rng = random.Random(seed)
    statuses = []
    head = 0
    for number in range(4):
        with cluster.broker() as server:
            async with cluster.client(server) as client:
                if number == 0:
                    await create(client, CompressionCodec.GZIP)
                # No reset: the broker that left has noted where it stopped.
                assert (await client.append(JOURNAL, b"")).end == head
                await while_appending(
                    client, cluster.history, rng, lambda s=server: statuses.append(s.stop())
                )
        spans = check_store(cluster)
        assert cluster.history.forget_unless(spans) == 0, "acknowledged, and not persisted"
        head = max(end for _, end in spans)
        assert sum(end - begin for begin, end in spans) == head, "there are gaps"
    assert statuses == [0] * 4
    assert len(cluster.history.acknowledged) > 100
    with cluster.broker() as server:
        async with cluster.client(server) as client:
            found = await check_reads(client, cluster, [(0, head)])
    assert found == len(cluster.history.acknowledged)


@pytest.mark.timeout(120)
async def test_a_tail_over_a_sigkill_sees_whole_records_only(cluster):
    """A reader that was cut off has seen a prefix of records, and all except the last are whole."""
    rng = random.Random(5)
    seen = bytearray()

    async def tail(client: AsyncClient) -> None:
        with contextlib.suppress(GazetteError):
            async with client.read(JOURNAL, 0, block=True) as reader:
                async for piece in reader:
                    seen.extend(piece)

    with cluster.broker() as server:
        async with cluster.client(server) as client:
            await create(client, CompressionCodec.GZIP)
            await take_over(client)
            tailing = asyncio.ensure_future(tail(client))  # noqa: TID251  cancelled below
            await while_appending(client, cluster.history, rng, server.kill)
            tailing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await tailing
    content = bytes(seen)
    whole = at = 0
    while at + HEAD.size <= len(content):
        _, length, _ = HEAD.unpack_from(content, at)
        if at + HEAD.size + length > len(content):
            break
        at += HEAD.size + length
        whole += 1
    assert check_records(content[:at], "tail") == whole > 0
