"""Messages come out as they went in, however content is cut, and garbage costs itself alone."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings, strategies as st

from gazette_platform.errors import DataError
from gazette_platform.message import (
    FIXED_MAGIC,
    AvroFraming,
    CsvFraming,
    JsonFraming,
    ProtoFraming,
    frame_fixed,
)

AVRO = AvroFraming(
    {
        "type": "record",
        "name": "x.M",
        "fields": [{"name": "uuid", "type": "string"}, {"name": "n", "type": "long"}],
    }
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    '",\r\n \\.\t', max_size=8
)
csv = st.integers(1, 4).flatmap(
    lambda columns: st.lists(
        st.lists(text, min_size=columns, max_size=columns).filter(
            # A record of one empty column is a blank line.
            lambda fields: fields != [""]
        ),
        max_size=8,
    )
)
json = st.lists(
    st.dictionaries(
        text, st.none() | st.booleans() | st.integers(-(2**63), 2**63) | text, max_size=4
    ),
    max_size=8,
)
avro = st.lists(
    st.fixed_dictionaries({"uuid": text, "n": st.integers(-(2**63), 2**63 - 1)}), max_size=8
)
sources = st.one_of(
    st.tuples(st.just(CsvFraming()), csv),
    st.tuples(st.just(JsonFraming()), json),
    st.tuples(st.just(AVRO), avro),
    st.tuples(st.just(ProtoFraming()), st.lists(st.binary(max_size=20), max_size=8)),
)
cuts = st.lists(st.integers(0, 400), max_size=8)


def pieces_of(content, places):
    at = sorted({0, len(content), *(place % (len(content) + 1) for place in places)})
    return [content[a:b] for a, b in pairwise(at)]


def decoded(framing, content, places):
    """Messages of content in pieces, None for what is none; all that was fed is accounted for."""
    decoder, found, fed, taken = framing.decoder(), [], b"", b""
    for piece in pieces_of(content, places):
        fed += piece
        for frame in decoder.feed(piece):
            taken += frame
            try:
                found.append(decoder.decode(frame))
            except DataError:
                found.append(None)
        assert fed.startswith(taken)
        assert len(taken) + decoder.held_bytes == len(fed)
    return found, decoder


@settings(max_examples=300)
@given(sources, cuts)
@example((CsvFraming(), [['"', "\n"], ["", "\r\n"]]), [1, 2, 3, 4, 5])
def test_messages_do_not_depend_on_pieces(source, places):
    framing, messages = source
    content = b"".join(map(framing.encode, messages))
    found, decoder = decoded(framing, content, places)
    assert found == messages
    decoder.end()


@settings(max_examples=200)
@given(
    st.lists(st.binary(max_size=9).filter(lambda raw: FIXED_MAGIC[:1] not in raw), max_size=5),
    st.binary(max_size=30).filter(lambda raw: FIXED_MAGIC[:1] not in raw),
    cuts,
)
def test_frames_are_found_again_behind_garbage(bodies, garbage, places):
    frames = b"".join(map(frame_fixed, bodies))
    content = frames + garbage + frames + frame_fixed(b"end")
    found, decoder = decoded(ProtoFraming(), content, places)
    assert [one for one in found if one is not None] == [*bodies, *bodies, b"end"]
    decoder.end()


@settings(max_examples=300)
@given(
    st.sampled_from([CsvFraming(), JsonFraming(), ProtoFraming(), AVRO]),
    st.binary(max_size=60)
    | st.text('a",\n\r', max_size=60).map(str.encode)
    | st.lists(st.sampled_from([FIXED_MAGIC, b"\xc3\x01", b"\0", b"\x02", b"x"])).map(b"".join),
    cuts,
)
def test_anything_is_told_apart_or_refused(framing, content, places):
    decoded(framing, content, places)
