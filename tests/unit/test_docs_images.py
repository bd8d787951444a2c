"""Pictures of the pages: each is there, is shown, says what it shows, and is small."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest
from palette import decoded, encoded, reduced

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SHOWN = {
    (page.parent / target).resolve(): (page, text)
    for page in PAGES
    for text, target in re.findall(r"!\[([^\]]*)\]\(([^):]+)\)", page.read_text())
}
BYTES_MAX = 150_000
PALETTE = 3


def test_every_picture_of_a_page_is_there_with_a_text_for_those_who_do_not_see_it():
    assert SHOWN
    assert not [f"{page}: {path}" for path, (page, _) in SHOWN.items() if not path.is_file()]
    assert not [f"{page}: {path}" for path, (page, text) in SHOWN.items() if len(text) < 20]


def test_every_picture_is_on_a_page():
    assert sorted(IMAGES.iterdir()) == sorted(SHOWN)


@pytest.mark.parametrize("path", sorted(IMAGES.iterdir()), ids=lambda path: path.name)
def test_a_picture_is_small_and_has_a_palette(path):
    png = path.read_bytes()
    assert len(png) <= BYTES_MAX
    width, _, depth, colours = struct.unpack_from(">IIBB", png, 16)
    assert (depth, colours) == (8, PALETTE)
    assert width == 1400


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def picture(rows: list[bytes], colours: int) -> bytes:
    """A PNG of `rows`, each with the kind of its filter before it; 4 pixels wide."""
    header = struct.pack(">IIBBBBB", 4, len(rows), 8, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(kind, body)
        for kind, body in (
            (b"IHDR", header),
            (b"IDAT", zlib.compress(b"".join(rows))),
            (b"IEND", b""),
        )
    )


# Differences as the format has them, by hand: each row is 10, 20, 30 of red, and 7 and 9 beside it.
RED = [(10, 7, 9), (20, 7, 9), (30, 7, 9), (40, 7, 9)]
FILTERED = [
    bytes([0, 10, 7, 9, 20, 7, 9, 30, 7, 9, 40, 7, 9]),  # as it is
    bytes([1, 10, 7, 9, 10, 0, 0, 10, 0, 0, 10, 0, 0]),  # less the pixel before
    bytes([2] + [0] * 12),  # less the one above
    bytes([3, 5, 4, 5, 5, 0, 0, 5, 0, 0, 5, 0, 0]),  # less the mean of both
    bytes([4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),  # less the nearest of three
]


def test_a_browsers_picture_is_read_whatever_its_rows_are_filtered_by():
    assert decoded(picture(FILTERED, 2)) == (4, 5, RED * 5)


def test_transparency_is_left_out():
    row = b"".join(bytes([*colour, 255]) for colour in RED)
    assert decoded(picture([b"\0" + row], 6)) == (4, 1, RED)


def test_shades_that_are_near_become_one_colour():
    row = b"\0" + bytes([255, 255, 255] * 3 + [250, 250, 250])
    far = b"\0" + bytes([255, 255, 255] * 2 + [200, 0, 0] * 2)
    small = reduced(picture([row, far], 2))
    assert struct.unpack_from(">IIBB", small, 16) == (4, 2, 8, PALETTE)
    assert small == encoded(4, 2, bytes([0] * 6 + [1] * 2), [(255, 255, 255), (200, 0, 0)])


def test_what_is_no_picture_is_refused():
    with pytest.raises(ValueError, match="not a PNG"):
        reduced(b"GIF89a")
    with pytest.raises(ValueError, match="no browser's"):
        reduced(encoded(4, 1, b"\0" * 4, [(1, 2, 3)]))
