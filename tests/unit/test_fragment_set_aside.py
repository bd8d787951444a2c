"""Nothing that was set aside is ever overwritten or dropped, whatever else has its name."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from gazette_platform.broker.spool.recovery import SET_ASIDE, set_aside
from gazette_platform.protocol import LabelSet


@pytest.fixture
def spools(tmp_path):
    """Two homes with a tenure of the same id, as a copy of a folder has it."""
    for home in ("copy", "original"):
        (tmp_path / home).mkdir()
    return tmp_path


def put_aside(spools, home, content, *, end=None, is_gone=False):
    found = SimpleNamespace(
        tenure=SimpleNamespace(journal="a/journal", create_revision=7, id="f00d"),
        registers=LabelSet(),
        process="zone#one",
    )
    path = spools / home / "f00d.2.content"
    if not is_gone:
        path.write_bytes(content)
    end = len(content) if end is None else end
    return set_aside(spools, found, path, begin=0, end=end, why=f"for a test of {home}")


def aside(spools):
    """Each content with what its description says of it."""
    found = {}
    for told in (spools / SET_ASIDE).glob("*.json"):
        said = json.loads(told.read_text())
        path = told.with_suffix(".content")
        found[said["why"], said["end"]] = path.read_bytes() if path.exists() else None
    return found


def test_two_files_of_one_name_are_both_kept(spools):
    older = put_aside(spools, "copy", b"x" * 900)
    newer = put_aside(spools, "original", b"x" * 1400)
    assert older != newer
    assert aside(spools) == {
        ("for a test of copy", 900): b"x" * 900,
        ("for a test of original", 1400): b"x" * 1400,
    }
    assert put_aside(spools, "copy", b"x" * 900) == older, "the same file is set aside once"
    assert len(list((spools / SET_ASIDE).iterdir())) == 4


def test_file_that_is_gone_takes_over_no_description(spools):
    there = put_aside(spools, "copy", b"x" * 900)
    gone = put_aside(spools, "original", b"", end=1400, is_gone=True)
    assert gone != there
    assert aside(spools) == {
        ("for a test of copy", 900): b"x" * 900,
        ("for a test of original", 1400): None,
    }
    (spools / "copy" / "f00d.2.content").unlink()
    assert put_aside(spools, "copy", b"", end=900, is_gone=True) == there


def test_end_between_content_and_description_is_made_good(spools):
    told = put_aside(spools, "copy", b"x" * 900)
    told.unlink()
    assert put_aside(spools, "original", b"x" * 1400) != told
    assert put_aside(spools, "copy", b"x" * 900) == told
    assert set(aside(spools).values()) == {b"x" * 900, b"x" * 1400}
