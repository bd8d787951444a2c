"""What tables hold at an instant: heads of journals first, then who holds the bytes below them.

`ExtentReader` reads what they hold in blocks of whole records: stored fragments past the brokers, tails through them.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from gazette_platform.client.read.extents import Extent, JournalSnapshot, snapshot_of
from gazette_platform.client.read.store_reader import stream_of
from gazette_platform.client.read_ahead import FragmentStream, ReadAhead
from gazette_platform.errors import (
    DataError,
    GazetteError,
    LakeError,
    ObjectNotFound,
    StoreError,
    ValidationError,
)
from gazette_platform.lake.spec.layout import (
    Layout,
    PartitionColumn,
    directory_of,
    home_directory,
    is_aside,
    partition_columns,
)
from gazette_platform.message.framing import FRAME_BYTES_MAX
from gazette_platform.ops.tasks import Aclosing, side_by_side
from gazette_platform.protocol import Fragment, JournalSpec, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from gazette_platform.client import AsyncClient, FragmentListing, JournalListing, Reader
    from gazette_platform.lake.reading.raw_rows import RowParser
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec


Values = tuple[str | None, ...]

_JOURNALS_AT_A_TIME = 16
# Of signed URLs: a query that runs longer reads the rest through brokers.
_URL_TTL_S = 3600.0


@final
@dataclass(frozen=True, slots=True, repr=False)
class TableExtent(Extent):
    """An extent of one of the table's journals, and its Hive partition."""

    values: Values = ()
    """Of the partition columns; None: not known before the fragment is persisted."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A table: what is in it, and from where it is read."""

    spec: TableSpec
    columns: tuple[PartitionColumn, ...]
    """The partition columns."""
    journals: tuple[JournalSnapshot, ...]
    extents: tuple[TableExtent, ...]
    """Of all journals."""
    taken_at: datetime
    """Aware, UTC."""
    layouts: tuple[str, ...] = ()
    """How directories of the journals' fragments are built; of more than one, partition columns are NULL where
    a directory lacks them."""


async def take_snapshot(client: AsyncClient, spec: TableSpec, now: datetime) -> TableSnapshot:
    """The table at this instant.

    Args:
        now: the time for path postfixes of what is not persisted yet.

    Raises: ValidationError: no journal matches, or the spec does not suit their paths. LakeError: a path
        has a key twice, or a value that is not of its column's type. TransportError. Cancellation: safe.
    """
    matched = await client.list(spec.label_selector)
    if not matched:
        raise ValidationError(
            f"{spec.name}: no journal matches the selector {spec.selector!r} (`gazctl journals list` "
            "shows which there are)"
        )
    # Of the others nothing is stored, so a table of such alone is empty.
    found = [journal for journal in matched if not journal.spec.is_fully_suspended]
    heads = await client.write_heads(found)

    async def listed(journal: JournalListing) -> Sequence[FragmentListing]:
        return await client.fragments(journal.name, ttl_s=_URL_TTL_S)

    fragments = await side_by_side(listed, found, at_a_time=_JOURNALS_AT_A_TIME)
    places = _Places(spec, matched, fragments, now)
    snapshots = [
        snapshot_of(journal.name, of_journal, heads[journal.name], is_aside=is_aside)
        for journal, of_journal in zip(found, fragments, strict=True)
    ]
    return TableSnapshot(
        spec=spec,
        columns=places.columns,
        journals=tuple(snapshots),
        extents=tuple(
            extent
            for journal, snapshot in zip(found, snapshots, strict=True)
            for extent in places.extents_of(journal.spec, snapshot)
        ),
        taken_at=now,
        layouts=places.layouts,
    )


