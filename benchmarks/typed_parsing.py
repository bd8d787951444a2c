"""``python -m benchmarks.typed_parsing``: ways from fragments to typed tables, and their speed.

A proof by itself; docs/internals/typed-parsing.md describes it. Groups: `ways` compares all on the same data,
`codecs` and `bad` vary that, `tuning` what can be set, `linear` goes on to 2 GiB with the way that was chosen, `worker` is what
was built of it. Each
way runs in processes of its own; memory is reported as the most that they had at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from benchmarks import figures as results, machine
from benchmarks.typed_data import Plan, link_fragments, write_fragments
from benchmarks.typed_ways import RESULT, Case, Result
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.platform import tools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Figures
    from benchmarks.typed_data import Truth

__all__ = ["GROUPS", "Measured", "Step", "main", "run_steps"]

_ROOT: Final = Path(__file__).resolve().parents[1]
_LATEST: Final = Path(__file__).with_name("results") / "typed_parsing.json"
_MIB: Final = 1 << 20
_WARM: Final = Plan(content_bytes=8 * _MIB, fragment_bytes=4 * _MIB, bad_share=1e-4)
_SAMPLE_S: Final = 0.1
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A case, by the data that it is given."""

    label: str
    way: str
    plan: Plan
    settings: dict[str, Any] = field(default_factory=dict)
    """Of `Case`, besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A case, what it should have found, what it found, and the memory that it took."""

    step: Step
    truth: Truth
    result: Result
    jvm_bytes: int
    python_bytes: int
    """Of all Python processes together, each with the pages that it shares."""
    load: float
    """The machine's, of the last minute."""

    @property
    def is_right(self) -> bool:
        """Whether all good records are rows, once, and bad ones were counted."""
        result, truth = self.result, self.truth
        return tuple(result.sums) == truth.sums and result.bad in (truth.bad, -1)

    def figures(self) -> Figures:
        """By name, which begins with the step's label."""
        megabytes, result = self.truth.content_bytes / 1e6, self.result
        found = {
            "mb": megabytes,
            "mb_per_s_per_core": megabytes / result.cpu_s,
            "wall_mb_per_s": megabytes / result.wall_s,
            "python_cpu_share": result.python_s / result.cpu_s,
            "commit_s": result.commit_s,
            "stored_ratio": result.stored_bytes / self.truth.content_bytes,
            "jvm_rss_gb": self.jvm_bytes / 1e9,
            "python_rss_gb": self.python_bytes / 1e9,
            "rows_right": float(self.is_right),
            "load": self.load,
        }
        found |= {f"{name}_cpu_s_per_gb": s / megabytes * 1e3 for name, s in result.stages.items()}
        return {f"{self.step.label}_{name}": value for name, value in found.items()}


