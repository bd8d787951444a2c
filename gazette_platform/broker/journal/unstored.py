"""Asks other brokers to store what they hold of a journal.

A broker that had the journal before may still be persisting it, and so may the replicas of a primary
that crashed. A broker that leaves says in etcd that it still stores content, and so does one that has
failed and gave up its lease so that others need not wait for that to end (see `storing`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gazette_platform.broker.journal.storing import Unstored
from gazette_platform.broker.side_keys import storing_prefix
from gazette_platform.broker.wire.forwarder import PeerCall, PeerFailed, with_header
from gazette_platform.errors import EtcdError
from gazette_platform.protocol import Header, Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.protocol import ProcessId

__all__ = ["ask_other", "ask_others", "call_flush"]

_log = logging.getLogger(__name__)

_FLUSH = "/gazette_platform.Admin/Flush"

# Seconds to wait for an answer. A broker that takes longer, or hangs, is asked again.
_ASK_TIMEOUT_S = 10.0

# Values of leaving brokers that are read at a time: some 2 MB together.
_PAGE_KEYS = 64


async def ask_others(context: BrokerContext, journal: str, *, gives_up: bool = False) -> bool:
    """Ask all other brokers once to store what they hold of a journal.

    Args:
        gives_up: whether they store also what is known of a holder that is not whole.

    Returns: whether none of them holds content that is in no store. Whatever the stores lack then
        was pruned, or only brokers have it that are not members now.
    Cancellation: safe.
    """
    members = context.space.state.members.items()
    asked = {who: member.lease for who, member in members if who != context.process_id}
    answers = await asyncio.gather(
        *(ask_other(context, journal, who, gives_up=gives_up) for who in asked)
    )
    try:
        # Read after the members were: a broker that fails says so before it ceases to be a member.
        prefix = storing_prefix(context.config.etcd_prefix)
        found = await context.etcd.range(prefix, page_keys=_PAGE_KEYS)
    except EtcdError as err:
        _log.warning("%s: who still stores content of it is not known: %s", journal, err)
        return False
    leaving = [Unstored.decode(kv.value) for kv in found.kvs]
    if any(one.may_have(journal) for one in leaving):
        return False
    # A leaving broker does not answer any more. It has said what it holds, and gets nothing new.
    told = {one.lease for one in leaving}
    return all(
        answer or lease in told for answer, lease in zip(answers, asked.values(), strict=True)
    )


async def ask_other(
    context: BrokerContext, journal: str, member: ProcessId, *, gives_up: bool = False
) -> bool:
    """Ask a broker to persist what it holds of a journal; a primary closes its open fragment for that.

    Returns: whether it holds nothing more that is in no store.
    Cancellation: safe.
    """
    state = context.space.state
    known = state.members.get(member)
    if known is None:
        return True  # it left after it had persisted all, or it crashed and cannot be asked
    header = Header(member, state.route_of(journal), context.space.header)
    request = admin_pb.FlushRequest(journal=journal, gives_up=gives_up)
    try:
        async with asyncio.timeout(_ASK_TIMEOUT_S):
            status, _ = await call_flush(context, known.spec.endpoint, request, header)
    except RpcFailed as err:
        # Gazette's brokers do not know this call. They persist what they have within minutes.
        return err.code is Code.UNIMPLEMENTED
    except TimeoutError:
        return False
    return status in (Status.OK, Status.NOT_JOURNAL_PRIMARY_BROKER)


async def call_flush(
    context: BrokerContext, endpoint: str, request: admin_pb.FlushRequest, header: Header
) -> tuple[Status, bytes]:
    """Send a Flush to the broker that `header` means.

    Returns: the status of the FlushResponse, and the response.
    Raises: RpcFailed.
    Cancellation: safe.
    """
    needed = Capability.APPEND | (Capability.APPLY if request.gives_up else 0)
    call = PeerCall(context.peers, endpoint, _FLUSH, Capability(needed), request.journal)
    try:
        raw = await call.unary(with_header(request, header))
    except PeerFailed as err:
        raise RpcFailed(err.code, f"broker {endpoint}: {err.text}") from err
    return Status.from_wire(admin_pb.FlushResponse.FromString(raw).status), raw
