"""The command line of a chaos run; the last line says how it went, and so does the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.testing.etcd import find_etcd
from tests.chaos.plan import ALL_KINDS, FaultKind
from tests.chaos.runner import ChaosConfig, run_chaos, starved_in
from tests.chaos.scene import WorkloadConfig
from tests.harness import Harness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.verdict import ChaosResult

__all__ = ["main"]

# The hard end of a run: what comes before and after its faults, and how much longer those may take than planned, as
# each begins when all is well again.
_START_AND_END_S = 600.0
_SLOWER = 2.0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Break a cluster of brokers on purpose, and check what its clients saw.",
    )
    add = parser.add_argument
    add("--seed", type=int, default=7, help="of faults and payloads (default %(default)s)")
    add("--minutes", type=float, default=10.0, help="of faults (default %(default)s)")
    add("--replication", type=int, default=3, help="of the journals (default %(default)s)")
    add("--journals", type=int, default=20, help="default %(default)s")
    add("--writers", type=int, default=16, help="default %(default)s")
    add("--readers", type=int, default=8, help="default %(default)s")
    add(
        "--appends-per-s", type=float, default=10.0, help="most of each writer, default %(default)s"
    )
    add("--zones", default="aabbc", help="a letter for each broker (default %(default)s)")
    add("--lease", type=float, default=6.0, help="seconds (default %(default)s)")
    add(
        "--faults",
        default="",
        help="comma-separated, of: "
        + ", ".join(ALL_KINDS)
        + " (default: all that the replication survives)",
    )
    add("--etcd-members", type=int, choices=(1, 3), default=3, help="default %(default)s")
    add("--etcd", type=Path, help="etcd binary (default: GAZETTE_ETCD, else the one on PATH)")
    add("--out", type=Path, help="folder to keep history and logs in (default: only on failure)")
    return parser.parse_args(arguments)


def _check_numbers(options: argparse.Namespace) -> None:
    """A run without faults or clients would find nothing, and say that all is well."""
    for name in ("minutes", "replication", "journals", "writers", "appends_per_s", "lease"):
        value = getattr(options, name)
        if not value > 0:
            raise SetupError(f"--{name.replace('_', '-')}: must be positive ({value})")
    if options.readers < 0:
        raise SetupError(f"--readers: must not be negative ({options.readers})")
    brokers = len(options.zones)
    if options.replication > brokers:
        raise SetupError(
            f"--replication: {options.replication} replicas need as many brokers; --zones "
            f"{options.zones} makes {brokers}"
        )


def _config(options: argparse.Namespace) -> ChaosConfig:
    _check_numbers(options)
    etcd = options.etcd or find_etcd()
    if etcd is None:
        raise SetupError(
            "no etcd found: install Debian's etcd-server, or name a binary by --etcd or "
            "GAZETTE_ETCD"
        )
    try:
        kinds = tuple(FaultKind(name) for name in options.faults.split(",") if name)
    except ValueError as err:
        raise SetupError(f"--faults: {err}; choose from {', '.join(ALL_KINDS)}") from None
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise SetupError(f"--out: {options.out} is not empty; name another folder")
    return ChaosConfig(
        etcd_binary=etcd,
        etcd_members=options.etcd_members,
        seed=options.seed,
        duration_s=60 * options.minutes,
        zones=tuple(options.zones),
        lease_s=options.lease,
        kinds=kinds,
        workload=WorkloadConfig(
            journals=options.journals,
            writers=options.writers,
            readers=options.readers,
            replication=options.replication,
            appends_per_s=options.appends_per_s,
        ),
        folder=options.out,
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _tell(result: ChaosResult) -> None:
    """Say all that is to be known, except for the verdict."""
    _say(str(result.report).splitlines()[0])
    for kind, gap in sorted(result.longest.items()):
        blamed_s = starved_in(gap, result.stalls)
        why = f", including {blamed_s:.1f} s of a starved machine" if blamed_s > 0.1 else ""
        _say(f"longest unavailability, {kind}: {gap.length_s:.1f} s of {gap.journal}{why}")
    for who in sorted({stall.who for stall in result.stalls}):
        spans = [stall.length_s for stall in result.stalls if stall.who == who]
        _say(
            f"watchdog: {who} starved {len(spans)} times, {sum(spans):.1f} s in all, "
            f"{max(spans):.1f} s at worst; not a fault of the cluster"
        )
    done = ", ".join(f"{count} {who}" for who, count in sorted(result.took_part.items()))
    _say(f"took part (appends, operations, bytes of readers): {done}")
    for name, count in sorted(result.allowed.items()):
        _say(f"allowed by the protocol: {count} times {name}")
    for reason in result.reasons:
        _say(f"not ok: {reason}")
    shortest = result.report.shortest
    if shortest is not None:
        _say(f"the shortest of {result.report.anomaly_count} explanations:\n{shortest}")
    if result.folder is not None:
        _say(f"history, explanation and logs: {result.folder}")
        if not result.is_ok:
            _say(f"explanation: {result.folder / 'explanation.txt'}")


async def _run(config: ChaosConfig, harness: Harness) -> ChaosResult:
    """Run it; SIGTERM ends it as SIGINT does, with all processes and disks that it started."""
    harness.attach()

    def say(text: str) -> None:
        harness.note(text)
        _say(text)

    return await run_chaos(config, say=say)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Returns: 0 if all is well, 1 if not, 2 if it was starved or could not be started."""
    # Read when the first channel is made: what breaks here is meant to, and gRPC need not log it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        config = _config(_parse(arguments))
        harness = Harness(
            "chaos", f"seed={config.seed}", planned_s=_START_AND_END_S + _SLOWER * config.duration_s
        )
    except GazetteError as err:
        sys.stderr.write(f"chaos: error: {err}\n")
        return 2

    def play() -> ChaosResult:
        # Clients, proxies and all share this loop: a fast one disturbs the brokers least.
        result = uvloop.run(_run(config, harness))
        _tell(result)
        return result

    return harness.run(play, tell=_say)


if __name__ == "__main__":
    sys.exit(main())
