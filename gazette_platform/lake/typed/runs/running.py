"""A run of a typed table: what its journals hold by now becomes rows, all of it or nothing.

    the table's state ── what brokers hold ── plan ── orders to workers, round after round ── state, list of quarantined
                                                                                               │
                        the next run settles, if this one dies here ── settle quarantine ── publish, fenced

The table is read first, so that any publication from then on fences this run. Workers write files that nothing
sees; what a run that fails leaves of them is removed by maintenance.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import DataError, LakeError, ValidationError
from gazette_platform.lake.iceberg.publishing import insisting, publish_files
from gazette_platform.lake.typed.planning.ranges import (
    Limits,
    decided,
    plan_run,
    tasks_between,
    without_pruned,
)
from gazette_platform.lake.typed.planning.rounds import JournalRounds
from gazette_platform.lake.typed.planning.state import Counts
from gazette_platform.lake.typed.runs.jobs import Job
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.runs.working import discard
from gazette_platform.lake.typed.tables.progress import measures
from gazette_platform.lake.typed.tables.quarantine import write_list
from gazette_platform.lake.typed.tables.table import (
    open_both,
    settle_behind,
    state_properties,
    write_state,
)
from gazette_platform.lake.typed.tables.upserts import publish_upserts
from gazette_platform.lake.typed.tables.writing import data_file_of
from gazette_platform.message.uuid import unix_ns_of
from gazette_platform.ops import tracing
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.client import Client, ClientConfig
    from gazette_platform.client.read.extents import JournalSnapshot
    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle, TypedCatalog
    from gazette_platform.lake.iceberg.publishing import Published
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.planning.ranges import Hole, JournalRange, RunPlan
    from gazette_platform.lake.typed.planning.rounds import Done, Order
    from gazette_platform.lake.typed.planning.state import TypedState
    from gazette_platform.lake.typed.runs.jobs import Output, Workers
    from gazette_platform.lake.typed.tables.table import TypedTable
    from gazette_platform.ops.clock import Clock

# Plain, again, look, keep: more would be a journal that is not done for an unforeseen reason.
_ROUNDS_MAX: Final = 16


@final
@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What a run did."""

    table: str
    """``schema.table``."""
    metadata: TableMetadata
    """Of the table after it."""
    before: TypedState
    state: TypedState
    """Behind the run."""
    run: str = ""
    """Name of its publication; empty: there was nothing to publish."""
    snapshot_id: int | None = None
    """That was published."""
    files: int = 0
    """Of rows."""
    read_bytes: int = 0
    """Of journals, uncompressed."""
    left_bytes: int = 0
    """What could be read, and is left to the next run."""
    holes: tuple[Hole, ...] = ()
    """What cannot be read, for people."""
    vanished: tuple[str, ...] = ()
    """Journals that were read once, and no longer exist."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Journals that could not be read, and are left to the next run; and why."""
    begun_anew: Mapping[str, int] = field(default_factory=dict)
    """Journals that a person restarted, and from where. Not those that were unchanged."""
    complete_at: datetime | None = None
    """What was acknowledged before is in the table; None: something was left. Aware, UTC."""
    seconds: float = 0.0
    """That the run took."""

    @property
    def counts(self) -> Counts:
        """Of what the run read."""
        before, after = self.before.counts, self.state.counts
        return Counts(
            **{
                name: getattr(after, name) - getattr(before, name)
                for name in Counts.__dataclass_fields__
            }
        )

    @property
    def is_whole(self) -> bool:
        """Whether nothing that brokers hold was left."""
        return not (self.left_bytes or self.holes or self.unreadable)


def _silent(_: str) -> None:
    return


