"""Looks after tenures that no replica of this broker goes on with.

They come from processes that ended here before, or from replicas that closed. `verdicts` decides what
becomes of them, from all tenures of a journal together; this module carries it out. A holder is kept as
long as the journal may need it, and lets go of the journal once that waits for it elsewhere. Of any other
tenure, content that belongs to the journal is stored, and the rest is set aside where an operator finds it.

Long because it carries out every verdict, and all of them share the same tenures and locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, final
from weakref import WeakValueDictionary

from gazette_platform.broker.epochs import announce, is_long, is_unknown, release, save, settled
from gazette_platform.broker.etcd_records import (
    delete_record,
    foreign_members,
    history_key,
    journal_holders,
    read_own_members,
    read_record,
    write_record,
)
from gazette_platform.broker.spool.comparison import Comparison
from gazette_platform.broker.spool.disk import CompletedSpool, finish_closing, remove_fragment
from gazette_platform.broker.spool.recovery import set_aside
from gazette_platform.broker.spool.verdicts import (
    Evidence,
    Todo,
    continuation,
    decide,
    heir,
    is_furthest,
)
from gazette_platform.errors import EtcdError, GazetteError, SetupError, StoreUnavailable
from gazette_platform.keyspace import item_key
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.tasks import run_in, side_by_side

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
    from concurrent.futures import Executor
    from pathlib import Path

    from gazette_platform.broker.epochs import EpochRecord
    from gazette_platform.broker.spool.comparison import Compare, Resolution
    from gazette_platform.broker.spool.persister import Persister
    from gazette_platform.broker.spool.recovery import (
        OtherHomes,
        RecoveredFragment,
        RecoveredTenure,
    )
    from gazette_platform.broker.spool.tenure import Tenure
    from gazette_platform.broker.spool.verdicts import Verdict
    from gazette_platform.etcd import EtcdClient, RangeResult
    from gazette_platform.keyspace import BrokerState, KeySpace
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.protocol import Fragment, LabelSet

_log = logging.getLogger(__name__)

# Seconds between looks at them: few at first, and more when nothing happens for a while.
_LOOKS_S = 5 * (0.5,) + 5 * (1.0,) + 5 * (2.0,) + (5.0,)

# Up to so many journals etcd is asked about each; if there are more, for all records at once.
_ONE_BY_ONE_MAX = 16

# How many of them are decided on side by side, and for how many seconds each waits for its store.
_AT_A_TIME = 32
_STORE_S = 5.0

# How often to try to change a record that other brokers write, too.
_RECORD_TRIES = 5

_NOT_THE_JOURNALS = "others went on without it, or its journal was deleted"
_SERVED = "the journal has the same bytes, but no store has them yet"
_OTHERS = "the store has, or may have, other content at its offsets"
_COPIED = "it is of a copied folder, and the one that was copied may have gone on since"


class _Step(Protocol):
    """`epochs.announce`, `epochs.release` or `epochs.save`."""

    def __call__(
        self,
        record: EpochRecord | None,
        tenure: str,
        *,
        create_revision: int,
        head: int,
        registers: LabelSet,
    ) -> EpochRecord | None: ...


@final
class Leftovers:
    """Tenures without a replica.

    Args:
        etcd: has the epoch records.
        space: has the journals.
        others: know which homes other brokers have, too.
        prefix: of the brokers' keys in etcd.
        persister: stores what belongs to journals.
        spool_dir: below which content is set aside.
        executor: threads for files.
        clock: for how long content is compared with what its journal has.
        faults: counts unforeseen errors.
        count: called with how many fragments were set aside that their journals do not have.
    """

    def __init__(
        self,
        *,
        etcd: EtcdClient,
        space: KeySpace[BrokerState],
        others: OtherHomes,
        prefix: str,
        persister: Persister,
        spool_dir: Path,
        executor: Executor,
        clock: Clock,
        faults: Faults,
        count: Callable[[int], None],
    ) -> None:
        self._etcd = etcd
        self._space = space
        self._others = others
        self._prefix = prefix
        self._persister = persister
        self._spool_dir = spool_dir
        self._executor = executor
        self._faults = faults
        self._count = count
        self._found: dict[str, list[RecoveredTenure]] = {}
        self._in_use: dict[str, str] = {}  # by journal: the tenure that a replica goes on with
        # Each for as long as it is held or awaited.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # What the persister has of each tenure; copies have the same id.
        self._storing: dict[RecoveredTenure, list[CompletedSpool]] = {}
        self._saved: set[RecoveredTenure] = set()  # what they lack is reported, and set aside
        self._comparison = Comparison(
            clock=clock, persister=persister, spool_dir=spool_dir, faults=faults
        )
        self._added = asyncio.Event()

    def __len__(self) -> int:
        """Number of journals with such tenures."""
        return len(self._found)

    def compare_with(self, compare: Compare) -> None:
        """Compare content that others went on without with what its journal has, before it is set aside."""
        self._comparison.compare = compare

    def add(self, found: RecoveredTenure) -> None:
        """Look after a tenure from now on."""
        journal = found.tenure.journal
        # It comes back from a replica that has closed, and is to be decided on again.
        if self._in_use.get(journal) == found.tenure.id:
            del self._in_use[journal]
        self._found.setdefault(journal, []).append(found)
        self._added.set()

    def has(self, journal: str) -> bool:
        """Whether there is such a tenure of a journal."""
        return journal in self._found

    def has_content(self, journal: str) -> bool:
        """Whether such a tenure has content of a journal that may be in no store.

        A shorter copy of a tenure has nothing that the furthest one does not have. What is in a copied
        home is stored only if an operator asks for it, and what others went on without is not stored.
        """
        found = self._found.get(journal, [])
        evidence = [_evidence(one) for one in found]
        compares = self._comparison.has
        return any(
            ((one.fragments and not one.is_copied and not compares(one)) or one in self._storing)
            and is_furthest(evidence, number, self._used(journal))
            for number, one in enumerate(found)
        )

    def end_of(self, journal: str) -> int:
        """How far content goes that a reset would store of a journal; 0: there is none, or only in copied homes."""
        found = [one for one in self._found.get(journal, []) if not one.is_copied]
        ends = [one.state.end for each in found for one in each.fragments]
        # Also what the persister has: a reset that is tried again must store spools in the same order.
        ends += [one.fragment.end for each in found for one in self._storing.get(each, ())]
        return max(ends, default=0)

    async def take(
        self, journal: str, create_revision: int, stored_end: Callable[[], Awaitable[int]]
    ) -> RecoveredTenure | None:
        """Hand over the tenure that a journal, which is now assigned to us, may go on with.

        Args:
            journal: its name.
            create_revision: of its spec.
            stored_end: lists its store, and says where the content there ends; asked only if etcd lost
                its data.

        Returns: None: there is none.
        Raises: GazetteError.
        Cancellation: safe.
        """
        async with self._lock_of(journal):
            found = self._found.get(journal, [])
            if not found:
                return None
            record, _ = await read_record(self._etcd, self._prefix, journal)
            ours = await read_own_members(self._etcd, self._prefix)
            evidence = self._evidence(record, found, ours)
            number = heir(
                record,
                evidence,
                journal_revision=create_revision,
                in_use=self._used(journal),
            )
            # No record of this spec: the journal is new, or etcd lost its data and the specs were
            # applied again. In the latter case the spool may be all that is left of it.
            is_new = is_unknown(record, create_revision)
            # After a restore another broker may have a spool that went further. A reset stores that first.
            is_restored = record is not None and record.is_restored
            if is_new and not is_restored and any(one.is_older_than_etcd for one in evidence):
                # Only now, since it waits for the listing of the store, which may be away for long.
                number = continuation(evidence, stored_end=await stored_end())
                ours = await read_own_members(self._etcd, self._prefix)  # that took a while
            # Gazette's brokers take appends without recording who holds them.
            if number is None or await foreign_members(self._etcd, self._prefix, ours):
                return None
            taken = found[number]
            if is_new:
                await self._renew(taken, create_revision)
            elif not taken.tenure.is_dated:
                with contextlib.suppress(OSError):  # then it is done when the journal is claimed
                    await run_in(self._executor, taken.tenure.date)
            # In use before the lock is given back: a copy of this tenure must never be let go of
            # while a replica goes on with it.
            self._remove(journal, taken)
            self._in_use[journal] = taken.tenure.id
            return taken

    async def _renew(self, found: RecoveredTenure, create_revision: int) -> None:
        """Have a tenure hold the journal by its present spec. Raises: SetupError: call again."""
        try:
            await run_in(self._executor, found.tenure.renew, create_revision)
        except OSError as err:
            raise SetupError(f"cannot take over its spool: {err}") from err
        _log.warning(
            "%s: etcd has lost its data; the journal goes on at %d, with the content of this broker's "
            "spool, which joins what is stored",
            found.tenure.journal,
            found.end,
        )

    def _used(self, journal: str) -> tuple[str, ...]:
        """The tenure of a journal that a replica goes on with, if there is one."""
        in_use = self._in_use.get(journal)
        return () if in_use is None else (in_use,)

    def _evidence(
        self, record: EpochRecord | None, found: list[RecoveredTenure], members: RangeResult
    ) -> list[Evidence]:
        """What the disk proves of tenures, and who else has them, by members read after `record`."""
        doubled = self._others.doubled(record, found, members.kvs)
        return [replace(_evidence(one), is_doubled=one in doubled) for one in found]

    @contextlib.asynccontextmanager
    async def _lock_of(self, journal: str) -> AsyncGenerator[None]:
        """Hold the lock of whoever decides on a journal's tenures."""
        # Two that decide at once could both act on what they read: one would let go of what the
        # other has just handed to a replica.
        lock = self._locks.get(journal)
        if lock is None:
            lock = self._locks[journal] = asyncio.Lock()
        async with lock:
            yield

    async def run(self) -> None:
        """Look after the tenures for ever. Cancellation: safe."""
        looks = 0
        while True:
            if not self._found:
                self._added.clear()
                await self._added.wait()
                looks = 0
            with self._faults.contained("spool", "looking after spools of former processes"):
                await self.settle_all()
            await asyncio.sleep(backoff_s(looks, _LOOKS_S))
            looks += 1

    async def settle_all(self, *, is_leaving: bool = False) -> None:
        """Look once at each tenure, and do what follows.

        Args:
            is_leaving: whether to let go of journals that no other broker holds, since this broker may
                not come back.

        Cancellation: safe.
        """
        is_due = self._comparison.is_due
        names = [name for name, found in self._found.items() if any(map(is_due, found))]
        if len(names) > _ONE_BY_ONE_MAX and not is_leaving:
            # The records may have changed by the time that we act. That does no harm: a tenure that is
            # no holder never becomes one again, and `settle` reads the record once more.
            try:
                holders = await journal_holders(self._etcd, self._prefix, self._found)
            except EtcdError as err:
                _log.warning("spools of former processes stay for now: %s", err)
                return
            ours = {one.tenure.id for found in self._found.values() for one in found}
            # Holders that no broker waits for stay as they are. After a restart of a whole cluster
            # they are thousands, and nearly all of them are such.
            names = [
                name
                for name in names
                if not holders.get(name, set()) & ours or self._is_in_part(name)
            ]

        # One whose store is away, or whose spool is unforeseen, must not delay the others.
        async def settle(journal: str) -> None:
            what = f"{journal}: looking after what former processes left"
            with self._faults.contained("spool", what):
                await self.settle(journal, is_leaving=is_leaving)

        _ = await side_by_side(settle, names, at_a_time=_AT_A_TIME)
        if not is_leaving:  # the next process compares
            names = await self._comparison.look()
            _ = await side_by_side(settle, names, at_a_time=_AT_A_TIME)
        self._comparison.report()

    async def settle(
        self, journal: str, *, is_leaving: bool = False, is_given_up: bool = False
    ) -> None:
        """Look at the tenures of one journal, and do what follows.

        Args:
            is_leaving: as of `settle_all`.
            is_given_up: as of `verdicts.decide`.

        Cancellation: safe.
        """
        if journal not in self._found:
            return
        async with self._lock_of(journal):
            while await self._settle(journal, is_leaving=is_leaving, is_given_up=is_given_up):
                pass  # others wait for what has just been settled

    async def _settle(self, journal: str, *, is_leaving: bool, is_given_up: bool) -> bool:
        """Look once at the tenures of a journal. Returns: whether one of several is settled."""
        found = list(self._found.get(journal, []))
        try:
            record, verdicts = await self._verdicts(
                journal, found, is_leaving=is_leaving, is_given_up=is_given_up
            )
        except GazetteError as err:
            _log.warning("%s: what was left of its spool stays: %s", journal, err)
            return False
        is_any_settled = False
        pairs = zip(found, verdicts, strict=False)
        # What an original has counts before what copies have, and the furthest before the others: they may have
        # content at the same offsets, and what is stored first is what the rest is compared with.
        for one, verdict in sorted(pairs, key=lambda pair: (pair[0].is_copied, -pair[0].end)):
            try:
                is_settled = await self._carry_out(one, verdict, is_given_up=is_given_up)
            except (GazetteError, OSError) as err:
                _log.warning("%s: what was left of its spool stays: %s", journal, err)
                continue
            if is_settled:
                self._remove(journal, one)
                is_any_settled = True
                if record is not None and is_long(record) and not one.is_copied:
                    await self._tell_settled(one.tenure)
        return is_any_settled and journal in self._found

    def _remove(self, journal: str, found: RecoveredTenure) -> None:
        self._saved.discard(found)
        self._comparison.forget(found)
        self._storing.pop(found, None)  # a replica may take it while the persister has its content
        left = [one for one in self._found.get(journal, []) if one is not found]
        if left:
            self._found[journal] = left
        else:
            self._found.pop(journal, None)

    async def _verdicts(
        self, journal: str, found: list[RecoveredTenure], *, is_leaving: bool, is_given_up: bool
    ) -> tuple[EpochRecord | None, list[Verdict]]:
        """Decide from all tenures of a journal together. Raises: GazetteError.

        Returns: what etcd records of it, and a verdict for each; none if it is unknown what is to become
            of them.
        """
        item = self._space.state.items.get(journal)
        # A spec that cannot be read looks like a deleted journal. Its content would be set aside
        # for a typing error.
        if item is None and await self._is_unreadable(journal, found):
            return None, []
        record, _ = await read_record(self._etcd, self._prefix, journal)
        # An etcd that lost its data knows no journal either. A process that started before cannot
        # distinguish that from deletion, but the next one can, by the history in its tenures.
        if record is None and await self._is_etcd_another(found):
            return None, []  # this broker is about to end, and the next process can report it
        members = await read_own_members(self._etcd, self._prefix)
        suspend = item.spec.suspend if item is not None and item.spec.is_fully_suspended else None
        verdicts = decide(
            record,
            self._evidence(record, found, members),
            journal_revision=item.create_revision if item is not None else None,
            in_use=self._used(journal),
            suspended_at=suspend.offset if suspend is not None else None,
            is_leaving=is_leaving,
            is_given_up=is_given_up,
        )
        # The journal is deleted. Its record is under no lease, and would stay in etcd for ever.
        if item is None and record is not None:
            for revision in {one.tenure.create_revision for one in found}:
                await delete_record(self._etcd, self._prefix, journal, revision)
        return record, verdicts

    async def _carry_out(
        self, found: RecoveredTenure, verdict: Verdict, *, is_given_up: bool
    ) -> bool:
        """Returns: whether nothing is left of the tenure. Raises: GazetteError, OSError: it stays."""
        tenure = found.tenure
        is_over = False
        match verdict.todo:
            case Todo.WAIT:
                pass
            case Todo.SAVE:
                await self._save(found, is_given_up=is_given_up)
            case Todo.LET_GO:
                # In this order. Announced first, so that whoever continues does so after our end;
                # stored before the release, because from then on no broker has a reason to wait for
                # us.
                is_over = (
                    await self._announce(found)
                    and await self._store(found, found.end)
                    and await self._release(found)
                )
            case Todo.YIELD:
                # Others have gone on. What was part of the journal until then may be in no store
                # yet: our copy may be the last.
                await run_in(self._executor, self._remove_torn, found)
                is_over = await self._store(found, verdict.valid_to)
                if is_over:
                    is_over = await self._resolve_rest(found, verdict.valid_to)
        if not is_over:
            return False
        # One that was just let go of is forgotten in a thread, and who leaves looks but once.
        await run_in(self._executor, finish_closing)
        # The block is given back last: as long as a file is used, a crash must find the record that
        # speaks for it.
        if tenure.files:
            return False  # replicas or the persister still use them
        await run_in(self._executor, tenure.leave)
        return True

    def _is_in_part(self, journal: str) -> bool:
        """Whether a power failure has left content of a journal, and not all of it."""
        return any(
            not one.is_whole and (one.fragments or one.torn or one in self._storing)
            for one in self._found.get(journal, [])
        )

    async def _save(self, found: RecoveredTenure, *, is_given_up: bool) -> None:
        """Store what is left of content that no other broker has.

        How much was acknowledged after that is not known: appends wait for an operator.

        Raises: GazetteError, OSError: call again.
        """
        if found not in self._saved:
            # The files stay: without them the next process would take the tenure for whole.
            await run_in(self._executor, self._set_torn_aside, found)
            self._saved.add(found)
            # A whole one is saved after etcd was restored, when an operator resets the head.
            if not (found.is_whole and found.tenure.is_older_than_etcd):
                _log.error(
                    "%s: this journal's spool is not whole: %s; what is known is stored, and appends wait for "
                    "`gazctl journals reset-head`",
                    found.tenure.journal,
                    _why_not_whole(found),
                )
        item = self._space.state.items.get(found.tenure.journal)
        if found.tenure.is_older_than_etcd and item is not None:
            # The journal is the same, but its spec was created again. By the former revision it would look deleted,
            # and what only this spool holds would be dropped.
            await run_in(self._executor, found.tenure.renew, item.create_revision)
        if is_given_up:
            await self._tell_registers(found)
            await self._set_contradicting_aside(found)
        await self._store(found, found.end)

    async def _tell_registers(self, found: RecoveredTenure) -> None:
        """Let the reset go on with the registers of the furthest of such tenures. Raises: GazetteError."""
        if found.knows_registers:
            for _ in range(_RECORD_TRIES):
                if await self._let_go(found, save):
                    return

    async def _set_contradicting_aside(self, found: RecoveredTenure) -> None:
        """Set content aside at whose offsets the store has other content.

        An operator gives up what no holder can prove. Several that are not whole, and copies, may then
        be stored, and what was never acknowledged may differ between them.

        Raises: GazetteError, OSError: call again.
        """
        tenure = found.tenure
        if not found.fragments:
            return
        others = [one for one in self._found.get(tenure.journal, []) if one is not found]
        # To be compared with the store, what another spool has must be loaded first.
        if any(one in self._storing for one in others):
            raise StoreUnavailable("the store does not have what another spool knows yet")
        stored = await self._persister.listed(tenure.journal, tenure.create_revision)
        contradicting = await run_in(self._executor, _contradicting, found, stored)
        for one in found.fragments:
            # The persister takes what the store covers for stored, and readers take a stored fragment that goes
            # further: what may differ would be gone.
            is_covered = one not in contradicting and stored.covers(one.state.begin, one.state.end)
            if is_covered and not await self._comparison.is_same(tenure.journal, one):
                contradicting.append(one)
        if contradicting:
            await run_in(self._executor, self._set_fragments_aside, found, contradicting, _OTHERS)

    async def _is_unreadable(self, journal: str, found: list[RecoveredTenure]) -> bool:
        """Whether the tenures' journal exists, with a spec that we cannot read. Raises: GazetteError."""
        item = await self._etcd.get(item_key(self._prefix, journal))
        return item is not None and any(
            one.tenure.create_revision == item.create_revision for one in found
        )

    async def _is_etcd_another(self, found: list[RecoveredTenure]) -> bool:
        """Whether etcd has lost its data since this process started. Raises: GazetteError."""
        known = {one.tenure.home_history for one in found} - {""}
        if not known:
            return False
        said = await self._etcd.get(history_key(self._prefix))
        return said is None or said.value.decode(errors="replace") not in known

    async def _announce(self, found: RecoveredTenure) -> bool:
        """Let others continue after what is stored next. Returns: False: another broker was faster."""
        return await self._let_go(found, announce)

    async def _store(self, found: RecoveredTenure, valid_to: int) -> bool:
        """Persist the content that belongs to the journal.

        Of a fragment that others went on within, what lies below that is stored, and all of it stays.

        Returns: False: its store is away: call again.
        """
        tenure = found.tenure
        storing = self._storing.get(found)
        if storing is None:
            # After `valid_to` others gave the same offsets to other bytes. A stored fragment that
            # crosses it would contradict theirs, so it is cut there.
            mine = [one for one in found.fragments if one.state.end <= valid_to]
            crossing = [
                one for one in found.fragments if one.state.begin < valid_to < one.state.end
            ]
            mine += [await run_in(self._executor, one.below, valid_to) for one in crossing]
            found.fragments = [one for one in found.fragments if one not in mine]
            storing = self._storing[found] = [_completed(found, one) for one in mine]
            for one in storing:
                self._persister.add(one)
        if not all(one.is_closed for one in storing):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STORE_S):
                    await self._persister.flush(tenure.journal)
        if not all(one.is_closed for one in storing):
            return False
        del self._storing[found]
        return True

    async def _release(self, found: RecoveredTenure) -> bool:
        """Let others go on where we ended. Returns: False: the record changed first, look again."""
        is_released = await self._let_go(found, release)
        if is_released:
            _log.info(
                "%s: others go on at %d, where this broker ended", found.tenure.journal, found.end
            )
        return is_released

    async def _tell_settled(self, tenure: Tenure) -> None:
        """Take a tenure that has nothing more out of the journal's record, which would grow for ever."""
        # A past holder must stay in the record until its last copy has gone: what comes back later
        # is only known by it.
        if any(other.tenure.id == tenure.id for other in self._found.get(tenure.journal, [])):
            return  # a copy of it, which may have more
        with contextlib.suppress(GazetteError):  # it stays, and takes up a little room
            for _ in range(_RECORD_TRIES):
                record, revision = await read_record(self._etcd, self._prefix, tenure.journal)
                following = settled(record, tenure.id, create_revision=tenure.create_revision)
                if following is None or await write_record(
                    self._etcd, self._prefix, tenure.journal, following, revision
                ):
                    return

    async def _let_go(self, found: RecoveredTenure, step: _Step) -> bool:
        """Take a step of letting go in the journal's epoch record.

        Returns: whether the record says so now; False: it changed first, or the tenure is not a holder.
        """
        tenure = found.tenure
        record, mod_revision = await read_record(self._etcd, self._prefix, tenure.journal)
        following = step(
            record,
            tenure.id,
            create_revision=tenure.create_revision,
            head=found.end,
            registers=found.registers,
        )
        if following is None or following == record:
            return following is not None
        return await write_record(self._etcd, self._prefix, tenure.journal, following, mod_revision)

    async def _resolve_rest(self, found: RecoveredTenure, valid_to: int) -> bool:
        """Set content aside that others went on without, if the journal does not have it.

        Args:
            valid_to: where others went on, by etcd; 0: it does not say.

        Returns: False: what the journal has is not known yet. Raises: OSError: it stays.
        """
        tenure = found.tenure
        item = self._space.state.items.get(tenure.journal)
        is_of_journal = item is not None and item.create_revision == tenure.create_revision
        if found.is_copied or not is_of_journal or not found.fragments:
            await run_in(self._executor, self._set_rest_aside, found)
            return True
        # Brokers of Gazette record nothing. What only they have now comes to the store later.
        resolution = await self._comparison.resolve(found, waits=valid_to == 0)
        if resolution is not None:
            await run_in(self._executor, self._dispose, found, resolution)
        return resolution is not None

    # ----------------------------------------------------------------------------- set aside
    def _dispose(self, found: RecoveredTenure, resolution: Resolution) -> None:
        """Do with the rest of a tenure what follows from a comparison. Raises: OSError: it stays."""
        if resolution.lacking:
            lacking = [one for one, _ in resolution.lacking]
            begin = resolution.lacking[0][1]
            self._set_fragments_aside(found, lacking, _NOT_THE_JOURNALS, lost_from=begin)
        self._set_fragments_aside(found, resolution.served, _SERVED, is_lost=False)
        found.release()  # what stores have

    def _set_torn_aside(self, found: RecoveredTenure) -> None:
        """Give files that differ from their records a second name. Raises: OSError."""
        for one in found.torn:
            self._aside(found, [one.path], [(one.begin, one.end)], one.why)

    def _remove_torn(self, found: RecoveredTenure) -> None:
        """Set such files aside, and remove them from the spool. Raises: OSError: they stay."""
        if found not in self._saved:
            self._set_torn_aside(found)
        # A torn file may still have a beginning that is believed, and is about to be stored.
        believed = {found.tenure.path(one.file.ordinal, "content") for one in found.fragments}
        for one in found.torn:
            if one.path not in believed:
                remove_fragment(one.path)
        found.torn = []

    def _set_rest_aside(self, found: RecoveredTenure) -> None:
        """Set content aside that does not belong to the journal. Raises: OSError: it stays."""
        why = _COPIED if found.is_copied else _NOT_THE_JOURNALS
        self._set_fragments_aside(found, found.fragments, why)

    def _set_fragments_aside(
        self,
        found: RecoveredTenure,
        fragments: list[RecoveredFragment],
        why: str,
        *,
        lost_from: int | None = None,
        is_lost: bool = True,
    ) -> None:
        """Set some fragments of a tenure aside, and forget them. Raises: OSError: they stay."""
        paths = [found.tenure.path(one.file.ordinal, "content") for one in fragments]
        spans = [(one.state.begin, one.state.end) for one in fragments]
        self._aside(found, paths, spans, why, lost_from=lost_from, is_lost=is_lost)
        found.fragments = [one for one in found.fragments if one not in fragments]
        for one in fragments:
            one.file.release()

    def _aside(
        self,
        found: RecoveredTenure,
        paths: list[Path],
        spans: list[tuple[int, int]],
        why: str,
        *,
        lost_from: int | None = None,
        is_lost: bool = True,
    ) -> None:
        """Set files aside, and log it in one line, however many they are.

        Args:
            lost_from: where the content begins that the journal does not have; None: at the first file.
            is_lost: whether there is such content: else it is neither counted nor logged.

        Raises: OSError: call again.
        """
        descriptions = [
            set_aside(self._spool_dir, found, path, begin=begin, end=end, why=why)
            for path, (begin, end) in zip(paths, spans, strict=True)
        ]
        if descriptions and is_lost:
            self._count(len(descriptions))
            _log.warning(
                "%s: content [%d, %d) of a spool of broker %s is set aside, since %s: see %s%s",
                found.tenure.journal,
                spans[0][0] if lost_from is None else lost_from,
                spans[-1][1],
                found.process,
                why,
                descriptions[0],
                f" and {len(descriptions) - 1} more" if len(descriptions) > 1 else "",
            )


