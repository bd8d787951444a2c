"""Homes of spools: locks, blocks, and what tenures record in them.

Long because all of it is shown with the same few homes, which processes take over from each other.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from spool_files import crash_home, put, state_of

from gazette_platform.broker.spool import disk as spool_disk, home as spool_home
from gazette_platform.broker.spool.disk import birth_ns, finish_closing, write_all
from gazette_platform.broker.spool.head_records import BLOCK_BYTES, TenureHeader
from gazette_platform.broker.spool.home import SPOOLS, Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import recover
from gazette_platform.errors import SetupError
from gazette_platform.protocol import LabelSet
from tests.chaos.disks import SmallDisk

OWNER = Owner("1f/gazette", "zone#one", boot_id(), lease=3)
OTHER = Owner("1f/gazette", "zone#two", boot_id())
LONG = LabelSet.of(("long", "x" * 2000))
LONGER = LabelSet.of(("long", "y" * 3000))
SHORT = LabelSet.of(("short", "z"))

CHILD = """
import sys
from pathlib import Path
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id, free_homes

spool_dir, what = Path(sys.argv[1]), sys.argv[2]
owner = Owner("1f/gazette", "zone#child", boot_id())
if what == "make":
    home = SpoolHome.make(spool_dir, owner)
    print(home.folder.name, flush=True)
else:
    print(*[home.folder.name for home in free_homes(spool_dir, owner)], flush=True)