@final
class TypedRunner:
    """Runs typed tables. Holds nothing between runs but what it is given.

    Args:
        catalog: where the tables are.
        workers: who reads and writes.
        client: of the brokers.
        log: gets a line for each step.
        clock: dates the heads.
    """

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

    @tracing.span("gazette typed run")
    def run(
        self,
        spec: TypedSpec,
        raw: TableSpec,
        *,
        limits: Limits | None = None,
        given_up: Mapping[str, int] | None = None,
        begin_anew: Mapping[str, int] | None = None,
    ) -> RunReport:
        """Bring a table up to what brokers hold now, as far as `limits` let it, in one commit.

        After an error run again: it goes on from what was published last.

        Args:
            spec: of the typed table, which is made or changed as it says.
            raw: of the raw table: its selector says which journals there are.
            limits: how much is read at most.
            given_up: by journal, an offset up to which a person has given up missing bytes.
            begin_anew: by recreated journal, the offset from which a person wants it read.

        Raises: ValidationError: `begin_anew` names an offset after the head, or one with which a table with a key
            would lose messages. TableFenced: another run has published meanwhile. SchemaMismatch: the table cannot become what the
            spec says. TypedProgressGone, TypedRolledBack: a person has to look. LakeError: a catalog or store
            broke off. TransportError, StatusError: brokers cannot be reached.
        """
        began = self._clock.monotonic()
        if spec.key and self._workers.merger is None:
            raise LakeError(
                f"{spec.name} has a `key`, so it needs Spark workers to merge rows: run it where "
                "Spark is configured, and do not ask for local workers"
            )
        opened = open_both(self._catalog, spec, self._log)
        table = opened.table
        asked = self._client.asynchronous
        now = self._client.run(journals_now(asked, raw.label_selector, table.state, self._clock))
        limits = limits or Limits()
        _require_order(spec, table.state, begin_anew or {})
        before = decided(table.state, now.journals, begin_anew or {})
        before = without_pruned(before, now.journals, given_up or {})
        with tracing.span("gazette typed plan"):
            plan = plan_run(before, now.journals, limits, given_up=given_up)
        self._tell(spec, plan)
        job = job_of(spec, table, opened.quarantine, self._client.config)
        done, failed = work_ranges(
            before,
            now.journals,
            plan.ranges,
            lambda orders: self._workers.carry_out(job, orders),
            limits.task_bytes,
        )
        # Ask again after reading: a journal that was recreated meanwhile has given bytes of two
        # journals.
        failed |= self._replaced(raw, now.journals, done)
        unreadable = {**now.unreadable, **failed}
        for name, why in sorted(unreadable.items()):
            self._log(f"{spec.name}: {name} cannot be read now, and is left to the next run: {why}")
        read = [name for name in done if name not in failed]
        state = before.with_journals({name: done[name].state for name in read})
        is_whole = not (plan.left_bytes or plan.holes or unreadable)
        complete_at = now.asked_at if is_whole else None
        outputs = [each for one in done.values() for each in one.outputs]
        run, published = "", None
        if state.digest != table.state.digest:
            run = uuid.uuid4().hex
            told = measures(
                read_bytes=sum(one.end - one.begin for one in plan.ranges if one.journal in read),
                seconds=self._clock.monotonic() - began,
                complete_at=complete_at,
                oldest_at=_oldest_at([done[name] for name in read]),
            )
            published = self._publish(
                spec, opened.handles, table, state, outputs, run=run, told=told
            )
        for output in (each for one in done.values() for each in one.discarded):
            discard(job, output)
        return RunReport(
            table=spec.name,
            metadata=table.metadata if published is None else published.metadata,
            before=table.state,
            state=state,
            run=run,
            snapshot_id=None if published is None else published.snapshot_id,
            files=sum(len(each.files) for each in outputs),
            read_bytes=sum(one.end - one.begin for one in plan.ranges if one.journal not in failed),
            left_bytes=plan.left_bytes,
            holes=plan.holes,
            vanished=plan.vanished,
            unreadable=unreadable,
            begun_anew=_begun_anew(table.state, before, begin_anew or {}),
            complete_at=complete_at,
            seconds=self._clock.monotonic() - began,
        )

    def _replaced(
        self, raw: TableSpec, journals: Sequence[JournalSnapshot], done: Mapping[str, JournalRounds]
    ) -> dict[str, str]:
        """Give up for this run what was read of journals that were made again since it began."""
        created = {one.name: one.created for one in self._client.list(raw.label_selector) if done}
        # Unknown identities are not taken for a replacement; brokers of former releases report
        # none.
        names = [
            one.name
            for one in journals
            if one.name in done and is_another(one.created, created.get(one.name, 0))
        ]
        for name in names:
            # Its rows would carry offsets of the former journal, and its state would make the next
            # run skip content of the new one.
            done[name].drop()
        return dict.fromkeys(names, "it was deleted and made again during the run")

    def _tell(self, spec: TypedSpec, plan: RunPlan) -> None:
        # A hole stops one journal without an error, so the log is where a person notices it first.
        for hole in plan.holes:
            self._log(
                f"{spec.name}: {hole.journal} cannot be read from offset {hole.begin} to {hole.end}: {hole.kind}"
            )
        size = sum(one.end - one.begin for one in plan.ranges)
        tasks = sum(len(one.tasks) for one in plan.ranges)
        self._log(
            f"{spec.name}: {size} bytes of {len(plan.ranges)} journals are read in {tasks} tasks, "
            f"{plan.left_bytes} are left"
        )

    @tracing.span("gazette typed publish")
    def _publish(
        self,
        spec: TypedSpec,
        handles: tuple[TableHandle, TableHandle],
        table: TypedTable,
        state: TypedState,
        outputs: Sequence[Output],
        *,
        run: str,
        told: Mapping[str, str],
    ) -> Published:
        """Let readers see it, and settle the quarantine behind."""
        properties = state_properties(
            state,
            # State and list are written first: a snapshot must never name a file that does not
            # exist. After a crash here, maintenance removes both.
            path=write_state(table.location, state, table.io),
            run=run,
            quarantine=write_list(
                table.location, [file for one in outputs for file in one.quarantined], table.io
            ),
        )
        properties |= told
        files = [data_file_of(file, table.metadata) for one in outputs for file in one.files]
        merger = self._workers.merger if table.key else None
        if merger is not None:
            published = publish_upserts(
                handles[0],
                table.start,
                files,
                run,
                properties,
                catalog=self._catalog.name,
                merger=merger,
                log=self._log,
                changes=spec.changes,
                deletes=[
                    data_file_of(file, table.metadata)
                    for one in outputs
                    for file in one.files
                    if file.deletes
                ],
            )
        else:
            # Without an answer the rows may be public already. The run's name makes a repetition
            # harmless; deleting its files would not be.
            published = insisting(
                lambda: publish_files(handles[0], table.start, files, run, properties), self._log
            )
        self._log(f"{table.name}: published {len(files)} files as snapshot {published.snapshot_id}")
        # Two tables cannot change in one step. If the run dies here, the next run or maintenance
        # finds the list in the snapshot and settles it.
        settle_behind(handles, self._log)
        return published


