"""A tick's part in following prunes: whose turn it is, what is reported to Dagster, and when a Hive partition goes.

Each tick asks for the beginnings of a few journals, where nearly all prunes are, and looks at some Hive partitions of one
journal: of one whose beginning moved, else of the next one in turn, so that all is looked at again and again with
bounded work. A Hive partition that lost all goes in steps, and the next tick sees from the state which one is next:

1. its accounts are emptied, and the newest event of its time in Dagster says otherwise: it is reported;
2. it was reported, and no journal has anything left at that time: the partition of the time is deleted in Dagster;
3. Dagster has no such partition: the Hive partition is dropped.

Where other journals have something left at that time, it is reported and dropped at once: the time goes on being compared with Dagster's events.

So a tick that was killed, a lost cursor or a lost home of Dagster leave nothing unreported, and nothing is reported twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, final

from gazette_platform.assets.raw import (
    table_key,
    table_partitions,
    time_partition,
)
from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake import JournalCursor
from gazette_platform.lake.raw.account_book import time_of
from gazette_platform.lake.raw.reconcile import Break
from gazette_platform.ops.text import counted
from gazette_platform.sensors.events import data_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dagster import DeleteDynamicPartitionsRequest

    from gazette_platform.hive import HiveTable, Metastore, MetastoreSession
    from gazette_platform.lake import Look, PartitionAccount, Shrinker, TableSpec
    from gazette_platform.lake.raw.account_book import TimeAccount
    from gazette_platform.sensors.events import Told

# Beginnings of journals asked for in a tick.
_FRONTS_MAX = 8
_DOUBTS_MAX = 3


@final
@dataclass(frozen=True, slots=True)
class PrunePoint:
    """Hive partitions of a journal that are next; empty texts: the first ones."""

    table: str = ""
    journal: str = ""
    after: str = ""
    """Name of the Hive partition before them."""


@final
@dataclass(frozen=True, slots=True)
class RetentionState:
    """What is known of prunes, and whose turn it is."""

    point: PrunePoint = PrunePoint()
    urgent: PrunePoint | None = None
    """Of a journal whose beginning has moved."""
    front: PrunePoint = PrunePoint()
    """The journal whose beginning was asked for last."""
    broken: Mapping[str, Mapping[str, Break]] = field(default_factory=dict)
    """By table and journal."""
    doubts: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """By table and journal, why what is gone is not forgotten."""

    @classmethod
    def from_json(cls, raw: Any) -> RetentionState:
        """The state whose `to_json` was `raw`; an empty one if it is of another release."""
        try:
            urgent = raw.get("urgent")
            return cls(
                PrunePoint(*map(str, raw.get("point", ()))),
                PrunePoint(*map(str, urgent)) if urgent is not None else None,
                PrunePoint(*map(str, raw.get("front", ()))),
                {
                    str(table): {str(j): _break(at) for j, at in journals.items()}
                    for table, journals in raw.get("broken", {}).items()
                },
                {
                    str(table): {str(j): tuple(map(str, texts)) for j, texts in journals.items()}
                    for table, journals in raw.get("doubts", {}).items()
                },
            )
        except (TypeError, ValueError, AttributeError):
            return cls()

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values; what is empty is left out."""
        points = {"point": self.point, "urgent": self.urgent, "front": self.front}
        raw: dict[str, Any] = {
            name: [p.table, p.journal, p.after]
            for name, p in points.items()
            if p is not None and p != PrunePoint()
        }
        broken = {
            t: {j: [b.offset, b.stored_at] for j, b in journals.items()}
            for t, journals in self.broken.items()
            if journals
        }
        doubts = {
            t: {j: list(texts) for j, texts in journals.items()}
            for t, journals in self.doubts.items()
            if journals
        }
        return raw | ({"broken": broken} if broken else {}) | ({"doubts": doubts} if doubts else {})

    def texts(self, table: str) -> list[str]:
        """Doubts about a table."""
        return [text for _, texts in sorted(self.doubts.get(table, {}).items()) for text in texts]

    def with_broken(self, table: str, broken: Mapping[str, Break]) -> RetentionState:
        """With what a tick found of a table."""
        if not broken:
            return self
        known = dict(self.broken.get(table, {}))
        for journal, found in broken.items():
            known[journal] = known[journal].joined(found) if journal in known else found
        return replace(self, broken={**self.broken, table: known})

    def only(self, tables: Sequence[str]) -> RetentionState:
        """Without what is known of other tables."""
        return replace(
            self,
            broken={t: found for t, found in self.broken.items() if t in tables},
            doubts={t: found for t, found in self.doubts.items() if t in tables},
        )


