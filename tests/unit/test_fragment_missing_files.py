"""Single files of a spool are missing: the broker says what, and keeps all that it has."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from spool_files import put, state_of

from gazette_platform.broker.spool.disk import finish_closing, write_all
from gazette_platform.broker.spool.home import Owner, SpoolHome, free_homes
from gazette_platform.broker.spool.recovery import recover

OWNER = Owner("1f/gazette", "zone#one", "boot")
PIECES = (b"first", b"second", b"third one")


class Spool:
    """A spool of several closed fragments that no store has, whose process ended."""

    def __init__(self, path):
        self.path = path
        self.home = SpoolHome.make(path, OWNER)
        self.tenure = self.home.tenure("a/journal", 7)
        at = 0
        self.files = []
        for piece in PIECES:
            self.files.append(put(self.tenure, piece, at))
            at += len(piece)
            self.tenure.record(0, state_of(at, at))
        self.end = at

    def recover(self):
        os.close(self.home._lock_fd)
        os.close(self.home._heads_fd)
        self.home._lock_fd = -1
        (self.home,) = free_homes(self.path, OWNER)
        (found,) = recover(self.home)
        return found


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path)


def contents(found):
    return [os.pread(one.file.fd, one.state.end - one.state.begin, 0) for one in found.fragments]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_content_whose_record_is_missing_is_kept_and_named(spool, number):
    spool.tenure.path(number, "sealed").unlink()
    content = spool.tenure.path(number, "content")
    found = spool.recover()
    assert content.read_bytes() == PIECES[number - 1]
    assert (found.end, found.is_whole, found.is_end_known) == (spool.end, False, True)
    begin = sum(map(len, PIECES[: number - 1]))
    (torn,) = found.torn
    assert (torn.path, torn.begin, torn.end) == (content, begin, begin + len(content.read_bytes()))
    assert "record is missing" in torn.why
    assert contents(found) == [piece for piece in PIECES if piece != PIECES[number - 1]]


def test_place_of_content_that_fits_no_hole_is_not_guessed(spool):
    spool.tenure.path(2, "sealed").unlink()
    spool.tenure.path(2, "content").chmod(0o600)
    spool.tenure.path(2, "content").write_bytes(b"other than its neighbours leave room for")
    (torn,) = spool.recover().torn
    assert (torn.begin, torn.end) == (0, 0)


def test_hole_between_fragments_is_named(spool):
    for suffix in ("sealed", "content"):
        spool.tenure.path(2, suffix).unlink()
    found = spool.recover()
    assert (found.is_whole, found.gaps) == (True, [(5, 11)]), "a store may have it"


def test_whole_spool_has_no_hole(spool):
    assert spool.recover().gaps == []


def test_end_while_files_are_removed_leaves_nothing_in_doubt(spool, monkeypatch):
    """A process is killed after the record is gone, and before the content is."""
    unlink = Path.unlink

    def killed(path, missing_ok=False):
        if path.suffix == ".content":
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    file = spool.files[0]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            spool.tenure.forget(file)
    finish_closing()
    assert spool.tenure.path(1, "content").exists()
    found = spool.recover()
    assert (found.is_whole, found.torn) == (True, [])
    assert contents(found) == list(PIECES[1:])
    assert not spool.tenure.path(1, "content").exists()


def test_draft_is_still_removed(spool):
    draft = spool.tenure.content_file(spool.end)
    write_all(draft.fd, b"never committed", 0)
    found = spool.recover()
    assert (found.is_whole, found.torn, contents(found)) == (True, [], list(PIECES))
    assert not spool.tenure.path(draft.ordinal, "content").exists()


def test_log_stays_quiet_about_whole_spools(spool, caplog):
    with caplog.at_level(logging.WARNING):
        spool.recover()
    assert caplog.records == []
