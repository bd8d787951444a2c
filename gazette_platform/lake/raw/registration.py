"""One tick of a raw table: from what brokers list to the table and its Hive partitions in the metastore.

`Registrar.tick` lists the fragments of one table since the cursor, creates or evolves the table (`tables`), and
has `partition_updates` add new Hive partitions and update the accounts of all that the tick touched. The order is table, Hive partitions, accounts; only then
the caller reports the accounts and stores the cursor. After a crash the next tick repeats the work. It reports what
the accounts say, whoever changed them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, final

from gazette_platform.errors import DataError, GazetteError, LakeError
from gazette_platform.lake.catalog_settings import HIVE
from gazette_platform.lake.raw.account_book import (
    AccountBook,
    PartitionAccount,
    held_beyond,
    held_of_former,
)
from gazette_platform.lake.raw.listing import (
    JournalListing,
    SweepPoint,
    list_holes,
    list_new,
    list_sweep,
    rotated,
    sweep_without,
)
from gazette_platform.lake.raw.partition_updates import Accountant, PartitionUpdate
from gazette_platform.lake.raw.planning import (
    JournalCursor,
    Limits,
    advance,
    make_plan,
    problems_with_journals,
    require_codec,
)
from gazette_platform.lake.raw.reconcile import Break, is_broken
from gazette_platform.lake.raw.tables import (
    LAYOUT,
    ensure_table,
    is_current,
    table_definition,
    text_columns,
)
from gazette_platform.lake.raw.views import ensure_plain_view
from gazette_platform.lake.reading.fragment_content import FragmentContent
from gazette_platform.lake.reading.sample_check import SAMPLE_BYTES, check_sample
from gazette_platform.lake.reading.storage import Cutover, Storage
from gazette_platform.lake.spec.layout import (
    Layout,
    StoreRoots,
    directory_of,
    is_aside,
    partition_columns,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, is_another, learned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_platform.hive import HiveTable, Metastore, MetastoreSession
    from gazette_platform.lake.raw.reconcile import Finding
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import Fragment, JournalSpec

_SAMPLES_MAX = 5


@final
@dataclass(frozen=True, slots=True)
class JournalProgress:
    """How far a journal is registered, and where its listed content ends."""

    journal: str
    registered: int
    """End of the furthest fragment that is registered."""
    write_head: int
    hole_bytes: int = 0
    """Bytes before `registered` that are awaited."""
    complete_to: int = 0
    """All bytes before this are registered, or given up."""
    is_stored: bool = False
    """Whether a store has some of what is not registered."""
    flush_interval_s: float = 0.0
    """Seconds after which brokers store what was appended; 0: only by length."""

    @property
    def lag_bytes(self) -> int:
        """Bytes appended but not registered."""
        return max(0, self.write_head - self.registered) + self.hole_bytes


@final
@dataclass(slots=True, kw_only=True)
class TableReport:
    """What one tick did to one table."""

    table: str
    cursors: dict[str, JournalCursor] = field(default_factory=dict)
    """By journal, where the next tick goes on."""
    journals: list[JournalProgress] = field(default_factory=list)
    updates: list[PartitionUpdate] = field(default_factory=list)
    accounts: list[PartitionAccount] = field(default_factory=list)
    """Of all Hive partitions that were looked at: those changed now, and those changed before by a
    tick that did not end, or by others."""
    reviewed: frozenset[str] = frozenset()
    """Keys of those of these that were looked at for old fragments only."""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Differences from what users may expect; reported once, when the table is made or changed."""
    misfits: list[Finding] = field(default_factory=list)
    """New fragments that cannot be read, or do not hold what the spec says."""
    columns: set[str] = field(default_factory=set)
    """Columns that records of the new fragments have, or could not be looked for."""
    is_changed: bool = False
    """Whether the table was made, or follows another spec, since the last tick."""
    has_more: bool = False
    matched: frozenset[str] = frozenset()
    """Names of all journals that the selector matches."""
    swept: SweepPoint | None = None
    """Where the round of looking again goes on; None: it is through, or was not asked for."""
    definition: HiveTable | None = None
    """The table in the metastore, if it exists."""
    broken: dict[str, Break] = field(default_factory=dict)
    """By journal, if brokers list nothing any more of what is registered."""

    @property
    def offsets(self) -> dict[str, int]:
        """By journal, the offset before which all is registered or given up."""
        return {journal: cursor.complete_to for journal, cursor in self.cursors.items()}


