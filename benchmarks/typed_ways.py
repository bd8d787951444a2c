"""One way of making a typed table of fragments, measured in this process and those that it starts.

``python -m benchmarks.typed_ways CASE`` is what `typed_parsing` starts, with cases as JSON; a line of
what it prints is what one of them found.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.typed_data import JOURNAL
from benchmarks.typed_source import Options, TypedFiles, TypedRows, Work, fragments_of
from benchmarks.typed_table import COLUMNS, UUID_FIELD, ddl, json_ddl
from gazette_platform.lake.engines.spark import open_session
from gazette_platform.platform import tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RESULT", "WAYS", "Case", "Result", "measure", "spark_session"]

TABLE: Final = "bench.typed.orders"
_TICKS: Final = os.sysconf("SC_CLK_TCK")
RESULT: Final = "result: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What to measure."""

    way: str
    root: str
    """Of the fragments."""
    warm: str
    """Of a few others, with which everything is started before the clock is."""
    cores: int = 2
    memory: str = "1g"
    spark: dict[str, str] = field(default_factory=dict)
    """Configuration besides."""
    table: dict[str, str] = field(default_factory=dict)
    """Properties of the table besides."""
    partitioned: bool = False
    """Whether the table is partitioned by the day of `placed_at`."""
    source: dict[str, str] = field(default_factory=dict)
    """Options of the data source besides."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What was found."""

    start_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of all processes, in `wall_s`."""
    python_s: float = 0.0
    """Of it, that of Python."""
    rows: int = 0
    bad: int = -1
    """-1: the way does not report it."""
    sums: tuple[int, int, int, int] = (0, 0, 0, 0)
    stored_bytes: int = 0
    files: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the workers' threads."""
    commit_s: float = 0.0
    """Of `wall_s`, that of the commit alone; 0: not told apart."""


def cpu_of_session() -> dict[str, float]:
    """CPU seconds of all processes of this session, with children that ended, by their program."""
    found: Counter[str] = Counter()
    session = os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has ended
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = text.rpartition(")")[2].split()
        if int(fields[3]) == session:
            kind = "java" if name == "java" else "python"
            found[kind] += sum(map(int, fields[11:15])) / _TICKS
    return dict(found)


