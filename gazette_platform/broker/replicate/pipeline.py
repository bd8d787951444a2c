"""A primary's streams to the replicas of one journal.

Messages go to all peers, to each at the pace that it takes them. Answers come back through
`PipelineFSM`. Nothing here waits for an answer except `sync`, so the next append is on its way
while the one before it waits to be acknowledged.

Guarantee: `on_settled` is called in order, and never after `on_broken`, which is called at most once.
Cost: two tasks per peer while the pipeline is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from google.protobuf.message import DecodeError

from gazette_platform.broker.replicate.fsm import (
    Broke,
    Failed,
    Gathered,
    PipelineFSM,
    Proposal,
    Replied,
    Reply,
    Settled,
    SyncOutcome,
)
from gazette_platform.errors import ValidationError
from gazette_platform.ops import tracing
from gazette_platform.protocol import (
    Fragment,
    Header,
    LabelSet,
    Status,
    validate_replicate_request,
    validate_replicate_response,
)
from gazette_platform.protocol.content import decode_replicate_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.broker.peers import PeerStream
    from gazette_platform.broker.replicate.fsm import Answer
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import EtcdHeader, ProcessId, Route

# Content that may wait for one slow peer; if there is more, appends wait too.
_OUTBOX_BYTES_MAX = 16 << 20

# Seconds that a peer has, once its stream was half-closed, to hand back its spool and end the stream.
# The next pipeline then finds the spool free.
_CLOSE_TIMEOUT_S = 2.0


@final
class Pipeline:
    """Streams to the members of `route` other than `own`, opened at once.

    Args:
        route: members of the journal.
        own: our own id.
        etcd: the state of etcd that the route comes from.
        open_stream: begins a stream to a peer at an endpoint; may raise RpcFailed.
        tasks: group of the links' tasks.
        stall_s: seconds that peers may take nothing while there is no room for more.
        on_settled: called with how many asked proposals all peers have.
        on_broken: called with why the pipeline can no longer be used.
    """

    def __init__(
        self,
        route: Route,
        own: ProcessId,
        etcd: EtcdHeader,
        *,
        open_stream: Callable[[ProcessId, str], PeerStream],
        tasks: TaskGroup,
        stall_s: float,
        on_settled: Callable[[int], None],
        on_broken: Callable[[RpcFailed], None],
    ) -> None:
        self.route = route
        self._etcd = etcd
        self._on_settled = on_settled
        self._on_broken = on_broken
        self.peers = tuple(member for member in route.members if member != own)
        self._fsm = PipelineFSM(self.peers, route=route, revision=etcd.revision)
        self._outcome: asyncio.Future[SyncOutcome] | None = None
        self._room = asyncio.Event()
        self._stall_s = stall_s
        self._is_closed = False
        self._greeted = False
        self.failure: RpcFailed | None = None
        self._spans: dict[int, deque[Callable[[], None]]] = {}
        self._links: list[_Link] = []
        try:
            for n, peer in enumerate(self.peers):
                stream = open_stream(peer, route.endpoint_of(peer))
                self._links.append(_Link(n, peer, stream, self))
        # One peer has no endpoint in etcd. The streams to the others have no owner then, and would
        # hold their spools against the next pipeline.
        except Exception:
            self.abandon()
            raise
        for link in self._links:
            link.start(tasks)

    @property
    def is_usable(self) -> bool:
        """Whether it is neither broken nor closed."""
        return self.failure is None and not self._is_closed

    @property
    def tenures(self) -> list[str | None]:
        """Each peer's tenure of the journal, once all have answered; None: that peer has none."""
        return [link.tenure for link in self._links]

    @property
    def unsettled(self) -> int:
        """Number of asked proposals that some peer has not answered yet."""
        return 0 if self._fsm.is_broken else self._fsm.unsettled

    def send(self, raw: bytes) -> None:
        """Send a message that peers do not answer."""
        for link in self._links:
            link.put(raw)

    def ask(self, raw: bytes) -> int:
        """Send a proposal that every peer answers. Returns: its number, from 1.

        Raises: RpcFailed: the pipeline is broken or closed.
        """
        self._check_usable()
        number = self._fsm.ask()
        if tracing.is_on():
            for n, peer in enumerate(self.peers):
                end_span = tracing.begin("gazette replicate", peer=str(peer))
                self._spans.setdefault(n, deque()).append(end_span)
        self.send(raw)
        return number

    @property
    def has_room(self) -> bool:
        """Whether it is usable, and not too much content waits for one of the peers."""
        return self.is_usable and not any(link.is_full for link in self._links)

    async def room(self) -> None:
        """Wait while too much content waits for one of the peers.

        Raises: RpcFailed: the pipeline is broken or closed, or peers took nothing for so long that it
            is broken now.
        Cancellation: safe.
        """
        while self.is_usable and (full := [link.peer for link in self._links if link.is_full]):
            self._room.clear()
            try:
                async with asyncio.timeout(self._stall_s):
                    await self._room.wait()
            except TimeoutError:
                who = ", ".join(str(peer).strip() for peer in full)
                text = f"send to {who}: nothing was taken for {self._stall_s:g} s"
                self._break(RpcFailed(Code.UNAVAILABLE, text))
        self._check_usable()

    def hurry(self, stall_s: float) -> None:
        """Have less patience from now on with peers that take nothing.

        Args:
            stall_s: seconds, in place of those before.
        """
        self._stall_s = min(self._stall_s, stall_s)
        self._room.set()  # waiters begin again, with the new time

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._is_closed:
            raise RpcFailed(Code.UNAVAILABLE, "the streams to replicas are closed")

    async def sync(
        self, proposal: Fragment, registers: LabelSet, *, timeout_s: float
    ) -> SyncOutcome:
        """Propose to all peers, and combine their answers. No proposal may be unsettled.

        Raises: RpcFailed: a peer failed, or did not answer in time; the pipeline is of no use any more.
        Cancellation: an answer may still come, so the pipeline must be closed.
        """
        self._check_usable()
        self._fsm.sync(proposal.end)
        self._outcome = asyncio.get_running_loop().create_future()
        for link in self._links:
            # By the protocol only the first message of a stream has a header. The peer compares its
            # route, and answers WRONG_ROUTE if it knows a newer one.
            header = None if self._greeted else Header(link.peer, self.route, self._etcd)
            link.put(encode_proposal(proposal, registers, acknowledge=True, header=header))
        self._greeted = True
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await self._outcome
        except TimeoutError as err:
            # Of no use any more: answers name no proposal, so a late one would be taken for the
            # answer to the next sync.
            text = f"gatherSync: no answer from all replicas within {timeout_s:g} s"
            self._break(RpcFailed(Code.UNAVAILABLE, text))
            raise RpcFailed(Code.UNAVAILABLE, text) from err
        finally:
            self._outcome = None
        self._check_usable()  # a stream may have broken since the last answer came
        return outcome

    async def close(self) -> None:
        """End the streams, and wait a bounded time until the peers have given back their spools.

        Cancellation: the streams are cancelled.
        """
        # Set first: the ends of streams that follow are wanted, and no failures.
        self._is_closed = True
        try:
            if self.failure is None:
                for link in self._links:
                    link.finish()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                        for link in self._links:
                            await link.ended.wait()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Cancel the streams at once. Idempotent."""
        self._is_closed = True
        for link in self._links:
            link.cancel()
        self._room.set()

    # -------------------------------------------------------------------------- from the links
    def on_reply(self, number: int, raw: bytes | None) -> None:
        """A peer sent something, or ended its stream."""
        if raw is None:
            # The primary ends streams. A peer does so first if it is about to stop, or knows
            # another primary by now.
            if not self._is_closed:
                self.on_failure(number, RpcFailed(Code.UNAVAILABLE, "unexpected EOF"), "recv from")
            return
        try:
            reply = decode_reply(raw)
        except ValidationError as err:
            self.on_failure(number, RpcFailed(Code.UNKNOWN, str(err)), "recv from")
            return
        if self._spans and (spans := self._spans[number]):
            spans.popleft()()
        effect = self._fsm.step(Replied(number, reply))
        if isinstance(effect, Settled):
            self._on_settled(effect.count)
        elif isinstance(effect, Gathered):
            if self._outcome is not None and not self._outcome.done():
                self._outcome.set_result(effect.outcome)
        elif isinstance(effect, Broke):
            self._break(RpcFailed(Code.UNKNOWN, effect.text))

    def on_failure(self, number: int, err: RpcFailed, doing: str) -> None:
        """A stream broke while `doing` something, which is ``send to`` or ``recv from``."""
        if self._is_closed:
            return
        effect = self._fsm.step(Failed(number, f"{doing} {self.peers[number]}: {err.text}"))
        if isinstance(effect, Broke):
            self._break(RpcFailed(err.code, effect.text))

    def on_drained(self) -> None:
        """A peer took something."""
        self._room.set()

    def _break(self, failure: RpcFailed) -> None:
        if self.failure is not None or self._is_closed:
            return
        self.failure = failure
        for spans in self._spans.values():
            while spans:
                spans.popleft()()
        self.abandon()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(failure)
        self._on_broken(failure)


@final
class _Link:
    """The stream to one peer."""

    __slots__ = (
        "_bytes",
        "_group",
        "_is_finishing",
        "_number",
        "_outbox",
        "_owner",
        "_stream",
        "_tasks",
        "_waiting",
        "ended",
        "peer",
        "tenure",
    )

    def __init__(self, number: int, peer: ProcessId, stream: PeerStream, owner: Pipeline) -> None:
        self.peer = peer
        self.tenure: str | None = None
        self.ended = asyncio.Event()
        self._number = number
        self._stream = stream
        self._owner = owner
        self._outbox: deque[bytes] = deque()
        self._bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        self._is_finishing = False
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._group: TaskGroup | None = None

    @property
    def is_full(self) -> bool:
        return self._bytes > _OUTBOX_BYTES_MAX

    def start(self, tasks: TaskGroup) -> None:
        self._group = tasks
        self._tasks = (
            tasks.spawn(self._send(), name=f"send to {self.peer}"),
            tasks.spawn(self._receive(), name=f"receive from {self.peer}"),
        )

    def put(self, raw: bytes) -> None:
        # If the sender waits for something to send, nothing is on its way that this could overtake.
        waiting = self._waiting
        is_idle = waiting is not None and not waiting.done()
        if is_idle and not self._outbox and self._stream.write_now(raw):
            return
        self._outbox.append(raw)
        self._bytes += len(raw)
        self._wake()

    def finish(self) -> None:
        self._is_finishing = True
        self._wake()

    def cancel(self) -> None:
        self._stream.cancel()
        for task in self._tasks:
            task.cancel()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        outbox, write = self._outbox, self._stream.write
        try:
            while True:
                while outbox:
                    raw = outbox.popleft()
                    await write(raw)
                    # Counted until the transport has taken it. `write` waits while the peer's
                    # window is full, and that is what must hold appends back.
                    self._bytes -= len(raw)
                    self._owner.on_drained()
                if self._is_finishing:
                    await self._stream.done_writing()
                    return
                self._waiting = loop.create_future()
                await self._waiting
        except RpcFailed as err:
            # If the peer says why it ended the stream, that says more than our own error does.
            await asyncio.wait([self._tasks[1]], timeout=_CLOSE_TIMEOUT_S)
            self._owner.on_failure(self._number, err, "send to")
        except Exception as err:
            self._owner.on_failure(self._number, _unforeseen(err), "send to")
            raise  # to the owner of the task, as a fault of ours

    def _take(self, raw: bytes) -> None:
        """Take a message as it comes, without a turn of the task that waits for it."""
        try:
            self._owner.on_reply(self._number, raw)
        except Exception as err:  # noqa: BLE001  ends the stream, and is reported as in `_receive`
            self._owner.on_failure(self._number, _unforeseen(err), "recv from")
            # Our caller is the transport, which serves other calls of the connection. So a task of
            # the owner reports the fault.
            assert self._group is not None
            self._group.spawn(_raise(err), name=f"receive from {self.peer}")

    async def _receive(self) -> None:
        try:
            raw = await self._stream.read()
            if raw is not None:
                # The peer says in the headers of its stream under which tenure it keeps what we
                # send. They precede its first answer.
                self.tenure = await self._stream.tenure()
                self._stream.listen(self._take)
            while True:
                self._owner.on_reply(self._number, raw)
                if raw is None:
                    return
                raw = await self._stream.read()
        except RpcFailed as err:
            self._owner.on_failure(self._number, err, "recv from")
        except Exception as err:
            self._owner.on_failure(self._number, _unforeseen(err), "recv from")
            raise  # to the owner of the task, as a fault of ours
        finally:
            self.ended.set()


async def _raise(err: Exception) -> None:
    raise err


def _unforeseen(err: Exception) -> RpcFailed:
    return RpcFailed(Code.INTERNAL, f"unforeseen {type(err).__name__}: {err}")


@dataclass(frozen=True, slots=True)
class ContentMessage:
    """Content for the replica's spool."""

    delta: int
    content: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ProposalMessage:
    """A proposal. Only the first one of a stream has a header."""

    proposal: Proposal
    header: Header | None


