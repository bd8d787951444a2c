"""Every codec: round trips, pieces, limits, damage, and Gazette's own bytes."""

from __future__ import annotations

import gzip
import os
import zlib

import pytest
import zstandard

from gazette_platform.codecs import (
    compressor,
    decompress_steps,
    decompressor,
    extension,
)
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol import CompressionCodec

CODECS = [codec for codec in CompressionCodec if codec is not CompressionCodec.INVALID]
COMPRESSING = [codec for codec in CODECS if codec is not CompressionCodec.NONE]
# Bytes of a fragment "foobar" as Gazette writes it.
GAZETTE = {
    CompressionCodec.NONE: "666f6f626172",
    CompressionCodec.GZIP: "1f8b080000096e8800ff000600f9ff666f6f6261720300951ff69e06000000",
    CompressionCodec.ZSTANDARD: "28b52ffd0058310000666f6f626172",
    CompressionCodec.SNAPPY: "ff060000734e61507059010a00009605815b666f6f626172",
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: (
        "1f8b080000096e8800ff000600f9ff666f6f6261720300951ff69e06000000"
    ),
}
MIXED = b"".join(os.urandom(500) + b"abcd" * 700 for _ in range(60))


def compress(codec: CompressionCodec, *batches: bytes) -> bytes:
    writer = compressor(codec)
    return b"".join([*(writer.compress(batch) for batch in batches), writer.finish()])


def decompress(codec: CompressionCodec, stored: bytes, piece_bytes: int) -> bytes:
    reader = decompressor(codec)
    content = b"".join(
        reader.decompress(stored[i : i + piece_bytes]) for i in range(0, len(stored), piece_bytes)
    )
    reader.finish()
    return content


@pytest.mark.parametrize("codec", CODECS)
def test_gazettes_bytes_are_read(codec):
    stored = bytes.fromhex(GAZETTE[codec])
    assert decompress(codec, stored, len(stored)) == b"foobar"
    assert decompress(codec, stored, 1) == b"foobar"
    assert decompress(codec, stored + stored, 5) == b"foobarfoobar"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("piece_bytes", [37, 4096, 1 << 20])
def test_batches_in_pieces_of_any_size(codec, piece_bytes):
    batches = [b"", MIXED, b"a", b"", bytes(300_000), os.urandom(70_000), b"end"]
    stored = compress(codec, *batches)
    assert decompress(codec, stored, piece_bytes) == b"".join(batches)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_and_pieces_may_be_memory_views(codec):
    stored = compressor(codec).compress(memoryview(MIXED)) if codec is not CODECS[-1] else b""
    stored = stored or compress(codec, memoryview(MIXED))
    assert decompressor(codec).decompress(memoryview(stored)) == MIXED


@pytest.mark.parametrize(
    "codec", [c for c in CODECS if c is not CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION]
)
def test_each_batch_is_whole_in_itself(codec):
    writer = compressor(codec)
    first, second = writer.compress(b"first " * 9), writer.compress(b"second")
    assert writer.finish() == b""
    assert decompress(codec, second, 7) == b"second"
    assert decompress(codec, second + first, 7) == b"second" + b"first " * 9


def test_gzip_members_are_read_by_others():
    stored = compress(CompressionCodec.GZIP, MIXED, os.urandom(200_000), b"tail")
    assert gzip.decompress(stored).startswith(MIXED)
    assert gzip.decompress(stored).endswith(b"tail")


def test_offloaded_gzip_is_one_member():
    stored = compress(CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION, b"one ", b"two ", b"three")
    member = zlib.decompressobj(31)
    assert member.decompress(stored) == b"one two three"
    assert member.eof
    assert not member.unused_data


@pytest.mark.parametrize("size", [65_534, 65_535, 65_536, 2 * 65_535, 2 * 65_535 + 1])
def test_stored_members_end_with_their_last_block(size):
    """Which holds up to 65,535 bytes, and may be full."""
    noise = os.urandom(size)
    stored = compress(CompressionCodec.GZIP, noise, b"tail")
    assert len(stored) > size, "it was compressed"
    assert gzip.decompress(stored) == noise + b"tail"
    assert decompress(CompressionCodec.GZIP, stored, 4096) == noise + b"tail"


def test_incompressible_batches_are_stored_as_they_are():
    noise = os.urandom(200_001)
    stored = compress(CompressionCodec.GZIP, noise)
    assert noise[:60_000] in stored
    assert len(stored) < len(noise) + 60
    assert gzip.decompress(stored) == noise
    # A batch that is only partly noise is compressed.
    assert len(compress(CompressionCodec.GZIP, noise + bytes(400_000))) < len(noise) * 1.1


def test_zstd_frames_are_checked_and_within_the_window():
    stored = compress(CompressionCodec.ZSTANDARD, bytes(1 << 20))
    parameters = zstandard.get_frame_parameters(stored)
    assert parameters.has_checksum
    assert parameters.window_size <= 8 << 20


