"""What users write: an application, which consumes messages, keeps state and publishes.

    class Counts(Application[MemoryStore, dict]):
        def new_store(self, shard, recorder):
            return MemoryStore(Counter())

        def consume(self, txn, envelope):
            txn.store.state[envelope.message.get("word")] += 1

One object serves all shards of a process. Callbacks of one shard never run at the same time; those of
several shards do. After a failure they may run again for the same message: only what a transaction
commits, in its store and by its publisher, happens once. If a callback raises, the shard fails.

Messages are appended before the store commits, and acknowledged after it. A checkpoint holds the
acknowledgements alone. Each restart appends what the checkpoint holds, and readers recognize a repeated message
only for as long as they remember its producer. A repeated acknowledgement commits nothing, however late.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, final

from gazette_platform.consumer.store import ShardStore
from gazette_platform.consumer.transaction import Progress
from gazette_platform.errors import ApplicationFailed, ValidationError
from gazette_platform.message import (
    AckIntent,
    JsonFraming,
    Mapped,
    MessageClock,
    ProtoFraming,
    Publisher,
    framing_of_labels,
)
from gazette_platform.ops.lru import Lru
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from aiohttp.web import UrlDispatcher

    from gazette_platform.client import AppendService, AsyncClient
    from gazette_platform.consumer.assignments import ShardAssignment
    from gazette_platform.consumer.peers import ConsumerPeers
    from gazette_platform.consumer.protocol import Checkpoint, ShardSpec
    from gazette_platform.consumer.recoverylog import FsmHints, Recorder
    from gazette_platform.consumer.resolver import ShardResolver
    from gazette_platform.message import Envelope, ReplayRange
    from gazette_platform.message.framing import Unframing
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import JournalSpec
    from gazette_platform.serving.auth import Authenticator

StoreT = TypeVar("StoreT", bound=ShardStore)
MessageT = TypeVar("MessageT")
M_co = TypeVar("M_co", covariant=True)


class DeferToNextTransaction(Exception):
    """Raised by an application: the message is for the next transaction, which begins with it.

    This transaction reads no more. The first message of a transaction cannot be deferred.

    Args:
        consumed: of a batch, how many of its messages were consumed before.
    """

    def __init__(self, consumed: int = 0) -> None:
        self.consumed = consumed
        super().__init__(f"deferred to the next transaction, behind {consumed} messages of a batch")


class ServingProcess(Protocol):
    """The process that an application serves from, as `Application.init` gets it."""

    client: AsyncClient
    """Of brokers; it never gives up."""
    resolver: ShardResolver
    """Who serves a shard, and its store if we do."""
    peers: ConsumerPeers
    """Calls of other processes, which answer in our place."""
    auth: Authenticator
    """Says what a caller may do, by its token."""
    tasks: TaskGroup
    """Owns what runs as long as the process does."""
    faults: Faults
    """Counts unforeseen errors that end a call only."""
    stopping: asyncio.Event
    """Set once it leaves: calls that take long should end."""

    def add_servicer(self, add: Callable[[Any, Any], None], servicer: Any) -> None:
        """Serve a gRPC service; see `ConsumerProcess`."""
        ...

    def add_pages(self, add: Callable[[UrlDispatcher], None]) -> None:
        """Serve pages; see `ConsumerProcess`."""
        ...


class MessageBatches(Protocol[M_co]):
    """Batches of envelopes: a reader of messages, or an asynchronous generator."""

    def __aiter__(self) -> AsyncIterator[list[Envelope[Any]]]:
        """Itself."""
        ...

    async def aclose(self) -> None:
        """End it."""
        ...


@final
@dataclass(slots=True, eq=False)
class Shard:
    """A shard that is assigned to this process, as applications see it."""

    id: str
    fqn: str
    """Its key in etcd, which no other shard has: under this name remote stores keep checkpoints."""
    spec: ShardSpec
    """As of now: it changes while the shard runs."""
    assignment: ShardAssignment
    client: AsyncClient
    """Reads, lists and appends. An append by itself is at least once, and no commit waits for it."""
    appends: AppendService
    """Of this shard: a transaction commits only after all that was accepted before its end is appended."""
    progress: Progress = field(default_factory=Progress)
    recovered_hints: FsmHints | None = None
    """Of the files that were recovered, before the store was opened; None without a log."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the shard is not assigned to this process any more."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Transaction(Generic[StoreT]):
    """What is consumed, changed and published at once, or not at all."""

    shard: Shard
    store: StoreT
    publisher: TransactionPublisher


