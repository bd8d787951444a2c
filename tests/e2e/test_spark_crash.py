"""Streams of Spark whose driver is killed under load, again and again: totals in Iceberg and copies in journals are right."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from spark_journals import create, json_lines

from gazette_platform import (
    Client,
    ClientConfig,
    Flags,
    JsonFraming,
    MessageClock,
    build_uuid,
    new_producer_id,
)
from gazette_platform.message import MessageIterator, read_committed
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import block_for, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.etcd,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
]

KILLS = int(os.environ.get("GAZETTE_SPARK_KILLS", "1"))
DRIVER = Path(__file__).resolve().parents[1] / "benches" / "spark_totals.py"
RUN_TIMEOUT_S = 300
IS_STARVED = "Timed out while waiting for the Python worker to connect back"
STARVED_MAX = 4


class Load(threading.Thread):
    """Publishes until it is stopped: within transactions and outside, some of it twice, some of it taken back.

    Attributes:
        committed: the numbers that count.
    """

    def __init__(self, client, journals, seed):
        super().__init__(name="load")
        self.committed = []
        self.error = None
        self._client = client
        self._journals = journals
        self._draw = random.Random(seed)
        self._numbers = iter(range(1 << 40))
        self._ended = threading.Event()
        # Of each journal, for it is the order in a journal that counts.
        self._producers = {name: (new_producer_id(), MessageClock(1 << 60)) for name in journals}

    def run(self):
        try:
            while not self._ended.wait(0.03):
                self._publish(self._draw.choice(self._journals))
        except Exception as err:  # noqa: BLE001  raised by `end`
            self.error = err

    def end(self):
        self._ended.set()
        self.join(60)
        if self.error is not None:
            raise self.error

    def _publish(self, journal):
        producer, clock = self._producers[journal]
        kind = self._draw.random()
        if kind < 0.5:
            content = self._messages(producer, clock, Flags.OUTSIDE_TXN)
            self._client.append(journal, content)
            if kind < 0.1:
                self._client.append(journal, content)
            return
        if kind < 0.6:
            # Its producer dies, and nothing commits it.
            lost = self._messages(new_producer_id(), clock, Flags.CONTINUE_TXN, counts=False)
            self._client.append(journal, lost)
        for _ in range(self._draw.randrange(1, 4)):
            self._client.append(journal, self._messages(producer, clock, Flags.CONTINUE_TXN))
            if self._ended.wait(self._draw.random() * 0.3):
                break
        ack = build_uuid(producer, clock.tick(), Flags.ACK_TXN)
        self._client.append(journal, json_lines({"_meta": {"uuid": str(ack)}}))

    def _messages(self, producer, clock, flags, *, counts=True):
        rows = []
        for _ in range(self._draw.randrange(1, 60)):
            n = next(self._numbers)
            uuid = str(build_uuid(producer, clock.tick(), flags))
            rows.append({"_meta": {"uuid": uuid}, "n": n, "key": n % 7, "text": "x" * 100})
        if counts:
            self.committed += [row["n"] for row in rows]
        return json_lines(*rows)


@contextmanager
def driver(settings, log, *, last=False):
    """A driver, which is killed at the end, with its JVM and all its workers."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, DRIVER, json.dumps(settings | {"last": last})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in of_session(process.pid):
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        wait_until(lambda: not of_session(process.pid), timeout_s=30)


def of_session(leader):
    """Processes of the session that a process leads, which are not dead yet."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if session == str(leader) and state != "Z":
            found.append(int(path.parent.name))
    return found


def commits(folder):
    return len([p for p in folder.glob("checkpoints/*/commits/*") if p.name.isdigit()])


def await_commits(process, folder, count, log):
    """Wait for batches. Returns: False: the driver has ended by itself, as Spark gives processes of Python ten seconds."""
    wait_until(
        lambda: commits(folder) >= count or process.poll() is not None, timeout_s=RUN_TIMEOUT_S
    )
    if commits(folder) < count:
        assert IS_STARVED in log.read_text()[-20_000:], log.read_text()[-4000:]
        return False
    return True


def test_totals_are_right_though_the_driver_is_killed_under_load(etcd_server, tmp_path):
    seed = int(os.environ.get("SEED", "7"))
    draw = random.Random(seed)
    folder, log = tmp_path / "spark", tmp_path / "driver.log"
    with (
        BrokerServer(
            tmp_path / "broker", etcd=etcd_server.endpoint, prefix="/test-crash", lease_s=60.0
        ) as broker,
        Client(ClientConfig(address=broker.address, file_root=broker.fragments)) as client,
    ):
        sources = create(client, "source", "a", "b", "c")
        copies = create(client, "copies", "a", "b")
        [staging] = create(client, "staging", "x", content_type="")
        settings = {
            "broker": broker.address,
            "folder": str(folder),
            "source": "source/",
            "copies": "copies/",
            "staging": staging,
        }
        load = Load(client, sources, seed)
        load.start()
        try:
            kills = starts = 0
            while kills < KILLS:
                starts += 1
                assert starts <= KILLS + STARVED_MAX
                with driver(settings, log) as process:
                    if await_commits(process, folder, commits(folder) + draw.randrange(1, 4), log):
                        kills += 1
                        block_for(draw.random() * 0.7)
                print(f"kill {kills}: {commits(folder)} batches, {len(load.committed)} messages")
        finally:
            load.end()
        check_totals(totals(settings, log), load.committed)
        check_copies(client, copies, load.committed)
        print(
            f"ok seed={seed} kills={KILLS} batches={commits(folder)} messages={len(load.committed)}"
        )


def totals(settings, log):
    """What a driver prints that reads all there is."""
    for _ in range(STARVED_MAX):
        with driver(settings, log, last=True) as process:
            told, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        if process.returncode == 0:
            return json.loads(told)
        assert IS_STARVED in log.read_text()[-20_000:], log.read_text()[-4000:]
    raise AssertionError("no driver had a process of Python in time")


def check_totals(rows, committed):
    by_key = defaultdict(list)
    for n in committed:
        by_key[n % 7].append(n)
    assert rows == [[key, len(listed), sum(listed)] for key, listed in sorted(by_key.items())]


def check_copies(client, journals, committed):
    """Each message is in one of the journals, as its bytes are, and as those who read committed ones see it."""
    raw, seen = Counter(), Counter()
    for journal in journals:
        with client.read(journal) as reader:
            content = b"".join(map(bytes, reader))
        raw.update(json.loads(line)["n"] for line in content.splitlines())
        reading = read_committed(
            client.asynchronous, journal, framing=JsonFraming(uuid_field="_meta.uuid")
        )
        with MessageIterator(client, client.run(reading)) as batches:
            seen.update(envelope.message["n"] for batch in batches for envelope in batch)
    assert raw == Counter(committed)
    assert seen == raw
