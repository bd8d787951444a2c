"""Do the accounts of a table, the files that engines read, and the brokers' index agree? Findings, each of a named kind.

An audit looks at one journal, from an offset on, within a bound. It compares three things: what the
brokers list, the accounts of the Hive partitions, and the files in their directories. It changes
nothing. Cost: a ListFragments call, two or three metastore calls, and a listing of each directory. On
object stores, where listings cost money, only those directories are listed whose accounts say that
bytes are in two files, unless all are asked for; of what was not looked at, it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError
from gazette_platform.lake.raw.account_book import AccountBook
from gazette_platform.lake.raw.audits.registration_status import LOOKED, Accounts, read_accounts
from gazette_platform.lake.raw.listing import JournalFiles, journal_files
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.planning import JournalCursor, is_readable
from gazette_platform.lake.raw.reconcile import (
    Finding,
    Span,
    choose,
    clusters,
    lowered,
    reconcile,
    uncovered,
)
from gazette_platform.lake.reading.storage import Storage
from gazette_platform.lake.spec.layout import directory_of, home_directory, is_aside
from gazette_platform.protocol import parse_fragment_path
from gazette_platform.protocol.offsets import gaps_between

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.audits.registration_status import Place
    from gazette_platform.lake.raw.reconcile import FindingKind
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import CompressionCodec, Fragment

# Directories of object stores that one audit lists because of what accounts say.
_SUSPECTS_MAX = 32
_FILE_KINDS: tuple[FindingKind, ...] = ("count", "overlap")


@final
@dataclass(frozen=True, slots=True)
class Audit:
    """Findings of files and gaps that begin in [begin, end) of a journal."""

    journal: str
    begin: int
    end: int | None
    """None: up to the journal's head, and the next audit may start at 0 again."""
    findings: tuple[Finding, ...]
    unlisted: frozenset[str] = frozenset()
    """Directories whose files were not looked at: what was known of them before still holds."""

    def replaces(self, finding: Finding) -> bool:
        """Whether this audit looked at what `finding`, of an earlier one, is about."""
        return (
            finding.journal == self.journal
            and finding.begin >= self.begin
            and (self.end is None or finding.begin < self.end)
            and not (finding.directory in self.unlisted and finding.kind in _FILE_KINDS)
        )


@final
class Auditor:
    """Audits journals of raw tables. Holds no state and no connections.

    Args:
        source: lists fragments.
        roots: where fragment stores lie for engines.
    """

    def __init__(self, source: FragmentSource, roots: StoreRoots) -> None:
        self._source = source
        self._roots = roots
        self._storage = Storage(roots)

    def audit(
        self,
        session: MetastoreSession,
        table: HiveTable,
        journal: str,
        *,
        begin: int = 0,
        cursor: JournalCursor | None = None,
        limit: int = 1000,
        lists_objects: bool = False,
        known: Collection[str] = (),
    ) -> Audit:
        """What is wrong with the journal from `begin` on.

        Args:
            session: the metastore.
            table: the table as the metastore has it.
            journal: one of the table's journals.
            begin: offset to begin at; lowered if a file spans it.
            cursor: how far the journal is registered; None: as the accounts say.
            limit: fragments to ask for; the audit ends where they end.
            lists_objects: whether directories of object stores are listed, too: a request for each.
            known: directories for which earlier findings name the file to leave out: others come first.

        Raises: GazetteError: a server cannot be reached.
        """
        book = AccountBook(session, table)

        def view_from(begin: int) -> _View:
            return self._view(book, journal, begin, limit, known, lists_objects=lists_objects)

        view = view_from(begin)
        low = view.low(begin)
        if low < begin:
            wider = view_from(low)
            # Where there is more below than one audit takes, this goes on above all the same.
            if wider.end is None or wider.end > begin:
                view = wider
        return view.audit(journal, cursor)

    def _view(
        self,
        book: AccountBook,
        journal: str,
        begin: int,
        limit: int,
        known: Collection[str],
        *,
        lists_objects: bool,
    ) -> _View:
        listed = self._source.fragments(journal, begin, limit)
        # Where nothing begins any more, the first fragment shows where the journal's files lie.
        anchors = listed or self._source.fragments(journal, 0, 1)
        reach = listed[-1].begin if len(listed) >= limit else None
        accounts = read_accounts(book, self._roots, journal, anchors, begin, reach)
        overlaps = accounts.overlaps(begin, reach)
        doubtful = dict.fromkeys(
            [
                *overlaps,
                *(d for d, place in accounts.places.items() if place.state.moving),
                *_not_as_listed(accounts, listed, begin, reach),
                *(d for d in known if d in accounts.places),
            ]
        )
        # Of other directories one listing says all until the account or the index changes.
        # For overlaps, and earlier findings, files show which is left out.
        doubtful = dict.fromkeys(
            d
            for d in doubtful
            if d in overlaps or d in known or not _is_known(accounts.places[d], listed)
        )
        suspects = set(sorted(doubtful, key=lambda d: d in known)[:_SUSPECTS_MAX])
        places = [
            (place.store, place.directory)
            for place in accounts.places.values()
            if lists_objects or place.directory in suspects or self._storage.is_local(place.store)
        ]
        files = journal_files(self._storage, journal, places)
        _note_well(accounts, files, listed)
        # At the limit, the audit ends where the last fragment listed begins.
        end = None
        if reach is not None:
            cut = lowered(reach, [*files.fragments.values(), *((f.begin, f.end) for f in listed)])
            end = cut if cut > begin else None
        following = [f for f in listed if end is not None and f.begin >= end][:1]
        if end is not None:
            listed = [f for f in listed if f.begin < end]
        read = [
            f
            for f in listed
            if f.backing_store
            and accounts.reads(
                self._roots.location(f.backing_store, directory_of(f)), directory_of(f)
            )
        ]
        untold = {d: span for d, span in overlaps.items() if d in suspects or d not in known}
        return _View(accounts, files, listed, following, read, untold, begin, end)


