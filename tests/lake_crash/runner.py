"""Runs cases side by side for a while, then asks all engines, and judges."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from tests.lake_crash.engines import ENGINES
from tests.lake_crash.oracle import expected
from tests.lake_crash.plan import THEMES, Case, make_case
from tests.lake_crash.player import Facts, Player, context
from tests.lake_crash.verdict import Verdict, judge_events, judge_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tests.lake_crash.engines import Engine
    from tests.lake_crash.oracle import Numbers
    from tests.lake_crash.world import World

__all__ = ["LakeCrashConfig", "LakeCrashResult", "run_lake_crash"]

# More than cores: a case waits for its broker's listings, and for Dagster's disk.
_AT_A_TIME = 4


@dataclass(frozen=True, kw_only=True)
class LakeCrashConfig:
    """What to run."""

    seed: int = 7
    duration_s: float = 60.0
    """Of cases; none is begun later. All themes have their turn, whatever it is."""
    database: str = "crash"
    """Of the tables; new in its world."""
    cases: Sequence[Case] = ()
    """What to run; empty: what follows from the seed."""
    engines: Mapping[str, Engine] = field(default_factory=lambda: ENGINES)
    plant: str = ""
    """A fault of the registrars, see `registrar.Life`."""
    settle_s: float = 180.0
    """After which a case must have come to rest, on a machine that is several times slower."""


@dataclass
class LakeCrashResult:
    """How it went."""

    config: LakeCrashConfig
    facts: list[Facts]
    verdict: Verdict
    faults: int = 0
    """Inflicted."""
    gaps: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a life ended, or went wrong, between two calls."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was lost, doubled, untold, or otherwise wrong."""
        return self.verdict.is_ok

    @property
    def summary(self) -> str:
        """The last line."""
        return self.verdict.summary(self.config.seed, len(self.facts))


def run_lake_crash(
    config: LakeCrashConfig,
    world: World,
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> LakeCrashResult:
    """Play cases in a world, and judge what is there then.

    Args:
        config: what to run.
        world: its servers.
        say: is told what was found.
        show: is told what is under way.
    """
    facts = _play(config, world, show)
    verdict = Verdict(problems=[problem for each in facts for problem in each.problems])
    tables = [each.case.name for each in facts if each.accounts]
    answers: dict[str, dict[tuple[str, str, int, str], Numbers]] = {}
    for engine, ask in config.engines.items() if tables else ():
        show(f"asking {engine} for {len(tables)} tables")
        answers[engine] = ask(world, config.database, tables)
    for each in facts:
        wanted = expected(each.case, each.hours)
        judge_rows(verdict, each.case.name, wanted, answers)
        judge_events(verdict, each.case.name, wanted, each.accounts, each.told, each.partitions)
    result = LakeCrashResult(config, facts, verdict, sum(each.faults for each in facts))
    for each in facts:
        result.gaps.update(_gaps(each.calls))
    for problem in verdict.problems:
        say(problem)
    say(
        f"{result.faults} faults between {len(result.gaps)} pairs of calls; "
        f"{sum(len(told) for each in facts for told in each.told.values())} events told"
    )
    return result


def _play(config: LakeCrashConfig, world: World, show: Callable[[str], None]) -> list[Facts]:
    forks: Any = context()
    ends_at = time.monotonic() + config.duration_s
    done: list[Facts] = []

    def play(case: Case) -> Facts | None:
        if not config.cases and case.number >= len(THEMES) and time.monotonic() > ends_at:
            return None
        player = Player(
            world,
            forks,
            case,
            database=config.database,
            plant=config.plant,
            settle_s=config.settle_s,
        )
        played = player.play()
        done.append(played)
        faults = sum(each.faults for each in done)
        show(f"{len(done)} cases played, {faults} faults")
        return played

    cases = _cases(config, world)
    found: list[Facts] = []
    with ThreadPoolExecutor(_AT_A_TIME, "lake-crash") as pool:
        running = [pool.submit(play, case) for case in _take(cases, _AT_A_TIME)]
        while running:
            played = running.pop(0).result()
            if played is None:
                continue
            found.append(played)
            running += [pool.submit(play, case) for case in _take(cases, 1)]
    return found


def _cases(config: LakeCrashConfig, world: World) -> Iterator[Case]:
    if config.cases:
        return iter(config.cases)
    return (make_case(config.seed, number, has_s3=world.has_s3) for number in count())


def _take(cases: Iterator[Case], many: int) -> list[Case]:
    return list(islice(cases, many))


def _gaps(calls: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Between which two calls lives went wrong: the one that had taken effect, and the next one."""
    before = begun = ""
    for line in calls:
        if line.startswith("! "):
            yield before, begun
        elif not line:
            before = begun = ""
        elif line.endswith("."):
            before, begun = line.removesuffix("."), ""
        else:
            begun = line
