"""The command line; the last line says how the run went, and so does the exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.testing.etcd import find_etcd
from tests.harness import Harness
from tests.rollouts.plays import Play
from tests.rollouts.run import RolloutConfig, run_rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.rollouts.run import RolloutResult

__all__ = ["main"]

_PLANNED_S = 1800.0


def _config(arguments: Sequence[str] | None) -> RolloutConfig:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rollouts",
        description="Play what Kubernetes does to brokers, and check what their clients saw.",
    )
    add = parser.add_argument
    add(
        "--plays",
        default=",".join(Play),
        help="comma-separated, in this order (default %(default)s)",
    )
    add("--zones", default="aabbcc", help="a letter for each broker (default %(default)s)")
    add("--drain-timeout", type=float, default=20.0, help="of brokers, in s (default %(default)s)")
    add("--grace", type=float, default=120.0, help="seconds until SIGKILL (default %(default)s)")
    add("--outage", type=float, default=15.0, help="of a zone, in seconds (default %(default)s)")
    add(
        "--min-ready",
        type=float,
        default=5.0,
        help="seconds until the next pod (default %(default)s)",
    )
    add("--seed", type=int, default=7, help="of payloads (default %(default)s)")
    add("--etcd", type=Path, help="etcd binary (default: GAZETTE_ETCD, else the one on PATH)")
    add("--out", type=Path, help="folder to keep history and logs in (default: only on failure)")
    options = parser.parse_args(arguments)
    etcd = options.etcd or find_etcd()
    if etcd is None:
        raise SetupError("no etcd found: install Debian's etcd-server, or name a binary by --etcd")
    try:
        plays = tuple(Play(name) for name in options.plays.split(","))
    except ValueError as err:
        raise SetupError(f"--plays: {err}; choose from {', '.join(Play)}") from None
    return RolloutConfig(
        etcd_binary=etcd,
        plays=plays,
        zones=tuple(options.zones),
        drain_timeout_s=options.drain_timeout,
        grace_s=options.grace,
        outage_s=options.outage,
        min_ready_s=options.min_ready,
        seed=options.seed,
        folder=options.out,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Returns: 0 if all is well, 1 if not, 2 if it was starved or could not be started."""
    try:
        config = _config(arguments)
    except GazetteError as err:
        sys.stderr.write(f"rollouts: error: {err}\n")
        return 2
    harness = Harness("rollouts", f"seed={config.seed}", planned_s=_PLANNED_S)

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def note(text: str) -> None:
        harness.note(text)
        say(text)

    async def run() -> RolloutResult:
        harness.attach()
        return await run_rollouts(config, say=note)

    def play() -> RolloutResult:
        result = uvloop.run(run())
        for line in result.lines:
            say(line)
        if result.folder is not None:
            say(f"history and logs: {result.folder}")
        return result

    return harness.run(play, tell=say)


if __name__ == "__main__":
    sys.exit(main())
