"""Specs that a person gives: as a file, or in an editor."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gazette_platform.cli.gazctl.connection import opened
from gazette_platform.cli.gazctl.plan import Found, Plan, Wanted, differences, plan, report, stale
from gazette_platform.cli.output import note
from gazette_platform.cli.program import one_line
from gazette_platform.errors import (
    CallFailed,
    EtcdTransactionFailed,
    GazetteError,
    SetupError,
    ValidationError,
)

S = TypeVar("S")
X = TypeVar("X")

_HEADER = (
    "#\N{GEAR} Edit the specs, save, and leave the editor to apply them.\n"
    "#\N{GEAR} Lines like these are ignored; an unchanged or empty file cancels.\n"
)


SpecFiles = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", show_default=False, help="YAML files; none, or -, is stdin."),
]
SpecsOption = Annotated[
    str | None,
    typer.Option(
        "--specs", metavar="FILE", show_default=False, help="A file, as Gazette's tools take it."
    ),
]

BatchSize = Annotated[
    int,
    typer.Option(
        "--max-txn-size", min=0, help="Changes a transaction; 0 makes one transaction of all."
    ),
]


def read_specs(files: Sequence[str] | None, specs: str | None) -> list[tuple[str, bytes]]:
    """Read the documents of a command line, each with its name for errors.

    Args:
        files: arguments of the command; ``-`` is stdin.
        specs: what ``--specs`` names instead; neither means stdin.

    Raises: ValidationError: a document cannot be read. typer.BadParameter: both were given, or a file twice.
    """
    if files and specs is not None:
        raise typer.BadParameter("give files or --specs, and not both")
    names = list(files or [specs or "-"])
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise typer.BadParameter(f"{twice[0]} is given twice")
    return [("stdin" if name == "-" else name, _read(name)) for name in names]


def _read(name: str) -> bytes:
    if name == "-":
        if sys.stdin.isatty():
            note("reading YAML from the terminal; Ctrl-D ends it (or give a FILE)")
        return sys.stdin.buffer.read()
    with opened(name, "FILE") as file:
        try:
            return file.read()
        except OSError as err:
            raise ValidationError(f"cannot read {name}: {err.strerror}", path="FILE") from err


def changes_in(
    files: Sequence[str] | None,
    specs: str | None,
    parse: Callable[[bytes, str], list[X]],
    name_of: Callable[[X], str],
) -> list[X]:
    """Return the changes that the documents of a command line ask for.

    Args:
        files, specs: as of `read_specs`.
        parse: a document; gets its name, for errors.
        name_of: a change.

    Raises: as `read_specs` and `parse`. ValidationError: two documents describe one journal or shard; names both.
    """
    found: list[X] = []
    seen: dict[str, str] = {}
    for document, content in read_specs(files, specs):
        for change in parse(content, document):
            name = name_of(change)
            if seen.setdefault(name, document) != document:
                raise ValidationError(
                    f"{name} is in {seen[name]} and in {document} (nothing was applied; keep one of them)"
                )
            found.append(change)
    return found


async def listed(ask: Awaitable[Iterable[X]]) -> Iterable[X]:
    """Return what a cluster has; nothing if the caller's token may not list it."""
    try:
        return await ask
    except CallFailed as err:
        if err.code != "UNAUTHENTICATED":
            raise
        return ()


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
    note(f"what was edited is in {file.name} (mend it; `gazctl {group} apply` takes it)")


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


async def carry_out(
    wanted: Callable[[Mapping[str, Found[S]]], Sequence[Wanted[S]]],
    *,
    group: str,
    find: Callable[[], Awaitable[dict[str, Found[S]]]],
    send: Callable[[Sequence[Wanted[S]]], Awaitable[int]],
    as_yaml: Callable[[S], str],
    force: bool,
) -> Plan[S]:
    """Apply what differs from the cluster, and report the outcome.

    Args:
        wanted: what the documents say, given what the cluster has.
        group: of commands: ``journals`` or ``shards``.
        find: lists what the cluster has, by name.
        send: applies changes. Returns: the revision of etcd after the last transaction.
        as_yaml: renders a spec.
        force: whether to change specs that differ and give no revision.

    Raises: ValidationError: a spec differs, and was not to be changed; nothing was applied. EtcdTransactionFailed: one is
        at another revision than the documents expect; says which.
    """
    found = await find()
    planned = plan(wanted(found), found, force=force)
    if planned.differing:
        lines, error = differences(planned.differing, found, group=group, as_yaml=as_yaml)
        for line in lines:
            note(line)
        raise error
    revision = 0
    if planned.changes:
        try:
            revision = await send(planned.changes)
        except EtcdTransactionFailed as err:
            text = stale(planned.changes, await find(), group=group)
            if not text:
                raise
            raise EtcdTransactionFailed(text) from err
    for line in report(planned.outcomes, revision):
        note(line)
    return planned
