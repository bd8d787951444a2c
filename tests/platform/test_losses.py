"""What README.md promises of brokers that end: three of them, in three zones, started by `gazette up --brokers 3`.

They are a second platform, without a lake: what ends here must not end what other tests ask.
"""

from __future__ import annotations

import gzip
import json
import os
import signal

import pytest
from live_platform import gazette, running_platform

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.waiting import wait_until

WITHOUT = ("--without", "metastore,trino,dagster")
BROKERS = ("broker-1", "broker-2", "broker-3")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    with running_platform(tmp_path_factory.mktemp("three"), "--brokers", "3", *WITHOUT) as found:
        yield found


@pytest.fixture
def brokers(three):
    """A client of all three brokers."""
    with Client(ClientConfig(address=",".join(three.endpoints.brokers))) as client:
        yield client


@pytest.fixture
def journal(request, brokers):
    """Create a journal of the test, with so many replicas. It is removed at the end."""
    made = []

    def create(replication):
        name = f"{request.node.name}/part={len(made)}"
        fragment = FragmentSpec(
            length=1 << 26,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
        )
        brokers.apply([Change(JournalSpec(name, replication, fragment=fragment))])
        made.append(name)
        return name

    yield create
    brokers.apply([Change(None, delete=name, revision=-1) for name in made])
    assert [each.spec.name for each in brokers.list("")] == []


def lines(first, count=200):
    return b"".join(b'{"n": %d}\n' % n for n in range(first, first + count))


def pids(platform):
    """Process ids of the brokers that are ready, by name."""
    state = json.loads(gazette("status", "--root", platform.layout.root, "-o", "json").stdout)
    found = state["components"]
    return {name: found[name]["pid"] for name in BROKERS if found[name]["state"] == "ready"}


def content_of(client, journal):
    """Everything that a journal holds, or nothing while it waits for a broker."""
    try:
        return client.read(journal).read()
    except GazetteError:
        return b""


def test_acknowledged_append_is_at_three_zones(three, brokers, journal):
    name = journal(3)
    content = lines(0)
    brokers.append(name, content)
    route = brokers.get(name).route
    assert {member.zone for member in route.members} == {"zone-a", "zone-b", "zone-c"}
    assert route.primary_id in route.members
    # On the disk of each, at once: that is what the acknowledgement says.
    for broker in BROKERS:
        spools = [path for path in (three.layout.spool / broker).rglob("*") if path.is_file()]
        assert any(content in path.read_bytes() for path in spools), broker


def test_loss_of_one_broker_stops_nothing(three, brokers, journal):
    name = journal(2)
    brokers.append(name, lines(0))
    primary = brokers.get(name).route.primary_id.suffix
    before = pids(three)
    os.kill(before[primary], signal.SIGKILL)
    # The client asks the next broker, and waits until another one is the primary.
    brokers.append(name, lines(200))
    assert content_of(brokers, name) == lines(0, 400)
    wait_until(lambda: len(pids(three)) == 3, timeout_s=60, poll_s=0.5)


def test_sigkill_of_all_brokers_keeps_acknowledged_bytes(three, brokers, journal):
    names = [journal(replication) for replication in (1, 3)]
    expected = lines(0)
    for name in names:
        brokers.append(name, lines(0, 100))
        brokers.flush(f"name={name}")
        brokers.append(name, lines(100, 100))
    for pid in wait_until(lambda: (found := pids(three)) and len(found) == 3 and found).values():
        os.kill(pid, signal.SIGKILL)
    for name in names:
        wait_until(lambda name=name: content_of(brokers, name) == expected, timeout_s=60)
        # Journals go on where they ended.
        assert brokers.append(name, lines(200)).begin == len(expected)
        assert content_of(brokers, name) == lines(0, 400)
    wait_until(lambda: len(pids(three)) == 3, timeout_s=60, poll_s=0.5)


def test_down_loses_nothing_and_up_continues(three, brokers, journal):
    names = [journal(replication) for replication in (1, 3)]
    for name in names:
        brokers.append(name, lines(0))
    done = gazette("down", "--root", three.layout.root)
    assert done.returncode == 0, done.stderr
    # SIGTERM has stored what was in spools only.
    for name in names:
        files = sorted((three.layout.fragments / name).glob("*.gz"))
        assert b"".join(gzip.decompress(path.read_bytes()) for path in files) == lines(0)
    up = gazette("up", "--root", three.layout.root, "--brokers", "3", *WITHOUT, "--detach")
    assert up.returncode == 0, up.stderr
    for name in names:
        assert brokers.append(name, lines(200)).begin == len(lines(0))
        assert content_of(brokers, name) == lines(0, 400)
