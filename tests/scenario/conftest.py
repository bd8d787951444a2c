"""A cluster of allocators on an etcd in memory, which checks every step that they take."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from gazette_platform.allocator import Allocator
from gazette_platform.etcd import (
    TXN_OPS_MAX,
    CompareTarget,
    Delete,
    Event,
    KeyValue,
    Put,
    RangeResult,
    ResponseHeader,
    TxnResult,
    WatchBatch,
)
from gazette_platform.keyspace import (
    BrokerState,
    KeySpace,
    assignment_key,
    encode_broker_spec,
    encode_journal_spec,
    encode_route,
    item_key,
    member_key,
)
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
)

PREFIX = "/p"
_ASSIGNED = f"{PREFIX}/assign/"
_ROUNDS_MAX = 50
_TRANSCRIPTS = Path(__file__).parent / "transcripts"


def member(short):
    """`B2` is the second member of zone b."""
    return ProcessId(f"zone-{short[0].lower()}", f"member-{short}")


def short_of(process_id):
    """The inverse of `member`."""
    return process_id.suffix.removeprefix("member-")


class MemoryEtcd:
    """What allocators use of `EtcdClient`. Mirrors see a transaction before it returns."""

    def __init__(self):
        self.kvs: dict[str, KeyValue] = {}
        self.revision = 1
        self.spaces: list[KeySpace[BrokerState]] = []
        self.txns: list[tuple[list, list]] = []
        self.refuse_next = 0
        self.refused = 0

    def header(self):
        return ResponseHeader(1, 1, self.revision, 1)

    def mirror(self):
        space = KeySpace(self, PREFIX, BrokerState(PREFIX))
        kvs = tuple(self.kvs[key] for key in sorted(self.kvs))
        space.apply_snapshot(RangeResult(self.header(), kvs, len(kvs)))
        self.spaces.append(space)
        return space

    def write(self, *operations):
        assert operations
        self.revision += 1
        events = []
        keys = [operation.key for operation in operations]
        assert len(set(keys)) == len(keys), "etcd refuses to write a key twice"
        for operation in operations:
            known = self.kvs.get(operation.key)
            if isinstance(operation, Delete):
                assert known is not None
                del self.kvs[operation.key]
                kv = KeyValue(operation.key, b"", 0, self.revision, 0)
            else:
                kv = KeyValue(
                    operation.key,
                    operation.value,
                    known.create_revision if known else self.revision,
                    self.revision,
                    known.version + 1 if known else 1,
                    known.lease if known and operation.ignore_lease else operation.lease,
                )
                self.kvs[operation.key] = kv
            events.append(Event(kv, is_delete=isinstance(operation, Delete)))
        batch = WatchBatch(self.header(), tuple(sorted(events, key=lambda e: e.kv.key)))
        for space in self.spaces:
            space.apply_batches([batch])

    async def txn(self, compares, success, failure=()):
        assert not failure
        assert len(compares) <= TXN_OPS_MAX
        assert len(success) <= TXN_OPS_MAX
        if self.refuse_next:
            self.refuse_next -= 1
            self.refused += 1
            return TxnResult(succeeded=False, header=self.header())
        if not all(map(self._holds, compares)):
            self.refused += 1
            return TxnResult(succeeded=False, header=self.header())
        self.txns.append((list(compares), list(success)))
        self.write(*success)
        return TxnResult(succeeded=True, header=self.header())

    def _holds(self, compare):
        kv = self.kvs.get(compare.key)
        values = {
            CompareTarget.MOD: kv.mod_revision if kv else 0,
            CompareTarget.CREATE: kv.create_revision if kv else 0,
            CompareTarget.VERSION: kv.version if kv else 0,
        }
        return values[compare.target] == compare.value


class Cluster:
    """Members, items and who holds them, by short names: ``{"item/1": ["A1", "B1"]}``, by slot."""

    def __init__(self):
        self.etcd = MemoryEtcd()
        self.state = self.etcd.mirror().state
        self.allocators: dict[ProcessId, Allocator] = {}
        self._leases = itertools.count(100)
        self.transcript: list[str] = []
        """What each round wrote, and the keys that each look found in the end."""

    # ---------------------------------------------------------------- what happens to it
    def join(self, **limits):
        """Members and their limits; the first is the oldest."""
        for short, limit in limits.items():
            process_id = member(short)
            value = encode_broker_spec(BrokerSpec(process_id, f"http://{short}:80", limit))
            self.etcd.write(Put(member_key(PREFIX, process_id), value, lease=next(self._leases)))
            space = self.etcd.mirror()
            self.allocators[process_id] = Allocator(self.etcd, space, process_id)
        return self

    def change(self, short, **fields):
        """Change the spec of a member: `journal_limit`, `exiting`."""
        spec = dataclasses.replace(self.state.members[member(short)].spec, **fields)
        key = member_key(PREFIX, spec.id)
        self.etcd.write(Put(key, encode_broker_spec(spec), ignore_lease=True))

    def kill(self, *shorts):
        """Leases end: member keys and assignments vanish in one revision each."""
        for short in shorts:
            lease = self.state.members[member(short)].lease
            gone = [Delete(kv.key) for kv in self.etcd.kvs.values() if kv.lease == lease]
            self.etcd.write(*gone)
            del self.allocators[member(short)]

    def items(self, replication, *names):
        """Create items, or change their replication."""
        fragment = FragmentSpec(1024, CompressionCodec.NONE, refresh_interval_ns=10**9)
        for name in names:
            value = encode_journal_spec(JournalSpec(name, replication, fragment=fragment))
            self.etcd.write(Put(item_key(PREFIX, name), value))
        return self

    def delete(self, *names):
        for name in names:
            self.etcd.write(Delete(item_key(PREFIX, name)))

    def assign(self, name, *shorts, slots=None):
        """Assign an item by hand, to begin with."""
        for slot, short in zip(slots or range(len(shorts)), shorts, strict=True):
            lease = self.state.members[member(short)].lease
            key = assignment_key(PREFIX, name, member(short), slot)
            self.etcd.write(Put(key, b"", lease=lease))
        return self

    def sync(self):
        """Every primary puts the route of its items into all values, as brokers do."""
        for name in list(self.state.journals):
            route = self.state.route_of(name)
            if route.primary >= 0 and not self.state.is_consistent(name):
                value = encode_route(route)
                found = self.state.assignments_of(name)
                self.etcd.write(*(Put(a.key, value, ignore_lease=True) for a in found))
        return self

    # ---------------------------------------------------------------- what it does
    @property
    def leader(self):
        return min(self.state.members, key=lambda m: self.state.members[m].create_revision)

    async def rounds(self, *, is_syncing=False):
        """Let the leader act until nothing is left to do. Returns the rounds that wrote.

        Members that are not the leader act too, and have to write nothing.
        """
        count = await self._rounds(is_syncing=is_syncing)
        self.transcript.append(f"at rest after {count} rounds:")
        self.transcript += [
            f"  {key}" for key in sorted(self.etcd.kvs) if key.startswith(_ASSIGNED)
        ]
        return count

    async def _rounds(self, *, is_syncing):
        count = 0
        while True:
            assert count < _ROUNDS_MAX, "does not come to rest"
            for process_id, allocator in self.allocators.items():
                if process_id != self.leader:
                    before = self.etcd.revision
                    await allocator._act(before + 1)
                    assert self.etcd.revision == before
            allocator = self.allocators[self.leader]
            before = len(self.etcd.txns)
            was = {name: self.held(name) for name in self.state.journals}
            consistent = {name for name in was if self.state.is_consistent(name)}
            is_idle = await allocator._act(self.etcd.revision + 1) != 0
            if len(self.etcd.txns) == before:
                if is_idle:
                    return count
                continue
            count += 1
            self._tell(self.etcd.txns[before:])
            self._check(was, consistent)
            if is_syncing:
                self.sync()

    async def settle(self):
        """Rounds with primaries that sync, until there is nothing left to do."""
        return await self.rounds(is_syncing=True)

    def _tell(self, txns):
        self.transcript.append(f"the leader {short_of(self.leader)} writes:")
        for compares, success in txns:
            compared = " ".join(sorted(_in_short(compare) for compare in compares))
            self.transcript.append(f"  if {compared}")
            for operation in success:
                verb = "delete" if isinstance(operation, Delete) else "put"
                self.transcript.append(f"    {verb} {operation.key}")

    def _check(self, was, consistent):
        """No step may remove what is needed, whatever else it does."""
        for name, before in was.items():
            found = self.state.assignments_of(name)
            slots = [a.slot for a in found]
            assert len(set(slots)) == len(slots)
            assert len({a.process_id for a in found}) == len(found)
            wanted = self.state.items[name].spec.desired_replication()
            now = self.held(name)
            if set(before) - set(now):
                assert name in consistent or wanted == 0, f"{name} was inconsistent: {before}"
                assert len(now) >= wanted, f"{name}: {before} -> {now}"
            if found and wanted and before:
                assert 0 in slots
            for a in found:
                assert a.lease == self.state.members[a.process_id].lease

    # ---------------------------------------------------------------- what it is
    @property
    def members(self):
        return [short_of(m) for m in sorted(self.state.members)]

    def allocator(self, short):
        return self.allocators[member(short)]

    def held(self, name):
        """Short names of who holds the item, by slot."""
        return [short_of(a.process_id) for a in sorted(self._of(name), key=lambda a: a.slot)]

    def slots(self, name):
        return {short_of(a.process_id): a.slot for a in self._of(name)}

    @property
    def assigned(self):
        return {name: self.held(name) for name in self.state.journals}

    def loads(self):
        return {short_of(m): len(self.state.assignments_to(m)) for m in sorted(self.state.members)}

    def primaries(self):
        return {short_of(m): self.state.primaries_of(m) for m in sorted(self.state.members)}

    def _of(self, name):
        return self.state.assignments_of(name)

    def assert_settled(self, *, is_spread=True):
        """Every item has its replicas in slots from 0 on, and in two zones at least."""
        for name, item in self.state.items.items():
            wanted = item.spec.desired_replication()
            assert sorted(self.slots(name).values()) == list(range(wanted)), name
            zones = {short[0] for short in self.held(name)}
            if is_spread and wanted > 1:
                assert len(zones) > 1, (name, self.held(name))
        for m, entry in self.state.members.items():
            assert len(self.state.assignments_to(m)) <= entry.spec.journal_limit


def _in_short(compare):
    """Which key is compared, and whether with none; revisions differ from one story to another."""
    return f"{'no ' if compare.value == 0 else ''}{compare.key}"


@pytest.fixture
def cluster(request):
    """A cluster without members. What its leader does in a scenario `z…` is held to a transcript."""
    cluster = Cluster()
    yield cluster
    if not request.node.name.startswith("test_z"):
        return
    told = "\n".join(cluster.transcript) + "\n"
    path = _TRANSCRIPTS / f"{request.node.name.removeprefix('test_')}.txt"
    if request.config.getoption("--rewrite"):
        path.write_text(told)
    assert told == path.read_text(), "if it ought to be so, run pytest with --rewrite"