@final
class _Places:
    """Partition values of the fragments of a table, by their directories.

    A table has the partition columns of all of its directories, in the order in which they come up, and NULL
    in those that a directory lacks: after a change of the path postfix, say, or where one journal has another.
    """

    def __init__(
        self,
        spec: TableSpec,
        journals: Sequence[JournalListing],
        fragments: Sequence[Sequence[FragmentListing]],
        now: datetime,
    ) -> None:
        self._now = now
        self._spec = spec
        stored = (f.fragment for of_one in fragments for f in of_one if f.is_persisted)
        directories = dict.fromkeys(home_directory(f) for f in stored)
        found = dict.fromkeys(_layout(spec, directory) for directory in directories)
        for directory in dict.fromkeys(self._live_directory(each.spec) for each in journals):
            # One that continues in a way that only brokers know counts as one that exists.
            live = _layout(spec, directory)
            if not any(str(layout).startswith(f"{live}/") for layout in found):
                found.setdefault(live)
        self.layouts = tuple(map(str, found))
        keys = dict.fromkeys(key for layout in found for key in layout.keys)
        self.columns = partition_columns(spec, Layout(tuple(f"{{{key}}}" for key in keys)))
        self._known: dict[str, Values] = {}

    def extents_of(self, spec: JournalSpec, snapshot: JournalSnapshot) -> Iterator[TableExtent]:
        """Yield the extents of a journal, with their values.

        What is not stored has those of a fragment that is begun now; None where only the broker will know. A fragment gets its
        path when it is persisted, from the time of its first append. So near the end of an hour what is in the tail as of this
        hour may be persisted as of the last.

        Raises: LakeError: a value in a fragment's directory is not of its column's type.
        """
        live = self._live_directory(spec)
        for each in snapshot.extents:
            directory = live if each.listing is None else home_directory(each.listing.fragment)
            yield TableExtent(
                each.journal, each.begin, each.end, each.listing, self._values(directory)
            )

    def _values(self, directory: str) -> Values:
        values = self._known.get(directory)
        if values is None:
            values = self._known[directory] = self._values_in(directory)
        return values

    def _values_in(self, directory: str) -> Values:
        texts = dict(segment.split("=", 1) for segment in directory.split("/") if "=" in segment)
        try:
            return tuple(c.value(texts[c.key]) if c.key in texts else None for c in self.columns)
        except LakeError as err:
            raise LakeError(f"{self._spec.name}: {directory}: {err}") from err

    def _live_directory(self, spec: JournalSpec) -> str:
        if not spec.fragment.path_postfix_template:
            return spec.name
        from gazette_platform.protocol.path_postfix import PathPostfixTemplate  # noqa: PLC0415  slow to import

        try:
            postfix = PathPostfixTemplate(spec.fragment.path_postfix_template).evaluate(
                Fragment(spec.name, 0, 0), self._now, LabelSet(), spec
            )
            return directory_of(Fragment(spec.name, 0, 0, path_postfix=postfix))
        except GazetteError:  # it needs registers, which only brokers know
            return spec.name


def _layout(spec: TableSpec, directory: str) -> Layout:
    try:
        return Layout.of_directory(directory)
    except LakeError as err:
        raise LakeError(f"{spec.name}: {err}") from err


_log = logging.getLogger(__name__)

# Of content that is parsed at a time: below that parsers are slower, above it memory grows for nothing.
_BLOCK_BYTES: Final = 4 << 20


@final
@dataclass(slots=True)
class ScanCounts:
    """What a query has read; added to as it goes on."""

    extents: int = 0
    """Pieces of journals that had to be read, of all that were planned."""
    extents_planned: int = 0
    fragments_opened: int = 0
    """Persisted fragments that were fetched from their store."""
    bytes_stored: int = 0
    """Content that came from stores."""
    bytes_served: int = 0
    """Content that came through brokers: the live tail, and fragments of stores out of reach."""
    bytes_planned: int = 0
    """Content of the extents that are read."""
    bytes_missing: int = 0
    """Content that brokers did not have any more when it was read."""


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records of one extent."""

    extent: TableExtent
    begin: int
    """Byte offset of the first one."""
    content: bytes
    """Ends with a newline, added if the extent's end lacked it."""


