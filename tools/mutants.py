"""Breaks the modules that decide, one small change at a time, and names the changes that no test sees.

    make mutants                                   # all modules of tests/mutants.toml: hours
    make mutants MODULES="broker/append/fsm.py"  # these alone

It works in a temporary clone of the commit, so that the working tree is never a broken one. Mutants
that are known to survive stand in tests/mutants.toml with the reason; any other fails the run. The
mutants and their execution are cosmic-ray's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
PACKAGE = "gazette_platform"

# Seconds that a mutant may keep its tests busy: one that hangs is found, too.
_TIMEOUT_S = 120.0

# Of cosmic-ray's operators those whose mutants differ in what they do: each comparison is moved by one
# and turned round, not replaced by all others.
_OPERATORS = (
    r"core/(AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|NumberReplacer|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ZeroIterationForLoop"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is"
    r"|In_NotIn|NotIn_In)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|FloorDiv_Mul|Mod_FloorDiv))"
)


@dataclass(frozen=True)
class Mutant:
    """A change that was tried."""

    module: str
    line: str
    """The source line as it is, without indentation."""
    operator: str
    occurrence: int
    """Which of the places in the module that the operator fits."""
    number: int
    """Number of the line, from 1."""
    diff: str

    def is_listed(self, entry: dict[str, str]) -> bool:
        """Whether an entry of the list is about it."""
        return (entry["module"], entry["line"], entry["operator"]) == (
            self.module,
            self.line,
            self.operator,
        )


def main() -> int:
    """Returns: 0 if every mutant was noticed, or is listed with a reason."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="paths below gazette_platform/; default: all")
    chosen = parser.parse_args().modules
    listed = tomllib.loads(LIST.read_text())
    tests: dict[str, list[str]] = listed["tests"]
    unknown = [module for module in chosen if module not in tests]
    if unknown:
        print(f"mutants: {LIST.relative_to(ROOT)} names no tests of {', '.join(unknown)}")
        return 2
    console = Console()
    survivors: list[Mutant] = []
    tried = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clone = Path(folder) / "clone"
        _run("git", "clone", "--quiet", str(ROOT), str(clone), cwd=ROOT)
        for module in chosen or tests:
            count, found = _try_module(module, tests[module], clone, console)
            tried += count
            survivors += found
    entries = listed.get("survivor", [])
    new = [m for m in survivors if not any(m.is_listed(entry) for entry in entries)]
    for mutant in new:
        console.print(f"\n{mutant.module}:{mutant.number} [{mutant.operator}]", markup=False)
        console.print(mutant.diff, markup=False, highlight=False)
    print(
        f"mutants: {'ok' if not new else 'FAILED'} tried={tried} noticed={tried - len(survivors)} "
        f"listed={len(survivors) - len(new)} survived={len(new)}"
    )
    return 1 if new else 0


def _try_module(
    module: str, tests: list[str], clone: Path, console: Console
) -> tuple[int, list[Mutant]]:
    """Returns: how many mutants there are, and those that no test noticed."""
    command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {' '.join(tests)}"
    _run(*command.split(), cwd=clone)  # what fails by itself would notice every mutant
    config, session = clone.parent / "config.toml", clone.parent / "session.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {json.dumps(f'{PACKAGE}/{module}')}\n"
        f"timeout = {_TIMEOUT_S}\n"
        "excluded-modules = []\n"
        f"test-command = {json.dumps(command)}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
        "[cosmic-ray.filters.operators-filter]\n"
        f"exclude-operators = [{json.dumps(f'^(?!{_OPERATORS}$)')}]\n"
    )
    _run(_tool("cosmic-ray"), "init", str(config), str(session), cwd=clone)
    _run(_tool("cr-filter-operators"), str(session), str(config), cwd=clone)
    total = sum(1 for job, _ in _dump(session, clone) if job)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(module, total=total)
        running = subprocess.Popen(
            [_tool("cosmic-ray"), "exec", str(config), str(session)],
            cwd=clone,
            env=_environment(clone),
        )
        while True:
            try:
                running.wait(5)
                break
            except subprocess.TimeoutExpired:
                progress.update(task, completed=sum(1 for _, r in _dump(session, clone) if r))
    if running.returncode:
        raise SystemExit(f"mutants: cosmic-ray ended with {running.returncode} in {module}")
    source = (clone / PACKAGE / module).read_text().splitlines()
    results = [(job, result) for job, result in _dump(session, clone) if not _is_skipped(result)]
    found = [
        _mutant(module, job, result, source)
        for job, result in results
        if result["test_outcome"] == "survived"
    ]
    # Imports for annotations alone, which nothing runs, and whether values are frozen or have slots.
    found = [m for m in found if "TYPE_CHECKING" not in m.line and "@dataclass" not in m.line]
    console.print(f"{module}: {len(results)} mutants, {len(found)} not noticed")
    return len(results), found


def _mutant(module: str, job: dict[str, Any], result: dict[str, Any], source: list[str]) -> Mutant:
    (mutation,) = job["mutations"]
    number = mutation["start_pos"][0]
    operator = mutation["operator_name"].removeprefix("core/")
    line = source[number - 1].strip()
    return Mutant(module, line, operator, mutation["occurrence"], number, result["diff"])


def _is_skipped(result: dict[str, Any] | None) -> bool:
    return result is None or result["worker_outcome"] == "skipped"


def _dump(session: Path, clone: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    lines = _run(_tool("cosmic-ray"), "dump", str(session), cwd=clone).splitlines()
    return [tuple(json.loads(line)) for line in lines]


def _tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _environment(clone: Path) -> dict[str, str]:
    # The clone's package, not the one that is installed beside it.
    return os.environ | {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=_environment(cwd), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"mutants: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
