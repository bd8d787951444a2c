"""The modules that a small append passes, against the list in ARCHITECTURE.md."""

from __future__ import annotations

import asyncio
import re
import sys
from itertools import product
from pathlib import Path

import pytest

from gazette_platform import broker as broker_package
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalFlag, JournalSpec
from gazette_platform.protocol.content import COMMIT_MARKER, encode_append_content
from gazette_platform.protocol.pb import protocol_pb2 as pb

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

ARCHITECTURE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"
BROKER = str(Path(broker_package.__file__).parent)
JOURNAL = "road/journal"
MODULES_MAX = 14  # six of them keep the bytes
TRACED = 5  # appends: what a timer does meanwhile is not in all of them


def listed():
    """The modules that ARCHITECTURE.md names as those of the short way."""
    text = ARCHITECTURE.read_text().split("**The short way.**", 1)[1]
    names = text.split("its response:", 1)[1].split(".", 1)[0]
    return set(re.findall(r"`([a-z_/]+)`", names))


class Content:
    """The messages of an append that follow its first."""

    def __init__(self):
        self._messages = iter([encode_append_content(b"x" * 100), COMMIT_MARKER])

    async def next(self):
        return next(self._messages, None)

    def take_all(self, _bytes_max):
        return [*self._messages]


class Caller:
    """The caller of an append that is served without a task."""

    def __init__(self):
        self.answered = asyncio.get_running_loop().create_future()
        self.reply = self.answered.set_result
        self.refuse = self.answered.set_exception


async def at_once(service, first):
    """Append without a task."""
    caller = Caller()
    assert service.rpcs["Append"].at_once(first, Content().take_all(1000), {}, caller) is not None
    return await caller.answered


async def with_task(service, first):
    """Append by the handler."""
    return await service.append(first, Content(), {})


async def entered(service, append, min_revision=0):
    """Return modules of the broker whose functions an append called, and etcd's revision."""
    files = set()

    def on_event(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(BROKER):
            files.add(frame.f_code.co_filename)

    request = pb.AppendRequest(journal=JOURNAL, min_etcd_revision=min_revision)
    first = request.SerializeToString()
    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        raw = await append(service, first)
    finally:
        sys.setprofile(before)
    response = pb.AppendResponse.FromString(raw)
    assert (response.status, response.commit.end - response.commit.begin) == (pb.OK, 100)
    modules = {str(Path(name).relative_to(BROKER).with_suffix("")) for name in files}
    return modules, response.header.etcd.revision


async def test_a_small_append_passes_the_modules_that_are_listed(cluster):
    broker = await cluster.start()
    fragment = FragmentSpec(
        length=1 << 30,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=300 * SECOND_NS,
    )
    spec = JournalSpec(JOURNAL, replication=1, fragment=fragment, flags=JournalFlag.O_RDWR)
    await cluster.apply(cluster.stub(broker), spec)
    for _ in range(3):  # the journal is found, synced and ready
        _, revision = await entered(broker.service, with_task)
    # For a minute after it applied specs, a client names the revision that brokers must know.
    for asked, way in product((0, revision), (with_task, at_once)):
        roads = [(await entered(broker.service, way, asked))[0] for _ in range(TRACED)]
        assert set.intersection(*roads) == listed(), f"revision {asked}, {way.__name__}"
    assert len(listed()) <= MODULES_MAX
