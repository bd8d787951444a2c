"""`gazctl sql --save`: the table spec that was inferred for a query becomes a table for good."""

from pathlib import Path
from typing import final

from gazette_platform.cli.new_table import NewTable
from gazette_platform.cli.output import note
from gazette_platform.client import Client
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.local_sql import LocalSql

__all__ = ["SavedSpec"]


@final
class SavedSpec:
    """The spec of a query's one `journal(…)`, on its way into the folder of specs.

    Args:
        name: of the table.
        settings: where servers and specs are.
        tables: the folder, if an option named it.

    Raises: ValidationError: no table can have the name. SetupError: no folder is known.
    """

    def __init__(self, name: str, settings: LakeSettings, tables: Path | None) -> None:
        self._table = NewTable(name, settings, tables, option="--save")

    def take(self, sql: LocalSql) -> None:
        """Take the spec of the query that `sql` has begun.

        Raises: ValidationError: the query has no `journal(…)`, or several; or the table has another spec.
        """
        inferred = sql.inferred()
        if len(inferred) != 1:
            has = ", ".join(inferred) or "none"
            raise ValidationError(
                f"saves the one journal(…) of a query, and this query has {has}: describe the one to save, as in "
                "\"DESCRIBE journal('events/')\"",
                path="--save",
            )
        (table,) = inferred.values()
        self._table.take(table.inference.named(self._table.name))

    def apply(self, client: Client) -> None:
        """Apply the spec that was taken, and say so.

        Raises: ValidationError: something speaks against it. LakeError, TransportError: a server fails.
        """
        self._table.apply(client)
        note(f"applied the spec that was inferred: {self._table.name} is a table now")
