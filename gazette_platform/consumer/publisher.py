"""The publisher of applications: it publishes messages of the open transaction.

Messages are appended before the store commits, and acknowledged after it. A checkpoint keeps the
acknowledgements alone: each restart appends what the checkpoint keeps, and readers know a repeated message
only for as long as they remember its producer. A repeated acknowledgement commits nothing, however late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from gazette_platform.errors import ApplicationFailed
from gazette_platform.message import AckIntent, Mapped, MessageClock, Publisher
from gazette_platform.ops.lru import Lru
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gazette_platform.client import AppendService, AsyncClient
    from gazette_platform.ops.clock import Clock

M = TypeVar("M")

_KNOWN_JOURNALS: Final = 1024


@final
class TransactionPublisher:
    """Publishes messages that count once the transaction is committed and acknowledged.

    One producer for the whole life of a primary. By one task at a time, the one that consumes.

    Args:
        client: asks what content-type a journal has.
        appends: of the shard; its order is that of the journal, ACKs among it.
        clock: gives the time.
    """

    def __init__(self, client: AsyncClient, appends: AppendService, clock: Clock) -> None:
        self._client = client
        self._appends = appends
        self._clock = clock
        # One clock for all journals: an ACK's clock is then above those of all messages before it.
        self._message_clock = MessageClock()
        # It goes with the time at the begin of each transaction, and not within one.
        self._publisher: Publisher[Any] = Publisher(
            appends, None, None, message_clock=self._message_clock
        )
        self._under_way = 0  # calls of `publish` that have not ended
        self._known: Lru[str, Mapped] = Lru(_KNOWN_JOURNALS)

    @property
    def producer(self) -> bytes:
        """As in the UUIDs of its messages."""
        return self._publisher.producer

    def publish(self, to: str | Callable[[M], Mapped], message: M) -> Coroutine[Any, Any, None]:
        """Publish a message, which gets its UUID here. Await it: a call that is not awaited fails the transaction.

        Args:
            to: a journal, or a mapping, which chooses one.
            message: in a form that the journal's framing knows. If its type has a method ``validate``, that is
                called first.

        Raises:
            JournalNotFound: there is no such journal.
            ValidationError: the message cannot be mapped, stamped or written.
            GazetteError: an append of the journal failed before.
            Exception: whatever the message's ``validate`` raises.

        Cancellation: safe; the message is accepted or not.
        """
        # Counted here and not in the coroutine, which never starts if the application forgets to await it.
        self._under_way += 1
        return self._publish(to, message)

    async def _publish(self, to: str | Callable[[M], Mapped], message: M) -> None:
        try:
            await self._accept(to, message)
        finally:
            self._under_way -= 1

    async def _accept(self, to: str | Callable[[M], Mapped], message: M) -> None:
        mapped: Mapped | Callable[[M], Mapped]
        if not isinstance(to, str):
            mapped = to
        elif (known := self._known.get(to)) is not None:
            mapped = known
        else:
            labels = (await self._client.get(to)).spec.labels
            mapped = Mapped(to, labels.value_of("content-type"))
            self._known.put(to, mapped)
        _ = await self._publisher.publish_uncommitted(message, to=mapped)

    def begin(self) -> None:
        """A transaction begins: raise the clock to the time of now."""
        self._message_clock.update(int(self._clock.unix_s() * 1e6) * 1000)

    def build_acks(self) -> list[AckIntent]:
        """End the transaction. Returns: its acknowledgements.

        Raises: ValidationError: an ACK cannot be stamped or written. ApplicationFailed: a message is not published.
        """
        if self._under_way:
            raise ApplicationFailed(
                f"{counted(self._under_way, 'call')} of `publish` did not end before the transaction did, so that "
                "messages would be lost: write `await txn.publisher.publish(…)`"
            )
        return self._publisher.build_acks()