@final
@dataclass(frozen=True, slots=True)
class _View:
    """All that an audit compares, of offsets [begin, end) of a journal."""

    accounts: Accounts
    files: JournalFiles
    fragments: Sequence[Fragment]
    following: Sequence[Fragment]
    """The first of those after them, if any: a gap may lie between."""
    read: Sequence[Fragment]
    """Those of the fragments whose files engines read."""
    overlaps: dict[str, tuple[int, int]]
    begin: int
    end: int | None

    def low(self, begin: int) -> int:
        """Where an audit from `begin` on has to begin for what spans that offset."""
        shared = [r for d in self.overlaps for r in self.accounts.places[d].state.ranges]
        return lowered(begin, [*self.files.fragments.values(), *shared])

    def audit(self, journal: str, cursor: JournalCursor | None) -> Audit:
        """What is wrong."""
        files, accounts = self.files, self.accounts
        files.keep(
            {
                file: (low, high)
                for file, (low, high) in files.fragments.items()
                if low >= self.begin and (self.end is None or low < self.end)
            }
        )
        if cursor is None:
            states = accounts.states.values()
            ends = (e for s in states if s.journal == journal for _, e in s.ranges)
            cursor = JournalCursor(max(ends, default=0))
        unlisted = {
            place.directory: files.unlisted.get(place.directory, _NOT_ASKED)
            for place in accounts.places.values()
            if place.directory not in files.listed
        }
        spans = _spans(journal, self.read, files)
        findings = [
            *_gap_findings(journal, [*self.fragments, *self.following]),
            *_aside_findings(self.fragments, accounts),
            *_registration_findings(self.fragments, cursor, accounts),
            *_file_findings(journal, self.fragments, files, self.begin, accounts),
            *_overlap_findings(journal, spans, accounts),
            *_codec_findings(journal, self.read, files, accounts),
            *self._account_findings(journal, unlisted),
            *self._unchecked_findings(journal, unlisted),
        ]
        return Audit(journal, self.begin, self.end, tuple(findings), frozenset(unlisted))

    def _account_findings(self, journal: str, unlisted: dict[str, str]) -> list[Finding]:
        """Of what accounts say is twice, and whose files could not be looked at."""
        return [
            Finding(
                kind="overlap",
                journal=journal,
                begin=max(begin, self.begin),
                end=end,
                text=f"files in {directory} hold bytes of [{begin}, {end}) of {journal} that another "
                "file holds, too, as the accounts of the Hive partitions say: queries of the table "
                "see rows twice, and so does the view `…_exact`, because the files could not be "
                f"listed to find out which ({unlisted[directory]})",
            )
            for directory, (begin, end) in self.overlaps.items()
            if directory in unlisted
        ]

    def _unchecked_findings(self, journal: str, unlisted: dict[str, str]) -> list[Finding]:
        reasons = dict.fromkeys(unlisted.values())
        if not self.accounts.is_complete:
            reasons["there are more Hive partitions than one audit reads"] = None
        if not reasons:
            return []
        why = "; ".join(reasons)
        return [
            Finding(
                kind=kind,
                journal=journal,
                begin=self.begin,
                end=self.begin if self.end is None else self.end,
                is_error=False,
                is_checked=False,
                # The same words as long as it is so, else what depends on the table seems stale.
                text=f"not checked: not all files of {journal} were listed ({why}), so {_UNSEEN[kind]}",
            )
            for kind in _FILE_KINDS
        ]


