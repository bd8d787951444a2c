"""What brokers store in each codec, read by other libraries than ours, and where it was compressed."""

from __future__ import annotations

import gzip
import io
import threading

import cramjam
import pytest
import zstandard

from gazette_platform.broker.spool import disk
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

MIB = 1 << 20
ZSTD_WINDOW_BYTES_MAX = 8 * MIB  # of Trino's reader
LINES = b"".join(b'{"line": %d, "text": "so much of it"}\n' % n for n in range(150_000))


def read_zstd(stored):
    limited = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    return limited.stream_reader(io.BytesIO(stored), read_across_frames=True).read()


READERS = {
    CompressionCodec.GZIP: (gzip.decompress, b"\x1f\x8b\x08"),
    CompressionCodec.ZSTANDARD: (read_zstd, b"\x28\xb5\x2f\xfd"),
    CompressionCodec.SNAPPY: (
        lambda stored: bytes(cramjam.snappy.decompress(stored)),
        b"\xff\x06\x00\x00sNaPpY",
    ),
}


@pytest.mark.parametrize("codec", READERS)
async def test_fragments_are_compressed_in_batches_by_threads_and_read_by_others(
    local_brokers, codec, monkeypatch
):
    seen = []  # of each batch its size, and the thread it was compressed in
    make = disk.compressor

    def spied(wanted):
        inner = make(wanted)
        compress = inner.compress

        class Spied:
            finish = inner.finish

            def compress(self, data):
                seen.append((len(data), threading.current_thread()))
                return compress(data)

        return Spied()

    monkeypatch.setattr(disk, "compressor", spied)
    broker = await local_brokers.start()
    fragment = FragmentSpec(
        length=64 * MIB, codec=codec, stores=("file:///",), refresh_interval_ns=3600 * 10**9
    )
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([Change(JournalSpec("a/journal", 1, fragment=fragment))])
        for at in range(0, len(LINES), 200_000):
            await client.append("a/journal", LINES[at : at + 200_000])
        assert await client.flush("name=a/journal") == {"a/journal": len(LINES)}
        async with client.read("a/journal") as reader:
            assert await reader.read() == LINES
    read, magic = READERS[codec]
    content = b""
    paths = sorted((local_brokers.fragments / "a/journal").iterdir())
    for file in paths:
        stored = file.read_bytes()
        assert file.name.endswith(codec.extension)
        assert stored.startswith(magic)
        content += read(stored)
    assert content == LINES
    # The event loop is that of this thread, and of the broker.
    assert all(thread is not threading.current_thread() for _, thread in seen)
    sizes = [size for size, _ in seen]
    assert sum(sizes) == len(LINES)
    assert len([size for size in sizes if size < MIB]) <= len(paths)  # the last of each file
    assert max(sizes) < len(LINES) / 2  # not all at once in the end
