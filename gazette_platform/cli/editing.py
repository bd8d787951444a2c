"""Specs that a person gives: as a file, or in an editor."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gazette_platform.cli.connection import opened
from gazette_platform.cli.errors import one_line
from gazette_platform.cli.output import note
from gazette_platform.errors import GazetteError, SetupError, ValidationError

__all__ = ["edit_until_taken", "read_specs"]

_HEADER = (
    "#\N{GEAR} Edit the specs, save, and leave the editor to apply them.\n"
    "#\N{GEAR} Lines like these are ignored; an unchanged or empty file cancels.\n"
)


def read_specs(specs: str) -> bytes:
    """The document that ``--specs`` names; ``-`` is stdin.

    Raises: ValidationError: it cannot be read.
    """
    if specs == "-":
        return sys.stdin.buffer.read()
    with opened(specs, "--specs") as file:
        try:
            return file.read()
        except OSError as err:
            raise ValidationError(f"cannot read {specs}: {err.strerror}", path="--specs") from err


def edit_until_taken(original: str, take: Callable[[str], None], *, group: str) -> None:
    """Have a text edited until `take` does not refuse it, or it comes back as it was.

    Args:
        original: the text.
        take: applies what was edited; an error opens the editor again.
        group: of commands, whose ``apply`` takes the file as well.

    Raises: GazetteError: of `take`, when the editor was left without a change; then the file is kept.
    """
    header, text = _HEADER, original
    while True:
        try:
            edited = _strip_header(_edited(header + text, group))
        except GazetteError:
            if text != original:
                _keep(text, group)
            raise
        if not edited.strip() or edited == original:
            note("edit cancelled: nothing was changed")
            return
        try:
            take(edited)
        except GazetteError as err:
            if edited == text:
                # Closing the editor without a change gives up on the error.
                _keep(edited, group)
                raise
            header, text = f"{_HEADER}#\N{WARNING SIGN} {one_line(str(err))}\n", edited
        else:
            return


def _keep(edited: str, group: str) -> None:
    """Leave what was edited where its author finds it."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="gazctl-edit-", suffix=".yaml", encoding="utf-8", delete=False
    ) as file:
        file.write(edited)
    note(f"what was edited is in {file.name} (mend it; `gazctl {group} apply --specs` takes it)")


def _strip_header(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(
        each for each in lines if not each.startswith(("#\N{GEAR}", "#\N{WARNING SIGN}"))
    )


def _edited(text: str, group: str) -> str:
    """`text` as the user leaves it in the editor."""
    editor = os.environ.get("GAZ_EDITOR") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="gazctl-edit-") as folder:
        file = Path(folder) / f"{group}.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            # The user's own command, which may have arguments.
            subprocess.run([*shlex.split(editor), str(file)], check=True)  # noqa: S603
        except FileNotFoundError as err:
            raise SetupError(f"editor {editor} was not found (set EDITOR to yours)") from err
        except subprocess.CalledProcessError as err:
            raise SetupError(f"editor {editor} failed with exit code {err.returncode}") from err
        return file.read_text(encoding="utf-8")
