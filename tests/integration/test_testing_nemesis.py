"""The nemesis undoes what it does, and the watchdog sees who was late."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from gazette_platform.ops.clock import SystemClock
from gazette_platform.testing.chaos.nemesis import Nemesis
from gazette_platform.testing.chaos.plan import Fault, FaultKind
from gazette_platform.testing.chaos.watchdog import Watchdog
from gazette_platform.testing.local_broker import eventually


class FakeBroker:
    def __init__(self):
        self.has_ended = False


class FakeCluster:
    """Notes what is done to it. Brokers that were paused or cut off end soon after."""

    def __init__(self, folder):
        self.fragments = folder / "fragments"
        self.fragments.mkdir()
        (self.fragments / "kept").touch()
        self.brokers = {f"broker-{number}": FakeBroker() for number in (1, 2)}
        self.done = []
        self.stored = []

    def _note(self, what, *names):
        self.done.append(" ".join([what, *names]))
        self.stored.append((self.fragments / "kept").exists())

    def kill(self, name):
        self._note("kill", name)
        self.brokers[name].has_ended = True

    def pause(self, name):
        self._note("pause", name)

    def resume(self, name):
        self._note("resume", name)
        self.brokers[name].has_ended = True

    def isolate(self, *names):
        self._note("isolate", *names)

    async def heal(self):
        self._note("heal")

    async def drain(self, *names):
        self._note("drain", *names)
        for name in names:
            self.brokers[name].has_ended = True

    async def revive(self, *, timeout_s):
        ended = [name for name, broker in self.brokers.items() if broker.has_ended]
        self._note("revive", *ended)
        for name in ended:
            self.brokers[name].has_ended = False
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
def nemesis(cluster, etcd, said):
    return Nemesis(cluster, etcd, lease_s=0.2, clock=SystemClock(), say=said.append)


@pytest.mark.parametrize(
    ("kind", "targets", "done"),
    [
        (FaultKind.KILL, ["broker-1"], ["kill broker-1", "revive broker-1"]),
        (
            FaultKind.PAUSE,
            ["broker-1"],
            ["pause broker-1", "resume broker-1", "revive broker-1"],
        ),
        (FaultKind.PARTITION, ["broker-2"], ["isolate broker-2", "heal", "revive"]),
        (
            FaultKind.DRAIN_ZONE,
            ["broker-1", "broker-2"],
            ["drain broker-1 broker-2", "revive broker-1 broker-2"],
        ),
        (FaultKind.ETCD_RESTART, [], ["revive"]),
        (FaultKind.STORE_CUT, [], ["revive"]),
    ],
)
async def test_fault_is_inflicted_and_mended(nemesis, cluster, etcd, said, kind, targets, done):
    await nemesis.run([Fault(0.0, kind, tuple(targets), 0.02)])
    assert cluster.done == done
    assert cluster.stored[-1]
    assert etcd.pid
    assert etcd.starts == (kind is FaultKind.ETCD_RESTART)
    assert [kind for _, kind in nemesis.begins] == [kind.value]
    assert said[0].startswith("fault: ")
    assert said[-1].startswith(f"mended: {kind}")


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


async def test_broker_that_ends_between_faults_is_started(nemesis, cluster, said):
    cluster.brokers["broker-2"].has_ended = True
    await nemesis.watch_over(0.01)
    assert cluster.done == ["revive broker-2"]
    assert said == ["ended by itself, and started again: broker-2"]


async def test_calm_is_kept_when_mending_takes_long(nemesis, said):
    began = time.monotonic()
    faults = [Fault(at, FaultKind.STORE_CUT, (), 0.1) for at in (0.0, 0.02, 0.1)]
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
