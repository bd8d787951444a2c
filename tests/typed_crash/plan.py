"""Histories, as they follow from a seed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.lake_crash.plan import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CASES",
    "SLOW",
    "THEMES",
    "Append",
    "Both",
    "Case",
    "Damage",
    "Held",
    "Loosen",
    "Maintain",
    "MakeAgain",
    "Outgrow",
    "Restart",
    "Roll",
    "Run",
    "Widen",
    "make_case",
]

_PLAIN = ("out", "out", "out", "again", "odd")
_SPANS = ("out", "continue", "continue", "ack", "rollback", "again", "odd")


@dataclass(frozen=True)
class Append:
    """Append batches to a journal, each at once."""

    journal: int
    batches: int
    acts: tuple[str, ...] = _PLAIN


@dataclass(frozen=True)
class Roll:
    """Have brokers store what they hold; else it is the live tail."""


@dataclass(frozen=True)
class Run:
    """A life, and another one for as long as it was killed for its aim."""

    fault: Fault | None = None
    """Of mode ``struck`` it is killed that many milliseconds after the call was begun."""
    what: str = "run"
    """``run``, ``backfill``, ``reprocess``, or ``restart``: a run that reads journals that were made again."""
    has_engine: bool = False
    """Whether it has a Spark of its own, which carries out orders, and dies with it."""


@dataclass(frozen=True)
class Both:
    """Two lives at the same time."""

    fault: Fault | None = None
    """Of the first."""
    what: str = "run"
    """Of the first; see `Run`."""
    beside: str = "run"
    """Of the other."""


@dataclass(frozen=True)
class Held:
    """A life that is held up before a call, until the steps between are done: then it goes on, as a zombie."""

    call: str
    at: int
    between: tuple[object, ...]
    what: str = "run"
    """See `Run`."""


@dataclass(frozen=True)
class Maintain:
    """What keeps a table in shape, by Spark."""

    what: str
    """``optimize``, ``expire``, or ``both``, of all that there is; or ``upkeep``: as the product does it, days later."""


@dataclass(frozen=True)
class Restart:
    """Stop the metastore, and start it again a moment later, while a life runs."""


@dataclass(frozen=True)
class Widen:
    """A change of the spec: a column that is new, of a key that records have from now on."""


@dataclass(frozen=True)
class Loosen:
    """A change of the spec: a column of a strict case is required no more."""


@dataclass(frozen=True)
class Damage:
    """An operator deletes some rows by hand, and doubles others."""


@dataclass(frozen=True)
class MakeAgain:
    """Once all of a journal is read: delete it with its files, and make it again."""

    journal: int


@dataclass(frozen=True)
class Outgrow:
    """Append to a journal that was made again until it is longer than it was before."""

    journal: int


@dataclass(frozen=True)
class Case:
    """A table and its history."""

    name: str
    theme: str
    seed: str
    journals: int
    steps: tuple[object, ...]
    is_parted: bool = False
    """Whether it has partitions: the day of a column."""
    is_keyed: bool = False
    """Whether of several messages of a key the last one is its row."""
    amends: str = ""
    """What is done once more when its history is over, with all of the table: ``backfill``, or ``reprocess``. Records
    may lack a column then that is required until it is loosened."""
    is_aimed: bool = True
    """Whether lives are killed between calls where nothing went wrong yet, beside what is planned."""

    @property
    def is_alone(self) -> bool:
        """Whether it does what others would notice."""
        return any(isinstance(step, Restart) for step in self.steps)


def _appends(draw: Random, journals: int, acts: tuple[str, ...] = _PLAIN) -> Iterator[object]:
    for journal in range(journals):
        yield Append(journal, draw.randint(2, 6), acts)
    if draw.random() < 0.6:
        yield Roll()


def _killed(draw: Random, journals: int) -> Iterator[object]:
    """At any call, before and after it; lives that are not ended so are aimed."""
    for _ in range(4):
        yield from _appends(draw, journals)
        side = draw.choice(("before", "after"))
        yield Run(Fault(f"killed {side}", draw.randint(1, 60)))


def _broken(draw: Random, journals: int) -> Iterator[object]:
    """Neighbours that answer wrongly, or whose answer is lost or late."""
    for _ in range(5):
        yield from _appends(draw, journals)
        mode = draw.choice(("broken before", "broken after", "late"))
        yield Run(
            Fault(mode, draw.randint(1, 3), draw.choice(("metastore alter", "metastore", "file")))
        )
    yield Run()
    yield from _appends(draw, journals)
    # Nothing is left to be settled, so this is the publication: its answer is lost.
    yield Run(Fault("broken after", 1, "metastore alter"))


def _doubled(draw: Random, journals: int) -> Iterator[object]:
    """Two runs at once; one may be killed."""
    for _ in range(4):
        yield from _appends(draw, journals, draw.choice((_PLAIN, _SPANS)))
        yield Both(draw.choice((None, Fault("killed after", draw.randint(5, 50)))))


def _zombie(draw: Random, journals: int) -> Iterator[object]:
    """A run that is held up while others publish, optimize, expire and remove orphans, and then goes on."""
    yield Run()
    for call in ("metastore lock", "file create metadata", "file create avro", "order"):
        yield from _appends(draw, journals)
        how = draw.choice(("both", "expire", "upkeep"))
        yield Held(call, 1, (*_appends(draw, journals), Run(), Maintain(how)))
    # With the lock of the metastore in hand, for longer than it lives.
    yield Run()
    yield from _appends(draw, journals)
    yield Held("metastore alter", 1, (*_appends(draw, journals), Run()))


def _spans(draw: Random, journals: int) -> Iterator[object]:
    """Transactions that begin in one run and are acknowledged in later ones."""
    for _ in range(6):
        yield from _appends(draw, journals, _SPANS)
        yield Run(draw.choice((None, None, Fault("killed before", draw.randint(10, 50)))))
    yield Append(0, 6, ("ack", "ack", "rollback"))


def _maintained(draw: Random, journals: int) -> Iterator[object]:
    """Optimize, expire and remove orphans between runs, which die."""
    for what in ("optimize", "expire", "both", "upkeep"):
        yield from _appends(draw, journals, _SPANS)
        yield Run(draw.choice((None, Fault("killed after", draw.randint(10, 60)))))
        yield Maintain(what)


def _conflict(draw: Random, journals: int) -> Iterator[object]:
    """Maintenance that comes between a run's look and its commit, so that it commits on top."""
    for call in ("metastore lock", "file create metadata"):
        yield from _appends(draw, journals)
        yield Run()
        yield from _appends(draw, journals)
        yield Held(call, 1, (Maintain("both"),))
    yield from _appends(draw, journals)
    yield Restart()


