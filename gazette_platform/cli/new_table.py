"""A table spec that a command inferred, on its way into the folder of specs."""

from contextlib import nullcontext
from pathlib import Path
from typing import final

from gazette_platform.cli.gazctl_lake_apply import apply_files
from gazette_platform.cli.gazctl_lake_context import tables_folder
from gazette_platform.client import Client
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.applying import SpecFile
from gazette_platform.lake.spec_folder import read_spec_folder
from gazette_platform.lake.spec_rules import is_table_name

__all__ = ["NewTable"]


@final
class NewTable:
    """A table that a command creates.

    Args:
        name: of the table.
        settings: where servers and specs are.
        tables: the folder, if an option names it.
        option: that gave the name, for errors.

    Raises: ValidationError: no table can have the name. SetupError: no folder is known.
    """

    def __init__(
        self, name: str, settings: LakeSettings, tables: Path | None, *, option: str
    ) -> None:
        if not is_table_name(name):
            raise ValidationError(
                f"{name!r} cannot be a table's name: write it as shop.events, in lower case",
                path=option,
            )
        self.name = name
        self.folder = tables_folder(settings, tables)
        self._settings = settings
        self._option = option
        self._files: list[SpecFile] = []

    @property
    def is_new(self) -> bool:
        """Whether the folder does not have this very spec yet."""
        return any(file.is_changed for file in self._files)

    def take(self, text: str) -> None:
        """Take the text of its spec.

        Raises: ValidationError: the table exists, with another spec.
        """
        file = SpecFile.of(f"{self.name}.yaml", text.encode(), self.folder)
        known = read_spec_folder(self.folder).files.get(self.name)
        if known is not None and file.is_changed:
            raise ValidationError(
                f"the table {self.name} exists with another spec ({self.folder / known}): choose another name, change "
                f"that spec by `gazctl lake apply`, or drop the table first (`gazctl lake drop {self.name}`)",
                path=self._option,
            )
        self._files = [file]

    def apply(self, client: Client) -> None:
        """Apply the spec that was taken, and say so.

        Raises: ValidationError: something speaks against it. LakeError, TransportError: a server fails.
        """
        apply_files(self._files, self.folder, self._settings, lambda: nullcontext(client))
