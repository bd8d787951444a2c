"""The command line of the fuzzer. The last line and the exit code both say how it went."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.testing.etcd import find_etcd
from tests.fuzz.cases import load_cases
from tests.fuzz.generators import KINDS
from tests.fuzz.runner import FuzzConfig, FuzzResult, run_fuzz
from tests.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Sequence

# The hard end of a run: its start, all cases of the corpus and the search for the one that shows a finding; and how
# much longer the rest of it may take.
_START_AND_END_S = 900.0
_SLOWER = 2.0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Send brokers malformed and hostile requests, and check that they survive.",
    )
    add = parser.add_argument
    add("--seed", type=int, default=7, help="of all cases (default %(default)s)")
    add("--minutes", type=float, default=10.0, help="of cases (default %(default)s)")
    add("--rate", type=float, default=200.0, help="most cases a second (default %(default)s)")
    add("--kinds", default="", help="comma-separated, of: " + ", ".join(KINDS) + " (default: all)")
    add("--replay", type=Path, help="file of cases to run, and nothing else")
    add("--no-corpus", action="store_true", help="leave out the cases that are known")
    add("--keep-going", action="store_true", help="go on after a finding, to collect more")
    add("--etcd", type=Path, help="etcd binary (default: GAZETTE_ETCD, else the one on PATH)")
    add("--out", type=Path, help="folder to keep logs and cases in (default: only on failure)")
    return parser.parse_args(arguments)


def _config(options: argparse.Namespace) -> FuzzConfig:
    etcd = options.etcd or find_etcd()
    if etcd is None:
        raise SetupError(
            "no etcd found: install Debian's etcd-server, or name a binary by --etcd or "
            "GAZETTE_ETCD"
        )
    if not (options.minutes > 0 and options.rate > 0):
        raise SetupError("--minutes and --rate must be positive: a run without cases finds nothing")
    kinds = tuple(name for name in options.kinds.split(",") if name)
    for name in kinds:
        if name not in KINDS:
            raise SetupError(f"--kinds: there is no {name!r}; choose from {', '.join(KINDS)}")
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise SetupError(f"--out: {options.out} is not empty; name another folder")
    return FuzzConfig(
        etcd_binary=etcd,
        seed=options.seed,
        duration_s=60 * options.minutes,
        rate_per_s=options.rate,
        kinds=kinds,
        has_corpus=not options.no_corpus,
        replay=tuple(load_cases(options.replay)) if options.replay else (),
        folder=options.out,
        keeps_going=options.keep_going,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzer. Returns: 0 if nothing was found, 1 if something was, 2 if it was starved or could not start."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # calls break here on purpose
    console = Console()
    try:
        config = _config(_parse(arguments))
        harness = Harness(
            "fuzz", f"seed={config.seed}", planned_s=_START_AND_END_S + _SLOWER * config.duration_s
        )
    except (GazetteError, OSError) as err:
        sys.stderr.write(f"fuzz: error: {err}\n")
        return 2

    def say(text: str) -> None:
        console.print(escape(text), highlight=False, soft_wrap=True)

    def play() -> FuzzResult:
        with console.status("starting brokers") as status:

            def show(text: str) -> None:
                harness.note(text)
                status.update(escape(text))

            async def run() -> FuzzResult:
                harness.attach()
                # gRPC raises errors in tasks of its own if it refuses to send something for us.
                asyncio.get_running_loop().set_exception_handler(lambda *_: None)
                return await run_fuzz(config, say=say, show=show, starved_by=harness.machine.cause)

            return asyncio.run(run())

    return harness.run(play)


if __name__ == "__main__":
    sys.exit(main())
