import pytest

from gazette_platform.client import json_lines, lines, split_lines
from gazette_platform.errors import DataError, Desynchronized, OffsetJump


class Pieces:
    """A reader of prepared pieces; an int is a jump to that offset."""

    journal = "a/journal"

    def __init__(self, *pieces, offset=0):
        self.pieces = list(pieces)
        self.offset = offset

    async def __anext__(self):
        if not self.pieces:
            raise StopAsyncIteration
        piece = self.pieces.pop(0)
        if isinstance(piece, int):
            at, self.offset = self.offset, piece
            raise OffsetJump(self.journal, at, piece)
        self.offset += len(piece)
        return piece


async def test_lines_cross_pieces():
    reader = lines(Pieces(b"a\nb", b"", b"b", b"b\n\nc", memoryview(b"\n")))
    assert [batch async for batch in reader] == [[b"a"], [b"bbb", b""], [b"c"]]
    assert reader.offset == 9


async def test_carriage_returns_belong_to_lines():
    assert [batch async for batch in lines(Pieces(b"a\r\nb\rc\n"))] == [[b"a\r", b"b\rc"]]


async def test_offset_is_behind_the_last_whole_line():
    reader = lines(Pieces(b"ab\ncd", b"e\nf\n", offset=100))
    await anext(reader)
    assert reader.offset == 103
    await anext(reader)
    assert reader.offset == 109


async def test_content_that_ends_within_a_line_is_an_error():
    reader = lines(Pieces(b"a\nbc"))
    assert await anext(reader) == [b"a"]
    with pytest.raises(DataError, match=r"unexpected EOF.* 2 bytes after offset 2"):
        await anext(reader)


async def test_overlong_line_is_desynchronized():
    with pytest.raises(Desynchronized, match="no newline within 12 bytes after offset 0"):
        await anext(lines(Pieces(b"123456", b"123456"), line_bytes_max=10))


async def test_jump_drops_the_line_it_cuts():
    reader = lines(Pieces(b"a\nlost", 100, b"b\n"))
    assert await anext(reader) == [b"a"]
    with pytest.raises(OffsetJump):
        await anext(reader)
    assert await anext(reader) == [b"b"]
    assert reader.offset == 102


async def test_json_values_come_in_batches():
    reader = json_lines(Pieces(b'{"a":1}\n[2]', b"\n3\n"))
    assert [batch async for batch in reader] == [[{"a": 1}], [[2], 3]]


@pytest.mark.parametrize("bad", [b"{", b"1,2", b""], ids=["broken", "two", "empty"])
async def test_bad_json_names_its_offset_and_is_consumed(bad):
    reader = json_lines(Pieces(b"1\n2\n" + bad + b"\n3\n", b"4\n", offset=50))
    with pytest.raises(DataError, match="the line at offset 54 is not JSON"):
        await anext(reader)
    assert await anext(reader) == [4]


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"a":1', b'"b":2}'],
        [b"1,2", b'{"a":3', b'"b":4}'],
        [b"[[1", b"2]]", b"3],[4"],
        [b'"a', b'b"', b'1,"c"'],
    ],
    ids=["one-of-two", "as-many", "brackets", "strings"],
)
async def test_each_line_is_a_value_by_itself(lines):
    reader = json_lines(Pieces(b"\n".join(lines) + b"\n"))
    with pytest.raises(DataError, match="is not JSON"):
        await anext(reader)


def test_split_lines():
    assert split_lines(b"") == ([], b"")
    assert split_lines(b"\n") == ([b""], b"")
    assert split_lines(b"a") == ([], b"a")