def decode_request(raw: bytes) -> ContentMessage | ProposalMessage:
    """A message from a primary.

    Raises: RpcFailed: it is malformed.
    """
    plain = decode_replicate_content(raw)
    if plain is not None:
        return ContentMessage(*plain)
    try:
        message = pb.ReplicateRequest.FromString(raw)
        validate_replicate_request(message)
    except (DecodeError, ValidationError) as err:
        raise RpcFailed(Code.UNKNOWN, str(err)) from err
    if not message.HasField("proposal"):
        return ContentMessage(message.content_delta, message.content)
    proposal = Proposal(
        Fragment.from_pb(message.proposal),
        LabelSet.from_pb(message.registers),
        message.acknowledge,
    )
    header = Header.from_pb(message.header) if message.HasField("header") else None
    return ProposalMessage(proposal, header)


def encode_proposal(
    fragment: Fragment, registers: LabelSet, *, acknowledge: bool, header: Header | None = None
) -> bytes:
    """A proposal to a replica.

    Args:
        header: for the first message of a stream only. It names the peer that is meant.
    """
    message = pb.ReplicateRequest(acknowledge=acknowledge)
    fragment.into_pb(message.proposal)
    message.registers.SetInParent()
    registers.into_pb(message.registers)
    if header is not None:
        header.into_pb(message.header)
        message.deprecated_journal = fragment.journal
    return message.SerializeToString()


