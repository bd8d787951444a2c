"""`gazctl journals create`: the specs of new journals, and their creation."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

import typer

from gazette_platform.cli.gazctl.arguments import seconds_of
from gazette_platform.cli.gazctl.connection import Connection, connected
from gazette_platform.cli.gazctl.journals.specs import aftermath, check_stores
from gazette_platform.cli.output import note, print_text
from gazette_platform.client import AsyncClient, Change, ListSnapshot
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.ops import platforms
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    LabelSelector,
    LabelSet,
    format_duration,
)
from gazette_platform.protocol.specs import REPLICATION_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# Two replicas survive the loss of one zone, and three that of one while another is being replaced.
_REPLICATION_MAX: Final = 3

# Of content before compression. As the guides have it: large enough for engines, small enough to lose little
# time when a reader begins amid one.
_FRAGMENT_BYTES: Final = 64 << 20
_REFRESH_NS: Final = 60 * SECOND_NS

FILE_STORE: Final = "file:///"


Codec = Literal["none", "gzip", "zstd", "snappy"]
"""Codecs by the names that people give them."""


_CODECS: Final = {
    "none": CompressionCodec.NONE,
    "gzip": CompressionCodec.GZIP,
    "zstd": CompressionCodec.ZSTANDARD,
    "snappy": CompressionCodec.SNAPPY,
}


PartitionBy = Literal["date", "hour", "none"]
"""Hive partitions that fragments lie in, by the time of their first append."""


_DATE: Final = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
_POSTFIXES: Final = {
    "date": _DATE,
    "hour": _DATE + '/hour={{ .Spool.FirstAppendTime.Format "15" }}',
    "none": "",
}


def zones_of(brokers: Iterable[BrokerSpec]) -> set[str]:
    """Return the zones whose brokers can take journals: those that leave, or take none, do not count."""
    return {each.id.zone for each in brokers if each.journal_limit > 0 and not each.exiting}


def default_replication(zones: Iterable[str]) -> int:
    """Return one replica a zone, three at most.

    >>> default_replication(["a", "b", "c", "d"]), default_replication(["local"])
    (3, 1)
    """
    return min(_REPLICATION_MAX, max(1, len(set(zones))))


def default_stores(
    name: str, journals: Mapping[str, Sequence[str]], endpoints: Iterable[str]
) -> tuple[str, ...]:
    """Return the stores that a journal's neighbours use: those in the deepest directory that it shares with any.

    Without journals, the only guess is the file root of brokers that are all on one machine.

    Args:
        name: of the new journal.
        journals: stores of the journals of the cluster, by name.
        endpoints: URLs of its brokers.

    Raises: ValidationError: neighbours use different stores, or brokers are on several machines. Names the choices.
    """
    directory = name
    while directory:
        directory = directory[: directory[:-1].rfind("/") + 1]
        found = {tuple(stores) for near, stores in journals.items() if near.startswith(directory)}
        found.discard(())
        if len(found) == 1:
            return found.pop()
        if found:
            choices = ", ".join(sorted({stores[0] for stores in found})[:_CHOICES_MAX])
            where = f"below {directory}" if directory else "here"
            raise ValidationError(
                f"journals {where} use different stores ({choices}); say which one {name} uses",
                path="--store",
            )
    hosts = {urlsplit(each).hostname for each in endpoints}
    if len(hosts) > 1:
        raise ValidationError(
            f"there are no journals yet to take the store from, and brokers are on {len(hosts)} machines, which "
            "share no folder as far as is known; name a store, as in --store s3://bucket/prefix/",
            path="--store",
        )
    return (FILE_STORE,)


_CHOICES_MAX = 4


def labels_of(texts: Iterable[str]) -> LabelSet:
    """Parse labels that are given as ``NAME=VALUE``.

    Raises: ValidationError: one is not, or breaks a rule of labels.

    >>> labels_of(["env=test", "a=b"]).values_of("env")
    ('test',)
    """
    labels = LabelSet()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValidationError(f"is not NAME=VALUE ({text})", path="--label")
        labels = labels.with_added(name, value)
    try:
        labels.validate()
    except ValidationError as err:
        raise err.within("--label") from err
    return labels


def flush_interval_ns(text: str) -> int:
    """Parse ``--flush``. Raises: ValidationError: it is not a duration, or one that brokers refuse.

    >>> flush_interval_ns("5m"), flush_interval_ns("0s")
    (300000000000, 0)
    """
    nanoseconds = int(seconds_of(text, "--flush") * SECOND_NS)
    if nanoseconds and nanoseconds < 60 * SECOND_NS:
        raise ValidationError(
            f"brokers take no less than 1m, or 0s for no limit of time ({text}); `gazctl journals flush` stores "
            "content at once",
            path="--flush",
        )
    return nanoseconds


def new_journal(
    name: str,
    *,
    replication: int,
    stores: tuple[str, ...],
    codec: Codec = "gzip",
    partition_by: PartitionBy = "date",
    flush_ns: int = 60 * SECOND_NS,
    labels: LabelSet | None = None,
) -> JournalSpec:
    """Return the spec of a new journal.

    Raises: ValidationError: a value breaks a rule of specs.
    """
    if name.endswith("/"):
        raise ValidationError(
            f"{name} names a directory (give the name of a journal in it, as {name}part=0)",
            path="NAME",
        )
    spec = JournalSpec(
        name,
        replication,
        labels=labels or LabelSet(),
        fragment=FragmentSpec(
            length=_FRAGMENT_BYTES,
            codec=_CODECS[codec],
            stores=stores,
            refresh_interval_ns=_REFRESH_NS,
            flush_interval_ns=flush_ns,
            path_postfix_template=_POSTFIXES[partition_by],
        ),
    )
    try:
        spec.validate()
    except ValidationError as err:
        raise ValidationError(str(err), path=name) from err
    return spec


_HEADS_TIMEOUT_S = 5.0


def create(
    ctx: typer.Context,
    names: list[str],
    *,
    replication: Annotated[int | None, typer.Option(min=1, max=REPLICATION_MAX)] = None,
    codec: Codec = "gzip",
    partition_by: PartitionBy = "date",
    flush: str = "1m",
    labels: list[str] | None = None,
    stores: list[str] | None = None,
    is_printed: bool = False,
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

    Options:
        NAME: Journals to create.
        --replication: Brokers that hold each append; else one for each zone of the cluster, 3 at most.
        --codec: How fragments are compressed in the store.
        --partition-by: Hive partitions of fragments, by the UTC time of their first append.
        --flush DURATION: How long content may wait until it is in the store; 0s: until a fragment is full.
        --label NAME=VALUE: Label of the journals; may be repeated.
        --store URL: Where fragments are stored; else where the platform, or the nearest journals, store theirs. May
            be repeated: the first is written to.
        --print: Print the YAML of the specs, and create nothing.
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
