"""A life: a process that runs a typed table once, with calls that count.

It is forked from a server that has loaded all that it needs, so that it begins within milliseconds. Its workers are in this
process, too: what a worker of Spark does is the same, and that Spark loses or repeats orders is for other tests.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake.rollups.iceberg import IcebergTables
from gazette_platform.lake.typed.catalogs import HiveTables
from gazette_platform.lake.typed.ranges import Limits
from gazette_platform.lake.typed.running import TypedRunner
from gazette_platform.lake.typed.working import LocalWorkers
from tests.lake_crash.faults import Calls, FaultyMetastore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.lake.typed.jobs import Job
    from gazette_platform.lake.typed.rounds import Done, Order
    from gazette_platform.lake.typed_spec.spec import TypedSpec
    from tests.lake_crash.pairs import Pair
    from tests.lake_crash.plan import Fault

__all__ = ["Life", "LifeReport", "live"]

_RETRY_TIMEOUT_S = 20.0
_HELD_TIMEOUT_S = 120.0
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Life:
    """What a life is told."""

    folder: Path
    """For what it leaves behind: `trace`, `report.json`, `log`; and `held` and `go`."""
    spec: TypedSpec
    raw: TableSpec
    broker: str
    file_root: Path
    metastore: str
    warehouse: str
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
    """``published``, ``idle``, or the class of the error by which it failed."""
    text: str
    is_whole: bool = False


def live(life: Life) -> None:
    """Live it. Exits with 1 if it failed by something that is no error of ours."""
    log = os.open(life.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if life.plant:
        module, _, name = life.plant.partition(":")
        getattr(importlib.import_module(module), name)()
    calls = Calls(life.fault, life.folder / "trace", life.spared)
    if life.held is not None:
        _hold(calls, life.folder, *life.held)
    _count_files(calls)
    try:
        report = _run(life, calls)
    except Exception:  # noqa: BLE001  the outermost scope of this process: all that is left is to tell
        traceback.print_exc()
        sys.exit(1)
    finally:
        calls.finish()
    (life.folder / "report.json").write_text(json.dumps(list(vars(report).values())))


def _run(life: Life, calls: Calls) -> LifeReport:
    metastore: Any = FaultyMetastore(MetastoreClient(life.metastore), calls)
    config = ClientConfig(
        address=life.broker, retry_timeout_s=_RETRY_TIMEOUT_S, file_root=life.file_root
    )
    with Client(config) as client:
        runner = TypedRunner(
            HiveTables(IcebergTables(metastore, life.warehouse)),
            _CountingWorkers(calls),
            client,
            log=print,
        )
        try:
            # Tasks that are as small as may be, so that there are several.
            report = runner.run(life.spec, life.raw, limits=Limits(task_bytes=2000))
        except GazetteError as err:
            traceback.print_exc()
            return LifeReport(type(err).__name__, str(err))
    return LifeReport("published" if report.run else "idle", "", report.is_whole)


class _CountingWorkers:
    """Workers whose orders count, each as a call."""

    merger = None

    def __init__(self, calls: Calls) -> None:
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
    """Have a call wait before it is made, until somebody says go."""
    call: Callable[..., Any] = calls.call
    count = 0

    def held(called: str, *arguments: Any) -> Any:
        nonlocal count
        count += called.startswith(name)
        if count == at and called.startswith(name):
            (folder / "held").touch()
            deadline = time.monotonic() + _HELD_TIMEOUT_S
            while not (folder / "go").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody said go for {_HELD_TIMEOUT_S:.0f} s")
                time.sleep(_POLL_S)
        return call(called, *arguments)

    calls.call = held  # type: ignore[method-assign]
