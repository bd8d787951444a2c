"""The command line; the last line says how it went, and so does the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.testing.etcd import find_etcd
from tests.chaos.plan import FaultKind
from tests.harness import Harness
from tests.kafka_chaos.runner import KINDS, KafkaChaosConfig, run_kafka_chaos

if TYPE_CHECKING:
    from tests.kafka_chaos.runner import KafkaChaosResult

# The hard end of a run: what comes before and after its faults, and how much longer those may take than planned.
_START_AND_END_S = 600.0
_SLOWER = 2.0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka_chaos",
        description="Break brokers and Kafka clients on purpose, and check what became of each record.",
    )
    add = parser.add_argument
    add("--seed", type=int, default=41, help="of all faults (default %(default)s)")
    add("--minutes", type=float, default=10.0, help="of faults (default %(default)s)")
    add("--replication", type=int, default=2, help="of the topics (default %(default)s)")
    add("--zones", default="", help="a letter for each broker (default: one more than replicas)")
    add("--lease", type=float, default=6.0, help="seconds (default %(default)s)")
    add("--faults", default="", help=f"comma-separated, of: {', '.join(KINDS)} (default: all)")
    add("--java", action="store_true", help="run Kafka's own programs in Java as well")
    add("--out", type=Path, help="folder to keep history and logs in (default: only on failure)")
    return parser.parse_args(arguments)


def _config(options: argparse.Namespace) -> KafkaChaosConfig:
    etcd = find_etcd()
    if etcd is None:
        raise SetupError(
            "no etcd found: install Debian's etcd-server, or name a binary by GAZETTE_ETCD"
        )
    try:
        kinds = tuple(FaultKind(name) for name in options.faults.split(",") if name) or KINDS
    except ValueError as err:
        raise SetupError(f"--faults: {err}; choose from {', '.join(KINDS)}") from None
    zones = options.zones or (3 * "abc")[: max(3, options.replication + 1)]
    if options.minutes <= 0 or not 2 <= options.replication < len(zones):
        raise SetupError(
            f"--minutes must be positive, and --replication from 2 to {len(zones) - 1}: brokers leave, and "
            f"--zones makes {len(zones)}"
        )
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        raise SetupError(f"--out: {options.out} is not empty; name another folder")
    return KafkaChaosConfig(
        etcd_binary=etcd,
        seed=options.seed,
        duration_s=60 * options.minutes,
        replication=options.replication,
        zones=tuple(zones),
        lease_s=options.lease,
        kinds=kinds,
        has_java=options.java,
        folder=options.out,
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _run(config: KafkaChaosConfig, harness: Harness) -> KafkaChaosResult:
    harness.attach()

    def say(text: str) -> None:
        harness.note(text)
        _say(text)

    return await run_kafka_chaos(config, say=say)


def main(arguments: list[str] | None = None) -> int:
    """Run it. Returns: 0 if all is well, 1 if not, 2 if it was starved or could not be started."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        config = _config(_parse(arguments))
        harness = Harness(
            "kafka-chaos",
            f"seed={config.seed}",
            planned_s=_START_AND_END_S + _SLOWER * config.duration_s,
        )
    except GazetteError as err:
        sys.stderr.write(f"kafka-chaos: error: {err}\n")
        return 2

    def play() -> KafkaChaosResult:
        result = uvloop.run(_run(config, harness))
        done = ", ".join(f"{count} {what}" for what, count in sorted(result.harmed.items()))
        _say(f"clients: {done}")
        for reason in result.reasons:
            _say(f"not ok: {reason}")
        if result.folder is not None:
            _say(f"history and logs: {result.folder}")
        return result

    return harness.run(play, tell=_say)


if __name__ == "__main__":
    sys.exit(main())
