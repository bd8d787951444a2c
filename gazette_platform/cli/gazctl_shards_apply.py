"""What `gazctl shards apply` and `edit` do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gazette_platform.cli.declaring import Found, Wanted, differences, plan, report, stale
from gazette_platform.cli.editing import edit_until_taken, read_specs, require_distinct
from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.shards_connection import connected_shards, matching_shards
from gazette_platform.consumer.client import (
    check_references,
    check_shard_changes,
    shard_apply_request,
)
from gazette_platform.consumer.protocol import ShardChange, parse_shard_changes, shards_yaml
from gazette_platform.errors import CallFailed, EtcdTransactionFailed, ValidationError
from gazette_platform.protocol import message_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

    from gazette_platform.cli.shards_connection import ShardSelection
    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.client import ShardClient
    from gazette_platform.consumer.protocol import ShardSpec

__all__ = ["apply", "edit"]

# A field in a path, as `Sources[0].MinOffset` has two.
_GO_FIELD = re.compile(r"(^|[.:] ?)([A-Z][A-Za-z]*)(?=[\[.:]|$)")


def apply(
    ctx: typer.Context,
    files: Sequence[str] | None,
    specs: str | None,
    batch_size: int,
    *,
    dry_run: bool,
    force: bool,
) -> None:
    """Apply YAML documents, or print the request that would do so."""
    parsed = {name: _parse(document, name) for name, document in read_specs(files, specs)}
    require_distinct({name: map(_id, changes) for name, changes in parsed.items()})
    changes = [one for some in parsed.values() for one in some]
    if dry_run:
        print_text(message_text(shard_apply_request(changes)), end="")
        return
    _apply(ctx, changes, batch_size, force=force)


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


def _apply(
    ctx: typer.Context, changes: Sequence[ShardChange], batch_size: int, *, force: bool = False
) -> None:
    """Check what the changes refer to, apply what differs, and report the outcome."""
    wanted = [Wanted(_id(change), change.spec, change.revision) for change in changes]

    async def work(shards: ShardClient, client: AsyncClient) -> None:
        await check_references(client, (each.spec for each in wanted if each.spec is not None))
        found = await _found(shards)
        planned = plan(wanted, found, force=force)
        if planned.differing:
            lines, error = differences(
                planned.differing,
                found,
                group="shards",
                as_yaml=lambda spec: shards_yaml([(spec, 0)]),
            )
            for line in lines:
                note(line)
            raise error
        revision = 0
        if planned.changes:
            revision = await _send(shards, planned.changes, batch_size)
        for line in report(planned.outcomes, revision):
            note(line)

    connected_shards(ctx, work)


async def _send(shards: ShardClient, wanted: Sequence[Wanted[ShardSpec]], batch_size: int) -> int:
    changes = [
        ShardChange(each.spec, "" if each.spec else each.name, each.revision) for each in wanted
    ]
    try:
        return await shards.apply(changes, batch_size=batch_size)
    except EtcdTransactionFailed as err:
        text = stale(wanted, await _found(shards), group="shards")
        if not text:
            raise
        raise EtcdTransactionFailed(text) from err


async def _found(shards: ShardClient) -> dict[str, Found[ShardSpec]]:
    """All shards of the group; none if the caller's token may not list them."""
    try:
        listed = await shards.list()
    except CallFailed as err:
        if err.code != "UNAUTHENTICATED":
            raise
        return {}
    return {each.id: Found(each.spec, each.mod_revision) for each in listed}


def _id(change: ShardChange) -> str:
    return change.delete if change.spec is None else change.spec.id
