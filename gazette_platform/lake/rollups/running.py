"""A run of a rollup: read what it covers, read its sources, make what differs, commit.

The order is what makes it right. What the table covers is read first, then what sources hold, then their rows. So rows are
at least as new as the sources' state that is noted for them, and that is at least as new as anything that was committed
before. The fence finds whatever is committed meanwhile.

Accounts of a raw table follow a prune minutes later, when brokers know of it. A slice that was made again in between would
hold less than its cover says, and the existing rows would be lost. So a run looks for the files of its parts before and
after it reads rows: files do not come back, so what exists now existed then.

Files do come back of a store that was away, which engines read as empty. A slice that was made meanwhile would lack rows
for ever, since its cover says that it has them. So a run waits for a part without any file, also for slices that are made
for the first time, or that may shrink: either the store returns, or accounts follow the prune.

Cost: a listing of each directory that a slice is made of; engines that read it make the same.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, final

from pyarrow.fs import FileSelector  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.hive import partition_name
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.raw.views import VIEW_OF, excluded_digests
from gazette_platform.lake.rollups.engines import SourceTable, StagingTable
from gazette_platform.lake.rollups.planning import (
    Plan,
    Sealed,
    Seen,
    SourceState,
    batches,
    covers_after,
    make_plan,
    with_new_aliases,
)
from gazette_platform.lake.rollups.spec import STAGING_SCHEMA
from gazette_platform.lake.rollups.table import (
    Commit,
    Committed,
    commit,
    covers_path,
    read_covers,
)
from gazette_platform.lake.spec.rules import EXACT_SUFFIX, LINES_SUFFIX
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import parse_fragment_path
from gazette_platform.protocol.offsets import merge_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.hive import HiveTable, Metastore, MetastoreSession
    from gazette_platform.lake.iceberg.metastore import IcebergTable, IcebergTables
    from gazette_platform.lake.rollups.engines import RollupEngine
    from gazette_platform.lake.rollups.planning import Covers, SliceCover
    from gazette_platform.lake.rollups.spec import RollupSpec
    from gazette_platform.ops.clock import Clock


@final
@dataclass(frozen=True, slots=True)
class Source:
    """A source as it is now."""

    state: SourceState
    table: SourceTable
    columns: tuple[str, ...]
    """Names that a query has for its columns, those of partitions last."""
    locations: Mapping[str, str] = field(default_factory=dict)
    """Of a raw table: directories by name of the part."""
    unfit_records: int = 0
    """Of a raw table: records that do not fit its spec, by its accounts."""


def read_sources(
    session: MetastoreSession, tables: IcebergTables, spec: RollupSpec
) -> dict[str, Source]:
    """The sources of a rollup by alias.

    What is read of them later is at least what is reported here, unless it was pruned: see `whole`.

    Raises: LakeError: a table is not there, or neither a raw table nor Iceberg's; or a server or file
        cannot be reached.
    """
    found: dict[str, Source] = {}
    for alias, name in spec.sources.items():
        schema, _, table_name = name.partition(".")
        table = session.table(schema, table_name)
        if table is None:
            raise LakeError(f"{spec.name} waits for {name}, which is not made yet")
        if table.parameters.get(VIEW_OF) == f"{name}{LINES_SUFFIX}":
            table = session.table(schema, f"{table_name}{LINES_SUFFIX}") or table
        if LAYOUT in table.parameters:
            found[alias] = _raw(session, name, table)
        else:
            found[alias] = _iceberg(session, tables, name)
    return found


def _raw(session: MetastoreSession, name: str, table: HiveTable) -> Source:
    view_name = f"{name.partition('.')[2]}{EXACT_SUFFIX}"
    view = session.table(table.database, view_name)
    if view is None:
        raise LakeError(
            f"view {name}{EXACT_SUFFIX} is not made yet; the sensor makes it when it first audits "
            "the table"
        )
    excluded = excluded_digests(view)
    keys = [c.name for c in table.partition_columns]
    parts: dict[str, tuple[tuple[str, ...], Seen]] = {}
    locations: dict[str, str] = {}
    unfit_records = 0
    if keys:
        for partition in session.partitions(table):
            state = PartitionState.from_parameters(partition.parameters)
            part = partition_name(keys, partition.values)
            # An empty part in a cover would make the slice look stale when the partition is
            # dropped.
            if state.ranges:  # else it is new, or all of it was pruned
                parts[part] = (partition.values, _seen(state, part, excluded))
                locations[part] = partition.location
                unfit_records += state.unfit_records
    else:
        state = PartitionState.from_parameters(table.parameters)
        if state.ranges:
            parts[""] = ((), _seen(state, "", excluded))
            locations[""] = table.location
            unfit_records = state.unfit_records
    return Source(
        SourceState(table=name, columns=tuple(keys), parts=parts),
        SourceTable(
            schema=table.database,
            table=view_name,
            is_iceberg=False,
            types={c.name: c.type for c in table.partition_columns},
        ),
        tuple(c.name for c in (*table.columns, *table.partition_columns)),
        locations,
        unfit_records,
    )


def _seen(state: PartitionState, name: str, excluded: dict[str, str]) -> Seen:
    notes = [f"twice-{state.overlap_bytes}"] if state.overlap_bytes else []
    notes += [f"without-{excluded[key]}" for key in ("*", name) if key in excluded]
    return Seen(state.journal, state.ranges, " ".join(notes), state.created, state.formerly)


def _iceberg(session: MetastoreSession, tables: IcebergTables, name: str) -> Source:
    schema, _, table_name = name.partition(".")
    table = tables.load_within(session, schema, table_name)
    if table is None:
        raise LakeError(f"{name} was dropped at this moment; the next run looks again")
    types = table.slice_types()
    columns: tuple[str, ...] = ()
    parts: dict[str, tuple[tuple[str, ...], Seen]] = {}
    if covers_path(table.metadata):
        covers = read_covers(tables, table)
        columns = covers.columns
        for values, cover in covers.slices.items():
            parts[partition_name(columns, values)] = (values, Seen(note=cover.digest))
    elif table.snapshot is not None:
        parts[""] = ((), Seen(note=str(table.snapshot.snapshot_id)))
    return Source(
        SourceState(table=name, columns=columns, parts=parts, can_shrink=False),
        SourceTable(
            schema=schema,
            table=table_name,
            is_iceberg=True,
            types={column: types[column] for column in columns if column in types},
        ),
        tuple(f.name for f in table.metadata.schema().fields),
    )


# Directories that are listed at a time: a listing of an object store takes some 50 ms, nearly all of it waiting.
_LISTINGS_MAX: Final = 8


@final
@dataclass(frozen=True, slots=True)
class Lost:
    """Why a slice is not made."""

    part: str
    """Sources whose content is gone: alias and name."""
    is_away: bool
    """Whether all of it is gone, as of a store that is away."""


def lost_slices(
    tables: IcebergTables,
    sources: Mapping[str, Source],
    made: Mapping[tuple[str, ...], SliceCover],
    *,
    again: Container[tuple[str, ...]],
) -> dict[tuple[str, ...], Lost]:
    """Those of some slices whose raw content is not in its files: not all of it, or none of a part.

    Args:
        tables: reaches the files.
        sources: by alias; where the parts of raw ones lie.
        made: the slices, and of what they are made.
        again: those that need all content; the others need some of each part.

    Raises: LakeError: a directory cannot be listed.
    """
    parts = {
        (alias, name): seen
        for cover in made.values()
        for alias, by_name in cover.parts.items()
        for name, seen in by_name.items()
        if seen.journal and alias in sources and name in sources[alias].locations
    }
    with ThreadPoolExecutor(_LISTINGS_MAX, "gazette-rollup-files") as executor:
        found = executor.map(
            lambda part: _look(tables, sources[part[0]].locations[part[1]], parts[part]), parts
        )
        # List each directory once: many slices may share a part.
        known = dict(zip(parts, found, strict=True))
    lost: dict[tuple[str, ...], Lost] = {}
    for values, cover in made.items():
        for alias, by_name in cover.parts.items():
            for name in by_name:
                is_whole, is_away = known.get((alias, name), (True, False))
                # A store that is away lists as empty. A slice made now would lack rows, and its
                # cover would say that it has them.
                if is_away or (not is_whole and values in again and values not in lost):
                    lost[values] = Lost(f"{alias} {name}".strip(), is_away)
    return lost


def _look(tables: IcebergTables, location: str, seen: Seen) -> tuple[bool, bool]:
    """Whether all content of a part is in its files, and whether none is."""
    # By offsets and not by names: a covered file may have been moved aside, and others hold its
    # bytes.
    held = merge_ranges(_spans(tables, location, seen.journal))
    is_whole = all(any(b <= begin and end <= e for b, e in held) for begin, end in seen.ranges)
    is_away = not any(b < end and begin < e for b, e in held for begin, end in seen.ranges)
    return is_whole, is_away


def _spans(tables: IcebergTables, location: str, journal: str) -> Iterable[tuple[int, int]]:
    """Offsets of the fragments in a directory."""
    io: Any = tables.io(location)  # of PyArrow, as for all schemes that stores have
    scheme, netloc, path = io.parse_location(location)
    try:
        entries = io.fs_by_scheme(scheme, netloc).get_file_info(
            FileSelector(path, allow_not_found=True)
        )
    except OSError as err:
        raise LakeError(
            f"cannot list {location}, so it is unknown whether its content still exists: {err}"
        ) from err
    for entry in entries:
        try:
            fragment = parse_fragment_path(journal, entry.base_name)
        except ValidationError:
            continue  # no fragment
        yield fragment.begin, fragment.end


# Each is named in the statement, and Iceberg's writers keep a file open for each.
_SLICES_MAX: Final = 100
# No run takes as long; what is older was left by one that was killed.
_STAGING_AGE_MAX_S: Final = 24 * 3600.0


@final
@dataclass(slots=True, kw_only=True)
class RollupReport:
    """What a run did, and what the table covers now."""

    table: str
    covers: Covers
    now: TableMetadata | None
    """The table as the run left it; None: it was never made."""
    source_columns: Mapping[str, tuple[str, ...]]
    """Columns of the sources, by their aliases."""
    unfit_records: int = 0
    """Records of its raw tables that do not fit their specs."""
    made: list[tuple[str, ...]] = field(default_factory=list)
    dropped: list[tuple[str, ...]] = field(default_factory=list)
    behind: list[Sealed] = field(default_factory=list)
    """Slices that lack something and cannot be made again, since raw content was pruned, or is away."""
    is_waiting: bool = False
    """Whether all files of a part are gone, so that it is worth while to look again: a store may be away."""
    is_rebuild: bool = False
    rows_made: int = 0
    rows_total: int | None = None
    """None: nothing was committed."""
    snapshot_id: int | None = None


def _silent(_: str) -> None:
    return


@final
class RollupRunner:
    """Runs rollups on one engine; holds no connection between runs.

    Args:
        metastore: opens sessions.
        tables: Iceberg tables of the same metastore.
        engine: makes the slices.
        slices_max: how many slices one statement makes.
        clock: decides how old staging tables are.
        log: gets a line for each step.
    """

    def __init__(
        self,
        metastore: Metastore,
        tables: IcebergTables,
        engine: RollupEngine,
        *,
        slices_max: int = _SLICES_MAX,
        clock: Clock | None = None,
        log: Callable[[str], None] = _silent,
    ) -> None:
        self._metastore = metastore
        self._tables = tables
        self._engine = engine
        self._slices_max = slices_max
        self._clock = clock or SystemClock()
        self._log = log

    def run(self, spec: RollupSpec, *, is_forced: bool = False) -> RollupReport:
        """Bring a rollup up to date, in as many commits as batches of slices.

        If its code has changed, all is one commit. After an error the commits made so far hold, and the
        next run goes on from there.

        Args:
            spec: the rollup.
            is_forced: make all again from current content, and drop the rest.

        Raises: TableFenced: another run committed meanwhile. LakeError: a source is not there yet, the query
            was refused, or a server cannot be reached.
        """
        found, covers, sources = _read(self._metastore, self._tables, spec)
        base = found.metadata if found is not None else None
        former = covers_path(base) if base is not None else ""
        plan = make_plan(spec, _states(sources), covers, is_forced=is_forced)
        is_waiting = False
        if not is_forced:
            plan, is_waiting = self._without_lost(spec, plan, sources, covers)
        report = RollupReport(
            table=spec.name,
            covers=covers,
            now=base,
            source_columns={alias: source.columns for alias, source in sources.items()},
            unfit_records=sum(source.unfit_records for source in sources.values()),
            behind=plan.behind,
            is_waiting=is_waiting,
            is_rebuild=plan.is_rebuild,
        )
        if plan.is_idle:
            return report
        self._prepare(spec)
        work = batches(plan, self._slices_max)
        # One commit for each batch, so that a killed run loses one batch at most.
        groups = [work] if plan.is_rebuild or not work else [[batch] for batch in work]
        location = (
            base.location
            if base is not None
            else self._tables.new_location(spec.schema, spec.table)
        )
        for group in groups:
            made = {values: cover for batch in group for values, cover in batch.items()}
            after = covers_after(spec, covers, plan, made)
            done = self._make(
                group,
                sources,
                covers,
                Commit(
                    spec=spec,
                    base=base,
                    former=former,
                    location=location,
                    staging=_staging_name(spec, self._clock) if group else "",
                    replaced={*made, *plan.drop},
                    made=list(made),
                    covers=after,
                    # Both are one commit of all there is.
                    replaces_all=is_forced or (base is not None and covers.columns != spec.slices),
                ),
                is_forced=is_forced,
            )
            covers = after
            self._note(report, plan, done, covers, made)
            plan = Plan(plan.make, (), plan.sealed, plan.is_rebuild)  # what goes is gone by now
            base, former = done.metadata, done.path
        return report

    def _without_lost(
        self, spec: RollupSpec, plan: Plan, sources: Mapping[str, Source], covers: Covers
    ) -> tuple[Plan, bool]:
        """The plan without slices whose files are gone although accounts still count them.

        Returns: it; and whether it is worth while to look again for them.
        Raises: LakeError: the table has slices of other columns, so that nothing of it could stay.
        """
        # Slices of other columns cannot stay beside new ones.
        is_anew = bool(covers.slices) and covers.columns != spec.slices
        lost = lost_slices(self._tables, sources, plan.make, again=_again(spec, plan.make, covers))
        if is_anew and lost:
            raise LakeError(
                f"{next(iter(lost.values())).part} was pruned, or its store is away, so {spec.name} cannot be sliced "
                "by other columns without losing rows: undo that, give the rollup another name, or run it with "
                "`force: true`"
            )
        for values, why in lost.items():
            self._log(
                f"{spec.name}: slice {values} is left as it is, since {why.part} was pruned"
                + (", or its store is away" if why.is_away else "")
            )
        make = {values: cover for values, cover in plan.make.items() if values not in lost}
        sealed = (*plan.sealed, *(Sealed(values, is_behind=True) for values in sorted(lost)))
        is_waiting = any(why.is_away for why in lost.values())
        return replace(plan, make=make, sealed=sealed), is_waiting

    def _make(
        self,
        group: Sequence[Mapping[tuple[str, ...], SliceCover]],
        sources: Mapping[str, Source],
        covers: Covers,
        what: Commit,
        *,
        is_forced: bool,
    ) -> Committed:
        """Make some slices and commit them."""
        spec, name = what.spec, what.staging
        staging = StagingTable(
            name=name, location=f"{what.location}/data/{name}", slices=spec.slices
        )
        tables = {alias: source.table for alias, source in sources.items()}
        try:
            for index, batch in enumerate(group):
                self._engine.stage(staging, spec, tables, list(batch), is_first=index == 0)
                self._log(f"{spec.name}: made {len(batch)} slices")
            if not is_forced:
                # Look again after reading: a prune during the query would have removed rows that
                # the cover claims.
                made = {values: what.covers.slices[values] for values in what.made}
                self._require_whole(spec, sources, made, covers)
            return commit(self._tables, what)
        finally:
            # Its files are the rollup's now, or else orphans, which maintenance removes. A later run
            # forgets the table if this cannot.
            if name:
                with suppress(LakeError):
                    self._tables.forget(STAGING_SCHEMA, name)

    def _require_whole(
        self,
        spec: RollupSpec,
        sources: Mapping[str, Source],
        made: Mapping[tuple[str, ...], SliceCover],
        covers: Covers,
    ) -> None:
        """Refuse to commit a slice whose content went while it was read.

        Raises: LakeError: names the slice; the next run leaves it as it is.
        """
        lost = lost_slices(self._tables, sources, made, again=_again(spec, made, covers))
        for values, why in lost.items():
            raise LakeError(
                f"{why.part} was pruned while slice {values} of {spec.name} was made from it, so "
                "nothing was changed; the next run leaves that slice as it is"
            )

    def _note(
        self,
        report: RollupReport,
        plan: Plan,
        done: Committed,
        covers: Covers,
        made: Mapping[tuple[str, ...], SliceCover],
    ) -> None:
        report.covers = covers
        report.now = done.metadata
        report.made += made
        report.dropped += plan.drop
        report.rows_made += done.rows
        report.rows_total = done.rows_total
        report.snapshot_id = done.snapshot_id
        self._log(f"{report.table}: committed {len(made)} slices, {done.rows} rows")

    def _prepare(self, spec: RollupSpec) -> None:
        """Make the schemas, and forget staging tables that a killed run left."""
        for database in (spec.schema, STAGING_SCHEMA):
            self._tables.ensure_database(database)
        prefix = f"{spec.schema}__{spec.table}__"
        with self._metastore.connect() as session:
            for name in session.tables(STAGING_SCHEMA):
                made_at = name.removeprefix(prefix).partition("_")[0]
                if not name.startswith(prefix) or not _is_hex(made_at):
                    continue
                # Another run may be filling its own staging table right now. The time in the name
                # tells both apart.
                if self._clock.unix_s() - int(made_at, 16) > _STAGING_AGE_MAX_S:
                    session.drop_table(STAGING_SCHEMA, name)
                    self._log(f"{spec.name}: forgot {name}, which another run left behind")


def _again(
    spec: RollupSpec, made: Mapping[tuple[str, ...], SliceCover], covers: Covers
) -> set[tuple[str, ...]]:
    """Those of the slices made that replace rows which may not get fewer."""
    if spec.retention == "follow" or not covers.slices:
        return set()
    return {v for v in made if covers.columns != spec.slices or v in covers.slices}


def slices_behind(metastore: Metastore, tables: IcebergTables, spec: RollupSpec) -> list[Sealed]:
    """Slices that lack something and cannot be made again, since raw content was pruned; changes nothing.

    Raises: LakeError: a source is not there yet, or a server cannot be reached.
    """
    return plan_of(metastore, tables, spec).behind


def plan_of(metastore: Metastore, tables: IcebergTables, spec: RollupSpec) -> Plan:
    """What the next run would do, as far as that is known before it reads any row; changes nothing.

    Raises: LakeError: a source is not there yet, or a server cannot be reached.
    """
    _, covers, sources = _read(metastore, tables, spec)
    return make_plan(spec, _states(sources), covers)


def _read(
    metastore: Metastore, tables: IcebergTables, spec: RollupSpec
) -> tuple[IcebergTable | None, Covers, dict[str, Source]]:
    """The table, what it covers and its sources, in this order."""
    # This order is the fence's basis: whatever is committed after this load is found by the
    # comparison.
    base = tables.load(spec.schema, spec.table)
    covers = read_covers(tables, base)
    with metastore.connect() as session:
        sources = read_sources(session, tables, spec)
    return base, with_new_aliases(_states(sources), covers), sources


def _states(sources: Mapping[str, Source]) -> dict[str, SourceState]:
    return {alias: source.state for alias, source in sources.items()}


def _staging_name(spec: RollupSpec, clock: Clock) -> str:
    """Return an unused name, which says when the table was made."""
    return f"{spec.schema}__{spec.table}__{int(clock.unix_s()):x}_{uuid.uuid4().hex[:8]}"


def _is_hex(text: str) -> bool:
    return bool(text) and set(text) <= set("0123456789abcdef")
