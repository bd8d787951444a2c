"""HPACK (RFC 7541): its tables and Huffman's code, and blocks of headers decoded with them.

A decoder keeps what it has learned of blocks, strings and fields in step with its dynamic table. What we send
uses no dynamic table, so that blocks can be made in advance.
"""

from __future__ import annotations

from typing import Final, final

from gazette_platform.serving.h2.frames import ConnectionFault, ErrorCode

_STATIC: Final = """
:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate
"""


def _static_field(line: str) -> tuple[bytes, bytes]:
    name, _, value = line.partition(" ")
    return name.encode(), value.encode()


STATIC_FIELDS: Final = (None, *map(_static_field, _STATIC.split("\n")[1:-1]))
"""Fields by their index, which begins with 1."""

STATIC_NAMES: Final = {
    field[0]: index for index, field in reversed(list(enumerate(STATIC_FIELDS))) if field
}
"""The first index of each name."""

# Bits of the code of each byte, and of the end of a string, the last. The code is canonical: codes of
# one length ascend with their symbols, so that the lengths say it all.
_CODE_BITS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a08"
    "0b080606060505050606060606060607080f060c0a0d060707070707070707070707070707070707070707"
    "07070807080d130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c14"
    "16141416161617161717171717181718181617181717171715161716171718161514161617171517161618"
    "15161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b"
    "1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
_END_OF_STRING: Final = 256
_SHORT_BITS: Final = 8


def _codes() -> dict[tuple[int, int], int]:
    """Number the codes. Returns: symbols by bits and code."""
    codes: dict[tuple[int, int], int] = {}
    code = bits = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(_CODE_BITS)):
        code <<= length - bits
        bits = length
        codes[length, code] = symbol
        code += 1
    return codes


_CODES: Final = _codes()
_LONG_LENGTHS: Final = tuple(sorted({length for length, _ in _CODES if length > _SHORT_BITS}))


def _short() -> list[tuple[int, int]]:
    """Symbol and bits by the next eight bits; no bits where the code is longer."""
    table = [(0, 0)] * (1 << _SHORT_BITS)
    for (length, code), symbol in _CODES.items():
        spare = _SHORT_BITS - length
        if spare >= 0:
            table[code << spare : (code + 1) << spare] = [(symbol, length)] * (1 << spare)
    return table


_SHORT: Final = _short()


class HuffmanError(ValueError):
    """A string is not Huffman-coded by the rules."""


def decode_huffman(raw: bytes) -> bytes:
    """Decode a string.

    Raises: HuffmanError: it has the code of the end, or padding that is not the begin of it.
    """
    out = bytearray()
    waiting = bits = 0
    for byte in raw:
        waiting = waiting << 8 | byte
        bits += 8
        while bits >= _SHORT_BITS:
            symbol, length = _SHORT[waiting >> bits - _SHORT_BITS]
            if not length:
                symbol, length = _long(waiting, bits)
                if not length:
                    break  # its end is yet to come
            bits -= length
            waiting &= (1 << bits) - 1
            out.append(symbol)
    if bits >= _SHORT_BITS:
        raise HuffmanError("too much padding")
    while bits:
        spare = _SHORT_BITS - bits
        symbol, length = _SHORT[waiting << spare | (1 << spare) - 1]
        if not length or length > bits:
            break
        bits -= length
        waiting &= (1 << bits) - 1
        out.append(symbol)
    if waiting != (1 << bits) - 1:
        raise HuffmanError("the padding is not all ones")
    return bytes(out)


def _long(waiting: int, bits: int) -> tuple[int, int]:
    """Find a code of more than eight bits. Returns: symbol and bits; no bits: it is not whole yet."""
    for length in _LONG_LENGTHS:
        if length > bits:
            break
        symbol = _CODES.get((length, waiting >> bits - length))
        if symbol is not None:
            if symbol == _END_OF_STRING:
                raise HuffmanError("a string holds the code of its end")
            return symbol, length
    return 0, 0


Field = tuple[bytes, bytes]
"""Name and value."""

# By RFC 7541, each field counts as so many bytes beyond its name and value.
_FIELD_BYTES: Final = 32
_STATIC_LAST: Final = len(STATIC_FIELDS) - 1

# No number of ours, and no length that we take, has more bits.
_INTEGER_BITS_MAX: Final = 28

# Strings that Huffman coding hid are remembered up to this length, and so many of them.
_KNOWN_BYTES_MAX: Final = 512
_KNOWN_MAX: Final = 1024


