"""Plays cases, some at a time, and judges the outcome."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.lake_crash.forks import Forks
from tests.lake_crash.pairs import Pairs
from tests.typed_crash.player import Player
from tests.typed_crash.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.harness import State
    from tests.typed_crash.plan import Case
    from tests.typed_crash.player import Facts
    from tests.typed_crash.world import World

__all__ = ["TypedCrashResult", "run_typed_crash"]

# Most of what lives do is to wait for servers.
_AT_ONCE = 2


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
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        return self.verdict.state

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
    starved_by: Callable[[], str] = lambda: "",
) -> TypedCrashResult:
    """Play cases in a world, and judge the outcome.

    Args:
        seed: that the cases are of.
        cases: what to play.
        world: its servers.
        say: called with what was found.
        show: called with what is under way.
        database: of the tables; new in its world.
        plant: a fault of the lives, see `life.Life`.
        starved_by: says what starved the run so far, see `MachineWatch.cause`.
    """
    pairs, forks, verdict = Pairs(), Forks("tests.typed_crash.preload"), Verdict()
    facts: list[Facts] = []

    def play(case: Case) -> Facts:
        player = Player(world, forks, case, database=database, pairs=pairs, plant=plant)
        return player.play()

    def done(played: Facts) -> None:
        facts.append(played)
        say(_told(played))
        before = len(verdict.problems)
        verdict.problems += played.problems
        if played.found is not None:
            case = played.case
            judge(
                verdict, case.name, played.wanted, played.found,
                is_keyed=case.is_keyed, is_parted=case.is_parted,
            )  # fmt: skip
        for problem in verdict.problems[before:]:
            say(problem)
        show(f"{len(facts)} of {len(cases)} cases played")

    show(f"0 of {len(cases)} cases played")
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="case") as pool:
        together = [pool.submit(play, case) for case in cases if not case.is_alone]
        for future in as_completed(together):
            done(future.result())
    for case in cases:
        if case.is_alone:
            done(play(case))
    verdict.starved_by = starved_by()
    result = TypedCrashResult(seed, facts, verdict, pairs)
    say(f"{result.faults} faults between {len(pairs.wrong)} of {len(pairs.seen)} pairs of calls")
    if pairs.left:
        say(f"nothing went wrong between {', '.join(map(str, pairs.left))}")
    return result


def _told(played: Facts) -> str:
    case, outcomes = played.case, Counter(played.outcomes)
    said = ", ".join(f"{count} {one}" for one, count in sorted(outcomes.items()))
    lives = sum(not line for line in played.calls)
    return (
        f"{case.name} ({case.theme}): {played.faults} faults in {lives} lives ({said}), "
        f"{played.seconds:.0f} s"
    )
