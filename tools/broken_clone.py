"""A temporary clone of one commit, where tools break a module and see which test notices.

The working tree stays as it is. The clone's package takes precedence over the installed one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "gazette_platform"

# A broken module may hang its tests. They get a multiple of the time that they take on the whole module,
# and a constant for a busy machine.
_TIMES_CLEAN = 5
_MORE_S = 10.0
_CLEAN_S = 600.0

# After SIGINT, pytest stops the servers of its fixtures.
_STOP_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """The result of one run of tests."""

    verdict: Literal["killed", "survived", "timeout"]
    noticed_by: str
    """The first test that failed; empty if none did, or if pytest did not name it."""
    output: str
    duration_s: float


@dataclass
class Clone:
    """A tree that may be broken."""

    root: Path
    _writes: int = field(default=0, init=False)

    def read(self, module: str) -> str:
        """Return the text of a module, given its path below the package."""
        return (self.root / PACKAGE / module).read_text()

    @contextlib.contextmanager
    def broken(self, module: str, text: str) -> Iterator[None]:
        """Give the module another text inside the block."""
        whole = self.read(module)
        self._write(module, text)
        try:
            yield
        finally:
            self._write(module, whole)

    def clean_run_s(self, tests: list[str]) -> float:
        """Return how long the tests take while nothing is broken.

        Raises:
            SystemExit: The tests fail. They would "notice" every fault.
        """
        self.run(tests, _CLEAN_S)  # compiles, so that the run below shows the time of later runs
        outcome = self.run(tests, _CLEAN_S)
        if outcome.verdict != "survived":
            raise SystemExit(
                f"These tests fail before anything is broken: {' '.join(tests)}\n{outcome.output}"
            )
        return outcome.duration_s

    def run(self, tests: list[str], timeout_s: float) -> Outcome:
        """Run the tests up to the first failure."""
        started = time.monotonic()
        running = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=self.root,
            env=_environment(self.root),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Outcome("timeout", "", _stop(running), time.monotonic() - started)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return Outcome(
            "killed" if running.returncode else "survived",
            failed[1] if failed else "",
            output,
            time.monotonic() - started,
        )

    def _write(self, module: str, text: str) -> None:
        path = self.root / PACKAGE / module
        path.write_text(text)
        # Python compiles a module again if its size or its time in seconds differ. Several faults may
        # fall in one second.
        self._writes += 1
        os.utime(path, (self._writes, self._writes))


@contextlib.contextmanager
def clone_of(revision: str, repository: Path = ROOT) -> Iterator[Clone]:
    """Make a clone for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="broken-clone-") as folder:
        root = Path(folder) / "clone"
        _git("clone", "--quiet", "--no-checkout", str(repository), str(root), cwd=repository)
        _git("checkout", "--quiet", "--detach", revision, cwd=root)
        yield Clone(root)


def limit_s(clean_s: float) -> float:
    """Return how long tests may run on a broken module."""
    return _TIMES_CLEAN * clean_s + _MORE_S


def _stop(running: subprocess.Popen[str]) -> str:
    for number, patience_s in ((signal.SIGINT, _STOP_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return running.communicate(timeout=patience_s)[0]
    raise AssertionError("SIGKILL ends each process")


def _environment(root: Path) -> dict[str, str]:
    # The same examples in each run: a fault that a lucky example shows is not one that tests notice.
    settings = {"PYTHONPATH": str(root), "HYPOTHESIS_PROFILE": "ci"}
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | settings


def _git(*words: str, cwd: Path) -> None:
    subprocess.run(["git", *words], cwd=cwd, check=True)  # noqa: S607  (the git of PATH)
