"""`gazctl shards list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gazette_platform.cli.gazctl.arguments import Ids, Listing, ShardSelection, ShardSelector
from gazette_platform.cli.gazctl.connection import connected_shards
from gazette_platform.cli.output import NONE, note, print_message, print_table, print_text
from gazette_platform.consumer.client import (
    ShardClient,
    ShardListing,
    ShardSnapshot,
    shard_list_response,
)
from gazette_platform.consumer.protocol import ReplicaCode, shards_yaml
from gazette_platform.errors import StatusError
from gazette_platform.ops.tasks import side_by_side

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
