"""The tables of HPACK: RFC 7541, appendices A and B."""

from __future__ import annotations

from typing import Final

__all__ = ["STATIC_FIELDS", "STATIC_NAMES", "HuffmanError", "decode_huffman"]

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
