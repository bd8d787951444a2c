"""Serves ResetHead: an operator's order that a journal continues after all that is stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from gazette_platform.broker.api.prologue import decode, endpoint_of, find
from gazette_platform.broker.append.batch import Outcome
from gazette_platform.broker.append.events import AppendRequest
from gazette_platform.broker.journal.claims import HoldersAway
from gazette_platform.broker.journal.pulses import barrier
from gazette_platform.broker.wire.forwarder import PeerCall, PeerFailed, with_header
from gazette_platform.protocol import AppendSuspend, Status, validate_journal_request
from gazette_platform.protocol.auth import ALL_CLAIMS, Capability
from gazette_platform.protocol.pb import admin_pb2 as pb
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.epochs import Holder
    from gazette_platform.broker.journal.replica import Replica
    from gazette_platform.broker.journal.resolver import Resolution, Resolver
    from gazette_platform.protocol.auth import Claims

__all__ = ["ResetHeadApi"]

_RESET_HEAD = "/gazette_platform.Admin/ResetHead"
# A peer of an earlier version asks for APPEND.
_NEEDED = Capability.APPLY | Capability.APPEND

# A broker that is about to come back, or to let go of what it has, is looked for at this pace.
_RETRY_S = 0.2


@final
class ResetHeadApi:
    """ResetHead of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver[Replica]) -> None:
        self._context = context
        self._resolver = resolver

    async def reset_head(self, raw: bytes, claims: Claims = ALL_CLAIMS) -> tuple[Status, bytes]:
        """Serve one ResetHead.

        Returns: the status, and the ResetHeadResponse that says so.
        Raises: RpcFailed: the request is malformed; UNAVAILABLE: brokers that serve the journal, or
            may store content of it, are out of reach, or the store cannot be listed.
        Cancellation: leaves open whether it was done.
        """
        request = decode(pb.ResetHeadRequest, raw, validate_journal_request)
        found = await find(
            self._resolver,
            request,
            claims,
            may_proxy=not request.HasField("header"),
            require_primary=True,
            min_revision=request.min_etcd_revision,
        )
        if found.is_remote:
            return await self._forward(request, found.resolution)
        response, status = pb.ResetHeadResponse(), found.status
        if found.replica is not None:
            status = await self._reset(found.replica, request, response)
        response.status = status.value  # type: ignore[assignment]
        found.resolution.header.into_pb(response.header)
        return status, response.SerializeToString()

    async def _reset(
        self, replica: Replica, request: pb.ResetHeadRequest, response: pb.ResetHeadResponse
    ) -> Status:
        """Reset the head of a journal of ours, if appends are refused. Returns: the status."""
        found = await self._ask(replica)
        awaited = found.holders if isinstance(found, HoldersAway) else ()
        if isinstance(found, Outcome) and found.status is not Status.INDEX_HAS_GREATER_OFFSET:
            return _told(replica, found, response)
        response.was_refused = True
        problem = await replica.wait_ready()
        if problem:
            response.store_health_error = problem
            return Status.FRAGMENT_STORE_UNHEALTHY
        # These offsets are about to be given out again. A broker that stored its old content there later
        # would contradict what is appended from now on.
        gives_up = request.give_up and not request.dry_run
        is_settled = await replica.settle_others(gives_up=gives_up)
        if not is_settled and (gives_up or not awaited):
            raise NotNow(
                f"{replica.name}: a broker may still store content of it, or the store could not be "
                "listed (see the logs; end brokers that hang)"
            )
        response.head = replica.head
        self._add_awaited(awaited, response)
        if request.dry_run or (awaited and not request.give_up):
            return Status.OK
        return _told(replica, await _barrier(replica, resets_head=True), response)

    async def _ask(self, replica: Replica) -> Outcome | HoldersAway:
        """The outcome of an append without content, once it is not about to change.

        Raises: RpcFailed: it is unknown.
        """
        clock = self._context.clock
        deadline = clock.monotonic() + self._context.config.append_wait_s
        while True:
            is_late = clock.monotonic() >= deadline
            try:
                outcome = await _barrier(replica)
                if is_late or outcome.status is not Status.INSUFFICIENT_JOURNAL_BROKERS:
                    return outcome
            except HoldersAway as err:
                # A holder that runs may be about to serve the journal, or to store what it has.
                if is_late or not any(map(self._is_running, err.holders)):
                    return err
            except RpcFailed as err:
                if is_late or err.code is not Code.UNAVAILABLE:
                    raise
            await asyncio.sleep(_RETRY_S)

    def _is_running(self, holder: Holder) -> bool:
        return holder.process in self._context.space.state.members

    def _add_awaited(self, holders: tuple[Holder, ...], response: pb.ResetHeadResponse) -> None:
        for holder in sorted(holders, key=lambda one: one.process):
            response.awaited.add(id=holder.process.to_pb(), is_running=self._is_running(holder))

    async def _forward(
        self, request: pb.ResetHeadRequest, found: Resolution
    ) -> tuple[Status, bytes]:
        endpoint, peers = endpoint_of(found), self._context.peers
        call = PeerCall(peers, endpoint, _RESET_HEAD, _NEEDED, request.journal)
        try:
            raw = await call.unary(with_header(request, found.header))
        except PeerFailed as err:
            raise RpcFailed(err.code, f"broker {endpoint}: {err.text}") from err
        return Status.from_wire(pb.ResetHeadResponse.FromString(raw).status), raw


async def _barrier(replica: Replica, *, resets_head: bool = False) -> Outcome:
    mode = AppendSuspend.SUSPEND_KEEP
    request = AppendRequest(replica.name, suspend=mode, resets_head=resets_head)
    outcome = await barrier(replica.appender, request)
    if outcome.is_remote:
        raise NotNow(f"{replica.name}: another broker takes it over")
    return outcome


def _told(replica: Replica, outcome: Outcome, response: pb.ResetHeadResponse) -> Status:
    """Put the outcome of an append into a response. Returns: its status."""
    if outcome.commit is not None:
        response.head = outcome.commit.end
    else:
        response.head = replica.head
    response.store_health_error = outcome.store_health_error
    return outcome.status
