"""`gazctl journals fragments`."""

import enum
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from gazette_platform.cli.gazctl.arguments import (
    Names,
    Selection,
    SelectorOrNames,
    instant_option,
    seconds_of,
)
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.output import print_json, print_table, print_text
from gazette_platform.client import AsyncClient, FragmentListing, FragmentPage
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import fragment_json, fragments_text

_SUM_BYTES_SHOWN = 6


class FragmentsFormat(enum.StrEnum):
    """Formats of a listing of fragments."""

    TABLE = "table"
    JSON = "json"
    PROTO = "proto"


def fragments(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: Annotated[
        FragmentsFormat, typer.Option("-o", "--format", help="Output format.")
    ] = FragmentsFormat.TABLE,
    begin_mod_time: Annotated[
        int,
        typer.Option(
            "--from",
            parser=instant_option,
            metavar="TIME",
            help="Persisted since: Unix seconds, @-1h for an hour ago, or an ISO 8601 time.",
        ),
    ] = 0,
    end_mod_time: Annotated[
        int,
        typer.Option(
            "--to",
            parser=instant_option,
            metavar="TIME",
            help="Persisted until: Unix seconds, @-1h for an hour ago, or an ISO 8601 time. 0: no bound.",
        ),
    ] = 0,
    url_ttl: Annotated[
        str,
        typer.Option(
            "--url-ttl", metavar="DURATION", help="Show signed URLs, good for so long, as 5m."
        ),
    ] = "0s",
) -> None:
    """List the fragments of journals: those in their stores, and those still in brokers.

    **Examples**

    gazctl journals fragments a/journal --from @-1h

    gazctl journals fragments -l name:prefix=a/ -o json --url-ttl 10m
    """
    selection = Selection.of(names, selector, is_needed=False)
    ttl_s = seconds_of(url_ttl, "--url-ttl")

    if end_mod_time and end_mod_time <= begin_mod_time:
        raise ValidationError(
            f"ends at {_instant(end_mod_time)}, not after --from ({_instant(begin_mod_time)})",
            path="--to",
        )

    async def work(client: AsyncClient) -> None:
        found = _pages(client, selection, begin_mod_time, end_mod_time, ttl_s)
        if output_format is FragmentsFormat.TABLE:
            columns = ["Journal", "Offset", "Length", "Persisted", "SHA1", "Compression"]
            if ttl_s:
                columns.append("URL")
            rows = [
                _row(each)[: len(columns)] async for _, page in found for each in page.fragments
            ]
            print_table(columns, rows)
            return
        async for is_first, page in found:
            if output_format is FragmentsFormat.JSON:
                for each in page.fragments:
                    print_json(fragment_json(each.fragment, each.signed_url))
            else:
                listed = [(each.fragment, each.signed_url) for each in page.fragments]
                header = page.header if is_first else None
                print_text(fragments_text(listed, header=header), end="")

    connected(ctx, work)


def _row(listing: FragmentListing) -> list[str]:
    fragment = listing.fragment
    return [
        fragment.journal,
        str(fragment.begin),
        str(fragment.content_length),
        _instant(fragment.mod_time) if listing.is_persisted else "",
        f"{fragment.sum[:_SUM_BYTES_SHOWN].hex()}...",
        fragment.codec.name,
        listing.signed_url,
    ]


def _instant(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


async def _pages(
    client: AsyncClient, selection: Selection, begin_mod_time: int, end_mod_time: int, ttl_s: float
) -> AsyncIterator[tuple[bool, FragmentPage]]:
    """Pages of fragments of journals, and whether a page is the first one of its journal."""
    for journal in await matching(client, selection):
        if journal.spec.is_fully_suspended:
            continue
        pages = client.fragment_pages(
            journal.name, begin_mod_time=begin_mod_time, end_mod_time=end_mod_time, ttl_s=ttl_s
        )
        is_first = True
        async for page in pages:
            yield is_first, page
            is_first = False
