"""A broker that is asked to leave leaves, whatever hangs: a store, a disk, etcd, or a start."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time

import pytest
from journal_specs import journal_spec

from gazette_platform.broker import serve
from gazette_platform.broker.crash.handover import note_heads
from gazette_platform.broker.spool.spool import Spool
from gazette_platform.client import Change, Client, ClientConfig
from gazette_platform.errors import EtcdError, SetupError
from gazette_platform.keyspace import KeySpace
from gazette_platform.serving.grpc_transport import GrpcServer
from gazette_platform.serving.h2.server import H2Server
from gazette_platform.serving.process import Watchdog
from gazette_platform.testing.local import LocalBrokers, append
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import eventually, patient, wait_until

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"


def spec():
    return journal_spec(JOURNAL, refresh_s=3600)


@pytest.fixture
async def cluster(etcd_server, etcd_prefix, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_GRACE_S", 0.5)
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as brokers:
        yield brokers


async def with_content(cluster, **settings):
    broker = await cluster.start(**{"drain_timeout_s": 0.2, **settings})
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec())
    for content in (b"one ", b"two "):
        await append(stub, JOURNAL, content)
    return broker


def stored(cluster):
    return b"".join(path.read_bytes() for path in sorted(cluster.fragments.rglob("*.raw")))


async def never(*_args, **_settings):
    await asyncio.Event().wait()


@pytest.mark.parametrize("leave", ["drain", "fail"])
async def test_a_store_that_hangs_blocks_nothing_else(cluster, leave):
    broker = await with_content(cluster)
    await eventually(lambda: stored(cluster) == b"one ")
    broker._persister._put = never
    async with asyncio.timeout(patient(10)):
        (left,) = await getattr(broker, leave)()
    assert (left.journal, left.begin, left.end) == (JOURNAL, 4, 8)


@pytest.mark.parametrize("leave", ["drain", "fail"])
async def test_a_disk_that_hangs_blocks_nothing_else(cluster, monkeypatch, leave):
    """Content that could not even be closed is reported as lost, too."""
    broker = await with_content(cluster)
    await eventually(lambda: stored(cluster) == b"one ")
    hangs = threading.Event()
    monkeypatch.setattr(Spool, "complete", lambda _: hangs.wait(30) and None)
    try:
        async with asyncio.timeout(patient(10)):
            (left,) = await getattr(broker, leave)()
    finally:
        hangs.set()
    assert (left.journal, left.begin, left.end) == (JOURNAL, 4, 8)


@pytest.mark.parametrize("step", ["_ask_others", "_note_heads_of_all", "_release"])
async def test_failed_step_loses_no_content(cluster, monkeypatch, step):
    cluster.expect(KeyError)
    broker = await with_content(cluster)

    async def fails(*_args, **_settings):
        raise KeyError("unforeseen")

    if step == "_note_heads_of_all":
        monkeypatch.setattr(serve, note_heads.__name__, fails)
    else:
        monkeypatch.setattr(broker, step, fails)
    assert await broker.drain() == []
    assert stored(cluster) == b"one two "
    assert broker.faults.reported == 1


async def test_second_signal_ends_all_waiting(cluster, tasks):
    broker = await with_content(cluster, drain_timeout_s=None)
    await eventually(lambda: stored(cluster) == b"one ")
    await cluster.start(journal_limit=0)  # without room for the journal: it waits for ever
    broker._persister._put = never
    draining = tasks.spawn(broker.drain(), name="drain")
    await eventually(lambda: broker._departure._limit is not None)
    broker.hurry()
    async with asyncio.timeout(patient(10)):
        (left,) = await draining
    assert (left.journal, left.begin, left.end) == (JOURNAL, 4, 8)


@pytest.mark.parametrize("at", ["load", "serve"])
@pytest.mark.parametrize("is_told", [True, False], ids=["told to leave", "fails"])
async def test_broker_that_fails_to_serve_leaves_no_member(
    cluster, etcd, etcd_prefix, monkeypatch, tasks, at, is_told
):
    """Its peers never saw its port, so that they would not evict it, and it may be assigned journals."""
    gets_on = asyncio.Event()

    async def stops(*_args, **_settings):
        await gets_on.wait()
        raise EtcdError("etcd does not answer")

    for kind in (KeySpace,) if at == "load" else (GrpcServer, H2Server):
        monkeypatch.setattr(kind, "load" if at == "load" else "start", stops)
    starting = tasks.spawn(_begins(cluster, etcd_lease_s=60.0), name="start")
    await eventually(lambda: _keys(etcd, etcd_prefix))
    if is_told:
        starting.cancel()
    gets_on.set()
    await asyncio.wait([starting])
    async with asyncio.timeout(patient(20)):
        assert not await _keys(etcd, etcd_prefix)


async def _begins(cluster, **settings):
    with pytest.raises(EtcdError):
        await cluster.start(**settings)


async def _keys(etcd, prefix):
    return (await etcd.range(f"{prefix}/")).kvs


# -------------------------------------------------------------------------------------- processes
@pytest.fixture
def server(etcd_server, etcd_prefix, tmp_path):
    with BrokerServer(
        tmp_path,
        etcd=etcd_server.endpoint,
        prefix=etcd_prefix,
        flags=["--broker.drain-timeout=1h"],
    ) as broker:
        yield broker


def test_a_second_signal_ends_a_broker_whose_store_is_away(server):
    with Client(ClientConfig(address=server.address)) as client:
        client.apply([Change(spec())])
        client.append(JOURNAL, b"one ")
        shutil.rmtree(server.fragments)
        server.fragments.write_text("in the way of a folder")
        client.append(JOURNAL, b"two ")
    server.terminate()
    # Two signals that are pending at the same time would be one. It failed to store before the first, too.
    wait_until(lambda: "trying again later" in server.log_tail().partition("asked to leave")[2])
    assert not server.has_ended
    server.terminate()
    began = time.monotonic()
    server.wait(timeout_s=30)
    assert time.monotonic() - began < 15
    assert "asked to leave again" in server.log_tail()
    assert (
        "2 fragments were not persisted, and only the spools of this broker have"
        in server.log_tail()
    )
    kept = sorted(path.read_bytes() for path in server.spool.rglob("*.content"))
    assert kept == [b"one ", b"two "]


def test_broker_that_waits_for_etcd_can_leave(tmp_path, etcd_prefix):
    with socket.socket() as silent:  # takes connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        server = BrokerServer(tmp_path, etcd=endpoint, prefix=etcd_prefix)
        starter = threading.Thread(target=_starts_never, args=[server])
        starter.start()
        try:
            silent.settimeout(patient(30))
            held, _ = silent.accept()  # it has asked etcd
            server.terminate()
            began = time.monotonic()
            starter.join(20)
            assert time.monotonic() - began < 15
            held.close()
        finally:
            server.kill()


def _starts_never(server):
    with pytest.raises(SetupError):
        server.start(timeout_s=60)


# --------------------------------------------------------------------------------------- watchdog
def test_the_watchdog_ends_what_does_not_end_by_itself(caplog):
    ended = threading.Event()
    watchdog = Watchdog(lambda _: ended.set())
    watchdog.describe = lambda: "a task and its place"
    watchdog.arm(60.0, "later")
    watchdog.arm(0.05, "it got a second signal")
    watchdog.arm(60.0, "later")
    assert ended.wait(10)
    assert "is ended: it got a second signal" in caplog.text
    assert "what it waits for:\na task and its place" in caplog.text


def test_the_watchdog_ends_what_cannot_even_log():
    """As one whose log is a pipe without a reader."""
    ended, reads = threading.Event(), threading.Event()
    watchdog = Watchdog(lambda _: ended.set())
    watchdog.describe = lambda: reads.wait() and ""
    watchdog.arm(0.05, "it got a second signal")
    try:
        assert ended.wait(20)
    finally:
        reads.set()
