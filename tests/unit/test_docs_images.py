"""Pictures of the pages: each exists, is shown, says what it shows, and is small."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

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


def test_every_picture_of_a_page_exists_with_a_text_for_those_who_do_not_see_it():
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
