"""What is done to each table, from a seed: decided purely. Offsets are counted in records here."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = [
    "CASES",
    "LIVE_HOUR",
    "MODES",
    "PRUNE_FAULTS",
    "THEMES",
    "Both",
    "Case",
    "Cutover",
    "Fault",
    "Live",
    "Lose",
    "Prune",
    "Seen",
    "Store",
    "Tick",
    "make_case",
]

LIVE_HOUR = "09"
"""Where brokers file their own fragments."""

MODES = (
    "killed before",
    "killed after",
    "broken before",
    "broken after",
    "struck",
    "late",
)
"""What happens at a call: the process is killed, or the call fails, before or after it takes effect; the
process is killed at any instant; or the call fails, and takes effect some time later."""

THEMES = (
    "plain",
    "late",
    "spanning",
    "twin",
    "partial",
    "cutover",
    "two registrars",
    "home lost",
    "cursor lost",
    "each call",
    "prune",
    "lying listings",
)

CASES = 2 * len(THEMES)
"""Of a whole seed: each theme on files and on S3, which is what it takes to kill a tick after each call; lying listings,
which files do not have, twice on S3."""

_HOURS = ("05", "06", "07", "08")
# A tick makes some forty calls; a fault beyond the last one leaves it alone.
_CALLS = 45
_CALLS_OF_A_TICK = 36
_STRUCK_MS = 500
# Reported, deleted, dropped: each by a tick of its own.
_TICKS_OF_A_PRUNE = 4
# Of a tick that finds a prune: with the first of them nothing is registered any more.
_FIRST_OF_A_PRUNE, _CALLS_OF_A_PRUNE = 7, 39


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong in the life of a registrar."""

    mode: str
    at: int
    """Number of the call, from 1; of mode ``struck``, milliseconds after the first one."""
    call: str = ""
    """How names of the calls that count begin."""


_ALTER, _EVENT = "metastore alter_partitions", "dagster event"
_DELETE, _DROP = "dagster partitions", "metastore drop_partitions"

PRUNE_FAULTS = (
    (
        Fault("killed before", 1, _ALTER),
        Fault("killed after", 1, _EVENT),
        Fault("killed before", 1, _DELETE),
        Fault("killed after", 1, _DROP),
    ),
    (
        Fault("broken after", 1, _ALTER),
        Fault("killed before", 1, _EVENT),
        Fault("killed after", 1, _DELETE),
        Fault("broken after", 1, _DROP),
    ),
    (
        Fault("killed after", 1, _ALTER),
        Fault("killed after", 2, _EVENT),
        Fault("killed before", 1, _DELETE),
        Fault("late", 1, _DROP),
    ),
    (
        Fault("late", 1, _ALTER),
        Fault("killed after", 1, _EVENT),
        Fault("killed after", 1, _DELETE),
        Fault("killed before", 1, _DROP),
    ),
    (
        Fault("broken before", 1, _ALTER),
        Fault("killed before", 2, _EVENT),
        Fault("killed before", 1, _DELETE),
        Fault("broken before", 1, _DROP),
    ),
    (
        Fault("killed after", 1, "metastore lock"),
        Fault("killed after", 1, "metastore unlock"),
        Fault("killed after", 1, _DELETE),
        Fault("killed before", 1, "metastore unlock"),
    ),
)
"""What goes wrong after a prune, one life after the other, in the order of its steps: accounts are changed, under
a lock; that is reported; Dagster's partition is deleted; and the Hive partition is dropped."""


@dataclass(frozen=True)
class Store:
    """A fragment of records [begin, end) is stored in the directory of an hour."""

    journal: int
    begin: int
    end: int
    hour: str
    store: int = 0


@dataclass(frozen=True)
class Live:
    """So many records are appended through the broker, and flushed."""

    journal: int
    count: int


@dataclass(frozen=True)
class Seen:
    """Until brokers list what is stored."""


@dataclass(frozen=True)
class Tick:
    """A life of the registrar: so many ticks, or until its fault."""

    ticks: int
    fault: Fault | None = None


@dataclass(frozen=True)
class Both:
    """The registrar and another one, as `gazctl lake flush` is, at the same time."""

    fault: Fault | None
    other: Fault | None


@dataclass(frozen=True)
class Lose:
    """Dagster's home is deleted, or the sensor's cursor is cleared."""

    what: str


@dataclass(frozen=True)
class Cutover:
    """All journals write to this store from now on; the others stay in their specs."""

    store: int


@dataclass(frozen=True)
class Prune:
    """`gazctl journals prune` of a journal: fragments within records [begin, end) are removed."""

    journal: int
    begin: int
    end: int
    is_by_age: bool = False
    """They are older than the journal's retention by now, and are chosen by that. Only files can be."""


Step = Store | Live | Seen | Tick | Both | Lose | Cutover | Prune


