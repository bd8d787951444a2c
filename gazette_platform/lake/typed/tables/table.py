"""A typed table and its quarantine as a run begins with them: made, or brought to what the spec says, with the state to go on from.

Evolution is a commit of its own, before anything is read, by the same handle and under the same fence as what a run
publishes: a late run does not change the shape either.

`open_both` also settles what the newest publication has quarantined, so nothing is left over from the run before.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from typing_extensions import override

from gazette_platform.errors import LakeError, SchemaMismatch, TableFenced
from gazette_platform.lake.iceberg.catalog import NewTable, PinnedHandle
from gazette_platform.lake.iceberg.publishing import (
    MANIFESTS,
    PROGRESS,
    QUARANTINE,
    QUARANTINED,
    RUN,
    STATE,
    progress_of,
    read_side_file,
    require_progress,
    still_at,
    still_parted_by,
    summary_of,
    write_side_file,
)
from gazette_platform.lake.typed.evolution import plan_evolution
from gazette_platform.lake.typed.iceberg_types import (
    arrow_schema,
    new_partition_spec,
    new_schema,
)
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.tables.quarantine import open_quarantine, settle_quarantine
from gazette_platform.lake.typed.tables.upserts import UPSERTED
from gazette_platform.lake.typed.tables.writing import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from gazette_platform.lake.iceberg.catalog import Loaded, TableHandle, TypedCatalog
    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.typed.evolution import Evolution

SOURCE: Final = "gazette.source"
"""Property of a table: the raw one that its rows are of."""
UUID: Final = "gazette.uuid"
"""Property of a table: where records have their message's UUID, as the spec says it."""
CHANGES: Final = "gazette.changes"
"""Property of a table of changes: what deletes rows, as the spec says it."""
OFFSETS: Final = "gazette.offsets"
"""Property of a snapshot: how far journals were read, in words, if there are few."""

_PROPERTIES: Final = {
    "format-version": "2",
    "write.format.default": "parquet",
    # A writer of Iceberg's that stays open for each partition ends a Spark of 1 GB at a thousand of them.
    "write.spark.fanout.enabled": "false",
    "write.wap.enabled": "true",
    **METRICS,
    **MANIFESTS,
}
# So many journals are listed in a snapshot's summary, which every reader of the table loads.
_JOURNALS_MAX: Final = 20
_ATTEMPTS: Final = 10


@final
@dataclass(frozen=True)
class TypedTable:
    """A typed table as it was when it was loaded."""

    name: str
    """``schema.table``."""
    metadata: TableMetadata
    io: FileIO
    start: int | None
    """The snapshot that progress is at: what `publish_files` compares with. None: nothing was published."""
    state: TypedState
    """What was read up to there."""

    @property
    def location(self) -> str:
        """Below it lie data files."""
        return self.metadata.location

    @property
    def schema(self) -> Schema:
        """With the ids to write files with."""
        return self.metadata.schema()

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Of the rows that files are to hold."""
        return arrow_schema(self.schema)

    @property
    def partition_spec(self) -> PartitionSpec:
        """The partition spec of new files."""
        return self.metadata.spec()

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns, whose last message wins; empty: each message is a row."""
        ids = self.schema.identifier_field_ids
        return tuple(field.name for field in self.schema.fields if field.field_id in ids)

    @property
    def run(self) -> str:
        """Which has published last; empty: none."""
        return summary_of(self.metadata, self.start).get(RUN, "")

    @property
    def offsets(self) -> str:
        """How far journals were read, in words."""
        return _in_words(self.state)


def open_table(handle: TableHandle, spec: TypedSpec, location: str) -> TypedTable:
    """The table of a spec, made or changed so that it is what the spec says.

    Args:
        handle: of the table.
        spec: what it is to be.
        location: of a table that has to be made; it must be empty. Of several runs that make it at once,
            one does, and the others get that one, at its own location.

    Raises: SchemaMismatch: it cannot become what the spec says, with all differences; or its `uuid` is another.
        TableFenced: another run has published while this one changed it. TypedProgressGone, TypedRolledBack: a
        person has to look. LakeError: the table is not ours; the state cannot be read; the catalog cannot be
        reached.
    """
    loaded = handle.load()
    if loaded is None:
        schema = new_schema(spec)
        told = {SOURCE: spec.source, UUID: _uuid_of(spec), **(UPSERTED if spec.key else {})}
        if spec.changes is not None:
            told[CHANGES] = _changes_of(spec)
        partitions = new_partition_spec(spec, schema)
        loaded = handle.create(NewTable(
            schema=schema, partitions=partitions, location=location, properties={**_PROPERTIES, **told}
        ))  # fmt: skip
    require_ours(loaded, spec, handle.name)
    require_progress(loaded.metadata, handle.name)
    return typed_table(_evolved(handle, loaded, spec), handle.name)


def require_able(loaded: Loaded, spec: TypedSpec, name: str) -> None:
    """See that a table can become what its spec says, and change nothing.

    Raises: SchemaMismatch: it cannot, with all differences. LakeError: it is not ours.
    """
    require_ours(loaded, spec, name)
    with _naming(name):
        _evolution(loaded.metadata, spec).require_possible()


def typed_table(loaded: Loaded, name: str) -> TypedTable:
    """A table that was loaded, with its state.

    Raises: LakeError: it is not a typed table, or its state cannot be read. TypedProgressGone, TypedRolledBack: a
        person has to look.
    """
    if SOURCE not in loaded.metadata.properties:
        raise LakeError(
            f"{name} exists and is not a typed table: give the typed one another `name`"
        )
    require_progress(loaded.metadata, name)
    start = progress_of(loaded.metadata)
    state = TypedState() if start is None else _read_state(loaded, start, name)
    return TypedTable(name, loaded.metadata, loaded.io, start, state)


