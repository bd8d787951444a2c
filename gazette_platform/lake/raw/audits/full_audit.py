"""All audits of a raw table at once: its journals from end to end, and every fragment read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_platform.errors import GazetteError, LakeError, ValidationError
from gazette_platform.lake.raw.audits.audit import Auditor
from gazette_platform.lake.raw.audits.fit import FitChecker, json_columns, missing_columns
from gazette_platform.lake.raw.audits.unfit_finding import partition_fit, table_finding
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.reading.source import all_fragments
from gazette_platform.lake.spec.layout import (
    Layout,
    directory_of,
    is_aside,
    partition_columns,
    partition_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.reading.findings import Finding
    from gazette_platform.lake.reading.source import FragmentSource
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import Fragment

# Of one journal: a store that is away fails each of its fragments.
_ERRORS_MAX: Final = 5


def audit_table(
    session: MetastoreSession,
    spec: TableSpec,
    table: HiveTable,
    source: FragmentSource,
    roots: StoreRoots,
    *,
    reads_content: bool = True,
    on_error: Callable[[str, GazetteError], object] | None = None,
) -> Iterator[Finding]:
    """What is wrong with a table, as it is found.

    Args:
        session: the metastore.
        spec: the table's spec.
        table: the table as the metastore has it.
        source: lists and reads fragments.
        roots: where fragment stores lie for engines.
        reads_content: whether to read every fragment, for values that do not fit the spec.
        on_error: called with why a journal, or a fragment of it, cannot be looked at; the others are. None: that
            is raised.

    Raises: GazetteError: a server cannot be reached.
    """
    yield from audit_index(session, spec, table, source, roots, on_error=on_error)
    if reads_content:
        yield from audit_content(spec, source, roots, on_error=on_error)


def audit_index(
    session: MetastoreSession,
    spec: TableSpec,
    table: HiveTable,
    source: FragmentSource,
    roots: StoreRoots,
    *,
    on_error: Callable[[str, GazetteError], object] | None = None,
) -> Iterator[Finding]:
    """What differs between brokers' index, files and Hive partitions; as `audit_table`."""
    auditor = Auditor(source, roots)
    for journal in source.journals(spec.label_selector):
        begin: int | None = 0
        while begin is not None:
            try:
                found = auditor.audit(session, table, journal.name, begin=begin, lists_objects=True)
            except GazetteError as err:
                if on_error is None:
                    raise
                on_error(journal.name, err)
                break
            yield from found.findings
            begin = found.end


def audit_content(
    spec: TableSpec,
    source: FragmentSource,
    roots: StoreRoots,
    *,
    on_error: Callable[[str, GazetteError], object] | None = None,
) -> Iterator[Finding]:
    """What of every fragment does not fit the spec, then what that means for rollups; as `audit_table`."""
    fit_checker = FitChecker(source, roots)
    missing = set(json_columns(spec))
    is_whole = True
    # Of what is in each directory, as accounts would count it.
    states: dict[str, PartitionState] = {}
    for journal in source.journals(spec.label_selector):
        errors = 0
        fragments = all_fragments(source, journal.name)
        while errors < _ERRORS_MAX:
            try:
                fragment = next(fragments, None)
                if fragment is None:
                    break
                if is_aside(fragment):
                    continue
                found = fit_checker.check(spec, fragment)
            except GazetteError as err:
                if on_error is None:
                    raise
                on_error(journal.name, err)
                errors += 1
                is_whole = False
                continue
            if found.finding is not None:
                yield found.finding
            missing -= found.columns
            if fragment.backing_store:
                key = _key(spec, fragment)
                states[key] = states.get(key, PartitionState()).adding(
                    fragment.journal,
                    fragment.begin,
                    fragment.end,
                    rows=found.rows,
                    stored_bytes=None,
                    unfit=found.unfit,
                )
    fits = [partition_fit(key, state) for key, state in sorted(states.items())]
    unfit = table_finding(spec, [fit for fit in fits if fit is not None])
    if unfit is not None:
        yield unfit
    lost = missing_columns(spec, missing)
    if lost is not None and is_whole:
        yield lost


def _key(spec: TableSpec, fragment: Fragment) -> str:
    """The key of the Hive partition of a fragment; its directory, if that is not of the table's layout."""
    directory = directory_of(fragment)
    try:
        layout = Layout.of_directory(directory)
        columns = partition_columns(spec, layout)
        texts = layout.match(directory)
        values = [column.value(text) for column, text in zip(columns, texts, strict=True)]
    except (LakeError, ValidationError):
        return directory
    return partition_key(columns, values) or "all"
