"""`gazctl lake check`: typed tables."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

from gazette_platform.cli.typed_holes import hole_text
from gazette_platform.cli.typed_tables import TypedTable
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, TransportError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.iceberg.catalog import TypedCatalog, typed_catalog
from gazette_platform.lake.typed.checks.completeness import Completeness
from gazette_platform.lake.typed.checks.recount import Recounter, recount_keys
from gazette_platform.lake.typed.checks.status import behind_now, completeness_of, unable
from gazette_platform.lake.typed.runs.working import local_workers

__all__ = ["Told", "failure", "typed_checked"]


@final
class Told(NamedTuple):
    """Something wrong with a table or, before there is one, with its spec."""

    table: str
    kind: str
    is_error: bool
    text: str


def failure(table: str, err: GazetteError, journal: str = "") -> Told:
    """What could not be looked at. An error, else a script would take it for green."""
    what = f"{journal} cannot be looked at: " if journal else "cannot be looked at: "
    return Told(table, "not checked", is_error=True, text=f"{what}{err}")


def typed_checked(
    settings: LakeSettings, client: Client, tables: Sequence[TypedTable], *, reads_content: bool
) -> list[Told]:
    """What is wrong with typed tables, and what of them could not be looked at.

    Args:
        settings: of the catalog.
        client: of the brokers.
        tables: to be looked at.
        reads_content: whether journals are read again.

    Raises: TransportError: no broker answers.
    """
    if not tables:
        return []
    try:
        catalog = typed_catalog(settings)
    except GazetteError as err:
        return [failure(table.typed.name, err) for table in tables]
    told: list[Told] = []
    for table in tables:
        try:
            for each in _check(catalog, client, table, reads_content=reads_content):
                told.append(each)  # noqa: PERF402  those before an error are kept
        except TransportError:
            raise
        except GazetteError as err:
            told.append(failure(table.typed.name, err))
    return told


def _check(
    catalog: TypedCatalog, client: Client, table: TypedTable, *, reads_content: bool
) -> Iterator[Told]:
    spec = table.typed
    loaded = catalog.handle(spec.name).load()
    if loaded is None:
        yield Told(
            spec.name, "complete", is_error=False, text="is not made yet: its first run makes it"
        )
        return
    for text in unable(loaded, spec, spec.name):
        yield Told(spec.name, "spec", is_error=True, text=text)
    yield from _told(completeness_of(catalog, spec), "complete")
    found = behind_now(client, catalog, table.raw, spec)
    for hole in found.holes:
        yield Told(spec.name, "holes", is_error=True, text=hole_text(spec.name, hole))
    for journal, why in sorted(found.unreadable.items()):
        yield Told(
            spec.name, "not checked", is_error=True, text=f"{journal} cannot be looked at: {why}"
        )
    if reads_content:
        recounter = Recounter(catalog, local_workers(), client)
        yield from _told(recounter.recount(spec, table.raw), "offsets")
        if spec.key:
            yield from _told(recount_keys(catalog, spec, table.raw, client), "keys")


def _told(found: Completeness, kind: str) -> Iterator[Told]:
    for finding in found.findings:
        yield Told(found.table, kind, is_error=True, text=finding.text)
    for text in found.notes:
        yield Told(found.table, kind, is_error=False, text=text)
