"""A persister with everything around it, and a store whose faults a test chooses."""

from __future__ import annotations

import asyncio
import hashlib
import os
from datetime import UTC, datetime
from types import SimpleNamespace

from gazette_platform.broker.spool.disk import CompletedSpool, CompressedForm, SpoolFile
from gazette_platform.broker.spool.persister import Persister
from gazette_platform.fragment.index import FragmentLister
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import Faults
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalSpec,
    LabelSet,
)
from gazette_platform.stores import ActiveStore, open_store
from gazette_platform.testing.waiting import eventually, turns

__all__ = ["CONTENT", "JOURNAL", "FaultyStore", "PersisterBench"]

CONTENT = b'{"some": "content"}\n' * 100_000
JOURNAL = "a/journal"


class FaultyStore:
    """A directory whose faults a test chooses."""

    def __init__(self, store):
        self.store = store
        self.url = store.url
        self.faults = []
        self.puts = []
        self.gate = None

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def put(self, path, fd, length, *, content_encoding=""):
        if self.gate is not None:
            await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        self.puts.append((path, length, content_encoding))
        await self.store.put(path, fd, length, content_encoding=content_encoding)


class Registry:
    def __init__(self, root):
        self.root = root
        self.stores = {}
        self.broken = {}

    def get(self, url):
        if url in self.broken:
            raise self.broken[url]
        if url not in self.stores:
            self.stores[url] = FaultyStore(
                ActiveStore(open_store(url, file_root=self.root), ManualClock())
            )
        return self.stores[url]


class PersisterBench:
    """A persister with everything around it."""

    def __init__(self, root, tasks, executor):
        self.root = root / "root"
        self.root.mkdir()
        scratch = root / "scratch"
        scratch.mkdir()
        self.scratch = scratch
        self.clock = ManualClock()
        self.faults = Faults()
        self.registry = Registry(self.root)
        self.specs = {}
        self.persisted = []
        self.was_persisted = asyncio.Event()
        self.waits = []
        self.pauses = []
        self.retries = asyncio.Semaphore(0)
        self.files = []
        self.is_member = True
        self.configure("file:///")
        self.persister = Persister(
            registry=self.registry,
            lister=FragmentLister(self.registry),
            spec_of=lambda journal, _: self.specs.get(journal),
            on_persisted=self.on_persisted,
            clock=self.clock,
            tasks=tasks,
            faults=self.faults,
            executor=executor,
            directory=scratch,
            sleep=self.sleep,
            is_member=lambda: self.is_member,
            rng=SimpleNamespace(uniform=lambda low, high: (low + high) / 2),
        )

    def on_persisted(self, fragment):
        self.persisted.append(fragment)
        self.was_persisted.set()

    async def sleep(self, seconds):
        if "retry" in asyncio.current_task().get_name():
            self.pauses.append(seconds)
            await self.retries.acquire()
            return
        self.waits.append(seconds)
        await turns()

    async def retry(self):
        """Let a pause between tries of a store that failed end, and see it tried."""
        before = len(self.pauses)
        self.retries.release()
        await eventually(
            lambda: len(self.pauses) > before or not self.persister._retried, poll_s=0.001
        )
        await self.settle()

    def configure(self, *stores, postfix="", journal=JOURNAL):
        fragment = FragmentSpec(
            codec=CompressionCodec.GZIP, stores=stores, path_postfix_template=postfix
        )
        self.specs[journal] = JournalSpec(journal, 1, fragment=fragment)

    def spool(
        self, *, codec=CompressionCodec.NONE, is_primary=True, begin=0, content=CONTENT, pre=False
    ):
        file = SpoolFile(self.scratch, begin)
        self.files.append(file)
        os.pwrite(file.fd, content + b"not committed", 0)
        compressed = None
        if pre:
            compressed = CompressedForm(codec, self.scratch)
            self.files.append(compressed.file)
            compressed.step(file.fd, len(content))
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        return CompletedSpool(
            fragment=Fragment(JOURNAL, begin, begin + len(content), digest, codec),
            first_append_time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            registers=LabelSet.of(),
            is_primary=is_primary,
            content=file,
            compressed=compressed,
        )

    @property
    def stored(self):
        return sorted(
            str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()
        )

    def is_closed(self, spool):
        """Whether no owner of its content is left."""
        try:
            os.fstat(spool.content.fd)
            spool.content.hold()
        except (OSError, ValueError):
            return True
        spool.content.release()
        return False

    async def settle(self):
        assert await self.persister.settle(timeout_s=5)
