"""What `gazctl shards prune` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.cli.log_pruning import LogPruner
from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.shards_connection import connected_shards, matching_shards
from gazette_platform.errors import StoreError
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    import typer

    from gazette_platform.cli.log_pruning import LogPruning
    from gazette_platform.cli.shards_connection import ShardSelection
    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.client import ShardClient
    from gazette_platform.protocol import Fragment

__all__ = ["prune"]


def prune(
    ctx: typer.Context, selection: ShardSelection, file_root: Path | None, *, dry_run: bool
) -> None:
    """Prune the logs of shards, and report each fragment that goes.

    Raises: StoreError: a log could not be pruned, or not whole.
    """
    verb = "would remove" if dry_run else "removed"

    def on_removed(fragment: Fragment) -> None:
        print_text(f"{verb} {fragment.content_path}")

    async def work(shards: ShardClient, client: AsyncClient) -> LogPruning:
        found = await matching_shards(shards, selection)
        selected = {each.id for each in found}
        others = {each.spec.recovery_log for each in await shards.list() if each.id not in selected}
        pruner = LogPruner(
            shards,
            client,
            SystemClock(),
            file_root=file_root,
            dry_run=dry_run,
            tell=note,
            on_removed=on_removed,
        )
        try:
            return await pruner.prune(found, others)
        finally:
            _summarize(pruner.result, dry_run=dry_run)

    result = connected_shards(ctx, work, file_root=file_root)
    if result.failed_logs:
        raise StoreError(
            f"{result.failed_logs} of {result.logs} logs could not be pruned, or not whole, see above "
            "(what is gone stays gone; run it again for the rest)"
        )


def _summarize(result: LogPruning, *, dry_run: bool) -> None:
    verb = "would be removed" if dry_run else "removed"
    note(
        f"{result.removed} of {result.fragments} fragments {verb}, {result.content_bytes} bytes of "
        f"content; {result.skipped_logs} of {result.logs} logs skipped"
    )
