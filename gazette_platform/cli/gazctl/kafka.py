"""`gazctl kafka`: topics, and what clients of Kafka do at the gateways: groups, transactions, and a doctor.

Topics are journals, so their commands ask brokers; all others ask a gateway, as clients of Kafka do.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from gazette_platform.cli.commands import documented
from gazette_platform.cli.gazctl.arguments import Names, Selection, SelectorOrNames, TableOrJson
from gazette_platform.cli.gazctl.connection import (
    CommonOptionsGroup,
    connect,
    connected,
    matching,
    noun,
    opened,
)
from gazette_platform.cli.gazctl.journals.describe import Standing, asker
from gazette_platform.cli.output import NONE, note, print_json, print_table, print_text
from gazette_platform.cli.program import EXIT_FAILED, set_up_logging
from gazette_platform.errors import ValidationError
from gazette_platform.kafka.config import KafkaConfig
from gazette_platform.kafka.topics import TOPIC, Form, Topic, made_partitions, map_topics
from gazette_platform.ops import platforms
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.extras import required
from gazette_platform.protocol import JournalChange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.client import AsyncClient
    from gazette_platform.kafka.inspection import Cluster, GroupDetails

T = TypeVar("T")

_PORT_MAX: Final = 65535
_Output = Annotated[TableOrJson, typer.Option("-o", "--format", help="Output format.")]


@dataclass(frozen=True, slots=True)
class _Door:
    """The gateway to ask, by the options."""

    host: str
    port: int
    token: str
    tls: ssl.SSLContext | None


app = typer.Typer(
    name="kafka",
    cls=CommonOptionsGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Look at topics, consumer groups and transactions of Kafka's clients, and find what keeps clients from working.",
)


topics = noun(
    "topics",
    connect,
    "gazette_platform.cli.gazctl",
    {
        "list": "kafka:list_topics",
        "describe": "kafka:describe_topic",
        "add": "kafka:add_topic",
        "configs": "kafka:topic_configs",
    },
    help_text="List topics, change their configs, and make journals topics.",
)


app.add_typer(topics)


def _option(name: str, text: str, **more: Any) -> Any:
    variable = name.replace(".", "_").replace("-", "_").upper()
    return typer.Option(f"--{name}", envvar=variable, help=text, **more)


@app.callback()
def _connect(
    ctx: typer.Context,
    *,
    address: Annotated[
        str,
        _option(
            "kafka.address",
            "Kafka port of any gateway. If you set none, that of the running platform.",
            metavar="HOST:PORT",
        ),
    ] = "localhost:9092",
    token: Annotated[
        str,
        _option("kafka.auth-token", "Token to log in with, as of SASL/PLAIN.", show_default=False),
    ] = "",
    security: Annotated[
        Literal["plain", "tls"], _option("kafka.security", "How to connect: plain or tls.")
    ] = "plain",
    trusted_ca_file: Annotated[
        str,
        _option(
            "kafka.trusted-ca-file",
            "PEM roots to trust instead of the system's; implies tls.",
        ),
    ] = "",
    level: Annotated[
        str, _option("log.level", "trace, debug, info, warn, error or fatal.")
    ] = "warn",
) -> None:
    """Look at topics, consumer groups and transactions of Kafka's clients, and find what keeps clients from working."""
    set_up_logging(level, "text")
    if ctx.invoked_subcommand == topics.info.name:
        return  # which asks brokers
    source = ctx.get_parameter_source("address")
    if source is None or source.name == "DEFAULT":
        address = platforms.adopted(os.environ).get("KAFKA_ADDRESS", address)
    required("kio", extra="kafka", by="commands of gazctl kafka")
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise ValidationError(f"expected HOST:PORT, got {address!r}", path="--kafka.address")
    context: ssl.SSLContext | None = None
    if trusted_ca_file:
        with opened(trusted_ca_file, "--kafka.trusted-ca-file"):
            pass
    if security == "tls" or trusted_ca_file:
        context = ssl.create_default_context(cafile=trusted_ca_file or None)
    ctx.obj = _Door(host.strip("[]"), int(port), token, context)