def _never() -> bool:
    return False


@final
class Registrar:
    """Registers fragments of tables. Holds no state between ticks, nor open connections.

    Args:
        source: lists journals and fragments.
        metastore: where tables are made.
        roots: where fragment stores lie for engines.
        limits: bounds of one table's tick.
        clock: decides how old fragments are.
        trino_catalog: what Trino calls the catalog of the tables.
    """

    def __init__(
        self,
        source: FragmentSource,
        metastore: Metastore,
        roots: StoreRoots,
        limits: Limits | None = None,
        clock: Clock | None = None,
        *,
        trino_catalog: str = HIVE,
    ) -> None:
        self._source = source
        self._metastore = metastore
        self._roots = roots
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._trino_catalog = trino_catalog
        self._storage = Storage(roots)
        self._content = FragmentContent(source)

    def tick(
        self,
        spec: TableSpec,
        cursors: Mapping[str, JournalCursor],
        *,
        sweep: SweepPoint | None = None,
        again: Sequence[tuple[str, int]] = (),
        is_over: Callable[[], bool] = _never,
    ) -> TableReport:
        """Register what is new of one table, within the limits.

        Args:
            spec: the table.
            cursors: the table's part of the cursor.
            sweep: where to look at old fragments again, which finds what came late, what others
                overwrote and what was never reported; None: nowhere.
            again: journal and begin of single old fragments to look at again.
            is_over: whether time is up; what is left is done at the next tick.

        Returns: what was done, with the cursors to store; errors of single fragments are in it.
        Raises: GazetteError: brokers or metastore cannot be reached, or the spec does not fit the
            data or the table that exists. The former cursors hold. Of a single journal that cannot be
            listed, the report says so.
        """
        report = TableReport(table=spec.name, cursors=dict(cursors))
        journals = self._source.journals(spec.label_selector)
        report.matched = frozenset(j.name for j in journals)
        if not journals:
            report.errors += self._problems(spec, journals)
            return report
        with self._metastore.connect() as session:
            table = session.table(spec.schema, spec.stored_table)
            if table is None:
                # A cursor that outlives a dropped table would hide all content from the new one.
                report.cursors = {}
            # Begin with another journal each time, or those late in the alphabet would starve when
            # ticks run out of time.
            names = rotated([j.name for j in journals], self._clock.unix_s())
            before = {name: report.cursors.get(name, JournalCursor()) for name in names}
            listed = self._list(before, is_over)
            report.has_more = len(listed) < len(before)
            report.has_more |= any(one.has_more for one in listed.values())
            failures = [one.error for _, one in sorted(listed.items())]
            report.errors += [str(error) for error in failures if error is not None]
            report.broken = {
                journal: Break(one.cursor.offset, one.cursor.stored_at)
                for journal, one in sorted(listed.items())
                if one.error is None and is_broken(one.cursor, one.pages)
            }
            created = self._source.created(spec.label_selector)
            # Identity first: offsets of two journals of one name do not compare, so no other step
            # may use them.
            if table is not None:
                book = AccountBook(session, table)
                if LAYOUT in table.parameters:
                    self._refuse_former(book, spec, listed, created, report, is_over)
                self._go_back(book, spec, listed, report, is_over)
                report.errors += _codec_errors(journals)
            for journal, listing in listed.items():
                # A journal that is gone by now stays what it was.
                if not listing.is_refused and created.get(journal):
                    now = learned(listing.cursor.created, created[journal])
                    listing.cursor = replace(listing.cursor, created=now)
            if table is None or not is_current(spec, table):
                table = self._make_table(session, spec, journals, listed, table, is_over)
                if table is None:
                    # Nothing is stored yet. What is wrong all the same is to be known before it is.
                    report.errors += self._problems(spec, journals)
                    report.journals = _progress(report, listed, journals)
                    return report
                if is_current(spec, table):
                    report.warnings += _codec_warnings(spec, journals)
                    report.is_changed = True
                else:
                    report.has_more = True  # its Hive partitions do not have all columns yet
            report.definition = table
            old = self._single(listed, again, report, is_over)
            if sweep is not None and not is_over():
                try:
                    # The sweep heals what the cursor cannot know: late fragments, dropped Hive
                    # partitions, and events that Dagster lost.
                    _, page, report.swept = list_sweep(self._source, sorted(before), sweep)
                    # Of a journal that was made again, offsets are those of other bytes.
                    old += [f for f in page.fragments if _is_same(listed, f.journal)]
                except GazetteError as err:
                    report.errors.append(str(err))
                    report.swept = sweep_without(sorted(before), sweep)
            stores = {j.name: j.fragment.stores for j in journals}
            self._register(session, spec, table, stores, created, listed, old, report, is_over)
        report.journals = _progress(report, listed, journals)
        return report

    def _single(
        self,
        listed: Mapping[str, JournalListing],
        places: Sequence[tuple[str, int]],
        report: TableReport,
        is_over: Callable[[], bool],
    ) -> list[Fragment]:
        """The fragments that begin at `places`, of journals that were not made again."""
        found: list[Fragment] = []
        for journal, begin in places:
            if journal not in report.matched or not _is_same(listed, journal) or is_over():
                continue
            try:
                page = self._source.fragments(journal, begin, 1)
            except GazetteError as err:
                report.errors.append(str(err))
                continue
            found += [f for f in page if f.begin == begin]
        return found

    def _problems(self, spec: TableSpec, journals: Sequence[JournalSpec]) -> list[str]:
        """What is wrong with the spec over its journals, fragments or not."""
        at = datetime.fromtimestamp(self._clock.unix_s(), UTC)
        return [f"{spec.name}: {problem}" for problem in problems_with_journals(spec, journals, at)]

    def _list(
        self, cursors: Mapping[str, JournalCursor], is_over: Callable[[], bool]
    ) -> dict[str, JournalListing]:
        """What to look at of each journal: what is new, then what is awaited."""
        listed = list_new(
            self._source,
            cursors,
            fragments_max=self._limits.fragments_max,
            page_limit=self._limits.page_limit,
            is_over=is_over,
        )
        for journal, listing in listed.items():
            if listing.cursor.holes and listing.error is None and not is_over():
                now_s = self._clock.unix_s()
                try:
                    listing.pages += list_holes(self._source, journal, listing.cursor, now_s=now_s)
                except GazetteError as err:
                    listing.error = err
        return listed

    def _refuse_former(  # noqa: PLR0917
        self,
        book: AccountBook,
        spec: TableSpec,
        listed: dict[str, JournalListing],
        created: Mapping[str, int],
        report: TableReport,
        is_over: Callable[[], bool],
    ) -> None:
        """Restart journals that were recreated, once no account holds their former content."""
        for journal, listing in listed.items():
            kept, now = listing.cursor.created, created.get(journal, 0)
            if listing.error is not None or not now or (kept and not is_another(kept, now)):
                continue
            end = held_of_former(book, journal, kept, now)
            if end is None:
                # No account holds the former journal, so its offsets are free. Begin at zero, as
                # for a journal that is new.
                if kept:
                    listed |= self._list({journal: JournalCursor()}, is_over)
                    report.has_more |= listed[journal].has_more
                continue
            # Refuse and wait for a person: only people know whether the former files are gone for
            # good. Registering would mix two contents under one offset.
            listing.pages, listing.is_refused = [], True
            report.errors.append(
                f"{spec.name}: {journal} was deleted and made again, and its Hive partitions hold the former one up to "
                f"{end}. Nothing of the new one is registered until that is settled: drop these Hive partitions (which "
                "deletes no file; of a table without any, the table), and it goes on by itself, or give the new journal "
                f"another name. If its former files are gone for good, `gazctl lake repair --pruned {spec.name}` may "
                f"forget them; if it holds what it held, `gazctl lake repair --same {spec.name}` keeps them"
            )

    def _go_back(
        self,
        book: AccountBook,
        spec: TableSpec,
        listed: dict[str, JournalListing],
        report: TableReport,
        is_over: Callable[[], bool],
    ) -> None:
        """Restart journals that end before what was registered of them, if no account says more.

        While accounts do, nothing of them is registered: one offset would stand for two bytes.
        """
        for journal, listing in listed.items():
            if listing.ends_at is None or listing.is_refused:
                continue
            # Brokers may also list less because a store is away. Accounts that still hold more
            # forbid a restart.
            end = held_beyond(book, journal, listing.ends_at)
            if end is None:
                listed |= self._list({journal: JournalCursor()}, is_over)
                report.has_more |= listed[journal].has_more
                continue
            # An empty listing leaves the cursor where it is, so this check repeats until the
            # situation is settled.
            listing.pages = []
            report.errors.append(
                f"{spec.name}: brokers list {journal} up to offset {listing.ends_at} only, and its Hive "
                f"partitions hold it up to {end}: was it deleted and made again, or are its last files gone? "
                "Nothing more of it is registered until that is settled. If its former files are gone for "
                f"good, `gazctl lake repair --pruned {spec.name}` forgets them, and it goes on by itself; "
                "else bring them back, or drop its Hive partitions (which deletes no file), or give the new "
                "journal another name"
            )

    def _make_table(  # noqa: PLR0917
        self,
        session: MetastoreSession,
        spec: TableSpec,
        journals: Sequence[JournalSpec],
        listed: Mapping[str, JournalListing],
        existing: HiveTable | None,
        is_over: Callable[[], bool],
    ) -> HiveTable | None:
        """Make or evolve the table, or do nothing while no fragment shows its layout."""
        if existing is None:
            for journal in journals:
                require_codec(journal.name, journal.fragment.codec)
        wanted_fragments = {j: listing.wanted() for j, listing in listed.items()}
        firsts = _firsts(wanted_fragments)
        first = firsts[0] if firsts else None
        # A table keeps the layout that it was made with: its registered locations follow it.
        if existing is not None and LAYOUT in existing.parameters:
            # The spec changed: its columns may, its layout may not.
            layout = Layout.parse(existing.parameters[LAYOUT])
            location = existing.location
        # Guessing a layout from names of journals alone would miss the keys of path postfixes. A
        # table cannot get partition columns later.
        elif first is None:
            return None
        else:
            Layout.of_journals(j.name for j in journals)
            directory = directory_of(first)
            layout = Layout.of_directory(directory)
            location = self._roots.location(first.backing_store, layout.base)
        as_text = text_columns(spec, existing) if existing is not None else ()
        wanted = table_definition(spec, layout, location, as_text)
        # That Trino reads a column as text does not change the spec.
        if existing is None or any(
            c not in existing.columns for c in wanted.columns if c.name not in as_text
        ):
            self._require_fit(spec, [*firsts, *_lasts(wanted_fragments)], is_over)
        return ensure_table(session, wanted, is_over=is_over)

    def _require_fit(
        self, spec: TableSpec, samples: Sequence[Fragment], is_over: Callable[[], bool]
    ) -> None:
        """Refuse a spec that none of `samples` fits, as far as there is time to look at them.

        Raises: GazetteError: what is wrong with the first of them.
        """
        error: GazetteError | None = None
        for first in samples:
            if error is not None and is_over():
                break
            try:
                where = self._roots.location(first.backing_store, directory_of(first))
                sample = self._content.head(first, where, SAMPLE_BYTES)
                check_sample(spec, sample, f"fragment {first.content_path}")
            except (DataError, LakeError) as err:  # of another shape, damaged, or gone
                error = error or err
            else:
                return
        if error is not None:
            raise error

    def _register(  # noqa: PLR0917
        self,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        stores: Mapping[str, Sequence[str]],
        created: Mapping[str, int],
        listed: Mapping[str, JournalListing],
        old: Sequence[Fragment],
        report: TableReport,
        is_over: Callable[[], bool],
    ) -> None:
        ensure_plain_view(session, spec, table, catalog=self._trino_catalog)
        layout = Layout.parse(table.parameters[LAYOUT])
        wanted = {journal: listing.wanted() for journal, listing in listed.items()}
        new = {(f.journal, f.begin, f.end) for fragments in wanted.values() for f in fragments}
        plan = make_plan(
            wanted,
            layout=layout,
            columns=partition_columns(spec, layout),
            roots=self._roots,
            limits=self._limits,
            old=[f for f in dict.fromkeys(old) if (f.journal, f.begin, f.end) not in new],
        )
        report.reviewed = frozenset(
            planned.key
            for planned in plan.partitions
            if not any((f.journal, f.begin, f.end) in new for f in planned.fragments)
        )
        errors = dict(plan.errors)
        done: set[tuple[str, int, int]] = set()
        if plan.partitions:
            accountant = Accountant(
                self._content,
                Cutover(self._storage, self._roots, stores),
                session,
                spec,
                table,
                content_bytes_max=self._limits.content_bytes_max,
                is_over=is_over,
                created=created,
            )
            result = accountant.run(plan.partitions)
            done = result.done
            errors = {**result.errors, **errors}
            # Reported in an order that does not depend on which journal came first.
            report.updates += sorted(result.updates, key=lambda u: u.journal)
            report.accounts += sorted(result.accounts, key=lambda a: a.journal)
            report.misfits += sorted(result.misfits, key=lambda f: (f.journal, f.begin))
            report.columns |= result.columns
            report.has_more |= not result.is_complete
        report.warnings += _turned_warnings(spec, listed)
        report.has_more |= not plan.is_complete
        report.errors += [str(errors[journal]) for journal in sorted(errors)]
        now_s = self._clock.unix_s()
        for journal, listing in listed.items():
            held = {(begin, end) for name, begin, end in done if name == journal}
            # What the cursor does not want was registered before.
            # Only what this tick was shown may move the cursor; an old fragment of a sweep says
            # nothing about the bytes in between.
            held &= {(f.begin, f.end) for f in wanted[journal]}
            report.cursors[journal] = advance(listing.cursor, listing.pages, held, now_s=now_s)


