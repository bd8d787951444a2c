"""The command line. The last line and the exit code both say how it went."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from gazette_platform.errors import GazetteError, SetupError
from tests.lake_crash.plan import make_case
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
    add("--minutes", type=float, default=3.0, help="of cases (default %(default)s)")
    add("--cases", default="", help="comma-separated numbers of cases to run, and no others")
    add("--out", type=Path, help="folder to keep all in (default: only on failure)")
    return parser.parse_args(arguments)


def _config(options: argparse.Namespace) -> LakeCrashConfig:
    if not options.minutes > 0:
        raise SetupError("--minutes must be positive: a run without cases finds nothing")
    try:
        numbers = [int(number) for number in options.cases.split(",") if number]
    except ValueError:
        raise SetupError(f"--cases: not numbers: {options.cases!r}") from None
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise SetupError(f"--out: {options.out} is not empty; name another folder")
    return LakeCrashConfig(
        seed=options.seed,
        duration_s=60 * options.minutes,
        cases=tuple(make_case(options.seed, number) for number in numbers),
    )


def _run(
    options: argparse.Namespace, say: Callable[[str], None], show: Callable[[str], None]
) -> LakeCrashResult:
    config = _config(options)
    folder = options.out or Path(tempfile.mkdtemp(prefix="gazette-lake-crash-"))
    is_kept = True
    try:
        with open_world(folder, show) as world:
            result = run_lake_crash(config, world, say=say, show=show)
        is_kept = options.out is not None or not result.is_ok
        if is_kept:
            say(f"all of it is kept in {folder}; a case has a folder of its own below cases")
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