class Application(ABC, Generic[StoreT, MessageT]):
    """See the module. Override `new_store`, and `consume` or `consume_batch`.

    Callbacks that may be awaited are plain functions or coroutine functions.

    Attributes:
        message_type: what messages are decoded into: `dict`, a type that msgspec knows (its own
            structures, dataclasses and others), or a class of protobuf. Each field needs a default, as an
            ACK may have none of them.
        uuid_field: name of the field with the UUID, in messages of `message_type`; "": the framing's own.
        options: of its own, for its program; `configure` gets their values.
    """

    message_type: ClassVar[type[Any]] = dict
    uuid_field: ClassVar[str] = ""
    options: ClassVar[tuple[Option, ...]] = ()

    def configure(self, values: Mapping[str, Any]) -> None:
        """Take the values of `options`, by their names; its program calls it before all else.

        Raises: ValidationError: one is out of range; the program ends with that text.
        """

    @abstractmethod
    def new_store(self, shard: Shard, recorder: Recorder | None) -> StoreT | Awaitable[StoreT]:
        """Open the store of a shard.

        Args:
            recorder: of the files in its `directory`, which were recovered; None: the shard has no log,
                and the state lives elsewhere.
        """

    def init(self, process: ServingProcess) -> Awaitable[None] | None:  # noqa: ARG002  to be overridden
        """The process starts, and is not a member of its group yet: add services and pages to it."""
        return None

    def framing(self, journal: JournalSpec) -> Unframing[MessageT]:
        """How messages of a source are decoded: by its label `content-type`, into `message_type`.

        Raises: ValidationError: the journal has no framing, or not one for `message_type`; or that has no field
            for the UUID.
        """
        found = framing_of_labels(journal.labels)
        kind = self.message_type
        options: dict[str, Any] = {"uuid_field": self.uuid_field} if self.uuid_field else {}
        if isinstance(found, JsonFraming):
            if kind is not dict or options:
                return JsonFraming(message_type=None if kind is dict else kind, **options)
        elif isinstance(found, ProtoFraming):
            if kind is not dict:
                return ProtoFraming(message_type=kind, **options)
            if not found.has_uuids:
                raise ValidationError(
                    f"messages of {journal.name} are protobuf: set `message_type` to their generated class, or "
                    "their UUIDs cannot be found"
                )
        return found

    def consume(
        self, txn: Transaction[StoreT], envelope: Envelope[MessageT]
    ) -> Awaitable[None] | None:
        """Consume one message, which is committed.

        ACKs come as well, after what they commit: their flags are `Flags.ACK_TXN`, and their content
        means nothing.

        Raises: DeferToNextTransaction: not in this transaction.
        """
        raise NotImplementedError

    def consume_batch(
        self, txn: Transaction[StoreT], envelopes: Sequence[Envelope[MessageT]]
    ) -> Awaitable[None] | None:
        """Consume messages, which are committed, in their order; the same as `consume` of each.

        Faster, as it is called once for up to about a thousand messages, and used instead of `consume`
        where it is overridden. A transaction does not end within a batch, unless by deferring.

        Raises: DeferToNextTransaction: some are not for this transaction.
        """
        raise NotImplementedError

    def finalize(self, txn: Transaction[StoreT]) -> Awaitable[None] | None:  # noqa: ARG002  to be overridden
        """End the transaction: bring to the store what is cached, publish what is left to be."""
        return None

    def begin(self, txn: Transaction[StoreT]) -> Awaitable[None] | None:  # noqa: ARG002  to be overridden
        """A transaction begins, with a message that it consumes next. May wait, as for a turn."""
        return None

    def finished(self, txn: Transaction[StoreT], commit: asyncio.Future[None]) -> None:
        """A transaction that was begun ended, once for each `begin` that returned. Must not wait.

        Args:
            commit: of the store, which may be under way; if the transaction was given up, it has failed
                or was cancelled.
        """

    def read(
        self,
        shard: Shard,  # noqa: ARG002  to be overridden
        store: StoreT,  # noqa: ARG002
        checkpoint: Checkpoint,  # noqa: ARG002
    ) -> MessageBatches[MessageT] | None:
        """Messages to sequence, if they are not to be read from the shard's sources.

        When they end, the transaction is committed, a checkpoint restored, and this called again.

        Returns: batches in the order of their journals; None: the sources are read.
        """
        return None

    def replay(
        self,
        shard: Shard,  # noqa: ARG002  to be overridden
        store: StoreT,  # noqa: ARG002
        wanted: ReplayRange,  # noqa: ARG002
    ) -> MessageBatches[MessageT] | None:
        """A part of a journal again: exactly the messages that `read` gave of it.

        Returns: batches that end where the range does; None: it is read from the journal.
        """
        return None

    def read_through(
        self,
        shard: Shard,  # noqa: ARG002  to be overridden
        store: StoreT,  # noqa: ARG002
        offsets: Mapping[str, int],
    ) -> Mapping[str, int]:
        """What to wait for until all before `offsets` is consumed.

        Override it with `read`, if the offsets that others know are not those of the messages.
        """
        return offsets


