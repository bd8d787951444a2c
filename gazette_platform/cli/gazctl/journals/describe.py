"""`gazctl journals describe` and `top`: heads, stored and unpersisted bytes, and brokers of journals."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

import typer

from gazette_platform.cli.gazctl.arguments import (
    Names,
    Selection,
    SelectorOrNames,
    TableOrJson,
    seconds_of,
)
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.output import NONE, print_json, print_table, print_text
from gazette_platform.client import AsyncClient, FragmentListing, JournalListing
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import format_duration

if TYPE_CHECKING:
    from rich.table import Table


# Journals asked about at once.
_CONCURRENT_MAX = 32

# A journal whose brokers do not know it now, as while its store cannot be listed, must not keep those
# of all others from the screen for as long as a reader of it would wait.
_PATIENCE_S = 1.0
_CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What a list of fragments comes to. Bytes that several fragments hold count once."""

    begin: int = 0
    """First byte that there is."""
    end: int = 0
    """Offset after the last byte."""
    stored_bytes: int = 0
    unpersisted_bytes: int = 0
    """Those that no store has: they are in the spools of brokers."""
    frontier: int = 0
    """Every byte below is stored, or is not there."""
    fragments: int = 0
    """In stores."""
    stored_at: int = 0
    """Unix second at which the newest of them was stored; 0: none was."""