def decode_reply(raw: bytes) -> Reply:
    """A replica's answer.

    Raises: ValidationError: it is malformed.
    """
    # A plain OK encodes to nothing, and nearly all answers are that: no protobuf object for them.
    if not raw:
        return _OK
    try:
        message = pb.ReplicateResponse.FromString(raw)
    except DecodeError as err:
        raise ValidationError(f"malformed ReplicateResponse: {err}") from err
    validate_replicate_response(message)
    return Reply(
        Status(message.status),
        Header.from_pb(message.header) if message.HasField("header") else None,
        Fragment.from_pb(message.fragment) if message.HasField("fragment") else None,
        LabelSet.from_pb(message.registers) if message.HasField("registers") else None,
    )


_OK = Reply(Status.OK)


def encode_answer(answer: Answer, header: Header | None = None) -> bytes:
    """An answer to the primary.

    Args:
        header: for the first answer of a stream only.
    """
    message = pb.ReplicateResponse(status=answer.status.value)  # type: ignore[arg-type]
    if header is not None:
        header.into_pb(message.header)
    if answer.fragment is not None:
        answer.fragment.into_pb(message.fragment)
    if answer.registers is not None:
        message.registers.SetInParent()
        answer.registers.into_pb(message.registers)
    return message.SerializeToString()
