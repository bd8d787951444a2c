"""The command line; the last line says how it went, and so does the exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.testing.etcd import find_etcd
from tests.soak.plan import Kind
from tests.soak.runner import SoakConfig, kinds_named, run_soak

if TYPE_CHECKING:
    from tests.soak.verdict import SoakResult


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
    if options.minutes <= 0 or options.workers <= 0:
        raise SetupError("--minutes and --workers must be positive")
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise SetupError(f"--out: {options.out} is not empty; name another folder")
    return SoakConfig(
        etcd_binary=etcd,
        seed=options.seed,
        duration_s=60 * options.minutes,
        workers=options.workers,
        kinds=kinds,
        folder=options.out,
    )


async def _run(config: SoakConfig) -> SoakResult:
    """SIGTERM ends it as SIGINT does, with all processes that it started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_soak(config, say=lambda text: print(text, flush=True))


def main(arguments: list[str] | None = None) -> int:
    """Returns: 0 if all is well, 1 if not, 2 if it could not be started."""
    # What breaks here is meant to, and gRPC need not tell.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        result = asyncio.run(_run(_config(_parse(arguments))))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("soak: stopped", file=sys.stderr)
        return 1
    except GazetteError as err:
        print(f"soak: error: {err}", file=sys.stderr)
        return 2
    for reason in result.reasons:
        print(f"not ok: {reason}")
    if result.folder:
        print(f"logs: {result.folder}")
    print(result.summary)
    return 0 if result.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
