"""The RPCs of a broker, as its transport calls them, and Replicate: a journal's primary writes to our spool.

A stream of Replicate owns the spool for as long as it lasts. It ends when its sender is not the primary of the
journal's route as *we* know it: a primary that froze and was replaced must not keep its successor
waiting, nor have anything acknowledged once the successor has begun. It also ends when the same primary
opens a newer stream. The primary has closed or lost the older one by then, which we may never hear of
if we were cut off.

Source: Gazette broker/replicate_api.go. Departs: Go's stream ends only when its sender ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Self, final

from gazette_platform.broker.api.admin import AdminApi, ResetHeadApi
from gazette_platform.broker.api.append import AppendApi
from gazette_platform.broker.api.append_calls import AppendCalls
from gazette_platform.broker.api.listing import FragmentsApi, ListApi
from gazette_platform.broker.api.read import ReadApi
from gazette_platform.broker.api.routing import Proxy, found_of
from gazette_platform.broker.peers import TENURE, PeerCall
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
from gazette_platform.ops.process import resident_bytes
from gazette_platform.ops.tasks import Interrupt, Interrupted
from gazette_platform.protocol import HISTORY, Status
from gazette_platform.protocol.auth import ALL_CLAIMS, Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb
from gazette_platform.serving.calls import before_expiry, failure_of
from gazette_platform.serving.interface import Code, Kind, NotTaken, Rpc, RpcFailed

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext, BrokerMetrics
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.broker.replicate.fsm import Effect
    from gazette_platform.broker.spool.journal_spool import Draft, JournalSpool
    from gazette_platform.protocol import Header, ProcessId
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.interface import (
        BidiStream,
        MessageStream,
        Metadata,
        Send,
        ServerStream,
    )


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
                if self._spool.is_held:
                    self._spool.release()  # content follows a claim
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


_JOURNAL, _ADMIN = "protocol.Journal", "gazette_platform.Admin"
_APPEND = "Append"
_GET_VITALS = f"/{_ADMIN}/GetVitals"

# How the API modules serve a call, without what all calls have in common.
_Once = Callable[[bytes, "Claims"], Awaitable[tuple[Status, bytes]]]
_Streamed = Callable[[bytes, "Send", "Claims"], Awaitable[None]]


@final
class _Counts:
    """Counts the calls of one kind."""

    def __init__(self, metrics: BrokerMetrics, name: str) -> None:
        self._completed, self._name = metrics.completed, name
        self.begun = metrics.tallies.of(metrics.started.labels(name))
        self.ok = metrics.tallies.of(metrics.completed.labels(name, "ok"))

    def end(self, status: Status) -> None:
        """A call has ended with a status."""
        if status is Status.OK:
            self.ok.count += 1
        else:
            self._completed.labels(self._name, status.name).inc()


@final
class BrokerService:
    """All RPCs, with what they have in common.

    Each call is counted and authorized, and ends when its caller's token expires. Its errors become
    codes and texts.

    Attributes:
        rpcs: all RPCs, by name.
        append: serves Append, over HTTP as well as gRPC. Its content may be None: all is in the request.
        read: serves Read, over HTTP as well as gRPC.
        list_journals: serves List, over HTTP as well as gRPC.
    """

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica]) -> None:
        self._context = context
        self._resolver = resolver
        self._metrics = context.metrics
        self._faults = context.faults
        self._auth = context.auth
        self._proxy = proxy = Proxy(context, resolver)
        self._list = listing = ListApi(context, resolver)
        self._read = ReadApi(context, resolver, proxy)
        context.leftovers.compare_with(self._read.compare)
        fragments, admin = FragmentsApi(context, resolver, proxy), AdminApi(context, resolver)
        replicate, heads = ReplicateApi(resolver), ResetHeadApi(context, resolver)
        can = Capability

        counts = self._counted(_APPEND)
        appends = AppendCalls(
            AppendApi(context, resolver, proxy),
            context.auth,
            context.membership,
            begun=counts.begun,
            ok=counts.ok,
            end=counts.end,
            failed=partial(self._failed, _APPEND),
        )
        self.append = appends.serve
        self.read = self._server_stream("Read", can.READ, self._read.read, is_resumed=True)
        self.list_journals = self._server_stream("List", can.LIST, listing.list_journals)
        replicated = self._bidi_stream("Replicate", can.REPLICATE, replicate.replicate)
        history = {HISTORY: context.identity.history}
        rpcs = [
            Rpc(_JOURNAL, _APPEND, Kind.CLIENT_STREAM, appends.serve, at_once=appends.at_once),
            Rpc(_JOURNAL, "Read", Kind.SERVER_STREAM, self.read),
            Rpc(_JOURNAL, "List", Kind.SERVER_STREAM, self.list_journals, history),
            Rpc(_JOURNAL, "Replicate", Kind.BIDI_STREAM, replicated),
            self._unary(_JOURNAL, "Apply", can.APPLY, listing.apply),
            self._unary(_JOURNAL, "ListFragments", can.READ, fragments.list_fragments),
            self._unary(_JOURNAL, "FragmentStoreHealth", can.READ, fragments.fragment_store_health),
            Rpc(
                _ADMIN,
                "AppendWhole",
                Kind.UNARY,
                appends.serve_whole,
                at_once=appends.whole_at_once,
            ),
            self._unary(_ADMIN, "Flush", can.APPEND, admin.flush),
            self._unary(_ADMIN, "ResetHead", can.APPLY, heads.reset_head),
            self._unary(_ADMIN, "CheckStores", can.APPLY, fragments.check_stores),
            self._unary(_ADMIN, "ListBrokers", can.APPLY, listing.list_brokers),
            self._unary(_ADMIN, "GetVitals", can.APPLY, self._get_vitals),
            self._unary(_ADMIN, "PutSavepoint", can.APPLY, admin.put_savepoint),
            self._unary(_ADMIN, "GetSavepoint", can.LIST, admin.get_savepoint),
            self._unary(_ADMIN, "ListSavepoints", can.LIST, admin.list_savepoints),
            self._unary(_ADMIN, "DeleteSavepoint", can.APPLY, admin.delete_savepoint),
        ]
        self.rpcs = {rpc.name: rpc for rpc in rpcs}

    def claims(self, metadata: Metadata, required: Capability) -> Claims:
        """The claims of a caller. Raises: Unauthenticated: it has no valid token. Forbidden: it lacks `required`."""
        return self._auth.authorize(metadata, required)

    @property
    def endpoint(self) -> str:
        """Where clients reach this broker, as etcd has it; empty: etcd does not know it."""
        member = self._context.space.state.members.get(self._context.process_id)
        return "" if member is None else member.spec.endpoint

    def vitals(self) -> dict[str, float]:
        """What this broker has appended, what it holds, and the seconds that its lease is good for."""
        context, replicas = self._context, self._resolver.replicas.values()
        return {
            "appended_bytes": context.metrics.spool_commit_bytes.count,
            "appends": context.metrics.spool_commits.count,
            "unpersisted_bytes": context.persister.unpersisted_bytes,
            "replicas": len(replicas),
            "primaries": sum(replica.is_primary for replica in replicas),
            "lease_left_s": context.membership.lease_left_s,
            "memory_bytes": resident_bytes(),
            "cpu_s": round(time.process_time(), 3),
            "at": round(context.clock.now().timestamp(), 3),
        }

    async def _get_vitals(self, raw: bytes, claims: Claims) -> tuple[Status, bytes]:
        """Serve GetVitals."""
        del raw, claims  # has no fields, and names no journal
        return Status.OK, admin_pb.GetVitalsResponse(vitals=self.vitals()).SerializeToString()

    async def peer_vitals(self, endpoint: str) -> dict[str, float]:
        """The vitals of another broker. Raises: RpcFailed: it does not answer, or is one of Gazette. Cancellation: safe."""
        call = PeerCall(self._context.peers, endpoint, _GET_VITALS, Capability.APPLY, "")
        request = admin_pb.GetVitalsRequest().SerializeToString()
        return {**admin_pb.GetVitalsResponse.FromString(await call.unary(request)).vitals}

    @property
    def is_leaving(self) -> bool:
        """Whether it ends the streams that would otherwise last for ever."""
        return self._list.is_stopping

    def stop_watches(self) -> None:
        """End the streams that would otherwise last for ever."""
        self._list.stop_watches()
        self._proxy.stop_reads()

    def _unary(self, service: str, name: str, capability: Capability, method: _Once) -> Rpc:
        counts = self._counted(name)

        async def serve(request: bytes, metadata: Metadata) -> bytes:
            counts.begun.count += 1
            try:
                claims = self._auth.authorize(metadata, capability)
                status, response = await before_expiry(
                    self._auth.limit(claims), method(request, claims)
                )
            except RpcFailed:
                self._count_error(name)
                raise  # and not `from` itself: that cycle would keep what its frames hold
            except Exception as err:
                raise self._failed(name, err) from err
            counts.end(status)
            return response

        return Rpc(service, name, Kind.UNARY, serve)

    def _bidi_stream(
        self,
        name: str,
        capability: Capability,
        method: Callable[[MessageStream, Metadata, Claims], Awaitable[None]],
    ) -> BidiStream:
        counts = self._counted(name)

        async def serve(stream: MessageStream, metadata: Metadata) -> None:
            counts.begun.count += 1
            try:
                claims = self._auth.authorize(metadata, capability)
                await before_expiry(self._auth.limit(claims), method(stream, metadata, claims))
            except RpcFailed:
                self._count_error(name)
                raise  # and not `from` itself: that cycle would keep what its frames hold
            except Exception as err:
                raise self._failed(name, err) from err
            counts.end(Status.OK)

        return serve

    def _server_stream(
        self, name: str, capability: Capability, method: _Streamed, *, is_resumed: bool = False
    ) -> ServerStream:
        """Serve a call that is answered by a stream of responses.

        Args:
            is_resumed: whether the stream ends without an error when its caller's token expires, as
                Gazette's reads do: clients go on with another read and a new token.
        """
        counts = self._counted(name)
        cancelled = self._metrics.completed.labels(name, "cancelled")

        async def serve(request: bytes, send: Send, metadata: Metadata) -> None:
            counts.begun.count += 1
            try:
                claims = self._auth.authorize(metadata, capability)
                limit = self._auth.limit(claims)

                async def send_whole(raw: bytes) -> None:
                    due_at = limit.when()
                    limit.reschedule(None)
                    await send(raw)
                    limit.reschedule(due_at)

                sender = send if claims.expires_at is None else send_whole
                await before_expiry(limit, method(request, sender, claims))
            except NotTaken:
                cancelled.inc()
                raise
            except RpcFailed as err:
                self._count_error(name)
                if is_resumed and err.code is Code.DEADLINE_EXCEEDED:
                    return
                raise
            except Exception as err:
                raise self._failed(name, err) from err
            except asyncio.CancelledError:
                cancelled.inc()
                raise
            counts.end(Status.OK)

        return serve

    def _counted(self, name: str) -> _Counts:
        return _Counts(self._metrics, name)

    def _count_error(self, operation: str) -> None:
        self._metrics.completed.labels(operation, "error").inc()

    def _failed(self, operation: str, err: Exception) -> RpcFailed:
        """Count a call that failed. Returns: the error for its caller."""
        self._count_error(operation)
        if isinstance(err, RpcFailed):
            return err
        return failure_of(operation, err, self._faults)