def _groups() -> dict[str, list[Step]]:
    plan = Plan(content_bytes=512 * _MIB, bad_share=1e-4)
    half = replace(plan, content_bytes=256 * _MIB)
    ways = ("files", "rows", "json_source", "from_json", "arrow", "duckdb")
    codecs = [
        Step(label=f"{way}_{codec.lower()}", way=way, plan=replace(half, codec=codec))
        for way, of in {
            "files": ("GZIP", "NONE", "ZSTANDARD"),
            "json_source": ("GZIP", "NONE"),
        }.items()
        for codec in of
    ]
    bad = [
        Step(label=f"{way}_bad_{name}", way=way, plan=replace(half, bad_share=share))
        for way in ("files", "json_source")
        for name, share in (("0", 0.0), ("1_percent", 1e-2))
    ]
    small = replace(plan, content_bytes=64 * _MIB)
    bad += [
        Step(
            label=f"arrow_{repair}_{name}",
            way="arrow",
            plan=replace(small, bad_share=share),
            settings={"source": {"repair": repair}},
        )
        for name, share in (("0_01_percent", 1e-4), ("1_percent", 1e-2))
        for repair in ("bisect", "hint", "lines")
    ]
    transactions = replace(small, bad_share=0.0, transactions=True)
    bad.append(Step(label="arrow_transactions", way="arrow", plan=transactions))
    tuning = [
        Step(label=f"{way}_{name}", way=way, plan=half, settings=settings)
        for way, name, settings in (
            ("arrow", "as_is", {}),
            ("arrow", "snappy", {"source": {"codec": "snappy"}}),
            ("arrow", "zstd_3", {"source": {"level": "3"}}),
            ("arrow", "block_4_mib", {"source": {"block_bytes": str(4 * _MIB)}}),
            ("arrow", "block_256_kib", {"source": {"block_bytes": str(_MIB // 4)}}),
            ("arrow", "block_16_mib", {"source": {"block_bytes": str(16 * _MIB)}}),
            ("rows", "as_is", {}),
            ("rows", "batch_2000", {"source": {"batch_rows": "2000"}}),
            ("rows", "snappy", {"table": {"write.parquet.compression-codec": "snappy"}}),
            ("rows", "days_none", {"partitioned": True}),
            (
                "rows",
                "days_hash",
                {"partitioned": True, "table": {"write.distribution-mode": "hash"}},
            ),
        )
    ]
    linear = [
        Step(label=f"files_{size}_mib", way="files", plan=replace(plan, content_bytes=size * _MIB))
        for size in (512, 1024, 2048)
    ]
    return {
        "ways": [Step(label=way, way=way, plan=plan) for way in ways],
        "codecs": codecs,
        "bad": bad,
        "tuning": tuning,
        "linear": linear,
        "worker": _worker(plan),
    }


def _worker(plan: Plan) -> list[Step]:
    """What the product's worker does, by data and partitions."""
    return [
        Step(label=f"worker_{name}", way="worker", plan=replace(plan, **data), settings=settings)
        for name, data, settings in (
            ("gzip", {}, {}),
            ("uncompressed", {"codec": "NONE"}, {}),
            ("bad_0", {"bad_share": 0.0}, {}),
            ("bad_1_percent", {"bad_share": 1e-2}, {}),
            ("by_day", {}, {"source": {"partitions": "day(placed_at)"}}),
            ("by_16_buckets", {}, {"source": {"partitions": "bucket(16,order_id)"}}),
            ("by_1000_buckets", {}, {"source": {"partitions": "bucket(1000,order_id)"}}),
        )
    ]


GROUPS: Final = _groups()


class _Memory:
    """The most memory that the processes of a session had at a time, by JVM and Python."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._ended = threading.Event()
        self.peak: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            now: Counter[str] = Counter()
            for path in Path("/proc").glob("[0-9]*/stat"):
                try:
                    text = path.read_text()
                except OSError:  # it has ended
                    continue
                fields = text.rpartition(")")[2].split()
                # Others are programs that the JVM is about to become, or asks for a moment.
                kind = next((each for each in ("java", "python") if f"({each}" in text), "")
                if int(fields[3]) == self._session and kind:
                    now[kind] += int(fields[21]) * _PAGE
            self.peak |= now


def run_steps(steps: list[Step], folder: Path, *, warm: Plan = _WARM) -> Iterator[Measured]:
    """Measure steps, those of one way one after the other in the same processes.

    Args:
        folder: for fragments and tables; fragments of earlier steps are used again.
        warm: what everything is started with.

    Raises: SetupError: a way failed.
    """
    for way in dict.fromkeys(step.way for step in steps):
        of_way = [step for step in steps if step.way == way]
        truths = [_fragments(folder, step.plan)[1] for step in of_way]
        warm_root = str(_fragments(folder, warm)[0])
        cases = [
            Case(
                way=way,
                root=str(_fragments(folder, step.plan)[0]),
                warm=warm_root,
                **step.settings,
            )
            for step in of_way
        ]
        found = _children(cases)
        for step, truth, (result, memory) in zip(of_way, truths, found, strict=True):
            yield Measured(
                step=step,
                truth=truth,
                result=result,
                jvm_bytes=memory["java"],
                python_bytes=memory["python"],
                load=os.getloadavg()[0],
            )


def _fragments(folder: Path, plan: Plan) -> tuple[Path, Truth]:
    """The fragments of a plan, and what is in them; those of the largest of its kind are linked."""
    kind = "-".join(str(value) for name, value in asdict(plan).items() if name != "content_bytes")
    source = folder / f"data-{kind}"
    truth = write_fragments(source, plan)
    root = folder / f"fragments-{kind}-{plan.content_bytes}"
    if not root.exists():
        link_fragments(source, root, plan)
    return root, truth


def _children(cases: list[Case]) -> Iterator[tuple[Result, Counter[str]]]:
    told = json.dumps([asdict(case) for case in cases])
    # Spark's workers import what is pickled by name.
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JAVA_HOME": str(tools.java(21))}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.typed_ways", told],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,
        ) as child,
    ):
        assert child.stdout is not None
        try:
            with _Memory(child.pid) as memory:
                for line in child.stdout:
                    if line.startswith(RESULT):
                        yield Result(**json.loads(line.removeprefix(RESULT))), memory.peak
                        memory.peak = Counter()
        except BaseException:
            child.kill()  # its JVM ends when it does
            raise
        if child.wait():
            errors.seek(0)
            raise SetupError(f"{cases[0].way} failed: {errors.read()[-4000:]}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.typed_parsing")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--ways", nargs="+", help="only these of the groups")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the data, which is 64 MiB to 2 GiB a case"
    )
    parser.add_argument("--folder", type=Path, help="where fragments are kept for other runs")
    parser.add_argument(
        "--output", type=Path, default=_LATEST, help="result to add to (default: %(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="write no result")
    return parser.parse_args()


def _versions() -> dict[str, str]:
    names = ("pyspark", "pyarrow", "duckdb", "msgspec")
    found = {name: metadata.version(name) for name in names}
    iceberg = tools.iceberg_spark_runtime().stem.rpartition("-")[2]
    return machine.versions() | found | {"iceberg-spark-runtime": iceberg}


def main() -> int:
    """Run, and give the exit status: 1 if a way that claims to be right is not."""
    arguments, clock = _arguments(), SystemClock()
    is_right = True
    try:
        with tempfile.TemporaryDirectory(prefix="typed-parsing-") as temporary:
            folder = arguments.folder or Path(temporary)
            for group in arguments.only:
                steps = [
                    replace(step, plan=_scaled(step.plan, arguments.scale))
                    for step in GROUPS[group]
                    if not arguments.ways or step.way in arguments.ways
                ]
                for measured in run_steps(steps, folder):
                    figures = measured.figures()
                    is_right &= measured.is_right or measured.step.way == "duckdb"
                    print(_line(measured), flush=True)
                    if not arguments.dry_run:
                        _keep(arguments.output, figures, clock)
    except GazetteError as err:
        print(f"typed_parsing: {err}", file=sys.stderr)
        return 2
    return 0 if is_right else 1


def _scaled(plan: Plan, scale: float) -> Plan:
    fragment = min(plan.fragment_bytes, int(plan.content_bytes * scale / 2))
    return replace(plan, content_bytes=int(plan.content_bytes * scale), fragment_bytes=fragment)


def _line(measured: Measured) -> str:
    label = measured.step.label
    shown = {
        name.removeprefix(f"{label}_"): results.rounded(value)
        for name, value in measured.figures().items()
    }
    return f"{label}: " + "  ".join(f"{name} {value:g}" for name, value in shown.items())


def _keep(output: Path, figures: Figures, clock: SystemClock) -> None:
    result = {
        "date": clock.now().isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "versions": _versions(),
        "figures": {name: results.rounded(value) for name, value in figures.items()},
    }
    results.write(output, results.merged(results.load(output), result))


if __name__ == "__main__":
    sys.exit(main())
