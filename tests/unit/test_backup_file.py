"""The file of a backup: what is written is read, and what was cut off or altered is refused."""

from __future__ import annotations

import gzip
import json

import pytest

from gazette_platform.broker.backup.file import BackupFile, BackupWriter, Cluster, Header, Record
from gazette_platform.errors import DataError, SetupError, ValidationError

HEADER = Header("2026-11-29T08:00:00Z", 9, ("/",), (Cluster("/p", "ab", "cd", 0),))
RECORDS = [
    Record("/.gazette-platform/savepoints/p/monday", b"\x0a\x06monday", 7),
    Record("/hints/\udcff", "text with ü and \n".encode(), 3),
    Record("/p/items/a/journal", b"\xff\x00", 5, 50),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "etcd.backup"
    writer = BackupWriter(path)
    with writer.opened(HEADER):
        for record in RECORDS:
            writer.add(record)
    return path


def rewrite(path, change):
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    change(lines)
    path.write_bytes(gzip.compress(b"".join(lines)))


def test_file_has_what_was_written(file):
    summary = BackupFile(file).verify()
    assert (summary.header, summary.keys) == (HEADER, 3)
    assert summary.kinds == {"savepoints": 1, "hints and others": 1, "journals": 1}
    assert list(BackupFile(file).records()) == RECORDS
    assert file.stat().st_mode & 0o077 == 0
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_every_cut_is_refused(file):
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises((DataError, ValidationError)):
            BackupFile(file).verify()


def test_every_changed_byte_is_refused_or_without_effect(file):
    whole = file.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        try:
            BackupFile(file).verify()
        except (DataError, ValidationError):
            continue
        assert list(BackupFile(file).records()) == RECORDS  # a byte of gzip's own header


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines.pop(), "cut off after 3 keys"),
        (lambda lines: lines.pop(2), "last line does not match"),
        (lambda lines: lines.append(lines[1]), "lines follow"),
        (lambda lines: lines.insert(1, lines[3]), "not in order"),
        (lambda lines: lines.__setitem__(1, b"[]\n"), "line 2 is not an object"),
        (lambda lines: lines.__setitem__(1, b"{}\n"), "line 2: KeyError"),
        (lambda lines: lines.__setitem__(1, b"\xff\n"), "line 2: "),
        (lambda lines: lines.__setitem__(0, b'{"gazette_backup": 1}\n'), "its first line"),
    ],
)
def test_altered_lines_are_refused(file, change, why):
    rewrite(file, change)
    with pytest.raises(DataError, match=why):
        BackupFile(file).verify()


def test_other_versions_and_files_are_refused(file, tmp_path):
    def newer(lines):
        lines[0] = json.dumps(json.loads(lines[0]) | {"gazette_backup": 2}).encode() + b"\n"

    rewrite(file, newer)
    with pytest.raises(ValidationError, match="has format 2; this release reads format 1"):
        BackupFile(file).verify()
    rewrite(file, lambda lines: lines.__setitem__(0, b"{}\n"))
    with pytest.raises(ValidationError, match="is not a backup"):
        BackupFile(file).verify()
    file.write_text("text")
    with pytest.raises(DataError, match="is not a backup"):
        BackupFile(file).verify()
    with pytest.raises(SetupError, match="cannot read"):
        BackupFile(tmp_path / "missing").verify()


def test_failed_backup_leaves_no_file(tmp_path):
    path = tmp_path / "etcd.backup"

    def fail():
        writer = BackupWriter(path)
        with writer.opened(HEADER):
            writer.add(RECORDS[0])
            raise InterruptedError

    with pytest.raises(SetupError):  # an OSError, as of a full disk
        fail()
    assert list(tmp_path.iterdir()) == []