@dataclass(frozen=True)
class Case:
    """A table and its history."""

    number: int
    theme: str
    stores: tuple[str, ...]
    """Kinds: ``file``, ``s3`` or ``lying``, which is S3 too. The first is where all begins."""
    steps: tuple[Step, ...]
    journals: int = 2

    @property
    def name(self) -> str:
        """Of its table."""
        return f"c{self.number:03}"

    @property
    def faults(self) -> int:
        """How many are planned."""
        found = [getattr(step, name, None) for step in self.steps for name in ("fault", "other")]
        return sum(fault is not None for fault in found)


def make_case(seed: int, number: int) -> Case:
    """The case of that number: themes take turns, and so do the kinds of stores."""
    rng = random.Random(f"lake-crash {seed} {number}")
    theme = THEMES[number % len(THEMES)]
    turn = number // len(THEMES)
    # Each theme takes turns, too, whether the number of them is odd or even.
    is_lying = theme == "lying listings"
    is_s3 = is_lying or (THEMES.index(theme) + turn) % 2 == 1
    first = "lying" if is_lying else "s3" if is_s3 else "file"
    stores = (first,)
    if theme == "cutover":
        # To the other kind in a whole seed, and then within a kind, too.
        is_other = turn % 4 < 2
        stores = (first, {"file": "s3", "s3": "file"}[first] if is_other else first)
    history = _History(rng, theme, turn, is_s3=is_s3)
    history.write()
    return Case(number, theme, stores, tuple(history.steps))


