"""`gazctl kafka topics`: which journals are topics, and how existing ones become topics. Asks brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gazette_platform.cli.gazctl.arguments import Names, Selection, SelectorOrNames, TableOrJson
from gazette_platform.cli.gazctl.connection import connect, connected, matching, noun
from gazette_platform.cli.gazctl.journals.describe import Standing, asker
from gazette_platform.cli.output import NONE, note, print_json, print_table, print_text
from gazette_platform.errors import ValidationError
from gazette_platform.kafka.topics import TOPIC, Form, Topic, made_partitions, map_topics
from gazette_platform.protocol import JournalChange

if TYPE_CHECKING:
    from gazette_platform.client import AsyncClient

_Output = Annotated[TableOrJson, typer.Option("-o", "--format", help="Output format.")]


async def _found(client: AsyncClient, name: str = "") -> list[tuple[Topic, dict[int, Standing]]]:
    """Topics, or one, and how their partitions stand. Raises: ValidationError: there is no topic `name`."""
    known = map_topics(await client.list(TOPIC))
    for problem in known.problems:
        note(problem)
    if name and name not in known.topics:
        raise ValidationError(
            f"there is no topic {name} (see `gazctl kafka topics list`)", path="TOPIC"
        )
    topics = [known.topics[each] for each in ([name] if name else sorted(known.topics))]
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
        for topic, standings in await _found(client):
            size = sum(map(_size, standings.values()))
            if output == "json":
                found = {"topic": topic.name, "partitions": len(standings), "bytes": size}
                print_json(found | {"form": _form(topic)})
            rows.append((topic.name, str(len(standings)), str(size), _form(topic)))
        if output == "table":
            print_table(("Topic", "Partitions", "Bytes", "Form"), rows)

    connected(ctx, work)


def describe(
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
        ((found, standings),) = await _found(client, topic)
        rows: list[tuple[str, ...]] = []
        for number, part in found.partitions.items():
            one = standings[number]
            if output == "json":
                print_json(_partition(number, one) | {"form": part.form.value})
                continue
            places = (NONE,) * 3
            if one.error is None:
                places = (str(one.stored.begin), str(one.head), str(_size(one)))
            rows.append((str(number), part.journal, one.primary or NONE, *places, part.form.value))
        if output == "table":
            names = ("Partition", "Journal", "Broker", "Begin", "End", "Bytes", "Form")
            print_table(names, rows)

    connected(ctx, work)


def _partition(number: int, one: Standing) -> dict[str, Any]:
    is_known = one.error is None
    return {
        "partition": number,
        "journal": one.listing.name,
        "broker": one.primary or None,
        "begin": one.stored.begin if is_known else None,
        "end": one.head if is_known else None,
        "error": None if is_known else str(one.error),
    }


def add(
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


app = noun(
    "topics",
    connect,
    "gazette_platform.cli.gazctl",
    {
        "list": "kafka_topics:list_topics",
        "describe": "kafka_topics:describe",
        "add": "kafka_topics:add",
    },
    help_text="List topics, and make journals topics.",
)
