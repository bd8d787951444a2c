"""The journals that match a selector, as of now, for mappings of messages."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, final

from gazette_platform.errors import TransportError

if TYPE_CHECKING:
    from gazette_platform.client.async_client import AsyncClient
    from gazette_platform.client.results import ListSnapshot
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import LabelSelector

__all__ = ["JournalWatch"]


@final
class JournalWatch:
    """Follows the journals that match; called, it gives the last snapshot.

    So it is the `partitions` of a mapping. It is behind brokers by the way of one message.

    Args:
        client: asks brokers. For a process that lives on without them, one that never gives up.
        selector: of journals.
    """

    def __init__(self, client: AsyncClient, selector: LabelSelector | str) -> None:
        self._client = client
        self._selector = selector
        self._known: ListSnapshot | None = None

    async def start(self, tasks: TaskGroup) -> None:
        """Get the first snapshot, and follow in a task of `tasks`, which are closed before the client.

        Raises: ValidationError: the selector does not parse; TransportError.
        Cancellation: safe.
        """
        self._known = await self._client.list_snapshot(self._selector)
        tasks.keep(self._follow, name=f"journals {self._selector}")

    async def _follow(self) -> None:
        async with aclosing(self._client.watch_snapshots(self._selector)) as snapshots:
            async for snapshot in snapshots:
                self._known = snapshot

    def __call__(self) -> ListSnapshot:
        """The same object until the journals change. Raises: TransportError: it was not started."""
        if self._known is None:
            raise TransportError(
                f"the journals of {self._selector} are not known yet (await `start` of their watch)"
            )
        return self._known
