"""`gazctl shards apply` and `edit`: specs that change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from gazette_platform.cli.gazctl.arguments import Ids, ShardSelection, ShardSelector
from gazette_platform.cli.gazctl.connection import connected_shards, matching_shards
from gazette_platform.cli.gazctl.plan import Found, Wanted
from gazette_platform.cli.gazctl.specs import (
    BatchSize,
    SpecFiles,
    SpecsOption,
    carry_out,
    changes_in,
    edit_until_taken,
    listed,
)
from gazette_platform.cli.output import print_text
from gazette_platform.consumer.client import (
    ShardClient,
    check_references,
    check_shard_changes,
    shard_apply_request,
)
from gazette_platform.consumer.protocol import (
    ShardChange,
    ShardSpec,
    parse_shard_changes,
    shards_yaml,
)
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import message_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.client import AsyncClient

# A field in a path, as `Sources[0].MinOffset` has two.
_GO_FIELD = re.compile(r"(^|[.:] ?)([A-Z][A-Za-z]*)(?=[\[.:]|$)")


def apply(
    ctx: typer.Context,
    files: SpecFiles = None,
    *,
    specs: SpecsOption = None,
    dry_run: bool = False,
    max_txn_size: BatchSize = 0,
    force: bool = False,
) -> None:
    """Make shards as YAML specs say.

    Shards that do not exist are created. One whose spec is equal is left `unchanged`. If a spec differs and gives no
    `revision`, nothing is applied: the command shows the difference and fails; --force changes the shard.

    A `revision` makes a spec a compare-and-set: the shard must be at it, and -1 stands for any. `delete: true`,
    which needs a revision, deletes the shard. Shards are in the order of their IDs; `common` holds what they share.

    Nothing is applied if a source or a recovery log is not a journal of the brokers, or has another
    content type.

    **Examples**

    gazctl shards apply shards.yaml

    gazctl shards list -o yaml | sed 's/hot_standbys: 1/hot_standbys: 2/' | gazctl shards apply

    Options:
        --dry-run: Check the specs, print the request they stand for, change nothing.
        -f, --force: Change shards whose specs differ and give no revision.
    """
    changes = changes_in(files, specs, _parse, _id)
    if dry_run:
        print_text(message_text(shard_apply_request(changes)), end="")
        return
    _apply(ctx, changes, max_txn_size, force=force)


def edit(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    max_txn_size: BatchSize = 0,
) -> None:
    """Edit the specs of shards in an editor, and apply them.

    Opens $GAZ_EDITOR, $EDITOR or vi; again if the result cannot be applied. An unchanged or empty
    file cancels.

    **Example**

    EDITOR=nano gazctl shards edit -l team=search
    """
    selection = ShardSelection.of(ids, selector)

    async def read(shards: ShardClient, _: AsyncClient) -> str:
        found = await matching_shards(shards, selection)
        return shards_yaml((each.spec, each.mod_revision) for each in found)

    def take(edited: str) -> None:
        _apply(ctx, _parse(edited.encode(), "edited specs"), max_txn_size)

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
        async def send(chosen: Sequence[Wanted[ShardSpec]]) -> int:
            to_apply = [
                ShardChange(each.spec, "" if each.spec else each.name, each.revision)
                for each in chosen
            ]
            return await shards.apply(to_apply, batch_size=batch_size)

        await check_references(client, (each.spec for each in wanted if each.spec is not None))
        await carry_out(
            lambda _: wanted,
            group="shards",
            find=lambda: _found(shards),
            send=send,
            as_yaml=lambda spec: shards_yaml([(spec, 0)]),
            force=force,
        )

    connected_shards(ctx, work)


async def _found(shards: ShardClient) -> dict[str, Found[ShardSpec]]:
    """All shards of the group; none if the caller's token may not list them."""
    return {each.id: Found(each.spec, each.mod_revision) for each in await listed(shards.list())}


def _id(change: ShardChange) -> str:
    return change.delete if change.spec is None else change.spec.id
