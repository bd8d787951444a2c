"""``python -m benchmarks.bench_allocator``: how fast a leader assigns 10,000 journals.

Ten members of three zones, with this process as the leader, on a real etcd; another process
stands for the primaries of the others. What a broker's event loop would feel is measured as the
longest time that another task was kept from running.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks import figures as results, machine, procfs
from gazette_platform.allocator import Allocator, Announcement, Solver, announce
from gazette_platform.errors import GazetteError
from gazette_platform.etcd import EtcdClient, Lease, Operation, Put
from gazette_platform.keyspace import BrokerState, KeySpace, encode_journal_spec, item_key
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.platform import tools
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
)
from gazette_platform.testing.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["main", "measure_converging", "measure_solving"]

_LATEST = Path(__file__).with_name("results") / "latest.json"
_PREFIX = "/bench/allocator"
_ZONES = 3
_REPLICATION = 3
_TXN_ITEMS = 100
_LEASE_S = 60
_SETTLE_TIMEOUT_S = 120.0
_IDLE_S = 3.0
_TICK_S = 0.001
# What every member could hold, so that limits do not matter.
_LIMIT = 100_000


def _members(count: int) -> list[ProcessId]:
    return [ProcessId(f"zone-{n % _ZONES}", f"member-{n:02}") for n in range(count)]


def _names(count: int) -> list[str]:
    return [f"bench/allocator/part-{n:05}" for n in range(count)]


def _label(members: int, items: int) -> str:
    return f"alloc_{members}x{f'{items // 1000}k' if items >= 1000 else items}_r{_REPLICATION}"


def measure_solving(clock: Clock, *, members: int, items: int) -> Figures:
    """The pure solver: from nothing, again with nothing to do, and after a member left."""
    label = _label(members, items)
    limits = dict.fromkeys(_members(members), _LIMIT)
    solver = Solver()
    longest = 0.0

    def solve() -> float:
        nonlocal longest
        begun = at = clock.monotonic()
        for _ in solver.solve():
            longest = max(longest, clock.monotonic() - at)
            at = clock.monotonic()
        longest = max(longest, clock.monotonic() - at)
        return clock.monotonic() - begun

    begun = clock.monotonic()
    solver.set_limits(limits)
    for name in _names(items):
        solver.set_item(name, _REPLICATION, ())
    solve()
    solve_s = clock.monotonic() - begun
    before = {name: set(solver.desired_of(name)) for name in _names(items)}
    again_s = solve()
    gone = limits.popitem()[0]
    solver.set_limits(limits)
    leave_s = solve()
    moved = sum(len(set(solver.desired_of(name)) - held) for name, held in before.items())
    lost = sum(gone in held for held in before.values())
    return {
        f"{label}_solve_s": solve_s,
        f"{label}_solve_again_s": again_s,
        f"{label}_solve_leave_s": leave_s,
        f"{label}_solve_slice_ms_max": longest * 1e3,
        "alloc_solve_leave_churn_ratio": moved / lost,
    }


class _Settling:
    """Knows, change by change, which journals are not yet as they ought to be."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting = set(state.journals)
        self._leaving: ProcessId | None = None
        self.done = asyncio.Event()

    def expect_to_leave(self, process_id: ProcessId) -> None:
        """From now on no journal may be assigned to this member."""
        self._leaving = process_id
        self._look_at({a.journal for a in self._state.assignments_to(process_id).values()})

    def note(self) -> None:
        """Look at what an update changed."""
        self._look_at(self._state.changes.items)

    def _look_at(self, names: set[str]) -> None:
        state = self._state
        for name in names:
            found = state.assignments_of(name)
            slots = sorted(a.slot for a in found)
            is_settled = slots == list(range(_REPLICATION)) and state.is_consistent(name)
            if is_settled and all(a.process_id != self._leaving for a in found):
                self._waiting.discard(name)
            else:
                self._waiting.add(name)
        if self._waiting:
            self.done.clear()
        else:
            self.done.set()


