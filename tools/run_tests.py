"""Run one tier of the tests, its parts side by side, and say what each part took.

    tools/run_tests.py fast                    # modules only, no server: make test-fast
    tools/run_tests.py test -- -k append       # make test ARGS="-k append"
    tools/run_tests.py all                     # make test-all
    tools/run_tests.py test --look-again       # as CI: run failed tests with servers once more, alone

The last line is `<tier>: N passed, N failed, N skipped`. Exit codes: 0 all passed, 1 a test failed, 5 no test
was selected. SIGINT and SIGTERM end all parts, which stop their servers first.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

# Two parts with servers share the cores of a small machine: with three, tests that give servers some seconds
# fail for want of processor time.
_LANES: Final = 2
_BESIDE_NICE: Final = 10
_NONE_SELECTED: Final = 5
_PROGRESS_S: Final = 15.0
_FLAKY_MAX: Final = 3
_AGAIN_MAX: Final = 10
_FAILURE_LINES_MAX: Final = 400
_PR_SET_CHILD_SUBREAPER: Final = 36

_JVM: Final = "(hive or trino or spark)"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tests that run in one process, one after the other."""

    name: str
    folders: tuple[str, ...] = ()
    markers: str = ""
    workers: int = 0
    """Processes of pytest-xdist; 0: none."""
    is_any_order: bool = False
    """Its tests share nothing that is dear, so those of one file may run in several processes."""
    profile: str = ""
    """Of hypothesis, unless HYPOTHESIS_PROFILE says another."""
    is_beside: bool = False
    """It starts no server: it runs beside the others, with what they leave of the cores."""
    command: tuple[str, ...] = ()
    """What to run in place of pytest."""

    def command_line(self, arguments: list[str]) -> list[str]:
        """Return what to run, with more arguments for pytest."""
        if self.command:
            return list(self.command)
        dist = "worksteal" if self.is_any_order else "loadfile"
        workers = ["-n", str(self.workers), "--dist", dist] if self.workers else []
        markers = ["-m", self.markers] if self.markers else []
        cache = ["-o", f"cache_dir=.pytest_cache/{self.name}"]
        return [
            sys.executable,
            "-m",
            "pytest",
            *cache,
            *workers,
            *markers,
            *arguments,
            *self.folders,
        ]


_MODULES: Final = Part(
    name="modules",
    folders=("tests/unit", "tests/property", "tests/scenario"),
    workers=2,
    is_any_order=True,
    is_beside=True,
)

# The longest come first, so that all end at about the same time.
TIERS: Final[dict[str, tuple[Part, ...]]] = {
    # Much of a test is waiting, and no other part uses that time here.
    "fast": (replace(_MODULES, markers="not long", profile="brief", workers=3),),
    "test": (
        _MODULES,
        Part(name="platform", folders=("tests/platform",)),
        Part(name="integration", folders=("tests/integration",), workers=2),
    ),
    "all": (
        Part(name="pythons", command=("tools/try_pythons",), is_beside=True),
        Part(name="users", folders=("tests/e2e",)),
        Part(name="servers", folders=("tests/extended",), markers=f"not {_JVM}"),
        Part(name="spark", folders=("tests/extended",), markers="spark"),
        Part(name="sql", folders=("tests/extended",), markers=f"{_JVM} and not spark"),
    ),
}


@dataclass
class Run:
    """One part, while it runs and after it."""

    part: Part
    log: Path
    report: Path
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    code: int | None = None
    collected: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    """By id of a test: passed, failed or skipped; of those that have ended."""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _read: int = 0

    def look(self) -> None:
        """Read what its tests have reported since the last look."""
        if not self.report.exists():
            return
        with self.report.open(encoding="utf-8") as lines:
            lines.seek(self._read)
            for line in iter(lines.readline, ""):
                if not line.endswith("\n"):
                    break
                self._read = lines.tell()
                self._note(json.loads(line))

    def _note(self, row: dict[str, object]) -> None:
        if "collected" in row:
            self.collected = int(str(row["collected"]))
            return
        test, outcome = str(row["test"]), str(row["outcome"])
        self.seconds[test] += float(str(row["seconds"]))
        if outcome == "failed" or (
            self.outcomes.get(test) != "failed" and (row["when"] == "call" or outcome == "skipped")
        ):
            self.outcomes[test] = outcome

    def count(self, outcome: str) -> int:
        """Return how many of its tests ended so."""
        return sum(1 for found in self.outcomes.values() if found == outcome)

    @property
    def has_failed(self) -> bool:
        """Whether a test failed, or the part ended in another way than by its tests."""
        return self.code not in (0, _NONE_SELECTED)

    @property
    def failed(self) -> list[str]:
        """Return the ids of tests that failed."""
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]


