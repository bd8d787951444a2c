"""What is found of spools whose process ended: after a crash, after a power failure, and after damage.

Long because the tables of damage, a process that is really killed, and a model share their disks.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from spool_files import crash_home, put, say_made_here, state_of

from gazette_platform.broker.spool.disk import SpoolFile, finish_closing, write_all
from gazette_platform.broker.spool.head_records import slot_at
from gazette_platform.broker.spool.home import SPOOLS, Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import SET_ASIDE, recover, set_aside
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.protocol import CompressionCodec, LabelSet

BOOT, LATER_BOOT = "first", "second"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LONG = LabelSet.of(("long", "x" * 2000))
SHORT = LabelSet.of(("short", "z"))


def owner(boot=BOOT):
    return Owner("1f/gazette", "zone#one", boot)


def sha1(content):
    return hashlib.sha1(content, usedforsecurity=False).digest()


def contents(found):
    return [
        (one.state.begin, os.pread(one.file.fd, one.state.end - one.state.begin, 0))
        for one in found.fragments
    ]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class Disk:
    """A folder of spools, and those who come one after the other."""

    def __init__(self, path):
        self.path = path
        self.homes = []
        self.found = []

    def make(self, boot=BOOT):
        self.homes.append(SpoolHome.make(self.path, owner(boot)))
        return self.homes[-1]

    def begin(self, boot=BOOT):
        return self.make(boot).tenure("a/journal", 7)

    def crash(self):
        """All processes end; nothing is tidied up."""
        for home in self.homes:
            if home._lock_fd >= 0:
                crash_home(home)
        self.homes = []

    def recover(self, boot=BOOT):
        self.crash()
        self.homes = free_homes(self.path, owner(boot))
        self.found = [one for home in self.homes for one in recover(home)]
        return self.found

    def recover_one(self, boot=BOOT):
        (found,) = self.recover(boot)
        return found

    def close(self):
        for one in self.found:
            one.release()
        for home in self.homes:
            home.close()


@pytest.fixture
def disk(tmp_path):
    one = Disk(tmp_path)
    yield one
    one.close()


# ---------------------------------------------------------------------- after a process ended
def test_open_and_closed_fragments_are_found(disk):
    tenure = disk.begin()
    put(tenure, b"one", 5, registers=LONG)
    tenure.record(0, state_of(8, 8, LONG))
    put(tenure, b"three", 8, registers=SHORT, codec=CompressionCodec.SNAPPY)
    found = disk.recover_one()
    assert found.is_whole
    assert found.torn == []
    assert (found.end, found.registers) == (13, SHORT)
    assert contents(found) == [(5, b"one"), (8, b"three")]
    assert [one.state.registers for one in found.fragments] == [LONG, SHORT]
    assert (found.tenure.id, found.tenure.journal, found.tenure.create_revision) == (
        tenure.id,
        "a/journal",
        7,
    )
    assert found.process == owner().process
    fragment = found.fragments[1].fragment("a/journal")
    assert (fragment.begin, fragment.end, fragment.sum) == (8, 13, sha1(b"three"))
    assert fragment.codec is CompressionCodec.SNAPPY
    assert found.fragments[1].state.first_append_at == datetime(
        2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC
    )


def test_content_behind_the_recorded_end_is_never_believed(disk):
    tenure = disk.begin()
    file = put(tenure, b"content")
    write_all(file.fd, b" that was never committed", 7)
    found = disk.recover_one()
    assert contents(found) == [(0, b"content")]
    spool = Spool.recovered(
        "a/journal", found.fragments[0].file, *_state_and_sha(found), directory=disk.path
    )
    completed = spool.complete()
    assert os.fstat(completed.content_fd).st_size == 7
    assert completed.fragment.sum == sha1(b"content")
    completed.close()
    found.fragments = []


def _state_and_sha(found):
    return found.fragments[0].state, found.fragments[0].sha


def test_sealed_file_that_is_too_long_can_be_stored(disk):
    """Only its owner may write to it by then, and perhaps not even it."""
    tenure = disk.begin()
    file = put(tenure, b"content")
    write_all(file.fd, b" that was never committed", 7)
    found = disk.recover_one()
    one = found.fragments[0]
    path = tenure.path(one.file.ordinal, "content")
    read_only = SpoolFile(None, 0, fd=os.open(path, os.O_RDONLY))
    spool = Spool.recovered("a/journal", read_only, one.state, one.sha, directory=disk.path)
    completed = spool.complete()
    assert completed.fragment.content_length == 7
    completed.close()


def test_end_that_was_taken_back_counts(disk):
    tenure = disk.begin()
    file = put(tenure, b"content that is refused")
    tenure.record(file.ordinal, state_of(0, 7))
    found = disk.recover_one()
    assert contents(found) == [(0, b"content")]
    assert found.end == 7
    assert found.is_whole


def test_closed_fragment_that_counts_less(disk):
    tenure = disk.begin()
    file = put(tenure, b"content that is refused", registers=LONG)
    tenure.record(0, state_of(23, 23, LONG))
    tenure.seal(file, state_of(0, 7, SHORT))
    tenure.record(0, state_of(7, 7, SHORT))
    found = disk.recover_one()
    assert contents(found) == [(0, b"content")]
    assert found.fragments[0].state.registers == SHORT
    assert (found.end, found.registers, found.is_whole) == (7, SHORT, True)


def test_drafts_are_removed(disk):
    tenure = disk.begin()
    put(tenure, b"content")
    draft = tenure.content_file(7)
    write_all(draft.fd, b"never committed", 0)
    empty = tenure.content_file(7)
    tenure.record(empty.ordinal, state_of(7, 7))
    tenure.record(0, state_of(7, 7))
    found = disk.recover_one()
    assert contents(found) == [(0, b"content")]
    assert found.is_whole
    left = [name for name in names(found.tenure.folder) if name.startswith(tenure.id)]
    assert left == [f"{tenure.id}.1.content", f"{tenure.id}.1.sealed"]


def test_tenure_that_nothing_was_recorded_of_gives_its_block_back(disk):
    home = disk.make()
    home.allot(home.tenure("a/journal", 7)._header)
    assert disk.recover() == []
    assert list(disk.homes[0].blocks()) == []


def test_empty_tenure_is_found(disk):
    disk.begin().record(0, state_of(42, 42, LONG))
    found = disk.recover_one()
    assert (found.end, found.registers, found.is_whole) == (42, LONG, True)
    assert found.fragments == []


def test_home_goes_once_all_is_released(disk):
    tenure = disk.begin()
    put(tenure, b"one", registers=LONG)
    tenure.record(0, state_of(3, 3))
    put(tenure, b"two", 3)
    found = disk.recover_one()
    found.release()
    finish_closing()
    assert found.tenure.files == 0
    found.tenure.leave()
    disk.homes[0].close()
    assert names(disk.path / SPOOLS) == []


def test_who_goes_on_closes_what_was_open(disk):
    """Its numbers, and those of its files, go on; the next process finds both."""
    tenure = disk.begin()
    put(tenure, b"one", registers=LONG)
    found = disk.recover_one()
    again = found.tenure
    again.record(0, state_of(3, 3, LONG))
    put(again, b"two", 3, registers=SHORT)
    assert again.id == tenure.id
    assert names(again.folder) == sorted(
        [
            "heads",
            "home.json",
            "place",
            *(f"{again.id}.{n}.{suffix}" for n in (1, 2) for suffix in ("content", "sealed")),
            *(f"{again.id}.registers.{parity}" for parity in (0, 1)),
        ]
    )
    found = disk.recover_one()
    assert contents(found) == [(0, b"one"), (3, b"two")]
    assert [one.state.registers for one in found.fragments] == [LONG, SHORT]
    assert (found.end, found.registers, found.is_whole) == (6, SHORT, True)


# -------------------------------------------------------------------------------------- damage
def damage_record(disk, tenure, number):
    block = next(block for block, _ in disk.homes[0].blocks())
    assert block == 0
    with (tenure.folder / "heads").open("r+b") as heads:
        heads.seek(slot_at(number) + 20)
        heads.write(b"\xff\xff")


def test_record_that_is_torn_may_have_been_the_last_one(disk):
    """While the machine runs a write within a slot exists or not: this is damage."""
    tenure = disk.begin()
    file = put(tenure, b"content")
    write_all(file.fd, b" and more", 7)
    tenure.record(file.ordinal, state_of(0, 16, SHORT))
    damage_record(disk, tenure, 2)
    found = disk.recover_one()
    assert not found.is_whole
    assert (found.end, found.registers) == (7, LabelSet())
    assert contents(found) == [(0, b"content")]


def test_without_any_record_nothing_is_believed_and_nothing_lost(disk):
    tenure = disk.begin()
    put(tenure, b"content")
    damage_record(disk, tenure, 1)
    found = disk.recover_one()
    assert not found.is_whole
    assert found.fragments == []
    (torn,) = found.torn
    assert torn.why == "no record of it is left"
    assert torn.path.read_bytes() == b"content"


def test_without_record_of_the_head_closed_fragments_say_how_far_it_went(disk):
    tenure = disk.begin()
    put(tenure, b"one", registers=SHORT)
    put(tenure, b"three", 3)
    for number in (1, 2):
        damage_record(disk, tenure, number)
    found = disk.recover_one()
    assert (found.end, found.registers, found.is_whole) == (3, SHORT, False)
    assert contents(found) == [(0, b"one")]


def cut(path):
    os.truncate(path, 3)


def change(path):
    path.write_bytes(b"Content")


def link_elsewhere(path):
    path.unlink()
    path.symlink_to("/etc/hostname")


def make_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (Path.unlink, "lost"),
        (cut, "shorter than recorded"),
        (change, "digest differs"),
        (link_elsewhere, "lost"),
        (make_folder, "lost"),
    ],
)
@pytest.mark.parametrize("is_closed", [False, True])
def test_content_that_is_not_as_recorded(disk, harm, why, is_closed):
    tenure = disk.begin()
    file = put(tenure, b"content", digested_to=7, digest=sha1(b"content"))
    if is_closed:
        tenure.record(0, state_of(7, 7))
        put(tenure, b"more", 7)
    harm(tenure.path(file.ordinal, "content"))
    found = disk.recover_one()
    assert not found.is_whole
    assert found.end == (11 if is_closed else 7)
    assert contents(found) == ([(7, b"more")] if is_closed else [])
    (torn,) = found.torn
    assert why in torn.why
    assert (torn.begin, torn.end) == (0, 7)
    assert torn.path == tenure.path(file.ordinal, "content")


@pytest.mark.parametrize("said", [b"torn", b"\xff" * 200])
def test_closed_fragment_whose_record_is_torn(disk, said):
    tenure = disk.begin()
    file = put(tenure, b"content")
    tenure.record(0, state_of(7, 7))
    tenure.path(file.ordinal, "sealed").write_bytes(said)
    found = disk.recover_one()
    assert not found.is_whole
    assert found.fragments == []
    assert [torn.path.read_bytes() for torn in found.torn] == [b"content"]


def test_fragment_that_was_about_to_be_closed_is_whole(disk):
    """The record beside it is torn, but the one in its block still says all of it."""
    tenure = disk.begin()
    file = put(tenure, b"content", registers=SHORT)
    tenure.path(file.ordinal, "sealed").write_bytes(b"torn")
    found = disk.recover_one()
    assert (found.is_whole, found.torn, found.registers) == (True, [], SHORT)
    assert contents(found) == [(0, b"content")]


def test_last_block_may_be_cut_after_its_record(disk):
    tenure = disk.begin()
    put(tenure, b"content")
    os.truncate(tenure.folder / "heads", slot_at(1) + 500)
    found = disk.recover_one()
    assert (found.is_whole, contents(found)) == (True, [(0, b"content")])


def test_registers_that_are_lost_make_it_not_whole(disk):
    tenure = disk.begin()
    put(tenure, b"content", registers=LONG)
    (tenure.folder / f"{tenure.id}.registers.1").write_bytes(b"[]")
    found = disk.recover_one()
    assert not found.is_whole
    assert contents(found) == [(0, b"content")]


# --------------------------------------------------------------------- after a power failure
@pytest.mark.parametrize(
    ("options", "believed", "is_whole"),
    [
        ({}, b"", False),
        ({"synced_to": 4}, b"cont", False),
        ({"digested_to": 5, "digest": sha1(b"conte")}, b"conte", False),
        ({"synced_to": 6, "digested_to": 5, "digest": sha1(b"conte")}, b"content"[:6], False),
        # What was synced exists, whatever became of what was not.
        ({"synced_to": 4, "digested_to": 5, "digest": sha1(b"lost.")}, b"cont", False),
        ({"synced_to": 5, "digested_to": 4, "digest": sha1(b"lost")}, b"", False),
        ({"synced_to": 7}, b"content", False),
        ({"is_durable": True, "synced_to": 7}, b"content", True),
        ({"is_durable": True, "digested_to": 5, "digest": sha1(b"lost.")}, b"", False),
        # All of it was on disk: what differs is damage, and no one knows how far it goes.
        (
            {"is_durable": True, "synced_to": 4, "digested_to": 5, "digest": sha1(b"lost.")},
            b"",
            False,
        ),
    ],
)
@pytest.mark.parametrize("is_closed", [False, True])
def test_power_failure_leaves_what_was_synced_or_is_proved(
    disk, options, believed, is_whole, is_closed
):
    tenure = disk.begin()
    put(tenure, b"content", **options)
    if is_closed:
        tenure.record(0, state_of(7, 7, is_durable=options.get("is_durable", False)))
    found = disk.recover_one(LATER_BOOT)
    assert contents(found) == ([(0, believed)] if believed else [])
    assert [one.sha.digest() for one in found.fragments] == ([sha1(believed)] if believed else [])
    assert found.is_whole == is_whole
    assert len(found.torn) == (believed != b"content")
    assert all((torn.begin, torn.end) == (0, 7) for torn in found.torn)


def test_synced_content_is_believed_though_the_rest_is_lost(disk):
    tenure = disk.begin()
    file = put(tenure, b"content", synced_to=4, digested_to=7, digest=sha1(b"content"))
    cut_to = tenure.path(file.ordinal, "content")
    os.truncate(cut_to, 5)
    found = disk.recover_one(LATER_BOOT)
    assert contents(found) == [(0, b"cont")]
    assert [torn.why for torn in found.torn] == ["it is shorter than recorded"]


def test_process_that_crashes_after_a_power_failure_proves_nothing(disk):
    """Whoever takes a home over writes its own boot into it; what was recorded before is as old as it was."""
    tenure = disk.begin()
    put(tenure, b"content", synced_to=4)
    found = disk.recover_one(LATER_BOOT)
    assert not found.is_whole
    disk.homes[0].own(owner(LATER_BOOT))
    found = disk.recover_one(LATER_BOOT)
    assert not found.is_whole
    assert contents(found) == [(0, b"cont")]


def test_what_is_recorded_after_a_power_failure_survives_a_crash(disk):
    tenure = disk.begin()
    put(tenure, b"content", is_durable=True)
    found = disk.recover_one(LATER_BOOT)
    disk.homes[0].own(owner(LATER_BOOT))
    found.tenure.record(0, state_of(7, 7))
    put(found.tenure, b"more", 7)
    found = disk.recover_one(LATER_BOOT)
    assert found.is_whole
    assert contents(found) == [(0, b"content"), (7, b"more")]
    found = disk.recover_one("third")
    assert not found.is_whole
    assert contents(found) == [(0, b"content")]


def test_boot_that_is_not_known_proves_nothing(disk):
    put(disk.begin(""), b"content")
    assert not disk.recover_one("").is_whole


def test_content_without_a_record_stays_after_a_power_failure(disk):
    """Its record may be what was lost; only where each was synced it is a draft, and hinders no one."""
    tenure = disk.begin()
    put(tenure, b"content", is_durable=True, synced_to=7)
    draft = tenure.content_file(7)
    write_all(draft.fd, b"draft", 0)
    found = disk.recover_one(LATER_BOOT)
    assert found.is_whole
    assert [torn.path.read_bytes() for torn in found.torn] == [b"draft"]
    assert contents(found) == [(0, b"content")]


def test_closed_fragment_whose_record_was_not_synced_stays(disk):
    tenure = disk.begin()
    file = put(tenure, b"content")
    tenure.record(0, state_of(7, 7))
    tenure.record(0, state_of(7, 7))
    tenure.path(file.ordinal, "sealed").write_bytes(b"")
    found = disk.recover_one(LATER_BOOT)
    assert not found.is_whole
    assert [torn.path.read_bytes() for torn in found.torn] == [b"content"]


def test_fragment_whose_sealed_file_is_lost_can_be_closed(disk):
    """The file was made ahead, so that there is room for it."""
    tenure = disk.begin()
    file = put(tenure, b"content", registers=LONG)
    tenure.path(file.ordinal, "sealed").unlink()
    found = disk.recover_one()
    found.tenure.record(0, state_of(7, 7, SHORT))
    put(found.tenure, b"more", 7)
    found = disk.recover_one()
    assert found.is_whole
    assert contents(found) == [(0, b"content"), (7, b"more")]
    assert found.fragments[0].state.registers == LONG


# ----------------------------------------------------------------------------------- set aside
def test_content_below_an_offset_has_its_own_sum(disk):
    tenure = disk.begin()
    put(tenure, b"content", 5)
    found = disk.recover_one()
    (whole,) = found.fragments
    part = whole.below(9)
    fragment = part.fragment("a/journal")
    assert (fragment.begin, fragment.end, fragment.sum) == (5, 9, sha1(b"cont"))
    assert whole.fragment("a/journal").sum == sha1(b"content")
    found.tenure.record(0, state_of(12, 12))
    found.release()
    finish_closing()
    assert os.pread(part.file.fd, 4, 0) == b"cont"
    assert found.tenure.files == 1
    part.file.release()
    finish_closing()
    assert found.tenure.files == 0


def test_setting_aside_changes_no_byte(disk):
    tenure = disk.begin()
    file = put(tenure, b"content", 5, registers=SHORT)
    found = disk.recover_one()
    path = tenure.path(file.ordinal, "content")
    told = set_aside(disk.path, found, path, begin=5, end=12, why="for a test")
    again = set_aside(disk.path, found, path, begin=5, end=12, why="for a test")
    assert told == again == disk.path / SET_ASIDE / f"{tenure.id}.1.json"
    told.unlink()  # as if the process had ended before it was written
    assert set_aside(disk.path, found, path, begin=5, end=12, why="for a test") == told
    assert json.loads(told.read_text()) == {
        "journal": "a/journal",
        "create_revision": 7,
        "begin": 5,
        "end": 12,
        "registers": [["short", "z"]],
        "broker": "zone#one",
        "tenure": tenure.id,
        "why": "for a test",
    }
    spool = Spool.recovered(
        "a/journal", found.fragments[0].file, *_state_and_sha(found), directory=disk.path
    )
    found.fragments = []
    os.pwrite(spool.file.fd, b" and more", 7)
    completed = spool.complete()
    completed.close()
    found.tenure.record(0, state_of(12, 12, SHORT))
    finish_closing()
    assert not path.exists()
    aside = disk.path / SET_ASIDE / path.name
    assert aside.read_bytes() == b"content and more"
    assert set_aside(disk.path, found, path, begin=5, end=12, why="it is gone here") == told
    assert aside.read_bytes() == b"content and more"


# ------------------------------------------------------------------------------ killed for real
CHILD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import recover
from gazette_platform.protocol import LabelSet

spool_dir, seed = Path(sys.argv[1]), int(sys.argv[2])
owner = Owner("1f/gazette", "zone#child", boot_id())
homes = free_homes(spool_dir, owner)
if homes:
    (found,) = recover(homes[0])
    homes[0].own(owner)
    tenure, at, registers = found.tenure, found.end, found.registers
else:
    tenure, at, registers = SpoolHome.make(spool_dir, owner).tenure("a/journal", 7), 0, LabelSet()
now = datetime(2026, 1, 2, tzinfo=UTC)
kept = []


def begin():
    spool = Spool("a/journal", directory=spool_dir, begin=at, registers=registers, tenure=tenure)
    spool.note(tenure, at, registers, now, is_durable=False)
    return spool


spool = begin()
while True:
    seed += 1
    if seed % 7 == 0:
        old, spool = spool, begin()
        kept.append(old)
    end = spool.write([bytes([at % 251]) * (1 + seed % 40)], at)
    if seed % 5 == 0:
        registers = LabelSet.of(("seed", str(seed) * (1 + seed % 3 * 300)))
    spool.note(tenure, end, registers, now, is_durable=False)
    if seed % 11 == 0:
        # Refused: it is taken back, and another one comes in its place.
        spool.note(tenure, at, spool.registers, now, is_durable=False)
        registers = spool.registers
        continue
    spool.commit(end, registers=registers, now=now)
    sys.stdout.write(f"{at} {end} {seed} {at % 251}\\n")
    sys.stdout.flush()
    at = end
"""


