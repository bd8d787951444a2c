"""The nemesis undoes what it does, and the watchdog sees who was late."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.chaos.nemesis import Nemesis
from gazette_platform.testing.chaos.plan import Fault, FaultKind
from gazette_platform.testing.chaos.watchdog import Watchdog
from gazette_platform.testing.waiting import eventually

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


@pytest.fixture
def nemesis(cluster, etcd, said, settled):
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
        settle=settle,
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


async def test_all_are_killed_at_once_and_started_in_any_order(nemesis, cluster, settled):
    await nemesis.run([Fault(0.0, FaultKind.KILL_ALL, (), 0.3)])
    killed, *started = cluster.done
    assert killed == "kill broker-1 broker-2 broker-3"
    assert sorted(started) == [f"start {name}" for name in cluster.names]
    orders = [started]
    for number in range(5):
        cluster.done.clear()
        await nemesis.run([Fault(number / 10, FaultKind.KILL_ALL, (), 0.1)])
        orders.append(cluster.done[1:])
    assert len({*map(tuple, orders)}) > 1
    assert settled == [(False, [])] * 6


async def test_spools_are_lost_while_all_are_down(nemesis, cluster, settled):
    kept, lost = ((cluster.brokers[name].spool / "spools") for name in ("broker-1", "broker-2"))
    for spools in (kept, lost):
        spools.mkdir()
        (spools / "content").touch()
    (lost.parent / "temporary").touch()
    there_at_start = []

    async def start_again(names, *, timeout_s):
        there_at_start.append((*kept.parent.rglob("*"), *lost.parent.rglob("*")))
        await FakeCluster.start_again(cluster, names, timeout_s=timeout_s)

    cluster.start_again = start_again
    await nemesis.run([Fault(0.0, FaultKind.SPOOL_LOST, ("broker-2",), 0.1)])
    assert there_at_start == [(kept, kept / "content")] * 3
    # What only the lost ones had was stored before. Of whom it is that spools are lost is told.
    assert settled == [(True, []), (False, ["broker-2"])]
    await nemesis.run([Fault(0.0, FaultKind.KILL, ("broker-2",), 0.02)])
    assert settled[2:] == [(False, [])]


async def test_spools_are_torn_while_all_are_down(nemesis, cluster, settled, monkeypatch):
    torn = []

    def tear_spools(spool_dir, rng, *, is_deep):
        torn.append((spool_dir.name, is_deep, [b.has_ended for b in cluster.brokers.values()]))
        return []

    monkeypatch.setattr("gazette_platform.testing.chaos.inflict.tear_spools", tear_spools)
    down = [True] * 3
    await nemesis.run([Fault(0.0, FaultKind.SPOOL_TORN, ("broker-2",), 0.1)])
    assert torn == [("broker-1", False, down), ("broker-2", True, down), ("broker-3", False, down)]
    assert settled == [(True, []), (False, [])]
    await nemesis.run([Fault(0.0, FaultKind.SPOOL_TORN, (), 0.1)])
    assert settled[2:] == [(False, [])], "nothing that is recorded was torn"


async def test_one_way_is_silent_in_one_direction(nemesis, cluster):
    await nemesis.run([Fault(0.0, FaultKind.ONE_WAY, ("broker-1",), 0.02)])
    first, last = cluster.done
    assert first in ("black hole to upstream broker-1", "black hole to client broker-1")
    assert last == "heal broker-1"


async def test_resets_come_at_ten_a_second(nemesis, cluster):
    began = time.monotonic()
    await nemesis.run([Fault(0.0, FaultKind.RESET, (), 1.0)])
    assert len(cluster.done) == 10
    assert {what.rsplit(" ", 1)[0] for what in cluster.done} == {"reset one"}
    assert time.monotonic() - began >= 1.0


async def test_last_replica_gets_nothing_before_the_others_are_killed(nemesis, cluster):
    await nemesis.run([Fault(0.0, FaultKind.LAST_REPLICA, ("a/journal",), 0.05)])
    hole, killed, reset, heal, start = cluster.done
    (last,) = {"broker-1", "broker-3"} - set(killed.split())
    assert hole == f"black hole to upstream {last}"
    assert killed.startswith("kill broker-2 ")  # the primary
    assert len(killed.split()) == 3
    # What was under way to it went with those that sent it.
    assert (reset, heal) == (f"reset {last}", f"heal {last}")
    assert start.startswith("start ")


async def test_last_replica_is_left_with_the_spools_of_the_others_or_without(
    nemesis, cluster, settled
):
    """What is on their disks must make no difference to what was acknowledged."""
    for number in range(10):
        for broker in cluster.brokers.values():
            (broker.spool / "content").touch()
        fault = Fault(0.0, FaultKind.LAST_REPLICA, (f"a/journal-{number}",), 0.02)
        await nemesis.run([fault])
        left = {
            name for name in cluster.names if (cluster.brokers[name].spool / "content").exists()
        }
        assert len(left) in (1, 3)
        stored, after = settled[-2:]
        assert stored == (True, [])
        assert after == (False, sorted({*cluster.names} - left))
    assert {len(lost) for _, lost in settled} == {0, 2}


async def test_faults_of_an_episode_overlap(nemesis, cluster, settled):
    faults = [
        Fault(0.0, FaultKind.STORE_CUT, (), 1.0, episode=0),
        Fault(0.1, FaultKind.KILL, ("broker-1",), 0.05, episode=0),
        Fault(0.2, FaultKind.KILL, ("broker-2",), 0.05, episode=1),
    ]
    await nemesis.run(faults)
    assert cluster.done == ["kill broker-1", "start broker-1", "kill broker-2", "start broker-2"]
    # Without its store a broker does not start.
    assert cluster.stored == [False, True, True, True]
    assert len(settled) == 2


async def test_store_is_not_cut_while_a_broker_starts(nemesis, cluster):
    starts = []

    async def start_again(names, *, timeout_s):
        for _ in range(20):
            await asyncio.sleep(0.01)
            starts.append((cluster.fragments / "kept").exists())
        await FakeCluster.start_again(cluster, names, timeout_s=timeout_s)

    cluster.start_again = start_again
    faults = [
        Fault(0.0, FaultKind.KILL, ("broker-1",), 0.05),
        Fault(0.1, FaultKind.STORE_CUT, (), 0.1),
    ]
    await nemesis.run(faults)
    assert starts == [True] * 20
    assert [kind for _, kind in nemesis.begins] == ["kill", "store-cut"]


async def test_who_ends_while_the_cluster_settles_is_started(
    nemesis, cluster, settled, monkeypatch
):
    """A broker may take long to end; nobody looked for it while the others were waited for."""

    async def settle(is_stored, lost):
        settled.append((is_stored, lost))
        if len(settled) == 1:
            cluster.brokers["broker-2"].has_ended = True
            await asyncio.Event().wait()

    monkeypatch.setattr(nemesis, "_settle", settle)
    async with asyncio.timeout(20):
        await nemesis.run([Fault(0.0, FaultKind.PAUSE, ("broker-1",), 0.02)])
    assert cluster.done == ["pause broker-1", "resume broker-1", "start broker-1", "start broker-2"]
    assert len(settled) == 2


async def test_disk_that_cannot_be_filled_is_left_out(nemesis, said):
    await nemesis.run([Fault(0.0, FaultKind.SPOOL_FULL, ("broker-1",), 0.05)])
    assert nemesis.begins == []
    assert set(nemesis.left_out) == {FaultKind.SPOOL_FULL}
    assert said[0].startswith("left out: ")


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


async def test_slow_disk_that_is_cut_short_lets_go_of_the_broker(nemesis, cluster, traceable):
    tasks = TaskGroup("test")
    fault = Fault(0.0, FaultKind.SLOW_DISK, ("broker-1",), 600.0)
    run = tasks.spawn(nemesis.run([fault]))
    await eventually(lambda: tracer_of(traceable))
    await tasks.close()
    assert run.cancelled()
    assert not tracer_of(traceable)


async def test_what_cannot_be_inflicted_here_is_left_out(nemesis, monkeypatch):
    monkeypatch.setattr(nemesis._inflictor, "_problems", {FaultKind.SLOW_DISK: "it may not"})
    await nemesis.run([Fault(0.0, FaultKind.SLOW_DISK, ("broker-1",), 0.05)])
    assert nemesis.begins == []
    assert nemesis.left_out == {FaultKind.SLOW_DISK: "it may not"}


async def test_interrupted_faults_are_mended(nemesis, cluster, etcd):
    for kind in (FaultKind.STORE_CUT, FaultKind.ETCD_RESTART):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await nemesis.run([Fault(0.0, kind, (), 60.0)])
    assert not etcd.pid
    assert not cluster.fragments.is_dir()
    await nemesis.mend()
    assert etcd.pid
    assert (cluster.fragments / "kept").exists()


async def test_broker_that_ends_without_a_fault_is_started_and_told(nemesis, cluster, said):
    cluster.brokers["broker-2"].has_ended = True
    await nemesis.watch_over(0.01)
    assert cluster.done == ["start broker-2"]
    (text,) = nemesis.ended
    assert text.startswith("broker-2 ended by itself")
    assert LEASE_LOST in text


@pytest.mark.parametrize("kind", [FaultKind.PAUSE, FaultKind.PARTITION, FaultKind.ETCD_AWAY])
async def test_broker_whose_lease_was_taken_may_end(nemesis, cluster, said, kind):
    targets = () if kind is FaultKind.ETCD_AWAY else ("broker-1",)
    cluster.resume = lambda name: None  # it takes a moment
    await nemesis.run([Fault(0.0, kind, targets, 0.05)])
    assert "broker-1 ended, as its lease was taken" not in said
    cluster.brokers["broker-1"].has_ended = True
    await nemesis.watch_over(0.01)
    assert "broker-1 ended, as its lease was taken" in said
    assert nemesis.ended == []


@pytest.mark.parametrize(
    "log",
    [
        "",
        "Traceback (most recent call last):\n  File ...\nRuntimeError: what nobody foresaw\n",
        "gazette: error: what it cannot do without is gone\n",
        # That is no end yet: the lease may be renewed after all.
        "2026-01-02 03:04:05,678 WARNING gazette_platform.etcd.lease: lease 7 is not renewed\n",
    ],
)
async def test_broker_that_ends_for_another_reason_is_told_whatever_its_lease(
    nemesis, cluster, log
):
    cluster.brokers["broker-1"].log = log
    await nemesis.run([Fault(0.0, FaultKind.PAUSE, ("broker-1",), 0.05)])
    (text,) = nemesis.ended
    assert text.startswith("broker-1 ended by itself")
    assert "start broker-1" in cluster.done


async def test_broker_that_was_started_again_has_no_reason_left_to_end(nemesis, cluster, said):
    await nemesis.run([Fault(0.0, FaultKind.PAUSE, ("broker-1",), 0.05)])
    assert said.count("broker-1 ended, as its lease was taken") == 1
    cluster.brokers["broker-1"].has_ended = True
    await nemesis.watch_over(0.01)
    (text,) = nemesis.ended
    assert text.startswith("broker-1 ended by itself")


async def test_broker_that_ended_before_it_was_killed_is_told(nemesis, cluster):
    """The fault starts it again, so that nobody would see it later."""
    cluster.brokers["broker-1"].has_ended = True
    await nemesis.run([Fault(0.0, FaultKind.KILL, ("broker-1",), 0.05)])
    (text,) = nemesis.ended
    assert text.startswith("broker-1 ended by itself")


async def test_calm_is_kept_when_mending_takes_long(nemesis, said):
    began = time.monotonic()
    faults = [
        Fault(at, FaultKind.STORE_CUT, (), 0.1, episode=number)
        for number, at in enumerate((0.0, 0.02, 0.1))
    ]
    await nemesis.run(faults)
    begins = [at - began for at, _ in nemesis.begins]
    assert begins[1] >= 0.1
    assert begins[2] - begins[1] >= 0.1


async def test_watchdog_tells_the_machine_from_the_clients():
    async with Watchdog(SystemClock()) as watchdog:
        await asyncio.sleep(0.3)
        time.sleep(0.4)  # noqa: ASYNC251  that is the point
        await asyncio.sleep(0.2)
        assert {stall.who for stall in watchdog.stalls} == {"clients"}
        os.kill(watchdog.pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(watchdog.pid, signal.SIGCONT)
        await eventually(lambda: any(stall.who == "machine" for stall in watchdog.stalls))
    (stall,) = [stall for stall in watchdog.stalls if stall.who == "machine"]
    assert 0.3 < stall.length_s < 5