@pytest.mark.parametrize(
    ("codec", "block"), [(CODECS[1], 1), (CODECS[2], 1 << 17), (CODECS[3], 1 << 16)]
)
@pytest.mark.parametrize("limit", [1 << 16, 200_000, 1 << 20])
def test_output_of_a_step_is_bounded(codec, block, limit):
    content = bytes(20 << 20)
    stored = compress(codec, content[: 10 << 20], content[10 << 20 :])
    assert len(stored) < 1 << 20
    reader = decompressor(codec)
    sizes = [len(step) for step in decompress_steps(reader, stored, step_bytes_max=limit)]
    reader.finish()
    assert sum(sizes) == len(content)
    assert max(sizes) <= -(-limit // block) * block  # rounded up to blocks
    assert reader.needs_input


@pytest.mark.parametrize("codec", COMPRESSING[:3])
def test_pieces_after_a_limit_was_hit(codec):
    batches = [MIXED, bytes(500_000), MIXED]
    stored = compress(codec, *batches)
    reader = decompressor(codec)
    parts = [
        reader.decompress(stored[i : i + 30_000], 64_000) for i in range(0, len(stored), 30_000)
    ]
    while not reader.needs_input:
        parts.append(reader.decompress(b"", 64_000))
    reader.finish()
    assert b"".join(parts) == b"".join(batches)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_truncated_files_are_noticed(codec):
    stored = compress(codec, MIXED)
    for length in (1, 3, 7, len(stored) // 2, len(stored) - 1):
        reader = decompressor(codec)
        reader.decompress(stored[:length])
        with pytest.raises(DataError, match="truncated"):
            reader.finish()


@pytest.mark.parametrize("codec", COMPRESSING)
def test_an_unfinished_step_is_not_the_end(codec):
    reader = decompressor(codec)
    reader.decompress(compress(codec, bytes(1 << 20)), 1000)
    with pytest.raises(DataError, match="truncated"):
        reader.finish()


@pytest.mark.parametrize("codec", COMPRESSING)
def test_damage_is_noticed(codec):
    stored = bytearray(compress(codec, os.urandom(3000)))
    stored[1500] ^= 1
    with pytest.raises(DataError, match="damaged"):
        decompressor(codec).decompress(bytes(stored))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_of_something_else_are_refused(codec):
    with pytest.raises(DataError, match="is not"):
        decompressor(codec).decompress(b"{'a': 1} and more text that is no archive at all")


def test_zstd_skips_skippable_frames():
    skippable = b"\x55\x2a\x4d\x18" + (5000).to_bytes(4, "little") + bytes(5000)
    frame = compress(CompressionCodec.ZSTANDARD, b"content")
    stored = skippable + frame + skippable + skippable + frame + skippable
    for piece_bytes in (1, 100, 1 << 20):
        assert decompress(CompressionCodec.ZSTANDARD, stored, piece_bytes) == b"contentcontent"
    with pytest.raises(DataError, match="truncated"):
        decompress(CompressionCodec.ZSTANDARD, stored[:-1], 999)


def test_zstd_streams_without_sizes_or_checksums_are_read():
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    stored = stream.compress(MIXED) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    stored += stream.compress(MIXED) + stream.flush()
    assert decompress(CompressionCodec.ZSTANDARD, stored, 1111) == MIXED + MIXED


def test_zstd_windows_beyond_the_limit_are_refused():
    settings = zstandard.ZstdCompressionParameters(window_log=25, enable_ldm=True)
    stored = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    data = stored.compress(os.urandom(100)) + stored.flush()
    with pytest.raises(DataError, match="zstd"):
        decompressor(CompressionCodec.ZSTANDARD).decompress(data)


@pytest.mark.parametrize("descriptor", [0xFF, 0x08])
def test_zstd_frame_headers_with_reserved_bits_are_noticed(descriptor):
    stored = b"\x28\xb5\x2f\xfd" + bytes((descriptor,)) + b"\xff" * 20
    with pytest.raises(DataError, match="damaged"):
        decompressor(CompressionCodec.ZSTANDARD).decompress(stored)


def test_zstd_damaged_block_headers_are_noticed():
    stored = bytearray(compress(CompressionCodec.ZSTANDARD, MIXED))
    header = zstandard.frame_header_size(bytes(stored))
    stored[header] |= 0b110
    with pytest.raises(DataError, match="damaged"):
        decompressor(CompressionCodec.ZSTANDARD).decompress(bytes(stored))


def test_snappy_chunks_that_claim_too_much_are_refused():
    stored = compress(CompressionCodec.SNAPPY, b"abc")[:10] + b"\x00\xff\xff\xff"
    with pytest.raises(DataError, match="claims"):
        decompressor(CompressionCodec.SNAPPY).decompress(stored)


def test_extensions():
    assert [extension(codec) for codec in CODECS] == [".raw", ".gz", ".zst", ".sz", ""]
    assert [CompressionCodec.of_extension(extension(codec)) for codec in CODECS] == CODECS
    with pytest.raises(ValidationError, match=r"unrecognized compression extension: \.XXX"):
        CompressionCodec.of_extension(".XXX")


@pytest.mark.parametrize("codec", [CompressionCodec.INVALID, CompressionCodec.from_wire(77)])
def test_invalid_codecs_are_refused(codec):
    for call in (compressor, decompressor, extension):
        with pytest.raises(ValidationError):
            call(codec)