def _require_order(spec: TypedSpec, state: TypedState, begin_anew: Mapping[str, int]) -> None:
    """Refuse to restart where the offset decides which message of a key is the last."""
    for name, offset in begin_anew.items():
        # Within a journal, the merge takes the larger offset for the later message. Rows of the
        # former journal have larger ones.
        if spec.key and name in state.journals and offset < state.journals[name].offset:
            raise ValidationError(
                f"{spec.name} has a `key`, and its rows of the former journal would win over all messages below offset "
                f"{state.journals[name].offset}: give the new journal another name, or drop the table, and a run "
                "makes it of what journals hold",
                path=name,
            )


def _begun_anew(
    state: TypedState, decided: TypedState, begin_anew: Mapping[str, int]
) -> dict[str, int]:
    """By restarted journal, the offset."""
    found = {}
    for name in begin_anew.keys() & state.journals.keys():
        before, after = state.journals[name], decided.journals[name]
        if before.offset != after.offset or is_another(before.created, after.created):
            found[name] = after.offset
    return dict(sorted(found.items()))


def _oldest_at(done: Sequence[JournalRounds]) -> datetime | None:
    """When the oldest message was published that a run committed; see `OLDEST_AT`."""
    clocks = [one.oldest_clock for one in done if one.oldest_clock is not None]
    return datetime.fromtimestamp(unix_ns_of(min(clocks)) / SECOND_NS, UTC) if clocks else None


