"""What Arrow is given: whole records of CSV and JSON lines, however content is cut."""

import csv
import io
import time

import pytest
from hypothesis import given, strategies as st

pa = pytest.importorskip("pyarrow")

from gazette_platform.errors import DataError, ValidationError  # noqa: E402
from gazette_platform.message import ArrowReader, JsonFraming, register_framing  # noqa: E402
from gazette_platform.message.arrow import _Blocks, _table_of  # noqa: E402
from gazette_platform.message.arrow_parsers import (  # noqa: E402
    _CsvParser,
    _DecodingParser,
    _JsonParser,
    cut_csv,
)
from gazette_platform.message.many_journals import JournalSpan, Nothing  # noqa: E402
from gazette_platform.protocol import LabelSet  # noqa: E402


@given(
    st.lists(st.lists(st.text('ab",\n', max_size=4), min_size=2, max_size=2), max_size=6),
    st.integers(0, 60),
)
def test_csv_is_cut_behind_a_record(records, at):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(records)
    content = text.getvalue().encode()
    ends = {0}
    text = io.StringIO()
    for record in records:
        csv.writer(text, lineterminator="\n").writerow(record)
        ends.add(len(text.getvalue()))
    at = min(at, len(content))
    assert cut_csv(content[:at]) == max(end for end in ends if end <= at)


def test_json_lines_of_any_length_become_columns():
    parser = _JsonParser(None)
    content = b'{"a":1,"b":"%s"}\n{"a":2}\n' % (b"x" * (3 << 20))
    assert parser.cut(content + b'{"a"') == len(content)
    [batch] = parser.parse(content)
    assert batch.column("a").to_pylist() == [1, 2]
    assert batch.column("b")[1].as_py() is None
    assert parser.parse(b"\n") == []
    with pytest.raises(DataError, match="the line 8 bytes after that is not JSON: "):
        parser.parse(b'{"a":1}\n{"a":\n')
    with pytest.raises(DataError, match="the line 9 bytes after that is not a JSON object"):
        parser.parse(b'{"a":1}\n\n[1]\n')
    mixed = b'{"a":1,"b":2}\n{"a":"x"}\n'
    with pytest.raises(
        DataError, match="several types is not a column: leave it out, by a `schema`"
    ):
        parser.parse(mixed)
    [batch] = _JsonParser(pa.schema([("b", pa.int64())])).parse(mixed)
    assert batch.to_pylist() == [{"b": 2}, {"b": None}]


@pytest.mark.parametrize("schema", [None, pa.schema([("a", pa.int64())])])
@pytest.mark.parametrize(
    "content", [b"null\n", b" \r\n null\n", b"\xef\xbb\xbfnull\n", b'null{"a":1}\n']
)
def test_leading_null_is_reported_and_does_not_end_the_process(content, schema):
    with pytest.raises(DataError, match=r"the line . bytes after that is not"):
        _JsonParser(schema).parse(content)


def test_a_schema_that_arrow_would_pass_over_is_refused():
    with pytest.raises(ValidationError, match=r"schema: must be of pyarrow, as .* and not dict"):
        ArrowReader(None, "name=a/journal", schema={"a": "string"})


def test_a_schema_chooses_columns_and_their_types():
    schema = pa.schema([("a", pa.float64()), ("z", pa.string())])
    [batch] = _JsonParser(schema).parse(b'{"a":1,"b":2}\n')
    assert batch.schema == schema
    assert batch.to_pylist() == [{"a": 1.0, "z": None}]
    [batch] = _CsvParser(schema, None, ",").parse(b'1,"x\ny"\n')
    assert batch.to_pylist() == [{"a": 1.0, "z": "x\ny"}]
    [batch] = _CsvParser(None, None, ",").parse(b"1,x\n")
    assert batch.schema.names == ["f0", "f1"]
    with pytest.raises(DataError, match="Expected 2 columns, got 1"):
        _CsvParser(None, ("a", "b"), ",").parse(b"1\n")


def test_batches_of_several_schemas_make_one_table():
    parser = _JsonParser(None)
    batches = [*parser.parse(b'{"a":1}\n'), *parser.parse(b'{"a":1.5,"b":"x"}\n')]
    assert _table_of(batches, None).to_pylist() == [{"a": 1.0, "b": None}, {"a": 1.5, "b": "x"}]
    assert _table_of([], None).num_rows == 0
    with pytest.raises(DataError, match="give a schema"):
        _table_of([*parser.parse(b'{"a":1}\n'), *parser.parse(b'{"a":"x"}\n')], None)


class Decoded(JsonFraming):
    content_type = "application/x-decoded"


