"""The command line; the last line says how it went, and so does the exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.testing.etcd import find_etcd
from tests.benches.postgres_server import find_postgres
from tests.harness import Harness
from tests.soak.plan import Kind
from tests.soak.runner import SoakConfig, kinds_named, run_soak

if TYPE_CHECKING:
    from tests.soak.verdict import SoakResult

# The hard end of a run: what comes before and after its faults, and how much longer the last of those may take.
_START_AND_END_S = 420.0
_SLOWER = 1.25


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="Stream-sum under faults."
    )
    add = parser.add_argument
    add("--seed", type=int, default=7, help="of faults and chunks (default %(default)s)")
    add("--minutes", type=float, default=10.0, help="of faults (default %(default)s)")
    add("--workers", type=int, default=12, help="streams at a time (default %(default)s)")
    add("--faults", default="", help=f"comma-separated, of: {', '.join(Kind)} (default: all)")
    add("--out", type=Path, help="folder to keep logs in (default: only on failure)")
    return parser.parse_args(arguments)


def _config(options: argparse.Namespace) -> SoakConfig:
    etcd = find_etcd()
    if etcd is None:
        raise SetupError(
            "no etcd found: install Debian's etcd-server, or name a binary by GAZETTE_ETCD"
        )
    try:
        kinds = kinds_named(options.faults)
    except ValueError as err:
        raise SetupError(f"--faults: {err}; choose from {', '.join(Kind)}") from None
    postgres = find_postgres()
    if postgres is None and kinds == (Kind.RESTART_POSTGRES,):
        raise SetupError(
            "no PostgreSQL found: install Debian's postgresql, or name a folder by GAZETTE_POSTGRES"
        )
    if options.minutes <= 0 or options.workers <= 1:
        raise SetupError("--minutes must be positive, and --workers at least 2")
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise SetupError(f"--out: {options.out} is not empty; name another folder")
    return SoakConfig(
        etcd_binary=etcd,
        postgres=postgres,
        seed=options.seed,
        duration_s=60 * options.minutes,
        workers=options.workers,
        kinds=kinds,
        folder=options.out,
    )


def main(arguments: list[str] | None = None) -> int:
    """Returns: 0 if all is well, 1 if not, 2 if it was starved or could not be started."""
    # What breaks here is meant to, and gRPC need not log it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        config = _config(_parse(arguments))
        harness = Harness(
            "soak", f"seed={config.seed}", planned_s=_START_AND_END_S + _SLOWER * config.duration_s
        )
    except GazetteError as err:
        print(f"soak: error: {err}", file=sys.stderr)
        return 2

    def say(text: str) -> None:
        harness.note(text)
        print(text, flush=True)

    async def run() -> SoakResult:
        harness.attach()
        return await run_soak(config, say=say)

    def play() -> SoakResult:
        result = asyncio.run(run())
        for reason in result.reasons:
            print(f"not ok: {reason}")
        if result.folder:
            print(f"logs: {result.folder}")
        return result

    return harness.run(play)


if __name__ == "__main__":
    sys.exit(main())
