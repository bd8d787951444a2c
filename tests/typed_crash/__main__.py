"""The command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.benches.seeded_cases import SeededCases
from tests.typed_crash.plan import CASES, make_case
from tests.typed_crash.runner import TypedCrashResult, run_typed_crash
from tests.typed_crash.world import World, open_world

if TYPE_CHECKING:
    from collections.abc import Callable


def _play(
    seed: int,
    numbers: list[int],
    world: World,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> TypedCrashResult:
    cases = [make_case(seed, n) for n in numbers]
    return run_typed_crash(seed, cases, world, say=say, show=show)


_COMMAND = SeededCases(
    name="typed-crash",
    module="tests.typed_crash",
    description="Kill runs of typed tables wherever they stand, and see that each message is there once.",
    cases=CASES,
    open_world=open_world,
    play=_play,
)
main = _COMMAND.main

if __name__ == "__main__":
    sys.exit(main())
