"""A power failure at any moment of a journal's life: what of its spool is believed, by each mode of fsync.

The disk is of `power_disk`: of all that was not synced it keeps nothing, or whatever chance says.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from power_disk import PowerDisk
from spool_files import put, state_of

from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.spool import head_records
from gazette_platform.broker.spool.digester import Digester
from gazette_platform.broker.spool.disk import finish_closing
from gazette_platform.broker.spool.home import Owner, SpoolHome, free_homes
from gazette_platform.broker.spool.journal_spool import JournalSpool
from gazette_platform.broker.spool.recovery import recover
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.broker.spool.tenure import Tenure
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import LabelSet

pytestmark = pytest.mark.long

NAME = "a/journal"
OWNER = Owner("cluster", "zone#broker", "the boot before")
STEPS = 14
NONE = LabelSet()


@dataclass(frozen=True)
class Told:
    """What is known outside of the broker when the power fails."""

    tenure: str = ""
    content: bytes = b""
    """Acknowledged."""
    registers: LabelSet = NONE
    stored: frozenset[tuple[int, bytes]] = frozenset()
    """Fragments in the store."""
    synced_to: int = 0
    """Where the journal ended when the last round of syncing began which has ended."""


class Journal:
    """A journal with this only broker; each thing it does is one that a broker does."""

    name, spec = NAME, None

    def __init__(self, disk, home, folder, mode, executor, tasks):
        self.disk, self.home, self.executor = disk, home, executor
        self.told = Told()
        self.completed = []
        self.spool = JournalSpool(
            self,
            executor=executor,
            compressors=executor,
            tasks=tasks,
            clock=SystemClock(),
            directory=folder,
            tenure=home.tenure(NAME, 7),
            fsync=mode,
        )

    def tell(self, **changes):
        self.told = self.disk.told = replace(self.told, **changes)

    def on_commit(self, spool, *, appends, length):
        pass

    def on_roll(self, *, is_elsewhere):
        pass

    def on_recovered(self, spool):
        pass

    def on_complete(self, completed):
        self.completed.append(completed)

    async def begin(self):
        self.tell(tenure=await self.spool.begin_tenure())

    async def _kept(self, content, registers):
        draft = self.spool.draft(with_digest=True)
        await draft.write([content], len(content))
        await self.spool.keep(draft, registers)
        return draft

    async def append(self, rng):
        registers = self.spool.registers
        if rng.randrange(3) == 0:
            registers = LabelSet.of(held="x" * rng.choice((10, 400, 1000)), at=str(self.spool.end))
        content = rng.randbytes(rng.choice((10, 600, 5000)))
        self.spool.commit(await self._kept(content, registers), registers)
        self.tell(content=self.told.content + content, registers=registers)

    async def refuse(self, rng):
        """Another has become primary, or replicas have gone: it is kept, and does not count."""
        await self._kept(rng.randbytes(3000), LabelSet.of(refused="yes"))
        self.spool.forget_drafts()

    async def stage(self, rng):
        """Replicas were proposed it, and are gone."""
        for _ in range(rng.randint(1, 2)):
            draft = await self._kept(rng.randbytes(700), self.spool.registers)
            self.spool.stage(draft, self.spool.registers)
            if rng.randrange(4) == 0:
                self.spool.roll(self.spool.end)
        self.spool.drop_staged()

    async def roll(self, rng):
        self.spool.roll(self.spool.end)
        if rng.randrange(2):
            await self.spool.completed()

    async def store(self, _):
        await self.spool.completed()
        for one in self.completed:
            begin, end = one.fragment.begin, one.fragment.end
            self.tell(stored=self.told.stored | {(begin, self.told.content[begin:end])})
            one.close()
        self.completed = []

    async def sync(self, _):
        """As a broker does each second."""
        end = self.spool.spool.end
        await self.spool.sync()
        await self.spool.completed()
        self.home.sync()
        self.tell(synced_to=max(self.told.synced_to, end))


async def live(folder, mode, seed):
    """Snapshots of a journal's life."""
    rng = random.Random(seed)
    spools = folder / "disk"
    spools.mkdir()
    tasks = TaskGroup("test")
    with PowerDisk(spools, told=Told()) as disk, ThreadPoolExecutor(2) as executor:
        home = SpoolHome.make(spools, OWNER)
        home.syncs_names = mode is not FsyncMode.NEVER
        journal = Journal(disk, home, folder, mode, executor, tasks)
        await journal.begin()
        does = [
            journal.append,
            journal.append,
            journal.refuse,
            journal.stage,
            journal.roll,
            journal.store,
        ]
        if mode is FsyncMode.INTERVAL:
            does += [journal.sync, journal.sync]
        for _ in range(STEPS):
            await rng.choice(does)(rng)
        await journal.spool.completed()
        disk.snapshots.append(disk.snapshot("the end"))
        journal.spool.spool.leave_behind()
        for completed in journal.completed:
            completed.content.keep_names()
            completed.close()
        home.close()
        await tasks.close()
    return disk.snapshots


