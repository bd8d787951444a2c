"""Announces a process as a member of its cluster, and keeps what it says of itself up to date.

Source: Gazette allocator/alloc_run.go.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, cast, final

from gazette_platform.errors import EtcdError, TransactionFailed
from gazette_platform.etcd import Compare, EtcdClient, Get, KeyValue, Lease, Put
from gazette_platform.keyspace import encode_member_spec, member_key
from gazette_platform.ops.retry import backoff_s

if TYPE_CHECKING:
    from gazette_platform.keyspace import MemberSpec

__all__ = ["RETRY_S", "Announcement", "announce"]

_log = logging.getLogger(__name__)

RETRY_S = 10.0
"""Seconds between attempts while the key of an earlier instance exists, until its lease ends."""


@final
class Announcement:
    """Our member key in etcd. It vanishes with the lease.

    Attributes:
        revision: of its last change; load the key space at it, or later.
    """

    def __init__(self, client: EtcdClient, key: str, spec: MemberSpec, revision: int) -> None:
        self._client = client
        self._key = key
        self.spec = spec
        self.revision = revision

    async def update(self, spec: MemberSpec) -> None:
        """Change what we say of ourselves.

        Raises: TransactionFailed: another process changed or removed the key; it is not ours now.
                EtcdError: etcd did not answer; whether it was changed is unknown.
        """
        result = await self._client.txn(
            [Compare.mod(self._key, self.revision)],
            [Put(self._key, encode_member_spec(spec), ignore_lease=True)],
            [Get(self._key)],
        )
        if not result.succeeded:
            found = result.reads[0].kvs
            # The answer to an earlier attempt may have been lost.
            if not found or found[0].value != encode_member_spec(spec):
                raise TransactionFailed(
                    f"{self._key}: key modified or deleted externally "
                    f"(expected revision {self.revision}); this process has to start again"
                )
            self.revision = found[0].mod_revision
        else:
            self.revision = result.header.revision
        self.spec = spec

    async def set_exiting(self) -> None:
        """Ask the cluster to take our items over. Idempotent. Raises as `update`."""
        if not self.spec.exiting:
            await self.update(dataclasses.replace(cast("Any", self.spec), exiting=True))


async def announce(
    client: EtcdClient,
    prefix: str,
    spec: MemberSpec,
    lease: Lease,
    *,
    beside: Put | None = None,
    retry_s: float = RETRY_S,
) -> Announcement:
    """Create our member key under `lease`; wait for as long as another process holds it.

    A process that was killed leaves its key until its lease ends. A key under our own lease is
    ours: the answer to an earlier attempt was lost.

    Args:
        beside: another key of the member, written in the same transaction, under the same lease:
            earlier it would speak of the other process.
        retry_s: seconds between attempts.

    Raises: EtcdError: not retriable: etcd refuses, e.g. because the lease is gone.
    Cancellation: leaves the key, which ends with the lease.
    """
    key = member_key(prefix, spec.id)
    value = encode_member_spec(spec)
    writes = [Put(key, value, lease=lease.id)]
    if beside is not None:
        writes.append(dataclasses.replace(beside, lease=lease.id))
    failures = 0
    while True:
        try:
            result = await client.txn([Compare.version(key, 0)], writes, [Get(key)])
        except EtcdError as err:
            if not err.retriable:
                raise
            _log.warning("%s is not announced: %s", key, err)
            await asyncio.sleep(backoff_s(failures))
            failures += 1
            continue
        if result.succeeded:
            return Announcement(client, key, spec, result.header.revision)
        found: KeyValue = result.reads[0].kvs[0]
        if found.lease == lease.id:
            ours = Announcement(client, key, spec, found.mod_revision)
            if found.value != value:
                await ours.update(spec)
            return ours
        _log.warning(
            "%s exists under another lease (%x); waiting for it to end: an earlier instance of "
            "this process, or another with the same zone and id (choose another --broker.id or --consumer.id)?",
            key,
            found.lease,
        )
        await asyncio.sleep(retry_s)
