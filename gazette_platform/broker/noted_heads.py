"""Notes write heads in etcd for those who go on once this broker has left."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gazette_platform.broker.side_keys import own_member_key, own_members_prefix
from gazette_platform.errors import EtcdError
from gazette_platform.keyspace import member_key, members_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.replica import Replica

__all__ = ["note_heads"]

_log = logging.getLogger(__name__)

# Transactions under way at a time: each waits for the watch to bring it back.
_WRITES_MAX = 64


async def note_heads(
    context: BrokerContext, replicas: Iterable[Replica], *, timeout_s: float
) -> None:
    """Note write heads in the specs of journals of which nobody has a replica that stays.

    Else the next broker would start at offset 0 and refuse appends. They count even if content
    could not be persisted: readers have seen those bytes, and other bytes must not take their
    offsets. Of several replicas each notes its own head, which covers all that was
    acknowledged; the greatest stands.

    Args: timeout_s: seconds that each is given. Cancellation: leaves open which were noted.
    """
    all_leave = all(m.spec.exiting for m in context.space.state.members.values())
    ours = [r for r in replicas if all_leave or r.count_replicas().desired == 1]
    if not ours or await _has_foreign_members(context):
        return
    for at in range(0, len(ours), _WRITES_MAX):
        some = ours[at : at + _WRITES_MAX]
        await asyncio.gather(*(_note_head(replica, timeout_s) for replica in some))


async def _has_foreign_members(context: BrokerContext) -> bool:
    """Whether brokers of Gazette are members: they heed a noted head, and never take it back.

    Once they had appended behind it, it would have others begin at an offset that is taken.
    """
    prefix, members = context.config.etcd_prefix, context.space.state.members
    try:
        found = await context.etcd.range(own_members_prefix(prefix))
        # Our mirror may still show members that have left since, and took both keys along.
        present = await context.etcd.range(
            members_prefix(prefix), revision=found.header.revision, keys_only=True
        )
    except EtcdError as err:
        _log.warning("write heads are not noted, since etcd fails: %s", err)
        return True
    ours = {kv.key: kv.lease for kv in found.kvs}
    there = {kv.key: kv.lease for kv in present.kvs}
    foreign = [
        member
        for member, known in members.items()
        if there.get(member_key(prefix, member)) == known.lease
        and ours.get(own_member_key(prefix, member)) != known.lease
    ]
    if foreign:
        _log.warning(
            "write heads are not noted, since %s is a broker of Gazette (if no broker stays, "
            "run `gazctl journals reset-head` before the next append)",
            str(foreign[0]).strip(),
        )
    return bool(foreign)


async def _note_head(replica: Replica, timeout_s: float) -> None:
    try:
        # The mirror, which shows whether it is noted, may not be followed any more.
        async with asyncio.timeout(timeout_s):
            is_noted = await replica.note_head() or await replica.note_head()
    except (EtcdError, TimeoutError) as err:
        _log.warning("%s: %s", replica.name, err)
        is_noted = False
    if not is_noted:
        _log.warning(
            "%s: its write head %d is not noted in etcd "
            "(run `gazctl journals reset-head` before the next append)",
            replica.name,
            replica.spool.spool.end,
        )
