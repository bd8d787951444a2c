"""The command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.benches.seeded_cases import SeededCases
from tests.lake_crash.plan import CASES, make_case
from tests.lake_crash.runner import LakeCrashConfig, LakeCrashResult, run_lake_crash
from tests.lake_crash.world import World, open_world

if TYPE_CHECKING:
    from collections.abc import Callable


def _play(
    seed: int,
    numbers: list[int],
    world: World,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> LakeCrashResult:
    cases = [make_case(seed, n, has_s3=world.has_s3) for n in numbers]
    return run_lake_crash(LakeCrashConfig(seed=seed, cases=cases), world, say=say, show=show)


_COMMAND = SeededCases(
    name="lake-crash",
    module="tests.lake_crash",
    description="Kill registration of raw tables wherever it stands, and see that nothing is lost.",
    cases=CASES,
    open_world=open_world,
    play=_play,
)
main = _COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
