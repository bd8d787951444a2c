"""`gazctl lake run`, `register` and `flush`: bring typed tables, raw tables or both up to date."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, final

import typer
import yaml
from rich.filesize import decimal

from gazette_platform.cli.bars import StepLine
from gazette_platform.cli.gazctl.arguments import seconds_of
from gazette_platform.cli.gazctl.lake.commands import Engine, OutputFormat
from gazette_platform.cli.gazctl.lake.context import (
    TypedTable,
    apart,
    brokers,
    hole_text,
    print_values,
    settings_of,
    specs_named,
    tables_folder,
    typed_named,
    unless_fenced,
)
from gazette_platform.cli.output import note, print_json, print_text, printable
from gazette_platform.cli.program import EXIT_FAILED
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, TransportError, ValidationError
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import BrokerSource, LakeSettings, Registrar, StoreRoots, TableSpec
from gazette_platform.lake.engines.spark import running_session
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.raw.audits.registration_status import TableStanding, table_standing
from gazette_platform.lake.raw.repair import CaughtUp, catch_up, reachable
from gazette_platform.lake.typed.runs.jobs import Workers
from gazette_platform.lake.typed.runs.running import RunReport, TypedRunner
from gazette_platform.lake.typed.runs.working import local_workers
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted

_PAUSE_MAX_S: Final = 60.0


@final
class TypedTurns:
    """Tables with the time between the beginnings of their runs.

    A table that is due longest comes first. One whose run left something is due again at once, behind the others that
    are due; one that fails waits longer each time, up to a minute or as long as it would anyway.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def take(self, every_s: Mapping[str, float], now: float) -> tuple[str, float]:
        """Whose turn it is.

        Args:
            every_s: tables that there are, with seconds between runs. Those that are new are due.
            now: the time, in seconds.

        Returns: a table, or else "" and how many seconds until one is due; infinite, if there is no table.
        """
        self._due = {name: self._due.get(name, now) for name in every_s}
        self._failures = {n: count for n, count in self._failures.items() if n in every_s}
        name = min(self._due, key=self._due.__getitem__, default="")
        if not name:
            return "", float("inf")
        wait_s = self._due[name] - now
        return (name, 0.0) if wait_s <= 0 else ("", wait_s)

    def ended(self, name: str, *, began: float, now: float, every_s: float, has_more: bool) -> None:
        """A run of `name` is over.

        Args:
            name: of the table.
            began: when.
            now: the time.
            every_s: seconds between the table's runs.
            has_more: whether it left something.
        """
        self._failures.pop(name, None)
        self._due[name] = now if has_more else max(now, began + every_s)

    def failed(self, name: str, *, now: float, every_s: float) -> float:
        """A run of `name` has failed. Returns: in how many seconds it is tried again."""
        count = self._failures[name] = self._failures.get(name, 0) + 1
        pause_s = max(every_s, min(_PAUSE_MAX_S, every_s * 2.0 ** min(count - 1, 10)))
        self._due[name] = now + pause_s
        return pause_s


@final
class Hands(NamedTuple):
    """Workers, and whether they can still be asked."""

    workers: Workers
    is_alive: Callable[[], bool]


@contextmanager
def workers_of(settings: LakeSettings, engine: Engine | None, line: StepLine) -> Iterator[Hands]:
    """Workers of an engine; Spark ends with it.

    Args:
        settings: of Spark.
        engine: who is asked for; None: Spark, if it is configured.
        line: says that Spark is starting.

    Raises: SetupError, LakeError: Spark is not configured, or does not start.
    """
    is_configured = bool(settings.metastore and settings.iceberg_jar)
    if engine == "local" or (engine is None and not is_configured):
        yield Hands(local_workers(), lambda: True)
        return
    from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415  an extra, and slow
        Py4JError,
    )
    from pyspark.errors import PySparkException  # noqa: PLC0415  as well

    from gazette_platform.spark.typed_workers import SparkWorkers  # noqa: PLC0415  as well

    line.step("starting Spark")
    with running_session(settings) as session:

        def is_alive() -> bool:
            try:
                session.range(1).count()
            except (PySparkException, Py4JError, OSError):
                return False
            return True

        yield Hands(SparkWorkers(session), is_alive)


