"""The command line."""

from __future__ import annotations

import sys

from tests.benches.seeded_cases import Run, SeededCases
from tests.lake_crash.plan import CASES, make_case
from tests.lake_crash.runner import LakeCrashConfig, LakeCrashResult, run_lake_crash
from tests.lake_crash.world import World, has_s3, open_world


def _play(run: Run, world: World) -> LakeCrashResult:
    cases = [make_case(run.seed, number) for number in run.numbers]
    config = LakeCrashConfig(seed=run.seed, cases=cases)
    result = run_lake_crash(config, world, say=run.say, show=run.show, starved_by=run.starved_by)
    result.verdict.left_out = len(run.left_out)
    return result


def _lacks(seed: int, number: int) -> str:
    if has_s3() or {"s3", "lying"}.isdisjoint(make_case(seed, number).stores):
        return ""
    return "their tables are in S3; install Go 1.24 or later, or name a server by GAZETTE_VERSITYGW"


_COMMAND = SeededCases(
    name="lake-crash",
    module="tests.lake_crash",
    description="Kill registration of raw tables wherever it stands, and see that nothing is lost.",
    cases=CASES,
    case_s=120.0,
    open_world=open_world,
    play=_play,
    lacks=_lacks,
)
main = _COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
