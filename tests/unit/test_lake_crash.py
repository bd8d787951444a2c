"""The harness of `make lake-crash` itself, without servers: what it plays, what it expects, what it finds."""

from __future__ import annotations

import pytest
from lake_stand_ins import ask_files, stand_in_world

from tests.lake_crash.plan import THEMES, make_case
from tests.lake_crash.runner import LakeCrashConfig, run_lake_crash

STAND_INS = "tests.benches.lake_stand_ins:install"


def run(tmp_path, *, cases, plant=""):
    said = []
    with stand_in_world(tmp_path / "world") as world:
        config = LakeCrashConfig(
            cases=[make_case(7, number, has_s3=False) for number in cases],
            engines={"files": ask_files},
            plant=",".join(filter(None, [STAND_INS, plant])),
        )
        result = run_lake_crash(config, world, say=said.append, show=print)
    return result, said


def test_one_case(tmp_path):
    result, said = run(tmp_path, cases=[0])
    print(said)
    assert result.is_ok, "\n".join(said)