class Runner:
    """Starts parts, two with servers at a time, and waits for them."""

    def __init__(
        self, parts: tuple[Part, ...], arguments: list[str], *, root: Path, folder: Path
    ) -> None:
        self._arguments = arguments
        self._root = root
        self._waiting = [
            Run(p, folder / f"{p.name}.log", folder / f"{p.name}.jsonl") for p in parts
        ]
        self._running: list[Run] = []
        self.ended: list[Run] = []
        self.is_stopping = False
        self.left_cpu_s = 0.0
        """Of servers that outlived the test process that started them, such as a detached platform."""

    def run(self) -> list[Run]:
        """Run all parts. Return them in the order in which they ended."""
        done = threading.Event()
        progress = threading.Thread(target=self._show_progress, args=(done,), daemon=True)
        progress.start()
        self._start_next()
        while self._running:
            # Blocks, so that a server which was left behind is reaped at once, as init would.
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu_s = usage.ru_utime + usage.ru_stime
            run = next((r for r in self._running if r.process and r.process.pid == pid), None)
            if run is None:
                self.left_cpu_s += cpu_s
                continue
            self._end(run, os.waitstatus_to_exitcode(status), cpu_s)
            self._start_next()
        done.set()
        progress.join()
        return self.ended

    def stop(self) -> None:
        """End the parts that run, and start none."""
        self.is_stopping = True
        self._waiting.clear()
        for run in self._running:
            if run.process is not None:
                run.process.send_signal(signal.SIGTERM)

    def _start_next(self) -> None:
        for run in list(self._waiting):
            lanes = [r for r in self._running if not r.part.is_beside]
            if run.part.is_beside or len(lanes) < _LANES:
                self._waiting.remove(run)
                self._start(run)

    def _start(self, run: Run) -> None:
        environment = os.environ | {
            "GAZETTE_REQUIRE_SERVERS": "1",
            "GAZETTE_TEST_REPORT": str(run.report),
        }
        if run.part.profile:
            environment.setdefault("HYPOTHESIS_PROFILE", run.part.profile)
        # Else each of hundreds of processes compiles the project again.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        is_alone = not self._waiting and not self._running
        command = run.part.command_line(self._arguments)
        run.began = time.monotonic()
        with run.log.open("wb") as log:
            run.process = subprocess.Popen(
                command,
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if run.part.is_beside and not is_alone:
            os.setpriority(os.PRIO_PROCESS, run.process.pid, _BESIDE_NICE)
        self._running.append(run)

    def _end(self, run: Run, code: int, cpu_s: float) -> None:
        assert run.process is not None
        run.process.returncode = code
        run.code, run.cpu_s, run.wall_s = code, cpu_s, time.monotonic() - run.began
        run.look()
        self._running.remove(run)
        self.ended.append(run)
        lines = run.log.read_text(encoding="utf-8", errors="replace").splitlines()
        say(f"{run.part.name}: {_counts(run)} in {run.wall_s:.0f} s, {run.cpu_s:.0f} s of CPU")
        if run.has_failed and not self.is_stopping:
            print("\n".join(_failures(lines)), flush=True)

    def _show_progress(self, done: threading.Event) -> None:
        while not done.wait(_PROGRESS_S):
            parts = []
            for run in list(self._running):
                run.look()
                failed = f", {run.count('failed')} failed" if run.count("failed") else ""
                parts.append(f"{run.part.name} {len(run.outcomes)}/{run.collected or '…'}{failed}")
            if parts:
                say("   ".join(parts))


def _counts(run: Run) -> str:
    counts = [f"{run.count(o):,} {o}" for o in ("passed", "failed", "skipped") if run.count(o)]
    ended = "" if run.code in (0, 1, _NONE_SELECTED) else f" (ended with {run.code})"
    return (", ".join(counts) or ("no test selected" if not run.part.command else "done")) + ended


def _failures(lines: list[str]) -> list[str]:
    """Return what pytest says of failures, or the end of the log if it does not say anything."""
    heads = (" FAILURES ", " ERRORS ")
    begins = [
        i for i, line in enumerate(lines) if line.startswith("=") and any(h in line for h in heads)
    ]
    found = lines[begins[0] :] if begins else lines[-60:]
    if len(found) <= _FAILURE_LINES_MAX:
        return found
    half = _FAILURE_LINES_MAX // 2
    return [*found[:half], f"… {len(found) - 2 * half} lines …", *found[-half:]]


_BEGAN: Final = time.monotonic()


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:4.0f}s] {text}", flush=True)


