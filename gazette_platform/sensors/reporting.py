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
    former_partitions,
    journals_partitions,
    parse_partition,
    table_key,
    table_partitions,
    time_partition,
)
from gazette_platform.lake import PartitionAccount
from gazette_platform.lake.raw.times import TimeAccount, TimeReader, fold, time_of
from gazette_platform.ops.text import counted
from gazette_platform.sensors.events import (
    journal_materialization,
    journal_name,
    journal_partition,
    materialization,
    moved_aside,
    pruned_materialization,
    repair_materialization,
)
from gazette_platform.sensors.reports import (
    RowTotal,
    Totals,
    added_since,
    data_version,
    former_totals,
    totals_of,
    untold,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from dagster import AssetMaterialization, MetadataValue

    from gazette_platform.hive import HiveColumn, HiveTable, MetastoreSession
    from gazette_platform.lake import JournalCursor, Repair, TableReport, TableSpec
    from gazette_platform.lake.raw.registration import Metastore
    from gazette_platform.lake.raw.times import Time
    from gazette_platform.sensors.reports import Added, TableRows, Told
    from gazette_platform.sensors.tick import TickOutcome

# Of a table a tick: partitions that Dagster knows, and Hive partitions read for them, whatever that comes to.
_LOOKED_MAX: Final = 100
_LOOKED_MIN: Final = 10
_PARTS_LOOKED_MAX: Final = 500
# Deleted one by one by the daemon, some milliseconds each.
_DELETED_MAX: Final = 500
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
    accounts: list[PartitionAccount] = field(default_factory=list)
    """Of Hive partitions that have a partition of a former release."""
    stale: list[str] = field(default_factory=list)
    """Partitions of a former release whose Hive partition is gone."""


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
            looked = KnownSlice(following)
            former: dict[str, list[str]] = {}
            for key in known:
                parsed = parse_partition(key, reader.columns, reader.own)
                if isinstance(parsed, str):
                    former.setdefault(parsed, []).append(key)
                elif parsed is not None:
                    looked.times.append(parsed)
            looked.accounts = reader.accounts(list(former))
        there = {account.key for account in looked.accounts}
        looked.stale = [key for of, keys in former.items() if of not in there for key in keys]
        return looked

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
        if accounts or looked.times or looked.accounts or looked.stale:
            times = self.fold(table, [*looked.accounts, *accounts], looked.times)
            told = self._tell(times, looked.stale)
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
        version, _ = self._now.get(time_partition(account.time), ("", None))
        if version == data_version(account):
            return
        (before,) = self._before([account])
        event, added = self._event(account, before)
        if added.fragments < 0:
            event = pruned_materialization(event, journal, added)
        self._outcome.events.append(event)

    def tell_repair(self, table: HiveTable | None, repair: Repair) -> None:
        """One event a time that files were moved out of.

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
        times = self.fold(table, accounts)
        for account, before in zip(times, self._before(times), strict=True):
            keys = {part.key for part in account.parts}
            event = repair_materialization(
                self._spec,
                account,
                [moved for moved in repair.moved if moved.key in keys],
                rows=self._note(account, before),
                catalog=self._ports.trino_catalog,
            )
            self._outcome.events.append(event)
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

    def _tell(self, times: Sequence[TimeAccount], stale: Sequence[str] = ()) -> list[TimeAccount]:
        """Events of what differs, and the partitions that Dagster lacks, or has from a former release.

        Args:
            times: the present ones.
            stale: partitions of a former release that are of nothing.

        Returns: what differed.
        """
        ports, outcome = self._ports, self._outcome
        keys = {time_partition(account.time): account for account in times}
        versions = {**ports.told.versions(self._asset, list(keys))}
        versions |= {key: version for key, (version, _) in self._now.items()}
        told = untold(times, versions)
        for account, before in zip(told, self._before(told), strict=True):
            outcome.events.append(self._event(account, before)[0])
        former = [key for account in times for key in _former(account)]
        # A tick may have ended between its events and its partitions.
        known = ports.told.partitions(str(self._partitions.name), [*keys, *former])
        missing = [key for key, account in keys.items() if account.filled and key not in known]
        if missing:
            outcome.partitions.append(self._partitions.build_add_request(missing))
        gone = [*(key for key in former if key in known), *stale][:_DELETED_MAX]
        if gone:
            outcome.partitions.append(self._partitions.build_delete_request(gone))
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
        """What was reported of each of `times`, in this tick or before; also under keys of former releases."""
        keys = [time_partition(account.time) for account in times]
        found = {key: totals for key, (_, totals) in self._now.items()}
        left = [key for key in keys if key not in found]
        found |= self._ports.told.totals(self._asset, left)
        unknown = [a for key, a in zip(keys, times, strict=True) if key not in found]
        former = [key for account in unknown for key in _former(account)]
        told = self._ports.told.totals(self._asset, former)
        return [
            found[key] if key in found else former_totals(account, told)
            for key, account in zip(keys, times, strict=True)
        ]

    def _event(
        self, account: TimeAccount, before: Totals | None
    ) -> tuple[AssetMaterialization, Added]:
        """The event of a time, and what it has more than the one before."""
        added = added_since(account, before)
        rows = self._note(account, before)
        catalog = self._ports.trino_catalog
        page = self._ports.table_page(f"{catalog}.{self._spec.name}")
        event = materialization(
            self._spec,
            account,
            added,
            rows=rows,
            page=page,
            partitions=self._columns,
            catalog=catalog,
        )
        return event, added

    def _note(self, account: TimeAccount, before: Totals | None) -> TableRows | None:
        """Note what is reported of a time now. Returns: rows of the whole table after that."""
        key = time_partition(account.time)
        self._now[key] = (data_version(account), totals_of(account))
        return self._total.after(key, account.rows, before)


def _former(account: TimeAccount) -> list[str]:
    """Dagster's keys of the Hive partitions of a time in former releases."""
    return [key for part in account.parts for key in former_partitions(part, account.time)]


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
