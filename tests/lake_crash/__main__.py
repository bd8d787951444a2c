"""The command line. The last line and the exit code both say how it went."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from gazette_platform.errors import GazetteError, SetupError
from tests.lake_crash.plan import CASES, make_case
from tests.lake_crash.runner import LakeCrashConfig, LakeCrashResult, run_lake_crash
from tests.lake_crash.world import open_world

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lake_crash",
        description="Kill registration of raw tables wherever it stands, and see that nothing is lost.",
    )
    add = parser.add_argument
    add("--seed", type=int, default=7, help="of all cases (default %(default)s)")
    add(
        "--cases",
        default=f"0-{CASES - 1}",
        help="numbers of the cases to play, as in 3,8-11 (default %(default)s: the whole seed)",
    )
    add("--out", type=Path, help="folder to keep all in (default: only on failure)")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    """Of cases. Raises: SetupError: there are none, or what is there is no number."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True):
            raise SetupError(f"--cases: {part!r} is neither a number nor a range such as 8-11")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise SetupError(f"--cases: {text!r} names no case, and a run without any finds nothing")
    return list(dict.fromkeys(found))


def _run(
    options: argparse.Namespace, say: Callable[[str], None], show: Callable[[str], None]
) -> LakeCrashResult:
    numbers = _numbers(options.cases)
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise SetupError(f"--out: {options.out} is not empty; name another folder")
    folder = options.out or Path(tempfile.mkdtemp(prefix="gazette-lake-crash-"))
    is_kept = True
    began_at = time.monotonic()
    try:
        with open_world(folder, show) as world:
            say(f"servers run after {time.monotonic() - began_at:.0f} s")
            cases = [make_case(options.seed, n, has_s3=world.has_s3) for n in numbers]
            config = LakeCrashConfig(seed=options.seed, cases=cases)
            result = run_lake_crash(config, world, say=say, show=show)
        is_kept = options.out is not None or not result.is_ok
        if is_kept:
            say(f"all of it is kept in {folder}; a case has a folder of its own below cases")
        say(f"it took {time.monotonic() - began_at:.0f} s")
        return result
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Returns: 0 if all is well, 1 if something is wrong, 2 if it could not start."""
    console = Console()
    try:
        with console.status("starting") as status:

            def say(text: str) -> None:
                console.print(escape(text), highlight=False, soft_wrap=True)

            def show(text: str) -> None:
                status.update(escape(text))

            result = _run(_parse(arguments), say, show)
    except (GazetteError, OSError) as err:
        sys.stderr.write(f"lake-crash: error: {err}\n")
        return 2
    sys.stdout.write(result.summary + "\n")
    return 0 if result.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
