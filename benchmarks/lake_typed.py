"""Journals that become typed tables, by Spark: how fast, in how much memory, and how soon.

Fragments are stored as a broker would have, of orders of about 330 bytes. Each size is a table of its own, so that
what costs more than its share is seen; one more has transactions, and duplicates.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from benchmarks import procfs
from benchmarks.lake_platform import lake_journal
from benchmarks.typed_data import JOURNAL, Plan, link_fragments, write_fragments
from benchmarks.typed_table import COLUMNS, UUID_FIELD
from gazette_platform.client import Change
from gazette_platform.errors import LakeError
from gazette_platform.lake import read_spec_folder
from gazette_platform.lake.engines.spark import start_session
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.message.uuid import Flags, MessageClock, build_uuid, clock_of, new_producer_id
from gazette_platform.spark.typed_workers import SparkWorkers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Figures
    from benchmarks.lake_platform import LakePlatform
    from benchmarks.typed_data import Truth
    from gazette_platform.client import Client
    from gazette_platform.ops.clock import Clock

__all__ = [
    "TYPED_EVERY_S",
    "TYPED_FRESHNESS_TABLES",
    "measure_conversion",
    "measure_typed_freshness",
    "typed_spec",
]

_SIZES: Final = (1, 2, 4)
_UNIT_BYTES: Final = 512 << 20
_WARM_BYTES: Final = 128 << 20
_CORES: Final = 2
_LISTED_TIMEOUT_S: Final = 60.0
# What is text in the raw table, and what the typed one makes of it.
_TEXTS: Final = {"timestamp": "timestamptz, format: iso", "date": "date"}

TYPED_EVERY_S: Final = 30
"""Seconds between runs of the table whose freshness is measured."""
_APPENDS: Final = 5
_SEEN_TIMEOUT_S: Final = 180.0
_POLL_S: Final = 0.25


# ------------------------------------------------------------------------ conversion


def measure_conversion(platform: LakePlatform, client: Client, clock: Clock) -> Figures:
    """MB of content, uncompressed, a second and core, that Spark makes rows of on two cores; memory of all its processes.

    The rate is that of the largest table, and of the one with transactions. `typed_linearity` is what the largest costs a byte, of what the smallest does.

    Raises: LakeError: a table has other rows than its fragments have messages.
    """
    root = platform.layout.fragments
    rates: dict[str, float] = {}
    figures: Figures = {}
    plans = {"warm": Plan(content_bytes=_WARM_BYTES)}
    plans |= {f"x{size}": Plan(content_bytes=size * _UNIT_BYTES) for size in _SIZES}
    plans["transactions"] = Plan(content_bytes=_UNIT_BYTES, transactions=True)
    with tempfile.TemporaryDirectory(prefix="typed-orders-", dir=root.parent) as folder:
        sources = {name: Path(folder) / str(plan.transactions) for name, plan in plans.items()}
        # The largest first: its fragments are also those of smaller ones.
        for name in sorted(plans, key=lambda name: -plans[name].content_bytes):
            sources[name].mkdir(exist_ok=True)
            write_fragments(sources[name], plans[name])
        truths = {name: _store(sources[name], root, name, plan) for name, plan in plans.items()}
    session = start_session(platform.settings)
    try:
        runner = TypedRunner(typed_catalog(platform.settings), SparkWorkers(session), client)
        for name, truth in truths.items():
            _publish(platform, client, clock, name)
            with _peak_rss() as peak:
                begun = clock.monotonic()
                rows = _run(platform, runner, name)
                took_s = clock.monotonic() - begun
            if rows != truth.rows:
                raise LakeError(f"bench.{name}: {rows} rows, expected {truth.rows}")
            rates[name] = truth.content_bytes / 1e6 / took_s / _CORES
            if name != "warm":
                figures[f"typed_{name}_s"] = took_s
                figures[f"typed_{name}_gb"] = truth.content_bytes / 1e9
                figures["typed_rss_gb"] = max(figures.get("typed_rss_gb", 0.0), peak.gb)
    finally:
        session.stop()
    first, last = (f"x{size}" for size in (_SIZES[0], _SIZES[-1]))
    return figures | {
        "typed_mb_per_s_per_core": rates[last],
        "typed_transactions_mb_per_s_per_core": rates["transactions"],
        "typed_linearity": rates[first] / rates[last],
    }


def _store(source: Path, root: Path, name: str, plan: Plan) -> Truth:
    """Have the journal of a table have the fragments of a plan. Returns: what is in them."""
    moved = root / name
    link_fragments(source, moved, plan)
    (moved / JOURNAL).rename(root / _journal(name))
    shutil.rmtree(moved)
    return write_fragments(source, plan)


def typed_spec(name: str) -> str:
    """A table spec, as YAML, of orders as they are stored: texts in the raw table, types in the typed one."""
    columns = "".join(
        f"  - {{name: {each.name}, from: {each.key}, type: "
        f'"{"string" if each.spark in _TEXTS else each.spark}"}}\n'
        for each in COLUMNS
    )
    typed = "".join(
        f"    - {{name: {each.name}, type: {_TEXTS[each.spark]}}}\n"
        for each in COLUMNS
        if each.spark in _TEXTS
    )
    return (
        f"name: bench.{name}\nselector: name={_journal(name)}\nformat: json\ncolumns:\n{columns}"
        f"typed:\n  name: typed.{name}\n  uuid: {UUID_FIELD}.uuid\n  columns:\n{typed}"
    )


def _journal(name: str) -> str:
    return f"{name}-orders"


def _publish(platform: LakePlatform, client: Client, clock: Clock, name: str) -> None:
    """Write the spec of a table, create its journal, and wait until brokers list what is stored."""
    journal = _journal(name)
    (platform.layout.tables / f"{name}.yaml").write_text(typed_spec(name))
    client.apply([Change(lake_journal(journal, flush_interval_s=3600))])
    stored = len(list((platform.layout.fragments / journal).rglob("*.gz")))
    deadline = clock.monotonic() + _LISTED_TIMEOUT_S
    while len(client.fragments(journal)) != stored:
        if clock.monotonic() > deadline:
            raise LakeError(f"{journal}: brokers do not list its {stored} fragments")
        time.sleep(_POLL_S)


def _run(platform: LakePlatform, runner: TypedRunner, name: str) -> int:
    """Make a table of all content. Returns: its rows."""
    raw = read_spec_folder(platform.layout.tables).specs[f"bench.{name}"]
    if raw.typed is None:
        raise LakeError(f"bench.{name} has no typed table")
    while True:
        report = runner.run(raw.typed, raw)
        if not report.left_bytes:
            counts = report.state.counts
            if counts.quarantined:
                raise LakeError(f"bench.{name}: {counts.quarantined} records are quarantined")
            return counts.typed


@final
class _Peak:
    """Resident memory of this process and those that it started in its session: Spark's JVM, and workers of Python."""

    gb: float = 0.0