_JOURNALS_SHOWN = 3
# Seconds between reads of the specs while no table is due.
_LOOK_S = 10.0


def once(
    ctx: typer.Context,
    names: list[str],
    tables: Path | None,
    output_format: OutputFormat,
    *,
    engine: Engine | None,
    give_up: list[str],
    begin_anew: list[str],
) -> None:
    """Run each table once, and exit with 1 if one is not up to date then."""
    settings = settings_of()
    found, refused = typed_named(tables_folder(settings, tables), names)
    given_up = _given_up(give_up)
    for path, given in (("--give-up", give_up), ("--begin-anew", begin_anew)):
        if given and (len(names) != 1 or len(found) != 1):
            raise ValidationError("is about one table: name it", path=path)
    for text in refused:
        note(f"refused: {text}")
    if not found:
        note("note: no spec has a section `typed:` (`gazctl lake infer --typed` proposes one)")
    told: list[dict[str, Any]] = []
    is_well = not refused
    if found:
        with _runner(ctx, settings, engine, output_format) as (runner, client, _):
            for table in found:
                anew = _begun_anew(client, table, begin_anew)
                values, is_whole = _ran(runner, table, given_up, anew)
                is_well &= is_whole
                if output_format == "table":
                    _print_line(values)
                told.append(values)
    if output_format != "table":
        print_values(told, output_format)
    if not is_well:
        raise typer.Exit(EXIT_FAILED)


def go_on(
    ctx: typer.Context,
    names: list[str],
    tables: Path | None,
    output_format: OutputFormat,
    *,
    engine: Engine | None,
) -> None:
    """Run tables that say `every` again and again, until a signal."""
    settings = settings_of()
    folder = tables_folder(settings, tables)
    specs = _Specs(folder, names)
    if names:
        for table in specs.tables().values():
            if not table.typed.every_s:
                told = "says no `every`: give it one in its section, or leave out --continuous"
                raise ValidationError(f"{table.typed.name} {told}")
    clock, turns = SystemClock(), TypedTurns()
    with (
        _runner(ctx, settings, engine, output_format) as (runner, _, is_alive),
        _stopping() as stop,
    ):
        while not stop.is_set():
            found = specs.tables()
            every_s = {n: each.typed.every_s for n, each in found.items() if each.typed.every_s}
            began = clock.monotonic()
            name, wait_s = turns.take(every_s, began)
            if not name:
                stop.wait(min(wait_s, _LOOK_S))
                continue
            try:
                report = runner.run(found[name].typed, found[name].raw)
            except (GazetteError, OSError) as err:
                if not is_alive():
                    raise  # no run would succeed: whoever has started this starts it again
                pause_s = turns.failed(name, now=clock.monotonic(), every_s=every_s[name])
                note(f"{_of(name, err)}; it is tried again in {pause_s:.0f} s")
                continue
            turns.ended(
                name,
                began=began,
                now=clock.monotonic(),
                every_s=every_s[name],
                has_more=report.left_bytes > 0,
            )
            _tell_what_is_missing(report)
            # A line each time that nothing has happened would hide the others.
            if report.run:
                _print_one(run_values(report), output_format)
    note("stopped: each table is as its last run left it")


