"""Files in homes of spools that no broker has made: they cost no more than what they took the place of."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest
from spool_files import crash_home, put

from gazette_platform.broker.spool import head_records
from gazette_platform.broker.spool.disk import finish_closing
from gazette_platform.broker.spool.home import SPOOLS, Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import recover
from gazette_platform.errors import SetupError

OWNER = Owner("1f/gazette", "zone#one", boot_id(), lease=3)
ODD, OTHER = "a/odd", "a/other"


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def written(spool_dir, journal):
    """A home with two fragments of a journal, whose process has ended. Returns: it, and the tenure."""
    home = SpoolHome.make(spool_dir, OWNER)
    tenure = home.tenure(journal, 7)
    put(tenure, b"one", 5)
    put(tenure, b"three", 8)
    crash_home(home)
    return home.folder, tenure


@pytest.fixture
def find(tmp_path):
    """Takes over all homes, and recovers them."""
    homes, found = [], []

    def find_all():
        homes.extend(free_homes(tmp_path, OWNER))
        found.extend(one for home in homes for one in recover(home))
        return {one.tenure.journal: one for one in found}

    yield find_all
    for one in found:
        one.release()
    finish_closing()
    for home in homes:
        home.close()


def replaced(make):
    def replace(path):
        path.unlink(missing_ok=True)
        make(path)

    return replace


def huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse


def to_passwd(path):
    path.symlink_to("/etc/passwd")


def text(value):
    return lambda path: path.write_text(value)


def owner(**fields):
    def change(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


ODD_FILES = {
    "fifo": replaced(os.mkfifo),
    "folder": replaced(os.mkdir),
    "link": replaced(to_passwd),
    "huge": huge,
}

ODD_OWNERS = {
    "deep": text("[" * 100_000),
    "list": text("[]"),
    "empty": text('{"version": 1}'),
    "lease of text": owner(lease="3"),
    "lease beyond": owner(lease=1 << 63),
    "lease below": owner(lease=-1),
    "process of a number": owner(process=7),
    "process that clears a terminal": owner(process="\x1b[2J"),
    "more": owner(more=1),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "spoil",
    [*ODD_FILES.values(), *ODD_OWNERS.values()],
    ids=[*ODD_FILES, *ODD_OWNERS],
)
def test_home_that_does_not_say_whose_it_is_is_left_alone(tmp_path, find, caplog, spoil):
    folder, _ = written(tmp_path, ODD)
    written(tmp_path, OTHER)
    before = open_files()
    spoil(folder / "home.json")
    found = find()
    assert found.keys() == {OTHER}
    assert f"{folder} is left alone, since it cannot be read" in caplog.text
    assert "\x1b" not in caplog.text
    assert open_files() == before + 2 + len(found[OTHER].fragments)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "spoil",
    [replaced(os.mkfifo), replaced(os.mkdir), replaced(to_passwd)],
    ids=["fifo", "folder", "link"],
)
def test_home_without_heads_is_left_alone(tmp_path, find, caplog, spoil):
    folder, _ = written(tmp_path, ODD)
    written(tmp_path, OTHER)
    before = open_files()
    spoil(folder / "heads")
    found = find()
    assert found.keys() == {OTHER}
    assert open_files() == before + 2 + len(found[OTHER].fragments)
    assert f"{folder} is left alone" in caplog.text
    assert len(list(folder.glob("*.content"))) == 2


@pytest.mark.timeout(30)
@pytest.mark.parametrize("spoil", ODD_FILES.values(), ids=ODD_FILES.keys())
def test_record_of_a_closed_fragment_without_a_file_is_torn(tmp_path, find, spoil):
    _, tenure = written(tmp_path, ODD)
    written(tmp_path, OTHER)
    spoil(tenure.path(1, "sealed"))
    found = find()
    assert [one.state.begin for one in found[ODD].fragments] == [8]
    assert [one.path.name for one in found[ODD].torn] == [tenure.path(1, "content").name]
    assert not found[ODD].is_whole
    assert found[OTHER].is_whole


@pytest.mark.parametrize(
    "name", ["77.content", f"{'9' * 200}.content", "0001.content", "1.sealed.x"]
)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, to_passwd], ids=["folder", "fifo", "link"])
def test_file_that_belongs_to_no_fragment_stays_and_harms_nothing(tmp_path, find, name, make):
    folder, tenure = written(tmp_path, ODD)
    stray = folder / f"{tenure.id}.{name}"
    make(stray)
    found = find()[ODD]
    assert found.is_whole
    assert [one.state.begin for one in found.fragments] == [5, 8]
    assert os.path.lexists(stray)
    file = found.tenure.content_file(13)
    assert file.ordinal == 3
    file.release()


def test_files_without_an_owner_are_reported_once(tmp_path, find, caplog):
    folder, _ = written(tmp_path, ODD)
    for number in range(200):
        (folder / f"{number:016x}.1.content").write_bytes(b"content")
    assert find()[ODD].is_whole
    assert len(caplog.records) == 1
    assert "200 files stay, since their journals are unknown" in caplog.text
    assert f"{0:016x}.1.content" in caplog.text


def test_record_with_a_codec_that_is_not_known_is_torn(tmp_path, find):
    """As a newer version may write it."""
    folder, tenure = written(tmp_path, ODD)
    written(tmp_path, OTHER)
    raw = bytearray(tenure._last[:-4])
    fields = list(head_records._RECORD.unpack_from(raw))
    fields[9] = 99
    head_records._RECORD.pack_into(raw, 0, *fields)
    raw += zlib.crc32(raw).to_bytes(4, "little")
    with (folder / "heads").open("r+b") as heads:
        heads.seek(head_records.slot_at(tenure._number))
        heads.write(raw)
    found = find()
    assert not found[ODD].is_whole
    assert found[OTHER].is_whole


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_homes_of_other_users_are_not_taken(tmp_path, find, caplog):
    """Theirs could say what journals hold, and have us end leases of other brokers."""
    folder, _ = written(tmp_path, ODD)
    written(tmp_path, OTHER)
    os.chown(folder, 12345, 12345)
    assert find().keys() == {OTHER}
    assert f"{folder} is left alone" in caplog.text
    os.chown(tmp_path / SPOOLS, 12345, 12345)
    with pytest.raises(SetupError, match=r"not a folder of this user .*--broker\.spool-dir"):
        free_homes(tmp_path, OWNER)


def test_homes_that_anybody_may_write_to_are_made_private(tmp_path, find):
    folder, _ = written(tmp_path, ODD)
    for one in (folder, tmp_path / SPOOLS):
        one.chmod(0o777)
    assert find().keys() == {ODD}
    assert {one.stat().st_mode & 0o777 for one in (folder, tmp_path / SPOOLS)} == {0o700}
