"""Fragments, a metastore, a Dagster and the sensor between them, with faults at their calls."""

from contextlib import ExitStack, contextmanager
from itertools import pairwise

from dagster import AssetKey, DeleteDynamicPartitionsRequest
from dagster_instances import new_instance
from lake_bench import FragmentFiles, MemoryMetastore
from thrift.transport.TTransport import TTransportException

from gazette_platform.assets.raw import time_partition
from gazette_platform.errors import TransportError
from gazette_platform.hive import MetastoreSession, SharedMetastore
from gazette_platform.lake import (
    Auditor,
    FitChecker,
    PartitionAccount,
    Registrar,
    Repairer,
    Shrinker,
    SpecFolder,
    StoreRoots,
    parse_table_spec,
)
from gazette_platform.lake.raw.account_book import fold
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.spec.layout import partition_values
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol.offsets import subtract_ranges
from gazette_platform.sensors.audits import TableAudits
from gazette_platform.sensors.cursor import SensorCursor
from gazette_platform.sensors.events import InstanceTold, data_version
from gazette_platform.sensors.fragments import TickPorts, run_tick
from gazette_platform.sensors.prunes import Retention

__all__ = ["MODES", "SPEC", "Killed", "Neighbour", "Steps", "World"]

SPEC = parse_table_spec(
    "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [{name: id, type: bigint}]}"
)
FOLDER = SpecFolder({"s.a": SPEC}, {"s.a": "a.yaml"})
MODES = ("killed before", "killed after", "broken before", "broken after")


class Killed(BaseException):
    """The process ends here."""


class Steps:
    """Counts calls to neighbours, and spoils the one that is numbered `at`."""

    def __init__(self, at=None, mode=""):
        self.at, self.mode = at, mode
        self.count = 0
        self.is_dead = False
        self.spoiled = ""

    def call(self, name, effect, error):
        if self.is_dead:
            raise Killed
        self.count += 1
        if self.count != self.at:
            return effect()
        self.spoiled = name
        if self.mode.endswith("after"):
            effect()
        if self.mode.startswith("killed"):
            self.is_dead = True
            raise Killed
        raise error


class Neighbour:
    """Any object whose calls are steps."""

    def __init__(self, inner, steps, error):
        self._inner, self._steps, self._error = inner, steps, error

    def __getattr__(self, name):
        method = getattr(self._inner, name)
        return lambda *a, **k: self._steps.call(name, lambda: method(*a, **k), self._error)


def account(key, state):
    """Of a Hive partition of the table."""
    return PartitionAccount(
        key=key,
        values=partition_values(key),
        location="",
        journal=f"a/{key.partition('/')[0]}",
        state=state,
    )


