"""Asks other brokers to store what they hold of a journal.

One that had the journal before may persist it still, and so may replicas of one that crashed. A
broker that leaves, or has failed and gave up its lease so that others need not wait, says that it does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gazette_platform.broker.journal.storing import Unstored
from gazette_platform.broker.side_keys import storing_prefix
from gazette_platform.broker.wire.forwarder import PeerCall, PeerFailed, with_header
from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.errors import EtcdError
from gazette_platform.protocol import Header, Status
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import admin_pb2 as admin_pb

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.protocol import ProcessId

__all__ = ["ask_other", "ask_others", "call_flush"]

_log = logging.getLogger(__name__)

_FLUSH = "/gazette_platform.Admin/Flush"

# A broker that has more to persist, or hangs, is asked again.
_ASK_TIMEOUT_S = 10.0

# Lists of journals that are read at once: some 2 MB.
_PAGE_KEYS = 64


async def ask_others(context: BrokerContext, journal: str) -> bool:
    """Ask all other brokers once. Returns: whether none of them holds content that is in no store.

    What is missing in the stores then was pruned, or is lost. Cancellation: safe.
    """
    members = context.space.state.members.items()
    asked = {who: member.lease for who, member in members if who != context.process_id}
    answers = await asyncio.gather(*(ask_other(context, journal, who) for who in asked))
    try:
        # After the members were looked at: who fails says so before it ceases to be one.
        prefix = storing_prefix(context.config.etcd_prefix)
        found = await context.etcd.range(prefix, page_keys=_PAGE_KEYS)
    except EtcdError as err:
        _log.warning("%s: who still stores content of it is not known: %s", journal, err)
        return False
    leaving = [Unstored.decode(kv.value) for kv in found.kvs]
    if any(one.may_have(journal) for one in leaving):
        return False
    # Who leaves does not answer any more: it has said what it holds, and gets nothing more.
    told = {one.lease for one in leaving}
    return all(
        answer or lease in told for answer, lease in zip(answers, asked.values(), strict=True)
    )


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
    call = PeerCall(context.peers, endpoint, _FLUSH, Capability.APPEND, request.journal)
    try:
        raw = await call.unary(with_header(request, header))
    except PeerFailed as err:
        raise RpcFailed(err.code, f"broker {endpoint}: {err.text}") from err
    return Status.from_wire(admin_pb.FlushResponse.FromString(raw).status), raw
