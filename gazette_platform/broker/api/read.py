"""Serves Read: what the index knows, then the bytes, fragment after fragment."""

from __future__ import annotations

import asyncio
import contextlib
import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Self, final

from gazette_platform.broker.api.routing import (
    check_fence,
    decode,
    find_readable,
    wait_known,
    wait_synced,
)
from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import DataError, GazetteError, ObjectNotFound, StoreError
from gazette_platform.fragment.index import QueryResult
from gazette_platform.ops.tasks import run_in
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    Status,
    validate_read_request,
)
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.protocol.content import encode_read_content
from gazette_platform.protocol.fragments import FragmentCheck
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, NotNow, RpcFailed
from gazette_platform.stores import version_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.broker.api.routing import Proxy
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolution, Resolver
    from gazette_platform.broker.spool.comparison import Compared
    from gazette_platform.fragment.index import LocalFile
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.interface import Send


# Read on the event loop up to this size: it comes from the page cache, and a thread costs more.
_INLINE_BYTES_MAX = 64 << 10

# Bytes of content in a message: a hop to a thread and a pass through gRPC cost as much as a few hundred
# KiB each. With what is around it, a piece fits in one frame of our HTTP/2, and two in the window of our client,
# which then receives them without copies. A reader that has stopped holds its piece twice, here and in gRPC. So
# once all readers together hold more than `_SENDING_BYTES_MAX`, further ones get small pieces; a thousand of them
# hold 128 MiB.
_PIECE_BYTES = (1 << 20) - 4096
_SMALL_PIECE_BYTES = 128 << 10
_SENDING_BYTES_MAX = 64 << 20

_SIGNATURE_TTL_S = 60.0


