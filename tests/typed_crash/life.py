"""A life: a process that runs a typed table once, with calls that count.

It is forked from a server that has loaded all that it needs, so that it begins within milliseconds. Its workers are in this
process, too, for what a worker of Spark does is the same; except lives that have a Spark of their own (`engine`).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.engines.spark import is_local
from gazette_platform.lake.iceberg.catalog import HiveTables
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.typed.planning.ranges import Limits
from gazette_platform.lake.typed.runs.amending import Reprocessor
from gazette_platform.lake.typed.runs.backfilling import BackfillRunner
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.spark.typed_workers import SparkWorkers
from gazette_platform.testing.waiting import block_for, wait_until
from tests.lake_crash.faults import Calls, FaultyMetastore
from tests.typed_crash.engine import CountingMerger, kill_engine, open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gazette_platform.lake import LakeSettings
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.rounds import Done, Order
    from gazette_platform.lake.typed.runs.jobs import Job, Workers
    from gazette_platform.lake.typed.tables.upserts import Merger
    from tests.lake_crash.pairs import Pair
    from tests.lake_crash.plan import Fault

__all__ = ["Life", "LifeReport", "live"]

_RETRY_TIMEOUT_S = 60.0
_HELD_TIMEOUT_S = 500.0
# Tasks that are as small as may be, so that there are several.
_LIMITS = Limits(task_bytes=2000)


@dataclass(frozen=True, kw_only=True)
class Life:
    """The orders of a life."""

    folder: Path
    """For what it leaves behind: `trace`, `report.json`, `log`; and `held` and `go`."""
    spec: TypedSpec
    raw: TableSpec
    broker: str
    file_root: Path
    settings: LakeSettings
    """Whose Spark merges: a server, or ``local[2]``, which is its own and carries out orders, too."""
    java: str
    """Home of a Java for that."""
    what: str = "run"
    """See `plan.Run`."""
    ranges: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """That are backfilled."""
    fault: Fault | None = None
    spared: frozenset[Pair] | None = None
    """See `Calls`."""
    held: tuple[str, int] | None = None
    """How the call begins before which it is held up, and which of these it is, from 1."""
    plant: str = ""
    """``module:function`` that is called first: what is wrong with it."""


@dataclass(frozen=True)
class LifeReport:
    """What a life that was not killed says of itself."""

    outcome: str
    """``published``, ``idle``, or the class of the error that ended it."""
    text: str
    is_whole: bool = False
    """Whether nothing is left to be done of what it was to do."""


def live(life: Life) -> None:
    """Live it. Exits with 1 if it failed by something that is not an error of ours."""
    log = os.open(life.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if life.plant:
        module, _, name = life.plant.partition(":")
        getattr(importlib.import_module(module), name)()
    calls = _LifeCalls(life)
    if life.held is not None:
        _hold(calls, life.folder, *life.held)
    _count_files(calls)
    try:
        report = _lived(life, calls)
    except Exception:  # noqa: BLE001  the outermost scope of this process: all that is left is to report
        traceback.print_exc()
        sys.exit(1)
    finally:
        calls.finish()
        kill_engine()
    (life.folder / "report.json").write_text(json.dumps(list(vars(report).values())))


class _LifeCalls(Calls):
    """Calls of a life, by names that say what it does if it is not a run; and what strikes it amid one."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.fault, life.folder / "trace", life.spared)
        self._suffix = f" of {life.what}" if life.what != "run" else ""
        self._suffix += " of a key" if life.spec.key else ""
        is_struck = life.fault is not None and life.fault.mode == "struck"
        self._struck = life.fault if is_struck else None

    def call(self, name: str, *arguments: Any) -> Any:
        """See `Calls`."""
        if self._struck is not None and name.startswith(self._struck.call):
            threading.Thread(target=self._strike, args=(name, self._struck.at), daemon=True).start()
            self._struck = None
        return super().call(f"{name}{self._suffix}", *arguments)

    def _strike(self, name: str, after_ms: int) -> None:
        block_for(after_ms / 1000)
        self._note(f"! struck in {name}")
        kill_engine()
        os.kill(os.getpid(), signal.SIGKILL)


def _lived(life: Life, calls: Calls) -> LifeReport:
    metastore: Any = FaultyMetastore(MetastoreClient(life.settings.metastore), calls)
    config = ClientConfig(
        address=life.broker, retry_timeout_s=_RETRY_TIMEOUT_S, file_root=life.file_root
    )
    tables = HiveTables(IcebergTables(metastore, life.settings.warehouse))
    try:
        with Client(config) as client:
            return _DEEDS[life.what](life, tables, _workers(life, calls), client)
    except GazetteError as err:
        traceback.print_exc()
        return LifeReport(type(err).__name__, str(err))