def _contradicting(found: RecoveredTenure, stored: Iterable[Fragment]) -> list[RecoveredFragment]:
    return [one for one in found.fragments if any(one.contradicts(other) for other in stored)]


def _evidence(found: RecoveredTenure) -> Evidence:
    return Evidence(
        found.tenure.id,
        found.tenure.create_revision,
        found.end,
        is_whole=found.is_whole,
        is_end_known=found.is_end_known,
        begin=found.fragments[0].state.begin if found.fragments else found.end,
        is_older_than_etcd=found.tenure.is_older_than_etcd,
        is_copied=found.is_copied,
    )


def _why_not_whole(found: RecoveredTenure) -> str:
    """What is missing of a tenure, for operators."""
    missing = [
        f"[{one.begin}, {one.end}): {one.why}" if one.end else f"{one.path.name}: {one.why}"
        for one in found.torn
    ]
    if missing:
        return "; ".join(missing)
    if found.is_copied:
        return "it is in a copied folder, and nothing proves that the one that was copied went no further"
    if found.is_whole:
        return "there is a copy of it, and nothing proves how far that went"
    if not found.is_end_known:
        return (
            "nothing proves that all of it is on disk: the machine has restarted since, or records of "
            "its end are damaged"
        )
    return "its registers cannot be read"


def _completed(found: RecoveredTenure, one: RecoveredFragment) -> CompletedSpool:
    return CompletedSpool(
        fragment=one.fragment(found.tenure.journal),
        first_append_time=one.state.first_append_at,
        registers=one.state.registers,
        is_primary=False,
        content=one.file,
        create_revision=found.tenure.create_revision,
    )