def _look_again(runs: list[Run], root: Path, folder: Path) -> list[str] | None:
    """Run failed tests with servers once more, alone.

    Returns: the tests that passed now; None: the failures stand.
    """
    failed = [test for run in runs for test in run.failed]
    is_broken = any(run.has_failed and (run.code != 1 or not run.failed) for run in runs)
    is_without_servers = any(run.has_failed and run.part.is_beside for run in runs)
    if is_broken or is_without_servers or not 0 < len(failed) <= _AGAIN_MAX:
        return None
    say(f"running {len(failed)} failed tests once more, alone")
    part = Part(name="again", folders=tuple(failed))
    (again,) = Runner((part,), ["--tb=short"], root=root, folder=folder).run()
    for test in failed:
        print(
            f"flaky: {test}: failed among the others, {again.outcomes.get(test, 'did not run')} alone"
        )
    return None if again.has_failed or len(failed) > _FLAKY_MAX else failed


def run_tier(
    tier: str,
    parts: tuple[Part, ...],
    arguments: list[str],
    *,
    root: Path = ROOT,
    may_look_again: bool = False,
    slowest: int = 10,
) -> int:
    """Run parts, and print what each took and what failed.

    Args:
        arguments: more of them for pytest.
        root: working folder.
        may_look_again: run failed tests with servers once more.
        slowest: how many slow tests to list.

    Returns: the exit code.
    """
    # Orphans of a part become our children, so that their processor time is counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="gazette-tests-") as folder:
        runner = Runner(parts, arguments, root=root, folder=Path(folder))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: runner.stop())
        runs = runner.run()
        if runner.is_stopping:
            print(f"{tier}: stopped")
            return 130
        flaky = _look_again(runs, root, Path(folder)) if may_look_again else None
        return _conclude(tier, runs, runner.left_cpu_s, flaky, slowest)


def _conclude(
    tier: str, runs: list[Run], left_cpu_s: float, flaky: list[str] | None, slowest: int
) -> int:
    times = sorted(((s, t) for run in runs for t, s in run.seconds.items()), reverse=True)
    if slowest and times:
        print(f"slowest {min(slowest, len(times))} tests:")
        print("\n".join(f"  {seconds:6.1f} s  {test}" for seconds, test in times[:slowest]))
    for run in runs:
        print(f"part {run.part.name}: {_counts(run)}, {run.wall_s:.0f} s, {run.cpu_s:.0f} s of CPU")
    total_cpu_s = sum(run.cpu_s for run in runs) + left_cpu_s
    print(f"{tier}: {time.monotonic() - _BEGAN:.0f} s, {total_cpu_s:.0f} s of CPU")
    has_failed = any(run.has_failed for run in runs) and flaky is None
    counts = {o: sum(run.count(o) for run in runs) for o in ("passed", "failed", "skipped")}
    moved = len(flaky or ())
    counts["passed"] += moved
    counts["failed"] -= moved
    for test in flaky or ():
        print(f"flaky: {test}")
    if has_failed:
        print("\n".join(f"failed: {test}" for run in runs for test in run.failed))
        for run in runs:
            if run.has_failed and not run.failed:
                print(f"failed: {run.part.name} ended with {run.code}")
                counts["failed"] += 1
    print(
        f"{tier}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    )
    if has_failed:
        return 1
    return 0 if sum(counts.values()) else _NONE_SELECTED


def main() -> int:
    """Run the tier that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("tier", choices=TIERS)
    parser.add_argument(
        "--look-again", action="store_true", help="run failed tests once more, alone"
    )
    parser.add_argument("--slowest", type=int, default=10, help="how many slow tests to list")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    chosen = parser.parse_args()
    return run_tier(
        chosen.tier,
        TIERS[chosen.tier],
        chosen.pytest,
        may_look_again=chosen.look_again,
        slowest=chosen.slowest,
    )


if __name__ == "__main__":
    raise SystemExit(main())