def raised_by(
    application: Application[Any, Any], callback: str, error: Exception
) -> ApplicationFailed:
    """What a program ends with when a callback raises something that is not an error of ours."""
    return ApplicationFailed(
        f"{type(application).__name__}.{callback} raised {type(error).__name__}: {error} "
        "(GAZETTE_TRACEBACK=1 shows where)"
    )


def takes_batches(application: Application[Any, Any]) -> bool:
    """Whether it is `consume_batch` that an application overrides.

    Raises: ValidationError: it consumes nothing.
    """
    kind = type(application)
    if kind.consume_batch is not Application.consume_batch:
        return True
    if kind.consume is Application.consume:
        raise ValidationError(
            f"{kind.__name__} consumes nothing: override `consume` or `consume_batch`"
        )
    return False


_TAKEN: Final = frozenset({"broker", "consumer", "etcd", "log"})


@final
@dataclass(frozen=True, slots=True)
class Option:
    """One option of ``serve`` and ``print-config``: a flag, a key of gazette.ini, and a variable.

    Raises: ValidationError: the name has no group, or one that every consumer has.
    """

    name: str
    """A group and a key with a dot between them: ``wordcount.N`` is the flag ``--wordcount.N``, the key
    ``N`` of the section ``[Wordcount]``, and the variable ``WORDCOUNT_N``."""
    kind: type
    """str, int, bool or Path; float stands for a duration in seconds, given as ``1m30s``."""
    default: Any
    """A value of that kind, or None."""
    help: str
    """One sentence."""

    def __post_init__(self) -> None:
        group, _, key = self.name.partition(".")
        if not group or not key or group.lower() in _TAKEN:
            raise ValidationError(
                f"expected a group of your own, a dot and a key ({self.name!r}; {', '.join(sorted(_TAKEN))} "
                "are taken)",
                path="Option.name",
            )
        if self.kind not in {str, int, bool, float} and self.kind.__name__ != "Path":
            raise ValidationError(
                f"{self.name}: no option has values of {self.kind.__name__}", path="Option.kind"
            )

    @property
    def variable(self) -> str:
        """Name of its environment variable."""
        return self.name.replace(".", "_").replace("-", "_").upper()


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