def decoding(schema=None):
    register_framing(Decoded())
    labels = LabelSet.of({"content-type": Decoded.content_type})
    return _DecodingParser(JournalSpan("a/journal", labels, 0, None), schema)


def test_undecodable_message_is_reported_and_later_ones_are_not_dropped():
    with pytest.raises(DataError, match="not JSON"):
        decoding().parse(b'{"n":1}\n{"n":2}\nbroken\n{"n":3}\n')


def test_columns_that_the_first_message_lacks_exist():
    [batch] = decoding().parse(b'{"a":1}\n{"b":"x","a":2}\n')
    assert batch.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    [batch] = decoding(pa.schema([("b", pa.string())])).parse(b'{"a":1}\n{"b":"x"}\n')
    assert batch.to_pylist() == [{"b": None}, {"b": "x"}]
    assert decoding().parse(b"") == []


@pytest.mark.parametrize("messages", [b'{"a":1}\n{"a":"x"}\n', b'{"a":%d}\n' % (2**63 + 2**62)])
def test_values_that_arrow_does_not_take_are_reported(messages):
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(DataError):
        decoding(schema).parse(messages)


def test_messages_that_are_not_dictionaries_have_no_columns():
    with pytest.raises(ValidationError, match="are list"):
        decoding().parse(b'{"a":1}\n[1]\n')


@pytest.mark.parametrize(
    "deep", [b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000]
)
def test_lines_that_go_too_deep_for_arrow_are_reported_soon(deep):
    with pytest.raises(DataError, match="too deep"):
        _JsonParser(None).parse(b'{"a":1}\n{"b":' + deep + b"}\n")


def test_brackets_in_texts_do_not_count_as_depth():
    [batch] = _JsonParser(None).parse(b'{"a":"%s"}\n{"b":[[1]]}\n' % (b"[{" * 2000))
    assert batch.column("a")[0].as_py() == "[{" * 2000
    deep = b"[" * 100 + b"]" * 100
    assert _JsonParser(None).parse(b'{"a":' + deep + b"}\n")[0].num_rows == 1


def test_a_record_of_many_lines_is_cut_off_soon():
    content = b'1,2\n3,"' + b"\n" * (8 << 20)
    began = time.process_time()
    assert cut_csv(content) == 4
    assert time.process_time() - began < 1


async def test_message_whose_end_was_pruned_is_reported_with_its_offset():
    span = JournalSpan("a/journal", LabelSet(), 0, 1000)
    line = b'{"a":1}\n'

    pieces = [(0, line + b'{"b'), (100, line)]

    class Content(Nothing):
        async def __anext__(self):
            if not pieces:
                raise StopAsyncIteration
            offset, piece = pieces.pop(0)
            self.offset = offset + len(piece)
            return piece

    blocks = _Blocks(span, Content(span), _JsonParser(None))
    blocks._enough_bytes = 1
    assert await blocks.next() == (0, line)
    with pytest.raises(DataError, match="a/journal: the message at offset 8 is cut off"):
        await blocks.next()
    assert await blocks.next() == (100, line)
    assert await blocks.next() == (108, b"")


async def test_offsets_are_behind_a_block_once_all_of_its_batches_were_returned():
    """Whoever goes on at them after the first batch would else leave out the second."""
    lines = [b'{"n":0}\n', b'{"n":1}\n', b"\n", b'{"n":2}\n']
    span = JournalSpan("a/journal", LabelSet(), 0, sum(map(len, lines)))

    class Content:
        journal, offset = "a/journal", 0
        pieces = (b"".join(lines[:2]), *lines[2:])
        is_closed = False

        def __init__(self):
            self.left = [*self.pieces]

        async def __anext__(self):
            if not self.left:
                raise StopAsyncIteration
            self.offset += len(self.left[0])
            return self.left.pop(0)

        async def aclose(self):
            self.is_closed = True

    class OneByOne:
        """Parses each line into a batch of its own."""

        cut = staticmethod(len)

        def parse(self, content):
            parsed = [_JsonParser(None).parse(line) for line in content.splitlines(keepends=True)]
            return [batch for batches in parsed for batch in batches]

    content = Content()
    blocks = _Blocks(span, content, OneByOne())
    blocks._enough_bytes = 1
    reader = ArrowReader(None, "name=a/journal")
    reader._spans, reader._blocks = [], blocks
    found = [(one.batch["n"].to_pylist(), one.end, reader.offsets.copy()) async for one in reader]
    assert found == [
        ([0], 16, {}),
        ([1], 16, {"a/journal": 16}),
        ([2], 25, {"a/journal": 25}),
    ]
    assert content.is_closed
