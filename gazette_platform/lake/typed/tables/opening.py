"""How whatever changes a typed table begins, and ends: with both of its tables, and nothing left to be settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.catalog import PinnedHandle
from gazette_platform.lake.typed.tables.quarantine import open_quarantine, settle_quarantine
from gazette_platform.lake.typed.tables.table import open_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle, TypedCatalog
    from gazette_platform.lake.spec.typed.spec import TypedSpec
    from gazette_platform.lake.typed.tables.table import TypedTable


@final
@dataclass(frozen=True, slots=True)
class Opened:
    """A typed table and its quarantine, to begin with."""

    handles: tuple[TableHandle, TableHandle]
    """Of the typed table, and of its quarantine."""
    table: TypedTable
    quarantine: Loaded
    """As it was before it was settled: it says where files go, and their columns."""


def handles_of(catalog: TypedCatalog, spec: TypedSpec) -> tuple[TableHandle, TableHandle]:
    """Of a typed table, and of its quarantine. Neither need exist."""
    return catalog.handle(spec.name), catalog.handle(spec.quarantine)


def open_both(catalog: TypedCatalog, spec: TypedSpec, log: Callable[[str], None]) -> Opened:
    """Both tables, made or changed as the spec says, with what the newest publication has set aside settled.

    The typed table is looked at first: whatever anybody publishes from then on fences who begins with this.

    Raises: as `open_table`, `open_quarantine` and `settle_quarantine`.
    """
    handles = handles_of(catalog, spec)
    table = open_table(handles[0], spec, catalog.new_location(spec.name))
    handles = PinnedHandle(handles[0], table.metadata.table_uuid), handles[1]
    location = catalog.new_location(spec.quarantine)
    quarantine = open_quarantine(handles[1], spec.name, location)
    if settle_quarantine(*handles):
        log(f"{spec.name}: settled what the run before left in quarantine")
    return Opened(handles, table, quarantine)


def settle_behind(handles: tuple[TableHandle, TableHandle], log: Callable[[str], None]) -> None:
    """Settle what was published just now. Where that fails, whoever publishes next does it, before."""
    try:
        settle_quarantine(*handles)
    except LakeError as err:
        log(f"{handles[0].name}: quarantined records are to be settled yet: {err}")
