"""Pictures of web pages made small: PNG with a palette, which holds such pages in a third of their bytes.

Only what a browser's screenshots are is read: 8 bits a channel, RGB or RGBA, not interlaced.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from itertools import chain

__all__ = ["decoded", "encoded", "reduced"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# A page has few colours, and many shades between those of a text and of what it stands on.
_COLOURS_MAX = 96
# Squared distance within which two shades are one: invisible in a text, and far below that of two colours.
_NEAR = 120

Colour = tuple[int, int, int]


def reduced(png: bytes) -> bytes:
    """The same picture with at most 96 colours.

    Raises: ValueError: not a PNG, or of another kind than a browser makes.
    """
    width, height, pixels = decoded(png)
    counted = Counter(pixels)
    palette = _palette(counted)
    index = {colour: _nearest(colour, palette) for colour in counted}
    return encoded(width, height, bytes(index[colour] for colour in pixels), palette)


def decoded(png: bytes) -> tuple[int, int, list[Colour]]:
    """Width, height and pixels, row by row; transparency is left out. Raises: ValueError: see `reduced`."""
    if not png.startswith(_SIGNATURE):
        raise ValueError("not a PNG")
    at, content, header = len(_SIGNATURE), b"", b""
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + length]
        header = body if kind == b"IHDR" else header
        content += body if kind == b"IDAT" else b""
        at += length + 12
    width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    channels = {2: 3, 6: 4}.get(colours, 0)
    if not channels or depth != 8 or interlaced:
        raise ValueError(f"colour type {colours} of {depth} bits is not one of a browser")
    rows = _unfiltered(zlib.decompress(content), width * channels, height, channels)
    columns = (zip(*(row[c::channels] for c in range(3)), strict=True) for row in rows)
    return width, height, list(chain.from_iterable(columns))


def encoded(width: int, height: int, pixels: bytes, palette: list[Colour]) -> bytes:
    """A PNG of `pixels`, which are indexes into `palette`, row by row."""
    rows = b"".join(b"\0" + pixels[y * width : (y + 1) * width] for y in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(value for colour in palette for value in colour)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _palette(counted: Counter[Colour]) -> list[Colour]:
    """The colours that most pixels have, without those that are near to one before."""
    palette: list[Colour] = []
    for colour, _ in counted.most_common():
        if all(_distance(colour, other) > _NEAR for other in palette):
            palette.append(colour)
            if len(palette) == _COLOURS_MAX:
                break
    return palette


def _nearest(colour: Colour, palette: list[Colour]) -> int:
    return min(range(len(palette)), key=lambda i: _distance(colour, palette[i]))


def _distance(a: Colour, b: Colour) -> int:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 + (a[2] - b[2]) ** 2


def _unfiltered(raw: bytes, stride: int, height: int, channels: int) -> list[bytearray]:
    """Rows as they were before each was written as a difference to its neighbours (PNG §9)."""
    rows: list[bytearray] = []
    above = bytearray(stride)
    for y in range(height):
        begin = y * (stride + 1)
        kind, row = raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride])
        for i in range(stride) if kind else ():
            left = row[i - channels] if i >= channels else 0
            if kind == 1:
                guess = left
            elif kind == 2:
                guess = above[i]
            elif kind == 3:
                guess = (left + above[i]) >> 1
            else:
                guess = _paeth(left, above[i], above[i - channels] if i >= channels else 0)
            row[i] = (row[i] + guess) & 255
        rows.append(row)
        above = row
    return rows


def _paeth(left: int, up: int, corner: int) -> int:
    """The neighbour that is nearest to their plane."""
    plane = left + up - corner
    distances = (abs(plane - left), abs(plane - up), abs(plane - corner))
    return (left, up, corner)[distances.index(min(distances))]