def test_killed_process_leaves_all_that_it_said(tmp_path):
    """Several in a row; each goes on where the one before was killed."""
    rng = random.Random(1)
    content, said_end = {}, 0
    for generation in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(generation * 1000)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(rng.randint(1, 60)):
            line = process.stdout.readline()
        process.kill()
        lines = [line, *process.stdout.read().splitlines()]
        assert process.wait() == -9
        process.stdout.close()
        for one in lines:
            fields = one.split()
            if len(fields) == 4:
                said_end = int(fields[1])
        disk = Disk(tmp_path)
        found = disk.recover_one(boot_id())
        assert found.is_whole
        assert found.end >= said_end
        at = 0
        for begin, data in contents(found):
            assert begin == at
            for offset, value in enumerate(data, begin):
                # What was said of it once does not change.
                assert content.setdefault(offset, value) == value or offset >= said_end
            at = begin + len(data)
        assert at == found.end
        disk.crash()


# ------------------------------------------------------------------------------------ a model
offsets = st.integers(0, 5)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.sampled_from([LabelSet(), SHORT, LONG])),
        st.tuples(st.just("take back"), st.integers(1, 5), st.booleans()),
        st.tuples(st.just("roll"), st.integers(0, 3), st.sampled_from([LabelSet(), SHORT, LONG])),
        st.tuples(st.just("persist"), offsets, st.none()),
        st.tuples(st.just("take over"), st.none(), st.none()),
    ),
    max_size=12,
)