def job_of(spec: TypedSpec, table: TypedTable, quarantine: Loaded, config: ClientConfig) -> Job:
    """What workers need to know of a table."""
    return Job(
        spec=spec,
        schema=table.schema.model_dump_json(),
        partitions=table.partition_spec.model_dump_json(),
        location=table.location,
        quarantine_schema=quarantine.metadata.schema().model_dump_json(),
        quarantine_location=quarantine.metadata.location,
        io_properties=dict(table.io.properties),
        client=config,
    )


@tracing.span("gazette typed read")
def work_ranges(
    state: TypedState,
    journals: Sequence[JournalSnapshot],
    ranges: Sequence[JournalRange],
    carry_out: Callable[[Sequence[Order]], Sequence[Done]],
    task_bytes: int,
) -> tuple[dict[str, JournalRounds], dict[str, str]]:
    """Have workers do what is planned of all journals.

    Args:
        state: of the table.
        journals: as brokers report them.
        ranges: of these, by `plan_run`.
        carry_out: as of `Workers`.
        task_bytes: as of `Limits`.

    Returns: by journal, what came of it; and of those that could not be read, why.
    Raises: as `work_through`.
    """
    by_name = {one.name: one for one in journals}

    def rounds_of(wanted: JournalRange) -> JournalRounds:
        journal = by_name[wanted.journal]
        return JournalRounds(
            state.journals.get(wanted.journal),
            wanted,
            tasks_of=lambda begin, end: tasks_between(journal, begin, end, task_bytes),
            look=carry_out,
        )

    rounds = {one.journal: rounds_of(one) for one in ranges}
    return rounds, work_through(rounds, carry_out)


def work_through(
    rounds: Mapping[str, JournalRounds], carry_out: Callable[[Sequence[Order]], Sequence[Done]]
) -> dict[str, str]:
    """Have orders of all journals carried out, those of a round together, until there are none.

    A journal whose content cannot be read is given up for this run, and holds up no other.

    Returns: by name, why; what was written of these is discarded.
    Raises: LakeError: there is no end of them; and what `carry_out` and `JournalRounds.take` raise.
    """
    failed: dict[str, str] = {}
    for _ in range(_ROUNDS_MAX):
        busy = {name: one for name, one in rounds.items() if one.orders}
        if not busy:
            return failed
        done = list(carry_out([order for one in busy.values() for order in one.orders]))
        for name, one in busy.items():
            # Answers are in the order of the orders, so no name has to travel with them.
            of_one, done = done[: len(one.orders)], done[len(one.orders) :]
            # One lost extent makes the whole journal wait: publishing the tasks around it would
            # move the offset past unread messages.
            failure = next((each.failure for each in of_one if each.failure), "")
            try:
                if not failure:
                    one.take(of_one)
            except DataError as err:
                failure = str(err)
            if failure:
                failed[name] = failure
                # No progress of it is published, so its files would be rows twice after the next
                # run.
                one.drop(of_one)
    names = ", ".join(sorted(name for name, one in rounds.items() if one.orders))
    raise LakeError(
        f"{names}: not done after {_ROUNDS_MAX} rounds, so nothing was published: run it again, and if that does not "
        "help, please report this bug"
    )
