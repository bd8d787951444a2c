"""Runs cases side by side, then asks all engines, and judges."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.harness import Late, State
from tests.lake_crash.engines import ENGINES
from tests.lake_crash.forks import Forks
from tests.lake_crash.oracle import expected
from tests.lake_crash.pairs import Pairs
from tests.lake_crash.player import Facts, Player
from tests.lake_crash.verdict import Verdict, judge_accounts, judge_events, judge_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.lake_crash.engines import Engine
    from tests.lake_crash.oracle import Numbers
    from tests.lake_crash.plan import Case
    from tests.lake_crash.world import World

__all__ = ["LakeCrashConfig", "LakeCrashResult", "run_lake_crash"]

# More than cores: a case waits for its broker's listings, and for Dagster's disk.
_AT_A_TIME = 4


@dataclass(frozen=True, kw_only=True)
class LakeCrashConfig:
    """What to run."""

    seed: int = 7
    database: str = "crash"
    """Of the tables; new in its world."""
    cases: Sequence[Case]
    """What to run."""
    engines: Mapping[str, Engine] = field(default_factory=lambda: ENGINES)
    is_aimed: bool = True
    """Whether lives are killed between all calls, beside what their histories have planned."""
    plant: str = ""
    """A fault of the registrars, see `registrar.Life`."""
    settle_s: float = 180.0
    """After which a case must have come to rest, on a machine that is several times slower."""
    settle_ticks: int = 30
    """Of each life that settles a case."""


@dataclass
class LakeCrashResult:
    """How it went."""

    config: LakeCrashConfig
    facts: list[Facts]
    verdict: Verdict
    faults: int = 0
    """Inflicted."""
    pairs: Pairs = field(default_factory=Pairs)
    """Of calls that followed one another, and where one went wrong."""

    @property
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        return self.verdict.state

    @property
    def is_ok(self) -> bool:
        """Whether nothing was lost, doubled, untold, or otherwise wrong."""
        return self.verdict.is_ok

    @property
    def summary(self) -> str:
        """The last line."""
        return self.verdict.summary(self.config.seed, len(self.config.cases))


def run_lake_crash(
    config: LakeCrashConfig,
    world: World,
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
    starved_by: Callable[[], str] = lambda: "",
) -> LakeCrashResult:
    """Play cases in a world, and judge the outcome.

    Args:
        config: what to run.
        world: its servers.
        say: called with what was found.
        show: called with what is under way.
        starved_by: says what starved the run so far, see `MachineWatch.cause`.
    """
    pairs = Pairs()
    facts = _play(config, world, pairs, say, show)
    verdict = Verdict(problems=[problem for each in facts for problem in each.problems])
    verdict.starved_by = starved_by()
    if verdict.starved_by:
        # What a history has not come to yet is neither lost nor there.
        facts = [each for each in facts if not any(isinstance(p, Late) for p in each.problems)]
    tables = [each.case.name for each in facts if each.accounts]
    answers: dict[str, dict[tuple[str, str, int, str], Numbers]] = {}
    for engine, ask in config.engines.items() if tables else ():
        show(f"asking {engine} for {len(tables)} tables")
        answers[engine] = ask(world, config.database, tables)
    for each in facts:
        wanted = expected(each.case, each.hours)
        judge_rows(verdict, each.case.name, wanted, answers)
        judge_accounts(verdict, each.case.name, wanted, each.accounts, each.times)
        judge_events(verdict, each.case.name, each.times, *each.log)
    faults = sum(each.faults for each in facts)
    for problem in verdict.problems:
        say(problem)
    say(
        f"{faults} faults between {len(pairs.wrong)} of {len(pairs.seen)} pairs of calls; "
        f"{sum(len(told) for each in facts for told in each.log.told.values())} events reported; "
        f"{verdict.pruned} records pruned"
    )
    if pairs.left:
        say(f"nothing went wrong between {', '.join(map(str, pairs.left))}")
    return LakeCrashResult(config, facts, verdict, faults, pairs)


def _play(
    config: LakeCrashConfig,
    world: World,
    pairs: Pairs,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> list[Facts]:
    forks = Forks("tests.lake_crash.preload")
    done: list[Facts] = []

    def play(case: Case) -> Facts:
        player = Player(
            world,
            forks,
            case,
            database=config.database,
            pairs=pairs,
            is_aimed=config.is_aimed,
            plant=config.plant,
            settle_s=config.settle_s,
            settle_ticks=config.settle_ticks,
        )
        played = player.play()
        done.append(played)
        lives = sum(not line for line in played.calls)
        say(
            f"{case.name} ({case.theme}, {' then '.join(case.stores)}): {played.faults} faults in {lives} "
            f"lives, {played.seconds:.0f} s"
        )
        show(f"{len(done)} of {len(config.cases)} cases played")
        return played

    with ThreadPoolExecutor(_AT_A_TIME, "lake-crash") as pool:
        return list(pool.map(play, config.cases))
