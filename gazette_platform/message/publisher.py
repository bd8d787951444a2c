"""Messages of one producer: each with a UUID, in the order of its clock, in the journal that it maps to."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from gazette_platform.errors import ValidationError
from gazette_platform.message.registry import framing_of
from gazette_platform.message.uuid import Flags, MessageClock, build_uuid, new_producer_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.client.write.append_queue import AppendTicket
    from gazette_platform.client.write.writers import AppendService
    from gazette_platform.message.framing import Framing
    from gazette_platform.message.mapping import Mapped
    from gazette_platform.ops.clock import Clock

__all__ = ["AckIntent", "Publisher"]

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class AckIntent:
    """The acknowledgement of a transaction in one journal, framed: to keep, and then to append.

    It never contains messages: it is appended again after each restart, and readers remember a producer
    for a day only.
    """

    journal: str
    content: bytes


@final
class Publisher(Generic[M]):
    """Publishes messages by an append service, and acknowledges transactions.

    A message gets its UUID at the moment at which it takes its place in the journal, so that the clocks
    of a producer rise in each journal, however many tasks publish. Keep one for the life of a process:
    readers remember each producer. Use from one event loop.

    A message whose type has a method ``validate`` is asked by it before it is mapped, and has no UUID yet.
    What that raises is raised here, and the message is not published. Acknowledgements are not asked.

    Args:
        service: appends.
        mapping: which journal a message goes to, and its content-type; called before there is a UUID.
            None: each message is published `to` one.
        clock: tells the time; None: `message_clock` is updated by the caller alone.
        message_clock: of the producer; None: a new one.
        producer: 6 bytes; empty: a new one.
        framing: of all journals; None: the one that is registered for the content-type.

    Attributes:
        service: as given.
        producer: as in the UUIDs.
    """

    def __init__(
        self,
        service: AppendService,
        mapping: Callable[[M], Mapped] | None,
        clock: Clock | None,
        *,
        message_clock: MessageClock | None = None,
        producer: bytes = b"",
        framing: Framing[M] | None = None,
    ) -> None:
        self.producer = producer or new_producer_id()
        self.service = service
        self._mapping = mapping
        self._clock = clock
        self._message_clock = message_clock or MessageClock()
        self._framing = framing
        # For each journal of the open transaction what its ACK is made of.
        self._open: dict[str, tuple[Framing[Any], M]] = {}

    async def publish_committed(self, message: M) -> AppendTicket:
        """Publish a message that counts by itself. Any number of tasks may.

        Returns: a ticket to await the commit of the append with.

        Raises:
            GazetteError: an append of the journal failed before.
            ValidationError: it cannot be mapped, stamped or written.
            Exception: whatever the message's ``validate`` raises.

        Cancellation: safe; the message is accepted or not.
        """
        return await self._publish(message, Flags.OUTSIDE_TXN)

    async def publish_uncommitted(
        self, message: M, *, to: Mapped | Callable[[M], Mapped] | None = None
    ) -> AppendTicket:
        """Publish a message that counts once its transaction is acknowledged; by one task at a time.

        See `build_acks`. Returns, raises, cancellation: as `publish_committed`.

        Args:
            to: where it goes, or another mapping, which says so; None: as the publisher's mapping says.
        """
        return await self._publish(message, Flags.CONTINUE_TXN, to)

    def build_acks(self) -> list[AckIntent]:
        """End the transaction: its acknowledgements, in the order in which journals joined it.

        Keep them where they survive a crash before appending them, and append them again after one:
        a transaction of which some are missing is half there.

        Raises: ValidationError: an ACK cannot be stamped or written; the transaction stays open.
        """
        intents = []
        for journal, (framing, message) in self._open.items():
            uuid = build_uuid(self.producer, self._message_clock.tick(), Flags.ACK_TXN)
            intents.append(AckIntent(journal, framing.encode(framing.stamp(message, uuid))))
        self._open.clear()
        return intents

    async def append_acks(self, intents: list[AckIntent]) -> None:
        """Append acknowledgements, and wait until all are committed. Readers drop repeated ones.

        Raises: GazetteError: one failed; others may be there. Cancellation: they are appended.
        """
        tickets = [await self.service.submit(each.journal, each.content) for each in intents]
        for ticket in tickets:
            await ticket

    async def _publish(
        self, message: M, flags: Flags, to: Mapped | Callable[[M], Mapped] | None = None
    ) -> AppendTicket:
        journal, content_type = self._mapped(message, to)
        framing: Framing[Any] = self._framing or framing_of(content_type)
        joins = flags == Flags.CONTINUE_TXN and journal not in self._open
        # Made before the message is accepted, which could not be acknowledged if there was none.
        ack = framing.acknowledgement(message) if joins else None
        await self.service.room()
        # From here on nothing waits: clocks are taken in the order in which appends are.
        ticket = self.service.submit_nowait(journal, self._frame(message, framing, flags))
        if ack is not None:
            self._open.setdefault(journal, (framing, ack))
        return ticket

    def _mapped(self, message: M, to: Mapped | Callable[[M], Mapped] | None) -> Mapped:
        validate = getattr(type(message), "validate", None)
        # pydantic has a class method of that name, which is something else.
        if isfunction(validate):
            validate(message)
        to = self._mapping if to is None else to
        if to is None:
            raise ValidationError("this publisher has no mapping: say where the message goes")
        return to(message) if callable(to) else to

    def _frame(self, message: M, framing: Framing[Any], flags: Flags) -> bytes:
        if self._clock is not None:
            self._message_clock.update(int(self._clock.unix_s() * 1e6) * 1000)
        uuid = build_uuid(self.producer, self._message_clock.tick(), flags)
        return framing.encode(framing.stamp(message, uuid))
