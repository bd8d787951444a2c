"""A broker process ends on request, even if its event loop or a thread hangs."""

from __future__ import annotations

import signal
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from gazette_platform.client import Change, Client, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import wait_until

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"
SIGNALS = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1)

# The broker, with a disk that stands still for an append which the event loop writes itself, and less
# patience: a second for each of its limits that is several.
PROGRAM = textwrap.dedent("""
    import os, sys, threading
    from gazette_platform.broker import serve
    from gazette_platform.serving import process
    from gazette_platform.cli import gazette
    from gazette_platform.broker.spool.spool import Spool

    def hang():
        print("stands still", flush=True)
        os.read(os.pipe()[0], 1)

    def write(spool, chunks, at):
        if any(b"stand still" in bytes(chunk) for chunk in chunks):
            hang()
        return written(spool, chunks, at)

    written, Spool.write = Spool.write, write
    serve._GRACE_S = 0.1
    process.HURRIED_S = 1.0
""")
SERVES = "sys.exit(gazette.main())\n"
SERVES_BESIDE_A_THREAD_THAT_HANGS = "threading.Thread(target=hang).start()\n" + SERVES


@pytest.fixture
def start(etcd_server, etcd_prefix, tmp_path):
    servers = []

    def started(drain_timeout, program=SERVES):
        server = BrokerServer(
            tmp_path,
            etcd=etcd_server.endpoint,
            prefix=etcd_prefix,
            flags=[f"--broker.drain-timeout={drain_timeout}"],
            program=(sys.executable, "-c", PROGRAM + program),
        )
        servers.append(server)
        server.start()
        return server

    yield started
    for server in servers:
        server.kill()


def says(server, line):
    def is_so():
        is_over, found = server.has_ended, line in server.log_tail()
        assert found or not is_over, server.log_tail()
        return found

    wait_until(is_so)


def append_and_stand_still(server):
    with Client(ClientConfig(address=server.address)) as client:
        fragment = FragmentSpec(
            length=1 << 20, codec=CompressionCodec.NONE, refresh_interval_ns=10**9
        )
        client.apply([Change(JournalSpec(JOURNAL, 1, fragment=fragment))])
        client.append(JOURNAL, b"one ")

    def stand_still():
        config = ClientConfig(address=server.address, retry_timeout_s=1.0)
        with Client(config) as client, pytest.raises(GazetteError):
            client.append(JOURNAL, b"stand still")

    thread = threading.Thread(target=stand_still)
    thread.start()
    says(server, "stands still")
    return thread


def ends(server, why):
    assert server.wait(timeout_s=20) == 1
    log = server.log_tail()
    assert f"this process does not end by itself and is ended: {why}" in log
    return log


def test_a_second_signal_ends_a_broker_whose_event_loop_hangs_in_a_disk(start):
    server = start("1h")
    appending = append_and_stand_still(server)
    server.terminate()
    says(server, "asked to leave")
    server.terminate()
    log = ends(server, "it got a second signal")
    assert "asked to leave again" in log
    assert "write_at_once" in log  # where it hangs
    appending.join()


def test_the_drain_timeout_ends_a_broker_whose_event_loop_hangs_in_a_disk(start):
    server = start("0.2s")
    appending = append_and_stand_still(server)
    server.terminate()
    ends(server, "--broker.drain-timeout is long over")
    appending.join()


def test_a_thread_that_hangs_holds_no_broker_up_that_has_left(start):
    server = start("1h", SERVES_BESIDE_A_THREAD_THAT_HANGS)
    server.terminate()
    assert ":hang" in ends(server, "a thread of it hangs").replace(" ", ":")


def test_one_thread_of_a_broker_hears_signals(start):
    """Any other that took them would keep them from it, as the main thread does in a disk."""
    server = start("0s")
    hearing = []
    for status in Path(f"/proc/{server.pid}/task").glob("*/status"):
        fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        if int(fields["SigBlk"], 16) & SIGNALS != SIGNALS:
            hearing.append(fields["Name"])
    assert len(hearing) == 1
    assert server.stop() == 0
