"""`gazctl journals prune`: remove the fragments that `fragment.cover_set` decides on from their stores."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, final

import typer

from gazette_platform.cli.gazctl.arguments import Names, Selection, SelectorOrNames
from gazette_platform.cli.gazctl.connection import connected, matching
from gazette_platform.cli.output import note, print_text
from gazette_platform.client import AsyncClient, JournalListing
from gazette_platform.errors import (
    CallFailed,
    GazetteError,
    ObjectNotFound,
    SavepointError,
    SavepointNotFound,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.fragment.cover_set import (
    Kept,
    PrunePlan,
    PruneRule,
    StoredFragment,
    plan_prune,
)
from gazette_platform.fragment.index import fragment_of
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.faults import insist
from gazette_platform.protocol import Fragment, SuspendLevel, parse_store_url
from gazette_platform.stores import FragmentStore, clock_probe, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence


# Clocks that differ by less are not worth a line: retentions are hours.
_TOLD_S: Final = 60.0


@final
class StoreTime:
    """Asks each store once. The clock of this machine may be wrong, and would have young fragments go.

    Args:
        tell: prints a line for the person at the terminal.
    """

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        # Of each store: its Unix time, less the seconds of our monotonic clock.
        self._ahead_s: dict[str, float] = {}

    async def now_s(self, stores: Iterable[FragmentStore]) -> float:
        """Unix seconds by the clock of these stores; if they differ, by the one that is most behind.

        For a store that does not answer, the clock of this machine counts, and a warning says so.

        Cancellation: an object of a few bytes may stay in a store, where no journal is.
        """
        monotonic_s = self._clock.monotonic
        known = [await self._ahead(store) for store in stores]
        return min(known) + monotonic_s() if known else self._clock.unix_s()

    async def _ahead(self, store: FragmentStore) -> float:
        if store.url not in self._ahead_s:
            self._ahead_s[store.url] = await self._ask(store)
        return self._ahead_s[store.url]

    async def _ask(self, store: FragmentStore) -> float:
        own_s, began_s = self._clock.unix_s(), self._clock.monotonic()
        try:
            stored_at = await clock_probe(store)
        except StoreError as err:
            self._tell(
                f"warning: {store.url} does not report its time: ages of fragments are by the clock of this "
                f"machine ({err})"
            )
            return own_s - began_s
        ended_s = self._clock.monotonic()
        # It was written between the two, and the store reports whole seconds, so this cannot be too late.
        skew_s = max(own_s - stored_at - 1, stored_at - own_s - (ended_s - began_s))
        if skew_s > _TOLD_S:
            word = "behind" if stored_at < own_s else "ahead of"
            self._tell(
                f"warning: the clock of {store.url} is {skew_s / 60:.0f} min {word} that of this machine: ages "
                "of fragments are by the store's"
            )
        return stored_at - ended_s


_REMOVE_TIMEOUT_S: Final = 60.0
# Seconds for which one removal is tried again.
_INSIST_S: Final = 10.0


@final
class OpenStores:
    """Fragment stores by their URLs, each opened once.

    Args:
        file_root: directory that ``file`` stores are rooted at; None refuses these.
    """

    def __init__(self, file_root: Path | None) -> None:
        self._file_root = file_root
        self._open: dict[str, FragmentStore] = {}

    def store(self, url: str) -> FragmentStore:
        """The store of a URL. Raises: GazetteError: it cannot be opened."""
        store = self._open.get(url)
        if store is None:
            store = self._open[url] = open_store(url, file_root=self._file_root)
        return store

    async def fragments(
        self, journal: str, url: str, strange: Callable[[str, ValidationError], None] | None = None
    ) -> list[StoredFragment]:
        """All fragments of a journal in one store.

        Args:
            strange: takes the path of each object that is not a fragment, as brokers' logs name some, and why.

        Raises: GazetteError: the store cannot be listed.
        """
        store = self.store(url)
        found = []
        try:
            async with asyncio.timeout(_LIST_TIMEOUT_S):
                async for item in store.list(f"{journal}/"):
                    try:
                        found.append(StoredFragment(fragment_of(journal, url, item), item.size))
                    except ValidationError as err:
                        if strange is not None:
                            strange(f"{journal}/{item.path}", err)
        except TimeoutError as err:
            raise StoreUnavailable(f"{url}: listing it took over {_LIST_TIMEOUT_S:g} s") from err
        return found


@final
class FragmentRemover:
    """Removes fragments, each by itself; in a dry run, none."""

    def __init__(self, clock: Clock, stores: OpenStores, *, dry_run: bool) -> None:
        self._clock = clock
        self._stores = stores
        self._dry_run = dry_run

    async def remove(self, fragment: Fragment) -> None:
        """Remove one object; one that is gone is removed.

        Raises: GazetteError: it is still there, as far as is known. Cancellation: it may be gone.
        """
        if self._dry_run:
            return
        store = self._stores.store(fragment.backing_store)
        give_up_at = self._clock.monotonic() + _INSIST_S

        async def call() -> None:
            try:
                async with asyncio.timeout(_REMOVE_TIMEOUT_S):
                    await store.remove(fragment.content_path)
            except TimeoutError as err:
                raise StoreUnavailable(
                    f"{store.url}: removing it took over {_REMOVE_TIMEOUT_S:g} s"
                ) from err

        with suppress(ObjectNotFound):  # another process pruned it
            await insist(call, is_over=lambda: self._clock.monotonic() > give_up_at)


# As many as Gazette's pruning of recovery logs has under way.
_REMOVALS_MAX: Final = 32
# Of one journal: a store that refused so many refuses the rest, too.
_FAILURES_MAX: Final = 10


async def remove_all(
    journal: str,
    fragments: Sequence[StoredFragment],
    remove: Callable[[StoredFragment], Awaitable[None]],
    *,
    tell: Callable[[str], None],
) -> int:
    """Call `remove` for fragments of a journal, in order but some at a time; stop after ten failures.

    Returns: how many resisted. Cancellation: what is removed stays so; the rest stays.
    """
    failures = 0
    waiting = iter(fragments)

    async def work() -> None:
        nonlocal failures
        for stored in waiting:
            try:
                await remove(stored)
            except GazetteError as err:
                failures += 1
                tell(f"{stored.fragment.content_path}: {err}")
                if failures >= _FAILURES_MAX:
                    return

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_REMOVALS_MAX, len(fragments))):
            group.create_task(work())
    if left := sum(1 for _ in waiting):
        tell(f"{journal}: {left} more fragments were not tried, after {failures} failures")
    return failures


_LIST_TIMEOUT_S: Final = 300.0
# Savepoints that others make while we work are respected after so many seconds.
_SAVEPOINTS_AGE_S: Final = 5.0

_CONTENT_TYPE: Final = "content-type"
_RECOVERY_LOG: Final = "application/x-gazette-recoverylog"


@dataclass(slots=True)
class Pruning:
    """What came of pruning, in all journals so far."""

    journals: int = 0
    failed_journals: int = 0
    fragments: int = 0
    """Stored ones that were looked at."""
    removed: int = 0
    """Or would be, in a dry run; likewise below."""
    stored_bytes: int = 0
    content_bytes: int = 0
    kept: Counter[Kept] = field(default_factory=Counter)


@final
class Pruner:
    """Prunes journals one after the other; a failure in one does not stop the others.

    What has gone stays gone. A run that was ended in the middle is completed by another one.

    Args:
        file_root: directory that ``file`` stores are rooted at; None refuses these, except in a dry run.
        rule: which fragments to remove; None: by the retention of each journal's spec.
        tell: prints a line for the person at the terminal.
        on_planned: takes how many fragments of a journal are about to be removed.
        on_removed: takes each fragment that was removed, or would be in a dry run.
    """

    def __init__(
        self,
        client: AsyncClient,
        clock: Clock,
        *,
        file_root: Path | None,
        rule: PruneRule | None = None,
        dry_run: bool = False,
        ignore_savepoints: bool = False,
        tell: Callable[[str], None],
        on_planned: Callable[[str, int], None],
        on_removed: Callable[[StoredFragment], None],
    ) -> None:
        self.result = Pruning()
        self._client = client
        self._clock = clock
        self._rule = rule
        self._time = StoreTime(clock, tell)
        self._savepoints = None if ignore_savepoints else _Savepoints(client, clock)
        self._tell = tell
        self._on_planned = on_planned
        self._on_removed = on_removed
        self._stores = OpenStores(file_root)
        self._remover = FragmentRemover(clock, self._stores, dry_run=dry_run)
        # Gazette's dry run takes the brokers' word for every store. Ours does so only where it must: brokers
        # know neither sizes nor fragments that lie within others.
        self._trusts_files = dry_run and file_root is None
        self._unseen: set[str] = set()

    async def prune(self, journals: Iterable[JournalListing]) -> Pruning:
        """Prune all of them. Cancellation: what is removed stays so; the rest stays."""
        for journal in journals:
            self.result.journals += 1
            try:
                failures = await self._prune(journal)
            except SavepointError:
                raise  # it concerns every journal
            except GazetteError as err:
                self._tell(f"{journal.name}: {err}")
                failures = 1
            self.result.failed_journals += failures > 0
        return self.result

    async def _prune(self, journal: JournalListing) -> int:
        """Prune one journal. Returns: how many fragments resisted."""
        fragment_spec = journal.spec.fragment
        rule = self._rule or PruneRule(retention_s=fragment_spec.retention_ns / 1e9)
        if journal.spec.is_fully_suspended:
            self._tell(f"{journal.name}: skipped, it is fully suspended")
            return 0
        if self._rule is None and fragment_spec.retention_ns <= 0:
            self._tell(f"{journal.name}: keeps everything, it has no retention")
            return 0
        if journal.spec.labels.value_of(_CONTENT_TYPE) == _RECOVERY_LOG:
            self._tell(f"{journal.name}: keeps everything, it is the recovery log of a shard")
            return 0
        await check_is_alone(self._client, journal.name)
        known = await self._client.fragments(journal.name)
        # Looked at after the brokers answered: a journal that was resumed needs its last fragment.
        suspend = (await self._client.get(journal.name)).spec.suspend
        is_partial = suspend is not None and suspend.level is SuspendLevel.PARTIAL
        noted_head = suspend.offset if suspend is not None and is_partial else 0
        named = [each.fragment for each in known if each.is_persisted]
        urls = dict.fromkeys([*fragment_spec.stores, *(each.backing_store for each in named)])
        stored = [each for url in urls for each in await self._stored(journal.name, url, named)]
        if named and noted_head < named[-1].end:
            _check_is_same(named, stored)
        plan = plan_prune(
            stored,
            rule,
            now_s=await self._time.now_s(
                self._stores.store(url) for url in _urls_of(stored) if not self._is_unseen(url)
            ),
            local=[each.fragment for each in known if not each.is_persisted],
            noted_head=noted_head,
            savepoint=await self._savepoint(journal.name),
        )
        self.result.fragments += len(stored)
        self.result.kept += plan.kept
        self._tell_kept(journal.name, plan)
        return await self._remove_all(journal.name, plan.remove)

    async def _savepoint(self, journal: str) -> int | None:
        return None if self._savepoints is None else await self._savepoints.first_of(journal)

    def _is_unseen(self, url: str) -> bool:
        return self._trusts_files and parse_store_url(url).scheme == "file"

    async def _stored(
        self, journal: str, url: str, named: Iterable[Fragment]
    ) -> list[StoredFragment]:
        """Return what a store holds of a journal. Raises: GazetteError."""
        if not self._is_unseen(url):
            return await self._stores.fragments(journal, url)
        if url not in self._unseen:
            self._unseen.add(url)
            self._tell(
                f"{url}: as its brokers list it, without the sizes there (--file-root looks at the files)"
            )
        return [StoredFragment(each, size=0) for each in named if each.backing_store == url]

    def _tell_kept(self, journal: str, plan: PrunePlan) -> None:
        if count := plan.kept[Kept.SAVEPOINT]:
            self._tell_saved(journal, count)
        if count := plan.kept[Kept.GAP]:
            at = datetime.fromtimestamp(plan.jumpable_at, UTC).isoformat(timespec="seconds")
            self._tell(
                f"{journal}: keeps {count} fragments in its middle: reads would wait at the gap, not "
                f"jump over it, until {at}; prune again after that"
            )

    def _tell_saved(self, journal: str, count: int) -> None:
        assert self._savepoints is not None  # else none keeps anything
        self._tell(
            f"{journal}: keeps {count} fragments for savepoints, from {self._savepoints.who(journal)} "
            "on (--ignore-savepoints removes them)"
        )

    async def _remove_all(self, journal: str, fragments: tuple[StoredFragment, ...]) -> int:
        """Remove them. Returns: how many resisted."""
        if not fragments:
            return 0
        self._on_planned(journal, len(fragments))
        saved = 0

        async def remove(stored: StoredFragment) -> None:
            nonlocal saved
            savepoint = await self._savepoint(journal)
            if savepoint is not None and stored.fragment.end > savepoint:
                saved += 1  # since the plan was made
                return
            await self._remover.remove(stored.fragment)
            self._count(stored)

        failures = await remove_all(journal, fragments, remove, tell=self._tell)
        if saved:
            self.result.kept[Kept.SAVEPOINT] += saved
            self._tell_saved(journal, saved)
        return failures

    def _count(self, stored: StoredFragment) -> None:
        self.result.removed += 1
        self.result.stored_bytes += stored.size
        self.result.content_bytes += stored.fragment.content_length
        self._on_removed(stored)


def _urls_of(stored: Iterable[StoredFragment]) -> list[str]:
    """The stores that hold anything."""
    return list(dict.fromkeys(each.fragment.backing_store for each in stored))


async def check_is_alone(client: AsyncClient, name: str) -> None:
    """Raises: StoreError: what lies below a journal's folder may be another journal's."""
    below = await client.list(f"name:prefix={name}/")
    if below:
        raise StoreError(
            f"the fragments of {below[0].name} lie in its folder, and cannot be distinguished from its own "
            "(brokers refuse such names today; move one of the two)"
        )


def _check_is_same(named: list[Fragment], stored: list[StoredFragment]) -> None:
    """Refuse stores that are not those of the brokers, such as a copy of them, or another file root.

    Pruning leaves the last fragment, so the one that brokers name exists.

    Raises: StoreError.
    """
    last = named[-1]
    paths = {each.fragment.content_path for each in stored}
    if last.content_path not in paths:
        missing = "none" if not stored else f"the last of them, {last.content_name},"
        urls = ", ".join(dict.fromkeys(each.backing_store for each in named))
        raise StoreError(
            f"brokers have {len(named)} fragments in {urls}, and {missing} is found there "
            "(is --file-root the --broker.file-root of the brokers? If it was removed by hand, they "
            "know that after the journal's refresh interval)"
        )


@final
class _Savepoints:
    """The least offset of each journal that a savepoint names, as of a few seconds ago."""

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._loading = asyncio.Lock()
        self._known_at: float | None = None
        self._first: dict[str, tuple[int, str]] = {}

    async def first_of(self, journal: str) -> int | None:
        """The least offset of a journal that a savepoint names; None: none does.

        Raises: SavepointError: the brokers do not know.
        """
        async with self._loading:
            now = self._clock.monotonic()
            if self._known_at is None or now - self._known_at > _SAVEPOINTS_AGE_S:
                self._first = await self._load()
                self._known_at = now
        found = self._first.get(journal)
        return None if found is None else found[0]

    def who(self, journal: str) -> str:
        """That offset, and the name of the savepoint, for a person."""
        offset, name = self._first.get(journal, (0, "one that was deleted meanwhile"))
        return f"{offset} of {name}"

    async def _load(self) -> dict[str, tuple[int, str]]:
        first: dict[str, tuple[int, str]] = {}
        try:
            async with aclosing(self._all()) as savepoints:
                async for name, offsets in savepoints:
                    for journal, offset in offsets.items():
                        first[journal] = min(first.get(journal, (offset, name)), (offset, name))
        except CallFailed as err:
            if err.code != "UNIMPLEMENTED":
                raise
            raise SavepointError(
                "the broker that was asked keeps no savepoints, so what they name is unknown "
                "(it is one of Gazette's own, which have none: give --ignore-savepoints; or ask one "
                "of ours by --broker.address)"
            ) from err
        return first

    async def _all(self) -> AsyncGenerator[tuple[str, dict[str, int]], None]:
        for listed in await self._client.list_savepoints():
            with suppress(SavepointNotFound):  # another process deleted it meanwhile
                found = await self._client.get_savepoint(listed.name)
                yield found.name, dict(found.offsets)


_OFFSET_MAX = (1 << 63) - 1


def prune(
    ctx: typer.Context,
    names: Names = None,
    *,
    selector: SelectorOrNames = None,
    dry_run: bool = False,
    before_offset: Annotated[int | None, typer.Option(min=1, max=_OFFSET_MAX)] = None,
    from_offset: Annotated[int, typer.Option(min=0, max=_OFFSET_MAX)] = 0,
    ignore_savepoints: bool = False,
    file_root: Annotated[Path | None, typer.Option(envvar="BROKER_FILE_ROOT")] = None,
) -> None:
    """Remove persisted fragments that are older than the retention of their journal.

    A journal whose retention is 0 or not set keeps everything. What is removed is gone: reads
    below the first remaining fragment then jump to it.

    Kept in any case: what is in brokers only; the last fragment, which shows where the journal ends,
    unless the journal is suspended; recovery logs; what a savepoint names, and what follows it; and what
    lies in the middle, before a fragment stored within the last six hours, as reads do not jump there yet.

    The store's own clock decides how old a fragment is: for that a small object is written beside those
    of health checks, and removed.

    Other journals go on when one fails; then the exit status is 1. Run it again to do the rest.

    **Examples**

    gazctl journals prune -l name:prefix=a/ --dry-run

    gazctl journals prune a/journal --before-offset 1000000

    gazctl journals prune a/journal --from-offset 5000 --before-offset 9000

    Options:
        --dry-run: Say what would be removed, and remove nothing.
        --before-offset OFFSET: Remove what ends at or before it, of whatever age. Of one journal.
        --from-offset OFFSET: With --before-offset: only what begins at or after it, to trim the middle.
        --ignore-savepoints: Remove also what savepoints name.
        --file-root: Directory that file:// stores are rooted at, as of the brokers; a dry run needs none.
    """
    selection = Selection.of(names, selector)
    rule = _rule(from_offset, before_offset)

    async def work(client: AsyncClient) -> Pruning:
        journals = await matching(client, selection)
        if rule is not None and len(journals) > 1:
            raise ValidationError(
                f"is an offset of one journal, and {len(journals)} match {selection.text}",
                path="--before-offset",
            )
        from gazette_platform.cli.bars import FragmentBar  # noqa: PLC0415  slow to import

        with FragmentBar("pruning", is_shown=sys.stderr.isatty() and not dry_run) as bar:

            def on_removed(stored: StoredFragment) -> None:
                verb = "would remove" if dry_run else "removed"
                print_text(f"{verb} {stored.fragment.content_path}")
                bar.advance(stored.size)

            pruner = Pruner(
                client,
                SystemClock(),
                file_root=file_root,
                rule=rule,
                dry_run=dry_run,
                ignore_savepoints=ignore_savepoints,
                tell=note,
                on_planned=bar.add,
                on_removed=on_removed,
            )
            try:
                return await pruner.prune(journals)
            finally:
                _summarize(pruner.result, dry_run=dry_run)

    result = connected(ctx, work, file_root=file_root)
    if result.failed_journals:
        raise StoreError(
            f"{result.failed_journals} of {result.journals} journals could not be pruned, or not "
            "whole, see above (what is gone stays gone; run it again for the rest)"
        )


def _rule(begin: int, end: int | None) -> PruneRule | None:
    if end is None:
        if begin:
            raise ValidationError("needs --before-offset", path="--from-offset")
        return None
    try:
        return PruneRule(begin=begin, end=end)
    except ValidationError as err:
        raise err.within("--from-offset") from err


def _summarize(result: Pruning, *, dry_run: bool) -> None:
    verb = "would be removed" if dry_run else "removed"
    note(
        f"{result.removed} of {result.fragments} fragments {verb}: {result.stored_bytes} bytes in "
        f"stores, {result.content_bytes} bytes of content"
    )
    for reason, count in result.kept.items():
        note(f"kept: {count} {reason.value}")