def caught_up(
    ctx: typer.Context, settings: LakeSettings, tables: list[TypedTable], deadline: float
) -> bool:
    """Run tables until each has all that brokers held when it was begun. What keeps one from it is reported.

    This process does it; for tables with a key, Spark.

    Args:
        deadline: monotonic seconds; no run begins after it.

    Returns: whether they have.
    """
    is_well = True
    by_engine: dict[Engine | None, list[TypedTable]] = {
        "local": [each for each in tables if not each.typed.key],
        None: [each for each in tables if each.typed.key],
    }
    for engine, of_engine in by_engine.items():
        if not of_engine:
            continue
        with _runner(ctx, settings, engine, "table") as (runner, _, _):
            for table in of_engine:
                is_well &= _caught_up(runner, table, deadline)
    return is_well


def _caught_up(runner: TypedRunner, table: TypedTable, deadline: float) -> bool:
    clock = SystemClock()
    while True:
        values, is_whole = _ran(runner, table, {}, {})
        _print_line(values)
        if not is_whole or not values["left_bytes"]:
            return is_whole
        if clock.monotonic() > deadline:
            left = decimal(values["left_bytes"])
            note(f"{table.typed.name}: {left} are left, and --timeout is over: `gazctl lake run`")
            return False


@contextmanager
def _runner(
    ctx: typer.Context,
    settings: LakeSettings,
    engine: Engine | None,
    output_format: OutputFormat,
) -> Iterator[tuple[TypedRunner, Client, Callable[[], bool]]]:
    is_shown = output_format == "table" and sys.stderr.isatty()
    with (
        StepLine(is_shown=is_shown) as line,
        brokers(ctx, settings, reads_files=True) as client,
        workers_of(settings, engine, line) as hands,
    ):
        runner = TypedRunner(typed_catalog(settings), hands.workers, client, log=line.step)
        yield runner, client, hands.is_alive


def _of(name: str, err: GazetteError | OSError) -> str:
    """An error that says which table it is of, once."""
    text = str(err)
    return text if text.startswith(name) else f"{name}: {text}"


def _ran(
    runner: TypedRunner,
    table: TypedTable,
    given_up: Mapping[str, int],
    begin_anew: Mapping[str, int],
) -> tuple[dict[str, Any], bool]:
    """Run a table. Returns: what to report, and whether it is up to date, or will be by runs alone."""
    try:
        report = unless_fenced(
            lambda: runner.run(table.typed, table.raw, given_up=given_up, begin_anew=begin_anew)
        )
    except TransportError:
        raise  # no broker answers, so there is nothing to report on any table
    except (GazetteError, OSError) as err:
        note(_of(table.typed.name, err))
        return {"table": table.typed.name, "error": str(err)}, False
    _tell_what_is_missing(report)
    for journal, offset in given_up.items():
        before = report.before.journals.get(journal)
        after = report.state.journals.get(journal)
        lost = (after.counts.lost_bytes if after else 0) - (
            before.counts.lost_bytes if before else 0
        )
        was_open, is_open = (
            one is not None and one.open_begin is not None and one.open_begin < offset
            for one in (before, after)
        )
        what = [f"{lost} bytes"] * bool(lost)
        what += ["open transactions"] * (was_open and not is_open)
        note(
            f"{report.table}: {' and '.join(what)} of {journal} before {offset} are given up"
            if what
            else f"{report.table}: nothing of {journal} had to be given up"
        )
    for journal in begin_anew:
        if journal in report.begun_anew:
            told = f"is read from offset {report.begun_anew[journal]} on"
        elif journal in report.before.journals:
            told = "is the journal that was read, so nothing was restarted"
        else:
            told = "was not read before, so nothing was restarted"
        note(f"{report.table}: {journal} {told}")
    return run_values(report), not (report.holes or report.unreadable)