class HeaderListTooLarge(Exception):
    """A list is larger than allowed. The decoder has read it to its end and can go on."""


@final
class Decoder:
    """Decodes the blocks of one connection, in their order.

    Args:
        list_bytes_max: largest header list.
        table_bytes_max: largest dynamic table, as our SETTINGS have it.

    Attributes:
        is_changed: whether the last block changed the dynamic table. Then what earlier blocks meant says
            nothing about equal ones that follow.
    """

    __slots__ = (
        "_known",
        "_list_bytes_max",
        "_size",
        "_size_max",
        "_table",
        "_table_bytes_max",
        "is_changed",
    )

    def __init__(self, list_bytes_max: int, table_bytes_max: int = 4096) -> None:
        self._list_bytes_max = list_bytes_max
        self._table_bytes_max = self._size_max = table_bytes_max
        self._table: list[Field] = []  # the newest is the last
        self._size = 0
        self._known: dict[bytes, bytes] = {}
        self.is_changed = False

    def decode(self, block: bytes) -> list[Field]:
        """Decode a whole block.

        Raises:
            ConnectionFault: it breaks the rules; no later block can be decoded.
            HeaderListTooLarge: it decodes to more than is allowed.
        """
        self.is_changed = False
        try:
            return self._decode(block)
        except IndexError:
            raise _fault("a block ends early, or has an index beyond the tables") from None
        except HuffmanError as err:
            raise _fault(str(err)) from None

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        room = self._list_bytes_max
        at, end = 0, len(block)
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 0x7F)
                field = self._field(index)
            elif first & 0xE0 == 0x20:
                if fields or room < self._list_bytes_max:
                    raise _fault("the size of the table changes within a block")
                at = self._resize(block, at)
                continue
            else:
                is_indexed = first & 0x40
                index, at = _integer(block, at, 0x3F if is_indexed else 0x0F)
                if index:
                    name = self._field(index)[0]
                else:
                    name, at = self._string(block, at)
                value, at = self._string(block, at)
                field = (name, value)
                if is_indexed:
                    self._insert(field)
            room -= len(field[0]) + len(field[1]) + _FIELD_BYTES
            if room >= 0:
                fields.append(field)
        if room < 0:
            raise HeaderListTooLarge
        return fields

    def _field(self, index: int) -> Field:
        if index > _STATIC_LAST:
            return self._table[_STATIC_LAST - index]
        field = STATIC_FIELDS[index]
        if field is None:
            raise _fault("index 0")
        return field

    def _string(self, block: bytes, at: int) -> tuple[bytes, int]:
        is_coded = block[at] & 0x80
        length, at = _integer(block, at, 0x7F)
        stop = at + length
        if stop > len(block):
            raise _fault("a string is longer than its block")
        raw = block[at:stop]
        if not is_coded:
            return raw, stop
        text = self._known.get(raw)
        if text is None:
            text = decode_huffman(raw)
            if length <= _KNOWN_BYTES_MAX:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[raw] = text
        return text, stop

    def _resize(self, block: bytes, at: int) -> int:
        size_max, at = _integer(block, at, 0x1F)
        if size_max > self._table_bytes_max:
            raise _fault(f"a table of {size_max} bytes")
        self._size_max = size_max
        self._evict()
        return at

    def _insert(self, field: Field) -> None:
        self._table.append(field)
        self._size += len(field[0]) + len(field[1]) + _FIELD_BYTES
        self._evict()

    def _evict(self) -> None:
        """Drop the oldest fields until the table has its size."""
        self.is_changed = True
        count = 0
        while self._size > self._size_max:
            name, value = self._table[count]
            self._size -= len(name) + len(value) + _FIELD_BYTES
            count += 1
        del self._table[:count]


def _fault(text: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.COMPRESSION_ERROR, text)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Read an integer whose first bits share a byte. Returns: it, and where it ends."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _INTEGER_BITS_MAX:
            raise _fault("an integer is too long")


def encode_integer(value: int, mask: int, first: int = 0) -> bytes:
    """Encode an integer behind the bits of `first` that `mask` leaves."""
    if value < mask:
        return bytes((first | value,))
    out = bytearray((first | mask,))
    value -= mask
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a field without the dynamic table, so that the bytes suit any connection."""
    index = STATIC_NAMES.get(name, 0)
    head = encode_integer(index, 0x0F)
    if not index:
        head += encode_integer(len(name), 0x7F) + name
    return head + encode_integer(len(value), 0x7F) + value