def _run(life: Life, tables: HiveTables, workers: Workers, client: Client) -> LifeReport:
    runner = TypedRunner(tables, workers, client, log=print)
    report = runner.run(life.spec, life.raw, limits=_LIMITS)
    return LifeReport("published" if report.run else "idle", "", report.is_whole)


def _begin_anew(life: Life, tables: HiveTables, workers: Workers, client: Client) -> LifeReport:
    runner = TypedRunner(tables, workers, client, log=print)
    # Those that are the journals that were read stay as they are.
    places = {one.name: 0 for one in client.list(life.raw.label_selector)}
    report = runner.run(life.spec, life.raw, limits=_LIMITS, begin_anew=places)
    return LifeReport("published" if report.run else "idle", "", report.is_whole)


def _backfill(life: Life, tables: HiveTables, workers: Workers, client: Client) -> LifeReport:
    runner = BackfillRunner(tables, workers, client, log=print)
    report = runner.run(life.spec, life.raw, life.ranges, limits=_LIMITS)
    is_whole = not (report.holes or report.behind)
    return LifeReport("published" if report.run else "idle", "", is_whole)


def _reprocess(life: Life, tables: HiveTables, _: Workers, __: Client) -> LifeReport:
    report = Reprocessor(tables, log=print).run(life.spec)
    return LifeReport("published" if report.run else "idle", "", report.is_whole)


_DEEDS = {"run": _run, "begin anew": _begin_anew, "backfill": _backfill, "reprocess": _reprocess}


def _workers(life: Life, calls: Calls) -> Workers:
    opened = cache(lambda: open_engine(life.settings, life.java))
    merger = CountingMerger(calls, opened)
    if is_local(life.settings.spark_master):
        return _EngineWorkers(calls, SparkWorkers(opened()), merger)
    return _CountingWorkers(calls, merger)


class _CountingWorkers:
    """Workers in this process, whose orders count, each as a call."""

    def __init__(self, calls: Calls, merger: Merger) -> None:
        self.merger = merger
        self._calls = calls
        self._workers = LocalWorkers()

    def carry_out(self, job: Job, orders: Sequence[Order]) -> list[Done]:
        """See `Workers`."""
        return [
            self._calls.call(
                f"order {order.kind}",
                lambda one=order: self._workers.carry_out(job, [one])[0],
                lambda: LakeError("cut off on purpose"),
            )
            for order in orders
        ]


class _EngineWorkers:
    """Spark's workers, whose rounds count, each as a call."""

    def __init__(self, calls: Calls, workers: SparkWorkers, merger: Merger) -> None:
        self.merger = merger
        self._calls, self._workers = calls, workers

    def carry_out(self, job: Job, orders: Sequence[Order]) -> list[Done]:
        """See `Workers`."""
        found: list[Done] = self._calls.call(
            "orders",
            lambda: self._workers.carry_out(job, orders),
            lambda: LakeError("cut off on purpose"),
        )
        return found


def _count_files(calls: Calls) -> None:
    """Have files that are made and deleted count, by their kinds."""
    create, delete = PyArrowFile.create, PyArrowFileIO.delete

    def counted_create(self: Any, overwrite: bool = False) -> Any:
        return calls.call(
            f"file create {_kind_of(self.location)}",
            lambda: create(self, overwrite),
            lambda: OSError("cut off on purpose"),
        )

    def counted_delete(self: Any, location: Any) -> Any:
        return calls.call(
            f"file delete {_kind_of(str(getattr(location, 'location', location)))}",
            lambda: delete(self, location),
            lambda: OSError("cut off on purpose"),
        )

    made: Any = PyArrowFile
    made.create = counted_create
    removed: Any = PyArrowFileIO
    removed.delete = counted_delete


def _kind_of(location: str) -> str:
    name = location.rpartition("/")[2]
    return "metadata" if name.endswith("metadata.json") else name.rpartition(".")[2]


def _hold(calls: Calls, folder: Path, name: str, at: int) -> None:
    """Let a call wait before it is made, until the parent says go."""
    call: Callable[..., Any] = calls.call
    count = 0

    def held(called: str, *arguments: Any) -> Any:
        nonlocal count
        count += called.startswith(name)
        if count == at and called.startswith(name):
            (folder / "held").touch()
            wait_until(
                (folder / "go").exists, timeout_s=_HELD_TIMEOUT_S, what="the parent did not say go"
            )
        return call(called, *arguments)

    calls.call = held  # type: ignore[method-assign]
