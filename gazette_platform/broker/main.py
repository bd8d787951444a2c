"""The process of a broker: from its start until it was told to leave, or failed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import uvloop

from gazette_platform.broker.serve import Broker
from gazette_platform.ops.limits import raise_file_limit
from gazette_platform.ops.memory import settle_memory, tune_malloc
from gazette_platform.ops.stacks import describe_tasks, describe_threads
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.process.signals import HURRIED_S, Signals, on_loop_error
from gazette_platform.serving.process.watchdog import Watchdog

if TYPE_CHECKING:
    from gazette_platform.broker.config import BrokerConfig

__all__ = ["run"]

_log = logging.getLogger(__name__)


def run(config: BrokerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    A second signal ends it at once, and --broker.drain-timeout within some time, whatever hangs.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """
    raise_file_limit()
    tune_malloc()
    watchdog = Watchdog()
    uvloop.run(_run(config, watchdog))


async def _run(config: BrokerConfig, watchdog: Watchdog) -> None:
    loop = asyncio.get_running_loop()
    broker = Broker(config)
    loop.set_exception_handler(lambda loop, context: on_loop_error(broker, loop, context))
    watchdog.describe = lambda: f"{describe_tasks(loop)}\n{describe_threads()}"
    signals = Signals(broker, watchdog, flag="broker.drain-timeout")
    try:
        await _serve(broker, signals)
    finally:  # threads that hang in a disk or a store would keep the interpreter from ending
        watchdog.arm(HURRIED_S, "a thread of it hangs")


async def _serve(broker: Broker, signals: Signals) -> None:
    try:
        if not await _starts(broker, signals):
            await broker.abandon()
            return
    except BaseException:
        await broker.abandon()
        raise
    settle_memory()
    broker.keep_small()
    watching = TaskGroup("signals")
    stopped = watching.spawn(signals.stop.wait(), name="stop")
    failed = watching.spawn(broker.failed.wait(), name="failure")
    await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
    await watching.close()
    failure = broker.failure if broker.failed.is_set() else None
    signals.leave()
    left = await broker.drain() if failure is None else await broker.fail()
    if left:
        _log.error(
            "%d fragments were not persisted, and only the spools of this broker have them (start it "
            "again with its --broker.spool-dir; in a cluster with brokers of Gazette they are lost)",
            len(left),
        )
    if failure is not None:
        raise failure


async def _starts(broker: Broker, signals: Signals) -> bool:
    """Start, however long we have to wait for etcd or an earlier instance.

    Returns: False: a signal came first.
    """
    try:
        async with asyncio.timeout(None) as signals.starting:
            await broker.start()
    except TimeoutError:
        if not signals.stop.is_set():
            raise
        _log.info("stopped before it was ready")
        return False
    finally:
        signals.starting = None
    return True
