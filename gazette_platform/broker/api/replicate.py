"""Serves Replicate: a journal's primary writes to our spool.

A stream owns the spool for as long as it lasts. It ends when its sender is not the primary of the
journal's route as *we* know it: a primary that froze and was replaced must not keep its successor
waiting, nor have anything acknowledged once the successor has begun. It also ends when the same primary
opens a newer stream. The primary has closed or lost the older one by then, which we may never hear of
if we were cut off.

Source: Gazette broker/replicate_api.go. Departs: Go's stream ends only when its sender ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self, final

from gazette_platform.broker.api.routing import found_of
from gazette_platform.broker.peers import TENURE
from gazette_platform.broker.replicate.fsm import (
    Abort,
    Answer,
    Commit,
    Discard,
    ReplicateFSM,
    Roll,
    SpoolState,
    Write,
)
from gazette_platform.broker.replicate.pipeline import (
    ContentMessage,
    ProposalMessage,
    decode_request,
    encode_answer,
)
from gazette_platform.ops.tasks import Interrupt, Interrupted
from gazette_platform.protocol import Status
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.broker.replicate.fsm import Effect
    from gazette_platform.broker.spool.journal_spool import Draft, JournalSpool
    from gazette_platform.protocol import Header, ProcessId
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.interface import MessageStream, Metadata


# Seconds that a stream has to end by itself once its sender has opened a newer one: content that was
# sent before the older one was closed may still be on its way.
_DISPLACE_AFTER_S = 1.0


@final
class ReplicateApi:
    """Replicate RPCs of one broker."""

    def __init__(self, resolver: Resolver[Replica]) -> None:
        self._resolver = resolver
        # The stream that owns a spool, for each spool that is owned.
        self._reigns: dict[JournalSpool, _Reign] = {}

    async def replicate(
        self, stream: MessageStream, metadata: Metadata, claims: Claims = ALL_CLAIMS
    ) -> None:
        """Serve one Replicate stream, to its end.

        Raises: RpcFailed: the stream was malformed, or its sender is not the primary any more. What
            was not committed is forgotten.
        Cancellation: what was not committed is forgotten.
        """
        raw = await stream.next()
        if raw is None:
            return
        first = decode_request(raw)
        if not isinstance(first, ProposalMessage) or first.header is None:
            raise RpcFailed(Code.UNKNOWN, "expected first ReplicateRequest to have Header")
        while True:
            resolution = await self._resolver.resolve(
                first.proposal.fragment.journal,
                may_proxy=False,
                require_primary=False,
                proxy_header=first.header,
                claims=claims,
            )
            header, found = resolution.header, found_of(self._resolver, resolution)
            status, replica = found.status, found.replica
            if status is Status.OK and not header.route.equivalent(first.header.route):
                status = Status.WRONG_ROUTE
            if status is not Status.OK or replica is None:
                await stream.send(encode_answer(Answer(status), header))
                return
            sender = first.header.route.primary_id
            with _Reign(self._resolver, replica, sender) as reign:
                try:
                    await reign.interrupt.wait(self._acquire(replica.spool, sender))
                except Interrupted:
                    continue  # the journal resolves to something else now
                self._reigns[replica.spool] = reign
                try:
                    if not self._is_equivalent(first.header, replica.name):
                        continue
                    await self._greet(stream, metadata, replica)
                    session = _Session(stream, replica.spool, reign.interrupt, header)
                    await session.run(first)
                except Interrupted:
                    raise RpcFailed(
                        Code.UNAVAILABLE, f"{replica.name}: {sender}{reign.end}"
                    ) from None
                else:
                    return
                finally:
                    del self._reigns[replica.spool]
                    replica.spool.lock.release()

    async def _acquire(self, spool: JournalSpool, sender: ProcessId | None) -> None:
        """Wait for a spool; an older stream of the same sender gives way. Cancellation: safe."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISPLACE_AFTER_S):
                await spool.lock.acquire()
                return
        holder = self._reigns.get(spool)
        if holder is not None and holder.primary == sender:
            holder.displace()
        await spool.lock.acquire()

    @staticmethod
    async def _greet(stream: MessageStream, metadata: Metadata, replica: Replica) -> None:
        """Report to a primary of this project what we hold; it then knows that this survives our process.

        Raises: RpcFailed: our disk is full or broken, or the stream broke.
        """
        if TENURE in metadata:
            await stream.greet({TENURE: await replica.spool.begin_tenure()})
        else:
            replica.renounce()

    def _is_equivalent(self, header: Header, journal: str) -> bool:
        """Whether the sender's route is the journal's, as of now."""
        found = self._resolver.resolve_now(journal, may_proxy=False, require_primary=False)
        return found.header.route.equivalent(header.route)


