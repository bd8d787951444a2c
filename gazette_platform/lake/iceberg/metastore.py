"""Iceberg tables of the Hive Metastore: load a table, and swap its metadata file in one step.

The metastore names the metadata file of a table. A writer writes another file, and the metastore names that instead
if it still names the first one: a compare-and-set. All engines read and write the same tables.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from pyiceberg.exceptions import ValidationError as InvalidMetadata
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IcebergType, IntegerType, LongType, StringType
from pyiceberg.utils.datetime import days_to_date

from gazette_platform.errors import LakeError
from gazette_platform.hive import HiveColumn, HiveTable, StorageFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from gazette_platform.hive import Metastore, MetastoreSession

_METADATA = "metadata_location"
# As Iceberg's own clients write it. No engine opens files by it, but Hive requires a format.
_STORAGE = StorageFormat(
    input_format="org.apache.hadoop.mapred.FileInputFormat",
    output_format="org.apache.hadoop.mapred.FileOutputFormat",
    serde="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
)
_HIVE_TYPES: dict[type[IcebergType], str] = {
    StringType: "string",
    DateType: "date",
    IntegerType: "int",
    LongType: "bigint",
}


@final
@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A table as it was when it was loaded."""

    database: str
    name: str
    metadata: TableMetadata
    metadata_location: str

    @property
    def full_name(self) -> str:
        """``database.name``."""
        return f"{self.database}.{self.name}"

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None: the table never held anything."""
        return self.metadata.current_snapshot()

    @property
    def version(self) -> int:
        """Version of the metadata file, by its name."""
        # The number is for people and for sorting. No decision rests on it: other engines may name
        # files differently.
        number, _, _ = self.metadata_location.rpartition("/")[2].partition("-")
        return int(number) if number.isdecimal() else 0

    def slice_types(self) -> dict[str, str]:
        """Hive type of each partition column of the existing table, in order."""
        found = {}
        for field in self.metadata.spec().fields:
            if isinstance(field.transform, IdentityTransform):
                column = self.metadata.schema().find_field(field.source_id)
                kind = _HIVE_TYPES.get(type(column.field_type), str(column.field_type))
                found[column.name] = kind
        return found


@final
class IcebergTables:
    """Loads and swaps tables; holds no connection.

    Args:
        metastore: opens sessions.
        warehouse: location of new databases, without a trailing slash.
        io_properties: how PyIceberg reaches the files, besides its defaults.
    """

    def __init__(
        self, metastore: Metastore, warehouse: str, io_properties: Mapping[str, str] | None = None
    ) -> None:
        self._metastore = metastore
        self._warehouse = warehouse
        self._io_properties = dict(io_properties or {})

    def io(self, location: str) -> FileIO:
        """Return the reader and writer of files at `location`."""
        return load_file_io(self._io_properties, location)

    def new_location(self, database: str, name: str) -> str:
        """Return an unused location for a new table."""
        # A random folder: files of a dropped table stay, and a run of it that wakes up late still
        # writes there.
        return f"{self._warehouse}/{database}.db/{name}-{uuid.uuid4().hex[:12]}"

    def ensure_database(self, name: str) -> None:
        """Create a database unless it exists.

        Raises: LakeError: the metastore cannot be reached, or refused.
        """
        with self._metastore.connect() as session:
            session.ensure_database(name, location=f"{self._warehouse}/{name}.db")

    def load(self, database: str, name: str) -> IcebergTable | None:
        """Load the table; None if it does not exist.

        Raises: LakeError: the metastore or the file cannot be reached, or it is not an Iceberg table.
        """
        with self._metastore.connect() as session:
            return self.load_within(session, database, name)

    def load_within(
        self, session: MetastoreSession, database: str, name: str
    ) -> IcebergTable | None:
        """Load the table over an open session."""
        table = session.table(database, name)
        if table is None:
            return None
        location = table.parameters.get(_METADATA, "")
        # Engines write the value in either case. A Hive table of that name must not be overwritten.
        if table.parameters.get("table_type", "").upper() != "ICEBERG" or not location:
            raise LakeError(
                f"{table.full_name} exists and is not an Iceberg table: use another name"
            )
        try:
            metadata = FromInputFile.table_metadata(self.io(location).new_input(location))
        except (OSError, InvalidMetadata, ValueError) as err:
            raise LakeError(f"cannot read {location} of table {table.full_name}: {err}") from err
        return IcebergTable(database, name, metadata, location)

    def data_files(self, table: IcebergTable) -> list[DataFile]:
        """Return all data files of the newest snapshot.

        Raises: LakeError: a manifest cannot be read.
        """
        snapshot = table.snapshot
        if snapshot is None:
            return []
        io = self.io(table.metadata.location)
        try:
            return [
                entry.data_file
                for manifest in snapshot.manifests(io)
                # A manifest keeps entries that its snapshot deleted, and delete files have
                # manifests, too. Neither holds rows of now.
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
                if entry.data_file.content == 0
            ]
        except OSError as err:
            raise LakeError(f"cannot read the manifests of {table.full_name}: {err}") from err

    def write_metadata(self, metadata: TableMetadata, version: int) -> str:
        """Write a metadata file of that version. Returns: its path.

        Raises: LakeError: it cannot be written.
        """
        # Two writers may race for a version. With the uuid, the loser never overwrites the file
        # that the metastore names, even on stores without exclusive creation.
        path = f"{metadata.location}/metadata/{version:05d}-{uuid.uuid4()}.metadata.json"
        try:
            ToOutputFile.table_metadata(metadata, self.io(path).new_output(path))
        except OSError as err:
            raise LakeError(f"cannot write {path}: {err}") from err
        return path

    def create(self, database: str, name: str, metadata: TableMetadata, location: str) -> bool:
        """Create a table from a metadata file. Returns: False if a table of that name exists.

        Raises: LakeError: the metastore cannot be reached, or refused.
        """
        table = HiveTable(
            database=database,
            name=name,
            location=metadata.location,
            # Engines read the schema from the metadata file. These columns are only what `SHOW
            # CREATE TABLE` in Hive displays.
            columns=tuple(
                HiveColumn(name=f.name, type=_HIVE_TYPES.get(type(f.field_type), "string"))
                for f in metadata.schema().fields
            ),
            partition_columns=(),
            storage=_STORAGE,
            parameters={"table_type": "ICEBERG", _METADATA: location},
        )
        with self._metastore.connect() as session:
            return session.create_table(table)

    def swap(self, table: IcebergTable, location: str) -> bool:
        """Give the table another metadata file. Returns: False if the table changed since it was loaded.

        Raises: LakeError: the metastore cannot be reached, or refused.
        """
        with self._metastore.connect() as session:
            # The metastore's lock alone does not suffice: a holder that pauses for longer than its
            # lease loses the lock and does not notice. So the metastore compares as well.
            return session.swap_iceberg_metadata(
                table.database, table.name, expected=table.metadata_location, location=location
            )

    def forget(self, database: str, name: str) -> None:
        """Drop a table; its files stay.

        Raises: LakeError: the metastore cannot be reached, or refused.
        """
        with self._metastore.connect() as session:
            # Files stay: a run in another process may still read them. Orphan removal deletes them
            # later.
            session.drop_table(database, name)

    def delete_files(self, paths: Sequence[str]) -> Iterator[str]:
        """Delete files. Yields: each file that could not be deleted, with the reason."""
        yield from deleting(self.io, paths)


def deleting(io_of: Callable[[str], FileIO], paths: Sequence[str]) -> Iterator[str]:
    """Delete files. A missing file is fine.

    Args:
        io_of: gives what deletes a path.
        paths: of files.

    Yields: each file that could not be deleted, with the reason.
    """
    for path in paths:
        try:
            io_of(path).delete(path)
        except FileNotFoundError:
            # A former call may have been killed after this file; deleting again must not fail.
            continue
        except OSError as err:
            yield f"{path}: {err}"


def slice_of(metadata: TableMetadata, file: DataFile, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the slice of a data file: its values of `columns`, as a path spells them.

    Raises: LakeError: the file is not of one slice.
    """
    # Take the spec that the file was written by: the table's spec may have changed since.
    spec = metadata.specs()[file.spec_id]
    values: dict[str, str] = {}
    for index, field in enumerate(spec.fields):
        if isinstance(field.transform, IdentityTransform):
            column = metadata.schema().find_field(field.source_id)
            values[column.name] = _text(column.field_type, file.partition[index])
    missing = [column for column in columns if column not in values]
    if missing:
        raise LakeError(
            f"file {file.file_path} has rows of several slices, since it is not partitioned by "
            f"{', '.join(missing)}"
        )
    return tuple(values[column] for column in columns)


def _text(kind: IcebergType, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(kind, DateType) and isinstance(value, int):
        return days_to_date(value).isoformat()
    return str(value)
