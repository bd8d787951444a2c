"""The command line of the fuzzer. The last line and the exit code both say how it went."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Send brokers what nobody in their right mind would, and see that they live.",
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


async def _run(
    config: FuzzConfig, say: Callable[[str], None], show: Callable[[str], None]
) -> FuzzResult:
    # gRPC raises errors in tasks of its own if it refuses to send something for us.
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.set_exception_handler(lambda *_: None)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # so that all processes end
    return await run_fuzz(config, say=say, show=show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzer. Returns: 0 if nothing was found, 1 if something was, 2 if it could not start."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # calls break here on purpose
    console = Console()
    try:
        config = _config(_parse(arguments))
        with console.status("starting brokers") as status:

            def say(text: str) -> None:
                console.print(escape(text), highlight=False, soft_wrap=True)

            def show(text: str) -> None:
                status.update(escape(text))

            result = asyncio.run(_run(config, say, show))
    except (GazetteError, OSError) as err:
        sys.stderr.write(f"fuzz: error: {err}\n")
        return 2
    sys.stdout.write(result.summary + "\n")
    return 0 if result.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