def state_properties(
    state: TypedState, *, path: str, run: str, quarantine: str = ""
) -> dict[str, str]:
    """What the snapshot of a run says of itself.

    Args:
        state: behind the run.
        path: of the file with it, as `write_state` gave it.
        run: of the publication.
        quarantine: path of the list of quarantined files; empty: there are none.
    """
    counts = state.counts
    properties = {
        STATE: path,
        RUN: run,
        "gazette.typed-rows": str(counts.typed),
        QUARANTINED: str(counts.quarantined),
    }
    if quarantine:
        properties[QUARANTINE] = quarantine
    if len(state.journals) <= _JOURNALS_MAX:
        properties[OFFSETS] = _in_words(state)
    return properties


def write_state(location: str, state: TypedState, io: FileIO | None = None) -> str:
    """Write a state beside the table at `location`. Returns: the path.

    Args:
        io: of the table; None: one by PyIceberg's defaults.

    Raises: LakeError: it cannot be written.
    """
    return write_side_file(location, "state", state.encode(), io)


def _read_state(loaded: Loaded, start: int, name: str) -> TypedState:
    path = summary_of(loaded.metadata, start).get(STATE, "")
    if not path:
        raise LakeError(
            f"the snapshot {start} of {name}, at which its tag {PROGRESS} is, names no state: someone has moved "
            f"the tag; move it to the newest snapshot that has the property `{STATE}`"
        )
    return TypedState.decode(read_side_file(loaded.io, path, name), where=path)


def _in_words(state: TypedState) -> str:
    return "; ".join(f"{name} {one.offset}" for name, one in sorted(state.journals.items()))


def _changes_of(spec: TypedSpec) -> str:
    if spec.changes is None:
        return "none"
    return f"change_data {spec.change_data}" if spec.change_data else f"deleted {spec.deleted}"


def _uuid_of(spec: TypedSpec) -> str:
    return ".".join(spec.uuid) or "none"


def require_ours(loaded: Loaded, spec: TypedSpec, name: str) -> None:
    """See that a table is that of a spec.

    Raises: LakeError: it is not a typed table. SchemaMismatch: it is of another raw table, or by another `uuid`.
    """
    properties = loaded.metadata.properties
    source, noted, wanted = properties.get(SOURCE), properties.get(UUID), _uuid_of(spec)
    if source is None:
        raise LakeError(
            f"{name} exists and is not a typed table: give the typed table another `name`, or drop that one"
        )
    if source != spec.source:
        raise SchemaMismatch(
            f"{name} has the rows of {source}, and the spec is of {spec.source}: give one of the two typed tables "
            f"another `name`; if the raw table was renamed, set the property `{SOURCE}`"
        )
    if noted != wanted:
        raise SchemaMismatch(
            f"{name} was made with `uuid: {noted}`, and its spec says `uuid: {wanted}`: which messages were duplicates "
            "before was decided by the first; put that back, or give the table another `name`"
        )
    made, changes = properties.get(CHANGES, "none"), _changes_of(spec)
    if made != changes:
        raise SchemaMismatch(
            f"{name} was made with `{made}` as what deletes rows, and its spec says `{changes}`: existing rows were "
            "decided by the first. Put that back, or give the table another `name`"
        )


def _evolution(metadata: TableMetadata, spec: TypedSpec) -> Evolution:
    former = tuple(metadata.specs().values())
    return plan_evolution(spec, metadata.schema(), metadata.spec(), former)


@contextmanager
def _naming(table: str) -> Iterator[None]:
    """Have errors say which table they are of."""
    try:
        yield
    except SchemaMismatch as err:
        raise SchemaMismatch(f"{table}: {err}") from err


def _evolved(handle: TableHandle, loaded: Loaded, spec: TypedSpec) -> Loaded:
    """The table as its spec says, changed if need be and if no run has published meanwhile."""
    start = progress_of(loaded.metadata)
    for _ in range(_ATTEMPTS):
        metadata = loaded.metadata
        evolution = _evolution(metadata, spec)
        if evolution.is_empty:
            return loaded
        if progress_of(metadata) != start:
            raise TableFenced(
                f"another run has published to {handle.name} while this one was to change its shape, so it changed "
                "nothing; the next run does"
            )
        requirements, updates = _changes(loaded, evolution, handle.name)
        required = (
            *requirements,
            still_at(metadata, start),
            still_parted_by(metadata),
        )
        # Looked at again, whether it was changed by this or by others.
        with suppress(CommitFailedException):
            handle.commit(loaded, required, updates)
        again = handle.load()
        if again is None:
            raise LakeError(f"{handle.name} was dropped while a run looked at it: run again")
        loaded = again
    raise LakeError(
        f"{handle.name} was changed by others {_ATTEMPTS} times while a run was to bring it to its spec: run again"
    )


def _changes(
    loaded: Loaded, evolution: Evolution, name: str
) -> tuple[Sequence[Any], Sequence[Any]]:
    """What an evolution requires and changes."""
    noted = _Noted()
    table = Table(tuple(name.split(".")), loaded.metadata, "", loaded.io, noted)
    transaction = table.transaction()
    with _naming(name):
        evolution.apply(transaction)
    with suppress(_Enough):
        transaction.commit_transaction()
    return noted.requirements, noted.updates


class _Enough(Exception):
    """What was to be committed is noted."""


@final
class _Noted(NoopCatalog):
    """Notes what a transaction would commit, for a handle to do it."""

    def __init__(self) -> None:
        super().__init__("none")
        self.requirements: tuple[Any, ...] = ()
        self.updates: tuple[Any, ...] = ()

    @override
    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> NoReturn:
        self.requirements, self.updates = requirements, updates
        raise _Enough


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
