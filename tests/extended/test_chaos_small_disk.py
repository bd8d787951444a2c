"""A disk that a test fills, and the store read by itself."""

from __future__ import annotations

import errno
import hashlib

import pytest

from gazette_platform.codecs import compressor
from gazette_platform.errors import DataError
from gazette_platform.protocol import CompressionCodec, Fragment
from tests.chaos.disks import SmallDisk
from tests.chaos.finals import stored_content, stored_fragments
from tests.chaos.workload import CODECS


def test_full_disk_has_no_room_and_gets_it_back(tmp_path):
    with SmallDisk(tmp_path / "disk", size_bytes=4 << 20) as disk:
        if not disk.is_mounted:
            pytest.skip("to mount a disk takes root")
        kept = disk.folder / "kept"
        kept.write_bytes(b"before")
        disk.fill()
        with pytest.raises(OSError, match="space") as caught:
            (disk.folder / "more").write_bytes(b"x")
        assert caught.value.errno == errno.ENOSPC
        assert kept.read_bytes() == b"before"
        disk.free()
        (disk.folder / "more").write_bytes(bytes(3 << 20))
    assert not any((tmp_path / "disk").iterdir())


def store(root, begin, content, codec=CompressionCodec.GZIP):
    fragment = Fragment(
        journal="a/journal",
        begin=begin,
        end=begin + len(content),
        sum=hashlib.sha1(content, usedforsecurity=False).digest(),
        codec=codec,
    )
    packer = compressor(codec)
    path = root / fragment.content_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packer.compress(content) + packer.finish())
    return path


def test_store_is_read_up_to_its_first_gap(tmp_path):
    for number, codec in enumerate(CODECS):
        store(tmp_path, 4 * number, b"abc%d" % number, codec)
    store(tmp_path, 0, b"abc0abc1")  # overlaps
    store(tmp_path, 90, b"after a gap")
    (tmp_path / "a/journal/.partial-1").write_bytes(b"half written")
    assert stored_content(tmp_path, "a/journal") == b"abc0abc1abc2abc3"
    assert stored_content(tmp_path, "a/journal", begin=6) == b"c1abc2abc3"
    assert len(stored_fragments(tmp_path, "a/journal")) == 6
    assert stored_content(tmp_path, "a/other") == b""


def test_store_that_is_cut_or_damaged_is_reported(tmp_path):
    path = store(tmp_path, 0, b"content")
    packer = compressor(CompressionCodec.GZIP)
    path.write_bytes(packer.compress(b"CONTENT") + packer.finish())
    with pytest.raises(DataError, match="does not hold what its name says"):
        stored_content(tmp_path, "a/journal")
    with pytest.raises(OSError, match="missing"):
        stored_content(tmp_path / "missing", "a/journal")