def add_up(listings: Sequence[FragmentListing]) -> Stored:
    """Add up fragments, given in the order of their offsets."""
    if not listings:
        return Stored()
    end = stored_end = stored_bytes = all_bytes = count = stored_at = 0
    for listing in listings:
        fragment = listing.fragment
        all_bytes += max(0, fragment.end - max(fragment.begin, end))
        end = max(end, fragment.end)
        if listing.is_persisted:
            count += 1
            stored_at = max(stored_at, fragment.mod_time)
            stored_bytes += max(0, fragment.end - max(fragment.begin, stored_end))
            stored_end = max(stored_end, fragment.end)
    open_begins = (each.fragment.begin for each in listings if not each.is_persisted)
    return Stored(
        begin=listings[0].fragment.begin,
        end=end,
        stored_bytes=stored_bytes,
        unpersisted_bytes=all_bytes - stored_bytes,
        frontier=next(open_begins, end),
        fragments=count,
        stored_at=stored_at,
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """A journal at an instant."""

    listing: JournalListing
    head: int = 0
    """Byte offset that the next append will begin at."""
    stored: Stored = Stored()
    lag_s: float | None = 0.0
    """Seconds since anything was stored, while some of the content is not; None: nothing ever was."""
    bytes_per_s: float = 0.0
    """Appended since the last time that it was asked about."""
    error: GazetteError | None = None
    """Why the rest is not known."""

    @property
    def primary(self) -> str:
        """Its primary, as ``zone#id``; empty: it has none."""
        route = self.listing.route
        return route.members[route.primary].name if route.primary >= 0 else ""

    @property
    def replicas(self) -> tuple[str, ...]:
        """The other brokers that serve it."""
        route = self.listing.route
        return tuple(m.name for index, m in enumerate(route.members) if index != route.primary)

    def json(self) -> dict[str, Any]:
        """As an object for programs: bytes and seconds, null for what is not known."""
        spec, is_known = self.listing.spec, self.error is None
        return {
            "name": spec.name,
            "head": self.head if is_known else None,
            "begin": self.stored.begin if is_known else None,
            "stored_bytes": self.stored.stored_bytes if is_known else None,
            "stored_fragments": self.stored.fragments if is_known else None,
            "unpersisted_bytes": self.stored.unpersisted_bytes if is_known else None,
            "lag_s": None if self.lag_s is None or not is_known else round(self.lag_s, 3),
            "replication": spec.replication,
            "primary": self.primary or None,
            "replicas": list(self.replicas),
            "suspended": spec.suspend_level.name,
            "mod_revision": self.listing.mod_revision,
            "error": None if is_known else str(self.error),
        }


def lag_text(standing: Standing) -> str:
    """The lag of a journal, for people."""
    if standing.lag_s is None:
        return "nothing stored yet"
    return format_duration(int(standing.lag_s) * 1_000_000_000)


@final
class Standings:
    """Asks about journals, again and again.

    Of a journal that it knows, it asks only for fragments from the first one on that was not stored:
    so the first time is slow for a long history, and those that follow are not.
    """

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._last: dict[str, tuple[float, Standing]] = {}

    async def ask(self, journals: Iterable[JournalListing]) -> list[Standing]:
        """How each of them stands. Errors of a journal are in its own. Cancellation: safe."""
        found = await side_by_side(self._ask, journals, at_a_time=_CONCURRENT_MAX)
        names = {each.listing.name for each in found}
        self._last = {name: last for name, last in self._last.items() if name in names}
        return found

    async def _ask(self, listing: JournalListing) -> Standing:
        suspend = listing.spec.suspend
        if suspend is not None and listing.spec.is_fully_suspended:
            return Standing(listing, head=suspend.offset)  # no broker serves it
        before_s, before = self._last.get(listing.name, (0.0, None))
        frontier = before.stored.frontier if before else 0
        try:
            # In this order, so that what is appended meanwhile is not taken for missing.
            head = await self._client.write_head(listing.name)
            stored = add_up(await self._client.fragments(listing.name, next_page_token=frontier))
        except GazetteError as err:
            return Standing(listing, error=err)
        now_s = self._clock.monotonic()
        head = max(head, stored.end)
        if before is not None:
            stored = replace(
                stored,
                frontier=max(stored.frontier, frontier),
                stored_at=max(stored.stored_at, before.stored.stored_at),
            )
        rate = (head - before.head) / (now_s - before_s) if before and now_s > before_s else 0.0
        lag_s: float | None = 0.0
        if stored.unpersisted_bytes:
            lag_s = max(0.0, self._clock.unix_s() - stored.stored_at) if stored.stored_at else None
        found = Standing(listing, head, stored, lag_s, max(0.0, rate))
        self._last[listing.name] = (now_s, found)
        return found


@asynccontextmanager
async def asker(client: AsyncClient) -> AsyncIterator[Standings]:
    """What asks how journals stand, by a client that has less patience for each of them."""
    config = replace(client.config, retry_timeout_s=_PATIENCE_S, call_timeout_s=_CALL_TIMEOUT_S)
    async with AsyncClient(config) as asking:
        yield Standings(asking, SystemClock())


DescribeFormat = Literal["text", "json"]
"""Formats of a description."""


def describe(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: DescribeFormat = "text",
) -> None:
    """Show how journals stand: write head, bytes stored and not yet stored, brokers, settings.

    Unpersisted bytes are in the spools of brokers, and not yet in a fragment store. The lag is the
    time since anything of the journal was stored, while there are such bytes.

    **Examples**

    gazctl journals describe a/journal

    gazctl journals describe -l name:prefix=a/ -o json

    Options:
        -o, --format: text, or json: an object a journal, one a line.
    """
    selection = Selection.of(names, selector)

    async def work(client: AsyncClient) -> None:
        journals = await matching(client, selection)
        async with asker(client) as standings:
            found = await standings.ask(journals)
        for index, each in enumerate(found):
            if output_format == "json":
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


_COLUMNS = ("Journal", "Primary", "Head", "Bytes/s", "Unpersisted", "Lag")
_INTERVAL_MIN_S = 0.1
_UNIT = 1024.0


def top(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    output_format: TableOrJson = "table",
    interval: str = "2s",
    once: bool = False,
) -> None:
    """Show live which journals are appended to, and what is not yet stored, until interrupted.

    Journals with most appends come first. The lag is the time since anything of the journal was
    stored, while some of its content is not; Ctrl-C ends.

    **Examples**

    gazctl journals top

    gazctl journals top flights/ --once -o json

    Options:
        -o, --format: table, or json: an object a measurement, one a line.
        -d, --interval DURATION: Time between measurements.
        --once: Measure for one interval, print it, and end.
    """
    selection = Selection.of(names, selector, is_needed=False)
    interval_s = seconds_of(interval, "--interval")
    if interval_s < _INTERVAL_MIN_S:
        raise ValidationError(f"must be at least 100ms ({interval})", path="--interval")

    async def work(client: AsyncClient) -> None:
        async with aclosing(_measured(client, selection, interval_s)) as measured:
            if output_format == "table" and sys.stdout.isatty() and not once:
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


def _print(standings: list[Standing], output_format: TableOrJson) -> None:
    if output_format == "json":
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


def _live_table(standings: list[Standing], height: int) -> Table:
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
