"""Codecs over any batches, cut into any pieces, read with any limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from gazette_platform.codecs import compressor, decompressor
from gazette_platform.protocol import CompressionCodec

CODECS = [codec for codec in CompressionCodec if codec is not CompressionCodec.INVALID]

batches = st.lists(
    st.one_of(
        st.binary(max_size=2000),
        st.tuples(st.binary(min_size=1, max_size=3), st.integers(0, 60_000)).map(
            lambda pair: pair[0] * pair[1]
        ),
    ),
    max_size=6,
)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=40, deadline=None)
@given(
    batches=batches,
    piece_bytes=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
    limit=st.one_of(st.just(-1), st.integers(1, 200_000)),
)
def test_content_comes_back(codec, batches, piece_bytes, limit):
    writer = compressor(codec)
    stored = b"".join([*(writer.compress(batch) for batch in batches), writer.finish()])
    reader = decompressor(codec)
    parts: list[bytes] = []
    position = turn = 0
    while position < len(stored):
        size = piece_bytes[turn % len(piece_bytes)]
        parts.append(reader.decompress(stored[position : position + size], limit))
        position += size
        turn += 1
    while not reader.needs_input:
        parts.append(reader.decompress(b"", limit))
    reader.finish()
    assert b"".join(parts) == b"".join(batches)