def _drift(draw: Random, journals: int) -> Iterator[object]:
    """Records that change while they are read, and a spec that follows."""
    yield from _appends(draw, journals)
    yield Run(Fault("killed before", draw.randint(20, 60)))
    yield Widen()
    yield from _appends(draw, journals, _SPANS)
    yield Run(Fault("killed after", draw.randint(5, 40)))
    yield from _appends(draw, journals, _SPANS)
    yield Run()
    yield Maintain("both")


def _upserts(draw: Random, journals: int) -> Iterator[object]:
    """A table with a key, whose runs die as they merge, and between that and publishing."""
    yield from _appends(draw, journals, _SPANS)
    yield Run()
    for mode in ("struck", "killed after", "struck", "broken after"):
        yield from _appends(draw, journals, _SPANS)
        yield Run(Fault(mode, draw.randint(50, 1500) if mode == "struck" else 1, "merge"))
    yield from _appends(draw, journals)
    yield Both(Fault("struck", draw.randint(50, 1500), "merge"))
    yield Maintain("upkeep")


def _restaged(draw: Random, journals: int) -> Iterator[object]:
    """The same, held up before it merges and behind, while others publish and maintain."""
    yield from _appends(draw, journals)
    yield Run()
    yield from _appends(draw, journals)
    yield Held("merge", 1, (Maintain("optimize"),))
    yield from _appends(draw, journals)
    yield Held("staged", 1, (Maintain(draw.choice(("optimize", "both"))),))
    yield from _appends(draw, journals)
    yield Held("staged", 1, (*_appends(draw, journals), Run()))
    yield from _appends(draw, journals)
    yield Held("merge", 1, (*_appends(draw, journals), Run(), Maintain("upkeep")))


def _backfilled(draw: Random, journals: int) -> Iterator[object]:
    """Rows are made again, of a spec that has changed and a table that was damaged, while runs go on."""
    yield from _appends(draw, journals, _SPANS)
    yield Run()
    yield from _appends(draw, journals, _SPANS)
    yield Run()
    yield Loosen()
    yield Damage()
    for mode in ("killed before", "killed after"):
        yield Run(Fault(mode, draw.randint(5, 60)), "backfill")
    yield from _appends(draw, journals, _SPANS)
    yield Both(draw.choice((None, Fault("killed after", draw.randint(20, 60)))), "backfill")
    yield Both(None, "backfill", "backfill")
    yield from _appends(draw, journals, _SPANS)
    yield Held("metastore lock", 1, (Run(), Maintain("optimize")), "backfill")
    yield Run(Fault("broken after", 1, "metastore alter"), "backfill")
    yield Maintain("upkeep")