@final
class _Specs:
    """Specs of the folder as it is now. What is wrong with them is reported once."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder = folder
        self._names = names
        self._told: set[str] = set()
        self._last: dict[str, TypedTable] = {}
        self._last = {each.typed.name: each for each in typed_named(folder, names)[0]}

    def tables(self) -> dict[str, TypedTable]:
        """By name. Of what is refused now, or gone although it was named, what it was when it was well."""
        try:
            found, refused = typed_named(self._folder, self._names)
        except ValidationError as err:
            self._tell({str(err)})
            return self._last
        self._tell(set(refused))
        self._last = {each.typed.name: each for each in found}
        return self._last

    def _tell(self, texts: set[str]) -> None:
        for text in sorted(texts - self._told):
            note(f"refused: {text}")
        self._told = texts


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first SIGTERM or SIGINT sets; a second one interrupts."""
    stop = threading.Event()

    def handle(_: int, __: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # A handler may come while something is being written.
        with suppress(OSError, RuntimeError):
            note("the current run is the last one; once more drops it")

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _given_up(texts: list[str]) -> dict[str, int]:
    """By journal, an offset. Names of journals may have `=` in them."""
    found: dict[str, int] = {}
    for text in texts:
        journal, equals, offset = text.rpartition("=")
        if not equals or not journal or not offset.isascii() or not offset.isdecimal():
            raise ValidationError(f"{text!r} is not JOURNAL=OFFSET", path="--give-up")
        found[journal] = int(offset)
    return found


def _begun_anew(client: Client, table: TypedTable, texts: list[str]) -> dict[str, int]:
    """By journal, the offset to begin at. Names of journals may end like ``=5``, so a name that exists wins."""
    if not texts:
        return {}
    names = {one.name for one in client.list(table.raw.label_selector)}
    found: dict[str, int] = {}
    for text in texts:
        journal, _, offset = (text, "", "0") if text in names else text.rpartition("=")
        if journal not in names or not offset.isascii() or not offset.isdecimal():
            raise ValidationError(
                f"{text!r} is neither a journal of {table.raw.name} nor JOURNAL=OFFSET of one",
                path="--begin-anew",
            )
        found[journal] = int(offset)
    return found


def run_values(report: RunReport) -> dict[str, Any]:
    """What a run did, as plain values."""
    counts = report.counts
    return {
        "table": report.table,
        "run": report.run or None,
        "snapshot_id": report.snapshot_id,
        "messages": counts.messages,
        "rows": counts.typed,
        "quarantined": counts.quarantined,
        "duplicates": counts.duplicates,
        "files": report.files,
        "read_bytes": report.read_bytes,
        "left_bytes": report.left_bytes,
        "seconds": round(report.seconds, 3),
        "complete_at": report.complete_at.isoformat() if report.complete_at else None,
        "offsets": {name: one.offset for name, one in sorted(report.state.journals.items())},
        "holes": [
            {"journal": h.journal, "begin": h.begin, "end": h.end, "kind": str(h.kind)}
            for h in report.holes
        ],
        "unreadable": dict(report.unreadable),
        "vanished": list(report.vanished),
    }


def _print_one(values: dict[str, Any], output_format: OutputFormat) -> None:
    match output_format:
        case "json":
            print_json(values)
        case "yaml":
            print_text(
                "---\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end=""
            )
        case _:
            _print_line(values)


def _print_line(values: dict[str, Any]) -> None:
    if "error" in values:
        return  # is reported on stderr
    offsets = [f"{name} {offset}" for name, offset in values["offsets"].items()]
    more = len(offsets) - _JOURNALS_SHOWN
    shown = ", ".join(offsets[:_JOURNALS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    if values["run"] is None:
        done = "nothing new"
    else:
        done = (
            f"{values['rows']} row(s), {values['quarantined']} quarantined, {decimal(values['read_bytes'])} in "
            f"{values['seconds']:.1f} s"
        )
    left = f"; {decimal(values['left_bytes'])} left to the next run" if values["left_bytes"] else ""
    at = f"; offsets {shown}" if offsets else ""
    print_text(printable(f"{values['table']}: {done}{left}{at}"))


def _tell_what_is_missing(report: RunReport) -> None:
    for hole in report.holes:
        note(f"{report.table}: {hole_text(report.table, hole)}")
    for journal, why in sorted(report.unreadable.items()):
        note(
            f"{report.table}: brokers report nothing about {journal} now, so it is left out: {why}"
        )


def register(ctx: typer.Context, names: list[str], tables: Path | None, timeout: str) -> None:
    """Have raw tables hold what stores have now."""
    settings = settings_of()
    specs, _ = specs_named(tables_folder(settings, tables), names)
    deadline = SystemClock().monotonic() + seconds_of(timeout, "--timeout")
    is_whole = True
    with _registrar(ctx, settings) as work:
        for spec in specs.values():
            is_whole &= work.catch_up(spec, {}, deadline)
    if not is_whole:
        raise typer.Exit(EXIT_FAILED)


def flush(ctx: typer.Context, names: list[str], tables: Path | None, timeout: str) -> None:
    """Have tables hold what was appended until now."""
    timeout_s = seconds_of(timeout, "--timeout")
    settings = settings_of()
    folder = tables_folder(settings, tables)
    others, typed = apart(folder, names)
    specs, _ = specs_named(folder, [*dict.fromkeys([*others, *(each.raw.name for each in typed)])])
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    with _registrar(ctx, settings) as work:
        for spec in specs.values():
            left = max(1.0, deadline - clock.monotonic())
            work.catch_up(spec, work.client.flush(spec.label_selector, timeout_s=left), deadline)
    behind = [TypedTable(spec.typed, spec) for spec in specs.values() if spec.typed is not None]
    if behind and not caught_up(ctx, settings, behind, deadline):
        raise typer.Exit(EXIT_FAILED)


@final
@dataclass(frozen=True)
class _Registration:
    """Brokers, the metastore, and what registers the ones' fragments in the other."""

    client: Client
    source: BrokerSource
    metastore: MetastoreClient
    registrar: Registrar

    def catch_up(self, spec: TableSpec, ends: Mapping[str, int], deadline: float) -> bool:
        """Register what is stored of a table, up to `ends` at least, and report it.

        Returns: whether nothing is left that an error kept from being registered.
        """
        clock = SystemClock()
        journals = self.source.journals(spec.label_selector)
        with self.metastore.connect() as session:
            standing = table_standing(spec, journals, ends, session, clock.now())
        begins = {each.journal: each.cursor for each in standing.journals}
        reached = reachable(journals, ends)
        done = catch_up(self.registrar, spec, begins, reached, deadline=deadline, clock=clock)
        for text in done.told:
            note(f"{spec.name}: {text}")
        if done.keys:
            print_text(_more(spec, done))
        else:
            with self.metastore.connect() as session:
                standing = table_standing(spec, journals, ends, session, clock.now())
            print_text(nothing_more(standing))
        return done.is_whole


@contextmanager
def _registrar(ctx: typer.Context, settings: LakeSettings) -> Iterator[_Registration]:
    metastore = MetastoreClient(settings.required("metastore"))
    roots, catalog = StoreRoots(settings.store_roots), settings.trino_catalogs.hive
    with brokers(ctx, settings) as client:
        source = BrokerSource(client)
        registrar = Registrar(source, metastore, roots, trino_catalog=catalog)
        yield _Registration(client, source, metastore, registrar)


def _more(spec: TableSpec, done: CaughtUp) -> str:
    rows = "rows that could not be counted" if done.rows is None else f"{done.rows} row(s)"
    return f"{spec.name}: {rows} more, in {len(done.keys)} Hive partition(s)"


def nothing_more(standing: TableStanding) -> str:
    """What to say of a table with nothing left to register."""
    name = standing.spec.name
    if not standing.location:
        why = standing.problems[0] if standing.problems else "nothing was appended to its journals"
        return f"{name}: nothing to register ({why})"
    partitions = counted(len(standing.partitions), "Hive partition")
    rows = "rows not all counted yet" if standing.rows is None else counted(standing.rows, "row")
    return f"{name}: all is registered already, {rows} in {partitions}"
