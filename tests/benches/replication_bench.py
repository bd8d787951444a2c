"""A primary and its replicas in one process: appender, replicator, pipeline and sessions together."""

from __future__ import annotations

import asyncio
import contextlib
import os

from gazette_platform.broker.api.service import _Session
from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.appender import Appender
from gazette_platform.broker.append.batch import Pending, content_sum
from gazette_platform.broker.replicate.pipeline import (
    decode_request,
)
from gazette_platform.broker.replicate.replicator import Replicator
from gazette_platform.broker.spool.journal_spool import Draft, JournalSpool
from gazette_platform.fragment.index import Index
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.tasks import Interrupt
from gazette_platform.protocol import (
    CompressionCodec,
    EtcdHeader,
    FragmentSpec,
    Header,
    JournalSpec,
    ProcessId,
    Route,
    Status,
)
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import turns

NAME = "a/journal"
OWN, A, B = ProcessId("A", "own-1"), ProcessId("B", "peer-1"), ProcessId("C", "peer-2")
THREE = Route((OWN, A, B), 0, ("http://own", "http://a", "http://b"))
ETCD = EtcdHeader(1, 1, 1, 1)


class Link:
    """Both ends of a stream to one node."""

    is_direct = False
    """Whether messages may be sent without a wait, and taken as they come."""

    def __init__(self):
        self.take = None
        self.is_awaited = False
        self.up, self.down = asyncio.Queue(), asyncio.Queue()
        self.messages = []
        self.is_cut = False

    # The primary's end.
    async def write(self, raw):
        if self.is_cut:
            raise RpcFailed(Code.UNAVAILABLE, "rpc error: cut")
        self.messages.append(decode_request(raw))
        self.up.put_nowait(raw)

    def write_now(self, raw):
        if self.is_cut or not self.is_direct:
            return False
        self.messages.append(decode_request(raw))
        self.up.put_nowait(raw)
        return True

    def listen(self, take):
        self.take = take if self.is_direct else None

    async def read(self):
        self.is_awaited = self.down.empty()
        answer = await self.down.get()
        self.is_awaited = False
        if isinstance(answer, RpcFailed):
            raise answer
        return answer

    async def tenure(self):
        return None

    async def done_writing(self):
        self.up.put_nowait(None)

    def cancel(self):
        self.up.put_nowait(None)

    def cut(self):
        self.is_cut = True
        while not self.up.empty():  # what is on its way is lost
            self.up.get_nowait()
        self.up.put_nowait(None)
        self.down.put_nowait(RpcFailed(Code.UNAVAILABLE, "rpc error: cut"))

    # The replica's end.
    async def next(self):
        return await self.up.get()

    async def send(self, raw):
        if self.is_cut:
            return
        if raw is not None and self.take is not None and self.is_awaited and self.down.empty():
            self.take(raw)
        else:
            self.down.put_nowait(raw)


class Node:
    """What a broker holds of the journal."""

    name = NAME

    def __init__(self, bench, directory, executor):
        self.bench = bench
        self.index = Index(bench.clock)
        self.completed = []
        self.link = None
        self.spool = JournalSpool(
            self,
            executor=executor,
            compressors=executor,
            tasks=bench.tasks,
            clock=bench.clock,
            directory=directory,
        )

    @property
    def spec(self):
        return self.bench.spec

    def on_commit(self, spool, *, appends, length):
        self.index.spool_commit(spool.fragment(), spool.file)

    def on_roll(self, *, is_elsewhere):
        pass

    def on_complete(self, completed):
        self.completed.append(completed)
        self.index.spool_commit(completed.fragment, completed.content)

    def content(self, begin=0):
        """All that readers see from `begin` on."""
        found = b""
        while (result := self.index.lookup(begin)).status is Status.OK:
            fragment = result.fragment
            skip = begin - fragment.begin
            found += os.pread(result.file.fd, fragment.end - begin, skip)
            begin = fragment.end
        return found

    async def serve(self, link):
        raw = await link.next()
        if raw is None:
            return
        first = decode_request(raw)
        async with self.spool.lock:
            session = _Session(link, self.spool, Interrupt(), Header(None, THREE, ETCD))
            with contextlib.suppress(RpcFailed):
                await session.run(first)
        await link.send(None)


class Primary(Node):
    """The node that appends."""

    def __init__(self, bench, directory, executor):
        super().__init__(bench, directory, executor)
        self.route = THREE
        self.etcd_header = ETCD
        self.process_id = OWN
        self.refusal = ""
        self.is_consistent = True
        self.is_released = False
        self.is_ready = True
        self.rollbacks = 0

    def open_stream(self, peer, endpoint):
        node = self.bench.nodes[peer]
        node.link = Link()
        self.bench.tasks.spawn(node.serve(node.link))
        return node.link

    @property
    def revision(self):
        # Another one whenever etcd says something else.
        return abs(hash((self.route, self.is_consistent)))

    def is_claimed(self, holders):
        return self.is_consistent

    def locate(self):
        return Status.OK, True

    replica_counts = (3, 3)

    def on_rollback(self):
        self.rollbacks += 1


class Stream:
    """Content that a test hands over piece by piece."""

    def __init__(self):
        self.pieces = asyncio.Queue()

    async def next(self):
        piece = await self.pieces.get()
        if isinstance(piece, RpcFailed):
            raise piece
        return piece


class Bench:
    def __init__(self, directory, tasks, executor):
        self.tasks = tasks
        self.clock = ManualClock()
        fragment = FragmentSpec(length=1024, codec=CompressionCodec.NONE)
        self.spec = JournalSpec(NAME, 3, fragment=fragment)
        self.make_node = lambda: Node(self, directory, executor)
        self.nodes = {peer: self.make_node() for peer in (A, B)}
        self.primary = Primary(self, directory, executor)
        self.replicator = Replicator(
            self.primary, self.primary.spool, tasks=tasks, clock=self.clock
        )
        self.appender = Appender(
            self.primary,
            spool=self.primary.spool,
            replicator=self.replicator,
            tasks=tasks,
            clock=self.clock,
        )

    def submit(self, content=b"", *, stream=None, **fields):
        done = asyncio.get_running_loop().create_future()
        chunks = [content] if content else []
        pending = Pending(
            machine=fsm.AppendFSM(events.AppendRequest(NAME, **fields)),
            done=done,
            chunks=chunks,
            length=len(content),
            sum=content_sum(chunks),
            stream=stream,
        )
        self.appender.submit(pending)
        return done

    async def append(self, content=b"", **fields):
        outcome = await self.submit(content, **fields)
        assert outcome.status is Status.OK
        return outcome.commit.begin, outcome.commit.end

    def contents(self, begin=0):
        return [node.content(begin) for node in (self.primary, *self.nodes.values())]


class Held:
    """Holds back what one node writes."""

    def __init__(self, monkeypatch, node):
        self.gate = asyncio.Event()
        write, write_at_once = Draft.write, Draft.write_at_once

        def not_at_once(draft, chunks, length):
            is_held = draft.digester is node.spool.digester and not self.gate.is_set()
            return not is_held and write_at_once(draft, chunks, length)

        async def held(draft, chunks, length):
            if draft.digester is node.spool.digester:
                await self.gate.wait()
            await write(draft, chunks, length)

        monkeypatch.setattr(Draft, "write", held)
        monkeypatch.setattr(Draft, "write_at_once", not_at_once)


async def settle(rounds=30):
    await turns(rounds)