def _not_as_listed(
    accounts: Accounts, listed: Sequence[Fragment], begin: int, end: int | None
) -> list[str]:
    """Directories whose accounts count other fragments than brokers list.

    A fragment whose bytes smaller ones held before, in the same directory, is in no account: these say
    nothing of the overlap.
    """
    held: dict[str, list[Fragment]] = {}
    for fragment in listed:
        held.setdefault(directory_of(fragment), []).append(fragment)
    found: list[str] = []
    for place in accounts.places.values():
        ranges = place.state.ranges
        if not ranges or ranges[0][0] < begin or (end is not None and ranges[-1][1] > end):
            continue  # brokers were not asked for all of it
        difference = reconcile(place.state, held.get(place.directory, ()))
        if difference.missing or difference.surplus or difference.surplus_bytes:
            found.append(place.directory)
    return found


def _listed_in(directory: str, listed: Sequence[Fragment]) -> frozenset[str]:
    return frozenset(
        f.content_name
        for f in listed
        if f.backing_store and f.content_length and directory_of(f) == directory
    )


def _is_known(place: Place, listed: Sequence[Fragment]) -> bool:
    """Whether a directory held just what brokers list when it was listed, and nothing has changed since."""
    return LOOKED.is_known(place.location, (place.state, _listed_in(place.directory, listed)))


def _note_well(accounts: Accounts, files: JournalFiles, listed: Sequence[Fragment]) -> None:
    found: dict[str, set[str]] = {directory: set() for directory in files.listed}
    for directory, name in files.fragments:
        found[directory].add(name)
    for directory, names in found.items():
        place = accounts.places.get(directory)
        known = _listed_in(directory, listed)
        if place is not None and known == names:
            LOOKED.note(place.location, (place.state, known))


_NOT_ASKED = "the sensor lists no object stores; execute the check to do so"
_UNSEEN = {
    "count": "files that are gone, or were never registered, would not be seen",
    "overlap": "only files that were registered are known to hold no byte twice",
}


def _gap_findings(journal: str, listed: Sequence[Fragment]) -> list[Finding]:
    return [
        Finding(
            kind="gap",
            journal=journal,
            begin=begin,
            end=end,
            is_error=False,
            text=f"{journal}: bytes [{begin}, {end}) are in no fragment that the brokers know, "
            "though bytes before and after them are: they were pruned, or given up by `reset-head`. "
            "The table lacks no row that a reader of the journal gets. If there is a copy of the "
            "files, put it back in its place: a round of sensor `fragments` finds and registers it; "
            "else nothing is to be done",
        )
        for begin, end in gaps_between((f.begin, f.end) for f in listed if f.content_length)
    ]


def _aside_findings(listed: Sequence[Fragment], accounts: Accounts) -> list[Finding]:
    found: list[Finding] = []
    for fragment in listed:
        begin, end = fragment.begin, fragment.end
        if is_aside(fragment) or _is_known_aside(fragment, accounts):
            path = f"{home_directory(fragment)}/{fragment.content_name}"
            found.append(
                Finding(
                    kind="gap",
                    journal=fragment.journal,
                    begin=begin,
                    end=end,
                    is_error=False,
                    text=f"{fragment.journal}: bytes [{begin}, {end}) are aside: a person took file {path} "
                    "out of the table, so no query sees its rows, and readers of the journal do "
                    "(`gazctl lake set-aside --list` says why; --restore takes it back)",
                )
            )
    return found


