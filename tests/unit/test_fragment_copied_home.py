"""Copies of homes of spools: made in any way, and at any moment."""

from __future__ import annotations

import os
import shutil

import pytest
from spool_files import crash_home, put, state_of

from gazette_platform.broker.spool import disk as spool_disk
from gazette_platform.broker.spool.disk import birth_ns, write_all
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import recover

OWNER = Owner("1f/gazette", "zone#one", boot_id(), lease=3)
OTHER = Owner("1f/gazette", "zone#two", boot_id())


@pytest.fixture
def home(tmp_path):
    one = SpoolHome.make(tmp_path, OWNER)
    yield one
    one.close()


@pytest.fixture
def take(tmp_path):
    """Takes over all homes whose processes have ended."""
    taken = []

    def take_all():
        taken.extend(free_homes(tmp_path, OTHER))
        return {one.folder.name: one for one in taken if one._lock_fd >= 0}

    yield take_all
    for one in taken:
        one.close()


def copied(home, **options):
    return shutil.copytree(home.folder, home.folder.with_name("copy"), **options)


def held(home):
    return {header.journal for _, header in home.blocks()}


def test_a_copy_made_of_links_takes_nothing_from_its_original(home, take):
    """`cp -al`: the file of records is the same, and the original's process writes there."""
    tenure = home.tenure("a/journal", 1)
    put(tenure, b"content")
    copied(home, copy_function=os.link)
    copy = take()["copy"]
    (found,) = recover(copy)
    found.release()
    found.tenure.leave()
    assert held(home) == {"a/journal"}
    assert held(copy) == set()
    copy.close()
    assert not copy.folder.exists()
    crash_home(home)
    (found,) = recover(take()[home.folder.name])
    assert (found.end, found.is_whole) == (7, True)


@pytest.mark.parametrize(
    ("said", "born"),
    [("inode {inode} born {born}", None), (None, 0)],
    ids=["no device and no records", "birth is unknown now"],
)
def test_home_is_not_a_copy_if_less_is_known_of_its_place(home, take, monkeypatch, said, born):
    """After an update of the kernel, or of the library that asks it, more or less is reported."""
    info = home.folder.stat()
    values = {"inode": info.st_ino, "born": birth_ns(home._lock_fd)}
    if said is not None:
        (home.folder / "place").write_text(said.format(**values))
    crash_home(home)
    if born is not None:
        monkeypatch.setattr(spool_disk, "birth_ns", lambda _: born)
    (found,) = take().values()
    assert not found.is_copied
    found.own(OTHER)
    monkeypatch.undo()
    crash_home(found)
    (found,) = take().values()
    assert not found.is_copied, "birth was unknown"


def test_a_snapshot_of_a_disk_proves_no_end_of_a_process(home, take):
    """It is mounted beside the disk, as another device, with the same inodes and births."""
    place = (home.folder / "place").read_text()
    device = home.folder.stat().st_dev
    (home.folder / "place").write_text(place.replace(f"device {device}", f"device {device + 1}"))
    crash_home(home)
    (found,) = take().values()
    assert (found.is_copied, found.former_has_ended) == (False, False)


@pytest.mark.parametrize("said", ["1:2", "inode 1 born 2", "what no one understands"])
def test_a_home_of_another_place_is_a_copy(home, take, said):
    (home.folder / "place").write_text(said)
    crash_home(home)
    (found,) = take().values()
    assert found.is_copied


@pytest.mark.parametrize("is_said", [True, False])
def test_copy_whose_place_is_still_to_come_is_one(home, take, is_said):
    """On a full disk a home may be without."""
    copied(home, ignore=shutil.ignore_patterns("place"))
    if not is_said:
        said = (home.folder / "home.json").read_bytes()
        (home.folder.with_name("copy") / "home.json").write_bytes(said.strip())
    assert take()["copy"].is_copied == is_said


@pytest.mark.parametrize("is_emptied", [False, True])
def test_files_that_were_restored_into_the_folder_are_a_copy(home, take, tmp_path, is_emptied):
    """As rsync and tar do it: the folder stays, and its files are others."""
    tenure = home.tenure("a/journal", 1)
    put(tenure, b"content")
    backup = shutil.copytree(home.folder, tmp_path / "backup")
    put(tenure, b"and more", 7)
    crash_home(home)
    if is_emptied:
        for path in home.folder.iterdir():
            path.unlink()
    for path in backup.iterdir():
        new = home.folder / f".{path.name}.new"
        shutil.copy2(path, new)
        new.rename(home.folder / path.name)
    (found,) = take().values()
    assert found.is_copied


def test_a_copy_that_was_made_while_files_came_keeps_them(home, take):
    """Of the first fragment the copy has the record; the second one came when it had been copied."""
    tenure = home.tenure("a/journal", 1)
    put(tenure, b"content")
    heads = (home.folder / "heads").read_bytes()
    put(tenure, b"and more", 7)
    (copied(home) / "heads").write_bytes(heads)
    copy = take()["copy"]
    (found,) = recover(copy)
    assert found.end == 7
    assert (copy.folder / f"{tenure.id}.2.content").read_bytes() == b"and more"


def test_records_without_an_owner_are_left_alone(home, take):
    """An operator may be copying them here at this moment, or may restore the owner's file."""
    home.tenure("a/journal", 1).record(0, state_of(7, 7))
    crash_home(home)
    said = (home.folder / "home.json").read_bytes()
    (home.folder / "home.json").unlink()
    assert take() == {}
    (home.folder / "home.json").write_bytes(said)
    (found,) = recover(take()[home.folder.name])
    assert (found.end, found.is_whole) == (7, True)


def test_a_copy_of_an_empty_fragment_keeps_what_came_since(home, take):
    tenure = home.tenure("a/journal", 1)
    file = tenure.content_file(0)
    tenure.record(file.ordinal, state_of(0, 0))
    heads = (home.folder / "heads").read_bytes()
    write_all(file.fd, b"content", 0)
    (copied(home) / "heads").write_bytes(heads)
    recover(take()["copy"])
    assert (home.folder.with_name("copy") / f"{tenure.id}.1.content").read_bytes() == b"content"


def put_in_its_place(copy, home):
    home.folder.rename(home.folder.with_name("away"))
    copy.rename(home.folder)


def test_nothing_is_written_into_a_copy_in_the_place_of_the_folder(home):
    """Its records are in the one that was moved away, and would speak of files that are elsewhere."""
    tenure = home.tenure("a/journal", 1)
    put(tenure, b"content")
    put_in_its_place(copied(home), home)
    with pytest.raises(FileNotFoundError, match="was moved away"):
        tenure.content_file(7)
    assert list(home.folder.glob("*.2.*")) == []


def test_a_copy_in_the_place_of_a_folder_outlives_its_process(home):
    home.tenure("a/journal", 1).record(0, state_of(7, 7))
    copy = copied(home)
    (tenure,) = home.tenures.values()
    tenure.leave()
    put_in_its_place(copy, home)
    home.close()
    assert (home.folder / "heads").stat().st_size > 0
