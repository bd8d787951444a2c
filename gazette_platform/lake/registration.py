"""Registering fragments: from what brokers list to tables and Hive partitions of the metastore.

One call of `Registrar.tick` moves one table on: it lists fragments since the cursor, makes or evolves
the table, adds the Hive partitions that are new and brings the accounts of all touched ones up to
date. The order is table, Hive partitions, accounts, and only then the caller stores the cursor: a
crash anywhere is healed by running the same tick again, which finds what is done and repeats none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.errors import (
    DataError,
    GazetteError,
    LakeError,
    SchemaMismatch,
    ValidationError,
)
from gazette_platform.hive import HivePartition, HiveTable, MetastoreSession
from gazette_platform.lake.check import SAMPLE_BYTES, check_sample
from gazette_platform.lake.content import FragmentContent
from gazette_platform.lake.fit import damage, json_columns, misfit, value_scanner
from gazette_platform.lake.layout import Layout, StoreRoots, partition_columns, require_location
from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.lake.planning import (
    Limits,
    Plan,
    PlannedPartition,
    directory_of,
    make_plan,
    require_codec,
)
from gazette_platform.lake.tables import DIGEST, LAYOUT, ensure_table, table_definition
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from gazette_platform.lake.findings import Finding
    from gazette_platform.lake.source import FragmentSource
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.protocol import Fragment, JournalSpec

__all__ = [
    "JournalProgress",
    "Metastore",
    "PartitionUpdate",
    "Registrar",
    "RegistrationCursor",
    "TableReport",
]

_CURSOR_VERSION = 1
_SAMPLES_MAX = 5


class Metastore(Protocol):
    """Opens sessions: `MetastoreClient`, or a stand-in for it."""

    def connect(self) -> AbstractContextManager[MetastoreSession]:
        """A session for the length of a scope."""
        ...


@final
@dataclass(frozen=True, slots=True)
class RegistrationCursor:
    """Per table and journal, the offset up to which all is registered. No times are in it."""

    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> RegistrationCursor:
        """The cursor whose `str` was `text`; empty for None.

        Raises: ValidationError: not a cursor of this version; says how to reset it.
        """
        if not text:
            return cls()
        try:
            raw = json.loads(text)
            if raw["version"] != _CURSOR_VERSION:
                raise ValidationError(f"cursor has version {raw['version']}", path="cursor")
            return cls(
                {
                    str(table): {str(j): int(offset) for j, offset in journals.items()}
                    for table, journals in raw["tables"].items()
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise ValidationError(
                f"{text[:60]!r} is not a cursor of this sensor: clear it in the Dagster UI; "
                "everything is then registered anew, which repeats no row",
                path="cursor",
            ) from err

    def dump(self) -> str:
        """The cursor as text, in one canonical form."""
        return json.dumps(
            {"version": _CURSOR_VERSION, "tables": self.offsets},
            sort_keys=True,
            separators=(",", ":"),
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUpdate:
    """A Hive partition that a tick changed."""

    key: str
    values: tuple[str, ...]
    location: str
    journal: str
    is_new: bool
    fragments_added: int
    rows_added: int | None
    content_bytes_added: int
    state: PartitionState
    """Totals after the tick."""


@final
@dataclass(frozen=True, slots=True)
class JournalProgress:
    """How far a journal is registered, and where its listed content ends."""

    journal: str
    registered: int
    write_head: int

    @property
    def lag_bytes(self) -> int:
        """Bytes appended but not registered."""
        return max(0, self.write_head - self.registered)


@final
@dataclass(slots=True, kw_only=True)
class TableReport:
    """What one tick did to one table."""

    table: str
    offsets: dict[str, int] = field(default_factory=dict)
    journals: list[JournalProgress] = field(default_factory=list)
    updates: list[PartitionUpdate] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What works otherwise than one may expect; told once, when the table is made or changed."""
    misfits: list[Finding] = field(default_factory=list)
    """New fragments that cannot be read, or do not hold what the spec says."""
    columns: set[str] = field(default_factory=set)
    """Columns that records of the new fragments have, or could not be looked for."""
    is_changed: bool = False
    """Whether the table was made, or follows another spec, since the last tick."""
    has_more: bool = False
    definition: HiveTable | None = None
    """The table in the metastore, if it exists."""