def _is_known_aside(fragment: Fragment, accounts: Accounts) -> bool:
    """Whether accounts know that it is set aside, even if brokers do not list it so yet."""
    state = accounts.state_of(directory_of(fragment))
    begin, end = fragment.begin, fragment.end
    return state is not None and state.settles(begin, end) and not state.covers(begin, end)


def _registration_findings(
    listed: Sequence[Fragment], cursor: JournalCursor, accounts: Accounts
) -> list[Finding]:
    found: list[Finding] = []
    for fragment in listed:
        state = accounts.state_of(directory_of(fragment)) or PartitionState()
        # What the cursor still wants is late and not lost; `overdue` reports it if it takes too long.
        if cursor.wants(fragment) or not reconcile(state, [fragment]).missing:
            continue
        found.append(
            Finding(
                kind="count",
                journal=fragment.journal,
                begin=fragment.begin,
                end=fragment.end,
                text=f"fragment {fragment.content_path} is behind the sensor's cursor and in no "
                "Hive partition, so queries miss it (was a partition dropped?): the round of "
                "sensor `fragments` over old fragments registers it; its tick says what it cannot "
                "take",
            )
        )
    return found


def _gone_findings(
    journal: str, listed: Sequence[Fragment], files: JournalFiles, begin: int, accounts: Accounts
) -> list[Finding]:
    """Of what brokers list and is not there. At the front of a journal, it was pruned a moment ago."""
    stored = [
        f
        for f in listed
        if f.backing_store
        and f.content_length
        and directory_of(f) in files.listed
        and not _is_known_aside(f, accounts)
    ]
    is_there = [(directory_of(f), f.content_name) in files.fragments for f in stored]
    # A prune deletes from the front. What is missing before the first file that exists was most likely pruned since brokers
    # last listed the store; what is missing after it was not.
    pruned = is_there.index(True) if begin == 0 and True in is_there else 0
    wait = "it seems to have been pruned; wait for the brokers' next refresh, there is nothing else to do"
    restore = "restore it (or, if it was just pruned, wait for the brokers' next refresh)"
    return [
        Finding(
            kind="count",
            journal=journal,
            begin=f.begin,
            end=f.end,
            is_error=number >= pruned,
            text=f"the brokers list fragment {f.content_path}, but its file is gone, so queries "
            f"miss it: {wait if number < pruned else restore}",
            directory=directory_of(f),
        )
        for number, f in enumerate(stored)
        if not is_there[number]
    ]


def _file_findings(
    journal: str, listed: Sequence[Fragment], files: JournalFiles, begin: int, accounts: Accounts
) -> list[Finding]:
    found = _gone_findings(journal, listed, files, begin, accounts)
    known = {(f.begin, f.end) for f in listed}
    head = max((f.end for f in listed), default=0)
    for (directory, name), (low, high) in sorted(files.fragments.items()):
        overlaps = any(f.begin < high and low < f.end for f in listed)
        # What begins at the head was persisted since the brokers were asked.
        if low < min(high, head) and not overlaps and (low, high) not in known:
            found.append(
                Finding(
                    kind="count",
                    journal=journal,
                    begin=low,
                    end=high,
                    text=f"queries read file {directory}/{name}, which the brokers do not list "
                    "(yet): wait for their next refresh, or move it out of the table",
                    directory=directory,
                )
            )
    if begin == 0:
        found += [
            Finding(
                kind="count",
                journal=journal,
                begin=0,
                end=0,
                text=f"queries read file {path}, which is not a fragment: move it out of the table",
                directory=path.rpartition("/")[0],
            )
            for path in sorted(files.others)
        ]
    return found


def _codec_of(journal: str, name: str) -> CompressionCodec:
    return parse_fragment_path(journal, name).codec