sys.stdin.read()
"""


def open_files():
    return len(names(Path("/proc/self/fd")))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def make(tmp_path):
    made = []

    def make_one(owner=OWNER):
        made.append(SpoolHome.make(tmp_path, owner))
        return made[-1]

    yield make_one
    for home in made:
        home.close()


@pytest.fixture
def again(tmp_path):
    """Gives up homes as a process does that ends, and takes them over."""
    taken = []

    def again_one(*homes, owner=OTHER):
        for home in homes:
            crash_home(home)
        found = free_homes(tmp_path, owner)
        taken.extend(found)
        return found

    yield again_one
    for home in taken:
        home.close()


@pytest.fixture
def child(tmp_path):
    children = []

    def start(what):
        one = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(one)
        return one, one.stdout.readline().split()

    yield start
    for one in children:
        one.kill()
        one.wait()
        one.stdin.close()
        one.stdout.close()


# -------------------------------------------------------------------------------------- homes
def test_home_is_free_once_its_process_is_killed(tmp_path, child, again):
    process, (name,) = child("make")
    assert again() == []
    process.kill()
    process.wait()
    (home,) = again()
    assert home.folder.name == name
    assert home.former == Owner("1f/gazette", "zone#child", boot_id())
    assert home.former_has_ended


def test_a_copied_home_proves_no_end_of_its_process(tmp_path, make, again):
    home = make()
    shutil.copytree(home.folder, home.folder.with_name("copy"))
    (copy,) = again()  # the original is locked
    assert copy.folder.name == "copy"
    assert copy.former == OWNER
    assert copy.is_copied
    assert not copy.former_has_ended
    copy.own(OTHER)
    found = {one.folder.name: one for one in again(home, copy)}
    assert found[home.folder.name].former_has_ended
    # However often it is taken over, it stays the copy of the one that it was copied from.
    assert found["copy"].is_copied
    assert found["copy"].former == OWNER


def test_home_that_was_moved_on_its_disk_is_not_a_copy(tmp_path, make, again):
    """Inode and birth stay, also if the disk gets another number when it is mounted again."""
    home = make()
    crash_home(home)
    (tmp_path / SPOOLS).rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / SPOOLS)
    (found,) = again()
    assert not found.is_copied
    assert found.former_has_ended


def test_a_copy_that_got_the_inode_of_its_original_is_still_one(make, again, monkeypatch):
    """On two new disks folders easily have the same numbers."""
    home = make()
    born = birth_ns(home._lock_fd)
    assert born > 0
    crash_home(home)
    monkeypatch.setattr(spool_disk, "birth_ns", lambda _: born + 1)
    (found,) = again()
    assert found.is_copied


def test_birth_is_unknown_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr("gazette_platform.broker.spool.disk.ctypes.CDLL", lambda _: object())
    assert birth_ns(0) == 0
    monkeypatch.undo()
    assert birth_ns(-1) == 0


def test_free_home_is_taken_by_one_process_only(tmp_path, child):
    process, (name,) = child("make")
    process.kill()
    process.wait()
    first, taken = child("take")
    assert taken == [name]
    assert child("take")[1] == []
    first.kill()
    first.wait()
    assert child("take")[1] == [name]


def test_home_of_another_cluster_is_left_alone(make, again, tmp_path):
    home = make(Owner("2e/gazette", "zone#one", boot_id()))
    assert again(home) == []
    assert names(tmp_path / SPOOLS) == [home.folder.name]
    assert [one.folder for one in again(owner=home.owner)] == [home.folder]


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"null",
        b"3",
        b'"home"',
        b"[]",
        b"{}",
        b'{"version": 2}',
        b'{"version": 1}',
        b'{"version": 1, "cluster": "1f/gazette", "process": "p", "boot": "b", "new": 1}',
        b"\xff",
    ],
)
def test_home_that_is_not_understood_is_left_alone(make, again, said):
    bad, good = make(), make()
    (bad.folder / "home.json").write_bytes(said)
    (bad.folder / "x.1.content").write_bytes(b"content")
    assert [home.folder for home in again(bad, good)] == [good.folder]
    assert (bad.folder / "home.json").read_bytes() == said
    assert (bad.folder / "x.1.content").read_bytes() == b"content"


def test_home_without_a_place_is_taken_over(make, again):
    """On a full disk it may be missing. The process has ended, as the lock on the folder is free."""
    home = make()
    (home.folder / "place").unlink()
    said = (home.folder / "home.json").read_bytes()
    (home.folder / "home.json").write_bytes(said.strip())
    (taken,) = again(home)
    assert taken.former_has_ended
    taken.own(OTHER)
    shutil.copytree(taken.folder, taken.folder.with_name("copy"))
    assert [one.former_has_ended for one in again()] == [False]


def test_home_without_an_owner_is_reported(make, again, caplog):
    home = make()
    put(home.tenure("a/journal", 7), b"acknowledged")
    (home.folder / "home.json").unlink()
    assert again(home) == []
    assert f"{home.folder} is left alone: its home.json is missing" in caplog.text
    assert len(list(home.folder.glob("*.content"))) == 1


@pytest.mark.parametrize("litter", [[], ["heads"], ["home.json.new"], ["heads", "home.json.new"]])
def test_home_that_was_never_made_whole_is_removed(tmp_path, again, litter):
    folder = tmp_path / SPOOLS / "0123456789abcdef"
    folder.mkdir(parents=True)
    for name in litter:
        (folder / name).touch()
    assert again() == []
    assert not folder.exists()


def test_content_of_a_folder_that_says_nothing_stays(tmp_path, again):
    folder = tmp_path / SPOOLS / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "x.1.content").write_bytes(b"content")
    (folder / "heads").write_bytes(b"says of which journal it is")
    assert again() == []
    assert (folder / "x.1.content").read_bytes() == b"content"
    assert (folder / "heads").read_bytes() == b"says of which journal it is"


def test_nothing_is_free_where_nothing_is(tmp_path, again):
    assert again() == []
    (tmp_path / SPOOLS).mkdir()
    (tmp_path / SPOOLS / "file").write_text("no folder")
    (tmp_path / SPOOLS / "link").symlink_to(tmp_path)
    (tmp_path / SPOOLS / "nowhere").symlink_to(tmp_path / "nowhere")
    assert again() == []


def test_home_with_nothing_in_it_goes_with_its_process(make, tmp_path):
    home = make()
    assert names(home.folder) == ["heads", "home.json", "place"]
    home.close()
    home.close()
    assert names(tmp_path / SPOOLS) == []


def test_home_with_a_tenure_stays(make, again):
    home = make()
    file = put(home.tenure("a/journal", 1), b"content")
    file.keep_names()
    file.release()
    home.close()
    (found,) = again()
    assert found.folder == home.folder


def test_home_of_a_tenure_without_content_stays(make, again):
    """Its end and its registers may be nowhere else."""
    home = make()
    home.tenure("a/journal", 1).record(0, state_of(5, 5, SHORT))
    home.close()
    (taken,) = again()
    (found,) = recover(taken)
    assert (found.end, found.registers, found.is_whole) == (5, SHORT, True)


def test_closed_home_writes_nothing_more(make, tmp_path):
    """Least of all to a file that has got its descriptor by now."""
    home = make()
    tenure = home.tenure("a/journal", 1)
    tenure.record(0, state_of(5, 5))
    home.close()
    with (tmp_path / "other").open("wb", buffering=0) as one, (tmp_path / "b").open("wb") as two:
        with pytest.raises(OSError, match="Bad file descriptor"):
            tenure.record(0, state_of(6, 6))
        assert one.tell() == two.tell() == 0
    assert (tmp_path / "other").read_bytes() == (tmp_path / "b").read_bytes() == b""


def test_owner_is_reported_again(make, again):
    home = make()
    home.own(Owner("1f/gazette", "zone#one", "boot", lease=77))
    (found,) = again(home)
    assert found.former == Owner("1f/gazette", "zone#one", "boot", lease=77)
    assert not found.former.is_of_this_boot
    found.own(OTHER)
    (found,) = again(found)
    assert found.former == OTHER


def test_boot_that_is_not_known_equals_none(monkeypatch, tmp_path):
    monkeypatch.setattr(spool_home, "_BOOT_ID", tmp_path / "none")
    assert boot_id() == ""
    assert not Owner("c", "p", boot_id()).is_of_this_boot


def test_folder_that_a_group_may_write_to_is_made_private(tmp_path, make):
    base = tmp_path / SPOOLS
    base.mkdir()
    base.chmod(0o2770)  # as Kubernetes does with fsGroup
    home = make()
    assert base.stat().st_mode & 0o022 == 0
    assert home.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in home.folder.iterdir()} == {0o600}


@pytest.mark.parametrize("kind", ["link", "file"])
def test_foreign_folder_is_refused(tmp_path, kind):
    base = tmp_path / SPOOLS
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        base.symlink_to(tmp_path / "elsewhere")
    else:
        base.write_text("no folder")
    with pytest.raises(SetupError, match=r"give --broker\.spool-dir a folder of its own"):
        SpoolHome.make(tmp_path, OWNER)
    if kind == "link":
        assert names(tmp_path / "elsewhere") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_folder_of_another_user_is_refused(tmp_path):
    (tmp_path / SPOOLS).mkdir()
    os.chown(tmp_path / SPOOLS, 12345, 12345)
    with pytest.raises(SetupError, match="not a folder of this user"):
        SpoolHome.make(tmp_path, OWNER)


def test_home_that_is_removed_while_it_is_made_is_made_again(make, monkeypatch):
    """Brokers that start look for homes at the same time, and remove what is empty."""
    real, removed = fcntl.flock, []

    def lock_too_late(fd, how):
        if not removed:
            folder = Path(f"/proc/self/fd/{fd}").readlink()
            folder.rmdir()
            removed.append(folder)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    home = make()
    assert removed[0] != home.folder
    assert names(home.folder) == ["heads", "home.json", "place"]


def test_home_that_cannot_be_made_leaves_nothing_behind(tmp_path, monkeypatch):
    """On a full disk it is tried again with each append."""
    real = spool_home.write_new

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(spool_home, "write_new", full)
    home = SpoolHome.make(tmp_path, OWNER)
    tenure = home.tenure("a/journal", 1)
    before = open_files()
    for _ in range(5):
        with pytest.raises(OSError, match="full"):
            tenure.record(0, state_of(0, 0))
    assert open_files() == before
    assert names(tmp_path / SPOOLS) == []
    monkeypatch.setattr(spool_home, "write_new", real)
    tenure.record(0, state_of(0, 0))
    assert names(tmp_path / SPOOLS) == [home.folder.name]
    home.close()


# ------------------------------------------------------------------------------------- blocks
def test_blocks_are_allotted_in_order_and_used_again(make, again):
    home = make()
    headers = [TenureHeader(f"{n:016x}", f"a/{n}", n) for n in range(3)]
    assert [home.allot(one) for one in headers] == [0, 1, 2]
    assert list(home.blocks()) == list(enumerate(headers))
    home.write(1, 4, b"record")
    home.give_back(1)
    assert [block for block, _ in home.blocks()] == [0, 2]
    new = TenureHeader("f" * 16, "b", 9)
    assert home.allot(new) == 1
    assert home.header(1) == new
    assert home.slots(1) == (bytes(1024), bytes(1024))
    assert home.allot(headers[1]) == 3
    (found,) = again(home)
    assert dict(found.blocks()) == {0: headers[0], 1: new, 2: headers[2], 3: headers[1]}
    assert (found.folder / "heads").stat().st_size == 4 * BLOCK_BYTES
    found.give_back(2)
    assert found.allot(new) == 2


def test_block_whose_header_is_torn_has_no_owner(make, again):
    home = make()
    for n in range(3):
        home.allot(TenureHeader(f"{n:016x}", "a", n))
        home.write(n, 1, b"record")
    with (home.folder / "heads").open("r+b") as heads:
        heads.seek(BLOCK_BYTES + 11)
        heads.write(b"\xff")
        heads.truncate(3 * BLOCK_BYTES + 100)  # and one that was about to be
    (found,) = again(home)
    assert [block for block, _ in found.blocks()] == [0, 2]
    assert {found.allot(TenureHeader("f" * 16, "b", 1)) for _ in range(3)} == {1, 3, 4}
    assert found.slots(1) == (bytes(1024), bytes(1024)), "they say nothing of the new tenure"


def test_records_of_threads_go_to_their_own_blocks(make):
    home = make()
    tenures = [home.tenure(f"a/{n}", n) for n in range(4)]

    def work(tenure, n):
        for end in range(50):
            tenure.record(0, state_of(n, n + end))

    threads = [threading.Thread(target=work, args=(t, n)) for n, t in enumerate(tenures)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {header.journal for _, header in home.blocks()} == {f"a/{n}" for n in range(4)}
    assert len(home.tenures) == 4


def test_records_are_synced_once(make, monkeypatch):
    home, synced = make(), []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    tenure = home.tenure("a/journal", 1)
    tenure.sync()
    assert synced == []
    tenure.record(0, state_of(0, 0))
    tenure.sync()
    tenure.sync()
    assert synced == [home._heads_fd]

    def broken(fd):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fdatasync", broken)
    tenure.record(0, state_of(0, 0))
    for _ in range(2):  # it is owed until it is done
        with pytest.raises(OSError, match="broken"):
            tenure.sync()


# ------------------------------------------------------------------------------------ tenures
def test_tenure_touches_no_disk_until_something_is_recorded(make):
    home = make()
    tenure = home.tenure("a/journal", 1)
    assert not tenure.is_begun
    tenure.leave()
    assert names(home.folder) == ["heads", "home.json", "place"]
    assert home.tenures == {}


def test_names_go_with_the_last_release(make):
    home = make()
    tenure = home.tenure("a/journal", 1)
    file = put(tenure, b"content")
    held = file.hold()
    tenure.record(0, state_of(7, 7))
    file.release()
    finish_closing()
    assert names(home.folder) == sorted(
        ["heads", "home.json", "place", f"{tenure.id}.1.content", f"{tenure.id}.1.sealed"]
    )
    assert tenure.files == 1
    held.release()
    finish_closing()
    assert names(home.folder) == ["heads", "home.json", "place"]
    assert tenure.files == 0


def test_names_stay_for_as_long_as_the_record_speaks_of_them(make):
    home = make()
    tenure = home.tenure("a/journal", 1)
    put(tenure, b"content").release()
    finish_closing()
    assert f"{tenure.id}.1.content" in names(home.folder)
    tenure.record(0, state_of(7, 7))
    assert names(home.folder) == ["heads", "home.json", "place"]


def test_leaving_gives_the_block_back(make, again):
    home = make()
    tenure = home.tenure("a/journal", 1)
    put(tenure, b"content", registers=LONG).release()
    other = home.tenure("another", 1)
    tenure.leave()
    assert names(home.folder) == ["heads", "home.json", "place"]
    assert home.tenures == {}
    other.record(0, state_of(1, 1))
    assert [(block, header.journal) for block, header in home.blocks()] == [(0, "another")]
    tenure.leave()
    (found,) = again(home)
    assert [one.tenure.id for one in recover(found)] == [other.id]


def test_file_of_a_tenure_that_left_stays_while_it_is_held(make):
    home = make()
    tenure = home.tenure("a/journal", 1)
    file = put(tenure, b"content")
    tenure.record(0, state_of(7, 7))
    tenure.leave()
    assert os.pread(file.fd, 10, 0) == b"content"
    file.release()
    home.close()
    assert not home.folder.exists()


def test_sealed_file_takes_no_writer(make):
    home = make()
    tenure = home.tenure("a/journal", 1)
    file = put(tenure, b"content")
    assert os.fstat(file.fd).st_mode & 0o777 == 0o600
    tenure.record(0, state_of(7, 7))
    assert os.fstat(file.fd).st_mode & 0o777 == 0o400


@pytest.mark.parametrize("before", [LONG, SHORT, LabelSet()])
@pytest.mark.parametrize("after", [LONGER, SHORT, LabelSet()])
def test_record_that_failed_may_be_written_again(make, again, monkeypatch, before, after):
    """The fragment that was closed with it keeps its own registers."""
    home = make()
    tenure = home.tenure("a/journal", 1)
    put(tenure, b"content", registers=before)
    real, failures = SpoolHome.write, [1, 1]

    def write(self, *args):
        if failures:
            failures.pop()
            raise OSError(errno.EIO, "broken")
        real(self, *args)

    monkeypatch.setattr(SpoolHome, "write", write)
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            tenure.record(0, state_of(7, 7, after))
    tenure.record(0, state_of(7, 7, after))
    (found,) = recover(again(home)[0])
    assert found.is_whole
    assert found.torn == []
    assert (found.end, found.registers) == (7, after)
    assert [one.state.registers for one in found.fragments] == [before]


def test_fragment_that_could_not_be_closed_goes_on(make, again, monkeypatch):
    """What is recorded of it later counts, though it was sealed before."""
    home = make()
    tenure = home.tenure("a/journal", 1)
    file = put(tenure, b"content")

    def broken(self, *args):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(SpoolHome, "write", broken)
        with pytest.raises(OSError, match="broken"):
            tenure.record(0, state_of(7, 7))
    write_all(file.fd, b" and more", 7)
    tenure.record(file.ordinal, state_of(0, 16, SHORT))
    (found,) = recover(again(home)[0])
    (one,) = found.fragments
    assert (found.end, one.state.end, one.state.registers) == (16, 16, SHORT)
    assert os.pread(one.file.fd, 100, 0) == b"content and more"
    assert found.is_whole


def test_full_disk(tmp_path):
    """It makes no file, and hinders no record; a fragment is closed though it is full."""
    with SmallDisk(tmp_path / "disk", size_bytes=1 << 20) as disk:
        if not disk.is_mounted:
            pytest.skip("needs to mount a small file system (run as root)")
        home = SpoolHome.make(disk.folder, OWNER)
        tenure = home.tenure("a/journal", 1)
        file = put(tenure, b"content")
        late = home.tenure("late", 1)
        disk.fill()
        for end_at in range(1, 8):
            tenure.record(file.ordinal, state_of(0, end_at))
        with pytest.raises(OSError, match="No space left"):
            late.record(0, state_of(0, 0))
        assert not late.is_begun
        assert set(home.tenures) == {tenure.id}
        tenure.record(0, state_of(7, 7))  # a fragment is closed to make room
        disk.free()
        late.record(0, state_of(0, 0))
        assert [header.journal for _, header in home.blocks()] == ["a/journal", "late"]
        crash_home(home)
        (taken,) = free_homes(disk.folder, OTHER)
        found = {one.tenure.journal: one for one in recover(taken)}
        assert [one.state.end for one in found["a/journal"].fragments] == [7]
        assert found["a/journal"].is_whole
        assert (found["late"].end, found["late"].is_whole) == (0, True)
        for one in found.values():
            one.release()
        taken.close()


def test_home_is_said_on_disk(tmp_path):
    home = SpoolHome.make(tmp_path, OWNER)
    said = json.loads((home.folder / "home.json").read_bytes())
    assert said == {
        "version": 1,
        "cluster": "1f/gazette",
        "process": "zone#one",
        "boot": boot_id(),
        "lease": 3,
    }
    folder, heads = (
        f"inode {os.fstat(fd).st_ino} born {birth_ns(fd)}" for fd in (home._lock_fd, home._heads_fd)
    )
    device = home.folder.stat().st_dev
    assert (home.folder / "place").read_text() == f"{folder} heads {heads} device {device}"
    home.close()
