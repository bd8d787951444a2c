"""Backfills of a typed table: make rows again, of ranges of journals, or of a Hive partition of the raw table.

For after a spec was changed, or rows were lost or duplicated. It may be done any number of times: rows of the ranges
go, whatever they are, and what is committed of their messages comes, in one commit. Quarantine likewise. What is committed
there is decided from a state before the range (`plan_backfill`), and, where a transaction is open at its end, by what is behind.

Rows of missing content cannot be made again: they stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias, final

from gazette_platform.client import FragmentListing
from gazette_platform.errors import DataError, LakeError, OffsetJump, TableFenced
from gazette_platform.lake.iceberg.catalog import Loaded
from gazette_platform.lake.spec.layout import Layout, PartitionColumn, home_directory
from gazette_platform.lake.spec.table_spec import Partition
from gazette_platform.lake.typed.planning.ranges import (
    Limits,
    held_ranges,
    plan_backfill,
    tasks_between,
    whole_ranges,
)
from gazette_platform.lake.typed.planning.rounds import BackfillRounds
from gazette_platform.lake.typed.planning.row_ranges import RowRanges
from gazette_platform.lake.typed.runs.amending import Amendment, publish_amendment, require_no_key
from gazette_platform.lake.typed.runs.journals import journals_of
from gazette_platform.lake.typed.runs.running import job_of, work_through
from gazette_platform.lake.typed.runs.working import discard
from gazette_platform.lake.typed.tables.progress import FormerStates
from gazette_platform.lake.typed.tables.quarantine import rows_within
from gazette_platform.lake.typed.tables.table import open_both
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.client import Client
    from gazette_platform.client.read.extents import JournalSnapshot
    from gazette_platform.lake.iceberg.catalog import TypedCatalog
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.ranges import (
        BackfillPlan,
        BackfillRange,
        Hole,
        Task,
    )
    from gazette_platform.lake.typed.planning.rounds import Done, Order
    from gazette_platform.lake.typed.planning.state import TypedState
    from gazette_platform.lake.typed.runs.amending import Amended
    from gazette_platform.lake.typed.runs.jobs import Job, Output, Workers
    from gazette_platform.lake.typed.tables.table import TypedTable
    from gazette_platform.ops.clock import Clock

Wanted: TypeAlias = Mapping[str, Sequence[tuple[int, int]]] | Callable[[FragmentListing], bool]
"""Offsets [begin, end) by journal; or which stored fragments, such as those of a Hive partition."""


@final
@dataclass(frozen=True, kw_only=True)
class BackfillReport:
    """What a backfill did."""

    table: str
    """``schema.table``."""
    metadata: TableMetadata
    """Of the table after it."""
    state: TypedState
    """After it: offsets and producers are unchanged."""
    run: str = ""
    """Name of its publication; empty: there was nothing to make again."""
    snapshot_id: int | None = None
    """That was published."""
    ranges: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Offsets by journal of what was made again."""
    typed: int = 0
    """Rows of these, now."""
    quarantined: int = 0
    """Records of these in quarantine, now."""
    typed_before: int = 0
    quarantined_before: int = 0
    files: int = 0
    """Of rows."""
    read_bytes: int = 0
    """Of the ranges, uncompressed."""
    holes: tuple[Hole, ...] = ()
    """Of what was asked for; rows of such bytes were kept."""
    behind: tuple[tuple[str, int, int], ...] = ()
    """Journals and offsets of what was asked for that no run has read yet."""
    seconds: float = 0.0
    """That it took."""

    @property
    def healed(self) -> int:
        """How many lost messages have rows again; below 0: how many rows were too many."""
        before = self.typed_before + self.quarantined_before
        return self.typed + self.quarantined - before


def _silent(_: str) -> None:
    return