@final
class ReadApi:
    """Read RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica], proxy: Proxy) -> None:
        self._context = context
        self._resolver = resolver
        self._proxy = proxy
        self._sending_bytes = 0

    async def read(self, raw: bytes, send: Send, claims: Claims = ALL_CLAIMS) -> None:
        """Serve one Read.

        Sends ReadResponses: for each fragment one of metadata, then its content.

        Raises: RpcFailed: the request is malformed, or content cannot be read.
        Cancellation: safe.
        """
        request = decode(pb.ReadRequest, raw, validate_read_request)
        found = await find_readable(
            self._resolver, request, claims, min_revision=request.min_etcd_revision
        )
        resolution = found.resolution
        if found.is_remote:
            await self._proxy.read(request, resolution.header, send)
        elif found.replica is not None:
            await self._serve(request, resolution, found.replica, send)
        else:
            response = pb.ReadResponse(status=found.status.value)  # type: ignore[arg-type]
            await send(resolution.header_field + response.SerializeToString())

    async def compare(
        self, journal: str, compared: Compared, end: int, read: Callable[[int, int], bytes]
    ) -> None:
        """Compare what is served of a journal with a copy of it, from `compared.at` up to `end`.

        Args:
            compared: changed by this: up to where both are the same, and whether they differ there.
            read: reads bytes [at, to) of the copy, in a thread.

        Raises: RpcFailed: content cannot be read.
        Cancellation: safe; `compared` says how far it came.
        """

        async def take(raw: bytes) -> None:
            response = pb.ReadResponse.FromString(raw)
            content = response.content
            if not content:
                return
            if response.offset != compared.at:
                raise _Done  # the journal goes on after a gap
            to = compared.at + len(content)
            loop = asyncio.get_running_loop()
            copy = await loop.run_in_executor(self._context.readers, read, compared.at, to)
            same = _common_length(content, copy)
            compared.at += same
            if same < len(content):
                compared.is_different = True
                raise _Done

        request = pb.ReadRequest(journal=journal, offset=compared.at, end_offset=end)
        with contextlib.suppress(_Done):
            await self.read(request.SerializeToString(), take)

    async def _query(
        self, request: pb.ReadRequest, replica: Replica, offset: int
    ) -> QueryResult | Resolution | None:
        """Find out how a read goes on at `offset`.

        Returns: what the index has there; or the primary, if it may know more than we do; None: the
            replica closed.
        """
        index, block = replica.index, request.block
        is_known = False
        while True:
            result: QueryResult | None = None
            skips: int | None = None
            if offset >= 0:
                result = index.lookup(offset, begin_mod_time=request.begin_mod_time)
                if result.skips is not None and not replica.gaps.may_skip(result.skips):
                    skips = offset = result.skips
                elif result.status is Status.OK:
                    return result
                else:
                    offset = result.offset  # what was skipped stays skipped
            if index.is_closed or (block and replica.is_closed):
                # Others have the content now. Clients that wait for more should find the new primary
                # themselves rather than be forwarded for ever.
                return None
            better = self._proxy.better_placed(replica, offset)
            if skips is not None and await self._stays_here(request, replica, better, skips):
                continue
            if better is not None:
                return better
            if not is_known and (offset < 0 or not block):
                timeout_s = self._context.config.append_wait_s
                is_known = await wait_known(replica, timeout_s=timeout_s, offset=offset)
                continue
            if offset < 0:
                offset = replica.head
                if block:
                    continue
                return QueryResult(Status.OFFSET_NOT_YET_AVAILABLE, offset, offset)
            if not await self._wait_content(replica, offset, block=block):
                # One that closed while we waited does not know where the journal ends.
                return None if block or index.is_closed else result

    async def _stays_here(
        self, request: pb.ReadRequest, replica: Replica, primary: Resolution | None, offset: int
    ) -> bool:
        """Find out whether content that is missing at `offset` is gone for good.

        Another primary is asked where a read at `offset` continues; Gazette's brokers answer that, too.
        Otherwise each read of a beginning that was pruned would be forwarded, or refused.

        Args:
            primary: None: we are the primary.

        Returns: whether to look again here; False: the read goes on at the primary.
        Raises: RpcFailed: UNAVAILABLE: it is still open, or the primary did not answer, or the primary
            has the content and the client does not want to be forwarded.
        Cancellation: safe.
        """
        gaps = replica.gaps
        if primary is None:
            await gaps.wait_skip(offset)
            return True
        question = pb.ReadRequest(journal=replica.name, offset=offset, metadata_only=True)

        async def take(raw: bytes) -> None:
            response = pb.ReadResponse.FromString(raw)
            if response.status == pb.OK and response.offset > offset:
                gaps.on_gone(offset, response.offset)

        try:
            async with asyncio.timeout(gaps.wait_s):
                await self._proxy.read(question, primary.header, take)
        except TimeoutError as err:
            raise gaps.still_open(offset) from err
        if gaps.may_skip(offset):
            return True
        if request.do_not_proxy and not await gaps.wait_listed(offset):
            raise gaps.still_open(offset)
        return request.do_not_proxy

    @staticmethod
    async def _wait_content(replica: Replica, offset: int, *, block: bool) -> bool:
        """Wait for content at `offset`. Returns: whether to look again; False: the read ends."""
        if block:
            return await replica.index.wait_change()
        if offset < replica.head and await replica.wait_gap(offset):
            return True
        check_fence(replica)
        return False

    async def _serve(
        self, request: pb.ReadRequest, resolution: Resolution, replica: Replica, send: Send
    ) -> None:
        await wait_synced(replica)
        offset = request.offset
        header_field = resolution.header_field  # of the first response only
        while True:
            result = await self._query(request, replica, offset)
            if result is None:  # the replica has closed: no error, since the client looks elsewhere
                return None
            if not isinstance(result, QueryResult):
                return await self._go_on(request, offset, result, header_field, send)
            file = result.file
            if file is not None:
                file.hold()
            try:
                fragment = await self._announced(replica, result)
                url = await self._sign(replica, fragment)
                # A head goes along with content, and ours may be beyond the journal's real end.
                check_fence(replica)
                response = self._metadata(replica, result, fragment, url)
                await send(header_field + response.SerializeToString())
                header_field = b""
                offset = result.offset
                if fragment is None or self._ends_at_metadata(request, offset, file):
                    return None
                end = min(fragment.end, request.end_offset or fragment.end)
                if file is not None:
                    await self._send_local(file, fragment, offset, end, send)
                    # What was sent leaves in this turn of the loop. To look for more first would delay it.
                    await asyncio.sleep(0)
                else:
                    await self._send_stored(replica, fragment, offset, end, send)
                offset = end
            finally:
                if file is not None:
                    file.release()
            if request.end_offset and offset >= request.end_offset:
                return None

    async def _go_on(
        self,
        request: pb.ReadRequest,
        offset: int,
        primary: Resolution,
        header_field: bytes,
        send: Send,
    ) -> None:
        """Let the primary serve the rest of a read; refuse it if the client wants to go there itself."""
        if request.do_not_proxy:
            response = pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER, offset=max(offset, 0))
            await send(header_field + response.SerializeToString())
            return
        rest = pb.ReadRequest()
        rest.CopyFrom(request)
        rest.offset = offset
        await self._proxy.read(rest, primary.header, send, is_begun=not header_field)

    @staticmethod
    def _ends_at_metadata(request: pb.ReadRequest, offset: int, file: LocalFile | None) -> bool:
        if request.metadata_only or (request.end_offset and offset >= request.end_offset):
            return True
        return file is None and request.do_not_proxy

    @staticmethod
    async def _announced(replica: Replica, result: QueryResult) -> Fragment | None:
        """The fragment with its sum. It may have grown since it was looked up."""
        fragment = result.fragment
        if fragment is None or result.status is not Status.OK:
            return None
        summed = await replica.summed(fragment)
        # The file of the result begins where the fragment that was looked up begins.
        return summed if summed is not None and summed.begin == fragment.begin else fragment

    def _metadata(
        self, replica: Replica, result: QueryResult, fragment: Fragment | None, url: str
    ) -> pb.ReadResponse:
        response = pb.ReadResponse(
            status=result.status.value,  # type: ignore[arg-type]
            offset=result.offset,
            write_head=max(result.write_head, replica.head),
        )
        if fragment is not None:
            response.write_head = max(response.write_head, fragment.end)
            fragment.into_pb(response.fragment)
            response.fragment_url = url
        return response

    async def _sign(self, replica: Replica, fragment: Fragment | None) -> str:
        """Where the store serves the fragment; "" if it is in none."""
        if fragment is None or not (fragment.backing_store and fragment.mod_time):
            return ""
        try:
            store = self._context.stores.get(fragment.backing_store)
            return await store.sign_get(fragment.content_path, _SIGNATURE_TTL_S)
        except GazetteError as err:
            raise RpcFailed(
                Code.UNKNOWN, f"{replica.name}: signing {fragment.content_path}: {err}"
            ) from err

    # -------------------------------------------------------------------------------- content
    @property
    def _piece_bytes(self) -> int:
        """The size of the next piece that a reader is sent."""
        return _SMALL_PIECE_BYTES if self._sending_bytes > _SENDING_BYTES_MAX else _PIECE_BYTES

    async def _send_local(
        self, file: LocalFile, fragment: Fragment, offset: int, end: int, send: Send
    ) -> None:
        """Send bytes [offset, end) of the journal from a local file."""
        while offset < end:
            want = min(self._piece_bytes, end - offset)
            self._sending_bytes += want
            try:
                try:
                    content = await self._pread(file.fd, want, offset - fragment.begin)
                except OSError as err:
                    raise RpcFailed(
                        Code.UNAVAILABLE,
                        f"{fragment.journal}: spool: {err} (check the disk of --broker.spool-dir)",
                    ) from err
                if not content:
                    raise RpcFailed(
                        Code.UNKNOWN, f"{fragment.journal}: spool ends before offset {offset}"
                    )
                raw = encode_read_content(offset, content)
                offset += len(content)
                del content  # a slow reader must not keep it in memory
                await send(raw)
            finally:
                self._sending_bytes -= want

    async def _pread(self, fd: int, length: int, at: int) -> bytes:
        context = self._context
        if length <= _INLINE_BYTES_MAX and context.clock.monotonic() >= context.pace.slow_until:
            return os.pread(fd, length, at)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(context.readers, os.pread, fd, length, at)

    async def _send_stored(
        self, replica: Replica, fragment: Fragment, offset: int, end: int, send: Send
    ) -> None:
        """Send bytes [offset, end) of the journal from a store."""
        store, path = self._context.stores.get(fragment.backing_store), fragment.content_path
        version = await self._version(fragment, store.local_path(path))
        check = FragmentCheck(fragment, is_known=store.is_proven(path, version))
        part = _Part(fragment, offset, end, send, check=check, readers=self._context.readers)
        piece_bytes = self._piece_bytes
        held_bytes = min(piece_bytes, fragment.content_length)
        self._sending_bytes += held_bytes
        try:
            # The object is read from its beginning, however little of it is sent.
            await self._send_part(part, fragment, piece_bytes)
            if part.is_proven:
                store.prove(path, version)
        except ObjectNotFound as err:
            # It was pruned, as a rule. Once the store was listed again the read continues after it.
            replica.refresh(is_missed=True)
            raise NotNow(
                f"{fragment.journal}: {fragment.content_path} is not in {fragment.backing_store} any "
                "more, whose fragments are being listed again"
            ) from err
        except (DataError, StoreError) as err:
            advice = " (restore the file, or remove it)" if isinstance(err, DataError) else ""
            raise RpcFailed(
                Code.UNKNOWN, f"{fragment.journal}: reading {fragment.content_path}: {err}{advice}"
            ) from err
        finally:
            self._sending_bytes -= held_bytes

    async def _version(self, fragment: Fragment, file: Path | None) -> tuple[int, ...]:
        """What is another once the object of a fragment has changed, as far as that can be known."""
        if file is not None:
            with contextlib.suppress(OSError):  # to read it says more
                return await run_in(self._context.readers, version_of, file)
        return (fragment.mod_time,)

    async def _send_part(self, part: _Part, fragment: Fragment, piece_bytes: int) -> None:
        """Send what belongs to a part of a stored fragment, in steps of bounded size.

        A part that reaches the fragment's end proves it: its last step is sent once the whole content
        was found to be what the name says.
        """
        loop = asyncio.get_running_loop()
        steps = decompressor(fragment.codec)
        is_plain = fragment.codec is CompressionCodec.NONE
        # A compressed piece stays in memory while its content is sent, so both are half as large as a
        # plain piece. The client works on one step of content while the next is decompressed.
        length = piece_bytes if is_plain else piece_bytes // 2
        store = self._context.stores.get(fragment.backing_store)
        async with aclosing(store.get(fragment.content_path, piece_bytes=length)) as pieces, part:
            async for piece in pieces:
                if is_plain:
                    await part.take(piece)
                else:
                    contents = decompress_steps(steps, piece, step_bytes_max=piece_bytes // 2)
                    while not part.is_over and (
                        content := await loop.run_in_executor(
                            self._context.readers, next, contents, b""
                        )
                    ):
                        await part.take(content)
                if part.is_over:
                    return
            steps.finish()
            await part.finish()


class _Done(Exception):
    """No more content needs to be compared."""


def _common_length(one: bytes, other: bytes) -> int:
    """The length of the longest common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@final
