"""Lines of CSV as Arrow columns, all or none: each line is a record of RFC 4180. Pure.

Of raw tables and of Spark's source. What happens to a line that is refused is the policy of the caller, as of `json_columns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv as arrow_csv

from gazette_platform.lake.reading.arrow_types import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK: Final = b"\xef\xbb\xbf"


def read_csv_lines(
    content: bytes,
    schema: pa.Schema,
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    nulls: bool = False,
) -> pa.Table:
    """Read lines of CSV.

    Args:
        content: whole lines.
        schema: of all fields, in their order.
        names: those that are wanted, in this order; None: all.
        delimiter: between fields.
        nulls: whether an empty field without quotes is NULL, and not a text.

    Returns: as many rows as lines.
    Raises: RefusedError: a line is not a record with as many fields, or a value is not of its type.
    """
    if content.count(b"\r") != content.count(b"\r\n"):
        raise RefusedError("a carriage return stands within a record")
    # Arrow takes several lines with an open quote for one record, and takes the last one even if it is open.
    if b'"' in content and any(line.count(b'"') % 2 for line in content.split(b"\n")):
        raise RefusedError("a quote is left open")
    if content.startswith(_MARK):
        # Of two marks Arrow drops one: it is part of the record, which may lie within a block as well.
        content = _MARK + content
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(content),
            read_options=arrow_csv.ReadOptions(
                use_threads=False, block_size=len(content) + 1, column_names=schema.names
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(
                column_types={field.name: field.type for field in schema},
                include_columns=None if names is None else list(names),
                null_values=[""],
                strings_can_be_null=nulls,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowException as err:
        raise RefusedError(str(err)) from err
    # It passes over blank lines.
    if table.num_rows != content.count(b"\n"):
        raise RefusedError("it is not one record")
    return table
