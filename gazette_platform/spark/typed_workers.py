"""Spark as the workers of typed runs: local, a cluster, or behind Spark Connect."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.typed.runs import jobs
from gazette_platform.lake.typed.runs.working import discard
from gazette_platform.spark.interrupting import SPARKS, interruptible
from gazette_platform.spark.typed_merge import SparkMerger
from gazette_platform.spark.typed_orders import NAME, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    from gazette_platform.lake.typed.planning.rounds import Done, Order
    from gazette_platform.lake.typed.runs.jobs import Job

__all__ = ["SparkWorkers"]

# Servers of Spark Connect take messages of up to 128 MiB.
_ORDERS_BYTES_MAX: Final = 64 << 20
# Spark finds data sources by name, so that one set of orders is under way in a process.
_turn = threading.Lock()


@final
class SparkWorkers:
    """Has Spark carry out orders, each in a task of its own, as many side by side as it has cores.

    A task whose worker is killed is tried again by Spark, on a cluster up to `spark.task.maxFailures` times, and
    locally as often as the master says (``local[N,4]``). An error that a worker tells is not: the client has tried
    again what may pass.

    Args:
        session: whose Python workers have this package, of this release. The caller stops it.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def merger(self) -> SparkMerger:
        """See `Workers`."""
        return SparkMerger(self._session)

    def carry_out(self, job: Job, orders: Sequence[Order]) -> list[Done]:
        """See `Workers`. An interrupt ends the tasks that are under way.

        Raises: LakeError, also: Spark cannot be reached, or its workers end, or lack this package.
        """
        sent = jobs.dump_job(job)
        done: list[Done] = []
        errors: list[GazetteError] = []
        for group in _groups([jobs.dump_order(order) for order in orders]):
            for is_error, content in self._answers(job, sent, group):
                if is_error:
                    errors.append(jobs.parse_error(content))
                else:
                    done.append(jobs.parse_done(content))
            if errors:
                # What others have written would be left to maintenance.
                for one in done:
                    discard(job, one.output)
                raise errors[0]
        return done

    def _answers(self, job: Job, sent: bytes, orders: Sequence[bytes]) -> list[tuple[bool, bytes]]:
        """Of each order, in their order, whether it is an error, and what."""

        def collect() -> pa.Table:
            sources = self._session.dataSource
            sources.register(source_of(sent, orders))
            try:
                return self._session.read.format(NAME).load().toArrow()
            finally:
                # Sessions hold what was registered last, with all that opens brokers and stores.
                sources.register(source_of(b"", ()))

        try:
            with _turn:
                rows = interruptible(self._session, collect)
        except SPARKS as err:
            raise LakeError(
                f"Spark did not carry out the orders of {job.spec.name}: {_why(err)}"
            ) from err
        parts: list[list[bytes]] = [[] for _ in orders]
        errors = [False] * len(orders)
        for row in rows.to_pylist():
            errors[row["number"]] |= row["is_error"]
            parts[row["number"]].append(row["content"])
        return list(zip(errors, map(b"".join, parts), strict=True))


def _groups(orders: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Orders that travel together."""
    group: list[bytes] = []
    size = 0
    for order in orders:
        if group and size + len(order) > _ORDERS_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(order)
        size += len(order)
    if group:
        yield group


def _why(error: Exception) -> str:
    """What is wrong at the root, in a line, and what to do: Spark gives traces of two languages."""
    text = str(error)
    if (missing := re.search(r"No module named '(gazette_platform[\w.]*|\w+)", text)) is not None:
        return (
            f"its Python workers have no {missing[1]}: install this release of gazette-platform[spark,lake] for the "
            "Python that executors run (PYSPARK_PYTHON)"
        )
    if "Python worker exited unexpectedly" in text or "ExecutorLostFailure" in text:
        return (
            "its workers ended before they were done, each time that it tried again: were they killed, for want of "
            "memory? Give them more, or fewer cores; the logs of executors tell"
        )
    # Of the last trace of Python, what it ends with.
    *_, last = text.rpartition("Traceback (most recent call last):")
    found = re.search(r"^\S.*", last.lstrip("\n"), re.MULTILINE)
    return text.partition("\n")[0] if found is None else found[0]
