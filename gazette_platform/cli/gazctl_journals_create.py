"""`gazctl journals create`."""

import asyncio
import os
from contextlib import suppress
from typing import Annotated

import typer

from gazette_platform.cli.aftermath import aftermath, check_stores
from gazette_platform.cli.connection import Connection, connected
from gazette_platform.cli.new_journals import (
    Codec,
    PartitionBy,
    default_replication,
    default_stores,
    flush_interval_ns,
    labels_of,
    new_journal,
    zones_of,
)
from gazette_platform.cli.output import note, print_text
from gazette_platform.client import AsyncClient, Change, ListSnapshot
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.ops import platforms
from gazette_platform.protocol import JournalSpec, LabelSelector, format_duration
from gazette_platform.protocol.specs import REPLICATION_MAX

__all__ = ["create"]

_HEADS_TIMEOUT_S = 5.0


def create(
    ctx: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", show_default=False, help="Journals to create.")
    ],
    *,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication",
            min=1,
            max=REPLICATION_MAX,
            show_default=False,
            help="Brokers that hold each append; else one for each zone of the cluster, 3 at most.",
        ),
    ] = None,
    codec: Annotated[
        Codec, typer.Option("--codec", help="How fragments are compressed in the store.")
    ] = Codec.GZIP,
    partition_by: Annotated[
        PartitionBy,
        typer.Option(
            "--partition-by",
            help="Hive partitions of fragments, by the UTC time of their first append.",
        ),
    ] = PartitionBy.DATE,
    flush: Annotated[
        str,
        typer.Option(
            "--flush",
            metavar="DURATION",
            help="How long content may wait until it is in the store; 0s: until a fragment is full.",
        ),
    ] = "1m",
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME=VALUE",
            show_default=False,
            help="Label of the journals; may be repeated.",
        ),
    ] = None,
    stores: Annotated[
        list[str] | None,
        typer.Option(
            "--store",
            metavar="URL",
            show_default=False,
            help="Where fragments are stored; else where the platform, or the nearest journals, store theirs. "
            "May be repeated: the first is written to.",
        ),
    ] = None,
    is_printed: Annotated[
        bool, typer.Option("--print", help="Print the YAML of the specs, and create nothing.")
    ] = False,
) -> None:
    """Create journals with good defaults.

    The YAML that --print shows is what `gazctl journals apply` takes, and has all further settings.

    Without --store, journals go to the store of the platform that `gazette up` started; else to the store that
    the journals in the nearest common directory use. A new cluster on one machine uses `file:///`.

    **Examples**

    gazctl journals create events/clicks

    gazctl journals create orders/region=eu orders/region=us --label kind=orders

    gazctl journals create logs/app --partition-by hour --codec zstd --store s3://bucket/logs/

    gazctl journals create events/clicks --print > clicks.yaml
    """
    flush_ns = flush_interval_ns(flush)
    label_set = labels_of(labels or ())
    connection = ctx.find_object(Connection)
    assert connection is not None  # set by the group
    platform_store = _platform_store(connection.client.address)

    async def work(client: AsyncClient) -> None:
        listed = await client.list_snapshot(LabelSelector())
        zones, endpoints = await _cluster(client, listed)
        known = {each.name: each.spec.fragment.stores for each in listed}
        specs = [
            new_journal(
                name,
                replication=replication or default_replication(zones),
                stores=tuple(stores or platform_store) or default_stores(name, known, endpoints),
                codec=codec,
                partition_by=partition_by,
                flush_ns=flush_ns,
                labels=label_set,
            )
            for name in sorted(set(names))
        ]
        if is_printed:
            from gazette_platform.yaml_specs.journal_tree import to_journal_tree  # noqa: PLC0415  slow to import

            print_text(to_journal_tree([(spec, 0) for spec in specs]), end="")
            return
        if exist := [spec.name for spec in specs if spec.name in known]:
            raise ValidationError(
                f"{', '.join(exist)} exists already, and nothing was created (`gazctl journals describe {exist[0]}` "
                f"shows it, and `gazctl journals edit {exist[0]}` changes it)"
            )
        await _create(client, specs)

    connected(ctx, work)


async def _create(client: AsyncClient, specs: list[JournalSpec]) -> None:
    changes = [Change(spec) for spec in specs]
    await check_stores(client, changes)
    await client.apply(changes)
    for spec in specs:
        note(f"{spec.name}: created ({_told(spec)})")
    warnings = await aftermath(client, changes) or await _leftovers(client, specs)
    for text in warnings:
        note(text)
    if not warnings:
        note(f"append to it: gazctl journals append {specs[0].name} FILE")


async def _leftovers(client: AsyncClient, specs: list[JournalSpec]) -> list[str]:
    """Say which journals take no appends yet, because their store has content of deleted ones of their names.

    What brokers cannot say in time is left out: the first append reports it.
    """
    found = []
    with suppress(GazetteError, TimeoutError):
        async with asyncio.timeout(_HEADS_TIMEOUT_S):
            for spec in specs:
                state = await client.check_head(spec.name)
                if state.is_refused:
                    found.append(
                        f"warning: {spec.fragment.stores[0]} has content of a former journal {spec.name}, up to offset "
                        f"{state.head}. To continue after it, run `gazctl journals reset-head {spec.name}`"
                    )
    return found


def _told(spec: JournalSpec) -> str:
    """What a user may want to know before data comes."""
    fragment = spec.fragment
    flush_ns = fragment.flush_interval_ns
    return ", ".join(
        [
            "1 replica" if spec.replication == 1 else f"{spec.replication} replicas",
            fragment.codec.name.lower(),
            f"stored every {format_duration(flush_ns)}"
            if flush_ns
            else "stored when a fragment is full",
            f"in {fragment.stores[0]}",
        ]
    )


async def _cluster(client: AsyncClient, listed: ListSnapshot) -> tuple[set[str], set[str]]:
    """The zones and endpoints of the brokers. Those of Gazette are known by the journals that they serve."""
    if brokers := await client.brokers():
        return zones_of(brokers), {each.endpoint for each in brokers}
    routes = [each.route for each in listed]
    zones = {member.zone for route in routes for member in route.members}
    endpoints = {endpoint for route in routes for endpoint in route.endpoints if endpoint}
    if listed.header.process_id is not None:
        zones.add(listed.header.process_id.zone)
    return zones, endpoints


def _platform_store(address: str) -> list[str]:
    """The store of the platform whose broker has the address; none if it is not one that is known."""
    path = os.environ.get("GAZETTE_ENDPOINTS") or platforms.find(os.environ).variables.get(
        "GAZETTE_ENDPOINTS"
    )
    if not path:
        return []
    from pathlib import Path  # noqa: PLC0415  few need it

    from gazette_platform.platform.layout import Endpoints  # noqa: PLC0415  as well

    try:
        platform = Endpoints.load(Path(path))
    except GazetteError:
        return []  # it is down: the brokers are others
    if not set(address.split(",")) & {platform.broker, *platform.brokers}:
        return []
    return [platform.store or "file:///"]