@final
class Registrar:
    """Registers fragments of tables. Holds no state between ticks, nor open connections.

    Args:
        source: lists journals and fragments.
        metastore: where tables are made.
        roots: where fragment stores lie for engines.
        limits: bounds of one table's tick.
    """

    def __init__(
        self,
        source: FragmentSource,
        metastore: Metastore,
        roots: StoreRoots,
        limits: Limits | None = None,
    ) -> None:
        self._source = source
        self._metastore = metastore
        self._roots = roots
        self._limits = limits or Limits()
        self._content = FragmentContent(source)

    def tick(self, spec: TableSpec, offsets: Mapping[str, int]) -> TableReport:
        """Register what is new of one table, within the limits.

        Args:
            spec: the table.
            offsets: the table's part of the cursor.

        Returns: what was done, with the offsets to store; errors of single journals are in it.
        Raises: GazetteError: broker or metastore cannot be reached, or the spec does not fit the
            data or the table that exists. Nothing is registered then, and the offsets stay.
        """
        report = TableReport(table=spec.name, offsets=dict(offsets))
        journals = self._source.journals(spec.label_selector)
        if not journals:
            return report
        with self._metastore.connect() as session:
            table = session.table(spec.schema, spec.table)
            if table is None:
                # The table was never made, or was dropped: it gets everything.
                report.offsets = {}
            listed = self._list([j.name for j in journals], report)
            is_current = table is not None and table.parameters.get(DIGEST) == spec.digest
            if table is None or not is_current:
                table = self._make_table(session, spec, journals, listed, table)
                if table is None:
                    return report
                report.warnings += _codec_warnings(spec, journals)
                report.is_changed = True
            report.definition = table
            self._register(session, spec, table, listed, report)
        heads = {p.journal: p.write_head for p in report.journals}
        report.journals = [
            JournalProgress(journal, report.offsets.get(journal, 0), head)
            for journal, head in heads.items()
        ]
        return report

    def _list(self, journals: Sequence[str], report: TableReport) -> dict[str, list[Fragment]]:
        """Fragments since the report's offsets, of as many journals as the limits allow.

        A fragment is found by its begin. When the first one found begins beyond the offset, a
        larger fragment that took the place of smaller ones may span it: then all are listed.
        """
        listed: dict[str, list[Fragment]] = {}
        budget = self._limits.fragments_max
        for journal in journals:
            if budget <= 0:
                report.has_more = True
                break
            offset = report.offsets.get(journal, 0)
            limit = min(self._limits.page_limit, budget)
            fragments = self._source.fragments(journal, offset, limit)
            if offset and fragments and fragments[0].begin > offset:
                spanning = [
                    f for f in self._source.fragments(journal, 0, limit) if f.begin < offset < f.end
                ]
                fragments = spanning + fragments
            listed[journal] = fragments
            budget -= len(fragments)
            report.has_more = report.has_more or len(fragments) >= limit
            head = max((f.end for f in fragments), default=offset)
            report.journals.append(JournalProgress(journal, offset, head))
        return listed

    def _make_table(
        self,
        session: MetastoreSession,
        spec: TableSpec,
        journals: Sequence[JournalSpec],
        listed: Mapping[str, Sequence[Fragment]],
        existing: HiveTable | None,
    ) -> HiveTable | None:
        """Make or evolve the table, or do nothing while no fragment shows its layout."""
        for journal in journals:
            require_codec(journal.name, journal.fragment.codec)
        firsts = _firsts(listed)
        first = firsts[0] if firsts else None
        if existing is not None and LAYOUT in existing.parameters:
            # The spec changed: its columns may, its layout may not.
            layout = Layout.parse(existing.parameters[LAYOUT])
            location = existing.location
        elif first is None:
            return None
        else:
            Layout.of_journals(j.name for j in journals)
            directory = directory_of(first)
            layout = Layout.of_directory(directory)
            location = self._roots.location(first.backing_store, layout.base)
        wanted = table_definition(spec, layout, location)
        if existing is None or existing.columns != wanted.columns:
            self._require_fit(spec, [*firsts, *_lasts(listed)])
        return ensure_table(session, wanted)

    def _require_fit(self, spec: TableSpec, samples: Sequence[Fragment]) -> None:
        """Refuse a spec that none of `samples` fits.

        Raises: GazetteError: what is wrong with the first of them.
        """
        error: GazetteError | None = None
        for first in samples:
            where = self._roots.location(first.backing_store, directory_of(first))
            try:
                sample = self._content.head(first, where, SAMPLE_BYTES)
                check_sample(spec, sample, f"fragment {first.content_path}")
            except (DataError, SchemaMismatch) as err:
                error = error or err
            else:
                return
        if error is not None:
            raise error

    def _register(
        self,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        listed: Mapping[str, Sequence[Fragment]],
        report: TableReport,
    ) -> None:
        layout = Layout.parse(table.parameters[LAYOUT])
        plan = make_plan(
            listed,
            offsets=report.offsets,
            layout=layout,
            columns=partition_columns(spec, layout),
            roots=self._roots,
            limits=self._limits,
        )
        report.errors += [str(err) for err in plan.errors.values()]
        report.has_more = report.has_more or not plan.is_complete
        if not plan.partitions:
            report.offsets = plan.offsets
            return
        if layout.keys:
            self._account_partitions(session, spec, table, plan, report)
        else:
            self._account_table(session, spec, table, plan, report)
        report.offsets = plan.offsets

    def _account_partitions(
        self,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        plan: Plan,
        report: TableReport,
    ) -> None:
        existing = session.partitions_of(table, [p.values for p in plan.partitions])
        missing = [p for p in plan.partitions if p.values not in existing]
        for planned in missing:
            # A wrong root must not make Hive partitions that are empty for ever.
            self._content.require_stored(planned.fragments[0], planned.location)
        # New ones first become visible to engines; counting rows may take a while.
        session.add_partitions(
            table,
            [
                HivePartition(
                    values=p.values,
                    location=p.location,
                    parameters=PartitionState().to_parameters(),
                )
                for p in missing
            ],
        )
        changed: list[HivePartition] = []
        for planned in plan.partitions:
            found = existing.get(planned.values)
            parameters = found.parameters if found is not None else {}
            if found is not None:
                require_location(table.full_name, planned.key, found.location, planned.location)
            update = self._account(spec, planned, parameters, is_new=found is None, report=report)
            if update is not None:
                report.updates.append(update)
                changed.append(
                    HivePartition(
                        values=planned.values,
                        location=found.location if found is not None else planned.location,
                        parameters={**parameters, **update.state.to_parameters()},
                    )
                )
        session.alter_partitions(table, changed)

    def _account_table(
        self,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        plan: Plan,
        report: TableReport,
    ) -> None:
        """A table without keys has one directory, and its accounts in its own parameters."""
        (planned,) = plan.partitions
        require_location(table.full_name, planned.key, table.location, planned.location)
        update = self._account(spec, planned, table.parameters, is_new=False, report=report)
        if update is not None:
            parameters = {**table.parameters, **update.state.to_parameters()}
            session.alter_table(replace(table, parameters=parameters))
            report.updates.append(update)

    def _account(
        self,
        spec: TableSpec,
        planned: PlannedPartition,
        parameters: Mapping[str, str],
        *,
        is_new: bool,
        report: TableReport,
    ) -> PartitionUpdate | None:
        """Count what is new in a Hive partition. Returns: None if nothing is."""
        before = PartitionState.from_parameters(parameters)
        state = before
        rows_added: int | None = 0
        for fragment in planned.fragments:
            if state.covers(fragment.begin, fragment.end):
                continue
            rows = stored = None
            try:
                counted = self._content.count(
                    fragment,
                    planned.location,
                    columns=json_columns(spec) - report.columns,
                    scanner=value_scanner(spec),
                )
            except DataError as err:
                # Its Hive partition is registered all the same: the other files are good, and the
                # engines, too, name the damaged one.
                report.misfits.append(damage(spec, fragment, planned.location, err))
            else:
                rows, stored = counted.rows, counted.stored_bytes
                report.columns |= counted.columns
                found = misfit(spec, fragment, planned.location, counted)
                report.misfits += [found] if found is not None else []
            rows_added = None if rows is None or rows_added is None else rows_added + rows
            state = state.adding(
                fragment.journal, fragment.begin, fragment.end, rows=rows, stored_bytes=stored
            )
        if state == before:
            return None
        if before.journal not in ("", planned.journal):
            raise LakeError(
                f"Hive partition {planned.key} of {report.table} holds journal {before.journal} "
                f"already, so {planned.journal} may not write there; give them different keys"
            )
        return PartitionUpdate(
            key=planned.key,
            values=planned.values,
            location=planned.location,
            journal=planned.journal,
            is_new=is_new,
            fragments_added=state.fragments - before.fragments,
            rows_added=rows_added,
            content_bytes_added=state.content_bytes - before.content_bytes,
            state=state,
        )