class Model:
    """Does to a tenure what brokers do, and remembers what it has recorded."""

    def __init__(self, path):
        self.path = path
        self.disk = Disk(path)
        self.tenure = self.disk.begin()
        self.open = None
        self.closed = []  # (file, begin, content, registers)
        self.begin, self.content, self.registers = 0, b"", LabelSet()
        self.filler = 0
        self.record()

    def record(self):
        end = self.begin + len(self.content)
        ordinal = self.open.ordinal if self.open is not None else 0
        self.tenure.record(ordinal, state_of(self.begin, end, self.registers))

    def append(self, n, registers):
        self.filler += 1
        if self.open is None:
            self.open = self.tenure.content_file(self.begin)
        data = bytes([self.filler % 256]) * n
        write_all(self.open.fd, data, len(self.content))
        self.content += data
        self.registers = registers
        self.record()

    def take_back(self, n, is_noted):
        self.content = self.content[: max(0, len(self.content) - n)]
        self.record()

    def roll(self, gap, registers):
        end = self.begin + len(self.content)
        closed = (self.open, self.begin, self.content, self.registers)
        self.begin, self.content, self.registers, self.open = end + gap, b"", registers, None
        self.record()
        if closed[2]:
            self.closed.append(closed)
        elif closed[0] is not None:
            closed[0].release()
            finish_closing()

    def persist(self, n):
        if self.closed:
            self.closed.pop(n % len(self.closed))[0].release()
            finish_closing()

    def take_over(self):
        before = self.said()
        found = self.disk.recover_one()
        assert heard(found) == before
        self.tenure = found.tenure
        files = {one.state.begin: one for one in found.fragments}
        self.closed = [
            (files[begin].file, begin, content, registers)
            for _, begin, content, registers in self.closed
        ]
        if self.content:
            self.closed.append((files[self.begin].file, self.begin, self.content, self.registers))
        self.begin += len(self.content)
        self.content, self.open = b"", None
        self.record()

    def said(self):
        """What is to be found."""
        fragments = [(begin, content, registers) for _, begin, content, registers in self.closed]
        if self.content:
            fragments.append((self.begin, self.content, self.registers))
        end = self.begin + len(self.content)
        return end, self.registers, sorted(fragments, key=lambda one: one[0])

    def run(self, operation, n, what):
        match operation:
            case "append":
                self.append(n, what)
            case "take back":
                self.take_back(n, what)
            case "roll":
                self.roll(n, what)
            case "persist":
                self.persist(n)
            case _:
                self.take_over()


