"""`gazctl lake apply`."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import typer

from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    metastore,
    settings_of,
    tables_folder,
)
from gazette_platform.cli.output import note, print_text
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.hive import MetastoreSession
from gazette_platform.lake import LakeSettings, StoreRoots, TableSpec
from gazette_platform.lake.applying import (
    SpecFile,
    files_to_put,
    problems_among,
    problems_with_data,
    problems_with_journals,
    problems_with_table,
    put_files,
)
from gazette_platform.lake.check import SAMPLE_BYTES
from gazette_platform.lake.rollups import read_rollup_folder
from gazette_platform.lake.sampling import BrokerContent, served, spread
from gazette_platform.lake.spec_folder import in_file, problems_with_files, specs_by_file
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalSpec

__all__ = ["apply", "apply_files"]

_JOURNALS_READ_MAX = 5


def apply(
    ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool, force: bool
) -> None:
    """Check specs, and put them into the folder."""
    settings = settings_of()
    folder = tables_folder(settings, tables)
    files = [_read(name, folder) for name in names]
    apply_files(
        files,
        folder,
        settings,
        lambda: brokers(ctx, settings),
        dry_run=dry_run,
        may_be_none=force,
    )


def apply_files(
    files: list[SpecFile],
    folder: Path,
    settings: LakeSettings,
    open_client: Callable[[], AbstractContextManager[Client]],
    *,
    dry_run: bool = False,
    may_be_none: bool = False,
) -> None:
    """Check specs, put them into the folder, and say what changed.

    Args:
        files: with the specs.
        folder: of table specs.
        settings: where the metastore and other specs are.
        open_client: of brokers; is asked if there is a spec to check.
        dry_run: whether to show what would change only.
        may_be_none: whether a spec may select no journal.

    Raises: ValidationError: something speaks against a spec; nothing was applied.
    """
    problems = [error for file in files for error in file.errors]
    rollups = read_rollup_folder(settings.rollups, ()).specs
    problems += problems_among(files, specs_by_file(folder), rollups)
    put = files_to_put(files)
    texts = {file.name: file.text for file in put}
    problems += problems_with_files(folder, texts, but={file.name for file in files})
    specs = [(file.name, file.spec) for file in files if file.spec is not None]
    if specs:
        with open_client() as client, metastore(settings) as session:
            for name, spec in specs:
                found = _problems(client, session, settings, spec, may_be_none=may_be_none)
                found += _typed_problems(settings, spec)
                problems += [in_file(name, problem) for problem in found]
    for problem in problems:
        note(f"  {problem}")
    if problems:
        raise ValidationError(
            f"{len(problems)} error(s) in {len(files)} spec(s), as above; nothing was applied"
        )
    if dry_run:
        print_text("".join(file.diff() for file in put), end="")
        changed = [file.name for file in files if file.is_changed]
        note(f"would apply {len(changed)} of {len(files)} spec(s) to {folder}")
        return
    changed = put_files(put, folder)
    of_tables = {file.name: file.spec.name for file in files if file.spec is not None}
    for each in put:
        state = "unchanged" if each.name not in changed else "changed" if each.before else "new"
        note(f"{of_tables.get(each.name, each.name)}: {state} ({folder / each.name})")


def _read(name: str, folder: Path) -> SpecFile:
    if name != "-":
        path = Path(name)
        return SpecFile.of(path.name, path.read_bytes(), folder, source=path.parent)
    text = sys.stdin.buffer.read()
    unnamed = SpecFile.of("stdin.yaml", text, folder)
    if unnamed.spec is None:
        return unnamed
    return SpecFile.of(f"{unnamed.spec.name}.yaml", text, folder)


def _problems(
    client: Client,
    session: MetastoreSession | None,
    settings: LakeSettings,
    spec: TableSpec,
    *,
    may_be_none: bool,
) -> list[ValidationError]:
    """What speaks against a spec whose text is well."""
    journals = [listing.spec for listing in client.list(spec.label_selector)]
    if not journals and may_be_none:
        return []
    now = SystemClock().now()
    problems = problems_with_journals(spec, journals, now)
    if problems:
        return problems
    if session is not None:
        roots = StoreRoots(settings.store_roots)
        existing = session.table(spec.schema, spec.stored_table)
        problems += problems_with_table(spec, journals, existing, roots=roots, at=now)
    return problems + problems_with_data(spec, _samples(client, journals))


def _typed_problems(settings: LakeSettings, spec: TableSpec) -> list[ValidationError]:
    """What speaks against the section `typed:` once there is a table."""
    typed, catalog = spec.typed, settings.iceberg_catalog
    if typed is None or (catalog.kind == "hive" and not settings.metastore):
        return []
    # Slow to import.
    from gazette_platform.lake.typed.catalog.catalogs import typed_catalog  # noqa: PLC0415
    from gazette_platform.lake.typed.tables.table import require_able  # noqa: PLC0415

    try:
        existing = typed_catalog(settings).door(typed.name).load()
    except GazetteError as err:
        note(f"note: {err}; whether {typed.name} can become what its spec says is not looked at")
        return []
    try:
        if existing is not None:
            require_able(existing, typed, typed.name)
    except GazetteError as err:
        return [ValidationError(str(err), path="typed")]
    return []


def _samples(client: Client, journals: list[JournalSpec]) -> list[tuple[str, bytes]]:
    """What the first records of some journals are. One that cannot be read is left out, and told."""
    content = BrokerContent(client)
    samples: list[tuple[str, bytes]] = []
    for journal in spread(served(journals), _JOURNALS_READ_MAX):
        try:
            begin, head = content.span(journal.name)
            first = content.read(journal.name, begin, min(head, begin + SAMPLE_BYTES))
        except GazetteError as err:
            note(f"note: {journal.name} cannot be read, so its records are not looked at ({err})")
            continue
        samples.append((f"journal {journal.name}", first))
    return samples
