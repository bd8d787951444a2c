"""Calls of appends: what each asked for, what all have in common, and small ones that need no task."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, final

from google.protobuf.message import DecodeError

from gazette_platform.broker.append.batch import Pending, content_sum
from gazette_platform.broker.append.content import cost_of
from gazette_platform.ops import tracing
from gazette_platform.protocol import Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.content import NO_SUM
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.calls import before_expiry
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_platform.broker.append import events
    from gazette_platform.broker.append.batch import Outcome
    from gazette_platform.broker.append.content import Stock
    from gazette_platform.broker.append.fsm import AppendFSM
    from gazette_platform.broker.context import Membership
    from gazette_platform.broker.journal.resolver import Resolution
    from gazette_platform.errors import GazetteError
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.auth import Authenticator
    from gazette_platform.serving.calls import Tally
    from gazette_platform.serving.interface import ContentSource, Metadata, Waiting


@dataclass(slots=True)
class Asked:
    """An append as its caller asked for it, and who is to serve it."""

    message: pb.AppendRequest
    request: events.AppendRequest
    found_as: tuple[str, bool, bool] | None
    """Its key in `Resolver.found`; None: it comes from another broker, whose view is to be checked."""
    claims: Claims
    resolution: Resolution = field(init=False)
    unreached_at: float | None = None
    """When its primary was first out of reach, on the monotonic clock."""


class Counts(Protocol):
    """What a response says of the messages of its append."""

    total_chunks: int
    delayed_chunks: int


class AppendEnds(Protocol):
    """Reports to callers how their appends ended, in place of a task's result or error."""

    def answered(self, caller: Waiting, status: Status, response: bytes) -> None:
        """The append ended with this status, and this AppendResponse."""
        ...

    def failed(self, caller: Waiting, err: Exception) -> None:
        """The append failed."""
        ...

    def go_on(self, caller: Waiting, rest: Callable[[], Awaitable[tuple[Status, bytes]]]) -> None:
        """Run the rest in a task. It returns the status and the AppendResponse."""
        ...


class Responses(Protocol):
    """Makes responses of outcomes."""

    def answer(self, asked: Asked, outcome: Outcome, counts: Counts) -> tuple[Status, bytes]:
        """Return the status and the AppendResponse of an append that ended here."""
        ...

    async def go_on(
        self, asked: Asked, pending: Pending, outcome: Outcome, counts: Counts
    ) -> tuple[Status, bytes]:
        """Try an append again that another broker serves by now."""
        ...


@final
class Gathered:
    """The part of the stock that one append takes up while it is gathered."""

    __slots__ = ("_stock", "bytes")

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self.bytes = 0

    def add(self, length: int) -> None:
        """Take up more."""
        self.bytes += length
        self._stock.held_bytes += length

    def release(self) -> None:
        """Take up nothing any more."""
        self._stock.held_bytes -= self.bytes
        self.bytes = 0


@final
class WaitingAppend:
    """A `Caller` that answers its call as soon as it gets the outcome.

    Args:
        responses: makes them.
        ends: called with how the append ended.
        caller: of the append.
        chunks: all of the content.
        gathered: where the content is counted; released when the append has ended.
        total_chunks: number of messages with content, and the commit marker.
    """

    __slots__ = (
        "_asked",
        "_caller",
        "_ends",
        "_gathered",
        "_is_done",
        "_responses",
        "delayed_chunks",
        "pending",
        "total_chunks",
    )

    def __init__(
        self,
        responses: Responses,
        ends: AppendEnds,
        caller: Waiting,
        asked: Asked,
        *,
        machine: AppendFSM,
        chunks: list[bytes | memoryview],
        gathered: Gathered,
        total_chunks: int,
        wait_until: float,
    ) -> None:
        self._responses, self._ends, self._caller = responses, ends, caller
        self._asked = asked
        self._is_done = False
        self._gathered = gathered
        self.total_chunks, self.delayed_chunks = total_chunks, 0
        # Both know each other until the append ends; that cycle must not wait for the garbage collector.
        self.pending: Pending | None = Pending(
            machine,
            self,
            chunks,
            sum(map(len, chunks)),
            content_sum(chunks),
            wait_until=wait_until,
        )
        machine.has_content = bool(chunks)
        gathered.add(sum(map(cost_of, chunks)))

    def done(self) -> bool:
        """As `Caller` has it."""
        return self._is_done

    def set_result(self, outcome: Outcome) -> None:
        """As `Caller` has it."""
        self._is_done = True
        pending, self.pending = self.pending, None
        if outcome.is_remote:
            assert pending is not None
            self._ends.go_on(self._caller, partial(self._go_on, pending, outcome))
            return
        self._gathered.release()
        # An error here is one of this append, and must not end others of its batch.
        try:
            status, response = self._responses.answer(self._asked, outcome, self)
            self._ends.answered(self._caller, status, response)
        except Exception as err:  # noqa: BLE001  passed to its caller, and reported
            self._ends.failed(self._caller, err)

    def set_exception(self, error: GazetteError) -> None:
        """As `Caller` has it."""
        self.leave()
        self._ends.failed(self._caller, error)

    def leave(self) -> None:
        """The caller has gone, or has its answer: it hears nothing more."""
        self._is_done = True
        self.pending = None
        self._gathered.release()

    async def _go_on(self, pending: Pending, outcome: Outcome) -> tuple[Status, bytes]:
        try:
            return await self._responses.go_on(self._asked, pending, outcome, self)
        finally:
            self._gathered.release()


