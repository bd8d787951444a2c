"""The client for asyncio programs.

`AsyncClient` checks arguments and hands each call to the module that makes it: `journals`, `admin`,
`read` and `write`. `JournalWatch` follows the journals of a selector.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, Unpack, final

from gazette_platform.client import admin, journals
from gazette_platform.client.config import ClientConfig
from gazette_platform.client.read.reader import Reader, ReadOptions
from gazette_platform.client.results import (
    AppendResult,
    FragmentListing,
    FragmentPage,
    FragmentQuery,
    HeadState,
    JournalListing,
    ListSnapshot,
    Savepoint,
    StoreHealth,
)
from gazette_platform.client.transport import Transport
from gazette_platform.client.write.append import AppendOptions, Content, ContentSource, append
from gazette_platform.client.write.append_queue import BATCH_BYTES_MAX, BUFFER_BYTES_MAX
from gazette_platform.client.write.writers import AppendService, AppendWriter
from gazette_platform.errors import (
    CallFailed,
    GazetteError,
    IndexHasGreaterOffset,
    JournalNotFound,
    Suspended,
    TransportError,
    ValidationError,
    WrongAppendOffset,
)
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.tasks import AsyncClosing, TaskGroup, side_by_side
from gazette_platform.protocol import (
    AppendSuspend,
    JournalChange,
    LabelSelector,
    LabelSet,
    strip_meta,
    validate_apply_request,
    validate_journal_name,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from gazette_platform.client.transport import ClientCounts
    from gazette_platform.protocol import BrokerSpec
    from gazette_platform.serving.interface import ClientChannel

# An attempt fails only if the head has moved meanwhile.
_RESET_ATTEMPTS = 5

# How many journals are flushed, or asked for their write heads, at the same time.
_JOURNALS_AT_A_TIME = 32

# Aliases, because inside the class `list` is a method.
JournalListings = list[JournalListing]
FragmentListings = list[FragmentListing]
Savepoints = list[Savepoint]


@final
class AsyncClient(AsyncClosing):
    """Lists, applies, appends to and reads journals of a cluster of brokers.

    Opens no connection before the first call, and belongs to the event loop that makes it. Every call
    retries what is likely to pass, for as long as `ClientConfig` says. It raises a `StatusError` for
    what brokers refuse, and a `TransportError` if they did not answer.

    Args:
        channels: by endpoint, of brokers in this process.
    """

    def __init__(
        self,
        config: ClientConfig | None = None,
        *,
        clock: Clock | None = None,
        channels: Mapping[str, ClientChannel] | None = None,
    ) -> None:
        self.config = config or ClientConfig()
        self._clock = clock or SystemClock()
        self._tasks = TaskGroup("client")
        self._transport = Transport(self.config, self._clock, self._tasks, channels=channels)
        self._is_closed = False

    @property
    def counts(self) -> ClientCounts:
        """What it moved, for metrics."""
        return self._transport.counts

    async def close(self) -> None:
        """End background appends and calls, and close all connections. May be called again.

        What append writers have not committed is lost, so close them first.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.read_ahead.close()
        await self._tasks.close()
        await self._transport.close()

    # ------------------------------------------------------------------ journals

    async def list_snapshot(self, selector: LabelSelector | str = "") -> ListSnapshot:
        """All journals that match, and the header of the answer; see `list`."""
        return await journals.list_journals(self._transport, _selector(selector))

    async def list(self, selector: LabelSelector | str = "") -> JournalListings:
        """All journals whose labels match, ordered by name.

        Args:
            selector: as ``name:prefix=a/,region=eu``; empty matches all.

        Raises: ValidationError: the selector does not parse; TransportError.
        Cancellation: safe.
        """
        return [*await self.list_snapshot(selector)]

    async def watch_snapshots(
        self, selector: LabelSelector | str = ""
    ) -> AsyncGenerator[ListSnapshot, None]:
        """The journals that match now, and again after each change of their specs."""
        async for snapshot in journals.watch_journals(self._transport, _selector(selector)):
            yield snapshot

    async def watch(
        self, selector: LabelSelector | str = ""
    ) -> AsyncGenerator[JournalListings, None]:
        """As `list`, at once and again after each change of specs; changes of routes alone do not count.

        Cancellation: safe; ends the watch, as leaving the iteration does.
        """
        async for snapshot in self.watch_snapshots(selector):
            yield [*snapshot]

    async def get(self, journal: str) -> JournalListing:
        """The listing of one journal.

        Raises: JournalNotFound.
        Cancellation: safe.
        """
        name = _journal(journal)
        selector = LabelSelector(include=LabelSet.of(name=strip_meta(name)))
        for found in await self.list_snapshot(selector):
            return found
        raise JournalNotFound(journal=name)

    async def apply(self, changes: Sequence[JournalChange], *, batch_size: int = 0) -> int:
        """Create, update and delete journals in one transaction, or in batches.

        Args:
            changes: each with the revision it expects: 0 to create, -1 not to check.
            batch_size: changes per transaction; 0: all. Batches before a failed one stay applied.

        Returns: revision of etcd after the last transaction.

        Raises:
            EtcdTransactionFailed: another caller has changed a journal since.
            ValidationError: a change is invalid.
            TransportError: whether it was applied is unknown.

        Cancellation: whether it was applied is unknown.
        """
        if batch_size < 0:
            raise ValidationError(f"must not be negative ({batch_size})", path="batch_size")
        validate_apply_request(journals.apply_request(changes))
        return await journals.apply_changes(self._transport, changes, batch_size=batch_size)

    # ------------------------------------------------------------------ appends

    async def append(
        self,
        journal: str,
        data: ContentSource,
        *,
        offset: int = 0,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
        subtract_registers: LabelSet | None = None,
        suspend: AppendSuspend = AppendSuspend.SUSPEND_RESUME,
        min_revision: int = 0,
        with_sum: bool = True,
    ) -> AppendResult:
        """Append all of `data` as one span: readers see all of it or nothing.

        At-least-once: if the answer to an append is lost, the append is made again. Content of a
        one-shot iterator cannot be sent again; then the error is raised. Content must also keep
        coming: brokers roll back a stream that is slower than their minimum rate (64 KiB/s unless
        configured).

        Args:
            journal: its name.
            data: bytes, or an iterable of them, plain or async.
            offset: where it must begin; 0: anywhere.
            check_registers: must match the journal's registers, if it has any.
            union_registers: labels to set in the registers; needs content.
            subtract_registers: labels to remove from the registers; needs content.
            suspend: what to do about a suspended journal, or whether to suspend it.
            min_revision: what `apply` returned elsewhere; the broker waits until it has seen it.
            with_sum: whether the result needs the SHA-1. Large appends take less time without.

        Returns: where it was committed.
        Raises: StatusError: refused, nothing was appended; TransportError: the outcome is unknown.
        Cancellation: rolls back, unless all content was sent: then the outcome is unknown.
        """
        if offset < 0:
            raise ValidationError(f"must not be negative ({offset})", path="offset")
        options = AppendOptions(
            offset=offset,
            check_registers=check_registers,
            union_registers=union_registers,
            subtract_registers=subtract_registers,
            suspend=suspend,
            min_revision=min_revision,
            with_sum=with_sum,
        )
        return await append(self._transport, _journal(journal), Content(data), options)

    def append_service(
        self, *, batch_bytes_max: int = BATCH_BYTES_MAX, buffer_bytes_max: int = BUFFER_BYTES_MAX
    ) -> AppendService:
        """Appends to many journals of many callers, in few RPCs; see `AppendService`.

        Args:
            batch_bytes_max: about how many bytes become one append.
            buffer_bytes_max: bytes of all journals that may be accepted and not yet committed.
        """
        return AppendService(self._transport, batch_bytes_max, buffer_bytes_max)

    def append_writer(
        self,
        journal: str,
        *,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
        subtract_registers: LabelSet | None = None,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> AppendWriter:
        """A writer that turns many small writes into few appends; see `AppendWriter`.

        Args:
            journal: its name.
            check_registers: as of `append`, for each batch.
            union_registers: as of `append`, for each batch.
            subtract_registers: as of `append`, for each batch.
            batch_bytes_max: a batch of this size takes no more writes.
            buffer_bytes_max: `write` waits while so many bytes are not committed yet.
        """
        options = AppendOptions(
            check_registers=check_registers,
            union_registers=union_registers,
            subtract_registers=subtract_registers,
        )
        name = _journal(journal)
        return AppendWriter(self._transport, name, options, batch_bytes_max, buffer_bytes_max)

    # ------------------------------------------------------------------ reads

    def read(
        self,
        journal: str,
        offset: int = 0,
        *,
        block: bool = False,
        end_offset: int = 0,
        metadata_only: bool = False,
        begin_mod_time: int = 0,
        direct: bool = False,
        on_jump: Literal["raise", "continue"] = "raise",
        min_revision: int = 0,
        from_savepoint: str = "",
        created: int = 0,
    ) -> Reader:
        """Content of a journal from `offset` on; see `Reader`.

        Args:
            journal: its name.
            offset: first byte; -1: the write head.
            block: whether to wait for more at the write head, for ever.
            end_offset: where to end; 0: nowhere.
            metadata_only: whether to fetch no content, only `Reader`'s attributes.
            begin_mod_time: Unix seconds; fragments persisted before are skipped.
            direct: whether to fetch persisted fragments from their store, if it can be reached.
            on_jump: what to do about content that is gone.
            min_revision: as for `append`. What this client itself has applied is known to every
                broker that answers it.
            from_savepoint: name of a savepoint with the first byte, instead of `offset`. The
                reader raises `SavepointNotFound` if there is none, or it says nothing of the journal.
            created: of the journal that `offset` belongs to, as its listing has it. The reader raises
                `JournalReplaced` if another journal has the name now, or later while it reads; 0: not known.
        """
        options = ReadOptions(
            block=block,
            end_offset=end_offset,
            metadata_only=metadata_only,
            begin_mod_time=begin_mod_time,
            direct=direct,
            on_jump=on_jump,
            min_revision=min_revision,
            from_savepoint=from_savepoint,
            created=created,
        )
        return Reader(self._transport, _journal(journal), offset, options)

    def tail(
        self,
        journal: str,
        offset: int = -1,
        *,
        direct: bool = False,
        on_jump: Literal["raise", "continue"] = "raise",
    ) -> Reader:
        """A blocking read, from the write head unless an offset is given."""
        return self.read(journal, offset, block=True, direct=direct, on_jump=on_jump)

    async def write_head(self, journal: str) -> int:
        """The offset that the next append will begin at. Cancellation: safe."""
        async with self.read(journal, -1, metadata_only=True) as reader:
            async for _ in reader:
                pass
            return max(reader.write_head, reader.offset)

    async def write_heads(self, journals: Sequence[JournalListing]) -> dict[str, int]:
        """As `write_head`, of many journals that were listed, by their names; some are asked at a time.

        The listing has the head of fully suspended journals: no broker serves them.

        Raises: as `write_head`, for the first that fails, which ends all. Cancellation: safe.
        """
        heads = await side_by_side(self._head_of, journals, at_a_time=_JOURNALS_AT_A_TIME)
        return dict(zip((journal.name for journal in journals), heads, strict=True))

    async def _head_of(self, journal: JournalListing) -> int:
        suspend = journal.spec.suspend
        if suspend is not None and journal.spec.is_fully_suspended:
            return suspend.offset
        return await self.write_head(journal.name)

    # ------------------------------------------------------------------ fragments and upkeep

    async def fragment_page(self, journal: str, **query: Unpack[FragmentQuery]) -> FragmentPage:
        """One page of `fragments`, for callers that bound their work."""
        return await journals.fragment_page(self._transport, _journal(journal), **query)

    async def fragment_pages(
        self, journal: str, **query: Unpack[FragmentQuery]
    ) -> AsyncGenerator[FragmentPage, None]:
        """All pages of `fragments`, fetched as they are asked for."""
        while True:
            page = await self.fragment_page(journal, **query)
            yield page
            if page.next_page_token == 0:
                return
            query["next_page_token"] = page.next_page_token

    async def fragments(self, journal: str, **query: Unpack[FragmentQuery]) -> FragmentListings:
        """All fragments of a journal, by offset. Those that only brokers hold have no backing store.

        Args:
            journal: its name.
            query: keyword arguments as of `FragmentQuery`.

        Raises: JournalNotFound, Suspended, NotAllowed, TransportError. Cancellation: safe.
        """
        pages = self.fragment_pages(journal, **query)
        return [fragment async for page in pages for fragment in page.fragments]

    async def reset_head(self, journal: str, *, give_up: bool = False) -> int:
        """Let appends continue after all that is stored, when brokers that held more do not come back.

        What only those brokers hold is given up. If they come back, they set it aside.

        Args:
            journal: its name.
            give_up: whether to go on even if such brokers may come back.

        Returns: the write head.

        Raises:
            SpoolsAwaited: there are such brokers; `check_head` names them.
            StatusError: the broker refused.
            TransportError: no broker answered.

        Cancellation: leaves open whether it was done.
        """
        try:
            state = await admin.reset_head(self._transport, journal, give_up=give_up)
        except CallFailed as err:
            if err.code != "UNIMPLEMENTED":
                raise
            return await self._reset_head_by_append(journal)
        if state.awaited and not give_up:
            raise admin.awaiting(journal, state)
        return state.head

    async def check_head(self, journal: str) -> HeadState:
        """What `reset_head` would do. Raises: StatusError, TransportError. Cancellation: safe."""
        try:
            return await admin.reset_head(self._transport, journal, dry_run=True)
        except CallFailed as err:
            if err.code != "UNIMPLEMENTED":
                raise
            return HeadState(await self.write_head(journal), is_refused=False)

    async def _reset_head_by_append(self, journal: str) -> int:
        """Reset the head of a journal of Gazette's own brokers, which have no call for it."""
        attempt = 1
        while True:
            head = await self.write_head(journal)
            try:
                await self.append(journal, b"", offset=head, suspend=AppendSuspend.SUSPEND_KEEP)
            except (IndexHasGreaterOffset, WrongAppendOffset):
                # Another client has appended meanwhile, or the broker gave its head before it had listed
                # the store, which it has done by now.
                if attempt == _RESET_ATTEMPTS:
                    raise
                attempt += 1
            else:
                return head

    async def suspend(self, journal: str, *, force: bool = False) -> bool:
        """Suspend a journal that is idle and flushed; `force` flushes it now.

        Returns: whether the journal is suspended now.
        Raises: StatusError, TransportError.
        """
        mode = AppendSuspend.SUSPEND_NOW if force else AppendSuspend.SUSPEND_IF_FLUSHED
        try:
            await self.append(journal, b"", suspend=mode)
        except Suspended:
            return True
        return False

    async def store_health(
        self, store: str, *, check_delete_prefix: str | None = None
    ) -> StoreHealth:
        """Whether brokers can use a fragment store.

        Args:
            store: its URL.
            check_delete_prefix: also probe deletion under this prefix, which may be empty; None: not.
        """
        return await admin.check_store(
            self._transport, store, check_delete_prefix=check_delete_prefix
        )

    async def refused_stores(self, stores: Sequence[str]) -> dict[str, str]:
        """Those of `stores` that no journal can ever be kept in here, with why; see `store_health`."""
        return await admin.refused_stores(self._transport, stores)

    async def brokers(self) -> tuple[BrokerSpec, ...]:
        """The brokers of the cluster, by zone and suffix; none if they are Gazette's own, which cannot say."""
        return await admin.list_brokers(self._transport)

    # ------------------------------------------------------------------ flushes and savepoints

    async def flush(
        self, selector: LabelSelector | str, *, timeout_s: float = 60.0
    ) -> dict[str, int]:
        """Close the open fragments of journals, and wait until their stores hold all of them.

        All that was appended before is then in the store. Gazette's own brokers have no such call:
        their journals are suspended instead, and resumed at once.

        Args:
            selector: as for `list`.
            timeout_s: seconds.

        Returns: for each journal that matches, the offset below which all is in the store.

        Raises:
            StatusError: a journal cannot be flushed, for example because it has no stores.
            TransportError: a store did not take the content in time; brokers go on trying.

        Cancellation: some fragments may be closed.
        """
        names = [journal.name for journal in await self.list_snapshot(selector)]

        async def flushed(name: str) -> int | GazetteError:
            try:
                return await admin.flush_journal(self._transport, name, timeout_s=timeout_s)
            except GazetteError as err:
                return err  # once all others are flushed, too

        ends: dict[str, int] = {}
        found = await side_by_side(flushed, names, at_a_time=_JOURNALS_AT_A_TIME)
        for name, end in zip(names, found, strict=True):
            if isinstance(end, GazetteError):
                raise end
            ends[name] = end
        return ends

    async def create_savepoint(
        self,
        name: str,
        selector: LabelSelector | str = "",
        *,
        offsets: Mapping[str, int] | None = None,
        created: Mapping[str, int] | None = None,
        replace: bool = False,
    ) -> Savepoint:
        """Keep offsets of journals in the cluster, under a name.

        Args:
            name: letters, numbers and ``-_+/.``.
            selector: journals whose write heads are kept, as of about now: they are asked one by one.
            offsets: keep these instead, by journal.
            created: by journal that `offsets` belong to, as listings have it; those not named are as of now.
            replace: whether a savepoint of that name may exist already.

        Raises: SavepointExists; ValidationError: no journal matches; StatusError, TransportError.
        Cancellation: leaves open whether it was stored.
        """
        if offsets is None:
            listed = (await self.list_snapshot(selector)).journals
            offsets = await self.write_heads(listed)
            created = {journal.name: journal.created for journal in listed}
        if not offsets:
            raise ValidationError(f"there is no journal to keep an offset of ({selector})")
        return await journals.put_savepoint(
            self._transport, name, offsets, created or {}, replace=replace
        )

    async def get_savepoint(self, name: str) -> Savepoint:
        """A savepoint, with its offsets. Raises: SavepointNotFound. Cancellation: safe."""
        return await journals.get_savepoint(self._transport, name)

    async def list_savepoints(self, prefix: str = "") -> Savepoints:
        """Savepoints whose names begin with `prefix`, by name, without their offsets."""
        return await journals.list_savepoints(self._transport, prefix)

    async def delete_savepoint(self, name: str) -> None:
        """Forget a savepoint. Raises: SavepointNotFound."""
        await journals.delete_savepoint(self._transport, name)


def _selector(selector: LabelSelector | str) -> LabelSelector:
    if isinstance(selector, LabelSelector):
        return selector
    return LabelSelector.parse(selector)


def _journal(name: str) -> str:
    """`name`, if it is valid; brokers refuse requests with one that is not."""
    try:
        validate_journal_name(name, meta=True)
    except ValidationError as err:
        raise err.within("Journal") from err
    return name


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
