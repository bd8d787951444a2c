"""`gazctl sql --save`: the table spec that was inferred for a query becomes a table for good."""

from contextlib import nullcontext
from pathlib import Path
from typing import final

from gazette_platform.cli.gazctl_lake_apply import apply_files
from gazette_platform.cli.gazctl_lake_context import tables_folder
from gazette_platform.cli.output import note
from gazette_platform.client import Client
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.applying import SpecFile
from gazette_platform.lake.local_sql import LocalSql
from gazette_platform.lake.spec_rules import is_table_name

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
        if not is_table_name(name):
            raise ValidationError(
                f"{name!r} cannot be a table's name: write it as shop.events, in lower case",
                path="--save",
            )
        self._name = name
        self._settings = settings
        self._folder = tables_folder(settings, tables)
        self._files: list[SpecFile] = []

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
        text = table.inference.named(self._name).encode()
        file = SpecFile.of(f"{self._name}.yaml", text, self._folder)
        if self._name in sql.tables and file.is_changed:
            raise ValidationError(
                f"the table {self._name} has another spec in {self._folder}: choose another name, or change that "
                "spec by `gazctl lake apply`",
                path="--save",
            )
        self._files = [file]

    def apply(self, client: Client) -> None:
        """Apply the spec that was taken, and say so.

        Raises: ValidationError: something speaks against it. LakeError, TransportError: a server fails.
        """
        apply_files(self._files, self._folder, self._settings, lambda: nullcontext(client))
        note(f"applied the spec that was inferred: {self._name} is a table now")
