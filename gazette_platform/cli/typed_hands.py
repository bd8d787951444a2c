"""Who reads journals and writes files for commands of typed tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, final

from gazette_platform.cli.gazctl_lake_typed import Engine
from gazette_platform.cli.step_line import StepLine
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.spark import running_session
from gazette_platform.lake.typed.runs.jobs import Workers
from gazette_platform.lake.typed.runs.working import local_workers

__all__ = ["Hands", "workers_of"]


@final
class Hands(NamedTuple):
    """Workers, and whether they can still be asked."""

    workers: Workers
    is_alive: Callable[[], bool]


@contextmanager
def workers_of(settings: LakeSettings, engine: Engine | None, line: StepLine) -> Iterator[Hands]:
    """Workers of an engine; Spark ends with it.

    Args:
        settings: of Spark.
        engine: who is asked for; None: Spark, if it is configured.
        line: says that Spark is starting.

    Raises: SetupError, LakeError: Spark is not configured, or does not start.
    """
    is_configured = bool(settings.metastore and settings.iceberg_jar)
    if engine is Engine.LOCAL or (engine is None and not is_configured):
        yield Hands(local_workers(), lambda: True)
        return
    from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415  an extra, and slow
        Py4JError,
    )
    from pyspark.errors import PySparkException  # noqa: PLC0415  as well

    from gazette_platform.spark.typed_workers import SparkWorkers  # noqa: PLC0415  as well

    line.step("starting Spark")
    with running_session(settings) as session:

        def is_alive() -> bool:
            try:
                session.range(1).count()
            except (PySparkException, Py4JError, OSError):
                return False
            return True

        yield Hands(SparkWorkers(session), is_alive)