def recovered(target):
    """Tenures that the next process finds, and its homes."""
    homes = free_homes(target, replace(OWNER, boot="this boot"))
    return [found for home in homes for found in recover(home)], homes


def believed(told, tenures):
    """Offset up to which content exists, without a gap; all of it is as it was acknowledged."""
    pieces = sorted(told.stored)
    for found in tenures:
        for one in found.fragments:
            state, path = one.state, found.tenure.path(one.file.ordinal, "content")
            pieces.append((state.begin, path.read_bytes()[: state.end - state.begin]))
    end = 0
    for begin, piece in sorted(pieces):
        known = told.content[begin : begin + len(piece)]
        assert piece[: len(known)] == known, "content that never was"
        if begin <= end:
            end = max(end, begin + len(piece))
    return end


@pytest.mark.parametrize("mode", list(FsyncMode))
@pytest.mark.parametrize("seed", range(4))
async def test_a_power_failure(tmp_path, mode, seed):
    snapshots = await live(tmp_path, mode, seed)
    assert len(snapshots) > 10
    for number, snapshot in enumerate(snapshots):
        for luck in (None, random.Random(number), random.Random(-number)):
            target = tmp_path / "restored"
            # Records that are not synced one by one may be torn together, by a disk that tears blocks.
            snapshot.restore(target, luck, sector=512 if mode is FsyncMode.COMMIT else 4096)
            tenures, homes = recovered(target)
            try:
                check(snapshot.told, tenures, mode)
            except AssertionError as err:
                raise AssertionError(
                    f"{number}: before {snapshot.call} ({luck and number})"
                ) from err
            finally:
                for found in tenures:
                    for fragment in found.fragments:
                        fragment.file.keep_names()
                    found.release()
                for home in homes:
                    home.close()
                shutil.rmtree(target)


def check(told, tenures, mode):
    end = believed(told, tenures)
    if mode is not FsyncMode.COMMIT:
        assert not any(found.is_whole for found in tenures)
        assert end >= told.synced_to
        return
    if not told.tenure:
        return
    [found] = tenures
    assert found.tenure.id == told.tenure
    assert found.is_whole, found.torn
    assert found.end >= len(told.content)
    assert end >= len(told.content)
    if found.end == len(told.content):
        assert found.registers == told.registers


# ------------------------------------------------------------------- what is on disk before what
@pytest.fixture
def disk(tmp_path):
    spools = tmp_path / "disk"
    spools.mkdir()
    with PowerDisk(spools, keeps_snapshots=False) as found:
        yield found


def records_on(disk):
    """The records that are on the disk for sure, by their numbers."""
    [heads] = disk.on_disk("heads")
    records = (
        head_records.decode_record(heads[at : at + head_records.SLOT_BYTES])
        for at in map(head_records.slot_at, (0, 1))
    )
    return {record.number: record.state for record in records if record is not None}


def test_of_two_records_one_is_on_disk_while_the_other_is_written(disk):
    """Else a power failure tears both."""
    home = SpoolHome.make(disk.root, OWNER)
    tenure = home.tenure(NAME, 7)
    for number in range(1, 6):
        tenure.record(0, state_of(number, number, is_durable=True))
        assert number == 1 or number - 1 in records_on(disk)


