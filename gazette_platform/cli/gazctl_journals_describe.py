"""`gazctl journals describe`: how journals stand."""

import enum
from collections.abc import Iterable
from typing import Annotated

import typer

from gazette_platform.cli.connection import connected, matching
from gazette_platform.cli.output import NONE, print_json, print_text
from gazette_platform.cli.selection import Names, Selection, SelectorOrNames
from gazette_platform.cli.standing import Standing, asker, lag_text
from gazette_platform.client import AsyncClient
from gazette_platform.protocol import format_duration

__all__ = ["describe"]


class DescribeFormat(enum.StrEnum):
    """Formats of a description."""

    TEXT = "text"
    JSON = "json"


def describe(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: Annotated[
        DescribeFormat,
        typer.Option("-o", "--format", help="text, or json: an object a journal, one a line."),
    ] = DescribeFormat.TEXT,
) -> None:
    """Show how journals stand: write head, bytes stored and not yet stored, brokers, settings.

    Unpersisted bytes are in the spools of brokers, and not yet in a fragment store. The lag is the
    time since anything of the journal was stored, while there are such bytes.

    **Examples**

    gazctl journals describe a/journal

    gazctl journals describe -l name:prefix=a/ -o json
    """
    selection = Selection.of(names, selector)

    async def work(client: AsyncClient) -> None:
        journals = await matching(client, selection)
        async with asker(client) as standings:
            found = await standings.ask(journals)
        for index, each in enumerate(found):
            if output_format is DescribeFormat.JSON:
                print_json(each.json())
            else:
                print_text(("\n" if index else "") + "\n".join(_described(each)))
        for each in found:
            if each.error is not None:
                raise each.error

    connected(ctx, work)


def _described(standing: Standing) -> Iterable[str]:
    spec, stored = standing.listing.spec, standing.stored
    fragment = spec.fragment
    rows: list[tuple[str, str]] = []
    if standing.error is None:
        rows += [
            ("Write head", str(standing.head)),
            ("First byte", str(stored.begin)),
            ("Stored", f"{stored.stored_bytes} bytes in {stored.fragments} fragment(s)"),
            ("Unpersisted", f"{stored.unpersisted_bytes} bytes, lag {lag_text(standing)}"),
        ]
    else:
        rows.append(("Error", str(standing.error)))
    flush_ns = fragment.flush_interval_ns
    retention_ns = fragment.retention_ns
    rows += [
        ("Primary", standing.primary or NONE),
        ("Replicas", ", ".join(standing.replicas) or NONE),
        ("Replication", str(spec.replication)),
        ("Suspended", spec.suspend_level.name),
        ("Stores", ", ".join(fragment.stores) or NONE),
        ("Fragments", f"{fragment.codec.name}, of {fragment.length} bytes"),
        ("Flush interval", format_duration(flush_ns) if flush_ns else NONE),
        ("Retention", format_duration(retention_ns) if retention_ns else "for ever"),
        ("Labels", ", ".join(f"{label.name}={label.value}" for label in spec.labels) or NONE),
        ("Revision", str(standing.listing.mod_revision)),
    ]
    yield spec.name
    for title, value in rows:
        yield f"  {title + ':':<16}{value}"
