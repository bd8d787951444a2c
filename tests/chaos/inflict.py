"""How each fault is inflicted, and undone; among them harm to the files of spools."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from gazette_platform.broker.spool.head_records import (
    BLOCK_BYTES,
    SLOT_BYTES,
    decode_header,
    decode_record,
    slot_at,
)
from gazette_platform.testing.etcd import EtcdTrio
from gazette_platform.testing.fault_proxy import Direction
from gazette_platform.testing.waiting import pass_time
from tests.chaos.disks import SlowDisk
from tests.chaos.plan import Fault, FaultKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from gazette_platform.ops.clock import Clock
    from gazette_platform.testing.cluster import BrokerCluster
    from gazette_platform.testing.etcd import EtcdServer
    from tests.chaos.disks import SmallDisk
    from tests.chaos.idle import IdleJournals

_GARBAGE_BYTES = 5000
# Share of tenures that lose no file.
_KEPT_WHOLE = 1 / 3


def lose_spools(spool_dir: Path) -> None:
    """Delete all that is in a spool directory. Blocks. Raises: OSError."""
    for path in spool_dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def lose_files(spool_dir: Path, rng: random.Random) -> list[str]:
    """Delete a file of about two tenures in three, of a broker that does not run. Blocks.

    Args:
        spool_dir: the broker's.
        rng: says which file; one in two is the record of a fragment that is closed, if there is one.

    Returns: their names. Raises: OSError.
    """
    lost = []
    for home in sorted(spool_dir.glob("spools/*")):
        by_tenure: defaultdict[str, list[Path]] = defaultdict(list)
        for path in sorted(home.glob("*.*.*")):
            by_tenure[path.name.partition(".")[0]].append(path)
        for paths in by_tenure.values():
            if rng.random() < _KEPT_WHOLE:
                continue
            records = [path for path in paths if path.suffix == ".sealed"]
            path = rng.choice(records if records and rng.random() < 0.5 else paths)
            path.unlink()
            lost.append(path.name)
    return lost


def copy_spools(spool_dir: Path, other: Path, rng: random.Random) -> str:
    """Copy the home that a broker uses, which may run, among those of `other`. Blocks.

    Args:
        spool_dir: the broker's.
        other: another broker's, or the same.
        rng: says whether the copy's name comes before all others, or after them.

    Returns: the copy's name; empty: there is nothing to copy. Raises: OSError.
    """
    homes = sorted(spool_dir.glob("spools/*/heads"), key=lambda path: path.stat().st_mtime_ns)
    if not homes:
        return ""
    name = f"{rng.choice(('00', 'zz'))}-copy-{rng.randbytes(4).hex()}"
    shutil.copytree(homes[-1].parent, other / "spools" / name, copy_function=_copy_if_there)
    return name


def _copy_if_there(source: str, target: str) -> None:
    # A broker that runs removes what it has stored.
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


@dataclass(frozen=True, slots=True)
class _Tenure:
    """One journal of a broker, as its spools show it."""

    journal: str
    heads: Path
    block: int
    """Where its block begins in that file."""
    newest: int
    """The slot that counts: 0 or 1."""
    content: Path
    """Of the fragment that is not closed; there need be none."""
    begin: int
    end: int


def tear_spools(spool_dir: Path, rng: random.Random, *, is_deep: bool) -> list[str]:
    """Tear the spools of a broker that does not run. Blocks.

    After what is recorded of open fragments comes garbage, as after a write that was under way.

    Args:
        spool_dir: the broker's.
        rng: says what happens to which journal.
        is_deep: of about three journals in four, tear also what is recorded: cut content off, or
            overwrite a record.

    Returns: what was torn deep, a line each. Raises: OSError.
    """
    done = []
    for tenure in _tenures(spool_dir):
        if tenure.content.exists():
            with tenure.content.open("ab") as file:
                file.write(rng.randbytes(rng.randint(1, _GARBAGE_BYTES)))
        if is_deep and (text := _tear(tenure, rng)):
            done.append(f"{tenure.journal}: {text}")
    return done


def _tear(tenure: _Tenure, rng: random.Random) -> str:
    """Returns: what was done; empty: nothing."""
    match rng.choice(("content", "newer", "older", "nothing")):
        case "content" if tenure.end > tenure.begin and tenure.content.exists():
            kept = rng.randrange(tenure.end - tenure.begin)
            with tenure.content.open("r+b") as file:
                file.truncate(kept)
            return f"{kept} bytes are left of [{tenure.begin}, {tenure.end})"
        case "newer":
            _overwrite(tenure, tenure.newest, rng)
            return f"the record of its end {tenure.end} is torn"
        case "older":
            _overwrite(tenure, 1 - tenure.newest, rng)
            return "the record before the last is torn"
        case _:
            return ""


def _overwrite(tenure: _Tenure, slot: int, rng: random.Random) -> None:
    with tenure.heads.open("r+b") as file:
        file.seek(tenure.block + slot_at(slot))
        file.write(rng.randbytes(SLOT_BYTES))


def _tenures(spool_dir: Path) -> Iterator[_Tenure]:
    """What is recorded, by home and place."""
    for heads in sorted(spool_dir.glob("spools/*/heads")):
        raw = heads.read_bytes()
        for block in range(0, len(raw) - BLOCK_BYTES + 1, BLOCK_BYTES):
            header = decode_header(raw[block : block + BLOCK_BYTES])
            slots = (block + slot_at(number) for number in (0, 1))
            found = [decode_record(raw[at : at + SLOT_BYTES]) for at in slots]
            record = max((one for one in found if one), key=lambda one: one.number, default=None)
            if header is None or record is None:
                continue
            state = record.state
            yield _Tenure(
                journal=header.journal,
                heads=heads,
                block=block,
                newest=found.index(record),
                content=heads.with_name(f"{header.tenure}.{record.ordinal}.content"),
                begin=state.begin,
                end=state.end,
            )


_START_TIMEOUT_S = 60.0
_RESETS_PER_S = 10.0
# A slow broker runs for the first of these times, and stands still for the second, again and again.
_RUN_S, _STALL_S = 0.1, 0.2
# On a slow disk: how much longer a read or write of a file takes, at least and at most; and a sync.
_DISK_DATA_S = (0.02, 0.1)
_DISK_SYNC_S = 0.2
_DELAY_S = 0.15
# Chance that the brokers killed around a last replica also lose their spools.
_LOST_TOO = 0.5
_BYTES_PER_S = 100_000.0
# How often a journal gets a replica more and loses it again: two epochs each.
_AGED_TURNS = 6
# How long brokers append to spools that were copied.
_OUTDATED_S = (0.5, 2.0)


@final
class Inflictor:
    """Inflicts single faults.

    Args:
        cluster: the brokers.
        etcd: of the cluster.
        lease_s: of the brokers.
        disks: as of `Nemesis`.
        problems: as of `Nemesis`.
        replicas_of: as of `Nemesis`.
        stale_primary: as of `Nemesis`.
        idle: as of `Nemesis`.
        coordinator: as of `Nemesis`.
        say: as of `Nemesis`.

    Attributes:
        spans: begin, end and kind of the parts of faults that are faults of their own. What the
            protocol allows while brokers are killed, it allows in that part alone.
        spools_lost: the brokers whose spools were lost, of all faults; may be cleared.
    """

    def __init__(
        self,
        cluster: BrokerCluster,
        etcd: EtcdServer | EtcdTrio,
        *,
        lease_s: float,
        clock: Clock,
        disks: dict[str, SmallDisk],
        problems: Mapping[FaultKind, str],
        replicas_of: Callable[[str], Awaitable[Sequence[str]]],
        stale_primary: Callable[[], Awaitable[None]],
        idle: IdleJournals,
        coordinator: Callable[[random.Random], Awaitable[str]] | None,
        say: Callable[[str], None],
    ) -> None:
        self.spans: list[tuple[float, float, str]] = []
        self._cluster = cluster
        self._etcd = etcd
        self._lease_s = lease_s
        self._clock = clock
        self._idle = idle
        self._coordinator = coordinator
        self._disks = disks
        self._problems = problems
        self._replicas_of = replicas_of
        self._say = say
        self.spools_lost: set[str] = set()
        self._store_is_there = asyncio.Event()
        self._store_is_there.set()
        self._starting = 0
        self._nobody_starts = asyncio.Event()
        self._nobody_starts.set()
        self._ways: dict[FaultKind, Callable[[Fault, random.Random], Awaitable[None]]] = {
            FaultKind.KILL: self._kill,
            FaultKind.KILL_COORDINATOR: self._kill_coordinator,
            FaultKind.KILL_ALL: self._kill_all,
            FaultKind.SPOOL_LOST: self._kill_all,
            FaultKind.SPOOL_TORN: self._kill_all,
            FaultKind.SPOOL_FILE_LOST: self._kill_all,
            FaultKind.SPOOL_COPIED: self._copy_then_kill,
            FaultKind.SPOOL_STRAYED: self._copy_then_kill,
            FaultKind.PAUSE: self._pause,
            FaultKind.PARTITION: self._partition,
            FaultKind.LAST_REPLICA: self._last_replica,
            FaultKind.STALE_PRIMARY: lambda *_: stale_primary(),
            FaultKind.HICCUP: self._pause,
            FaultKind.SLOW_BROKER: self._slow_broker,
            FaultKind.SLOW_DISK: self._slow_disk,
            FaultKind.RESET: self._reset,
            FaultKind.ONE_WAY: self._one_way,
            FaultKind.SLOW_NETWORK: self._slow_network,
            FaultKind.ETCD_RESTART: self._lose_etcd,
            FaultKind.ETCD_AWAY: self._lose_etcd,
            FaultKind.ETCD_LEADER: self._lose_leader,
            FaultKind.STORE_CUT: self._cut,
            FaultKind.STORE_FULL: self._fill,
            FaultKind.SPOOL_FULL: self._fill,
            FaultKind.DRAIN: self._drain,
            FaultKind.DRAIN_ZONE: self._drain,
            FaultKind.RESTART_ALL: self._drain,
            FaultKind.RESTART_KILLED: self._restart_then_kill,
            FaultKind.OLD_LISTING: self._restart_then_kill,
            FaultKind.AGED_HOLDERS: self._age_holders,
        }

    def problem(self, fault: Fault) -> str:
        """Why a fault cannot be inflicted here; empty if it can."""
        if fault.kind is FaultKind.ETCD_LEADER and not isinstance(self._etcd, EtcdTrio):
            return "etcd has one member"
        if fault.kind in (FaultKind.STORE_FULL, FaultKind.SPOOL_FULL, FaultKind.AGED_HOLDERS):
            names = fault.targets or ("",)
            if not all(name in self._disks and self._disks[name].is_mounted for name in names):
                return "a disk of its own takes the right to mount one"
        if fault.kind is FaultKind.KILL_COORDINATOR and self._coordinator is None:
            return "no client of this run is Kafka's"
        return self._problems.get(fault.kind, "")

    async def inflict(self, fault: Fault) -> None:
        """Do it, wait, and undo it. Brokers that it ended are started again, except after a lost lease.

        Raises: SetupError: a broker does not start, or does not end.
        Cancellation: may leave things as they are; `mend` undoes the fault.
        """
        # What the plan leaves open is drawn from the fault itself.
        rng = random.Random(str(fault))
        await self._ways[fault.kind](fault, rng)

    async def mend(self) -> None:
        """Undo whatever was under way, but start no brokers that have ended."""
        for disk in self._disks.values():
            disk.free()
        if not self._etcd.pid:
            await asyncio.to_thread(self._etcd.start)
        self._restore_store()
        for name, broker in self._cluster.brokers.items():
            if not broker.has_ended:
                self._cluster.resume(name)
        await self._cluster.heal()

    # ------------------------------------------------------------------ processes

    async def _kill(self, fault: Fault, rng: random.Random) -> None:
        self._cluster.kill(*fault.targets)
        await pass_time(fault.duration_s)
        await self._start(fault.targets)

    async def _kill_coordinator(self, fault: Fault, rng: random.Random) -> None:
        assert self._coordinator is not None  # else it has a problem
        name = await self._coordinator(rng)
        await self._kill(replace(fault, targets=(name,)), rng)

    async def _kill_all(self, fault: Fault, rng: random.Random) -> None:
        names = self._cluster.names
        self._cluster.kill(*names)
        if fault.kind is FaultKind.SPOOL_LOST:
            await self._lose_spools(fault.targets)
        if fault.kind is FaultKind.SPOOL_FILE_LOST:
            await self._lose_files(fault.targets, rng)
        if fault.kind is FaultKind.SPOOL_TORN:
            await self._tear_spools(fault.targets, rng)
        order = rng.sample(names, len(names))
        # They start in any order, and some very late: none may go on without the brokers that have
        # what was acknowledged.
        instants = sorted(rng.uniform(0, fault.duration_s) for _ in names)
        self._say(
            "started again: "
            + ", ".join(
                f"{name} after {at:.1f} s" for name, at in zip(order, instants, strict=True)
            )
        )

        async def start(name: str, at_s: float) -> None:
            await pass_time(at_s)
            await self._start([name])

        await _all_of(*(start(name, at_s) for name, at_s in zip(order, instants, strict=True)))

    async def _lose_spools(self, names: Sequence[str]) -> None:
        for name in names:
            await asyncio.to_thread(lose_spools, self._cluster.brokers[name].spool)
            self.spools_lost.add(name)

    async def _lose_files(self, names: Sequence[str], rng: random.Random) -> None:
        for name in names:
            spool_dir = self._cluster.brokers[name].spool
            lost = await asyncio.to_thread(lose_files, spool_dir, rng)
            self._say(f"lost of {name}: {' '.join(lost) or 'nothing'}")

    async def _tear_spools(self, deep: Sequence[str], rng: random.Random) -> None:
        for name in self._cluster.names:
            spool_dir = self._cluster.brokers[name].spool
            for text in await asyncio.to_thread(tear_spools, spool_dir, rng, is_deep=name in deep):
                self._say(f"torn of {name}: {text}")

    async def _pause(self, fault: Fault, rng: random.Random) -> None:
        for name in fault.targets:
            if not self._cluster.brokers[name].has_ended:
                self._cluster.pause(name)
        await pass_time(fault.duration_s)
        self._resume(fault.targets)

    async def _slow_broker(self, fault: Fault, rng: random.Random) -> None:
        (name,) = fault.targets
        broker = self._cluster.brokers[name]
        for _ in range(int(fault.duration_s / (_RUN_S + _STALL_S))):
            if broker.has_ended:
                return
            broker.pause()
            await pass_time(_STALL_S)
            self._resume([name])
            await pass_time(_RUN_S)

    async def _slow_disk(self, fault: Fault, rng: random.Random) -> None:
        (name,) = fault.targets
        broker = self._cluster.brokers[name]
        if broker.has_ended:
            return
        data_s = rng.uniform(*_DISK_DATA_S)
        self._say(f"each read or write of a file takes {name} {data_s * 1e3:.0f} ms more")
        async with SlowDisk(broker.pid, data_s=data_s, sync_s=_DISK_SYNC_S):
            await pass_time(fault.duration_s)

    async def _drain(self, fault: Fault, rng: random.Random) -> None:
        names = fault.targets or self._cluster.names
        await self._cluster.drain(
            *[name for name in names if not self._cluster.brokers[name].has_ended]
        )
        await self._start(names)

    async def _copy_then_kill(self, fault: Fault, rng: random.Random) -> None:
        names = self._cluster.names
        shift = rng.randrange(1, len(names)) if fault.kind is FaultKind.SPOOL_STRAYED else 0
        for at, name in enumerate(names):
            onto = names[(at + shift) % len(names)]
            spool, other = (self._cluster.brokers[one].spool for one in (name, onto))
            copy = await asyncio.to_thread(copy_spools, spool, other, rng)
            self._say(f"the spools of {name} are copied to {copy} of {onto}")
        await pass_time(rng.uniform(*_OUTDATED_S))
        await self._part(FaultKind.KILL_ALL, self._kill_all(fault, rng))

    async def _restart_then_kill(self, fault: Fault, rng: random.Random) -> None:
        await self._idle.make()
        await self._part(FaultKind.RESTART_ALL, self._drain(fault, rng))
        if fault.kind is FaultKind.OLD_LISTING:
            await self._idle.apply_old_listing()
        killed = self._part(FaultKind.KILL_ALL, self._kill_all(fault, rng))
        await _all_of(killed, self._idle.contend())

    async def _age_holders(self, fault: Fault, rng: random.Random) -> None:
        """Let the only copy of what a journal had first be in the spools of brokers that are down."""
        idle, disk = self._idle, self._disks[""]
        await idle.make(1)
        await asyncio.to_thread(disk.fill)
        former = await idle.move(2)
        self._say(f"{' and '.join(former)} hold it, and are killed one after another")

        async def kill() -> None:
            for at, name in enumerate(former):
                self._cluster.kill(name)
                await idle.move(2, without=former[: at + 1])

        await self._part(FaultKind.KILL, kill())
        for _ in range(_AGED_TURNS):
            await idle.move(1, without=former)
            await idle.move(2, without=former)
        disk.free()
        await self._start(former)
        await idle.contend()

    async def _part(self, kind: FaultKind, work: Awaitable[None]) -> None:
        began = self._clock.monotonic()
        await work
        self.spans.append((began, self._clock.monotonic(), kind.value))

    async def _start(self, names: Sequence[str]) -> None:
        # A broker does not start without the folder of its store.
        await self._store_is_there.wait()
        self._starting += 1
        self._nobody_starts.clear()
        try:
            ended = [name for name in names if self._cluster.brokers[name].has_ended]
            await self._cluster.start_again(ended, timeout_s=_START_TIMEOUT_S)
        finally:
            self._starting -= 1
            if not self._starting:
                self._nobody_starts.set()

    def _resume(self, names: Sequence[str]) -> None:
        for name in names:
            if not self._cluster.brokers[name].has_ended:
                self._cluster.resume(name)

    async def _heal(self, names: Sequence[str]) -> None:
        for name in names:
            await self._cluster.heal_one(name)

    async def _last_replica(self, fault: Fault, rng: random.Random) -> None:
        """Kill all replicas of a journal but one, which got nothing for a while before.

        So what the primary acknowledged in that time was acknowledged wrongly. If the spools of the
        others are lost, no broker has it; if they are kept, the last replica goes on without it.
        """
        (journal,) = fault.targets
        replicas = await self._replicas_of(journal)
        last = rng.choice(replicas[1:])  # the first one is primary, which sends
        killed = [name for name in replicas if name != last]
        self._say(f"{journal}: {last} gets nothing, then {' '.join(killed)} are killed")
        proxy = self._cluster.proxies[last]
        proxy.black_hole(Direction.TO_UPSTREAM)
        await pass_time(fault.duration_s)
        self._cluster.kill(*killed)
        if rng.random() < _LOST_TOO:
            self._say("with their spools")
            await self._lose_spools(killed)
        # What the killed machines had sent is lost together with them.
        proxy.reset()
        await self._heal([last])
        await pass_time(rng.uniform(0.2, self._lease_s))
        await self._start(killed)

    # ------------------------------------------------------------------ the network

    async def _partition(self, fault: Fault, rng: random.Random) -> None:
        self._cluster.isolate(*fault.targets)
        await pass_time(fault.duration_s)
        await self._heal(fault.targets)

    async def _one_way(self, fault: Fault, rng: random.Random) -> None:
        (name,) = fault.targets
        way = rng.choice([Direction.TO_UPSTREAM, Direction.TO_CLIENT])
        self._say(f"nothing goes {way.value} of {name}")
        for door in self._cluster.doors(name):
            door.black_hole(way)
        await pass_time(fault.duration_s)
        await self._heal(fault.targets)

    async def _slow_network(self, fault: Fault, rng: random.Random) -> None:
        for name in fault.targets:
            for door in self._cluster.doors(name):
                door.delay(_DELAY_S)
                door.limit(_BYTES_PER_S)
        await pass_time(fault.duration_s)
        await self._heal(fault.targets)

    async def _reset(self, fault: Fault, rng: random.Random) -> None:
        for _ in range(int(fault.duration_s * _RESETS_PER_S)):
            rng.choice(self._cluster.doors(rng.choice(self._cluster.names))).reset_one(rng)
            await pass_time(1 / _RESETS_PER_S)

    # ------------------------------------------------------------------ etcd and the store

    async def _lose_etcd(self, fault: Fault, rng: random.Random) -> None:
        self._etcd.kill()
        await pass_time(fault.duration_s)
        await asyncio.to_thread(self._etcd.start)

    async def _lose_leader(self, fault: Fault, rng: random.Random) -> None:
        assert isinstance(self._etcd, EtcdTrio)
        leader = await asyncio.to_thread(self._etcd.leader)
        leader.kill()
        # All brokers, also those that were connected to it, go on with the next leader.
        await asyncio.to_thread(self._etcd.leader)
        await pass_time(fault.duration_s)
        await asyncio.to_thread(self._etcd.start)

    async def _cut(self, fault: Fault, rng: random.Random) -> None:
        await self._nobody_starts.wait()
        self._cut_store()
        await pass_time(fault.duration_s)
        self._restore_store()

    async def _fill(self, fault: Fault, rng: random.Random) -> None:
        disk = self._disks[fault.targets[0] if fault.targets else ""]
        await asyncio.to_thread(disk.fill)
        await pass_time(fault.duration_s)
        disk.free()

    def _cut_store(self) -> None:
        """Put a file where the store's folder is, so that every call fails, even for root."""
        root = self._cluster.fragments
        self._store_is_there.clear()
        root.rename(root.with_name("fragments.cut"))
        root.touch()

    def _restore_store(self) -> None:
        root = self._cluster.fragments
        kept = root.with_name("fragments.cut")
        if kept.exists():
            root.unlink(missing_ok=True)
            kept.rename(root)
        self._store_is_there.set()


async def _all_of(*works: Coroutine[None, None, None]) -> None:
    """Wait until all have ended, then raise the first failure."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            raise outcome
