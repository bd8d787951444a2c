"""What `gazctl shards unassign` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.shards_connection import connected_shards

if TYPE_CHECKING:
    import typer

    from gazette_platform.cli.shards_connection import ShardSelection
    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.client import ShardClient

__all__ = ["unassign"]


def unassign(ctx: typer.Context, selection: ShardSelection, *, failed: bool, dry_run: bool) -> None:
    """Unassign shards, and print the ID of each that lost an assignment.

    A selector that matches nothing leaves nothing to do, as in Gazette: scripts run it at any time.

    Raises: ShardNotFound: a shard that was named does not exist.
    """

    async def work(shards: ShardClient, _: AsyncClient) -> None:
        found = [each.id for each in await shards.list(selection.selector)]
        if selection.ids:
            selection.check(found)
        affected = await shards.unassign(found, only_failed=failed, dry_run=dry_run)
        for each in affected:
            print_text(each)
        verb = "would be unassigned" if dry_run else "unassigned"
        note(f"{len(affected)} of {len(found)} shards {verb}")

    connected_shards(ctx, work)
