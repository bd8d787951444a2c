"""Calls of Spark that end when a signal comes."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import InheritableThread
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SPARKS: Final = PySparkException, Py4JError, OSError
"""What calls of Spark raise."""

# Tasks that are asked to end do within seconds, if what they wait for does.
_INTERRUPT_S: Final = 30.0

_T = TypeVar("_T")


def interruptible(session: SparkSession, call: Callable[[], _T]) -> _T:
    """What `call` gives. It runs in a thread of its own: calls of Spark do not end when a signal comes.

    Args:
        session: runs its Spark jobs, which end with this.
    """
    tag = f"gazette-{uuid.uuid4().hex}"
    future: Future[_T] = Future()

    def run() -> None:
        try:
            session.addTag(tag)
            future.set_result(call())
        except BaseException as err:  # noqa: BLE001  the waiting thread raises it
            future.set_exception(err)

    thread = InheritableThread(target=run, session=session, name="gazette-spark", daemon=True)
    thread.start()
    try:
        return future.result()
    except BaseException:
        if not future.done():
            with suppress(*SPARKS):
                session.interruptTag(tag)
            thread.join(_INTERRUPT_S)
        raise
