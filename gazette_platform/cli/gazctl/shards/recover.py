"""`gazctl shards recover` and `unassign`: the files of a shard, and another try of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gazette_platform.cli.gazctl.shards.connection import (
    Ids,
    ShardSelection,
    ShardSelector,
    connected_shards,
    matching_shards,
)
from gazette_platform.cli.output import note, print_text
from gazette_platform.consumer.recoverylog import Player, pick_hints
from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.client import ShardClient


def recover(
    ctx: typer.Context,
    shard: Annotated[
        str | None, typer.Argument(metavar="ID", show_default=False, help="The shard.")
    ] = None,
    *,
    shard_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", show_default=False, help="The shard, as Gazette's tools take it."
        ),
    ] = None,
    directory: Annotated[
        Path,
        typer.Option("-d", "--dir", help="For its files: a directory that is empty, or not there."),
    ],
) -> None:
    """Play the recovery log of a shard to its end, into a directory.

    The files are those of the shard's store as it was last recorded. The shard goes on undisturbed.

    **Example**

    gazctl shards recover shard-000 --dir shard-000.files
    """
    if (shard is None) == (shard_id is None):
        raise typer.BadParameter("give the ID of one shard, as an argument or by --id")
    chosen = shard or shard_id or ""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValidationError(
            f"{directory} exists and is not an empty directory (its content would be lost)",
            path="--dir",
        )

    async def work(shards: ShardClient, client: AsyncClient) -> None:
        selection = ShardSelection.of([chosen], None)
        (found,) = await matching_shards(shards, selection)
        log = found.spec.recovery_log
        if not log:
            raise ValidationError(f"shard {chosen} has no recovery log", path="--id")
        hints = pick_hints((await shards.get_hints(chosen)).slots, log)
        player = Player(client, hints, directory)
        player.finish_at_write_head()
        played = await player.play()
        files = len(played.fsm.links) + len(played.fsm.properties)
        note(f"recovered {files} files of shard {chosen} from {played.log} into {directory}")

    connected_shards(ctx, work)


def unassign(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only replicas that have failed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be unassigned, and change nothing.")
    ] = False,
) -> None:
    """Take shards from their primaries, and from replicas that have failed, to assign them again.

    So a shard that failed is tried again. Hot standbys stay.

    **Examples**

    gazctl shards unassign -l team=search --failed

    gazctl shards unassign shard-000
    """
    selection = ShardSelection.of(ids, selector)

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
