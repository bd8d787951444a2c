"""What applications publish with: messages of the transaction that is under way.

What a small transaction publishes is not appended before its commit, but in one append with its
acknowledgement. Until then it is kept as that is: in the checkpoint, which whoever restores it appends
again. That makes two appends one behind the other, the store's and this, where there would be three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from gazette_platform.message import AckIntent, Mapped, MessageClock, Publisher
from gazette_platform.ops.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.client import AppendService, AsyncClient
    from gazette_platform.ops.clock import Clock

__all__ = ["TransactionPublisher"]

M = TypeVar("M")

_KNOWN_JOURNALS: Final = 1024

_HELD_BYTES_MAX: Final = 16 << 10
"""What a transaction may publish to have it in its checkpoint, which is written twice: here and there."""


@final
class TransactionPublisher:
    """Publishes messages that count once the transaction is committed and acknowledged.

    One producer for the whole life of a primary. By one task at a time, the one that consumes.

    Args:
        client: asks what content-type a journal has.
        appends: of the shard; its order is that of the journal, ACKs among it.
        clock: tells the time.
    """

    def __init__(self, client: AsyncClient, appends: AppendService, clock: Clock) -> None:
        self._client = client
        self._appends = appends
        self._clock = clock
        self._message_clock = MessageClock()
        # It goes with the time at the begin of each transaction, and not within one.
        self._publisher: Publisher[Any] = Publisher(
            appends, None, None, message_clock=self._message_clock
        )
        self._known: Lru[str, Mapped] = Lru(_KNOWN_JOURNALS)
        # By journal, what is to be appended with the ACK; None: the transaction has become too large.
        self._held: dict[str, list[bytes]] | None = {}
        self._held_bytes = 0

    @property
    def producer(self) -> bytes:
        """As in the UUIDs of its messages."""
        return self._publisher.producer

    async def publish(self, to: str | Callable[[M], Mapped], message: M) -> None:
        """Publish a message. It gets its UUID here.

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
        mapped: Mapped | Callable[[M], Mapped]
        if not isinstance(to, str):
            mapped = to
        elif (known := self._known.get(to)) is not None:
            mapped = known
        else:
            labels = (await self._client.get(to)).spec.labels
            mapped = Mapped(to, labels.value_of("content-type"))
            self._known.put(to, mapped)
        if self._held is None:
            await self._appends.room()
        journal, frame = self._publisher.frame_uncommitted(message, mapped)
        if self._held is not None and self._held_bytes + len(frame) > _HELD_BYTES_MAX:
            self._append_held()
        if self._held is None:
            _ = self._appends.submit_nowait(journal, frame)
        else:
            self._held.setdefault(journal, []).append(frame)
            self._held_bytes += len(frame)

    def _append_held(self) -> None:
        """Hold nothing more of this transaction: what was is appended now, in its order."""
        held, self._held = self._held, None
        for journal, frames in (held or {}).items():
            _ = self._appends.submit_nowait(journal, b"".join(frames))

    def begin(self) -> None:
        """A transaction begins: raise the clock to the time of now."""
        self._message_clock.update(int(self._clock.unix_s() * 1e6) * 1000)

    def build_acks(self) -> list[AckIntent]:
        """End the transaction: its acknowledgements, with what is to be appended along with them.

        Raises: ValidationError: an ACK cannot be stamped or written.
        """
        held = self._held or {}
        intents = [
            AckIntent(each.journal, b"".join((*held.get(each.journal, ()), each.content)))
            for each in self._publisher.build_acks()
        ]
        self._held, self._held_bytes = {}, 0
        return intents