class Teller(Protocol):
    """Reports a table to Dagster: `reporting.Telling`, which is above cursors, as they are above this."""

    def tell_accounts(self, table: HiveTable, accounts: Sequence[PartitionAccount]) -> None:
        """Report the times of those `accounts`, as far as they differ from what was reported."""
        ...

    def fold(self, table: HiveTable, accounts: Sequence[PartitionAccount]) -> list[TimeAccount]:
        """Return what is at the times of `accounts`, with the accounts of all other journals."""
        ...

    def tell_pruned(self, account: TimeAccount, journal: str) -> None:
        """Report what is left at a time that lost all of a journal to a prune."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PruneTick:
    """What one tick follows prunes with."""

    specs: Mapping[str, TableSpec]
    """Of the tables, by name."""
    cursors: Mapping[str, Mapping[str, JournalCursor]]
    """By table and journal, how far they were registered *before* this tick."""
    told: Told
    """What Dagster's events say."""
    tellings: Mapping[str, Teller]
    """By table: report more of it."""
    is_over: Callable[[], bool]
    """Whether the tick's time is up."""


@final
@dataclass(slots=True)
class RetentionOutcome:
    """What a tick did about prunes."""

    state: RetentionState
    deletions: list[DeleteDynamicPartitionsRequest] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@final
@dataclass(frozen=True, slots=True)
class Retention:
    """Follows prunes, a part of one table at a time.

    Args:
        shrinker: changes accounts, and drops Hive partitions.
        metastore: of the tables.
    """

    shrinker: Shrinker
    metastore: Metastore

    def run(self, tick: PruneTick, state: RetentionState) -> RetentionOutcome:
        """Do a tick's part.

        A journal that cannot be listed, or a metastore that cannot be reached, loses its turn.

        Args:
            tick: the means to do that.
            state: as the last tick left it, with what this one found broken.
        """
        outcome = RetentionOutcome(state)
        with self.metastore.connect() as session:
            turn = _Turn(self.shrinker, session, tick, outcome)
            turn.ask_fronts()
            turn.look()
        return outcome


