"""How people get from an event to the rows: a query to run, and a page of their own SQL tool."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from gazette_platform.errors import ValidationError
from gazette_platform.lake.catalogs import HIVE, TrinoCatalogs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

_PLACES: Final = ("catalog", "schema", "table")


def check_table_url(template: str) -> None:
    """Refuse what is not an address with ``{catalog}``, ``{schema}`` and ``{table}`` in it, or some of these.

    Raises: ValidationError: says what may be in it.
    """
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as err:
        names = {str(err)}
    if not names or names - set(_PLACES) or not template.startswith(("http://", "https://")):
        raise ValidationError(
            f"{template!r} is not an http(s) address with {{catalog}}, {{schema}} and {{table}} in it",
            path="GAZETTE_TABLE_URL",
        )


def table_link(template: str, table: str) -> str:
    """The page of ``catalog.schema.table``.

    >>> table_link("http://sql/?t={schema}.{table}", "hive.shop.orders")
    'http://sql/?t=shop.orders'
    """
    parts = zip(_PLACES, table.split("."), strict=True)
    return template.format(**{name: quote(part, safe="") for name, part in parts})


def partition_query(spec: TableSpec, key: str, values: Sequence[str], catalog: str = HIVE) -> str:
    """A query of all rows of a Hive partition, or of those of a time, for Trino.

    Args:
        spec: of the table.
        key: of the Hive partition, which has the names of the columns; or of a time, for all rows of that.
        values: of these columns, in their order.
        catalog: what Trino calls the catalog of the table.
    """
    types = {partition.column: partition.type for partition in spec.partitions}
    names = [part.partition("=")[0] for part in key.split("/")] if values else []
    terms = [
        f'"{name}" = {_literal(value, types.get(name, "string"))}'
        for name, value in zip(names, values, strict=True)
    ]
    # A line a term: pages cut off what is long.
    joint = "\n  AND "
    where = f"\nWHERE {joint.join(terms)}" if terms else ""
    # Shown to people. Names are checked by the spec, and values quoted.
    table = TrinoCatalogs(hive=catalog).in_sql(f'hive."{spec.schema}"."{spec.table}"')
    return f"SELECT * FROM {table}{where}"  # noqa: S608  see above


def _literal(value: str, kind: str) -> str:
    text = "'" + value.replace("'", "''") + "'"
    if kind == "string":
        return text
    return f"DATE {text}" if kind == "date" else value
