"""Keys of Hive partitions in Dagster."""

__all__ = ["table_partition"]


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
