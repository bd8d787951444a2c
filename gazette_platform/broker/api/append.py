"""Serves Append: from the client's stream to an outcome of the journal's appender, or to its primary.

An append of moderate size is gathered whole before it takes its turn, so that a slow client holds
no one up and several are written together. A larger one takes its turn and streams; it then owns
the journal, and its client must keep up. If another broker is the primary, the append is forwarded
to it as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import lru_cache
from typing import TYPE_CHECKING, final

from google.protobuf.message import DecodeError

from gazette_platform.broker.api.append_calls import Asked, Counts, Gathered, WaitingAppend
from gazette_platform.broker.api.routing import PrimaryNotReached, find, rules
from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.batch import Outcome, Pending, content_sum
from gazette_platform.broker.append.content import (
    Body,
    ContentQueue,
    Judge,
    Replay,
    Stock,
    cost_of,
    pump,
    whole_content,
)
from gazette_platform.broker.journal.claims import write_suspend
from gazette_platform.protocol import (
    ZERO_SUM,
    AppendSuspend,
    LabelSelector,
    LabelSet,
    Status,
    strip_meta,
    validate_append_request,
)
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.protocol.content import COMMIT_MARKER, encode_append_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import TRY_AGAIN, Code, ContentSource, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.broker.api.append_calls import AppendEnds
    from gazette_platform.broker.api.routing import Proxy
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolution, Resolver
    from gazette_platform.protocol import CompressionCodec
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.interface import Waiting


# Appends up to this size are gathered whole while the stock has room; all others stream.
_GATHER_BYTES_MAX = 5 << 20

# Appends up to this size are gathered even when the stock is full. Otherwise clients with large
# appends would get in the way of small ones; a thousand of these are no more than the stock.
_SMALL_BYTES_MAX = 64 << 10

# Requests up to this size are remembered in their decoded form.
_KNOWN_BYTES_MAX = 512

# Hashed on the event loop up to this size: a hop to a thread costs more.
_INLINE_BYTES_MAX = 128 << 10

# Seconds after which a primary that could not be connected to is tried again.
_RECONNECT_S = 0.2

# Seconds that a resumed journal is given to be assigned, whatever --broker.append-wait says.
_RESUME_WAIT_S = 5.0


@final
class AppendApi:
    """Append RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica], proxy: Proxy) -> None:
        self._context = context
        self._resolver = resolver
        self._proxy = proxy
        self._stock = Stock()
        self._commits = _CommitResponse()
        self._judge = Judge(context.config.min_append_rate, context.clock)

    async def append(
        self,
        first: bytes,
        content: ContentSource | None,
        claims: Claims = ALL_CLAIMS,
        *,
        with_sum: bool = True,
    ) -> tuple[Status, bytes]:
        """Serve one Append.

        Args:
            content: None: all of it is in `first`, as AppendWhole has it.
            claims: of the caller; journals beyond them do not exist for it.
            with_sum: whether the response has the SHA-1 of the content. If it is large it takes time.

        Returns: the outcome, and the AppendResponse that says so.
        Raises: RpcFailed: the stream is malformed, broken or too slow; nothing was applied.
        Cancellation: nothing is applied, unless the append's turn had come already.
        """
        decoded, content = _taken_apart(first) if content is None else (_known(first), content)
        asked = Asked(*decoded, claims)
        replica = self._at_hand(asked) or await self._resolve(asked)
        while replica is None:
            answer = await self._elsewhere(asked, content)
            if answer is not None:
                return answer
            replica = await self._resolve(asked)
        body = Body(content, replica.balance, self._judge)
        done = asyncio.get_running_loop().create_future()
        pending = Pending(
            machine=fsm.AppendFSM(asked.request),
            done=done,
            wait_until=self._context.clock.monotonic() + self._context.config.append_wait_s,
        )
        pumping: asyncio.Task[None] | None = None
        stream: ContentQueue | None = None
        gathered = Gathered(self._stock)
        try:
            is_whole = self._gather_at_once(pending, body, gathered)
            if not is_whole:
                with body:
                    is_whole = await self._gather(pending, body, gathered, with_sum=with_sum)
            pending.machine.has_content = pending.length > 0
            if not is_whole:
                body.stream()
                gathered.release()
                pending.stream = stream = ContentQueue(pending, self._stock)
                pumping = self._context.tasks.spawn(
                    pump(body, stream), name=f"stream {asked.request.journal}"
                )
            replica.appender.submit(pending)
            outcome = await done
            if outcome.is_remote:
                answer, outcome = await self._again(asked, pending, outcome)
                if answer is not None:
                    return answer
        finally:
            done.cancel()
            if pumping is not None:
                pumping.cancel()
            if stream is not None:
                stream.drop()
            gathered.release()
        return self.answer(asked, outcome, body)

    def append_at_once(
        self, first: bytes, messages: Sequence[bytes] | None, caller: Waiting, ends: AppendEnds
    ) -> Callable[[], None] | None:
        """Serve a small Append whose content is all here, without a task; else as `append`.

        Args:
            messages: all that follow the first; None: all of it is in `first`.
            caller: may append to any journal. It gets the outcome later, by `ends`.

        Returns: what is called if the caller leaves before that; None: the append is one for `append`, or
            malformed, and nothing has changed.
        """
        try:
            if messages is None:
                decoded, content = _taken_apart(first)
                messages = content.take_all(_SMALL_BYTES_MAX)
            else:
                decoded = _known(first)
            if messages is None or sum(map(len, messages)) > _SMALL_BYTES_MAX:
                return None
            asked = Asked(*decoded, ALL_CLAIMS)
            replica = self._at_hand(asked)
            if replica is None or replica.balance.rate > 0:
                return None
            chunks = whole_content(messages)
        except (RpcFailed, DecodeError):
            return None
        context = self._context
        waiting = WaitingAppend(
            self,
            ends,
            caller,
            asked,
            machine=fsm.AppendFSM(asked.request),
            chunks=chunks,
            gathered=Gathered(self._stock),
            total_chunks=len(messages),
            wait_until=context.clock.monotonic() + context.config.append_wait_s,
        )
        pending = waiting.pending
        assert pending is not None
        try:
            replica.appender.submit(pending)
        except RpcFailed:
            waiting.leave()
            return None
        return waiting.leave

    def answer(self, asked: Asked, outcome: Outcome, counts: Counts) -> tuple[Status, bytes]:
        """Return the status and the AppendResponse of an append that ended here."""
        if outcome.status is Status.OK and outcome.commit is not None:
            return Status.OK, asked.resolution.header_field + self._commits.encode(outcome, counts)
        return outcome.status, _response(asked.resolution, outcome, counts)

    async def go_on(
        self, asked: Asked, pending: Pending, outcome: Outcome, counts: Counts
    ) -> tuple[Status, bytes]:
        """Try an append again that another broker serves by now, as `append` does."""
        answer, outcome = await self._again(asked, pending, outcome)
        return answer if answer is not None else self.answer(asked, outcome, counts)

    async def _again(
        self, asked: Asked, pending: Pending, outcome: Outcome
    ) -> tuple[tuple[Status, bytes] | None, Outcome]:
        """Try an append again, after another broker became the primary before it was written.

        Returns: the answer of another broker, if one gave any; else None, and the outcome.
        """
        clock = self._context.clock
        deadline = clock.monotonic() + self._context.config.append_wait_s
        while outcome.is_remote:
            replica = await self._resolve(asked)
            pending = _renewed(pending)
            done = pending.done
            assert isinstance(done, asyncio.Future)
            try:
                if replica is None:
                    answer = await self._elsewhere(asked, Replay(pending))
                    if answer is not None:
                        return answer, outcome
                    continue
                replica.appender.submit(pending)
                outcome = await done
            finally:
                if not done.cancel() and not done.cancelled():
                    done.exception()  # `answer` reported it; asyncio logs exceptions that are never retrieved
            if clock.monotonic() >= deadline:
                break
        return None, outcome

    async def _elsewhere(self, asked: Asked, content: ContentSource) -> tuple[Status, bytes] | None:
        """Serve an append that is not for a replica of ours.

        Returns: the answer; None if the primary cannot be reached. Then etcd will soon know, and the
            append has to be resolved again.
        Raises: RpcFailed: the primary was out of reach for too long, or it failed the call.
        """
        resolution = asked.resolution
        if not resolution.is_remote:
            status = resolution.status
            if status is Status.OK:
                status = Status.NOT_JOURNAL_PRIMARY_BROKER
            return status, _response(resolution, Outcome(status))
        try:
            return await self._proxy.append(asked.message, content, resolution)
        except PrimaryNotReached as err:
            clock = self._context.clock
            if asked.unreached_at is None:
                asked.unreached_at = clock.monotonic()
            left_s = asked.unreached_at + self._context.config.append_wait_s - clock.monotonic()
            if left_s <= 0:
                raise RpcFailed(Code.UNAVAILABLE, str(err)) from err
            await self._wait_change(min(left_s, _RECONNECT_S))
            return None

    def _at_hand(self, asked: Asked) -> Replica | None:
        """Our replica, if it was resolved at this revision, and the request asks for no later one."""
        key = asked.found_as
        if key is None or asked.claims is not ALL_CLAIMS:
            return None
        # Clients name a revision for a minute after they have applied specs.
        if asked.request.min_revision > self._context.space.revision:
            return None
        found = self._resolver.found.get(key)
        if found is None or not found.is_local:
            return None
        asked.resolution = found
        return self._resolver.replicas.get(found.journal)

    async def _resolve(self, asked: Asked) -> Replica | None:
        """Find out who is to take an append, and wait a bounded time for that.

        The machine decides, as it does again at the journal's appender, for which this is not known yet.

        Returns: our replica of the journal, if we are its primary.
        """
        clock, message, request = self._context.clock, asked.message, asked.request
        deadline = clock.monotonic() + self._context.config.append_wait_s
        machine = fsm.AppendFSM(request, forwards=True)
        effect: events.Effect | None = machine.start()
        event: events.Event
        replica: Replica | None = None
        while True:
            left_s = deadline - clock.monotonic()
            match effect:
                case events.Resolve(min_revision):
                    if min_revision > request.min_revision:
                        await self._wait_revision(min_revision, left_s)
                    found = await find(
                        self._resolver,
                        message,
                        asked.claims,
                        may_proxy=not message.do_not_proxy,
                        require_primary=True,
                        min_revision=request.min_revision,
                    )
                    replica, resolution = found.replica, found.resolution
                    asked.resolution = resolution
                    event = events.Resolved(
                        resolution.status,
                        resolution.is_local,
                        resolution.spec,
                        resolution.header.etcd.revision,
                        may_wait=deadline > clock.monotonic(),
                    )
                case events.CountReplicas():
                    event = self._count(asked.resolution, may_wait=left_s > 0)
                case events.WriteSuspend(suspend):
                    # No broker serves a fully suspended journal, so any broker may resume it.
                    written = await write_suspend(self._context, request.journal, suspend)
                    deadline = max(deadline, clock.monotonic() + _RESUME_WAIT_S)
                    event = events.Written(written.revision)
                case events.Sync():
                    return replica  # its appender knows what else to wait for
                case events.Fail(status):
                    if status is not asked.resolution.status:
                        asked.resolution = self._resolver.refused(asked.resolution, status)
                    return None
                case events.Forward():
                    return None
                case _:
                    raise RuntimeError(f"{request.journal}: {effect} before it is at its journal")
            effect = machine.step(event)

    def _count(self, resolution: Resolution, *, may_wait: bool) -> events.Replicas:
        """How many replicas the journal of another primary has, and should have."""
        spec = resolution.spec
        current = len(resolution.header.route.members)
        desired = (
            spec.desired_replication(self._context.config.max_replication) if spec else current
        )
        return events.Replicas(current, desired, resolution.header.etcd.revision, may_wait)

    async def _wait_revision(self, revision: int, limit_s: float) -> None:
        """Wait until the cluster is as it was said to be, or time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._context.space.wait_for_revision(revision)

    async def _wait_change(self, limit_s: float) -> None:
        """Wait until something of the cluster changes, or time is up."""
        await self._wait_revision(self._context.space.revision + 1, limit_s)

    def _gather_at_once(self, pending: Pending, body: Body, gathered: Gathered) -> bool:
        """Take the content of a small append if all of it is here, with its sum. Returns: whether it is.

        Raises: RpcFailed: the stream is malformed.
        """
        chunks = body.take_all(_SMALL_BYTES_MAX)
        if chunks is None:
            return False
        pending.chunks = chunks
        for chunk in chunks:
            pending.length += len(chunk)
            gathered.add(cost_of(chunk))
        pending.sum = content_sum(chunks)
        return True

    async def _gather(
        self, pending: Pending, body: Body, gathered: Gathered, *, with_sum: bool
    ) -> bool:
        """Take content until the commit marker, or until the append should stream.

        Returns: whether all content is here. Its sum is then known, or on its way.
        Raises: RpcFailed: this broker holds too much of other appends.
        """
        stock = self._stock
        while True:
            chunk = await body.next()
            if not chunk:
                await body.expect_end()
                if not with_sum:
                    pending.sum = ZERO_SUM
                elif pending.length > _INLINE_BYTES_MAX:
                    pending.sum = asyncio.get_running_loop().run_in_executor(
                        self._context.executor, content_sum, pending.chunks
                    )
                else:
                    pending.sum = content_sum(pending.chunks)
                return True
            pending.chunks.append(chunk)
            pending.length += len(chunk)
            gathered.add(cost_of(chunk))
            if gathered.bytes <= _SMALL_BYTES_MAX:
                continue
            if stock.is_overfull:
                raise NotNow(
                    f"{pending.machine.request.journal}: this broker holds {stock.held_bytes} bytes "
                    "of appends that wait for their turn, and takes small ones only",
                    TRY_AGAIN,
                )
            if stock.is_full or gathered.bytes > _GATHER_BYTES_MAX:
                return False


@final
class _Messages:
    """Messages of an append that are all here."""

    __slots__ = ("_left",)

    def __init__(self, messages: list[bytes]) -> None:
        self._left = messages[::-1]

    async def next(self) -> bytes | None:
        return self._left.pop() if self._left else None

    def take_all(self, bytes_max: int) -> list[bytes] | None:
        if sum(map(len, self._left)) > bytes_max:
            return None
        taken, self._left = self._left[::-1], []
        return taken


def _renewed(pending: Pending) -> Pending:
    """Another attempt at an append that wrote nothing."""
    renewed = Pending(
        machine=fsm.AppendFSM(pending.machine.request, has_content=pending.machine.has_content),
        done=asyncio.get_running_loop().create_future(),
        chunks=pending.chunks,
        length=pending.length,
        sum=pending.sum,
        stream=pending.stream,
        wait_until=pending.wait_until,
    )
    if isinstance(pending.stream, ContentQueue):
        pending.stream.reopen(renewed)
    return renewed


# The first fields of an `Asked`.
_Decoded = tuple[pb.AppendRequest, events.AppendRequest, tuple[str, bool, bool] | None]


def _taken_apart(whole: bytes) -> tuple[_Decoded, ContentSource]:
    """The request and the messages of the Append that an AppendWhole stands for.

    Raises: RpcFailed, DecodeError: it is malformed.
    """
    message = pb.AppendRequest.FromString(whole)
    content = message.content
    message.ClearField("content")
    # A large one is not encoded only to be decoded again: that would hold the event loop up twice.
    if len(whole) - len(content) <= _KNOWN_BYTES_MAX:
        decoded = _known(message.SerializeToString())
    else:
        decoded = _checked(message)
    messages = [encode_append_content(content), COMMIT_MARKER] if content else [COMMIT_MARKER]
    return decoded, _Messages(messages)


def _decoded(first: bytes) -> _Decoded:
    """Decode and validate a request. Raises: RpcFailed, DecodeError: it is malformed."""
    return _checked(pb.AppendRequest.FromString(first))


def _checked(message: pb.AppendRequest) -> _Decoded:
    """Validate a request. Raises: RpcFailed: it breaks a rule."""
    with rules():
        validate_append_request(message)
    request = _request(message)
    if message.HasField("header"):
        return message, request, None
    return message, request, (request.journal, not message.do_not_proxy, True)


# Clients repeat their requests. The results are shared, so callers must not change them.
_remembered = lru_cache(maxsize=1024)(_decoded)


def _known(first: bytes) -> _Decoded:
    """As `_decoded`, which small requests do not need twice."""
    return _remembered(first) if len(first) <= _KNOWN_BYTES_MAX else _decoded(first)


def _request(message: pb.AppendRequest) -> events.AppendRequest:
    return events.AppendRequest(
        journal=strip_meta(message.journal),
        offset=message.offset,
        check_registers=LabelSelector.from_pb(message.check_registers)
        if message.HasField("check_registers")
        else None,
        union_registers=LabelSet.from_pb(message.union_registers)
        if message.HasField("union_registers")
        else None,
        subtract_registers=LabelSet.from_pb(message.subtract_registers)
        if message.HasField("subtract_registers")
        else None,
        suspend=AppendSuspend(message.suspend),
        min_revision=message.min_etcd_revision,
    )


@final
class _CommitResponse:
    """The response to an append that was committed: one message; few of its fields change."""

    __slots__ = ("_codec", "_commit", "_message", "_registers")

    def __init__(self) -> None:
        self._message = pb.AppendResponse()
        self._commit = self._message.commit
        self._codec: CompressionCodec | None = None
        self._registers: LabelSet | None = None

    def encode(self, outcome: Outcome, counts: Counts) -> bytes:
        """Encode what `_response` would, without the header, at a third of the cost."""
        fragment, registers = outcome.commit, outcome.registers
        assert fragment is not None
        assert registers is not None
        message, commit = self._message, self._commit
        if registers is not self._registers:
            message.ClearField("registers")
            registers.into_pb(message.registers)
            self._registers = registers
        if fragment.codec is not self._codec:
            commit.compression_codec = fragment.codec.value  # type: ignore[assignment]
            self._codec = fragment.codec
        commit.journal = fragment.journal
        fragment.span_into_pb(commit)
        message.total_chunks = counts.total_chunks
        message.delayed_chunks = counts.delayed_chunks
        return message.SerializeToString()


def _response(resolution: Resolution, outcome: Outcome, counts: Counts | None = None) -> bytes:
    message = pb.AppendResponse()
    if outcome.status is not Status.OK:
        message.status = outcome.status.value  # type: ignore[assignment]
        message.store_health_error = outcome.store_health_error
    if outcome.commit is not None:
        outcome.commit.into_pb(message.commit)
    if outcome.registers is not None:
        outcome.registers.into_pb(message.registers)
    if counts is not None:
        message.total_chunks = counts.total_chunks
        message.delayed_chunks = counts.delayed_chunks
    # Fields of a message may come in any order, so a header is encoded once for many responses.
    return resolution.header_field + message.SerializeToString()
