"""Records come out the same, however content is cut into pieces."""

import asyncio

from hypothesis import given, strategies as st

from gazette_platform.client import lines
from gazette_platform.message import frame_fixed, split_fixed


class Pieces:
    journal = "a/journal"
    offset = 0

    def __init__(self, pieces):
        self.pieces = iter(pieces)

    async def __anext__(self):
        piece = next(self.pieces, None)
        if piece is None:
            raise StopAsyncIteration
        self.offset += len(piece)
        return piece


def cut(content, cuts):
    """Split at positions, which may repeat: empty pieces come too."""
    at = sorted(position % (len(content) + 1) for position in cuts)
    return [content[a:b] for a, b in zip([0, *at], [*at, len(content)], strict=True)]


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))),
    st.lists(st.integers(min_value=0)),
)
def test_lines_do_not_depend_on_pieces(records, cuts):
    content = b"".join(record + b"\n" for record in records)

    async def read():
        reader = lines(Pieces(cut(content, cuts)))
        return [line async for batch in reader for line in batch], reader.offset

    assert asyncio.run(read()) == (records, len(content))


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(min_value=0)))
def test_fixed_frames_do_not_depend_on_pieces(records, cuts):
    content = b"".join(frame_fixed(record) for record in records)
    found, rest = [], b""
    for piece in cut(content, cuts):
        bodies, rest = split_fixed(rest + piece)
        found += bodies
    assert (found, rest) == (records, b"")
