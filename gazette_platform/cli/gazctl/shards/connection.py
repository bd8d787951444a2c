"""Which shards a command of `gazctl shards` works on, and the clients that it works with."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypeVar, final

import typer

from gazette_platform.cli.gazctl.arguments import parse_selector
from gazette_platform.cli.gazctl.connection import (
    Connection,
)
from gazette_platform.client import AsyncClient
from gazette_platform.errors import ShardNotFound, ValidationError
from gazette_platform.protocol import LabelSelector, LabelSet

if TYPE_CHECKING:
    from gazette_platform.consumer.client import ShardClient, ShardListing

T = TypeVar("T")

ShardSelector = Annotated[
    str | None,
    typer.Option(
        "-l",
        "--selector",
        metavar="SELECTOR",
        help="Labels of the shards, as in 'id in (shard-000, shard-001), env=dev, !private'.",
    ),
]
"""An empty selector is one, and matches all."""

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", show_default=False, help="Shards by their IDs, in place of a selector."
    ),
]


@final
@dataclass(frozen=True, slots=True)
class ShardSelection:
    """The shards that a command line asked for."""

    selector: LabelSelector
    text: str
    """As the user wrote it, for errors."""
    ids: tuple[str, ...] = ()
    """Shards that have to exist, each."""

    @classmethod
    def of(cls, ids: Sequence[str] | None, selector: str | None, *, is_needed: bool = True) -> Self:
        """What IDs and ``--selector`` say.

        Args:
            is_needed: whether saying neither is an error; else it means all shards.

        Raises: typer.BadParameter: both were given, or neither though it is needed.
            ValidationError: the selector cannot be parsed, or an ID is none.
        """
        if ids and selector is not None:
            raise typer.BadParameter("give IDs or --selector, and not both")
        if not ids:
            if selector is None and is_needed:
                raise typer.BadParameter("Missing option '--selector', or IDs of shards")
            return cls(parse_selector(selector or ""), selector or "")
        labels = LabelSet()
        for shard in sorted(set(ids)):
            labels = labels.with_added("id", shard)
        selected = LabelSelector(include=labels)
        selected.validate()
        return cls(selected, ", ".join(ids), tuple(ids))

    def check(self, found: Iterable[str]) -> None:
        """Check what was found for it.

        Raises: ShardNotFound: a shard that was named is not there. ValidationError: nothing is.
        """
        known = set(found)
        missing = [shard for shard in self.ids if shard not in known]
        if missing:
            raise ShardNotFound(journal=", ".join(missing))
        if not known:
            raise ValidationError(
                f"no shards match the selector ({self.text}); `gazctl shards list` shows the shards "
                "there are"
            )


def connected_shards(
    ctx: typer.Context,
    work: "Callable[[ShardClient, AsyncClient], Awaitable[T]]",
    *,
    file_root: Path | None = None,
) -> T:
    """Run `work` with clients of the consumers and the brokers in the options.

    No connection is opened to either before it is asked. The event loop is one of its own.
    """
    from gazette_platform.consumer.client import ShardClient  # noqa: PLC0415  slow to import

    connection = ctx.find_object(Connection)
    assert connection is not None  # `connect_shards` has made it
    broker = connection.client
    if file_root is not None:
        if not file_root.is_dir():
            raise ValidationError(f"is not a directory ({file_root})", path="--file-root")
        broker = replace(broker, file_root=file_root)

    async def run() -> T:
        async with ShardClient(connection.consumer) as shards, AsyncClient(broker) as client:
            return await work(shards, client)

    return asyncio.run(run())


async def matching_shards(client: "ShardClient", selection: ShardSelection) -> "list[ShardListing]":
    """The shards that were asked for, by ID.

    Raises: ValidationError: there is none; a command that changes things then has nothing to do.
        ShardNotFound: one that was named is not there.
    """
    snapshot = await client.list(selection.selector)
    selection.check(each.id for each in snapshot)
    return list(snapshot.shards)