def _reprocessed(draw: Random, journals: int) -> Iterator[object]:
    """Quarantined records become rows, as the spec has changed, while runs go on."""
    yield from _appends(draw, journals, _SPANS)
    yield Run()
    yield from _appends(draw, journals, _SPANS)
    yield Run(Fault("killed after", draw.randint(30, 60)))
    yield Run()
    yield Loosen()
    # Once one has published there is nothing left to be reprocessed: none of these comes so far.
    yield Run(Fault("killed before", draw.randint(6, 13)), "reprocess")
    yield Run(Fault("killed after", draw.randint(14, 18)), "reprocess")
    yield from _appends(draw, journals, _SPANS)
    yield Both(Fault("killed after", draw.randint(10, 18)), "reprocess")
    yield from _appends(draw, journals, _SPANS)
    # This one does, before it settles; and the one that is held finds that out.
    other = Run(Fault("killed after", 1, "metastore alter"), "reprocess")
    yield Held("file create metadata", 1, (Run(), Maintain("both"), other), "reprocess")
    yield Both(None, "reprocess", "reprocess")
    yield Maintain("upkeep")


def _engines(draw: Random, journals: int) -> Iterator[object]:
    """A table with a key, whose runs have a Spark of their own that dies with them."""
    for mode, call in (("struck", "orders"), ("struck", "merge"), ("killed after", "merge")):
        yield from _appends(draw, journals, _SPANS)
        at = draw.randint(500, 4000) if mode == "struck" else 1
        yield Run(Fault(mode, at, call), has_engine=True)
    yield from _appends(draw, journals, _SPANS)
    yield Run(has_engine=True)


def _made_again(draw: Random, journals: int) -> Iterator[object]:
    """A journal is deleted and made again. Runs pass it over, however long it is, until one restarts with it."""
    yield from _appends(draw, journals, _SPANS)
    yield Run(Fault("killed after", draw.randint(5, 60)))
    yield from _appends(draw, journals, _SPANS)
    which = draw.randrange(journals)
    yield MakeAgain(which)
    yield Append(which, 1)
    yield Run()
    yield Outgrow(which)
    yield from _appends(draw, journals, _SPANS)
    yield Run(Fault("killed before", draw.randint(5, 60)))
    for side in ("before", "after"):
        yield Run(Fault(f"killed {side}", draw.randint(5, 60)), "begin anew")
    yield Both(None, "begin anew", draw.choice(("run", "begin anew")))
    yield from _appends(draw, journals, _SPANS)
    yield Run(None, "begin anew")
    yield Maintain("both")
    yield from _appends(draw, journals, _SPANS)


_HISTORIES: dict[str, Callable[[Random, int], Iterator[object]]] = {
    "killed": _killed,
    "broken": _broken,
    "doubled": _doubled,
    "zombie": _zombie,
    "spans": _spans,
    "maintained": _maintained,
    "conflict": _conflict,
    "drift": _drift,
    "upserts": _upserts,
    "restaged": _restaged,
    "backfilled": _backfilled,
    "reprocessed": _reprocessed,
    "made again": _made_again,
    "engines": _engines,
}
_KEYED = {"upserts", "restaged", "engines"}
_AMENDS = {"backfilled": "backfill", "reprocessed": "reprocess"}
THEMES = tuple(_HISTORIES)
SLOW = ("engines",)
"""Themes that start a Spark for each life."""
CASES = 2 * len(THEMES)


def make_case(seed: int, number: int) -> Case:
    """The case of a number; themes take turns."""
    theme = THEMES[number % len(THEMES)]
    text = f"{seed}-{number}"
    draw = Random(text)
    journals = draw.randint(1, 3)
    return Case(
        name=f"t{number:02}",
        theme=theme,
        seed=text,
        journals=journals,
        steps=tuple(_HISTORIES[theme](draw, journals)),
        # Each theme once with, and once without.
        is_parted=sum(divmod(number, len(THEMES))) % 2 == 1,
        is_keyed=theme in _KEYED,
        amends=_AMENDS.get(theme, ""),
    )
