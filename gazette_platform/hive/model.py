"""What the metastore stores, as plain values, and its translation to and from Thrift.

PyIceberg installs the generated types. They are loaded by name because this repository has a folder ``hive_metastore``
too (IDL and templates, no Python), which tools that look at the source tree would take for the package. And only when they
are used: that takes a second, and whoever wants table specs alone may not have them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@final
class _Types:
    """The module of generated types, once the first is asked for."""

    def __getattr__(self, name: str) -> Any:
        module = required("hive_metastore.ttypes", extra="lake", by="Metastore clients")
        return getattr(module, name)


ttypes: Any = _Types()


def hive_client(protocol: Any) -> Any:
    """A generated client that speaks `protocol`."""
    module = required("hive_metastore.ThriftHiveMetastore", extra="lake", by="Metastore clients")
    return module.Client(protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveColumn:
    """A column: lower-case name, Hive type text, comment."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFormat:
    """How engines read the files: input and output format classes and SerDe."""

    input_format: str
    output_format: str
    serde: str
    serde_parameters: Mapping[str, str] = field(default_factory=dict)


_TEXT_INPUT = "org.apache.hadoop.mapred.TextInputFormat"
_TEXT_OUTPUT = "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"

# Trino reads this SerDe natively; Spark ignores it because the table names its own JSON source.
JSON_STORAGE = StorageFormat(
    input_format=_TEXT_INPUT,
    output_format=_TEXT_OUTPUT,
    serde="org.openx.data.jsonserde.JsonSerDe",
    # The second is for releases after 476, which fail at a value of another type without it.
    serde_parameters={"ignore.malformed.json": "true", "strict.parsing": "false"},
)

# Trino's reader of that SerDe fails at an object or list where a number is wanted. It takes anything
# for text, and coerces the text of a Hive partition's column to the number that the table's has, or to
# NULL. Narrower integers are left out: that coercion wraps them. A field's name has a colon after it.
_READ_AS_TEXT = re.compile(r"(?:(?<=[<,:])|\A)(?:int|bigint|float|double)(?=[,>]|\Z)")
# RFC 4180 has no escape character, and OpenCSVSerde cannot do without.
CSV_ESCAPE = "\x01"

CSV_STORAGE = StorageFormat(
    input_format=_TEXT_INPUT,
    output_format=_TEXT_OUTPUT,
    serde="org.apache.hadoop.hive.serde2.OpenCSVSerde",
    serde_parameters={"separatorChar": ",", "quoteChar": '"', "escapeChar": CSV_ESCAPE},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveTable:
    """An external table, or a view. Partition columns come after the columns, not among them."""

    database: str
    name: str
    location: str
    columns: tuple[HiveColumn, ...]
    partition_columns: tuple[HiveColumn, ...]
    storage: StorageFormat
    parameters: Mapping[str, str] = field(default_factory=dict)
    owner: str = "gazette"
    view_original: str = ""
    """What Trino reads of a view; empty for tables."""
    view_expanded: str = ""
    """What Spark reads of a view: its SQL; empty for tables."""

    @property
    def full_name(self) -> str:
        """``database.name``."""
        return f"{self.database}.{self.name}"

    def to_thrift(self) -> Any:
        """The Thrift `Table`."""
        return ttypes.Table(
            tableName=self.name,
            dbName=self.database,
            owner=self.owner,
            tableType="VIRTUAL_VIEW" if self.view_original else "EXTERNAL_TABLE",
            sd=_storage_to_thrift(self.columns, self.location, self.storage),
            partitionKeys=[_column_to_thrift(c) for c in self.partition_columns],
            parameters={
                **({} if self.view_original else {"EXTERNAL": "TRUE"}),
                **self.parameters,
            },
            viewOriginalText=self.view_original or None,
            viewExpandedText=self.view_expanded or None,
        )

    @classmethod
    def from_thrift(cls, table: Any) -> HiveTable:
        """The value of a Thrift `Table`."""
        return cls(
            database=table.dbName,
            name=table.tableName,
            location=_location(table.sd),
            columns=_columns_from_thrift(table.sd.cols),
            partition_columns=_columns_from_thrift(table.partitionKeys),
            storage=_storage_from_thrift(table.sd),
            parameters=dict(table.parameters or {}),
            owner=table.owner or "",
            view_original=table.viewOriginalText or "",
            view_expanded=table.viewExpandedText or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HivePartition:
    """One Hive partition: values in the order of the partition columns, location, parameters."""

    values: tuple[str, ...]
    location: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    def to_thrift(self, table: HiveTable) -> Any:
        """The Thrift `Partition` of `table`, with its storage format, and its columns as read."""
        columns, storage = table.columns, table.storage
        if storage.serde == JSON_STORAGE.serde:
            # Trino matches them with the table's by position.
            columns = tuple(
                replace(c, type=_READ_AS_TEXT.sub("string", c.type)) for c in table.columns
            )
        return ttypes.Partition(
            values=list(self.values),
            dbName=table.database,
            tableName=table.name,
            sd=_storage_to_thrift(columns, self.location, storage),
            parameters=dict(self.parameters),
        )

    @classmethod
    def from_thrift(cls, partition: Any) -> HivePartition:
        """The value of a Thrift `Partition`."""
        return cls(
            values=tuple(partition.values),
            location=_location(partition.sd),
            parameters=dict(partition.parameters or {}),
        )


# Hive escapes these in partition names (FileUtils.charToEscape), besides control characters.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f")


def _escape(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED or ord(c) < 0x20 else c for c in text)


def partition_name(columns: Sequence[str], values: Sequence[str]) -> str:
    """The metastore's name of a Hive partition.

    >>> partition_name(["day", "origin"], ["2026-01-02", "a/b=c"])
    'day=2026-01-02/origin=a%2Fb%3Dc'
    """
    return "/".join(
        f"{_escape(column.lower())}={_escape(value)}"
        for column, value in zip(columns, values, strict=True)
    )


def _location(sd: Any) -> str:
    """The location as it was given: the server rewrites ``file:///x`` to ``file:/x``."""
    location: str = sd.location or ""
    if location.startswith("file:/") and not location.startswith("file://"):
        return f"file://{location.removeprefix('file:')}"
    return location


def _column_to_thrift(column: HiveColumn) -> Any:
    return ttypes.FieldSchema(name=column.name, type=column.type, comment=column.comment or None)


def _columns_from_thrift(columns: Any) -> tuple[HiveColumn, ...]:
    return tuple(
        HiveColumn(name=c.name, type=c.type, comment=c.comment or "") for c in columns or ()
    )


def _storage_to_thrift(columns: Sequence[HiveColumn], location: str, storage: StorageFormat) -> Any:
    return ttypes.StorageDescriptor(
        cols=[_column_to_thrift(c) for c in columns],
        location=location or None,
        inputFormat=storage.input_format,
        outputFormat=storage.output_format,
        compressed=False,
        numBuckets=-1,
        serdeInfo=ttypes.SerDeInfo(
            serializationLib=storage.serde, parameters=dict(storage.serde_parameters)
        ),
        bucketCols=[],
        sortCols=[],
        parameters={},
    )


def _storage_from_thrift(sd: Any) -> StorageFormat:
    return StorageFormat(
        input_format=sd.inputFormat or "",
        output_format=sd.outputFormat or "",
        serde=sd.serdeInfo.serializationLib or "",
        serde_parameters=dict(sd.serdeInfo.parameters or {}),
    )
