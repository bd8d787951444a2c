"""The Spark of a life: that of a server, which outlives it; or one of its own, which is killed with it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gazette_platform.errors import LakeError
from gazette_platform.lake.engines.spark import is_connect, start_session
from gazette_platform.spark.typed_workers import SparkMerger

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.lake import LakeSettings
    from gazette_platform.lake.typed.tables.upserts import Merge
    from tests.lake_crash.faults import Calls

__all__ = ["CountingMerger", "kill_engine", "open_engine"]

# Of other processes, which a Spark of your own must not heed.
_CONNECTED = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE")


def open_engine(settings: LakeSettings, java: str) -> Any:
    """A session of Spark.

    Args:
        settings: whose master it is.
        java: home of a Java.

    Raises: as `start_session`.
    """
    if not is_connect(settings.spark_master):
        os.environ["JAVA_HOME"] = java
        for name in _CONNECTED:
            os.environ.pop(name, None)
    return start_session(settings, memory="512m")


def kill_engine() -> None:
    """Kill the Java of this process, if it has one."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        with suppress(ProcessLookupError):
            os.kill(gateway.proc.pid, signal.SIGKILL)


class CountingMerger:
    """A merger whose merges count, each as a call, and that they are done as another one.

    Args:
        calls: count.
        session: opens a session of Spark, once it is needed.
    """

    def __init__(self, calls: Calls, session: Callable[[], Any]) -> None:
        self._calls, self._session = calls, session

    def merge(self, merge: Merge) -> None:
        """See `Merger`."""
        merger = SparkMerger(self._session())
        self._calls.call(
            "merge", lambda: merger.merge(merge), lambda: LakeError("cut off on purpose")
        )
        self._calls.call("staged", lambda: None)