def heard(found):
    assert found.is_whole
    assert found.torn == []
    registers = [one.state.registers for one in found.fragments]
    fragments = [(*one, r) for one, r in zip(contents(found), registers, strict=True)]
    return found.end, found.registers, fragments


def found_in(folder, work):
    """What a process finds in a copy of a folder."""
    copy = Path(tempfile.mkdtemp(dir=work))
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    for home in (copy / SPOOLS).iterdir():
        say_made_here(home)
    disk = Disk(copy)
    try:
        return heard(disk.recover_one())
    finally:
        disk.close()
        shutil.rmtree(copy)


def is_whole_in(folder, work):
    copy = Path(tempfile.mkdtemp(dir=work))
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    for home in (copy / SPOOLS).iterdir():
        say_made_here(home)
    disk = Disk(copy)
    try:
        return disk.recover_one().is_whole
    finally:
        disk.close()
        shutil.rmtree(copy)


@settings(max_examples=60)
@given(operations, st.randoms(use_true_random=False))
def test_any_history_is_found_as_it_was_recorded_last(history, rng):
    """If the last record is torn at any byte, that is known."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "spools"
        folder.mkdir()
        model = Model(folder)
        try:
            for operation in history:
                number = model.tenure._number
                model.run(*operation)
                assert found_in(folder, work) == model.said()
                if model.tenure._number == number + 1 and operation[0] in ("append", "take back"):
                    heads = model.tenure.folder / "heads"
                    at = slot_at(number + 1)
                    whole = heads.read_bytes()
                    torn = bytearray(whole)
                    torn[at + rng.randrange(len(model.tenure._last))] ^= 1 << rng.randrange(8)
                    heads.write_bytes(torn)
                    assert not is_whole_in(folder, work)
                    heads.write_bytes(whole)
        finally:
            model.disk.crash()
