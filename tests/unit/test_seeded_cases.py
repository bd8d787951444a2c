"""The command of both crash harnesses: which cases it plays, and what its exit code says."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from gazette_platform.testing.waiting import TooLate
from tests.benches.seeded_cases import SeededCases
from tests.harness import Late, State, judge


@dataclass
class Result:
    """Of a run that found `reasons`."""

    cases: int
    reasons: list[str] = field(default_factory=list)
    starved_by: str = ""

    @property
    def state(self):
        return judge(self.reasons, self.starved_by)

    @property
    def is_ok(self):
        return not self.reasons

    @property
    def summary(self):
        return f"trial: {self.state} cases={self.cases}"


@contextmanager
def open_nothing(folder, say):
    say("starting nothing")
    folder.mkdir(exist_ok=True)
    yield folder


def command(played, *, reasons=(), starved_by="", open_world=open_nothing):
    """Cases of odd numbers need what is not there."""

    def play(run, world):
        assert world.is_dir()
        played.append((run.seed, run.numbers, run.left_out))
        return Result(len(run.numbers), list(reasons), starved_by)

    return SeededCases(
        name="trial",
        module="trial",
        description="",
        cases=6,
        case_s=60.0,
        open_world=open_world,
        play=play,
        lacks=lambda seed, number: "install Go" if seed == 8 and number % 2 else "",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (7, [0, 1, 2, 3, 4, 5], [])),
        (["--cases", "3"], (7, [0, 1, 2], [])),
        (["--case", "3"], (7, [3], [])),
        (["--case", "3,8-10,9"], (7, [3, 8, 9, 10], [])),
        (["--seed", "8", "--cases", "4"], (8, [0, 2], [1, 3])),
    ],
)
def test_cases_are_counted_and_named(arguments, expected, capsys):
    played = []
    assert command(played).main(arguments) == 0
    assert played == [expected]
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == f"trial: ok cases={len(expected[1])}"
    assert ("left out: 1, 3: install Go" in printed) is bool(expected[2])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--cases", "0"], "--cases: 0 is not a positive number"),
        (["--case", "x"], "--case: 'x' is neither a number nor a range"),
        (["--case", "9-8"], "--case: '9-8' names no case"),
        (["--seed", "8", "--case", "1"], "no case can be played here: install Go"),
    ],
)
def test_empty_choices_are_refused(arguments, problem, capsys):
    played = []
    assert command(played).main(arguments) == 2
    assert played == []
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reasons", "starved_by", "code", "word"),
    [
        (["1 row is lost"], "80 processes", 1, "FAILED"),
        ([Late("case 3 does not come to rest")], "", 1, "FAILED"),
        ([Late("case 3 does not come to rest")], "80 processes", 2, "starved"),
    ],
)
def test_exit_codes_follow_the_state(reasons, starved_by, code, word, capsys, tmp_path):
    made = command([], reasons=reasons, starved_by=starved_by)
    assert made.main(["--cases", "1", "--out", str(tmp_path / "out")]) == code
    assert capsys.readouterr().out.splitlines()[-1] == f"trial: {word} cases=1"


def test_servers_late_without_cores_starve_the_run(capsys, tmp_path):
    @contextmanager
    def open_late(folder, say):
        raise TooLate("broker b not ready in 60 s; its log ends:\nlast words", waited=0.9)
        yield

    made = command([], open_world=open_late)
    assert made.main(["--cases", "1", "--out", str(tmp_path / "out")]) == State.STARVED.exit_code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "trial: starved seed=7 cases=1: broker b not ready in 60 s; it had no core 90% of that time"
    )
