"""A process of an application: from its start until it was told to leave, or failed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import uvloop

from gazette_platform.consumer.process.serve import ConsumerProcess
from gazette_platform.ops.limits import raise_file_limit
from gazette_platform.ops.stacks import describe_tasks, describe_threads
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.process.signals import HURRIED_S, Signals, on_loop_error
from gazette_platform.serving.process.watchdog import Watchdog

if TYPE_CHECKING:
    from gazette_platform.consumer.application import Application
    from gazette_platform.consumer.process.config import ConsumerConfig

__all__ = ["run"]

_log = logging.getLogger(__name__)


def run(application: Application[Any, Any], config: ConsumerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then hand over.

    A second signal ends it at once, and --consumer.drain-timeout within some time, whatever hangs.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """
    raise_file_limit()
    watchdog = Watchdog()
    uvloop.run(_run(application, config, watchdog))


async def _run(
    application: Application[Any, Any], config: ConsumerConfig, watchdog: Watchdog
) -> None:
    loop = asyncio.get_running_loop()
    process = ConsumerProcess(application, config)
    loop.set_exception_handler(lambda loop, context: on_loop_error(process, loop, context))
    watchdog.describe = lambda: f"{describe_tasks(loop)}\n{describe_threads()}"
    signals = Signals(process, watchdog, flag="consumer.drain-timeout")
    try:
        await _serve(process, signals)
    finally:  # threads that hang in a disk or a database would keep the interpreter from ending
        watchdog.arm(HURRIED_S, "a thread of it hangs")


async def _serve(process: ConsumerProcess, signals: Signals) -> None:
    try:
        if not await _starts(process, signals):
            await process.abandon()
            return
    except BaseException:
        await process.abandon()
        raise
    watching = TaskGroup("signals")
    stopped = watching.spawn(signals.stop.wait(), name="stop")
    failed = watching.spawn(process.failed.wait(), name="failure")
    await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
    await watching.close()
    failure = process.failure if process.failed.is_set() else None
    signals.leave()
    if failure is None:
        await process.drain()
        return
    await process.fail()
    raise failure


async def _starts(process: ConsumerProcess, signals: Signals) -> bool:
    """Start, however long we have to wait for etcd or an earlier instance.

    Returns: False: a signal came first.
    """
    try:
        async with asyncio.timeout(None) as signals.starting:
            await process.start()
    except TimeoutError:
        if not signals.stop.is_set():
            raise
        _log.info("stopped before it was ready")
        return False
    finally:
        signals.starting = None
    return True
