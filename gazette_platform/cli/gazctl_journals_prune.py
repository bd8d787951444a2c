"""`gazctl journals prune`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gazette_platform.cli.connection import connected, matching
from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.selection import Names, Selection, SelectorOrNames
from gazette_platform.client import AsyncClient
from gazette_platform.errors import StoreError, ValidationError
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from gazette_platform.cli.pruning import Pruning
    from gazette_platform.fragment.retention import PruneRule, StoredFragment

__all__ = ["prune"]

_OFFSET_MAX = (1 << 63) - 1


def prune(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
    before_offset: Annotated[
        int | None,
        typer.Option(
            "--before-offset",
            min=1,
            max=_OFFSET_MAX,
            metavar="OFFSET",
            help="Remove what ends at or before it, of whatever age. Of one journal.",
        ),
    ] = None,
    from_offset: Annotated[
        int,
        typer.Option(
            "--from-offset",
            min=0,
            max=_OFFSET_MAX,
            metavar="OFFSET",
            help="With --before-offset: only what begins at or after it, to trim the middle.",
        ),
    ] = 0,
    ignore_savepoints: Annotated[
        bool,
        typer.Option("--ignore-savepoints", help="Remove also what savepoints name."),
    ] = False,
    file_root: Annotated[
        Path | None,
        typer.Option(
            "--file-root",
            envvar="BROKER_FILE_ROOT",
            help="Directory that file:// stores are rooted at, as of the brokers; a dry run needs none.",
        ),
    ] = None,
) -> None:
    """Remove persisted fragments that are older than the retention of their journal.

    A journal whose retention is 0 or not set keeps everything. What is removed is gone: reads
    below the first remaining fragment then jump to it.

    Kept in any case: what is in brokers only; the last fragment, which shows where the journal ends,
    unless the journal is suspended; recovery logs; what a savepoint names, and what follows it; and what
    lies in the middle, before a fragment stored within the last six hours, as reads do not jump there yet.

    The store's own clock decides how old a fragment is: for that a small object is written beside those
    of health checks, and removed.

    Other journals go on when one fails; then the exit status is 1. Run it again to do the rest.

    **Examples**

    gazctl journals prune -l name:prefix=a/ --dry-run

    gazctl journals prune a/journal --before-offset 1000000

    gazctl journals prune a/journal --from-offset 5000 --before-offset 9000
    """
    selection = Selection.of(names, selector)
    rule = _rule(from_offset, before_offset)

    async def work(client: AsyncClient) -> "Pruning":
        journals = await matching(client, selection)
        if rule is not None and len(journals) > 1:
            raise ValidationError(
                f"is an offset of one journal, and {len(journals)} match {selection.text}",
                path="--before-offset",
            )
        # Slow to import, and no other command needs them.
        from gazette_platform.cli.fragment_bar import FragmentBar  # noqa: PLC0415
        from gazette_platform.cli.pruning import Pruner  # noqa: PLC0415

        with FragmentBar("pruning", is_shown=sys.stderr.isatty() and not dry_run) as bar:

            def on_removed(stored: "StoredFragment") -> None:
                verb = "would remove" if dry_run else "removed"
                print_text(f"{verb} {stored.fragment.content_path}")
                bar.advance(stored.size)

            pruner = Pruner(
                client,
                SystemClock(),
                file_root=file_root,
                rule=rule,
                dry_run=dry_run,
                ignore_savepoints=ignore_savepoints,
                tell=note,
                on_planned=bar.add,
                on_removed=on_removed,
            )
            try:
                return await pruner.prune(journals)
            finally:
                _summarize(pruner.result, dry_run=dry_run)

    result = connected(ctx, work, file_root=file_root)
    if result.failed_journals:
        raise StoreError(
            f"{result.failed_journals} of {result.journals} journals could not be pruned, or not "
            "whole, see above (what is gone stays gone; run it again for the rest)"
        )


def _rule(begin: int, end: int | None) -> "PruneRule | None":
    if end is None:
        if begin:
            raise ValidationError("needs --before-offset", path="--from-offset")
        return None
    from gazette_platform.fragment.retention import PruneRule  # noqa: PLC0415

    try:
        return PruneRule(begin=begin, end=end)
    except ValidationError as err:
        raise err.within("--from-offset") from err


def _summarize(result: "Pruning", *, dry_run: bool) -> None:
    verb = "would be removed" if dry_run else "removed"
    note(
        f"{result.removed} of {result.fragments} fragments {verb}: {result.stored_bytes} bytes in "
        f"stores, {result.content_bytes} bytes of content"
    )
    for reason, count in result.kept.items():
        note(f"kept: {count} {reason.value}")