@final
class ExtentReader(Aclosing):
    """Reads extents one after the other; the next ones are fetched ahead.

    All methods are called on the client's event loop.
    """

    def __init__(
        self,
        client: AsyncClient,
        pool: ReadAhead,
        extents: Sequence[TableExtent],
        *,
        roots: StoreRoots,
        parser: RowParser,
        counts: ScanCounts,
    ) -> None:
        self._client = client
        self._pool = pool
        self._roots = roots
        self._parser = parser
        self._counts = counts
        self._waiting = deque(extents)
        self._open: deque[tuple[TableExtent, FragmentStream | None]] = deque()
        self._reader: Reader | None = None
        self._at = -1
        self._held = b""

    async def next_block(self) -> list[Piece]:
        """Pieces of up to some megabytes, of one extent or several; none at the end.

        Raises: GazetteError: content cannot be had, or is damaged. Cancellation: the read has to end.
        """
        pieces: list[Piece] = []
        size = 0
        while size < _BLOCK_BYTES:
            self._fill()
            if not self._open:
                break
            piece = await self._next_piece(_BLOCK_BYTES - size)
            if piece is not None:
                pieces.append(piece)
                size += len(piece.content)
        return pieces

    async def aclose(self) -> None:
        """End all fetching."""
        self._waiting.clear()
        for _, stream in self._open:
            if stream is not None:
                stream.close()
        self._open.clear()
        await self._close_reader()

    def _fill(self) -> None:
        while self._waiting and len(self._open) < self._pool.streams_max:
            extent = self._waiting.popleft()
            self._open.append((extent, self._stream(extent, is_first=not self._open)))

    def _stream(self, extent: TableExtent, *, is_first: bool) -> FragmentStream | None:
        """Begin to fetch a stored fragment; None if brokers have to be asked."""
        if extent.listing is None:
            return None
        fragment, url = extent.listing.fragment, extent.listing.signed_url
        try:
            if fragment.backing_store.startswith("file:"):
                location = self._roots.location(fragment.backing_store, directory_of(fragment))
                # Locations hold paths as they are: brokers do not percent-encode them.
                path = Path(location.removeprefix("file://")) / fragment.content_name
                return FragmentStream(
                    self._pool,
                    fragment,
                    str(path),
                    path,
                    offset=extent.begin,
                    is_first=is_first,
                )
            if url:
                return stream_of(
                    self._pool,
                    fragment,
                    url,
                    offset=extent.begin,
                    file_root=None,
                    is_first=is_first,
                )
        except (LakeError, StoreError) as err:
            _log.debug("%s is read through brokers: %s", fragment.content_path, err)
        return None

    async def _next_piece(self, wanted: int) -> Piece | None:
        """Whole records of the first extent; None when it has ended without more."""
        extent, _ = self._open[0]
        if self._at < 0:
            self._at = extent.begin
            self._counts.fragments_opened += self._open[0][1] is not None
        begin, held, size = self._at - len(self._held), [self._held], len(self._held)
        while True:
            content = await self._content()
            if content is None:
                rest = b"".join(held)
                await self._end_extent()
                if not rest:
                    return None
                return Piece(extent, begin, rest if rest.endswith(b"\n") else rest + b"\n")
            start = self._at - len(content)
            if start != begin + size:  # what lies between was pruned since it was listed
                if size:
                    raise DataError(
                        f"{extent.journal}: content after offset {begin} was pruned while it was read: "
                        "run the query again"
                    )
                begin = start
            held.append(bytes(content))
            size += len(content)
            if size < wanted and size < extent.end - begin:
                continue
            # Most often a record ends in the last content, and all is copied once.
            last = held[-1]
            if cut := self._parser.cut(last):
                self._held = last[cut:]
                return Piece(extent, begin, b"".join([*held[:-1], memoryview(last)[:cut]]))
            whole = b"".join(held)
            cut = self._parser.cut(whole)
            if cut:
                self._held = whole[cut:]
                return Piece(extent, begin, whole[:cut])
            if size > FRAME_BYTES_MAX + _BLOCK_BYTES:
                raise DataError(
                    f"{extent.journal}: no record ends within {size} bytes after offset {begin} (is "
                    "the table's `format` that of its journals?)"
                )
            # A record longer than a block is looked at again when there is twice as much of it: to join all at each
            # piece would take the square of its length.
            held, wanted = [whole], min(2 * size, FRAME_BYTES_MAX + _BLOCK_BYTES + 1)

    async def _content(self) -> bytes | memoryview | None:
        """The next content of the first extent, cut at its end."""
        extent, stream = self._open[0]
        if self._at >= extent.end:
            return None
        if stream is not None:
            try:
                piece = await stream.next()
            except (ObjectNotFound, StoreError) as err:
                # Pruned since it was listed, or a store that only brokers reach: they may have it.
                _log.debug("%s is read through brokers: %s", stream.name, err)
                stream.close()
                self._open[0] = (extent, None)
                return await self._served(extent)
            if piece is None:
                return None
            piece = piece[: extent.end - self._at]
            self._counts.bytes_stored += len(piece)
            self._at += len(piece)
            if self._at == stream.fragment.end:
                await stream.next()  # which checks the digest of all
            return piece
        return await self._served(extent)

    async def _served(self, extent: TableExtent) -> bytes | memoryview | None:
        if self._reader is None:
            self._reader = self._client.read(
                extent.journal, self._at, end_offset=extent.end, on_jump="continue"
            )
        piece = await anext(self._reader, None)
        if piece is None:
            self._counts.bytes_missing += extent.end - self._at
            return None
        begin = self._reader.offset - len(piece)
        self._counts.bytes_missing += begin - self._at
        self._counts.bytes_served += len(piece)
        self._at = self._reader.offset
        return piece

    async def _end_extent(self) -> None:
        _, stream = self._open.popleft()
        if stream is not None:
            stream.close()
        await self._close_reader()
        self._at, self._held = -1, b""
        if self._open and self._open[0][1] is not None:
            self._open[0][1].promote()

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.aclose()