@final
class _Reign:
    """The time in which a broker is primary of a journal that we replicate, and its stream the newest."""

    def __init__(
        self, resolver: Resolver[Replica], replica: Replica, primary: ProcessId | None
    ) -> None:
        self._resolver = resolver
        self._replica = replica
        self.primary = primary
        self.interrupt = Interrupt()
        """Fires when the reign ends."""
        self.end = "is not its primary any more"
        """Why it ended, for the stream."""

    def __enter__(self) -> Self:
        self._replica.watchers.add(self.on_change)
        self.on_change()
        return self

    def displace(self) -> None:
        """End the stream, because the same primary has a newer one."""
        self.end = "has opened another stream"
        self.interrupt.fire()

    def __exit__(self, *exc_info: object) -> None:
        self._replica.watchers.discard(self.on_change)

    def on_change(self) -> None:
        """The journal's spec or assignments changed, or the replica closes."""
        replica = self._replica
        is_ours = self._resolver.replicas.get(replica.name) is replica and not replica.is_closed
        if not is_ours or replica.route.primary_id != self.primary:
            self.interrupt.fire()


@final
class _Session:
    """One stream while it owns the spool."""

    def __init__(
        self, stream: MessageStream, spool: JournalSpool, reign: Interrupt, header: Header
    ) -> None:
        self._stream = stream
        self._spool = spool
        self._reign = reign
        self._header: Header | None = header
        self._draft: Draft | None = None

    async def run(self, first: ProposalMessage) -> None:
        """Take messages until the sender ends the stream. Raises: RpcFailed, Interrupted."""
        spool = self._spool
        await spool.catch_up()
        machine = ReplicateFSM(SpoolState(spool.proposal(), spool.registers))
        message: ContentMessage | ProposalMessage = first
        while True:
            if self._reign.is_fired:
                raise Interrupted("not the primary any more")
            if isinstance(message, ContentMessage):
                content = message.content
                effect = machine.on_content(len(content), message.delta)
                if isinstance(effect, Abort):
                    raise RpcFailed(Code.UNKNOWN, effect.text)
                assert isinstance(effect, Write)
                if self._draft is None:
                    self._draft = spool.draft(with_digest=True)
                await self._draft.write([content], len(content))
            else:
                draft = self._draft
                following = draft.fragment() if draft is not None else machine.state.fragment
                for effect in machine.on_proposal(message.proposal, following.sum):
                    await self._carry_out(effect)
            raw = await self._reign.wait(self._stream.next())
            if raw is None:
                return
            message = decode_request(raw)

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Roll(to, codec, registers, is_urgent):
                self._draft = None
                self._spool.roll(to, registers=registers, codec=codec, is_urgent=is_urgent)
            case Commit(registers):
                assert self._draft is not None
                await self._spool.keep(self._draft, registers)
                self._spool.commit(self._draft, registers)
                self._draft = None
            case Discard():
                self._draft = None
            case Answer(status):
                if status is Status.OK:
                    self._spool.confirm()
                header, self._header = self._header, None
                await self._reign.wait(self._stream.send(encode_answer(effect, header)))
            case Abort(text):
                raise RpcFailed(Code.UNKNOWN, text)
            case _:
                raise AssertionError(effect)