def _progress(
    report: TableReport, listed: Mapping[str, JournalListing], journals: Sequence[JournalSpec]
) -> list[JournalProgress]:
    found: list[JournalProgress] = []
    for journal in journals:
        listing = listed.get(journal.name)
        if listing is None:
            continue
        cursor = report.cursors.get(journal.name, listing.cursor)
        shown = [f for page in listing.pages for f in page.fragments if cursor.wants(f)]
        found.append(
            JournalProgress(
                journal.name,
                cursor.offset,
                listing.write_head,
                cursor.hole_bytes,
                complete_to=cursor.complete_to,
                is_stored=any(f.backing_store and f.content_length for f in shown),
                flush_interval_s=journal.fragment.flush_interval_ns / SECOND_NS,
            )
        )
    return found


def _firsts(listed: Mapping[str, Sequence[Fragment]]) -> list[Fragment]:
    """A few persisted fragments: the first of each journal, then the second ones."""
    persisted = [
        [f for f in fragments if f.backing_store and f.content_length and not is_aside(f)][
            :_SAMPLES_MAX
        ]
        for fragments in listed.values()
    ]
    rounds = zip_longest(*persisted)
    return [f for fragments in rounds for f in fragments if f is not None][:_SAMPLES_MAX]


def _lasts(listed: Mapping[str, Sequence[Fragment]]) -> list[Fragment]:
    """A few persisted fragments: the last ones, so that bad first ones refuse no table for ever."""
    return _firsts({journal: list(reversed(fragments)) for journal, fragments in listed.items()})


