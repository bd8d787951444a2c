"""The standby's work: the files of a shard, played from its log, until somebody takes the log over."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus
from gazette_platform.consumer.recoverylog import CONTENT_TYPE, Player, new_author, pick_hints
from gazette_platform.consumer.runtime.steps import step
from gazette_platform.errors import ValidationError
from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.recoverylog import Played
    from gazette_platform.consumer.runtime.host import ShardHost

__all__ = ["Recovery", "discard"]

_LABEL: Final = "content-type"

# Bytes of a shard's ID in the name of its directory. An ID has up to 512, and the name of a file 255.
_NAME_BYTES_MAX: Final = 200


@final
class Recovery:
    """Plays a recovery log. `play` it, and at any time `take_over`.

    Args:
        client: reads the log.
        host: has the hints, and is told the status.
        shard: its ID.
        log: its recovery log.
        parent: where to make a directory for the files.
        dice: draws the directory's name, and an author.
    """

    def __init__(
        self,
        client: AsyncClient,
        host: ShardHost,
        shard: str,
        log: str,
        *,
        parent: Path,
        dice: Random,
    ) -> None:
        self._client = client
        self._host = host
        self._log = log
        readable = shard.replace("/", "_").encode()[:_NAME_BYTES_MAX].decode(errors="ignore")
        name = f"{readable}-{dice.getrandbits(64):016x}"
        self._directory = parent / name
        self._dice = dice
        self._player: asyncio.Future[Player] = asyncio.get_running_loop().create_future()
        self._played: asyncio.Future[Played] = asyncio.get_running_loop().create_future()

    async def play(self) -> None:
        """Play, and follow the log until it is taken over.

        Raises: StepFailed. Cancellation: deletes the files.
        """
        try:
            with step("beginRecovery"):
                await self._host.set_status(ReplicaStatus(ReplicaCode.BACKFILL))
                player = await self._begin()
            self._player.set_result(player)
            with step("player.Play"):
                played = await player.play()
        except Exception as err:
            for future in (self._player, self._played):
                if not future.done():
                    future.set_exception(err)
                    future.exception()  # looked at: perhaps nobody takes over
            raise
        self._played.set_result(played)

    async def tell_standby(self) -> None:
        """Say STANDBY once the player has come to the head of the log. Cancellation: safe."""
        await asyncio.wait([self._player])
        if self._player.exception() is not None:
            return  # `play` tells
        await self._player.result().tailing.wait()
        await self._host.set_status(ReplicaStatus(ReplicaCode.STANDBY))

    async def take_over(self) -> tuple[Played, int]:
        """Take the log over, as soon as the host confirms that it is ours. Once.

        Returns: the files, and the author that the log is of now.
        Raises: what `play` raises. Cancellation: safe, but nobody else can take over.
        """
        player = await asyncio.shield(self._player)
        author = new_author(self._dice)
        player.inject_handoff(author, confirm=self._host.confirm)
        return await asyncio.shield(self._played), author

    async def _begin(self) -> Player:
        with step("fetching hints"):
            hints = pick_hints(await self._host.fetch_hints(), self._log)
        with step("fetching log spec"):
            journal = await self._client.get(hints.log)
        found = journal.spec.labels.value_of(_LABEL)
        if found != CONTENT_TYPE:
            raise ValidationError(
                f"expected label {_LABEL} value {CONTENT_TYPE} (got {found}; journal {hints.log}: is it "
                "a recovery log?)"
            )
        with step("checking the log's identity"):
            await self._host.require_log(hints.log, journal.created)
        return Player(self._client, hints, self._directory, created=journal.created)


async def discard(directory: Path) -> None:
    """Delete files that no store will."""
    with ThreadPoolExecutor(1, "discard files") as disk:
        await run_in(disk, shutil.rmtree, directory, ignore_errors=True)