def _configuration(case: Case, folder: Path) -> dict[str, str]:
    catalog = "spark.sql.catalog.bench"
    return {
        "spark.master": f"local[{case.cores}]",
        "spark.app.name": "typed-parsing",
        "spark.driver.memory": case.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": str(tools.iceberg_spark_runtime()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(case.cores),
        "spark.sql.files.maxPartitionBytes": "256m",
        "spark.sql.warehouse.dir": str(folder / "spark"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(folder / "warehouse"),
        f"{catalog}.cache-enabled": "false",
        **case.spark,
    }


@contextmanager
def spark_session(case: Case, folder: Path) -> Iterator[SparkSession]:
    os.environ["JAVA_HOME"] = str(tools.java(21))
    spark = open_session(_configuration(case, folder))
    spark.dataSource.register(TypedRows)
    spark.dataSource.register(TypedFiles)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS bench.typed")
    try:
        yield spark
    finally:
        spark.stop()


def _create(spark: SparkSession, case: Case) -> None:
    spark.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
    properties = {
        "format-version": "2",
        "write.parquet.compression-codec": "zstd",
        "write.parquet.compression-level": "1",
        "write.distribution-mode": "none",
        **case.table,
    }
    listed = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
    layout = "PARTITIONED BY (days(placed_at))" if case.partitioned else ""
    spark.sql(f"CREATE TABLE {TABLE} ({ddl()}) USING iceberg {layout} TBLPROPERTIES ({listed})")


def _by_from_json(spark: SparkSession, options: Options) -> None:
    """Spark's reader of text, and its function for JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415  slow to import

    text = spark.read.text(str(options.root / JOURNAL), recursiveFileLookup=True)
    how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
    good = f.is_valid_utf8("value")
    parsed = f.from_json(f.when(good, f.col("value")).otherwise("?"), json_ddl(), how)
    _append(text.select(parsed.alias("j")).select("j.*"))


def _by_json_source(spark: SparkSession, options: Options) -> None:
    """Spark's own source of JSON, which parses bytes."""
    frame = spark.read.schema(json_ddl()).json(
        str(options.root / JOURNAL),
        mode="PERMISSIVE",
        columnNameOfCorruptRecord="_bad",
        recursiveFileLookup=True,
    )
    _append(frame)


def _append(frame: DataFrame) -> None:
    """Records of Spark's JSON without bad ones and ACKs; the clock is looked at as a reader would."""
    from pyspark.sql import Observation, functions as f  # noqa: PLC0415  slow to import

    uuid = f"{UUID_FIELD}.uuid"
    flags = f.conv(f.substring(uuid, 20, 4), 16, 10).cast("int").bitwiseAND(1023)
    clock = f.concat(f.substring(uuid, 16, 3), f.substring(uuid, 10, 4), f.substring(uuid, 1, 8))
    columns = [f.col(f"`{each.key}`").alias(each.name) for each in COLUMNS]
    seen = Observation()
    read = frame.observe(
        seen,
        f.count_if(f.col("_bad").isNotNull()).alias("bad"),
        f.max(flags).alias("flags"),
        f.max(clock).alias("clock"),
    )
    kept = read.where(f.col("_bad").isNull() & (flags != 2))
    kept.select(*columns).writeTo(TABLE).append()
    _SEEN["bad"] = seen.get["bad"]


_SEEN: dict[str, Any] = {}


def _by_rows(spark: SparkSession, options: Options) -> None:
    """The Python source's rows, written by Spark."""
    frame = spark.read.format("typed_rows").options(**options.texts()).load()
    frame.writeTo(TABLE).append()


def _by_files(spark: SparkSession, options: Options) -> None:
    """The Python source's files; Spark's driver commits their names."""
    iceberg = spark._jvm.org.apache.iceberg  # noqa: SLF001  there is no other way to Iceberg's API
    session = spark._jsparkSession  # noqa: SLF001
    table = iceberg.spark.Spark3Util.loadIcebergTable(session, TABLE)
    target = Path(table.location().removeprefix("file:")) / "data"
    target.mkdir(parents=True, exist_ok=True)
    names = [name for each in COLUMNS for name in _paths(each.name, each.arrow)]
    ids = {name: table.schema().findField(name).fieldId() for name in names}
    told = {**options.texts(), "target": str(target), "field_ids": json.dumps(ids)}
    rows = spark.read.format("typed_files").options(**told).load().collect()
    begun = time.monotonic()
    append = table.newAppend()
    metrics = iceberg.MetricsConfig.forTable(table)
    for row in rows:
        file = table.io().newInputFile(row["path"])
        built = iceberg.DataFiles.builder(table.spec()).withInputFile(file).withFormat("parquet")
        told_by_footer = iceberg.parquet.ParquetUtil.fileMetrics(file, metrics)
        append.appendFile(built.withMetrics(told_by_footer).build())
    append.commit()
    _SEEN["commit_s"] = time.monotonic() - begun


def _paths(prefix: str, kind: Any) -> Iterator[str]:
    import pyarrow as pa  # noqa: PLC0415

    yield prefix
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _paths(f"{prefix}.{kind.field(index).name}", kind.field(index).type)
    elif pa.types.is_list(kind):
        yield from _paths(f"{prefix}.element", kind.value_type)


def _arrow_alone(_: Case, options: Options) -> None:
    """The work of `files` in one process and thread, without Spark and a table."""
    options.target.mkdir(parents=True, exist_ok=True)
    for fragment in fragments_of(options.root):
        Work(options).file(fragment)


def _worker_alone(_: Case, options: Options) -> None:
    """What was built: the product's worker."""
    from benchmarks.typed_worker import work  # noqa: PLC0415  slow to import

    options.target.mkdir(parents=True, exist_ok=True)
    _SEEN["bad"] = work(options)


def _duckdb_alone(case: Case, options: Options) -> None:
    """DuckDB's reader of JSON. It takes what is not a value of a column for NULL."""
    import duckdb  # noqa: PLC0415

    options.target.mkdir(parents=True, exist_ok=True)
    kinds = ", ".join(f"'{each.key}': '{each.duckdb}'" for each in COLUMNS)
    names = ", ".join(f'"{each.key}" AS {each.name}' for each in COLUMNS)
    paths = [str(options.root / fragment.content_path) for fragment in fragments_of(options.root)]
    with duckdb.connect(config={"threads": case.cores, "memory_limit": "2GB"}) as connection:
        connection.execute("SET TimeZone='UTC'")
        connection.execute(
            f"COPY (SELECT {names} FROM read_json({paths}, format='newline_delimited', "
            f"ignore_errors=true, columns={{'{UUID_FIELD}': 'STRUCT(uuid VARCHAR)', {kinds}}}) "
            f"WHERE {UUID_FIELD} IS NOT NULL) "
            f"TO '{options.target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, "
            "PER_THREAD_OUTPUT true, OVERWRITE_OR_IGNORE true)"
        )


_SPARK: Final[dict[str, Callable[[Any, Options], None]]] = {
    "from_json": _by_from_json,
    "json_source": _by_json_source,
    "rows": _by_rows,
    "files": _by_files,
}
_ALONE: Final[dict[str, Callable[[Case, Options], None]]] = {
    "arrow": _arrow_alone,
    "duckdb": _duckdb_alone,
    "worker": _worker_alone,
}
WAYS: Final = (*_SPARK, *_ALONE)


def measure(cases: Sequence[Case], folder: Path) -> Iterator[Result]:
    """Run cases of one way, one after the other, and before them a small one that starts everything.

    Spark is configured by the first.
    """
    first, begun = cases[0], time.monotonic()
    with ExitStack() as stack:
        spark = None
        if first.way in _SPARK:
            spark = stack.enter_context(spark_session(first, folder))
        _run(spark, replace(first, root=first.warm), folder / "warm")
        start_s = time.monotonic() - begun
        for number, case in enumerate(cases):
            result = _run(spark, case, folder / f"run-{number}")
            result.start_s = start_s
            yield result


def _run(spark: SparkSession | None, case: Case, folder: Path) -> Result:
    result, notes, target = Result(), folder / "notes", folder / "files"
    notes.mkdir(parents=True)
    given = {"root": case.root, "notes": str(notes), "target": str(target)}
    options = Options.of({**given, **case.source})
    _SEEN.clear()
    if spark is None:
        with _timed(result):
            _ALONE[case.way](case, options)
        _sum_of_files(target, result)
    else:
        _create(spark, case)
        with _timed(result):
            _SPARK[case.way](spark, options)
        _sum_of_table(spark, result)
    result.bad, result.commit_s = _SEEN.get("bad", -1), _SEEN.get("commit_s", 0.0)
    _gather(notes, result)
    shutil.rmtree(folder)
    return result


@contextmanager
def _timed(result: Result) -> Iterator[None]:
    before, begun = cpu_of_session(), time.monotonic()
    yield
    result.wall_s = time.monotonic() - begun
    used = {kind: value - before.get(kind, 0.0) for kind, value in cpu_of_session().items()}
    result.cpu_s, result.python_s = sum(used.values()), used.get("python", 0.0)


def _sum_of_table(spark: SparkSession, result: Result) -> None:
    row = spark.sql(
        "SELECT count(*) n, sum(order_id) o, sum(quantity) q, cast(sum(amount) * 100 AS bigint) c "
        f"FROM {TABLE}"
    ).first()
    files = spark.sql(
        f"SELECT count(*) n, sum(file_size_in_bytes) b, sum(record_count) r FROM {TABLE}.files"
    ).first()
    assert row is not None
    assert files is not None
    result.sums = (row["n"], row["o"] or 0, row["q"] or 0, row["c"] or 0)
    result.rows, result.files, result.stored_bytes = row["n"], files["n"], files["b"] or 0


def _sum_of_files(folder: Path, result: Result) -> None:
    import duckdb  # noqa: PLC0415

    files = list(folder.rglob("*.parquet"))
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT count(*), sum(order_id), sum(quantity), cast(sum(amount) * 100 AS bigint) "
            f"FROM read_parquet({[str(file) for file in files]})"
        ).fetchone()
    assert found is not None
    result.sums = tuple(int(value or 0) for value in found)
    result.rows, result.files = result.sums[0], len(files)
    result.stored_bytes = sum(file.stat().st_size for file in files)


def _gather(notes: Path, result: Result) -> None:
    stages: Counter[str] = Counter()
    tasks = [json.loads(path.read_text()) for path in notes.glob("task-*.json")]
    for task in tasks:
        stages.update(task["stages"])
    result.stages = dict(stages)
    if tasks:
        result.bad = sum(task["bad"] for task in tasks)


def main() -> int:
    """Run the cases of the command line."""
    cases = [Case(**each) for each in json.loads(sys.argv[1])]
    with tempfile.TemporaryDirectory(prefix="typed-way-", dir=Path(cases[0].warm).parent) as folder:
        for result in measure(cases, Path(folder)):
            print(RESULT + json.dumps(asdict(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