def _codec_findings(
    journal: str, read: Sequence[Fragment], files: JournalFiles, accounts: Accounts
) -> list[Finding]:
    """Of files in the directories of Hive partitions that engines read as garbage, without an error."""
    spans = {(directory_of(f), f.content_name): (f.begin, f.end) for f in read if f.content_length}
    spans |= files.fragments
    found: list[Finding] = []
    for (directory, name), (begin, end) in sorted(spans.items()):
        codec = _codec_of(journal, name)
        if is_readable(codec) or directory not in accounts.places:
            continue
        found.append(
            Finding(
                kind="count",
                journal=journal,
                begin=begin,
                end=end,
                text=f"queries read file {directory}/{name}, whose codec {codec.name} Trino and Spark take for "
                "plain text: rows of NULLs, or none, and no error; the view `…_exact` leaves this file out. "
                "Set `compression_codec` of the journal to GZIP (or NONE); its rows are in the journal, and "
                "`gazctl sql` reads them",
                excluded=name,
                directory=directory,
                values=accounts.places[directory].values,
                since=begin,
            )
        )
    return found


def _spans(journal: str, read: Sequence[Fragment], files: JournalFiles) -> list[Span]:
    """What engines read of these offsets: files in the directories of Hive partitions, of codecs they know.

    What brokers list is one of them only if its directory is registered, and the file there: nothing
    may be left out in favour of rows that no query sees.
    """
    spans: dict[tuple[str, str], Span] = {}
    for f in read:
        place = (directory_of(f), f.content_name)
        is_there = place[0] not in files.listed or place in files.fragments
        if f.content_length and is_there and is_readable(f.codec):
            spans[place] = Span(f.begin, f.end, *place, is_listed=True)
    for place, (low, high) in files.fragments.items():
        if high > low and place not in spans and is_readable(_codec_of(journal, place[1])):
            spans[place] = Span(low, high, *place, is_listed=False)
    return list(spans.values())


def _overlap_findings(journal: str, spans: Iterable[Span], accounts: Accounts) -> list[Finding]:
    found: list[Finding] = []
    for cluster in clusters(spans):
        if len(cluster) == 1:
            continue
        kept = choose(cluster)
        for span in cluster:
            if span in kept:
                continue
            over = [s for s in kept if s.begin < span.end and span.begin < s.end]
            rivals = ", ".join(f"[{s.begin}, {s.end})" for s in over)
            found.append(
                Finding(
                    kind="overlap",
                    journal=journal,
                    begin=span.begin,
                    end=span.end,
                    text=f"file {span.directory}/{span.name} holds bytes [{span.begin}, "
                    f"{span.end}), which overlap those of {rivals}: queries of the table see rows "
                    "twice; the view `…_exact` leaves this file out",
                    excluded=span.name,
                    directory=span.directory,
                    values=accounts.places[span.directory].values,
                    since=min(span.begin, *(s.begin for s in over)),
                )
            )
        found += [
            Finding(
                kind="overlap",
                journal=journal,
                begin=begin,
                end=end,
                text=f"{journal}: bytes [{begin}, {end}) are only in files that overlap others in "
                "part, so the view `…_exact` lacks them; read them from the journal",
                directory=cluster[0].directory,
            )
            for begin, end in uncovered(cluster, kept)
        ]
    return found


def audit_index(
    session: MetastoreSession,
    spec: TableSpec,
    table: HiveTable,
    source: FragmentSource,
    roots: StoreRoots,
    *,
    on_error: Callable[[str, GazetteError], object] | None = None,
) -> Iterator[Finding]:
    """What differs between brokers' index, files and Hive partitions, as it is found.

    Args:
        on_error: called with why a journal cannot be looked at; the others are. None: that is raised.

    Raises: GazetteError: a server cannot be reached.
    """
    auditor = Auditor(source, roots)
    for journal in source.journals(spec.label_selector):
        begin: int | None = 0
        while begin is not None:
            try:
                # A person asked, and waits. Sensors list no objects unless accounts give a reason, because each listing costs money.
                found = auditor.audit(session, table, journal.name, begin=begin, lists_objects=True)
            except GazetteError as err:
                if on_error is None:
                    raise
                on_error(journal.name, err)
                break
            yield from found.findings
            begin = found.end