class _Part:
    """Takes a fragment's content from its beginning, and sends bytes [offset, end) of the journal.

    Content is digested in threads, while it is sent. A context manager, which waits for these.
    """

    def __init__(
        self,
        fragment: Fragment,
        offset: int,
        end: int,
        send: Send,
        *,
        check: FragmentCheck,
        readers: Executor,
    ) -> None:
        self._offset = offset  # of the next byte to send
        self._skip = offset - fragment.begin
        self._end = end
        self._send = send
        self._readers = readers
        self._is_whole = end == fragment.end
        self._check = check
        self._checking: asyncio.Future[None] | None = None
        self._last: bytes | None = None
        self._is_finished = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._checking is not None:
            await asyncio.wait([self._checking])
            self._checking.exception()  # looked at: whatever ends the read now is reported instead

    @property
    def is_proven(self) -> bool:
        """Whether all content was digested here, and found right."""
        return self._is_finished and not self._check.is_known

    @property
    def is_over(self) -> bool:
        """Whether nothing more is needed of the object. What ends with it is read to its end."""
        return not self._is_whole and self._offset >= self._end

    async def take(self, content: bytes) -> None:
        """Take the next bytes, and send those of the part. Returns once there is room for more.

        Raises: DataError: what was taken before is more than the fragment has.
        """
        await self._checked()
        if self._check.is_known:
            self._check.take(content)
        else:
            loop = asyncio.get_running_loop()
            self._checking = loop.run_in_executor(self._readers, self._check.take, content)
        if self._skip >= len(content):
            self._skip -= len(content)
            return
        view = memoryview(content)[self._skip : self._skip + self._end - self._offset]
        self._skip = 0
        raw = encode_read_content(self._offset, view)
        self._offset += len(view)
        del content, view
        if self._is_whole and self._offset == self._end:
            self._last = raw if self._last is None else self._last
        else:
            await self._send(raw)

    async def finish(self) -> None:
        """Send what was held back, as the object has ended. Raises: DataError: it is not right."""
        await self._checked()
        self._check.finish()
        self._is_finished = True
        if self._last is not None:
            await self._send(self._last)

    async def _checked(self) -> None:
        checking, self._checking = self._checking, None
        if checking is not None:
            await checking
