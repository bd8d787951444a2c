"""Publish messages of one producer, each in the journal that a mapping chooses for it.

A mapping is a function of a message. It chooses among `partitions`: a function that returns the current
journals in the brokers' order, and the same object until they change. Each message gets a UUID whose
clock is above that of the producer's message before, which is what readers deduplicate by.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, final

from gazette_platform.errors import ValidationError
from gazette_platform.message.content_types import framing_of
from gazette_platform.message.uuid import Flags, MessageClock, build_uuid, new_producer_id

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from gazette_platform.client.results import JournalListing, ListSnapshot
    from gazette_platform.client.write.append_queue import AppendTicket
    from gazette_platform.client.write.writers import AppendService
    from gazette_platform.message.framing import Framing
    from gazette_platform.ops.clock import Clock

# ------------------------------------------------------------------ mappings

M = TypeVar("M")

_FNV_OFFSET_BASIS = 2166136261
_FNV_PRIME = 16777619
_UINT32 = 0xFFFFFFFF


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash, which Gazette's mappings agree on.

    >>> fnv1a32(b"a") == 0xE40C292C
    True
    """
    value = _FNV_OFFSET_BASIS
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _UINT32
    return value


def modulo(key: bytes, count: int) -> int:
    """Index of the journal for `key` among `count`, in the order they are listed.

    A change of `count` moves most keys. Raises: ValidationError: there are none.
    """
    if count < 1:
        raise ValidationError("empty ListResponse: no journal to map a record to")
    return fnv1a32(key) % count


def rendezvous(key: bytes, journal_hashes: Sequence[int]) -> int:
    """Index of the journal for `key` by highest random weight, the first one on ties.

    One more journal moves only the keys that go to it.

    Args:
        journal_hashes: `fnv1a32` of each journal's name.

    Raises: ValidationError: there are none.
    """
    if not journal_hashes:
        raise ValidationError("empty ListResponse: no journal to map a record to")
    hashed = fnv1a32(key)
    best, best_weight = 0, 0
    for index, journal_hash in enumerate(journal_hashes):
        weight = hashed ^ journal_hash
        if weight > best_weight:
            best, best_weight = index, weight
    return best


class Mapped(NamedTuple):
    """Where a message goes."""

    journal: str
    content_type: str
    """Names the journal's framing; empty if its labels do not."""


def modulo_mapping(
    key_of: Callable[[M], bytes], partitions: Callable[[], ListSnapshot]
) -> Callable[[M], Mapped]:
    """Maps by `modulo` of a key; see there.

    Args:
        key_of: the key of a message, as bytes. It must not depend on its UUID, which comes later.

    The mapping raises ValidationError if there are no journals, or the key is anything but bytes.
    """

    def mapping(message: M) -> Mapped:
        journals = partitions().journals
        return _mapped(journals[modulo(_key(key_of, message), len(journals))])

    return mapping


def rendezvous_mapping(
    key_of: Callable[[M], bytes], partitions: Callable[[], ListSnapshot]
) -> Callable[[M], Mapped]:
    """Maps by `rendezvous` of a key; see there, and `modulo_mapping`."""
    known: tuple[ListSnapshot | None, list[int]] = (None, [])

    def mapping(message: M) -> Mapped:
        nonlocal known
        listed, (hashed, hashes) = partitions(), known
        if listed is not hashed:
            hashes = [fnv1a32(one.name.encode()) for one in listed]
            known = listed, hashes
        return _mapped(listed.journals[rendezvous(_key(key_of, message), hashes)])

    return mapping


def random_mapping(
    partitions: Callable[[], ListSnapshot], draw: random.Random
) -> Callable[[object], Mapped]:
    """Maps to any journal, all being equally likely."""

    def mapping(message: object) -> Mapped:  # noqa: ARG001  no matter which
        journals = partitions().journals
        if not journals:
            raise ValidationError("empty ListResponse: no journal to map a record to")
        return _mapped(draw.choice(journals))

    return mapping


def _key(key_of: Callable[[M], bytes], message: M) -> bytes:
    key: object = key_of(message)
    if not isinstance(key, bytes | bytearray | memoryview):
        # Text or numbers are not taken for it: programs that spread one key have to agree on its bytes.
        raise ValidationError(
            f"the key of a message to map must be bytes, and its function gave {key!r:.80} "
            '(encode it, as by str(…).encode(); None by b"", or another key of your choice)'
        )
    return bytes(key)


def _mapped(listing: JournalListing) -> Mapped:
    return Mapped(listing.name, listing.spec.labels.value_of("content-type"))


# ------------------------------------------------------------------ the publisher


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
        clock: gives the time; None: `message_clock` is updated by the caller alone.
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
        # For each journal of the open transaction what its ACK is made of. An ACK is a message of the
        # journal's framing, and only a message that went there shows the type.
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
        a transaction with missing ones is half published.

        Raises: ValidationError: an ACK cannot be stamped or written; the transaction stays open.
        """
        intents = []
        for journal, (framing, message) in self._open.items():
            # A tick for each: the ACK commits what its journal has up to its clock, so it must be above
            # the transaction's last message, whichever journal that went to.
            uuid = build_uuid(self.producer, self._message_clock.tick(), Flags.ACK_TXN)
            intents.append(AckIntent(journal, framing.encode(framing.stamp(message, uuid))))
        self._open.clear()
        return intents

    async def append_acks(self, intents: list[AckIntent]) -> None:
        """Append acknowledgements, and wait until all are committed. Readers drop repeated ones.

        Raises: GazetteError: one failed; others may be published. Cancellation: they are appended.
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
