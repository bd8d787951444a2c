"""A broker in memory that fails on demand: for tests of what clients do about failures.

It speaks the wire protocol for real and keeps journals as plain bytes, without fragments, etcd or
replicas. Tests of success belong to a real broker (`testing.servers`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict, deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, final

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import (
    HISTORY,
    CompressionCodec,
    EtcdHeader,
    Fragment,
    FragmentSpec,
    Header,
    JournalSpec,
    LabelSelector,
    LabelSet,
    ProcessId,
    Route,
)
from gazette_platform.protocol.content import (
    COMMIT_MARKER,
    decode_append_content,
    encode_append_content,
    encode_read_content,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["FakeBroker", "FakeJournal", "Fault"]

# Of journals that no spec was applied to.
_FRAGMENT = FragmentSpec(
    length=1 << 20, codec=CompressionCodec.NONE, refresh_interval_ns=300 * 10**9
)


@dataclass(slots=True)
class FakeJournal:
    """A journal: its bytes from `begin` on, and the spec that was applied, if any."""

    name: str
    content: bytearray = field(default_factory=bytearray)
    begin: int = 0
    spec: JournalSpec | None = None
    revision: int = 1
    created: int = 1
    """Create revision; 0: it is not said, as by brokers of old releases."""
    registers: LabelSet = field(default_factory=LabelSet)
    fragment: Fragment | None = None
    """A persisted fragment that reads with do_not_proxy are pointed to."""
    fragment_url: str = ""

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.begin + len(self.content)


@dataclass(frozen=True, slots=True)
class Fault:
    """What to answer a call with instead of serving it."""

    status: int = 0
    """Status of the response, unless OK."""
    code: grpc.StatusCode | None = None
    """gRPC code to abort with."""
    details: str = "fault"
    after_commit: bool = False
    """Take the append, or apply the changes, and lose the answer."""
    stall: bool = False
    """Never answer."""
    early: bool = False
    """Abort an append before all of it was received. A client that is still sending then does not
    always learn of code and details: gRPC may lose them."""


@final
class FakeBroker:
    """Serves on a free loopback port while it is entered. `calls` counts calls by method.

    Attributes:
        takes_whole: whether it knows appends of one message, as our brokers do. They count as `Append`.
    """

    takes_whole = False

    def __init__(self) -> None:
        self.member = ProcessId("local", "fake-broker")
        self.journals: dict[str, FakeJournal] = {}
        self.history = ""
        """Of its etcd, as our brokers send it with listings; empty: it is not sent, as by brokers of Gazette."""
        self.signature = ""
        """What signed URLs end with."""
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.calls: dict[str, int] = defaultdict(int)
        self.requests: list[Any] = []
        self.append_sizes: list[int] = []
        self.revision = 1
        self.address = ""
        self.route: Route | None = None
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    def journal(self, name: str, content: bytes = b"") -> FakeJournal:
        """Create a journal."""
        journal = self.journals[name] = FakeJournal(name, bytearray(content))
        return journal

    def fail(self, method: str, *faults: Fault) -> None:
        """Answer the next calls of `method` with `faults`, one each."""
        self.faults[method].extend(faults)

    async def extend(self, name: str, content: bytes) -> None:
        """Add `content` to a journal, and wake the readers that wait for it."""
        async with self._changed:
            self.journals[name].content += content
            self._changed.notify_all()

    async def __aenter__(self) -> Self:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", 16 << 20)])
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "protocol.Journal",
                    {
                        "Append": grpc.stream_unary_rpc_method_handler(self._append),
                        "Read": grpc.unary_stream_rpc_method_handler(self._read),
                        "List": grpc.unary_stream_rpc_method_handler(self._list),
                        "Apply": grpc.unary_unary_rpc_method_handler(self._apply),
                        "ListFragments": grpc.unary_unary_rpc_method_handler(self._fragments),
                        "FragmentStoreHealth": grpc.unary_unary_rpc_method_handler(self._health),
                    },
                ),
            )
        )
        if self.takes_whole:
            whole = grpc.unary_unary_rpc_method_handler(self._append_whole)
            server.add_generic_rpc_handlers(
                (
                    grpc.method_handlers_generic_handler(
                        "gazette_platform.Admin", {"AppendWhole": whole}
                    ),
                )
            )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._server = server
        self.address = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None  # entered
        await self._server.stop(None)

    def header(self) -> pb.Header:
        """The header of responses, with the route of every journal."""
        route = self.route or Route((self.member,), 0, (self.address,))
        return Header(self.member, route, EtcdHeader(1, 2, self.revision, 3)).to_pb()

    async def _fault(
        self, method: str, context: Any, messages: AsyncIterator[bytes] | None = None
    ) -> Fault:
        self.calls[method] += 1
        fault = self.faults[method].popleft() if self.faults[method] else Fault()
        if fault.stall:
            await asyncio.Event().wait()
        if fault.code is not None and not fault.after_commit:
            if messages is not None and not fault.early:
                async for _ in messages:
                    pass
            await context.abort(fault.code, fault.details)
        return fault

    async def _append(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        fault = await self._fault("Append", context, messages)
        request = pb.AppendRequest.FromString(await anext(messages))
        self.requests.append(request)
        response = pb.AppendResponse(status=fault.status, header=self.header())  # type: ignore[arg-type]
        journal = self.journals.get(request.journal)
        if journal is None:
            response.status = pb.JOURNAL_NOT_FOUND
        elif not fault.status and request.offset not in (0, journal.end):
            response.status = pb.WRONG_APPEND_OFFSET
        response.registers.CopyFrom((journal.registers if journal else LabelSet()).to_pb())
        if response.status != pb.OK or journal is None:
            return response.SerializeToString()
        content, is_committed = bytearray(), False
        async for raw in messages:
            piece = decode_append_content(raw)
            assert piece is not None  # clients send content alone
            if not piece:
                is_committed = True
                break
            content += piece
        if not is_committed:
            await context.abort(grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF")
        self.append_sizes.append(len(content))
        begin = journal.end
        await self.extend(request.journal, bytes(content))
        if fault.after_commit:
            await context.abort(fault.code, fault.details)
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        commit = Fragment(journal.name, begin, journal.end, digest, CompressionCodec.NONE)
        response.commit.CopyFrom(commit.to_pb())
        return response.SerializeToString()

    async def _append_whole(self, raw: bytes, context: Any) -> bytes:
        self.calls["AppendWhole"] += 1
        request = pb.AppendRequest.FromString(raw)
        content = request.content
        request.ClearField("content")

        async def messages() -> AsyncIterator[bytes]:
            yield request.SerializeToString()
            if content:
                yield encode_append_content(content)
            yield COMMIT_MARKER

        return await self._append(messages(), context)

    async def _read(self, raw: bytes, context: Any) -> AsyncIterator[bytes]:
        fault = await self._fault("Read", context)
        request = pb.ReadRequest.FromString(raw)
        self.requests.append(request)
        first = pb.ReadResponse(status=fault.status, header=self.header())  # type: ignore[arg-type]
        journal = self.journals.get(request.journal)
        if journal is None:
            first.status = pb.JOURNAL_NOT_FOUND
        if first.status != pb.OK or journal is None:
            yield first.SerializeToString()
            return
        offset = journal.end if request.offset < 0 else max(request.offset, journal.begin)
        stored = journal.fragment
        if request.do_not_proxy and stored and stored.begin <= offset < stored.end:
            first.offset, first.write_head = offset, journal.end
            first.fragment.CopyFrom(stored.to_pb())
            first.fragment_url = journal.fragment_url
            yield first.SerializeToString()
            return
        while True:
            if not request.block and offset >= journal.end:
                first.status = pb.OFFSET_NOT_YET_AVAILABLE
            async with self._changed:
                while first.status == pb.OK and offset >= journal.end:
                    await self._changed.wait()
            end = min(journal.end, request.end_offset or journal.end)
            first.offset, first.write_head = offset, journal.end
            if first.status == pb.OK:
                fragment = Fragment(journal.name, journal.begin, journal.end, b"\1" * 20)
                first.fragment.CopyFrom(fragment.to_pb())
            yield first.SerializeToString()
            if first.status != pb.OK or request.metadata_only:
                return
            for at in range(offset, end, 1 << 16):
                piece = journal.content[
                    at - journal.begin : min(end, at + (1 << 16)) - journal.begin
                ]
                yield encode_read_content(at, bytes(piece))
            offset = end
            if request.end_offset and offset >= request.end_offset:
                return
            first = pb.ReadResponse()

    async def _list(self, raw: bytes, context: Any) -> AsyncIterator[bytes]:
        fault = await self._fault("List", context)
        if self.history:
            await context.send_initial_metadata(((HISTORY, self.history),))
        request = pb.ListRequest.FromString(raw)
        self.requests.append(request)
        selector = LabelSelector.from_pb(request.selector)
        seen = request.watch_resume.etcd.revision
        while True:
            async with self._changed:
                while self.revision <= seen:
                    await self._changed.wait()
                seen = self.revision
            yield self._listing(selector, fault.status).SerializeToString()
            if not request.watch:
                return
            yield b""

    def _listing(self, selector: LabelSelector, status: int) -> pb.ListResponse:
        response = pb.ListResponse(status=status, header=self.header())  # type: ignore[arg-type]
        for name in sorted(self.journals):
            journal = self.journals[name]
            spec = journal.spec or JournalSpec(name=name, replication=1, fragment=_FRAGMENT)
            if selector.matches(spec.label_set_with_name()):
                response.journals.add(
                    spec=spec.to_pb(),
                    mod_revision=journal.revision,
                    create_revision=journal.created,
                    route=self.header().route,
                )
        return response

    async def _apply(self, raw: bytes, context: Any) -> bytes:
        fault = await self._fault("Apply", context)
        request = pb.ApplyRequest.FromString(raw)
        self.requests.append(request)
        status = fault.status
        for change in request.changes:
            held = self.journals.get(change.delete or change.upsert.name)
            expected = change.expect_mod_revision
            if expected not in (-1, held.revision if held else 0):
                status = pb.ETCD_TRANSACTION_FAILED
        if status == pb.OK:
            async with self._changed:
                self.revision += 1
                for change in request.changes:
                    self._change(change)
                self._changed.notify_all()
        if fault.after_commit:
            await context.abort(fault.code, fault.details)
        response = pb.ApplyResponse(status=status, header=self.header())  # type: ignore[arg-type]
        return response.SerializeToString()

    def _change(self, change: pb.ApplyRequest.Change) -> None:
        if change.delete:
            self.journals.pop(change.delete, None)
            return
        name = change.upsert.name
        journal = self.journals.get(name) or self.journal(name)
        journal.spec = JournalSpec.from_pb(change.upsert)
        journal.revision = self.revision

    async def _fragments(self, raw: bytes, context: Any) -> bytes:
        """One fragment for each ten bytes of content, all persisted at second 1000."""
        fault = await self._fault("ListFragments", context)
        request = pb.FragmentsRequest.FromString(raw)
        self.requests.append(request)
        response = pb.FragmentsResponse(status=fault.status, header=self.header())  # type: ignore[arg-type]
        journal = self.journals.get(request.journal)
        if journal is None:
            response.status = pb.JOURNAL_NOT_FOUND
        if response.status != pb.OK or journal is None:
            return response.SerializeToString()
        limit = request.page_limit or 1000
        begins = range(max(journal.begin, request.next_page_token), journal.end, 10)
        for begin in begins[:limit]:
            fragment = Fragment(
                journal.name,
                begin,
                min(begin + 10, journal.end),
                b"\1" * 20,
                CompressionCodec.NONE,
                "file:///",
                1000,
            )
            is_signed = request.HasField("signatureTTL")
            url = f"file:///{fragment.content_path}{self.signature}" if is_signed else ""
            response.fragments.add(spec=fragment.to_pb(), signed_url=url)
        if len(begins) > limit:
            response.next_page_token = begins[limit]
        return response.SerializeToString()

    async def _health(self, raw: bytes, context: Any) -> bytes:
        fault = await self._fault("FragmentStoreHealth", context)
        self.requests.append(pb.FragmentStoreHealthRequest.FromString(raw))
        response = pb.FragmentStoreHealthResponse(
            status=fault.status,  # type: ignore[arg-type]
            header=self.header(),
            store_health_error=fault.details if fault.status else "",
        )
        return response.SerializeToString()


@asynccontextmanager
async def connected(**config: Any) -> AsyncIterator[tuple[FakeBroker, AsyncClient]]:
    """A broker with one journal, and a client that knows which way appends go."""
    async with FakeBroker() as broker:
        broker.journal("a/journal")
        async with AsyncClient(ClientConfig(address=broker.address, **config)) as client:
            if broker.takes_whole:
                await client._transport.wire("a/journal").connected()
            yield broker, client
