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
    "THEMES",
    "Append",
    "Both",
    "Case",
    "Held",
    "Maintain",
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


@dataclass(frozen=True)
class Both:
    """Two lives at the same time."""

    fault: Fault | None = None


@dataclass(frozen=True)
class Held:
    """A life that is held up before a call, until the steps between are done: then it goes on, as a zombie."""

    call: str
    at: int
    between: tuple[object, ...]


@dataclass(frozen=True)
class Maintain:
    """What keeps a table in shape, by Spark."""

    what: str
    """``optimize``, ``expire``, or ``both``."""


@dataclass(frozen=True)
class Restart:
    """Stop the metastore, and start it again a moment later, while a life runs."""


@dataclass(frozen=True)
class Widen:
    """A change of the spec: a column that is new, of a key that records have from now on."""


@dataclass(frozen=True)
class Case:
    """A table and its history."""

    name: str
    theme: str
    seed: str
    journals: int
    steps: tuple[object, ...]


def _appends(draw: Random, journals: int, acts: tuple[str, ...] = _PLAIN) -> Iterator[object]:
    for journal in range(journals):
        yield Append(journal, draw.randint(2, 6), acts)
    if draw.random() < 0.6:
        yield Roll()


def _killed(draw: Random, journals: int) -> Iterator[object]:
    """At any call, before and behind it; lives that are not ended so are aimed."""
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
    """Two runs at once, one of which may be killed."""
    for _ in range(4):
        yield from _appends(draw, journals, draw.choice((_PLAIN, _SPANS)))
        yield Both(draw.choice((None, Fault("killed after", draw.randint(5, 50)))))


def _zombie(draw: Random, journals: int) -> Iterator[object]:
    """A run that is held up while others publish, optimize and expire, and then goes on.

    Never with the metastore's lock in hand: others would wait until it is dropped, five minutes later.
    """
    for call in ("metastore lock", "file create metadata", "file create avro", "order"):
        yield from _appends(draw, journals)
        others = [*_appends(draw, journals), Run(), Maintain(draw.choice(("both", "expire")))]
        yield Held(call, 1, tuple(others))


def _spans(draw: Random, journals: int) -> Iterator[object]:
    """Transactions that begin in one run and are acknowledged in later ones."""
    for _ in range(6):
        yield from _appends(draw, journals, _SPANS)
        yield Run(draw.choice((None, None, Fault("killed before", draw.randint(10, 50)))))
    yield Append(0, 6, ("ack", "ack", "rollback"))


def _maintained(draw: Random, journals: int) -> Iterator[object]:
    """Optimize and expire between runs, which die."""
    for what in ("optimize", "expire", "both", "both"):
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


_HISTORIES: dict[str, Callable[[Random, int], Iterator[object]]] = {
    "killed": _killed,
    "broken": _broken,
    "doubled": _doubled,
    "zombie": _zombie,
    "spans": _spans,
    "maintained": _maintained,
    "conflict": _conflict,
    "drift": _drift,
}
THEMES = tuple(_HISTORIES)
CASES = 3 * len(THEMES)


def make_case(seed: int, number: int) -> Case:
    """The case of a number; themes take turns."""
    theme = THEMES[number % len(THEMES)]
    text = f"{seed}-{number}"
    draw = Random(text)
    journals = draw.randint(1, 3)
    return Case(f"t{number:02}", theme, text, journals, tuple(_HISTORIES[theme](draw, journals)))