def _ask(ctx: typer.Context, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` with the cluster of the options, on an event loop of its own."""
    from gazette_platform.kafka.inspection import Cluster  # noqa: PLC0415  needs the extra

    door = ctx.find_object(_Door)
    assert door is not None  # the group's callback has made it

    async def run() -> T:
        async with Cluster(door.host, door.port, door.tls, door.token) as cluster:
            return await work(cluster)

    return asyncio.run(run())


@app.command()
@documented
def groups(ctx: typer.Context, group: str = "", *, output: _Output = "table") -> None:
    """List consumer groups; or show the members, offsets and lag of one.

    Offsets are bytes of journals, and so is lag: what the group has not read yet.

    **Example**

    gazctl kafka groups billing --kafka.address broker-1:9092

    Options:
        GROUP: Name of the group to show; default: list all.
    """
    if group:
        details = _ask(ctx, lambda cluster: cluster.group(group))
        _print_group(details, output)
        return
    found = _ask(ctx, lambda cluster: cluster.groups())
    if output == "json":
        for one in found:
            print_json(one._asdict())
        return
    rows = [(one.group_id, one.state, one.protocol_type or NONE, str(one.node)) for one in found]
    print_table(("Group", "State", "Type", "Node"), rows)


def _print_group(details: GroupDetails, output: str) -> None:
    summary = details.summary
    if output == "json":
        parts = [one._asdict() | {"lag": one.lag} for one in details.partitions]
        more: dict[str, Any] = {"protocol": details.protocol, "members": details.members}
        print_json(summary._asdict() | more | {"partitions": parts}, indent=True)
        return
    members = "1 member" if details.members == 1 else f"{details.members} members"
    print_text(f"{summary.group_id}: {summary.state}, {members}, node {summary.node}")
    rows = [
        (
            one.topic,
            str(one.partition),
            NONE if one.committed < 0 else str(one.committed),
            NONE if one.end < 0 else str(one.end),
            NONE if one.lag is None else str(one.lag),
            one.member or NONE,
            one.host or NONE,
        )
        for one in details.partitions
    ]
    print_table(("Topic", "Partition", "Committed", "End", "Lag", "Member", "Host"), rows)


@app.command()
def transactions(ctx: typer.Context, *, output: _Output = "table") -> None:
    """List transactional ids of producers, with the partitions of open transactions.

    **Example**

    gazctl kafka transactions
    """
    found = _ask(ctx, lambda cluster: cluster.transactions())
    if output == "json":
        for one in found:
            began = one.began.isoformat() if one.began else None
            more = {"began": began, "timeout": one.timeout.total_seconds()}
            print_json(one._asdict() | more)
        return
    rows = [
        (
            one.transactional_id,
            one.state,
            str(one.producer_id),
            str(one.epoch),
            one.began.isoformat(timespec="seconds") if one.began else NONE,
            " ".join(one.partitions) or NONE,
        )
        for one in found
    ]
    print_table(("Id", "State", "Producer", "Epoch", "Began", "Partitions"), rows)


@app.command()
def doctor(ctx: typer.Context, *, output: _Output = "table") -> None:
    """Look for what keeps clients of Kafka from working. Exits with 1 if it finds an error.

    It asks each gateway at the address that clients are sent to, and looks at topics, groups and transactions.

    **Example**

    gazctl kafka doctor --kafka.address broker-1:9092
    """
    now = SystemClock().now()
    found = _ask(ctx, lambda cluster: cluster.findings(now=now))
    if output == "json":
        for one in found:
            print_json(one._asdict())
    else:
        print_table(("Result", "Finding"), found)
    if any(one.level == "error" for one in found):
        raise typer.Exit(EXIT_FAILED)


async def _known_topics(client: AsyncClient, name: str = "") -> list[Topic]:
    """Topics, or one. Raises: ValidationError: there is no topic `name`."""
    known = map_topics(await client.list(TOPIC))
    for problem in known.problems:
        note(problem)
    if name and name not in known.topics:
        raise ValidationError(
            f"there is no topic {name} (see `gazctl kafka topics list`)", path="TOPIC"
        )
    return [known.topics[each] for each in ([name] if name else sorted(known.topics))]


async def _found_topics(
    client: AsyncClient, name: str = ""
) -> list[tuple[Topic, dict[int, Standing]]]:
    """Topics, or one, and how their partitions stand. Raises: as `_known_topics`."""
    topics = await _known_topics(client, name)
    listings = [part.listing for topic in topics for part in topic.partitions.values()]
    async with asker(client) as standings:
        found = {each.listing.name: each for each in await standings.ask(listings)}
    return [
        (topic, {number: found[part.journal] for number, part in topic.partitions.items()})
        for topic in topics
    ]


def _size(standing: Standing) -> int:
    return 0 if standing.error else standing.head - standing.stored.begin


def _form(topic: Topic) -> str:
    return "+".join(sorted({part.form.value for part in topic.partitions.values()}))


def list_topics(ctx: typer.Context, *, output: _Output = "table") -> None:
    """List topics: their partitions, size in bytes, and the form of their records.

    **Example**

    gazctl kafka topics list
    """

    async def work(client: AsyncClient) -> None:
        rows: list[tuple[str, ...]] = []
        for topic, standings in await _found_topics(client):
            size = sum(map(_size, standings.values()))
            if output == "json":
                found = {"topic": topic.name, "partitions": len(standings), "bytes": size}
                print_json(found | {"form": _form(topic)})
            rows.append((topic.name, str(len(standings)), str(size), _form(topic)))
        if output == "table":
            print_table(("Topic", "Partitions", "Bytes", "Form"), rows)

    connected(ctx, work)


def describe_topic(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    *,
    output: _Output = "table",
) -> None:
    """Show the partitions of a topic: journal, broker, and the offsets where records begin and end.

    The broker is the journal's primary. Clients of Kafka see its gateway as the leader.

    **Example**

    gazctl kafka topics describe flights
    """

    async def work(client: AsyncClient) -> None:
        ((found, standings),) = await _found_topics(client, topic)
        rows: list[tuple[str, ...]] = []
        for number, part in found.partitions.items():
            one = standings[number]
            if output == "json":
                print_json(_partition_fields(number, one) | {"form": part.form.value})
                continue
            places = (NONE,) * 3
            if one.error is None:
                places = (str(one.stored.begin), str(one.head), str(_size(one)))
            rows.append((str(number), part.journal, one.primary or NONE, *places, part.form.value))
        if output == "table":
            names = ("Partition", "Journal", "Broker", "Begin", "End", "Bytes", "Form")
            print_table(names, rows)

    connected(ctx, work)


def _partition_fields(number: int, one: Standing) -> dict[str, Any]:
    is_known = one.error is None
    return {
        "partition": number,
        "journal": one.listing.name,
        "broker": one.primary or None,
        "begin": one.stored.begin if is_known else None,
        "end": one.head if is_known else None,
        "error": None if is_known else str(one.error),
    }


def add_topic(
    ctx: typer.Context,
    names: Names = None,
    *,
    topic: Annotated[str, typer.Option("--topic", help="Name of the topic.", show_default=False)],
    selector: SelectorOrNames = None,
    form: Annotated[
        Literal["json", "plain", "avro", "envelope"],
        typer.Option("--form", help="How records that clients produce become lines."),
    ] = "json",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
) -> None:
    """Make journals that exist a topic, by labels. Their content does not change.

    Partitions are numbered in the order of names. More journals may be added later: they get the next numbers, and no
    number ever changes. Lines that journals have already are records whose value is the line. Of new records, plain
    keeps the value alone, the others also key, headers and time.

    **Examples**

    gazctl kafka topics add events/clicks --topic clicks

    gazctl kafka topics add -l name:prefix=flights/ --topic flights --dry-run
    """
    selection = Selection.of(names, selector)

    async def work(client: AsyncClient) -> None:
        wanted = await matching(client, selection)
        made = made_partitions(topic, Form(form), await client.list(TOPIC), wanted)
        if made and not dry_run:
            await client.apply(
                [JournalChange(spec, revision=was.mod_revision) for was, spec in made]
            )
        for _, spec in made:
            number = spec.labels.value_of("kafka.partition")
            print_text(
                f"{spec.name}: {'would be ' if dry_run else ''}partition {number} of {topic}"
            )
        if not made:
            note(f"all of these journals are partitions of {topic} already")

    connected(ctx, work)


def topic_configs(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    *,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Config to change. Repeatable."),
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NAME", help="Config to give its default. Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what configs there would be.")
    ] = False,
    output: _Output = "table",
) -> None:
    """Show the configs of a topic, as clients of Kafka see them, or change some.

    **Examples**

    gazctl kafka topics configs flights

    gazctl kafka topics configs flights --set retention.ms=86400000 --reset compression.type
    """
    required("kio", extra="kafka", by="gazctl kafka topics configs")
    from gazette_platform.kafka.calls.topic_configs import (  # noqa: PLC0415  needs the extra
        altered_spec,
        configs_of,
    )

    changes: dict[str, str | None] = dict.fromkeys(reset or ())
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise ValidationError(f"expected NAME=VALUE, got {each!r}", path="--set")
        changes[name] = value

    async def work(client: AsyncClient) -> None:
        (found,) = await _known_topics(client, topic)
        listings = [part.listing for part in found.partitions.values()]
        specs = [altered_spec(each.spec, KafkaConfig(), changes) for each in listings]
        if changes and not dry_run:
            pairs = zip(specs, listings, strict=True)
            await client.apply(
                [JournalChange(spec, revision=was.mod_revision) for spec, was in pairs]
            )
        configs = configs_of(specs[0])
        if output == "json":
            print_json(configs, indent=True)
        else:
            print_table(("Config", "Value"), sorted(configs.items()))

    connected(ctx, work)
