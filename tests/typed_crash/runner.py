"""Plays cases one after another, and judges what is there then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.lake_crash.pairs import Pairs
from tests.typed_crash.player import Player, context
from tests.typed_crash.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.typed_crash.plan import Case
    from tests.typed_crash.player import Facts
    from tests.typed_crash.world import World

__all__ = ["TypedCrashResult", "run_typed_crash"]


@dataclass
class TypedCrashResult:
    """How it went."""

    seed: int
    facts: list[Facts]
    verdict: Verdict
    pairs: Pairs = field(default_factory=Pairs)
    """Of calls that followed one another, and where one went wrong."""

    @property
    def faults(self) -> int:
        """Inflicted."""
        return sum(each.faults for each in self.facts)

    @property
    def is_ok(self) -> bool:
        """Whether nothing was lost, doubled or otherwise wrong."""
        return self.verdict.is_ok

    @property
    def summary(self) -> str:
        """The last line."""
        return self.verdict.summary(self.seed, len(self.facts))


def run_typed_crash(
    seed: int,
    cases: Sequence[Case],
    world: World,
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
    database: str = "crash",
    plant: str = "",
    is_aimed: bool = True,
) -> TypedCrashResult:
    """Play cases in a world, and judge what is there then.

    Args:
        seed: that the cases are of.
        cases: what to play.
        world: its servers.
        say: is told what was found.
        show: is told what is under way.
        database: of the tables; new in its world.
        plant: a fault of the lives, see `life.Life`.
        is_aimed: as of `Player`.
    """
    pairs, forks, verdict = Pairs(), context(), Verdict()
    facts: list[Facts] = []
    for case in cases:
        show(f"{len(facts)} of {len(cases)} cases played: {case.name} ({case.theme})")
        player = Player(
            world, forks, case, database=database, pairs=pairs, plant=plant, is_aimed=is_aimed
        )
        played = player.play()
        facts.append(played)
        verdict.problems += played.problems
        if played.found is not None:
            judge(verdict, case.name, played.wanted, played.found)
        lives = sum(not line for line in played.calls)
        outcomes = ", ".join(
            f"{played.outcomes.count(one)} {one}" for one in sorted(set(played.outcomes))
        )
        say(
            f"{case.name} ({case.theme}): {played.faults} faults in {lives} lives ({outcomes}), "
            f"{played.seconds:.0f} s"
        )
    for problem in verdict.problems:
        say(problem)
    result = TypedCrashResult(seed, facts, verdict, pairs)
    say(f"{result.faults} faults between {len(pairs.wrong)} of {len(pairs.seen)} pairs of calls")
    if pairs.left:
        say(f"nothing went wrong between {', '.join(map(str, pairs.left))}")
    return result
