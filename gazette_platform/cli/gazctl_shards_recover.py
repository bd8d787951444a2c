"""What `gazctl shards recover` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.cli.output import note
from gazette_platform.cli.shards_connection import (
    ShardSelection,
    connected_shards,
    matching_shards,
)
from gazette_platform.consumer.recoverylog import Player, pick_hints
from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    import typer

    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.client import ShardClient

__all__ = ["recover"]


def recover(ctx: typer.Context, shard: str, directory: Path) -> None:
    """Play the log of a shard into a directory.

    Raises: ValidationError: the directory has something in it, or the shard has no log.
        ShardNotFound; DataError: the log does not have what the hints need.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValidationError(
            f"{directory} exists and is not an empty directory (its content would be lost)",
            path="--dir",
        )

    async def work(shards: ShardClient, client: AsyncClient) -> None:
        selection = ShardSelection.of([shard], None)
        (found,) = await matching_shards(shards, selection)
        log = found.spec.recovery_log
        if not log:
            raise ValidationError(f"shard {shard} has no recovery log", path="--id")
        hints = pick_hints((await shards.get_hints(shard)).slots, log)
        player = Player(client, hints, directory)
        player.finish_at_write_head()
        played = await player.play()
        files = len(played.fsm.links) + len(played.fsm.properties)
        note(f"recovered {files} files of shard {shard} from {played.log} into {directory}")

    connected_shards(ctx, work)