@final
class _Turn:
    """One tick's part, over one session."""

    def __init__(
        self,
        shrinker: Shrinker,
        session: MetastoreSession,
        tick: PruneTick,
        outcome: RetentionOutcome,
    ) -> None:
        self._shrinker = shrinker
        self._session = session
        self._tick = tick
        self._outcome = outcome

    def ask_fronts(self) -> None:
        """Ask for beginnings of journals, until one has moved."""
        outcome = self._outcome
        order = _order(self._tick)
        state = outcome.state
        last = (state.front.table, state.front.journal)
        at = next((i for i, each in enumerate(order) if each > last), 0)
        for table, journal in (order[at:] + order[:at])[:_FRONTS_MAX]:
            if outcome.state.urgent is not None or self._tick.is_over():
                return
            outcome.state = replace(outcome.state, front=PrunePoint(table, journal))
            if journal in outcome.state.doubts.get(table, {}):
                continue  # it is looked at in turn, and the others are not to wait for it
            try:
                is_pruned = self._shrinker.is_pruned(
                    self._session, self._tick.specs[table], journal
                )
            except LakeError as err:
                # Of accounts that cannot be read, or a metastore that is away: the others get their turn.
                outcome.warnings.append(f"{table}: {err}")
                return
            except GazetteError:
                return  # brokers cannot list it right now, which took long; registration says so
            if is_pruned:
                outcome.state = replace(outcome.state, urgent=PrunePoint(table, journal))

    def look(self) -> None:
        """Look at the Hive partitions that are urgent; if nothing is gone, at those that are in turn."""
        outcome = self._outcome
        urgent = outcome.state.urgent
        if urgent is not None and not self._tick.is_over():
            is_done, following = self._try(urgent)
            # A part without losses comes after what was pruned.
            outcome.state = replace(outcome.state, urgent=None if is_done else following)
            if not is_done:
                return
        point = _in_turn(outcome.state.point, self._tick)
        if point is not None and not self._tick.is_over():
            _, following = self._try(point)
            behind = following or _behind(point, self._tick)
            outcome.state = replace(outcome.state, point=behind)

    def _try(self, point: PrunePoint) -> tuple[bool, PrunePoint | None]:
        """`_look`; an error of it is reported, and costs the journal its turn."""
        spec = self._tick.specs.get(point.table)
        if spec is None:
            return True, None
        try:
            return self._look(spec, point)
        except GazetteError as err:
            self._outcome.warnings.append(f"{point.table}: {err}")
            return True, None

    def _look(self, spec: TableSpec, point: PrunePoint) -> tuple[bool, PrunePoint | None]:
        """Returns: whether nothing was gone; and where to go on in the journal, None: it is through."""
        name, journal, outcome = spec.name, point.journal, self._outcome
        cursor = self._tick.cursors.get(name, {}).get(journal, JournalCursor())
        table = self._session.table(spec.schema, spec.stored_table)
        if table is None or not cursor.offset:
            return True, None
        found = self._shrinker.journal(journal)
        if found is None:
            # A journal that is gone was not pruned: its Hive partitions stay, and its files may, too.
            self._forget(name, journal)
            return True, None
        look = self._shrinker.look(
            self._session,
            spec,
            table,
            found,
            cursor,
            after=point.after,
            broken=outcome.state.broken.get(name, {}).get(journal),
            is_over=self._tick.is_over,
        )
        self._note(name, journal, look, is_first=not point.after)
        # Those that an earlier tick changed, and could not report, come up among what Dagster knows.
        self._tick.tellings[name].tell_accounts(table, look.changed)
        is_pending = self._settle(spec, table, look.emptied)
        if look.shrunk:
            outcome.summaries.append(
                f"{name}: {counted(look.shrunk, 'Hive partition holds', 'Hive partitions hold')} "
                f"less of {journal}, since it was pruned."
            )
        if look.shrunk or is_pending or not look.is_complete:
            return False, point
        return True, replace(point, after=look.following) if look.following else None

    def _settle(
        self, spec: TableSpec, table: HiveTable, emptied: Sequence[PartitionAccount]
    ) -> bool:
        """Take Hive partitions that hold nothing a step further. Returns: whether there is another one."""
        if not emptied:
            return False
        telling = self._tick.tellings[spec.name]
        partitions = table_partitions(spec.name)
        times = {a.time: a for a in telling.fold(table, emptied)}
        keys = [time_partition(time) for time in times]
        versions = self._tick.told.versions(table_key(spec.name), keys)
        known = self._tick.told.partitions(str(partitions.name), keys)
        deleted: list[str] = []
        dropped: list[PartitionAccount] = []
        for account in emptied:
            whole = times[time_of(account.key, account.journal)]
            key = time_partition(whole.time)
            is_told = versions.get(key) in {None, data_version(whole)}
            if not is_told:
                telling.tell_pruned(whole, account.journal)
            if whole.filled:
                # The time stays, so what differs there is reported however this tick ends. Waiting for the report
                # might take for ever, where something is registered at each tick.
                dropped.append(account)
            elif is_told and table.partition_columns and key in known:
                deleted.append(key)
            elif is_told:
                dropped.append(account)
        if deleted:
            self._outcome.deletions.append(partitions.build_delete_request(deleted))
        gone = self._shrinker.drop(self._session, table, dropped)
        if gone:
            self._outcome.summaries.append(
                f"{spec.name}: {counted(len(gone), 'Hive partition was', 'Hive partitions were')} "
                "dropped, which lost all to a prune."
            )
        return len(dropped) < len(emptied)

    def _note(self, table: str, journal: str, look: Look, *, is_first: bool) -> None:
        """Keep what a look found out about its journal."""
        state = self._outcome.state
        doubts = {t: dict(found) for t, found in state.doubts.items()}
        mine = doubts.setdefault(table, {})
        before = () if is_first else mine.get(journal, ())
        texts = list(dict.fromkeys([*before, *look.doubts]))[:_DOUBTS_MAX]
        mine[journal] = texts
        if not texts:
            del mine[journal]
        broken = {t: dict(found) for t, found in state.broken.items()}
        if look.is_mended:
            broken.get(table, {}).pop(journal, None)
        self._outcome.state = replace(state, doubts=doubts, broken=broken)

    def _forget(self, table: str, journal: str) -> None:
        """Forget what is known of a journal that is gone."""
        state = self._outcome.state
        broken = {t: dict(found) for t, found in state.broken.items()}
        doubts = {t: dict(found) for t, found in state.doubts.items()}
        broken.get(table, {}).pop(journal, None)
        doubts.get(table, {}).pop(journal, None)
        self._outcome.state = replace(state, broken=broken, doubts=doubts)


def _break(raw: Any) -> Break:
    """A break out of `RetentionState.to_json`."""
    offset, stored_at = raw
    return Break(int(offset), None if stored_at is None else int(stored_at))


def _order(tick: PruneTick) -> list[tuple[str, str]]:
    """Tables and journals in turn: a journal that no cursor knows has nothing registered."""
    return [(t, j) for t in sorted(tick.specs) for j in sorted(tick.cursors.get(t, ()))]


def _in_turn(point: PrunePoint, tick: PruneTick) -> PrunePoint | None:
    """`point`, if there is such a journal, else the next one; None: there is none at all."""
    if point.table in tick.specs and point.journal in tick.cursors.get(point.table, {}):
        return point
    found = _behind(point, tick)
    return found if found.table else None


def _behind(point: PrunePoint, tick: PruneTick) -> PrunePoint:
    """The begin of the journal after that of `point`; of the first one after the last."""
    order = _order(tick)
    behind = [each for each in order if each > (point.table, point.journal)] or order[:1]
    return PrunePoint(*behind[0]) if behind else PrunePoint()
