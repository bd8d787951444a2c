"""Blocks of whole lines out of pieces of any size. Tests of brokers say what is read from where."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import Desynchronized
from gazette_platform.lake.reading import extent_content
from gazette_platform.lake.reading.extent_content import LineBlocks


def pieces_of(content, cuts, begin):
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    return [(begin + low, content[low:high]) for low, high in pairwise(places)]


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"-")), max_size=30),
    st.lists(st.integers(0, 300), max_size=30),
    st.integers(1, 60),
    st.booleans(),
)
def test_blocks_are_the_content_and_end_with_lines(lines, cuts, block_bytes, is_cut):
    content = b"\n".join(lines) + (b"" if is_cut else b"\n")
    made = LineBlocks("a/journal", block_bytes)
    blocks = []
    for piece in pieces_of(content, cuts, 1000):
        block = made.feed(piece)
        assert made.end == piece[0] + len(piece[1])
        read = content[: made.end - 1000]
        assert made.is_within_line == (not read.endswith(b"\n"))
        if block is not None:
            blocks.append(block)
        held = len(read) - sum(len(of) for _, of in blocks)
        # What is held is less than a block, or a line that has not ended.
        assert held < block_bytes or b"\n" not in read[len(read) - held :]
    whole = made.whole_lines()
    assert all(block.endswith(b"\n") for _, block in [*blocks, *([whole] if whole else [])])
    blocks += [each for each in (whole, made.rest()) if each is not None]
    at = 1000
    for begin, block in blocks:
        assert begin == at
        at += len(block)
    assert b"".join(block for _, block in blocks) == content
    assert made.rest() is None
    assert made.whole_lines() is None


def test_what_is_behind_a_gap_restarts():
    made = LineBlocks("a/journal")
    made.feed((10, b"a\nb"))
    assert made.rest() == (10, b"a\nb")
    made.feed((100, b"c\nd"))
    assert made.whole_lines() == (100, b"c\n")
    assert made.end == 103
    made.feed((103, b"\n"))
    assert made.whole_lines() == (102, b"d\n")


def test_line_that_does_not_end_is_an_error_with_its_place(monkeypatch):
    monkeypatch.setattr(extent_content, "FRAME_BYTES_MAX", 100)
    made = LineBlocks("a/journal", 10)
    assert made.feed((7, b"a\n" + b"x" * 60)) == (7, b"a\n")
    with pytest.raises(Desynchronized, match=r"a/journal: .*within 120 bytes after offset 9 "):
        made.feed((69, b"x" * 60))