def test_names_go_once_no_record_on_disk_speaks_of_them(disk, tmp_path):
    """Else the tenure would not be whole, and its journal unavailable, though all of it is stored."""
    home = SpoolHome.make(disk.root, OWNER)
    home.syncs_names = True
    tenure = home.tenure(NAME, 7)
    file = put(tenure, b"content", is_durable=True, synced_to=7)
    os.fdatasync(file.fd)
    tenure.sync()
    tenure.record(0, state_of(7, 7, is_durable=True))
    file.release()
    finish_closing()
    assert not tenure.path(1, "content").exists()
    home.sync_names()
    disk.snapshot().restore(tmp_path / "after")
    [found], _ = recovered(tmp_path / "after")
    assert (found.is_whole, found.end, found.torn) == (True, 7, [])


@pytest.mark.parametrize("ends_between", [False, True])
def test_what_promises_more_is_gone_from_the_disk_once_less_is_promised(disk, ends_between):
    """A broker goes on without fsync where one with fsync ended: neither slot may say that all content exists."""
    home = SpoolHome.make(disk.root, OWNER)
    tenure = home.tenure(NAME, 7)
    for _ in range(2):
        tenure.record(0, state_of(0, 0, is_durable=True))
    tenure.sync()
    assert [state.is_durable for state in records_on(disk).values()] == [True, True]
    for end in (1, 2):
        if end == 1 or ends_between:
            home.close()
            [home] = free_homes(disk.root, OWNER)
            [found] = recover(home)
        found.tenure.record(0, state_of(end, end))
        records = records_on(disk)
        assert not records[max(records)].is_durable
    assert not any(state.is_durable for state in records_on(disk).values())


def test_what_a_former_process_left_to_the_kernel_is_on_disk_once_fsync_is_asked_for(
    disk, tmp_path
):
    home = SpoolHome.make(disk.root, OWNER)
    digest = hashlib.sha1(b"content", usedforsecurity=False).digest()
    file = put(home.tenure(NAME, 7), b"content", digested_to=7, digest=digest)
    file.keep_names()
    home.close()
    [home] = free_homes(disk.root, OWNER)
    home.syncs_names = True
    [found] = recover(home)
    assert found.is_whole
    disk.snapshot().restore(tmp_path / "after")
    [found], _ = recovered(tmp_path / "after")
    [fragment] = found.fragments
    path = found.tenure.path(fragment.file.ordinal, "content")
    assert (fragment.state.end, path.read_bytes()) == (7, b"content")


@pytest.mark.parametrize("is_staged", [False, True])
async def test_what_is_taken_back_is_so_on_disk_before_other_content_takes_its_place(
    disk, tmp_path, tasks, is_staged
):
    """Else a power failure leaves a record that takes a mix of both for content."""
    rng = random.Random(1)
    with ThreadPoolExecutor(2) as executor:
        home = SpoolHome.make(disk.root, OWNER)
        home.syncs_names = True
        journal = Journal(disk, home, tmp_path, FsyncMode.COMMIT, executor, tasks)
        await journal.begin()
        await journal.append(rng)
        await (journal.stage if is_staged else journal.refuse)(rng)
        records = records_on(disk)
        assert records[max(records)].end == len(journal.told.content)
        await journal.spool.close()


