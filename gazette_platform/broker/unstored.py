"""Asks other brokers to store what they hold of a journal.

One that had the journal before may persist it still, and so may replicas of one that crashed. A
broker that has failed, and gave up its lease so that others need not wait, says that it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gazette_platform.broker.side_keys import storing_key, storing_prefix
from gazette_platform.broker.wire.grpc_calls import of_call
from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.protocol import Header, Status, strip_meta
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.etcd import Lease
    from gazette_platform.protocol import ProcessId

__all__ = ["ask_other", "ask_others", "call_flush", "still_storing"]

_log = logging.getLogger(__name__)

_FLUSH = "/gazette_platform.Admin/Flush"

# A broker that has more to persist, or hangs, is asked again.
_ASK_TIMEOUT_S = 10.0

# Saying that a broker still stores must hold up neither its journals nor its end.
_SAY_TIMEOUT_S = 2.0


async def ask_others(context: BrokerContext, journal: str) -> bool:
    """Ask all other brokers once. Returns: whether none of them holds content that is in no store.

    What is missing in the stores then was pruned, or is lost. Cancellation: safe.
    """
    asked = [who for who in context.space.state.members if who != context.process_id]
    answers = await asyncio.gather(*(ask_other(context, journal, who) for who in asked))
    if not all(answers):
        return False
    try:
        # After the members were looked at: who fails says so before it ceases to be one.
        failed = await context.etcd.page(storing_prefix(context.config.etcd_prefix), page_keys=1)
    except EtcdError as err:
        _log.warning("%s: who still stores content of it is not known: %s", journal, err)
        return False
    return failed.count == 0


async def ask_other(context: BrokerContext, journal: str, member: ProcessId) -> bool:
    """Ask a broker to persist what it holds of a journal. Returns: whether none is left.

    A primary closes its open fragment for that. Cancellation: safe.
    """
    state = context.space.state
    known = state.members.get(member)
    if known is None:
        return True  # it left, after it had persisted; or it crashed, and there is no more
    header = Header(member, state.route_of(journal), context.space.header)
    request = admin_pb.FlushRequest(journal=journal)
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            status, _ = await call_flush(context, known.spec.endpoint, request, header)
    except RpcFailed as err:
        # Gazette's brokers cannot be asked. They persist what they have within minutes.
        return err.code is Code.UNIMPLEMENTED
    except TimeoutError:
        return False
    return status in (Status.OK, Status.NOT_JOURNAL_PRIMARY_BROKER)


async def call_flush(
    context: BrokerContext, endpoint: str, request: admin_pb.FlushRequest, header: Header
) -> tuple[Status, bytes]:
    """Send a Flush to the broker that `header` means.

    Returns: the status of the FlushResponse, and the response. Raises: RpcFailed.
    Cancellation: safe.
    """
    forwarded = admin_pb.FlushRequest()
    forwarded.CopyFrom(request)
    header.into_pb(forwarded.header)
    peers = context.peers
    method = peers.channel(endpoint).unary_unary(_FLUSH)
    metadata = peers.metadata(Capability.APPEND, strip_meta(request.journal))
    try:
        call = method(forwarded.SerializeToString(), metadata=metadata)
        raw = bytes(await of_call(call, call))
    except RpcFailed as err:
        raise RpcFailed(err.code, f"broker {endpoint}: {err.text}") from err
    return Status.from_wire(admin_pb.FlushResponse.FromString(raw).status), raw


@contextlib.asynccontextmanager
async def still_storing(context: BrokerContext) -> AsyncGenerator[None]:
    """While a broker that is about to be no member any more stores what it holds.

    Others take its journals, and tell nobody meanwhile that all of them is stored, or pruned.
    """
    lease = await _say_storing(context)
    try:
        yield
    finally:
        if lease is not None:
            with contextlib.suppress(EtcdError):
                await lease.revoke(timeout_s=_SAY_TIMEOUT_S)


async def _say_storing(context: BrokerContext) -> Lease | None:
    """Returns: the lease under which it is said; None: etcd is not to be had."""
    etcd, config = context.etcd, context.config
    try:
        async with asyncio.timeout(_SAY_TIMEOUT_S):
            lease = await etcd.grant_lease(max(1, round(config.etcd_lease_s)))
            key = storing_key(config.etcd_prefix, context.process_id, lease.id)
            await etcd.put(key, b"", lease=lease.id)
    except (EtcdError, TimeoutError) as err:
        _log.warning("others may take what this broker still stores for lost: %s", err)
        return None
    context.tasks.spawn(_keep_alive(lease), name="storing")
    return lease


async def _keep_alive(lease: Lease) -> None:
    with contextlib.suppress(LeaseLost):  # others go on as after a crash
        await lease.keep_alive()
