"""A broker's leftovers: spools that processes left, with a store that may be away."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from types import SimpleNamespace

from spool_files import crash_home, put, state_of

from gazette_platform.broker.epochs import EpochRecord, Holder
from gazette_platform.broker.etcd_records import (
    read_record,
    write_record,
)
from gazette_platform.broker.spool import leftovers as leftovers_module
from gazette_platform.broker.spool.disk import finish_closing
from gazette_platform.broker.spool.home import Owner, SpoolHome, free_homes
from gazette_platform.broker.spool.leftovers import Leftovers
from gazette_platform.broker.spool.persister import Persister
from gazette_platform.broker.spool.recovery import SET_ASIDE, OtherHomes, recover
from gazette_platform.fragment.index import FragmentLister
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.protocol import (
    FragmentSpec,
    JournalSpec,
    LabelSet,
    ProcessId,
)
from gazette_platform.stores import ActiveStore, open_store

__all__ = [
    "BOOT",
    "ELSEWHERE",
    "JOURNAL",
    "LATER_BOOT",
    "NOW",
    "OTHER",
    "REGISTERS",
    "REVISION",
    "US",
    "Bench",
    "spec",
]

JOURNAL, REVISION = "a/journal", 7
BOOT, LATER_BOOT = "first", "second"
NOW = "as of now"
US, OTHER = ProcessId("zone", "us"), ProcessId("zone", "other")
ELSEWHERE = Holder("elsewhere", OTHER)
REGISTERS = LabelSet.of(author="us")


def spec(name=JOURNAL, **options):
    return JournalSpec(name, 1, fragment=FragmentSpec(stores=("file:///",)), **options)


class Bench:
    """A broker's leftovers, with a store that may be away."""

    def __init__(self, folder, etcd, prefix, tasks, executor, monkeypatch):
        self._patch = monkeypatch
        self.spools, self.root = folder / "spools", folder / "fragments"
        self.spools.mkdir()
        self.root.mkdir()
        self.etcd, self.prefix = etcd, prefix
        self.items, self.handed, self.aside_count = {}, [], 0
        self.clock = SystemClock()
        self._has_store = asyncio.Event()
        self.store_comes_back()
        self.homes, self.found = [], {}
        store = ActiveStore(open_store("file:///", file_root=self.root), self.clock)
        put_now = store.put

        async def put_later(*args, **options):
            await self._has_store.wait()
            await put_now(*args, **options)

        store.put = put_later
        registry = SimpleNamespace(get=lambda _: store)
        persister = Persister(
            registry=registry,
            lister=FragmentLister(registry),
            spec_of=lambda name, revision: self.items[name].spec if revision == REVISION else None,
            on_persisted=lambda _: None,
            clock=SystemClock(),
            tasks=tasks,
            faults=Faults(),
            executor=executor,
            directory=folder,
        )
        add = persister.add
        persister.add = lambda one: (self.handed.append(one), add(one))
        self._persister, self._executor = persister, executor
        self.leftovers = self._leftovers()

    def _leftovers(self):
        return Leftovers(
            etcd=self.etcd,
            space=SimpleNamespace(state=SimpleNamespace(items=self.items)),
            others=OtherHomes(self.prefix, US),
            prefix=self.prefix,
            persister=self._persister,
            spool_dir=self.spools,
            executor=self._executor,
            clock=self.clock,
            faults=Faults(),
            count=self.count,
        )

    def count(self, number):
        self.aside_count += number

    def store_goes_away(self, *, patience_s=0.1):
        self._has_store.clear()
        self._patch.setattr(leftovers_module, "_STORE_S", patience_s)

    def store_comes_back(self):
        self._has_store.set()
        self._patch.setattr(leftovers_module, "_STORE_S", 30.0)

    def journal(self, name=JOURNAL, revision=REVISION, **options):
        self.items[name] = SimpleNamespace(create_revision=revision, spec=spec(name, **options))

    def find(
        self,
        *contents,
        journal=JOURNAL,
        boot=BOOT,
        harm=None,
        revision=REVISION,
        history="",
        **options,
    ):
        """Take over the tenure of a process that wrote these fragments. Returns: what was found of it."""
        home = SpoolHome.make(self.spools, Owner("cluster", "zone#us", BOOT))
        home.history = history
        tenure, at = home.tenure(journal, revision), 0
        for content in contents:
            file = put(tenure, content, at, LabelSet.of(at=str(at)), **options)
            at += len(content)
            tenure.record(0, state_of(at, at, REGISTERS))
        if options:  # the last one is open: what is recorded of it counts
            tenure.record(file.ordinal, state_of(at - len(content), at, REGISTERS, **options))
        if harm is not None:
            harm(tenure)
        crash_home(home)
        (home,) = free_homes(self.spools, Owner("cluster", "zone#us", boot))
        home.history = NOW
        self.homes.append(home)
        (found,) = recover(home)
        self.leftovers.add(found)
        return found

    def restart(self, boot=BOOT):
        """End the process that took over the only home, and take it over again. Returns: what was found."""
        finish_closing()
        (home,) = self.homes
        crash_home(home)
        (home,) = free_homes(self.spools, Owner("cluster", "zone#us", boot))
        home.history = NOW
        self.homes = [home]
        (found,) = recover(home)
        self.leftovers = self._leftovers()
        self.leftovers.add(found)
        return found

    def find_with_copy(self, first, later, *, name):
        """Take over the home of a process, and a copy that was made of it before its last fragment.

        Returns: the copy, and the original.
        """
        home = SpoolHome.make(self.spools, Owner("cluster", "zone#us", BOOT))
        tenure, end = home.tenure(JOURNAL, REVISION), len(first)
        put(tenure, first, 0)
        tenure.record(0, state_of(end, end, REGISTERS))
        shutil.copytree(home.folder, home.folder.parent / name)
        put(tenure, later, end)
        end += len(later)
        tenure.record(0, state_of(end, end, REGISTERS))
        crash_home(home)
        homes = free_homes(self.spools, Owner("cluster", "zone#us", BOOT))
        self.homes += homes
        found = {one.folder.name: recover(one) for one in homes}
        for (one,) in found.values():
            self.leftovers.add(one)
        (copy,) = found.pop(name)
        ((original,),) = found.values()
        return copy, original

    def find_copied(self, content):
        """Take over the copy of a home whose original is lost. Returns: what was found of it."""
        home = SpoolHome.make(self.spools, Owner("cluster", "zone#us", BOOT))
        tenure, end = home.tenure(JOURNAL, REVISION), len(content)
        put(tenure, content, 0)
        tenure.record(0, state_of(end, end, REGISTERS))
        shutil.copytree(home.folder, home.folder.parent / "copy")
        crash_home(home)
        shutil.rmtree(home.folder)
        (home,) = free_homes(self.spools, Owner("cluster", "zone#us", BOOT))
        self.homes.append(home)
        (found,) = recover(home)
        self.leftovers.add(found)
        return found

    async def say(self, *holders, journal=JOURNAL, **options):
        """Write the epoch record; a tenure that was found is a holder of ours."""
        named = tuple(
            one if isinstance(one, Holder) else Holder(one.tenure.id, US) for one in holders
        )
        record = EpochRecord(REVISION, 3, named, **options)
        _, revision = await read_record(self.etcd, self.prefix, journal)
        assert await write_record(self.etcd, self.prefix, journal, record, revision)
        return record

    async def said(self, journal=JOURNAL):
        record, _ = await read_record(self.etcd, self.prefix, journal)
        return record

    async def take(self, revision=REVISION, *, stored_end=0):
        async def listed():
            return stored_end

        return await self.leftovers.take(JOURNAL, revision, listed)

    async def settle(self, **options):
        await self.leftovers.settle(JOURNAL, **options)
        finish_closing()

    def store(self, content, at=0):
        """Put a fragment into the store, as another broker does."""
        sum_ = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        path = self.root / JOURNAL / f"{at:016x}-{at + len(content):016x}-{sum_}.raw"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    @property
    def stored(self):
        """Begin and content of all fragments in the store."""
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return sorted((int(path.name.split("-")[0], 16), path.read_bytes()) for path in files)

    @property
    def aside(self):
        return sorted(path.read_bytes() for path in (self.spools / SET_ASIDE).glob("*.content"))

    def close(self):
        finish_closing()
        for home in self.homes:
            home.close()
