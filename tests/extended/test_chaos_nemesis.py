"""The nemesis undoes what it does, and the watchdog sees who was late."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path

import pytest

from gazette_platform.ops.clock import SystemClock
from gazette_platform.testing.waiting import block_for, eventually, pass_time
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import Fault, FaultKind
from tests.harness import Watchdog

LEASE_LOST = (
    "gazette: error: unable to keep member lease alive: lease 7 was not renewed within 6 s; "
    "the process was paused; the process has to start again\n"
)
PIDS = itertools.count(1)


class FakeBroker:
    """It ends as one does that has lost its lease, unless its log is another."""

    def __init__(self, spool):
        self.spool = spool
        spool.mkdir(exist_ok=True)
        self.has_ended = False
        self.pid = next(PIDS)
        self.log = LEASE_LOST

    def log_tail(self):
        return "the log of others before it\n" + self.log

    def log_of_run(self):
        return self.log


class FakeProxy:
    def __init__(self, note):
        self._note = note

    def black_hole(self, direction):
        self._note(f"black hole {direction.value}")

    def reset(self):
        self._note("reset")

    def reset_one(self, rng):
        self._note("reset one")

    def delay(self, seconds):
        self._note("delay")

    def limit(self, bytes_per_s):
        self._note("limit")


class FakeCluster:
    """Notes what is done to it. Brokers that were paused for long end soon after."""

    def __init__(self, folder):
        self.fragments = folder / "fragments"
        self.fragments.mkdir()
        (self.fragments / "kept").touch()
        self.names = ("broker-1", "broker-2", "broker-3")
        self._folder = folder
        self.brokers = {name: FakeBroker(folder / name) for name in self.names}
        self.proxies = {
            name: FakeProxy(lambda what, name=name: self._note(what, name)) for name in self.names
        }
        self.done = []
        self.stored = []

    def _note(self, what, *names):
        self.done.append(" ".join([what, *names]))
        self.stored.append((self.fragments / "kept").exists())

    def _forget(self, name):
        self.brokers[name].has_ended = True
        self.brokers[name].pid = 0

    def doors(self, name):
        return (self.proxies[name],)

    def kill(self, *names):
        self._note("kill", *names)
        for name in names:
            self._forget(name)

    def pause(self, name):
        self._note("pause", name)

    def resume(self, name):
        self._note("resume", name)
        self.brokers[name].has_ended = True

    def isolate(self, *names):
        self._note("isolate", *names)

    async def heal(self):
        self._note("heal")

    async def heal_one(self, name):
        self._note("heal", name)

    async def drain(self, *names):
        self._note("drain", *names)
        for name in names:
            self._forget(name)

    async def start_again(self, names, *, timeout_s):
        self._note("start", *names)
        for name in names:
            self.brokers[name] = FakeBroker(self._folder / name)

    async def revive(self, *, timeout_s):
        ended = [name for name, broker in self.brokers.items() if broker.has_ended]
        await self.start_again(ended, timeout_s=timeout_s)
        return ended


class FakeEtcd:
    def __init__(self):
        self.pid = 1
        self.starts = 0

    def kill(self):
        self.pid = 0

    def start(self):
        self.pid = 1
        self.starts += 1


@pytest.fixture
def cluster(tmp_path):
    return FakeCluster(tmp_path)


@pytest.fixture
def etcd():
    return FakeEtcd()


@pytest.fixture
def said():
    return []


@pytest.fixture
def settled():
    return []


class FakeIdle:
    """Notes what is done to journals that only faults use."""

    def __init__(self, note):
        self._note = note

    async def make(self, count=10):
        self._note("make idle")

    async def move(self, replicas, *, without=()):
        self._note(" ".join([f"move to {replicas} without", *without]))
        return ["broker-1", "broker-2"]

    async def apply_old_listing(self):
        self._note("apply old listing")

    async def contend(self):
        self._note("contend")


class FakeDisk:
    """A disk of its own, which can be full."""

    is_mounted = True

    def __init__(self, note):
        self._note = note

    def fill(self):
        self._note("disk full")

    def free(self):
        self._note("disk free")


@pytest.fixture
def disks():
    return {}


@pytest.fixture
def full_disk(cluster, disks):
    disks[""] = FakeDisk(cluster.done.append)


@pytest.fixture
def nemesis(cluster, etcd, said, settled, disks):
    async def replicas_of(journal):
        return ["broker-2", "broker-1", "broker-3"]

    async def stale_primary():
        cluster.done.append("stale primary")

    async def settle(is_stored, lost):
        settled.append((is_stored, lost))

    return Nemesis(
        cluster,
        etcd,
        lease_s=0.2,
        clock=SystemClock(),
        say=said.append,
        replicas_of=replicas_of,
        stale_primary=stale_primary,
        idle=FakeIdle(cluster.done.append),
        settle=settle,
        disks=disks,
    )


@pytest.mark.parametrize(
    ("kind", "targets", "done"),
    [
        (FaultKind.KILL, ["broker-1"], ["kill broker-1", "start broker-1"]),
        (FaultKind.PAUSE, ["broker-1"], ["pause broker-1", "resume broker-1", "start broker-1"]),
        (FaultKind.STALE_PRIMARY, [], ["stale primary"]),
        (FaultKind.PARTITION, ["broker-2"], ["isolate broker-2", "heal broker-2"]),
        (
            FaultKind.SLOW_NETWORK,
            ["broker-2"],
            ["delay broker-2", "limit broker-2", "heal broker-2"],
        ),
        (
            FaultKind.DRAIN_ZONE,
            ["broker-1", "broker-2"],
            ["drain broker-1 broker-2", "start broker-1 broker-2"],
        ),
        (
            FaultKind.RESTART_ALL,
            [],
            ["drain broker-1 broker-2 broker-3", "start broker-1 broker-2 broker-3"],
        ),
        (FaultKind.ETCD_RESTART, [], []),
        (FaultKind.ETCD_AWAY, [], []),
        (FaultKind.STORE_CUT, [], []),
    ],
)
async def test_fault_is_inflicted_and_undone(
    nemesis, cluster, etcd, said, settled, kind, targets, done
):
    await nemesis.run([Fault(0.0, kind, tuple(targets), 0.02)])
    assert cluster.done == done
    assert (cluster.fragments / "kept").exists()
    assert etcd.pid
    assert etcd.starts == (kind in (FaultKind.ETCD_RESTART, FaultKind.ETCD_AWAY))
    assert [kind for _, kind in nemesis.begins] == [kind.value]
    assert said[0].startswith("fault: ")
    assert f"undone: {kind}" in said
    assert said[-1] == "the cluster is whole again"
    assert settled == [(False, [])]
    assert nemesis.ended == []


async def test_holders_are_killed_one_by_one_and_others_go_on_for_long(full_disk, nemesis, cluster):
    await nemesis.run([Fault(0.0, FaultKind.AGED_HOLDERS, (), 0.0)])
    assert cluster.done == [
        *("make idle", "disk full", "move to 2 without"),
        *("kill broker-1", "move to 2 without broker-1"),
        *("kill broker-2", "move to 2 without broker-1 broker-2"),
        *(6 * ["move to 1 without broker-1 broker-2", "move to 2 without broker-1 broker-2"]),
        *("disk free", "start broker-1 broker-2", "contend"),
    ]
    assert [kind for _, _, kind in nemesis.spans] == ["kill", "aged-holders"]


async def test_holders_do_not_age_without_a_disk_that_can_be_full(nemesis, cluster):
    await nemesis.run([Fault(0.0, FaultKind.AGED_HOLDERS, (), 0.0)])
    assert cluster.done == []
    assert "right to mount" in nemesis.left_out[FaultKind.AGED_HOLDERS]


async def test_files_of_spools_are_lost_while_all_are_down(nemesis, cluster, settled):
    for name in cluster.names:
        home = cluster.brokers[name].spool / "spools" / "home"
        home.mkdir(parents=True)
        for number in range(20):
            (home / f"t{number}.1.content").touch()
    await nemesis.run([Fault(0.0, FaultKind.SPOOL_FILE_LOST, ("broker-2",), 0.1)])
    left = [
        len([*(cluster.brokers[name].spool / "spools/home").iterdir()]) for name in cluster.names
    ]
    assert left[0] == left[2] == 20
    assert left[1] < 20
    assert settled == [(True, []), (False, [])], "no head may be reset: others have all of it"


@pytest.mark.parametrize(
    ("kind", "between"),
    [(FaultKind.RESTART_KILLED, []), (FaultKind.OLD_LISTING, ["apply old listing"])],
)
async def test_all_are_killed_after_an_orderly_restart(nemesis, cluster, kind, between):
    await nemesis.run([Fault(0.0, kind, (), 0.02)])
    every = "broker-1 broker-2 broker-3"
    steps = [
        *("make idle", f"drain {every}", f"start {every}"),
        *between,
        *(f"kill {every}", "contend"),
    ]
    assert cluster.done[: len(steps)] == steps
    assert sorted(cluster.done[len(steps) :]) == [f"start broker-{number}" for number in (1, 2, 3)]
    drained, killed, (began, ended, _) = nemesis.spans
    assert [drained[2], killed[2]] == ["restart-all", "kill-all"]
    # What the protocol allows of kills, it allows from the kill on.
    assert began <= drained[1] <= killed[0] <= killed[1] <= ended


async def test_spools_are_torn_while_all_are_down(nemesis, cluster, settled, monkeypatch):
    torn = []

    def tear_spools(spool_dir, rng, *, is_deep):
        torn.append((spool_dir.name, is_deep, [b.has_ended for b in cluster.brokers.values()]))
        return []

    monkeypatch.setattr("tests.chaos.inflict.tear_spools", tear_spools)
    down = [True] * 3
    await nemesis.run([Fault(0.0, FaultKind.SPOOL_TORN, ("broker-2",), 0.1)])
    assert torn == [("broker-1", False, down), ("broker-2", True, down), ("broker-3", False, down)]
    assert settled == [(True, []), (False, [])]
    await nemesis.run([Fault(0.0, FaultKind.SPOOL_TORN, (), 0.1)])
    assert settled[2:] == [(False, [])], "nothing that is recorded was torn"


@pytest.mark.parametrize(
    ("kind", "is_beside"), [(FaultKind.SPOOL_COPIED, True), (FaultKind.SPOOL_STRAYED, False)]
)
async def test_spools_are_copied_while_all_run(
    nemesis, cluster, settled, monkeypatch, kind, is_beside
):
    copied = []

    def copy_spools(spool_dir, other, rng):
        copied.append((spool_dir.name, other.name))
        assert not any(broker.has_ended for broker in cluster.brokers.values())
        return "copy"

    monkeypatch.setattr("tests.chaos.inflict.copy_spools", copy_spools)
    await nemesis.run([Fault(0.0, kind, (), 0.1)])
    assert [name for name, _ in copied] == list(cluster.names)
    assert sorted(other for _, other in copied) == list(cluster.names)
    assert {name == other for name, other in copied} == {is_beside}
    assert cluster.done[0] == "kill broker-1 broker-2 broker-3"
    assert [kind for _, _, kind in nemesis.spans] == ["kill-all", kind.value]
    assert settled == [(False, [])], "no disk is taken"


def tracer_of(pid):
    """Who traces a process: strace does, while its disk is slow."""
    return int(Path(f"/proc/{pid}/status").read_text().split("TracerPid:")[1].split()[0])


@pytest.fixture
async def traceable(cluster):
    """A process in the place of a broker."""
    process = await asyncio.create_subprocess_exec("sleep", "600")
    cluster.brokers["broker-1"].pid = process.pid
    yield process.pid
    process.kill()
    await process.wait()


async def test_disk_of_a_broker_is_slow_for_as_long_as_the_fault(nemesis, cluster, traceable):
    fault = Fault(0.0, FaultKind.SLOW_DISK, ("broker-1",), 0.5)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(nemesis.run([fault]))
        await eventually(lambda: tracer_of(traceable))
    assert not tracer_of(traceable)
    assert cluster.done == []
    assert [kind for _, _, kind in nemesis.spans] == ["slow-disk"]


async def test_broker_that_ends_without_a_fault_is_started_and_reported(nemesis, cluster, said):
    cluster.brokers["broker-2"].has_ended = True
    await nemesis.watch_over(0.01)
    assert cluster.done == ["start broker-2"]
    (text,) = nemesis.ended
    assert text.startswith("broker-2 ended by itself")
    assert LEASE_LOST in text


@pytest.mark.parametrize(
    "log",
    [
        "",
        "Traceback (most recent call last):\n  File ...\nRuntimeError: an unforeseen error\n",
        "gazette: error: what it cannot do without is gone\n",
        # That is not the end yet: the lease may be renewed after all.
        "2026-01-02 03:04:05,678 WARNING gazette_platform.etcd: lease 7 is not renewed\n",
    ],
)
async def test_broker_that_ends_for_another_reason_is_reported(nemesis, cluster, log):
    cluster.brokers["broker-1"].log = log
    await nemesis.run([Fault(0.0, FaultKind.PAUSE, ("broker-1",), 0.05)])
    (text,) = nemesis.ended
    assert text.startswith("broker-1 ended by itself")
    assert "start broker-1" in cluster.done


async def test_watchdog_distinguishes_machine_from_clients():
    async with Watchdog(SystemClock()) as watchdog:
        await pass_time(0.3)
        block_for(0.4)
        await pass_time(0.2)
        assert {stall.who for stall in watchdog.stalls} == {"clients"}
        os.kill(watchdog.pid, signal.SIGSTOP)
        await pass_time(0.5)
        os.kill(watchdog.pid, signal.SIGCONT)
        await eventually(lambda: any(stall.who == "machine" for stall in watchdog.stalls))
    (stall,) = [stall for stall in watchdog.stalls if stall.who == "machine"]
    assert 0.3 < stall.length_s < 5
