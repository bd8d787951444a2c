"""A leaving broker names in etcd the journals whose unstored content it still holds.

Other brokers cannot ask it once its port is closed, nor find it once its member key is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from gazette_platform.broker.side_keys import storing_key
from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.ops.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Any

    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.journal.resolver import Resolver
    from gazette_platform.etcd import Lease

__all__ = ["Unstored", "still_storing"]

_log = logging.getLogger(__name__)

# A longer list would be a burden to etcd, which takes values of some 1.5 MB, and to all who read it.
_VALUE_BYTES_MAX = 32 << 10

# Seconds between two looks at what is still to be stored.
_LOOK_S = 1.0

_REVOKE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Unstored:
    """What a leaving broker says of itself.

    The value in etcd has one line for the lease and one for each journal. If there are too many
    journals to name, the value is empty, which stands for any journal.
    """

    lease: int
    """That of its member key, which differs from one instance of a broker to the next; 0: unknown."""
    journals: frozenset[str] | None
    """Those whose unstored content it may hold; None: it may be any."""

    def encode(self) -> bytes:
        """The value in etcd."""
        if self.journals is None:
            return b""
        lines = (f"{self.lease:x}", *sorted(self.journals))
        value = "".join(f"{line}\n" for line in lines).encode()
        return value if len(value) <= _VALUE_BYTES_MAX else b""

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a value. One that is not understood stands for any journal."""
        lease, *journals = value.decode(errors="replace").split("\n")
        try:
            return cls(int(lease, 16), frozenset(filter(None, journals)))
        except ValueError:
            return cls(0, None)

    def may_have(self, journal: str) -> bool:
        """Whether the broker may hold content of a journal that is in no store."""
        return self.journals is None or journal in self.journals


@contextlib.asynccontextmanager
async def still_storing(
    context: BrokerContext, resolver: Resolver[Any], lease: int
) -> AsyncGenerator[asyncio.Event]:
    """Say in etcd, within this block, that this broker still stores content and cannot be asked.

    Other brokers may have taken its journals by then. Because of what it says, they report to no one
    meanwhile that all content is stored, or pruned. Etcd may be away at that moment: if it is away for
    longer than a lease, all brokers fail at once. So this tries again for as long as it takes.

    Args:
        lease: that of our member key.

    Gives: an event that is set once it is said. No step of leaving should wait long for it.
    """
    storing = _Storing(context, resolver, lease)
    saying = context.tasks.spawn(storing.run(), name="storing")
    try:
        yield storing.said
    finally:
        saying.cancel()
        await storing.end()


@final
class _Storing:
    def __init__(self, context: BrokerContext, resolver: Resolver[Any], member_lease: int) -> None:
        self._context = context
        self._resolver = resolver
        self._member_lease = member_lease
        self._lease: Lease | None = None
        self._value: bytes | None = None
        self.said = asyncio.Event()

    async def run(self) -> None:
        """Say it, and again whenever it changes or etcd has lost it, until cancelled."""
        failures = 0
        while True:
            try:
                await self._say()
            except EtcdError as err:
                _log.warning("others may take what this broker still stores for lost: %s", err)
                await asyncio.sleep(backoff_s(failures))
                failures += 1
            else:
                failures = 0
                self.said.set()
                await asyncio.sleep(_LOOK_S)

    async def end(self) -> None:
        """Take back what was said."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(EtcdError):  # the lease ends by itself
                await lease.revoke(timeout_s=_REVOKE_TIMEOUT_S)

    async def _say(self) -> None:
        """Write what we hold to etcd, if that has changed. Raises: EtcdError."""
        etcd, config = self._context.etcd, self._context.config
        if self._lease is None:
            self._value = None
            self._lease = await etcd.grant_lease(max(1, round(config.etcd_lease_s)))
            self._context.tasks.spawn(self._keep(self._lease), name="storing lease")
        lease = self._lease
        # The list never grows: journals with an open replica are named even while they have no content.
        journals = frozenset(self._resolver.open_journals | self._context.persister.journals)
        value = Unstored(self._member_lease, journals).encode()
        if value != self._value:
            key = storing_key(config.etcd_prefix, self._context.process_id, lease.id)
            await etcd.put(key, value, lease=lease.id)
            self._value = value

    async def _keep(self, lease: Lease) -> None:
        with contextlib.suppress(LeaseLost):
            await lease.keep_alive()
        if self._lease is lease:
            self._lease = None  # lost: `run` says it again under a new one
