"""The mirror on an etcd of three members, which lose their leader and their majority."""

from __future__ import annotations

import os
import subprocess

import pytest

from gazette_platform.errors import EtcdError
from gazette_platform.etcd import EtcdClient
from gazette_platform.keyspace import KeySpace
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd


class KeyView:
    """Remembers keys."""

    def __init__(self):
        self.keys: set[str] = set()

    def begin(self):
        pass

    def end(self):
        pass

    def put(self, kv):
        self.keys.add(kv.key.rpartition("/")[2])

    def remove(self, key):
        self.keys.discard(key.rpartition("/")[2])


class EtcdMembers:
    """Three etcd processes of one cluster, on loopback ports."""

    def __init__(self, binary, folder):
        self._binary, self._folder = binary, folder
        ports = list(choose_ports(["c1", "c2", "c3", "p1", "p2", "p3"]).values())
        self.endpoints = [f"http://127.0.0.1:{port}" for port in ports[:3]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *numbers):
        cluster = ",".join(f"m{n}={url}" for n, url in enumerate(self._peers))
        env = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        for n in numbers:
            arguments = [
                f"--name=m{n}",
                f"--data-dir={self._folder / f'm{n}'}",
                f"--listen-client-urls={self.endpoints[n]}",
                f"--advertise-client-urls={self.endpoints[n]}",
                f"--listen-peer-urls={self._peers[n]}",
                f"--initial-advertise-peer-urls={self._peers[n]}",
                f"--initial-cluster={cluster}",
                "--heartbeat-interval=50",
                "--election-timeout=500",
                "--unsafe-no-fsync",
                "--logger=zap",
            ]
            with (self._folder / f"m{n}.log").open("ab") as log:
                self._processes[n] = subprocess.Popen(
                    [self._binary, *arguments], stdout=log, stderr=log, env=env
                )

    def kill(self, *numbers):
        for n in numbers:
            process = self._processes.pop(n)
            process.kill()
            process.wait(10)

    def close(self):
        self.kill(*list(self._processes))


@pytest.fixture
def members(etcd_binary, tmp_path):
    found = EtcdMembers(etcd_binary, tmp_path)
    found.start(0, 1, 2)
    yield found
    found.close()


async def put(client, key):
    """Write, again when the outcome is unknown, as whoever elects a leader takes its time."""

    async def attempt():
        try:
            return await client.put(key, b"")
        except EtcdError as err:
            if not err.retriable:
                raise
            return None

    return await eventually(attempt)


async def test_mirror_goes_on_when_members_of_etcd_die(members, etcd_prefix):
    tasks = TaskGroup("test")
    async with EtcdClient(members.endpoints, request_timeout_s=30):
        pass  # they have found each other
    async with (
        EtcdClient(members.endpoints, request_timeout_s=3) as client,
        EtcdClient(members.endpoints, request_timeout_s=3) as writer,
    ):
        await put(writer, f"{etcd_prefix}/a")
        space = KeySpace(client, etcd_prefix, KeyView())
        await space.load()
        tasks.spawn(space.watch(), name="watch")
        try:
            # The member that is watched dies, whether it is the leader or not.
            watched = members.endpoints.index(client.endpoint)
            members.kill(watched)
            found = await put(writer, f"{etcd_prefix}/b")
            await space.wait_for_revision(found.revision, timeout_s=20)
            assert space.state.keys == {"a", "b"}
            # No majority: the survivor has no leader, and its watch must not stay silent for ever.
            other = (watched + 1) % 3
            members.kill(other)
            with pytest.raises(EtcdError):
                await writer.put(f"{etcd_prefix}/c", b"")
            assert space.state.keys == {"a", "b"}
            members.start(other)
            found = await put(writer, f"{etcd_prefix}/d")
            await space.wait_for_revision(found.revision, timeout_s=20)
            assert "d" in space.state.keys
            assert tasks.failure is None
        finally:
            await tasks.close()