@dataclass
class _History:
    """A history in the making."""

    rng: random.Random
    theme: str
    turn: int
    """How often the theme had its turn before."""
    is_s3: bool
    steps: list[Step] = field(default_factory=list)
    heads: list[int] = field(default_factory=lambda: [0, 0])
    begins: list[list[int]] = field(default_factory=lambda: [[], []])
    """Where fragments begin, per journal: of all that is stored without a hole."""
    hour: int = 0
    store: int = 0

    def write(self) -> None:
        for journal in (0, 1):
            self.grow(journal)
        self.steps.append(Seen())
        for _ in range(2):
            self.grow(self.journal())
            self.tick()
        getattr(self, self.theme.replace(" ", "_"))()
        self.grow(self.journal())
        self.live(self.journal())
        self.tick()
        self.steps.append(Seen())
        self.tick()

    def journal(self) -> int:
        return self.rng.randrange(2)

    def fault(self) -> Fault:
        mode = self.rng.choices(MODES, (5, 5, 3, 5, 3, 3))[0]
        return Fault(mode, self.rng.randint(1, _STRUCK_MS if mode == "struck" else _CALLS))

    def tick(self) -> None:
        """Lives that mostly end early: what one has begun the next one finds."""
        if self.rng.random() < 0.5:
            self.steps.append(Seen())
        self.steps += [Tick(2, self.fault()) for _ in range(self.rng.randint(1, 2))]

    def register(self) -> None:
        """Before a file takes the place of another one.

        The sensor lists no folder of an object store: there it knows the files that it has registered.
        """
        if self.is_s3:
            self.steps += [Seen(), Tick(1)]

    def grow(self, journal: int, count: int = 0) -> None:
        """A fragment at the end, mostly in the same hour as the one before."""
        if self.rng.random() < 0.4 and self.hour + 1 < len(_HOURS):
            self.hour += 1
        begin = self.heads[journal]
        end = begin + (count or self.rng.randint(1, 5))
        self.steps.append(Store(journal, begin, end, _HOURS[self.hour], self.store))
        self.begins[journal].append(begin)
        self.heads[journal] = end

    def live(self, journal: int) -> None:
        count = self.rng.randint(1, 5)
        self.steps.append(Live(journal, count))
        self.begins[journal].append(self.heads[journal])
        self.heads[journal] += count

    # ------------------------------------------------------------------- themes

    def plain(self) -> None:
        """As most hours are."""
        for _ in range(3):
            self.grow(self.journal())
            self.live(self.journal())
            self.tick()

    def late(self) -> None:
        """Holes, in directories that exist and in others, filled one by one."""
        holes: list[Store] = []
        for _ in range(3):
            journal = self.journal()
            self.grow(journal)
            hole = self.steps.pop()
            assert isinstance(hole, Store)
            holes.append(hole)
            self.grow(journal)
            self.steps.append(Seen())
            self.tick()
        self.rng.shuffle(holes)
        for hole in holes:
            self.steps.append(hole)
            self.tick()

    def spanning(self) -> None:
        """A larger fragment takes the place of some, which stay where they are."""
        for _ in range(2):
            journal = self.journal()
            self.grow(journal)
            self.live(journal)
            self.steps.append(Seen())
            self.tick()
            begin = self.rng.choice(self.begins[journal][-3:])
            end = self.heads[journal] + self.rng.randint(0, 3)
            self.register()
            self.steps.append(Store(journal, begin, end, self.rng.choice(_HOURS), self.store))
            self.begins[journal] = [b for b in self.begins[journal] if b <= begin]
            self.heads[journal] = end
            self.tick()

    def twin(self) -> None:
        """Two brokers stored the same bytes under two hours."""
        for _ in range(2):
            journal = self.journal()
            begin = self.heads[journal]
            self.grow(journal)
            other = LIVE_HOUR if self.rng.random() < 0.3 else f"1{self.rng.randrange(4)}"
            twin = Store(journal, begin, self.heads[journal], other, self.store)
            if self.rng.random() < 0.5:
                self.tick()
            self.register()
            self.steps.append(twin)
            self.tick()

    def partial(self) -> None:
        """A fragment overlaps two that lie end to end: no file can be moved, and the view is right."""
        journal = self.journal()
        begin = self.heads[journal]
        self.grow(journal, 4)
        self.grow(journal, 3)
        self.steps.append(Seen())
        self.tick()
        self.steps.append(Store(journal, begin + 2, begin + 7, _HOURS[self.hour], self.store))
        self.tick()
        self.steps.append(Seen())
        self.tick()

    def cutover(self) -> None:
        """Within an hour; what brokers append goes the same way."""
        self.live(0)
        self.tick()
        self.store = 1
        self.steps.append(Cutover(1))
        self.live(0)
        self.grow(1)
        self.tick()
        self.live(1)
        self.tick()

    def two_registrars(self) -> None:
        """Both may be killed, or get a wrong answer."""
        for _ in range(3):
            self.grow(self.journal())
            self.live(self.journal())
            self.steps.append(Seen())
            both = [self.fault() if self.rng.random() < 0.6 else None for _ in range(2)]
            self.steps.append(Both(*both))

    def home_lost(self) -> None:
        """All events of Dagster are gone, once while nothing else happens."""
        self.lose("home")

    def cursor_lost(self) -> None:
        """As an operator may clear it."""
        self.lose("cursor")

    def each_call(self) -> None:
        """A tick with something to do is killed after each of its calls, every other one at a time."""
        for at in range(1 + self.turn % 2, _CALLS_OF_A_TICK, 2):
            self.grow(0, 1)
            self.steps += [Seen(), Tick(1, Fault("killed after", at))]

    def prune(self) -> None:
        """Hive partitions shrink and go, and what was killed in the middle of that goes on."""
        half = len(PRUNE_FAULTS) // 2
        for number in range(half):
            self.pruned(number % 2)
            faults = PRUNE_FAULTS[self.turn % 2 * half + number]
            self.steps += [Tick(_TICKS_OF_A_PRUNE, fault) for fault in faults]
        self.pruned(half % 2)
        for at in range(_FIRST_OF_A_PRUNE + self.turn % 2, _CALLS_OF_A_PRUNE, 2):
            self.steps.append(Tick(1, Fault("killed after", at)))

    def lying_listings(self) -> None:
        """The store answers about every second listing with something else, also while brokers look for what is late or pruned."""
        for _ in range(2):
            journal = self.journal()
            self.grow(journal)
            hole = self.steps.pop()
            self.grow(journal)
            self.live(self.journal())
            self.steps += [Seen(), Tick(_TICKS_OF_A_PRUNE)]
            self.steps.append(hole)
            self.tick()
        self.pruned(self.journal())
        self.steps.append(Tick(2 * _TICKS_OF_A_PRUNE))

    def pruned(self, journal: int) -> None:
        """A journal that is pruned, which brokers know."""
        self.hour = min(self.hour + 1, len(_HOURS) - 1)
        self.grow(journal)
        self.grow(journal)
        # After what is pruned something must be left that a tick has registered: else no one could
        # distinguish it from a store that went away.
        self.steps += [Seen(), Tick(_TICKS_OF_A_PRUNE)]
        known = self.heads[journal]
        self.grow(journal)
        self.live(journal)
        if self.rng.random() < 0.5:
            self.tick()
        self.steps += [Seen(), self._chosen(journal, known)]
        if self.rng.random() < 0.3:
            self.tick()  # files are gone, and brokers may list them
        self.steps.append(Seen())

    def _chosen(self, journal: int, known: int) -> Prune:
        """What is pruned of a journal: its front mostly, by offset or by age; else some of its middle."""
        ends = [begin for begin in self.begins[journal][1:] if begin < known]
        begin, end = 0, ends[-1] if self.rng.random() < 0.7 else self.rng.choice(ends)
        way = "offset" if self.is_s3 else self.rng.choice(["offset", "age", "middle"])
        if way == "middle" and len(ends) > 1:
            begin, end = ends[0], ends[-1]
        self.begins[journal] = [b for b in self.begins[journal] if not begin <= b < end]
        return Prune(journal, begin, end, is_by_age=way == "age")

    def lose(self, what: str) -> None:
        for _ in range(2):
            self.grow(self.journal())
            self.live(self.journal())
            self.tick()
            self.steps.append(Lose(what))
            self.tick()
