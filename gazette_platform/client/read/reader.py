"""Reads of a journal: one seamless stream of content over many RPCs and fragments."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, final

from gazette_platform.client.journals import fragment_page, list_journals, savepoint_place
from gazette_platform.client.read.store_reader import URL_TTL_S, DirectRead, stream_of
from gazette_platform.client.results import FragmentListing
from gazette_platform.client.wire import decoded
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    DataError,
    GazetteError,
    JournalNotFound,
    NotJournalBroker,
    OffsetJump,
    OffsetNotYetAvailable,
    StoreError,
    TransportError,
    ValidationError,
    status_error,
)
from gazette_platform.ops.tasks import Aclosing
from gazette_platform.protocol import (
    Fragment,
    LabelSelector,
    LabelSet,
    Status,
    require_same,
    strip_meta,
    validate_read_response,
)
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.content import decode_read_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import RpcFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.client.read_ahead import FragmentStream
    from gazette_platform.client.transport import Transport
    from gazette_platform.client.wire import Wire
    from gazette_platform.serving.interface import ClientCall

_log = logging.getLogger(__name__)
# A journal that was just applied is not known to every broker at once.
_NOT_FOUND_ATTEMPTS = 3
# After so many fragments in a row that their store did not give, brokers read for us.
_STORE_FAILURES_MAX = 3
# Fragments that are planned ahead, with one call.
_PLAN_FRAGMENTS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """How to read."""

    block: bool = False
    """Wait for content at the write head; else the stream ends there."""
    end_offset: int = 0
    """Offset to end at; 0 is none."""
    metadata_only: bool = False
    """Learn offset, write head and fragment, and read no content."""
    begin_mod_time: int = 0
    """Unix seconds; persisted fragments older than this are skipped."""
    direct: bool = False
    """Fetch persisted fragments from their store, past the brokers, where it can be reached."""
    on_jump: Literal["raise", "continue"] = "raise"
    """What to do when content at the offset is gone: raise `OffsetJump`, or read on after it."""
    min_revision: int = 0
    """Revision of etcd that the broker must know first, as `apply` returned it; 0: any."""
    from_savepoint: str = ""
    """Name of a savepoint to take the first offset from; looked up when the read begins."""
    created: int = 0
    """Which journal the offset belongs to (`protocol.offsets`). Before and behind the begin of each
    stream of the read it is looked whether it is the journal still, and `JournalReplaced` ends the read if not; 0: not known."""

    def __post_init__(self) -> None:
        """Raises: ValidationError: options that make no sense."""
        if self.end_offset < 0:
            raise ValidationError(f"must not be negative ({self.end_offset})", path="end_offset")
        if self.on_jump not in ("raise", "continue"):
            raise ValidationError(f"must be raise or continue ({self.on_jump})", path="on_jump")


def _check_end(offset: int, options: ReadOptions) -> None:
    """Raises: ValidationError: the read would end before it begins."""
    if options.end_offset and options.end_offset < offset:
        raise ValidationError(
            f"end_offset {options.end_offset} is before offset {offset}", path="end_offset"
        )


@final
class Reader(Aclosing):
    """Content of a journal from an offset on; an async iterator of `memoryview` pieces.

    Broken streams are resumed where they stopped, by another broker if need be. Iteration ends at
    the write head, unless blocking, or at `end_offset`. Each byte comes once and in order; pieces
    have any size and do not respect records.

    After `OffsetJump` the reader may be used on: it continues at the greater offset.

    Attributes:
        offset: of the journal, of the next byte to come; -1 until the head is known.
        write_head: end of the journal, by the latest answer.
        fragment: the one being read, if any.
        fragment_url: where it is stored, if it is.
    """

    def __init__(
        self, transport: Transport, journal: str, offset: int, options: ReadOptions
    ) -> None:
        if offset < -1:
            raise ValidationError(f"must be -1 or greater ({offset})", path="offset")
        _check_end(offset, options)
        if options.from_savepoint and offset != 0:
            raise ValidationError(
                f"give it, or an offset ({offset}), and not both", path="from_savepoint"
            )
        self.journal = journal
        self.offset = offset
        self.write_head = 0
        self.fragment: Fragment | None = None
        self.fragment_url = ""
        self._transport = transport
        self._options = options
        self._from_savepoint = options.from_savepoint
        self._created = options.created
        self._told_at = self._looked_at = (
            0  # revisions of etcd: of what is read, and of the last look
        )
        self._is_direct = options.direct
        self._asks_others = False
        self._patience = transport.patience()
        self._not_found = 0
        self._call: ClientCall | None = None
        self._wire: Wire | None = None
        self._metadata: pb.ReadResponse | None = None
        self._store: DirectRead | None = None
        self._store_failures = 0
        self._has_read_direct = False
        self._served_to = 0  # brokers read up to here, because the store has failed
        self._is_done = False
        self._is_closed = False
        self._rest: memoryview | bytes = b""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> memoryview | bytes:
        """The next content; see the class. Cancellation: safe; no content is lost."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        piece = await self._next()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes as soon as there are any; all until the end if negative.

        Returns: b"" at the end. `offset` is then ahead of what was returned by what is buffered.
        """
        if size < 0:
            return b"".join([bytes(piece) async for piece in self])
        if not self._rest:
            self._rest = await self._next() or b""
        piece, self._rest = self._rest[:size], self._rest[size:]
        return bytes(piece)

    def seek(self, offset: int) -> None:
        """Go to another offset. What `read` has buffered is used on, if it holds it.

        Else the read restarts there; so it does after it has ended, but not after `aclose`.

        Raises: ValidationError: the offset is negative, or behind `end_offset`.
        """
        end = self._options.end_offset
        if offset < 0 or (end and offset > end):
            bounds = f"0 and end_offset {end}" if end else "0 and the head"
            raise ValidationError(f"must be between {bounds} ({offset})", path="offset")
        skipped = offset - (self.offset - len(self._rest))
        if self._rest and 0 <= skipped <= len(self._rest):
            self._rest = self._rest[skipped:]
            return
        self._rest = b""
        self._drop()
        self._close_store()
        self._metadata, self._served_to, self._from_savepoint = None, 0, ""
        self.offset = offset
        self._is_done = self._is_closed or bool(end and offset == end)

    @property
    def buffered_bytes(self) -> int:
        """Bytes before `offset` that `read` has not returned yet."""
        return len(self._rest)

    def end(self) -> None:
        """End the read. If another task waits in it, that one sees the end of the content."""
        self._is_done = self._is_closed = True
        self._drop()
        self._close_store()

    async def aclose(self) -> None:
        """As `end`."""
        self.end()

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    async def _next(self) -> memoryview | bytes | None:
        """The next piece, or None at the end, through as many RPCs as it takes."""
        while not self._is_done:
            try:
                if self._store is not None:
                    piece: memoryview | bytes | None = await self._next_stored()
                else:
                    piece = await self._next_served()
            except (JournalNotFound, TransportError) as err:
                await self._retry_or_raise(err)
            except GazetteError as err:
                if not err.retriable:
                    raise
                await self._retry_or_raise(err)
            else:
                if piece is not None:
                    self._transport.counts.read_bytes[self.journal] += len(piece)
                    return piece
        return None

    async def _retry_or_raise(self, err: GazetteError) -> None:
        self._drop()
        if isinstance(err, JournalNotFound):
            self._not_found += 1
            if self._not_found > _NOT_FOUND_ATTEMPTS:
                raise err
        elif isinstance(err, CallFailed) and not isinstance(err, CallUnanswered):
            raise err
        await self._patience.wait(err)

    async def _next_served(self) -> memoryview | None:
        """The next piece from a broker; None when a message had no content, or the RPC ended."""
        await self._begin()
        call, wire = self._call, self._wire
        if call is None or wire is None:
            return None  # ended meanwhile
        is_whole = False
        try:
            raw = await call.next()
            is_whole = True
        except RpcFailed as err:
            if self._is_done:
                return None  # `aclose` has ended the call
            raise self._transport.failed(
                err, wire, self.journal, f"read of {self.journal}"
            ) from err
        finally:
            if not is_whole and self._call is call:
                # Also when cancelled, which ends the RPC: the next use starts another.
                self._drop()
        if raw is None:
            await self._ended()
            return None
        content_of = decode_read_content(raw)
        if content_of is None:
            response = decoded(pb.ReadResponse, raw, validate_read_response)
            if not response.content:
                self._told(response)
                return None
            content_of = response.offset, memoryview(response.content)
        offset, content = content_of
        if offset != self.offset:
            self._move(offset)
        self._patience.progressed()
        self.offset = offset + len(content)
        return content

    async def _begin(self) -> None:
        """Have a stream, which is one of the journal that is to be read."""
        if self._call is None:
            await self._start()
        elif self._created and self._told_at > self._looked_at:
            await self._require_same(self._told_at)

    async def _start(self) -> None:
        if self._from_savepoint:
            name = self._from_savepoint
            place = await savepoint_place(self._transport, name, self.journal)
            _check_end(place.offset, self._options)
            self.offset, self._created = place.offset, place.created or self._created
            self._from_savepoint = ""
        if self._created:
            await self._require_same()
        wire = self._transport.wire(self.journal)
        # A read that waits at the head is silent, so a connection is the only sign that it works.
        if self._options.block and await wire.connected():
            self._patience.connected()
        if self._is_done:
            return
        options = self._options
        end_offset, is_direct = options.end_offset, self._is_direct
        if is_direct and self.offset < self._served_to:
            is_direct = False
            end_offset = min(self._served_to, end_offset or self._served_to)
        request = pb.ReadRequest(
            journal=self.journal,
            offset=self.offset,
            # First we ask where the head is. If a tail breaks before it has seen content, it then
            # goes on there, and not at a later head, which others have moved meanwhile.
            block=options.block and self.offset >= 0,
            do_not_proxy=is_direct and not self._asks_others,
            metadata_only=options.metadata_only,
            end_offset=end_offset,
            begin_mod_time=options.begin_mod_time,
            min_etcd_revision=self._transport.min_revision(options.min_revision),
        )
        self._metadata, self._told_at = None, 0
        self._wire = wire
        wire.calls += 1
        metadata = self._transport.auth.metadata(Capability.READ, self.journal)
        self._call = wire.read(request.SerializeToString(), metadata)

    async def _require_same(self, revision: int = 0) -> None:
        """Look which journal it is.

        Args:
            revision: of etcd, that the answering brokers knew: a journal may be made again between a
                look and what follows, and between that and a look that knows less.

        Raises: JournalReplaced. TransportError: the broker that was asked lags behind.
        """
        selector = LabelSelector(include=LabelSet.of(name=strip_meta(self.journal)))
        listed = await list_journals(self._transport, selector)
        for found in listed:
            require_same(
                self.journal,
                self._created,
                found.created,
                offset=self.offset,
                advice="begin at an offset of this one, such as 0",
            )
        self._looked_at = listed.header.etcd.revision
        if self._looked_at < revision:
            raise TransportError(f"read of {self.journal}: the broker that was asked lags behind")

    def _drop(self) -> None:
        """Forget the RPC, and end it if it has not."""
        call, self._call = self._call, None
        wire, self._wire = self._wire, None
        if call is not None:
            call.cancel()
        if wire is not None:
            wire.calls -= 1

    def _told(self, response: pb.ReadResponse) -> None:
        """Take in a metadata message."""
        if response.HasField("header"):
            self._transport.learn(self.journal, response.header)
            self._told_at = response.header.etcd.revision
        if response.status != pb.OK:
            self._refused(response)
            return
        self._not_found = 0
        self._asks_others = False
        self._metadata = response
        self.write_head = response.write_head
        self.fragment = (
            Fragment.from_pb(response.fragment) if response.HasField("fragment") else None
        )
        self.fragment_url = response.fragment_url
        if response.offset != self.offset:
            self._move(response.offset)

    def _refused(self, response: pb.ReadResponse) -> None:
        error = status_error(Status.from_wire(response.status).name, journal=self.journal)
        self._drop()
        # A replica that does not know enough yet has to ask another one that does.
        self._asks_others = isinstance(error, NotJournalBroker)
        if not isinstance(error, OffsetNotYetAvailable):
            raise error
        self.write_head = response.write_head
        if self.offset < 0:
            self.offset = response.offset
        if not self._options.block:
            self._is_done = True

    def _move(self, offset: int) -> None:
        """Go to the offset that a broker answers with.

        Raises: DataError: it goes back. OffsetJump: it goes ahead, and the head was not asked for.
        """
        at, self.offset = self.offset, offset
        if at < 0:
            return
        if offset < at:
            self.offset = at
            self._drop()
            raise DataError(
                f"{self.journal}: invalid ReadResponse offset ({offset}; expected >= {at})"
            )
        if self._options.on_jump == "raise":
            raise OffsetJump(self.journal, at, offset)
        if self._options.begin_mod_time:
            # Usually that was asked for; it looks the same as a prune.
            _log.info("%s: content from offset %d to %d is skipped", self.journal, at, offset)
        else:
            _log.warning("%s: content from offset %d to %d is gone", self.journal, at, offset)

    async def _ended(self) -> None:
        """The RPC ended in order: at our end, at a fragment to fetch, or because its broker ended."""
        self._drop()
        metadata, options = self._metadata, self._options
        if (options.metadata_only and metadata is not None) or (
            options.end_offset and self.offset >= options.end_offset
        ):
            self._is_done = True
        elif self._served_to and self.offset >= self._served_to:
            self._served_to = 0  # from here on the store is asked again
        elif metadata is not None and self._is_direct and metadata.fragment_url and self.fragment:
            self._metadata = None
            self._read_stored(FragmentListing(self.fragment, metadata.fragment_url))
        else:
            await self._patience.wait(
                TransportError(f"read of {self.journal}: the broker ended the stream")
            )

    def _read_stored(self, first: FragmentListing) -> None:
        options = self._options
        try:
            self._store = DirectRead(
                self._transport.read_ahead,
                first,
                offset=self.offset,
                end_offset=options.end_offset,
                open_stream=self._open_stream,
                list_from=None if options.begin_mod_time else self._list_from,
            )
        except StoreError as err:  # a URL that leads nowhere
            _log.warning("reading %s through brokers: %s", self.journal, err)
            self._is_direct = False

    def _open_stream(self, listing: FragmentListing, offset: int, is_first: bool) -> FragmentStream:  # noqa: FBT001  as it is called back
        self._transport.counts.open_fragment(listing.fragment, offset)
        return stream_of(
            self._transport.read_ahead,
            listing.fragment,
            listing.signed_url,
            offset=offset,
            file_root=self._transport.config.file_root,
            is_first=is_first,
        )

    async def _list_from(self, offset: int) -> Sequence[FragmentListing]:
        page = await fragment_page(
            self._transport,
            self.journal,
            next_page_token=offset,
            page_limit=_PLAN_FRAGMENTS,
            ttl_s=URL_TTL_S,
        )
        if self._created and page.header.etcd.revision > self._looked_at:
            await self._require_same(page.header.etcd.revision)
        return page.fragments

    async def _next_stored(self) -> bytes | None:
        """The next piece of stored fragments."""
        store = self._store
        assert store is not None  # checked by the caller
        end = self._options.end_offset
        try:
            piece = await store.next()
        except StoreError as err:
            self._store_failed(store, err)
            return None
        except GazetteError:
            self._close_store()
            raise
        if self._store is not store:
            return None  # ended meanwhile
        if piece is None:
            self._close_store()
            if end and self.offset >= end:
                self._is_done = True
            return None
        self._has_read_direct = True
        if store.whole:
            self._store_failures = 0
        self._patience.progressed()
        current = store.current
        self.fragment, self.fragment_url = current.fragment, current.signed_url
        if end and self.offset + len(piece) >= end:
            piece = piece[: end - self.offset]
            self._is_done = True
            self._close_store()
        self.offset += len(piece)
        self._transport.counts.read_fragment(current.fragment, len(piece))
        # Fragments ahead are requested again, and may end after the head that came with the first.
        self.write_head = max(self.write_head, self.offset)
        return piece

    def _store_failed(self, store: DirectRead, err: StoreError) -> None:
        """Have brokers read the fragment instead, or all of them, if the store is not for us."""
        self._store_failures += 1
        self._served_to = store.current.fragment.end
        self._close_store()
        if not self._has_read_direct or self._store_failures >= _STORE_FAILURES_MAX:
            self._is_direct = False
        which = f"up to {self._served_to} " if self._is_direct else ""
        # A store on the disk of brokers may not be mounted here.
        is_expected = self._transport.config.file_root is None and store.current.is_file
        level = logging.INFO if is_expected else logging.WARNING
        _log.log(level, "reading %s %sthrough brokers: %s", self.journal, which, err)
