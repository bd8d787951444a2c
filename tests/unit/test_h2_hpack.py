"""Header compression: the examples of RFC 7541, its limits, and what breaks its rules."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hpack.table import HeaderTable

from gazette_platform.serving.h2.frames import ConnectionFault, ErrorCode
from gazette_platform.serving.h2.hpack import (
    STATIC_FIELDS,
    Decoder,
    HeaderListTooLarge,
    HuffmanError,
    decode_huffman,
    encode_integer,
    literal,
)


def decoded(*blocks, **options):
    decoder = Decoder(options.pop("list_bytes_max", 16_384), **options)
    return [decoder.decode(bytes.fromhex(block)) for block in blocks][-1]


def test_static_table_is_that_of_the_rfc():
    assert STATIC_FIELDS[1:] == HeaderTable.STATIC_TABLE


# RFC 7541, appendix C.4: three requests on one connection, with Huffman coding.
REQUESTS = [
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
]


def test_examples_of_the_rfc():
    assert decoded(*REQUESTS[:1]) == [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
    ]
    assert decoded(*REQUESTS)[-2:] == [
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ]


@pytest.mark.parametrize(
    ("value", "mask", "raw"),
    [(10, 31, "0a"), (1337, 31, "1f9a0a"), (42, 255, "2a"), (31, 31, "1f00")],
)
def test_integers_of_the_rfc(value, mask, raw):
    assert encode_integer(value, mask) == bytes.fromhex(raw)


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # beyond an empty dynamic table
        "ff",  # the index goes on
        "ffffffffffffff",  # for too long
        "40",  # no name
        "4001",  # name cut
        "40016101",  # value cut
        "82" + "3f00",  # the size of the table changes within a block
        "3fe21f",  # a table of 4097 bytes
        "400161" + "81ff" + "00"[:0] + "ff",  # a Huffman string that is all padding, and more
        "400161840000000000",  # trailing rubbish after a string that Huffman coding does not know
    ],
)
def test_malformed_block_is_a_compression_error(block):
    with pytest.raises(ConnectionFault) as caught:
        decoded(block)
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("raw", ["ff", "00ff", "3fffffff", "fffffffc", "f8"])
def test_malformed_huffman_string_is_refused(raw):
    raw = bytes.fromhex(raw)
    try:
        text = decode_huffman(raw)
    except HuffmanError:
        return
    # Padding of up to seven ones is right.
    from hpack.huffman import HuffmanEncoder
    from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

    assert HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text) == raw


def test_table_keeps_no_more_than_its_size():
    encoder, decoder = Encoder(), Decoder(1 << 20)
    for number in range(500):
        pairs = [(f"name-{number % 90}", "v" * (number % 400))]
        assert decoder.decode(encoder.encode(pairs)) == [(k.encode(), v.encode()) for k, v in pairs]
        assert decoder._size == sum(len(n) + len(v) + 32 for n, v in decoder._table) <= 4096
    encoder.header_table_size = 100
    decoder.decode(encoder.encode([("a", "b")]))
    assert decoder._size <= 100


def test_field_larger_than_the_table_empties_it():
    decoder = Decoder(1 << 20)
    decoder.decode(bytes.fromhex("400161" + "0162"))
    big = b"\x40\x01a" + encode_integer(5000, 0x7F) + bytes(5000)
    decoder.decode(big)
    assert decoder._table == []
    assert decoder._size == 0


def test_change_of_the_table_is_reported():
    decoder = Decoder(16_384)
    for block, is_changed in (("828684", False), ("4001610162", True), ("be", False), ("20", True)):
        decoder.decode(bytes.fromhex(block))
        assert decoder.is_changed is is_changed


def test_list_that_is_too_large_leaves_the_table_in_step():
    decoder = Decoder(200)
    block = b"\x40\x01a\x01b" + literal(b"c", bytes(200)) + b"\x40\x01d\x01e"
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(block)
    assert decoder.decode(b"\xbe\xbf") == [(b"d", b"e"), (b"a", b"b")]


def test_huffman_strings_that_are_remembered_are_few_and_short():
    encoder, decoder = Encoder(), Decoder(1 << 20)
    for number in range(3000):
        decoder.decode(encoder.encode([("n", f"value-{number}")]))
    decoder.decode(encoder.encode([("n", "x" * 3000)]))
    assert len(decoder._known) <= 1024
    assert max(map(len, decoder._known)) <= 512


@pytest.mark.parametrize("name", [b"grpc-status", b"content-type", b":status", b"x" * 200])
def test_literals_are_read_by_others(name):
    from hpack import Decoder as Other

    value = b"v" * 300
    assert Other().decode(literal(name, value), raw=True) == [(name, value)]
