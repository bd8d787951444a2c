"""What a tick reports to Dagster of one table: each time that was touched, or whose turn it is, if it differs.

A tick touches Hive partitions: those of new fragments; those that a prune took from; and, in turn, those of a slice
of old fragments. Dagster has one partition a *time*, so the accounts of all journals at that time are
read and taken together. Of times that are only looked at in turn that is done for

- those that Dagster has no partition of, as they come up among old fragments;
- some of those that it has one of, as `look_again` goes through them.

So what a tick reads is bounded by what it touched and a slice of what Dagster knows, times the number of journals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from gazette_platform.assets.checks import Checked
from gazette_platform.assets.raw import (
    journals_partitions,
    parse_partition,
    table_key,
    table_partitions,
    time_partition,
)
from gazette_platform.lake import PartitionAccount
from gazette_platform.lake.raw.account_book import TimeAccount, TimeReader, fold, time_of
from gazette_platform.ops.text import counted
from gazette_platform.sensors.events import (
    NO_CAUSE,
    Cause,
    RowTotal,
    Totals,
    added_since,
    data_version,
    journal_materialization,
    journal_name,
    journal_partition,
    materialization,
    moved_aside,
    totals_of,
    untold,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from dagster import AssetMaterialization, MetadataValue

    from gazette_platform.hive import HiveColumn, HiveTable, Metastore, MetastoreSession
    from gazette_platform.lake import JournalCursor, MovedFile, Repair, TableReport, TableSpec
    from gazette_platform.lake.raw.account_book import Time
    from gazette_platform.sensors.cursor import TickOutcome
    from gazette_platform.sensors.events import TableRows, Told

# Of a table a tick: partitions that Dagster knows, and Hive partitions read for them, whatever that comes to.
_LOOKED_MAX: Final = 100
_LOOKED_MIN: Final = 10
_PARTS_LOOKED_MAX: Final = 500
_PAGE: Final = 1000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TellingPorts:
    """Reports a table when asked."""

    told: Told
    metastore: Metastore
    trino_catalog: str
    """What Trino calls the catalog of the table."""
    table_page: Callable[[str], Mapping[str, MetadataValue]]
    """Metadata with a link to the page of ``catalog.schema.table``, if there is one."""


@final
@dataclass(slots=True)
class KnownSlice:
    """Partitions that Dagster knows, and whose turn it is."""

    following: str = ""
    """Where to go on; empty: these were the last."""
    times: list[Time] = field(default_factory=list)


@final
class Telling:
    """Reports one table in one tick.

    Args:
        ports: what is asked.
        outcome: gets the report.
        spec: of the table.
        cursors: of its journals, before the tick.
    """

    def __init__(
        self,
        ports: TellingPorts,
        outcome: TickOutcome,
        spec: TableSpec,
        cursors: Mapping[str, JournalCursor],
    ) -> None:
        self._ports = ports
        self._outcome = outcome
        self._spec = spec
        self._asset = table_key(spec.name)
        self._partitions = table_partitions(spec.name)
        self._total = RowTotal(ports.told, self._asset)
        # By Dagster's key, data version and totals that were reported in this tick: the log does not have them yet.
        self._now: dict[str, tuple[str, Totals]] = {}
        self._columns: Sequence[HiveColumn] = ()
        self._journals = {*cursors}
        self._has_journals = False

    # ------------------------------------------------------------------- reading

    def look_again(self, report: TableReport, after: str) -> KnownSlice:
        """Some of the partitions that Dagster knows, whose events may say other things.

        A Hive partition in which brokers list nothing any more, since all of its files were moved aside, is
        on no list of fragments. If the tick that emptied it could not report it, this finds it.

        Args:
            report: of the table's tick.
            after: where to go on in what Dagster knows; empty: at its begin.

        Raises: LakeError: the metastore cannot be reached.
        """
        if report.definition is None:
            return KnownSlice()
        with self._ports.metastore.connect() as session:
            reader = self._reader(session, report.definition, report.matched)
            count = _PARTS_LOOKED_MAX // max(reader.journals, 1)
            count = min(_LOOKED_MAX, max(_LOOKED_MIN, count))
            known, following = self._ports.told.known(str(self._partitions.name), after, count)
            times = [parse_partition(key, reader.columns, reader.own) for key in known]
        return KnownSlice(following, [time for time in times if time is not None])

    def fold(
        self, table: HiveTable, accounts: Sequence[PartitionAccount], times: Iterable[Time] = ()
    ) -> list[TimeAccount]:
        """What is at `times` and those of `accounts`, with the accounts of all other journals.

        Raises: LakeError: the metastore cannot be reached.
        """
        self._columns = table.partition_columns
        if not table.partition_columns:
            return fold(accounts)
        with self._ports.metastore.connect() as session:
            journals = {account.journal for account in accounts}
            return self._reader(session, table, journals).read(times, accounts)

    def _reader(
        self, session: MetastoreSession, table: HiveTable, journals: Collection[str]
    ) -> TimeReader:
        """Of all existing journals, and all that Dagster has events of."""
        if not self._has_journals:
            name, after = str(journals_partitions(self._spec.name).name), ""
            while True:
                keys, after = self._ports.told.known(name, after, _PAGE)
                self._journals |= {journal_name(key) for key in keys}
                if not after:
                    break
            self._has_journals = True
        self._journals |= {*journals}
        return TimeReader(session, self._spec, table, self._journals)

    # ------------------------------------------------------------------- reporting

    def checked(self, report: TableReport) -> Checked:
        """Return how much of the table its checks look at."""
        rows = self._total.now()
        return Checked(
            journals=len(report.journals),
            records=rows.known if rows is not None else None,
            uncounted=rows.uncounted if rows is not None else 0,
        )

    def tell(self, report: TableReport, looked: KnownSlice) -> None:
        """Report what differs of the times that a tick touched, and of those that it looked at again.

        Raises: LakeError: the metastore cannot be reached.
        """
        table = report.definition
        if table is None:
            return
        self._journals |= report.matched
        told: list[TimeAccount] = []
        accounts = self._suspects(report)
        if accounts or looked.times:
            told = self._tell(self.fold(table, accounts, looked.times))
        self._tell_journals(report, {part.key for account in told for part in account.parts})
        updated = {update.key for update in report.updates}
        if report.updates:
            self._outcome.summaries.append(_summary(report))
        late = [t for t in told if not updated.intersection(part.key for part in t.parts)]
        if late:
            self._outcome.summaries.append(
                f"{self._spec.name}: reported "
                + counted(
                    len(late),
                    "partition that was registered before.",
                    "partitions that were registered before.",
                )
            )

    def tell_accounts(self, table: HiveTable, accounts: Sequence[PartitionAccount]) -> None:
        """Report what differs of the times of some Hive partitions.

        Raises: LakeError: the metastore cannot be reached.
        """
        if accounts:
            self._tell(self.fold(table, accounts))

    def tell_pruned(self, account: TimeAccount, journal: str) -> None:
        """Report, unless this tick has, what is left at a time that lost all of a journal to a prune."""
        self._tell([account], {time_partition(account.time): Cause(pruned=journal)})

    def tell_repair(self, table: HiveTable | None, repair: Repair) -> None:
        """Report each time that files were moved out of.

        Raises: LakeError: the metastore cannot be reached.
        """
        if table is None or not repair.moved:
            return
        accounts = [
            PartitionAccount(
                key=moved.key,
                values=moved.finding.values,
                location=table.location,
                journal=moved.finding.journal,
                state=moved.state,
            )
            for moved in repair.moved
        ]
        moved: dict[str, list[MovedFile]] = {}
        for each in repair.moved:
            key = time_partition(time_of(each.key, each.finding.journal))
            moved.setdefault(key, []).append(each)
        causes = {key: Cause(moved=files) for key, files in moved.items()}
        self._tell(self.fold(table, accounts), causes)
        self._outcome.summaries.append(
            f"{self._spec.name}: {moved_aside(len(repair.moved))}, "
            f"{counted(sum(m.rows for m in repair.moved), 'row is', 'rows are')} seen once again."
        )

    def _suspects(self, report: TableReport) -> list[PartitionAccount]:
        """Accounts of a tick that may differ from what was reported.

        Not those at times that Dagster knows and that are only looked at again: `look_again` comes to them.
        """
        updated = {update.key for update in report.updates}
        again = {
            account.key: time_partition(time_of(account.key, account.journal))
            for account in report.accounts
            if account.key in report.reviewed and account.key not in updated
        }
        if not again:
            return report.accounts
        name = str(self._partitions.name)
        known = self._ports.told.partitions(name, list(dict.fromkeys(again.values())))
        return [a for a in report.accounts if a.key not in again or again[a.key] not in known]

    def _tell(
        self, times: Sequence[TimeAccount], causes: Mapping[str, Cause] | None = None
    ) -> list[TimeAccount]:
        """Report what differs, and the partitions that Dagster lacks.

        Args:
            times: to be compared with what was reported.
            causes: by Dagster's partition key, what took fragments from some of them. That files were moved is
                reported in any case.

        Returns: what was reported.
        """
        ports, outcome, causes = self._ports, self._outcome, causes or {}
        keys = {time_partition(account.time): account for account in times}
        versions = {**ports.told.versions(self._asset, list(keys))}
        versions |= {key: version for key, (version, _) in self._now.items()}
        due = {time_partition(account.time) for account in untold(times, versions)}
        due |= {key for key, cause in causes.items() if cause.moved}
        told = [account for key, account in keys.items() if key in due]
        for account, before in zip(told, self._before(told), strict=True):
            cause = causes.get(time_partition(account.time), NO_CAUSE)
            outcome.events.append(self._event(account, before, cause))
        # A tick may have ended between its events and its partitions.
        known = ports.told.partitions(str(self._partitions.name), list(keys))
        missing = [key for key, account in keys.items() if account.filled and key not in known]
        if missing:
            outcome.partitions.append(self._partitions.build_add_request(missing))
        return told

    def _tell_journals(self, report: TableReport, told: Collection[str]) -> None:
        """Events of journals with newly registered content, and partitions that Dagster lacks.

        Args:
            report: of the table's tick.
            told: keys of Hive partitions at reported times.
        """
        if not report.accounts:
            return
        touched = {a.journal for a in report.accounts if a.key in told}
        self._outcome.events += [
            journal_materialization(self._spec.name, progress)
            for progress in report.journals
            if progress.journal in touched
        ]
        partitions = journals_partitions(self._spec.name)
        wanted = list(dict.fromkeys(journal_partition(a.journal) for a in report.accounts))
        known = self._ports.told.partitions(str(partitions.name), wanted)
        missing = [key for key in wanted if key not in known]
        if missing:
            self._outcome.partitions.append(partitions.build_add_request(missing))

    def _before(self, times: Sequence[TimeAccount]) -> list[Totals | None]:
        """What was reported of each of `times`, in this tick or before."""
        keys = [time_partition(account.time) for account in times]
        found = {key: totals for key, (_, totals) in self._now.items()}
        found |= self._ports.told.totals(self._asset, [key for key in keys if key not in found])
        return [found.get(key) for key in keys]

    def _event(
        self, account: TimeAccount, before: Totals | None, cause: Cause
    ) -> AssetMaterialization:
        """The event of a time."""
        catalog = self._ports.trino_catalog
        return materialization(
            self._spec,
            account,
            added_since(account, before),
            rows=self._note(account, before),
            page=self._ports.table_page(f"{catalog}.{self._spec.name}"),
            partitions=self._columns,
            catalog=catalog,
            cause=cause,
        )

    def _note(self, account: TimeAccount, before: Totals | None) -> TableRows | None:
        """Note what is reported of a time now. Returns: rows of the whole table after that."""
        key = time_partition(account.time)
        self._now[key] = (data_version(account), totals_of(account))
        return self._total.after(key, account.rows, before)


def _summary(report: TableReport) -> str:
    """What a tick registered of a table."""
    rows = [update.rows_added for update in report.updates]
    fragments = counted(sum(u.fragments_added for u in report.updates), "fragment")
    return (
        f"{report.table}: {fragments} in {counted(len(report.updates), 'Hive partition')}, "
        + counted(sum(n for n in rows if n is not None), "row")
        + (" or more" if None in rows else "")
        + ("; more at the next tick" if report.has_more else "")
        + "."
    )
