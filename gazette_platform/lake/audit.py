"""Do a table, the files that engines read, and the brokers' index agree? What is wrong, by name.

An audit looks at one journal, from an offset on, within a bound. It compares three things: what the
brokers list, the files in the journal's directories (where they are local), and the accounts of the
Hive partitions. It changes nothing. Cost: a ListFragments call, a walk of the journal's directories,
one metastore call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.coverage import Span, choose, clusters, gaps, uncovered
from gazette_platform.lake.layout import Layout, StoreRoots, partition_columns
from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.lake.planning import directory_of
from gazette_platform.lake.tables import LAYOUT
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.source import FragmentSource
    from gazette_platform.lake.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

__all__ = ["Audit", "Auditor", "Finding", "FindingKind"]

FindingKind = Literal["gap", "overlap", "count"]
_States = dict[str, tuple[tuple[str, ...], PartitionState | None]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with bytes [begin, end) of a journal."""

    kind: FindingKind
    journal: str
    begin: int
    end: int
    text: str
    excluded: str = ""
    """Name of a file that the exact view leaves out; empty if this is not about one."""
    values: tuple[str, ...] = ()
    """The Hive partition of the excluded file."""


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
@dataclass(slots=True)
class _Files:
    """Visible files of a journal's directories: fragments by directory and name, and others."""

    fragments: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    is_known: bool = False
    """Whether directories could be listed at all: they are local."""


@final
class Auditor:
    """Audits journals of raw tables. Holds no state and no connections.

    Args: source: lists fragments. roots: where fragment stores lie for engines.
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
        files = self._files(journal, listed)
        low = _lowered(begin, files.fragments.values())
        if low < begin:
            begin, listed = low, self._source.fragments(journal, low, limit)
        # At the limit, the audit ends where the last fragment listed begins.
        end = None
        if len(listed) >= limit:
            cut = _lowered(listed[-1].begin, files.fragments.values())
            end = cut if cut > begin else None
        if end is not None:
            listed = [f for f in listed if f.begin < end]
        files.fragments = {
            file: (low, high)
            for file, (low, high) in files.fragments.items()
            if low >= begin and (end is None or low < end)
        }
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

    def _files(self, journal: str, listed: Sequence[Fragment]) -> _Files:
        files = _Files()
        stores = dict.fromkeys(f.backing_store for f in listed if f.backing_store)
        for store in stores:
            location = self._roots.location(store, journal)
            if not location.startswith("file://"):
                continue
            files.is_known = True
            root = Path(location.removeprefix("file://"))
            for folder, _, names in os.walk(root):
                below = Path(folder).relative_to(root).as_posix()
                postfix = "" if below == "." else below
                directory = f"{journal}/{postfix}" if postfix else journal
                if any(p.startswith((".", "_")) for p in postfix.split("/") if p):
                    continue
                for name in names:
                    if name.startswith((".", "_")):
                        continue  # engines see no such file
                    try:
                        found = parse_fragment_path(journal, name)
                    except ValidationError:
                        files.others.append(f"{directory}/{name}")
                        continue
                    files.fragments[directory, name] = (found.begin, found.end)
        return files

    @staticmethod
    def _states(
        session: MetastoreSession,
        spec: TableSpec,
        table: HiveTable,
        listed: Sequence[Fragment],
        files: _Files,
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


def _lowered(begin: int, spans: Iterable[tuple[int, int]]) -> int:
    """The greatest offset ≤ `begin` that no file spans."""
    for low, high in sorted(spans, reverse=True):
        if low < begin < high:
            begin = low
    return begin


def _gap_findings(journal: str, listed: Sequence[Fragment]) -> list[Finding]:
    return [
        Finding(
            kind="gap",
            journal=journal,
            begin=begin,
            end=end,
            text=f"{journal}: bytes [{begin}, {end}) are in no fragment, though bytes before and "
            "after them are: files were removed from the store, or the journal's head was reset "
            "after its brokers lost them; restore the files if there is a copy",
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
    journal: str, listed: Sequence[Fragment], files: _Files, begin: int
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


def _spans(listed: Sequence[Fragment], files: _Files, states: _States) -> list[Span]:
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
