"""What `gazctl shards apply` and `edit` do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gazette_platform.cli.editing import edit_until_taken, read_specs
from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.shards_connection import connected_shards, matching_shards
from gazette_platform.consumer.client import check_shard_changes, shard_apply_request
from gazette_platform.consumer.protocol.shard_yaml import parse_shard_changes, shards_yaml
from gazette_platform.consumer.references import check_references
from gazette_platform.errors import EtcdTransactionFailed, ValidationError
from gazette_platform.protocol import message_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

    from gazette_platform.cli.shards_connection import ShardSelection
    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.client import ShardClient
    from gazette_platform.consumer.protocol import ShardChange

__all__ = ["apply", "edit"]

_STALE_MAX = 3

# A field in a path, as `Sources[0].MinOffset` has two.
_GO_FIELD = re.compile(r"(^|[.:] ?)([A-Z][A-Za-z]*)(?=[\[.:]|$)")


def apply(ctx: typer.Context, specs: str, batch_size: int, *, dry_run: bool) -> None:
    """Apply a YAML document, or print the request that would do so."""
    changes = _parse(read_specs(specs), "stdin" if specs == "-" else specs)
    if dry_run:
        print_text(message_text(shard_apply_request(changes)), end="")
        return
    _apply(ctx, changes, batch_size)


def edit(ctx: typer.Context, selection: ShardSelection, batch_size: int) -> None:
    """Have specs edited, and apply them."""

    async def read(shards: ShardClient, _: AsyncClient) -> str:
        found = await matching_shards(shards, selection)
        return shards_yaml((each.spec, each.mod_revision) for each in found)

    def take(edited: str) -> None:
        _apply(ctx, _parse(edited.encode(), "edited specs"), batch_size)

    edit_until_taken(connected_shards(ctx, read), take, group="shards")


def _parse(document: bytes, at: str) -> list[ShardChange]:
    """Changes of a document, checked as consumers would."""
    try:
        changes = parse_shard_changes(document)
        check_shard_changes(changes)
    except ValidationError as err:
        raise ValidationError(_GO_FIELD.sub(_key_of, str(err)), path=at) from err
    return changes


def _key_of(field: re.Match[str]) -> str:
    """The key of YAML that a field of Go is written by."""
    return field[1] + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", field[2]).lower()


def _apply(ctx: typer.Context, changes: Sequence[ShardChange], batch_size: int) -> None:
    """Check what the changes refer to, apply them, and tell what came of it."""

    async def work(shards: ShardClient, client: AsyncClient) -> None:
        await check_references(client, (each.spec for each in changes if each.spec is not None))
        try:
            revision = await shards.apply(changes, batch_size=batch_size)
        except EtcdTransactionFailed as err:
            stale = await _stale(shards, changes)
            if not stale:
                raise
            raise EtcdTransactionFailed(stale) from err
        deleted = sum(1 for change in changes if change.spec is None)
        applied = len(changes) - deleted
        note(f"applied {applied} and deleted {deleted} shards, revision {revision}")

    connected_shards(ctx, work)


async def _stale(shards: ShardClient, changes: Sequence[ShardChange]) -> str:
    """Which of the changes are at another revision than they expect, in words; empty if none."""
    found = {each.id: each.mod_revision for each in await shards.list()}
    stale = []
    for change in changes:
        shard = change.delete if change.spec is None else change.spec.id
        at = found.get(shard, 0)
        if change.revision not in {-1, at}:
            if at and not change.revision:
                stale.append(
                    f"{shard} exists already (to change it, run `gazctl shards edit {shard}`, or give its spec "
                    f"`revision: {at}`)"
                )
                continue
            is_at = f"is at revision {at}" if at else "does not exist"
            stale.append(f"{shard} {is_at}, and the specs expect revision {change.revision}")
    more = f"; and {len(stale) - _STALE_MAX} more" if len(stale) > _STALE_MAX else ""
    return "; ".join(stale[:_STALE_MAX]) + more