def _firsts(listed: Mapping[str, Sequence[Fragment]]) -> list[Fragment]:
    """A few persisted fragments: the first of each journal, then the second ones."""
    persisted = [
        [f for f in fragments if f.backing_store and f.content_length][:_SAMPLES_MAX]
        for fragments in listed.values()
    ]
    rounds = zip_longest(*persisted)
    return [f for fragments in rounds for f in fragments if f is not None][:_SAMPLES_MAX]


def _lasts(listed: Mapping[str, Sequence[Fragment]]) -> list[Fragment]:
    """A few persisted fragments: the last ones, so that bad first ones refuse no table for ever."""
    return _firsts({journal: list(reversed(fragments)) for journal, fragments in listed.items()})


def _codec_warnings(spec: TableSpec, journals: Sequence[JournalSpec]) -> list[str]:
    zstandard = [j.name for j in journals if j.fragment.codec == CompressionCodec.ZSTANDARD]
    if not zstandard:
        return []
    return [
        (
            f"{spec.name}: {len(zstandard)} of its journals (such as {zstandard[0]}) write ZSTANDARD "
            "fragments, which Trino reads, and Spark only with a codec class for them in "
            "`spark.hadoop.io.compression.codecs`: set `compression_codec: GZIP` if Spark is to read "
            "the table"
        )
    ]
