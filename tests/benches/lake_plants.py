"""Faults of a registrar's own, for `Life.plant`, and one of brokers: `tests.lake_crash` has to find each of them."""

from __future__ import annotations

from typing import Any

from gazette_platform.fragment import index
from gazette_platform.lake.raw import (
    listing,
    partition_updates,
    planning as progress,
    registration,
    shrinking,
)
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.reconcile import Judgement
from gazette_platform.sensors import audits, prunes, reporting as telling
from gazette_platform.stores import objects
from gazette_platform.stores.answers import OddAnswer, Page

__all__ = [
    "believe_listings",
    "count_again",
    "drop_untold",
    "hide_nothing",
    "jump_holes",
    "keep_partitions",
    "let_fragments_be_old",
    "never_shrink",
    "see_no_overlaps",
    "tell_all_again",
    "tell_nothing_again",
]


def tell_nothing_again() -> None:
    """Reports what it registered, and nothing that was registered before."""
    tell: Any = telling.Telling.tell

    def planted(self: Any, report: Any, _: Any) -> None:
        keys = {update.key for update in report.updates}
        report.accounts = [account for account in report.accounts if account.key in keys]
        tell(self, report, telling.KnownSlice())

    telling.Telling.tell = planted  # type: ignore[method-assign]


def tell_all_again() -> None:
    """Reports each time that it looks at."""

    def planted(accounts: Any, _: Any) -> Any:
        return list(accounts)

    telling.untold = planted


def believe_listings() -> None:
    """Takes whatever a store answers for a listing, of nothing if it has no keys. Of brokers."""
    ask: Any = objects.ObjectStore._page

    async def planted(*args: Any) -> Any:
        try:
            return await ask(*args)
        except OddAnswer:
            return Page([], "")

    objects.ObjectStore._page = planted  # type: ignore[method-assign]


def let_fragments_be_old() -> None:
    """Asks for no fragment that a listing lacks, as if all were stored some time ago. Of brokers, and no fault."""
    index.KEPT_S = 0  # type: ignore[misc]


def count_again() -> None:
    """Counts fragments whatever accounts hold, so that each new beginning counts them again."""
    covers = PartitionState.covers
    count: Any = partition_updates.Accountant._count
    update: Any = partition_updates._update

    def blindly(function: Any) -> Any:
        def planted(*args: Any) -> Any:
            PartitionState.covers = lambda *_: False  # type: ignore[method-assign]
            try:
                return function(*args)
            finally:
                PartitionState.covers = covers  # type: ignore[method-assign]

        return planted

    partition_updates.Accountant._count = blindly(count)  # type: ignore[method-assign]
    partition_updates._update = blindly(update)


def hide_nothing() -> None:
    """Makes exact views that leave no file out."""
    ensure: Any = audits.ensure_views
    audits.ensure_views = lambda session, spec, table, _, **options: ensure(
        session, spec, table, {}, **options
    )


def see_no_overlaps() -> None:
    """Finds no file that others cover, so that ticks move none."""
    merge: Any = audits._merged
    audits._merged = lambda *args: [one for one in merge(*args) if not one.excluded]


def jump_holes() -> None:
    """Goes on behind holes, and never looks back."""
    advance: Any = progress.advance

    def planted(*args: Any, **options: Any) -> Any:
        found = advance(*args, **options)
        return progress.JournalCursor(found.offset, found.last)

    registration.advance = planted
    registration.list_sweep = lambda _, journals, __: (journals[0], listing.Page(0, []), None)


def never_shrink() -> None:
    """Keeps accounts of what was pruned."""
    planted: Any = shrinking
    planted.judge = lambda *_: Judgement("keep")


def drop_untold() -> None:
    """Drops Hive partitions whose files were all pruned, at once and without a report."""

    def planted(turn: Any, _: Any, table: Any, emptied: Any) -> bool:
        turn._shrinker.drop(turn._session, table, emptied)
        return False

    prunes._Turn._settle = planted  # type: ignore[method-assign]


def keep_partitions() -> None:
    """Drops Hive partitions that Dagster goes on to show."""
    settle: Any = prunes._Turn._settle

    def planted(turn: Any, *args: Any) -> Any:
        told = turn._tick.told
        partitions = told.partitions
        told.partitions = lambda *_: frozenset()
        try:
            return settle(turn, *args)
        finally:
            told.partitions = partitions

    prunes._Turn._settle = planted  # type: ignore[method-assign]
