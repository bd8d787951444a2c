"""Blocks of whole lines; one may be longer than a record: whatever the pieces, each byte is in one block."""

import random

import pytest

from gazette_platform.lake.reading import extent_content
from gazette_platform.lake.reading.extent_content import LineBlocks
from gazette_platform.lake.typed.rows import parsing
from gazette_platform.lake.typed.rows.parsing import CutLines, LineBlock


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for module in (extent_content, parsing):
        monkeypatch.setattr(module, "FRAME_BYTES_MAX", 20)
    monkeypatch.setattr(parsing, "_KEPT_BYTES", 8)


def blocks_of(pieces, block_bytes=12):
    lines, at, found = CutLines(LineBlocks("a/journal", block_bytes)), 5, []
    for piece in pieces:
        found += lines.feed((at, piece))
        at += len(piece)
    is_within = lines.is_within_line
    found += lines.whole_lines()
    found += lines.rest()
    assert not lines.is_within_line
    return found, is_within


def test_a_line_that_is_too_long_is_cut_and_others_are_whole():
    found, is_within = blocks_of([b"ab\n", b"x" * 15, b"y" * 15, b"z" * 15 + b"\ncd\n"])
    assert found == [
        LineBlock(5, b"ab\n", 8),
        LineBlock(8, b"x" * 8, 54),
        LineBlock(54, b"cd\n", 57),
    ]
    assert [block.is_cut for block in found] == [False, True, False]
    assert not is_within


def test_a_line_that_is_too_long_and_has_not_ended_is_held_on():
    found, is_within = blocks_of([b"ab\n" + b"x" * 30, b"y" * 3])
    assert found == [LineBlock(5, b"ab\n", 8), LineBlock(8, b"x" * 8, 41)]
    assert is_within


@pytest.mark.parametrize("seed", range(50))
def test_blocks_tile_what_was_fed(seed):
    drawn = random.Random(seed)
    sizes = [drawn.choice([0, 1, 5, 19, 45, 90]) for _ in range(20)]
    content = b"".join(drawn.randbytes(1).hex()[:1].encode() * size + b"\n" for size in sizes)
    cuts = sorted(drawn.randrange(len(content) + 1) for _ in range(drawn.randrange(60)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    found, is_within = blocks_of(pieces, drawn.choice([1, 12, 40]))
    assert not is_within
    at = 5
    for block in found:
        assert block.begin == at
        told = content[block.begin - 5 : block.end - 5]
        assert told.startswith(block.content)
        assert told.endswith(b"\n")
        lengths = [len(line) + 1 for line in told.split(b"\n")[:-1]]
        # Whichever pieces they came in.
        assert block.is_cut == (max(lengths) > 20)
        if block.is_cut:
            assert (len(lengths), len(block.content)) == (1, 8)
        at = block.end
    assert at == 5 + len(content)