class Appends(Protocol):
    """Carries appends out."""

    async def append(
        self,
        first: bytes,
        content: ContentSource | None,
        claims: Claims,
        *,
        with_sum: bool,
    ) -> tuple[Status, bytes]:
        """Serve an Append. Returns: its status, and the AppendResponse. Raises: GazetteError: it failed."""
        ...

    def append_at_once(
        self, first: bytes, messages: Sequence[bytes] | None, caller: Waiting, ends: AppendEnds
    ) -> Callable[[], None] | None:
        """Serve it without a task. Returns: what is called if the caller leaves; None: it is for `append`."""
        ...


@final
class AppendCalls:
    """Serves Append and AppendWhole, and counts both as one.

    Args:
        api: carries them out.
        auth: says what their callers may do.
        membership: says whether other brokers may have taken over without knowing of an append.
        begun: counts those that began.
        ok: counts those that ended well.
        end: counts those that ended with another status.
        failed: counts one that failed, and returns the error for its caller.
    """

    def __init__(
        self,
        api: Appends,
        auth: Authenticator,
        membership: Membership,
        *,
        begun: Tally,
        ok: Tally,
        end: Callable[[Status], None],
        failed: Callable[[Exception], RpcFailed],
    ) -> None:
        self._api = api
        self._auth = auth
        self._membership = membership
        self._begun = begun
        self._ok = ok
        self._end = end
        self._failed = failed

    async def serve(self, first: bytes, content: ContentSource | None, metadata: Metadata) -> bytes:
        """Serve Append. Its content may be None: all of it is in the request."""
        self._begun.count += 1
        if not tracing.is_on():
            return await self._counted(self._run(first, content, metadata))
        try:
            journal = pb.AppendRequest.FromString(first).journal
        except DecodeError as err:
            raise self._failed(err) from err
        headers = metadata.items()
        with tracing.span("gazette broker append", kind="SERVER", headers=headers, journal=journal):
            return await self._counted(self._run(first, content, metadata))

    async def serve_whole(self, request: bytes, metadata: Metadata) -> bytes:
        """Serve AppendWhole as the Append that it stands for."""
        return await self.serve(request, None, metadata)

    def at_once(
        self, first: bytes, rest: Sequence[bytes], _: Metadata, caller: Waiting
    ) -> Callable[[], object] | None:
        """Serve Append without a task, as `AtOnce` has it."""
        return self._begin_at_once(first, rest, caller)

    def whole_at_once(
        self, request: bytes, rest: Sequence[bytes], _: Metadata, caller: Waiting
    ) -> Callable[[], object] | None:
        """Serve AppendWhole without a task, as `AtOnce` has it."""
        return None if rest else self._begin_at_once(request, None, caller)

    def _begin_at_once(
        self, first: bytes, rest: Sequence[bytes] | None, caller: Waiting
    ) -> Callable[[], object] | None:
        if self._auth.everyone is None or tracing.is_on():
            return None  # a token may expire meanwhile; and a span belongs to a task
        leave = self._api.append_at_once(first, rest, caller, self)
        if leave is not None:
            self._begun.count += 1
        return leave

    # ------------------------------------------------------------------------------------ their ends
    def answered(self, caller: Waiting, status: Status, response: bytes) -> None:
        """As `AppendEnds` has it."""
        problem = self._count(status)
        if problem is None:
            caller.reply(response)
        else:
            self.failed(caller, problem)

    def failed(self, caller: Waiting, err: Exception) -> None:
        """As `AppendEnds` has it."""
        caller.refuse(self._failed(err))

    def go_on(self, caller: Waiting, rest: Callable[[], Awaitable[tuple[Status, bytes]]]) -> None:
        """As `AppendEnds` has it."""
        caller.go_on(lambda: self._counted(rest()))

    async def _run(
        self, first: bytes, content: ContentSource | None, metadata: Metadata
    ) -> tuple[Status, bytes]:
        claims = self._auth.everyone or self._auth.authorize(metadata, Capability.APPEND)
        with_sum = NO_SUM not in metadata
        serving = self._api.append(first, content, claims, with_sum=with_sum)
        if claims.expires_at is None:
            return await serving
        return await before_expiry(self._auth.limit(claims), serving)

    async def _counted(self, serving: Awaitable[tuple[Status, bytes]]) -> bytes:
        try:
            status, response = await serving
            problem = self._count(status)
            if problem is not None:
                raise problem  # noqa: TRY301  counted below
        except RpcFailed as err:
            self._failed(err)
            raise  # and not `from` itself: that cycle would keep what its frames hold
        except Exception as err:
            raise self._failed(err) from err
        return response

    def _count(self, status: Status) -> RpcFailed | None:
        """Count an append that ended. Returns: None, or why its outcome is unknown all the same."""
        if status is not Status.OK:
            self._end(status)
            return None
        problem = self._membership.problem
        if problem:
            text = f"{problem}: whether it was appended is unknown"
            return RpcFailed(Code.UNAVAILABLE, text)
        self._ok.count += 1
        return None
