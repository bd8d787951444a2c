"""An appender without replicas, whose journal answers as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.appender import Appender
from gazette_platform.broker.append.batch import Pending, content_sum
from gazette_platform.broker.replicate.replicator import Replicator
from gazette_platform.broker.spool.journal_spool import JournalSpool
from gazette_platform.errors import EtcdError
from gazette_platform.fragment.index import Index
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    EtcdHeader,
    FragmentSpec,
    JournalFlag,
    JournalSpec,
    ProcessId,
    Route,
    Status,
)
from gazette_platform.serving.interface import RpcFailed
from gazette_platform.testing.waiting import patient


def spec(*, length=1024, codec=CompressionCodec.NONE, flags=JournalFlag.O_RDWR, flush_s=0):
    fragment = FragmentSpec(length=length, codec=codec, flush_interval_ns=flush_s * SECOND_NS)
    return JournalSpec("a/journal", 1, fragment=fragment, flags=flags)


class FakeJournal:
    """A replica whose every answer a test may choose."""

    name = "a/journal"

    def __init__(self, clock):
        self.clock = clock
        self.spec = spec()
        self.index = Index(clock)
        self.status = Status.OK
        self.is_local = True
        self.revision = 10
        self.is_consistent = True
        self.replicas = (1, 1)
        self.is_ready = True
        self.problem = ""
        self.gate = asyncio.Event()
        self.log = []
        self.commits = []
        self.rollbacks = 0
        self.completed = []
        self.rolls = 0
        self.process_id = ProcessId("A", "own-1")
        self.route = Route((self.process_id,), 0)
        self.etcd_header = EtcdHeader(1, 1, 1, 1)
        self.refusal = ""
        self.is_released = False
        self.goes_on = None  # where the journal begins first, as every claim is answered
        self.released = {}  # registers by the offsets where holders let go

    def open_stream(self, peer, endpoint):
        raise AssertionError(peer)

    def on_roll(self, *, is_elsewhere):
        self.rolls += 1

    def locate(self):
        return self.status, self.is_local

    async def wait_revision(self, revision):
        self.log.append(f"wait {revision}")
        await self.gate.wait()
        self.revision = max(self.revision, revision)

    @property
    def replica_counts(self):
        return self.replicas

    async def claim(self, holders, *, end, is_reset):
        self.log.append("update")
        if not self.gate.is_set():
            raise EtcdError("etcd is away")
        if self.goes_on is not None:
            return self.goes_on
        self.is_consistent = True
        return self.revision

    async def released_registers(self, head):
        return self.released.get(head)

    def is_claimed(self, holders):
        return self.is_consistent

    async def write_suspend(self, suspend):
        self.log.append(f"suspend {suspend.level.name} {suspend.offset}")
        raise EtcdError("etcd is away")

    async def wait_ready(self):
        self.log.append("ready?")
        await self.gate.wait()
        self.is_ready = not self.problem
        return self.problem

    def on_commit(self, spool, *, appends, length):
        self.commits.append((spool.begin, spool.end, appends, length))
        self.index.spool_commit(spool.fragment(), spool.file)

    def on_recovered(self, spool):
        self.index.spool_commit(spool.fragment(), spool.file)

    def on_rollback(self):
        self.rollbacks += 1

    def on_complete(self, completed):
        self.completed.append(completed)
        self.index.spool_commit(completed.fragment, completed.content)


class Stream:
    """Content that a test hands over piece by piece."""

    def __init__(self):
        self.pieces = asyncio.Queue()
        self.asked = 0

    async def next(self):
        self.asked += 1
        piece = await self.pieces.get()
        if isinstance(piece, RpcFailed):
            raise piece
        return piece


class Bench:
    def __init__(self, directory, tasks, executor):
        self.clock = ManualClock()
        self.journal = FakeJournal(self.clock)
        self.tasks = tasks
        self.faults = Faults()
        self.spool = JournalSpool(
            self.journal,
            executor=executor,
            compressors=executor,
            tasks=tasks,
            clock=self.clock,
            directory=directory,
        )
        self.replicator = Replicator(self.journal, self.spool, tasks=tasks, clock=self.clock)
        self.appender = Appender(
            self.journal,
            spool=self.spool,
            replicator=self.replicator,
            tasks=tasks,
            clock=self.clock,
            faults=self.faults,
        )

    def submit(self, content=b"", *, request=None, stream=None, wait_until=0.0, **options):
        chunks = [content] if content else []
        request = request or events.AppendRequest("a/journal", **options)
        pending = Pending(
            machine=fsm.AppendFSM(request, has_content=bool(content)),
            done=asyncio.get_running_loop().create_future(),
            chunks=chunks,
            length=len(content),
            sum=content_sum(chunks),
            stream=stream,
            wait_until=wait_until,
        )
        self.appender.submit(pending)
        return pending.done

    async def append(self, content=b"", **options):
        async with asyncio.timeout(patient(10)):
            return await self.submit(content, **options)

    def read(self):
        """All content, from local files, by the index."""
        content, at = b"", self.journal.index.summary.begin
        while True:
            found = self.journal.index.lookup(at)
            if found.status is not Status.OK:
                return content
            span = found.fragment.content_length
            content += os.pread(found.file.fd, span, 0)
            at += span


@contextlib.asynccontextmanager
async def running_bench(folder):
    tasks = TaskGroup("test")
    with ThreadPoolExecutor(2) as executor:
        made = Bench(folder, tasks, executor)
        yield made
        assert tasks.failure is None
        await tasks.close()
    made.journal.index.close()
    made.appender.spool.discard()
    for completed in made.journal.completed:
        completed.close()


def span(outcome):
    return outcome.status, outcome.commit.begin, outcome.commit.end
