"""A life of a registrar: a process that runs the sensor of Dagster, or registers once as a command does.

It is forked from a server that has loaded all that it needs (`multiprocessing`'s *forkserver*), so that
a life begins within milliseconds. What a tick returns is stored as the daemon of Dagster stores it: events,
then partitions, then the cursor, each of them a call that may be the last.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from dagster import AddDynamicPartitionsRequest, DagsterInstance, build_sensor_context

from gazette_platform.client import Client, ClientConfig
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import BrokerSource, Registrar, Repairer, StoreRoots, load_table_specs
from gazette_platform.lake.raw.audits.consistency import audit_index
from gazette_platform.lake.raw.audits.registration_status import table_standing
from gazette_platform.lake.raw.repair import catch_up
from gazette_platform.ops.clock import SystemClock
from gazette_platform.resources import LakeResource
from gazette_platform.sensors import fragments_sensor
from tests.lake_crash.faults import Calls, FaultyBrokers, FaultyMetastore, faulty_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.lake_crash.pairs import Pair
    from tests.lake_crash.plan import Fault

__all__ = ["CURSOR", "Life", "LifeReport", "live"]

CURSOR = "lake-crash"
"""What the sensor's cursor is called in the home of Dagster."""

_RETRY_TIMEOUT_S = 20.0
_FLUSH_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Life:
    """The orders of a registrar."""

    folder: Path
    """For what it leaves behind: `trace`, `report.json`, `log`."""
    home: Path
    """Of Dagster."""
    tables: Path
    broker: str
    metastore: str
    store_roots: Mapping[str, str]
    role: str = "sensor"
    """Or ``flush``: registers once, and reports nothing; or ``repair``: looks at all files, and moves covered ones."""
    ticks: int = 1
    quiet: int = 0
    """Ticks in a row with nothing to report, after which it ends; 0: never."""
    fault: Fault | None = None
    spared: frozenset[Pair] | None = None
    """See `Calls`."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Variables with the credentials of stores."""
    plant: str = ""
    """``module:function``, or some with commas between them, called first: what is wrong with it."""


@dataclass(frozen=True)
class LifeReport:
    """What a registrar that ended well says of itself."""

    quiet: int
    """Last ticks with nothing to report."""
    problems: list[str]
    """What it last said."""


def live(life: Life) -> None:
    """Live it. Exits with 1 if it failed by something that is not a fault of the plan."""
    log = os.open(life.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # The server that forked this process may be older than the store.
    os.environ.update(life.keys)
    for plant in filter(None, life.plant.split(",")):
        module, _, name = plant.partition(":")
        getattr(importlib.import_module(module), name)()
    calls = Calls(life.fault, life.folder / "trace", life.spared)
    faulty_files(calls)
    try:
        report = _ROLES[life.role](life, calls)
    except Exception:  # noqa: BLE001  the outermost scope of this process: all that is left is to report
        traceback.print_exc()
        sys.exit(1)
    finally:
        calls.finish()
        print(f"{time.process_time():.2f} s of CPU")
    (life.folder / "report.json").write_text(json.dumps([report.quiet, report.problems]))


def _sense(life: Life, calls: Calls) -> LifeReport:
    """Ticks of the sensor. One that fails is red, and the next one is tried."""
    quiet, problems = 0, []
    with DagsterInstance.from_config(str(life.home)) as instance, _Ports(life, calls) as ports:
        for _ in range(life.ticks):
            try:
                events, text = _tick(instance, ports, life, calls)
            except Exception as err:  # noqa: BLE001  as the daemon, to which a tick may fail by anything
                traceback.print_exc()
                quiet, problems = 0, [f"{type(err).__name__}: {err}"]
                continue
            is_quiet = not events and text == "No new fragments."
            quiet, problems = (quiet + 1 if is_quiet else 0), [text]
            if life.quiet and quiet >= life.quiet:
                break
    return LifeReport(quiet, problems)


def _tick(instance: DagsterInstance, ports: _Ports, life: Life, calls: Calls) -> tuple[int, str]:
    """One tick, and its storing. Returns: how many events it returned, and what it says of itself."""
    cursor = instance.daemon_cursor_storage.get_cursor_values({CURSOR}).get(CURSOR)
    context = build_sensor_context(
        instance=instance,
        cursor=cursor,
        resources={
            "broker": ports,
            "metastore": ports,
            "lake": LakeResource(tables=str(life.tables), store_roots=dict(life.store_roots)),
        },
    )
    result: Any = fragments_sensor(context)
    for event in result.asset_events:
        calls.call("dagster event", lambda e=event: instance.report_runless_asset_event(e))
    for request in result.dynamic_partitions_requests or ():
        calls.call("dagster partitions", lambda r=request: _store_partitions(instance, r))
    kept = {CURSOR: result.cursor}
    calls.call("dagster cursor", lambda: instance.daemon_cursor_storage.set_cursor_values(kept))
    skipped = result.skip_reason
    return len(result.asset_events), skipped.skip_message if skipped is not None else ""


def _store_partitions(instance: DagsterInstance, request: Any) -> None:
    name = request.partitions_def_name
    if isinstance(request, AddDynamicPartitionsRequest):
        instance.add_dynamic_partitions(name, list(request.partition_keys))
        return
    for key in request.partition_keys:
        instance.delete_dynamic_partition(name, key)


def _flush(life: Life, calls: Calls) -> LifeReport:
    """As `gazctl lake flush`, after the flush itself."""
    specs, _ = load_table_specs(life.tables)
    clock = SystemClock()
    with _Ports(life, calls) as ports, ports.source() as source:
        registrar = Registrar(source, ports.client(), StoreRoots(dict(life.store_roots)))
        for spec in specs.values():
            try:
                catch_up(
                    registrar,
                    spec,
                    {},
                    {},
                    deadline=clock.monotonic() + _FLUSH_TIMEOUT_S,
                    clock=clock,
                )
            except Exception as err:  # noqa: BLE001  the command would say so, and end
                return LifeReport(0, [f"{type(err).__name__}: {err}"])
    return LifeReport(0, [])


def _repair(life: Life, calls: Calls) -> LifeReport:
    """As `gazctl lake repair`."""
    specs, _ = load_table_specs(life.tables)
    roots = StoreRoots(dict(life.store_roots))
    with (
        _Ports(life, calls) as ports,
        ports.source() as source,
        ports.client().connect() as session,
    ):
        for spec in specs.values():
            if (table := session.table(spec.schema, spec.stored_table)) is None:
                continue
            found = [
                each
                for each in audit_index(session, spec, table, source, roots)
                if each.kind == "overlap" and each.excluded
            ]
            journals = source.journals(spec.label_selector)
            standing = table_standing(spec, journals, {}, session, SystemClock().now())
            cursors = {each.journal: each.cursor for each in standing.journals}
            Repairer(source, roots).repair(session, table, found, cursors)
    return LifeReport(0, [])


_ROLES = {"sensor": _sense, "flush": _flush, "repair": _repair}


class _Ports:
    """Brokers and metastore, as resources give them, with calls that count."""

    def __init__(self, life: Life, calls: Calls) -> None:
        self._life, self._calls = life, calls
        self._client = Client(ClientConfig(address=life.broker, retry_timeout_s=_RETRY_TIMEOUT_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @contextmanager
    def source(self) -> Iterator[Any]:
        """Of a broker resource."""
        yield FaultyBrokers(BrokerSource(self._client), self._calls)

    def client(self) -> Any:
        """Of a metastore resource."""
        return FaultyMetastore(MetastoreClient(self._life.metastore), self._calls)
