"""Do a table, the files that engines read, and the brokers' index agree? What is wrong, by name.

An audit looks at one journal, from an offset on, within a bound. It compares three things: what the
brokers list, the files in the journal's directories (where they are local), and the accounts of the
Hive partitions. It changes nothing. Cost: a ListFragments call, a walk of the journal's directories,
one metastore call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.coverage import Span, choose, clusters, gaps, uncovered
from gazette_platform.lake.files import JournalFiles, journal_files
from gazette_platform.lake.findings import Finding
from gazette_platform.lake.layout import Layout, StoreRoots, partition_columns
from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.lake.planning import directory_of
from gazette_platform.lake.tables import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.source import FragmentSource
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

__all__ = ["Audit", "Auditor"]

_States = dict[str, tuple[tuple[str, ...], PartitionState | None]]


@final
@dataclass(frozen=True, slots=True)
class Audit:
    """Findings of files and gaps that begin in [begin, end) of a journal."""

    journal: str
    begin: int
    end: int | None
    """None: up to the journal's head, and the next audit may start at 0 again."""
    findings: tuple[Finding, ...]


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

    def audit(
        self,
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        journal: str,
        *,
        begin: int = 0,
        registered: int | None = None,
        limit: int = 1000,
    ) -> Audit:
        """What is wrong with the journal from `begin` on.

        Args:
            session: the metastore.
            spec: the table's spec.
            table: the table as the metastore has it.
            journal: one of the table's journals.
            begin: offset to begin at; lowered if a file spans it.
            registered: offset up to which the journal is registered; None: as the accounts say.
            limit: fragments to ask for; the audit ends where they end.

        Raises: GazetteError: a server cannot be reached.
        """
        listed = self._source.fragments(journal, begin, limit)
        # Where nothing begins any more, the first fragment tells where the journal's files lie.
        files = journal_files(self._roots, journal, listed or self._source.fragments(journal, 0, 1))
        low = files.lowered(begin)
        if low < begin:
            begin, listed = low, self._source.fragments(journal, low, limit)
        # At the limit, the audit ends where the last fragment listed begins.
        end = None
        if len(listed) >= limit:
            cut = files.lowered(listed[-1].begin)
            end = cut if cut > begin else None
        if end is not None:
            listed = [f for f in listed if f.begin < end]
        files.keep(
            {
                file: (low, high)
                for file, (low, high) in files.fragments.items()
                if low >= begin and (end is None or low < end)
            }
        )
        states = self._states(session, spec, table, listed, files)
        if registered is None:
            accounts = [state for _, state in states.values() if state is not None]
            registered = max((end for a in accounts for _, end in a.ranges), default=0)
        findings = [
            *_gap_findings(journal, listed),
            *_registration_findings(listed, registered, states),
            *_file_findings(journal, listed, files, begin),
            *_overlap_findings(journal, _spans(listed, files, states), states),
        ]
        return Audit(journal, begin, end, tuple(findings))

    @staticmethod
    def _states(
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        listed: Sequence[Fragment],
        files: JournalFiles,
    ) -> _States:
        """Per directory: values of its Hive partition, and its accounts if it is registered."""
        layout = Layout.parse(table.parameters[LAYOUT])
        columns = partition_columns(spec, layout)
        directories = {directory_of(f) for f in listed if f.backing_store}
        directories |= {directory for directory, _ in files.fragments}
        values: dict[str, tuple[str, ...]] = {}
        for directory in sorted(directories):
            try:
                texts = layout.match(directory)
                values[directory] = tuple(c.value(t) for c, t in zip(columns, texts, strict=True))
            except LakeError:
                continue  # not of this table; registration says so where it matters
        if not columns:
            state = PartitionState.from_parameters(table.parameters)
            return dict.fromkeys(values, ((), state))
        found = session.partitions_of(table, sorted(set(values.values())))
        return {
            directory: (
                named,
                PartitionState.from_parameters(found[named].parameters) if named in found else None,
            )
            for directory, named in values.items()
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
            "files, put it back in its place and clear the cursor of sensor `fragments`; else "
            "nothing is to be done",
        )
        for begin, end in gaps((f.begin, f.end) for f in listed if f.content_length)
    ]


def _registration_findings(
    listed: Sequence[Fragment],
    registered: int,
    states: _States,
) -> list[Finding]:
    found: list[Finding] = []
    for fragment in listed:
        if not fragment.backing_store or not fragment.content_length or fragment.end > registered:
            continue
        _, state = states.get(directory_of(fragment), ((), None))
        if state is not None and state.covers(fragment.begin, fragment.end):
            continue
        found.append(
            Finding(
                kind="count",
                journal=fragment.journal,
                begin=fragment.begin,
                end=fragment.end,
                text=f"fragment {fragment.content_path} is behind the sensor's cursor and in no "
                "Hive partition, so queries miss it (was a partition dropped?): clear the cursor "
                "of sensor `fragments`, which repeats no row",
            )
        )
    return found


def _file_findings(
    journal: str, listed: Sequence[Fragment], files: JournalFiles, begin: int
) -> list[Finding]:
    if not files.is_known:
        return []
    found = [
        Finding(
            kind="count",
            journal=journal,
            begin=f.begin,
            end=f.end,
            text=f"the brokers list fragment {f.content_path}, but its file is gone, so queries "
            "miss it: restore it (or, if it was just pruned, wait for the brokers' next refresh)",
        )
        for f in listed
        if f.backing_store
        and f.content_length
        and (directory_of(f), f.content_name) not in files.fragments
    ]
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
                )
            )
    if begin == 0:
        found += [
            Finding(
                kind="count",
                journal=journal,
                begin=0,
                end=0,
                text=f"queries read file {path}, which is no fragment: move it out of the table",
            )
            for path in sorted(files.others)
        ]
    return found


def _spans(listed: Sequence[Fragment], files: JournalFiles, states: _States) -> list[Span]:
    """What engines read of these offsets: what is listed, and other files of Hive partitions."""
    spans: dict[tuple[str, str], Span] = {}
    for f in listed:
        if f.backing_store and f.content_length:
            directory = directory_of(f)
            spans[directory, f.content_name] = Span(
                f.begin, f.end, directory, f.content_name, is_listed=True
            )
    for (directory, name), (low, high) in files.fragments.items():
        is_read = states.get(directory, ((), None))[1] is not None
        if is_read and high > low and (directory, name) not in spans:
            spans[directory, name] = Span(low, high, directory, name, is_listed=False)
    return list(spans.values())


def _overlap_findings(
    journal: str,
    spans: Iterable[Span],
    states: _States,
) -> list[Finding]:
    found: list[Finding] = []
    for cluster in clusters(spans):
        if len(cluster) == 1:
            continue
        kept = choose(cluster)
        for span in cluster:
            if span in kept:
                continue
            rivals = ", ".join(
                f"[{s.begin}, {s.end})" for s in kept if s.begin < span.end and span.begin < s.end
            )
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
                    values=states.get(span.directory, ((), None))[0],
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
            )
            for begin, end in uncovered(cluster, kept)
        ]
    return found