class World(ExitStack):
    """Fragments, a metastore, a Dagster, and the sensor between them; it is closed at the end."""

    def __init__(self, root, steps):
        super().__init__()
        self.steps = steps
        self.files = FragmentFiles(root)
        self.metastore = MemoryMetastore()
        self.instance = self.new_instance()
        self.cursor = None
        self.expected = {}
        self.pruned = set()
        self.dropped = set()
        self.gone = {}
        self.now = int(SystemClock().unix_s())

    @contextmanager
    def connect(self):
        error = TTransportException(message="broken")
        yield MetastoreSession(Neighbour(self.metastore.thrift, self.steps, error), "thrift://m:1")

    def append(self, journal, count, hour, **options):
        """A fragment of lines; the bytes and rows that its Hive partition must have in the end."""
        options.setdefault("mod_time", self.now)
        content = b'{"id":1}\n' * count
        made = self.files.append(journal, content, postfix=f"hour={hour}", **options)
        self.expect(made, hour)
        return made

    def prune(self, made, hour):
        """A fragment is pruned, and brokers know."""
        self.files.prune(made)
        key = f"{made.journal[2:]}/hour={hour}"
        self.expected[key].remove((made.begin, made.end))
        self.pruned.add(key)
        self.gone.setdefault(made.journal, []).append((made.begin, made.end))
        if not self.expected[key]:
            del self.expected[key]

    def expect(self, made, hour):
        self.expected.setdefault(f"{made.journal[2:]}/hour={hour}", set()).add(
            (made.begin, made.end)
        )

    def new_instance(self):
        """A Dagster without any event."""
        return self.enter_context(new_instance())

    def drop_partition(self):
        """Another program drops a Hive partition, if one exists."""
        with self.metastore.connect() as session:
            table = session.table("s", "a")
            for found in session.partitions(table)[:1] if table is not None else ():
                session.drop_partition(table, found.values)
                # Until it is made again, its time holds less.
                self.dropped.add(found.values[1])

    def ports(self):
        roots = StoreRoots(self.files.roots)
        source = Neighbour(self.files, self.steps, TransportError("no broker"))
        shared = SharedMetastore(self)
        return TickPorts(
            registrar=Registrar(source, shared, roots),
            audits=TableAudits(
                Auditor(self.files, roots),
                Repairer(self.files, roots),
                FitChecker(self.files, roots),
                self.metastore,
            ),
            retention=Retention(Shrinker(source, roots), shared),
            told=InstanceTold(self.instance),
        )

    def tick(self):
        """One tick, and its storing. A process that is killed starts again."""
        try:
            outcome = run_tick(self.ports(), FOLDER, SensorCursor.parse(self.cursor))
            self.store(outcome)
        except Killed:
            self.steps.is_dead = False
            self.metastore.thrift.pass_time(120)
            return True
        except TransportError:
            return True  # a red tick
        return bool(outcome.events or outcome.problems)

    def store(self, outcome):
        """As the daemon does: events, partitions, cursor."""
        error = Killed()  # the daemon answers no caller
        for event in outcome.events:
            self.steps.call(
                "event", lambda e=event: self.instance.report_runless_asset_event(e), error
            )
        for request in outcome.partitions:
            self.steps.call("partitions", lambda r=request: self._change(r), error)
        self.steps.call("cursor", lambda: self._keep(outcome.cursor), error)

    def _change(self, request):
        if isinstance(request, DeleteDynamicPartitionsRequest):
            for key in request.partition_keys:
                self.instance.delete_dynamic_partition(request.partitions_def_name, key)
            return
        self.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)

    def _keep(self, cursor):
        self.cursor = cursor.dump()

    # --------------------------------------------------------------- histories

    def play(self):
        """Fragments come, late and in disorder; a tick after each."""
        for part in (0, 1):
            self.append(f"a/part={part}", 2, "05")
            self.append(f"a/part={part}", 1, "06")
        self.tick()
        late = self.append("a/part=0", 3, "05")
        self.files.forget(late)
        self.append("a/part=0", 1, "07", begin=late.end)
        self.tick()
        self.other()
        self.append("a/part=1", 1, "06")
        self.append("a/part=0", 3, "05", begin=late.begin)
        self.tick()
        local = self.files.append("a/part=0", b'{"id":1}\n', is_persisted=False)
        self.append("a/part=0", 1, "07")
        self.tick()
        self.files.persist(local, postfix="hour=06", mod_time=self.now)
        self.expect(local, "06")
        self.tick()

    def other(self):
        """Another registrar, which reports nothing."""
        registrar = Registrar(self.files, self.metastore, StoreRoots(self.files.roots))
        with_old_lock = self.metastore.thrift
        with_old_lock.pass_time(120)
        registrar.tick(SPEC, {})

    def settle(self, quiet=1):
        """Tick until so many ticks in a row report nothing."""
        left = quiet
        for _ in range(30):
            left = quiet if self.tick() else left - 1
            if not left:
                return
        raise AssertionError("ticks do not come to rest")

    # ------------------------------------------------------------------ verdict

    def check(self):
        with self.metastore.connect() as session:
            table = session.table("s", "a")
            found = {
                f"part={p.values[0]}/hour={p.values[1]}": PartitionState.from_parameters(
                    p.parameters
                )
                for p in session.partitions(table)
            }
        assert found.keys() == self.expected.keys()
        for key, spans in self.expected.items():
            held = {n for begin, end in found[key].ranges for n in range(begin, end)}
            assert held == {n for begin, end in spans for n in range(begin, end)}
            assert (found[key].fragments, found[key].rows) == (len(spans), len(held) // 9)
        told = {}
        rows = sum(state.rows for state in found.values())
        records = self.instance.fetch_materializations(AssetKey(["s", "a"]), limit=1000).records
        for event in (record.asset_materialization for record in reversed(records)):
            told.setdefault(event.partition, []).append(event)
        newest = records[0].asset_materialization.metadata
        assert newest["dagster/row_count"].value == rows
        times = {time_partition(t.time): t for t in fold(map(account, found, found.values()))}
        pruned = {key.partition("/hour=")[2] for key in self.pruned}
        assert times.keys() <= told.keys() <= times.keys() | pruned
        for key, events in told.items():
            added = [e.metadata["rows_added"].value for e in events]
            assert sum(added) == (times[key].rows if key in times else 0), added
            versions = [e.tags["dagster/data_version"] for e in events]
            assert versions[-1] == (data_version(times[key]) if key in times else "empty")
            # Nothing is reported twice. Files that came and were pruned leave the former state.
            again = [v for before, v in pairwise(versions) if before == v]
            assert not again
            assert key in pruned | self.dropped or len(set(versions)) == len(versions)
        assert set(self.instance.get_dynamic_partitions("s.a")) == times.keys()
        offsets = SensorCursor.parse(self.cursor).registered.tables["s.a"]
        # What was pruned before it was registered is awaited for as long as it may come late.
        left = {j: subtract_ranges(c.holes, self.gone.get(j, ())) for j, c in offsets.items()}
        assert {j: (c.offset, left[j]) for j, c in offsets.items()} == {
            journal: (max(f.end for f in self.files.fragments(journal, 0, 99)), [])
            for journal in offsets
        }