class _Stalls:
    """The longest time that this task was kept from running, beyond what it asked for.

    Also as CPU time of the event loop's thread: what it is when nothing else uses the cores.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._longest_s = self._longest_cpu_s = 0.0
        self.is_watching = True

    async def watch(self) -> None:
        while self.is_watching:
            asked, used = self._clock.monotonic(), time.thread_time()
            await asyncio.sleep(_TICK_S)
            self._longest_s = max(self._longest_s, self._clock.monotonic() - asked - _TICK_S)
            self._longest_cpu_s = max(self._longest_cpu_s, time.thread_time() - used)

    async def forget(self) -> None:
        """Begin again: what was measured so far, and what the caller did, does not count."""
        await asyncio.sleep(10 * _TICK_S)
        self.take("")

    def take(self, name: str) -> Figures:
        """The figures since the last call."""
        found = {
            f"{name}_stall_ms_max": self._longest_s * 1e3,
            f"{name}_stall_cpu_ms_max": self._longest_cpu_s * 1e3,
        }
        self._longest_s = self._longest_cpu_s = 0.0
        return found


@dataclass(slots=True)
class _Member:
    lease: Lease
    announcement: Announcement


@contextlib.contextmanager
def _primaries(endpoint: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.bench_allocator_primaries", endpoint, _PREFIX]
    # It ends when its input does, that is with us, however we end.
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.communicate()


async def _announce(etcd: EtcdClient, count: int, tasks: TaskGroup) -> dict[ProcessId, _Member]:
    found = {}
    for process_id in _members(count):
        lease = await etcd.grant_lease(_LEASE_S)
        tasks.spawn(lease.keep_alive(), name=process_id.suffix)
        spec = BrokerSpec(process_id, "http://127.0.0.1:8080", journal_limit=_LIMIT)
        found[process_id] = _Member(lease, await announce(etcd, _PREFIX, spec, lease))
    return found


async def _create_items(etcd: EtcdClient, count: int) -> None:
    fragment = FragmentSpec(1 << 28, CompressionCodec.GZIP, refresh_interval_ns=10**11)
    puts: list[Operation] = []
    for name in _names(count):
        value = encode_journal_spec(JournalSpec(name, _REPLICATION, fragment=fragment))
        puts.append(Put(item_key(_PREFIX, name), value))
    for begin in range(0, len(puts), _TXN_ITEMS):
        await etcd.txn([], puts[begin : begin + _TXN_ITEMS])


async def measure_converging(
    endpoint: str, clock: Clock, *, members: int, items: int
) -> AsyncIterator[Figures]:
    """A leader and etcd: all journals new, then nothing to do, a member dies, another leaves."""
    label = _label(members, items)
    tasks = TaskGroup("bench")
    async with EtcdClient([endpoint], request_timeout_s=30) as etcd:
        try:
            cluster = await _announce(etcd, members, tasks)
            await _create_items(etcd, items)
            space = KeySpace(etcd, _PREFIX, BrokerState(_PREFIX))
            await space.load()
            settling, stalls = _Settling(space.state), _Stalls(clock)
            space.observe(settling.note)
            tasks.spawn(space.watch(), name="watch")
            tasks.spawn(stalls.watch(), name="stalls")
            gc.collect()
            gc.freeze()

            async def settle() -> float:
                begun = clock.monotonic()
                async with asyncio.timeout(_SETTLE_TIMEOUT_S):
                    await settling.done.wait()
                return clock.monotonic() - begun

            with _primaries(endpoint):
                leader = Allocator(etcd, space, _members(members)[0])
                tasks.spawn(leader.run(), name="allocator")
                await stalls.forget()
                yield {f"{label}_converge_s": await settle()} | stalls.take(label)
                stalls.is_watching = False  # which is work, too
                before = procfs.cpu_s(os.getpid())
                await asyncio.sleep(_IDLE_S)
                used = procfs.cpu_s(os.getpid()) - before
                yield {"alloc_idle_cpu_percent": 100 * used / _IDLE_S}
                stalls.is_watching = True
                tasks.spawn(stalls.watch(), name="stalls")
                held = _held(space.state)
                dead = _members(members)[-1]
                lost = len(space.state.assignments_to(dead))
                settling.done.clear()
                await stalls.forget()
                await cluster[dead].lease.revoke()
                found = {"alloc_leave_converge_s": await settle()} | stalls.take("alloc_leave")
                yield found | {"alloc_leave_churn_ratio": _moved(space.state, held) / lost}
                held = _held(space.state)
                leaving = _members(members)[-2]
                lost = len(space.state.assignments_to(leaving))
                settling.expect_to_leave(leaving)
                await stalls.forget()
                await cluster[leaving].announcement.set_exiting()
                found = {"alloc_drain_converge_s": await settle()} | stalls.take("alloc_drain")
                yield found | {"alloc_drain_churn_ratio": _moved(space.state, held) / lost}
        finally:
            await tasks.close()


def _held(state: BrokerState) -> dict[str, set[ProcessId]]:
    return {name: {a.process_id for a in state.assignments_of(name)} for name in state.journals}


def _moved(state: BrokerState, before: dict[str, set[ProcessId]]) -> int:
    return sum(len(held - before[name]) for name, held in _held(state).items())


async def _measure(endpoint: str, clock: Clock, *, members: int, items: int) -> Figures:
    found = measure_solving(clock, members=members, items=items)
    _say(found)
    async for more in measure_converging(endpoint, clock, members=members, items=items):
        _say(more)
        found |= more
    return found


def _say(found: Figures) -> None:
    print(
        "  ".join(f"{name} {results.rounded(value)}" for name, value in found.items()), flush=True
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_allocator")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument(
        "--output", type=Path, default=_LATEST, help="result to add to (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="write no result")
    arguments = parser.parse_args()
    if arguments.members < _REPLICATION + 2:
        parser.error(f"--members: at least {_REPLICATION + 2}, because one dies and one leaves")
    return arguments


def main() -> int:
    """Run, and give the exit status."""
    arguments = _arguments()
    clock = SystemClock()
    try:
        binary = tools.etcd()
        with EtcdServer(binary) as etcd:
            found = uvloop.run(
                _measure(etcd.endpoint, clock, members=arguments.members, items=arguments.items)
            )
        if arguments.dry_run:
            return 0
        result = {
            "date": clock.now().isoformat(timespec="seconds"),
            "machine": machine.describe(),
            "versions": machine.versions() | {"etcd": machine.program_version(binary)},
            "figures": {name: results.rounded(value) for name, value in found.items()},
        }
        results.write(arguments.output, results.merged(results.load(arguments.output), result))
        print(f"written: {arguments.output}")
    except GazetteError as err:
        print(f"bench_allocator: {err}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