def _is_same(listed: Mapping[str, JournalListing], journal: str) -> bool:
    """Whether a journal was not made again, as far as is known."""
    listing = listed.get(journal)
    return listing is None or (listing.ends_at is None and not listing.is_refused)


def _codec_errors(journals: Sequence[JournalSpec]) -> list[str]:
    """Of journals that will store, or have stored, what engines cannot read. The others go on."""
    found: list[str] = []
    for journal in journals:
        try:
            require_codec(journal.name, journal.fragment.codec)
        except LakeError as err:
            found.append(str(err))
    return found


def _turned_warnings(spec: TableSpec, listed: Mapping[str, JournalListing]) -> list[str]:
    """Of journals that have just turned to a codec that not every engine reads by itself."""
    found: list[str] = []
    for journal, listing in sorted(listed.items()):
        new = listing.wanted()
        before = {
            f.codec
            for page in listing.pages
            for f in page.fragments
            if f.backing_store and f not in new
        }
        turned = any(f.codec == CompressionCodec.ZSTANDARD for f in new if f.backing_store)
        if turned and before and CompressionCodec.ZSTANDARD not in before:
            found.append(_zstandard_warning(spec, f"{journal} has turned to"))
    return found


def _codec_warnings(spec: TableSpec, journals: Sequence[JournalSpec]) -> list[str]:
    zstandard = [j.name for j in journals if j.fragment.codec == CompressionCodec.ZSTANDARD]
    if not zstandard:
        return []
    return [
        _zstandard_warning(spec, f"{len(zstandard)} of its journals (such as {zstandard[0]}) write")
    ]


def _zstandard_warning(spec: TableSpec, what: str) -> str:
    return (
        f"{spec.name}: {what} ZSTANDARD fragments, which Trino reads, and Spark only with a codec class for "
        "them in `spark.hadoop.io.compression.codecs`: set `compression_codec: GZIP` if Spark is to read "
        "the table"
    )
