"""The command line."""

from __future__ import annotations

import sys

from tests.benches.seeded_cases import Run, SeededCases
from tests.typed_crash.plan import CASES, make_case
from tests.typed_crash.runner import TypedCrashResult, run_typed_crash
from tests.typed_crash.world import World, open_world


def _play(run: Run, world: World) -> TypedCrashResult:
    cases = [make_case(run.seed, number) for number in run.numbers]
    return run_typed_crash(
        run.seed, cases, world, say=run.say, show=run.show, starved_by=run.starved_by
    )


_COMMAND = SeededCases(
    name="typed-crash",
    module="tests.typed_crash",
    description="Kill runs of typed tables wherever they stand, and check that each message exists once.",
    cases=CASES,
    case_s=240.0,
    open_world=open_world,
    play=_play,
)
main = _COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