async def test_a_fragment_that_closes_while_it_is_synced_stays_closed(
    disk, tmp_path, tasks, monkeypatch
):
    """Else its record would be the last one, and say that the content after it was its own."""
    rng, real, complete = random.Random(1), Spool.sync, Digester.complete
    is_syncing, may_end, may_complete = threading.Event(), threading.Event(), asyncio.Event()

    def slow(spool, to):
        is_syncing.set()
        may_end.wait(20)
        real(spool, to)

    async def complete_late(digester):
        await may_complete.wait()
        return await complete(digester)

    monkeypatch.setattr(Digester, "complete", complete_late)
    with ThreadPoolExecutor(2) as executor:
        home = SpoolHome.make(disk.root, OWNER)
        journal = Journal(disk, home, tmp_path, FsyncMode.INTERVAL, executor, tasks)
        await journal.begin()
        await journal.append(rng)
        monkeypatch.setattr(Spool, "sync", slow)
        syncing = tasks.spawn(journal.spool.sync(), name="sync")
        assert await asyncio.to_thread(is_syncing.wait, 20)
        journal.spool.roll(journal.spool.end)
        await journal.append(rng)
        may_end.set()
        await syncing
        may_complete.set()
        await journal.spool.completed()
        journal.spool.spool.leave_behind()
        for completed in journal.completed:
            completed.content.keep_names()
            completed.close()
        home.close()
    [home] = free_homes(disk.root, OWNER)
    [found] = recover(home)
    assert found.is_whole, found.torn
    assert found.end == believed(journal.told, [found]) == len(journal.told.content)


async def test_content_from_while_nothing_was_kept_is_not_part_of_the_next_tenure(
    disk, tmp_path, tasks
):
    """A broker of Gazette led for a while. The tenure after it names the files of all that it says it has."""
    rng = random.Random(1)
    with ThreadPoolExecutor(2) as executor:
        home = SpoolHome.make(disk.root, OWNER)
        journal = Journal(disk, home, tmp_path, FsyncMode.NEVER, executor, tasks)
        await journal.begin()
        await journal.append(rng)
        journal.spool.renounce()
        await journal.append(rng)
        at = journal.spool.end
        await journal.begin()
        await journal.append(rng)
        await journal.spool.completed()
        journal.spool.spool.leave_behind()
        for completed in journal.completed:
            completed.close()
        home.close()
    [home] = free_homes(disk.root, OWNER)
    [found] = recover(home)
    assert (found.tenure.id, found.is_whole) == (journal.told.tenure, True)
    [one] = found.fragments
    end = len(journal.told.content)
    assert (one.state.begin, one.state.end, found.end) == (at, end, end)


async def test_of_what_was_proposed_and_dropped_no_record_speaks(
    disk, tmp_path, tasks, monkeypatch
):
    """Other content takes its place. The process may end before its files are removed."""
    rng = random.Random(1)
    with ThreadPoolExecutor(2) as executor:
        home = SpoolHome.make(disk.root, OWNER)
        journal = Journal(disk, home, tmp_path, FsyncMode.NEVER, executor, tasks)
        await journal.begin()
        await journal.append(rng)
        spool = journal.spool
        for _ in range(2):
            spool.stage(await journal._kept(rng.randbytes(50), NONE), NONE)
            spool.roll(spool.end)
            spool.stage(await journal._kept(rng.randbytes(50), NONE), NONE)
        monkeypatch.setattr(Tenure, "_unlink", lambda *_: None)
        spool.drop_staged()
        await spool.completed()
        for completed in journal.completed:
            completed.content.keep_names()
            completed.close()
        finish_closing()
        home.close()
    [home] = free_homes(disk.root, OWNER)
    [found] = recover(home)
    assert found.end == len(journal.told.content)
    assert [one.state.end for one in found.fragments] == [found.end]
    assert believed(journal.told, [found]) == found.end


async def test_a_sync_takes_back_nothing_that_was_proposed(disk, tmp_path, tasks):
    """It is acknowledged without another record."""
    rng = random.Random(1)
    with ThreadPoolExecutor(2) as executor:
        home = SpoolHome.make(disk.root, OWNER)
        journal = Journal(disk, home, tmp_path, FsyncMode.INTERVAL, executor, tasks)
        await journal.begin()
        await journal.append(rng)
        spool = journal.spool
        registers = LabelSet.of(of="the proposal")
        spool.stage(await journal._kept(b"proposed", registers), registers)
        await spool.sync()
        spool.settle_all()
        spool.spool.leave_behind()
        home.close()
    [home] = free_homes(disk.root, OWNER)
    [found] = recover(home)
    assert (found.end, found.registers) == (len(journal.told.content) + 8, registers)