@final
class BackfillRunner:
    """Backfills typed tables. Arguments are those of `TypedRunner`."""

    def __init__(
        self,
        catalog: TypedCatalog,
        workers: Workers,
        client: Client,
        *,
        log: Callable[[str], None] = _silent,
        clock: Clock | None = None,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._client = client
        self._log = log
        self._clock = clock or SystemClock()

    def run(
        self, spec: TypedSpec, raw: TableSpec, wanted: Wanted, *, limits: Limits | None = None
    ) -> BackfillReport:
        """Make rows again, in one commit. Runs may go on meanwhile.

        Args:
            spec: of the typed table, which is changed as it says.
            raw: of the raw table: its selector says which journals there are.
            wanted: what is made again. Offsets are made wider, to whole fragments.
            limits: only `task_bytes` counts.

        Raises: ValidationError: there is no such journal, or nothing was ever published. SchemaMismatch: the table has
            a key, or cannot become what the spec says. TableFenced: another one has changed the same rows, or the
            table, meanwhile: run again. TypedProgressGone, TypedRolledBack: a person has to look. LakeError: a catalog
            or store broke off, or content that is needed is gone. TransportError, StatusError, DataError: content cannot
            be read.
        """
        began, began_at = self._clock.monotonic(), self._clock.now()
        require_no_key(spec)
        opened = open_both(self._catalog, spec, self._log)
        table = opened.table
        names = wanted if isinstance(wanted, Mapping) else table.state.journals
        ask = partial(self._journals, raw)
        journals = ask(list(names))
        ranges = _ranges(journals, wanted)
        task_bytes = (limits or Limits()).task_bytes
        known = FormerStates(table).before(ranges) if table.start is not None else []
        plan = plan_backfill(known, journals.values(), ranges, task_bytes)
        self._tell(spec, plan)
        if not plan.ranges:
            return BackfillReport(
                table=spec.name, metadata=table.metadata, state=table.state, holes=plan.holes,
                behind=plan.behind, seconds=self._clock.monotonic() - began,
            )  # fmt: skip
        job = job_of(spec, table, opened.quarantine, self._client.config)
        backfill = _Backfill(plan, table.state, journals, ask, job, self._workers, task_bytes)
        try:
            backfill.work()
            backfill.require_same({
                one.name: one.created for one in self._client.list(raw.label_selector)
            })  # fmt: skip
        except BaseException:
            backfill.abandon()
            raise
        amended = publish_amendment(
            opened.handles, backfill, began_at=began_at, clock=self._clock, log=self._log
        )
        backfill.tidy()
        report = backfill.report(amended, spec.name, self._clock.monotonic() - began)
        self._log(
            f"{spec.name}: {report.typed} rows and {report.quarantined} quarantined records are in place of "
            f"{report.typed_before} and {report.quarantined_before}, as snapshot {report.snapshot_id}"
        )
        return report

    def _journals(self, raw: TableSpec, names: Sequence[str]) -> dict[str, JournalSnapshot]:
        """Existing ones, with all of their fragments."""
        asked = self._client.asynchronous
        listed = self._client.list(raw.label_selector)
        found = self._client.run(journals_of(asked, [one for one in listed if one.name in names]))
        return {one.name: one for one in found}

    def _tell(self, spec: TypedSpec, plan: BackfillPlan) -> None:
        for hole in plan.holes:
            self._log(
                f"{spec.name}: {hole.journal} cannot be read from offset {hole.begin} to {hole.end}: {hole.kind}; rows of "
                "that stay"
            )
        for journal, begin, end in plan.behind:
            self._log(f"{spec.name}: no run has read {journal} from offset {begin} to {end} yet")
        size = sum(one.end - one.begin for one in plan.ranges)
        before = sum(one.begin - one.start.offset for one in plan.ranges)
        count = len({one.journal for one in plan.ranges})
        self._log(
            f"{spec.name}: {size} bytes of {count} journals are made again, and {before} before them are read, which "
            "say what is committed"
        )


def _ranges(
    journals: Mapping[str, JournalSnapshot], wanted: Wanted
) -> dict[str, Sequence[tuple[int, int]]]:
    """Offsets by journal. Those of no journal, or that hold nothing, stay as they are, for the plan to refuse."""
    if isinstance(wanted, Mapping):
        return {
            name: (whole_ranges(journals[name], ranges) if name in journals else ()) or ranges
            for name, ranges in wanted.items()
        }
    found = {name: held_ranges(one, wanted) for name, one in journals.items()}
    return {name: ranges for name, ranges in found.items() if ranges}


@final
class _Backfill:
    """A backfill under way, to be published on top of what runs publish meanwhile.

    Args:
        plan: what is made again.
        state: of the table.
        journals: by name.
        ask: asks brokers about journals again, by their names.
        job: for `workers`, who read and write.
        task_bytes: as of `Limits`.
    """

    def __init__(  # noqa: PLR0917
        self,
        plan: BackfillPlan,
        state: TypedState,
        journals: Mapping[str, JournalSnapshot],
        ask: Callable[[Sequence[str]], Mapping[str, JournalSnapshot]],
        job: Job,
        workers: Workers,
        task_bytes: int,
    ) -> None:
        self._plan = plan
        self._state = state
        self._journals = dict(journals)
        self._ask = ask
        self._job = job
        self._workers = workers
        self._task_bytes = task_bytes
        ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for one in plan.ranges:
            ranges[one.journal].append((one.begin, one.end))
        self.rows = self.records = RowRanges(ranges)
        """See `Amending`."""
        self._rounds = [self._begun(one, state) for one in plan.ranges]
        self._rows_before = self._records_before = 0

    def _begun(self, wanted: BackfillRange, state: TypedState) -> BackfillRounds:
        return BackfillRounds(
            wanted,
            state.journals[wanted.journal].offset,
            tasks_of=lambda begin, end: self._tasks_of(wanted, begin, end),
            look=self._carry_out,
        )

    def _tasks_of(self, wanted: BackfillRange, begin: int, end: int) -> Sequence[Task]:
        try:
            return tasks_between(self._journals[wanted.journal], begin, end, self._task_bytes)
        except OffsetJump as err:
            raise LakeError(
                f"{wanted.journal}: a transaction that began at offset {begin} was committed after offset "
                f"{max(end, wanted.begin)}, and content up to {err.to_offset} is gone: its rows cannot be made again. "
                "Nothing was changed; choose a range that begins farther behind"
            ) from err

    def _carry_out(self, orders: Sequence[Order]) -> Sequence[Done]:
        return self._workers.carry_out(self._job, orders)

    def work(self) -> None:
        """Have workers do all that is to be done by now.

        Raises: DataError: content cannot be read.
        """
        while busy := [one for one in self._rounds if one.rounds is not None]:
            rounds = {
                f"{one.journal} from {one.wanted.begin}": one.rounds for one in busy if one.rounds
            }
            failed = work_through(rounds, self._carry_out)
            if failed:
                told = "; ".join(f"{name}: {why}" for name, why in sorted(failed.items()))
                raise DataError(f"nothing was changed, as content cannot be read: {told}")
            for one in busy:
                one.go_on()

    def require_same(self, created: Mapping[str, int]) -> None:
        """Refuse what was read of journals that were made again since.

        Args:
            created: which journals there are now, by name.

        Raises: DataError: one was.
        """
        names = [
            one.journal
            for one in self._plan.ranges
            if is_another(self._journals[one.journal].created, created.get(one.journal, 0))
        ]
        if names:
            raise DataError(
                f"{', '.join(dict.fromkeys(names))} was deleted and made again while it was read: nothing was changed"
            )

    def _require_not_anew(self, state: TypedState) -> None:
        """Rows of the journal that has the name now would go for those of the former one.

        Raises: TableFenced: a run has restarted a journal meanwhile.
        """
        for name in self.records.by_journal:
            before, now = self._state.journals[name], state.journals[name]
            if before.shared_to != now.shared_to or is_another(before.created, now.created):
                raise TableFenced(
                    f"{name} was deleted and made again, and a run began to read it from its start meanwhile: nothing was changed"
                )

    def abandon(self) -> None:
        """Remove all that was written, which will not be published."""
        for one in self._rounds:
            one.drop()
        self.tidy()

    def amendment(
        self, table: TypedTable, going: Mapping[str, int], staying: Mapping[str, int]
    ) -> Amendment:
        """See `Amending`. Transactions that were open are followed to where runs have come meanwhile."""
        self._require_not_anew(table.state)
        states = table.state.journals
        late = [
            one for one in self._rounds if one.is_open and one.reached < states[one.journal].offset
        ]
        if late:
            asked = self._ask([one.journal for one in late])
            self.require_same({name: one.created for name, one in asked.items()})
            self._journals |= asked
            for one in late:
                reached = states[one.journal].offset
                one.follow_to(reached, self._tasks_of(one.wanted, one.reached, reached))
            self.work()
        rows, _ = rows_within(Loaded(table.metadata, table.io, None), self.records)
        self._rows_before, self._records_before = rows.total(), sum(going.values())
        # Counted, and not what the state says less what goes: that may be what is healed.
        records = {name: staying.get(name, 0) for name in self.records.by_journal}
        for one in self._rounds:
            records[one.journal] += one.quarantined
        return Amendment(
            files=[file for output in self._outputs for file in output.files],
            quarantined=[file for output in self._outputs for file in output.quarantined],
            records=records,
        )

    @property
    def _outputs(self) -> list[Output]:
        return [output for one in self._rounds for output in one.outputs]

    def tidy(self) -> None:
        """Remove what was written in vain."""
        for one in self._rounds:
            for output in one.discarded:
                discard(self._job, output)

    def report(self, amended: Amended, name: str, seconds: float) -> BackfillReport:
        """What came of it."""
        plan = self._plan
        return BackfillReport(
            table=name,
            metadata=amended.metadata,
            state=amended.state,
            run=amended.run,
            snapshot_id=amended.snapshot_id,
            ranges=self.records.by_journal,
            typed=sum(one.typed for one in self._rounds),
            quarantined=sum(one.quarantined for one in self._rounds),
            typed_before=self._rows_before,
            quarantined_before=self._records_before,
            files=sum(len(output.files) for output in self._outputs),
            read_bytes=sum(one.end - one.begin for one in plan.ranges),
            holes=plan.holes,
            behind=plan.behind,
            seconds=seconds,
        )


def fragments_of(raw: TableSpec, values: Mapping[str, str]) -> Callable[[FragmentListing], bool]:
    """Whether a fragment is in a partition with these values.

    Args:
        raw: of the raw table.
        values: by partition column, as paths or engines write them; those of other columns do not matter.

    Returns: asked of stored fragments. It raises LakeError, if a value is not of its column's type.
    """
    described = {partition.name: partition for partition in raw.partitions}
    wanted = {name.lower(): value for name, value in values.items()}

    def column_of(key: str) -> PartitionColumn:
        found = described.get(key, Partition(name=key))
        return PartitionColumn(key=key, column=found.column, type=found.type)

    @cache
    def is_wanted(directory: str) -> bool:
        layout = Layout.of_directory(directory)
        texts = dict(zip(map(column_of, layout.keys), layout.match(directory), strict=True))
        found = {column.column: (column, text) for column, text in texts.items()}
        return all(
            name in found and found[name][0].value(found[name][1]) == found[name][0].value(value)
            for name, value in wanted.items()
        )

    return lambda listing: is_wanted(home_directory(listing.fragment))