@contextmanager
def _peak_rss() -> Iterator[_Peak]:
    peak, done = _Peak(), threading.Event()

    def look() -> None:
        while not done.wait(_POLL_S):
            peak.gb = max(peak.gb, procfs.family_rss_mb() / 1e3)

    thread = threading.Thread(target=look, name="rss", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


# ------------------------------------------------------------------------ freshness

TYPED_FRESHNESS_TABLES: Final = {
    "live.yaml": "name: bench.live\nselector: name:prefix=live/\nformat: json\n"
    "columns: [{name: id, type: bigint}]\n"
    f"typed: {{name: typed.live, uuid: {UUID_FIELD}.uuid, every: {TYPED_EVERY_S}s}}\n"
}
"""The spec, by file name; it must exist when the platform starts."""


def measure_typed_freshness(platform: LakePlatform, client: Client, clock: Clock) -> Figures:
    """Seconds from the begin of an append until Trino gives its row, while `gazette up` keeps the table current.

    Raises: LakeError: what was appended is not seen in time.
    """
    journal = "live/part=00"
    client.apply([Change(lake_journal(journal, flush_interval_s=3600))])
    client.write_head(journal)
    trino = TrinoSession(platform.settings.trino)
    producer, ticks = new_producer_id(), MessageClock(clock_of(int(clock.unix_s() * 1e9)))
    found: list[float] = []
    for number in range(_APPENDS + 1):
        uuid = build_uuid(producer, ticks.tick(), Flags.OUTSIDE_TXN)
        begun = clock.monotonic()
        client.append(journal, b'{"_meta":{"uuid":"%b"},"id":%d}\n' % (str(uuid).encode(), number))
        _wait_seen(trino, number + 1, clock)
        found.append(clock.monotonic() - begun)
        # So that they come at other times within the turn of a run.
        time.sleep(TYPED_EVERY_S * number / _APPENDS)
    del found[0]  # which made the table
    return {
        "typed_freshness_s": max(found),
        "typed_freshness_p50_s": statistics.median(found),
        "typed_freshness_every_s": float(TYPED_EVERY_S),
    }


def _wait_seen(trino: TrinoSession, rows: int, clock: Clock) -> None:
    deadline = clock.monotonic() + _SEEN_TIMEOUT_S
    while (found := _count(trino)) != rows:
        if found > rows or clock.monotonic() > deadline:
            raise LakeError(f"typed.live has {found} rows, expected {rows}")
        time.sleep(_POLL_S)


def _count(trino: TrinoSession) -> int:
    try:
        [(count,)] = trino.query("SELECT count(*) FROM iceberg.typed.live")
    except LakeError:
        return 0  # it is not there yet
    return int(count)
