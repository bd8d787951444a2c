"""`gazctl shards list`, `apply` and `edit`: shards, how their replicas stand, and specs that change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from gazette_platform.cli.gazctl.arguments import Ids, Listing, ShardSelection, ShardSelector
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
from gazette_platform.cli.output import NONE, note, print_message, print_table, print_text
from gazette_platform.consumer.client import (
    ShardClient,
    ShardListing,
    ShardSnapshot,
    check_references,
    check_shard_changes,
    shard_apply_request,
    shard_list_response,
)
from gazette_platform.consumer.protocol import (
    ReplicaCode,
    ShardChange,
    ShardSpec,
    parse_shard_changes,
    shards_yaml,
)
from gazette_platform.errors import StatusError, ValidationError
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import message_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.client import AsyncClient


# Shards that are asked for their progress at the same time.
_SHARDS_AT_A_TIME = 32


def list_shards(
    ctx: typer.Context,
    ids: Ids = None,
    *,
    selector: ShardSelector = None,
    output_format: Listing = "table",
    label_columns: list[str] | None = None,
    primary: bool = False,
    replicas: bool = False,
    rf: bool = False,
    lag: bool = False,
) -> None:
    """List shards, how their replicas stand, and their specs.

    The status is that of all replicas of a shard: FAILED if one of them has failed; then its error is shown
    on stderr.

    **Examples**

    gazctl shards list -l team=search -p -r --lag

    gazctl shards list shard-000 -o yaml > shard.yaml

    Options:
        -o, --format: Output format.
        -L, --label-columns: Label to show as a column; may be repeated.
        -p, --primary: Show the primary process.
        -r, --replicas: Show the hot standbys.
        --rf: Show how many replicas are wanted.
        --lag: Show how many bytes of each source are still to be read.
    """
    selection = ShardSelection.of(ids, selector, is_needed=False)
    columns = _columns(label_columns or (), rf=rf, primary=primary, replicas=replicas)

    async def work(shards: ShardClient, client: AsyncClient) -> None:
        snapshot = await shards.list(selection.selector)
        if selection.names:
            selection.check(each.id for each in snapshot)
        if output_format != "table":
            _print_listing(snapshot, output_format)
            return
        rows = [[cell(each) for _, cell in columns] for each in snapshot]
        titles = [title for title, _ in columns]
        if lag:
            titles.append("Lag")

            async def lag_of(shard: ShardListing) -> str:
                return await _lag(shards, client, shard)

            lags = await side_by_side(lag_of, snapshot.shards, at_a_time=_SHARDS_AT_A_TIME)
            for row, behind in zip(rows, lags, strict=True):
                row.append(behind)
        print_table(titles, rows)
        if not rows:
            note(_none_text(selection.text))
        failures = [text for each in snapshot for text in _failures(each)]
        for text in failures:
            note(text)
        if failures:
            note(
                "once the cause is mended, `gazctl shards unassign --failed` with the same shards has them "
                "tried again"
            )

    connected_shards(ctx, work)


def _columns(
    labels: Sequence[str], *, rf: bool, primary: bool, replicas: bool
) -> list[tuple[str, Callable[[ShardListing], str]]]:
    columns: list[tuple[str, Callable[[ShardListing], str]]] = [
        ("ID", lambda shard: shard.id),
        ("Status", lambda shard: shard.status.code.name),
    ]
    optional = ((rf, "RF", _rf), (primary, "Primary", _primary), (replicas, "Replicas", _others))
    columns += [(title, cell) for is_shown, title, cell in optional if is_shown]
    return columns + [(name, _label(name)) for name in labels]


def _label(name: str) -> Callable[[ShardListing], str]:
    return lambda shard: ",".join(shard.spec.labels.values_of(name)) or NONE


def _rf(shard: ShardListing) -> str:
    return str(0 if shard.spec.disable else 1 + shard.spec.hot_standbys)


def _primary(shard: ShardListing) -> str:
    return _replicas(shard)[shard.route.primary] if shard.route.primary >= 0 else NONE


def _others(shard: ShardListing) -> str:
    found = _replicas(shard)
    return ",".join(each for n, each in enumerate(found) if n != shard.route.primary) or NONE


def _replicas(shard: ShardListing) -> list[str]:
    """Return who holds a shard, each with its status."""
    pairs = zip(shard.route.members, shard.statuses, strict=True)
    return [f"{member.suffix}:{status.code.name}" for member, status in pairs]


def _failures(shard: ShardListing) -> list[str]:
    """Why replicas of a shard have failed, in words."""
    return [
        f"{shard.id}: failed at {member.suffix}: {'; '.join(status.errors)}"
        for member, status in zip(shard.route.members, shard.statuses, strict=True)
        if status.code is ReplicaCode.FAILED
    ]


async def _lag(shards: ShardClient, client: AsyncClient, shard: ShardListing) -> str:
    """Bytes behind the write head of each source; of a shard without a working primary it is not known."""
    is_known = shard.route.primary >= 0 and (
        shard.statuses[shard.route.primary].code is ReplicaCode.PRIMARY
    )
    if not is_known or not shard.spec.sources:
        return NONE
    try:
        progress = await shards.stat(shard.id)
        lags = []
        for source in shard.spec.sources:
            read_through = max(progress.read_through.get(source.journal, 0), source.min_offset)
            head = await client.write_head(source.journal)
            lags.append(f"{source.journal}:{max(0, head - read_through)}")
    except StatusError as err:
        note(f"{shard.id}: its lag is not known: {err}")
        return NONE
    return ",".join(lags)


def _none_text(selector: str) -> str:
    if not selector:
        return "there are no shards yet; `gazctl shards apply` makes some"
    return f"no shards match {selector}; `gazctl shards list -o yaml` shows all, with their labels"


def _print_listing(snapshot: ShardSnapshot, output_format: Listing) -> None:
    if output_format == "yaml":
        print_text(shards_yaml((each.spec, each.mod_revision) for each in snapshot), end="")
    else:
        print_message(shard_list_response(snapshot), output_format)


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
