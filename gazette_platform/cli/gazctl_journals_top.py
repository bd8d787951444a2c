"""`gazctl journals top`: how journals stand, live."""

import asyncio
import enum
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from gazette_platform.cli.connection import connected, matching
from gazette_platform.cli.instants import seconds_of
from gazette_platform.cli.output import NONE, print_json, print_table
from gazette_platform.cli.selection import Names, Selection, SelectorOrNames
from gazette_platform.cli.standing import Standing, asker, lag_text
from gazette_platform.client import AsyncClient
from gazette_platform.errors import ValidationError
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["top"]

_COLUMNS = ("Journal", "Primary", "Head", "Bytes/s", "Unpersisted", "Lag")
_INTERVAL_MIN_S = 0.1
_UNIT = 1024.0


class TopFormat(enum.StrEnum):
    """Formats of what is measured."""

    TABLE = "table"
    JSON = "json"


def top(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: Annotated[
        TopFormat,
        typer.Option("-o", "--format", help="table, or json: an object a measurement, one a line."),
    ] = TopFormat.TABLE,
    interval: Annotated[
        str, typer.Option("-d", "--interval", metavar="DURATION", help="Time between measurements.")
    ] = "2s",
    once: Annotated[
        bool, typer.Option("--once", help="Measure for one interval, print it, and end.")
    ] = False,
) -> None:
    """Show live which journals are appended to, and what is not yet stored, until interrupted.

    Journals with most appends come first. The lag is the time since anything of the journal was
    stored, while some of its content is not; Ctrl-C ends.

    **Examples**

    gazctl journals top

    gazctl journals top flights/ --once -o json
    """
    selection = Selection.of(names, selector, is_needed=False)
    interval_s = seconds_of(interval, "--interval")
    if interval_s < _INTERVAL_MIN_S:
        raise ValidationError(f"must be at least 100ms ({interval})", path="--interval")

    async def work(client: AsyncClient) -> None:
        async with aclosing(_measured(client, selection, interval_s)) as measured:
            if output_format is TopFormat.TABLE and sys.stdout.isatty() and not once:
                await _show_live(measured)
                return
            async for standings in measured:
                _print(standings, output_format)
                if once:
                    return

    with suppress(KeyboardInterrupt):  # which is how it ends
        connected(ctx, work)


async def _measured(
    client: AsyncClient, selection: Selection, interval_s: float
) -> AsyncGenerator[list[Standing], None]:
    """Journals by their rates, after each interval."""
    async with asker(client) as standings:
        await standings.ask(await matching(client, selection))
        while True:
            await asyncio.sleep(interval_s)
            found = await standings.ask(await client.list_snapshot(selection.selector))
            found.sort(
                key=lambda each: (
                    -each.bytes_per_s,
                    -each.stored.unpersisted_bytes,
                    each.listing.name,
                )
            )
            yield found


def _print(standings: list[Standing], output_format: TopFormat) -> None:
    if output_format is TopFormat.JSON:
        journals = [
            {
                "name": each.listing.name,
                "bytes_per_s": round(each.bytes_per_s, 1),
                **{key: each.json()[key] for key in _JSON_KEYS},
            }
            for each in standings
        ]
        at = SystemClock().now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print_json({"at": at, "journals": journals})
    else:
        print_table(_COLUMNS, _rows(standings))


_JSON_KEYS = ("head", "unpersisted_bytes", "lag_s", "primary", "error")


async def _show_live(measured: AsyncIterator[list[Standing]]) -> None:
    from rich.live import Live  # noqa: PLC0415  slow to import

    with Live(_live_table([], 0), screen=True, auto_refresh=False) as live:
        async for standings in measured:
            live.update(_live_table(standings, live.console.height), refresh=True)


def _live_table(standings: list[Standing], height: int) -> "Table":
    from rich.markup import escape  # noqa: PLC0415  slow to import
    from rich.table import Table  # noqa: PLC0415

    shown = standings[: max(1, height - 6)]
    more = len(standings) - len(shown)
    table = Table(box=None, caption=f"and {more} more" if more > 0 else None)
    for index, title in enumerate(_COLUMNS):
        table.add_column(title, justify="right" if index > 1 else "left", no_wrap=True)
    for row in _rows(standings, len(shown)):
        table.add_row(*map(escape, row))
    if not standings:
        table.add_row("measuring …")
    return table


def _rows(standings: list[Standing], limit: int | None = None) -> list[list[str]]:
    """A row for each journal, and one of all together."""
    rows = []
    for each in standings[:limit]:
        name, primary = each.listing.name, each.primary or NONE
        if each.error is not None:
            rows.append([name, primary, "?", "?", "?", type(each.error).__name__])
            continue
        unpersisted = _size(each.stored.unpersisted_bytes)
        rows.append(
            [name, primary, str(each.head), _size(each.bytes_per_s), unpersisted, lag_text(each)]
        )
    if len(standings) > 1:
        rate = sum(each.bytes_per_s for each in standings)
        unpersisted_bytes = sum(each.stored.unpersisted_bytes for each in standings)
        total = f"({len(standings)} journals)"
        rows.append([total, "", "", _size(rate), _size(unpersisted_bytes), ""])
    return rows


def _size(count: float) -> str:
    """Bytes for people.

    >>> _size(0), _size(1536), _size(3 << 30)
    ('0 B', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _UNIT:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _UNIT
    return f"{count:.1f} TiB"
