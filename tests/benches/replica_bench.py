"""A replica with everything around it made up, except its spool and appender."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from types import SimpleNamespace

from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.batch import Pending, content_sum
from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.broker.journal.replica import Replica
from gazette_platform.broker.spool.disk import DiskPace
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
    Route,
    Status,
)

JOURNAL = "a/journal"


class Health:
    """A store whose checks a test makes up."""

    url = "file:///"

    def __init__(self):
        self.changed = asyncio.Event()
        self.set(None, checks=1)

    def set(self, error, *, checks, since_s=0.0):
        failures = checks if error else 0
        self.health = SimpleNamespace(
            error=error, checks=checks, failures=failures, since_s=since_s
        )
        self.changed.set()

    async def wait_health_change(self, since):
        while self.health is since:
            self.changed.clear()
            await self.changed.wait()
        return self.health

    def ask_check(self):
        return False


class Bench:
    """A replica with everything around it."""

    def __init__(self, directory, tasks, executor):
        self.spec = None
        self.configure(flush_s=60)
        self.route = Route((ProcessId("A", "own-1"),), 0)
        self.clock = ManualClock()  # at second 5 of a minute
        self.store = Health()
        self.listings = 0
        self.listed = []
        self.list_error = None
        self.persisted = []
        self.state = SimpleNamespace(
            items={},
            is_consistent=lambda _: True,
            assignments_of=lambda _: [None],
            assignment_of=lambda *_: None,
            route_of=lambda _: self.route,
        )
        space = SimpleNamespace(state=self.state, revision=1)
        self.context = SimpleNamespace(
            config=SimpleNamespace(
                max_append_rate=0,
                max_replication=9,
                spool_dir=directory,
                append_wait_s=0.0,
                fsync=FsyncMode.NEVER,
            ),
            clock=self.clock,
            rng=random.Random(1),
            space=space,
            stores=SimpleNamespace(get=lambda _: self.store),
            guard=SimpleNamespace(check=lambda _: None),
            lister=SimpleNamespace(list=self.list),
            persister=SimpleNamespace(
                add=lambda spool, _: self.persisted.append(spool), trust=lambda _: None
            ),
            spools=SpoolHome.make(directory, Owner("c", "a#broker", boot_id())),
            leftovers=SimpleNamespace(has=lambda _: False, add=lambda _: None),
            pace=DiskPace(),
            executor=executor,
            readers=executor,
            compressors=executor,
            tasks=tasks,
            faults=Faults(),
            metrics=BrokerMetrics(),
            refresh_slots=defaultdict(lambda: asyncio.Semaphore(1)),
            pulse_slots=asyncio.Semaphore(1),
            membership=SimpleNamespace(problem=""),
            process_id=self.route.members[0],
            peers=None,
        )
        self.resolver = SimpleNamespace(replicas={}, resolve_now=self.resolve)
        self.apply()
        self.replica = self.make()

    def make(self):
        replica = Replica(JOURNAL, 1, is_primary=True, context=self.context, resolver=self.resolver)
        self.resolver.replicas[JOURNAL] = replica
        replica.is_claimed = lambda _: replica.is_consistent
        return replica

    def configure(self, *, flush_s=0, stores=("file:///",), rate=0):
        self.spec = JournalSpec(
            JOURNAL,
            1,
            fragment=FragmentSpec(
                length=1 << 20,
                codec=CompressionCodec.NONE,
                stores=stores,
                refresh_interval_ns=300 * SECOND_NS,
                flush_interval_ns=flush_s * SECOND_NS,
            ),
            max_append_rate=rate,
        )

    def apply(self):
        self.state.items[JOURNAL] = SimpleNamespace(spec=self.spec, create_revision=1)

    async def list(self, spec):
        self.listings += 1
        if self.list_error is not None:
            raise self.list_error
        return CoverSet(self.listed)

    def resolve(self, journal, *, may_proxy, require_primary):
        return SimpleNamespace(status=Status.OK, is_local=True, spec=self.spec)

    async def append(self, content, **options):
        pending = Pending(
            machine=fsm.AppendFSM(events.AppendRequest(JOURNAL, **options)),
            done=asyncio.get_running_loop().create_future(),
            chunks=[content],
            length=len(content),
            sum=content_sum([content]),
        )
        self.replica.appender.submit(pending)
        async with asyncio.timeout(10):
            return await pending.done

    def flushes_in(self):
        """Seconds until the flush timer fires, None if it is not set."""
        return self.replica._flush_timer.due_in_s
