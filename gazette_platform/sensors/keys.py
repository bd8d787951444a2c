"""Keys of Hive partitions in Dagster."""

from collections.abc import Iterable

__all__ = ["hive_partition", "table_partition"]


def table_partition(key: str) -> str:
    """Dagster's partition key of a Hive partition: its values, distinct for those of one table.

    >>> table_partition("origin=JFK/part=000/hour=5"), table_partition("all")
    ('JFK/000/5', 'all')

    Args:
        key: as the lake has it, with the names of the columns.
    """
    # A percent sign within a value has digits behind it.
    values = [part.partition("=")[2] or "%" for part in key.split("/")]
    return "/".join(values) if "=" in key else key


def hive_partition(key: str, columns: Iterable[str]) -> str:
    """The lake's key of what Dagster has under `key`: the other way round than `table_partition`.

    >>> hive_partition("JFK/000/5", ["origin", "part", "hour"])
    'origin=JFK/part=000/hour=5'

    Args:
        key: Dagster's; one that has names of columns, as in former releases, stays as it is.
        columns: names of the table's partition columns.
    """
    names, values = list(columns), key.split("/")
    # An equals sign within a value is escaped.
    if "=" in key or len(names) != len(values):
        return key
    pairs = zip(names, values, strict=True)
    return "/".join(f"{name}={'' if value == '%' else value}" for name, value in pairs)
